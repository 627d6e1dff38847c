//! What docs/SECURITY.md calls a boundary: an agent with another uid under root's mount, `approve = "owner"`. It tries to
//! approve itself and to reach the project past the view; all of it is refused, and lower stays as it was.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::harness::{Output, Scratch, View, lines, mounted_scratch, with_changed_lines};

/// The agent: a user who owns nothing here, without groups or capabilities.
fn as_agent(scratch: &Scratch, view: &View, script: &str) -> Output {
    let mut command = scratch.command("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]);
    command.args(["bash", "-c", script]).current_dir(view.root());
    command.env("FETTLEFS", scratch.fettlefs().get_program()).env("DAEMON", view.daemon_pid().to_string());
    command.env("PROJECT", scratch.project()).env("ROOT", scratch.root());
    command.output().expect("setpriv").into()
}

/// A project that the agent may work in, and nothing but.
fn project(scratch: &Scratch) {
    scratch.write("src/a", lines(100));
    for (path, mode) in [("", 0o777), ("src", 0o777), ("src/a", 0o666)] {
        fs::set_permissions(scratch.lower().join(path), fs::Permissions::from_mode(mode)).expect("a mode");
    }
    fs::set_permissions(scratch.root(), fs::Permissions::from_mode(0o755)).expect("a mode");
}

fn mounted<'s>(scratch: &'s Scratch) -> View<'s> {
    project(scratch);
    let view = scratch.mounting().env("FETTLE_APPROVE", "owner").start();
    as_agent(scratch, &view, "for i in $(seq 100); do echo rewritten; done > src/a").ok();
    view.assert_held("src/a", &"rewritten\n".repeat(100), &lines(100));
    view
}

#[track_caller]
fn nothing_happened(view: &View) {
    view.assert_held("src/a", &"rewritten\n".repeat(100), &lines(100));
}

/// A view is known by the kernel's word, not by what a program in it makes to look like one.
#[test]
fn a_planted_control_file_or_state_answers_for_nobody() {
    let scratch = mounted_scratch!();
    scratch.write("c.txt", lines(100));
    scratch.write("sub/a", "a\n");
    let victim = scratch.root().join("victim");
    fs::write(&victim, "as it was\n").expect("a file");
    let view = scratch.mount();
    view.write("c.txt", "all new\n");
    let planted = view.path("sub/.fettle");
    fs::create_dir(&planted).expect("the view takes it");
    fs::set_permissions(&planted, fs::Permissions::from_mode(0o700)).expect("a mode");
    std::os::unix::fs::symlink(&victim, planted.join("control")).expect("a link");
    fs::write(planted.join("instance"), "a1b2").expect("a file");
    for (command, status) in
        [("status", 0), ("diff", 0), ("trust --yes", 4), ("run -- true", 0), ("completions bash", 0)]
    {
        let mut fettlefs = scratch.fettlefs();
        fettlefs.current_dir(view.path("sub")).args(command.split(' '));
        let output = Output::from(fettlefs.output().expect("it runs")).exits(status);
        assert!(command != "status" || output.stdout.contains("c.txt"), "{}", output.stdout);
        assert_eq!(fs::read_to_string(&victim).expect("it is there"), "as it was\n", "{command}");
    }
}

#[test]
fn who_is_not_the_owner_looks_and_does_not_approve() {
    let scratch = mounted_scratch!();
    let view = mounted(&scratch);
    for look in ["status", "diff", "log", "events", "status --json"] {
        as_agent(&scratch, &view, &format!("\"$FETTLEFS\" {look}")).ok();
    }
    for act in
        ["confirm --all --yes", "discard src/a", "reload", "unmount", "unmount --force", "fsck", "rollback src/a"]
    {
        let refused = as_agent(&scratch, &view, &format!("\"$FETTLEFS\" {act}"));
        assert_eq!(refused.status, 6, "{act}: {}{}", refused.stdout, refused.stderr);
        nothing_happened(&view);
    }
    // Rights are the writer's at each request, whoever opened the file and whatever the request claims.
    let by_hand = r#"exec 3<>.fettle/control; echo '{"v":1,"op":"confirm","all":true}' >&3; cat <&3"#;
    assert_eq!(as_agent(&scratch, &view, by_hand).ok().error_code(), "not_permitted");
    let claimed = by_hand.replace(r#""all":true"#, r#""all":true,"uid":0"#);
    assert_eq!(as_agent(&scratch, &view, &claimed).ok().error_code(), "bad_request");
    nothing_happened(&view);

    view.cli(&["confirm", "--all", "--yes"]).ok();
    view.assert_landed("src/a", &"rewritten\n".repeat(100));
}

/// Each line is a way to lower, or to the daemon, that must be closed.
#[test]
fn there_is_no_way_below_for_another_user() {
    let scratch = mounted_scratch!();
    let view = mounted(&scratch);
    let elsewhere = scratch.root().join("elsewhere");
    fs::create_dir(&elsewhere).expect("a directory");
    fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o777)).expect("a mode");
    // Where it may have namespaces of its own, what it is refused in them below is refused for what it is.
    if as_agent(&scratch, &view, "unshare -Urm true").status == 0 {
        as_agent(&scratch, &view, "unshare -Urm mount -t tmpfs none \"$ROOT/elsewhere\"").ok();
    } else {
        eprintln!("user namespaces are not allowed here: not tried with them");
    }
    for way in [
        "umount \"$PROJECT\"",
        "umount -l \"$PROJECT\"",
        "fusermount3 -uz \"$PROJECT\"",
        "cat /proc/$DAEMON/root\"$PROJECT\"/src/a",
        "ls /proc/$DAEMON/fd/",
        "cat /proc/$DAEMON/mem",
        "cd /proc/$DAEMON/cwd",
        "kill -9 $DAEMON",
        "nsenter -t $DAEMON -m true",
        // In a user namespace of its own it may mount, but not take away or look behind what it was given.
        "unshare -Urm umount \"$PROJECT\"",
        "unshare -Urm umount -l \"$PROJECT\"",
        "unshare -Urm mount --bind \"$ROOT\" \"$ROOT/elsewhere\"",
        "unshare -Urm mount -o remount,suid \"$PROJECT\"",
        "ls .fettle/stage",
        "echo x > .fettle/held/x",
        "echo x >> .fettle/status.json",
        "rm -rf .fettle/held/*/new",
        "mknod node c 1 3",
        "touch program && chmod u+s program",
        "touch .fettle-tmp-0123456789abcdef",
    ] {
        let tried = as_agent(&scratch, &view, way);
        assert_ne!(tried.status, 0, "{way}: {}{}", tried.stdout, tried.stderr);
        nothing_happened(&view);
    }
    assert!(Path::new(&format!("/proc/{}", view.daemon_pid())).exists());
}

/// A directory hands its default list down to what is made in it, and what lands is made in it. To nobody may that give
/// more than he had.
#[test]
fn what_lands_lets_nobody_in_who_was_not() {
    let scratch = mounted_scratch!();
    for name in ["small", "large", "linked"] {
        scratch.write(format!("d/{name}"), lines(100));
        let private = fs::Permissions::from_mode(0o660);
        fs::set_permissions(scratch.lower().join("d").join(name), private).expect("a mode");
    }
    fs::hard_link(scratch.lower().join("d/linked"), scratch.lower().join("d/other name")).expect("a link");
    let handed_down =
        scratch.command("setfacl").args(["-d", "-m", "u:1234:rwx"]).arg(scratch.lower().join("d")).status();
    assert!(handed_down.expect("setfacl").success());
    let view = scratch.mount();
    let let_in = |name: &str| {
        let listed = scratch.command("getfacl").args(["-cnp"]).arg(scratch.lower().join("d").join(name)).output();
        String::from_utf8(listed.expect("getfacl").stdout)
            .expect("a list")
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    let as_before = "user::rw- group::rw- other::---";
    for name in ["small", "linked"] {
        view.write(format!("d/{name}"), with_changed_lines(&lines(100), 3));
        view.assert_landed(&format!("d/{name}"), &with_changed_lines(&lines(100), 3));
        assert_eq!(let_in(name), as_before, "{name}");
    }
    view.cli(&["rollback", "d/small"]).ok();
    assert_eq!(let_in("small"), as_before, "rolled back");
    view.write("d/large", with_changed_lines(&lines(100), 90));
    let confirmed = view.cli(&["confirm", "d/large", "--json"]).ok().json();
    assert_eq!(let_in("large"), as_before, "confirmed");
    view.cli(&["undo", confirmed["outcomes"][0]["operation"].as_str().expect("an operation")]).ok();
    assert_eq!(let_in("large"), as_before, "undone");
    // What is made in the view is given what it would be given anywhere.
    view.write("d/new", "new\n");
    assert!(let_in("new").contains("user:1234:rwx"), "{}", let_in("new"));
    view.unmount();
}

/// Who could read a file decides over its backup, not who could read what is at the path since.
#[test]
fn no_other_directory_at_its_path_makes_a_backup_readable() {
    let scratch = mounted_scratch!();
    project(&scratch);
    let old = lines(100);
    for (path, mode) in [("open", 0o644), ("secrets/key", 0o644), ("secrets", 0o700)] {
        if path != "secrets" {
            scratch.write(path, &old);
        }
        fs::set_permissions(scratch.lower().join(path), fs::Permissions::from_mode(mode)).expect("a mode");
    }
    let view = scratch.mounting().env("FETTLE_APPROVE", "owner").start();
    for path in ["open", "secrets/key"] {
        view.write(path, with_changed_lines(&old, 1));
    }
    assert_eq!(as_agent(&scratch, &view, "cat .fettle/backups/open.*").ok().stdout, old);
    let read = |change: &str| as_agent(&scratch, &view, &format!("{change}; cat .fettle/backups/key.*"));
    for change in ["true", "mv secrets mine; mkdir secrets"] {
        let refused = read(change);
        assert!(refused.stderr.contains("Permission denied") && refused.stdout.is_empty(), "{change}: {refused:?}");
    }
    assert!(as_agent(&scratch, &view, "test -O secrets").status == 0, "it is the agent's by now");
    assert_eq!(view.sh("cat .fettle/backups/key.*").ok().stdout, old);
}

/// A user of root's default mount, who may decide about what waits (`approve`), puts back what he could write himself.
#[test]
fn who_may_decide_undoes_and_rolls_back_only_what_he_could_write_and_read() {
    let scratch = mounted_scratch!();
    project(&scratch);
    for (path, mode) in
        [("key", 0o600), ("shut/config", 0o644), ("shared", 0o666), ("shut/old", 0o644), ("mine", 0o644)]
    {
        scratch.write(path, if ["shut/old", "mine"].contains(&path) { "old\n".to_owned() } else { lines(20) });
        fs::set_permissions(scratch.lower().join(path), fs::Permissions::from_mode(mode)).expect("a mode");
    }
    std::os::unix::fs::chown(scratch.lower().join("mine"), Some(65534), Some(65534)).expect("an owner");
    let view = scratch.mount();
    let agent = |script: &str| as_agent(&scratch, &view, script);
    let undo_of = |act: &str| {
        view.sh(act).ok();
        let log = view.cli(&["log", "--json"]).ok().json();
        format!("\"$FETTLEFS\" undo {}", log["events"][0]["operation"].as_str().expect("an operation"))
    };
    for path in ["key", "shared"] {
        view.write(path, with_changed_lines(&lines(20), 1));
    }
    agent("mkdir own").ok();
    let refused = [
        undo_of("sed -i '1s/^/changed /' shut/config"),
        undo_of("rm shut/old"),
        undo_of("chmod 600 shut/config"),
        undo_of("mkdir shut/made"),
        undo_of("mkdir shut/other; mv shut/other shut/moved"),
        "\"$FETTLEFS\" rollback key.* --to own/x".to_owned(),
        "\"$FETTLEFS\" rollback shared --to shut/config".to_owned(),
        "\"$FETTLEFS\" rollback shared --to shut/new".to_owned(),
        "\"$FETTLEFS\" rollback shut/config".to_owned(),
        "\"$FETTLEFS\" rollback --force shut/config".to_owned(),
        "\"$FETTLEFS\" rollback --dry-run shut/config".to_owned(),
        "\"$FETTLEFS\" rollback shut/old".to_owned(),
    ];
    for act in &refused {
        let output = agent(act);
        assert_eq!(output.status, 6, "{act}: {}{}", output.stdout, output.stderr);
        assert!(output.stderr.contains("you may not"), "{act}: {}", output.stderr);
    }
    let as_it_was = "test -z \"$(ls own)\" && test \"$(ls shut)\" = \"$(printf 'config\\nmade\\nmoved')\" && \
        test $(stat -c %a shut/config) = 600 && grep -q changed shut/config";
    view.sh(as_it_was).ok();
    let undo = "\"$FETTLEFS\" undo $(\"$FETTLEFS\" log | grep -o 'op[0-9]*' | tail -n 1)";
    let own = [
        "\"$FETTLEFS\" rollback shared && ! grep changed shared".to_owned(),
        "\"$FETTLEFS\" rollback shared --to own/copy && test -e own/copy".to_owned(),
        "echo more >> mine && \"$FETTLEFS\" rollback mine && test \"$(cat mine)\" = old".to_owned(),
        "rm mine && \"$FETTLEFS\" rollback mine && test -O mine".to_owned(),
        format!("rm mine && {undo} && test -O mine"),
        format!("chmod 600 mine && {undo} && test $(stat -c %a mine) = 644"),
        format!("mv mine own/mine && {undo} && test -e mine"),
        format!("mkdir own/d && {undo} && test ! -e own/d"),
    ];
    for act in own {
        agent(&act).ok();
    }
}
