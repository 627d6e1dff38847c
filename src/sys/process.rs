//! Facts about processes, from `/proc`.
//!
//! Reading `/proc/<pid>/{exe,cmdline,environ,stat}` waits for a process that is in `execve`, and that process may be
//! waiting for our answer to a FLUSH: both would hang for good. [`Program::of`], [`began`], [`tree_name`] and
//! [`processor`] read them. Call these where the process itself asks for something by name (OPEN, UNLINK, RENAME, …) or
//! off the request path, never while a FLUSH, RELEASE or page write of that process is being answered, and under no lock
//! that an answer needs.
//! Everything else here is safe at any time.
//!
//! A process may end between two looks, so every fact is an `Option`: absent means gone or not ours to see.

mod known;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use known::KnownThread;
use rustix::thread::CapabilitySet;

use super::namespace::{self, Kind};

/// What a person wants to know about the program behind a change. Absent: the kernel does not tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// That of the process, even if a thread was asked for.
    pub pid: u32,
    /// Absent for kernel threads and, unless we are root, for processes of other users.
    pub exe: Option<PathBuf>,
    /// The arguments, with a blank after each but the last, as far as [`CMDLINE_BYTES_MAX`] goes.
    pub cmdline: Option<Vec<u8>>,
}

/// Threads of the kernel have names of up to 63 bytes; a newline follows.
const NAME_BYTES_MAX: usize = 64;

/// How much of a command line is kept: enough to recognise it. It may be megabytes, and every event has one.
pub const CMDLINE_BYTES_MAX: usize = 512;

impl Program {
    /// May hang, see the head of this file. `None` for 0 and for a thread that is gone.
    pub fn of(tid: u32) -> Option<Self> {
        known::ask(tid, |known| {
            let (exe, cmdline) = (known.exe(), known.cmdline());
            (exe.is_some() || cmdline.is_some()).then_some(Self { pid: known.leader, exe, cmdline })
        })
    }
}

/// Names this boot of the machine. Absent where `/proc` does not tell.
pub fn boot_id() -> Option<String> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().map(|id| id.trim().to_owned())
}

/// The thread group of a thread, usually called its pid. FUSE requests carry thread ids.
pub fn tgid(tid: u32) -> Option<u32> {
    status_number(tid, "Tgid:")
}

/// The same, mostly without reading the long `status` file.
pub fn leader(tid: u32) -> Option<u32> {
    known::ask(tid, |known| known.name().map(|_| known.leader))
}

/// True if two threads belong to one process; false for two different ids of threads that are gone.
pub fn same_thread_group(a: u32, b: u32) -> bool {
    a != 0 && (a == b || tgid(a).is_some_and(|group| tgid(b) == Some(group)))
}

/// The leader of a process's session: the shell of a terminal, or what called `setsid`. 0 if it is not visible to us,
/// `None` for a process that has ended.
#[allow(unsafe_code)]
pub fn session(pid: u32) -> Option<u32> {
    let raw = libc::pid_t::try_from(pid).ok()?;
    // The kernel would take 0 for ourselves.
    if raw == 0 {
        return Some(0);
    }
    // SAFETY: takes a number, and gives one. (rustix does not know a leader in an outer namespace, which is 0.)
    let leader = unsafe { libc::getsid(raw) };
    u32::try_from(leader).ok()
}

/// True if a process is there, or its process group has members that have outlived it: the leader of a session may end
/// before those it has started.
pub fn has_session(leader: u32) -> bool {
    let group = || rustix::process::Pid::from_raw(i32::try_from(leader).ok()?);
    let is_there = |group| rustix::process::test_kill_process_group(group) != Err(rustix::io::Errno::SRCH);
    session(leader).is_some() || group().is_some_and(is_there)
}

/// The name the kernel keeps (`comm`), at most 15 bytes; more for a thread of the kernel.
pub fn name(pid: u32) -> Option<OsString> {
    known::ask(pid, KnownThread::name)
}

/// Describes a process for messages. 0 is one in a pid namespace that is not visible to us, about which the kernel tells
/// nothing.
pub fn shown(pid: u32) -> String {
    match (pid, name(pid)) {
        (0, _) => "a process that cannot be seen from here".to_owned(),
        (pid, Some(name)) => format!("{} (pid {pid})", name.to_string_lossy()),
        (pid, None) => format!("unknown (pid {pid})"),
    }
}

/// The parent's pid; 0 for the first process of a pid namespace.
pub fn parent(pid: u32) -> Option<u32> {
    status_number(pid, "PPid:")
}

/// Ancestors beyond this many are not looked at.
const ANCESTORS_MAX: usize = 256;

/// A process and its ancestors, nearest first. Ends with 0, above the first process of a pid namespace, unless one of
/// them is gone or there are too many.
pub fn ancestors(pid: u32) -> impl Iterator<Item = u32> {
    let above = |pid: &u32| if *pid == 0 { None } else { parent(*pid) };
    std::iter::successors(Some(pid), above).take(ANCESTORS_MAX)
}

/// The children of a process with one thread. Complete only if none comes or goes meanwhile: ask again.
pub fn children(pid: u32) -> Vec<u32> {
    match fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")) {
        Ok(children) => children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect(),
        // A kernel without CONFIG_PROC_CHILDREN.
        Err(_) => all_pids().filter(|&child| parent(child) == Some(pid)).collect(),
    }
}

/// When a process began, in ticks since the machine did: a later process with the same number began later. May hang, see
/// the head of this file.
pub fn began(pid: u32) -> Option<u64> {
    parse_stat(&read(pid, "stat")?, STAT_STARTTIME)
}

/// How long the machine has run, without the time that it was suspended: what [`std::time::Instant`] goes by, comparable
/// among processes. Setting the time of day does not move it.
pub fn uptime() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// The processor a thread runs on, or ran on last. May hang, see the head of this file.
pub fn processor(tid: u32) -> Option<usize> {
    // The process's own `stat` would first be added up over all of its threads.
    let stat = read(tid, &format!("task/{tid}/stat"))?;
    usize::try_from(parse_stat(&stat, STAT_PROCESSOR)?).ok()
}

/// A name of a process's tree that no other tree ever has: its session's leader, when that began, and in which boot of
/// the machine. `None` if the leader has ended or is not visible to us.
pub fn tree_name(pid: u32) -> Option<String> {
    let leader = session(pid).filter(|leader| *leader != 0)?;
    let began = began(leader)?;
    let boot = boot_id()?;
    Some(format!("tree-{leader}-{began}-{}", boot.split('-').next().unwrap_or_default()))
}

/// The real user id.
pub fn uid(pid: u32) -> Option<u32> {
    status_number(pid, "Uid:")
}

/// What a thread may do beyond what its user and group may.
pub struct Rights {
    status: Vec<u8>,
    /// Empty for a thread in another user namespace: capabilities there give no rights over files outside.
    capabilities: CapabilitySet,
}

/// Returns `None` for a thread that is gone or outside our pid namespace.
pub fn rights(tid: u32) -> Option<Rights> {
    let status = read(tid, "status")?;
    let has_our_users = namespace::of(tid, Kind::User).ok()? == namespace::own(Kind::User).ok()?;
    let effective = parse_hexadecimal(&status, "CapEff:").filter(|_| has_our_users).unwrap_or(0);
    Some(Rights { status, capabilities: CapabilitySet::from_bits_retain(effective) })
}

impl Rights {
    /// The groups that it is in beside its own.
    pub fn groups(&self) -> Vec<u32> {
        status_words(&self.status, "Groups:").filter_map(|group| group.parse().ok()).collect()
    }

    /// True if it may open files whose modes keep others out.
    pub fn opens_all(&self) -> bool {
        self.capabilities.intersects(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH)
    }

    /// Whether it may change modes, owners and access lists of others' files.
    pub fn acts_for_owners(&self) -> bool {
        self.capabilities.intersects(CapabilitySet::FOWNER | CapabilitySet::CHOWN)
    }

    /// Whether set-id bits stay on files that it writes to.
    pub fn keeps_set_id(&self) -> bool {
        self.capabilities.contains(CapabilitySet::FSETID)
    }

    /// Whether it may give the set-group-id bit to files of a group: it is in that, or keeps the bit anyway.
    pub fn lends_group(&self, gid: u32) -> bool {
        self.keeps_set_id() || self.groups().contains(&gid)
    }
}

/// True if a signal is pending that the thread neither blocks nor ignores: the system call it is in should end. Also true
/// for a thread that is gone, since nothing waits for the answer.
pub fn is_signalled(tid: u32) -> bool {
    if tid == 0 {
        return false;
    }
    let Some(status) = read(tid, "status") else { return true };
    let set = |field| parse_hexadecimal(&status, field).unwrap_or(0);
    (set("SigPnd:") | set("ShdPnd:")) & !(set("SigBlk:") | set("SigIgn:")) != 0
}

/// Whether a process has a descriptor of an inode, compared by number alone, whatever the file system. False for a
/// process that is gone; an error if its descriptors are not visible to us.
pub fn has_open(pid: u32, inode: u64) -> io::Result<bool> {
    if pid == 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let descriptors = match fs::read_dir(format!("/proc/{pid}/fdinfo")) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(false),
        descriptors => descriptors?,
    };
    let is_it = |facts: Vec<u8>| status_words(&facts, "ino:").any(|number| number.parse() == Ok(inode));
    // A descriptor that is closed meanwhile cannot be read any more.
    Ok(descriptors.flatten().any(|entry| fs::read(entry.path()).is_ok_and(is_it)))
}

/// Whether any other process has one, as far as we may see. Looks at all descriptors there are, so it is for when the one
/// process that was asked about did not settle it.
pub fn others_have_open(inode: u64) -> bool {
    let mut others = all_pids().filter(|pid| *pid != std::process::id());
    others.any(|pid| has_open(pid, inode).unwrap_or(false))
}

/// The processes that a signal has stopped (SIGSTOP, Ctrl-Z), until they are continued. Those that a debugger has stopped
/// are not among them.
pub fn stopped() -> impl Iterator<Item = u32> {
    all_pids().filter(|pid| read(*pid, "status").is_some_and(|status| status_word(&status, "State:") == Some("T")))
}

/// Whether a process has a file open by this name, as the kernel shows it. Sends no request to the file's file system.
/// False if the process's descriptors are not visible to us.
pub fn opens(pid: u32, path: &Path) -> bool {
    descriptors(pid).any(|link| fs::read_link(link).is_ok_and(|target| target == path))
}

/// The default of `fs.nr_open`, the most that the kernel lets a limit be.
const DESCRIPTORS_MAX: u64 = 1 << 20;

/// How many files this process may have open at once.
pub fn descriptor_limit() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(DESCRIPTORS_MAX)
}

/// Lets this process open as many files as it may: the usual limit of 1024 is a shell's. Returns the limit.
pub fn raise_descriptor_limit() -> std::io::Result<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    // `None` is no limit, which the kernel does not grant for descriptors.
    let wanted = now.maximum.unwrap_or(DESCRIPTORS_MAX).max(DESCRIPTORS_MAX);
    let limit = |count| Rlimit { current: Some(count), maximum: Some(count) };
    match (setrlimit(Resource::Nofile, limit(wanted)), now.maximum) {
        (Ok(()), _) => Ok(wanted),
        // Only root can raise the hard limit.
        (Err(_), Some(maximum)) => {
            setrlimit(Resource::Nofile, limit(maximum))?;
            Ok(maximum)
        }
        (Err(err), None) => Err(err.into()),
    }
}

/// A process that stands in a directory tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bystander {
    pub pid: u32,
    pub name: OsString,
}

/// A longer list is of no use to a person.
const BYSTANDERS_MAX: usize = 200;

/// Of a process with more open files only this many are looked at.
const DESCRIPTORS_PER_PROCESS_MAX: usize = 4096;

/// The processes that have their working directory, root or an open file in `dir` or below, this process excepted.
///
/// `dir` is absolute and resolved, as the kernel shows it. Compares names only and touches no file, so a dead mount
/// elsewhere cannot block it. A process in another mount namespace is listed when its path reads the same.
pub fn standing_in(dir: &Path) -> Vec<Bystander> {
    let own = std::process::id();
    all_pids()
        .filter(|&pid| pid != own && stands_in(pid, dir))
        .filter_map(|pid| Some(Bystander { pid, name: name(pid)? }))
        .take(BYSTANDERS_MAX)
        .collect()
}

fn stands_in(pid: u32, dir: &Path) -> bool {
    let inside = |link: PathBuf| fs::read_link(link).is_ok_and(|target| target.starts_with(dir));
    inside(proc_path(pid, "cwd")) || inside(proc_path(pid, "root")) || descriptors(pid).any(inside)
}

fn descriptors(pid: u32) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(proc_path(pid, "fd")).into_iter().flatten();
    entries.flatten().map(|entry| entry.path()).take(DESCRIPTORS_PER_PROCESS_MAX)
}

fn all_pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn proc_path(pid: u32, file: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{file}"))
}

/// 0 is the kernel, or a caller from outside our pid namespace: `/proc/0` does not exist.
fn read(pid: u32, file: &str) -> Option<Vec<u8>> {
    fs::read(proc_path(pid, file)).ok()
}

pub(super) fn status_number(pid: u32, field: &str) -> Option<u32> {
    parse_status(&read(pid, "status")?, field)
}

/// The first number after `field`.
fn parse_status(status: &[u8], field: &str) -> Option<u32> {
    status_word(status, field)?.parse().ok()
}

/// A set of signals or capabilities, the first of them in the lowest bit.
fn parse_hexadecimal(status: &[u8], field: &str) -> Option<u64> {
    u64::from_str_radix(status_word(status, field)?, 16).ok()
}

/// The first word after `field`.
fn status_word<'a>(status: &'a [u8], field: &str) -> Option<&'a str> {
    status_words(status, field).next()
}

/// The words after `field` at the beginning of a line. `Name:` is escaped by the kernel, so it has no newline.
fn status_words<'a>(status: &'a [u8], field: &str) -> impl Iterator<Item = &'a str> {
    let mut lines = status.split(|&byte| byte == b'\n');
    let values = lines.find_map(|line| line.strip_prefix(field.as_bytes()));
    values.and_then(|values| std::str::from_utf8(values).ok()).into_iter().flat_map(str::split_whitespace)
}

/// Fields of `stat`, as proc(5) counts them.
const STAT_STARTTIME: usize = 22;
const STAT_PROCESSOR: usize = 39;

/// The second field is the name in parentheses, which may itself contain both.
fn parse_stat(stat: &[u8], field: usize) -> Option<u64> {
    let end_of_name = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(&stat[end_of_name + 1..]).ok()?;
    rest.split_whitespace().nth(field - 3)?.parse().ok()
}

/// Arguments end with a zero byte. A program that rewrote its title may leave the last one out.
fn readable_cmdline(bytes: &[u8]) -> Vec<u8> {
    let (kept, ellipsis) = match bytes.get(..CMDLINE_BYTES_MAX) {
        Some(kept) if bytes.len() > CMDLINE_BYTES_MAX => (kept, "…"),
        Some(_) | None => (bytes.strip_suffix(b"\0").unwrap_or(bytes), ""),
    };
    let mut text: Vec<u8> = kept.iter().map(|&byte| if byte == 0 { b' ' } else { byte }).collect();
    text.extend(ellipsis.as_bytes());
    text
}
