//! Becoming a run of a daemon: of the one that is there, or of one that is started for it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::inside::Way;
use crate::cli::mount::{Audience, Ground, MountArgs, SettingFlags};
use crate::cli::{Failure, mount_start, offline, sources};
use crate::client::{Client, ClientError, Reach, fettle_mounts};
use crate::model::shell_word;
use crate::protocol::{ErrorCode, LeaveReply, Op, Reply, Request, RunReply, SHELL_DIRECTORY, STATE_DIRECTORY};
use crate::store::holder_note;
use crate::sys::mount::MountEntry;
use crate::sys::namespace::{has_ended, pidfd_of};
use crate::sys::process;
use crate::sys::tree::Tree;

/// How long to wait for a daemon that is ending, so that another can begin.
const ENDING_MAX: Duration = Duration::from_secs(10);
const ENDING_ASKED_EVERY: Duration = Duration::from_millis(50);

/// How long a daemon that died may take to come back: twice what SPEC §10 grants it.
const COMING_BACK_MAX: Duration = Duration::from_secs(4);

/// A run as its daemon knows it.
pub struct Membership {
    project: PathBuf,
    /// What the daemon calls the run.
    name: String,
    way: Way,
    /// Directories outside the view where the daemon keeps what decides about the project.
    state_dirs: Vec<PathBuf>,
    /// Shows the end of the daemon; `None` while it is gone. No connection is kept: the command, which is forked from
    /// here, must not inherit one, and the daemon would close it for its silence.
    daemon: Option<OwnedFd>,
    sessions: Sessions,
}

/// The sessions by which events refer to a run.
#[derive(Default)]
pub struct Sessions {
    /// One for each daemon that the run has belonged to, the latest last.
    pub own: Vec<String>,
    /// The sessions of replacement daemons under which events belong to no run: what this run did before it had rejoined
    /// is among them, and so is what others did.
    pub of_nobody: Vec<String>,
}

/// How a daemon that does not come back has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    Died,
    /// On request: it removed its note.
    Unmounted,
}

impl Membership {
    /// Joins the project's daemon, or starts one if none answers.
    pub fn join(project: PathBuf, settings: &SettingFlags, name: &str) -> Result<Self, Failure> {
        let (begun, mut strikes) = (Instant::now(), 0);
        loop {
            match join_or_start(&project, settings, name) {
                Err(Failure::Told(body)) if body.code == ErrorCode::Busy && begun.elapsed() < ENDING_MAX => {
                    // A daemon's last steps after removing its note take a moment too, so one more attempt follows.
                    strikes += u32::from(!is_held(&project)?);
                    if strikes > 1 {
                        return Err(Failure::Told(body));
                    }
                    std::thread::sleep(ENDING_ASKED_EVERY);
                }
                joined => {
                    let (daemon, reply, way) = joined?;
                    let sessions = Sessions { own: vec![reply.session], ..Sessions::default() };
                    let state_dirs = reply.state_dirs.into_iter().map(|dir| dir.0).collect();
                    let name = name.to_owned();
                    return Ok(Self { project, name, way, state_dirs, daemon: Some(daemon), sessions });
                }
            }
        }
    }

    pub fn project(&self) -> &Path {
        &self.project
    }

    pub fn way(&self) -> &Way {
        &self.way
    }

    pub fn state_dirs(&self) -> &[PathBuf] {
        &self.state_dirs
    }

    /// The latest session.
    pub fn session(&self) -> &str {
        self.sessions.own.last().map_or("", String::as_str)
    }

    /// The directory of the files that shells read, as programs in the run see it.
    pub fn shell_directory(&self) -> PathBuf {
        self.project.join(STATE_DIRECTORY).join(SHELL_DIRECTORY)
    }

    /// Becomes readable when the daemon ends; `None` if it is known to have.
    pub fn daemon(&self) -> Option<BorrowedFd<'_>> {
        self.daemon.as_ref().map(|daemon| daemon.as_fd())
    }

    /// Returns a conversation with the present daemon, waiting for the return of one that has just died.
    pub fn reach(&mut self) -> Option<(Client, &Sessions)> {
        let begun = Instant::now();
        if self.daemon.as_ref().is_some_and(has_ended) {
            self.lose();
        }
        while self.daemon.is_none() && begun.elapsed() < COMING_BACK_MAX {
            std::thread::sleep(ENDING_ASKED_EVERY);
            self.join_again();
        }
        self.daemon.as_ref()?;
        Some((answering(&self.project).ok()??, &self.sessions))
    }

    /// Tells how the daemon ended. Used only to word a message once none answers: a command that works without a daemon
    /// removes a dead one's note as well. A project that cannot be examined counts as one whose daemon died.
    pub fn why_gone(&self) -> Gone {
        let looked_at = Tree::open(&self.project).ok().zip(sources::location().ok());
        let Some((project, location)) = looked_at else { return Gone::Died };
        match holder_note(&project, &location).and_then(|note| note.mountpoint) {
            Some(_) => Gone::Died,
            None => Gone::Unmounted,
        }
    }

    pub fn lose(&mut self) {
        self.daemon = None;
    }

    /// Rejoins the daemon that has replaced the dead one, if there is one.
    pub fn join_again(&mut self) {
        match join(&self.project, &self.name) {
            Ok(Some((daemon, reply, _))) => {
                self.sessions.own.push(reply.session);
                self.sessions.of_nobody.push(reply.of_nobody);
                self.daemon = Some(daemon);
            }
            Ok(None) => {}
            Err(err) => log::debug!("join again: {}", err.message()),
        }
    }

    /// Leaves the daemon. If this was its last run, it has ended when this returns.
    pub fn leave(self) -> Result<(), Failure> {
        self.daemon.map_or(Ok(()), |daemon| leave(&self.project, &daemon))
    }
}

fn leave(project: &Path, daemon: &OwnedFd) -> Result<(), Failure> {
    let Some(mut client) = answering(project)? else { return Ok(()) };
    let Reply::Leave(LeaveReply { last }) = client.ask(&Request::new(Op::Leave))? else {
        return Err(Failure::other_answer());
    };
    // The daemon ends once nobody reads its answer any more.
    drop(client);
    if last { crate::cli::unmount::wait_for_end(daemon) } else { Ok(()) }
}

type Joined = (OwnedFd, RunReply, Way);

fn join_or_start(project: &Path, settings: &SettingFlags, name: &str) -> Result<Joined, Failure> {
    let found = join(project, name)?;
    match found {
        Some((daemon, ..)) if *settings != SettingFlags::default() => {
            // Otherwise it would count as a run there until the daemon notices that this process has ended.
            leave(project, &daemon)?;
            let message =
                format!("{} is mounted already, with settings of its own: leave out flags", project.display());
            Err(Failure::usage(message))
        }
        Some(joined) => Ok(joined),
        None => {
            start(project, settings)?;
            let gone = || Failure::new(ErrorCode::Io, "the daemon is gone as soon as it had begun; see its log");
            join(project, name)?.ok_or_else(gone)
        }
    }
}

fn start(project: &Path, settings: &SettingFlags) -> Result<(), Failure> {
    mount_start::start(MountArgs {
        project: project.to_owned(),
        mountpoint: None,
        ground: Ground::Background,
        audience: Audience::Runs,
        options: Vec::new(),
        settings: settings.clone(),
    })
}

/// Opens a conversation with the daemon; `None` if none answers.
fn answering(project: &Path) -> Result<Option<Client>, Failure> {
    match Client::open(project, offline::answer) {
        Ok(client) if matches!(client.reach(), Reach::Offline | Reach::Stale(_)) => Ok(None),
        Ok(client) => Ok(Some(client)),
        Err(ClientError::NoProject(_) | ClientError::Stale(_)) => Ok(None),
        Err(err) => Err(err.into()),
    }
}

fn join(project: &Path, name: &str) -> Result<Option<Joined>, Failure> {
    let Some(mut client) = answering(project)? else { return Ok(None) };
    let request = Request { name: Some(name.to_owned()), ..Request::new(Op::Run) };
    let reply = match client.ask(&request) {
        Ok(Reply::Run(reply)) => reply,
        Ok(_) => return Err(Failure::other_answer()),
        // It ended between the two requests: another must be started, once this one has let go.
        Err(body) if body.code == ErrorCode::NotMounted => return Ok(None),
        Err(body) => return Err(body.into()),
    };
    let daemon = pidfd_of(reply.pid).map_err(|err| super::told("watch the daemon", &err))?;
    let way = way(&client, &reply);
    if let Err(unseen) = check_seen(&way, &reply) {
        leave(project, &daemon)?;
        return Err(unseen);
    }
    Ok(Some((daemon, reply, way)))
}

/// Refuses a daemon whose mount is in another mount namespace: what looks like its view from here is the project itself.
fn check_seen(way: &Way, reply: &RunReply) -> Result<(), Failure> {
    let Way::Cover { view, project } = way else { return Ok(()) };
    let is_it = |mount: &MountEntry| mount.mountpoint == *view && (view == project || mount.source == *project);
    if fettle_mounts()?.iter().any(is_it) {
        return Ok(());
    }
    let message = format!(
        "{} is mounted where you do not see it, in another mount namespace (pid {}): `fettlefs unmount {}` ends that",
        project.display(),
        reply.pid,
        shell_word(&project.to_string_lossy())
    );
    Err(Failure::new(ErrorCode::NotMounted, message))
}

fn way(client: &Client, reply: &RunReply) -> Way {
    let (view, project) = (reply.view.0.clone(), client.place().root.clone());
    match reply.keeper {
        Some(keeper) => Way::Enter(keeper),
        None => Way::Cover { view, project },
    }
}

/// True if a daemon holds the project. One that answers and takes no run is ending.
fn is_held(project: &Path) -> Result<bool, Failure> {
    let lower = Tree::open(project).map_err(|err| super::told("open the project", &err))?;
    let note = holder_note(&lower, &sources::location()?);
    Ok(note.is_some_and(|note| note.mountpoint.is_some() && process::tgid(note.pid).is_some()))
}
