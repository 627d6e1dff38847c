//! Trial mounts, by this very program with the rights of its user.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::super::mount_start::take_away;
use super::Finding;
use super::checks::in_container;
use crate::client::fettle_mounts;
use crate::protocol::STATE_VARIABLE;
use crate::store::{BACKUP_VARIABLE, STAGE_VARIABLE};
use crate::sys::mount::mount_at;
use crate::sys::signals::{Termination, unblock_in};

/// How long a trial may take. A view that has not answered by then never will.
const TRIAL_MAX: Duration = Duration::from_secs(60);
/// How long it may still take when a signal asks this program to end: it takes its own mount away best.
const ASKED_MAX: Duration = Duration::from_secs(5);
/// How often to look whether a signal has come.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A result whose error is worded for people.
type Tried<T> = Result<T, String>;

/// Leaves nothing behind, also if a signal comes, which ends the program once it is unblocked.
pub fn all(project: &Path, signals: &Termination) -> Vec<Finding> {
    let scratch = match tempfile::Builder::new().prefix("fettle-doctor.").tempdir() {
        Ok(scratch) => scratch,
        Err(err) => {
            let message = format!("make a directory in {}: {err}", std::env::temp_dir().display());
            return vec![Finding::fault("trial", message, "name one that can be written by TMPDIR")];
        }
    };
    let mut findings = mount_project(project, scratch.path(), signals);
    if !has_come(signals) {
        findings.push(change_scratch(scratch.path(), signals));
    }
    if let Err(err) = scratch.close() {
        findings.push(Finding::note("trial", format!("remove the scratch directory: {err}"), "remove it by hand"));
    }
    findings
}

/// Mounts the project with its settings, read-only: nothing in it is changed, and its own state is not touched.
fn mount_project(project: &Path, scratch: &Path, signals: &Termination) -> Vec<Finding> {
    const CHECK: &str = "trial of the project";
    match place_of_mount(project) {
        Ok(None) => {}
        Ok(Some(mountpoint)) => {
            return vec![Finding::ok(CHECK, format!("left out: it is mounted on {}", mountpoint.display()))];
        }
        Err(message) => return vec![Finding::fault(CHECK, message, "mount /proc")],
    }
    let view = View {
        mountpoint: scratch.join("view-of-project"),
        environment: vec![(STATE_VARIABLE, scratch.join("state").into_os_string())],
        // Both would be the project's own directories.
        unset: [STAGE_VARIABLE, BACKUP_VARIABLE].map(OsString::from).into(),
    };
    let project = project.to_owned();
    let tried = in_time(&view.mountpoint.clone(), signals, move || {
        let begun = Instant::now();
        view.mount(&project, &["-o", "ro"])?;
        fs::read_dir(&view.mountpoint).map_err(|err| format!("list the view: {err}"))?.count();
        let passes = view.status()?["passthrough"].as_bool().unwrap_or(false);
        view.unmount()?;
        Ok((passes, begun.elapsed()))
    });
    match tried {
        Err(message) => vec![fault(CHECK, message)],
        Ok((passes, took)) => {
            let message = format!("mounted beside itself, read-only, and unmounted in {} ms", took.as_millis());
            vec![Finding::ok(CHECK, message), passthrough(passes)]
        }
    }
}

fn passthrough(passes: bool) -> Finding {
    const CHECK: &str = "passthrough";
    if passes {
        return Finding::ok(CHECK, "the kernel reads and writes by itself what nobody judges");
    }
    let remedy = match rustix::process::geteuid().is_root() {
        true => "put the project on a file system that is not itself an overlay, under Linux 6.9 or later",
        false => "mount as root",
    };
    Finding::note(CHECK, "files that nobody judges go through the daemon, which is slower", remedy)
}

/// Makes a small change, which must land, and a large one, which must wait until it is confirmed.
fn change_scratch(scratch: &Path, signals: &Termination) -> Finding {
    const CHECK: &str = "trial of a change";
    let project = scratch.join("project");
    let view = View {
        mountpoint: scratch.join("view"),
        // The user's own settings must not decide what is small.
        environment: vec![("XDG_CONFIG_HOME", scratch.join("config").into_os_string())],
        unset: std::env::vars_os().map(|(name, _)| name).filter(|name| is_ours(name)).collect(),
    };
    let tried = in_time(&view.mountpoint.clone(), signals, move || {
        let told = |what: &'static str| move |err: io::Error| format!("{what}: {err}");
        let (below, above) = (project.join("file"), view.mountpoint.join("file"));
        let (old, small, large) = ("a line\n".repeat(100), "a line\n".repeat(101), "another\n".repeat(100));
        fs::create_dir(&project).and_then(|()| fs::write(&below, &old)).map_err(told("make a scratch project"))?;
        view.mount(&project, &[])?;
        let expect = |expected: &str, what: &str| match fs::read_to_string(&below).map_err(told("read below"))? {
            found if found == expected => Ok(()),
            _ => Err(what.to_owned()),
        };
        fs::write(&above, &small).map_err(told("write in the view"))?;
        expect(&small, "a small change did not land")?;
        fs::write(&above, &large).map_err(told("write in the view"))?;
        expect(&small, "a rewrite landed unreviewed")?;
        view.ask(&["confirm", "file"])?;
        expect(&large, "a confirmed change did not land")?;
        view.unmount()
    });
    match tried {
        Ok(()) => Finding::ok(CHECK, "a small one landed, a rewrite waited and landed when confirmed"),
        Err(message) => fault(CHECK, message),
    }
}

/// Runs a command in a private view, by a user namespace, as for a user that may not mount.
pub fn run(signals: &Termination) -> Finding {
    const CHECK: &str = "trial of a run";
    let scratch = tempfile::Builder::new().prefix("fettle-doctor.").tempdir();
    let scratch = match scratch.and_then(|scratch| fs::create_dir(scratch.path().join("project")).map(|()| scratch)) {
        Ok(scratch) => scratch,
        Err(err) => {
            let remedy = "set TMPDIR to a directory that you may write to";
            return Finding::fault(CHECK, format!("make a scratch project: {err}"), remedy);
        }
    };
    let project = scratch.path().join("project");
    let view = View {
        // Nothing is mounted here: the view lies over the project, where only the command sees it.
        mountpoint: project.clone(),
        environment: vec![("XDG_CONFIG_HOME", scratch.path().join("config").into_os_string())],
        unset: std::env::vars_os().map(|(name, _)| name).filter(|name| is_ours(name)).collect(),
    };
    let tried = in_time(&project.clone(), signals, move || view.ask(&["run", "--", "mkdir", "made"]));
    let tried = tried.and_then(|_| match project.join("made").is_dir() {
        true => Ok(()),
        false => Err("what a command made in its view did not land".to_owned()),
    });
    match tried {
        Ok(()) => Finding::ok(CHECK, "by a user namespace; what it made landed"),
        Err(message) => {
            let remedy = match in_container() {
                true => "start the container with --security-opt seccomp=unconfined --security-opt apparmor=unconfined",
                false => "allow user namespaces, or mount as root",
            };
            Finding::fault(CHECK, message, remedy)
        }
    }
}

fn fault(check: &'static str, message: String) -> Finding {
    let refused = ["not permitted", "Permission denied"].iter().any(|words| message.contains(words));
    let remedy = match refused && in_container() {
        true => "start the container with --device /dev/fuse --cap-add SYS_ADMIN --security-opt apparmor=unconfined",
        false => "see what it says: fettlefs mount -f",
    };
    Finding::fault(check, message, remedy)
}

fn place_of_mount(project: &Path) -> Tried<Option<PathBuf>> {
    let mounts = fettle_mounts().map_err(|err| err.to_string())?;
    let its = mounts.into_iter().find(|entry| entry.source == project.as_os_str() || entry.mountpoint == project);
    Ok(its.map(|entry| entry.mountpoint))
}

fn is_ours(variable: &OsStr) -> bool {
    variable.as_encoded_bytes().starts_with(b"FETTLE_")
}

/// Runs a trial with a time limit, and then takes the view away: one that does not answer would block it for ever.
fn in_time<T: Send + 'static>(
    mountpoint: &Path,
    signals: &Termination,
    trial: impl FnOnce() -> Tried<T> + Send + 'static,
) -> Tried<T> {
    let (done, wait) = channel();
    thread::spawn(move || {
        if done.send(trial()).is_err() {
            log::debug!("a trial ended after its time");
        }
    });
    let begun = Instant::now();
    let mut asked = None;
    loop {
        match wait.recv_timeout(LOOK_EVERY) {
            Ok(tried) => return tried,
            Err(RecvTimeoutError::Disconnected) => return Err("the trial has panicked".to_owned()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if asked.is_none() && has_come(signals) {
            asked = Some(Instant::now());
        }
        if begun.elapsed() >= TRIAL_MAX || asked.is_some_and(|asked| asked.elapsed() >= ASKED_MAX) {
            let gone =
                take_away(mountpoint).map_or_else(|err| format!(", and stays: {}", err.message()), |()| String::new());
            return Err(format!("no answer within {} s{gone}", begun.elapsed().as_secs()));
        }
    }
}

fn has_come(signals: &Termination) -> bool {
    signals.has_come().unwrap_or_else(|err| {
        log::warn!("look whether a signal has come: {err}");
        false
    })
}

/// A trial mount, which is taken away when this is dropped.
struct View {
    mountpoint: PathBuf,
    environment: Vec<(&'static str, OsString)>,
    unset: Vec<OsString>,
}

impl View {
    fn mount(&self, project: &Path, options: &[&str]) -> Tried<()> {
        fs::create_dir(&self.mountpoint).map_err(|err| format!("make a mountpoint: {err}"))?;
        let mut words: Vec<&OsStr> = vec!["mount".as_ref()];
        words.extend(options.iter().map(OsStr::new));
        words.extend([project.as_os_str(), self.mountpoint.as_os_str()]);
        self.run(&words).map(|_| ())
    }

    fn unmount(&self) -> Tried<()> {
        self.ask(&["unmount"]).map(|_| ())
    }

    fn status(&self) -> Tried<Value> {
        let output = self.ask(&["status", "--json"])?;
        serde_json::from_slice(&output.stdout).map_err(|err| format!("status: {err}"))
    }

    /// Runs the program as if started in the view.
    fn ask(&self, words: &[&str]) -> Tried<Output> {
        let here: [&OsStr; 2] = ["-C".as_ref(), self.mountpoint.as_os_str()];
        self.run(&here.into_iter().chain(words.iter().map(OsStr::new)).collect::<Vec<_>>())
    }

    fn run(&self, words: &[&OsStr]) -> Tried<Output> {
        let program = std::env::current_exe().map_err(|err| format!("find this program: {err}"))?;
        let mut command = Command::new(program);
        for name in &self.unset {
            command.env_remove(name);
        }
        command.args(words).envs(self.environment.iter().cloned()).stdin(Stdio::null());
        // Ctrl-C is for this program, which ends when the trial has: a mount that is half made could not be taken away.
        unblock_in(&mut command).process_group(0);
        let output = command.output().map_err(|err| format!("start this program: {err}"))?;
        if output.status.success() {
            return Ok(output);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().rfind(|line| line.starts_with("fettlefs: ")).unwrap_or_default();
        Err(last.trim_start_matches("fettlefs: ").to_owned())
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if let Ok(Some(_)) = mount_at(&self.mountpoint)
            && let Err(err) = take_away(&self.mountpoint)
        {
            log::warn!("take the trial mount away: {}", err.message());
        }
    }
}
