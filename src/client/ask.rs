//! One question and its answer, with pages joined.

use super::{DeadMount, Place, Reach, find, patiently, project_of, reach, reach::reach_by_socket};
use crate::model::shell_word;
use crate::protocol::{
    ErrorBody, ErrorCode, PROJECT_LINK, REPLY_BYTES_MAX, Reply, Request, Response, ResponseError, is_whole,
};
use crate::sys::mount::is_death;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a watchdog may take to replace a daemon that died (SPEC §10), and how often to look.
const COMING_BACK_MAX: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How often a text is read from its beginning if it is another before its end has come.
const READ_ANEW_MAX: usize = 5;

/// The most that the kernel asks of a mount at once, so that a long answer takes few round trips.
const ANSWER_PIECE_BYTES: usize = 1 << 20;

/// The size of the first read. The kernel prepares room for all that is asked for, and most answers are short.
const ANSWER_BEGIN_BYTES: usize = 1 << 16;

/// Answers with no mount present, from the state directory and under its lock (SPEC §3). The caller supplies it, because
/// the client layer does not know the store.
pub type Offline = fn(&Place, &Request) -> Response;

/// A connection to what answers for one project.
pub struct Client {
    place: Place,
    reach: Reach,
    offline: Offline,
    /// Where to go on if the view in which the client was opened goes away.
    project: Option<PathBuf>,
}

/// The answer to one page.
enum Answer {
    /// A line as the daemon sent it, not parsed yet.
    Said(Vec<u8>),
    Made(Response),
}

/// Why a question got no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("no mount and no state here or above {}", .0.display())]
    NoProject(PathBuf),
    #[error("{}; {}", .0, .0.remedy())]
    Stale(DeadMount),
    #[error("the mount on {} is another user's, who has to ask: without `-o allow_other` nobody else may look into it; root can `umount` it", .0.display())]
    Shut(PathBuf),
    #[error("you stand in a view that is gone, or in a directory that was removed: cd .")]
    Gone,
    #[error("the state directory {} belongs to {}, not to {}{}", state.display(), project.display(), asked.display(), way_on(state, project, *is_gone))]
    OtherProject { state: PathBuf, project: PathBuf, asked: PathBuf, is_gone: bool },
    #[error("the state directory {} is not believed: it belongs to uid {uid}, who is neither you nor the project's owner", state.display())]
    OthersState { state: PathBuf, uid: u32 },
    #[error("the state directory {} is not believed: others may look into it, and fettlefs makes it private; if it is yours, `chmod 700` it; if it came with a clone, remove it", .0.display())]
    OpenState(PathBuf),
    /// The directory that the user named to start from.
    #[error("{}: {cause}", path.display())]
    NoDirectory { path: PathBuf, cause: io::Error },
    #[error("{what} {}: {cause}", path.display())]
    Io { what: &'static str, path: PathBuf, cause: io::Error },
    #[error("{0}")]
    Answer(#[from] ResponseError),
    #[error("the daemon of {} has just ended, or is ending: ask again", .0.display())]
    Ending(PathBuf),
    #[error(
        "the daemon (pid {0}) does not answer: it is stopped; `kill -CONT {0}` has it go on, `kill -9 {0}` ends it"
    )]
    Stopped(u32),
    #[error("the daemon of {} ended before it answered: look whether it did what was asked", .0.display())]
    Unanswered(PathBuf),
    #[error("the answer is longer than 8 MiB")]
    AnswerTooLong,
    #[error("the answer stopped in the middle of a line: the daemon died or was stopped")]
    AnswerCut,
}

impl Client {
    /// Looks from `start` upwards. There must be a state directory, but not necessarily a daemon.
    pub fn open(start: &Path, offline: Offline) -> Result<Self, ClientError> {
        let place = find(start)?;
        let reach = reach(&place)?;
        Ok(Self { place, reach, offline, project: None })
    }

    /// The same, but calls no mount dead before its watchdog has had time to start another daemon.
    pub fn open_patiently(start: &Path, offline: Offline) -> Result<Self, ClientError> {
        let begun = Instant::now();
        loop {
            let found = Self::open(start, offline);
            if !is_dead(&found) || begun.elapsed() >= COMING_BACK_MAX {
                return found;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Connects to the daemon that has the place's state directory, when a dead mount covers the project.
    pub fn of_holder(place: Place, offline: Offline) -> Result<Self, ClientError> {
        let reach = reach_by_socket(&place.state)?;
        Ok(Self { place, reach, offline, project: None })
    }

    /// What [`Client::open`] needs to find the project again later.
    pub(super) fn way(&self) -> (PathBuf, Offline) {
        (self.place.start.clone(), self.offline)
    }

    /// Makes [`Self::again`] continue in the project if the view goes away, since the path inside the view goes with it.
    pub fn outlive_view(self) -> Result<Self, ClientError> {
        let project = match self.reach {
            Reach::View(_) => project_of(&self.place.root)?,
            Reach::Socket(_) | Reach::Offline | Reach::Stale(_) => None,
        };
        Ok(Self { project, ..self })
    }

    /// Connects to what answers now, looked for from the same start.
    pub fn again(&self) -> Result<Self, ClientError> {
        let found = Self::open(&self.place.start, self.offline);
        let Some(project) = &self.project else { return found };
        let found = match found {
            Ok(found) if found.is_in_view_of(project) => found,
            // The view's path now shows what the view covered, perhaps another project.
            Ok(_) | Err(_) => Self::open(project, self.offline)?,
        };
        Ok(Self { project: self.project.clone(), ..found })
    }

    /// True in a view of `project`, dead or alive.
    fn is_in_view_of(&self, project: &Path) -> bool {
        match &self.reach {
            Reach::View(_) => matches!(project_of(&self.place.root), Ok(Some(of)) if of == project),
            Reach::Stale(dead) => dead.project == project,
            Reach::Socket(_) | Reach::Offline => false,
        }
    }

    pub fn place(&self) -> &Place {
        &self.place
    }

    pub fn reach(&self) -> &Reach {
        &self.reach
    }

    /// Asks, and asks on until the last page, unless the request limits itself.
    pub fn ask(&mut self, request: &Request) -> Result<Reply, ErrorBody> {
        let first = self.exchange(request)?;
        self.joined(first, request)
    }

    /// The same as one line, for printing. Most answers are one page, whose line is returned without being parsed.
    pub fn ask_line(&mut self, request: &Request) -> Result<Vec<u8>, ErrorBody> {
        match self.exchange(request)? {
            Answer::Said(line) if is_whole(&line, request.op) => Ok(line),
            first => Ok(self.joined(first, request)?.to_whole_line()),
        }
    }

    fn joined(&mut self, mut first: Answer, request: &Request) -> Result<Reply, ErrorBody> {
        for _ in 0..READ_ANEW_MAX {
            if let Some(reply) = self.joined_of_one(first, request)? {
                return Ok(reply);
            }
            first = self.exchange(request)?;
        }
        Err(ErrorBody::new(ErrorCode::Busy, "the file changes from page to page; ask again"))
    }

    /// Returns `None` if the pages are of different contents.
    fn joined_of_one(&mut self, first: Answer, request: &Request) -> Result<Option<Reply>, ErrorBody> {
        let mut reply = first.read()?;
        while let Some(offset) = reply.next_page().filter(|next| request.limit.is_none() && *next > request.offset) {
            let told = reply.told();
            let page = self.exchange(&Request { offset, told, ..request.clone() })?.read()?;
            if !reply.goes_on_in(&page) {
                return Ok(None);
            }
            reply.append(page);
            // Without progress from page to page this loop would not end.
            if reply.next_page().is_some_and(|next| next <= offset) {
                return Err(ErrorBody::new(ErrorCode::Io, "the daemon repeats a page"));
            }
        }
        Ok(Some(reply))
    }

    fn exchange(&mut self, request: &Request) -> Result<Answer, ErrorBody> {
        let line = request.to_line()?;
        let path = self.place.root.clone();
        let failed = |cause: io::Error| match is_death(&cause) {
            true => ClientError::Unanswered(path.clone()),
            false if is_hung_up(&cause) => ClientError::Ending(path.clone()),
            false => ClientError::Io { what: "ask the daemon of", path: path.clone(), cause },
        };
        let answer = match &mut self.reach {
            Reach::Offline => return Ok(Answer::Made((self.offline)(&self.place, request))),
            Reach::Stale(dead) => return Err(ClientError::Stale(dead.clone()).into()),
            Reach::View(control) => match hand_in(control, &line) {
                // No daemon has taken the request. Had one taken it and died, it would be unknown what it did before.
                Err(cause) if cause.raw_os_error() == Some(libc::ENOTCONN) => return Err(self.died().into()),
                handed_in => handed_in.and_then(|()| read_answer(control, |_| false)).map_err(failed)?,
            },
            Reach::Socket(socket) => {
                let socket = Arc::clone(socket);
                patiently(&[&path], move || converse_line(&socket, &line))?.map_err(failed)?
            }
        };
        match answer.is_empty() {
            true => Err(ClientError::Unanswered(path).into()),
            false => Ok(Answer::Said(line_of(answer)?)),
        }
    }

    /// The error for a daemon of the view that died before it took a request.
    fn died(&self) -> ClientError {
        match is_dead(&Self::open_patiently(&self.place.start, self.offline)) {
            true => ClientError::Stale(DeadMount::around(&self.place.root)),
            false => ClientError::Ending(self.place.root.clone()),
        }
    }
}

fn is_dead(found: &Result<Client, ClientError>) -> bool {
    matches!(found, Err(ClientError::Stale(_)) | Ok(Client { reach: Reach::Stale(_), .. }))
}

impl Answer {
    fn read(self) -> Result<Reply, ErrorBody> {
        let response = match self {
            Self::Said(line) => Response::parse(&line).map_err(ClientError::Answer)?,
            Self::Made(response) => response,
        };
        match response {
            Response::Done(reply) => Ok(*reply),
            Response::Failed(error) => Err(*error),
        }
    }
}

/// True if the other end of a socket was closed before the request was taken.
fn is_hung_up(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// The control file wants the whole request in one write (SPEC §11), and ends its answer with end of file.
fn hand_in(mut control: &std::fs::File, line: &[u8]) -> io::Result<()> {
    match control.write(line)? == line.len() {
        true => Ok(()),
        false => Err(io::Error::other("the control file took only a part of the request")),
    }
}

/// The socket stays open for the next request, so the answer ends with its line.
fn converse_line(mut socket: &std::os::unix::net::UnixStream, line: &[u8]) -> io::Result<Vec<u8>> {
    let sent = socket.write_all(line);
    match read_answer(&mut socket, |answer| answer.last() == Some(&b'\n')) {
        // A daemon that takes no more requests says why before it hangs up.
        Ok(answer) if !answer.is_empty() => Ok(answer),
        answer => sent.and(answer),
    }
}

/// Reads to the end, or until `is_whole`, and stops when the answer is longer than allowed.
fn read_answer(from: &mut impl Read, is_whole: impl Fn(&[u8]) -> bool) -> io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    let mut asked = ANSWER_BEGIN_BYTES;
    while !is_whole(&answer) && answer.len() <= REPLY_BYTES_MAX {
        let had = answer.len();
        answer.resize(had + asked, 0);
        let read = from.read(&mut answer[had..]);
        answer.truncate(had + read.as_ref().map_or(0, |count| *count));
        match read {
            Ok(0) => break,
            Ok(count) if count == asked => asked = ANSWER_PIECE_BYTES,
            Ok(_) => {}
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
    Ok(answer)
}

fn line_of(answer: Vec<u8>) -> Result<Vec<u8>, ClientError> {
    match answer.as_slice() {
        long if long.len() > REPLY_BYTES_MAX => Err(ClientError::AnswerTooLong),
        [.., b'\n'] => Ok(answer),
        _ => Err(ClientError::AnswerCut),
    }
}

/// The remedy if the project is gone. Only the user who moved it knows its new path.
fn way_on(state: &Path, project: &Path, is_gone: bool) -> String {
    let link = state.join(PROJECT_LINK);
    match is_gone {
        true => {
            let link = shell_word(&link.to_string_lossy());
            format!("; {} is gone: if it was moved, `ln -sfn ITS_NEW_PATH {link}`", project.display())
        }
        false => String::new(),
    }
}

impl ClientError {
    pub fn other_project(state: &Path, project: PathBuf, asked: &Path) -> Self {
        let is_gone = matches!(project.try_exists(), Ok(false));
        Self::OtherProject { state: state.to_owned(), project, asked: asked.to_owned(), is_gone }
    }

    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NoProject(_) | Self::Stale(_) | Self::Gone => ErrorCode::NotMounted,
            Self::Ending(_) | Self::Unanswered(_) => ErrorCode::NotMounted,
            Self::Io { cause, .. } if cause.kind() == io::ErrorKind::PermissionDenied => ErrorCode::NotPermitted,
            Self::Shut(_) | Self::OthersState { .. } | Self::OpenState(_) => ErrorCode::NotPermitted,
            Self::NoDirectory { .. } => ErrorCode::UnknownPath,
            Self::OtherProject { .. } => ErrorCode::BadRequest,
            Self::Stopped(_) => ErrorCode::Busy,
            Self::Io { .. } | Self::AnswerCut => ErrorCode::Io,
            Self::Answer(ResponseError::Version(_)) => ErrorCode::UnsupportedVersion,
            Self::Answer(_) => ErrorCode::Io,
            Self::AnswerTooLong => ErrorCode::TooLarge,
        }
    }
}

impl From<ClientError> for ErrorBody {
    fn from(err: ClientError) -> Self {
        Self::new(err.code(), err.to_string())
    }
}
