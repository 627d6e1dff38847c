//! Content by hash, each once: small in the database, so that it commits with what refers to it; large as a file.

use std::collections::HashSet;
use std::fs::File;
use std::io;

use rusqlite::OptionalExtension;

use super::database::Database;
use super::layout::StateDirs;
use super::upper::UpperId;
use super::{Context, Result};
use crate::model::Digest;
use crate::sys::sqlite::Transaction;
use crate::sys::tree::Place;
use crate::sys::{Mode, OFlags, RenameFlags, file};

/// Content up to here goes into the database: a commit costs less than a file of its own.
pub(super) const INLINE_BYTES_MAX: u64 = 64 * 1024;

/// Content up to here is given as bytes: more than any text that is compared. A hole makes a file larger than any memory.
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
    /// Makes a file's content safe: by reflink or copy, never by a link that somebody's open descriptor writes to. An error
    /// [`file::has_changed_meanwhile`] where somebody wrote to it.
    pub fn stage_content(&self, source: &File) -> Result<StagedContent> {
        self.stage(source, file::copy_content)
    }

    /// The same of what is compared with and not replaced: as much of it as is found, whoever is writing.
    pub fn stage_found(&self, source: &File) -> Result<StagedContent> {
        self.stage(source, |source, copy| match file::copy_content(source, copy) {
            Err(err) if file::has_changed_meanwhile(&err) => Ok(()),
            other => other,
        })
    }

    fn stage(&self, source: &File, copy: impl FnOnce(&File, &File) -> io::Result<()>) -> Result<StagedContent> {
        let size = source.metadata().doing(|| "stat content to keep".to_owned())?.len();
        if size <= INLINE_BYTES_MAX {
            return Ok(StagedContent::of(file::read_all(source).doing(|| "read content to keep".to_owned())?));
        }
        self.stage_large(source, size, copy)
    }

    /// Makes the file of an upper entry kept content by one more name, for a disk that is too full for a copy. From then
    /// on nobody may write to it. None where what is kept stands on another file system.
    pub fn stage_by_name(&self, id: UpperId, digest: Digest, size: u64) -> Result<Option<StagedContent>> {
        let doing = || format!("keep {size} bytes of content by name");
        // Before it has its name: from here on no purge takes the name away.
        self.note_use(digest);
        let (kept, upper) = (self.dirs.content_place(&digest.to_string())?, self.dirs.stage_place(id)?);
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

    /// Takes back [`Self::stage_by_name`], with the row of a landing that was promised and has not come to pass. What anything
    /// else needs by now stays, and so does what was kept before, which is a file of its own.
    pub fn unstage(&self, id: UpperId, digest: Digest) -> Result<()> {
        let doing = || "take back content kept by name".to_owned();
        let (kept, upper) = (self.dirs.content_place(&digest.to_string())?, self.dirs.stage_place(id)?);
        let inode = |place: &Place| -> Result<Option<(u64, u64)>> {
            Ok(place.stat().doing(doing)?.map(|meta| (meta.device, meta.inode)))
        };
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

    /// Staged so long ago that a purge took it for forgotten, content may be gone: then nothing may name it. From here on
    /// none takes it.
    pub(super) fn check_kept(&self, contents: &[StagedContent]) -> Result<()> {
        for content in contents.iter().filter(|content| content.inline.is_none()) {
            let doing = || format!("keep {} bytes of content", content.size);
            self.note_use(content.digest);
            let kept = self.dirs.content_place(&content.digest.to_string())?.stat().doing(doing)?;
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
        let doing = || format!("keep {size} bytes of content");
        let temp = self.dirs.content_place(&passing_name())?;
        let copy = temp.create(OFlags::RDWR, Mode::RUSR | Mode::WUSR).map(File::from).doing(doing)?;
        let digest = copy_content(source, &copy).and_then(|()| file::digest(&copy));
        let digest = match digest {
            Ok(digest) => digest,
            Err(err) => {
                temp.unlink().doing(doing)?;
                return Err(err).doing(doing);
            }
        };
        // Before it has its name: from here on no purge takes the name away.
        self.note_use(digest);
        let named = copy.metadata().doing(doing).and_then(|copy| {
            let place = self.dirs.content_place(&digest.to_string())?;
            // What is kept and on disk stays: the copy is not, and a power cut might leave neither.
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

    /// Kept content, by its hash. None also for what is too large to be read at once. What is not what was kept any more is an
    /// error, as what cannot be read is: it must not take anything's place.
    pub fn content(&self, digest: Digest) -> Result<Option<Vec<u8>>> {
        let Some(bytes) = self.unchecked_content(digest)? else { return Ok(None) };
        check_is(digest, Digest::of(&bytes)).map(|()| Some(bytes))
    }

    /// The same as a file descriptor, whatever its size.
    pub fn content_file(&self, digest: Digest) -> Result<Option<File>> {
        let Some(file) = self.unchecked_content_file(digest)? else { return Ok(None) };
        let found = file::digest(&file).doing(|| format!("read kept content {digest}"))?;
        check_is(digest, found).map(|()| Some(file))
    }

    /// To be compared with, while the writer of the other side waits: no byte of it lands.
    pub fn unchecked_content(&self, digest: Digest) -> Result<Option<Vec<u8>>> {
        let doing = || format!("read kept content {digest}");
        match self.find_content(digest)? {
            None => Ok(None),
            Some(Found::Inline(bytes)) => Ok(Some(bytes)),
            Some(Found::InFile(file)) => match file.metadata().doing(doing)?.len() {
                0..=READ_BYTES_MAX => file::read_all(&file).doing(doing).map(Some),
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

    /// Lets large content go that is not what its name says and that nothing needs, such as what a landing that was undone
    /// was to replace: a power cut may have left its row and not its bytes. Where it is kept elsewhere, what is missing is
    /// no loss yet.
    pub(super) fn drop_damaged_content(&self) -> Result<()> {
        if !self.dirs.has_own_content() || !self.knows_places()? {
            return Ok(());
        }
        let needed = self.content_of_rows()?;
        for (digest, size) in self.large_without_backup()?.into_iter().filter(|(digest, _)| !needed.contains(digest)) {
            let name = digest.to_string();
            if is_kept(&self.dirs.content_place(&name)?, digest, size).doing(|| format!("stat content {name}"))? {
                continue;
            }
            let forget = "DELETE FROM content WHERE sha256 = ?1";
            self.database.lock().write(|tx| Ok(tx.execute(forget, [&name]).map(|_| ())?))?;
            remove_file(&self.dirs, &name)?;
        }
        Ok(())
    }

    /// What changes are based on, and anchors name.
    fn content_of_rows(&self) -> Result<HashSet<Digest>> {
        let bases = self.load_upper()?.into_iter().flat_map(|row| row.base.contents());
        let anchors = self.load_anchors()?.into_iter().filter_map(|anchor| Some(anchor.known.kept()?.digest));
        Ok(bases.chain(anchors).collect())
    }

    /// What is kept in files and is no backup, and how long it is.
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

/// Kept content, as it is kept.
enum Found {
    Inline(Vec<u8>),
    InFile(File),
}

/// None: no such content. Some(None): it is in a file.
fn inline_bytes(database: &Database, digest: Digest) -> Result<Option<Option<Vec<u8>>>> {
    let mut statement = database.reader().prepare_cached("SELECT bytes FROM content WHERE sha256 = ?1")?;
    Ok(statement.query_row([digest.to_string()], |row| row.get(0)).optional()?)
}

fn open_large(dirs: &StateDirs, digest: Digest) -> Result<File> {
    open_kept(&dirs.content_place(&digest.to_string())?).doing(|| format!("open kept content {digest}"))
}

pub(super) fn open_kept(place: &Place) -> io::Result<File> {
    match place.open(OFlags::RDONLY) {
        // Kept by name, it has the mode that the view showed.
        Err(err) if err.raw_os_error() == Some(libc::EACCES) => super::layout::open_despite_mode(place),
        opened => opened.map(File::from),
    }
}

/// Whether large content is there, and what its name says. What cannot be read is not.
fn is_kept(place: &Place, digest: Digest, size: u64) -> io::Result<bool> {
    let is_sound = || open_kept(place).and_then(|kept| file::digest(&kept)).is_ok_and(|found| found == digest);
    // By its length most that is damaged is told unread.
    Ok(place.stat()?.is_some_and(|meta| meta.is_file() && meta.size == size) && is_sound())
}

/// Gives a file the name of what is kept and damaged.
fn link_over(upper: &Place, kept: &Place) -> io::Result<()> {
    let temp = kept.sibling(passing_name());
    upper.link(&temp)?;
    temp.rename(kept, RenameFlags::empty()).inspect_err(|_| {
        if let Err(err) = temp.unlink() {
            log::error!("remove a name of content: {err}");
        }
    })
}

/// Of a file that is about to be kept, or to go: what is left of such the next start removes.
pub(super) fn passing_name() -> String {
    format!("new-{}", super::landing::random_suffix())
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
    match dirs.content_place(name)?.unlink() {
        Err(err) if err.kind() != io::ErrorKind::NotFound => Err(err).doing(|| format!("remove content {name}")),
        _ => Ok(()),
    }
}
