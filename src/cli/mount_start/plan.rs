//! What is to be mounted where, and every reason to refuse it that can be known beforehand.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, StatVfsMountFlags};

use super::super::mount::{Audience, MountArgs};
use super::super::offline::store_failure;
use super::super::{Failure, offline, sources};
use super::bystanders::Caller;
use super::options::Options;
use super::say;
use crate::client::{Client, ClientError, DeadMount, fettle_mounts, patiently};
use crate::overlay::RuleSource;
use crate::protocol::{ErrorCode, Op, Reply, Request, STATE_DIRECTORY, VersionReply};
use crate::store::{self, Location};
use crate::sys::mount::{self, Device, FS_TYPE, MountEntry, UnmountMode, is_death};
use crate::sys::parcel::Parcel;
use crate::sys::xattr::Gift;

const PLACE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Everything the daemon needs, all paths absolute and without links.
pub struct Plan {
    pub project: PathBuf,
    pub mountpoint: PathBuf,
    pub audience: Audience,
    pub options: Options,
    pub location: Location,
    pub source: RuleSource,
    pub is_root: bool,
    pub caller: Caller,
    /// A dead mount was on the mountpoint when the plan was made.
    was_shut: bool,
    /// The present daemon's mount for everyone, as [`Self::know_mount`] found it.
    mounted: Option<Device>,
    /// The project itself, opened before anything covered it, so neither the coming mount nor a dead one is in the way.
    lower: Parcel,
}

impl Plan {
    pub fn make(arguments: &MountArgs) -> Result<Self, Failure> {
        let (project, mountpoint) = places(arguments)?;
        let source = sources::rule_source(&project, Some(&mountpoint), &arguments.settings)?;
        let plan = Self {
            was_shut: dead_mount_at(&mountpoint)?.is_some(),
            mounted: None,
            project,
            mountpoint,
            source,
            audience: arguments.audience,
            options: Options::parse(&arguments.options)?,
            location: sources::location()?,
            is_root: rustix::process::geteuid().is_root(),
            caller: Caller::this_process(),
            lower: Parcel::empty().map_err(|err| told("open a socket", err))?,
        };
        plan.check_runs_uncover_nothing()?;
        plan.check()?;
        Ok(plan)
    }

    /// Refuses a run over a dead mount for everyone: taking that away would let others write past the review.
    fn check_runs_uncover_nothing(&self) -> Result<(), Failure> {
        match self.audience {
            Audience::Runs if self.was_shut => {
                let dead = DeadMount { mountpoint: self.mountpoint.clone(), project: self.project.clone() };
                Err(ClientError::Stale(dead).into())
            }
            Audience::Runs | Audience::Everyone => Ok(()),
        }
    }

    /// Makes all checks of a first start. A dead mount of the project is no obstacle: another covers it, or it is taken
    /// away first.
    fn check(&self) -> Result<(), Failure> {
        self.check_mountpoint()?;
        self.check_state_directories()?;
        self.check_other_mounts()?;
        self.reach_project()?;
        self.check_attributes_are_kept()?;
        self.check_again()
    }

    /// Checks again before a daemon replaces one that died. Other mounts were checked before the first start and are not
    /// now: anyone may have mounted something since, and a refusal would leave the project uncovered.
    pub fn check_again(&self) -> Result<(), Failure> {
        self.check_project()?;
        check_fuse()
    }

    /// Opens the project, whatever covers it.
    pub fn open_lower(&self) -> io::Result<OwnedFd> {
        self.open_in_lower(".")
    }

    pub fn open_state(&self) -> io::Result<OwnedFd> {
        match &self.location.state {
            Some(state) => Ok(std::fs::File::open(state)?.into()),
            None => self.open_in_lower(STATE_DIRECTORY),
        }
    }

    /// True if no daemon has answered yet.
    pub fn is_first_start(&self) -> bool {
        self.location.known.is_none()
    }

    /// The subcommand that was asked for.
    pub fn doing(&self) -> &'static str {
        match self.audience {
            Audience::Everyone => "mount",
            Audience::Runs => "run",
        }
    }

    /// Remembers which state is there; from now on no other is accepted in its place.
    pub fn know_state(&mut self) -> Result<(), Failure> {
        let instance = self.read_instance(&self.open_state().map_err(|err| self.state_failed(err))?)?;
        self.location.known = Some(instance);
        Ok(())
    }

    /// Remembers the mount that stands, by a number that a renamed directory does not change.
    pub fn know_mount(&mut self) -> Result<(), Failure> {
        if self.audience == Audience::Everyone {
            self.mounted = fettle_mount_at(&self.mountpoint)?.map(|entry| entry.device);
        }
        Ok(())
    }

    /// Has the next mount cover the dead one. A directory above that may have been renamed, and another project made
    /// where it was. An error if the dead one is gone and its place is another directory by now.
    pub fn follow_mount(&mut self) -> Result<(), Failure> {
        let Some(number) = self.mounted else { return Ok(()) };
        let found = mount::mountpoint_of((number, &self.project), &self.mountpoint);
        match found.map_err(|err| told("look for the dead mount", err))? {
            Some(place) if place == self.mountpoint => Ok(()),
            Some(place) => {
                // A state directory elsewhere goes on with the project that it names.
                if self.project == self.mountpoint && self.location.state.is_none() {
                    self.project.clone_from(&place);
                    self.source.project.clone_from(&place);
                }
                self.source.view = Some(place.clone());
                self.mountpoint = place;
                Ok(())
            }
            None => self.check_is_same_project(),
        }
    }

    /// Where nothing is mounted any more, the view over the project itself must come to stand over that.
    fn check_is_same_project(&self) -> Result<(), Failure> {
        let number = |place: io::Result<OwnedFd>| {
            let found = rustix::fs::fstat(place?)?;
            Ok((found.st_dev, found.st_ino))
        };
        let looked_at = |err| told(&format!("look at {}", self.project.display()), err);
        let there = rustix::fs::open(&self.project, PLACE, Mode::empty()).map_err(io::Error::from);
        if self.project == self.mountpoint
            && number(there).map_err(looked_at)? != number(self.open_lower()).map_err(looked_at)?
        {
            return Err(refused(format!("{} is another directory by now", self.project.display())));
        }
        Ok(())
    }

    /// Opens the state directory if it is the one that [`Self::know_state`] remembered.
    pub fn open_known_state(&self) -> Result<OwnedFd, Failure> {
        let state = self.open_state().map_err(|err| self.state_failed(err))?;
        match self.location.known == Some(self.read_instance(&state)?) {
            true => Ok(state),
            false => Err(self.state_failed(io::Error::other("it is not the state that was here before"))),
        }
    }

    fn read_instance(&self, state: &OwnedFd) -> Result<String, Failure> {
        let instance = store::read_instance(state, &self.state_name()).map_err(store_failure)?;
        instance.ok_or_else(|| self.state_failed(io::Error::other("it is no state directory")))
    }

    fn state_name(&self) -> String {
        let inside = || self.project.join(STATE_DIRECTORY);
        self.location.state.clone().unwrap_or_else(inside).display().to_string()
    }

    fn state_failed(&self, err: io::Error) -> Failure {
        told(&format!("open state directory {}", self.state_name()), err)
    }

    fn open_in_lower(&self, name: &str) -> io::Result<OwnedFd> {
        let lower = self.lower.look()?.ok_or(io::ErrorKind::NotFound)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&lower, name, flags, Mode::empty())?)
    }

    /// Releases lower, so that nothing keeps the file system busy. To be called at an end after which no daemon comes,
    /// before the process that waits for that end is told.
    pub fn let_go(&self) -> io::Result<()> {
        self.lower.take().map(|_lower| ())
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

    /// The state directories that are given by name.
    fn state_directories(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.location.state, &self.location.backups, &self.location.stage].into_iter().flatten()
    }

    /// Refuses state directories that the mount would cover. The view would show one inside the project, and programs
    /// would write to it. One below the mountpoint would be out of reach for a daemon that replaces a dead one; a mount
    /// for runs covers it only in their namespace.
    fn check_state_directories(&self) -> Result<(), Failure> {
        let lies_in = |what: &str, state: &Path, place: &Path| {
            let (state, place) = (state.display(), place.display());
            Err(refused(format!(
                "the state directory {state} lies in the {what} {place}: leave it out, or choose one outside of it"
            )))
        };
        for state in self.state_directories() {
            let place = resolved(state);
            if place.starts_with(&self.project) && !place.starts_with(self.project.join(STATE_DIRECTORY)) {
                return lies_in("project", state, &self.project);
            }
            if self.audience == Audience::Everyone && place.starts_with(&self.mountpoint) {
                return lies_in("mountpoint", state, &self.mountpoint);
            }
        }
        Ok(())
    }

    /// Refuses a stage directory whose file system lacks attributes that the project's has. What lands looks like its
    /// copy in there, so each small edit would strip them. Without its ACL, a file grants its group the ACL's mask.
    fn check_attributes_are_kept(&self) -> Result<(), Failure> {
        let Some((stage, variable)) = self.location.given_for_stage() else { return Ok(()) };
        let failed = |path: &Path| {
            let what = format!("look what attributes files in {} can have", path.display());
            move |err| told(&what, err)
        };
        let lower = self.open_lower().map_err(failed(&self.project))?;
        // A missing directory is created later, on the file system of its nearest existing parent.
        let made = resolved(stage);
        let there = made.ancestors().find(|path| path.exists()).unwrap_or(&made);
        let opened = std::fs::File::open(there).map_err(failed(there))?;
        for gift in Gift::ALL {
            let is_had = gift.is_had(lower.as_fd()).map_err(failed(&self.project))?;
            if is_had && !gift.is_had(opened.as_fd()).map_err(failed(there))? {
                return Err(refused(format!(
                    "files in {} can have {}, and in {} ({variable}) cannot: what lands would lose them; choose a \
                     directory on another file system",
                    self.project.display(),
                    gift.words(),
                    stage.display(),
                )));
            }
        }
        Ok(())
    }

    /// Opens the project once, for every daemon of this plan: one that replaces a dead daemon finds the same directory.
    fn reach_project(&self) -> Result<(), Failure> {
        let failed = |err| told(&format!("open {}", self.project.display()), err);
        if self.lower.look().map_err(failed)?.is_some() {
            return Ok(());
        }
        let covered = self.covered_project()?;
        let lower =
            covered.map_or_else(|| rustix::fs::open(&self.project, PLACE, Mode::empty()).map_err(Into::into), Ok);
        self.lower.put(lower.map_err(failed)?.as_fd()).map_err(failed)
    }

    /// Opens the project below the dead mount that the new one is to cover, if there is one. If it cannot be opened, that
    /// mount is taken away, as are the project's dead mounts elsewhere; what they held is in the state directory.
    fn covered_project(&self) -> Result<Option<OwnedFd>, Failure> {
        let mounted = self.mounted_on()?;
        self.check_uncovers_from_outside(&mounted)?;
        for path in mounted.iter().filter(|path| !self.is_to_cover(path)) {
            take_dead_away(path)?;
        }
        if dead_mount_at(&self.project)?.is_none() {
            return Ok(None);
        }
        let opened = mount::open_covered(&self.project);
        if opened.is_err() {
            take_dead_away(&self.project)?;
        }
        Ok(opened.ok())
    }

    /// Refuses a process that a run left behind: the dead view keeps it out of the project until another is mounted.
    fn check_uncovers_from_outside(&self, mounted: &[PathBuf]) -> Result<(), Failure> {
        for path in mounted {
            if dead_mount_at(path)?.is_some() {
                let dead = DeadMount { mountpoint: path.clone(), project: self.project.clone() };
                return Ok(offline::check_outside("mount", &dead)?);
            }
        }
        Ok(())
    }

    fn is_to_cover(&self, path: &Path) -> bool {
        self.is_root && self.audience == Audience::Everyone && path == self.mountpoint
    }

    /// Cleans up after a failed start: where nothing was mounted nothing is left; what a dead mount kept shut stays so.
    pub fn leave_as_found(&self) -> Result<(), Failure> {
        match self.was_shut || self.audience == Audience::Runs {
            true => Ok(()),
            false => take_dead_away(&self.mountpoint),
        }
    }

    /// The same if the watchdog has died and may have left a daemon behind that nothing watches.
    pub fn take_unwatched_away(&self) -> Result<(), Failure> {
        match self.was_shut || self.audience == Audience::Runs || fettle_mount_at(&self.mountpoint)?.is_none() {
            true => Ok(()),
            false => take_away(&self.mountpoint),
        }
    }

    /// Makes the project reachable again when no other daemon will come.
    pub fn take_dead_mounts_away(&self) -> Result<(), Failure> {
        self.mounted_on()?.iter().try_for_each(|path| take_dead_away(path))
    }

    /// Returns all places where mounts of the project are or may be.
    fn mounted_on(&self) -> Result<Vec<PathBuf>, Failure> {
        let mounts = fettle_mounts()?.into_iter().filter(|entry| entry.source == self.project.as_os_str());
        let named = [self.mountpoint.clone(), self.project.clone()];
        Ok(named.into_iter().chain(mounts.map(|entry| entry.mountpoint)).collect())
    }

    fn check_other_mounts(&self) -> Result<(), Failure> {
        for path in [&self.mountpoint, &self.project] {
            if let Some(entry) = fettle_mount_at(path)?.filter(|_| !mount::is_dead(path)) {
                let (path, source, holder) = (path.display(), entry.source.display(), holder(path));
                return Err(busy(format!("{path} is already covered by a mount of {source}{holder}")));
            }
        }
        self.check_nested_mounts()
    }

    /// Refuses a view inside another: one would judge what the other does to its own lower as a program's writes. Bind
    /// mounts can show one directory in several places, so paths are compared by what they lead to below all views. What
    /// a view shows is known only from its mounter, who is believed if root or this user.
    fn check_nested_mounts(&self) -> Result<(), Failure> {
        let all = mount::mounts().map_err(|err| told("read the mount table", err))?;
        let (ours, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|entry| entry.fs_type == FS_TYPE);
        let origin = |path: &Path| mount::origin(path, &others);
        let lies_in = |path: &Path, around: &Path| match (origin(path), origin(around)) {
            (Some((device, path)), Some((other, around))) => {
                device == other && path != around && path.starts_with(around)
            }
            _ => false,
        };
        let me = rustix::process::getuid().as_raw();
        for entry in ours {
            let is_believed = entry.user().is_some_and(|user| user == 0 || user == me);
            let MountEntry { mountpoint, source, .. } = entry;
            let (project, source) = (&self.project, PathBuf::from(source));
            let is_viewed = project != &mountpoint && project.starts_with(&mountpoint);
            let shown = is_believed.then_some(&source);
            let inner = shown.into_iter().chain([&mountpoint]).find(|path| lies_in(path, project));
            let nested = match is_viewed || shown.is_some_and(|source| lies_in(project, source)) {
                true => Some(format!("{} lies in {}, which", project.display(), source.display())),
                false => inner.map(|inner| {
                    format!("{} lies in {}, and {}", inner.display(), project.display(), source.display())
                }),
            };
            if let Some(nested) = nested {
                return Err(busy(format!("{nested} is mounted on {}{}", mountpoint.display(), holder(&mountpoint))));
            }
        }
        Ok(())
    }

    fn check_project(&self) -> Result<(), Failure> {
        let project = self.project.display();
        let facts = self.open_lower().and_then(|lower| Ok(rustix::fs::fstatvfs(&lower)?));
        let facts = facts.map_err(|err| told(&format!("look at {project}"), err))?;
        if self.location.state.is_none() && facts.f_flag.contains(StatVfsMountFlags::RDONLY) {
            let wanted = match self.open_in_lower(STATE_DIRECTORY) {
                Ok(_) => "has to be written to: make it read-write, and what is held there can be reviewed",
                Err(_) => "has to be made there: name another place by FETTLE_STATE_DIR",
            };
            let message = format!("{project} is on a read-only file system, and {STATE_DIRECTORY} {wanted}");
            return Err(Failure::new(ErrorCode::NotPermitted, message));
        }
        Ok(())
    }
}

/// Returns the project and the place of its view. Neither may be `/`: paths start below whatever is mounted on it, so no
/// program would be in the view. A run could be, but would find `/dev` and `/proc` as files of the project.
pub fn places(arguments: &MountArgs) -> Result<(PathBuf, PathBuf), Failure> {
    let project = place(&arguments.project, "project")?;
    let mountpoint =
        arguments.mountpoint.as_ref().map_or_else(|| Ok(project.clone()), |path| place(path, "mountpoint"));
    Ok((project, mountpoint?))
}

fn place(path: &Path, what: &'static str) -> Result<PathBuf, Failure> {
    let place = resolve(path, what)?;
    match place.parent() {
        Some(_) => Ok(place),
        None => Err(refused(format!(
            "the {what} is /, and programs would go on below a view there: name another directory"
        ))),
    }
}

/// Resolves a directory to an absolute path without links. One under a dead mount is accepted without a look.
pub fn directory(path: &Path, what: &'static str) -> Result<PathBuf, Failure> {
    let asked = path.to_owned();
    patiently(&[path], move || resolve(&asked, what))?
}

/// The same, but blocks while the daemon of a mount there is stopped.
fn resolve(path: &Path, what: &str) -> Result<PathBuf, Failure> {
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
    // This asks past the kernel's cache, which would answer for a stopped daemon as well.
    if mount::is_dead(&resolved) {
        return Ok(resolved);
    }
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

pub fn dead_mount_at(path: &Path) -> Result<Option<MountEntry>, Failure> {
    Ok(fettle_mount_at(path)?.filter(|_| mount::is_dead(path)))
}

/// Takes away all dead mounts at a path; they may be stacked.
pub fn take_dead_away(path: &Path) -> Result<(), Failure> {
    while let Some(entry) = dead_mount_at(path)? {
        take_away(path)?;
        say(format_args!("took away the dead mount of {} on {}", entry.source.display(), path.display()));
    }
    Ok(())
}

/// Unmounts, as root or else by the set-uid program that made the mount. If that refuses, this user has no right to.
pub fn take_away(path: &Path) -> Result<(), Failure> {
    let refused = |err| io::Error::new(io::ErrorKind::PermissionDenied, err);
    let done = match mount::unmount(path, UnmountMode::Detach) {
        Err(err) if err.kind() == io::ErrorKind::PermissionDenied => {
            mount::unmount_with_helper(path, UnmountMode::Detach).map_err(refused)
        }
        done => done,
    };
    done.map_err(|err| told(&format!("unmount {}", path.display()), err))
}

/// Resolves symlinks in as much of a path as exists.
fn resolved(path: &Path) -> PathBuf {
    let there = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    let whole = there.and_then(|(above, real)| Some(real.join(path.strip_prefix(above).ok()?)));
    whole.unwrap_or_else(|| path.to_owned())
}

/// Opens the device as this user, because `fusermount3` drops its privilege before it does so.
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

/// Returns the pid of the daemon behind a mount in words, or nothing if it does not tell.
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
