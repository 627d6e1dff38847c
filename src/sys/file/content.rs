//! A file's bytes: read, hashed, compared and copied. Holes are recognised, and neither read nor written.

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs;
use rustix::io::ReadWriteFlags;

use super::Meta;
use super::looks::clear_set_id;
use crate::model::{ContentHasher, Digest, ZERO_BLOCK_BYTES};

/// Why a copy would be neither the old content nor the new.
#[derive(Debug, thiserror::Error)]
#[error("file changed its size while it was copied")]
struct ChangedMeanwhile;

pub fn changed_meanwhile() -> io::Error {
    io::Error::other(ChangedMeanwhile)
}

/// True if `err` says that a file was written to while it was copied.
pub fn has_changed_meanwhile(err: &io::Error) -> bool {
    err.get_ref().is_some_and(|cause| cause.is::<ChangedMeanwhile>())
}

/// How much is read or written at once when no cheaper copy is to be had.
const COPY_PIECE_BYTES: usize = 64 * ZERO_BLOCK_BYTES;

/// What a disk writes as a whole, or not at all.
const SECTOR_BYTES: usize = 512;

/// How often a file is copied that others write over meanwhile, until it has stood still for as long as that takes.
const COPIES_MAX: usize = 4;

/// Up to this size a file is copied by one read and one write. To share its blocks, file systems would write them out
/// first.
const SMALL_BYTES_MAX: u64 = 64 << 10;

/// The longest target that a symlink can have.
pub const TARGET_BYTES_MAX: u64 = libc::PATH_MAX as u64;

/// Reads a regular file by a name that may lead through symlinks. If something else has been put there, a FIFO say, that
/// is an error and is not waited for.
pub fn read_named(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let flags = fs::OFlags::NONBLOCK | fs::OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a file"));
    }
    read_all(&file, bytes_max)
}

/// All bytes of a file, from its beginning, whatever its offset. An error if there are more than `bytes_max`.
pub fn read_all(file: &File, bytes_max: u64) -> io::Result<Vec<u8>> {
    match file.metadata()?.len() {
        size if size <= bytes_max => read_about(file, size, bytes_max),
        _ => Err(io::Error::other(format!("larger than {bytes_max} bytes"))),
    }
}

/// The same of a file that had `size` bytes a moment ago. If it has more than `bytes_max` by now, an error for which
/// [`has_changed_meanwhile`] is true: no program makes us read without end.
pub fn read_about(file: &File, size: u64, bytes_max: u64) -> io::Result<Vec<u8>> {
    let size = usize::try_from(size).map_err(io::Error::other)?;
    // With room for one byte more than expected, so that a single read shows that there is no more.
    let mut content = vec![0; size + 1];
    let mut done = 0;
    loop {
        match read_piece(file, &mut content[done..], done as u64)? {
            0 => break,
            count => done += count,
        }
        if done as u64 > bytes_max {
            return Err(changed_meanwhile());
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

/// Returns as many bytes as there are, up to `size`.
pub fn read_at(file: &File, offset: u64, size: usize) -> io::Result<Vec<u8>> {
    let mut data = vec![0; size];
    let count = read_up_to(file, &mut data, offset)?;
    data.truncate(count);
    Ok(data)
}

/// Appends where the file ends at that moment: one piece behind the other, or behind what others have written in between.
/// Writes as much as possible and returns how much that is. An error only if nothing was written: a caller that did not
/// know of the part written would write it again.
pub fn append(file: BorrowedFd<'_>, data: &[u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < data.len() {
        // With `APPEND` the offset is ignored.
        match rustix::io::pwritev2(file, &[io::IoSlice::new(&data[done..])], 0, ReadWriteFlags::APPEND) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(0) | Err(_) if done > 0 => break,
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => done += count,
            Err(err) => return Err(err.into()),
        }
    }
    Ok(done)
}

/// Reads as much of a piece as there is.
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

/// The digest of all bytes. Holes are not read.
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
                // The file has been made shorter meanwhile.
                return Ok(hasher.finish());
            }
        }
    }
    hasher.zeros(size - offset);
    Ok(hasher.finish())
}

/// Whether two files hold the same bytes; stops at the first difference. Where both have a hole nothing is read.
pub fn same_content(a: &File, b: &File) -> io::Result<bool> {
    same_from(a, b, 0)
}

/// The same from `offset` on; files of different sizes differ.
fn same_from(a: &File, b: &File, offset: u64) -> io::Result<bool> {
    let size = a.metadata()?.len();
    Ok(size == b.metadata()?.len() && same_between(a, b, offset, size)?)
}

/// The same between `offset` and `size`, where both have bytes.
fn same_between(a: &File, b: &File, mut offset: u64, size: u64) -> io::Result<bool> {
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

/// True if `file` may be what is found while one of two contents is written over the other, or after a power cut: each
/// sector is as in one of them or zeros, and beyond the end of one as in the other.
pub fn is_mixture(file: &File, one: &File, other: &File) -> io::Result<bool> {
    let size = file.metadata()?.len();
    let mut offset = 0;
    while let Some((start, end)) = next_blocks(file, offset, size)? {
        offset = start;
        while offset < end {
            let want = piece_length(end - offset);
            let [found, one, other] = [file, one, other].map(|file| read_at(file, offset, want));
            if !is_mixed_piece(&found?, &one?, &other?) {
                return Ok(false);
            }
            offset += want as u64;
        }
    }
    Ok(true)
}

fn is_mixed_piece(found: &[u8], one: &[u8], other: &[u8]) -> bool {
    let sectors = |of| <[u8]>::chunks(of, SECTOR_BYTES).chain(std::iter::repeat(&[][..]));
    found
        .chunks(SECTOR_BYTES)
        .zip(sectors(one))
        .zip(sectors(other))
        .all(|((found, one), other)| is_mixed_sector(found, one, other))
}

fn is_mixed_sector(found: &[u8], one: &[u8], other: &[u8]) -> bool {
    let begins_with = |first: &[u8], rest: &[u8]| {
        found.iter().enumerate().all(|(at, byte)| match first.get(at) {
            Some(first) => byte == first,
            None => *byte == 0 || rest.get(at) == Some(byte),
        })
    };
    found.iter().all(|byte| *byte == 0) || begins_with(one, other) || begins_with(other, one)
}

/// True if a file of this size and number of blocks (of 512 bytes) is copied at once: it has no holes.
pub fn is_small_and_whole(size: u64, blocks: u64) -> bool {
    size <= SMALL_BYTES_MAX && blocks * 512 >= size
}

/// Gives `to`, an empty file, the content of `from`: by reflink, else within the kernel, else by reading and writing. A
/// small file is read and written at once, since sharing its blocks costs more than it saves. Holes stay holes. An error
/// if the sizes disagree afterwards: the file was written to meanwhile.
pub fn copy_content(from: &File, to: &File) -> io::Result<()> {
    let before = Meta::of(from.as_fd())?;
    if shares_content(from, &before, to) {
        return Ok(());
    }
    copy_bytes(from, &before, to)
}

/// The same for content that a program goes on with: whoever writes to `from` meanwhile does not stop the copy. It has
/// what was there at one moment, or what was found, if others go on writing over it.
pub fn copy_as_found(from: &File, to: &File) -> io::Result<()> {
    match copy_of_one_moment(from, to) {
        Err(err) if has_changed_meanwhile(&err) => Ok(()),
        copied => copied,
    }
}

/// An error for which [`has_changed_meanwhile`] is true leaves `to` with what was found.
fn copy_of_one_moment(from: &File, to: &File) -> io::Result<()> {
    let mut before = Meta::of(from.as_fd())?;
    if shares_content(from, &before, to) {
        return Ok(());
    }
    let mut copies = 1;
    loop {
        match copy_bytes(from, &before, to) {
            Err(err) if !has_changed_meanwhile(&err) => return Err(err),
            Ok(()) | Err(_) => {}
        }
        let after = Meta::of(from.as_fd())?;
        // A file that has only grown still begins with what was copied.
        if after.stamp() == before.stamp() || begins_with(from, to)? {
            return Ok(());
        }
        if copies == COPIES_MAX {
            return Err(changed_meanwhile());
        }
        to.set_len(0)?;
        (before, copies) = (after, copies + 1);
    }
}

fn begins_with(file: &File, first: &File) -> io::Result<bool> {
    let size = first.metadata()?.len();
    Ok(size <= file.metadata()?.len() && same_between(file, first, 0, size)?)
}

/// Shares the blocks of `from`, as they are at one moment. Returns false if it is too small for that, or the file system
/// cannot.
fn shares_content(from: &File, meta: &Meta, to: &File) -> bool {
    !is_small_and_whole(meta.size, meta.blocks) && fs::ioctl_ficlone(to, from).is_ok()
}

fn copy_bytes(from: &File, before: &Meta, to: &File) -> io::Result<()> {
    let size = before.size;
    if is_small_and_whole(size, before.blocks) {
        return match read_about(from, size, size) {
            Ok(content) if content.len() as u64 == size => to.write_all_at(&content, 0),
            Err(err) if !has_changed_meanwhile(&err) => Err(err),
            // It is longer or shorter by now.
            Ok(_) | Err(_) => {
                to.write_all_at(&read_at(from, 0, size as usize)?, 0)?;
                Err(changed_meanwhile())
            }
        };
    }
    let mut offset = 0;
    while let Some((start, end)) = next_data(from, offset, size)? {
        copy_range(from, to, start, end)?;
        offset = end;
    }
    let size_now = from.metadata()?.len();
    if offset < size {
        // A hole at the end, as far as nobody has cut it off.
        to.set_len(size.min(size_now))?;
    }
    match size_now == size && to.metadata()?.len() == size {
        true => Ok(()),
        false => Err(changed_meanwhile()),
    }
}

/// A file that is being overwritten by [`overwrite`].
pub struct Overwritten<'a> {
    pub file: &'a File,
    /// Its old content, if another program may be writing to it: each piece is compared before it is overwritten.
    pub was: Option<&'a File>,
    /// Everything up to this offset has been written, and nothing after it.
    pub written: &'a Cell<u64>,
}

impl Overwritten<'_> {
    fn write(&self, piece: &[u8], offset: u64) -> io::Result<()> {
        if let Some(was) = self.was
            && read_at(self.file, offset, piece.len())? != read_at(was, offset, piece.len())?
        {
            return Err(changed_meanwhile());
        }
        self.file.write_all_at(piece, offset)?;
        self.written.set(offset + piece.len() as u64);
        Ok(())
    }

    /// Writes zeros where the file has data. It keeps its blocks.
    fn write_zeros(&self, start: u64, end: u64) -> io::Result<()> {
        let mut offset = start;
        while let Some((start, end)) = next_data(self.file, offset, end)? {
            let zeros = vec![0; piece_length(end - start)];
            offset = start;
            while offset < end {
                let count = piece_length(end - offset);
                self.write(&zeros[..count], offset)?;
                offset += count as u64;
            }
        }
        Ok(())
    }

    fn end_at(&self, size: u64) -> io::Result<()> {
        let end = self.file.metadata()?.len();
        let is_as_it_was = match self.was {
            Some(was) if was.metadata()?.len() > self.written.get() => same_from(self.file, was, size)?,
            Some(_) => end == self.written.get(),
            None => true,
        };
        match is_as_it_was {
            // What another program appends at this moment stays.
            true if end == size => Ok(()),
            true => self.file.set_len(size),
            false => Err(changed_meanwhile()),
        }
    }
}

/// Replaces the content of `to` with that of `from`. Space for it is allocated first and the excess is cut off last, so
/// that a full disk leaves `to` as it was, and the old content can be written over the new again. A hole in both takes no
/// space. Set-id bits go before the first byte: whoever is killed in the midst leaves nobody's rights on other content.
/// [`changed_meanwhile`] if `to` was no longer what it was expected to be, or `from` has changed its size.
pub fn overwrite(from: &File, to: &Overwritten<'_>) -> io::Result<()> {
    let size = from.metadata()?.len();
    let mut offset = 0;
    while let Some((start, end)) = next_data(from, offset, size)? {
        take_room(to.file, start, end)?;
        offset = end;
    }
    clear_set_id(to.file.as_fd(), to.file.metadata()?.mode())?;
    offset = 0;
    while let Some((start, end)) = next_data(from, offset, size)? {
        to.write_zeros(offset, start)?;
        copy_range_by_hand(from, start, end, |piece, offset| to.write(piece, offset))?;
        offset = end;
    }
    to.write_zeros(offset, size)?;
    to.end_at(size)?;
    match from.metadata()?.len() == size {
        true => Ok(()),
        false => Err(changed_meanwhile()),
    }
}

/// Undoes an [`overwrite`] with the content of `from` that stopped where another program had written. What that program
/// wrote stays.
pub fn take_back(from: &File, to: &Overwritten<'_>, was: &File) -> io::Result<()> {
    let written = to.written.get();
    let mut offset = 0;
    while let Some(start) = first_data([from, was], offset, written)? {
        let want = piece_length(written - start);
        let [mut found, new, mut old] =
            [read_at(to.file, start, want)?, read_at(from, start, want)?, read_at(was, start, want)?];
        old.resize(found.len(), 0);
        let sectors = found.chunks_mut(SECTOR_BYTES).zip(new.chunks(SECTOR_BYTES)).zip(old.chunks(SECTOR_BYTES));
        for ((found, _), old) in sectors.filter(|((found, new), _)| **found == **new) {
            found.copy_from_slice(old);
        }
        to.file.write_all_at(&found, start)?;
        offset = start + want as u64;
    }
    let size = was.metadata()?.len();
    if size < written && to.file.metadata()?.len() == written {
        to.file.set_len(size)?;
    }
    Ok(())
}

fn first_data(files: [&File; 2], offset: u64, size: u64) -> io::Result<Option<u64>> {
    let [one, other] = files.map(|file| next_data(file, offset, size));
    Ok(one?.into_iter().chain(other?).map(|(start, _)| start).min())
}

fn take_room(file: &File, start: u64, end: u64) -> io::Result<()> {
    match fs::fallocate(file, fs::FallocateFlags::KEEP_SIZE, start, end - start) {
        // Where the file system does not know the call, space is allocated by the writes themselves.
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
        Err(err) => Err(err.into()),
    }
}

/// The next stretch of data at or after `offset` and before `size`; file systems without holes give it all at once.
fn next_data(file: &File, offset: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    if offset >= size {
        return Ok(None);
    }
    // Seeking moves the descriptor's offset, which nothing uses: all reading here is positioned.
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

/// The same in whole blocks of [`ContentHasher`]; `offset` must be where one begins.
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
            // Across file systems, or on one that does not know the call.
            Err(_) => {
                return copy_range_by_hand(from, read_at, end, |piece, offset| to.write_all_at(piece, offset));
            }
        }
    }
    Ok(())
}

fn copy_range_by_hand(
    from: &File,
    start: u64,
    end: u64,
    write: impl Fn(&[u8], u64) -> io::Result<()>,
) -> io::Result<()> {
    let mut piece = vec![0; piece_length(end - start)];
    let mut offset = start;
    while offset < end {
        let want = piece_length(end - offset);
        match read_piece(from, &mut piece[..want], offset)? {
            0 => break,
            count => {
                write(&piece[..count], offset)?;
                offset += count as u64;
            }
        }
    }
    Ok(())
}
