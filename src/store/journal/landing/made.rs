//! New entries for a landing, each made where it waits to be put at its path.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use crate::model::Timestamp;
use crate::store::rows::operations::NodeLooks;
use crate::sys::file::{self, Meta};
use crate::sys::tree::Place;
use crate::sys::{Mode, OFlags, xattr};

/// What is going to stand at a path.
pub enum NewContent<'a> {
    /// A copy of this file's bytes, with the owner, mode, attributes and times of `like`.
    File { file: &'a File, like: &'a File, meta: Meta },
    /// Like [`Self::File`], of a file that programs go on writing: its bytes as they are found.
    Found { file: &'a File, meta: Meta },
    /// Like [`Self::File`], with these bytes.
    Bytes { bytes: &'a [u8], like: &'a File, meta: Meta },
    /// `times` are those of last access and modification; `None` means now.
    Symlink { target: &'a OsStr, uid: u32, gid: u32, times: Option<(Timestamp, Timestamp)> },
    /// An empty directory with the owner, mode, attributes and times of `like`. Later steps may place what is in it.
    Dir { like: &'a File, meta: Meta },
    /// A FIFO, socket or device, with the attributes of `like` where that is known.
    Node { looks: NodeLooks, like: Option<&'a File> },
}

/// An entry that was made to be placed: under its temporary name, or without a name.
pub(super) struct MadeEntry {
    pub meta: Meta,
    pub nameless: Option<File>,
}

pub(super) fn make_entry(
    waiting: &Place,
    new: &NewContent<'_>,
    needs_name: bool,
    secure: impl FnOnce(&File) -> std::io::Result<()>,
) -> std::io::Result<MadeEntry> {
    match new {
        NewContent::File { file, like, meta } => {
            write_file(waiting, needs_name, (like, meta), |temp| file::copy_content(file, temp), secure)
        }
        NewContent::Found { file, meta } => {
            write_file(waiting, needs_name, (file, meta), |temp| file::copy_as_found(file, temp), secure)
        }
        NewContent::Bytes { bytes, like, meta } => {
            write_file(waiting, needs_name, (like, meta), |temp| temp.write_all_at(bytes, 0), secure)
        }
        NewContent::Symlink { target, uid, gid, times } => {
            waiting.make_symlink(target)?;
            waiting.give_owner(*uid, *gid)?;
            if let Some((access, modification)) = times {
                waiting.set_times(file::to_timespec(*access), file::to_timespec(*modification))?;
            }
            MadeEntry::at(waiting)
        }
        NewContent::Dir { like, meta } => {
            waiting.make_dir(Mode::RWXU)?;
            let temp = File::from(waiting.open(OFlags::RDONLY | OFlags::DIRECTORY)?);
            // It gets its final mode once all is in it.
            file::copy_looks(like.as_fd(), &Meta { mode: meta.mode | 0o700, ..*meta }, temp.as_fd())?;
            MadeEntry::at(waiting)
        }
        NewContent::Node { looks, like } => {
            waiting.make_node(looks.kind, Mode::RUSR | Mode::WUSR, looks.device)?;
            waiting.give_owner(looks.uid, looks.gid)?;
            if let Some(like) = like {
                xattr::copy(like.as_fd(), waiting.open(OFlags::PATH)?.as_fd(), &[])?;
            }
            waiting.set_mode(looks.mode)?;
            waiting.set_times(file::to_timespec(looks.atime), file::to_timespec(looks.mtime))?;
            MadeEntry::at(waiting)
        }
    }
}

impl MadeEntry {
    fn at(waiting: &Place) -> std::io::Result<Self> {
        let meta = waiting.stat()?.ok_or(std::io::ErrorKind::NotFound)?;
        Ok(Self { meta, nameless: None })
    }
}

fn write_file(
    waiting: &Place,
    needs_name: bool,
    (like, meta): (&File, &Meta),
    fill: impl FnOnce(&File) -> std::io::Result<()>,
    secure: impl FnOnce(&File) -> std::io::Result<()>,
) -> std::io::Result<MadeEntry> {
    let mode = file::mode_at_first(meta.mode);
    let nameless = if needs_name { None } else { waiting.create_nameless(mode)? };
    let is_nameless = nameless.is_some();
    let made = nameless.map_or_else(|| waiting.create(OFlags::RDWR, mode).map(File::from), Ok)?;
    fill(&made)?;
    file::copy_metadata(like.as_fd(), meta, made.as_fd())?;
    secure(&made)?;
    Ok(MadeEntry { meta: meta_when_named(&made)?, nameless: is_nameless.then_some(made) })
}

/// The metadata of a file that may have no name yet, as it will be with one.
pub(super) fn meta_when_named(file: &File) -> std::io::Result<Meta> {
    let meta = Meta::of(file.as_fd())?;
    Ok(Meta { links: meta.links.max(1), ..meta })
}
