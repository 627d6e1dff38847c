//! A disk that remembers: one image served by FUSE, for a loop device to stand on.
//!
//! ```text
//!   disk record BASE LOG MOUNTPOINT    serves MOUNTPOINT/disk, and appends every write, discard and flush to LOG
//!   disk replay BASE LOG MOUNTPOINT    serves MOUNTPOINT/disk as it was after some power cut
//! ```
//! BASE is what the disk had before the first record; it is never written to. The file `control` beside the disk tells,
//! when recording, how many records there are; when replaying, writing `POSITION SEED SECTOR` to it sets the power off
//! after so many records. Everything before the last flush among them is on the disk. What came after it was in flight:
//! SEED chooses what of that the disk lost, whole writes or single sectors of them, of no less than SECTOR bytes; with
//! seed 0 it lost nothing.
//!
//! Requests are answered one after the other, so that a write that was answered before a flush was asked for stands
//! before it in the log. A loop device turns FUA into a write and a flush.
//!
//! Built by `scripts/powercut`. No part of what is installed.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner, MountOption,
    OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, Session, WriteFlags,
};
use parking_lot::Mutex;

const PAGE: usize = 4096;

/// What a disk writes as a whole, at the least.
const SECTORS: [usize; 2] = [512, 4096];

const DISK: INodeNo = INodeNo(2);
const CONTROL: INodeNo = INodeNo(3);

/// Sizes and times never change.
const TTL: Duration = Duration::from_secs(3600);

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mode, base, log, mountpoint] = arguments.as_slice() else {
        return Err(io::Error::other("disk record|replay BASE LOG MOUNTPOINT"));
    };
    let base = Arc::new(File::open(base)?);
    let role = match mode.as_str() {
        "record" => Role::Record(Recorder::new(Path::new(log))?),
        "replay" => Role::Replay(read_log(Path::new(log))?),
        other => return Err(io::Error::other(format!("record or replay, not {other}"))),
    };
    let size = base.metadata()?.len();
    let disk = Disk { pages: Pages::new(base.clone()), base, role };
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("powercut".to_owned())];
    let session = Session::new(Door { size, disk: Mutex::new(disk) }, mountpoint, &config)?;
    // From here on requests wait for us: whoever started us may go on.
    println!("ready");
    session.run()
}

// --- what is on the disk ----------------------------------------------------------------------------------------------

/// An image, and what differs from it.
struct Pages {
    base: Arc<File>,
    changed: HashMap<u64, Box<[u8; PAGE]>>,
}

impl Pages {
    fn new(base: Arc<File>) -> Self {
        Self { base, changed: HashMap::new() }
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.base.read_exact_at(into, offset)?;
        for (number, within, part) in parts(offset, into.len()) {
            if let Some(page) = self.changed.get(&number) {
                into[part.clone()].copy_from_slice(&page[within..within + part.len()]);
            }
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        for (number, within, part) in parts(offset, data.len()) {
            let page = self.page(number)?;
            page[within..within + part.len()].copy_from_slice(&data[part]);
        }
        Ok(())
    }

    fn zero(&mut self, offset: u64, length: u64) -> io::Result<()> {
        for (number, within, part) in parts(offset, length as usize) {
            self.page(number)?[within..within + part.len()].fill(0);
        }
        Ok(())
    }

    fn page(&mut self, number: u64) -> io::Result<&mut [u8; PAGE]> {
        use std::collections::hash_map::Entry;
        match self.changed.entry(number) {
            Entry::Occupied(page) => Ok(page.into_mut()),
            Entry::Vacant(place) => {
                let mut page = Box::new([0; PAGE]);
                self.base.read_exact_at(&mut page[..], number * PAGE as u64)?;
                Ok(place.insert(page))
            }
        }
    }
}

/// Cuts a range at page borders: the page, where the part begins in it, and which part of the range it is.
fn parts(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = (at % PAGE as u64) as usize;
        let part = done..length.min(done + PAGE - within);
        done = part.end;
        (!part.is_empty()).then_some((at / PAGE as u64, within, part))
    })
}

// --- the log ----------------------------------------------------------------------------------------------------------

enum Record {
    Write {
        offset: u64,
        data: Vec<u8>,
    },
    /// A discard or a write of zeros.
    Zero {
        offset: u64,
        length: u64,
    },
    Flush,
}

impl Record {
    /// A letter and two numbers, then the data.
    fn put(&self, log: &mut impl Write) -> io::Result<()> {
        let (kind, offset, length, data) = match self {
            Self::Write { offset, data } => (b'W', *offset, data.len() as u64, data.as_slice()),
            Self::Zero { offset, length } => (b'Z', *offset, *length, &[][..]),
            Self::Flush => (b'F', 0, 0, &[][..]),
        };
        log.write_all(&[kind])?;
        log.write_all(&offset.to_le_bytes())?;
        log.write_all(&length.to_le_bytes())?;
        log.write_all(data)
    }

    /// None at the end of the log.
    fn get(log: &mut impl Read) -> io::Result<Option<Self>> {
        let mut kind = [0];
        if log.read(&mut kind)? == 0 {
            return Ok(None);
        }
        let mut number = || -> io::Result<u64> {
            let mut bytes = [0; 8];
            log.read_exact(&mut bytes)?;
            Ok(u64::from_le_bytes(bytes))
        };
        let (offset, length) = (number()?, number()?);
        match kind[0] {
            b'W' => {
                let mut data = vec![0; length as usize];
                log.read_exact(&mut data)?;
                Ok(Some(Self::Write { offset, data }))
            }
            b'Z' => Ok(Some(Self::Zero { offset, length })),
            b'F' => Ok(Some(Self::Flush)),
            other => Err(io::Error::other(format!("a record of kind {other}"))),
        }
    }

    fn apply(&self, pages: &mut Pages) -> io::Result<()> {
        match self {
            Self::Write { offset, data } => pages.write(*offset, data),
            Self::Zero { offset, length } => pages.zero(*offset, *length),
            Self::Flush => Ok(()),
        }
    }

    /// Only some of its sectors reach the disk.
    fn apply_torn(&self, pages: &mut Pages, sector: usize, chance: &mut Chance) -> io::Result<()> {
        let Self::Write { offset, data } = self else { return self.apply(pages) };
        for (number, part) in data.chunks(sector).enumerate() {
            if chance.one_in(2) {
                pages.write(offset + (number * sector) as u64, part)?;
            }
        }
        Ok(())
    }
}

struct Recorder {
    log: BufWriter<File>,
    records: usize,
}

impl Recorder {
    fn new(log: &Path) -> io::Result<Self> {
        let log = OpenOptions::new().write(true).create_new(true).open(log)?;
        Ok(Self { log: BufWriter::new(log), records: 0 })
    }

    fn add(&mut self, record: &Record) -> io::Result<()> {
        record.put(&mut self.log)?;
        self.records += 1;
        Ok(())
    }
}

fn read_log(log: &Path) -> io::Result<Vec<Record>> {
    let mut log = io::BufReader::new(File::open(log)?);
    std::iter::from_fn(|| Record::get(&mut log).transpose()).collect()
}

// --- the power cut ----------------------------------------------------------------------------------------------------

/// What of the writes in flight is lost.
enum Loss {
    Nothing,
    Everything,
    /// Each is lost in one of so many cases; of those that are not, one in four is torn.
    Some {
        one_in: u64,
        sector: usize,
    },
}

impl Loss {
    fn choose(chance: &mut Chance, least: usize) -> Self {
        match chance.below(8) {
            0 => Self::Nothing,
            1 => Self::Everything,
            _ => Self::Some { one_in: 2 + chance.below(7), sector: SECTORS[chance.below(2) as usize].max(least) },
        }
    }
}

/// The disk as a power cut after these records leaves it.
fn after_power_cut(base: &Arc<File>, records: &[Record], seed: u64, sector: usize) -> io::Result<Pages> {
    let mut pages = Pages::new(base.clone());
    let flushed = records.iter().rposition(|record| matches!(record, Record::Flush)).map_or(0, |flush| flush + 1);
    let (safe, in_flight) = records.split_at(flushed);
    safe.iter().try_for_each(|record| record.apply(&mut pages))?;
    let mut chance = Chance(seed);
    let loss = if seed == 0 { Loss::Nothing } else { Loss::choose(&mut chance, sector) };
    for record in in_flight {
        match loss {
            Loss::Nothing => record.apply(&mut pages)?,
            Loss::Everything => {}
            Loss::Some { one_in, .. } if chance.one_in(one_in) => {}
            Loss::Some { sector, .. } if chance.one_in(4) => record.apply_torn(&mut pages, sector, &mut chance)?,
            Loss::Some { .. } => record.apply(&mut pages)?,
        }
    }
    Ok(pages)
}

/// SplitMix64: the same state of the disk for the same seed, everywhere.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }

    fn one_in(&mut self, cases: u64) -> bool {
        self.below(cases) == 0
    }
}

// --- the files ---------------------------------------------------------------------------------------------------------

enum Role {
    Record(Recorder),
    Replay(Vec<Record>),
}

struct Disk {
    pages: Pages,
    base: Arc<File>,
    role: Role,
}

impl Disk {
    fn change(&mut self, record: &Record) -> io::Result<()> {
        record.apply(&mut self.pages)?;
        match &mut self.role {
            Role::Record(recorder) => recorder.add(record),
            Role::Replay(_) => Ok(()),
        }
    }

    fn records(&self) -> usize {
        match &self.role {
            Role::Record(recorder) => recorder.records,
            Role::Replay(records) => records.len(),
        }
    }

    /// `POSITION SEED SECTOR`.
    fn command(&mut self, words: &[u8]) -> io::Result<()> {
        let Role::Replay(records) = &self.role else { return Err(io::ErrorKind::PermissionDenied.into()) };
        let words = String::from_utf8_lossy(words);
        let numbers: Vec<u64> = words.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [position, seed, sector] = numbers.as_slice() else { return Err(io::ErrorKind::InvalidInput.into()) };
        let records = records.get(..*position as usize).ok_or(io::ErrorKind::InvalidInput)?;
        self.pages = after_power_cut(&self.base, records, *seed, *sector as usize)?;
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        match &mut self.role {
            Role::Record(recorder) => recorder.log.flush(),
            Role::Replay(_) => Ok(()),
        }
    }
}

struct Door {
    size: u64,
    disk: Mutex<Disk>,
}

impl Door {
    fn attributes(&self, ino: INodeNo) -> FileAttr {
        let (kind, size) = match ino {
            INodeNo::ROOT => (FileType::Directory, 0),
            DISK => (FileType::RegularFile, self.size),
            _ => (FileType::RegularFile, 0),
        };
        FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm: 0o700,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            flags: 0,
            blksize: PAGE as u32,
        }
    }

    fn content(&self, ino: INodeNo, offset: u64, size: u32) -> io::Result<Vec<u8>> {
        let disk = self.disk.lock();
        if ino == CONTROL {
            let told = disk.records().to_string().into_bytes();
            return Ok(told.into_iter().skip(offset as usize).take(size as usize).collect());
        }
        let mut data = vec![0; self.size.saturating_sub(offset).min(size.into()) as usize];
        disk.pages.read(offset, &mut data)?;
        Ok(data)
    }

    fn changed(&self, ino: INodeNo, record: Record) -> io::Result<()> {
        let mut disk = self.disk.lock();
        match record {
            Record::Write { data, .. } if ino == CONTROL => disk.command(&data),
            record => disk.change(&record),
        }
    }
}

fn errno(err: io::Error) -> Errno {
    eprintln!("disk: {err}");
    Errno::from_i32(err.raw_os_error().unwrap_or(libc::EIO))
}

impl Filesystem for Door {
    fn lookup(&self, _req: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name.to_str() {
            Some("disk") => reply.entry(&TTL, &self.attributes(DISK), Generation(0)),
            Some("control") => reply.entry(&TTL, &self.attributes(CONTROL), Generation(0)),
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attributes(ino));
    }

    /// No page cache of the host's stands between the loop device and us.
    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.content(ino, offset, size) {
            Ok(data) => reply.data(&data),
            Err(err) => reply.error(errno(err)),
        }
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.changed(ino, Record::Write { offset, data: data.to_vec() }) {
            Ok(()) => reply.written(data.len() as u32),
            Err(err) => reply.error(errno(err)),
        }
    }

    fn fallocate(
        &self,
        _req: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) == 0 {
            return reply.error(Errno::EOPNOTSUPP);
        }
        answer(self.changed(ino, Record::Zero { offset, length }), reply);
    }

    fn fsync(&self, _req: &Request, ino: INodeNo, _handle: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        answer(self.changed(ino, Record::Flush), reply);
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _handle: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn destroy(&mut self) {
        if let Err(err) = self.disk.get_mut().finish() {
            eprintln!("disk: the log is not complete: {err}");
        }
    }
}

fn answer(done: io::Result<()>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(err) => reply.error(errno(err)),
    }
}
