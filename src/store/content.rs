//! Content by hash, each once: small in the database, so that it commits with what refers to it; large as a file.
//! [`purge`] lets go of what backups had.

pub(super) mod purge;

use std::collections::HashSet;
use std::fs::File;
use std::io;

use rusqlite::OptionalExtension;

use super::database::Database;
use super::disk::layout::StateDirs;
use super::rows::upper::UpperId;
use super::{Context, Error, Result};
use crate::model::Digest;
use crate::sys::sqlite::Transaction;
use crate::sys::tree::Place;
use crate::sys::{Mode, OFlags, RenameFlags, file};

/// Content up to here goes into the database: a commit costs less than a file of its own.
pub(super) const INLINE_BYTES_MAX: u64 = 64 * 1024;

/// Content up to here is returned as bytes: more than any text that is compared. With holes a file can exceed any memory.
const READ_BYTES_MAX: u64 = 8 << 20;

/// Content that is safe in a file, or ready to be committed with the transaction that needs it.
#[derive(Clone, Debug)]
pub struct StagedContent {
    pub digest: Digest,
    pub size: u64,
    inline: Option<Vec<u8>>,
}

impl StagedContent {
    pub fn of(bytes: Vec<u8>) -> Self {
        Self { digest: Digest::of(&bytes), size: bytes.len() as u64, inline: Some(bytes) }
    }

    pub(super) fn commit(&self, tx: &Transaction<'_>) -> Result<()> {
        let mut statement =
            tx.prepare_cached("INSERT INTO content (sha256, size, bytes) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING")?;
        statement.execute((self.digest.to_string(), self.size as i64, self.inline.as_deref()))?;
        Ok(())
    }
}

impl super::Store {
    /// Makes a file's content safe: by reflink or copy, never by a link, which an open descriptor could still write to.
    /// If the file was written to meanwhile, returns an error for which [`file::has_changed_meanwhile`] is true.
    pub fn stage_content(&self, source: &File) -> Result<StagedContent> {
        self.stage(source, file::copy_content)
    }

    /// Like [`Self::stage_content`], for content that is only compared with: takes what it finds, even during a write.
    pub fn stage_found(&self, source: &File) -> Result<StagedContent> {
        self.stage(source, file::copy_as_found)
    }

    fn stage(&self, source: &File, copy: impl FnOnce(&File, &File) -> io::Result<()>) -> Result<StagedContent> {
        let size = source.metadata().doing(|| "stat content to keep".to_owned())?.len();
        if size <= INLINE_BYTES_MAX {
            match file::read_about(source, size, INLINE_BYTES_MAX) {
                // It has grown: it is large by now.
                Err(err) if file::has_changed_meanwhile(&err) => {}
                read => return Ok(StagedContent::of(read.doing(|| "read content to keep".to_owned())?)),
            }
        }
        self.stage_large(source, size, copy).map_err(|err| match err {
            Error::Io { doing, cause } if !file::has_changed_meanwhile(&cause) => Error::Unkept { doing, cause },
            other => other,
        })
    }

    /// Keeps the file of an upper entry by giving it one more name, for a disk that is too full for a copy. Nothing may
    /// write to it from then on. Returns `None` if kept content stands on another file system.
    pub fn stage_by_name(&self, id: UpperId, digest: Digest, size: u64) -> Result<Option<StagedContent>> {
        self.begin_generation()?;
        let doing = || format!("keep {size} bytes of content by name");
        // Before the content has its name: from here on no purge takes the name away.
        self.note_use(digest);
        let (kept, upper) = (self.dirs.content_place(&digest.to_string()), self.dirs.stage_place(id));
        match upper.link(&kept) {
            Err(err) if err.raw_os_error() == Some(libc::EXDEV) => return Ok(None),
            // The same bytes are kept already.
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {
                if !is_kept(&kept, digest, size).doing(doing)? {
                    link_over(&upper, &kept).doing(doing)?;
                }
            }
            linked => linked.doing(doing)?,
        }
        self.unsynced.note_content(digest);
        Ok(Some(StagedContent { digest, size, inline: None }))
    }

    /// Takes back [`Self::stage_by_name`], with its row, for a landing that was promised and has not come about. Content
    /// that something else needs by now stays, and so does content that was kept before, which is a file of its own.
    pub fn unstage(&self, id: UpperId, digest: Digest) -> Result<()> {
        let doing = || "take back content kept by name".to_owned();
        let (kept, upper) = (self.dirs.content_place(&digest.to_string()), self.dirs.stage_place(id));
        let inode = |place: &Place| place.stat().map(|meta| meta.map(|meta| meta.number())).doing(doing);
        let ours = inode(&upper)?;
        if self.is_halted() || ours.is_none() || inode(&kept)? != ours {
            return Ok(());
        }
        let is_based_on = self.content_of_rows()?.contains(&digest) || self.promised()?.contains(&digest);
        let needed = self.vitally(|| {
            self.database.lock().write(|tx| {
                let hex = digest.to_string();
                let needed = is_based_on || tx.prepare("SELECT 1 FROM backup WHERE sha256 = ?1")?.exists([&hex])?;
                if !needed {
                    tx.execute("DELETE FROM content WHERE sha256 = ?1 AND bytes IS NULL", [&hex])?;
                }
                Ok(needed)
            })
        })?;
        if needed { Ok(()) } else { remove_file(&self.dirs, &digest.to_string()) }
    }

    /// Fails if staged content is gone, because nothing may name it then: after a long time a purge takes staged content
    /// for forgotten. From here on no purge takes it.
    pub(super) fn check_kept(&self, contents: &[StagedContent]) -> Result<()> {
        for content in contents.iter().filter(|content| content.inline.is_none()) {
            let doing = || format!("keep {} bytes of content", content.size);
            self.note_use(content.digest);
            let kept = self.dirs.content_place(&content.digest.to_string()).stat().doing(doing)?;
            kept.ok_or(io::ErrorKind::NotFound.into()).doing(doing)?;
        }
        Ok(())
    }

    fn stage_large(
        &self,
        source: &File,
        size: u64,
        copy_content: impl FnOnce(&File, &File) -> io::Result<()>,
    ) -> Result<StagedContent> {
        self.begin_generation()?;
        let doing = || format!("keep {size} bytes of content");
        let temp = self.dirs.content_place(&passing_name());
        let copy = temp.create(OFlags::RDWR, Mode::RUSR | Mode::WUSR).map(File::from).doing(doing)?;
        let digest = self.dirs.give_to_owner(&copy).and_then(|()| copy_content(source, &copy));
        let digest = digest.and_then(|()| file::digest(&copy));
        let digest = match digest {
            Ok(digest) => digest,
            Err(err) => {
                temp.unlink().doing(doing)?;
                return Err(err).doing(doing);
            }
        };
        // Before the content has its name: from here on no purge takes the name away.
        self.note_use(digest);
        let named = copy.metadata().doing(doing).and_then(|copy| {
            let place = self.dirs.content_place(&digest.to_string());
            // A kept file that is on disk stays: the copy is not on disk yet, and a power cut might leave neither.
            match is_kept(&place, digest, copy.len()).doing(doing)? {
                true => temp.unlink().doing(doing)?,
                false => temp.rename(&place, RenameFlags::empty()).doing(doing)?,
            }
            self.unsynced.note_content(digest);
            Ok(copy.len())
        });
        match named {
            Ok(size) => Ok(StagedContent { digest, size, inline: None }),
            Err(err) => {
                temp.unlink().doing(doing)?;
                Err(err)
            }
        }
    }

    /// Remembers content that no backup names yet, such as the base of a held change.
    pub fn keep_content(&self, staged: &StagedContent) -> Result<()> {
        self.note_use(staged.digest);
        self.database.lock().write(|tx| staged.commit(tx))
    }

    pub(super) fn has_content(&self, digest: Digest) -> Result<bool> {
        Ok(inline_bytes(&self.database.lock(), digest)?.is_some())
    }

    /// Returns kept content by its hash, or `None` if there is none, or it is too large to be read at once. Damaged
    /// content is an error, as unreadable content is: it must not take anything's place.
    pub fn content(&self, digest: Digest) -> Result<Option<Vec<u8>>> {
        let Some(bytes) = self.unchecked_content(digest)? else { return Ok(None) };
        check_is(digest, Digest::of(&bytes)).map(|()| Some(bytes))
    }

    /// Like [`Self::content`], but as a file descriptor and of any size.
    pub fn content_file(&self, digest: Digest) -> Result<Option<File>> {
        let Some(file) = self.unchecked_content_file(digest)? else { return Ok(None) };
        let found = file::digest(&file).doing(|| format!("read kept content {digest}"))?;
        check_is(digest, found).map(|()| Some(file))
    }

    /// Like [`Self::content`], without checking the hash. For comparisons while a writer waits: no byte of it lands.
    pub fn unchecked_content(&self, digest: Digest) -> Result<Option<Vec<u8>>> {
        let doing = || format!("read kept content {digest}");
        match self.find_content(digest)? {
            None => Ok(None),
            Some(Found::Inline(bytes)) => Ok(Some(bytes)),
            Some(Found::InFile(file)) => match file.metadata().doing(doing)?.len() {
                0..=READ_BYTES_MAX => file::read_all(&file, READ_BYTES_MAX).doing(doing).map(Some),
                _ => Ok(None),
            },
        }
    }

    pub fn unchecked_content_file(&self, digest: Digest) -> Result<Option<File>> {
        match self.find_content(digest)? {
            None => Ok(None),
            Some(Found::Inline(bytes)) => file::in_memory(&bytes).doing(|| "open kept content".to_owned()).map(Some),
            Some(Found::InFile(file)) => Ok(Some(file)),
        }
    }

    /// Drops large content that is damaged and that nothing needs, such as what an undone landing was to replace: a power
    /// cut may have left its row and not its bytes. If content is kept elsewhere, what is missing is no loss yet.
    pub(super) fn drop_damaged_content(&self) -> Result<()> {
        if !self.dirs.has_own_content() || !self.knows_places()? {
            return Ok(());
        }
        let needed = self.content_of_rows()?;
        for (digest, size) in self.large_without_backup()?.into_iter().filter(|(digest, _)| !needed.contains(digest)) {
            let name = digest.to_string();
            if is_kept(&self.dirs.content_place(&name), digest, size).doing(|| format!("stat content {name}"))? {
                continue;
            }
            let forget = "DELETE FROM content WHERE sha256 = ?1";
            self.database.lock().write(|tx| Ok(tx.execute(forget, [&name]).map(|_| ())?))?;
            remove_file(&self.dirs, &name)?;
        }
        Ok(())
    }

    /// Returns the content that changes are based on and that anchors name.
    fn content_of_rows(&self) -> Result<HashSet<Digest>> {
        let bases = self.load_upper()?.into_iter().flat_map(|row| row.base.contents());
        let anchors = self.load_anchors()?.into_iter().filter_map(|anchor| Some(anchor.known.kept()?.digest));
        Ok(bases.chain(anchors).collect())
    }

    /// Returns the content that is kept in files and is no backup, with its size.
    fn large_without_backup(&self) -> Result<Vec<(Digest, u64)>> {
        let query = "SELECT sha256, size FROM content
                     WHERE bytes IS NULL AND sha256 NOT IN (SELECT sha256 FROM backup)";
        let database = self.reading()?;
        let mut statement = database.reader().prepare(query)?;
        let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)? as u64)))?;
        let rows = rows.collect::<rusqlite::Result<Vec<_>>>()?;
        Ok(rows.into_iter().filter_map(|(hex, size)| Some((Digest::parse(&hex)?, size))).collect())
    }

    fn find_content(&self, digest: Digest) -> Result<Option<Found>> {
        self.note_use(digest);
        let inline = inline_bytes(&self.database.lock(), digest)?;
        match inline {
            None => Ok(None),
            Some(Some(bytes)) => Ok(Some(Found::Inline(bytes))),
            Some(None) => open_large(&self.dirs, digest).map(|file| Some(Found::InFile(file))),
        }
    }
}

/// Kept content, in the form in which it is kept.
enum Found {
    Inline(Vec<u8>),
    InFile(File),
}

/// Returns `None` if there is no such content, and `Some(None)` if it is in a file.
fn inline_bytes(database: &Database, digest: Digest) -> Result<Option<Option<Vec<u8>>>> {
    let mut statement = database.reader().prepare_cached("SELECT bytes FROM content WHERE sha256 = ?1")?;
    Ok(statement.query_row([digest.to_string()], |row| row.get(0)).optional()?)
}

fn open_large(dirs: &StateDirs, digest: Digest) -> Result<File> {
    open_kept(&dirs.content_place(&digest.to_string())).doing(|| format!("open kept content {digest}"))
}

pub(super) fn open_kept(place: &Place) -> io::Result<File> {
    match place.open(OFlags::RDONLY) {
        // Content that is kept by name has the mode that the view showed.
        Err(err) if err.raw_os_error() == Some(libc::EACCES) => super::disk::layout::open_despite_mode(place),
        opened => opened.map(File::from),
    }
}

/// True if large content is there and is what its name says. Unreadable content is not.
fn is_kept(place: &Place, digest: Digest, size: u64) -> io::Result<bool> {
    let is_sound = || open_kept(place).and_then(|kept| file::digest(&kept)).is_ok_and(|found| found == digest);
    // The length reveals most damage without a read.
    Ok(place.stat()?.is_some_and(|meta| meta.is_file() && meta.size == size) && is_sound())
}

/// Gives an upper file the name of kept content that is damaged.
fn link_over(upper: &Place, kept: &Place) -> io::Result<()> {
    let temp = kept.sibling(passing_name());
    upper.link(&temp)?;
    temp.rename(kept, RenameFlags::empty()).inspect_err(|_| {
        if let Err(err) = temp.unlink() {
            log::error!("remove a name of content: {err}");
        }
    })
}

/// Returns a name for a file that is about to be kept or to go. The next start removes leftover files with such names.
pub(super) fn passing_name() -> String {
    format!("new-{}", super::journal::landing::random_suffix())
}

fn check_is(digest: Digest, found: Digest) -> Result<()> {
    match found == digest {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, format!("it is damaged, and has hash {found}")))
            .doing(|| format!("read kept content {digest}")),
    }
}

/// Deletes the file of content that nothing names any more, if it has one.
pub(super) fn remove_file(dirs: &StateDirs, name: &str) -> Result<()> {
    match dirs.content_place(name).unlink() {
        Err(err) if err.kind() != io::ErrorKind::NotFound => Err(err).doing(|| format!("remove content {name}")),
        _ => Ok(()),
    }
}
