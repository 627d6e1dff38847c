//! Checks whether all that is kept is consistent: the rows, the files beside them, and what lower must not have.
//!
//! The check changes nothing. What it finds is a bug, a damaged disk or the work of someone in the state directory:
//! everything that a daemon's death leaves has been put right by [`Store::recover`] before.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd};

use super::rows::anchors::{Anchor, MovedDir};
use super::rows::backups::Backup;
use super::rows::parse_row;
use super::rows::upper::{Held, UpperId, UpperRow, What};
use super::{Context, Result, STATE_DIR_NAME, Store, is_temp_name, is_within_reserved};
use crate::model::{ChangeId, ChangeKind, Digest, ID_DIGITS, Looks, Reason, RelPath};
use crate::protocol::Event;
use crate::sys::OFlags;
use crate::sys::file::{self, FileKind, Meta};
use crate::sys::tree::{self, Tree};

/// The kinds of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FaultKind {
    /// The database is damaged, or has a row that cannot be read.
    Database,
    /// A row of upper and its file in `stage/` do not agree.
    Upper,
    /// A held change is not what its id names.
    Held,
    /// What a path had when the session began would be forgotten by a restart.
    Anchor,
    /// Content that something refers to is gone or is not what its hash says.
    Content,
    /// Something is there that nothing refers to.
    Orphan,
    /// A temporary name of ours stands in the project.
    Temporary,
    /// A landing was begun and neither finished nor undone.
    Intent,
    /// Others may read or write what is private.
    Permissions,
    /// The record of events has a gap, or tells of another event than its number.
    Events,
    /// An id was superseded by one that is unknown.
    Verdict,
}

/// One thing that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fault {
    pub kind: FaultKind,
    /// What it is about: a path, a backup, an id, a file of the state directory.
    pub about: String,
    /// Text for people.
    pub message: String,
}

/// Upper entries for which a check makes an exception.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// Upper entries that are being written or judged: their content need not be what was held.
    pub moving: HashSet<UpperId>,
    /// Upper entries that need no row: they have landed, and are still open.
    pub rowless: HashSet<UpperId>,
}

impl FaultKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Database => "database",
            Self::Upper => "upper",
            Self::Held => "held",
            Self::Anchor => "anchor",
            Self::Content => "content",
            Self::Orphan => "orphan",
            Self::Temporary => "temporary",
            Self::Intent => "intent",
            Self::Permissions => "permissions",
            Self::Events => "events",
            Self::Verdict => "verdict",
        }
    }
}

/// Faults found so far, and how much was looked at.
#[derive(Default)]
struct Findings {
    faults: Vec<Fault>,
    checked: u64,
}

impl Findings {
    fn add(&mut self, kind: FaultKind, about: impl ToString, message: impl Into<String>) {
        self.faults.push(Fault { kind, about: about.to_string(), message: message.into() });
    }

    /// Counts one check, and adds a fault if it is not `right`.
    fn check(&mut self, right: bool, kind: FaultKind, about: &dyn ToString, message: impl FnOnce() -> String) {
        self.checked += 1;
        if !right {
            self.add(kind, about.to_string(), message());
        }
    }
}

impl Store {
    /// Returns all that is wrong, and how many things were checked. An error means that something could not be checked.
    pub fn check(&self, lower: &Tree, scope: &Scope) -> Result<(Vec<Fault>, u64)> {
        self.record_waiting()?;
        let mut found = Findings::default();
        if self.database_removed().is_some() {
            found.add(FaultKind::Database, "fettle.db", self.halted().unwrap_or_default());
        }
        self.check_database(&mut found)?;
        let contents = self.check_contents(&mut found)?;
        let rows = self.rows::<UpperRow>(&mut found, "upper", "SELECT CAST(id AS TEXT), row FROM upper ORDER BY id")?;
        self.check_uppers(&mut found, &rows, &contents, scope)?;
        self.check_stage(&mut found, &rows, scope)?;
        self.check_lost_and_found(&mut found)?;
        self.check_backups(&mut found, &contents)?;
        self.check_anchors(&mut found, &contents)?;
        self.check_intents(&mut found)?;
        self.check_events(&mut found)?;
        self.check_verdicts(&mut found, &rows)?;
        self.check_permissions(&mut found)?;
        check_temps(&mut found, lower)?;
        found.faults.sort();
        Ok((found.faults, found.checked))
    }

    fn check_database(&self, found: &mut Findings) -> Result<()> {
        let database = self.reading()?;
        let mut statement = database.reader().prepare("PRAGMA quick_check")?;
        let told = statement.query_map([], |row| row.get::<_, String>(0))?.collect::<rusqlite::Result<Vec<_>>>()?;
        found.checked += 1;
        for fault in told.iter().filter(|line| *line != "ok") {
            found.add(FaultKind::Database, "fettle.db", fault.clone());
        }
        Ok(())
    }

    /// Returns the rows of a query for keys and rows, each with its key. Those that cannot be read become faults.
    fn rows<T: serde::de::DeserializeOwned>(
        &self,
        found: &mut Findings,
        table: &str,
        query: &str,
    ) -> Result<Vec<(String, T)>> {
        let database = self.reading()?;
        let mut statement = database.reader().prepare(query)?;
        let pairs = statement
            .query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?
            .collect::<rusqlite::Result<Vec<_>>>()?;
        let mut rows = Vec::with_capacity(pairs.len());
        for (key, json) in pairs {
            found.checked += 1;
            match parse_row(&json, self.dirs.describe()) {
                Ok(row) => rows.push((key, row)),
                Err(err) => found.add(FaultKind::Database, format!("{table} {key}"), err.to_string()),
            }
        }
        Ok(rows)
    }

    /// Checks all kept content against its hash. Returns the hashes there are.
    fn check_contents(&self, found: &mut Findings) -> Result<HashSet<Digest>> {
        let keys = {
            let database = self.reading()?;
            let mut statement = database.reader().prepare("SELECT sha256, size FROM content")?;
            let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))?;
            rows.collect::<rusqlite::Result<Vec<_>>>()?
        };
        let mut contents = HashSet::new();
        for (key, size) in keys {
            let Some(digest) = Digest::parse(&key) else {
                found.add(FaultKind::Content, &key, "is kept under a name that is no hash");
                continue;
            };
            contents.insert(digest);
            let kept = self.unchecked_content_file(digest).and_then(|file| {
                file.map(|file| Ok((file::digest(&file)?, file.metadata()?.len())))
                    .transpose()
                    .doing(|| format!("read kept content {digest}"))
            });
            match kept {
                // It was purged between the two looks.
                Ok(None) => {}
                Ok(Some(is)) => found.check(is == (digest, size as u64), FaultKind::Content, &key, || {
                    format!("has {} bytes of hash {}, not {size} of its own", is.1, is.0)
                }),
                Err(err) => found.add(FaultKind::Content, &key, err.to_string()),
            }
        }
        for name in self.dirs.content_files()? {
            let known = Digest::parse(&name).is_some_and(|digest| contents.contains(&digest));
            let about = format!("content/{name}");
            found.check(known, FaultKind::Orphan, &about, || "is content that no row tells of".to_owned());
        }
        Ok(contents)
    }

    fn check_uppers(
        &self,
        found: &mut Findings,
        rows: &[(String, UpperRow)],
        contents: &HashSet<Digest>,
        scope: &Scope,
    ) -> Result<()> {
        let mut names: HashMap<&RelPath, UpperId> = HashMap::new();
        let mut ids: HashSet<&ChangeId> = HashSet::new();
        for (key, row) in rows {
            let about = row.names.first().map_or_else(|| format!("upper {key}"), ToString::to_string);
            found.check(*key == row.id.to_string(), FaultKind::Upper, &about, || format!("row {key} is of {}", row.id));
            found.check(!row.names.is_empty(), FaultKind::Upper, &about, || "has no name".to_owned());
            for name in &row.names {
                found.check(is_projects(name), FaultKind::Upper, name, || "cannot be a path of the project".to_owned());
                let other = names.insert(name, row.id);
                found.check(other.is_none(), FaultKind::Upper, name, || "stands for two upper entries".to_owned());
            }
            if scope.moving.contains(&row.id) {
                continue;
            }
            let content = match self.check_upper_file(found, row, &about) {
                Ok(content) => content,
                Err(err) => {
                    found.add(FaultKind::Upper, &about, err.to_string());
                    continue;
                }
            };
            if let Some(held) = &row.held {
                let unique = ids.insert(&held.id);
                found.check(unique, FaultKind::Held, &held.id, || "names two held changes".to_owned());
                check_held(found, row, content);
                self.check_looks(found, row, held)?;
                // What could not be kept, lower has.
                let base = held.reasons.contains(&Reason::Backup)
                    || row.base.content.is_none_or(|content| contents.contains(&content.digest));
                found.check(base, FaultKind::Content, &about, || "what it was based on is not kept".to_owned());
            }
        }
        Ok(())
    }

    /// Checks that the file of an upper entry is there and is what the row says. Returns the hash of its content.
    fn check_upper_file(&self, found: &mut Findings, row: &UpperRow, about: &str) -> Result<Option<Digest>> {
        let place = self.dirs.stage_place(row.id);
        let kind = place.stat().doing(|| format!("stat upper file {}", row.id))?.map(|meta| meta.kind);
        let is_right = match row.what {
            What::File => kind == Some(FileKind::Regular),
            What::Symlink => kind == Some(FileKind::Symlink),
            What::Dir => kind == Some(FileKind::Directory),
            What::Node => kind.is_some_and(FileKind::is_special),
            What::Whiteout => kind.is_none(),
        };
        found.check(is_right, FaultKind::Upper, &about, || {
            format!("stage/{} is {kind:?}, and its row says {:?}", row.id, row.what)
        });
        if !is_right {
            return Ok(None);
        }
        if row.what.is_structure() {
            // It is not judged: it is held from the moment it is made.
            let is_held = row.held.as_ref().is_some_and(|held| held.kind == ChangeKind::Structure);
            found.check(is_held, FaultKind::Held, &about, || format!("is {:?} and not held as that", row.what));
        }
        let doing = || format!("read upper file {}", row.id);
        Ok(match row.what {
            What::File => Some(file::digest(&self.read_upper(row.id)?).doing(doing)?),
            What::Symlink => {
                use std::os::unix::ffi::OsStrExt;
                Some(Digest::of(place.read_symlink().doing(doing)?.as_bytes()))
            }
            What::Dir => {
                let inside = place.open(OFlags::RDONLY | OFlags::DIRECTORY).and_then(|dir| tree::list(dir.as_fd()));
                let is_empty = inside.doing(doing)?.is_empty();
                found.check(is_empty, FaultKind::Upper, &about, || format!("stage/{} has something in it", row.id));
                None
            }
            What::Node | What::Whiteout => None,
        })
    }

    /// A missing file is reported by [`Self::check_upper_file`].
    fn check_looks(&self, found: &mut Findings, row: &UpperRow, held: &Held) -> Result<()> {
        let place = self.dirs.stage_place(row.id);
        let looks = || -> std::io::Result<Option<Looks>> {
            let Some(meta) = place.stat()? else { return Ok(None) };
            let file = place.open(OFlags::PATH)?;
            let file = meta.is_file().then_some(file.as_fd());
            row.own_looks(file, &meta).map(Some)
        };
        let Some(looks) = looks().doing(|| format!("look at upper file {}", row.id))? else { return Ok(()) };
        found.check(looks.digest() == held.looks, FaultKind::Held, &held.id, || {
            format!("{} has other attributes than were held", row.path())
        });
        Ok(())
    }

    fn check_stage(&self, found: &mut Findings, rows: &[(String, UpperRow)], scope: &Scope) -> Result<()> {
        let owned: HashSet<UpperId> = rows.iter().map(|(_, row)| row.id).collect();
        // Read before the files are listed: what has been removed by then is not listed.
        let in_passing = self.in_passing.lock().clone();
        for id in self.dirs.stage_files()? {
            let known = [&owned, &scope.rowless, &in_passing].iter().any(|ids| ids.contains(&id));
            let about = format!("stage/{id}");
            found.check(known, FaultKind::Orphan, &about, || "is upper content that no row tells of".to_owned());
        }
        Ok(())
    }

    fn check_lost_and_found(&self, found: &mut Findings) -> Result<()> {
        found.checked += 1;
        for name in self.lost_and_found()? {
            let why = "was set aside: fettle.db was put back from an older copy; remove it once nobody needs it";
            found.add(FaultKind::Orphan, name, why);
        }
        Ok(())
    }

    fn check_backups(&self, found: &mut Findings, contents: &HashSet<Digest>) -> Result<()> {
        for (name, backup) in self.rows::<Backup>(found, "backup", "SELECT name, row FROM backup")? {
            found.check(name == backup.name, FaultKind::Database, &name, || format!("its row is of {}", backup.name));
            let kept = contents.contains(&backup.digest);
            found.check(kept, FaultKind::Content, &name, || "the content of this backup is not kept".to_owned());
        }
        Ok(())
    }

    fn check_anchors(&self, found: &mut Findings, contents: &HashSet<Digest>) -> Result<()> {
        for (_, anchor) in self.rows::<Anchor>(found, "anchor", "SELECT hex(path), row FROM anchor")? {
            let kept = anchor.known.kept().is_none_or(|kept| contents.contains(&kept.digest));
            found.check(kept, FaultKind::Content, &anchor.path, || {
                "what it had when the session began is not kept".to_owned()
            });
        }
        self.rows::<MovedDir>(found, "moved_dir", "SELECT hex(origin), row FROM moved_dir").map(|_| ())?;
        Ok(())
    }

    /// True if a landing has been begun and is not recorded.
    pub fn is_landing(&self) -> Result<bool> {
        Ok(self.pending()? > 0)
    }

    fn pending(&self) -> Result<i64> {
        let database = self.reading()?;
        Ok(database.reader().query_row("SELECT COUNT(*) FROM intent", [], |row| row.get(0))?)
    }

    fn check_intents(&self, found: &mut Findings) -> Result<()> {
        let pending = self.pending()?;
        found.check(pending == 0, FaultKind::Intent, &"journal", || {
            format!("{pending} landings were begun and neither finished nor undone")
        });
        Ok(())
    }

    fn check_events(&self, found: &mut Findings) -> Result<()> {
        let events = self.rows::<Event>(
            found,
            "event",
            "SELECT CAST(seq AS TEXT), row FROM event WHERE row != '' ORDER BY seq",
        )?;
        let mut before = None;
        for (seq, event) in events {
            let right = seq == event.seq.to_string() && before.is_none_or(|before| event.seq == before + 1);
            found.check(right, FaultKind::Events, &seq, || {
                format!("comes after {}, and its row says {}", before.unwrap_or(0), event.seq)
            });
            before = Some(event.seq);
        }
        Ok(())
    }

    /// Checks that a superseded id leads to one that is known.
    fn check_verdicts(&self, found: &mut Findings, rows: &[(String, UpperRow)]) -> Result<()> {
        let verdicts = {
            let database = self.reading()?;
            let mut statement = database.reader().prepare("SELECT id, successor FROM verdict")?;
            let rows =
                statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, Option<String>>(1)?)))?;
            rows.collect::<rusqlite::Result<Vec<_>>>()?
        };
        let live = rows.iter().filter_map(|(_, row)| row.held.as_ref()).map(|held| held.id.as_str());
        let known: HashSet<&str> = live.chain(verdicts.iter().map(|(id, _)| id.as_str())).collect();
        for (id, successor) in &verdicts {
            let leads = successor.as_ref().is_none_or(|successor| known.contains(successor.as_str()));
            found.check(leads, FaultKind::Verdict, id, || "was superseded by an id that nobody knows".to_owned());
        }
        Ok(())
    }

    fn check_permissions(&self, found: &mut Findings) -> Result<()> {
        let mut private = |fd: BorrowedFd<'_>, about: &str| -> Result<()> {
            let mode = Meta::of(fd).doing(|| format!("stat {about}"))?.mode;
            found.check(mode & 0o077 == 0, FaultKind::Permissions, &about, || {
                format!("has mode {mode:04o}: others may look into it")
            });
            Ok(())
        };
        for (dir, about) in self.dirs.all() {
            private(dir, about)?;
        }
        let state = tree::list(self.dirs.state()).doing(|| "list the state directory".to_owned())?;
        for entry in state.iter().filter(|entry| entry.name.as_encoded_bytes().starts_with(b"fettle.db")) {
            let meta = Meta::at(self.dirs.state(), &entry.name).doing(|| "stat the database".to_owned())?;
            let about = entry.name.to_string_lossy().into_owned();
            found.check(meta.mode & 0o077 == 0, FaultKind::Permissions, &about, || {
                format!("has mode {:04o}: others may read it", meta.mode)
            });
        }
        Ok(())
    }
}

/// An id names exact content (SPEC §8).
fn check_held(found: &mut Findings, row: &UpperRow, content: Option<Digest>) {
    let Some(held) = &row.held else { return };
    let about = held.id.to_string();
    found.check(!held.reasons.is_empty(), FaultKind::Held, &about, || "is held for no reason".to_owned());
    found.check(held.new == content, FaultKind::Held, &about, || {
        format!("{} has other content than was held", row.path())
    });
    let full = row.full_id().map(|full| full.to_string()).unwrap_or_default();
    let named = about.len() >= ID_DIGITS && full.starts_with(&about);
    found.check(named, FaultKind::Held, &about, || format!("is not the id of {}, which is {full}", row.path()));
}

/// Our own directory and our temporary names are no part of the project.
fn is_projects(path: &RelPath) -> bool {
    !path.is_root() && !is_within_reserved(path)
}

/// Looks for our temporary names everywhere in the project, but not on other file systems.
fn check_temps(found: &mut Findings, lower: &Tree) -> Result<()> {
    let mut dirs = vec![RelPath::root()];
    while let Some(dir) = dirs.pop() {
        let entries = match lower.open_at(&dir, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(fd) if Meta::of(fd.as_fd()).is_ok_and(|meta| meta.device == lower.device()) => tree::list(fd.as_fd()),
            // On another file system, gone meanwhile, or closed to us: nothing of ours was ever made there.
            Ok(_) | Err(_) => continue,
        };
        for entry in entries.doing(|| format!("list {dir}"))? {
            let Ok(path) = dir.join(&entry.name) else { continue };
            if is_temp_name(&entry.name) {
                found.add(FaultKind::Temporary, &path, "a temporary name of ours was left in the project");
            } else if entry.kind == FileKind::Directory && !(dir.is_root() && entry.name == STATE_DIR_NAME) {
                dirs.push(path);
            }
        }
        found.checked += 1;
    }
    Ok(())
}
