//! Mounting without being root, through the set-uid program `fusermount3`.
//!
//! It mounts and sends the descriptor of `/dev/fuse` back over a socket, whose number it finds in `_FUSE_COMMFD`. We give
//! it the socket as its standard input, so that no other program inherits a descriptor by chance.
#![allow(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::{FuseMount, UnmountMode};

/// By `PATH` first, then where distributions put it: a service's `PATH` may be bare.
pub const HELPERS: [&str; 3] = ["fusermount3", "/usr/bin/fusermount3", "/bin/fusermount3"];

/// Mounts as the calling user, who must own the mount point; `allow_other` needs `user_allow_other` in /etc/fuse.conf.
///
/// `suid` and `dev` are for root only and refused here. The program's complaint comes back as the error's text.
pub fn mount_fuse_with_helper(mountpoint: &Path, options: &FuseMount<'_>) -> io::Result<OwnedFd> {
    let words = helper_options(options)?;
    let (ours, theirs) = UnixStream::pair()?;
    let child = spawn_first(|command| {
        command.arg("-o").arg(&words).arg("--").arg(mountpoint).env("_FUSE_COMMFD", "0");
        command.stdin(OwnedFd::from(theirs.try_clone()?));
        Ok(())
    })?;
    // With our copy closed, the stream ends when the program does.
    drop(theirs);
    let received = receive_descriptor(&ours);
    let output = child.wait_with_output()?;
    match (output.status.success(), received) {
        (true, Err(err)) => {
            // Mounted, but no process has the device.
            unmount_with_helper(mountpoint, UnmountMode::Detach)?;
            Err(err)
        }
        (true, received) => received,
        (false, _) => Err(complaint(&output)),
    }
}

/// Unmounts what the same user mounted.
pub fn unmount_with_helper(mountpoint: &Path, mode: UnmountMode) -> io::Result<()> {
    let flags = match mode {
        UnmountMode::Plain => "-u",
        UnmountMode::Detach => "-uz",
    };
    let child = spawn_first(|command| {
        command.arg(flags).arg("--").arg(mountpoint).stdin(Stdio::null());
        Ok(())
    })?;
    let output = child.wait_with_output()?;
    if output.status.success() { Ok(()) } else { Err(complaint(&output)) }
}

fn spawn_first(prepare: impl Fn(&mut Command) -> io::Result<()>) -> io::Result<std::process::Child> {
    for program in HELPERS {
        let mut command = Command::new(program);
        prepare(&mut command)?;
        match command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn() {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            outcome => return outcome,
        }
    }
    Err(io::Error::new(ErrorKind::NotFound, "fusermount3 is not installed (package fuse3)"))
}

fn complaint(output: &Output) -> io::Error {
    let text = String::from_utf8_lossy(&output.stderr);
    match text.trim() {
        "" => io::Error::other(format!("fusermount3: {}", output.status)),
        text => io::Error::other(text.to_owned()),
    }
}

fn helper_options(options: &FuseMount<'_>) -> io::Result<OsString> {
    if options.suid || options.dev {
        return Err(io::Error::new(ErrorKind::PermissionDenied, "only root may mount with suid or dev"));
    }
    let mut text = b"subtype=fettlefs,fsname=".to_vec();
    text.extend(escape(options.source));
    for word in option_words(options) {
        text.push(b',');
        text.extend(word.as_bytes());
    }
    Ok(OsString::from_vec(text))
}

fn option_words<'a>(options: &FuseMount<'a>) -> impl Iterator<Item = &'a str> {
    let named = [
        (options.allow_other, "allow_other"),
        (options.default_permissions, "default_permissions"),
        (options.read_only, "ro"),
        (options.noexec, "noexec"),
    ];
    named.into_iter().filter_map(|(wanted, word)| wanted.then_some(word)).chain(options.extra.iter().copied())
}

/// `fusermount3` splits its option list at commas unless they follow a backslash.
fn escape(source: &OsStr) -> Vec<u8> {
    let quoted = |&byte: &u8| matches!(byte, b',' | b'\\').then_some(b'\\').into_iter().chain([byte]);
    source.as_bytes().iter().flat_map(quoted).collect()
}

/// Room for the header and one descriptor, aligned as a header must be.
#[repr(C)]
union Control {
    _header: libc::cmsghdr,
    _bytes: [u8; CONTROL_BYTES],
}

// SAFETY: a computation on a number.
const CONTROL_BYTES: usize = unsafe { libc::CMSG_SPACE(size_of::<RawFd>() as u32) } as usize;

/// Receives one byte and, with it, the descriptor. The end of the stream means that the program gave up.
fn receive_descriptor(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = 0_u8;
    let mut piece = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut control = MaybeUninit::<Control>::zeroed();
    // SAFETY: all zeros are a valid, empty message header.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of::<Control>();
    receive(socket, &mut message)?;
    descriptor_in(&message).ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "fusermount3 sent no descriptor"))
}

fn receive(socket: &UnixStream, message: &mut libc::msghdr) -> io::Result<()> {
    loop {
        // SAFETY: the header's pointers lead to live buffers of the lengths it names.
        let received = unsafe { libc::recvmsg(socket.as_raw_fd(), message, libc::MSG_CMSG_CLOEXEC) };
        if received >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn descriptor_in(message: &libc::msghdr) -> Option<OwnedFd> {
    // SAFETY: the kernel filled the control buffer and its length; a header is given only if a whole one is there.
    let header = unsafe { libc::CMSG_FIRSTHDR(message).as_ref() }?;
    let rights = header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS;
    // SAFETY: a computation on a number.
    let whole = header.cmsg_len >= unsafe { libc::CMSG_LEN(size_of::<RawFd>() as u32) } as usize;
    if !(rights && whole) {
        return None;
    }
    // SAFETY: the header is followed by at least one descriptor, checked above, perhaps unaligned.
    let fd = unsafe { libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned() };
    // SAFETY: the kernel has just installed it for us, and nobody else knows it.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}
