//! What files look like: what a change brings lands, and what somebody else has done below meanwhile stays (SPEC §4.7, §9).

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::*;
use crate::sys::xattr;
use rustix::fs::XattrFlags;

const COLOUR: &str = "user.colour";

const DRESSED: SetAttributes = SetAttributes {
    mode: Some(0o777),
    uid: Some(7),
    gid: Some(7),
    size: None,
    atime: SetTime::Keep,
    mtime: SetTime::At(Timestamp { seconds: 1, nanoseconds: 0 }),
};

impl Bench {
    /// As somebody outside does it.
    pub(super) fn chmod_below(&self, path: &str, mode: u32) {
        std::fs::set_permissions(self.lower_path(path), std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn chown_below(&self, path: &str, id: u32) {
        std::os::unix::fs::chown(self.lower_path(path), Some(id), Some(id)).unwrap();
    }

    fn attribute_below(&self, path: &str, name: &str, value: &[u8]) {
        let file = std::fs::File::open(self.lower_path(path)).unwrap();
        xattr::set(file.as_fd(), OsStr::new(name), value, XattrFlags::empty()).unwrap();
    }

    /// Mode, user and colour below.
    pub(super) fn looks_below(&self, path: &str) -> (u32, u32, Option<String>) {
        let file = std::fs::File::open(self.lower_path(path)).unwrap();
        let meta = file.metadata().unwrap();
        let colour = xattr::find(file.as_fd(), OsStr::new(COLOUR)).unwrap();
        (meta.mode() & 0o7777, meta.uid(), colour.map(|colour| String::from_utf8(colour).unwrap()))
    }

    fn chmod(&self, path: &str, mode: u32) {
        let (atime, mtime) = (SetTime::Keep, SetTime::Keep);
        let set = SetAttributes { mode: Some(mode), atime, mtime, ..SetAttributes::NOTHING };
        self.view().set_attributes(self.node(path).unwrap(), None, &set, &ME).unwrap();
    }

    pub(super) fn colour(&self, path: &str, value: &str) {
        self.colour_node(self.node(path).unwrap(), value);
    }

    fn colour_node(&self, node: NodeId, value: &str) {
        self.view().set_xattr(node, OsStr::new(COLOUR), value.as_bytes(), XattrFlags::empty(), &ME).unwrap();
    }

    fn dress_node(&self, node: NodeId) {
        self.view().set_attributes(node, None, &DRESSED, &ME).unwrap();
    }

    /// Mode, user, and time of modification, as the view shows them.
    fn dress_of(&self, node: NodeId) -> (u32, u32, i64) {
        let meta = self.view().attributes(node).unwrap().meta;
        (meta.mode, meta.uid, meta.mtime.seconds)
    }

    /// The same in the view.
    pub(super) fn looks_shown(&self, path: &str) -> (u32, u32, Option<String>) {
        let node = self.node(path).unwrap();
        let meta = self.view().attributes(node).unwrap().meta;
        let colour = self.view().get_xattr(node, OsStr::new(COLOUR)).ok();
        (meta.mode & 0o7777, meta.uid, colour.map(|colour| String::from_utf8(colour).unwrap()))
    }

    fn mode_shown(&self, path: &str) -> u32 {
        self.view().attributes(self.node(path).unwrap()).unwrap().meta.mode
    }

    fn replace(&self, path: &str, content: &str) {
        self.save("new", content);
        self.rename("new", path);
    }
}

#[test]
fn what_somebody_does_to_the_looks_of_a_held_file_stays_when_it_is_confirmed() {
    for hold in [Bench::save, Bench::replace] {
        let bench = Bench::new();
        bench.put("a", &lines(100));
        hold(&bench, "a", &changed(100, 60));
        bench.chmod_below("a", 0o600);
        bench.chown_below("a", 7);
        bench.attribute_below("a", COLOUR, b"red");
        bench.confirm(&[bench.only_id()]).unwrap();
        assert_eq!(bench.lower("a"), Some(changed(100, 60)));
        assert_eq!(bench.looks_below("a"), (0o600, 7, Some("red".to_owned())));
        assert_eq!(bench.mode_shown("a"), 0o600);
    }
}

#[test]
fn it_stays_when_a_save_lands_and_at_each_that_follows() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    let handle = bench.open_for_save("a");
    bench.view().write(handle, 0, changed(100, 2).as_bytes()).unwrap();
    bench.chmod_below("a", 0o600);
    bench.attribute_below("a", COLOUR, b"red");
    bench.view().flush(handle, &ME).unwrap();
    assert_eq!(bench.lower("a"), Some(changed(100, 2)));
    assert_eq!(bench.looks_below("a"), (0o600, 0, Some("red".to_owned())));
    bench.view().write(handle, 0, changed(100, 3).as_bytes()).unwrap();
    bench.close(handle);
    assert_eq!(bench.looks_below("a"), (0o600, 0, Some("red".to_owned())));
    assert_eq!(bench.mode_shown("a"), 0o600);
}

#[test]
fn it_stays_when_the_same_bytes_are_saved() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    let handle = bench.open_for_save("a");
    bench.view().write(handle, 0, lines(100).as_bytes()).unwrap();
    bench.chmod_below("a", 0o600);
    bench.close(handle);
    assert_eq!(bench.looks_below("a"), (0o600, 0, None));
}

#[test]
fn of_a_held_file_what_the_view_has_changed_lands_and_the_rest_is_lowers() {
    let mut bench = Bench::new();
    bench.put("a", &lines(100));
    bench.put("b", &lines(100));
    bench.save("a", &changed(100, 60));
    bench.save("b", &changed(100, 60));
    bench.chmod("a", 0o755);
    bench.colour("b", "blue");
    bench.attribute_below("a", COLOUR, b"red");
    bench.chmod_below("b", 0o600);
    bench.remount();
    let ids: Vec<ChangeId> = bench.held().into_iter().filter_map(|row| Some(row.held?.id)).collect();
    bench.confirm(&ids).unwrap();
    assert_eq!(bench.looks_below("a"), (0o755, 0, Some("red".to_owned())));
    assert_eq!(bench.looks_below("b"), (0o600, 0, Some("blue".to_owned())));
}

#[test]
fn set_id_bits_that_somebody_gives_below_are_lent_to_nothing_that_was_written() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 60));
    bench.chmod_below("a", 0o4755);
    bench.confirm(&[bench.only_id()]).unwrap();
    assert_eq!(bench.looks_below("a").0, 0o755);
}

#[test]
fn what_the_view_has_changed_lands_with_content_that_is_merged() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 60));
    bench.chmod("a", 0o750);
    bench.colour("a", "blue");
    bench.chown_below("a", 7);
    bench.put("a", &lines(100).replace("line 90\n", "theirs\n"));
    let outcomes = bench.confirm(&[bench.only_id()]).unwrap();
    assert_eq!(outcomes[0].action, crate::protocol::Action::Merged);
    assert_eq!(bench.lower("a"), Some(changed(100, 60).replace("line 90\n", "theirs\n")));
    assert_eq!(bench.looks_below("a"), (0o750, 7, Some("blue".to_owned())));
}

/// The owning group has nothing, user 2 all: the mask shows as the group's bits of the mode.
const LIST: &[u8] = &[
    2, 0, 0, 0, // version
    1, 0, 6, 0, 255, 255, 255, 255, // the owner
    2, 0, 7, 0, 2, 0, 0, 0, // user 2
    4, 0, 0, 0, 255, 255, 255, 255, // the owning group
    16, 0, 7, 0, 255, 255, 255, 255, // the mask
    32, 0, 0, 0, 255, 255, 255, 255, // others
];

impl Bench {
    fn list_below(&self, path: &str) -> Option<Vec<u8>> {
        let file = std::fs::File::open(self.lower_path(path)).unwrap();
        xattr::find(file.as_fd(), OsStr::new(xattr::ACCESS_ACL)).unwrap()
    }

    fn give_list(&self, path: &str) {
        let (node, name) = (self.node(path).unwrap(), OsStr::new(xattr::ACCESS_ACL));
        self.view().set_xattr(node, name, LIST, XattrFlags::empty(), &ME).unwrap();
    }
}

#[test]
fn what_has_the_same_bytes_brings_its_access_list() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("new", &lines(100));
    bench.give_list("new");
    bench.rename("new", "a");
    assert_eq!((bench.list_below("a"), bench.looks_below("a").0), (Some(LIST.to_vec()), 0o670));
    assert_eq!(bench.lower_names(), ["a"]);
}

/// As `install -m` of what is there already, or a save by rename.
#[test]
fn a_mode_that_comes_with_the_same_bytes_is_told_and_can_be_undone() {
    for by_rename in [true, false] {
        let bench = Bench::new();
        bench.put("a", &lines(20));
        bench.chmod_below("a", 0o644);
        if by_rename {
            bench.save("new", &lines(20));
            bench.chmod("new", 0o666);
            bench.rename("new", "a");
        } else {
            let handle = bench.open_for_save("a");
            bench.view().write(handle, 0, lines(20).as_bytes()).unwrap();
            bench.chmod("a", 0o666);
            bench.close(handle);
        }
        assert_eq!(bench.looks_below("a").0, 0o666, "{by_rename}");
        bench.undo(&bench.latest()).unwrap();
        assert_eq!((bench.looks_below("a").0, bench.lower("a")), (0o644, Some(lines(20))), "{by_rename}");
    }
}

#[test]
fn attributes_that_are_set_before_the_same_bytes_are_saved_stay() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    let handle = bench.open_for_save("a");
    bench.view().write(handle, 0, lines(100).as_bytes()).unwrap();
    bench.colour("a", "blue");
    bench.give_list("a");
    bench.close(handle);
    assert_eq!(bench.looks_below("a"), (0o670, 0, Some("blue".to_owned())));
    assert_eq!(bench.list_below("a"), Some(LIST.to_vec()));
}

/// A file that user 2 may write, and its group not read.
fn listed(bench: &Bench, path: &str) {
    bench.put(path, &lines(8));
    let file = std::fs::File::open(bench.lower_path(path)).unwrap();
    xattr::set(file.as_fd(), OsStr::new(xattr::ACCESS_ACL), LIST, XattrFlags::empty()).unwrap();
    assert_eq!(bench.looks_below(path).0, 0o670);
}

#[test]
fn what_comes_back_without_its_access_list_lets_the_group_do_no_more_than_that_did() {
    let bench = Bench::new();
    listed(&bench, "a");
    listed(&bench, "b");
    bench.unlink("a");
    let removed = bench.latest();
    bench.undo(&removed).unwrap();
    assert_eq!((bench.list_below("a"), bench.looks_below("a").0), (None, 0o600));
    assert_eq!(bench.undo(&removed).unwrap_err().code, ErrorCode::AlreadyApplied);
    bench.unlink("b");
    let backups = bench.view().store().backups().unwrap();
    let deleted = backups.iter().filter(|backup| backup.path.as_bytes() == b"b").take(1);
    bench.view().rollback(&deleted.cloned().collect::<Vec<_>>(), &RollbackHow::default()).unwrap();
    assert_eq!(bench.looks_below("b").0, 0o600);
}

#[test]
fn what_still_has_its_access_list_keeps_it_when_its_content_comes_back() {
    let bench = Bench::new();
    listed(&bench, "a");
    bench.save("a", &changed(8, 2));
    bench.undo(&bench.latest()).unwrap();
    assert_eq!(bench.lower("a"), Some(lines(8)));
    assert_eq!((bench.list_below("a"), bench.looks_below("a").0), (Some(LIST.to_vec()), 0o670));
    bench.view().rollback(&bench.view().store().backups().unwrap()[..1], &RollbackHow::default()).unwrap();
    assert_eq!((bench.list_below("a"), bench.looks_below("a").0), (Some(LIST.to_vec()), 0o670));
}

#[test]
fn a_discarded_change_that_is_held_again_has_its_list() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 60));
    bench.give_list("a");
    bench.view().discard(&[bench.only_id()], &Review::default()).unwrap();
    bench.undo(&bench.latest()).unwrap();
    let list = bench.view().get_xattr(bench.node("a").unwrap(), OsStr::new(xattr::ACCESS_ACL));
    assert_eq!((list.ok(), bench.mode_shown("a")), (Some(LIST.to_vec()), 0o670));
}

/// What an undo brings there, and the undo of that, and so on.
fn undone_again_and_again(bench: &Bench, path: &str) -> [u32; 4] {
    std::array::from_fn(|_| {
        bench.undo(&bench.latest()).unwrap();
        std::fs::symlink_metadata(bench.lower_path(path)).unwrap().mode() & 0o7777
    })
}

fn make_symlink(bench: &Bench, path: &str, target: &str) {
    let (parent, name) = bench.parent(path);
    bench.view().symlink(parent, name, OsStr::new(target), &ME).unwrap();
}

#[test]
fn a_file_that_was_a_symlink_for_a_while_has_nothing_of_its_mode() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.chmod_below("a", 0o640);
    make_symlink(&bench, "l", "t");
    bench.rename("l", "a");
    bench.confirm(&[bench.only_id()]).unwrap();
    assert_eq!(undone_again_and_again(&bench, "a"), [0o640, 0o777, 0o640, 0o777]);
}

#[test]
fn nor_has_one_over_which_a_symlink_was_rolled_back() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.chmod_below("a", 0o640);
    make_symlink(&bench, "l", "t");
    make_symlink(&bench, "new", "a");
    bench.rename("new", "l");
    let link = bench.view().store().backups().unwrap();
    let how = RollbackHow { to: Some(RelPath::parse(b"a").unwrap()), ..RollbackHow::default() };
    bench.view().rollback(&link[..1], &how).unwrap();
    assert_eq!(undone_again_and_again(&bench, "a"), [0o640, 0o777, 0o640, 0o777]);
}

#[test]
fn a_symlink_that_is_renamed_over_another_or_changes_places_with_it_keeps_its_owner_and_times() {
    let bench = Bench::new();
    let dress = |path: &str, id: u32| {
        let mtime = SetTime::At(Timestamp { seconds: i64::from(id), nanoseconds: 0 });
        let set = SetAttributes { uid: Some(id), gid: Some(id), mtime, ..SetAttributes::NOTHING };
        bench.view().set_attributes(bench.node(path).unwrap(), None, &set, &ME).unwrap();
    };
    let dressed = |path: &str| {
        let meta = std::fs::symlink_metadata(bench.lower_path(path)).unwrap();
        (meta.uid(), meta.gid(), meta.mtime())
    };
    for (path, target) in [("a", "t"), ("b", "u"), ("c", "u"), ("d", "v")] {
        make_symlink(&bench, path, target);
        dress(path, 7 + u32::from(path.as_bytes()[0] - b'a'));
    }
    bench.rename("b", "a");
    assert_eq!(dressed("a"), (8, 8, 8));
    bench.rename("c", "a");
    assert_eq!(dressed("a"), (9, 9, 9), "of the same target");
    let exchange = RenameFlags::EXCHANGE;
    bench.view().rename(ROOT, OsStr::new("a"), ROOT, OsStr::new("d"), exchange, &ME).unwrap();
    assert_eq!((dressed("a"), dressed("d")), ((10, 10, 10), (9, 9, 9)));
}

#[test]
fn an_empty_directory_that_another_took_the_place_of_comes_back_with_its_mode_and_owner() {
    let bench = Bench::new();
    bench.put("x/in", "in\n");
    std::fs::create_dir(bench.lower_path("y")).unwrap();
    bench.chmod_below("y", 0o777);
    bench.chown_below("y", 7);
    bench.rename("x", "y");
    assert_eq!(bench.lower("y/in"), Some("in\n".to_owned()));
    bench.undo(&bench.latest()).unwrap();
    assert_eq!((bench.lower("x/in"), bench.lower("y/in")), (Some("in\n".to_owned()), None));
    let meta = std::fs::metadata(bench.lower_path("y")).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.gid()), (0o777, 7, 7));
    assert_eq!(
        (bench.names(""), bench.names("x"), bench.names("y")),
        (vec!["x".to_owned(), "y".to_owned()], vec!["in".to_owned()], Vec::new())
    );
}

#[test]
fn a_directory_that_comes_back_without_its_access_list_lets_the_group_do_no_more_than_that_did() {
    let bench = Bench::new();
    std::fs::create_dir(bench.lower_path("d")).unwrap();
    let dir = std::fs::File::open(bench.lower_path("d")).unwrap();
    xattr::set(dir.as_fd(), OsStr::new(xattr::ACCESS_ACL), LIST, XattrFlags::empty()).unwrap();
    assert_eq!(bench.looks_below("d").0, 0o670);
    bench.view().rmdir(ROOT, OsStr::new("d"), &ME).unwrap();
    bench.undo(&bench.latest()).unwrap();
    assert_eq!(bench.looks_below("d").0, 0o600);
}

#[test]
fn a_removed_directory_that_is_made_anew_has_the_attributes_of_a_new_one() {
    let bench = Bench::new();
    for (path, mode, handed_down) in [("d", 0o750, None), ("listed/d", 0o650, Some(LIST.to_vec()))] {
        let file = format!("{path}/f");
        bench.put(&file, &lines(100));
        let (parent, name) = bench.parent(path);
        if handed_down.is_some() {
            bench.attribute_below("listed", xattr::DEFAULT_ACL, LIST);
        }
        bench.attribute_below(path, COLOUR, b"red");
        bench.attribute_below(path, xattr::ACCESS_ACL, LIST);
        bench.attribute_below(path, xattr::DEFAULT_ACL, LIST);
        bench.unlink(&file);
        bench.view().rmdir(parent, name, &ME).unwrap();
        let made = bench.view().mkdir(parent, name, 0o750, &ME).unwrap();
        let below = std::fs::File::open(bench.lower_path(path)).unwrap();
        let has = |name| xattr::find(below.as_fd(), OsStr::new(name)).unwrap();
        assert_eq!(has(COLOUR), None, "{path}");
        assert_eq!(has(xattr::DEFAULT_ACL), handed_down, "{path}");
        assert_eq!(has(xattr::ACCESS_ACL).is_some(), handed_down.is_some(), "{path}");
        assert_eq!(made.attributes.meta.mode, mode, "{path}");
        let new = format!("{path}/new");
        bench.save(&new, "new\n");
        assert_eq!(bench.list_below(&new).is_some(), handed_down.is_some(), "{path}");
    }
}

#[test]
fn a_held_fifo_or_socket_has_the_list_that_its_directory_hands_down_and_lands_with_its_own() {
    let mut bench = Bench::new();
    bench.put(".fettle.toml", "[[rule]]\nmatch = \"/d/**\"\naction = \"hold\"\n");
    bench.remount();
    std::fs::create_dir(bench.lower_path("d")).unwrap();
    bench.attribute_below("d", xattr::DEFAULT_ACL, LIST);
    let (dir, access) = (bench.node("d").unwrap(), OsStr::new(xattr::ACCESS_ACL));
    for (name, kind) in [("fifo", libc::S_IFIFO), ("socket", libc::S_IFSOCK), ("bare", libc::S_IFIFO)] {
        let made = bench.view().mknod(dir, OsStr::new(name), kind | 0o666, 0, &ME).unwrap();
        assert_eq!(made.attributes.meta.mode, 0o660, "{name}");
    }
    bench.view().remove_xattr(bench.node("d/bare").unwrap(), access, &ME).unwrap();
    let list_of = |path| bench.view().get_xattr(bench.node(path).unwrap(), access).ok();
    let handed_down = crate::model::Acl::parse(LIST).unwrap().inherited(0o666).access.unwrap().to_bytes();
    let lists = || ["d/fifo", "d/socket", "d/bare"].map(list_of);
    let wanted = [Some(handed_down.clone()), Some(handed_down), None];
    assert_eq!(lists(), wanted);
    let ids: Vec<ChangeId> = bench.held().into_iter().filter_map(|row| Some(row.held?.id)).collect();
    assert_eq!(bench.confirm(&ids).unwrap().len(), 3);
    assert_eq!(lists(), wanted);
    assert!(bench.held().is_empty());
    assert_eq!(bench.names("d"), ["bare", "fifo", "socket"]);
}

#[test]
fn what_a_file_without_a_name_is_made_to_look_like_stays_with_who_has_it_open() {
    let gone: [fn(&Bench); 2] = [|bench| bench.unlink("a"), |bench| bench.replace("a", &changed(100, 60))];
    for go in gone {
        let bench = Bench::new();
        bench.put("a", &lines(100));
        bench.attribute_below("a", COLOUR, b"red");
        let (node, was) = (bench.node("a").unwrap(), std::fs::metadata(bench.lower_path("a")).unwrap());
        let handle = bench.open_to_read(node);
        go(&bench);
        bench.dress_node(node);
        bench.colour_node(node, "blue");
        assert_eq!(bench.dress_of(node), (0o777, 7, 1));
        assert_eq!(bench.view().get_xattr(node, OsStr::new(COLOUR)).unwrap(), b"blue");
        bench.view().remove_xattr(node, OsStr::new(COLOUR), &ME).unwrap();
        assert_eq!(bench.view().list_xattrs(node).unwrap(), [""; 0]);
        assert_eq!(bench.view().read(handle, 0, 1 << 20).unwrap(), lines(100).as_bytes());
        assert_eq!(bench.looks_below("a"), (0o644, 0, Some("red".to_owned())));
        let now = std::fs::metadata(bench.lower_path("a")).unwrap();
        assert_eq!((now.mtime(), now.ctime_nsec()), (was.mtime(), was.ctime_nsec()));
        bench.save("a", &changed(100, 70));
        assert_eq!((bench.mode_shown("a"), bench.dress_of(bench.node("a").unwrap()).1), (0o644, 0));
        bench.view().discard(&[bench.only_id()], &Review::default()).unwrap();
        assert_eq!((bench.mode_shown("a"), bench.lower("a")), (0o644, Some(lines(100))));
        assert_eq!(bench.dress_of(node), (0o777, 7, 1));
        bench.view().release(handle).unwrap();
    }
}

#[test]
fn set_id_bits_of_a_file_without_a_name_stay_when_its_times_change() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.chmod_below("a", 0o4755);
    let node = bench.node("a").unwrap();
    let handle = bench.open_to_read(node);
    bench.unlink("a");
    let set = SetAttributes { mode: None, uid: None, gid: None, ..DRESSED };
    bench.view().set_attributes(node, None, &set, &ME).unwrap();
    assert_eq!(bench.dress_of(node), (0o4755, 0, 1));
    bench.view().release(handle).unwrap();
}

#[test]
fn a_file_that_lower_has_no_more_either_keeps_its_inode() {
    let bench = Bench::new();
    bench.put("a", "small\n");
    let node = bench.node("a").unwrap();
    let handle = bench.open_to_read(node);
    bench.unlink("a");
    assert_eq!(bench.lower("a"), None);
    bench.dress_node(node);
    assert_eq!(bench.dress_of(node), (0o777, 7, 1));
    assert_eq!(bench.view().store().room().used(), 0, "no copy was made");
    bench.view().release(handle).unwrap();
}

#[test]
fn what_takes_one_name_of_a_file_gets_nothing_of_what_is_done_to_it_by_another() {
    let taken: [fn(&Bench); 4] = [
        |bench| bench.replace("a", &changed(100, 60)),
        |bench| {
            bench.unlink("a");
            bench.save("a", &changed(100, 60));
        },
        |bench| {
            bench.save("c", &changed(100, 60));
            let (a, c) = (OsStr::new("a"), OsStr::new("c"));
            bench.view().rename(ROOT, a, ROOT, c, RenameFlags::EXCHANGE, &ME).unwrap();
        },
        |bench| {
            bench.replace("a", &changed(100, 60));
            bench.replace("a", &changed(100, 61));
        },
    ];
    for take in taken {
        let mut bench = Bench::new();
        bench.put("a", &lines(100));
        std::fs::hard_link(bench.lower_path("a"), bench.lower_path("b")).unwrap();
        take(&bench);
        bench.dress_node(bench.node("b").unwrap());
        bench.colour("b", "blue");
        bench.remount();
        bench.unlink("b");
        bench.save("a", &changed(100, 70));
        let is_at_a = |row: &UpperRow| row.path().as_bytes() == b"a";
        let id = bench.held().into_iter().find(is_at_a).unwrap().held.unwrap().id;
        bench.confirm(&[id]).unwrap();
        assert_eq!(bench.lower("a"), Some(changed(100, 70)));
        assert_eq!(bench.looks_below("a"), (0o644, 0, None));
    }
}

#[test]
fn nor_of_what_comes_when_a_change_of_the_other_name_lands() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    std::fs::hard_link(bench.lower_path("a"), bench.lower_path("b")).unwrap();
    bench.replace("a", &changed(100, 60));
    let id = bench.only_id();
    bench.save("b", &changed(100, 50));
    bench.dress_node(bench.node("b").unwrap());
    let other = bench.held().into_iter().filter_map(|row| Some(row.held?.id)).find(|other| *other != id).unwrap();
    bench.confirm(&[other]).unwrap();
    assert_eq!(bench.looks_below("b").0, 0o777);
    bench.confirm(&[id]).unwrap();
    assert_eq!((bench.looks_below("a"), bench.lower("a")), ((0o644, 0, None), Some(changed(100, 60))));
}

#[test]
fn a_file_without_a_name_keeps_its_looks_when_the_same_bytes_come_with_others() {
    let ways: [fn(&Bench); 2] = [
        |bench| {
            bench.save("new", &lines(100));
            bench.dress_node(bench.node("new").unwrap());
            bench.rename("new", "a");
        },
        |bench| {
            bench.unlink("a");
            let handle = bench.open_for_save("a");
            bench.view().write(handle, 0, lines(100).as_bytes()).unwrap();
            bench.dress_node(bench.node("a").unwrap());
            bench.close(handle);
        },
    ];
    for way in ways {
        let bench = Bench::new();
        bench.put("a", &lines(100));
        let node = bench.node("a").unwrap();
        let (handle, was) = (bench.open_to_read(node), bench.dress_of(node));
        way(&bench);
        assert_eq!((bench.held().len(), bench.looks_below("a").0), (0, 0o777));
        assert_eq!(bench.dress_of(node), was);
        assert_eq!(bench.view().attributes(node).unwrap().meta.links, 0);
        assert_eq!(bench.view().read(handle, 0, 1 << 20).unwrap(), lines(100).as_bytes());
        bench.view().release(handle).unwrap();
    }
}

#[test]
fn what_is_done_to_an_open_file_shows_by_a_name_that_nobody_has_looked_up() {
    let gone: [fn(&Bench); 2] = [|bench| bench.unlink("a"), |bench| bench.replace("a", &changed(100, 60))];
    for go in gone {
        let bench = Bench::new();
        bench.put("a", &lines(100));
        std::fs::hard_link(bench.lower_path("a"), bench.lower_path("b")).unwrap();
        let node = bench.node("a").unwrap();
        let flags = OpenFlags::from_raw(libc::O_WRONLY);
        let handle = bench.view().open(node, flags, &ME).unwrap().handle;
        go(&bench);
        bench.dress_node(node);
        bench.view().write(handle, 0, b"LINE").unwrap();
        bench.close(handle);
        assert_eq!((bench.mode_shown("b"), bench.node("b").unwrap()), (0o777, node));
        assert_eq!(bench.read("b"), Some(lines(100).replacen("line", "LINE", 1)));
    }
}
