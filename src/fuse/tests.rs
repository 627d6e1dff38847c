use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{FileHandle, FileType, INodeNo};

use super::answer::Xattr;
use super::attr::{self, Named, Shown};
use super::door::Door;
use super::listing::{Listed, Listing, Listings};
use super::observer;
use super::view::{self, View, Whose, fitting, may_write};
use super::watchers;
use super::workers::Workers;
use crate::control::{DESK_ROOT, Desk, Project, VirtualMeta};
use crate::model::Timestamp;
use crate::overlay::{Caller, Grants, HandleId, NodeId, Overlay, Policy, RuleSource};
use crate::store::{Location, Store};
use crate::sys::file::{FileKind, Meta};
use crate::sys::mount::Device;
use crate::sys::tree::Tree;

fn at(seconds: i64, nanoseconds: u32) -> Timestamp {
    Timestamp { seconds, nanoseconds }
}

fn meta() -> Meta {
    Meta {
        device: 1,
        inode: 7,
        kind: FileKind::Regular,
        mode: 0o4755,
        is_mount_root: false,
        links: 3,
        uid: 1000,
        gid: 100,
        special_device: 0,
        size: 5000,
        blocks: 16,
        block_size: 4096,
        atime: at(1, 2),
        mtime: at(3, 4),
        ctime: at(5, 6),
        btime: at(0, 0),
    }
}

#[test]
fn attributes_show_the_view_s_number_and_every_mode_bit() {
    let attr = attr::file_attr(42, &meta());
    assert_eq!((attr.ino, attr.perm, attr.kind), (INodeNo(42), 0o4755, FileType::RegularFile));
    assert_eq!((attr.size, attr.blocks, attr.blksize, attr.nlink), (5000, 16, 4096, 3));
    assert_eq!((attr.uid, attr.gid), (1000, 100));
    assert_eq!(attr.mtime, UNIX_EPOCH + Duration::new(3, 4));
}

#[test]
fn device_numbers_pass_as_the_kernel_packs_them() {
    let special_device = rustix::fs::makedev(259, 70_000);
    let attr = attr::file_attr(1, &Meta { kind: FileKind::BlockDevice, special_device, ..meta() });
    assert_eq!(attr.rdev, (70_000 & 0xff) | (259 << 8) | ((70_000 & !0xff) << 12));
}

#[test]
fn times_before_the_epoch_keep_their_nanoseconds() {
    assert_eq!(attr::system_time(at(-2, 800_000_000)), UNIX_EPOCH - Duration::from_millis(1200));
    assert_eq!(attr::system_time(at(i64::MIN, 1)), UNIX_EPOCH - Duration::new(1 << 63, 0) + Duration::from_nanos(1));
}

#[test]
fn times_asked_for_are_read_as_fuser_writes_them() {
    // What fuser 0.18.0 makes of a second and nanoseconds.
    let decoded = |seconds: i64, nanoseconds| match seconds {
        0.. => UNIX_EPOCH + Duration::new(seconds.unsigned_abs(), nanoseconds),
        _ => UNIX_EPOCH - Duration::new(seconds.unsigned_abs(), nanoseconds),
    };
    for time in [at(0, 0), at(0, 1), at(1_700_000_000, 999_999_999), at(-1, 0), at(-2, 800_000_000)] {
        assert_eq!(attr::requested_time(decoded(time.seconds, time.nanoseconds)), time);
    }
}

#[test]
fn what_is_at_the_desk_is_not_remembered() {
    let meta = VirtualMeta { is_dir: false, mode: 0o666, size: 513, mtime: at(9, 0), uid: 1, gid: 2 };
    let shown = Shown::of_desk(DESK_ROOT + 5, &meta);
    assert_eq!(shown.ttl, Duration::ZERO);
    assert_eq!((shown.attr.ino.0, shown.attr.blocks, shown.attr.perm), (DESK_ROOT + 5, 2, 0o666));
}

/// Others list what is there again and again, and each time something else may be.
#[test]
fn of_what_is_listed_at_the_desk_only_what_the_kernel_knows_is_kept() {
    let scratch = tempfile::tempdir().unwrap();
    let (_overlay, door) = door_to(scratch.path());
    let (view, root) = (&door.view, INodeNo(DESK_ROOT));
    let listed = view.list(root).unwrap();
    let notice = INodeNo(listed.iter().find(|entry| entry.name == "NOTICE.md").unwrap().inode);
    let is_known = || view.attributes(notice).is_ok();
    let look_up = || view.lookup(root, "NOTICE.md".as_ref()).and_then(Named::entry).unwrap().attr.ino;
    assert!(!is_known());
    assert_eq!([look_up(), look_up()], [notice; 2]);
    view.forget(notice, 1);
    assert!(is_known());
    view.forget(notice, 1);
    assert!(!is_known());
    view.forget(root, 5);
    assert_eq!((view.list(root).unwrap(), look_up()), (listed, notice));
}

#[test]
fn ids_tell_who_answers() {
    assert_eq!(view::node(INodeNo(DESK_ROOT - 1)), Whose::Overlay(NodeId(DESK_ROOT - 1)));
    assert_eq!(view::node(INodeNo(DESK_ROOT)), Whose::Desk(DESK_ROOT));
    assert_eq!(view::open_file(FileHandle(3)), Whose::Overlay(HandleId(3)));
    assert_eq!(view::open_file(FileHandle(DESK_ROOT + 3)), Whose::Desk(DESK_ROOT + 3));
}

#[test]
fn an_open_that_truncates_writes() {
    assert!(!may_write(libc::O_RDONLY | libc::O_NOFOLLOW));
    assert!(may_write(libc::O_RDONLY | libc::O_TRUNC));
    assert!(may_write(libc::O_WRONLY));
    assert!(may_write(libc::O_RDWR | libc::O_APPEND));
}

#[test]
fn an_xattr_is_measured_given_or_too_long() {
    assert_eq!(fitting(b"abc".to_vec(), 0).ok(), Some(Xattr::Size(3)));
    assert_eq!(fitting(b"abc".to_vec(), 3).ok(), Some(Xattr::Value(b"abc".to_vec())));
    assert_eq!(fitting(b"abc".to_vec(), 2).map_err(|err| err.code()), Err(libc::ERANGE));
}

fn listed(names: &[&str]) -> Listing {
    let entry = |(inode, name): (u64, &&str)| Listed { name: name.into(), inode, kind: FileType::RegularFile };
    Listing::of((1..).zip(names).map(entry).collect(), &Arc::default())
}

/// Names and next offsets from an offset on.
fn told(entries: &Listing, offset: u64) -> Vec<(u64, &str)> {
    let told = entries.after(offset);
    told.map(|(next, entry)| (next, entry.name.to_str().unwrap())).collect()
}

#[test]
fn an_offset_is_the_number_of_entries_before_it() {
    let entries = listed(&[".", "..", "a", "b"]);
    assert_eq!(told(&entries, 0), [(1, "."), (2, ".."), (3, "a"), (4, "b")]);
    assert_eq!(told(&entries, 3), [(4, "b")]);
    assert_eq!(told(&entries, 4), []);
    assert_eq!(told(&entries, u64::MAX), []);
}

#[test]
fn work_beyond_what_fits_here_runs_elsewhere_and_at_once() {
    const HERE: usize = 1;
    let workers = Arc::new(Workers::new("test", HERE, 4));
    let together = Arc::new(Barrier::new(4));
    let (done, wait) = mpsc::channel();
    // One runs on the thread that brings it, three on threads of the pool; each needs all the others to end.
    for _ in 0..3 {
        let (workers, together, done) = (workers.clone(), together.clone(), done.clone());
        std::thread::spawn(move || {
            workers.off_path(move || {
                together.wait();
                done.send(()).unwrap();
            });
        });
    }
    workers.off_path(move || {
        together.wait();
        done.send(()).unwrap();
    });
    for _ in 0..4 {
        wait.recv_timeout(Duration::from_secs(10)).unwrap();
    }
}

#[test]
fn work_waits_while_all_threads_are_taken_and_then_runs() {
    const THREADS: usize = 2;
    let workers = Workers::new("test", 0, THREADS);
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (done, wait) = mpsc::channel();
    for _ in 0..200 {
        let (running, most, done) = (running.clone(), most.clone(), done.clone());
        workers.off_path(move || {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::yield_now();
            running.fetch_sub(1, Ordering::SeqCst);
            done.send(()).unwrap();
        });
    }
    for _ in 0..200 {
        wait.recv_timeout(Duration::from_secs(10)).unwrap();
    }
    assert!(most.load(Ordering::SeqCst) <= THREADS);
}

/// A door to the view of a directory, as `serve` makes it, without a kernel on the other side.
pub(super) fn door_to(dir: &std::path::Path) -> (Arc<Overlay>, Door) {
    let lower = Tree::open(dir).unwrap();
    let store = Store::open(&lower, &Location::default()).unwrap();
    let source = RuleSource::default();
    let policy = Policy::load(&lower, &source).unwrap();
    let overlay = Overlay::new(lower, store, policy, Grants::default()).unwrap();
    let overlay = Arc::new(overlay);
    let project = Project { overlay: overlay.clone(), path: dir.to_owned(), source, owner: 0, mounted: None };
    let (teller, _) = observer::queue();
    let (herald, _) = watchers::herald((dir, Device { major: 0, minor: 0 }), teller.clone());
    let listings = Listings::default();
    let desk = Arc::new(Desk::new(Arc::new(project)));
    let view = View::new(overlay.clone(), desk, teller, herald, listings.changes());
    (overlay, Door { view, listings })
}

/// Invariant 10.
#[test]
fn after_a_panic_the_view_answers_reads_and_refuses_writes() {
    let root = INodeNo(1);
    let caller = Caller { pid: 1, uid: 0, gid: 0, umask: 0o022 };
    let scratch = tempfile::tempdir().unwrap();
    std::fs::write(scratch.path().join("file"), "kept").unwrap();
    let (overlay, door) = door_to(scratch.path());

    let asked = door.attempt("rename", |_| -> crate::overlay::Result<()> { panic!("a bug") });
    assert_eq!(asked.map_err(|err| err.code()), Err(libc::EIO));
    assert_eq!(overlay.fault().as_deref(), Some("rename panicked: a bug"));

    let made = door.attempt("mkdir", |view| view.mkdir(root, "dir".as_ref(), 0o755, &caller));
    assert_eq!(made.map(|_| ()).map_err(|err| err.code()), Err(libc::EROFS));
    let removed = door.attempt("unlink", |view| view.unlink(root, "file".as_ref(), &caller));
    assert_eq!(removed.map_err(|err| err.code()), Err(libc::EROFS));
    let shown = door.attempt("lookup", |view| view.lookup(root, "file".as_ref())?.entry()).unwrap();
    let open = door.attempt("open", |view| view.open(shown.attr.ino, libc::O_RDONLY, &caller)).unwrap();
    let read = door.attempt("read", |view| view.read(open.handle, 0, 10, &caller));
    assert_eq!(read.unwrap(), b"kept");
}
