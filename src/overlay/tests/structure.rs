//! Structure that waits for review: one test an operation and origin.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};

use super::*;
use crate::sys::file::FileKind;

impl Bench {
    pub(super) fn mkdir(&self, path: &str) {
        self.try_mkdir(path).unwrap();
    }

    fn try_mkdir(&self, path: &str) -> Result<Entry> {
        let (parent, name) = self.parent(path);
        self.view().mkdir(parent, name, 0o755, &ME)
    }

    pub(super) fn rmdir(&self, path: &str) -> Result<()> {
        let (parent, name) = self.parent(path);
        self.view().rmdir(parent, name, &ME)
    }

    /// A held deletion of a large file, with a directory in its place.
    pub(super) fn dir_for_file(path: &str) -> Self {
        let bench = Self::new();
        bench.put(path, &lines(100));
        bench.unlink(path);
        bench.mkdir(path);
        bench
    }

    /// Path, kind and reasons of all that is held.
    pub(super) fn waiting(&self) -> Vec<(String, ChangeKind, Vec<Reason>)> {
        let told = |row: UpperRow| {
            let path = row.path().to_string();
            row.held.map(|held| (path, held.kind, held.reasons))
        };
        self.held().into_iter().filter_map(told).collect()
    }

    pub(super) fn id_of(&self, path: &str) -> ChangeId {
        let row = self.held().into_iter().find(|row| row.path().to_string() == path);
        row.and_then(|row| row.held).map(|held| held.id).unwrap_or_else(|| panic!("{path} is not held"))
    }

    pub(super) fn discard(&self, path: &str) {
        self.view().discard(&[self.id_of(path)], &Review::default()).unwrap();
    }

    pub(super) fn meta(&self, path: &str) -> crate::sys::file::Meta {
        self.view().attributes(self.node(path).unwrap()).unwrap().meta
    }

    pub(super) fn applied(&self, path: &str) -> Vec<String> {
        let outcomes = self.confirm(&[self.id_of(path)]).unwrap();
        outcomes.into_iter().map(|outcome| outcome.path.to_string()).collect()
    }

    /// All that is kept agrees, and nothing is left over.
    pub(super) fn check(&self) {
        assert_eq!(self.view().check().unwrap().0, []);
    }
}

#[test]
fn a_directory_in_the_place_of_a_held_deletion_is_held_with_it() {
    let mut bench = Bench::new();
    bench.put("big", &lines(100));
    bench.unlink("big");
    let deletion = bench.only_id();
    let entry = bench.try_mkdir("big").unwrap();
    assert_eq!(entry.attributes.meta.kind, FileKind::Directory);
    assert_eq!((entry.attributes.meta.mode, entry.attributes.meta.links), (0o755, 2));
    let told = [("big".to_owned(), ChangeKind::Structure, vec![Reason::Parent, Reason::Size])];
    assert_eq!(bench.waiting(), told);
    let held = bench.held()[0].held.clone().unwrap();
    assert_eq!((held.insertions, held.deletions, held.old_lines), (0, 100, 100));
    assert_ne!(held.id, deletion);
    assert_eq!(bench.lower("big"), Some(lines(100)));
    assert_eq!(bench.names(""), ["big"]);
    assert_eq!(bench.names("big"), [""; 0]);
    bench.remount();
    assert_eq!((bench.only_id(), bench.waiting()), (held.id, told.into()));
    assert_eq!(bench.node("big").and_then(|node| bench.view().list(node)).unwrap(), []);
    bench.check();
}

#[test]
fn what_is_made_in_a_held_directory_is_held_however_small() {
    let mut bench = Bench::dir_for_file("big");
    bench.save("big/x", "x\n");
    bench.mkdir("big/sub");
    bench.save("big/sub/y", "y\n");
    bench.view().symlink(bench.node("big").unwrap(), OsStr::new("l"), OsStr::new("x"), &ME).unwrap();
    let fifo = bench.view().mknod(bench.node("big").unwrap(), OsStr::new("p"), libc::S_IFIFO | 0o600, 0, &ME).unwrap();
    assert_eq!(fifo.attributes.meta.kind, FileKind::Fifo);
    let parent = || vec![Reason::Parent];
    let told = [
        ("big".to_owned(), ChangeKind::Structure, vec![Reason::Parent, Reason::Size]),
        ("big/l".to_owned(), ChangeKind::Create, parent()),
        ("big/p".to_owned(), ChangeKind::Structure, parent()),
        ("big/sub".to_owned(), ChangeKind::Structure, parent()),
        ("big/sub/y".to_owned(), ChangeKind::Create, parent()),
        ("big/x".to_owned(), ChangeKind::Create, parent()),
    ];
    assert_eq!(bench.waiting(), told);
    assert_eq!(bench.names("big"), ["l", "p", "sub", "x"]);
    assert_eq!(bench.meta("big").links, 3);
    assert_eq!(bench.view().attributes(ROOT).unwrap().meta.links, 4, "of .fettle, and of what takes a file's place");
    assert_eq!(bench.lower_names(), ["big"]);
    bench.save("big/x", "other\n");
    bench.remount();
    assert_eq!(bench.waiting(), told);
    assert_eq!(bench.read("big/x"), Some("other\n".to_owned()));
    assert_eq!(bench.read("big/sub/y"), Some("y\n".to_owned()));
    bench.check();
}

#[test]
fn confirming_a_child_takes_its_directories_and_the_deletion_below_along() {
    let bench = Bench::dir_for_file("big");
    bench.mkdir("big/sub");
    bench.save("big/sub/y", "y\n");
    bench.save("big/x", "x\n");
    assert_eq!(bench.applied("big/sub/y"), ["big", "big/sub", "big/sub/y"]);
    assert_eq!(bench.lower("big/sub/y"), Some("y\n".to_owned()));
    assert_eq!(bench.lower("big/x"), None);
    assert_eq!(bench.backups(), ["big"]);
    assert_eq!(bench.waiting(), [("big/x".to_owned(), ChangeKind::Create, vec![Reason::Parent])]);
    assert_eq!(bench.names("big"), ["sub", "x"]);
    // Its directory is there now: written again it is judged by itself.
    bench.save("big/x", "other\n");
    assert_eq!(bench.lower("big/x"), Some("other\n".to_owned()));
    assert!(bench.held().is_empty());
    bench.check();
}

#[test]
fn confirming_everything_lands_directories_with_their_attributes() {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let bench = Bench::dir_for_file("big");
    bench.mkdir("big/sub");
    bench.save("big/sub/y", "y\n");
    bench.view().mknod(bench.node("big").unwrap(), OsStr::new("p"), libc::S_IFIFO | 0o640, 0, &ME).unwrap();
    let node = bench.node("big/sub").unwrap();
    let set = SetAttributes { mode: Some(0o2550), uid: Some(7), gid: Some(8), ..SetAttributes::NOTHING };
    bench.view().set_attributes(node, None, &set, &ME).unwrap();
    let empty = rustix::fs::XattrFlags::empty();
    bench.view().set_xattr(node, OsStr::new("user.mark"), b"here", empty, &ME).unwrap();
    assert_eq!((bench.meta("big/sub").mode, bench.meta("big/sub").uid), (0o2550, 7));
    // Handed down by the view's directory, which lower does not have.
    bench.save("big/sub/z", "z\n");
    assert_eq!(bench.meta("big/sub/z").gid, 8);
    let mtime = bench.meta("big/sub").mtime;
    let all: Vec<ChangeId> = bench.held().into_iter().filter_map(|row| Some(row.held?.id)).rev().collect();
    assert_eq!(bench.confirm(&all).unwrap().len(), 5);
    let sub = std::fs::metadata(bench.lower_path("big/sub")).unwrap();
    assert_eq!((sub.mode() & 0o7777, sub.uid(), sub.gid()), (0o2550, 7, 8));
    assert_eq!(sub.mtime_nsec(), i64::from(mtime.nanoseconds));
    assert!(std::fs::metadata(bench.lower_path("big/p")).unwrap().file_type().is_fifo());
    let below = bench.view().lower().open_at(&RelPath::parse(b"big/sub").unwrap(), crate::sys::OFlags::RDONLY).unwrap();
    let mark = crate::sys::xattr::get(std::os::fd::AsFd::as_fd(&below), OsStr::new("user.mark")).unwrap();
    assert_eq!(mark, b"here");
    assert!(bench.held().is_empty());
    assert_eq!(bench.stage_files(), 0);
    assert_eq!(
        (bench.names("big"), bench.lower_names()),
        (vec!["p".to_owned(), "sub".to_owned()], vec!["big".to_owned()])
    );
    assert_eq!(bench.node("big/sub").unwrap(), node);
    bench.check();
}

#[test]
fn confirming_a_directory_alone_lands_it_and_the_deletion_and_nothing_in_it() {
    let bench = Bench::dir_for_file("big");
    bench.save("big/x", "x\n");
    assert_eq!(bench.applied("big"), ["big"]);
    assert!(bench.lower_path("big").is_dir());
    assert_eq!(bench.lower("big/x"), None);
    assert_eq!(bench.read("big/x"), Some("x\n".to_owned()));
    assert_eq!(bench.backups(), ["big"]);
    assert_eq!(bench.waiting(), [("big/x".to_owned(), ChangeKind::Create, vec![Reason::Parent])]);
    bench.check();
}

#[test]
fn a_file_changed_below_meanwhile_keeps_its_directory_from_landing() {
    let bench = Bench::dir_for_file("big");
    bench.save("big/x", "x\n");
    bench.put("big", &changed(100, 3));
    assert_eq!(bench.confirm(&[bench.id_of("big/x")]).unwrap_err(), ErrorCode::Conflict);
    assert_eq!(bench.lower("big"), Some(changed(100, 3)));
    assert_eq!(bench.waiting().len(), 2);
    bench.check();
}

#[test]
fn removing_the_directory_leaves_the_deletion_as_it_was() {
    let mut bench = Bench::new();
    bench.put("big", &lines(100));
    bench.unlink("big");
    let (deletion, told) = (bench.only_id(), bench.waiting());
    bench.mkdir("big");
    bench.save("big/x", "x\n");
    assert_eq!(bench.rmdir("big").unwrap_err().code(), libc::ENOTEMPTY);
    bench.unlink("big/x");
    bench.rmdir("big").unwrap();
    assert_eq!((bench.only_id(), bench.waiting()), (deletion.clone(), told));
    assert_eq!(bench.node("big").unwrap_err().code(), libc::ENOENT);
    assert_eq!(bench.stage_files(), 0);
    bench.remount();
    assert_eq!(bench.only_id(), deletion);
    // Back to what it was, as when branches are switched there and back.
    bench.save("big", &lines(100));
    assert!(bench.held().is_empty());
    bench.check();
}

#[test]
fn discarding_a_directory_drops_all_that_is_in_it_and_shows_the_file_again() {
    let mut bench = Bench::dir_for_file("big");
    bench.mkdir("big/sub");
    bench.save("big/sub/y", "y\n");
    let (sub, handle) = (bench.node("big/sub").unwrap(), bench.open_for_save("big/sub/y"));
    bench.view().write(handle, 0, b"y\n").unwrap();
    bench.close(handle);
    let handle = bench.open("big/sub/y", libc::O_RDONLY).unwrap();
    bench.discard("big");
    assert!(bench.held().is_empty());
    // Who has it open, or stands in it, goes on.
    assert_eq!(bench.view().read(handle, 0, 8).unwrap(), b"y\n");
    bench.close(handle);
    assert_eq!(bench.view().attributes(sub).unwrap().meta.links, 0);
    assert!(bench.held().is_empty());
    assert_eq!(bench.read("big"), Some(lines(100)));
    // Of what was written over, and of what was discarded.
    assert_eq!(bench.backups(), ["big/sub/y"; 2]);
    assert_eq!(bench.stage_files(), 0);
    bench.check();
    bench.remount();
    assert_eq!(bench.read("big"), Some(lines(100)));
}

#[test]
fn discarding_a_child_leaves_its_directory() {
    let bench = Bench::dir_for_file("big");
    bench.save("big/x", "x\n");
    bench.discard("big/x");
    assert_eq!(bench.waiting().len(), 1);
    assert_eq!(bench.names("big"), [""; 0]);
    bench.check();
}

#[test]
fn a_directory_in_which_somebody_writes_is_not_discarded() {
    let bench = Bench::dir_for_file("big");
    let handle = bench.open_for_save("big/x");
    bench.view().write(handle, 0, b"x\n").unwrap();
    let refused = bench.view().discard(&[bench.id_of("big")], &Review::default()).unwrap_err();
    assert_eq!((refused.code, refused.path), (ErrorCode::Busy, RelPath::parse(b"big/x").ok()));
    bench.close(handle);
    bench.discard("big");
    assert_eq!(bench.read("big"), Some(lines(100)));
    bench.check();
}

#[test]
fn a_held_directory_takes_what_is_in_it_along_to_a_free_name() {
    let mut bench = Bench::new();
    bench.put("big", &lines(100));
    bench.unlink("big");
    let deletion = bench.only_id();
    bench.mkdir("big");
    bench.mkdir("big/sub");
    bench.save("big/sub/y", "y\n");
    let child = bench.id_of("big/sub/y");
    let node = bench.node("big/sub/y").unwrap();
    bench.rename("big", "other");
    // The deletion stays where it was.
    assert_eq!(bench.id_of("big"), deletion);
    let paths: Vec<String> = bench.waiting().into_iter().map(|(path, ..)| path).collect();
    assert_eq!(paths, ["big", "other", "other/sub", "other/sub/y"]);
    assert_ne!(bench.id_of("other/sub/y"), child);
    assert_eq!(bench.node("other/sub/y").unwrap(), node);
    assert_eq!((bench.lower_names(), bench.names("")), (vec!["big".to_owned()], vec!["other".to_owned()]));
    bench.check();
    bench.remount();
    assert_eq!(bench.read("other/sub/y"), Some("y\n".to_owned()));
    assert_eq!(bench.applied("other/sub/y"), ["other", "other/sub", "other/sub/y"]);
    assert_eq!(bench.lower("other/sub/y"), Some("y\n".to_owned()));
    assert_eq!(bench.id_of("big"), deletion);
    bench.check();
}

#[test]
fn a_held_directory_takes_the_place_of_a_held_deletion_by_rename() {
    let mut bench = Bench::dir_for_file("big");
    bench.save("big/x", "x\n");
    bench.put("f", &lines(90));
    bench.unlink("f");
    bench.rename("big", "f");
    bench.check();
    bench.remount();
    let deletion = |path: &str, kind| (path.to_owned(), kind, vec![Reason::Size]);
    let told = [
        deletion("big", ChangeKind::Delete),
        ("f".to_owned(), ChangeKind::Structure, vec![Reason::Parent, Reason::Size]),
        ("f/x".to_owned(), ChangeKind::Create, vec![Reason::Parent]),
    ];
    assert_eq!(bench.waiting(), told);
    bench.applied("f/x");
    assert_eq!((bench.lower("f/x"), bench.lower("big")), (Some("x\n".to_owned()), Some(lines(100))));
    bench.check();
}

#[test]
fn a_held_directory_takes_the_place_of_an_empty_one_that_is_held() {
    let bench = Bench::dir_for_file("big");
    bench.mkdir("big/a");
    bench.save("big/a/x", "x\n");
    bench.mkdir("big/b");
    bench.rename("big/a", "big/b");
    assert_eq!(bench.names("big"), ["b"]);
    assert_eq!(bench.read("big/b/x"), Some("x\n".to_owned()));
    bench.mkdir("big/a");
    assert_eq!(bench.try_rename("big/a", "big/b").unwrap_err().code(), libc::ENOTEMPTY);
    assert_eq!(bench.try_rename("big/b", "big/b/c").unwrap_err().code(), libc::EINVAL);
    assert_eq!(bench.stage_files(), 4);
    bench.check();
}

#[test]
fn a_directory_of_lower_does_not_come_to_where_something_waits() {
    let bench = Bench::dir_for_file("big");
    bench.put("d/f", "f\n");
    bench.put("gone", &lines(100));
    bench.unlink("gone");
    for to in ["big", "big/d", "gone"] {
        assert_eq!(bench.try_rename("d", to).unwrap_err().code(), libc::EXDEV, "{to}");
    }
    bench.put("e/f", &lines(100));
    bench.unlink("e/f");
    assert_eq!(bench.try_rename("d", "e").unwrap_err().code(), libc::EXDEV);
    assert_eq!(bench.read("d/f"), Some("f\n".to_owned()));
    bench.check();
}

#[test]
fn files_go_into_a_held_directory_and_out_of_it() {
    let bench = Bench::dir_for_file("big");
    bench.put("old", "old\n");
    bench.save("new", "new\n");
    bench.put("held", &lines(100));
    bench.save("held", &changed(100, 60));
    for name in ["old", "new", "held"] {
        bench.rename(name, &format!("big/{name}"));
    }
    assert_eq!(bench.names("big"), ["held", "new", "old"]);
    assert_eq!(bench.read("big/held"), Some(changed(100, 60)));
    // What came in this session is gone below; what is older waits to go.
    assert_eq!((bench.lower("new"), bench.lower("old")), (None, Some("old\n".to_owned())));
    assert_eq!(bench.lower("held"), Some(lines(100)));
    bench.rename("big/new", "back");
    assert_eq!(bench.read("back"), Some("new\n".to_owned()));
    assert_eq!(bench.id_of("back").as_str().len(), 8);
    bench.rename("big/old", "big/older");
    bench.check();
    // Where it was: the same again, so that nothing is held there.
    bench.rename("big/older", "old");
    assert_eq!(bench.read("old"), Some("old\n".to_owned()));
    bench.applied("big/held");
    assert_eq!(bench.lower("big/held"), Some(changed(100, 60)));
    bench.check();
}

#[test]
fn links_into_a_held_directory_are_copies_and_those_within_it_land_as_links() {
    use std::os::unix::fs::MetadataExt;
    let bench = Bench::dir_for_file("big");
    bench.put("a", "a\n");
    let (dir, link) = (bench.node("big").unwrap(), OsStr::new("a"));
    bench.view().link(bench.node("a").unwrap(), dir, link, &ME).unwrap();
    assert_eq!(bench.read("big/a"), Some("a\n".to_owned()));
    bench.view().link(bench.node("big/a").unwrap(), dir, OsStr::new("b"), &ME).unwrap();
    bench.applied("big/a");
    let below = |path| std::fs::metadata(bench.lower_path(path)).unwrap();
    assert_eq!((below("big/a").ino(), below("big/a").nlink()), (below("big/b").ino(), 2));
    assert_eq!(below("a").nlink(), 1);
    assert!(bench.held().is_empty());
    bench.check();
}

/// It looks whether its links are links, and gives up where they are copies; told that there can be none, it copies.
#[test]
fn links_of_git_clone_that_would_be_copies_are_refused_as_across_file_systems() {
    let mut bench = Bench::new();
    bench.put(".fettle.toml", "[[rule]]\nmatch = \"/mirrors/**\"\naction = \"hold\"\n");
    let (objects, others) =
        ("objects/aa/x", ["old.git/objects/aa/x", "old.git/objects/aa/y", "mirrors/b/objects/aa/z"]);
    bench.put(&format!("objects/a.git/{objects}"), "a\n");
    bench.put("mirrors/a/objects/aa/x", "b\n");
    others.iter().for_each(|path| bench.put(path, "older\n"));
    bench.remount();
    ["old.git/objects/aa/x", "old.git/objects/aa/y"].iter().for_each(|path| bench.unlink(path));
    ["new.git", "new.git/objects", "new.git/objects/aa"].iter().for_each(|dir| bench.mkdir(dir));
    bench.save("mirrors/a/objects/aa/made", "made\n");
    let link = |from: &str, to: &str| {
        let (dir, name) = bench.parent(to);
        bench.view().link(bench.node(from).unwrap(), dir, name, &ME).map(|entry| entry.node)
    };
    let refused = |from: &str, to: &str| assert_eq!(link(from, to).unwrap_err().code(), libc::EXDEV, "{from} {to}");
    let older = "objects/a.git/objects/aa/x";
    refused(older, "old.git/objects/aa/x");
    refused(older, "mirrors/b/objects/aa/x");
    refused("mirrors/a/objects/aa/x", "mirrors/b/objects/aa/x");
    refused("mirrors/a/objects/aa/made", "mirrors/b/objects/aa/made");
    assert_eq!(bench.lower("old.git/objects/aa/x").or(bench.read("mirrors/b/objects/aa/x")), None);
    // A link that is one, and what others make: git itself, of a new object, or who unpacks a tree.
    assert_eq!(link(older, "new.git/objects/aa/x").unwrap(), bench.node(older).unwrap());
    for (from, to) in
        [(older, "old.git/objects/aa/y"), (older, "mirrors/b/x"), ("mirrors/a/objects/aa/made", "mirrors/b/y")]
    {
        assert_ne!(link(from, to).unwrap(), bench.node(from).unwrap(), "{from} {to}");
        assert_eq!(bench.read(to), bench.read(from));
    }
    bench.check();
}

#[test]
fn a_fifo_takes_the_place_of_a_held_deletion_and_gives_it_back() {
    let bench = Bench::new();
    bench.put("big", &lines(100));
    bench.unlink("big");
    let deletion = bench.only_id();
    let made = bench.view().mknod(ROOT, OsStr::new("big"), libc::S_IFIFO | 0o600, 0, &ME).unwrap();
    assert_eq!(made.attributes.meta.kind, FileKind::Fifo);
    assert_eq!(bench.waiting(), [("big".to_owned(), ChangeKind::Structure, vec![Reason::Parent, Reason::Size])]);
    bench.rename("big", "pipe");
    assert_eq!(bench.id_of("big"), deletion);
    bench.rename("pipe", "big");
    bench.unlink("big");
    assert_eq!(bench.only_id(), deletion);
    assert_eq!(bench.stage_files(), 0);
    bench.check();
}

#[test]
fn what_a_rule_covers_is_held_when_it_is_made_and_what_is_only_above_is_not() {
    let mut bench = Bench::new();
    bench.put(".fettle.toml", "[[rule]]\nmatch = \"/gated\"\naction = \"hold\"\n");
    bench.remount();
    for dir in [".claude", ".github", ".github/workflows", ".git", ".git/hooks", "plain"] {
        bench.mkdir(dir);
        assert!(bench.lower_path(dir).is_dir(), "{dir}");
    }
    assert!(bench.held().is_empty());
    bench.mkdir(".claude/commands");
    bench.mkdir("gated");
    bench.save("gated/x", "x\n");
    bench.view().mknod(bench.node(".claude").unwrap(), OsStr::new("pipe"), libc::S_IFIFO | 0o600, 0, &ME).unwrap();
    let told = [
        (".claude/commands".to_owned(), ChangeKind::Structure, vec![Reason::Sensitive]),
        (".claude/pipe".to_owned(), ChangeKind::Structure, vec![Reason::Sensitive]),
        ("gated".to_owned(), ChangeKind::Structure, vec![Reason::Rule]),
        ("gated/x".to_owned(), ChangeKind::Create, vec![Reason::Rule, Reason::Parent]),
    ];
    assert_eq!(bench.waiting(), told);
    assert_eq!(std::fs::read_dir(bench.lower_path(".claude")).unwrap().count(), 0);
    bench.applied("gated/x");
    assert_eq!(bench.lower("gated/x"), Some("x\n".to_owned()));
    // Its going waits as well; nothing in it does.
    bench.unlink("gated/x");
    bench.applied("gated/x");
    bench.rmdir("gated").unwrap();
    assert!(bench.lower_path("gated").is_dir());
    assert_eq!(bench.node("gated").unwrap_err().code(), libc::ENOENT);
    bench.applied("gated");
    assert!(!bench.lower_path("gated").exists());
    bench.mkdir("gated");
    // Nor does an empty directory come there by another way.
    for (from, to) in [("plain", ".claude/plain"), ("plain", "gated/plain")] {
        assert_eq!(bench.try_rename(from, to).unwrap_err().code(), libc::EXDEV);
    }
    bench.check();
}

#[test]
fn what_git_ignores_does_not_pass_in_a_held_directory() {
    let mut bench = Bench::new();
    bench.put(".git/HEAD", "ref: refs/heads/main\n");
    bench.put(".gitignore", "target/\n");
    bench.put("big", &lines(100));
    bench.remount();
    bench.unlink("big");
    bench.mkdir("big");
    bench.mkdir("big/target");
    bench.save("big/target/x", "x\n");
    assert_eq!(bench.read("big/target/x"), Some("x\n".to_owned()));
    bench.applied("big/target/x");
    assert_eq!(bench.lower("big/target/x"), Some("x\n".to_owned()));
    assert_eq!(bench.read("big/target/x"), Some("x\n".to_owned()));
    bench.check();
}

#[test]
fn a_backup_is_not_restored_into_a_held_directory_and_rebases_one_that_takes_its_place() {
    let mut bench = Bench::with(&[(Key::Window, "0")]);
    bench.put("big", &lines(100));
    bench.save("big", &changed(100, 2));
    bench.unlink("big");
    bench.mkdir("big");
    let id = bench.only_id();
    let how = |to: Option<&str>| RollbackHow {
        review: Review::default(),
        to: to.map(|to| RelPath::parse(to.as_bytes()).unwrap()),
        ..RollbackHow::default()
    };
    let backup = bench.view().store().backups().unwrap().remove(0);
    let refused = bench.view().rollback(std::slice::from_ref(&backup), &how(Some("big/x"))).unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict);
    bench.view().rollback(&[backup], &how(None)).unwrap();
    assert_eq!(bench.lower("big"), Some(lines(100)));
    assert_ne!(bench.only_id(), id);
    bench.check();
    bench.remount();
    assert_eq!(bench.applied("big"), ["big"]);
    assert!(bench.lower_path("big").is_dir());
}

#[test]
fn a_directory_that_somebody_makes_below_is_the_one_that_was_held() {
    let bench = Bench::dir_for_file("big");
    bench.save("big/x", "x\n");
    std::fs::remove_file(bench.lower_path("big")).unwrap();
    bench.put("big/theirs", "theirs\n");
    // Until it lands the view has its own.
    assert_eq!(bench.names("big"), ["x"]);
    assert_eq!(bench.node("big/theirs").unwrap_err().code(), libc::ENOENT);
    bench.applied("big/x");
    assert_eq!(bench.names("big"), ["theirs", "x"]);
    assert_eq!(bench.lower("big/x"), Some("x\n".to_owned()));
    bench.check();
}

#[test]
fn a_directory_that_somebody_has_made_below_in_the_place_of_a_held_deletion_stays_his() {
    let mut bench = Bench::new();
    bench.put("big", &lines(100));
    bench.unlink("big");
    let deletion = bench.only_id();
    let theirs = bench.lower_path("big");
    std::fs::remove_file(&theirs).unwrap();
    bench.put("big/theirs", "theirs\n");
    std::fs::set_permissions(&theirs, PermissionsExt::from_mode(0o700)).unwrap();
    bench.mkdir("big");
    let mode = || theirs.metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!(bench.fate(&deletion), crate::store::Fate::Superseded { by: bench.id_of("big") });
    for _ in 0..2 {
        assert_eq!((mode(), bench.names("big")), (0o700, Vec::new()));
        assert_eq!(bench.waiting(), [("big".to_owned(), ChangeKind::Structure, vec![Reason::Parent, Reason::Size])]);
        bench.check();
        bench.remount();
    }
    assert_eq!(bench.applied("big"), ["big"]);
    assert_eq!((mode(), bench.names("big")), (0o700, vec!["theirs".to_owned()]));
    bench.check();
}

#[test]
fn a_held_directory_moves_with_the_directory_it_is_in() {
    let bench = Bench::dir_for_file("d/big");
    bench.save("d/big/x", "x\n");
    bench.rename("d", "e");
    assert_eq!(bench.read("e/big/x"), Some("x\n".to_owned()));
    bench.check();
    bench.applied("e/big/x");
    assert_eq!(bench.lower("e/big/x"), Some("x\n".to_owned()));
    bench.check();
}

#[test]
fn a_removed_directory_into_which_somebody_has_put_something_stays() {
    let bench = Bench::new();
    bench.put("d/f", &lines(100));
    bench.unlink("d/f");
    bench.rmdir("d").unwrap();
    bench.put("d/new", "by a person\n");
    let ids = [bench.id_of("d"), bench.id_of("d/f")];
    let refusal = bench.view().confirm(&ids, &HOW).unwrap_err();
    assert!(refusal.code == ErrorCode::Conflict && refusal.message.contains("d/new"), "{refusal:?}");
    assert_eq!((bench.lower("d/f"), bench.held().len()), (Some(lines(100)), 2));
    bench.discard("d");
    assert_eq!(bench.read("d/new"), Some("by a person\n".to_owned()));
    std::fs::remove_file(bench.lower_path("d/new")).unwrap();
    bench.check();
}

#[test]
fn what_has_no_content_and_took_the_place_of_a_directory_below_is_not_replaced_unseen() {
    let mut bench = Bench::new();
    bench.put(".fettle.toml", "[[rule]]\nmatch = \"/d\"\naction = \"hold\"\n");
    bench.remount();
    std::fs::create_dir(bench.lower_path("d")).unwrap();
    bench.rmdir("d").unwrap();
    bench.save("d", "in its place\n");
    let (ids, fifo) = ([bench.id_of("d")], bench.lower_path("d"));
    std::fs::remove_dir(&fifo).unwrap();
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600));
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, mode, 0).unwrap();
    assert_eq!(bench.confirm(&ids).unwrap_err(), ErrorCode::Conflict);
    assert!(std::fs::symlink_metadata(&fifo).unwrap().file_type().is_fifo());
    bench.view().confirm(&ids, &ConfirmHow { force: true, ..HOW }).unwrap();
    assert_eq!(bench.lower("d").as_deref(), Some("in its place\n"));
    bench.check();
}

/// `d` with `d/a` and `d/sub/b`, all of which is held as deleted, and below has modes of its own.
fn removed_directories() -> Bench {
    let bench = Bench::new();
    for path in ["d/a", "d/sub/b"] {
        bench.put(path, &lines(100));
        bench.unlink(path);
    }
    for (dir, mode) in [("d/sub", 0o2750), ("d", 0o700)] {
        std::fs::set_permissions(bench.lower_path(dir), std::fs::Permissions::from_mode(mode)).unwrap();
        bench.rmdir(dir).unwrap();
    }
    bench
}

#[test]
fn the_id_of_a_directory_that_goes_lands_no_deletion_that_is_not_named() {
    for instead in [None, Some("in its place\n")] {
        let bench = removed_directories();
        instead.iter().for_each(|content| bench.save("d", content));
        let ids = ["d", "d/a", "d/sub", "d/sub/b"].map(|path| bench.id_of(path));
        for force in [false, true] {
            let refusal = bench.view().confirm(&ids[..2], &ConfirmHow { force, ..HOW }).unwrap_err();
            assert_eq!(refusal.code, ErrorCode::Conflict);
            assert!(refusal.message.starts_with("d: it goes only with what is deleted in it"), "{refusal:?}");
            let left = format!("{}  d/sub\n{}  d/sub/b\n", ids[2], ids[3]);
            assert_eq!(refusal.detail.as_deref(), Some(left.as_str()));
        }
        assert_eq!((bench.lower("d/a"), bench.lower("d/sub/b")), (Some(lines(100)), Some(lines(100))));
        // The directory in it has no content that anybody would have to name.
        bench.confirm(&[ids[0].clone(), ids[1].clone(), ids[3].clone()]).unwrap();
        assert_eq!((bench.lower("d").as_deref(), bench.lower_path("d").exists()), (instead, instead.is_some()));
        assert_eq!(bench.held().len(), 0);
        bench.check();
    }
}

#[test]
fn a_hidden_directory_goes_with_the_last_deletion_in_it_and_comes_back_with_that() {
    let mut bench = removed_directories();
    assert_eq!(bench.applied("d/a"), ["d/a"]);
    assert!(bench.lower_path("d/sub").exists());
    let dirs = ["d/sub", "d"].map(|path| bench.id_of(path));
    assert_eq!(bench.applied("d/sub/b"), ["d/sub/b", "d/sub", "d"]);
    assert_eq!((bench.lower_path("d").exists(), bench.held().len()), (false, 0));
    let confirmed = bench.latest();
    let told = bench.view().store().events_since(0).unwrap();
    for id in dirs {
        let of_it =
            told.iter().find(|event| event.id.as_deref() == Some(id.as_str()) && event.event == EventName::Confirmed);
        assert_eq!(of_it.and_then(|event| event.operation.clone()), Some(confirmed.id.to_string()), "{id}");
    }
    bench.remount();
    bench.undo(&confirmed).unwrap();
    let modes = ["d", "d/sub"].map(|dir| bench.lower_path(dir).metadata().unwrap().permissions().mode() & 0o7777);
    assert_eq!((bench.lower("d/sub/b"), modes), (Some(lines(100)), [0o700, 0o2750]));
    bench.check();
}

#[test]
fn a_hidden_directory_with_a_rule_or_something_of_its_own_stays() {
    let mut bench = Bench::new();
    bench.put(".fettle.toml", "[[rule]]\nmatch = \"/gated\"\naction = \"hold\"\n");
    bench.remount();
    for dir in ["gated", "used"] {
        let deleted = format!("{dir}/f");
        bench.put(&deleted, &lines(100));
        bench.unlink(&deleted);
        bench.rmdir(dir).unwrap();
        if dir == "used" {
            bench.put("used/new", "by a person\n");
        }
        assert_eq!(bench.applied(&deleted), [deleted]);
        assert!(bench.lower_path(dir).exists() && bench.waiting().iter().any(|(path, ..)| path == dir), "{dir}");
    }
    assert_eq!(bench.applied("gated"), ["gated"]);
    assert!(!bench.lower_path("gated").exists());
    bench.check();
}

#[test]
fn a_hidden_directory_waits_for_its_rule_again_once_what_took_its_place_goes() {
    let mut bench = Bench::new();
    bench.put(".fettle.toml", "[[rule]]\nmatch = \"/gated\"\naction = \"hold\"\n");
    bench.remount();
    bench.put("gated/f", &lines(100));
    bench.unlink("gated/f");
    bench.rmdir("gated").unwrap();
    let waiting = bench.waiting();
    bench.save("gated", "in its place\n");
    bench.unlink("gated");
    assert_eq!(bench.waiting(), waiting);
    assert_eq!(bench.applied("gated/f"), ["gated/f"]);
    assert!(bench.lower_path("gated").exists());
    bench.check();
}

#[test]
fn a_hidden_directory_goes_with_the_last_deletions_in_it_that_two_confirm_at_once() {
    for round in 0..20 {
        let bench = removed_directories();
        let both = ["d/a", "d/sub/b"].map(|path| bench.id_of(path));
        let told: usize = std::thread::scope(|scope| {
            let confirming = both.map(|id| scope.spawn(|| bench.confirm(&[id]).unwrap().len()));
            confirming.into_iter().map(|confirming| confirming.join().unwrap()).sum()
        });
        assert_eq!((told, bench.held().len(), bench.lower_names().len()), (4, 0, 0), "in round {round}");
        bench.check();
    }
}

/// Whoever named the one deletion has said nothing of the directory, nor of what else waits in it.
#[test]
fn a_hidden_directory_waits_for_a_deletion_in_it_of_what_has_gone_below() {
    for what in ["removed", "a file"] {
        let bench = removed_directories();
        std::fs::remove_file(bench.lower_path("d/a")).unwrap();
        if what == "a file" {
            std::fs::remove_dir_all(bench.lower_path("d")).unwrap();
            bench.put("d", "a person's\n");
        }
        assert_eq!(bench.applied("d/sub/b"), ["d/sub/b", "d/sub"], "{what}");
        assert_eq!(bench.waiting().iter().map(|(path, ..)| path.as_str()).collect::<Vec<_>>(), ["d", "d/a"], "{what}");
        assert_eq!(bench.applied("d/a"), ["d/a", "d"], "{what}");
        assert_eq!((bench.held().len(), bench.lower("d")), (0, bench.read("d")), "{what}");
        bench.check();
    }
}

/// An id stands for the removal alone: the deletions in it may be somebody else's to decide about.
#[test]
fn the_id_of_a_directory_that_goes_discards_no_deletion_that_is_not_named() {
    for instead in [None, Some("in its place\n")] {
        let bench = removed_directories();
        instead.iter().for_each(|content| bench.save("d", content));
        bench.view().discard(&[bench.id_of("d")], &Review::default()).unwrap();
        let waiting: Vec<String> = bench.held().iter().map(|row| row.path().to_string()).collect();
        assert_eq!(waiting, ["d/a", "d/sub", "d/sub/b"]);
        assert_eq!(bench.names("d"), [""; 0]);
        bench.check();
        bench.discard("d/sub/b");
        assert_eq!((bench.names("d"), bench.read("d/sub/b")), (vec!["sub".to_owned()], Some(lines(100))));
        bench.check();
    }
}

/// Whoever comes first: it is made, or it has gone and is looked up again.
#[test]
fn a_directory_that_is_made_while_the_last_deletion_in_it_lands_stays() {
    for _ in 0..20 {
        let bench = Bench::new();
        bench.put("d/f", &lines(100));
        bench.unlink("d/f");
        bench.rmdir("d").unwrap();
        let id = bench.id_of("d/f");
        let made = std::thread::scope(|scope| {
            let confirming = scope.spawn(|| bench.confirm(&[id]));
            let made = bench.try_mkdir("d");
            let confirmed = confirming.join().unwrap();
            assert!(matches!(confirmed, Ok(_) | Err(ErrorCode::UnknownId)), "{confirmed:?}");
            made
        });
        assert!(made.is_err() || bench.names("") == ["d"], "it was removed under who had made it");
        bench.check();
    }
}

/// Who has looked at the last deletion has looked at all there is.
#[test]
fn a_hidden_directory_that_has_expired_goes_with_what_has_not() {
    let mut bench = removed_directories();
    bench.applied("d/a");
    for row in bench.held() {
        let held = row.held.clone().map(|held| crate::store::Held { renewed: 0, ..held });
        bench.view().store().save_upper(&UpperRow { held, ..row }).unwrap();
    }
    bench.remount();
    let id = bench.id_of("d/sub/b");
    assert_eq!(bench.confirm(std::slice::from_ref(&id)), Err(ErrorCode::Expired));
    bench.view().renew(&id).unwrap();
    bench.confirm(&[id]).unwrap();
    assert!(!bench.lower_path("d").exists());
}

#[test]
fn a_fifo_or_socket_has_a_further_name_in_the_project_or_none() {
    let bench = Bench::new();
    bench.put("small", &lines(2));
    bench.put("large", &lines(100));
    bench.mkdir(".git");
    for (kind, name) in [(libc::S_IFIFO, "fifo"), (libc::S_IFSOCK, "socket")] {
        bench.view().mknod(ROOT, OsStr::new(name), kind | 0o600, 0, &ME).unwrap();
    }
    bench.unlink("small");
    bench.unlink("large");
    let link = |source: &str, path: &str| {
        let (parent, name) = bench.parent(path);
        let linked = bench.view().link(bench.node(source).unwrap(), parent, name, &ME);
        linked.map(|entry| entry.attributes.meta.links).map_err(|err| err.code())
    };
    for source in ["fifo", "socket"] {
        // Sensitive, and where a deletion waits.
        assert_eq!([link(source, ".envrc"), link(source, "large")], [Err(libc::EXDEV); 2], "{source}");
        // Where one has landed, as everywhere, and where only content is gated.
        for (path, links) in [("small", 2), (".git/config", 3)] {
            assert_eq!(link(source, path), Ok(links), "{source} {path}");
            assert!(bench.lower_path(path).symlink_metadata().is_ok(), "{source} {path}");
        }
        bench.unlink("small");
        bench.unlink(".git/config");
    }
    bench.mkdir("large");
    bench.view().mknod(bench.node("large").unwrap(), OsStr::new("held"), libc::S_IFIFO | 0o600, 0, &ME).unwrap();
    for path in ["large/other", "free", ".envrc"] {
        assert_eq!(link("large/held", path), Err(libc::EXDEV), "{path}");
    }
    assert_eq!(link("fifo", "large/fifo"), Err(libc::EXDEV));
    assert_eq!((bench.names("large"), bench.held().len()), (vec!["held".to_owned()], 2));
    bench.check();
}

#[test]
fn a_file_or_symlink_in_the_place_of_a_removed_directory_counts_as_no_directory() {
    let mut bench = Bench::new();
    bench.put("d/old/f", &lines(100));
    bench.put("d/large", &lines(100));
    bench.unlink("d/old/f");
    bench.rmdir("d/old").unwrap();
    assert_eq!(bench.meta("d").links, 2);
    let handle = bench.open_for_save("d/old");
    assert_eq!(bench.meta("d").links, 2, "while it is written");
    bench.close(handle);
    bench.save("d/large", &changed(100, 60));
    assert_eq!(bench.meta("d").links, 2);
    bench.remount();
    assert_eq!(bench.meta("d").links, 2);
    bench.unlink("d/old");
    bench.view().symlink(bench.node("d").unwrap(), OsStr::new("old"), OsStr::new("large"), &ME).unwrap();
    assert_eq!(bench.meta("d").links, 2);
    bench.unlink("d/old");
    bench.mkdir("d/old");
    assert_eq!(bench.meta("d").links, 3);
    bench.check();
}

#[test]
fn each_kind_of_structure_and_each_device_has_an_id_of_its_own() {
    let mut bench = Bench::new();
    bench.grants.dev = true;
    bench.remount();
    bench.put("big", &lines(100));
    bench.unlink("big");
    bench.mkdir(".claude");
    let (null, zero) = (rustix::fs::makedev(1, 3), rustix::fs::makedev(1, 5));
    let nodes = [
        (libc::S_IFDIR, 0),
        (libc::S_IFIFO, 0),
        (libc::S_IFSOCK, 0),
        (libc::S_IFCHR, null),
        (libc::S_IFCHR, zero),
        (libc::S_IFBLK, null),
    ];
    let mut ids = Vec::new();
    for path in [".claude/sub", "big"] {
        for (kind, device) in nodes {
            match kind {
                libc::S_IFDIR => bench.mkdir(path),
                _ => {
                    let (parent, name) = bench.parent(path);
                    bench.view().mknod(parent, name, kind | 0o600, device, &ME).map(|_| ()).unwrap();
                }
            }
            let before = bench.id_of(path);
            // As it is called by another name and back.
            bench.rename(path, ".claude/other");
            bench.rename(".claude/other", path);
            assert_eq!(bench.id_of(path), before);
            bench.check();
            ids.push(before);
            if kind == libc::S_IFDIR { bench.rmdir(path).unwrap() } else { bench.unlink(path) }
        }
    }
    ids.push(bench.id_of("big"));
    let distinct: HashSet<&ChangeId> = ids.iter().collect();
    assert_eq!(distinct.len(), ids.len(), "{ids:?}");
    bench.view().mknod(bench.node(".claude").unwrap(), OsStr::new("sub"), libc::S_IFIFO | 0o600, 0, &ME).unwrap();
    assert_eq!(bench.confirm(&ids[..1]), Err(ErrorCode::UnknownId), "what was looked at was a directory");
    assert!(!bench.lower_path(".claude/sub").exists());
}

#[test]
fn a_directory_that_is_to_go_has_another_id_than_the_same_that_is_to_come() {
    let bench = Bench::new();
    bench.mkdir(".claude");
    bench.mkdir(".claude/sub");
    let made = bench.id_of(".claude/sub");
    bench.confirm(std::slice::from_ref(&made)).unwrap();
    bench.rmdir(".claude/sub").unwrap();
    assert_ne!(bench.id_of(".claude/sub"), made);
    bench.check();
}

/// A directory goes from where a rule gates it by a rename as little as by a removal.
#[test]
fn a_gated_directory_is_not_renamed_away_by_itself_nor_with_one_above_it() {
    let mut bench = Bench::new();
    bench.put(".fettle.toml", "[[rule]]\nmatch = \"gated\"\naction = \"hold\"\n");
    for dir in ["gated", "above/gated/in", "plain/.claude/in", "other"] {
        std::fs::create_dir_all(bench.lower_path(dir)).unwrap();
    }
    bench.remount();
    for (from, to) in [("gated", "elsewhere"), ("above", "elsewhere"), ("above/gated/in", "in")] {
        assert_eq!(bench.try_rename(from, to).unwrap_err().code(), libc::EXDEV, "{from}");
        assert!(bench.lower_path(from).is_dir() && !bench.lower_path(to).exists(), "{from}");
    }
    let exchanged = rename(bench.view(), bench.parent("other"), bench.parent("gated"), RenameFlags::EXCHANGE)
        .map_err(|err| err.code());
    assert_eq!(exchanged, Err(libc::EXDEV));
    // As `mv` goes on.
    bench.mkdir("elsewhere");
    bench.rmdir("gated").unwrap();
    assert_eq!(bench.waiting(), [("gated".to_owned(), ChangeKind::Structure, vec![Reason::Rule])]);
    // What makes it sensitive comes along.
    bench.rename("plain", "renamed");
    assert!(bench.lower_path("renamed/.claude/in").is_dir());
}
