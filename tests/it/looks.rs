//! Mode, owner and attributes of what a rule has reviewed: they wait, and an id tells of them (SPEC §4.7).

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::script::python;
use crate::harness::{Disk, Output, Scratch, View, lines, mounted_scratch, with_changed_lines};

const HOOK: &str = ".git/hooks/pre-commit";
const TEXT: &str = "#!/bin/sh\nexit 0\n";

/// A hook that git would not run yet, and a file of which no rule speaks.
fn with_hook(scratch: &Scratch) -> View<'_> {
    scratch.write(HOOK, TEXT);
    scratch.write("plain", TEXT);
    for path in [HOOK, "plain"] {
        set_mode(&scratch.project().join(path), 0o644);
    }
    scratch.mount_at("view")
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
}

/// Mode and user.
fn looks(path: impl AsRef<Path>) -> (u32, u32) {
    let meta = fs::symlink_metadata(path).expect("stat");
    (meta.mode() & 0o7777, meta.uid())
}

/// In the view, and below.
fn modes(view: &View<'_>, path: &str) -> (u32, u32) {
    (looks(view.path(path)).0, looks(view.lower().join(path)).0)
}

fn last_operation(view: &View<'_>) -> String {
    let log = view.cli(&["log", "--json"]).ok().json();
    let events = log["events"].as_array().expect("events").iter();
    events.filter_map(|event| event["operation"].as_str()).next().expect("an operation").to_owned()
}

#[test]
fn a_sensitive_file_that_is_made_ready_to_run_waits_and_lands_with_a_confirm() {
    let scratch = mounted_scratch!();
    let view = with_hook(&scratch);
    view.sh(&format!("chmod +x {HOOK} plain")).ok();
    assert_eq!((modes(&view, HOOK), modes(&view, "plain")), ((0o755, 0o644), (0o755, 0o755)));
    let held = view.only_held();
    assert_eq!((held.path.as_str(), held.kind.as_str(), held.reason.as_str()), (HOOK, "modify", "sensitive"));
    assert_eq!(held.json["looks"], json!(["mode 644 -> 755"]));
    let status = view.cli(&["status"]).ok().stdout;
    assert!(status.contains("+0 -0  sensitive") && status.contains("\n            mode 644 -> 755\n"), "{status}");
    let diff = format!("diff --git a/{HOOK} b/{HOOK}\nold mode 100644\nnew mode 100755\n");
    assert_eq!(view.cli(&["diff"]).ok().stdout, format!("# {HOOK}: mode 644 -> 755\n{diff}"));
    assert!(view.cli(&["show", &held.id]).ok().stdout.contains(&diff));
    let part = |name: &str| view.read(format!(".fettle/held/{}/{name}", held.id));
    assert_eq!((part("old"), part("new")), (TEXT.to_owned(), TEXT.to_owned()));
    let meta: Value = serde_json::from_str(&part("meta.json")).expect("JSON");
    assert_eq!((&meta["id"], &meta["looks"]), (&held.json["id"], &held.json["looks"]));
    let log = view.cli(&["log"]).ok().stdout;
    assert!(log.contains("/chmod  mode 644 -> 755\n"), "{log}");
    view.cli(&["confirm", &held.id]).ok();
    assert_eq!((modes(&view, HOOK), view.held().len()), ((0o755, 0o755), 0));
    view.fsck();
    view.cli(&["undo", &last_operation(&view)]).ok();
    assert_eq!(modes(&view, HOOK), (0o644, 0o644));
}

#[test]
fn owner_and_attributes_wait_too_and_go_with_a_discard() {
    let scratch = mounted_scratch!();
    let view = with_hook(&scratch);
    let fd = fs::File::open(view.path(HOOK)).expect("the hook");
    rustix::fs::fsetxattr(&fd, "user.colour", b"red", rustix::fs::XattrFlags::empty()).expect("setfattr");
    let colours = view.only_held();
    assert_eq!(colours.json["looks"], json!(["attribute user.colour none -> \"red\""]));
    std::os::unix::fs::chown(view.path(HOOK), Some(7), Some(7)).expect("chown");
    let held = view.only_held();
    assert_eq!(held.json["looks"], json!(["owner 0:0 -> 7:7", "attribute user.colour none -> \"red\""]));
    assert_eq!(view.cli(&["confirm", "--json", &colours.id]).error_code(), "superseded");
    assert_eq!((looks(view.path(HOOK)), looks(view.lower().join(HOOK))), ((0o644, 7), (0o644, 0)));
    view.cli(&["discard", &held.id]).ok();
    assert_eq!((looks(view.path(HOOK)), view.held().len()), ((0o644, 0), 0));
    view.cli(&["undo", &last_operation(&view)]).ok();
    assert_eq!((view.only_held().id, looks(view.path(HOOK))), (held.id, (0o644, 7)));
    let mut value = [0; 8];
    let fd = fs::File::open(view.path(HOOK)).expect("the hook");
    assert_eq!(rustix::fs::fgetxattr(&fd, "user.colour", &mut value), Ok(3));
    assert_eq!(&value[..3], b"red");
}

#[test]
fn what_is_as_before_again_waits_no_more() {
    let scratch = mounted_scratch!();
    let view = with_hook(&scratch);
    let waits_once = |there: &str, back: &str| {
        view.sh(there).ok();
        assert_eq!(view.held().len(), 1, "{there}");
        view.sh(back).ok();
        assert_eq!(view.held().len(), 0, "{back}");
        assert_eq!(looks(view.lower().join(HOOK)), (0o644, 0));
    };
    waits_once(&format!("chmod 700 {HOOK}"), &format!("chmod 644 {HOOK}"));
    waits_once(&format!("chown 7 {HOOK}"), &format!("chown 0 {HOOK}"));
    let python = |act: &str| format!("python3 -c \"import os; os.{act}\"");
    waits_once(
        &python(&format!("setxattr('{HOOK}', 'user.colour', b'red')")),
        &python(&format!("removexattr('{HOOK}', 'user.colour')")),
    );
    view.fsck();
}

#[test]
fn a_rule_of_the_project_counts_as_well() {
    let scratch = mounted_scratch!();
    scratch.write(".fettle.toml", "[[rule]]\nmatch = \"/bin/*\"\naction = \"hold\"\n");
    scratch.write("bin/tool", TEXT);
    let view = scratch.mount();
    view.sh("chmod 755 bin/tool; chmod 700 bin").ok();
    let held = view.only_held();
    assert_eq!(
        (held.path.as_str(), held.reason.as_str(), modes(&view, "bin/tool")),
        ("bin/tool", "rule", (0o755, 0o644))
    );
    assert_eq!(modes(&view, "bin"), (0o700, 0o700), "a directory lands at once");
}

#[test]
fn the_same_bytes_saved_by_a_rename_wait_where_they_bring_another_mode() {
    let scratch = mounted_scratch!();
    let view = with_hook(&scratch);
    view.sh(&format!("cp -p {HOOK} temp && mv temp {HOOK} && sed -i s/none/other/ {HOOK}")).ok();
    assert_eq!(view.held().len(), 0);
    view.sh(&format!("cp -p {HOOK} temp && chmod 755 temp && mv temp {HOOK}")).ok();
    assert_eq!((view.only_held().reason.as_str(), modes(&view, HOOK)), ("sensitive", (0o755, 0o644)));
    assert!(!view.has("temp") && !view.lower().join("temp").exists());
    view.sh(&format!("touch {HOOK}; cat plain >{HOOK}")).ok();
    assert_eq!(
        (view.only_held().json["looks"].clone(), modes(&view, HOOK)),
        (json!(["mode 644 -> 755"]), (0o755, 0o644))
    );
}

#[test]
fn a_held_file_that_is_given_another_mode_has_another_id() {
    let scratch = mounted_scratch!();
    let old = lines(100);
    let new = with_changed_lines(&old, 90);
    scratch.write("a", &old);
    let view = scratch.mount();
    view.write("a", &new);
    let before = view.only_held();
    view.sh("chmod 700 a").ok();
    let after = view.only_held();
    assert_ne!(before.id, after.id);
    let refusal = view.cli(&["confirm", "--json", &before.id]).exits(5).json();
    assert_eq!((&refusal["error"]["code"], &refusal["error"]["new_id"]), (&"superseded".into(), &after.json["id"]));
    view.sh("chmod 644 a").ok();
    assert_eq!(view.only_held().id, before.id);
    view.sh("chmod 700 a").ok();
    view.unmount();
    let view = scratch.mount();
    assert_eq!((view.only_held().id, modes(&view, "a")), (after.id.clone(), (0o700, 0o644)));
    view.cli(&["confirm", "--renew", &after.id]).ok();
    assert_eq!((modes(&view, "a"), scratch.read("a")), ((0o700, 0o700), new));
}

#[test]
fn a_check_lands_no_mode_that_was_set_while_it_ran() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let view = scratch.mount();
    view.write("a", with_changed_lines(&lines(100), 90));
    let told = view.cli(&["check", "--confirm", "--json", "--", "chmod", "755", "a"]);
    assert_ne!(told.status, 0, "{}", told.stdout);
    assert_eq!((modes(&view, "a"), scratch.read("a"), view.held().len()), ((0o755, 0o644), lines(100), 1));
    view.cli(&["check", "--confirm", "--", "true"]).ok();
    assert_eq!(modes(&view, "a"), (0o755, 0o755));
}

#[test]
fn what_waits_outlives_the_daemon() {
    let scratch = mounted_scratch!();
    let view = with_hook(&scratch);
    view.sh(&format!("chmod 755 {HOOK}")).ok();
    let id = view.only_held().id;
    view.kill_all();
    drop(view);
    let view = scratch.mount_at("view");
    assert_eq!(
        (view.only_held().id, view.only_held().reason.as_str(), modes(&view, HOOK)),
        (id, "sensitive", (0o755, 0o644))
    );
    view.fsck();
}

#[test]
fn a_mode_that_a_person_sets_below_meanwhile_is_a_conflict() {
    let scratch = mounted_scratch!();
    let view = with_hook(&scratch);
    view.sh(&format!("chmod 755 {HOOK}")).ok();
    set_mode(&view.lower().join(HOOK), 0o600);
    let id = view.only_held().id;
    let refusal = view.cli(&["confirm", &id]).exits(5);
    assert!(refusal.stderr.contains("given mode 600 below"), "{}", refusal.stderr);
    assert_eq!(looks(view.lower().join(HOOK)).0, 0o600);
    view.cli(&["confirm", "--force", &id]).ok();
    assert_eq!(looks(view.lower().join(HOOK)).0, 0o755);
}

#[test]
fn git_makes_repositories_and_commits_as_before() {
    let scratch = mounted_scratch!();
    let view = scratch.mount();
    let script = "git init -q one && cd one && echo text >file && git add file && \
        git -c user.name=a -c user.email=a@b commit -qm one && cd .. && git clone -q one two && cat two/file";
    assert_eq!(view.sh(script).ok().stdout, "text\n");
    let held: Vec<String> = view.held().into_iter().map(|held| held.path).collect();
    assert_eq!(held, ["one/.git/info/exclude", "two/.git/info/exclude"]);
}

/// Xfs tells root of each list twice, the second time as an attribute of another name.
#[test]
fn a_list_that_a_program_gives_or_takes_on_xfs_lands_as_it_was_reviewed() {
    let mut scratch = mounted_scratch!();
    let _disk = scratch.put_disk_below(Disk::xfs);
    let sh = |dir: &Path, script: &str| {
        let output = scratch.command("sh").current_dir(dir).args(["-c", script]).output().expect("a shell");
        Output::from(output).ok().stdout
    };
    sh(&scratch.lower(), "for f in given taken; do seq 100 > $f; setfacl -m u:33:rw $f; done");
    let view = scratch.mount_at("view");
    sh(
        view.root(),
        "seq 300 > given; setfacl -m u:44:rwx given; mv given g; seq 300 > taken; setfacl -b taken; mv taken t",
    );
    let lists = |dir: &Path| ["g", "t"].map(|file| sh(dir, &format!("getfacl -cp {file}")));
    let reviewed = lists(view.root());
    assert!(reviewed[0].contains("user:44:rwx") && !reviewed[1].contains("user:33"), "{reviewed:?}");
    assert!(!view.cli(&["diff"]).ok().stdout.contains("SGI_ACL"));
    view.cli(&["confirm", "--all", "--yes"]).ok();
    assert_eq!((lists(&scratch.lower()), lists(view.root())), (reviewed.clone(), reviewed));
    view.unmount();
}

#[test]
fn judged_content_lends_nobody_s_rights_whoever_writes_it() {
    let scratch = mounted_scratch!();
    if !rustix::process::geteuid().is_root() {
        // Capabilities are root's to give.
        return;
    }
    scratch.write(".fettle.toml", "[[rule]]\nmatch = \"ruled\"\naction = \"hold\"\n");
    for path in ["ruled", "emptied", "able", ".git/dir/able"] {
        scratch.write(path, TEXT);
        set_mode(&scratch.project().join(path), if path.ends_with("able") { 0o755 } else { 0o4755 });
    }
    let give = r#"
caps = bytes.fromhex("0100000200040000000000000000000000000000")
for path in ("able", ".git/dir/able"): os.setxattr(path, "security.capability", caps)
"#;
    assert_eq!(python(&scratch, &scratch.project(), give).status, 0);
    let view = scratch.mount_at("view");
    let act = r#"
def lends(path): return os.stat(path).st_mode & 0o6000 != 0
os.setxattr("ruled", "user.a", b"1"); assert lends("ruled")
with open("ruled", "ab", buffering=0) as f: f.write(b"more"); assert os.fstat(f.fileno()).st_mode & 0o6000 == 0
os.setxattr("emptied", "user.a", b"1"); os.close(os.open("emptied", os.O_WRONLY | os.O_TRUNC)); assert not lends("emptied")
os.truncate("able", 3); raises("ENODATA", os.getxattr, "able", "security.capability")
raises("EXDEV", os.rename, ".git/dir", "dir"); os.removexattr(".git/dir/able", "security.capability"); os.rename(".git/dir", "dir")
"#;
    let output = python(&scratch, view.root(), act);
    assert_eq!(output.status, 0, "{}", output.stderr);
    view.cli(&["confirm", "ruled"]).ok();
    assert_eq!((modes(&view, "ruled").1, scratch.read("ruled")), (0o755, format!("{TEXT}more")));
}
