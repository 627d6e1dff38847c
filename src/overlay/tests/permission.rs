//! Below a name another file stands than the one of which the kernel has asked who may: what root's daemon does to it is what
//! the caller may do to that.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::process::{Child, Command};

use super::*;
use crate::sys::xattr::ACCESS_ACL;

/// A process of an ordinary user, in whose name is asked.
struct Somebody(Child);

const UID: u32 = 65534;
const GROUP: u32 = 65533;

impl Somebody {
    fn start() -> Self {
        let ids = ["--reuid", "65534", "--regid", "65534", "--groups", "65533"];
        Self(Command::new("setpriv").args(ids).args(["sleep", "600"]).spawn().unwrap())
    }

    fn caller(&self) -> Caller {
        let pid = self.0.id();
        // Its user is another a moment before its rights are.
        let has_rights = || crate::sys::process::rights(pid).is_none_or(|rights| rights.opens_all());
        let is_there = || std::fs::metadata(format!("/proc/{pid}")).unwrap().uid() == UID && !has_rights();
        while !is_there() {
            std::thread::yield_now();
        }
        Caller { pid, uid: UID, gid: UID, umask: 0o022 }
    }
}

impl Drop for Somebody {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Bench {
    fn put_of(&self, path: &str, (uid, gid): (u32, u32), mode: u32) {
        self.put(path, "content\n");
        chown(self.lower_path(path), Some(uid), Some(gid)).unwrap();
        std::fs::set_permissions(self.lower_path(path), std::fs::Permissions::from_mode(mode)).unwrap();
    }

    /// The kernel finds the one, and when it asks for something by its node the other is there.
    fn exchanged_after_look(&self, path: &str, other: &str) -> NodeId {
        let node = self.node(path).unwrap();
        let (one, other) = (self.lower_path(path), self.lower_path(other));
        rustix::fs::renameat_with(rustix::fs::CWD, &one, rustix::fs::CWD, &other, RenameFlags::EXCHANGE).unwrap();
        node
    }
}

fn change(mode: Option<u32>, gid: Option<u32>) -> SetAttributes {
    SetAttributes { mode, gid, ..SetAttributes::NOTHING }
}

#[test]
fn the_mode_group_and_list_of_anothers_file_stay() {
    let (bench, somebody) = (Bench::new(), Somebody::start());
    bench.put_of("own", (UID, UID), 0o644);
    bench.put_of("roots", (0, 0), 0o600);
    let node = bench.exchanged_after_look("own", "roots");
    let code = |done: Result<()>| done.unwrap_err().code();
    let by = somebody.caller();
    for set in [change(Some(0o666), None), change(None, Some(GROUP))] {
        assert_eq!(code(bench.view().set_attributes(node, None, &set, &by).map(drop)), libc::ESTALE);
    }
    let flags = rustix::fs::XattrFlags::empty();
    let list = |by: &Caller| bench.view().set_xattr(node, OsStr::new(ACCESS_ACL), &[2, 0, 0, 0], flags, by);
    assert_eq!(code(list(&by)), libc::ESTALE);
    let below = std::fs::metadata(bench.lower_path("own")).unwrap();
    assert_eq!((below.mode() & 0o7777, below.gid()), (0o600, 0));
    // The kernel takes set-id bits from what somebody else writes to.
    bench.put_of("lends", (0, 0), 0o4666);
    let lends = bench.node("lends").unwrap();
    bench.view().set_attributes(lends, None, &change(Some(0o666), None), &by).unwrap();
    // Root, and who has the file.
    bench.view().set_attributes(bench.node("own").unwrap(), None, &change(Some(0o640), None), &ME).unwrap();
    let own = bench.node("roots").unwrap();
    bench.view().set_attributes(own, None, &change(Some(0o600), Some(GROUP)), &by).unwrap();
    assert_eq!(std::fs::metadata(bench.lower_path("roots")).unwrap().gid(), GROUP);
}

/// Where that is another for the second time, what is opened is the latest.
#[test]
fn what_neither_mode_nor_list_lets_somebody_open_is_not_opened_for_him() {
    let (bench, somebody) = (Bench::new(), Somebody::start());
    let by = somebody.caller();
    let roots = [((0, 0), 0o600), ((0, GROUP), 0o640), ((0, 0), 0o644), ((0, 0), 0o711)];
    for (ids, mode) in roots {
        bench.put_of("own", (UID, UID), 0o666);
        bench.put_of("roots", ids, mode);
        let opens = |node: NodeId, flags: i32| bench.view().open(node, OpenFlags::from_raw(flags), &by).map(drop);
        let node = bench.exchanged_after_look("own", "roots");
        assert_eq!(opens(node, libc::O_RDONLY).unwrap_err().code(), libc::ESTALE, "another is there");
        let may_read = mode & 0o044 != 0;
        assert_eq!(opens(node, libc::O_RDONLY).is_ok(), may_read, "{mode:o}");
        assert_eq!(opens(node, libc::O_RDWR).unwrap_err().code(), libc::ESTALE, "{mode:o}");
        // The kernel opens it to run it.
        const FMODE_EXEC: i32 = 0x20;
        assert_eq!(opens(node, libc::O_RDONLY | FMODE_EXEC).is_ok(), mode & 0o001 != 0, "{mode:o}");
        std::fs::remove_file(bench.lower_path("own")).unwrap();
        std::fs::remove_file(bench.lower_path("roots")).unwrap();
    }
}
