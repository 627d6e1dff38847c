//! How a mount comes, stands and goes: both kinds, other users, refusals, crashes (SPEC §2, §10).

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::harness::{
    Output, Scratch, Stopped, View, detach, eventually, kill, lines, mounted_scratch, mounts_below, within,
};

/// A user who owns nothing here.
const NOBODY: &str = "65534";

fn as_nobody(scratch: &Scratch, dir: &Path, script: &str) -> Output {
    let mut command = scratch.command("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "sh", "-ec", script]).current_dir(dir);
    command.output().expect("setpriv").into()
}

/// `script` in a mount namespace of its own, with `$FETTLEFS`, `$PROJECT`, `$VIEW` and `$ROOT`.
fn in_own_namespace(scratch: &Scratch, script: &str) -> Output {
    let mut command = scratch.command("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", script]).current_dir(scratch.root());
    command.env("FETTLEFS", scratch.fettlefs().get_program());
    command.env("PROJECT", scratch.project()).env("VIEW", scratch.root().join("view")).env("ROOT", scratch.root());
    command.output().expect("unshare").into()
}

#[track_caller]
fn refused(output: &Output, status: i32, words: &[&str]) {
    let said = output.stdout.clone() + &output.stderr;
    assert_eq!(output.status, status, "{said}");
    words.iter().for_each(|word| assert!(said.contains(word), "no {word:?} in {said:?}"));
}

#[test]
fn both_kinds_of_mount_land_small_and_hold_large() {
    for mountpoint in [None, Some("view")] {
        let scratch = mounted_scratch!();
        scratch.write("a", lines(100));
        scratch.write("b", lines(100));
        let view = mountpoint.map_or_else(|| scratch.mount(), |name| scratch.mount_at(name));
        view.write("a", lines(101));
        view.write("b", "all new\n");
        view.assert_landed("a", &lines(101));
        view.assert_held("b", "all new\n", &lines(100));
        let by_its_path = fs::read_to_string(scratch.project().join("b")).expect("b");
        assert_eq!(by_its_path, if mountpoint.is_none() { "all new\n".to_owned() } else { lines(100) });
        assert_eq!(view.status()["mountpoint"], view.root().to_str().expect("UTF-8"));
    }
}

#[test]
fn everything_in_a_project_shows() {
    let scratch = mounted_scratch!();
    let script =
        "mkdir -p dir/empty; echo f > dir/f; ln -s dir/f link; ln -s nowhere dangling; ln dir/f hard; mkfifo fifo
        python3 -SE -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'; touch .hidden";
    let made = scratch.command("sh").current_dir(scratch.lower()).args(["-ec", script]).output();
    Output::from(made.expect("sh")).ok();
    let view = scratch.mount();
    let list = "find . -path ./.fettle -prune -o -printf '%p %y %s %m %n %l\\n' | grep -v '^\\. ' | sort";
    let below = scratch.command("sh").current_dir(scratch.lower()).args(["-c", list]).output().expect("sh");
    assert_eq!(view.sh(list).ok().stdout, String::from_utf8_lossy(&below.stdout));
    assert!(view.path("fifo").metadata().expect("fifo").file_type().is_fifo());
    assert!(view.path("socket").metadata().expect("socket").file_type().is_socket());
    assert_eq!(view.read("link"), "f\n");
    assert_eq!(view.path("hard").metadata().expect("hard").ino(), view.path("dir/f").metadata().expect("f").ino());
}

#[test]
fn the_mount_shows_its_type_and_source() {
    let scratch = mounted_scratch!();
    let view = scratch.mount_at("view");
    let table = fs::read_to_string("/proc/self/mounts").expect("mounts");
    let line = format!("{} {} fuse.fettlefs ", scratch.project().display(), view.root().display());
    let line = table.lines().find(|it| it.starts_with(&line)).unwrap_or_else(|| panic!("no {line:?} in {table}"));
    for word in ["nosuid", "nodev", "default_permissions", "allow_other"] {
        assert!(line.contains(word), "{word} in {line}");
    }
}

#[test]
fn another_user_reads_and_writes_as_modes_allow() {
    let scratch = mounted_scratch!();
    scratch.write("open", lines(100));
    scratch.write("closed", "closed\n");
    for (path, mode) in [("", 0o777), ("open", 0o666), ("closed", 0o600)] {
        fs::set_permissions(scratch.lower().join(path), fs::Permissions::from_mode(mode)).expect("a mode");
    }
    fs::set_permissions(scratch.root(), fs::Permissions::from_mode(0o755)).expect("a mode");
    let view = scratch.mount();
    let script = "cat open >/dev/null; echo more >> open; echo mine > mine; mkdir dir
        ! cat closed 2>/dev/null; ! sh -c 'echo x > closed' 2>/dev/null; ! chmod 777 closed 2>/dev/null";
    as_nobody(&scratch, view.root(), script).ok();
    view.assert_landed("open", &(lines(100) + "more\n"));
    view.assert_landed("mine", "mine\n");
    for path in ["mine", "dir"] {
        assert_eq!(scratch.lower().join(path).metadata().expect("below").uid(), 65534, "{path}");
    }
    assert_eq!(scratch.read("closed"), "closed\n");
    // The owner of the file does not change with who writes it.
    assert_eq!(scratch.lower().join("open").metadata().expect("below").uid(), 0);
    let held = as_nobody(&scratch, view.root(), "for i in $(seq 100); do echo new; done > open");
    held.ok();
    assert_eq!(view.only_held().json["writer"]["uid"], 65534);
}

/// `fettlefs mount -f`, once its view answers.
fn in_front(scratch: &Scratch) -> Child {
    let mut command = scratch.fettlefs();
    command.current_dir(scratch.root()).arg("mount").arg("-f").arg(scratch.project());
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the built program runs");
    eventually("the view answers", || scratch.project().join(".fettle/status.json").exists());
    child
}

#[test]
fn in_front_it_stays_and_a_signal_flushes_and_unmounts() {
    for signal in ["TERM", "INT"] {
        let scratch = mounted_scratch!();
        scratch.write("a", lines(100));
        let mut daemon = in_front(&scratch);
        assert!(daemon.try_wait().expect("its state").is_none(), "it does not go to the background");
        fs::write(scratch.project().join("a"), lines(101)).expect("write in the view");
        fs::write(scratch.project().join("b"), lines(10)).expect("write in the view");
        Command::new("kill").arg(format!("-{signal}")).arg(daemon.id().to_string()).status().expect("kill");
        let ended = daemon.wait().expect("its end");
        assert!(ended.success(), "SIG{signal}: {ended}");
        assert!(!scratch.project().join(".fettle/status.json").exists(), "still mounted after SIG{signal}");
        assert_eq!(fs::read_to_string(scratch.project().join("a")).expect("a"), lines(101));
        assert_eq!(fs::read_to_string(scratch.project().join("b")).expect("b"), lines(10));
    }
}

#[test]
fn plain_umount_is_as_safe_as_unmount() {
    for command in [&["umount"] as &[&str], &["fusermount3", "-u"], &["umount", "-l"]] {
        let scratch = mounted_scratch!();
        scratch.write("a", lines(100));
        scratch.write("b", lines(100));
        let view = scratch.mount();
        view.write("a", lines(101));
        view.write("b", "all new\n");
        let id = view.only_held().id;
        let output = scratch.command(command[0]).args(&command[1..]).arg(view.root()).output().expect("umount");
        Output::from(output).ok();
        eventually("the daemon is gone", || scratch.daemons().is_empty());
        drop(view);
        assert_eq!(scratch.read("a"), lines(101));
        assert_eq!(scratch.read("b"), lines(100));
        let again = scratch.mount();
        assert_eq!(again.only_held().id, id);
        assert_eq!(again.read("b"), "all new\n");
    }
}

#[test]
fn what_is_mounted_over_the_view_is_not_taken_away_in_its_place() {
    let scratch = mounted_scratch!();
    let view = scratch.mount_at("view");
    let over = view.root().to_owned();
    let mounted = scratch.command("mount").args(["-t", "tmpfs", "none"]).arg(&over).output().expect("mount");
    Output::from(mounted).ok();
    fs::write(over.join("precious"), "only here\n").expect("write in the tmpfs");
    for more in [&[] as &[&str], &["--dry-run"], &["--force"]] {
        let mut command = scratch.fettlefs();
        command.current_dir(scratch.root()).arg("unmount").args(more).arg(scratch.project());
        refused(&command.output().expect("unmount").into(), 5, &["tmpfs is mounted over the view", "umount it first"]);
    }
    assert!(!scratch.daemons().is_empty(), "it goes on");
    let status = scratch.fettlefs().arg("-C").arg(scratch.project()).args(["status", "--json"]).output();
    let pid = Output::from(status.expect("status")).json()["pid"].to_string();
    scratch.command("kill").arg(pid).status().expect("kill");
    eventually("the daemon is gone", || scratch.daemons().is_empty());
    assert_eq!(fs::read_to_string(over.join("precious")).expect("precious"), "only here\n");
    detach(&over);
    detach(&over);
}

#[test]
fn what_is_mounted_in_the_view_is_not_taken_away_with_it() {
    let scratch = mounted_scratch!();
    let view = scratch.mount();
    let inner = view.path("build");
    fs::create_dir(&inner).expect("mkdir");
    let mounted = scratch.command("mount").args(["-t", "tmpfs", "none"]).arg(&inner).output().expect("mount");
    Output::from(mounted).ok();
    fs::write(inner.join("precious"), "only here\n").expect("write in the tmpfs");
    for more in [&[] as &[&str], &["--dry-run"], &["--force"]] {
        let output = scratch.cli(&[&["unmount"], more].concat());
        refused(&output, 5, &["tmpfs is mounted in the view on ", "build: umount it first"]);
    }
    assert_eq!(fs::read_to_string(inner.join("precious")).expect("precious"), "only here\n");
    detach(&inner);
    scratch.cli(&["unmount"]).ok();
}

/// As when somebody tidies up: the mount goes along with the directory.
#[test]
fn a_view_whose_directory_was_renamed_ends_where_it_is_by_now() {
    let ends: [fn(&Scratch, i32); 2] = [
        |scratch, _| drop(scratch.cli(&["unmount"]).ok()),
        |scratch, daemon| assert!(scratch.command("kill").arg(daemon.to_string()).status().expect("kill").success()),
    ];
    for end in ends {
        let scratch = mounted_scratch!();
        fs::create_dir_all(scratch.root().join("around/view")).expect("mkdir");
        let view = scratch.mount_at("around/view");
        view.write("made", lines(300));
        let daemon = view.daemon_pid();
        fs::rename(scratch.root().join("around"), scratch.root().join("renamed")).expect("rename");
        end(&scratch, daemon);
        eventually("the daemon is gone", || scratch.daemons().is_empty());
        assert_eq!(mounts_below(scratch.root()), Vec::<PathBuf>::new());
        drop(view);
        let again = scratch.mount();
        fs::remove_file(again.path("made")).expect("delete");
        assert_eq!(again.only_held().path, "made", "another session's large file is not deleted unreviewed");
    }
}

#[test]
fn a_second_mount_is_refused_and_says_who_holds_the_project() {
    let scratch = mounted_scratch!();
    for mountpoint in [None, Some("view")] {
        let view = mountpoint.map_or_else(|| scratch.mount(), |name| scratch.mount_at(name));
        let pid = view.daemon_pid().to_string();
        for second in [scratch.mounting(), scratch.mounting().at("other")] {
            refused(&second.run(), 5, &[&pid, view.root().to_str().expect("UTF-8")]);
        }
        view.write("still", "works\n");
        view.assert_landed("still", "works\n");
        fs::remove_file(view.path("still")).expect("delete");
    }
}

#[test]
fn a_project_in_a_mounted_project_is_refused() {
    let scratch = mounted_scratch!();
    scratch.write("inner/a", "a\n");
    for view in [scratch.mount()] {
        for inner in [view.path("inner"), scratch.project().join("inner")] {
            let output = scratch.fettlefs().arg("mount").arg(&inner).output().expect("the built program runs");
            refused(&output.into(), 5, &["inner", scratch.project().to_str().expect("UTF-8")]);
        }
    }
    let _view = scratch.mount_at("view");
    let output = scratch.fettlefs().arg("mount").arg(scratch.project().join("inner")).output();
    refused(&output.expect("the built program runs").into(), 5, &["inner"]);
}

/// The nearest upwards that has state. A `.fettle` without is none, whoever left it there.
#[test]
fn mount_and_run_take_the_same_project_and_say_which_it_is() {
    let scratch = mounted_scratch!();
    scratch.write("inner/a", "a\n");
    let (project, inner) = (scratch.project(), scratch.project().join("inner"));
    let asked = |arguments: &[&str]| -> Output {
        scratch.fettlefs().current_dir(&inner).args(arguments).output().expect("the built program runs").into()
    };
    let unmount = |path: &Path| {
        let mut command = scratch.fettlefs();
        command.current_dir(scratch.root()).arg("unmount").arg(path);
        Output::from(command.output().expect("the built program runs")).ok();
    };
    let said = format!("fettlefs: the project is {}, in which {} lies\n", project.display(), inner.display());
    scratch.write(".fettle/left", "");
    let ran = asked(&["run", "--", "true"]).ok();
    assert!(!ran.stderr.contains("the project is") && scratch.has("inner/.fettle/instance"), "{}", ran.stderr);
    fs::remove_dir_all(inner.join(".fettle")).expect("the state of the run");
    let mounted = asked(&["mount"]).ok();
    assert!(!mounted.stderr.contains("the project is") && mounts_below(&project).contains(&inner), "{mounted:?}");
    unmount(&inner);
    fs::remove_dir_all(inner.join(".fettle")).expect("the state of the mount");

    fs::remove_dir_all(project.join(".fettle")).expect("what was left");
    scratch.mount().unmount();
    assert!(asked(&["run", "--", "true"]).ok().stderr.starts_with(&said));
    let json = asked(&["run", "--json", "--", "true"]).ok().stderr;
    let json: serde_json::Value = serde_json::from_str(&json).expect("one line of JSON");
    assert_eq!(json["project"], project.to_str().expect("UTF-8"));
    assert!(asked(&["mount"]).ok().stderr.contains(&said));
    assert_eq!(mounts_below(&project), std::slice::from_ref(&project));
    unmount(&project);
    assert!(!scratch.has("inner/.fettle"));
    // Named, it is the one that was named.
    assert!(!asked(&["mount", "."]).ok().stderr.contains("the project is"));
    assert_eq!(mounts_below(&project), std::slice::from_ref(&inner));
    unmount(&inner);
}

#[test]
fn a_project_with_a_mounted_one_in_it_is_refused() {
    let scratch = mounted_scratch!();
    scratch.write("inner/a", "a\n");
    for place in ["", "$VIEW"] {
        let script = format!(
            "mkdir -p $VIEW other; $FETTLEFS mount $PROJECT/inner {place} 2> /dev/null
            $FETTLEFS mount $PROJECT; echo $?; $FETTLEFS -C $PROJECT run -- true; echo $?
            mount --bind $PROJECT other; $FETTLEFS mount other; echo $?; $FETTLEFS mount other/inner; echo $?
            umount other; $FETTLEFS unmount $PROJECT/inner"
        );
        let output = in_own_namespace(&scratch, &script).ok();
        assert_eq!(output.stdout, "5\n125\n5\n5\nfettlefs: Unmounted\n", "{place}: {}", output.stderr);
        let said = output.stderr.lines().filter(|line| line.contains("/inner is mounted on "));
        assert!(said.count() >= 3, "{place}: {}", output.stderr);
    }
}

#[test]
fn a_project_in_a_mounted_project_is_refused_by_another_name_too() {
    let scratch = mounted_scratch!();
    scratch.write("inner/a", "a\n");
    let script = "mkdir other; mount --bind $PROJECT other; $FETTLEFS mount $PROJECT 2> /dev/null
        $FETTLEFS mount other/inner; echo $?; umount other; $FETTLEFS unmount $PROJECT";
    let output = in_own_namespace(&scratch, script).ok();
    assert_eq!(output.stdout, "5\nfettlefs: Unmounted\n", "{}", output.stderr);
    assert!(output.stderr.contains("other/inner lies in "), "{}", output.stderr);
}

/// Mounts what it says is a view of its first argument on its second, in the name of the user in its third, as that user has
/// it done by `fusermount3`, and holds it until it is told to end.
const PRETENDER: &str = r#"
import ctypes, os, sys
source, place, user = sys.argv[1:]
device = os.open("/dev/fuse", os.O_RDWR)
words = f"fd={device},rootmode=40000,user_id={user},group_id={user}"
libc = ctypes.CDLL(None, use_errno=True)
done = libc.mount(source.encode(), place.encode(), b"fuse.fettlefs", 0, words.encode())
assert done == 0, os.strerror(ctypes.get_errno())
sys.stdin.read()
"#;

struct Pretender {
    going: Child,
    place: PathBuf,
}

impl Pretender {
    fn start(scratch: &Scratch, source: &Path, user: &str) -> Self {
        let place = scratch.root().join("theirs");
        fs::create_dir(&place).expect("a directory");
        let mut command = scratch.command("python3");
        command.args(["-c", PRETENDER]).arg(source).arg(&place).arg(user).stdin(Stdio::piped());
        let going = command.spawn().expect("python3");
        let pretender = Self { going, place };
        eventually("the pretender's mount", || mounts_below(scratch.root()).contains(&pretender.place));
        pretender
    }
}

impl Drop for Pretender {
    fn drop(&mut self) {
        drop(self.going.stdin.take());
        self.going.wait().expect("its end");
        detach(&self.place);
    }
}

/// Anybody may mount something that calls itself a view of the project, or of what is around it.
#[test]
fn what_another_user_says_of_a_mount_keeps_no_daemon_from_the_project() {
    let scratch = mounted_scratch!();
    scratch.write("inner/a", "a\n");
    let inner = scratch.project().join("inner");
    let mount = || scratch.cli(&["mount", inner.to_str().expect("UTF-8")]);
    let pretender = Pretender::start(&scratch, &scratch.project(), NOBODY);
    let mounted = mount();
    let unmounted = scratch.cli(&["unmount", inner.to_str().expect("UTF-8")]);
    drop(pretender);
    assert_eq!((mounted.status, unmounted.status), (0, 0), "{}{}", mounted.stderr, unmounted.stderr);
}

/// What root mounts is believed, and comes too late for a project that is covered already.
#[test]
fn a_daemon_that_died_is_replaced_whatever_is_mounted_meanwhile() {
    let scratch = mounted_scratch!();
    scratch.write("a", "a\n");
    let view = scratch.mount();
    let pretender = Pretender::start(&scratch, scratch.root(), "0");
    let killed = view.kill_daemon();
    let is_back = within(Duration::from_secs(20), || view.is_served_again(killed));
    drop(pretender);
    assert!(is_back && view.is_mounted(), "the project is uncovered");
}

#[test]
fn a_view_of_another_project_may_not_lie_in_a_project_that_is_mounted() {
    let scratch = mounted_scratch!();
    scratch.write("inner/a", "a\n");
    let script = "mkdir other; $FETTLEFS mount other $PROJECT/inner 2> /dev/null
        $FETTLEFS mount $PROJECT; echo $?; $FETTLEFS unmount other; $FETTLEFS mount $PROJECT 2> /dev/null; echo $?
        $FETTLEFS unmount $PROJECT";
    let output = in_own_namespace(&scratch, script).ok();
    assert_eq!(output.stdout, "5\nfettlefs: Unmounted\n0\nfettlefs: Unmounted\n", "{}", output.stderr);
}

#[test]
fn places_that_cannot_be_a_mountpoint_or_a_project_are_refused_by_name() {
    let scratch = mounted_scratch!();
    scratch.write("dir/a", "a\n");
    let run = |words: &[&str]| -> Output {
        scratch.fettlefs().current_dir(scratch.root()).arg("mount").args(words).output().expect("it runs").into()
    };
    refused(&run(&["project", "project/dir"]), 2, &["project/dir", "lies in the project"]);
    refused(&run(&["project/dir/a"]), 4, &["project/dir/a", "ot a directory"]);
    refused(&run(&["nowhere"]), 4, &["nowhere", "No such file"]);
    refused(&run(&["project", "nowhere"]), 4, &["nowhere", "No such file"]);
    refused(&run(&["project", "-o", "nonsense"]), 2, &["nonsense"]);
    refused(&run(&["project", "-o", "max_read=x"]), 2, &["not a number of bytes: \"max_read=x\""]);
    assert!(!scratch.has(".fettle"), "a refusal leaves nothing behind");
    let state = scratch.root().join("state");
    fs::create_dir_all(state.join("in")).expect("a directory");
    let output = scratch.mounting().at("state/in").env("FETTLE_STATE_DIR", &state).run();
    refused(&output, 2, &["state directory"]);
}

/// In a root of its own: no program would be in such a view.
#[test]
fn a_root_directory_is_neither_project_nor_mountpoint() {
    let scratch = mounted_scratch!();
    let script = "set -e; mkdir -p view/tmp view/old view/p; touch view/f; mount --bind $FETTLEFS view/f
        for dir in usr lib lib64 bin dev proc; do
            [ ! -e /$dir ] || { mkdir view/$dir; mount --bind /$dir view/$dir; }
        done
        mount --rbind view view; cd view; pivot_root . old; cd /; umount -l old
        set +e; unset FETTLE_STATE_DIR
        for how in 'mount /' 'mount . /p' 'mount /p/../' 'mount /p /' 'mount p /proc/self/root' run '-C / run'; do
            [ \"${how%run}\" = \"$how\" ] || how=\"$how -- true\"; /f $how; echo $?
        done
        /f doctor / | grep -c '/ is no project'; ls -A / /p; /f unmount --force / 2> /dev/null";
    let output = in_own_namespace(&scratch, script);
    let dirs = "bin\ndev\nf\nlib\nlib64\nold\np\nproc\ntmp\nusr\n";
    assert_eq!(
        output.stdout,
        format!("{}{}1\n/:\n{dirs}\n/p:\n", "2\n".repeat(5), "125\n".repeat(2)),
        "{}",
        output.stderr
    );
    let said = |what: &str| output.stderr.matches(&format!("the {what} is /, and programs would go on below")).count();
    assert_eq!((said("project"), said("mountpoint")), (5, 2), "{}", output.stderr);
}

#[test]
fn a_dead_mount_is_replaced_and_what_it_held_is_there() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let view = scratch.mount();
    view.write("a", "all new\n");
    let id = view.only_held().id;
    view.kill_all();
    assert!(fs::read_dir(scratch.project()).is_err(), "the mount is dead");
    let again = scratch.mount();
    assert!(again.mount_output.stderr.contains("dead mount"), "{}", again.mount_output.stderr);
    assert_eq!(again.assert_held("a", "all new\n", &lines(100)).id, id);
}

/// Also where the mount table names the project as it was named at the mount.
#[test]
fn a_session_whose_daemon_is_dead_ends_when_its_mount_is_taken_away() {
    for by_now in ["around", "renamed"] {
        let scratch = mounted_scratch!();
        let (root, project) = (scratch.root(), scratch.root().join(by_now).join("p"));
        let around = root.join("around");
        fs::create_dir_all(around.join("p")).expect("mkdir");
        let fettlefs = |dir: &Path, args: &[&str]| {
            let output = scratch.fettlefs().current_dir(root).arg("-C").arg(dir).args(args).output();
            Output::from(output.expect("the built program runs")).ok()
        };
        fettlefs(&around, &["mount", "p"]);
        fs::write(around.join("p/made"), lines(300)).expect("write");
        eventually("every process of the daemon is gone", || scratch.daemons().into_iter().map(kill).count() == 0);
        fs::rename(&around, root.join(by_now)).expect("rename");
        fettlefs(&project, &["unmount"]);
        fettlefs(&project, &["mount", "."]);
        fs::remove_file(project.join("made")).expect("delete");
        let status = fettlefs(&project, &["status", "--json"]).json();
        assert_eq!(status["held"][0]["path"], "made", "another session's large file is not deleted unreviewed");
        assert!(fettlefs(&project, &["log"]).stdout.contains("session ended"), "and the log tells of the end");
        fettlefs(&project, &["unmount"]);
    }
}

/// The project cannot be reached below a dead mount then, which goes first.
#[test]
fn a_dead_mount_is_replaced_where_other_mounts_lie_in_the_project() {
    let scratch = mounted_scratch!();
    scratch.write("in/a", "below\n");
    let script = "set -e
        mkdir other; echo other > other/a; mount --bind other $PROJECT/in
        $FETTLEFS mount -f $PROJECT 2> /dev/null & until $FETTLEFS -C $PROJECT status > /dev/null 2>&1; do :; done
        kill -9 $!; wait $! || :; ! ls $PROJECT 2> /dev/null
        $FETTLEFS mount $PROJECT; cat $PROJECT/in/a; $FETTLEFS unmount $PROJECT; cat $PROJECT/in/a";
    let output = in_own_namespace(&scratch, script).ok();
    assert_eq!(output.stdout, "other\nfettlefs: Unmounted\nother\n", "{}", output.stderr);
    assert!(output.stderr.contains("took away the dead mount"), "{}", output.stderr);
}

#[test]
fn a_read_only_project_is_refused() {
    let scratch = mounted_scratch!();
    scratch.write("a", "a\n");
    let output = in_own_namespace(
        &scratch,
        "mount --bind $PROJECT $PROJECT && mount -o remount,ro,bind $PROJECT && exec $FETTLEFS mount $PROJECT",
    );
    refused(&output, 6, &["read-only"]);
    assert!(!scratch.has(".fettle"));
}

#[test]
fn a_file_that_is_a_mount_point_is_written_in_place_and_stays_what_it_is() {
    let scratch = mounted_scratch!();
    scratch.write("f", "");
    fs::create_dir(scratch.root().join("view")).expect("a directory");
    let script = "set -e
        seq 1 300 > source; mount --bind source $PROJECT/f
        $FETTLEFS mount $PROJECT $VIEW; trap 'cd /; $FETTLEFS unmount $VIEW' EXIT
        cd $VIEW; echo landed >> f; $FETTLEFS fsck; tail -n 1 $PROJECT/f
        sed '11,110s/^/held /; 251s/^/chosen /' f > $ROOT/new; cat $ROOT/new > f
        $FETTLEFS confirm f --hunk 2; $FETTLEFS fsck; sed -n '251p' $PROJECT/f
        cd /; $FETTLEFS unmount $VIEW; $FETTLEFS mount $PROJECT $VIEW; cd $VIEW; $FETTLEFS fsck
        echo again >> f; sed -n '11p; $p' f; $FETTLEFS confirm f; cmp f $PROJECT/f; $FETTLEFS fsck; sed -n 11p $ROOT/source";
    let output = in_own_namespace(&scratch, script);
    assert_eq!(output.status, 0, "{}{}", output.stdout, output.stderr);
    for line in ["landed", "chosen 251", "held 11", "again"] {
        assert!(output.stdout.lines().any(|told| told == line), "no {line:?} in {}", output.stdout);
    }
}

#[test]
fn a_machine_without_dev_fuse_is_told_what_to_do() {
    let scratch = mounted_scratch!();
    let hide = "mkdir dev && mount --bind dev /dev && exec $FETTLEFS mount $PROJECT";
    let output = in_own_namespace(&scratch, hide);
    refused(&output, 1, &["/dev/fuse", "modprobe"]);
}

#[test]
fn a_user_who_may_not_open_dev_fuse_is_told() {
    let scratch = mounted_scratch!();
    fs::set_permissions(scratch.root(), fs::Permissions::from_mode(0o755)).expect("a mode");
    std::os::unix::fs::chown(scratch.project(), Some(65534), Some(65534)).expect("an owner");
    // A node of its own, so that nothing depends on the machine's.
    let script = "cp $FETTLEFS fettlefs; mknod -m 600 fuse c 10 229 && mount --bind fuse /dev/fuse &&
        exec setpriv --reuid 65534 --regid 65534 --clear-groups ./fettlefs mount $PROJECT";
    refused(&in_own_namespace(&scratch, script), 6, &["/dev/fuse"]);
}

#[test]
fn root_at_a_users_mount_is_told_that_it_is_shut() {
    let scratch = mounted_scratch!();
    fs::set_permissions(scratch.root(), fs::Permissions::from_mode(0o755)).expect("a mode");
    for place in ["project", "home"] {
        std::os::unix::fs::chown(scratch.root().join(place), Some(65534), Some(65534)).expect("an owner");
    }
    let script = "cp $FETTLEFS fettlefs; mknod -m 666 fuse c 10 229 && mount --bind fuse /dev/fuse
        as() { setpriv --reuid 65534 --regid 65534 --clear-groups -- \"$@\"; }
        as ./fettlefs mount $PROJECT || exit 1
        for command in status 'confirm --all --yes' unmount; do ./fettlefs -C $PROJECT $command; echo $?; done
        ./fettlefs ps | grep -c $PROJECT
        as ./fettlefs unmount $PROJECT";
    let output = in_own_namespace(&scratch, script).ok();
    assert_eq!(output.stdout, "6\n6\n6\n1\nfettlefs: Unmounted\n", "{}", output.stderr);
    let said = format!("fettlefs: the mount on {} is another user's", scratch.project().display());
    assert_eq!(output.stderr.matches(&said).count(), 3, "{}", output.stderr);
}

#[test]
fn content_does_not_wait_where_it_would_lose_attributes_that_the_project_has() {
    let scratch = mounted_scratch!();
    let script = "mkdir -p ram view && mount -t ramfs ram ram && mkdir ram/project
        for variable in FETTLE_STAGE_DIR FETTLE_STATE_DIR; do
            env $variable=$ROOT/ram/made/later $FETTLEFS mount $PROJECT; echo $?
        done
        ls -A $PROJECT ram
        export FETTLE_STAGE_DIR=$ROOT/ram/made/later
        $FETTLEFS mount ram/project view > /dev/null && echo new > view/a && cat ram/project/a; $FETTLEFS unmount view";
    let output = in_own_namespace(&scratch, script).ok();
    let project = scratch.project();
    let found = format!("2\n2\n{}:\n\nram:\nproject\nnew\nfettlefs: Unmounted\n", project.display());
    assert_eq!(output.stdout, found, "{}", output.stderr);
    for variable in ["FETTLE_STAGE_DIR", "FETTLE_STATE_DIR"] {
        let said = format!(
            "files in [project] can have extended attributes (user.*), and in [scratch]/ram/made/later ({variable}) cannot"
        );
        assert!(scratch.normalise(&output.stderr).contains(&said), "{}", scratch.normalise(&output.stderr));
    }
}

#[test]
fn state_on_a_read_only_file_system_is_not_called_damaged() {
    let scratch = mounted_scratch!();
    scratch.mount().unmount();
    let script = "mount --bind project project && mount -o remount,bind,ro project
        for command in status mount; do $FETTLEFS -C $PROJECT $command; echo $?; done";
    let output = in_own_namespace(&scratch, script);
    assert_eq!(output.stdout, "1\n6\n", "{}", output.stderr);
    let said = "fettlefs: open the state database in [project]/.fettle: Read-only file system (os error 30); \
        what is held there can be reviewed once it is read-write\n";
    assert!(scratch.normalise(&output.stderr).starts_with(said), "{}", output.stderr);
}

#[test]
fn a_user_mounts_with_fusermount3_and_unmounts() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    scratch.write("b", lines(100));
    fs::set_permissions(scratch.root(), fs::Permissions::from_mode(0o755)).expect("a mode");
    for place in ["project", "project/a", "project/b", "home", "home/.config"] {
        std::os::unix::fs::chown(scratch.root().join(place), Some(65534), Some(65534)).expect("an owner");
    }
    let work = "$ROOT/fettlefs mount $PROJECT && cd $PROJECT && sed -i 1s/line/LINE/ a && echo new > b && cat b &&
        $ROOT/fettlefs status --json && cd / && $ROOT/fettlefs unmount $PROJECT && cat $PROJECT/b | wc -l && head -n 1 $PROJECT/a";
    let script = format!(
        "cp $FETTLEFS fettlefs; mknod -m 666 fuse c 10 229 && mount --bind fuse /dev/fuse &&
        exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -ec '{work}'"
    );
    let output = in_own_namespace(&scratch, &script).ok();
    let said: Vec<_> = output.stdout.lines().collect();
    assert_eq!(said.first(), Some(&"new"), "{output:?}");
    assert!(
        said.iter().any(|line| line.contains(r#""path":"b""#) && line.contains(r#""reason":"size""#)),
        "{output:?}"
    );
    assert_eq!(said[said.len() - 2..], ["100", "LINE 1"], "{output:?}");
}

/// That another owns what he writes, or a group that he is not in, is no fault while he changes nothing.
#[test]
fn a_user_saves_the_same_bytes_where_another_owns_them() {
    let scratch = mounted_scratch!();
    let files = ["written", "replaced", "grouped"];
    files.iter().for_each(|name| scratch.write(name, lines(10)));
    fs::set_permissions(scratch.root(), fs::Permissions::from_mode(0o755)).expect("a mode");
    for place in ["project", "home", "home/.config"] {
        std::os::unix::fs::chown(scratch.root().join(place), Some(65534), Some(65534)).expect("an owner");
    }
    for (name, owner) in files.into_iter().zip([(0, 65534), (0, 0), (65534, 33)]) {
        let path = scratch.project().join(name);
        std::os::unix::fs::chown(&path, Some(owner.0), Some(owner.1)).expect("an owner");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o664)).expect("a mode");
    }
    let work = "$ROOT/fettlefs mount $PROJECT && cp $PROJECT/written $ROOT/home/same && cd $PROJECT
        for name in written grouped; do cat $ROOT/home/same > $name; stat -c \"%u:%g %a\" $name; done
        cp $ROOT/home/same new && mv new replaced && $ROOT/fettlefs status | grep landed
        cd / && $ROOT/fettlefs unmount $PROJECT > /dev/null && cd $PROJECT && stat -c \"%u:%g %a\" *";
    let script = format!(
        "cp $FETTLEFS fettlefs; mknod -m 666 fuse c 10 229 && mount --bind fuse /dev/fuse &&
        exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -ec '{work}'"
    );
    let output = in_own_namespace(&scratch, &script).ok();
    let said: Vec<_> = output.stdout.lines().filter(|line| !line.starts_with("fettlefs: ")).collect();
    let (written, grouped) = ("0:65534 664", "65534:33 664");
    assert_eq!(said, [written, grouped, grouped, "0:0 664", written], "{output:?}");
    // What was renamed came by a name of its own.
    assert!(output.stdout.contains("; 1 landed, 0 held"), "{output:?}");
}

#[test]
fn a_user_undoes_a_mode_that_keeps_him_from_reading() {
    let scratch = mounted_scratch!();
    scratch.write("d/a", lines(100));
    fs::set_permissions(scratch.root(), fs::Permissions::from_mode(0o755)).expect("a mode");
    for place in ["project", "project/d", "project/d/a", "home", "home/.config"] {
        std::os::unix::fs::chown(scratch.root().join(place), Some(65534), Some(65534)).expect("an owner");
    }
    let work = "$ROOT/fettlefs mount $PROJECT && cd $PROJECT
        for path in d/a d; do for mode in 000 200; do
            chmod $mode $path
            $ROOT/fettlefs undo $($ROOT/fettlefs log | grep -o \"op[0-9]*\" | tail -n 1) >&2
            stat -c %a $path
        done; done
        cd / && $ROOT/fettlefs unmount $PROJECT";
    let script = format!(
        "cp $FETTLEFS fettlefs; mknod -m 666 fuse c 10 229 && mount --bind fuse /dev/fuse &&
        exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -ec '{work}'"
    );
    let output = in_own_namespace(&scratch, &script).ok();
    assert!(output.stdout.contains("644\n644\n755\n755\n"), "{output:?}");
}

#[test]
fn a_mount_can_be_read_only() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    scratch.write("b", lines(100));
    let writable = scratch.mount();
    writable.write("a", lines(101));
    writable.write("b", "all new\n");
    let id = writable.only_held().id;
    writable.unmount();
    let view = scratch.mounting().flag("-oro").start();
    assert_eq!((view.read("a"), view.read("b")), (lines(101), "all new\n".to_owned()));
    let script = ["echo x > a", "echo x >> b", "echo x > new", "rm b", "mv a c", "mkdir d", "chmod 600 a", "ln -s a l"];
    for act in script {
        refused(&view.sh(&format!("LC_ALL=C {act} 2>&1 || exit 9")), 9, &["Read-only file system"]);
    }
    // What asks for the state reaches the daemon all the same.
    assert_eq!(view.status()["readonly"], "mounted read-only (-o ro)");
    assert!(view.cli(&["status"]).ok().stdout.contains("READ-ONLY: mounted read-only (-o ro)\n"));
    assert!(view.cli(&["diff"]).ok().stdout.contains("+all new"));
    for command in ["confirm b", "discard b", "rollback a", "confirm --all --yes", "unmount --confirm-all"] {
        let arguments: Vec<&str> = command.split(' ').chain(["--json"]).collect();
        let output = view.cli(&arguments);
        refused(&output, 6, &["\"not_permitted\"", ": nothing can be changed: mounted read-only (-o ro)"]);
    }
    assert_eq!(view.only_held().id, id);
    view.unmount();
    assert_eq!((scratch.read("a"), scratch.read("b")), (lines(101), lines(100)));
    let view = scratch.mount();
    assert_eq!(view.status()["readonly"], serde_json::Value::Null);
    view.cli(&["confirm", &id]).ok();
    view.assert_landed("b", "all new\n");
}

#[test]
fn who_stands_in_the_project_is_told() {
    let scratch = mounted_scratch!();
    let mut sleeper = scratch.command("sleep").arg("60").current_dir(scratch.project()).spawn().expect("sleep");
    let view: View<'_> = scratch.mount();
    let said = view.mount_output.stderr.clone();
    sleeper.kill().and_then(|()| sleeper.wait()).expect("its end");
    assert!(said.contains(&sleeper.id().to_string()) && said.contains("sleep"), "{said}");
}

#[test]
fn only_who_mounts_and_stands_in_the_project_is_told_to_leave() {
    let scratch = mounted_scratch!();
    scratch.write("open", "open\n");
    let mount = |directory: &Path, script: &str| -> String {
        let mut shell = scratch.command("sh");
        shell.current_dir(directory).args(["-c", script, "sh"]);
        shell.arg(scratch.fettlefs().get_program()).arg(scratch.project());
        let output = Output::from(shell.output().expect("a shell")).ok();
        scratch.cli(&["unmount"]).ok();
        // The tests hold the project open themselves, and so do their children before they become another program.
        let shells = |line: &&str| line.contains(" sh (pid ");
        let others = output.stderr.split_inclusive('\n').filter(shells);
        scratch.normalise(&others.collect::<String>())
    };
    let inside = mount(&scratch.project(), "\"$1\" mount \"$2\"; :");
    let said = "fettlefs: sh (pid [pid]), which called this, stands below the mount: a shell leaves it by `cd .`\n";
    assert_eq!(inside, said);
    let descriptor = mount(scratch.root(), "exec 4<\"$2/open\"; \"$1\" mount \"$2\"; :");
    assert_eq!(descriptor, "fettlefs: sh (pid [pid]) stays below the mount\n");
}

#[test]
fn what_lies_in_a_mountpoint_of_its_own_is_told() {
    let scratch = mounted_scratch!();
    let place = scratch.root().join("view");
    fs::create_dir(&place).expect("a mountpoint");
    let told = || {
        let view = scratch.mount_at("view");
        let said = scratch.normalise(&view.mount_output.stderr);
        view.unmount();
        said.lines().filter(|line| line.contains("is not empty")).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(told(), "");
    fs::write(place.join("b"), "written while nothing was mounted\n").expect("a file");
    assert_eq!(told(), "fettlefs: [scratch]/view is not empty: b cannot be reached until unmount");
    fs::write(place.join("a\n"), "").expect("another");
    assert_eq!(told(), "fettlefs: [scratch]/view is not empty: a\\n and 1 more cannot be reached until unmount");
    assert_eq!(fs::read_to_string(place.join("b")).expect("it"), "written while nothing was mounted\n");
}

#[test]
fn status_says_who_asks_it_from_below_the_mount() {
    let scratch = mounted_scratch!();
    let told = |script: &str| {
        let mut shell = scratch.command("sh");
        shell.current_dir(scratch.project()).args(["-c", script, "sh"]).arg(scratch.fettlefs().get_program());
        let output = Output::from(shell.output().expect("a shell")).ok();
        output.stdout.contains("you stand below the mount")
    };
    assert!(told("\"$1\" mount . && \"$1\" status"), "covered since the shell came");
    assert!(!told("\"$1\" status"), "in the view");
    scratch.cli(&["unmount"]).ok();
}

#[test]
fn a_refused_mount_says_only_why() {
    let scratch = mounted_scratch!();
    let mut sleeper = scratch.command("sleep").arg("60").current_dir(scratch.project()).spawn().expect("sleep");
    // Refused by the daemon that was to be, after everything that can be refused in front.
    scratch.write(".fettle/fettle.db", "no database".repeat(100));
    let output = scratch.mounting().run();
    sleeper.kill().and_then(|()| sleeper.wait()).expect("its end");
    assert_eq!((output.status, output.stderr.lines().count()), (1, 1), "{}", output.stderr);
    assert!(output.stderr.contains("is damaged"), "{}", output.stderr);
}

#[test]
fn a_mount_that_cannot_begin_its_log_leaves_nothing_mounted() {
    let scratch = mounted_scratch!();
    scratch.write("a", "one\n");
    scratch.mount().unmount();
    fs::remove_file(scratch.project().join(".fettle/daemon.log")).expect("its log");
    scratch.write(".fettle/daemon.log/in_its_place", "");
    let output = scratch.mounting().run();
    assert_eq!(output.status, 1, "{}", output.stderr);
    assert!(output.stderr.contains("open the daemon's log"), "{}", output.stderr);
    assert_eq!(fs::read_to_string(scratch.project().join("a")).expect("the project lies open"), "one\n");
    fs::remove_dir_all(scratch.project().join(".fettle/daemon.log")).expect("out of the way");
    scratch.mount().unmount();
}

/// Runs each from outside the view at the same time; none may wait for as long as a minute.
fn all_at_once(scratch: &Scratch, commands: &[&[&str]]) -> Vec<Output> {
    let started: Vec<Child> = commands
        .iter()
        .map(|arguments| {
            let mut command = scratch.command("timeout");
            command.args(["-s", "KILL", "60"]).arg(scratch.fettlefs().get_program()).args(*arguments);
            command.current_dir(scratch.root()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("timeout")
        })
        .collect();
    started.into_iter().map(|child| child.wait_with_output().expect("its end").into()).collect()
}

#[test]
fn who_asks_a_stopped_daemon_is_told_how_to_have_it_go_on() {
    let scratch = mounted_scratch!();
    scratch.write("src/a", lines(100));
    std::os::unix::fs::symlink("view", scratch.root().join("link")).expect("a link");
    let view = scratch.mount_at("view");
    view.write("src/a", "all new\n");
    let pid = view.daemon_pid();
    let commands: &[&[&str]] = &[
        &["status", "-C", "project"],
        &["status", "-C", "view/src"],
        &["status", "-C", "link"],
        &["fsck", "-C", "view"],
        &["confirm", "--all", "-C", "project"],
        &["unmount", "--force", "--timeout", "2", "view"],
        &["mount", "project", "view"],
        &["mount", "project", "."],
        &["init", "view"],
        &["doctor", "view"],
        &["run", "-C", "project", "--", "true"],
    ];
    let stopped = Stopped::new(pid);
    let told = all_at_once(&scratch, commands);
    drop(stopped);
    for (arguments, output) in commands.iter().zip(&told) {
        let status = if arguments[0] == "run" { 125 } else { 5 };
        assert_eq!(output.status, status, "{arguments:?}: {}", output.stderr);
        let want = format!("the daemon (pid {pid}) does not answer: it is stopped; `kill -CONT {pid}` has it go on");
        assert!(output.stderr.contains(&want), "{arguments:?}: {}", output.stderr);
    }
    assert_eq!(view.only_held().path, "src/a");
}

#[test]
fn who_asks_the_stopped_daemon_of_a_covering_mount_is_told_so() {
    let scratch = mounted_scratch!();
    let view = scratch.mount();
    let commands: &[&[&str]] = &[&["status", "-C", "project"], &["unmount", "project"], &["mount", "project"]];
    let stopped = Stopped::new(view.daemon_pid());
    let told = all_at_once(&scratch, commands);
    drop(stopped);
    told.iter().for_each(|output| refused(output, 5, &["does not answer: it is stopped"]));
}

/// Nobody is stopped, so the answer is waited for: longer than a stopped one would be.
#[test]
fn a_daemon_that_works_is_waited_for() {
    let scratch = mounted_scratch!();
    let view = scratch.mount_at("view");
    let writer = fs::File::create(view.path("open")).expect("a file");
    let begun = std::time::Instant::now();
    let told = all_at_once(&scratch, &[&["flush", "--timeout", "9", "-C", "project"]]).remove(0);
    assert!(begun.elapsed().as_secs() >= 9, "{told:?}");
    assert_eq!(told.status, 5, "{}", told.stderr);
    assert!(told.stdout.contains("open"), "{told:?}");
    drop(writer);
}

/// What failed is not mounted, and the project answers.
#[track_caller]
fn assert_bare(scratch: &Scratch) {
    let project = scratch.project();
    eventually("all of it is gone", || scratch.daemons().is_empty());
    assert!(mounts_below(&project).is_empty(), "a mount stands");
    assert_eq!(fs::read_to_string(project.join("f")).expect("the project answers"), "x\n");
}

/// Threads, stacks and buffers are refused at another point each time, before the mount and after it.
#[test]
fn a_mount_that_fails_for_want_of_memory_leaves_the_project_bare() {
    let scratch = mounted_scratch!();
    scratch.write("f", "x\n");
    for megabytes in (100..260).step_by(10) {
        let bytes = megabytes << 20;
        let mut mount = scratch.command("prlimit");
        mount.arg(format!("--as={bytes}:{bytes}")).arg(scratch.fettlefs().get_program()).arg("mount");
        let output = Output::from(mount.arg(scratch.project()).output().expect("prlimit"));
        if output.status == 0 {
            // One without memory for another thread cannot be asked to end. One that dies of it is started again, and mounts.
            eventually("all of it has ended", || {
                mounts_below(&scratch.project()).iter().for_each(|point| detach(point));
                scratch.daemons().is_empty()
            });
        }
        assert_bare(&scratch);
    }
}

/// Who stands between the one that was started and the one that serves, by pid: nothing where there is none yet.
fn child_of(scratch: &Scratch, parent: i32) -> Option<i32> {
    let is_child = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent_of = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        parent_of == Some(parent)
    };
    scratch.daemons().into_iter().find(is_child)
}

/// Kills one of them at the moment at which the mount stands, and tells whether that was in time.
fn killed_at_the_mount(scratch: &Scratch, whom: impl Fn(i32) -> Option<i32>) -> bool {
    let mut mount = scratch.fettlefs();
    let mut mount = mount.arg("mount").arg(scratch.project()).stderr(Stdio::null()).spawn().expect("the built program");
    let caller = i32::try_from(mount.id()).expect("a pid");
    let mut victim = None;
    eventually("it is mounted", || {
        victim = victim.or_else(|| whom(caller));
        !mounts_below(&scratch.project()).is_empty()
    });
    // Where it came and was ready between two looks, it is nobody's child any more.
    victim.or_else(|| whom(caller)).into_iter().for_each(kill);
    let mut status = None;
    eventually("`mount` has an answer", || {
        status = mount.try_wait().expect("it can be waited for");
        status.is_some()
    });
    let status = status.and_then(|status| status.code()).expect("a status");
    if status == 0 {
        eventually("a daemon answers", || scratch.cli(&["status"]).status == 0);
        scratch.cli(&["unmount"]).ok();
    }
    assert_bare(scratch);
    status != 0
}

const ROUNDS: usize = 20;

#[test]
fn a_daemon_that_is_killed_before_it_answers_leaves_no_mount() {
    let scratch = mounted_scratch!();
    scratch.write("f", "x\n");
    let daemon = |caller| child_of(&scratch, child_of(&scratch, caller)?);
    let in_time = (0..ROUNDS).filter(|_| killed_at_the_mount(&scratch, daemon)).count();
    assert!(in_time > 0, "it was ready each time");
}

#[test]
fn a_watchdog_that_is_killed_before_there_is_a_daemon_leaves_no_mount() {
    let scratch = mounted_scratch!();
    scratch.write("f", "x\n");
    let watchdog = |caller| child_of(&scratch, caller);
    let in_time = (0..ROUNDS).filter(|_| killed_at_the_mount(&scratch, watchdog)).count();
    assert!(in_time > 0, "it was ready each time");
}

#[test]
fn a_daemon_that_could_hardly_open_a_file_is_refused() {
    let scratch = mounted_scratch!();
    let mut mount = scratch.command("prlimit");
    mount.arg("--nofile=24:24").arg(scratch.fettlefs().get_program()).arg("mount").arg(scratch.project());
    refused(&mount.output().expect("prlimit").into(), 1, &["needs 64 open files, and may have 24", "ulimit -n"]);
    assert!(mounts_below(&scratch.project()).is_empty() && !scratch.has(".fettle"));
}

#[test]
fn a_project_is_worked_on_by_a_path_of_any_bytes() {
    let scratch = mounted_scratch!();
    let [project, view] = [&b"pro\xff"[..], b"view\xff"].map(|name| scratch.root().join(OsStr::from_bytes(name)));
    [&project, &view].iter().for_each(|dir| fs::create_dir(dir).expect("a directory"));
    fs::write(project.join("a"), lines(200)).expect("a file");
    let run = |words: &[&OsStr]| -> Output {
        let mut command = scratch.fettlefs();
        command.current_dir(scratch.root()).env("FETTLE_STAGE_DIR", scratch.root().join("stage")).args(words);
        command.output().expect("the built program runs").into()
    };
    let status = || run(&["-C".as_ref(), project.as_os_str(), "status".as_ref()]).ok().stdout;
    run(&["mount".as_ref(), project.as_os_str(), view.as_os_str()]).ok();
    fs::write(view.join("a"), "all new\n".repeat(200)).expect("a save");
    assert!(status().contains("1 held"), "{}", status());
    let again = run(&["mount".as_ref(), project.as_os_str(), scratch.root().join("home").as_os_str()]);
    assert!(again.exits(5).stderr.contains("view"));
    run(&["unmount".as_ref(), view.as_os_str()]).ok();
    eventually("the daemon is gone", || scratch.daemons().is_empty());
    assert!(status().contains("1 held"), "{}", status());
}
