//! One side of a comparison: what is or was at a path, with its bytes where they are few enough to compare.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, OnceLock};

use super::claim::Job;
use crate::diff::{self, TEXT_BYTES_MAX};
use crate::model::{Digest, Looks, RelPath};
use crate::overlay::error::Context;
use crate::overlay::{Overlay, Result};
use crate::store::{self, Kept, StagedContent, UpperRow, Version, What};
use crate::sys::file::{self, FileKind, Listed, Meta, Standing};
use crate::sys::haste;

/// One side of a comparison: what is or was at a path.
#[derive(Clone, Debug, Default)]
pub(in crate::overlay) struct Side {
    /// None: nothing is there.
    pub kind: Option<FileKind>,
    pub size: u64,
    pub mode: u32,
    /// A symlink's target, or a file's bytes where they are few enough to compare.
    pub bytes: Option<Vec<u8>>,
    pub file: Option<Arc<File>>,
    /// An upper directory, FIFO, socket or device, for its attributes.
    pub node: Option<Arc<File>>,
    pub meta: Option<Meta>,
    pub digest: Option<Digest>,
    /// The number of lines, counted before the bytes were dropped.
    pub counted: Option<u64>,
    /// Who may do what by its access list; read when first needed.
    pub listed: OnceLock<Listed>,
}

impl Side {
    pub(in crate::overlay) fn exists(&self) -> bool {
        self.kind.is_some()
    }

    pub(in crate::overlay) fn is_file(&self) -> bool {
        self.kind == Some(FileKind::Regular)
    }

    pub(in crate::overlay) fn is_dir(&self) -> bool {
        self.kind == Some(FileKind::Directory)
    }

    pub(in crate::overlay) fn is_symlink(&self) -> bool {
        self.kind == Some(FileKind::Symlink)
    }

    /// True if it holds descriptors until it is closed; a symlink's target is all there is to it.
    pub(in crate::overlay) fn has_descriptors(&self) -> bool {
        self.exists() && !self.is_symlink()
    }

    /// Judging a file must not count as reading it: its access time may have been set a moment ago, and lands with it.
    pub fn of_file(file: impl Into<Arc<File>>) -> std::io::Result<Self> {
        let file = file.into();
        file::keep_access_time(&file)?;
        let meta = Meta::of(file.as_fd())?;
        Self::of_open(file, meta)
    }

    /// The same for an open file, whose attributes are `meta`.
    fn of_open(file: Arc<File>, meta: Meta) -> std::io::Result<Self> {
        haste::may_take(meta.size)?;
        let (meta, bytes) = match meta.size <= TEXT_BYTES_MAX {
            true => match file::read_about(&file, meta.size, TEXT_BYTES_MAX) {
                // A program has made it larger at this very moment.
                Err(err) if file::has_changed_meanwhile(&err) => (Meta::of(file.as_fd())?, None),
                read => (meta, Some(read?)),
            },
            false => (meta, None),
        };
        Ok(Self {
            kind: Some(FileKind::Regular),
            size: meta.size,
            mode: meta.mode,
            bytes,
            file: Some(file),
            meta: Some(meta),
            ..Self::default()
        })
    }

    pub fn of_symlink(target: &std::ffi::OsStr, meta: Meta) -> Self {
        let bytes = target.as_bytes().to_vec();
        Self {
            kind: Some(FileKind::Symlink),
            size: bytes.len() as u64,
            mode: 0o777,
            bytes: Some(bytes),
            meta: Some(meta),
            ..Self::default()
        }
    }

    /// A side without content: a directory, FIFO, socket or device.
    pub(in crate::overlay) fn of_structure(meta: Meta) -> Self {
        Self { kind: Some(meta.kind), mode: meta.mode, meta: Some(meta), ..Self::default() }
    }

    /// Kept content of a path that now has the permissions `mode`.
    pub(super) fn of_kept(bytes: Vec<u8>, kept: Kept, mode: u32) -> Self {
        let (kind, mode) = if kept.symlink { (FileKind::Symlink, 0o777) } else { (FileKind::Regular, mode) };
        let (size, digest) = (bytes.len() as u64, Some(kept.digest));
        Self { kind: Some(kind), size, mode, bytes: Some(bytes), digest, ..Self::default() }
    }

    /// The same for content too large to be read.
    pub(super) fn of_large_kept(file: File, kept: Kept, mode: u32) -> std::io::Result<Self> {
        // It has no attributes, like kept content that is read.
        Ok(Self { mode, meta: None, digest: Some(kept.digest), ..Self::of_file(file)? })
    }

    /// A file's bytes where writing them makes the same file: small ones without holes.
    pub(super) fn small_whole(&self) -> Option<&[u8]> {
        let is_so = self.meta.is_some_and(|meta| file::is_small_and_whole(meta.size, meta.blocks));
        self.bytes.as_deref().filter(|_| is_so && self.is_file())
    }

    pub(in crate::overlay) fn text(&self) -> &[u8] {
        self.bytes.as_deref().unwrap_or_default()
    }

    pub fn digest(&mut self) -> std::io::Result<Option<Digest>> {
        if self.digest.is_none() {
            self.digest = self.hash()?;
        }
        Ok(self.digest)
    }

    /// The same, without remembering the result.
    pub(in crate::overlay) fn hash(&self) -> std::io::Result<Option<Digest>> {
        Ok(match (&self.bytes, &self.file) {
            (Some(bytes), _) => Some(Digest::of(bytes)),
            (None, Some(file)) => Some(file::digest(file)?),
            (None, None) => None,
        })
    }

    /// What is remembered of this side; its content is kept by its hash.
    pub(in crate::overlay) fn kept(&mut self) -> std::io::Result<Option<Kept>> {
        self.digest()?;
        Ok(self.known())
    }

    /// The same, or `None` if its content was not hashed yet.
    pub(in crate::overlay) fn known(&self) -> Option<Kept> {
        self.digest.map(|digest| self.kept_as(digest))
    }

    pub(in crate::overlay) fn kept_as(&self, digest: Digest) -> Kept {
        Kept { digest, symlink: self.is_symlink() }
    }

    pub(in crate::overlay) fn standing(&self) -> Standing {
        Standing::new(self.kind, self.meta.map_or(0, |meta| meta.special_device))
    }

    /// This side without descriptors and without the bytes of files: if very many changes are confirmed at once, neither
    /// memory nor the limit of open files has room for those.
    pub(in crate::overlay) fn closed(self) -> Self {
        let counted = self.lines();
        let bytes = self.bytes.filter(|_| self.file.is_none());
        Self { bytes, counted, file: None, node: None, ..self }
    }

    /// This side as it was opened anew; `None` if it is another by now.
    pub(in crate::overlay) fn reopened(&self, opened: Self) -> Option<Self> {
        let (closed, now) = (self.meta?.stamp(), opened.meta?.stamp());
        let same = self.kind == opened.kind && closed.has_same_content(&now);
        same.then_some(Self { digest: self.digest, ..opened })
    }

    /// The number of lines, if the content is small enough for counting.
    pub(in crate::overlay) fn lines(&self) -> Option<u64> {
        let Some(bytes) = &self.bytes else { return self.counted };
        let breaks = memchr::memchr_iter(b'\n', bytes).count();
        Some((breaks + usize::from(bytes.last().is_some_and(|byte| *byte != b'\n'))) as u64)
    }

    /// What an operation remembers of this side; `content` is its content, if that is known.
    pub(in crate::overlay) fn version(&self, content: Option<Kept>) -> Option<Version> {
        let meta = self.meta.filter(|_| self.is_file() || self.is_symlink())?;
        Some(Version { group: self.masked_group(), ..Version::of(&meta, content) })
    }

    /// What an entry with this side brings besides content.
    pub(in crate::overlay) fn looks(&self, row: &UpperRow) -> std::io::Result<Looks> {
        let file = self.file.as_deref().map(AsFd::as_fd);
        self.meta.map_or(Ok(Looks::default()), |meta| row.own_looks(file, &meta))
    }

    pub(in crate::overlay) fn masked_group(&self) -> Option<u32> {
        file::gives_group(self.mode).then(|| self.listed().masked_group()).flatten()
    }

    pub(in crate::overlay) fn listed(&self) -> &Listed {
        let ask = || self.file.as_ref().map_or(Listed::Nobody, |file| Listed::of(file.as_fd()));
        self.listed.get_or_init(ask)
    }

    pub(in crate::overlay) fn diff_side(&self) -> diff::Side {
        match (&self.bytes, self.exists()) {
            (_, false) => diff::Side::Absent,
            (Some(bytes), true) => diff::classify(Some(bytes)),
            (None, true) => diff::Side::Large,
        }
    }

    pub(in crate::overlay) fn same_as(&self, other: &Self) -> std::io::Result<bool> {
        if (self.kind, self.size) != (other.kind, other.size) {
            return Ok(false);
        }
        match (&self.bytes, &other.bytes, &self.file, &other.file) {
            (Some(ours), Some(theirs), ..) => Ok(ours == theirs),
            (_, _, Some(ours), Some(theirs)) => file::same_content(ours, theirs),
            _ => Ok(!self.exists()),
        }
    }

    /// This side's content, complete and unchanging, for a backup.
    pub fn stage(&self, store: &store::Store) -> store::Result<Option<StagedContent>> {
        self.stage_by(|file| store.stage_content(file))
    }

    /// The same for content to judge against: as it is found, even while someone is writing to it.
    pub fn stage_found(&self, store: &store::Store) -> store::Result<Option<StagedContent>> {
        self.stage_by(|file| store.stage_found(file))
    }

    fn stage_by(
        &self,
        stage: impl FnOnce(&File) -> store::Result<StagedContent>,
    ) -> store::Result<Option<StagedContent>> {
        match (&self.bytes, &self.file) {
            (Some(bytes), _) if bytes.len() <= 64 * 1024 || self.file.is_none() => {
                Ok(Some(StagedContent::of(bytes.clone())))
            }
            (_, Some(file)) => stage(file).map(Some),
            (Some(_), None) | (None, None) => Ok(None),
        }
    }
}

impl Overlay {
    /// Keeps what is compared with later: it must be there even when the file is replaced from outside.
    pub(in crate::overlay) fn keep_to_compare(&self, side: &Side) -> Result<()> {
        match side.stage(&self.store)? {
            Some(content) => Ok(self.store.keep_content(&content)?),
            None => Ok(()),
        }
    }

    /// The side that is judged. A file that its writer has open is not opened once more.
    pub(super) fn job_side(&self, job: &Job) -> Result<Side> {
        match job.open.as_ref().and_then(|open| open.upper_file(job.row.id)) {
            Some(file) => Side::of_file(file).doing(|| format!("read {}", job.row.path())),
            None => self.row_side(&job.row),
        }
    }

    pub(in crate::overlay) fn row_side(&self, row: &UpperRow) -> Result<Side> {
        let doing = || format!("read {}", row.path());
        match row.what {
            What::Whiteout => Ok(Side::default()),
            What::File => Side::of_file(self.store.read_upper(row.id)?).doing(doing),
            What::Symlink => {
                let target = self.store.upper_place(row.id).read_symlink().doing(doing)?;
                Ok(Side::of_symlink(&target, self.store.upper_meta(row.id)?))
            }
            What::Dir | What::Node => {
                let side = Side::of_structure(self.store.upper_meta(row.id)?);
                Ok(Side { node: Some(Arc::new(self.upper_node(row.id)?)), ..side })
            }
        }
    }
}

impl Overlay {
    /// What lower has at a path.
    pub(in crate::overlay) fn present_side(&self, path: &RelPath) -> Result<Side> {
        let doing = || format!("read {path} below");
        if self.is_known_file(path)
            && let Some(side) = self.file_side(path).doing(doing)?
        {
            return Ok(side);
        }
        let Some(found) = self.lower.find(path).doing(doing)? else { return Ok(Side::default()) };
        let meta = Meta::of(found.as_fd()).doing(doing)?;
        match meta.kind {
            FileKind::Regular => {
                let file = file::reopen_quietly(found.as_fd()).doing(doing)?;
                // Only once it is open, because opening may have changed its `ctime`.
                Meta::of(file.as_fd()).and_then(|meta| Side::of_open(Arc::new(file), meta)).doing(doing)
            }
            FileKind::Symlink => {
                let target = self.lower.place(path)?.read_symlink().doing(doing)?;
                Ok(Side::of_symlink(&target, meta))
            }
            _ => Ok(Side::of_structure(meta)),
        }
    }

    /// The same, opened without a look first. `None` if it is no file by now or may not be opened so; then a look tells.
    fn file_side(&self, path: &RelPath) -> std::io::Result<Option<Side>> {
        let file = match self.lower.open_quietly(path) {
            Ok(file) => file,
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(Some(Side::default())),
            Err(_) => return Ok(None),
        };
        let meta = Meta::of(file.as_fd())?;
        meta.is_file().then(|| Side::of_open(Arc::new(file), meta)).transpose()
    }

    /// True if a file was there at the kernel's last look, so that it can be opened unseen. Opening a pipe would wake its
    /// other end, and opening a device may do anything.
    fn is_known_file(&self, path: &RelPath) -> bool {
        let state = self.state.lock();
        let node = state.nodes.at(path).and_then(|node| state.nodes.get(node).ok());
        node.is_some_and(|node| node.kind == FileKind::Regular)
    }
}
