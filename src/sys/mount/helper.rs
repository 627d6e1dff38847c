//! Mounting without being root, through the set-uid program `fusermount3`.
//!
//! It mounts and sends the descriptor of `/dev/fuse` back over a socket, whose number it finds in `_FUSE_COMMFD`. We give
//! it the socket as its standard input, so that no other program inherits a descriptor by chance.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::io::retry_on_intr;
use rustix::net::RecvFlags;

use super::{FuseMount, UnmountMode};
use crate::sys::parcel;

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

/// Receives one byte and, with it, the descriptor. The end of the stream means that the program gave up.
fn receive_descriptor(socket: &UnixStream) -> io::Result<OwnedFd> {
    let (_, descriptor) = retry_on_intr(|| parcel::receive(socket, &mut [0], RecvFlags::empty()))?;
    descriptor.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "fusermount3 sent no descriptor"))
}
