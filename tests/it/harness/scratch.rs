//! A project of its own for one test.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::processes::{all_gone, detach, kill, mounts_below, serving};
use super::{Mounting, Output, View, normalise, within};

/// A directory with a `project` in it, and a `home` whose settings are empty.
pub struct Scratch {
    /// Emptied by [`Scratch::drop`], which first makes sure that nothing is mounted in it.
    dir: Option<TempDir>,
    root: PathBuf,
    /// Opened before anything is mounted, so that it leads below whatever covers the project.
    lower: File,
    program: PathBuf,
}

impl Scratch {
    /// On the disk: under `$TMPDIR`, else in the build's own scratch directory.
    pub fn new() -> Self {
        let parent = std::env::var_os("TMPDIR").map_or_else(|| env!("CARGO_TARGET_TMPDIR").into(), PathBuf::from);
        fs::create_dir_all(&parent).expect("the scratch directory's parent");
        let dir = tempfile::Builder::new().prefix("fettle-").tempdir_in(parent).expect("a scratch directory");
        let root = dir.path().canonicalize().expect("the scratch directory's true path");
        for name in ["project", "home/.config"] {
            fs::create_dir_all(root.join(name)).expect("a directory in the scratch directory");
        }
        let lower = File::open(root.join("project")).expect("the project's directory");
        let program = std::env::var_os("FETTLE_TEST_BIN").map_or(env!("CARGO_BIN_EXE_fettlefs").into(), PathBuf::from);
        Self { dir: Some(dir), root, lower, program }
    }

    /// Has the project on a file system of its own, which `mount` mounts there. Before anything is in it.
    pub fn put_disk_below<T>(&mut self, mount: impl FnOnce(&Path) -> T) -> T {
        let disk = mount(&self.project());
        self.lower = File::open(self.project()).expect("the project's directory on its disk");
        disk
    }

    /// None where there is no /dev/fuse and `FETTLE_TEST_SKIP_FUSE=1` allows for it; see `mounted_scratch!`.
    pub fn for_mounting() -> Option<Self> {
        if fuse_is_missing() && std::env::var_os("FETTLE_TEST_SKIP_FUSE").is_some_and(|value| value == "1") {
            eprintln!("skipped: no /dev/fuse, and FETTLE_TEST_SKIP_FUSE=1");
            return None;
        }
        Some(Self::new())
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The project by the path people know. Covered while a mount covers it.
    pub fn project(&self) -> PathBuf {
        self.root.join("project")
    }

    /// The project's own files, also below a covering mount. Good for this process and for its children.
    pub fn lower(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", process::id(), self.lower.as_raw_fd()).into()
    }

    /// Writes a file of the project itself, below any mount, parents included.
    #[track_caller]
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) {
        let path = self.lower().join(path);
        fs::create_dir_all(path.parent().expect("a file has a parent")).expect("the file's directory");
        fs::write(&path, content).unwrap_or_else(|err| panic!("write {}: {err}", path.display()));
    }

    /// Reads a file of the project itself, below any mount.
    #[track_caller]
    pub fn read(&self, path: impl AsRef<Path>) -> String {
        String::from_utf8_lossy(
            &self.try_read(&path).unwrap_or_else(|err| panic!("read {} below: {err}", path.as_ref().display())),
        )
        .into_owned()
    }

    pub fn try_read(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        fs::read(self.lower().join(path))
    }

    /// Whether the project itself has an entry of that name, dangling symlinks included.
    pub fn has(&self, path: impl AsRef<Path>) -> bool {
        self.lower().join(path).symlink_metadata().is_ok()
    }

    /// Makes the project a git repository with everything in it committed.
    #[track_caller]
    pub fn git_init(&self) {
        self.git(&["init", "-q", "-b", "main"]).ok();
        self.git(&["add", "-A"]).ok();
        self.git(&["commit", "-q", "--allow-empty", "-m", "start"]).ok();
    }

    /// git in the project by its path, so in the view when a mount covers it.
    pub fn git(&self, args: &[&str]) -> Output {
        self.command("git").current_dir(self.project()).args(args).output().expect("git").into()
    }

    /// Any program in this scratch's surroundings: its home, no settings, English, UTC.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            let name_text = name.to_string_lossy();
            if name_text.starts_with("FETTLE_") || name_text.starts_with("GIT_") {
                command.env_remove(name);
            }
        }
        let home = self.root.join("home");
        command.env("XDG_CONFIG_HOME", home.join(".config")).env("HOME", home);
        command.envs([("LC_ALL", "C.UTF-8"), ("TZ", "UTC"), ("PAGER", "cat"), ("GIT_CONFIG_NOSYSTEM", "1")]);
        for who in ["AUTHOR", "COMMITTER"] {
            command.env(format!("GIT_{who}_NAME"), "Tester").env(format!("GIT_{who}_EMAIL"), "tester@example.org");
        }
        command.stdin(Stdio::null());
        command
    }

    /// fettlefs itself in this scratch's surroundings, for a run that needs more than [`Scratch::cli`] gives.
    pub fn fettlefs(&self) -> Command {
        self.command(&self.program)
    }

    /// Runs fettlefs outside any mount, on the project by `-C`.
    pub fn cli(&self, args: &[&str]) -> Output {
        let output = self.fettlefs().current_dir(&self.root).arg("-C").arg(self.project()).args(args).output();
        output.expect("the built program runs").into()
    }

    /// Mounts over the project itself.
    #[track_caller]
    pub fn mount(&self) -> View<'_> {
        self.mounting().start()
    }

    /// Mounts at `name` in the scratch directory, the project staying visible at its own path.
    #[track_caller]
    pub fn mount_at(&self, name: &str) -> View<'_> {
        self.mounting().at(name).start()
    }

    /// A mount with flags, variables or a mountpoint to be chosen.
    pub fn mounting(&self) -> Mounting<'_> {
        Mounting::of(self)
    }

    /// See [`normalise`]: with this scratch's paths as `[project]` and `[scratch]`.
    pub fn normalise(&self, text: &str) -> String {
        normalise(text, &[("[project]", &self.project()), ("[scratch]", &self.root)])
    }

    /// The daemon of this scratch and what watches it, by pid.
    pub fn daemons(&self) -> Vec<i32> {
        serving(&self.program, &self.root)
    }

    /// Leaves nothing mounted and nothing running; says what it had to end by force.
    pub fn clear(&self) {
        // A daemon that was told to unmount may still be on its way out.
        within(Duration::from_secs(2), || mounts_below(&self.root).is_empty() && self.daemons().is_empty());
        let daemons = self.daemons();
        // The watchdog would start the daemon again: all of them are killed before anything else.
        for pid in &daemons {
            eprintln!("harness: killed fettlefs, pid {pid}, which still served {}", self.root.display());
            kill(*pid);
        }
        for point in mounts_below(&self.root) {
            eprintln!("harness: detached {}, which was still mounted", point.display());
            detach(&point);
        }
        if !all_gone(&daemons) {
            eprintln!("harness: {daemons:?} did not die");
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.clear();
        let Some(dir) = self.dir.take() else { return };
        if !mounts_below(&self.root).is_empty() {
            // Removing the tree would remove through the mount.
            eprintln!("harness: {} is still mounted and stays", dir.keep().display());
        } else if let Err(err) = dir.close() {
            eprintln!("harness: {} stays: {err}", self.root.display());
        }
    }
}

/// Whether this machine cannot mount at all.
pub fn fuse_is_missing() -> bool {
    !Path::new("/dev/fuse").exists()
}
