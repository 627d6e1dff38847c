//! What is to be mounted where, and every reason not to that can be known before.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::StatVfsMountFlags;

use super::super::mount::{Audience, MountArgs};
use super::super::{Failure, sources};
use super::options::Options;
use super::say;
use crate::client::{Client, fettle_mounts};
use crate::overlay::RuleSource;
use crate::protocol::{ErrorCode, Op, Reply, Request, STATE_DIRECTORY, VersionReply};
use crate::store::Location;
use crate::sys::mount::{self, FS_TYPE, MountEntry, UnmountMode, is_death};

/// Everything the daemon needs, all paths absolute and without links.
pub struct Plan {
    pub project: PathBuf,
    pub mountpoint: PathBuf,
    pub audience: Audience,
    pub options: Options,
    pub location: Location,
    pub source: RuleSource,
    pub is_root: bool,
}

impl Plan {
    pub fn make(arguments: &MountArgs) -> Result<Self, Failure> {
        let project = directory(&arguments.project, "project")?;
        let mountpoint = match &arguments.mountpoint {
            Some(path) => directory(path, "mountpoint")?,
            None => project.clone(),
        };
        let source = sources::rule_source(&project, Some(&mountpoint), &arguments.settings)?;
        let plan = Self {
            project,
            mountpoint,
            source,
            audience: arguments.audience,
            options: Options::parse(&arguments.options)?,
            location: sources::location()?,
            is_root: rustix::process::geteuid().is_root(),
        };
        plan.check()?;
        Ok(plan)
    }

    /// Takes a dead mount of the project away first: nothing can be asked behind one.
    pub fn check(&self) -> Result<(), Failure> {
        self.check_mountpoint()?;
        self.check_state_directories()?;
        self.take_dead_mounts_away()?;
        self.check_other_mounts()?;
        self.check_project()?;
        check_fuse()
    }

    pub fn state_directory(&self) -> PathBuf {
        self.location.state.clone().unwrap_or_else(|| self.project.join(STATE_DIRECTORY))
    }

    fn check_mountpoint(&self) -> Result<(), Failure> {
        let (project, mountpoint) = (&self.project, &self.mountpoint);
        if mountpoint != project && mountpoint.starts_with(project) {
            return Err(refused(format!(
                "the mountpoint {} lies in the project {}: mount over the project itself, or outside of it",
                mountpoint.display(),
                project.display()
            )));
        }
        for state in self.state_directories() {
            if mountpoint.starts_with(state) {
                return Err(refused(format!(
                    "the mountpoint {} lies in the state directory {}",
                    mountpoint.display(),
                    state.display()
                )));
            }
        }
        Ok(())
    }

    /// Those that are given by name.
    fn state_directories(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.location.state, &self.location.backups, &self.location.stage].into_iter().flatten()
    }

    /// The view would show one in the project, and programs in it would write there.
    fn check_state_directories(&self) -> Result<(), Failure> {
        let is_shown =
            |place: PathBuf| place.starts_with(&self.project) && !place.starts_with(self.project.join(STATE_DIRECTORY));
        match self.state_directories().find(|state| is_shown(resolved(state))) {
            Some(state) => Err(refused(format!(
                "the state directory {} lies in the project {}: leave it out, or choose one outside of it",
                state.display(),
                self.project.display()
            ))),
            None => Ok(()),
        }
    }

    /// A mount whose daemon died is replaced, wherever it stood; what it held is in the state directory.
    fn take_dead_mounts_away(&self) -> Result<(), Failure> {
        let elsewhere = fettle_mounts()?.into_iter().filter(|entry| entry.source == self.project.as_os_str());
        let elsewhere = elsewhere.map(|entry| entry.mountpoint);
        for path in [self.mountpoint.clone(), self.project.clone()].into_iter().chain(elsewhere) {
            while let Some(entry) = fettle_mount_at(&path)?.filter(|_| mount::is_dead(&path)) {
                take_away(&path)?;
                say(format_args!("took away the dead mount of {} on {}", entry.source.display(), path.display()));
            }
        }
        Ok(())
    }

    fn check_other_mounts(&self) -> Result<(), Failure> {
        for path in [&self.mountpoint, &self.project] {
            if let Some(entry) = fettle_mount_at(path)? {
                let (path, source, holder) = (path.display(), entry.source.display(), holder(path));
                return Err(busy(format!("{path} is already covered by a mount of {source}{holder}")));
            }
        }
        for MountEntry { mountpoint, source, .. } in fettle_mounts()? {
            let (project, source) = (&self.project, PathBuf::from(source));
            let around = if project.starts_with(&mountpoint) { &mountpoint } else { &source };
            if project != around && project.starts_with(around) {
                return Err(busy(format!(
                    "{} lies in {}, which is mounted on {}{}",
                    project.display(),
                    source.display(),
                    mountpoint.display(),
                    holder(&mountpoint)
                )));
            }
        }
        Ok(())
    }

    fn check_project(&self) -> Result<(), Failure> {
        let project = self.project.display();
        let facts =
            rustix::fs::statvfs(&self.project).map_err(|err| told(&format!("look at {project}"), err.into()))?;
        if self.location.state.is_none() && facts.f_flag.contains(StatVfsMountFlags::RDONLY) {
            let message =
                format!("{project} is on a read-only file system, and {STATE_DIRECTORY} has to be made there");
            return Err(Failure::new(ErrorCode::NotPermitted, message));
        }
        Ok(())
    }
}

/// A directory as an absolute path without links. A dead mount on it has no answer to give, and needs none.
pub fn directory(path: &Path, what: &str) -> Result<PathBuf, Failure> {
    let failed = |err: io::Error| {
        let code = match err.kind() {
            io::ErrorKind::PermissionDenied => ErrorCode::NotPermitted,
            _ => ErrorCode::UnknownPath,
        };
        Failure::new(code, format!("{what} {}: {err}", path.display()))
    };
    let resolved = match std::fs::canonicalize(path) {
        Err(err) if is_death(&err) => std::path::absolute(path),
        resolved => resolved,
    };
    let resolved = resolved.map_err(failed)?;
    match std::fs::metadata(&resolved) {
        Ok(metadata) if !metadata.is_dir() => Err(failed(io::ErrorKind::NotADirectory.into())),
        Err(err) if !is_death(&err) => Err(failed(err)),
        Ok(_) | Err(_) => Ok(resolved),
    }
}

fn fettle_mount_at(path: &Path) -> Result<Option<MountEntry>, Failure> {
    let entry = mount::mount_at(path).map_err(|err| told(&format!("look for a mount on {}", path.display()), err))?;
    Ok(entry.filter(|entry| entry.fs_type == FS_TYPE))
}

/// As root, or else by the set-uid program that made it.
pub fn take_away(path: &Path) -> Result<(), Failure> {
    let done = match mount::unmount(path, UnmountMode::Detach) {
        Err(err) if err.kind() == io::ErrorKind::PermissionDenied => {
            mount::unmount_with_helper(path, UnmountMode::Detach)
        }
        done => done,
    };
    done.map_err(|err| told(&format!("unmount {}", path.display()), err))
}

/// A path without symlinks, as far as it is there.
fn resolved(path: &Path) -> PathBuf {
    let there = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    let whole = there.and_then(|(above, real)| Some(real.join(path.strip_prefix(above).ok()?)));
    whole.unwrap_or_else(|| path.to_owned())
}

/// Asked as this user: `fusermount3` gives up its privilege before it opens the device.
fn check_fuse() -> Result<(), Failure> {
    match mount::open_fuse_device() {
        Ok(_) => Ok(()),
        Err(err) if matches!(err.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ENXIO)) => {
            let message = "there is no /dev/fuse: `modprobe fuse`, or `--device /dev/fuse` for a container";
            Err(Failure::new(ErrorCode::Io, message))
        }
        Err(err) if err.kind() == io::ErrorKind::PermissionDenied => {
            let message = "/dev/fuse may not be opened by this user; as root: chmod 666 /dev/fuse";
            Err(Failure::new(ErrorCode::NotPermitted, message))
        }
        Err(err) => Err(told("open /dev/fuse", err)),
    }
}

/// Who answers for a mount, where it says so.
fn holder(mountpoint: &Path) -> String {
    let asked = Client::open(mountpoint, super::super::offline::answer)
        .map(|mut client| client.ask(&Request::new(Op::Version)));
    match asked {
        Ok(Ok(Reply::Version(VersionReply { pid: Some(pid), .. }))) => format!(" (pid {pid})"),
        Ok(_) | Err(_) => String::new(),
    }
}

fn refused(message: String) -> Failure {
    Failure::usage(message)
}

fn busy(message: String) -> Failure {
    Failure::new(ErrorCode::Busy, message)
}

fn told(what: &str, err: io::Error) -> Failure {
    super::told(what, &err)
}
