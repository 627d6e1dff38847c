//! One mount from its first descriptor to its last.
//!
//! ```text
//!   lower by descriptor ─► lock ─► store, recovery ─┬─► mount ─► serve ─► the view answers ─► ready
//!   who stands in the project ──────────────────────┘
//!   end (asked, signal, umount) ─► flush ─► detach ─► session over, or its time is up ─► settle ─► lock released
//! ```

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use super::super::Failure;
use super::super::offline::{failure, store_failure};
use super::plan::{Plan, dead_mount_at, take_away, take_dead_away};
use super::say;
use super::{bystanders, git_exclude};
use crate::client::ClientError;
use crate::control::{Desk, Mounted, Project, Socket, check_in_no_run};
use crate::fuse;
use crate::overlay::{Overlay, PolicyLoading};
use crate::protocol::{ErrorBody, ErrorCode, PROJECT_LINK, STATE_DIRECTORY};
use crate::store::{self, HolderNote, Lock, Recovered, Store};
use crate::sys::guard::Guard;
use crate::sys::keeper::Keeper;
use crate::sys::mount::{ConnectionAbort, Device, Door, is_death, mount_fuse, mount_fuse_with_helper};
use crate::sys::namespace::Leave;
use crate::sys::signals::{Signal, Termination, Wakeup};
use crate::sys::thread;
use crate::sys::tree::Tree;
use crate::sys::{memory, process};

/// How long a daemon that was signalled waits for writers. Whoever stops a machine does not wait much longer.
const SIGNALLED_WRITERS_WAIT: Duration = Duration::from_secs(5);

/// How long a detached mount may live on for those who still stand in it or read an answer.
const DETACHED_SESSION_MAX: Duration = Duration::from_secs(2);

const RUNS_LEFT_TICK: Duration = Duration::from_millis(5);

/// How long the view of runs waits for the first, or for those to come back that had a daemon that died.
const FIRST_RUN_MAX: Duration = Duration::from_secs(10);

/// Some thirty are the daemon's own; the rest is for what programs have open, and what a review opens at once.
const DESCRIPTORS_MIN: u64 = 64;

const LOG: &str = "daemon.log";

/// A log above this is begun anew at the next mount.
const LOG_BYTES_MAX: u64 = 1 << 20;

type Result<T> = std::result::Result<T, ErrorBody>;

/// Why the daemon is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Somebody asked by the control protocol, which has waited for writers already.
    Asked,
    Signalled(Signal),
    /// The kernel closed the session: plain umount, and nobody is inside any more.
    SessionOver,
}

/// Where the view is mounted, and how it is reached from here.
struct Standing {
    number: Device,
    abort: Arc<ConnectionAbort>,
    path: PathBuf,
    /// In the namespace of runs, where taking it away would uncover the project.
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
        Self { number, abort, path, is_kept: keeper.is_some() }
    }

    /// Nobody asks anything from here on. What is left of a run stays before a closed door: its programs must not find the
    /// project where the view was. Whether the kernel has it so already: an ordinary user may not cut a connection where
    /// none are shown to him, and then it goes with this process.
    fn end(&self) -> Result<bool> {
        if !self.is_kept {
            return take_away(&self.path).map_err(ErrorBody::from).and_then(|()| self.uncover()).map(|()| true);
        }
        let cut = self.abort.cut().inspect_err(|err| log::warn!("cut the connection to the view: {err}"));
        Ok(cut.is_ok())
    }

    /// Below the view are those of daemons that died. To be called when it is gone itself.
    fn uncover(&self) -> Result<()> {
        if self.is_kept { Ok(()) } else { take_dead_away(&self.path).map_err(ErrorBody::from) }
    }
}

/// A mount of which nobody has been told. Taken away again when it is dropped, however its start ends.
#[must_use = "it is gone when it is dropped"]
struct NewMount(Option<Standing>);

impl NewMount {
    /// Somebody ends it from here on.
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

/// What a start has come upon, for people.
pub struct Found {
    pub recovered: Recovered,
    /// Remarks on who stays below the mount.
    pub below: Vec<String>,
}

/// A view that answers.
pub struct Daemon {
    project: Arc<Project>,
    ends: Receiver<End>,
    socket: Socket,
    standing: Standing,
    /// Lets old backups go. Ends before the lock is released.
    purger: JoinHandle<()>,
    /// Tells what others do below. Ends before the lock is released, too.
    herald: JoinHandle<()>,
    /// Records what has landed. So does this.
    recorder: JoinHandle<()>,
    /// Held to the last: a killed daemon holds nothing.
    lock: Lock,
    /// None where none could be started, and once there is no connection any more.
    guard: Option<Guard>,
}

impl Daemon {
    /// `keeper`: for runs, who mounts where they are.
    pub fn begin(
        plan: &Plan,
        termination: Termination,
        guard: Option<Guard>,
        keeper: Option<&Keeper>,
    ) -> std::result::Result<(Self, Found), Failure> {
        Ok(begin(plan, termination, guard, keeper)?)
    }

    /// Where standard error goes in the background.
    pub fn log_file(&self) -> std::result::Result<OwnedFd, Failure> {
        let store = self.project.overlay.store();
        let failed = |cause| store::Error::Io { doing: "open the daemon's log".to_owned(), cause };
        let log = store.vitally(|| open_log(store.dirs().state()).map_err(failed));
        Ok(log.map_err(store_failure)?)
    }

    /// Ends a mount of which nobody has been told.
    pub fn give_up(mut self) -> std::result::Result<(), Failure> {
        self.detach(Duration::ZERO)?;
        Ok(self.close()?)
    }

    /// Sleeps until the mount is to end, and ends it.
    pub fn serve_until_the_end(mut self) -> Result<()> {
        match self.ends.recv() {
            Ok(End::SessionOver) => {
                self.session_over();
                self.standing.uncover()?;
            }
            Ok(End::Asked) => self.detach(Duration::ZERO)?,
            Ok(End::Signalled(signal)) => {
                log::warn!("ending, for {signal:?}");
                self.detach(SIGNALLED_WRITERS_WAIT)?;
            }
            // Cannot be, for `self` has a sender; the mount ends all the same.
            Err(_) => self.detach(Duration::ZERO)?,
        }
        self.close()
    }

    /// Takes the mount away and gives those inside a moment. Nothing they wrote and closed is lost with the rest.
    fn detach(&mut self, writers_wait: Duration) -> Result<()> {
        if let Err(err) = self.project.overlay.flush_all(Some(writers_wait)) {
            log::error!("flush: {}", err.message);
        }
        // Who follows events through the view would keep the mount busy.
        self.project.overlay.store().end_waits();
        let is_over_soon = self.standing.end()?;
        // Who is closing something at this moment is not cut off before he is told what has become of it.
        self.project.overlay.wait_for_judgings();
        if !is_over_soon {
            return Ok(());
        }
        match self.ends.recv_timeout(DETACHED_SESSION_MAX) {
            Ok(End::SessionOver) => self.session_over(),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            // A second signal: no more waiting.
            Ok(End::Signalled(_) | End::Asked) => {}
        }
        Ok(())
    }

    fn session_over(&mut self) {
        if let Some(Err(err)) = self.guard.take().map(Guard::dismiss) {
            log::warn!("dismiss the daemon's guard: {err}");
        }
    }

    fn close(self) -> Result<()> {
        let Self { project, socket, purger, herald, recorder, lock, .. } = self;
        drop(socket);
        let overlay = &project.overlay;
        overlay.store().end_purges();
        wait_for("purges", purger);
        overlay.end_doubts();
        wait_for("looks for changes below", herald);
        overlay.store().end_recording();
        wait_for("records landings", recorder);
        overlay.flush_all(None)?;
        // The project may have become a repository meanwhile.
        if project.path.join(STATE_DIRECTORY).exists() {
            hide_from_git(&project.path);
        }
        overlay.session_ended().map_err(|err| ErrorBody::new(ErrorCode::Io, format!("end the session: {err}")))?;
        overlay.store().dirs().clear_holder().map_err(store_failure)?;
        drop(lock);
        Ok(())
    }
}

/// Without it `git add -A` in the project would fail over a repository in it that has no commit.
fn hide_from_git(project: &Path) {
    match git_exclude::add_line(project) {
        // Under a dead mount; whoever mounted that has told git already.
        Err(err) if is_death(&err) => {}
        Err(err) => log::warn!("tell git to ignore the state directory: {err}"),
        Ok(()) => {}
    }
}

/// The log in a state directory, to append to.
pub fn open_log(state: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let open = || rustix::fs::openat(state, LOG, flags, Mode::RUSR | Mode::WUSR);
    let opened = match open() {
        // That of root's daemon, in a directory of this user.
        Err(Errno::ACCESS) => rustix::fs::unlinkat(state, LOG, AtFlags::empty()).and_then(|()| open()),
        opened => opened,
    };
    let file = File::from(opened?);
    if file.metadata()?.size() > LOG_BYTES_MAX {
        file.set_len(0)?;
    }
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
    // Before this process asks anything of the mount: one that dies meanwhile waits for its own answer.
    if let Some(guard) = &mut guard {
        tell_guard(guard, mount.standing().number);
    }
    serve(door, mount.standing(), plan, &project, &end)?;
    // Not before: whoever is told that the project is covered goes there.
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

/// Beside what else comes before the mount.
fn start_looking_for_bystanders(plan: &Plan) -> Result<Option<JoinHandle<Vec<String>>>> {
    if !bystanders::are_told(plan) {
        return Ok(None);
    }
    let (project, caller) = (plan.project.clone(), plan.caller);
    start("bystanders", move || bystanders::remarks(&project, caller)).map(Some)
}

fn prepare_process() -> Result<()> {
    if !memory::return_freed() {
        log::warn!("the C library does not take settings of its memory");
    }
    // Every file that a program has open is one of ours, too.
    if let Err(err) = process::raise_descriptor_limit() {
        log::warn!("raise the limit of open files: {err}");
    }
    check_descriptors()
}

/// The project with its state, recovered and locked. Before anything covers it.
fn open_overlay(plan: &Plan) -> Result<(Lock, Overlay, Recovered)> {
    let lower = plan.open_lower().and_then(Tree::from_root);
    let lower = lower.map_err(|err| failure(&format!("open {}", plan.project.display()), &err))?;
    let lock = Lock::take(&lower, &plan.location).map_err(store_failure)?;
    check_state_is_of(plan)?;
    // Before anything is made: a mount that is refused for its settings leaves no state.
    let policy = PolicyLoading::begin(&lower, &plan.source);
    let policy = policy.map_err(|err| ErrorBody::new(ErrorCode::BadRequest, err.to_string()))?;
    if plan.is_first_start() {
        store::check_renames(&lower, &plan.location).map_err(store_failure)?;
    }
    if plan.location.state.is_none() {
        hide_from_git(&plan.project);
    }
    let store = Store::open(&lower, &plan.location).map_err(store_failure)?;
    name_project(plan)?;
    let policy = policy.end();
    for notice in &policy.notices {
        say(format_args!("ignored until `fettlefs trust`: {notice}"));
    }
    if let Some(notice) = policy.git_notice() {
        say(notice);
    }
    let opened = Overlay::new(lower, store, policy, plan.options.grants());
    let (overlay, recovered) = opened.map_err(|err| ErrorBody::new(ErrorCode::Io, format!("recover: {err}")))?;
    if plan.is_first_start() {
        check_in_no_run(plan.doing(), plan.caller.pid, overlay.runs())?;
    }
    if plan.options.read_only {
        overlay.stop_writing("mounted read-only (-o ro)");
    }
    let note = HolderNote { pid: std::process::id(), mountpoint: Some(plan.mountpoint.display().to_string()) };
    overlay.store().write_holder(&note).map_err(store_failure)?;
    Ok((lock, overlay, recovered))
}

/// With fewer it could be mounted, and would refuse each open.
fn check_descriptors() -> Result<()> {
    match process::descriptor_limit() {
        few @ 0..DESCRIPTORS_MIN => {
            let message = format!("a daemon needs {DESCRIPTORS_MIN} open files, and may have {few}: see `ulimit -n`");
            Err(ErrorBody::new(ErrorCode::Io, message))
        }
        DESCRIPTORS_MIN.. => Ok(()),
    }
}

/// A guard that knows of no connection does nothing.
fn tell_guard(guard: &mut Guard, connection: Device) {
    if let Err(err) = guard.watch(connection.minor) {
        say(format_args!("tell the daemon's guard what it guards: {err}"));
    }
}

fn project(plan: &Plan, overlay: Arc<Overlay>, end: Sender<End>, keeper: Option<&Keeper>) -> Project {
    let ask_end = move || {
        // The receiver is gone when the end is under way already.
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
            keeper: keeper.map(Keeper::pid),
            ask_end: Arc::new(ask_end),
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
        // A run whose own view was the last one asks yet what has become of it.
        let over = Instant::now();
        while !overlay.runs().close_if_none() && over.elapsed() < DETACHED_SESSION_MAX {
            std::thread::sleep(RUNS_LEFT_TICK);
        }
        // Nobody listens any more when the daemon is at its end.
        if end.send(End::SessionOver).is_err() {
            log::debug!("the session outlived the wait for it");
        }
    })?;
    answers(view).map_err(|err| failure("ask the new mount", &err))?;
    let started = project.overlay.session_started();
    started.map_err(|err| ErrorBody::new(ErrorCode::Io, format!("begin the session: {err}")))
}

/// Nobody answers any more: whoever waits, also for the first answer, is told so.
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

/// Over a dead mount that has kept everybody out so far. `fusermount3` does not mount over one, so that the project lies bare
/// until it has.
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

/// Where only runs are: as root, or as the owner of a user namespace, of whom nobody else can come in.
pub fn mount_for_runs(plan: &Plan, leave: Leave) -> io::Result<Door> {
    let words: Vec<&str> = plan.options.extra.iter().map(String::as_str).collect();
    let options = plan.options.to_mount(plan.project.as_os_str(), &words, leave == Leave::Mounts);
    door(plan, mount_fuse(&plan.mountpoint, &options)?)
}

/// What has been mounted and cannot be found is taken away again.
fn door(plan: &Plan, device: OwnedFd) -> io::Result<Door> {
    let door = Door::at(&plan.mountpoint, device);
    if door.is_err()
        && let Err(failure) = take_away(&plan.mountpoint)
    {
        say(failure.message());
    }
    door
}

/// Asks past every cache, so that the answer is the daemon's own. Not on the main thread: one that is killed does not end
/// while it waits for its own process, and by its end the guard knows.
fn answers(mountpoint: &Path) -> io::Result<()> {
    let asked = mountpoint.to_owned();
    let ask = move || rustix::fs::statx(CWD, &asked, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS).map(|_| ());
    let asking = thread::start("first-look", ask)?;
    Ok(asking.join().map_err(|_panic| io::Error::other("the look at the mount panicked"))??)
}

/// A state directory elsewhere serves one project only.
fn check_state_is_of(plan: &Plan) -> Result<()> {
    let Some(state) = &plan.location.state else { return Ok(()) };
    match std::fs::read_link(state.join(PROJECT_LINK)) {
        Ok(named) if named != plan.project => Err(ClientError::other_project(state, named, &plan.project).into()),
        Ok(_) => Ok(()),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(err) => Err(state_failure(&format!("look into state directory {}", state.display()), err)),
    }
}

/// It names the project by a link, for clients that start below a subdirectory.
fn name_project(plan: &Plan) -> Result<()> {
    let Some(state) = &plan.location.state else { return Ok(()) };
    match std::os::unix::fs::symlink(&plan.project, state.join(PROJECT_LINK)) {
        Err(err) if err.kind() != io::ErrorKind::AlreadyExists => {
            Err(state_failure(&format!("make {}/{PROJECT_LINK}", state.display()), err))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// A state directory that fails is never a path that somebody got wrong on the command line.
fn state_failure(what: &str, cause: io::Error) -> ErrorBody {
    store_failure(store::Error::Io { doing: what.to_owned(), cause })
}

/// Who sends a second one waits for no permission program.
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

/// Whoever asked for the view may be gone before it stands.
fn start_waiting_for_runs(project: &Arc<Project>) -> Result<()> {
    let project = Arc::clone(project);
    spawn("first-run", move || {
        std::thread::sleep(FIRST_RUN_MAX);
        if let Some(mounted) = project.mounted.as_ref().filter(|_| project.overlay.runs().close_if_none()) {
            (mounted.ask_end)();
        }
    })
}
