//! Real mounts, each test in a mount namespace of its thread, which takes them away with it. Needs root and /dev/fuse.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use fuser::{Config, FileAttr, FileHandle, FileType, Filesystem, INodeNo, ReplyAttr, Request, Session, SessionACL};
use rustix::mount::MountPropagationFlags;
use rustix::thread::UnshareFlags;
use tempfile::TempDir;

use super::table::parse_line;
use super::*;

const HARD_NAMES: [&[u8]; 5] = [b"/plain", b"/a b,c\\040,d", b"/tab\tnewline\nhash#", b"/\xff\xfe", b",\\,"];

fn private_namespace() {
    // SAFETY: concerns the calling thread; it shares no directory handles that depend on its namespace.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }.expect("these tests need root");
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
}

/// A temporary directory that detaches what is mounted below it before it goes away.
struct Scratch(TempDir);

impl Scratch {
    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let mounts = mounts().unwrap_or_default();
        for mount in mounts.iter().rev().filter(|mount| mount.mountpoint.starts_with(self.path())) {
            if let Err(error) = unmount(&mount.mountpoint, UnmountMode::Detach) {
                eprintln!("unmount {}: {error}", mount.mountpoint.display());
            }
        }
    }
}

/// A directory to mount on, in a namespace of its own.
fn scratch() -> (Scratch, PathBuf) {
    private_namespace();
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().canonicalize().unwrap().join("mount point");
    fs::create_dir(&dir).unwrap();
    (Scratch(temp), dir)
}

fn mounted(dir: &Path) -> MountEntry {
    mount_at(dir).unwrap().expect("something is mounted")
}

/// What another test starts at this moment has a copy of our descriptors, the one that looked at the mount too, until it
/// runs its own program.
fn unmount_when_free(dir: &Path) {
    let give_up = Instant::now() + Duration::from_secs(10);
    while let Err(err) = unmount(dir, UnmountMode::Plain) {
        assert_eq!(err.kind(), io::ErrorKind::ResourceBusy, "{err}");
        assert!(Instant::now() < give_up, "{} stays busy", dir.display());
        // It polls: nobody tells when a place is free.
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The root directory and nothing else, its attributes valid for an hour.
struct OnlyRoot;

impl Filesystem for OnlyRoot {
    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let now = SystemTime::UNIX_EPOCH;
        let (atime, mtime, ctime, crtime) = (now, now, now, now);
        let (size, blocks, perm, nlink, uid, gid, rdev, blksize, flags) = (0, 0, 0o755, 2, 0, 0, 0, 4096, 0);
        let kind = FileType::Directory;
        let attributes = FileAttr {
            ino,
            size,
            blocks,
            atime,
            mtime,
            ctime,
            crtime,
            kind,
            perm,
            nlink,
            uid,
            gid,
            rdev,
            blksize,
            flags,
        };
        reply.attr(&Duration::from_secs(3600), &attributes);
    }
}

fn serve(device: OwnedFd) {
    let session = Session::from_fd(OnlyRoot, device, SessionACL::All, Config::default()).unwrap();
    // Ends when the connection does; its result is of no interest here.
    drop(std::thread::spawn(|| session.spawn().map(|background| background.join())));
}

#[test]
fn type_and_source_are_shown_as_given() {
    let (_temp, dir) = scratch();
    for source in HARD_NAMES {
        let source = OsStr::from_bytes(source);
        let device = mount_fuse(&dir, &FuseMount::new(source)).unwrap();
        let entry = mounted(&dir);
        assert_eq!((entry.fs_type.as_os_str(), entry.source.as_os_str()), (OsStr::new(FS_TYPE), source));
        let shown = fs::read("/proc/thread-self/mounts").unwrap();
        assert!(shown.split(|&byte| byte == b' ').any(|field| field == b"fuse.fettlefs"));
        unmount_when_free(&dir);
        drop(device);
    }
    assert_eq!(mount_at(&dir).unwrap(), None);
}

#[test]
fn mount_points_with_odd_names_are_found() {
    let (_temp, dir) = scratch();
    for name in [&b"a b"[..], b"tab\tnew\nline\\040#", b"\xff\xfe"] {
        let place = dir.join(OsStr::from_bytes(name));
        fs::create_dir(&place).unwrap();
        let _device = mount_fuse(&place, &FuseMount::new(OsStr::new("x"))).unwrap();
        assert_eq!(mounted(&place).mountpoint, place);
    }
}

#[test]
fn options_reach_the_kernel() {
    let (_temp, dir) = scratch();
    let options = FuseMount {
        allow_other: true,
        read_only: true,
        noexec: true,
        extra: &["noatime", "max_read=65536"],
        ..FuseMount::new(OsStr::new("x"))
    };
    let _device = mount_fuse(&dir, &options).unwrap();
    let entry = mounted(&dir);
    assert_eq!(entry.options, "ro,nosuid,nodev,noexec,noatime");
    assert_eq!(entry.super_options, "ro,user_id=0,group_id=0,default_permissions,allow_other,max_read=65536");
}

#[test]
fn suid_and_dev_are_given_only_when_asked_for() {
    let (_temp, dir) = scratch();
    let options = FuseMount { suid: true, dev: true, default_permissions: false, ..FuseMount::new(OsStr::new("x")) };
    let _device = mount_fuse(&dir, &options).unwrap();
    assert_eq!(mounted(&dir).options, "rw,relatime");
    assert_eq!(mounted(&dir).super_options, "rw,user_id=0,group_id=0");
}

#[test]
fn a_file_is_no_mount_point() {
    let (temp, _dir) = scratch();
    let file = temp.path().join("file");
    fs::write(&file, "").unwrap();
    let error = mount_fuse(&file, &FuseMount::new(OsStr::new("x"))).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
}

#[test]
fn an_unknown_option_is_named_and_nothing_is_mounted() {
    let (_temp, dir) = scratch();
    for word in ["noatme", "max_read=1,allow_other", "fd=3"] {
        let error = mount_fuse(&dir, &FuseMount { extra: &[word], ..FuseMount::new(OsStr::new("x")) }).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
    }
    assert_eq!(mount_at(&dir).unwrap(), None);
}

#[test]
fn the_topmost_mount_is_found_by_any_name_of_the_place() {
    let (temp, dir) = scratch();
    serve(mount_fuse(&dir, &FuseMount::new(OsStr::new("first"))).unwrap());
    serve(mount_fuse(&dir, &FuseMount::new(OsStr::new("second"))).unwrap());
    let link = temp.path().join("link");
    symlink(&dir, &link).unwrap();
    for name in [dir.clone(), dir.join("."), link] {
        assert_eq!(mounted(&name).source, "second", "{}", name.display());
    }
    unmount_when_free(&dir);
    assert_eq!(mounted(&dir).source, "first");
}

#[test]
fn a_mount_that_does_not_answer_is_found_and_covered_without_asking_it() {
    let (_temp, dir) = scratch();
    let _silent = mount_fuse(&dir, &FuseMount::new(OsStr::new("silent"))).unwrap();
    let _other = mount_fuse(&dir, &FuseMount::new(OsStr::new("other"))).unwrap();
    assert_eq!(mounted(&dir).source, "other");
    unmount_when_free(&dir);
    assert_eq!(mounted(&dir).source, "silent");
}

#[test]
fn a_place_inside_a_mount_or_nowhere_is_not_a_mount() {
    let (temp, _dir) = scratch();
    assert_eq!(mount_at(temp.path()).unwrap(), None);
    assert_eq!(mount_at(Path::new("/no/such/place")).unwrap(), None);
    assert_eq!(mounted(Path::new("/proc")).fs_type, "proc");
}

#[test]
fn a_mount_below_a_covered_place_is_not_taken_for_one_that_can_be_reached() {
    let (_temp, dir) = scratch();
    let inner = dir.join("inner");
    fs::create_dir(&inner).unwrap();
    let _inner = mount_fuse(&inner, &FuseMount::new(OsStr::new("x"))).unwrap();
    rustix::mount::mount("cover", &dir, "tmpfs", MountFlags::empty(), None).unwrap();
    fs::create_dir(&inner).unwrap();
    assert!(mounts().unwrap().iter().any(|mount| mount.mountpoint == inner));
    assert_eq!(mount_at(&inner).unwrap(), None);
}

#[test]
fn a_mount_whose_daemon_went_away_is_dead_until_detached() {
    let (_temp, dir) = scratch();
    assert!(!is_dead(&dir));
    drop(mount_fuse(&dir, &FuseMount::new(OsStr::new("x"))).unwrap());
    assert!(is_dead(&dir));
    assert_eq!(mounted(&dir).fs_type, FS_TYPE);
    unmount(&dir, UnmountMode::Detach).unwrap();
    assert!(!is_dead(&dir));
}

#[test]
fn an_aborted_connection_is_dead_although_its_attributes_are_cached() {
    let (_temp, dir) = scratch();
    serve(mount_fuse(&dir, &FuseMount::new(OsStr::new("x"))).unwrap());
    assert!(!is_dead(&dir));
    fs::metadata(&dir).unwrap();
    ConnectionAbort::of(mounted(&dir).device.minor).cut().unwrap();
    fs::metadata(&dir).expect("the kernel answers from its cache");
    assert!(is_dead(&dir));
    unmount_when_free(&dir);
}

#[test]
fn connections_are_aborted_through_a_mounted_fusectl_too() {
    let (_temp, dir) = scratch();
    serve(mount_fuse(&dir, &FuseMount::new(OsStr::new("x"))).unwrap());
    match rustix::mount::mount("fusectl", CONNECTIONS, "fusectl", MountFlags::empty(), None) {
        // Mounted already, as systemd does at each start of the machine.
        Err(rustix::io::Errno::BUSY) => {}
        mounted => mounted.unwrap(),
    }
    ConnectionAbort::of(mounted(&dir).device.minor).cut().unwrap();
    assert!(is_dead(&dir));
}

#[test]
fn a_connection_that_has_the_number_of_one_that_has_ended_is_not_aborted_in_its_place() {
    let (_temp, dir) = scratch();
    let serve_another = || {
        serve(mount_fuse(&dir, &FuseMount::new(OsStr::new("x"))).unwrap());
        mounted(&dir).device.minor
    };
    let number = serve_another();
    let abort = ConnectionAbort::of(number);
    unmount_when_free(&dir);
    // Others may have it for a moment.
    for _ in 0..500 {
        if serve_another() == number {
            abort.cut().unwrap();
            assert!(!is_dead(&dir));
            unmount_when_free(&dir);
            return;
        }
        unmount_when_free(&dir);
    }
    panic!("number {number} is not given again");
}

#[test]
fn no_link_is_followed_when_unmounting() {
    let (temp, dir) = scratch();
    let _device = mount_fuse(&dir, &FuseMount::new(OsStr::new("x"))).unwrap();
    let link = temp.path().join("link");
    symlink(&dir, &link).unwrap();
    unmount(&link, UnmountMode::Detach).unwrap_err();
    mounted(&dir);
}

#[test]
fn mountinfo_lines_are_read_with_and_without_optional_fields() {
    for optional in ["", "shared:1 ", "shared:1 master:2 unbindable "] {
        let line = format!("36 35 98:7 /r\\134 /mnt\\040x rw,noatime {optional}- ext4 /dev/a\\011\\043\\04 rw,a=b");
        let entry = parse_line(line.as_bytes()).unwrap();
        assert_eq!((entry.id, entry.parent, entry.device), (36, 35, Device { major: 98, minor: 7 }));
        assert_eq!((entry.root.to_str(), entry.mountpoint.to_str()), (Some("/r\\"), Some("/mnt x")));
        assert_eq!((entry.fs_type.to_str(), entry.source.to_str()), (Some("ext4"), Some("/dev/a\t#\\04")));
        assert_eq!((entry.options.to_str(), entry.super_options.to_str()), (Some("rw,noatime"), Some("rw,a=b")));
    }
    let mounted_by = |words| parse_line(format!("1 2 0:3 / /m rw - fuse.t s {words}").as_bytes()).unwrap().user();
    assert_eq!((mounted_by("rw,user_id=7,group_id=8"), mounted_by("rw,group_id=8,max_user_id=7")), (Some(7), None));
    for bad in ["", "36 35", "x 35 98:7 / / rw - t s o", "36 35 98:7 / / rw shared:1 t s o"] {
        assert_eq!(parse_line(bad.as_bytes()), None, "{bad}");
    }
}

/// Names the directory to the copy of this test that runs as another user.
const AS_USER: &str = "FETTLEFS_TEST_MOUNT_AS_USER";
const NOBODY: u32 = 65534;

#[test]
fn a_user_mounts_and_unmounts_through_the_helper() {
    match std::env::var_os(AS_USER) {
        Some(dir) => mount_as_user(Path::new(&dir)),
        None => run_as_nobody("a_user_mounts_and_unmounts_through_the_helper"),
    }
}

/// Runs one test of this program as nobody, with a /dev/fuse open to all in this namespace only.
fn run_as_nobody(test: &str) {
    let (temp, dir) = scratch();
    open_fuse_device_to_all(temp.path());
    fs::set_permissions(temp.path(), Permissions::from_mode(0o755)).unwrap();
    chown(&dir, Some(NOBODY), Some(NOBODY)).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("sys::mount::tests::{test}"), "--nocapture"]);
    let output = command.uid(NOBODY).gid(NOBODY).env(AS_USER, &dir).current_dir("/").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn open_fuse_device_to_all(temp: &Path) {
    let node = temp.join("fuse");
    let (mode, device) = (Mode::from_raw_mode(0o666), rustix::fs::makedev(10, 229));
    rustix::fs::mknodat(CWD, &node, rustix::fs::FileType::CharacterDevice, mode, device).unwrap();
    fs::set_permissions(&node, Permissions::from_mode(0o666)).unwrap();
    rustix::mount::mount_bind(&node, "/dev/fuse").unwrap();
}

fn mount_as_user(dir: &Path) {
    for source in HARD_NAMES {
        let source = OsStr::from_bytes(source);
        let options = FuseMount { noexec: true, extra: &["noatime"], ..FuseMount::new(source) };
        serve(mount_fuse_with_helper(dir, &options).expect("needs fusermount3, Debian package fuse3"));
        let entry = mounted(dir);
        assert_eq!((entry.fs_type.as_os_str(), entry.source.as_os_str()), (OsStr::new(FS_TYPE), source));
        assert_eq!(entry.options, "rw,nosuid,nodev,noexec,noatime");
        assert_eq!(fs::metadata(dir).unwrap().mode() & 0o777, 0o755);
        unmount_with_helper(dir, UnmountMode::Detach).unwrap();
    }
    complaints_are_passed_on(dir);
}

fn complaints_are_passed_on(dir: &Path) {
    let usual = FuseMount::new(OsStr::new("x"));
    let refused = [
        (Path::new("/proc"), usual, "fusermount3: "),
        (dir, FuseMount { allow_other: true, ..usual }, "user_allow_other"),
        (dir, FuseMount { suid: true, ..usual }, "only root"),
        (dir, FuseMount { extra: &["no-such-option"], ..usual }, "no-such-option"),
    ];
    for (place, options, want) in refused {
        let error = mount_fuse_with_helper(place, &options).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }
    let error = unmount_with_helper(dir, UnmountMode::Plain).unwrap_err().to_string();
    assert!(error.contains("fusermount3: "), "{error}");
    assert_eq!(mount_at(dir).unwrap(), None);
}

/// A number that is free again may be another's by now.
#[test]
fn a_mount_is_found_by_its_number_and_its_source() {
    let any = mounts().unwrap().remove(0);
    let find = |source: &str| mountpoint_of((any.device, Path::new(source)), &any.mountpoint).unwrap();
    assert_eq!(find(any.source.to_str().unwrap()), Some(any.mountpoint.clone()));
    assert_eq!(find("/of/another"), None);
}
