//! One mount from its first descriptor to its last.
//!
//! ```text
//!   lower by descriptor ─► lock ─► store, recovery ─┬─► mount ─► serve ─► the view answers ─► ready
//!   look for what stays below the mount ────────────┘
//!   end (asked, signal, umount) ─► flush ─► detach ─► session over, or its time is up ─► settle ─► lock released
//! ```

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use super::super::Failure;
use super::super::offline::{failure, store_failure};
use super::super::repository;
use super::plan::{Plan, dead_mount_at, take_away, take_dead_away};
use super::{bystanders, logger, say};
use crate::client::{ClientError, project_of_state};
use crate::control::{Desk, Mounted, Project, Socket, check_in_no_run, check_nothing_over};
use crate::fuse;
use crate::overlay::{self, Overlay, PolicyError, PolicyLoading};
use crate::protocol::{ErrorBody, ErrorCode, PROJECT_LINK};
use crate::store::{self, HolderNote, Lock, Recovered, Store};
use crate::sys::guard::Guard;
use crate::sys::keeper::Keeper;
use crate::sys::mount::{ConnectionAbort, Device, Door, mount_fuse, mount_fuse_with_helper, mountpoint_of};
use crate::sys::namespace::Leave;
use crate::sys::signals::{Signal, Termination, Wakeup};
use crate::sys::thread;
use crate::sys::tree::Tree;
use crate::sys::{memory, process};

/// How long a signalled daemon waits for writers, and for requests. A machine that is shutting down grants little more.
const SIGNALLED_WAIT: Duration = Duration::from_secs(5);

/// How long a detached mount may live on for programs that are still in it or read an answer.
const DETACHED_SESSION_MAX: Duration = Duration::from_secs(2);

/// How long any other end waits for requests under way, such as a confirm of thousands of changes.
const REQUESTS_WAIT: Duration = Duration::from_secs(30);

const RUNS_LEFT_TICK: Duration = Duration::from_millis(5);

/// How long the view of runs waits for its first run, or for runs to rejoin after their daemon died.
const FIRST_RUN_MAX: Duration = Duration::from_secs(10);

/// The daemon needs some thirty for itself; the rest is for files that programs or a review have open at once.
const DESCRIPTORS_MIN: u64 = 64;

const LOG: &str = "daemon.log";

type Result<T> = std::result::Result<T, ErrorBody>;

/// Why the daemon is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Requested by the control protocol, which has already waited for writers.
    Asked,
    Signalled(Signal),
    /// The kernel closed the session: a plain umount, and nothing is inside any more.
    SessionOver,
}

/// Where the view is mounted, and how it is reached from here.
struct Standing {
    number: Device,
    /// The project, as the mount table names it.
    source: PathBuf,
    abort: Arc<ConnectionAbort>,
    path: PathBuf,
    /// In the namespace of runs, where unmounting would uncover the project.
    is_kept: bool,
}

impl Standing {
    fn of(plan: &Plan, number: Device, keeper: Option<&Keeper>) -> Self {
        let path = match keeper {
            Some(keeper) => {
                let mountpoint = plan.mountpoint.strip_prefix("/").unwrap_or(&plan.mountpoint);
                Path::new("/proc").join(keeper.pid().to_string()).join("root").join(mountpoint)
            }
            None => plan.mountpoint.clone(),
        };
        let abort = Arc::new(ConnectionAbort::of(number.minor));
        Self { number, source: plan.project.clone(), abort, path, is_kept: keeper.is_some() }
    }

    /// Takes the mount away, so that no program enters it. A mount of runs stays and only its connection is cut: what
    /// is left of a run must not find the project where the view was. Returns whether the kernel ends the session now; an
    /// ordinary user may not be able to cut a connection, and then the session ends with this process.
    fn end(&self) -> Result<bool> {
        if self.is_kept {
            return Ok(self.cut());
        }
        let path = self.present_path();
        check_nothing_over(&path, self.number)?;
        take_away(&path).and_then(|()| take_dead_away(&path))?;
        Ok(true)
    }

    /// Where the view is by now: a directory above it may have been renamed.
    fn present_path(&self) -> PathBuf {
        let found = mountpoint_of((self.number, &self.source), &self.path);
        let found = found.inspect_err(|err| log::warn!("look for the view in the mount table: {err}"));
        found.ok().flatten().unwrap_or_else(|| self.path.clone())
    }

    /// Returns whether the kernel ends the session now.
    fn cut(&self) -> bool {
        self.abort.cut().inspect_err(|err| log::warn!("cut the connection to the view: {err}")).is_ok()
    }

    /// Takes away the mounts of dead daemons below the view. To be called when the view itself is gone.
    fn uncover(&self) -> Result<()> {
        if self.is_kept { Ok(()) } else { take_dead_away(&self.path).map_err(ErrorBody::from) }
    }
}

/// A mount that the caller has not been told of. Dropping it unmounts, however the start fails.
#[must_use = "it is gone when it is dropped"]
struct NewMount(Option<Standing>);

impl NewMount {
    /// Hands the mount over to the daemon, which ends it from here on.
    fn stands(mut self) -> Standing {
        self.0.take().expect("nobody else takes it")
    }

    fn standing(&self) -> &Standing {
        self.0.as_ref().expect("only `stands` takes it")
    }
}

impl Drop for NewMount {
    fn drop(&mut self) {
        if let Some(standing) = self.0.take()
            && let Err(err) = standing.end()
        {
            say(err.message);
        }
    }
}

/// What a start has found, as remarks for people.
pub struct Found {
    pub recovered: Recovered,
    /// Remarks on what stays below the mount.
    pub below: Vec<String>,
}

/// A view that answers.
pub struct Daemon {
    project: Arc<Project>,
    ends: Receiver<End>,
    socket: Socket,
    standing: Standing,
    /// Purges old backups. Ends before the lock is released.
    purger: JoinHandle<()>,
    /// Reports changes that others make below. Ends before the lock is released.
    herald: JoinHandle<()>,
    /// Records what has landed. Ends before the lock is released.
    recorder: JoinHandle<()>,
    /// Held until everything else is done; the kernel releases it if the daemon is killed.
    lock: Lock,
    /// None if it could not be started, or if the connection is gone.
    guard: Option<Guard>,
}

impl Daemon {
    /// `keeper`: for runs, the process that mounts in their namespace.
    pub fn begin(
        plan: &Plan,
        termination: Termination,
        guard: Option<Guard>,
        keeper: Option<&Keeper>,
    ) -> std::result::Result<(Self, Found), Failure> {
        Ok(begin(plan, termination, guard, keeper)?)
    }

    /// Opens the log, where standard error goes in the background.
    pub fn log_file(&self) -> std::result::Result<OwnedFd, Failure> {
        let store = self.project.overlay.store();
        let failed = |cause| store::Error::Io { doing: "open the daemon's log".to_owned(), cause };
        let log = store.vitally(|| open_log(store.dirs().state()).map_err(failed));
        Ok(log.map_err(store_failure)?)
    }

    /// Ends a mount that the caller has not been told of.
    pub fn give_up(mut self) -> std::result::Result<(), Failure> {
        let detached = self.detach(Duration::ZERO, Duration::ZERO);
        Ok(self.close_after(detached, Duration::ZERO)?)
    }

    /// Sleeps until the mount is to end, and ends it.
    pub fn serve_until_the_end(mut self) -> Result<()> {
        let (detached, requests_wait) = match self.ends.recv() {
            Ok(End::SessionOver) => {
                self.session_over();
                (self.standing.uncover(), REQUESTS_WAIT)
            }
            Ok(End::Signalled(signal)) => {
                log::warn!("ending, for {signal:?}");
                (self.detach(SIGNALLED_WAIT, SIGNALLED_WAIT), Duration::ZERO)
            }
            // It cannot fail, since `self` has a sender; the mount would end all the same.
            Ok(End::Asked) | Err(_) => (self.detach(Duration::ZERO, REQUESTS_WAIT), REQUESTS_WAIT),
        };
        self.close_after(detached, requests_wait)
    }

    /// Closes even where the mount could not be taken away: the session ends with this process in any case.
    fn close_after(self, detached: Result<()>, requests_wait: Duration) -> Result<()> {
        match (detached, self.close(requests_wait)) {
            (Err(first), Err(second)) => {
                log::error!("{}", first.message);
                Err(second)
            }
            (detached, closed) => detached.and(closed),
        }
    }

    /// Takes the mount away and gives programs inside a moment. Nothing that they wrote and closed is lost by it.
    fn detach(&mut self, writers_wait: Duration, requests_wait: Duration) -> Result<()> {
        if let Err(err) = self.project.overlay.flush_all(Some(writers_wait)) {
            log::error!("flush: {}", err.message);
        }
        // A reader that follows events through the view would keep the mount busy.
        self.project.overlay.store().end_waits();
        // Their answers go through the view, or their programs are in it.
        wait_for_requests(&self.project, requests_wait);
        let ended = self.standing.end();
        // A program in the middle of a close learns the verdict before it is cut off.
        self.project.overlay.wait_for_judgings();
        // Where the mount stays, nobody may write to it after the session.
        let is_over_soon = ended.as_ref().map_or_else(|_stays| self.standing.cut(), |is_over_soon| *is_over_soon);
        let detached = ended.map(|_| ());
        if !is_over_soon {
            return detached;
        }
        match self.ends.recv_timeout(DETACHED_SESSION_MAX) {
            Ok(End::SessionOver) => self.session_over(),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            // A second signal ends the waiting.
            Ok(End::Signalled(_) | End::Asked) => {}
        }
        detached
    }

    fn session_over(&mut self) {
        if let Some(Err(err)) = self.guard.take().map(Guard::dismiss) {
            log::warn!("dismiss the daemon's guard: {err}");
        }
    }

    fn close(self, requests_wait: Duration) -> Result<()> {
        let Self { project, socket, purger, herald, recorder, lock, .. } = self;
        drop(socket);
        project.mounted.iter().for_each(|mounted| mounted.requests.end());
        wait_for_requests(&project, requests_wait);
        let overlay = &project.overlay;
        overlay.store().end_purges();
        wait_for("purges", purger);
        overlay.end_doubts();
        wait_for("looks for changes below", herald);
        overlay.store().end_recording();
        wait_for("records landings", recorder);
        overlay.flush_all(None)?;
        // The project may have become a repository meanwhile.
        repository::tell(&project.path, overlay, false);
        overlay.session_ended().map_err(|err| ErrorBody::new(ErrorCode::Io, format!("end the session: {err}")))?;
        overlay.store().dirs().clear_holder().map_err(store_failure)?;
        drop(lock);
        Ok(())
    }
}

fn wait_for_requests(project: &Project, max: Duration) {
    let left = project.mounted.as_ref().map_or(0, |mounted| mounted.requests.wait(max));
    if left > 0 {
        log::warn!("{left} requests are cut off by the end of the mount");
    }
}

/// Opens the log in a state directory for appending.
pub fn open_log(state: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let open = || rustix::fs::openat(state, LOG, flags, Mode::RUSR | Mode::WUSR);
    let opened = match open() {
        // Left by root's daemon in a directory that belongs to this user.
        Err(Errno::ACCESS) => rustix::fs::unlinkat(state, LOG, AtFlags::empty()).and_then(|()| open()),
        opened => opened,
    };
    let file = File::from(opened?);
    logger::shorten(&file)?;
    Ok(file.into())
}

fn begin(
    plan: &Plan,
    termination: Termination,
    mut guard: Option<Guard>,
    keeper: Option<&Keeper>,
) -> Result<(Daemon, Found)> {
    let looking = start_looking_for_bystanders(plan)?;
    prepare_process()?;
    let (lock, overlay, recovered) = open_overlay(plan)?;
    if keeper.is_some() {
        overlay.runs().are_all_there_is();
    }
    let (end, ends) = channel();
    let project = Arc::new(project(plan, Arc::new(overlay), end.clone(), keeper));
    let socket = Socket::open(project.overlay.store()).map_err(store_failure)?;
    let below = looking.map(|looking| looking.join().unwrap_or_default()).unwrap_or_default();
    let door = mount(plan, keeper)?;
    let mount = NewMount(Some(Standing::of(plan, door.number, keeper)));
    if let Some(mounted) = &project.mounted {
        mounted.number.get_or_init(|| door.number);
    }
    // Before this process asks anything of the mount: if it died while asking, it would wait for its own answer.
    if let Some(guard) = &mut guard {
        tell_guard(guard, mount.standing().number);
    }
    serve(door, mount.standing(), plan, &project, &end)?;
    // Not earlier: a client that is told that the project is covered goes to the view.
    socket.answer(Arc::clone(&project)).map_err(|err| failure("answer on the control socket", &err))?;
    if keeper.is_some() {
        start_waiting_for_runs(&project)?;
    }
    let overlay = || Arc::clone(&project.overlay);
    let (purging, heralding, recording) = (overlay(), overlay(), overlay());
    let purger = start("purge", move || purging.purge_until_the_end())?;
    let herald = start("herald", move || heralding.tell_external_until_the_end())?;
    let recorder = start("record", move || recording.record_until_the_end())?;
    let signalled = overlay();
    spawn("signals", move || wait_for_signals(&termination, &signalled, &end))?;
    let standing = mount.stands();
    Ok((Daemon { project, ends, socket, standing, purger, herald, recorder, lock, guard }, Found { recovered, below }))
}

/// Runs in a thread of its own, beside everything else that precedes the mount.
fn start_looking_for_bystanders(plan: &Plan) -> Result<Option<JoinHandle<Vec<String>>>> {
    if !bystanders::are_told(plan) {
        return Ok(None);
    }
    let (mountpoint, is_project, caller) = (plan.mountpoint.clone(), plan.mountpoint == plan.project, plan.caller);
    let look = move || {
        let names = if is_project { None } else { bystanders::names(&mountpoint) };
        names.into_iter().chain(bystanders::processes(&mountpoint, caller)).collect()
    };
    start("bystanders", look).map(Some)
}

fn prepare_process() -> Result<()> {
    if !memory::return_freed() {
        log::warn!("the C library does not take settings of its memory");
    }
    // Each file that a program has open takes one of the daemon's descriptors too.
    if let Err(err) = process::raise_descriptor_limit() {
        log::warn!("raise the limit of open files: {err}");
    }
    check_descriptors()
}

/// Opens, locks and recovers the project and its state, before anything covers it.
fn open_overlay(plan: &Plan) -> Result<(Lock, Overlay, Recovered)> {
    let lower = plan.open_lower().and_then(Tree::from_root);
    let lower = lower.map_err(|err| failure(&format!("open {}", plan.project.display()), &err))?;
    let lock = Lock::take(&lower, &plan.location).map_err(store_failure)?;
    check_state_is_of(plan)?;
    // Before anything is created: a mount that is refused for its settings leaves no state behind.
    let policy = match PolicyLoading::begin(&lower, &plan.source) {
        // Programs are in the view. Without it they would write to the project, and nobody would review that.
        Err(err) if !plan.is_first_start() => PolicyLoading::built_in(&lower, &err),
        loading => loading.map_err(unusable_rules)?,
    };
    if plan.is_first_start() {
        store::check_renames(&lower, &plan.location).map_err(store_failure)?;
    }
    let store = Store::open(&lower, &plan.location).map_err(store_failure)?;
    name_project(plan)?;
    let policy = policy.end();
    let recovered = store.recover(&lower).map_err(|err| not_recovered(err.into()))?;
    let policy = policy.after(&recovered, &lower, &plan.source).map_err(unusable_rules)?;
    for notice in &policy.notices {
        say(format_args!("ignored until `fettlefs trust`: {notice}"));
    }
    if let Some(notice) = policy.git_notice() {
        say(notice);
    }
    let overlay = Overlay::new(lower, store, policy, plan.options.grants()).map_err(not_recovered)?;
    if plan.is_first_start() {
        check_in_no_run(plan.doing(), plan.caller.pid, overlay.runs())?;
    }
    if plan.options.read_only {
        overlay.stop_writing("mounted read-only (-o ro)");
    }
    overlay.wait_for_rules();
    repository::tell(&plan.project, &overlay, true);
    let note = HolderNote { pid: std::process::id(), mountpoint: Some(plan.mountpoint.display().to_string()) };
    overlay.store().write_holder(&note).map_err(store_failure)?;
    Ok((lock, overlay, recovered))
}

fn unusable_rules(err: PolicyError) -> ErrorBody {
    ErrorBody::new(ErrorCode::BadRequest, err.to_string())
}

fn not_recovered(err: overlay::Error) -> ErrorBody {
    ErrorBody::new(ErrorCode::Io, format!("recover: {err}"))
}

/// Refuses to start with too few descriptors: the mount would come up and then fail every open.
fn check_descriptors() -> Result<()> {
    match process::descriptor_limit() {
        few @ 0..DESCRIPTORS_MIN => {
            let message = format!("a daemon needs {DESCRIPTORS_MIN} open files, and may have {few}: see `ulimit -n`");
            Err(ErrorBody::new(ErrorCode::Io, message))
        }
        DESCRIPTORS_MIN.. => Ok(()),
    }
}

/// Tells the guard which connection to cut; until it knows one it does nothing.
fn tell_guard(guard: &mut Guard, connection: Device) {
    if let Err(err) = guard.watch(connection.minor) {
        say(format_args!("tell the daemon's guard what it guards: {err}"));
    }
}

fn project(plan: &Plan, overlay: Arc<Overlay>, end: Sender<End>, keeper: Option<&Keeper>) -> Project {
    let ask_end = move || {
        // The receiver is gone if the end is already under way.
        if end.send(End::Asked).is_err() {
            log::debug!("asked to end while ending");
        }
    };
    Project {
        overlay,
        path: plan.project.clone(),
        source: plan.source.clone(),
        owner: rustix::process::getuid().as_raw(),
        mounted: Some(Mounted {
            mountpoint: plan.mountpoint.clone(),
            number: OnceLock::new(),
            keeper: keeper.map(Keeper::pid),
            ask_end: Arc::new(ask_end),
            requests: Arc::default(),
        }),
    }
}

fn serve(door: Door, standing: &Standing, plan: &Plan, project: &Arc<Project>, end: &Sender<End>) -> Result<()> {
    let desk = Arc::new(Desk::new(Arc::clone(project)));
    let (overlay, view, abort) = (Arc::clone(&project.overlay), &standing.path, Arc::clone(&standing.abort));
    let running = fuse::serve((door, view), overlay, desk, plan.options.means());
    let running = running.map_err(|err| failure("serve the mount", &err))?;
    let (end, overlay) = (end.clone(), Arc::clone(&project.overlay));
    spawn("session", move || {
        match running.ended.recv() {
            Ok(Ok(())) => {}
            Ok(Err(err)) => cut(&abort, &format!("the session ended: {err}")),
            Err(_) => cut(&abort, "the session ended without a word"),
        }
        // A run whose own view was the last one still asks what became of its writes.
        let over = Instant::now();
        while !overlay.runs().close_if_none() && over.elapsed() < DETACHED_SESSION_MAX {
            std::thread::sleep(RUNS_LEFT_TICK);
        }
        // The receiver is gone once the daemon has finished.
        if end.send(End::SessionOver).is_err() {
            log::debug!("the session outlived the wait for it");
        }
    })?;
    answers(view).map_err(|err| failure("ask the new mount", &err))?;
    let started = project.overlay.session_started();
    started.map_err(|err| ErrorBody::new(ErrorCode::Io, format!("begin the session: {err}")))
}

/// Cuts the connection, since nothing answers any more. Whatever waits, even for the first answer, gets an error.
fn cut(abort: &ConnectionAbort, why: &str) {
    log::error!("{why}");
    if let Err(err) = abort.cut() {
        log::error!("cut the connection to the view: {err}");
    }
}

fn mount(plan: &Plan, keeper: Option<&Keeper>) -> Result<Door> {
    let mounted = match keeper {
        Some(keeper) => keeper.mount(),
        None => {
            prepare_place(plan)?;
            mount_for_all(plan)
        }
    };
    mounted.map_err(|err| {
        let what = format!("mount on {}", plan.mountpoint.display());
        match err.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::PERM | Errno::ACCESS) => ErrorBody::new(
                ErrorCode::NotPermitted,
                format!("{what}: {err} (mounting needs CAP_SYS_ADMIN, or fusermount3)"),
            ),
            _ => failure(&what, &err),
        }
    })
}

/// Root mounts over a dead mount, which has kept everyone out so far. `fusermount3` does not mount over one, so for an
/// ordinary user it is taken away first, and the project lies bare until the new mount stands.
fn prepare_place(plan: &Plan) -> Result<()> {
    let place = &plan.mountpoint;
    if !plan.is_root {
        return take_dead_away(place).map_err(ErrorBody::from);
    }
    if let Some(dead) = dead_mount_at(place)? {
        say(format_args!("mounts over the dead mount of {} on {}", dead.source.display(), place.display()));
    }
    Ok(())
}

fn mount_for_all(plan: &Plan) -> io::Result<Door> {
    let words: Vec<&str> = plan.options.extra.iter().map(String::as_str).collect();
    let options = plan.options.to_mount(plan.project.as_os_str(), &words, plan.is_root);
    let device = match plan.is_root {
        true => mount_fuse(&plan.mountpoint, &options),
        false => mount_fuse_with_helper(&plan.mountpoint, &options),
    };
    door(plan, device?)
}

/// Mounts in the namespace of runs, as root or as the owner of a user namespace, which no other user can enter.
pub fn mount_for_runs(plan: &Plan, leave: Leave) -> io::Result<Door> {
    let words: Vec<&str> = plan.options.extra.iter().map(String::as_str).collect();
    let options = plan.options.to_mount(plan.project.as_os_str(), &words, leave == Leave::Mounts);
    door(plan, mount_fuse(&plan.mountpoint, &options)?)
}

/// Finds the new mount. One that cannot be found is taken away again.
fn door(plan: &Plan, device: OwnedFd) -> io::Result<Door> {
    let door = Door::at(&plan.mountpoint, device);
    if door.is_err()
        && let Err(failure) = take_away(&plan.mountpoint)
    {
        say(failure.message());
    }
    door
}

/// Asks past every cache, so that the answer is the daemon's own. Not on the main thread: a killed thread does not end
/// while it waits for its own process, and the guard watches the end of the main thread.
fn answers(mountpoint: &Path) -> io::Result<()> {
    let asked = mountpoint.to_owned();
    let ask = move || rustix::fs::statx(CWD, &asked, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS).map(|_| ());
    let asking = thread::start("first-look", ask)?;
    Ok(asking.join().map_err(|_panic| io::Error::other("the look at the mount panicked"))??)
}

/// Refuses a state directory elsewhere that serves another project.
fn check_state_is_of(plan: &Plan) -> Result<()> {
    let Some(state) = &plan.location.state else { return Ok(()) };
    match project_of_state(state)? {
        Some(other) if other != plan.project => Err(ClientError::other_project(state, other, &plan.project).into()),
        Some(_) | None => Ok(()),
    }
}

/// Links a state directory elsewhere to its project, for clients that start in a subdirectory.
fn name_project(plan: &Plan) -> Result<()> {
    let Some(state) = &plan.location.state else { return Ok(()) };
    match std::os::unix::fs::symlink(&plan.project, state.join(PROJECT_LINK)) {
        Err(err) if err.kind() != io::ErrorKind::AlreadyExists => {
            Err(state_failure(&format!("make {}/{PROJECT_LINK}", state.display()), err))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// An I/O error of the state directory, never reported as a wrong path on the command line.
fn state_failure(what: &str, cause: io::Error) -> ErrorBody {
    store_failure(store::Error::Io { doing: what.to_owned(), cause })
}

/// Ends the daemon at the first signal. A second one stops the wait for permission programs.
fn wait_for_signals(termination: &Termination, overlay: &Overlay, end: &Sender<End>) {
    let mut is_ending = false;
    loop {
        match termination.wait() {
            Ok(Wakeup::Signal(signal, _)) => {
                if is_ending {
                    overlay.leave_judgings();
                }
                is_ending = true;
                if end.send(End::Signalled(signal)).is_err() {
                    return;
                }
            }
            Ok(Wakeup::Woken) => {}
            Err(err) => {
                log::error!("wait for signals: {err}");
                return;
            }
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    start(name, work).map(|_detached| ())
}

fn start<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
    thread::start(name, work).map_err(|err| failure("start a thread", &err))
}

fn wait_for(what_it_does: &str, thread: JoinHandle<()>) {
    if thread.join().is_err() {
        log::error!("the thread that {what_it_does} panicked");
    }
}

/// Ends the daemon if no run has joined in time: the process that asked for the view may be gone before it stands.
fn start_waiting_for_runs(project: &Arc<Project>) -> Result<()> {
    let project = Arc::clone(project);
    spawn("first-run", move || {
        std::thread::sleep(FIRST_RUN_MAX);
        if let Some(mounted) = project.mounted.as_ref().filter(|_| project.overlay.runs().close_if_none()) {
            (mounted.ask_end)();
        }
    })
}
