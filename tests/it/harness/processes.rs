//! The kernel's tables: which mounts lie in a directory, which of our processes serve it.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal};

use super::{PATIENCE, within};

/// The mount points at and below `dir`, innermost last mounted first; a stack of mounts is named once for each.
pub fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let table = fs::read("/proc/self/mountinfo").expect("the kernel lists its mounts");
    let points = table.split(|byte| *byte == b'\n').filter_map(mount_point);
    let mut found: Vec<PathBuf> = points.filter(|point| point.starts_with(dir)).collect();
    found.reverse();
    found
}

/// The fifth field of a line of mountinfo, its `\040` escapes undone.
pub fn mount_point(line: &[u8]) -> Option<PathBuf> {
    let field = line.split(|byte| *byte == b' ').nth(4)?;
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let octal = tail.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => (bytes, rest) = ([bytes, vec![byte]].concat(), &tail[3..]),
            None => (bytes, rest) = ([bytes, vec![*first]].concat(), tail),
        }
    }
    Some(OsString::from_vec(bytes).into())
}

/// Detaches a mount whoever is in it. As a user, by way of `fusermount3`.
pub fn detach(point: &Path) {
    if rustix::mount::unmount(point, UnmountFlags::DETACH).is_err() {
        // Its outcome shows in the mount table, which the caller reads again.
        drop(Command::new("fusermount3").arg("-uz").arg(point).output());
    }
}

/// The processes of `program` that were started for something in `dir`: the daemon, and what watches it.
pub fn serving(program: &Path, dir: &Path) -> Vec<i32> {
    let runs_program = |pid: &i32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| is_same(&exe, program));
    let names_dir = |pid: &i32| {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let dir = dir.as_os_str().as_bytes();
        arguments.windows(dir.len()).any(|window| window == dir)
    };
    let entries = fs::read_dir("/proc").expect("the kernel lists its processes");
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(runs_program).filter(names_dir).collect()
}

/// A program rebuilt meanwhile shows as ` (deleted)`.
fn is_same(exe: &Path, program: &Path) -> bool {
    exe == program || exe.as_os_str().as_bytes() == [program.as_os_str().as_bytes(), b" (deleted)"].concat()
}

/// Whether the process still runs; one that nobody has waited for yet does not.
pub fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

/// Sends SIGKILL; that the process is gone already is as good.
pub fn kill(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid)
        && let Err(err) = rustix::process::kill_process(pid, Signal::KILL)
    {
        assert_eq!(err, rustix::io::Errno::SRCH, "kill {pid:?}");
    }
}

/// Whether all of them went by themselves, or after they were killed, in time.
pub fn all_gone(pids: &[i32]) -> bool {
    within(PATIENCE, || !pids.iter().any(|pid| is_alive(*pid)))
}

/// Stops a process, and lets it go on whatever happens.
pub struct Stopped(Pid);

impl Stopped {
    pub fn new(pid: i32) -> Self {
        let pid = Pid::from_raw(pid).expect("a pid");
        rustix::process::kill_process(pid, Signal::STOP).expect("a process can be stopped");
        let stopped = Self(pid);
        // A thread that is still on its way takes one more request.
        assert!(within(PATIENCE, || stopped.all_stand()), "{pid:?} does not stop");
        stopped
    }

    fn all_stand(&self) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0.as_raw_nonzero())).expect("its threads");
        let stats = tasks.flatten().map(|task| fs::read_to_string(task.path().join("stat")).unwrap_or_default());
        stats.into_iter().all(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        rustix::process::kill_process(self.0, Signal::CONT).expect("a stopped process can go on");
    }
}
