//! The systemd unit of docs/systemd: what systemd says of the file, and what its lines do. No systemd runs in these
//! tests: the test starts, kills and stops what the lines name, with a socket to be told on, as systemd does.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::harness::{PATIENCE, Scratch, eventually, kill, lines, mounted_scratch};

const UNIT: &str = include_str!("../../docs/systemd/fettlefs@.service");
const INSTALLED: &str = "/usr/bin/fettlefs";

/// A line of the unit, its specifier `%f` being `project`.
fn line(name: &str, project: &Path) -> Vec<String> {
    let value = UNIT.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let value = value.unwrap_or_else(|| panic!("no {name} in the unit")).trim_start_matches(['-', ':']);
    value.split(' ').map(|word| word.replace("%f", project.to_str().expect("text"))).collect()
}

fn command(scratch: &Scratch, name: &str) -> Command {
    let words = line(name, &scratch.project());
    assert_eq!(words[0], INSTALLED, "{name}");
    let mut command = scratch.fettlefs();
    command.args(&words[1..]).current_dir("/");
    command
}

/// Starts the service and returns once it has said that it is ready.
fn started(scratch: &Scratch) -> Child {
    let socket = scratch.root().join("notify");
    if socket.exists() {
        fs::remove_file(&socket).expect("the last socket");
    }
    let told = UnixDatagram::bind(&socket).expect("a socket");
    told.set_read_timeout(Some(PATIENCE)).expect("a limit");
    let mut service = command(scratch, "ExecStart");
    let service =
        service.env("NOTIFY_SOCKET", &socket).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let mut word = [0; 64];
    let count = told.recv(&mut word).expect("it says that it is ready");
    assert_eq!(String::from_utf8_lossy(&word[..count]).trim_end(), "READY=1");
    service
}

#[test]
fn systemd_finds_nothing_wrong_with_the_unit() {
    let scratch = Scratch::new();
    let unit = scratch.root().join("fettlefs@.service");
    let program = scratch.fettlefs().get_program().to_str().expect("text").to_owned();
    let verify = |text: &str| {
        fs::write(&unit, text).expect("a unit");
        let mut command = scratch.command("systemd-analyze");
        command.args(["verify", "--user", "--man=no"]).arg(&unit).env("XDG_RUNTIME_DIR", scratch.root());
        let output = command.output().expect("systemd-analyze");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (is_right, said) = verify(&UNIT.replace(INSTALLED, &program));
    assert!(is_right && !said.contains("fettlefs@"), "{said}");
    // It would have found something.
    let (_, said) = verify(&UNIT.replace(INSTALLED, &program).replace("RestartSec", "RestartAfter"));
    assert!(said.contains("RestartAfter"), "{said}");
}

#[test]
fn the_name_of_a_unit_and_back_is_the_same_project() {
    let scratch = Scratch::new();
    let project = scratch.root().join("my-project, 2nd");
    let escape = |args: &[&str]| {
        let output = scratch.command("systemd-escape").args(args).output().expect("systemd-escape");
        String::from_utf8(output.stdout).expect("text").trim_end().to_owned()
    };
    let unit = escape(&["-p", "--template=fettlefs@.service", project.to_str().expect("text")]);
    assert_eq!(escape(&["-u", "-p", "--instance", &unit]), project.to_str().expect("text"));
}

#[test]
fn it_starts_comes_back_with_what_was_held_and_stops() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let mut first = started(&scratch);
    fs::write(scratch.project().join("a"), "all new\n").expect("a write in the view");
    assert!(
        command(&scratch, "ExecReload").stdout(Stdio::null()).stderr(Stdio::null()).status().expect("reload").success()
    );
    kill(first.id().try_into().expect("a pid"));
    assert!(!first.wait().expect("a child").success(), "systemd starts again what has failed");
    assert!(fs::read_dir(scratch.project()).is_err(), "the mount of a daemon that died is dead, and shut");

    let mut second = started(&scratch);
    assert_eq!(fs::read_to_string(scratch.project().join("a")).expect("the view"), "all new\n");
    assert_eq!(scratch.read("a"), lines(100));
    assert!(command(&scratch, "ExecStop").stdout(Stdio::null()).status().expect("unmount").success());
    assert!(second.wait().expect("a child").success(), "what ended well is not started again");
    eventually("nothing is left", || scratch.daemons().is_empty());
    assert_eq!(fs::read_to_string(scratch.project().join("a")).expect("the project"), lines(100));
}

#[test]
fn a_dead_service_is_replaced_without_being_stopped_first() {
    let scratch = mounted_scratch!();
    let mut first = started(&scratch);
    kill(first.id().try_into().expect("a pid"));
    first.wait().expect("a child");
    let mut second = started(&scratch);
    // As systemd ends what does not stop: by a signal.
    let pid = rustix::process::Pid::from_child(&second);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("a signal");
    assert!(second.wait().expect("a child").success());
}
