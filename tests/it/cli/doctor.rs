//! `fettlefs doctor`: what is well and what is not, found by taking away what a view needs.

use std::os::unix::process::{CommandExt, ExitStatusExt};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use crate::harness::{Output, Scratch, eventually, mounted_scratch};

/// What was found: the check, its state, the remedy.
fn found(output: &Value) -> Vec<(String, String, Option<String>)> {
    let findings = output["findings"].as_array().expect("findings");
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let of = |finding: &Value| {
        (text(&finding["check"]).expect("a check"), text(&finding["state"]).expect("a state"), text(&finding["remedy"]))
    };
    findings.iter().map(of).collect()
}

/// A doctor that `script` starts as `"$FETTLE" doctor --json` finds one fault, with a remedy that has these words; which
/// others it has depends on whether this is a container.
#[track_caller]
fn finds(scratch: &Scratch, script: &str, fault: &str, words: &str) {
    let program = scratch.fettlefs();
    let mut shell = scratch.command("sh");
    shell.args(["-ec", script]).current_dir(scratch.project()).env("FETTLE", program.get_program());
    let output = Output::from(shell.output().expect("sh"));
    assert_eq!(output.status, 1, "{}{}", output.stdout, output.stderr);
    let faults = found(&output.json()).into_iter().filter(|(_, state, _)| state == "fault");
    let faults: Vec<_> = faults.map(|(check, _, remedy)| (check, remedy.expect("a remedy"))).collect();
    assert!(matches!(&faults[..], [(check, remedy)] if check == fault && remedy.contains(words)), "{faults:?}");
}

#[test]
fn a_sound_machine_is_found_sound_and_left_as_it_was() {
    let scratch = mounted_scratch!();
    scratch.write("a.txt", "a\n");
    let names = || {
        let entries = std::fs::read_dir(scratch.project())
            .expect("the project")
            .map(|entry| entry.expect("an entry").file_name());
        entries.collect::<Vec<_>>()
    };
    let before = names();
    let output = scratch.cli(&["doctor"]).ok();
    // Over a lower file system that passes nothing through there is a note.
    let first = output.stdout.lines().next().unwrap_or_default();
    assert!(
        ["fettlefs: all is well", "fettlefs: it works, with "].iter().any(|told| first.starts_with(told)),
        "{first}"
    );
    let trials = found(&scratch.cli(&["doctor", "--json"]).ok().json());
    let trials: Vec<_> = trials.iter().filter(|(check, ..)| check.starts_with("trial")).collect();
    assert_eq!(trials.iter().map(|(_, state, _)| state.as_str()).collect::<Vec<_>>(), ["ok", "ok"]);
    assert_eq!((names(), scratch.read("a.txt").as_str()), (before, "a\n"));
    assert_eq!(scratch.daemons(), [0; 0]);

    // What is mounted is not mounted again.
    let view = scratch.mount();
    let output = view.cli(&["doctor"]).ok();
    assert!(output.stdout.contains("trial of the project: left out: it is mounted on "), "{}", output.stdout);
}

#[test]
fn each_fault_is_named_with_its_remedy() {
    let scratch = mounted_scratch!();
    let no_device = r#"unshare -m sh -c 'mount -t tmpfs none /dev && "$FETTLE" doctor --json'"#;
    finds(&scratch, no_device, "/dev/fuse", "fuse");
    let as_nobody = r#"setpriv --reuid 65534 --clear-groups "$FETTLE" doctor --json"#;
    let open_to = |mode| format!("mknod fuse c 10 229; chmod {mode} fuse; mount --bind fuse /dev/fuse; rm fuse");
    let no_access = format!("unshare -m sh -ec '{}; {as_nobody}'", open_to("600"));
    finds(&scratch, &no_access, "/dev/fuse", "chmod 666 /dev/fuse");
    scratch.write(".fettle.toml", "florr = 3\n");
    finds(&scratch, r#""$FETTLE" doctor --json"#, "settings", "docs/SETTINGS.md");
    scratch.write(".fettle.toml", "");
    let read_only =
        r#"unshare -m sh -ec 'mount --bind . .; mount -o remount,bind,ro .; cd .; exec "$FETTLE" doctor --json'"#;
    finds(&scratch, read_only, "space", "FETTLE_STATE_DIR");
    assert_eq!(scratch.cli(&["doctor", "nowhere", "--json"]).exits(4).error_code(), "unknown_path");
}

#[test]
fn other_mounts_of_the_project_are_named() {
    let scratch = mounted_scratch!();
    let mut shell = scratch.command("unshare");
    let script = r#"mkdir ../bound; mount --bind . ../bound; exec "$FETTLE" doctor --json"#;
    shell.args(["-m", "sh", "-ec", script]).current_dir(scratch.project());
    let output = shell.env("FETTLE", scratch.fettlefs().get_program()).output().expect("unshare");
    let output = Output::from(output).ok();
    let bound = format!("also at {}\"", scratch.root().join("bound").display());
    assert!(output.stdout.contains(&bound), "{}", output.stdout);
}

#[test]
fn who_may_not_mount_and_may_run_is_told_both() {
    let scratch = mounted_scratch!();
    let no_privilege = r#"setpriv --bounding-set -sys_admin --inh-caps=-sys_admin "$FETTLE" doctor --json"#;
    let no_helper = r#"mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse; rm fuse
        mount --bind /dev/null "$(command -v fusermount3)"
        HOME=/ XDG_CONFIG_HOME=/ TMPDIR=/tmp setpriv --reuid 65534 --clear-groups "$FETTLE" doctor --json"#;
    for (script, words) in [(no_privilege, "SYS_ADMIN"), (no_helper, "apt-get install fuse3")] {
        let mut shell = scratch.command("unshare");
        shell.args(["-m", "sh", "-ec", script]).current_dir(scratch.project());
        let output = shell.env("FETTLE", scratch.fettlefs().get_program()).output().expect("unshare");
        let found = found(&Output::from(output).ok().json());
        let of = |name: &str| found.iter().find(|(check, ..)| check == name).unwrap_or_else(|| panic!("{found:?}"));
        assert_eq!((of("mounting").1.as_str(), of("trial of a run").1.as_str()), ("note", "ok"), "{found:?}");
        assert!(of("mounting").2.as_ref().is_some_and(|remedy| remedy.contains(words)), "{found:?}");
    }
    let no_scratch =
        r#"TMPDIR=/proc exec setpriv --bounding-set -sys_admin --inh-caps=-sys_admin "$FETTLE" doctor --json"#;
    let mut shell = scratch.command("sh");
    shell.args(["-ec", no_scratch]).current_dir(scratch.project());
    let output = shell.env("FETTLE", scratch.fettlefs().get_program()).output().expect("sh");
    let told = found(&Output::from(output).exits(1).json());
    let of_run = told.iter().find(|(check, ..)| check == "trial of a run").expect("a trial");
    assert!(of_run.2.as_ref().is_some_and(|remedy| remedy.contains("TMPDIR")), "{told:?}");
    // Namespaces refused, too: in a changed root the kernel makes none for users.
    let neither = r#"mkdir jail; mount --rbind / jail; exec chroot jail setpriv --bounding-set -sys_admin \
        --inh-caps=-sys_admin "$FETTLE" doctor --json /tmp"#;
    let mut shell = scratch.command("unshare");
    shell.args(["-m", "--propagation", "private", "sh", "-ec", neither]).current_dir(scratch.root());
    let output = shell.env("FETTLE", scratch.fettlefs().get_program()).output().expect("unshare");
    let found = found(&Output::from(output).exits(1).json());
    let faults: Vec<_> =
        found.iter().filter(|(_, state, _)| state == "fault").map(|(check, ..)| check.as_str()).collect();
    assert_eq!(faults, ["mounting", "trial of a run"]);
}

#[test]
fn what_only_weakens_is_a_note() {
    let scratch = mounted_scratch!();
    scratch.write(".fettle.toml", "floor = 900\nceil = 1000\n");
    let output = scratch.cli(&["doctor", "--json"]).ok().json();
    let of_settings = found(&output).into_iter().filter(|(check, ..)| check == "settings");
    assert_eq!(of_settings.map(|(_, state, _)| state).collect::<Vec<_>>(), ["note", "note"], "{output}");
}

#[test]
fn a_doctor_that_is_interrupted_takes_its_trials_away() {
    let scratch = mounted_scratch!();
    scratch.write("a.txt", "a\n");
    let temporary = scratch.root().join("temporary");
    std::fs::create_dir(&temporary).expect("a directory");
    let count = || std::fs::read_dir(&temporary).expect("it is there").count();
    let mut command = scratch.fettlefs();
    // In a process group of its own, all of which gets the signal, as by Ctrl-C.
    command.args(["doctor"]).current_dir(scratch.project()).env("TMPDIR", &temporary).process_group(0);
    let mut doctor = command.spawn().expect("it runs");
    eventually("a trial begins", || count() > 0);
    kill_process_group(Pid::from_child(&doctor), Signal::INT).expect("it runs");
    let status = doctor.wait().expect("it ends");
    assert_eq!((status.signal(), count()), (Some(2), 0));
    assert_eq!(scratch.daemons(), [0; 0]);
    assert!(
        !std::fs::read_to_string("/proc/self/mountinfo").expect("mounts").contains(temporary.to_str().expect("text"))
    );
}
