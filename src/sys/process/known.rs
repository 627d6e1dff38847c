//! Threads that were asked about before, by their files in `/proc`, which are kept open.
//!
//! The same programs are asked about again and again, and opening such a file costs more than reading it. An open file
//! belongs to that one thread for ever: once the thread has ended the file tells nothing, even if another thread gets its
//! number. And a read returns what is true at that moment, so nothing kept here grows stale.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{CMDLINE_BYTES_MAX, NAME_BYTES_MAX, proc_path, readable_cmdline, tgid};

/// Each takes three descriptors. Enough for the programs that write at the same time in most views, a build's included.
const KEPT_MAX: usize = 16;

/// Most recently asked first.
static KEPT: Mutex<VecDeque<Arc<KnownThread>>> = Mutex::new(VecDeque::new());

/// A thread, whether it has ended meanwhile or not.
#[derive(Debug)]
pub(super) struct KnownThread {
    tid: u32,
    /// The leader of its thread group, which does not change: if another thread than the leader calls `execve`, it takes
    /// over the leader's number, and the files of its own old number tell nothing any more.
    pub leader: u32,
    dir: OwnedFd,
    comm: File,
    cmdline: File,
}

/// Returns what `question` finds out about a thread; `None` if the thread has ended.
pub(super) fn ask<T>(tid: u32, question: impl Fn(&KnownThread) -> Option<T>) -> Option<T> {
    let answer = kept(tid).and_then(|known| question(&known));
    answer.or_else(|| {
        let known = KnownThread::open(tid)?;
        let answer = question(&known)?;
        keep(known);
        Some(answer)
    })
}

fn kept(tid: u32) -> Option<Arc<KnownThread>> {
    let mut kept = KEPT.lock();
    let at = kept.iter().position(|known| known.tid == tid)?;
    if at > 0 {
        let known = kept.remove(at)?;
        kept.push_front(known);
    }
    kept.front().cloned()
}

/// Replaces an entry with the same number.
fn keep(known: KnownThread) {
    let mut kept = KEPT.lock();
    kept.retain(|other| other.tid != known.tid);
    kept.truncate(KEPT_MAX - 1);
    kept.push_front(Arc::new(known));
}

impl KnownThread {
    fn open(tid: u32) -> Option<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(proc_path(tid, ""), flags, Mode::empty()).ok()?;
        let file = |name: &str| {
            let file = rustix::fs::openat(&dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
            file.map(File::from).ok()
        };
        let (comm, cmdline) = (file("comm")?, file("cmdline")?);
        Some(Self { tid, leader: leader(tid)?, comm, cmdline, dir })
    }

    pub fn name(&self) -> Option<OsString> {
        let mut bytes = read(&self.comm, NAME_BYTES_MAX)?;
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
        }
        Some(OsString::from_vec(bytes))
    }

    pub fn exe(&self) -> Option<PathBuf> {
        let target = rustix::fs::readlinkat(&self.dir, "exe", Vec::new()).ok()?;
        Some(PathBuf::from(OsString::from_vec(target.into_bytes())))
    }

    /// A command line, or the beginning of one that is too long, with an ellipsis.
    pub fn cmdline(&self) -> Option<Vec<u8>> {
        // One byte more shows whether there is more.
        let bytes = read(&self.cmdline, CMDLINE_BYTES_MAX + 1)?;
        Some(bytes).filter(|bytes| !bytes.is_empty()).map(|bytes| readable_cmdline(&bytes))
    }
}

/// Returns what one read gives: for such files the whole content, or its beginning.
fn read(file: &File, bytes_max: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; bytes_max];
    let length = file.read_at(&mut bytes, 0).ok()?;
    bytes.truncate(length);
    Some(bytes)
}

/// Does not read the long `status` file of a thread that leads its group: only such a thread has a pidfd.
fn leader(tid: u32) -> Option<u32> {
    let pid = Pid::from_raw(i32::try_from(tid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok().map(|_| tid).or_else(|| tgid(tid))
}
