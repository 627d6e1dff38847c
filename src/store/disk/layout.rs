//! Where state stands on disk, and the lock that makes one daemon its only writer.
//!
//! ```text
//! PROJECT/.fettle/          0700, FETTLE_STATE_DIR
//!   fettle.db               the database, with its -wal
//!   stage/N                 upper content, FETTLE_STAGE_DIR
//!   content/HEX             replaced content too large for the database, FETTLE_BACKUP_DIR
//!   control.sock            the control protocol for callers outside the mount
//!   instance                a random name, for stage and content in directories given for them (`elsewhere.rs`)
//!   generation              a number by which an older database is known (`generation.rs`)
//!   lost+found/             files that such a database does not tell of
//!   holder.json             who holds the lock, for messages only
//!   .gitignore .git/        make git ignore the directory, and `git clean -fdx` pass it by
//! ```

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{self, FlockOperation, Mode, OFlags};

use super::places::{self, Places};
use crate::model::RelPath;
use crate::protocol::{INSTANCE_FILE as INSTANCE, STATE_VARIABLE};
use crate::store::content::open_kept;
use crate::store::disk::elsewhere;
use crate::store::disk::generation::LOST_AND_FOUND;
use crate::store::disk::renames;
use crate::store::rows::upper::UpperId;
use crate::store::{Context, Error, Result};
use crate::sys::RenameFlags;
use crate::sys::file::{self, Meta};
use crate::sys::tree::{Place, Tree};

pub const STATE_DIR_NAME: &str = ".fettle";
/// The variables that say where the content in the state is to be.
pub const STAGE_VARIABLE: &str = "FETTLE_STAGE_DIR";
pub const BACKUP_VARIABLE: &str = "FETTLE_BACKUP_DIR";
const STAGE: &str = "stage";
const CONTENT: &str = "content";
const HOLDER: &str = "holder.json";

/// The name pattern of files that are about to take a path in lower. Reserved: hidden in the view, swept at recovery.
pub const TEMP_PREFIX: &str = ".fettle-tmp-";

/// Part of the name of a note, which is made beside a file before that is opened despite its mode.
const MODE_NOTE: &str = "-mode-";

pub fn is_temp_name(name: &OsStr) -> bool {
    name.as_bytes().starts_with(TEMP_PREFIX.as_bytes())
}

/// True for a name in a directory that is no part of the project: our own directory, which stands at the root, or a
/// temporary name. A `.fettle` anywhere else is another project's.
pub fn is_reserved_name(dir: &RelPath, name: &OsStr) -> bool {
    (dir.is_root() && name == STATE_DIR_NAME) || is_temp_name(name)
}

/// True if a path or a directory above it has such a name.
pub fn is_within_reserved(path: &RelPath) -> bool {
    path.components().next().is_some_and(|first| first == STATE_DIR_NAME) || path.components().any(is_temp_name)
}

/// Directories that are to stand elsewhere than in `PROJECT/.fettle`.
#[derive(Clone, Debug, Default)]
pub struct Location {
    pub state: Option<PathBuf>,
    pub backups: Option<PathBuf>,
    pub stage: Option<PathBuf>,
    /// The instance of the state that was there before: no other is accepted for it, and none is made in its place.
    pub known: Option<String>,
}

impl Location {
    /// Returns the variable that names a place for content; if both name it, the place is upper's.
    pub(super) fn variable(&self, place: &Path) -> &'static str {
        if self.stage.as_deref() == Some(place) { STAGE_VARIABLE } else { BACKUP_VARIABLE }
    }

    /// Returns the place given for upper content and the variable that gives it, or `None` if it stands in the project.
    pub fn given_for_stage(&self) -> Option<(&Path, &'static str)> {
        let state = || self.state.as_deref().map(|state| (state, STATE_VARIABLE));
        self.stage.as_deref().map(|stage| (stage, STAGE_VARIABLE)).or_else(state)
    }

    /// Returns the whole path of the state directory of the project at `lower`, for messages. It may not exist yet.
    pub fn describe(&self, lower: &Tree) -> String {
        let inside = || path_of(lower.root()).unwrap_or_default().join(STATE_DIR_NAME);
        self.state.clone().unwrap_or_else(inside).display().to_string()
    }
}

/// Returns the path that the kernel has for a directory, which may have been opened by another name.
pub(super) fn path_of(dir: BorrowedFd<'_>) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd()))
}

#[derive(Debug)]
pub struct StateDirs {
    state: OwnedFd,
    stage: Arc<OwnedFd>,
    content: Arc<OwnedFd>,
    places: Places,
    /// See [`Location::known`].
    is_known: bool,
    description: String,
}

const PRIVATE_DIR: Mode = Mode::RWXU;
const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);
pub(super) const DIR_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl StateDirs {
    pub fn open(lower: &Tree, location: &Location) -> Result<Self> {
        let description = location.describe(lower);
        let state = open_state(lower, location, &description)?;
        let instance = instance(&state, location, &description)?;
        places::check_there(&state, &description, &instance, location)?;
        let instance = elsewhere::own_name(&state, instance, location)?;
        let within = |path: &Option<PathBuf>, name: &str| match path {
            Some(path) => open_outside(&path.join(&instance)),
            None => open_inside(state.as_fd(), name.as_ref(), &format!("{description}/{name}")),
        };
        let stage = within(&location.stage, STAGE)?;
        let content = within(&location.backups, CONTENT)?;
        let (stage, content) = (Arc::new(stage), Arc::new(content));
        let is_known = location.known.is_some();
        let dirs = Self { state, stage, content, places: Places::of(location), is_known, description };
        dirs.hide_from_git()?;
        Ok(dirs)
    }

    /// True if a project has state here already, even without its database. If the state directory cannot be looked into,
    /// that is an error: it is not absent.
    pub fn exist(lower: &Tree, location: &Location) -> Result<bool> {
        let found = match (&location.state, RelPath::parse(format!("{STATE_DIR_NAME}/{INSTANCE}").as_bytes())) {
            (Some(path), _) => path.join(INSTANCE).try_exists(),
            (None, Ok(path)) => lower.exists(&path),
            (None, Err(_)) => Ok(false),
        };
        found.doing(|| format!("look into state directory {}", location.describe(lower)))
    }

    pub fn state(&self) -> BorrowedFd<'_> {
        self.state.as_fd()
    }

    pub(super) fn places(&self) -> &Places {
        &self.places
    }

    /// True if upper content is in the state directory, not in a place given for it.
    pub fn has_own_stage(&self) -> bool {
        self.places.stage.is_none()
    }

    /// True if large content is in the state directory, not in a place given for it.
    pub fn has_own_content(&self) -> bool {
        self.places.content.is_none()
    }

    /// True if there was state before, so that what is missing is lost.
    pub fn is_known(&self) -> bool {
        self.is_known
    }

    /// Returns all directories of ours, and what each is called in messages.
    pub fn all(&self) -> [(BorrowedFd<'_>, &'static str); 3] {
        [(self.state.as_fd(), "the state directory"), (self.stage.as_fd(), STAGE), (self.content.as_fd(), CONTENT)]
    }

    /// Returns the paths of those that do not stand in the project.
    pub fn outside(&self, project: &Path) -> io::Result<Vec<PathBuf>> {
        let paths = self.all().into_iter().map(|(dir, _)| path_of(dir)).collect::<io::Result<Vec<PathBuf>>>()?;
        Ok(paths.into_iter().filter(|path| !path.starts_with(project)).collect())
    }

    pub fn describe(&self) -> &str {
        &self.description
    }

    /// Returns the place, of all that are written to, whose file system has the least room: a person who meets a full
    /// disk seldom knows which one it is. It is the project itself if no other has less.
    pub fn fullest(&self, lower: &Tree) -> io::Result<PathBuf> {
        let room = |dir: BorrowedFd<'_>| -> io::Result<u64> {
            let facts = fs::fstatvfs(dir)?;
            let has_no_names = facts.f_files > 0 && facts.f_favail == 0;
            Ok(if has_no_names { 0 } else { facts.f_bavail.saturating_mul(facts.f_frsize) })
        };
        let (mut fullest, mut least) = (lower.root(), room(lower.root())?);
        for (dir, _) in self.all() {
            let has = room(dir)?;
            if has < least {
                (fullest, least) = (dir, has);
            }
        }
        path_of(fullest)
    }

    /// Git takes a directory with a repository of its own for another project, and `git clean -fdx` leaves it alone.
    fn hide_from_git(&self) -> Result<()> {
        self.write_once(".", ".gitignore", b"*\n")?;
        for dir in [".git", ".git/objects", ".git/refs"] {
            match fs::mkdirat(&self.state, dir, PRIVATE_DIR) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(err) => return Err(err.into()).doing(|| format!("make {}/{dir}", self.description)),
            }
        }
        self.write_once(".git", "HEAD", b"ref: refs/heads/none\n")
    }

    fn write_once(&self, dir: &str, name: &str, content: &[u8]) -> Result<()> {
        let doing = || format!("make {}/{dir}/{name}", self.description);
        let dir = fs::openat(&self.state, dir, DIR_FLAGS, Mode::empty()).map_err(io::Error::from).doing(doing)?;
        let place = Place { dir: dir.into(), name: name.into() };
        match place.stat().doing(doing)? {
            Some(_) => Ok(()),
            None => write_whole(&place, content).doing(doing),
        }
    }

    pub fn create_stage_file(&self, id: UpperId, mode: u32) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = fs::openat(&self.stage, id.to_string(), flags, file::mode_at_first(mode)).map_err(io::Error::from);
        let file = file.doing(|| format!("make upper file {id} in {}", self.description))?;
        Ok(File::from(file))
    }

    pub fn open_stage_file(&self, id: UpperId) -> Result<File> {
        let place = self.stage_place(id);
        let doing = || format!("open upper file {id} in {}", self.description);
        match place.open(OFlags::RDWR) {
            Err(err) if err.raw_os_error() == Some(libc::EACCES) => open_despite_mode(&place).doing(doing),
            // What is kept can be read on. A write to it reports the error (`overlay/files/content.rs`).
            Err(err) if err.raw_os_error() == Some(libc::EROFS) => {
                place.open(OFlags::RDONLY).map(File::from).doing(doing)
            }
            other => other.map(File::from).doing(doing),
        }
    }

    pub fn remove_stage_file(&self, id: UpperId) -> Result<()> {
        // By the directory's own descriptor, so that a file can be removed even when there are no descriptors left.
        let remove = |flags| fs::unlinkat(&self.stage, id.to_string(), flags);
        let removed = match remove(fs::AtFlags::empty()) {
            Err(rustix::io::Errno::ISDIR) => remove(fs::AtFlags::REMOVEDIR),
            removed => removed,
        };
        match removed {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(err) => Err(err.into()).doing(|| format!("remove upper file {id} in {}", self.description)),
        }
    }

    /// Opens an upper file read-only. If its mode permits that, the mode stays as it is.
    pub fn read_stage_file(&self, id: UpperId) -> Result<File> {
        open_kept(&self.stage_place(id)).doing(|| format!("open upper file {id} in {}", self.description))
    }

    /// Restores the modes of upper files that a process was opening when it died ([`open_despite_mode`]).
    pub fn restore_modes(&self) -> Result<()> {
        let doing = || format!("restore modes in {}/stage", self.description);
        for entry in crate::sys::tree::list(self.stage.as_fd()).doing(doing)? {
            let Some((id, mode)) = parse_mode_note(&entry.name) else { continue };
            let restored = match self.stage_place(id).set_mode(mode) {
                Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
                restored => restored,
            };
            let note = Place { dir: Arc::clone(&self.stage), name: entry.name };
            if let Err(err) = restored.and_then(|()| note.remove()) {
                log::error!("give upper file {id} its mode {mode:o} again: {err}");
            }
        }
        Ok(())
    }

    /// Returns the numbers of all upper files.
    pub fn stage_files(&self) -> Result<Vec<UpperId>> {
        let entries =
            crate::sys::tree::list(self.stage.as_fd()).doing(|| format!("list {}/stage", self.description))?;
        Ok(entries.iter().filter_map(|entry| UpperId::parse(&entry.name)).collect())
    }

    /// Goes by the directory's own descriptor, and needs no other.
    pub fn stage_meta(&self, id: UpperId) -> io::Result<Meta> {
        Meta::at(self.stage.as_fd(), OsStr::new(&id.to_string()))
    }

    pub fn stage_place(&self, id: UpperId) -> Place {
        Place { dir: Arc::clone(&self.stage), name: OsString::from(id.to_string()) }
    }

    /// Returns the names of all files of large content. In a directory that serves for both, upper files are beside them.
    pub fn content_files(&self) -> Result<Vec<String>> {
        let list = crate::sys::tree::list(self.content.as_fd());
        let entries = list.doing(|| format!("list {}/content", self.description))?;
        let names = entries.into_iter().filter_map(|entry| entry.name.into_string().ok());
        let is_other = |name: &String| {
            elsewhere::is_note(name) || name == LOST_AND_FOUND || UpperId::parse(OsStr::new(name)).is_some()
        };
        Ok(names.filter(|name| !is_other(name)).collect())
    }

    pub fn stage_dir(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.stage)
    }

    pub fn content_dir(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.content)
    }

    pub fn content_place(&self, name: &str) -> Place {
        Place { dir: Arc::clone(&self.content), name: OsString::from(name) }
    }

    /// Gives a file to whoever the state belongs to.
    pub(in crate::store) fn give_to_owner(&self, made: &File) -> io::Result<()> {
        file::give_to_owner_of(self.state.as_fd(), made.as_fd())
    }

    pub(in crate::store) fn write_holder(&self, note: &HolderNote) -> Result<()> {
        let json = serde_json::to_vec(note).map_err(io::Error::other).doing(|| "write holder.json".to_owned())?;
        let place = self.holder_place()?;
        // A note that root's daemon left may be read-only for us, but the directory's owner can remove it.
        let made = place.remove().and_then(|()| place.create(OFlags::WRONLY, PRIVATE_FILE));
        made.and_then(|file| File::from(file).write_all(&json)).doing(|| format!("write {}/{HOLDER}", self.description))
    }

    pub fn clear_holder(&self) -> Result<()> {
        self.holder_place()?.remove().doing(|| format!("remove {}/{HOLDER}", self.description))
    }

    /// Returns the place of the file by whose content the state is known.
    pub(in crate::store) fn instance_place(&self) -> Result<Place> {
        instance_place(&self.state)
    }

    fn holder_place(&self) -> Result<Place> {
        let dir = self.state.try_clone().doing(|| "duplicate a descriptor".to_owned())?;
        Ok(Place { dir: dir.into(), name: HOLDER.into() })
    }
}

/// True if somebody has removed the directory, with everything in it.
pub(in crate::store) fn is_removed(dir: BorrowedFd<'_>) -> bool {
    Meta::of(dir).is_ok_and(|meta| meta.links == 0)
}

fn open_state(lower: &Tree, location: &Location, description: &str) -> Result<OwnedFd> {
    let opening = || format!("open state directory {description}");
    match (&location.state, &location.known) {
        (Some(path), Some(_)) => fs::open(path, DIR_FLAGS, Mode::empty()).map_err(io::Error::from).doing(opening),
        (Some(path), None) => {
            check_free_for_state(path)?;
            open_outside(path)
        }
        (None, Some(_)) => {
            let opened = fs::openat(lower.root(), STATE_DIR_NAME, DIR_FLAGS | OFlags::NOFOLLOW, Mode::empty());
            opened.map_err(io::Error::from).doing(opening)
        }
        (None, None) => open_inside(lower.root(), STATE_DIR_NAME.as_ref(), description),
    }
}

/// Returns the name of the state: of the one that is known to be there, or of any. If there is none, makes one.
fn instance(state: &OwnedFd, location: &Location, description: &str) -> Result<String> {
    let found = read_instance(state, description)?;
    match (found, &location.known) {
        (Some(name), None) => Ok(name),
        (Some(name), Some(known)) if name == *known => Ok(name),
        (Some(_) | None, Some(_)) => Err(io::Error::other("it is not the state that was here before"))
            .doing(|| format!("open state directory {description}")),
        (None, None) => {
            renames::check_in(state.as_fd(), &format!("state directory {description}"))?;
            let name = crate::store::journal::landing::random_suffix();
            // A person may have made the directory by hand.
            fs::fchmod(state, PRIVATE_DIR).map_err(io::Error::from).doing(|| format!("make {description} private"))?;
            write_whole(&instance_place(state)?, name.as_bytes()).doing(|| format!("make {description}/{INSTANCE}"))?;
            Ok(name)
        }
    }
}

fn instance_place(state: &OwnedFd) -> Result<Place> {
    let dir = state.try_clone().doing(|| "duplicate a descriptor".to_owned())?;
    Ok(Place { dir: dir.into(), name: INSTANCE.into() })
}

/// Reads the random name of this state, made with it, by which it is known and has its directories elsewhere. It stays
/// right when the project is moved; a copy has it, too, until `elsewhere.rs` gives it another.
pub fn read_instance(state: &OwnedFd, description: &str) -> Result<Option<String>> {
    let doing = || format!("read {description}/{INSTANCE}");
    match instance_place(state)?.open(OFlags::RDONLY | OFlags::NONBLOCK) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        Ok(file) => {
            let mut name = String::new();
            File::from(file).take(64).read_to_string(&mut name).doing(doing)?;
            let sound = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_hexdigit());
            let damaged = || Error::Damaged { path: description.to_owned(), what: format!("{INSTANCE} is not a name") };
            sound.then_some(Some(name)).ok_or_else(damaged)
        }
        Err(err) => Err(err).doing(doing),
    }
}

/// Gives this state another name.
pub(super) fn write_instance(state: &OwnedFd, name: &str) -> Result<()> {
    replace_whole(&instance_place(state)?, name.as_bytes()).doing(|| format!("write {INSTANCE}"))
}

/// Writes a file that is there as a whole or not at all, whenever the power goes.
pub(super) fn write_whole(place: &Place, content: &[u8]) -> io::Result<()> {
    write_over(place, content, RenameFlags::NOREPLACE)
}

/// Like [`write_whole`], in the place of a file that is there.
pub(super) fn replace_whole(place: &Place, content: &[u8]) -> io::Result<()> {
    write_over(place, content, RenameFlags::empty())
}

fn write_over(place: &Place, content: &[u8], flags: RenameFlags) -> io::Result<()> {
    let mut name = place.name.clone();
    name.push(".new");
    let new = place.sibling(name);
    // An earlier attempt may have left one.
    new.remove()?;
    let file = File::from(new.create(OFlags::WRONLY, PRIVATE_FILE)?);
    file::give_to_owner_of(place.dir.as_fd(), file.as_fd())?;
    (&file).write_all(content)?;
    file.sync_all()?;
    new.rename(place, flags)?;
    place.sync_dir()
}

/// Opens an upper file whose mode, which is the one that the view shows, keeps an unprivileged owner out. The mode is
/// changed for a moment, and a crash in between leaves a note of the right one.
pub(in crate::store) fn open_despite_mode(place: &Place) -> io::Result<File> {
    /// One at a time: another thread would take the mode of this moment for the file's own.
    static OPENING: Mutex<()> = Mutex::new(());
    let _opening = OPENING.lock();
    let meta = place.stat()?.ok_or(io::ErrorKind::NotFound)?;
    let mut note = place.name.clone();
    note.push(format!("{MODE_NOTE}{:o}", meta.mode));
    let note = place.sibling(note);
    note_mode(&note)?;
    if let Err(err) = place.set_mode(meta.mode | 0o600) {
        note.remove()?;
        return Err(err);
    }
    let file = place.open(OFlags::RDWR).map(File::from);
    place.set_mode(meta.mode)?;
    note.remove()?;
    file
}

/// A full disk must not keep anyone from reading: without the note, a crash may change the mode.
fn note_mode(note: &Place) -> io::Result<()> {
    match note.create(OFlags::WRONLY, PRIVATE_FILE) {
        Err(err) if matches!(err.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT)) => Ok(()),
        // An old note that could not be removed.
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.map(drop),
    }
}

/// Returns the upper file that a note is of, and its mode.
fn parse_mode_note(name: &OsStr) -> Option<(UpperId, u32)> {
    let (id, mode) = name.to_str()?.split_once(MODE_NOTE)?;
    Some((UpperId::parse(id.as_ref())?, u32::from_str_radix(mode, 8).ok()?))
}

pub(super) fn open_inside(dir: BorrowedFd<'_>, name: &OsStr, description: &str) -> Result<OwnedFd> {
    match fs::mkdirat(dir, name, PRIVATE_DIR) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(err) => return Err(err.into()).doing(|| format!("make state directory {description}")),
    }
    let fd = fs::openat(dir, name, DIR_FLAGS | OFlags::NOFOLLOW, Mode::empty()).map_err(io::Error::from);
    fd.doing(|| format!("open state directory {description}"))
}

/// Refuses a directory that has something else in it, such as `/tmp` or the project's own `src`: it would be made
/// private, and look like a git repository. What a new file system comes with does not matter.
fn check_free_for_state(path: &Path) -> Result<()> {
    let doing = || format!("open state directory {}", path.display());
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries.collect::<io::Result<Vec<_>>>().doing(doing)?,
        // A missing directory is made; if something else stands there, opening it says so.
        Err(err) if matches!(err.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(()),
        Err(err) => return Err(err).doing(doing),
    };
    let names: Vec<OsString> = entries.iter().map(|entry| entry.file_name()).collect();
    // The first file made in a state directory, under whatever name until it is whole.
    let is_ours = names.iter().any(|name| name.as_bytes().starts_with(INSTANCE.as_bytes()));
    match is_ours || names.iter().all(|name| name == LOST_AND_FOUND) {
        true => Ok(()),
        false => Err(io::Error::other("it has other files in it, and is no state directory")).doing(doing),
    }
}

pub(super) fn open_outside(path: &Path) -> Result<OwnedFd> {
    let describe = || format!("open state directory {}", path.display());
    match std::fs::DirBuilder::new().recursive(true).create(path) {
        // Something else stands there; opening it says what is wrong.
        Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {}
        made => made.doing(describe)?,
    }
    let fd = fs::open(path, DIR_FLAGS, Mode::empty()).map_err(io::Error::from).doing(describe)?;
    // Only where it differs: the file system may be read-only by now.
    let is_private = || Ok::<_, io::Error>(Meta::of(fd.as_fd())?.mode & 0o7777 == PRIVATE_DIR.as_raw_mode());
    if !is_private().doing(describe)? {
        fs::fchmod(&fd, PRIVATE_DIR).map_err(io::Error::from).doing(describe)?;
    }
    Ok(fd)
}

/// The process that holds a project's lock. Only for messages: the lock itself is the kernel's.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct HolderNote {
    pub pid: u32,
    /// The path as messages name it, so that any path can be noted.
    pub mountpoint: Option<String>,
}

/// How long to wait for the lock where a daemon has it: one that ends needs a moment.
const LOCK_WAIT: Duration = Duration::from_secs(1);
/// The same where a command that works without a mount has it. Most need a moment, too.
const COMMAND_WAIT: Duration = Duration::from_secs(5);
/// The same in place of a daemon that died. The command may be hashing gigabytes that are held, and if no daemon came, the
/// review would end.
pub(in crate::store) const RESTART_WAIT: Duration = Duration::from_secs(60);
pub(in crate::store) const LOCK_POLL: Duration = Duration::from_millis(10);

/// An exclusive lock on the PROJECT directory itself, so that it holds wherever the state directory stands.
/// Ends with the last descriptor: a killed daemon holds nothing.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "held, not used")] OwnedFd);

impl Lock {
    pub fn take(lower: &Tree, location: &Location) -> Result<Self> {
        let fd = lower.open_at(&RelPath::root(), DIR_FLAGS).doing(|| "open the project".to_owned())?;
        let (begun, longest) = (Instant::now(), if location.known.is_some() { RESTART_WAIT } else { COMMAND_WAIT });
        let may_wait = || {
            let waited = begun.elapsed();
            waited < LOCK_WAIT || waited < longest && !is_daemons(lower, location)
        };
        loop {
            match fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self(fd)),
                Err(rustix::io::Errno::WOULDBLOCK) if may_wait() => std::thread::sleep(LOCK_POLL),
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let holder = holder_of(lower, location);
                    return Err(Error::Locked { path: "the project".to_owned(), holder });
                }
                Err(err) => return Err(err.into()).doing(|| "lock the project".to_owned()),
            }
        }
    }
}

/// Returns what the present holder wrote about itself.
pub fn holder_note(lower: &Tree, location: &Location) -> Option<HolderNote> {
    let file = match &location.state {
        Some(path) => File::open(path.join(HOLDER)).ok()?,
        None => {
            let path = RelPath::parse(format!("{STATE_DIR_NAME}/{HOLDER}").as_bytes()).ok()?;
            File::from(lower.open_at(&path, OFlags::RDONLY | OFlags::NONBLOCK).ok()?)
        }
    };
    let mut json = String::new();
    file.take(64 * 1024).read_to_string(&mut json).ok()?;
    serde_json::from_str(&json).ok()
}

/// True if the present holder is a daemon, or the last one was a daemon that died: one that ends removes its note.
pub fn is_daemons(lower: &Tree, location: &Location) -> bool {
    holder_note(lower, location).is_some_and(|note| note.mountpoint.is_some())
}

fn holder_of(lower: &Tree, location: &Location) -> String {
    match holder_note(lower, location) {
        Some(HolderNote { pid, mountpoint: Some(path) }) => format!("pid {pid}, mounted on {path}"),
        Some(HolderNote { pid, mountpoint: None }) => format!("pid {pid}, working without a mount"),
        None => "another process".to_owned(),
    }
}
