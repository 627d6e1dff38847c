//! `approve = outside`: nothing that a run has started may change state, whatever its uid (SPEC §8, docs/SECURITY.md).

use std::os::unix::net::UnixListener;
use std::process::Command;

use super::{Going, REWRITE, command, held, nobody_is_left, rewritten, run};
use crate::harness::{Output, Scratch, View, eventually, lines, mounted_scratch, script};

fn refused_events(scratch: &Scratch) -> usize {
    let log = scratch.cli(&["log", "--json", "-n", "1000"]).ok().json();
    let events = log["events"].as_array().expect("events");
    events.iter().filter(|event| event["event"] == "request_refused").count()
}

/// Each a way for a program inside to look as if it stood outside.
#[test]
fn no_process_that_a_run_has_started_approves_itself() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    run(&scratch, &[], "true").ok();
    let by_hand = r#"exec 3<>.fettle/control; echo '{"v":1,"op":"confirm","all":true}' >&3; cat <&3; exit 6"#;
    for (what, way) in [
        ("plain", "$FETTLEFS confirm --all --yes"),
        ("discard", "$FETTLEFS discard --all --yes"),
        ("unmount", "$FETTLEFS unmount"),
        ("reload", "$FETTLEFS reload"),
        ("control file", by_hand),
        ("another uid", "setpriv --reuid=65534 --clear-groups $FETTLEFS confirm --all --yes"),
        ("a session of its own", "setsid -w $FETTLEFS confirm --all --yes"),
        (
            "double fork",
            "(setsid bash -c '$FETTLEFS confirm --all --yes; echo $? > $ROOT/status' &); \
                         until [ -s $ROOT/status ]; do :; done; exit $(cat $ROOT/status)",
        ),
        ("pid namespace", "unshare -pf --mount-proc $FETTLEFS confirm --all --yes"),
        ("mount namespace", "unshare -m $FETTLEFS confirm --all --yes"),
        ("user namespace", "unshare -Urm $FETTLEFS confirm --all --yes"),
        (
            "the mount namespace of one outside",
            "cd /; nsenter -t $OUTSIDE -m $FETTLEFS -C $PROJECT confirm --all --yes",
        ),
        ("the socket, from there", "cd /; nsenter -t $OUTSIDE -m setsid -w $FETTLEFS -C $PROJECT discard --all --yes"),
        ("both", "unshare -pfm --mount-proc setsid -w $FETTLEFS confirm --all --yes"),
    ] {
        let outside = std::process::id();
        let script = format!("{REWRITE}; export PROJECT=$PWD OUTSIDE={outside}; {way}");
        let before = refused_events(&scratch);
        let output = run(&scratch, &[], &script);
        assert_eq!(output.status, 6, "{what}: {}{}", output.stdout, output.stderr);
        assert!(format!("{}{}", output.stdout, output.stderr).contains("not_permitted") || what != "control file");
        assert_eq!((scratch.read("a"), held(&scratch).len()), (lines(100), 1), "{what}");
        assert!(refused_events(&scratch) > before, "{what}: an event tells");
    }
}

#[test]
fn everybody_inside_may_look() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let script = format!(
        "{REWRITE}; set -e; $FETTLEFS status; $FETTLEFS diff; $FETTLEFS log; $FETTLEFS backups; cat .fettle/status.json; \
         cat .fettle/held/*/diff; unshare -pf --mount-proc $FETTLEFS status; $FETTLEFS flush"
    );
    run(&scratch, &[], &script).ok();
}

/// A descriptor of the control file that was opened inside is used outside; one that was opened outside, inside.
#[test]
fn a_descriptor_that_is_passed_carries_the_rights_of_the_lesser() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let outside = r#"
import array, socket
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
open(sys.argv[2], "w").close()
peer, _ = listener.accept()
_, control, _, _ = peer.recvmsg(1, socket.CMSG_LEN(4))
fd = array.array("i", control[0][2])[0]
os.write(fd, b'{"v":1,"op":"confirm","all":true}\n')
print(os.read(fd, 65536).decode())
"#;
    let socket = scratch.root().join("passed");
    let ready = scratch.root().join("listens");
    let mut receiver = script::command(&scratch, scratch.root(), outside);
    let receiver = receiver.arg(&socket).arg(&ready).stdout(std::process::Stdio::piped()).spawn().expect("python3");
    eventually("somebody outside listens", || ready.exists());
    let inside = r#"
import socket, os
peer = socket.socket(socket.AF_UNIX)
peer.connect(os.environ["ROOT"] + "/passed")
socket.send_fds(peer, [b"x"], [os.open(".fettle/control", os.O_RDWR)])
peer.recv(1)
"#;
    run(&scratch, &[], &format!("{REWRITE}; python3 -c '{inside}'")).ok();
    let answer = crate::harness::Output::from(receiver.wait_with_output().expect("its answer"));
    assert!(answer.stdout.contains("not_permitted"), "{answer:?}");
    assert_eq!((scratch.read("a"), held(&scratch).len()), (lines(100), 1));
}

/// The program keeps its uid 0 whoever starts it; the control file is opened by it, or inherited.
#[test]
fn a_set_uid_program_inside_has_no_more_rights() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    std::fs::set_permissions(scratch.root(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a mode");
    let program = scratch.root().join("bash");
    std::fs::copy("/bin/bash", &program).expect("a copy");
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o4755)).expect("a mode");
    let talk = r#"echo "{\"v\":1,\"op\":\"confirm\",\"all\":true}" >&3; cat <&3"#;
    let agent = "setpriv --reuid=65534 --regid=65534 --clear-groups";
    for way in [
        format!("{agent} $ROOT/bash -pc 'exec 3<>.fettle/control; {talk}'"),
        format!("{agent} bash -c 'exec 3<>.fettle/control; exec $ROOT/bash -pc '\\''{talk}'\\'"),
    ] {
        let output = run(&scratch, &[], &format!("{REWRITE}; {way}"));
        assert!(output.stdout.contains("not_permitted"), "{way}: {output:?}");
        assert_eq!((scratch.read("a"), held(&scratch).len()), (lines(100), 1), "{way}");
    }
}

#[test]
fn a_setting_lets_a_run_decide_and_a_clones_own_file_does_not() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let confirm = format!("{REWRITE}; $FETTLEFS confirm a");
    for setting in ["approve = \"anyone\"\n", "approve = \"owner\"\n"] {
        scratch.write(".fettle.toml", setting);
        let refused = run(&scratch, &[], &confirm).exits(6);
        let ignored = format!(".fettle.toml:1: {}, for who is in a run", setting.trim().replace('"', ""));
        assert!(refused.stderr.contains(&format!("ignored until `fettlefs trust`: {ignored}")), "{}", refused.stderr);
    }
    assert_eq!(scratch.read("a"), lines(100));
    scratch.cli(&["trust", "--yes"]).ok();
    run(&scratch, &[], &confirm).ok();
    assert_eq!(scratch.read("a"), rewritten());

    std::fs::remove_file(scratch.project().join(".fettle.toml")).expect("the project's own");
    scratch.write("a", lines(100));
    run(&scratch, &["--approve", "anyone"], &confirm).ok();
    assert_eq!(scratch.read("a"), rewritten());
    scratch.write("a", lines(100));
    let by_variable: Command = {
        let mut by = command(&scratch, &[], &confirm);
        by.env("FETTLE_APPROVE", "owner");
        by
    };
    crate::harness::Output::from({ by_variable }.output().expect("it runs")).ok();
    assert_eq!(scratch.read("a"), rewritten());
}

#[test]
fn a_mount_whose_setting_is_outside_refuses_whom_it_cannot_see() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let view = scratch.mounting().env("FETTLE_APPROVE", "outside").start();
    view.write("a", rewritten());
    let fettlefs = scratch.fettlefs().get_program().to_string_lossy().into_owned();
    let hidden = view.sh(&format!("unshare -pf --mount-proc {fettlefs} confirm a"));
    assert_eq!(hidden.status, 6, "{}", hidden.stderr);
    view.cli(&["confirm", "a"]).ok();
    view.unmount();
}

#[test]
fn a_run_goes_on_beside_one_that_is_refused_all_the_time() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let going = Going::start(
        &scratch,
        "one",
        &format!("{REWRITE}; for i in $(seq 30); do $FETTLEFS discard --all --yes; done"),
    );
    let told = refused_events(&scratch);
    assert!((1..=10).contains(&told), "{told} of 30: asking without end fills no log");
    going.finish().exits(7);
}

/// A connection of the runner's would be an outsider's: whoever is inside must find none, neither in the runner nor in the
/// first process of a pid namespace, which are forked from what asked the daemon.
#[test]
fn no_connection_to_the_daemon_is_left_where_a_command_could_take_it() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let going = Going::start(&scratch, "one", REWRITE);
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", going.pid())).expect("the runner's descriptors");
    let targets = descriptors.map(|fd| std::fs::read_link(fd.expect("one").path()).unwrap_or_default());
    let sockets: Vec<_> = targets.filter(|target| target.to_string_lossy().starts_with("socket:")).collect();
    assert_eq!(sockets, Vec::<std::path::PathBuf>::new());
    going.finish().exits(7);

    let take = r#"python3 - <<'END'
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
first = os.pidfd_open(1)
taken = [fd for fd in range(64) if libc.syscall(438, first, fd, 0) >= 0]
print("taken", taken)
END"#;
    let output = run(&scratch, &["--isolate"], take).ok();
    assert_eq!(output.stdout, "taken []\n", "{output:?}");
}

#[test]
fn only_owner_and_root_begin_runs() {
    let scratch = mounted_scratch!();
    scratch.write("a", "one\n");
    let view = scratch.mount();
    let ask = r#"setpriv --reuid=65534 --regid=65534 --clear-groups bash -c 'exec 3<>.fettle/control; echo "{\"v\":1,\"op\":\"run\"}" >&3; cat <&3'"#;
    let answer = view.sh(ask).ok();
    assert!(answer.stdout.contains("not_permitted"), "{answer:?}");
    assert!(view.status()["runs"].is_null(), "{}", view.status());
}

/// What a run has left behind, in a namespace that is not the daemon's, goes on when that daemon is gone.
#[test]
fn another_daemon_knows_that_there_was_a_run() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let fettlefs = scratch.fettlefs().get_program().to_string_lossy().into_owned();
    let elsewhere = |view: &View<'_>| view.sh(&format!("unshare -m {fettlefs} confirm --dry-run a")).status;
    let view = scratch.mount();
    view.write("a", rewritten());
    assert_eq!(elsewhere(&view), 0, "anyone may decide where there was no run");
    run(&scratch, &[], "true").ok();
    assert_eq!(elsewhere(&view), 6);
    view.unmount();
    let view = scratch.mount();
    assert_eq!(elsewhere(&view), 6, "mounted again");
    let killed = view.kill_daemon();
    eventually("another daemon answers", || view.is_served_again(killed));
    assert_eq!(elsewhere(&view), 6, "started again");
    view.cli(&["confirm", "a"]).ok();
    view.unmount();
}

/// Each with what it ends with in a run, or in what one has left behind, that no daemon answers. The view is dead, and then
/// taken away by hand, as root may.
const WITHOUT_A_DAEMON: &str = r#"
    cd /; mkdir -p $ROOT/elsewhere; export FETTLE_APPROVE=anyone
    try() { $FETTLEFS -C $PROJECT $1 > /dev/null 2> $ROOT/said; echo ${1%% *} $?; grep -v 'what a run has started may not' $ROOT/said; }
    for act in unmount "unmount --dry-run" mount "mount . $ROOT/elsewhere"; do try "$act"; done
    cat $PROJECT/a > /dev/null 2>&1 && echo uncovered
    umount -l $PROJECT
    for act in "confirm --all --yes" "confirm a" "discard a" "rollback b" "undo op1" reload; do try "$act"; done
"#;

const REFUSED_WITHOUT_A_DAEMON: &str = "unmount 6\nunmount 6\nmount 6\nmount 6\nconfirm 6\nconfirm 6\ndiscard 6\n\
                                        rollback 6\nundo 6\nreload 6\n";

#[test]
fn where_no_daemon_answers_what_a_run_has_started_decides_nothing() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let script = format!(
        "{REWRITE}; export PROJECT=$PWD
         daemon=$($FETTLEFS status --json | grep -o '\"pid\":[0-9]*' | head -1 | grep -o '[0-9]*')
         kill -9 $(cut -d ' ' -f 4 /proc/$daemon/stat) $daemon; while cat a > /dev/null 2>&1; do :; done
         {WITHOUT_A_DAEMON}
         $FETTLEFS mount $PROJECT 2> $ROOT/said; echo mount $?"
    );
    let output = run(&scratch, &["--no-effects"], &script);
    assert_eq!(output.stdout, format!("{REFUSED_WITHOUT_A_DAEMON}mount 6\n"), "{}", output.stderr);
    assert_eq!((scratch.read("a"), held(&scratch).len()), (lines(100), 1));
    scratch.cli(&["confirm", "a"]).ok();
    assert_eq!(scratch.read("a"), rewritten(), "outside decides");
}

/// Nor where one answers that has begun since, whose view is another.
#[test]
fn where_no_daemon_answers_what_a_run_has_left_behind_decides_nothing() {
    for is_another_there in [false, true] {
        let scratch = mounted_scratch!();
        scratch.write("a", lines(100));
        let script = scratch.root().join("left");
        std::fs::write(&script, format!("read -r _ < $ROOT/go\n{WITHOUT_A_DAEMON}echo end\n")).expect("a script");
        Command::new("mkfifo").arg(scratch.root().join("go")).status().expect("mkfifo");
        let leave = "export PROJECT=$PWD; (setsid bash $ROOT/left > $ROOT/told 2> $ROOT/log < /dev/null &)";
        run(&scratch, &["--no-effects"], &format!("{REWRITE}; {leave}")).ok();
        nobody_is_left(&scratch);
        let another = is_another_there.then(|| Going::start(&scratch, "another", "true"));
        std::fs::write(scratch.root().join("go"), "go\n").expect("a word to what is left");
        let told = || std::fs::read_to_string(scratch.root().join("told")).unwrap_or_default();
        eventually("it has tried", || told().ends_with("end\n"));
        assert_eq!(told(), format!("{REFUSED_WITHOUT_A_DAEMON}end\n"));
        assert_eq!((scratch.read("a"), held(&scratch).len()), (lines(100), 1));
        another.map(Going::finish);
        scratch.cli(&["confirm", "a"]).ok();
        assert_eq!(scratch.read("a"), rewritten(), "outside decides");
    }
}

/// A daemon that does not say whether it may has not said so.
#[test]
fn what_a_run_has_left_behind_uncovers_nothing_where_the_answer_is_cut() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let script = scratch.root().join("left");
    let tries = "read -r _ < $ROOT/go; cd /; $FETTLEFS -C $PROJECT unmount; echo $?; cat $PROJECT/a; echo end";
    std::fs::write(&script, tries).expect("a script");
    Command::new("mkfifo").arg(scratch.root().join("go")).status().expect("mkfifo");
    let leave = "export PROJECT=$PWD; (setsid bash $ROOT/left > $ROOT/told 2> $ROOT/log < /dev/null &)";
    run(&scratch, &["--no-effects"], &format!("{REWRITE}; {leave}")).ok();
    nobody_is_left(&scratch);
    let another = Going::start(&scratch, "another", "true");
    let socket = scratch.project().join(".fettle/control.sock");
    std::fs::remove_file(&socket).expect("the socket of the run's daemon");
    let hangs_up = UnixListener::bind(&socket).expect("a socket");
    std::thread::spawn(move || hangs_up.incoming().for_each(drop));
    std::fs::write(scratch.root().join("go"), "go\n").expect("a word to what is left");
    let told = || std::fs::read_to_string(scratch.root().join("told")).unwrap_or_default();
    eventually("it has tried", || told().ends_with("end\n"));
    assert_eq!(told(), "5\nend\n");
    another.finish();
}

/// As from a service with mounts of its own. Where nobody sees the view, a command would have the project itself.
#[test]
fn a_daemon_in_another_mount_namespace_shuts_nobody_out_and_takes_no_run_from_outside() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let mount_elsewhere = || {
        let mut command = scratch.command("unshare");
        command.args(["-m", "--propagation", "private"]).arg(scratch.fettlefs().get_program());
        let mounted = command.arg("mount").arg(scratch.project()).current_dir(scratch.root()).output();
        crate::harness::Output::from(mounted.expect("unshare")).ok();
    };
    let refuses_runs = || {
        let refused = run(&scratch, &[], REWRITE).exits(125);
        assert!(refused.stderr.contains("is mounted where you do not see it"), "{}", refused.stderr);
        assert_eq!((scratch.read("a"), held(&scratch).len()), (lines(100), 0));
    };
    mount_elsewhere();
    refuses_runs();
    scratch.cli(&["unmount"]).ok();
    run(&scratch, &[], "true").ok();
    mount_elsewhere();
    refuses_runs();
    scratch.cli(&["unmount"]).ok();
    nobody_is_left(&scratch);
}

/// As on systems that mount a file system as a whole and its directories where they belong.
#[test]
fn a_second_mount_of_the_projects_file_system_leads_to_the_view() {
    let scratch = mounted_scratch!();
    scratch.write(".fettle.toml", "[[rule]]\nmatch = \"ice\"\naction = \"freeze\"\n");
    scratch.write("ice", "cold\n");
    scratch.write("sub/a", lines(3));
    let inside = r#"
        (echo past > $WHOLE/ice) 2>/dev/null && echo written
        (echo past > /proc/self/fd/7/ice) 2>/dev/null && echo written by the descriptor
        seq 4 > $PART/a; cat sub/a | wc -l"#;
    let outside = r#"mkdir -p $ROOT/whole $ROOT/part
        mount --bind $ROOT $ROOT/whole; mount --bind $PROJECT/sub $ROOT/part
        export WHOLE=$ROOT/whole/${PROJECT##*/} PART=$ROOT/part INSIDE
        for flag in "$@"; do exec 7<$PROJECT; $FETTLEFS -C $PROJECT run $flag -- bash -c "$INSIDE"; cat $PROJECT/ice; done"#;
    let mut shell = scratch.command("unshare");
    shell.args(["--mount", "bash", "-c", outside, "-", "--no-effects", "--isolate"]);
    let names = [("ROOT", scratch.root().to_owned()), ("PROJECT", scratch.project())];
    shell.envs(names).env("INSIDE", inside).env("FETTLEFS", scratch.fettlefs().get_program());
    let output = Output::from(shell.output().expect("it runs")).ok();
    assert_eq!(output.stdout, "written by the descriptor\n4\npast\n4\npast\n", "{output:?}");
}

/// Where the state stands elsewhere, the view does not cover it.
#[test]
fn an_isolated_command_finds_no_state_of_the_project() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let places = [("FETTLE_STATE_DIR", "state"), ("FETTLE_STAGE_DIR", "stage"), ("FETTLE_BACKUP_DIR", "kept")];
    let places = places.map(|(name, place)| (name, scratch.root().join(place)));
    let script = format!(
        "{REWRITE}
        for place in $ROOT/state $ROOT/stage/* $ROOT/kept/*; do
            echo taken > $place/instance; umount $place; unshare -Urm umount $place; ls -A $place
        done 2>/dev/null
        exec 3<>.fettle/control; echo '{{\"v\":1,\"op\":\"status\"}}' >&3; head -c 1 <&3; exec 3<&-
        $FETTLEFS status > $ROOT/status"
    );
    let output = command(&scratch, &["--isolate"], &script).envs(places.clone()).output().expect("it runs");
    assert_eq!(Output::from(output).exits(0).stdout, "{", "nothing but the first byte of an answer");
    assert!(std::fs::read_to_string(scratch.root().join("status")).expect("what it was told").contains("1 held"));
    assert!(places.iter().all(|(_, place)| std::fs::read_dir(place).expect("it is there").count() > 0));
}
