//! The virtual directory `.fettle` of the view: state as files, and the control file (SPEC §3, §11).
//!
//! ```text
//! .fettle/  control  status.json  events.jsonl  NOTICE.md  held/ID/{old,new,diff,meta.json}  backups/NAME
//! ```
//!
//! Owns node numbers and open files; `files.rs` makes the contents, and requests go to [`super::serve`]. A file's content
//! is made when it is opened, so that a reader sees one state from its first byte to its last. A size is reported if it
//! is known without making the content, and is 0 otherwise, as in `/proc`: read to the end of file.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::conversation::Conversation;
use super::files::{self, Item};
use super::memory::{Kept, Memory};
use super::{Asker, Project, rights};
use crate::model::Timestamp;
use crate::overlay::{Caller, WholeContent};
use crate::sys::process;

/// The node of `.fettle`. The nodes of its contents and the handles of its files lie above it; none of the view's do.
pub const DESK_ROOT: u64 = 1 << 60;

/// The attributes that `stat` reports for an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualMeta {
    pub is_dir: bool,
    /// Permission bits.
    pub mode: u32,
    pub size: u64,
    pub mtime: Timestamp,
    pub uid: u32,
    pub gid: u32,
}

pub struct Desk {
    project: Arc<Project>,
    nodes: Mutex<Nodes>,
    handles: Mutex<HashMap<u64, Handle>>,
    handle_next: AtomicU64,
    /// The number of control-file requests being worked on.
    working: Arc<AtomicUsize>,
    memory: Memory,
}

/// The entries that the kernel knows, by their numbers. An entry's number is a hash of what it is: listings, which are
/// long and often read, tell it of entries that are not in here.
struct Nodes {
    known: HashMap<u64, Known>,
    hasher: RandomState,
}

struct Known {
    item: Item,
    /// How often the kernel was told of it and has not forgotten that.
    lookups: u64,
}

#[derive(Clone)]
enum Handle {
    Content(Arc<Text>),
    Control(Arc<Conversation>),
}

/// The content of an entry, made when it was opened.
struct Text {
    content: WholeContent,
    _kept: Kept,
}

impl Nodes {
    fn new() -> Self {
        let root = Known { item: Item::Root, lookups: 0 };
        Self { known: HashMap::from([(DESK_ROOT, root)]), hasher: RandomState::new() }
    }

    /// The number that an entry has or would have; the next one where another has that.
    fn number(&self, item: &Item) -> u64 {
        let mut number = DESK_ROOT + self.hasher.hash_one(item) % DESK_ROOT;
        while self.known.get(&number).is_some_and(|known| known.item != *item) {
            number += 1;
        }
        number
    }

    fn look_up(&mut self, item: Item) -> u64 {
        let number = self.number(&item);
        self.known.entry(number).or_insert(Known { item, lookups: 0 }).lookups += 1;
        number
    }

    /// The root stays: it is found by its number, and its lookups are not counted.
    fn forget(&mut self, node: u64, lookups: u64) {
        if let Some(known) = self.known.get_mut(&node).filter(|known| known.item != Item::Root) {
            known.lookups = known.lookups.saturating_sub(lookups);
            if known.lookups == 0 {
                self.known.remove(&node);
            }
        }
    }

    fn item(&self, node: u64) -> Option<&Item> {
        self.known.get(&node).map(|known| &known.item)
    }
}

impl Desk {
    pub fn new(project: Arc<Project>) -> Self {
        Self {
            project,
            nodes: Mutex::new(Nodes::new()),
            handles: Mutex::new(HashMap::new()),
            handle_next: AtomicU64::new(DESK_ROOT),
            working: Arc::new(AtomicUsize::new(0)),
            memory: Memory::default(),
        }
    }

    /// Counts as one lookup of the node that it returns.
    pub fn lookup(&self, parent: u64, name: &OsStr) -> Result<(u64, VirtualMeta), i32> {
        let item = self.item(parent)?.child(name).ok_or(libc::ENOENT)?;
        let meta = files::meta(&item, &self.project)?;
        Ok((self.nodes.lock().look_up(item), meta))
    }

    /// The kernel lets go of so many lookups of a node.
    pub fn forget(&self, node: u64, lookups: u64) {
        self.nodes.lock().forget(node, lookups);
    }

    /// Fails with ENOENT for an entry no longer held or kept.
    pub fn attributes(&self, node: u64) -> Result<VirtualMeta, i32> {
        files::meta(&self.item(node)?, &self.project)
    }

    /// Returns names, nodes, and whether each is a directory.
    pub fn list(&self, node: u64) -> Result<Vec<(OsString, u64, bool)>, i32> {
        let children = files::children(&self.item(node)?, &self.project)?;
        let nodes = self.nodes.lock();
        Ok(children.into_iter().map(|(name, item)| (name, nodes.number(&item), item.is_dir())).collect())
    }

    /// Makes the content, which may take as long as a diff takes. Fails with ENFILE if askers who may not decide have too
    /// many files open, or if open contents already take all the memory they may.
    pub fn open(&self, node: u64, write: bool, caller: &Caller) -> Result<u64, i32> {
        let item = self.item(node)?;
        let asker = Asker::of(caller, &self.project);
        self.check_may_open(&asker)?;
        let handle = match item {
            Item::Control => Handle::Control(Arc::new(Conversation::new(asker, Arc::clone(&self.project)))),
            _ if item.is_dir() => return Err(libc::EISDIR),
            _ if write => return Err(libc::EACCES),
            _ => Handle::Content(Arc::new(self.text(&item, &asker)?)),
        };
        let number = self.handle_next.fetch_add(1, Ordering::Relaxed);
        self.handles.lock().insert(number, handle);
        Ok(number)
    }

    fn check_may_open(&self, asker: &Asker) -> Result<(), i32> {
        let is_full = || self.handles.lock().len() as u64 >= self.project.overlay.open_max();
        match !rights::has_kept_places(asker, &self.project) && is_full() {
            true => Err(libc::ENFILE),
            false => Ok(()),
        }
    }

    fn text(&self, item: &Item, asker: &Asker) -> Result<Text, i32> {
        let share = self.memory.share(asker, &self.project);
        let turn = item.may_be_long().then(|| share.turn());
        if !share.has_room() {
            return Err(libc::ENFILE);
        }
        let content = files::content(item, &self.project, asker)?;
        let kept = share.keep(content.bytes_in_memory());
        drop(turn);
        Ok(Text { content, _kept: kept })
    }

    /// A read of the control file waits for the answer, whatever `offset` says, and so needs a thread of its own.
    pub fn read(&self, handle: u64, offset: u64, size: usize, reader: &Caller) -> Result<Vec<u8>, i32> {
        match self.handle(handle)? {
            Handle::Content(text) => text.content.read(offset, size).map_err(|err| {
                log::error!("read what was opened in `.fettle`: {err}");
                err.raw_os_error().unwrap_or(libc::EIO)
            }),
            Handle::Control(conversation) => conversation.read(size, || process::is_signalled(reader.pid)),
        }
    }

    /// Takes one request to the control file; work on it has begun when this returns.
    pub fn write(&self, handle: u64, bytes: &[u8], writer: &Caller) -> Result<usize, i32> {
        match self.handle(handle)? {
            Handle::Content(_) => Err(libc::EBADF),
            Handle::Control(conversation) => {
                conversation.write(bytes, &Asker::of(writer, &self.project), (&self.working, &self.memory))
            }
        }
    }

    pub fn release(&self, handle: u64) {
        let released = self.handles.lock().remove(&handle);
        if let Some(Handle::Control(conversation)) = released {
            conversation.release();
        }
    }

    fn item(&self, node: u64) -> Result<Item, i32> {
        self.nodes.lock().item(node).cloned().ok_or(libc::ENOENT)
    }

    fn handle(&self, handle: u64) -> Result<Handle, i32> {
        self.handles.lock().get(&handle).cloned().ok_or(libc::EBADF)
    }
}
