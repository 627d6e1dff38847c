//! An ordinary user's run, in a user namespace, with /dev/fuse opened to it; and what is said where that is not.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use super::{REWRITE, held, nobody_is_left, rewritten};
use crate::harness::{Output, Scratch, lines, mounted_scratch};

const AGENT: u32 = 65534;

/// A project of that user.
fn project(scratch: &Scratch) {
    scratch.write("a", lines(100));
    for path in [scratch.project(), scratch.project().join("a"), scratch.root().join("home")] {
        std::os::unix::fs::chown(path, Some(AGENT), Some(AGENT)).expect("root may");
    }
    fs::set_permissions(scratch.root(), PermissionsExt::from_mode(0o777)).expect("a mode");
}

/// As that user, in a mount namespace where `prepare` was done as root.
fn as_user(scratch: &Scratch, prepare: &str, arguments: &[&str]) -> Output {
    let mut command: Command = scratch.command("unshare");
    let user = format!(
        "{prepare}\nexec $WRAP setpriv --reuid={AGENT} --regid={AGENT} --clear-groups --inh-caps=-all -- \"$FETTLEFS\" \"$@\""
    );
    command.args(["-m", "bash", "-c", &user, "user", "-C"]).arg(scratch.project()).args(arguments);
    command.env("FETTLEFS", scratch.fettlefs().get_program()).env("ROOT", scratch.root());
    command.current_dir(scratch.root()).output().expect("unshare").into()
}

/// A device of our own, so that nothing changes for anybody else.
const OPEN_DEVICE: &str = "set -e; mknod -m 666 $ROOT/fuse c 10 229; mount --bind $ROOT/fuse /dev/fuse";

#[test]
fn an_ordinary_user_runs_in_a_user_namespace() {
    let scratch = mounted_scratch!();
    project(&scratch);
    let script = format!(
        "{REWRITE}; echo x > new; id -u; cat a > $ROOT/seen; $FETTLEFS confirm --all --yes; echo $?; \
         $FETTLEFS run -- true; echo $?; chmod 600 new; exit 4"
    );
    let output = as_user(&scratch, OPEN_DEVICE, &["run", "--", "bash", "-c", &script]);
    assert_eq!((output.status, output.stdout.as_str()), (4, "65534\n6\n125\n"), "{}", output.stderr);
    assert_eq!(fs::read_to_string(scratch.root().join("seen")).expect("what it saw"), rewritten());
    let new = fs::metadata(scratch.project().join("new")).expect("it landed");
    assert_eq!((std::os::unix::fs::MetadataExt::uid(&new), new.permissions().mode() & 0o777), (AGENT, 0o600));
    assert_eq!((scratch.read("a"), held(&scratch).len()), (lines(100), 1));
    nobody_is_left(&scratch);
    // Outside, the same user decides.
    as_user(&scratch, "true", &["confirm", "a"]).ok();
    assert_eq!(scratch.read("a"), rewritten());
}

#[test]
fn a_session_ends_with_the_run_also_where_its_connection_may_not_be_cut() {
    let scratch = mounted_scratch!();
    project(&scratch);
    let hide_connections = "umount /sys/fs/fuse/connections 2>&1 || true";
    let prepare = format!("{OPEN_DEVICE}; {hide_connections}");
    as_user(&scratch, &prepare, &["run", "--", "bash", "-c", "seq 500 > made"]).ok();
    nobody_is_left(&scratch);
    let last = scratch.cli(&["log", "-n", "1", "--json"]).ok().json();
    assert_eq!(last["events"][0]["event"], "session_ended");
    // What the last session made is of before this one.
    let prepare = format!("mount --bind $ROOT/fuse /dev/fuse; {hide_connections}");
    as_user(&scratch, &prepare, &["run", "--", "rm", "made"]).ok();
    assert!(scratch.has("made"));
    assert_eq!(held(&scratch).len(), 1);
}

/// Root may read everything; an owner may not what he has forbidden himself, and may delete, replace and append to it.
#[test]
fn what_its_owner_may_not_read_is_reviewed_and_kept_like_anything_else() {
    let scratch = mounted_scratch!();
    project(&scratch);
    scratch.write("b", lines(20));
    std::os::unix::fs::chown(scratch.project().join("b"), Some(AGENT), Some(AGENT)).expect("root may");
    let script = "umask 022; for f in gone over; do echo old > $f; chmod 000 $f; done; rm -f gone; echo $?
        echo new > n; mv -f n over; echo $?; echo old > more; chmod 200 more; echo line >> more; echo $?
        chmod 000 a; rm -f a; echo $?; mkdir d; touch d/f; chmod 000 d/f; rm -rf d; echo $?
        chmod 000 b; mv b moved; echo new > b; echo $?";
    let output = as_user(&scratch, OPEN_DEVICE, &["run", "--", "bash", "-c", script]);
    assert_eq!((output.status, output.stdout.as_str()), (0, "0\n0\n0\n0\n0\n0\n"), "{}", output.stderr);
    assert!(!scratch.has("gone") && !scratch.has("d"));
    assert_eq!((scratch.read("over"), scratch.read("more")), ("new\n".to_owned(), "old\nline\n".to_owned()));
    let mode =
        |path: &str| fs::metadata(scratch.project().join(path)).expect("it is there").permissions().mode() & 0o777;
    assert_eq!((held(&scratch).len(), scratch.read("a"), mode("a"), mode("more")), (2, lines(100), 0, 0o200));
    assert_eq!((scratch.read("b"), scratch.read("moved")), (lines(20), lines(20)));
    assert_eq!((mode("b"), mode("moved")), (0, 0));
    as_user(&scratch, "true", &["confirm", "a"]).ok();
    assert!(!scratch.has("a"));
    for path in ["a", "gone"] {
        as_user(&scratch, "true", &["rollback", path]).ok();
    }
    assert_eq!((scratch.read("a"), scratch.read("gone")), (lines(100), "old\n".to_owned()));
    assert_eq!((mode("a"), mode("gone")), (0, 0));
}

#[test]
fn an_ordinary_users_command_is_isolated_as_well() {
    let scratch = mounted_scratch!();
    project(&scratch);
    let output = as_user(&scratch, OPEN_DEVICE, &["run", "--isolate", "--", "bash", "-c", "echo $$; echo x > new"]);
    assert_eq!((output.status, output.stdout.as_str()), (0, "2\n"), "{}", output.stderr);
    assert_eq!(scratch.read("new"), "x\n");
}

#[test]
fn where_a_user_may_not_a_refusal_names_the_remedy() {
    let scratch = mounted_scratch!();
    project(&scratch);
    let closed = "set -e; mknod -m 600 $ROOT/fuse c 10 229; mount --bind $ROOT/fuse /dev/fuse";
    let output = as_user(&scratch, closed, &["run", "--", "touch", "b"]).exits(125);
    assert!(output.stderr.contains("chmod 666 /dev/fuse"), "{}", output.stderr);
    fs::remove_file(scratch.root().join("fuse")).expect("the device");
    // In a changed root the kernel makes no user namespaces.
    let jailed = format!("{OPEN_DEVICE}; mkdir $ROOT/jail; mount --rbind / $ROOT/jail; WRAP=\"chroot $ROOT/jail\"");
    let output = as_user(&scratch, &jailed, &["run", "--", "touch", "b"]).exits(125);
    assert!(output.stderr.contains("user.max_user_namespaces"), "{}", output.stderr);
    assert!(!scratch.has("b"));
    nobody_is_left(&scratch);
}

/// The daemon of a user may not look where a process of root's stands.
#[test]
fn root_is_told_why_it_cannot_run_beside_an_ordinary_users_run() {
    let scratch = mounted_scratch!();
    project(&scratch);
    let prepare = format!(
        "{OPEN_DEVICE}; cd $ROOT; export PROJECT={}; mkfifo -m 666 go
         setpriv --reuid={AGENT} --regid={AGENT} --clear-groups --inh-caps=-all -- $FETTLEFS -C $PROJECT run -- \
             sh -c ': > $ROOT/there; read -r _ < $ROOT/go' 2> /dev/null &
         until [ -e there ]; do :; done
         $FETTLEFS -C $PROJECT run -- true || echo $?; echo go > go; wait $!",
        scratch.project().display()
    );
    let output = as_user(&scratch, &prepare, &["version"]).ok();
    assert!(output.stdout.starts_with("125\n"), "{output:?}");
    assert!(output.stderr.contains("cannot see whether you are in a run of it: run as that user"), "{output:?}");
    nobody_is_left(&scratch);
}

/// `script` as that user, beside a mount over the project and a run, whose command goes on once it has read a word from `go`.
fn beside_a_mount(scratch: &Scratch, command: &str, script: &str) -> Output {
    project(scratch);
    let whole = format!(
        r#"#!/bin/sh
        mkfifo go; $REAL mount $PROJECT 2> /dev/null
        $REAL -C $PROJECT run -- sh -c 'cat a > $ROOT/seen; read -r _ < $ROOT/go; cd / && cd $PROJECT && {command}' 2> /dev/null &
        trap "kill $! 2> /dev/null" EXIT; until [ -s seen ]; do :; done
        {script}; wait $!; echo $?; $REAL unmount $PROJECT"#
    );
    scratch.write("../script", whole);
    // Until it has mounted again, the project lies bare: long enough here that nobody misses it.
    let slow = r#"#!/bin/sh
        [ "$1" != -o ] || sleep 0.2; PATH=${PATH#*:} exec fusermount3 "$@""#;
    scratch.write("../fusermount3", slow);
    for program in ["script", "fusermount3"] {
        fs::set_permissions(scratch.root().join(program), PermissionsExt::from_mode(0o755)).expect("a mode");
    }
    let project = scratch.project().display().to_string();
    let names = "PATH=$ROOT:$PATH REAL=$FETTLEFS FETTLEFS=$ROOT/script";
    let prepare = format!("{OPEN_DEVICE}; export PROJECT={project} {names}");
    as_user(scratch, &prepare, &[]).ok()
}

/// It has no mounts of its own, so nothing would lie over the project in the view's place.
#[test]
fn the_mount_beside_an_ordinary_users_run_stays_until_that_has_ended() {
    let scratch = mounted_scratch!();
    let script = "$REAL unmount $PROJECT; echo $?; $REAL unmount --force $PROJECT; echo $?; echo go > go";
    let output = beside_a_mount(&scratch, "echo x > a", script);
    assert!(output.stdout.starts_with("5\n5\n0\n"), "{output:?}");
    assert_eq!(output.stderr.matches("end it first").count(), 2, "force is no way out: {output:?}");
    assert_eq!((scratch.read("a"), held(&scratch).len()), (lines(100), 1));
}

/// Whose runner has not come to the other daemon yet. By its namespaces nobody would know. And who is told of that daemon
/// finds its view.
#[test]
fn a_daemon_that_was_started_again_knows_who_is_in_a_run_that_goes_on() {
    let scratch = mounted_scratch!();
    let script = r#"daemon() { $REAL -C $PROJECT status --json | sed -n 's/.*"pid":\([0-9]*\),"session".*/\1/p'; }
        kill -STOP $!; killed=$(daemon); kill -9 $killed
        until now=$(daemon) && [ -n "$now" ] && [ "$now" != $killed ]; do :; done
        echo go > go; until [ -s told ]; do :; done; cat told; kill -CONT $!"#;
    let command = "echo x > a; $REAL confirm --all --yes; echo $? > $ROOT/told";
    let output = beside_a_mount(&scratch, command, script);
    assert!(output.stdout.starts_with("6\n0\n"), "{output:?}");
    assert_eq!((scratch.read("a"), held(&scratch).len()), (lines(100), 1));
}
