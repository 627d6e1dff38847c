//! The mount table of the calling thread's namespace, as `/proc/thread-self/mountinfo` tells it, and those of others.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use crate::sys::namespace::{self, Kind};

/// The device number of a file system. For FUSE the minor number names the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    pub major: u32,
    pub minor: u32,
}

impl Device {
    /// Of a `dev_t`, as stat(2) gives it.
    pub fn of(number: u64) -> Self {
        Self { major: rustix::fs::major(number), minor: rustix::fs::minor(number) }
    }
}

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    pub id: u32,
    pub parent: u32,
    pub device: Device,
    /// The directory of the file system that is shown: `/`, or something else for a bind mount.
    pub root: PathBuf,
    pub mountpoint: PathBuf,
    pub fs_type: OsString,
    pub source: OsString,
    /// Of this mount: `rw,nosuid,…`.
    pub options: OsString,
    /// Of the file system: `rw,user_id=0,…`.
    pub super_options: OsString,
}

impl MountEntry {
    /// For a FUSE mount: true if the kernel lets in users other than the one that mounted it.
    pub fn is_for_all(&self) -> bool {
        self.words().any(|word| word == b"allow_other")
    }

    /// For a FUSE mount: the user that mounted it.
    pub fn user(&self) -> Option<u32> {
        number(self.words().find_map(|word| word.strip_prefix(b"user_id="))?)
    }

    fn words(&self) -> impl Iterator<Item = &[u8]> {
        self.super_options.as_bytes().split(|byte| *byte == b',')
    }
}

/// All mounts, parents before children.
pub fn mounts() -> io::Result<Vec<MountEntry>> {
    parse(&fs::read("/proc/thread-self/mountinfo")?)
}

/// The mounts in other namespaces, as far as we may look into those. Each namespace is looked at once, by the first of
/// its processes that can be read; processes that end meanwhile are passed over.
pub fn mounts_elsewhere() -> io::Result<Vec<MountEntry>> {
    let mut seen = HashSet::from([namespace::own(Kind::Mount)?]);
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(namespace) = namespace::of(pid, Kind::Mount) else { continue };
        if seen.insert(namespace) {
            match fs::read(format!("/proc/{pid}/mountinfo")) {
                Ok(table) => found.extend(parse(&table)?),
                // Another process of the namespace may tell.
                Err(_) => {
                    seen.remove(&namespace);
                }
            }
        }
    }
    Ok(found)
}

fn parse(table: &[u8]) -> io::Result<Vec<MountEntry>> {
    let lines = table.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| parse_line(line).ok_or_else(|| not_understood(line))).collect()
}

/// The mount whose root `path` is, the topmost if there are several; `None` for a path inside a mount or one that does
/// not exist.
///
/// Sends no request to the file system, so a dead or stuck one is found too, unless `path` ends in `/.`, which looks
/// into it.
pub fn mount_at(path: &Path) -> io::Result<Option<MountEntry>> {
    let place = match rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Ok(place) => place,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    if is_inside_one(&place) {
        return Ok(None);
    }
    let id = mount_id(&place)?;
    // As the kernel names it: without links, doubled slashes and dots.
    let resolved = fs::read_link(format!("/proc/thread-self/fd/{}", place.as_raw_fd()))?;
    Ok(mounts()?.into_iter().find(|mount| mount.id == id && mount.mountpoint == resolved))
}

/// A mount that somebody else has put over the file system `number`, or on a directory in it: it would go with that, and
/// with it all that only it holds.
pub fn mount_on(number: Device) -> io::Result<Option<MountEntry>> {
    let all = mounts()?;
    let below: HashSet<u32> = all.iter().filter(|mount| mount.device == number).map(|mount| mount.id).collect();
    Ok(all.into_iter().find(|mount| mount.device != number && below.contains(&mount.parent)))
}

/// Where a file system is mounted, of which `usual` is one of the places, or was. `None` if it is mounted nowhere: then
/// another, of another source, may have been given its number.
pub fn mountpoint_of((number, source): (Device, &Path), usual: &Path) -> io::Result<Option<PathBuf>> {
    let is_of = |mount: &MountEntry| mount.device == number && mount.source == source.as_os_str();
    let mut there: Vec<_> = mounts()?.into_iter().filter(is_of).collect();
    // Bind mounts of it came later.
    there.sort_by_key(|mount| (mount.mountpoint != usual, mount.root != Path::new("/"), mount.id));
    Ok(there.into_iter().next().map(|mount| mount.mountpoint))
}

/// True if the kernel says that a place is no mount's root; false if it does not say. Sends no request to the file
/// system.
fn is_inside_one(place: &OwnedFd) -> bool {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let said = rustix::fs::statx(place, c"", flags, StatxFlags::empty());
    said.is_ok_and(|said| {
        said.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT)
            && !said.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
    })
}

/// The innermost mount of `mounts` that a path lies in; of several at one mount point the topmost.
pub(super) fn around<'a>(path: &Path, mounts: &'a [MountEntry]) -> Option<&'a MountEntry> {
    let around = mounts.iter().filter(|mount| path.starts_with(&mount.mountpoint));
    around.max_by_key(|mount| mount.mountpoint.as_os_str().len())
}

/// The file system that a path leads to, and the path within it: the same for every mount that shows it.
pub fn origin(path: &Path, mounts: &[MountEntry]) -> Option<(Device, PathBuf)> {
    let around = around(path, mounts)?;
    Some((around.device, around.root.join(path.strip_prefix(&around.mountpoint).ok()?)))
}

pub(super) fn mount_id(place: &OwnedFd) -> io::Result<u32> {
    let facts = fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", place.as_raw_fd()))?;
    let id = facts.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    id.ok_or_else(|| not_understood(facts.as_bytes()))
}

fn not_understood(text: &[u8]) -> io::Error {
    let text = OsStr::from_bytes(text);
    io::Error::new(io::ErrorKind::InvalidData, format!("mount table: not understood: {text:?}"))
}

/// `36 35 98:0 /root /mountpoint rw,noatime master:1 - type source rw,…`: optional fields up to a dash, see
/// proc_pid_mountinfo(5).
pub(super) fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&byte| byte == b' ');
    let (id, parent) = (number(fields.next()?)?, number(fields.next()?)?);
    let device = parse_device(fields.next()?)?;
    let (root, mountpoint) = (unescape(fields.next()?), unescape(fields.next()?));
    let options = unescape(fields.next()?);
    fields.find(|&field| field == b"-")?;
    Some(MountEntry {
        id,
        parent,
        device,
        root: root.into(),
        mountpoint: mountpoint.into(),
        fs_type: unescape(fields.next()?),
        source: unescape(fields.next()?),
        options,
        super_options: unescape(fields.next()?),
    })
}

fn number(field: &[u8]) -> Option<u32> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn parse_device(field: &[u8]) -> Option<Device> {
    let (major, minor) = std::str::from_utf8(field).ok()?.split_once(':')?;
    Some(Device { major: major.parse().ok()?, minor: minor.parse().ok()? })
}

/// Space, tab, newline, backslash and `#` come as a backslash and three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        if let Some(escaped) = octal(rest) {
            plain.push(escaped);
            rest = &rest[4..];
        } else {
            plain.push(byte);
            rest = tail;
        }
    }
    OsString::from_vec(plain)
}

fn octal(text: &[u8]) -> Option<u8> {
    let &[b'\\', high @ b'0'..=b'3', middle @ b'0'..=b'7', low @ b'0'..=b'7', ..] = text else { return None };
    Some((high - b'0') << 6 | (middle - b'0') << 3 | (low - b'0'))
}
