//! A daemon is started by a shell that limits, ignores and leaves open what is meant for other programs.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use rustix::process::{Pid, Signal};

use crate::harness::{Scratch, View, eventually, lines, mounted_scratch};

const LARGE: usize = 3 << 20;

/// What `/proc` says of each process of the daemon.
fn told_of_each(scratch: &Scratch, file: &str) -> Vec<String> {
    let told = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/{file}")).expect("it runs");
    let told: Vec<String> = scratch.daemons().iter().map(told).collect();
    assert!(told.len() >= 2, "a daemon and its watchdog: {told:?}");
    told
}

fn limited_view<'s>(scratch: &'s Scratch, wrapper: &[&'static str]) -> View<'s> {
    scratch.write("small", lines(100));
    scratch.mounting().at("view").started_by(wrapper).start()
}

#[test]
fn a_limit_of_file_size_that_may_be_lifted_is() {
    let scratch = mounted_scratch!();
    let view = limited_view(&scratch, &["prlimit", "--fsize=1000000:unlimited"]);
    let content = "x\n".repeat(LARGE / 2);
    view.write("large", &content);
    view.assert_landed("large", &content);
    view.unmount();
}

#[test]
fn a_limit_of_file_size_that_stays_is_told_and_ends_no_daemon() {
    let scratch = mounted_scratch!();
    scratch.write("large", "x\n".repeat(LARGE / 2));
    let view = limited_view(&scratch, &["prlimit", "--fsize=1000000:1000000"]);
    let daemon = view.daemon_pid();
    let refused = fs::write(view.path("new"), vec![b'\n'; LARGE]).expect_err("it is too large");
    assert_eq!(refused.raw_os_error(), Some(libc::EFBIG), "{refused}");
    let mut large = fs::OpenOptions::new().append(true).open(view.path("large")).expect("opening copies nothing");
    let refused = large.write_all(b"more\n").expect_err("its copy is too large");
    assert_eq!(refused.raw_os_error(), Some(libc::EFBIG), "{refused}");
    drop(large);
    assert_eq!(scratch.read("large").len(), LARGE);
    view.write("small", lines(101));
    view.assert_landed("small", &lines(101));
    assert_eq!(view.daemon_pid(), daemon, "another daemon answers");
    view.unmount();
}

#[test]
fn a_daemon_has_none_of_the_limits_that_it_may_lift() {
    let scratch = mounted_scratch!();
    let limits = ["prlimit", "--cpu=5:unlimited", "--data=900000000:unlimited", "--as=9000000000:unlimited"];
    let view = limited_view(&scratch, &limits);
    for told in told_of_each(&scratch, "limits") {
        for name in ["Max cpu time", "Max file size", "Max data size", "Max address space"] {
            let line = told.lines().find(|line| line.starts_with(name)).expect("a limit");
            assert_eq!(line[name.len()..].split_whitespace().next(), Some("unlimited"), "{line}");
        }
    }
    view.unmount();
}

/// A lock that the shell has, or a pipe that somebody reads to its end.
#[test]
fn nothing_that_was_left_open_is_kept_open() {
    let scratch = mounted_scratch!();
    let leave_open = ["sh", "-c", r#"exec 9>left-open; exec "$0" "$@""#];
    let view = limited_view(&scratch, &leave_open);
    let left_open = scratch.root().join("left-open");
    for pid in scratch.daemons() {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").flatten();
        let open = descriptors.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|path| path == left_open);
        assert!(!open, "{pid} has it open");
    }
    view.unmount();
}

#[test]
fn signals_that_a_shell_ignores_are_heeded() {
    let scratch = mounted_scratch!();
    let ignoring = ["env", "--ignore-signal=TERM", "--ignore-signal=CHLD", "--ignore-signal=USR1"];
    let view = limited_view(&scratch, &ignoring);
    for told in told_of_each(&scratch, "status") {
        let ignored = told.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a line");
        let ignored = u64::from_str_radix(ignored.trim(), 16).expect("a set");
        for signal in [libc::SIGTERM, libc::SIGCHLD, libc::SIGUSR1] {
            assert_eq!(ignored & 1 << (signal - 1), 0, "signal {signal} is ignored");
        }
    }
    // Who waits for the daemon is told of its death.
    let killed = view.kill_daemon();
    eventually("another daemon answers", || view.is_served_again(killed));
    rustix::process::kill_process(Pid::from_raw(view.daemon_pid()).expect("a pid"), Signal::TERM).expect("a signal");
    eventually("the daemon has ended", || scratch.daemons().is_empty());
    assert!(!view.is_mounted());
}

/// The programs that a daemon starts, and those of a run, which a daemon does not start.
#[test]
fn programs_get_the_limits_that_their_user_has() {
    const ASK: &str = "prlimit --noheadings -o RESOURCE,SOFT,HARD --fsize --cpu --as";
    let scratch = mounted_scratch!();
    let (hook, told) = (scratch.root().join("hook"), scratch.root().join("told"));
    let script = format!("#!/bin/sh\ncat > /dev/null\n{ASK} > {told:?}\necho '{{\"decision\":\"land\"}}'\n");
    fs::write(&hook, script).expect("a script");
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).expect("a mode");
    let limits = ["prlimit", "--fsize=1000000:unlimited", "--cpu=500:unlimited", "--as=9000000000:unlimited"];
    let mine = scratch.command(limits[0]).args(&limits[1..]).args(["sh", "-c", ASK]).output().expect("prlimit");
    let mine = String::from_utf8(mine.stdout).expect("text");
    assert!(mine.contains("1000000"), "{mine}");
    let mounting = scratch.mounting().at("view").started_by(&limits);
    let view = mounting.env("FETTLE_HOOKS_PRE_WRITE", format!("[{hook:?}]")).start();
    view.write("a", "x\n");
    view.assert_landed("a", "x\n");
    assert_eq!(fs::read_to_string(&told).expect("it was asked"), mine);
    view.unmount();
    let program = scratch.fettlefs().get_program().to_owned();
    let mut run = scratch.command(limits[0]);
    run.args(&limits[1..]).arg(program).arg("-C").arg(scratch.project()).args(["run", "--", "sh", "-c", ASK]);
    let run = run.current_dir(scratch.root()).output().expect("the built program");
    assert_eq!(String::from_utf8_lossy(&run.stdout), mine);
}
