//! A scratch project with the program mounted over it, or beside it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::processes::{is_alive, kill, mounts_below};
use super::scratch::fuse_is_missing;
use super::{Held, Output, Scratch, eventually};

/// Words of `-o` for every mount: `FETTLE_TEST_OPTIONS=nopassthrough cargo test` runs the suite the other way.
const OPTIONS_VARIABLE: &str = "FETTLE_TEST_OPTIONS";

/// How to mount; [`Mounting::start`] does it.
#[must_use]
pub struct Mounting<'s> {
    scratch: &'s Scratch,
    flags: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    mountpoint: Option<PathBuf>,
    wrapper: Vec<&'static str>,
}

impl<'s> Mounting<'s> {
    pub(super) fn of(scratch: &'s Scratch) -> Self {
        Self { scratch, flags: Vec::new(), env: Vec::new(), mountpoint: None, wrapper: Vec::new() }
    }

    /// As `&` in a script starts a program.
    pub fn in_background_of_script(self) -> Self {
        self.started_by(&["env", "--ignore-signal=INT", "--ignore-signal=QUIT"])
    }

    /// By a program that starts the one its further words name.
    pub fn started_by(mut self, wrapper: &[&'static str]) -> Self {
        self.wrapper = wrapper.to_vec();
        self
    }

    pub fn flag(mut self, flag: impl Into<OsString>) -> Self {
        self.flags.push(flag.into());
        self
    }

    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Below the scratch directory; made when it is not there.
    pub fn at(mut self, name: &str) -> Self {
        self.mountpoint = Some(self.scratch.root().join(name));
        self
    }

    /// Mounts in the background and returns once the view answers, as the program promises.
    #[track_caller]
    pub fn start(self) -> View<'s> {
        let point = self.mountpoint.clone().unwrap_or_else(|| self.scratch.project());
        let output = self.run();
        assert_eq!(output.status, 0, "mount failed\nstdout:\n{}\nstderr:\n{}", output.stdout, output.stderr);
        assert!(mounts_below(&point).contains(&point), "`mount` said it was done, the kernel knows no mount");
        let root = File::open(&point).expect("the view answers");
        drop(root);
        View { scratch: self.scratch, point, mount_output: output }
    }

    /// Tries to mount and gives what the program said, for a mount that should be refused.
    #[track_caller]
    pub fn run(&self) -> Output {
        assert!(
            !fuse_is_missing(),
            "no /dev/fuse: this test needs a real mount. Load it (`modprobe fuse`, or `--device /dev/fuse` for a \
             container), or set FETTLE_TEST_SKIP_FUSE=1 to go without"
        );
        let program = self.scratch.fettlefs().get_program().to_owned();
        let mut words = self.wrapper.iter().map(OsString::from).chain([program]);
        let mut command = self.scratch.command(words.next().expect("at least the program"));
        command.args(words).current_dir(self.scratch.root()).arg("mount");
        // Before the test's own: of two words that contradict each other the later one counts.
        if let Some(options) = std::env::var_os(OPTIONS_VARIABLE) {
            command.arg("-o").arg(options);
        }
        command.args(&self.flags).arg(self.scratch.project());
        if let Some(point) = &self.mountpoint {
            match fs::create_dir_all(point) {
                // A dead mount, which cannot be looked at; `mount` says what it makes of it.
                Err(err) if err.kind() == std::io::ErrorKind::AlreadyExists => {}
                made => made.expect("the mountpoint"),
            }
            command.arg(point);
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        // Files, not pipes: a daemon that kept one open would keep us waiting for its end.
        let (out, err) = (self.scratch.root().join("mount.out"), self.scratch.root().join("mount.err"));
        command.stdout(File::create(&out).expect("a file for output"));
        command.stderr(File::create(&err).expect("a file for errors"));
        let status = command.status().expect("the built program runs");
        let read = |path: &Path| fs::read(path).expect("what it printed");
        std::process::Output { status, stdout: read(&out), stderr: read(&err) }.into()
    }
}

/// A running mount. Dropped, it is unmounted and its daemon is gone.
pub struct View<'s> {
    scratch: &'s Scratch,
    point: PathBuf,
    /// What `mount` printed.
    pub mount_output: Output,
}

impl View<'_> {
    /// Where programs work: the mountpoint.
    pub fn root(&self) -> &Path {
        &self.point
    }

    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.point.join(path)
    }

    pub fn scratch(&self) -> &Scratch {
        self.scratch
    }

    /// The project's own files, below this mount.
    pub fn lower(&self) -> PathBuf {
        self.scratch.lower()
    }

    /// Writes a file in the view as most programs do: open, truncate, write, close.
    #[track_caller]
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) {
        let path = self.path(path);
        fs::write(&path, content).unwrap_or_else(|err| panic!("write {} in the view: {err}", path.display()));
    }

    /// Saves as careful editors do: a temp file beside it, renamed over.
    #[track_caller]
    pub fn write_by_rename(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) {
        let path = self.path(path);
        let mut temp = path.clone().into_os_string();
        temp.push(".tmp~");
        fs::write(&temp, content).unwrap_or_else(|err| panic!("write {} in the view: {err}", temp.display()));
        fs::rename(&temp, &path).unwrap_or_else(|err| panic!("rename to {} in the view: {err}", path.display()));
    }

    #[track_caller]
    pub fn read(&self, path: impl AsRef<Path>) -> String {
        let content = self.try_read(&path);
        let content = content.unwrap_or_else(|err| panic!("read {} in the view: {err}", path.as_ref().display()));
        String::from_utf8_lossy(&content).into_owned()
    }

    pub fn try_read(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        fs::read(self.path(path))
    }

    /// Whether the view has an entry of that name, dangling symlinks included.
    pub fn has(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).symlink_metadata().is_ok()
    }

    /// Runs `sh -c script` in the view.
    pub fn sh(&self, script: &str) -> Output {
        let output = self.scratch.command("sh").current_dir(&self.point).args(["-c", script]).output();
        output.expect("a shell").into()
    }

    /// Runs fettlefs as somebody who stands in the view.
    pub fn cli(&self, args: &[&str]) -> Output {
        self.cli_if_reached(args).expect("the built program runs")
    }

    /// An error while a mount is dead or its daemon dies.
    fn cli_if_reached(&self, args: &[&str]) -> io::Result<Output> {
        Ok(self.scratch.fettlefs().current_dir(&self.point).args(args).output()?.into())
    }

    #[track_caller]
    pub fn status(&self) -> Value {
        self.cli(&["status", "--json"]).ok().json()
    }

    #[track_caller]
    pub fn held(&self) -> Vec<Held> {
        Held::all_in(&self.status())
    }

    /// The one held change; panics when there is not exactly one.
    #[track_caller]
    pub fn only_held(&self) -> Held {
        let mut held = self.held();
        assert_eq!(held.len(), 1, "held: {held:#?}");
        held.remove(0)
    }

    /// Panics unless the path reads the same in the view and below, and nothing of it is held.
    #[track_caller]
    pub fn assert_landed(&self, path: &str, content: &str) {
        assert_eq!(self.read(path), content, "{path} in the view");
        assert_eq!(self.scratch.read(path), content, "{path} below");
        assert!(!self.held().iter().any(|held| held.path == path), "{path} is held: {:#?}", self.held());
    }

    /// Panics unless the view shows `content`, the project still has `below`, and the path is held; gives the change.
    #[track_caller]
    pub fn assert_held(&self, path: &str, content: &str, below: &str) -> Held {
        assert_eq!(self.read(path), content, "{path} in the view");
        assert_eq!(self.scratch.read(path), below, "{path} below");
        let held = self.held();
        held.iter().find(|held| held.path == path).unwrap_or_else(|| panic!("{path} is not held: {held:#?}")).clone()
    }

    /// The pid of the daemon, as it says itself.
    #[track_caller]
    pub fn daemon_pid(&self) -> i32 {
        let status = self.status();
        let pid = status["pid"].as_i64().unwrap_or_else(|| panic!("no pid in {status}"));
        pid.try_into().expect("a pid fits")
    }

    /// SIGKILL to the daemon alone, as a crash would end it; its watchdog, if any, lives on. Gives its pid.
    #[track_caller]
    pub fn kill_daemon(&self) -> i32 {
        let pid = self.daemon_pid();
        kill(pid);
        eventually("the killed daemon is gone", || !is_alive(pid));
        pid
    }

    /// Whether a daemon other than `killed` answers.
    pub fn is_served_again(&self, killed: i32) -> bool {
        let Ok(status) = self.cli_if_reached(&["status", "--json"]) else { return false };
        let pid = (status.status == 0).then(|| status.json()["pid"].as_i64()).flatten();
        pid.is_some_and(|pid| pid != i64::from(killed))
    }

    /// Kills the daemon and every watchdog of it, so that nothing restarts it. The dead mount stays.
    #[track_caller]
    pub fn kill_all(&self) {
        let pids = self.scratch.daemons();
        assert!(!pids.is_empty(), "no daemon runs for {}", self.point.display());
        // A watchdog may start another between two looks: each look kills what it finds.
        eventually("every process of the daemon is gone", || {
            let rest = self.scratch.daemons();
            rest.iter().for_each(|pid| kill(*pid));
            rest.is_empty()
        });
    }

    /// Panics unless everything kept for this project agrees with itself.
    #[track_caller]
    pub fn fsck(&self) {
        self.cli(&["fsck"]).ok();
    }

    /// `fettlefs unmount`, which must succeed; gives what it printed. Waits until the daemon is gone.
    #[track_caller]
    pub fn unmount(self) -> Output {
        self.unmount_with(&[])
    }

    #[track_caller]
    pub fn unmount_with(self, args: &[&str]) -> Output {
        self.fsck();
        let output = self.unmount_command(args).output().expect("the built program runs");
        let output = Output::from(output).ok();
        assert!(!self.is_mounted(), "`unmount` succeeded and left {} mounted", self.point.display());
        eventually("the daemon is gone after unmount", || self.scratch.daemons().is_empty());
        output
    }

    pub fn is_mounted(&self) -> bool {
        mounts_below(&self.point).contains(&self.point)
    }

    /// From outside, so that the program does not stand in what it unmounts.
    fn unmount_command(&self, args: &[&str]) -> std::process::Command {
        let mut command = self.scratch.fettlefs();
        command.current_dir(self.scratch.root()).arg("-C").arg(&self.point).arg("unmount").args(args);
        command
    }
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        let mut problems = None;
        if self.is_mounted() {
            if !std::thread::panicking() {
                let checked = self.cli(&["fsck"]);
                // Other statuses: nobody answers any more, as the test wanted it.
                if checked.status == 1 && checked.stdout.contains("problem") {
                    problems = Some(checked.stdout);
                }
            }
            let child = self.unmount_command(&[]).stdout(std::process::Stdio::null()).spawn();
            if let Ok(mut child) = child {
                // A daemon that hangs must not hang the test that found it out.
                let ended = super::within(super::PATIENCE, || !matches!(child.try_wait(), Ok(None)));
                if !ended && let Err(err) = child.kill().and_then(|()| child.wait()) {
                    eprintln!("harness: unmount could not be ended: {err}");
                }
            }
        }
        self.scratch.clear();
        if let Some(problems) = problems {
            panic!("{problems}");
        }
    }
}
