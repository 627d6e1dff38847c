//! Content and metadata of one file.

#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{self, AtFlags, FileType, Mode, StatxFlags, Timespec};

use super::xattr;
use crate::model::{Acl, ContentHasher, Digest, Looks, Stamp, Timestamp, ZERO_BLOCK_BYTES};

/// How much is read or written at once when no cheaper copy is to be had.
const COPY_PIECE_BYTES: usize = 64 * ZERO_BLOCK_BYTES;

/// Up to this a file is copied by one read and one write. File systems that share blocks write them out first.
const SMALL_BYTES_MAX: u64 = 64 << 10;

/// Of a mode: the bits that lend the owner's or the group's rights to who runs the file.
pub const SET_UID: u32 = 0o4000;
pub const SET_GID: u32 = 0o2000;
pub const SET_ID: u32 = SET_UID | SET_GID;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum FileKind {
    Regular,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

impl FileKind {
    pub fn from_type(kind: FileType) -> Self {
        match kind {
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
            FileType::Fifo => Self::Fifo,
            FileType::Socket => Self::Socket,
            FileType::CharacterDevice => Self::CharDevice,
            FileType::BlockDevice => Self::BlockDevice,
            FileType::RegularFile | FileType::Unknown => Self::Regular,
        }
    }

    /// The kind in a mode as `mknod` and `stat` spell it.
    pub fn from_mode(mode: u32) -> Self {
        Self::from_type(FileType::from_raw_mode(mode))
    }

    /// As it is called in the record and to people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Regular => "file",
            Self::Directory => "directory",
            Self::Symlink => "symlink",
            Self::Fifo => "fifo",
            Self::Socket => "socket",
            Self::CharDevice | Self::BlockDevice => "device",
        }
    }

    /// A FIFO, socket or device: the kernel does what is done with it.
    pub fn is_special(self) -> bool {
        match self {
            Self::Fifo | Self::Socket | Self::CharDevice | Self::BlockDevice => true,
            Self::Regular | Self::Directory | Self::Symlink => false,
        }
    }

    pub fn to_type(self) -> FileType {
        match self {
            Self::Regular => FileType::RegularFile,
            Self::Directory => FileType::Directory,
            Self::Symlink => FileType::Symlink,
            Self::Fifo => FileType::Fifo,
            Self::Socket => FileType::Socket,
            Self::CharDevice => FileType::CharacterDevice,
            Self::BlockDevice => FileType::BlockDevice,
        }
    }
}

/// What `statx` tells of a file.
#[derive(Clone, Copy, Debug)]
pub struct Meta {
    pub device: u64,
    pub inode: u64,
    pub kind: FileKind,
    /// Permission bits with set-uid, set-gid and sticky; without the kind.
    pub mode: u32,
    pub links: u32,
    /// Another file system begins here, or a file is mounted on this one: it cannot be replaced by a rename.
    pub is_mount_root: bool,
    pub uid: u32,
    pub gid: u32,
    pub special_device: u64,
    pub size: u64,
    pub blocks: u64,
    pub block_size: u32,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub btime: Timestamp,
}

/// Tells one lower inode from every other, also from one that has its number later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InodeKey {
    pub device: u64,
    pub inode: u64,
    pub btime: Timestamp,
}

impl Meta {
    pub fn of(fd: BorrowedFd<'_>) -> io::Result<Self> {
        Self::ask(fd, c"", AtFlags::EMPTY_PATH)
    }

    pub fn at(dir: BorrowedFd<'_>, name: &std::ffi::OsStr) -> io::Result<Self> {
        Self::ask(dir, name, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn ask<P: rustix::path::Arg>(dir: BorrowedFd<'_>, path: P, flags: AtFlags) -> io::Result<Self> {
        let stat = fs::statx(dir, path, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
        let time = |time: fs::StatxTimestamp| Timestamp { seconds: time.tv_sec, nanoseconds: time.tv_nsec };
        Ok(Self {
            device: fs::makedev(stat.stx_dev_major, stat.stx_dev_minor),
            inode: stat.stx_ino,
            kind: FileKind::from_mode(u32::from(stat.stx_mode)),
            mode: u32::from(stat.stx_mode) & 0o7777,
            links: stat.stx_nlink,
            is_mount_root: stat.stx_attributes.contains(fs::StatxAttributes::MOUNT_ROOT),
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            special_device: fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor),
            size: stat.stx_size,
            blocks: stat.stx_blocks,
            block_size: stat.stx_blksize,
            atime: time(stat.stx_atime),
            mtime: time(stat.stx_mtime),
            ctime: time(stat.stx_ctime),
            btime: time(stat.stx_btime),
        })
    }

    pub fn stamp(&self) -> Stamp {
        Stamp { device: self.device, inode: self.inode, size: self.size, mtime: self.mtime, ctime: self.ctime }
    }

    pub fn key(&self) -> InodeKey {
        InodeKey { device: self.device, inode: self.inode, btime: self.btime }
    }

    pub fn is_file(&self) -> bool {
        self.kind == FileKind::Regular
    }

    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }
}

/// By this machine's clock.
pub fn now() -> Timestamp {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp { seconds: now.as_secs() as i64, nanoseconds: now.subsec_nanos() }
}

pub fn to_timespec(time: Timestamp) -> Timespec {
    Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nanoseconds) }
}

/// What to make a file with that is going to have `mode`: until then it is ours to fill, and lends nobody's rights.
pub fn mode_at_first(mode: u32) -> Mode {
    Mode::from_raw_mode(mode & 0o777 | 0o600)
}

/// Works on `O_PATH` descriptors too, which `fchmod` refuses.
pub fn set_mode(fd: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
    let mode = Mode::from_raw_mode(mode);
    match fs::fchmod(fd, mode) {
        Err(rustix::io::Errno::BADF) => Ok(fs::chmod(format!("/proc/self/fd/{}", fd.as_raw_fd()), mode)?),
        other => Ok(other?),
    }
}

pub fn set_owner(fd: BorrowedFd<'_>, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
    Ok(fs::fchown(fd, uid.map(fs::Uid::from_raw), gid.map(fs::Gid::from_raw))?)
}

pub fn set_times(fd: BorrowedFd<'_>, access: Timespec, modification: Timespec) -> io::Result<()> {
    let times = fs::Timestamps { last_access: access, last_modification: modification };
    Ok(fs::futimens(fd, &times)?)
}

/// Reads through this descriptor leave the access time as it is. Whoever may not ask for that reads like everybody.
pub fn keep_access_time(file: &File) -> io::Result<()> {
    // Of the other flags that this sets, or clears, none matters to who reads a file at offsets.
    match fs::fcntl_setfl(file, fs::OFlags::NOATIME) {
        Err(rustix::io::Errno::PERM) => Ok(()),
        set => Ok(set?),
    }
}

/// All bytes of a file, from its beginning, whatever its offset.
pub fn read_all(file: &File) -> io::Result<Vec<u8>> {
    read_about(file, file.metadata()?.len())
}

/// The same of a file that had `size` bytes a moment ago.
pub fn read_about(file: &File, size: u64) -> io::Result<Vec<u8>> {
    let size = usize::try_from(size).map_err(io::Error::other)?;
    // With room for more than there should be, so that one look shows that there is not.
    let mut content = vec![0; size + 1];
    let mut done = 0;
    loop {
        match read_piece(file, &mut content[done..], done as u64)? {
            0 => break,
            count => done += count,
        }
        match content.len() - done {
            0 => content.resize(done + COPY_PIECE_BYTES, 0),
            _ if done == size => break,
            _ => {}
        }
    }
    content.truncate(done);
    Ok(content)
}

fn read_piece(file: &File, piece: &mut [u8], offset: u64) -> io::Result<usize> {
    loop {
        match file.read_at(piece, offset) {
            Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
            other => return other,
        }
    }
}

/// As many bytes as there are.
pub fn read_at(file: &File, offset: u64, size: usize) -> io::Result<Vec<u8>> {
    let mut data = vec![0; size];
    let count = read_up_to(file, &mut data, offset)?;
    data.truncate(count);
    Ok(data)
}

/// As much of a piece as there is.
fn read_up_to(file: &File, piece: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < piece.len() {
        match read_piece(file, &mut piece[done..], offset + done as u64)? {
            0 => break,
            count => done += count,
        }
    }
    Ok(done)
}

fn piece_length(left: u64) -> usize {
    usize::try_from(left).unwrap_or(COPY_PIECE_BYTES).min(COPY_PIECE_BYTES)
}

/// An anonymous file that holds `bytes`.
pub fn in_memory(bytes: &[u8]) -> io::Result<File> {
    let file = File::from(fs::memfd_create("fettle-content", fs::MemfdFlags::CLOEXEC)?);
    file.write_all_at(bytes, 0)?;
    Ok(file)
}

/// Of all its bytes; what is a hole is not read.
pub fn digest(file: &File) -> io::Result<Digest> {
    let size = file.metadata()?.len();
    let mut hasher = ContentHasher::default();
    let mut piece = vec![0; COPY_PIECE_BYTES];
    let mut offset = 0;
    while let Some((start, end)) = next_blocks(file, offset, size)? {
        hasher.zeros(start - offset);
        offset = start;
        while offset < end {
            let want = piece_length(end - offset);
            let count = read_up_to(file, &mut piece[..want], offset)?;
            hasher.update(&piece[..count]);
            offset += count as u64;
            if count < want {
                // Somebody has made it shorter.
                return Ok(hasher.finish());
            }
        }
    }
    hasher.zeros(size - offset);
    Ok(hasher.finish())
}

/// Whether two files hold the same bytes; stops at the first difference. Where both have a hole nothing is read.
pub fn same_content(a: &File, b: &File) -> io::Result<bool> {
    let size = a.metadata()?.len();
    if size != b.metadata()?.len() {
        return Ok(false);
    }
    let mut offset = 0;
    loop {
        let (start, end) = match (next_data(a, offset, size)?, next_data(b, offset, size)?) {
            (None, None) => return Ok(true),
            (Some(data), None) | (None, Some(data)) => data,
            (Some(ours), Some(theirs)) => ours.min(theirs),
        };
        if !same_range(a, b, start, end)? {
            return Ok(false);
        }
        offset = end;
    }
}

fn same_range(a: &File, b: &File, start: u64, end: u64) -> io::Result<bool> {
    let room = piece_length(end - start);
    let (mut left, mut right) = (vec![0; room], vec![0; room]);
    let mut offset = start;
    while offset < end {
        let want = piece_length(end - offset);
        let (ours, theirs) = (&mut left[..want], &mut right[..want]);
        let counts = (read_up_to(a, ours, offset)?, read_up_to(b, theirs, offset)?);
        if counts != (want, want) || ours != theirs {
            return Ok(false);
        }
        offset += want as u64;
    }
    Ok(true)
}

/// Whether a file of so many bytes in so many blocks (of 512 bytes) is copied at once: it has no holes.
pub fn is_small_and_whole(size: u64, blocks: u64) -> bool {
    size <= SMALL_BYTES_MAX && blocks * 512 >= size
}

/// Gives `to`, an empty file, the content of `from`: by reflink, else within the kernel, else by reading and writing; a
/// small file so at once, for sharing its blocks costs more than it saves. Holes stay holes. An error when the sizes
/// disagree afterwards: somebody wrote meanwhile.
pub fn copy_content(from: &File, to: &File) -> io::Result<()> {
    let before = from.metadata()?;
    let size = before.len();
    let changed = || Err(io::Error::other("file changed its size while it was copied"));
    if is_small_and_whole(size, before.blocks()) {
        let content = read_all(from)?;
        to.write_all_at(&content, 0)?;
        return if content.len() as u64 == size { Ok(()) } else { changed() };
    }
    if fs::ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    let mut offset = 0;
    while let Some((start, end)) = next_data(from, offset, size)? {
        copy_range(from, to, start, end)?;
        offset = end;
    }
    if offset < size {
        // A hole at its end.
        to.set_len(size)?;
    }
    match from.metadata()?.len() == size && to.metadata()?.len() == size {
        true => Ok(()),
        false => changed(),
    }
}

/// Gives `to` the content of `from` in place of what it has. The room for it is taken first and what is too much goes
/// last, so that a full disk leaves `to` as it was, and the old content can be written over the new again. What is a hole
/// in both takes none.
pub fn overwrite(from: &File, to: &File) -> io::Result<()> {
    let size = from.metadata()?.len();
    let mut offset = 0;
    while let Some((start, end)) = next_data(from, offset, size)? {
        take_room(to, start, end)?;
        offset = end;
    }
    offset = 0;
    while let Some((start, end)) = next_data(from, offset, size)? {
        write_zeros(to, offset, start)?;
        copy_range_by_hand(from, to, start, end)?;
        offset = end;
    }
    write_zeros(to, offset, size)?;
    to.set_len(size)?;
    match from.metadata()?.len() == size {
        true => Ok(()),
        false => Err(io::Error::other("file changed its size while it was copied")),
    }
}

fn take_room(file: &File, start: u64, end: u64) -> io::Result<()> {
    match fs::fallocate(file, fs::FallocateFlags::KEEP_SIZE, start, end - start) {
        // A file system that does not know the call is asked for room by the writing itself.
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
        Err(err) => Err(err.into()),
    }
}

/// Over what data a file has there. Its room stays its own.
fn write_zeros(file: &File, start: u64, end: u64) -> io::Result<()> {
    let mut offset = start;
    while let Some((start, end)) = next_data(file, offset, end)? {
        let zeros = vec![0; piece_length(end - start)];
        offset = start;
        while offset < end {
            let count = piece_length(end - offset);
            file.write_all_at(&zeros[..count], offset)?;
            offset += count as u64;
        }
    }
    Ok(())
}

/// The next stretch of data at or after `offset` and before `size`; file systems without holes give it all at once.
fn next_data(file: &File, offset: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    if offset >= size {
        return Ok(None);
    }
    // Seeking moves the descriptor's offset, which nobody uses: all reading here is positioned.
    let start = match fs::seek(file, fs::SeekFrom::Data(offset)) {
        Ok(start) if start >= size => return Ok(None),
        Ok(start) => start,
        Err(rustix::io::Errno::NXIO) => return Ok(None),
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::OPNOTSUPP) => return Ok(Some((offset, size))),
        Err(err) => return Err(err.into()),
    };
    let end = fs::seek(file, fs::SeekFrom::Hole(start))?;
    Ok(Some((start, end.min(size))))
}

/// The same in whole blocks of [`ContentHasher`], for an `offset` at which one begins.
fn next_blocks(file: &File, offset: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    const BLOCK: u64 = ZERO_BLOCK_BYTES as u64;
    let data = next_data(file, offset, size)?;
    Ok(data.map(|(start, end)| (start - start % BLOCK, end.next_multiple_of(BLOCK).min(size))))
}

fn copy_range(from: &File, to: &File, start: u64, end: u64) -> io::Result<()> {
    let (mut read_at, mut write_at) = (start, start);
    while read_at < end {
        let want = usize::try_from(end - read_at).unwrap_or(usize::MAX).min(1 << 30);
        match fs::copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), want) {
            Ok(0) => break,
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => {}
            // Across file systems, or one that does not know the call.
            Err(_) => return copy_range_by_hand(from, to, read_at, end),
        }
    }
    Ok(())
}

fn copy_range_by_hand(from: &File, to: &File, start: u64, end: u64) -> io::Result<()> {
    let mut piece = vec![0; piece_length(end - start)];
    let mut offset = start;
    while offset < end {
        let want = piece_length(end - offset);
        match read_piece(from, &mut piece[..want], offset)? {
            0 => break,
            count => to.write_all_at(&piece[..count], offset)?,
        }
        offset += want as u64;
    }
    Ok(())
}

/// Gives `to` the owner, mode, extended attributes (ACLs among them) and times of `from`.
/// What the caller may not give (another owner, a `trusted` attribute) is left out, as `cp -p` does.
pub fn copy_metadata(from: BorrowedFd<'_>, meta: &Meta, to: BorrowedFd<'_>) -> io::Result<()> {
    copy_looks(from, meta, to)?;
    set_times(to, to_timespec(meta.atime), to_timespec(meta.mtime))
}

/// Which of its looks a file has of its own. They stay when it gets those of another.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct OwnLooks {
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mode: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub owner: bool,
    /// Names of extended attributes, also of such as it is not to have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub xattrs: Vec<Vec<u8>>,
}

impl OwnLooks {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// With the values of a file that looks like `meta`. Without a descriptor, as of a symlink, no attributes.
    pub fn values(&self, file: Option<BorrowedFd<'_>>, meta: &Meta) -> io::Result<Looks> {
        let mut xattrs = Vec::new();
        for (name, file) in self.xattrs.iter().filter_map(|name| Some((name, file?))) {
            xattrs.push((name.clone(), xattr::find(file, OsStr::from_bytes(name))?));
        }
        xattrs.sort();
        Ok(Looks { mode: self.mode.then_some(meta.mode), owner: self.owner.then_some((meta.uid, meta.gid)), xattrs })
    }

    /// These and others.
    pub fn add(&mut self, other: &Self) {
        self.mode |= other.mode;
        self.owner |= other.owner;
        let more = other.xattrs.iter().filter(|name| !self.xattrs.contains(name));
        self.xattrs.extend(more.cloned().collect::<Vec<_>>());
    }

    /// Those of these that are among others.
    pub fn and(mut self, other: &Self) -> Self {
        self.mode &= other.mode;
        self.owner &= other.owner;
        self.xattrs.retain(|name| other.xattrs.contains(name));
        self
    }
}

/// Owner, attributes and mode. What was made a moment ago mostly has them, and each call that gives them costs a change of
/// the inode.
pub fn copy_looks(from: BorrowedFd<'_>, meta: &Meta, to: BorrowedFd<'_>) -> io::Result<()> {
    copy_looks_but(&OwnLooks::default(), from, meta, to)
}

/// The same, but for what `to` has of its own.
pub fn copy_looks_but(own: &OwnLooks, from: BorrowedFd<'_>, meta: &Meta, to: BorrowedFd<'_>) -> io::Result<()> {
    let now = Meta::of(to)?;
    let owner = if own.owner { false } else { give_owner(meta, &now, to)? };
    let changed = owner | xattr::copy(from, to, &own.xattrs)?;
    let mode = if own.mode { now.mode } else { meta.mode };
    // Last: an owner takes set-id bits away, and a list changes the bits of the group.
    if changed || now.mode != mode { set_mode(to, mode) } else { Ok(()) }
}

/// An unprivileged daemon cannot give files away; it then keeps the group if it can, and its own uid.
pub fn copy_owner(meta: &Meta, to: BorrowedFd<'_>) -> io::Result<()> {
    give_owner(meta, &Meta::of(to)?, to).map(|_| ())
}

/// The same to what is `now` so. Whether there was anything to give.
fn give_owner(meta: &Meta, now: &Meta, to: BorrowedFd<'_>) -> io::Result<bool> {
    if (now.uid, now.gid) == (meta.uid, meta.gid) {
        return Ok(false);
    }
    let given = match set_owner(to, Some(meta.uid), Some(meta.gid)) {
        Err(err) if err.raw_os_error() == Some(libc::EPERM) => match set_owner(to, None, Some(meta.gid)) {
            Err(err) if err.raw_os_error() == Some(libc::EPERM) => Ok(()),
            other => other,
        },
        other => other,
    };
    given.map(|()| true)
}

/// What an access list lets the owning group of a file do, where it has one, so that the group's bits of its `mode` are
/// the list's mask.
pub fn masked_group(file: &File, mode: u32) -> Option<u32> {
    if mode & 0o070 == 0 {
        // Nobody gets anything by these.
        return None;
    }
    // Nor has it a list where nobody can be asked for it.
    let list = xattr::get(file.as_fd(), OsStr::new(xattr::ACCESS_ACL)).ok()?;
    Acl::parse(&list)?.masked_group()
}

/// The mode of what had such a list, and that bounded its group so, for what has the list of `like`, if any.
pub fn mode_beside_list(mode: u32, group: Option<u32>, like: Option<&File>) -> io::Result<u32> {
    let Some(group) = group else { return Ok(mode) };
    let list = like.map(|like| xattr::find(like.as_fd(), OsStr::new(xattr::ACCESS_ACL))).transpose()?;
    Ok(if list.flatten().is_some() { mode } else { mode & !0o070 | group << 3 })
}

/// Whether the file system lies on top of another, as overlayfs and FUSE may.
pub fn is_stacked(fd: BorrowedFd<'_>) -> io::Result<bool> {
    const OVERLAYFS: u64 = 0x794c_7630;
    const FUSE: u64 = 0x6573_5546;
    let magic = u64::try_from(fs::fstatfs(fd)?.f_type).unwrap_or_default();
    Ok(matches!(magic, OVERLAYFS | FUSE))
}

/// Opens the file behind a descriptor for reading. That leaves the access time as it is, as [`keep_access_time`] does.
pub fn reopen_quietly(fd: BorrowedFd<'_>) -> io::Result<File> {
    let flags = fs::OFlags::RDONLY | fs::OFlags::NONBLOCK | fs::OFlags::NOCTTY;
    match reopen(fd, flags | fs::OFlags::NOATIME) {
        Err(err) if err.raw_os_error() == Some(libc::EPERM) => reopen(fd, flags),
        opened => opened,
    }
}

/// Opens the file behind a descriptor once more, with other flags; `O_PATH` and unlinked ones too.
pub fn reopen(fd: BorrowedFd<'_>, flags: fs::OFlags) -> io::Result<File> {
    let itself = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    Ok(File::from(fs::open(itself, flags | fs::OFlags::CLOEXEC, Mode::empty())?))
}
