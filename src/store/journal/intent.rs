//! The promise written before lower changes, and what is to be recorded once it has.
//!
//! An intent names every path a transaction touches, what is expected there, under which temporary name the new entry
//! waits, and everything the database shall say afterwards. From it alone a later process can finish or undo.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use serde::{Deserialize, Serialize};

use crate::model::{ChangeId, Digest, OperationId, RelPath, Stamp, Timestamp};
use crate::store::Result;
use crate::store::content::StagedContent;
use crate::store::journal::recovery;
use crate::store::rows::anchors::{self, Anchor, MovedDir};
use crate::store::rows::backups::{self, Backup};
use crate::store::rows::events::{self, EventDraft};
use crate::store::rows::operations::DirLooks;
use crate::store::rows::to_row;
use crate::store::rows::upper::{self, UpperId, UpperRow};
use crate::store::rows::verdicts;
use crate::sys::file::{self, Meta, OwnLooks};
use crate::sys::sqlite::Transaction;

/// How a change ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fate {
    Superseded {
        by: ChangeId,
    },
    Applied,
    Discarded,
    /// It became small, or equal to lower, and ended by itself.
    Ended,
    /// A program removed the entry that it changed.
    Removed,
    /// A power cut left nothing of its content, which was never synced.
    Lost,
}

impl Fate {
    pub(in crate::store) fn to_columns(&self) -> (&'static str, Option<&ChangeId>) {
        match self {
            Self::Superseded { by } => ("superseded", Some(by)),
            Self::Applied => ("applied", None),
            Self::Discarded => ("discarded", None),
            Self::Ended => ("ended", None),
            Self::Removed => ("removed", None),
            Self::Lost => ("lost", None),
        }
    }

    pub(in crate::store) fn from_columns(fate: &str, successor: Option<ChangeId>) -> Option<Self> {
        match fate {
            "superseded" => Some(Self::Superseded { by: successor? }),
            "applied" => Some(Self::Applied),
            "discarded" => Some(Self::Discarded),
            "ended" => Some(Self::Ended),
            "removed" => Some(Self::Removed),
            "lost" => Some(Self::Lost),
            _ => None,
        }
    }
}

/// What the database shall say when a transaction is done; written with it, all or nothing.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Epilogue {
    /// Upper entries that are no longer needed.
    pub drop: Vec<UpperId>,
    /// Upper entries that are new or have changed.
    pub save: Vec<UpperRow>,
    /// Upper entries of others that have changed, as far as their rows are still there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub update: Vec<UpperRow>,
    pub verdicts: Vec<(ChangeId, RelPath, Fate)>,
    pub anchors: Vec<Anchor>,
    /// Stored as `dirs`: version 6 used this field's name for something else, and intents of its time are read, too.
    #[serde(default, rename = "dirs")]
    pub moved_dirs: Vec<MovedDir>,
    pub events: Vec<EventDraft>,
}

impl Epilogue {
    /// Adds the epilogue of something else that is done at the same moment.
    pub fn add(&mut self, other: Self) {
        let Self { drop, save, update, verdicts, anchors, moved_dirs, events } = other;
        self.drop.extend(drop);
        self.save.extend(save);
        self.update.extend(update);
        self.verdicts.extend(verdicts);
        self.anchors.extend(anchors);
        self.moved_dirs.extend(moved_dirs);
        self.events.extend(events);
    }

    /// Updates rows that a landing has changed as well, except those that it drops or saves already. The holder of a claim
    /// on one may drop its row before this is written: then it stays dropped.
    pub fn update_others(&mut self, mut rows: Vec<UpperRow>) {
        rows.retain(|row| !self.drop.contains(&row.id) && self.save.iter().all(|saved| saved.id != row.id));
        self.update.extend(rows);
    }

    /// `backups` are the backups of what was replaced, with the names that they got; events of their paths carry these
    /// names. Returns the operation that the events make up.
    pub(super) fn write(&self, tx: &Transaction<'_>, backups: &[(&Backup, &String)]) -> Result<Option<OperationId>> {
        self.drop.iter().try_for_each(|id| upper::delete(tx, *id))?;
        self.save.iter().try_for_each(|row| upper::put(tx, row))?;
        self.update.iter().try_for_each(|row| upper::update(tx, row))?;
        self.verdicts.iter().try_for_each(|(id, path, fate)| verdicts::put(tx, id, path, fate))?;
        self.anchors.iter().try_for_each(|anchor| anchors::put(tx, anchor))?;
        self.moved_dirs.iter().try_for_each(|moved| anchors::put_moved_dir(tx, moved))?;
        events::put_all(tx, &self.events, backups)
    }
}

impl crate::store::Store {
    /// Records what happened to upper entries alone, while lower stayed as it was.
    pub fn record_epilogue(&self, epilogue: &Epilogue) -> Result<()> {
        self.record_operation(epilogue).map(|_| ())
    }

    /// Like [`Self::record_epilogue`], and returns the operation that it was.
    pub fn record_operation(&self, epilogue: &Epilogue) -> Result<Option<OperationId>> {
        self.record_keeping(epilogue, &[])
    }

    /// Like [`Self::record_operation`], and keeps content that the entries alone had.
    pub fn record_keeping(&self, epilogue: &Epilogue, kept: &[(StagedContent, Backup)]) -> Result<Option<OperationId>> {
        kept.iter().for_each(|(content, _)| self.note_use(content.digest));
        let operation = self.database.lock().write(|tx| {
            kept.iter().try_for_each(|(content, _)| content.commit(tx))?;
            let names = kept.iter().map(|(_, backup)| backups::put(tx, backup)).collect::<Result<Vec<_>>>()?;
            let named: Vec<_> = kept.iter().map(|(_, backup)| backup).zip(&names).collect();
            epilogue.write(tx, &named)
        })?;
        self.purging.note_kept(kept.len() as u64, kept.iter().map(|(content, _)| content.size).sum());
        self.purging.note_recorded(epilogue.events.len() as u64);
        Ok(operation)
    }
}

/// How one path of lower changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::store) enum Act {
    /// The entry under the temporary name takes the path; what was there waits under the temporary name.
    Place {
        temp: Temp,
        inode: u64,
        /// For a directory, given once all that lands in it is there: its mode may let nothing in any more, and each new
        /// name moves its times.
        #[serde(default)]
        looks: Option<Looks>,
        /// The entry as it was made; `None` in an intent of an older program. It may be written to as soon as it has the
        /// path, and if it died with us before it had any name, another entry may have its inode number.
        #[serde(default, alias = "nameless", skip_serializing_if = "Option::is_none")]
        made: Option<Stamp>,
    },
    /// The file at `from`, which is `new`, takes the path. What was there waits at `from`.
    Take { from: RelPath, new: Stamp },
    /// The file of an upper entry, which is `new`, takes the path. What was there waits under that name in `stage/`.
    Raise { upper: UpperId, new: Stamp },
    /// The entry goes; it waits under the temporary name.
    Remove { temp: Temp },
    /// The entry under the temporary name takes the place of a directory, which waits there with its contents until later
    /// steps take them out.
    Supplant {
        temp: Temp,
        inode: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        made: Option<Stamp>,
    },
    /// The inode stays and gets new content; the old and the new are both kept. For files with several names.
    Rewrite {
        old: Digest,
        new: Digest,
        /// The inode's looks with the old content, and with the new.
        #[serde(default)]
        looks: Option<(Looks, Looks)>,
    },
    /// The entry, with the content that is expected, goes to another name, which is free.
    Move { to: RelPath },
    /// The entry, whatever is written to it meanwhile, goes to a free name or replaces something without content: an
    /// empty directory that looks like `onto`, a FIFO.
    Relocate {
        to: RelPath,
        #[serde(default, deserialize_with = "crate::store::rows::operations::looks_or_mode")]
        onto: Option<DirLooks>,
    },
    /// The entry and the one at `to`, which is `with`, change places, whatever is written to them meanwhile.
    Exchange { to: RelPath, with: Stamp },
    /// The path becomes one more name of what is at `of` by then.
    Link { of: RelPath },
}

/// Attributes that come with content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::store) struct Looks {
    mode: u32,
    uid: u32,
    gid: u32,
    atime: Timestamp,
    mtime: Timestamp,
}

impl Looks {
    pub fn of(file: &File) -> io::Result<Self> {
        Ok(Self::of_meta(&Meta::of(file.as_fd())?))
    }

    pub fn of_meta(meta: &Meta) -> Self {
        Self { mode: meta.mode, uid: meta.uid, gid: meta.gid, atime: meta.atime, mtime: meta.mtime }
    }

    pub fn give(&self, file: &File) -> io::Result<()> {
        self.give_but(&OwnLooks::default(), file)
    }

    /// Like [`Self::give`], except for the looks that the file has of its own. What this process may not set on another
    /// user's file is left out, so that its content can still be finished or undone.
    pub fn give_but(&self, own: &OwnLooks, file: &File) -> io::Result<()> {
        let meta = Meta { uid: self.uid, gid: self.gid, ..Meta::of(file.as_fd())? };
        if !own.owner {
            file::copy_owner(&meta, file.as_fd())?;
        }
        if !own.mode {
            file::give_mode(file.as_fd(), self.mode)?;
        }
        file::give_times(file.as_fd(), self.atime, self.mtime)
    }

    /// Returns which looks are the same as `before`. These stay as the file has them, because another program may have
    /// changed them at this very moment. A mode with set-id bits is given again: the write has taken the bits away.
    pub fn unchanged_since(&self, before: &Self) -> OwnLooks {
        let mode = self.mode == before.mode && self.mode & file::SET_ID == 0;
        let owner = (self.uid, self.gid) == (before.uid, before.gid);
        OwnLooks { mode, owner, xattrs: Vec::new() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::store) struct Step {
    pub path: RelPath,
    /// What must be at the path for the step to be right; `None` means nothing.
    pub expect: Option<Stamp>,
    pub act: Act,
}

impl Step {
    /// Returns the second path that the step names.
    pub fn other(&self) -> Option<&RelPath> {
        match &self.act {
            Act::Move { to: other } | Act::Relocate { to: other, .. } | Act::Exchange { to: other, .. } => Some(other),
            Act::Take { from: other, .. } | Act::Link { of: other } => Some(other),
            Act::Place { .. } | Act::Raise { .. } | Act::Remove { .. } => None,
            Act::Supplant { .. } | Act::Rewrite { .. } => None,
        }
    }

    /// True if the step may move a directory, along with what other steps have in it.
    pub fn is_rename(&self) -> bool {
        matches!(self.act, Act::Relocate { .. } | Act::Exchange { .. })
    }

    /// True if a landing of ours could have such a step. Our own directory and our temporary names are no part of the
    /// project: a journal that names them was planted or damaged.
    pub fn is_plausible(&self) -> bool {
        let is_projects = |path: &RelPath| !path.is_root() && !crate::store::is_within_reserved(path);
        is_projects(&self.path) && self.other().is_none_or(is_projects)
    }
}

/// A temporary name in the directory of the path it serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) struct Temp(pub OsString);

impl Serialize for Temp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(&String::from_utf8_lossy(self.0.as_bytes()))
    }
}

/// Accepts only a name of our own pattern: a planted journal must not make recovery remove another program's file.
impl<'de> Deserialize<'de> for Temp {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let name = OsString::from_vec(String::deserialize(deserializer)?.into_bytes());
        match crate::store::is_temp_name(&name) && !name.as_bytes().contains(&b'/') {
            true => Ok(Self(name)),
            false => Err(serde::de::Error::custom("not one of our temporary names")),
        }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(in crate::store) struct Intent {
    pub steps: Vec<Step>,
    pub backups: Vec<Backup>,
    pub epilogue: Epilogue,
    /// Directories that go when all is done, unless there is still something in them.
    #[serde(default)]
    pub emptied: Vec<RelPath>,
    /// Directories that were made for the landing: they stay, even if nothing is in them.
    #[serde(default)]
    pub made: Vec<RelPath>,
    /// Earlier intents that had come true and were not recorded yet, in that order. Only one later intent lists each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub done: Vec<i64>,
}

impl Intent {
    /// Kept content that finishing or undoing the landing may need.
    pub fn contents(&self) -> impl Iterator<Item = Digest> {
        let rewritten = self.steps.iter().flat_map(|step| match &step.act {
            Act::Rewrite { old, new, .. } => vec![*old, *new],
            Act::Place { .. } | Act::Raise { .. } | Act::Remove { .. } | Act::Move { .. } => Vec::new(),
            Act::Relocate { .. } | Act::Supplant { .. } | Act::Take { .. } => Vec::new(),
            Act::Exchange { .. } | Act::Link { .. } => Vec::new(),
        });
        let anchors = self.epilogue.anchors.iter().filter_map(|anchor| Some(anchor.known.kept()?.digest));
        let saved = self.epilogue.save.iter().chain(&self.epilogue.update);
        let bases = saved.flat_map(|row| row.base.contents());
        let backups = self.backups.iter().map(|backup| backup.digest);
        rewritten.chain(anchors).chain(bases).chain(backups).collect::<Vec<_>>().into_iter()
    }
}

/// The commit point: from here on the transaction will be finished, or undone as a whole.
pub(super) fn promise(tx: &Transaction<'_>, intent: &Intent) -> Result<i64> {
    tx.prepare_cached("INSERT INTO intent (row) VALUES (?1)")?.execute([to_row(intent)?])?;
    Ok(tx.last_insert_rowid())
}

/// What was recorded of a finished landing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Landed {
    /// The names of the backups, in their order.
    pub backups: Vec<String>,
    pub operation: Option<OperationId>,
}

/// Records what the intent promised.
pub(super) fn fulfil(tx: &Transaction<'_>, id: i64, intent: &Intent) -> Result<Landed> {
    let names = intent.backups.iter().map(|backup| backups::put(tx, backup)).collect::<Result<Vec<_>>>()?;
    let named: Vec<_> = intent.backups.iter().zip(&names).collect();
    let operation = intent.epilogue.write(tx, &named)?;
    intent.emptied.iter().try_for_each(|dir| recovery::doom_dir(tx, dir))?;
    intent.made.iter().try_for_each(|dir| recovery::spare_dir(tx, dir))?;
    retract(tx, id)?;
    Ok(Landed { backups: names, operation })
}

pub(in crate::store) fn retract(tx: &Transaction<'_>, id: i64) -> Result<()> {
    tx.prepare_cached("DELETE FROM intent WHERE id = ?1")?.execute([id])?;
    Ok(())
}
