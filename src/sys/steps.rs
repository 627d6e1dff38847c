//! Ends this process at its n-th change of a file, or has that change fail; for tests alone.
//!
//! The kernel stops each system call that changes a file, a directory or an attribute before it runs, and asks a thread
//! of ours (seccomp's user notification, see seccomp_unotify(2)). So every step counts, whoever makes it: our code, the
//! standard library, SQLite. Nothing in the program knows of it, and nothing in it can be forgotten.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::{c_long, c_void, sock_filter};

/// What becomes of the step that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The process is gone before the step is made, as by `kill -9`.
    Killed,
    /// The call answers this errno.
    Fails(i32),
}

/// Counts the steps of this process, from now to its end.
pub struct Steps {
    counted: Arc<AtomicU64>,
}

/// Every call that changes a file whatever its arguments. Those with a newer form on all architectures stand in `OLD`.
const CHANGING: [c_long; 29] = [
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_copy_file_range,
    libc::SYS_sendfile,
    libc::SYS_ftruncate,
    libc::SYS_truncate,
    libc::SYS_fallocate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_unlinkat,
    libc::SYS_symlinkat,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_fremovexattr,
    libc::SYS_renameat,
];

#[cfg(target_arch = "x86_64")]
const OLD: [c_long; 9] = [
    libc::SYS_rename,
    libc::SYS_link,
    libc::SYS_unlink,
    libc::SYS_symlink,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_creat,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD: [c_long; 0] = [];

impl Steps {
    /// The `at`-th step from now on, the first being 1, meets its fate. All threads count, also those there already.
    pub fn watch(at: u64, fate: Fate) -> io::Result<Self> {
        let listener = listen(&filter())?;
        let counted = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&counted);
        // It makes no step itself, or it would wait for its own answer.
        std::thread::Builder::new().name("steps".to_owned()).spawn(move || answer(&listener, &counter, at, fate))?;
        Ok(Self { counted })
    }

    pub fn counted(&self) -> u64 {
        self.counted.load(Ordering::SeqCst)
    }
}

/// Does `work` in a process of its own, and tells whether that was killed. This process must have no other thread that
/// does anything.
pub fn is_killed(work: impl FnOnce()) -> io::Result<bool> {
    // SAFETY: whoever else runs in this process waits, as the caller promises, so no lock is held for ever in the child.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            // SAFETY: takes a number only. Nothing is closed or dropped: that would be one more act.
            unsafe { libc::_exit(i32::from(outcome.is_err())) }
        }
        child => wait(child),
    }
}

fn wait(child: libc::pid_t) -> io::Result<bool> {
    let mut status = 0;
    // SAFETY: the kernel fills in one number.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } != child {
        match io::Error::last_os_error() {
            err if err.kind() == io::ErrorKind::Interrupted => {}
            err => return Err(err),
        }
    }
    match (libc::WIFSIGNALED(status), libc::WTERMSIG(status), libc::WEXITSTATUS(status)) {
        (true, libc::SIGKILL, _) => Ok(true),
        (false, _, 0) => Ok(false),
        _ => Err(io::Error::other(format!("the process ended with wait status {status:#x}"))),
    }
}

fn answer(listener: &OwnedFd, counted: &AtomicU64, at: u64, fate: Fate) {
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
        let number = counted.fetch_add(1, Ordering::SeqCst) + 1;
        let error = match fate {
            Fate::Killed if number == at => die(),
            Fate::Fails(errno) if number == at => -errno,
            Fate::Killed | Fate::Fails(_) => 0,
        };
        let flags = if error == 0 { libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32 } else { 0 };
        let mut reply = libc::seccomp_notif_resp { id: asked.id, val: 0, error, flags };
        // SAFETY: the kernel reads a struct of this size. That the caller may be gone by now is all that can go wrong.
        unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut reply) };
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

fn filter() -> Vec<sock_filter> {
    let load = |at| sock_filter { code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, jt: 0, jf: 0, k: at };
    let unless = |test, k, skip| sock_filter { code: (libc::BPF_JMP | test | libc::BPF_K) as u16, jt: 0, jf: skip, k };
    let give = |what| sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: what };
    let (ask, allow) = (give(libc::SECCOMP_RET_USER_NOTIF), give(libc::SECCOMP_RET_ALLOW));
    let mut program = vec![load(NUMBER)];
    for call in CHANGING.iter().chain(&OLD) {
        program.extend([unless(libc::BPF_JEQ, *call as u32, 1), ask]);
    }
    let makes = (libc::O_CREAT | libc::O_TRUNC) as u32;
    let open = [load(argument(2)), unless(libc::BPF_JSET, makes, 1), ask, allow];
    let reflink = [load(argument(1)), unless(libc::BPF_JEQ, libc::FICLONE as u32, 1), ask, allow];
    for (call, looks) in [(libc::SYS_openat, open), (libc::SYS_ioctl, reflink)] {
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
