//! Becoming one of a daemon's runs: of the one that is there, or of one that is started for it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::inside::Way;
use crate::cli::mount::{Audience, Ground, MountArgs, SettingFlags};
use crate::cli::{Failure, mount_start, offline, sources};
use crate::client::{Client, ClientError, Reach, fettle_mounts};
use crate::protocol::{ErrorCode, LeaveReply, Op, Reply, Request, RunReply, SHELL_DIRECTORY, STATE_DIRECTORY};
use crate::store::holder_note;
use crate::sys::mount::MountEntry;
use crate::sys::namespace::{has_ended, pidfd_of};
use crate::sys::process;
use crate::sys::tree::Tree;

/// How long to wait for a daemon that is ending, so that another can begin.
const ENDING_MAX: Duration = Duration::from_secs(10);
const ENDING_ASKED_EVERY: Duration = Duration::from_millis(50);

/// How long a daemon that died may take to come back. Twice of what it needs (SPEC §10).
const COMING_BACK_MAX: Duration = Duration::from_secs(4);

/// A run as its daemon knows it.
pub struct Membership {
    project: PathBuf,
    /// How it is called there.
    name: String,
    way: Way,
    /// Where the daemon has what decides over the project, other than below the view.
    state_dirs: Vec<PathBuf>,
    /// By which the end of the daemon is seen; none while it is gone. No connection is kept: the command, which is forked
    /// from here, must not find one, and a silent one would be closed.
    daemon: Option<OwnedFd>,
    sessions: Sessions,
}

/// What events call a run.
#[derive(Default)]
pub struct Sessions {
    /// One for each daemon that it has been a run of, the latest last.
    pub own: Vec<String>,
    /// Of daemons that came in another's place: what the run did before it had joined them was nobody's, and so was what
    /// others did.
    pub of_nobody: Vec<String>,
}

/// How a daemon went that does not come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    Died,
    /// At somebody's wish: it took its note away.
    Unmounted,
}

impl Membership {
    /// Starts a daemon where none answers.
    pub fn join(project: PathBuf, settings: &SettingFlags, name: &str) -> Result<Self, Failure> {
        let (begun, mut strikes) = (Instant::now(), 0);
        loop {
            match join_or_start(&project, settings, name) {
                Err(Failure::Told(body)) if body.code == ErrorCode::Busy && begun.elapsed() < ENDING_MAX => {
                    // What a daemon does last, after it has taken its note away, takes a moment, too.
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

    pub fn way(&self) -> &Way {
        &self.way
    }

    pub fn state_dirs(&self) -> &[PathBuf] {
        &self.state_dirs
    }

    /// The latest.
    pub fn session(&self) -> &str {
        self.sessions.own.last().map_or("", String::as_str)
    }

    /// What shells read, as programs in the run see it.
    pub fn shell_directory(&self) -> PathBuf {
        self.project.join(STATE_DIRECTORY).join(SHELL_DIRECTORY)
    }

    /// Readable when the daemon has died. None: it has.
    pub fn daemon(&self) -> Option<BorrowedFd<'_>> {
        self.daemon.as_ref().map(|daemon| daemon.as_fd())
    }

    /// Whoever answers now; a daemon that has just died is waited for.
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

    /// To be asked where nobody answers any more, for words alone: a command that works without a daemon takes a dead one's
    /// note away, too. What cannot be looked at is taken for dead.
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

    /// The same run with the daemon that has come in the place of the other, if it has.
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

    /// Says goodbye. A daemon of which it was the last run has ended when this returns.
    pub fn leave(self) -> Result<(), Failure> {
        self.daemon.map_or(Ok(()), |daemon| leave(&self.project, &daemon))
    }
}

fn leave(project: &Path, daemon: &OwnedFd) -> Result<(), Failure> {
    let Some(mut client) = answering(project)? else { return Ok(()) };
    let Reply::Leave(LeaveReply { last }) = client.ask(&Request::new(Op::Leave))? else {
        return Err(Failure::other_answer());
    };
    // It ends when nobody reads its answer any more.
    drop(client);
    if last { crate::cli::unmount::wait_for_end(daemon) } else { Ok(()) }
}

type Joined = (OwnedFd, RunReply, Way);

fn join_or_start(project: &Path, settings: &SettingFlags, name: &str) -> Result<Joined, Failure> {
    let found = join(project, name)?;
    match found {
        Some((daemon, ..)) if *settings != SettingFlags::default() => {
            // It would count as a run there until it is seen that this process has ended.
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

/// A conversation with the daemon; none where nobody answers.
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
        // It has ended between the two: another must be started, once this one has let go.
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

/// A daemon that was started in another mount namespace may answer from there: what would be taken for its view is the project
/// itself.
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
        project.display()
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

/// Whether a daemon holds the project: one that takes no run is ending.
fn is_held(project: &Path) -> Result<bool, Failure> {
    let lower = Tree::open(project).map_err(|err| super::told("open the project", &err))?;
    let note = holder_note(&lower, &sources::location()?);
    Ok(note.is_some_and(|note| note.mountpoint.is_some() && process::tgid(note.pid).is_some()))
}
