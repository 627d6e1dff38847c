//! The content of open files: reading, writing, and making it durable.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::copy_up::Keep;
use super::handles::{Access, Handle, HandleId, OpenFile, OpenFlags, Target};
use super::set_id::{drop_set_id, drop_set_id_of};
use crate::model::RelPath;
use crate::overlay::error::Context;
use crate::overlay::state::limits::{Extent, Position};
use crate::overlay::state::nodes::NodeId;
use crate::overlay::{Caller, Error, Overlay, Result};
use crate::policy::rules::Action;
use crate::sys::file::{self, FileKind};
use crate::sys::haste;
use crate::sys::tree;

impl Overlay {
    pub fn read(&self, handle: HandleId, offset: u64, size: usize) -> Result<Vec<u8>> {
        let handle = self.handle(handle)?;
        file::read_at(&handle.readable(), offset, size).doing(|| format!("read at {offset}"))
    }

    /// A write from the kernel's page cache, which does not say on whose behalf.
    pub fn write(&self, handle: HandleId, offset: u64, data: &[u8]) -> Result<usize> {
        if let Some(open) = self.handle(handle)?.judged() {
            open.changed_quietly.store(true, Ordering::SeqCst);
        }
        self.write_by(handle, Position::At(offset), data, &Caller::KERNEL)
    }

    pub fn write_by(&self, handle: HandleId, to: Position, data: &[u8], caller: &Caller) -> Result<usize> {
        let handle = self.handle(handle)?;
        let extent = Extent { begins: to, length: data.len() as u64 };
        self.change_content(&handle, Keep::Content, (caller, extent), |file| write_to(file, to, data))
    }

    /// The same for a caller that may not keep set-id bits.
    pub fn write_unprivileged(&self, handle: HandleId, to: Position, data: &[u8], caller: &Caller) -> Result<usize> {
        let handle = self.handle(handle)?;
        let extent = Extent { begins: to, length: data.len() as u64 };
        self.change_content(&handle, Keep::Content, (caller, extent), |file| {
            drop_set_id(file, caller)?;
            write_to(file, to, data)
        })
    }

    /// Applies `change` to the content of the handle's file, in upper unless it passes.
    pub(super) fn change_content<T>(
        &self,
        handle: &Handle,
        keep: Keep,
        (caller, extent): (&Caller, Extent),
        change: impl FnOnce(&File) -> io::Result<T>,
    ) -> Result<T> {
        self.check_writable()?;
        let open = match &handle.target {
            Target::Passed(passed) => return Ok(change(passed.writable()?)?),
            Target::Judged(open) => open,
        };
        let under_way = open.begin_write();
        let ready = self.make_ready(handle, open, keep, extent);
        let file = ready.inspect_err(|_| self.leave_to_its_close(handle, open))?;
        if extent.begins != Position::End {
            open.note_rewritten();
        }
        // Before the bytes: a judgement under way must not take this handle for finished.
        let first = !handle.note_written();
        if first {
            self.witness.look(*caller, &handle.seen);
            self.note_program(handle, open);
            self.store.record_rows().inspect_err(|_| handle.note_unrecorded())?;
            let meta = file::Meta::of(file.as_fd());
            let lends = meta.and_then(|meta| self.lend_nothing(&file, &meta));
            lends.doing(|| "change the mode of what is written".to_owned())?;
        }
        let result = change(&file);
        if first {
            // The program may exit right after its write, or exec another one.
            handle.seen.wait();
        }
        self.note_room(open, &file)?;
        // And after the bytes: the close of another descriptor may have judged in between, without them.
        handle.note_written();
        drop(under_way);
        match result {
            // The state directory is on a read-only file system: the upper file could only be opened for reading.
            Err(err) if err.raw_os_error() == Some(libc::EBADF) => Err(Error::Errno(libc::EROFS)),
            result => Ok(result?),
        }
    }

    /// Returns the file to write to, once everything that has to come before a write is done.
    fn make_ready(&self, handle: &Handle, open: &Arc<OpenFile>, keep: Keep, extent: Extent) -> Result<Arc<File>> {
        self.keep_overwritten_content(open, extent, &handle.opener)?;
        let file = self.writable(open, keep, handle)?;
        self.check_room_in(&file, extent)?;
        Ok(file)
    }

    /// The write failed before it changed anything. A judge that saw it under way has left the file to its writer, so the
    /// close of this handle must have it judged.
    fn leave_to_its_close(&self, handle: &Handle, open: &OpenFile) {
        // What is done once more is this handle's first write then.
        if open.upper().is_some() && !haste::is_refused() {
            handle.note_written();
        }
    }

    /// What a rule says of the program behind a handle counts, even if another handle closes last and has the content
    /// judged.
    fn note_program(&self, handle: &Handle, open: &OpenFile) {
        if !self.policy().names_programs() {
            return;
        }
        let (Some(id), Ok(path)) = (open.upper(), self.path_of(open.node)) else { return };
        if let Action::Hold(source) = self.action_on_content(&path, FileKind::Regular, &handle.opener)
            && let Some(upper) = self.state.lock().uppers.get_mut(id)
        {
            upper.because.push(source.reason());
        }
    }

    /// Empties the file if the open itself asks for that. If it fails, there is no handle.
    pub(super) fn empty_at_open(
        &self,
        id: HandleId,
        open: &Arc<OpenFile>,
        flags: OpenFlags,
        caller: &Caller,
    ) -> Result<()> {
        if !flags.truncates() {
            return Ok(());
        }
        let handle = self.handle(id)?;
        self.empty(&handle, open, caller).inspect_err(|_| {
            if let Err(err) = self.release(id) {
                log::error!("release what could not be emptied: {err}");
            }
        })
    }

    /// The emptied file is judged with the next write, or at the release.
    fn empty(&self, handle: &Handle, open: &Arc<OpenFile>, caller: &Caller) -> Result<()> {
        let _under_way = open.begin_write();
        self.keep_overwritten_content(open, Extent::NONE, &handle.opener)?;
        let may_be_new = open.upper().is_none();
        let file = self.writable(open, Keep::Nothing, handle)?;
        handle.note_began();
        open.note_rewritten();
        self.note_program(handle, open);
        let meta = file::Meta::of(file.as_fd())?;
        let emptied = match may_be_new && meta.size == 0 {
            // The copy-up has just made it, without content.
            true => Ok(()),
            false => file.set_len(0),
        };
        let emptied = emptied.and_then(|()| drop_set_id_of(&file, &meta, caller));
        emptied.and_then(|()| self.lend_nothing(&file, &meta)).doing(|| "truncate".to_owned())?;
        self.note_room(open, &file)
    }

    pub(in crate::overlay) fn truncate(
        &self,
        node: NodeId,
        handle: Option<HandleId>,
        size: u64,
        caller: &Caller,
    ) -> Result<()> {
        if let Some(handle) = handle.and_then(|id| self.handle(id).ok()).filter(|handle| handle.access == Access::Write)
        {
            return self.cut(&handle, size, caller);
        }
        let flags = OpenFlags::from_raw(libc::O_WRONLY);
        let opened = self.open(node, flags, caller)?;
        let done = self.handle(opened.handle).and_then(|handle| self.cut(&handle, size, caller));
        let ended = self.end_change(opened.handle, caller);
        done.and(ended)
    }

    /// If this is refused, nothing that the view shows has changed.
    fn cut(&self, handle: &Handle, size: u64, caller: &Caller) -> Result<()> {
        let keep = if size == 0 { Keep::NothingAtOnce } else { Keep::Content };
        let may_be_new = handle.judged().is_some_and(|open| open.upper().is_none());
        self.change_content(handle, keep, (caller, Extent::NONE), |file| {
            let meta = file::Meta::of(file.as_fd())?;
            drop_set_id_of(file, &meta, caller)?;
            match may_be_new && size == 0 && meta.size == 0 {
                // The copy-up has just made it, without content, and the view shows it already.
                true => Ok(()),
                false => file.set_len(size),
            }
        })
    }

    pub fn fallocate(&self, handle: HandleId, mode: i32, offset: u64, length: u64, caller: &Caller) -> Result<()> {
        let handle = self.handle(handle)?;
        let flags = rustix::fs::FallocateFlags::from_bits_retain(mode as u32);
        let frees = flags.contains(rustix::fs::FallocateFlags::PUNCH_HOLE);
        let extent = if frees { Extent::NONE } else { Extent { begins: Position::At(offset), length } };
        if let Some(open) = handle.judged() {
            open.changed_quietly.store(true, Ordering::SeqCst);
        }
        self.change_content(&handle, Keep::Content, (caller, extent), |file| {
            drop_set_id(file, caller)?;
            Ok(rustix::fs::fallocate(file, flags, offset, length)?)
        })
    }

    /// `SEEK_DATA` and `SEEK_HOLE`; the kernel does the other kinds by itself.
    pub fn lseek(&self, handle: HandleId, offset: i64, whence: i32) -> Result<i64> {
        let handle = self.handle(handle)?;
        let offset = u64::try_from(offset).map_err(|_| Error::Errno(libc::ENXIO))?;
        let from = match whence {
            libc::SEEK_DATA => rustix::fs::SeekFrom::Data(offset),
            libc::SEEK_HOLE => rustix::fs::SeekFrom::Hole(offset),
            _ => return Err(Error::Errno(libc::EINVAL)),
        };
        let position = rustix::fs::seek(handle.readable(), from).map_err(io::Error::from)?;
        i64::try_from(position).map_err(|_| Error::Errno(libc::EOVERFLOW))
    }

    pub fn copy_file_range(
        &self,
        from: HandleId,
        from_offset: u64,
        to: HandleId,
        to_offset: u64,
        length: usize,
        caller: &Caller,
    ) -> Result<usize> {
        let (from, to) = (self.handle(from)?, self.handle(to)?);
        let source = from.readable();
        let extent = Extent { begins: Position::At(to_offset), length: length as u64 };
        self.change_content(&to, Keep::Content, (caller, extent), |file| {
            drop_set_id(file, caller)?;
            let (mut read_at, mut write_at) = (from_offset, to_offset);
            Ok(rustix::fs::copy_file_range(&source, Some(&mut read_at), file, Some(&mut write_at), length)?)
        })
    }

    /// Makes the content durable before it returns; settles nothing (SPEC §4.1). For content in upper that includes its
    /// row: without it recovery would not know whose content it is. Rows older than what is on disk would bring back what
    /// the content replaced.
    pub fn fsync(&self, handle: HandleId, datasync: bool) -> Result<()> {
        let handle = self.handle(handle)?;
        let sync = |file: &File| if datasync { file.sync_data() } else { file.sync_all() };
        let open = match &handle.target {
            Target::Passed(passed) => return Ok(sync(passed.readable())?),
            Target::Judged(open) => open,
        };
        if let Some(landed) = open.upper().and_then(|id| self.note_synced(id)) {
            match self.lower.open_to_read(&landed) {
                Err(err) if tree::is_absent(&err) => {}
                below => sync(&below?).doing(|| format!("fsync {landed}"))?,
            }
        }
        sync(&open.file()).doing(|| "fsync".to_owned())?;
        if let Some(path) = self.landed_at(open.node) {
            self.sync_name(&path, &open.file())?;
        }
        Ok(self.store.sync()?)
    }

    /// Returns the path of a node, if something has landed there.
    fn landed_at(&self, node: NodeId) -> Option<RelPath> {
        let state = self.state.lock();
        state.nodes.path(node).ok().filter(|path| state.seen.contains_key(path))
    }

    /// A landing puts a file at its path by changing names, and syncing the file need not make that durable: btrfs was
    /// seen to bring back what an exchange had replaced. `file` is any file of that file system.
    pub(in crate::overlay) fn sync_name(&self, path: &RelPath, file: &File) -> Result<()> {
        let synced = self.lower.place(path).and_then(|place| place.sync_dir());
        let synced = match synced {
            // The name is gone, together with its directory.
            Err(err) if tree::is_absent(&err) => Ok(()),
            // We may change names in this directory but not open it to sync it, so the whole file system is synced.
            Err(err) if err.kind() == io::ErrorKind::PermissionDenied => {
                rustix::fs::syncfs(file).map_err(io::Error::from)
            }
            other => other,
        };
        synced.doing(|| format!("sync the directory of {path}"))
    }

    /// Makes the names in a directory durable, as the view shows them: those that lower has, and those that are held.
    pub fn sync_dir(&self, dir: NodeId) -> Result<()> {
        let path = self.path_of(dir)?;
        tree::sync_dir(self.dir_in_view(&path)?.as_fd()).doing(|| format!("fsync {path}"))?;
        Ok(self.store.sync_names()?)
    }
}

/// Returns how much was written. A write at an offset may be all or an error, since it can be repeated there. Where an
/// append goes is known only to the file system that has the file: other programs may write to it below.
fn write_to(file: &File, to: Position, data: &[u8]) -> io::Result<usize> {
    match to {
        Position::At(offset) => file.write_all_at(data, offset).map(|()| data.len()),
        Position::End => file::append(file.as_fd(), data),
    }
}
