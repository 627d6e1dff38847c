//! What operations did, path by path, so that `undo` can reverse them.
//!
//! An operation is what was recorded in one transaction: its events share an id, and their rows have, beside what `log`
//! tells, what each did. Contents are kept by hash, as those of backups are, and no longer.

use std::collections::HashSet;
use std::fs::File;

use serde::{Deserialize, Deserializer, Serialize};

use super::events::{Event, EventDraft};
use super::upper::{Kept, UpperRow};
use crate::model::{Births, ChangeId, InodeKey, OperationId, RelPath, Timestamp, Xattr};
use crate::protocol::EventName;
use crate::store::{Result, Store};
use crate::sys::OFlags;
use crate::sys::file::{self, FileKind, Meta};
use crate::sys::tree::Place;

/// A file or symlink as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// `None` if it was too large to be hashed while its writer waited: then size and time identify it.
    pub content: Option<Kept>,
    pub size: u64,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: Timestamp,
    /// What the owning group may do, if an access list bounds that and does not come back with the file: the group's bits
    /// of the mode are then the list's mask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
}

impl Version {
    pub fn of(meta: &Meta, content: Option<Kept>) -> Self {
        let Meta { size, mode, uid, gid, mtime, .. } = *meta;
        Self { content, size, mode, uid, gid, mtime, group: None }
    }
}

/// Permissions and owner of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirLooks {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

impl DirLooks {
    pub fn of(meta: &Meta) -> Self {
        Self { mode: meta.mode, uid: meta.uid, gid: meta.gid }
    }

    /// The looks of a directory that nobody has given any, in the directory `above`.
    pub fn of_new_in(above: &Meta) -> Self {
        Self { mode: 0o755 | above.mode & libc::S_ISGID, ..Self::of(above) }
    }

    /// The looks of a directory at `place` that is about to go: its access list does not come back with it, and then
    /// lends the owning group nothing.
    pub fn of_going(place: &Place, meta: &Meta) -> std::io::Result<Self> {
        let dir = File::from(place.open(OFlags::PATH | OFlags::DIRECTORY)?);
        let mode = file::mode_beside_list(meta.mode, file::masked_group(&dir, meta.mode), None)?;
        Ok(Self { mode, ..Self::of(meta) })
    }

    /// Gives these looks to a directory made a moment ago, whose mode the umask has reduced.
    pub fn give(&self, dir: &Place) -> std::io::Result<()> {
        // The mode comes last: a change of owner takes set-id bits away.
        dir.give_owner(self.uid, self.gid).and_then(|()| dir.set_mode(self.mode))
    }
}

/// Reads a record that may have the permissions alone.
pub(in crate::store) fn looks_or_mode<'de, D: Deserializer<'de>>(
    record: D,
) -> std::result::Result<Option<DirLooks>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Recorded {
        Looks(DirLooks),
        Mode(u32),
    }
    let looks = |recorded| match recorded {
        Recorded::Looks(looks) => looks,
        Recorded::Mode(mode) => DirLooks { mode, uid: 0, gid: 0 },
    };
    Ok(Option::<Recorded>::deserialize(record)?.map(looks))
}

/// All there is to a FIFO, socket or device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLooks {
    pub kind: FileKind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// The device that it is; 0 for a FIFO or socket.
    pub device: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
}

impl NodeLooks {
    pub fn of(meta: &Meta) -> Self {
        let Meta { kind, mode, uid, gid, special_device: device, atime, mtime, .. } = *meta;
        Self { kind, mode, uid, gid, device, atime, mtime }
    }
}

/// What became of a path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Effect {
    /// A file or symlink came, changed or went. If `shared`, it has further names, which show the same.
    Content {
        before: Option<Version>,
        after: Option<Version>,
        shared: bool,
    },
    /// The path is one more name of what is at `of`.
    Linked {
        of: RelPath,
    },
    DirMade,
    DirRemoved(DirLooks),
    /// A FIFO, socket or device came.
    SpecialMade,
    SpecialRemoved(NodeLooks),
    /// What was at `from` is here, possibly in the place of an empty directory that looked like `onto`.
    Renamed {
        from: RelPath,
        #[serde(default, deserialize_with = "looks_or_mode")]
        onto: Option<DirLooks>,
    },
    /// The path and `with` changed places. `other` is what stands at `with` now, where that is known.
    Exchanged {
        with: RelPath,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        other: Option<Inode>,
    },
    Mode {
        before: u32,
        after: u32,
    },
    /// User and group.
    Owner {
        before: (u32, u32),
        after: (u32, u32),
    },
    /// The times of last access and modification.
    Times {
        before: (Timestamp, Timestamp),
        after: (Timestamp, Timestamp),
    },
    /// An extended attribute; `None` if there is none of this name.
    Xattr {
        name: Vec<u8>,
        before: Option<Vec<u8>>,
        after: Option<Vec<u8>>,
    },
    /// A held change went from the view. `content` is what it would have landed, without content for a directory, and
    /// `None` for a deletion.
    Discarded {
        row: Box<UpperRow>,
        content: Option<Version>,
        /// The attributes of its own.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        xattrs: Vec<Xattr>,
        /// What was held in its place from then on: its rest, if some of its hunks went, or the whole, if an undo put
        /// that in the place of its rest.
        #[serde(default, alias = "rest", skip_serializing_if = "Option::is_none")]
        instead: Option<ChangeId>,
    },
    /// A change that had been discarded is held again where nothing was held.
    HeldAgain {
        id: ChangeId,
    },
}

/// An inode of lower. Without its device, which may have another number when the machine starts again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inode {
    number: u64,
    btime: Timestamp,
}

impl Inode {
    pub fn of(meta: &Meta) -> Self {
        Self { number: meta.inode, btime: meta.btime }
    }

    /// True if `meta` may be this inode. A stacked file system may number its inodes anew: there any inode may be.
    pub fn may_be(self, meta: &Meta, births: Births) -> bool {
        let key = InodeKey { device: meta.device, inode: self.number, btime: self.btime };
        births == Births::Move || births.may_be_one(key, meta.key())
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathEffect {
    pub path: RelPath,
    pub effect: Effect,
    /// What stood at the path then, if that tells whether it still does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inode: Option<Inode>,
}

impl PathEffect {
    pub fn new(path: &RelPath, effect: Effect) -> Self {
        Self { path: path.clone(), effect, inode: None }
    }

    pub fn on(path: &RelPath, effect: Effect, there: Option<&Meta>) -> Self {
        Self { inode: there.map(Inode::of), ..Self::new(path, effect) }
    }

    /// True if the effect takes away what was at a path before it.
    fn takes_away(&self, path: &RelPath) -> bool {
        match &self.effect {
            Effect::Renamed { from, .. } => path.is_within(from),
            Effect::Exchanged { with, .. } => path.is_within(&self.path) || path.is_within(with),
            Effect::Content { after: None, .. } | Effect::DirRemoved(_) | Effect::SpecialRemoved(_) => {
                self.path == *path
            }
            _ => false,
        }
    }
}

/// All that was done at once, as one operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    pub id: OperationId,
    /// In the order in which they were recorded; never empty.
    pub events: Vec<Event>,
    pub effects: Vec<PathEffect>,
}

impl Effect {
    /// True if it changes what stands at a path, not its looks or its place. A landing can reverse such effects together.
    pub(super) fn is_on_entry(&self) -> bool {
        matches!(
            self,
            Self::Content { .. } | Self::Linked { .. } | Self::DirMade | Self::DirRemoved(_) | Self::SpecialMade
        )
    }
}

impl Operation {
    /// Adds an effect. Successive contents of one path become a single effect.
    fn add(&mut self, done: PathEffect) {
        if let Effect::Content { after, shared, .. } = &done.effect
            && let Some(Effect::Content { after: last, shared: was_shared, .. }) =
                self.effects.iter_mut().find(|before| before.path == done.path).map(|before| &mut before.effect)
        {
            (*last, *was_shared) = (*after, *was_shared || *shared);
            return;
        }
        self.effects.push(done);
    }
}

impl Store {
    /// True if, by the log, what is `there` is what the operation left at a path, though as another inode: a landing gives
    /// a file one, and an undo gives one to what it makes again. Not if an operation that still stands took that away.
    pub fn stands_for(&self, operation: &Operation, path: &RelPath, there: &Meta, births: Births) -> Result<bool> {
        let history = self.history()?;
        let since = || history.iter().take_while(|(event, _)| event.seq > operation.id.first_event());
        let undone = undone_in(since().map(|(event, _)| event));
        let standing = || since().filter(|(event, _)| of_event(event).is_none_or(|by| !undone.contains(&by)));
        let was_taken_away = standing().any(|(_, effects)| effects.iter().any(|done| done.takes_away(path)));
        let makes =
            |done: &PathEffect| done.path == *path && done.inode.is_some_and(|inode| inode.may_be(there, births));
        let is_made_again =
            || standing().any(|(event, effects)| event.event == EventName::Undone && effects.iter().any(makes));
        Ok(!was_taken_away && (there.kind.has_content() || is_made_again()))
    }

    /// Returns `None` if there is no such operation, or its events are gone. One that only held something has no effects.
    pub fn operation(&self, id: OperationId) -> Result<Option<Operation>> {
        let query = "SELECT row FROM event WHERE seq >= ?1 AND instr(row, ?2) > 0 ORDER BY seq";
        let named = format!("\"operation\":\"{id}\"");
        let mut operation = Operation { id, events: Vec::new(), effects: Vec::new() };
        for draft in self.each_row::<EventDraft>(query, (id.first_event() as i64, named))? {
            let (event, effects) = draft?.into_parts();
            // The query also finds messages that have the same words.
            if event.operation.as_deref() == Some(&id.to_string()) {
                operation.events.push(event);
                effects.into_iter().for_each(|done| operation.add(done));
            }
        }
        // If its first event went with the oldest of the log, others may be gone too: no operation is undone by half.
        let is_whole = operation.events.first().is_some_and(|first| first.seq == id.first_event());
        Ok(Some(operation).filter(|_| is_whole))
    }
}

/// Begins the message of an event by which an operation undid another.
const UNDOES: &str = "undoes ";

/// Returns the message of an undo's event.
pub fn undoes(operation: OperationId) -> String {
    format!("{UNDOES}{operation}")
}

/// Returns the operations of which an undo stands that was not itself undone. The latest event comes first, because what
/// undid an undo came after it.
pub fn undone_in<'e>(events: impl Iterator<Item = &'e Event>) -> HashSet<OperationId> {
    let mut undone = HashSet::new();
    for event in events.filter(|event| event.event == EventName::Undone) {
        let target = event.message.as_deref().and_then(|message| OperationId::parse(message.strip_prefix(UNDOES)?));
        if let (Some(target), Some(undo)) = (target, of_event(event))
            && !undone.contains(&undo)
        {
            undone.insert(target);
        }
    }
    undone
}

pub fn of_event(event: &Event) -> Option<OperationId> {
    OperationId::parse(event.operation.as_ref()?)
}
