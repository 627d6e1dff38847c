//! Ends this process at its n-th call of a kind, or has that call fail; for tests alone.
//!
//! The kernel stops each system call of that kind before it runs, and asks a thread of ours (seccomp's user notification,
//! see seccomp_unotify(2)). So every step counts, whoever makes it: our code, the standard library, SQLite. Nothing in
//! the program knows of it, and nothing in it can be forgotten.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use libc::{c_char, c_long, c_void, sock_filter};

/// What becomes of the step that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The process is gone before the step is made, as by `kill -9`.
    Killed,
    /// The call answers this errno.
    Fails(i32),
    /// It and all that come after it answer this errno, as on a full disk.
    AllFail(i32),
    /// Whoever has the other end of this socket is told the number of each step, which waits for his answer. He is
    /// another process, so that what he does meanwhile is no step.
    Told(RawFd),
}

/// Which calls are steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// Those that change a file, a directory or an attribute, or make a change durable.
    Changing,
    /// Those of them that may need room on the disk.
    Growing,
    /// Those that make a change durable, or begin to.
    Syncing,
    /// Those that read content or list a directory.
    Reading,
    /// Those that give a new descriptor.
    Opening,
}

/// Which files a call must concern to be a step.
#[derive(Clone, Debug)]
pub enum Area {
    Anywhere,
    /// What lies below a directory, but not below another.
    Below {
        dir: PathBuf,
        but: Option<PathBuf>,
    },
}

/// Which step is waited for, the first being 1, and what becomes of it.
#[derive(Clone, Debug)]
pub struct Trap {
    pub calls: Calls,
    pub area: Area,
    pub at: u64,
    pub fate: Fate,
    /// A file that takes room: between its being emptied and being filled again nothing fails.
    pub reserve: Option<PathBuf>,
}

/// Counts the steps of this process, from now to its end.
pub struct Steps(Arc<Tally>);

#[derive(Default)]
struct Tally {
    counted: AtomicU64,
    failed: AtomicU64,
    is_over: AtomicBool,
    has_room: AtomicBool,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Killed,
    Exited(u8),
}

/// What a process exits with when its work panics.
pub const PANICKED: u8 = 101;

/// Writing, and making names. Those with a newer form on all architectures stand in `OLD_GROWING`.
const GROWING: [c_long; 17] = [
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_copy_file_range,
    libc::SYS_sendfile,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_setxattr,
    libc::SYS_fsetxattr,
];

#[cfg(target_arch = "x86_64")]
const OLD_GROWING: [c_long; 5] =
    [libc::SYS_rename, libc::SYS_link, libc::SYS_symlink, libc::SYS_mkdir, libc::SYS_creat];
#[cfg(not(target_arch = "x86_64"))]
const OLD_GROWING: [c_long; 0] = [];

const SYNCING: [c_long; 4] = [libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_syncfs, libc::SYS_sync_file_range];

/// Changes that need no room.
const REMAINING: [c_long; 9] = [
    libc::SYS_truncate,
    libc::SYS_unlinkat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_removexattr,
    libc::SYS_fremovexattr,
];

#[cfg(target_arch = "x86_64")]
const OLD_REMAINING: [c_long; 4] = [libc::SYS_unlink, libc::SYS_rmdir, libc::SYS_chmod, libc::SYS_chown];
#[cfg(not(target_arch = "x86_64"))]
const OLD_REMAINING: [c_long; 0] = [];

const READING: [c_long; 7] = [
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_getdents64,
    libc::SYS_copy_file_range,
];

const OPENING: [c_long; 3] = [libc::SYS_openat, libc::SYS_openat2, libc::SYS_memfd_create];

impl Calls {
    /// Those that count whatever their arguments.
    fn always(self) -> Vec<c_long> {
        match self {
            Self::Changing => [&GROWING[..], &OLD_GROWING, &SYNCING, &REMAINING, &OLD_REMAINING].concat(),
            Self::Growing => [&GROWING[..], &OLD_GROWING].concat(),
            Self::Syncing => SYNCING.to_vec(),
            Self::Reading => READING.to_vec(),
            Self::Opening => OPENING.to_vec(),
        }
    }

    /// Those that count for what one argument is: the call, the argument, and what to look for in it.
    fn by_argument(self) -> Vec<(c_long, u32, Look)> {
        let reflinks = (libc::SYS_ioctl, 1, Look::Is(libc::FICLONE as u32));
        match self {
            Self::Changing | Self::Growing => {
                // Without the bit that directories are opened with, too.
                let nameless = libc::O_TMPFILE & !libc::O_DIRECTORY;
                vec![(libc::SYS_openat, 2, Look::Has((libc::O_CREAT | libc::O_TRUNC | nameless) as u32)), reflinks]
            }
            Self::Reading => vec![reflinks],
            Self::Syncing => Vec::new(),
            Self::Opening => vec![(libc::SYS_fcntl, 1, Look::Is(libc::F_DUPFD_CLOEXEC as u32))],
        }
    }
}

/// What is looked for in an argument.
#[derive(Clone, Copy)]
enum Look {
    Is(u32),
    /// Any of these bits.
    Has(u32),
}

impl Trap {
    /// This process dies before its `at`-th change.
    pub fn death(at: u64) -> Self {
        Self { calls: Calls::Changing, area: Area::Anywhere, at, fate: Fate::Killed, reserve: None }
    }

    /// Of what lies below `dir`.
    pub fn below(dir: PathBuf, calls: Calls, at: u64, fate: Fate) -> Self {
        Self { calls, area: Area::Below { dir, but: None }, at, fate, reserve: None }
    }

    /// What becomes of the `number`-th step: an errno, or none if it goes on.
    fn spring(&self, number: u64) -> Option<i32> {
        match self.fate {
            Fate::Killed if number == self.at => die(),
            Fate::Fails(errno) if number == self.at => Some(errno),
            Fate::AllFail(errno) if number >= self.at => Some(errno),
            Fate::Told(socket) => {
                tell(socket, number);
                None
            }
            Fate::Killed | Fate::Fails(_) | Fate::AllFail(_) => None,
        }
    }
}

impl Area {
    fn has(&self, call: &libc::seccomp_data, calls: Calls) -> bool {
        let Self::Below { dir, but } = self else { return true };
        let is_in = |file: PathBuf| file.starts_with(dir) && !but.as_ref().is_some_and(|but| file.starts_with(but));
        files_of(call, calls).into_iter().filter_map(File::path).any(is_in)
    }
}

/// What a call names a file by.
enum File {
    /// A descriptor, or a directory's, in which the rest of the arguments names something.
    Open(i32),
    /// The address of a path.
    Path(u64),
}

impl File {
    fn path(self) -> Option<PathBuf> {
        let path = match self {
            Self::Open(fd) => PathBuf::from(format!("/proc/self/fd/{fd}")),
            Self::Path(address) => PathBuf::from(path_at(address)?),
        };
        // As we name what a descriptor stands for: `N` or `N/NAME`. Nothing else is resolved.
        let Ok(below) = path.strip_prefix("/proc/self/fd") else { return Some(path) };
        let mut names = below.components();
        let opened = std::fs::read_link(Path::new("/proc/self/fd").join(names.next()?)).ok()?;
        Some(opened.join(names.as_path()))
    }
}

fn path_at(address: u64) -> Option<String> {
    // SAFETY: whoever passed this address to the kernel waits for our answer, so what it points to stays. It is a path
    // of Rust's or SQLite's making, which ends in a NUL.
    let path = unsafe { CStr::from_ptr(std::ptr::with_exposed_provenance::<c_char>(address as usize)) };
    path.to_str().ok().map(str::to_owned)
}

/// The files a call concerns: what it reads if reading counts, else what it changes or opens.
fn files_of(call: &libc::seccomp_data, calls: Calls) -> Vec<File> {
    let argument = |index: usize| call.args[index];
    let open = |index: usize| File::Open(argument(index) as i32);
    // A directory and a name in it; or a whole path, where there is no directory.
    let named = |dir: usize, name: usize| match argument(dir) as i32 {
        libc::AT_FDCWD => File::Path(argument(name)),
        dir => File::Open(dir),
    };
    match c_long::from(call.nr) {
        libc::SYS_memfd_create => Vec::new(),
        libc::SYS_copy_file_range if calls == Calls::Reading => vec![open(0)],
        libc::SYS_copy_file_range => vec![open(2)],
        libc::SYS_ioctl if calls == Calls::Reading => vec![open(2)],
        libc::SYS_renameat | libc::SYS_renameat2 | libc::SYS_linkat => vec![named(0, 1), named(2, 3)],
        libc::SYS_symlinkat => vec![named(1, 2)],
        libc::SYS_openat | libc::SYS_openat2 | libc::SYS_unlinkat | libc::SYS_mkdirat | libc::SYS_mknodat => {
            vec![named(0, 1)]
        }
        libc::SYS_fchmodat | libc::SYS_fchownat => vec![named(0, 1)],
        // Without a path it speaks of the descriptor.
        libc::SYS_utimensat if argument(1) == 0 => vec![open(0)],
        libc::SYS_utimensat => vec![named(0, 1)],
        libc::SYS_truncate | libc::SYS_setxattr | libc::SYS_removexattr => vec![File::Path(argument(0))],
        number if OLD_GROWING.contains(&number) || OLD_REMAINING.contains(&number) => vec![File::Path(argument(0))],
        _ => vec![open(0)],
    }
}

impl Steps {
    /// From now on. All threads count, also those there already. Once in a process.
    pub fn watch(trap: Trap) -> io::Result<Self> {
        let listener = listen(&filter(trap.calls))?;
        let tally = Arc::new(Tally::default());
        let counting = Arc::clone(&tally);
        // It makes no step itself, or it would wait for its own answer.
        std::thread::Builder::new().name("steps".to_owned()).spawn(move || answer(&listener, &counting, &trap))?;
        Ok(Self(tally))
    }

    /// How many calls have failed for it.
    pub fn failed(&self) -> u64 {
        self.0.failed.load(Ordering::SeqCst)
    }

    /// From now on nothing fails any more.
    pub fn relent(&self) {
        self.0.is_over.store(true, Ordering::SeqCst);
    }
}

/// Does `work` in a process of its own, which exits with what that gives, and waits for its end. This process must have
/// no other thread that does anything.
pub fn apart(work: impl FnOnce() -> u8) -> io::Result<Ended> {
    // SAFETY: whoever else runs in this process waits, as the caller promises, so no lock is held for ever in the child.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(PANICKED);
            // SAFETY: takes a number only. Nothing is closed or dropped: that would be one more act.
            unsafe { libc::_exit(i32::from(status)) }
        }
        child => wait(child),
    }
}

/// Makes attempts, each in a process and a directory of its own, in which the first, the second, … call fails, until none
/// does any more. An attempt gives whether all was right, or `None` if no call has failed. Returns how many there were.
/// This process must have no other thread that does anything.
pub fn fail_each_call(attempt: impl Fn(&Path, u64) -> Option<bool>) -> u64 {
    const RIGHT: u8 = 0;
    const WRONG: u8 = 1;
    const PASSED: u8 = 2;
    let status = |outcome| match outcome {
        Some(true) => RIGHT,
        Some(false) => WRONG,
        None => PASSED,
    };
    let mut at = 1;
    loop {
        let dir = tempfile::tempdir().expect("a directory for an attempt");
        match apart(|| status(attempt(dir.path(), at))).expect("a process can be started") {
            Ended::Exited(RIGHT) => at += 1,
            Ended::Exited(PASSED) => return at,
            ended => panic!("where call {at} fails: {ended:?}"),
        }
    }
}

/// Runs one test, by its whole name, in a process of its own, in which nothing else runs and which knows by a variable that
/// it is meant. Gives whether it passed, and what it said.
pub fn test_apart(name: &str, (variable, value): (&str, &str)) -> (bool, String) {
    told(one_test(name).env(variable, value))
}

/// The same of one that must pass.
pub fn assert_passes_apart(name: &str, variable: (&str, &str)) {
    let (passed, told) = test_apart(name, variable);
    assert!(passed, "{}: {told}", variable.1);
}

/// The same of one that [becomes nobody](become_nobody), who has a place for temporary files then, too.
pub fn assert_passes_as_nobody(name: &str, (variable, value): (&str, &str)) {
    let (passed, told) = told(one_test(name).env(variable, value).env("TMPDIR", "/tmp"));
    assert!(passed, "{name}: {told}");
}

/// From here on this thread, and what it starts, is a user who is refused what modes refuse.
pub fn become_nobody() -> io::Result<()> {
    const NOBODY: u32 = 65534;
    if rustix::process::geteuid().is_root() {
        let (user, group) = (rustix::process::Uid::from_raw(NOBODY), rustix::process::Gid::from_raw(NOBODY));
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(group, group, group)?;
        rustix::thread::set_thread_res_uid(user, user, user)?;
    }
    Ok(())
}

fn one_test(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a running program has a path"));
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    command
}

fn told(command: &mut Command) -> (bool, String) {
    let output = command.stdin(Stdio::null()).output().expect("what runs can be started again");
    // One that is not there passes, too.
    let is_tried = String::from_utf8_lossy(&output.stdout).contains("1 passed");
    (output.status.success() && is_tried, String::from_utf8_lossy(&output.stderr).into_owned())
}

fn wait(child: libc::pid_t) -> io::Result<Ended> {
    let mut status = 0;
    // SAFETY: the kernel fills in one number.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } != child {
        match io::Error::last_os_error() {
            err if err.kind() == io::ErrorKind::Interrupted => {}
            err => return Err(err),
        }
    }
    match (libc::WIFSIGNALED(status), libc::WTERMSIG(status), u8::try_from(libc::WEXITSTATUS(status))) {
        (true, libc::SIGKILL, _) => Ok(Ended::Killed),
        (false, _, Ok(status)) => Ok(Ended::Exited(status)),
        _ => Err(io::Error::other(format!("the process ended with wait status {status:#x}"))),
    }
}

fn answer(listener: &OwnedFd, tally: &Tally, trap: &Trap) {
    loop {
        // SAFETY: both are plain numbers, for which zeros are values; the kernel wants them zeroed.
        let mut asked: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel fills in a struct of this size.
        if unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut asked) } != 0 {
            match io::Error::last_os_error().raw_os_error() {
                // Whoever asked is gone already.
                Some(libc::EINTR | libc::ENOENT) => continue,
                _ => return,
            }
        }
        let (error, flags) = match tally.verdict(&asked.data, trap) {
            Some(errno) => (-errno, 0),
            None => (0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
        };
        let mut reply = libc::seccomp_notif_resp { id: asked.id, val: 0, error, flags };
        // SAFETY: the kernel reads a struct of this size. That the caller may be gone by now is all that can go wrong.
        unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut reply) };
    }
}

impl Tally {
    /// With which errno a call fails, if it does.
    fn verdict(&self, call: &libc::seccomp_data, trap: &Trap) -> Option<i32> {
        if self.is_over.load(Ordering::SeqCst) || !trap.area.has(call, trap.calls) {
            return None;
        }
        let number = self.counted.fetch_add(1, Ordering::SeqCst) + 1;
        if trap.reserve.is_some()
            && files_of(call, trap.calls).into_iter().filter_map(File::path).eq(trap.reserve.clone())
        {
            self.has_room.store(c_long::from(call.nr) == libc::SYS_ftruncate, Ordering::SeqCst);
        }
        let errno = if self.has_room.load(Ordering::SeqCst) { None } else { trap.spring(number) };
        self.failed.fetch_add(u64::from(errno.is_some()), Ordering::SeqCst);
        errno
    }
}

/// By calls that are no steps.
fn tell(socket: RawFd, number: u64) {
    let mut number = number.to_ne_bytes();
    let length = number.len();
    // SAFETY: both take these bytes for as long as the call lasts. A socket that is closed gives an error at once.
    unsafe {
        libc::send(socket, number.as_ptr().cast(), length, libc::MSG_NOSIGNAL);
        libc::recv(socket, number.as_mut_ptr().cast(), length, 0);
    }
}

fn die() -> ! {
    loop {
        // SAFETY: takes numbers only.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
}

/// Where the words of `struct seccomp_data` stand: the call's number, and the low halves of its arguments.
const NUMBER: u32 = 0;
const fn argument(index: u32) -> u32 {
    let half = if cfg!(target_endian = "big") { 4 } else { 0 };
    16 + 8 * index + half
}

fn filter(calls: Calls) -> Vec<sock_filter> {
    let load = |at| sock_filter { code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, jt: 0, jf: 0, k: at };
    let unless = |test, k, skip| sock_filter { code: (libc::BPF_JMP | test | libc::BPF_K) as u16, jt: 0, jf: skip, k };
    let give = |what| sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: what };
    let (ask, allow) = (give(libc::SECCOMP_RET_USER_NOTIF), give(libc::SECCOMP_RET_ALLOW));
    let mut program = vec![load(NUMBER)];
    for call in calls.always() {
        program.extend([unless(libc::BPF_JEQ, call as u32, 1), ask]);
    }
    for (call, index, look) in calls.by_argument() {
        let finds = match look {
            Look::Is(value) => unless(libc::BPF_JEQ, value, 1),
            Look::Has(bits) => unless(libc::BPF_JSET, bits, 1),
        };
        let looks = [load(argument(index)), finds, ask, allow];
        program.push(unless(libc::BPF_JEQ, call as u32, looks.len() as u8));
        program.extend(looks);
    }
    program.push(allow);
    program
}

/// Installs the filter for all threads and gives the descriptor by which the kernel asks.
fn listen(program: &[sock_filter]) -> io::Result<OwnedFd> {
    let mut program = program.to_vec();
    let length = program.len() as u16;
    let mut program = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER
        | libc::SECCOMP_FILTER_FLAG_TSYNC
        | libc::SECCOMP_FILTER_FLAG_TSYNC_ESRCH;
    // SAFETY: takes numbers only.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let pointer: *mut c_void = (&raw mut program).cast();
    // SAFETY: the program and its length are right, and live during the call.
    let fd = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, pointer) };
    match i32::try_from(fd) {
        // SAFETY: the kernel has just opened it for us.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}
