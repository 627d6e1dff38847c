//! One line of answer: `{"v":1,"ok":true,"op":…}` or `{"v":1,"ok":false,"error":{…}}`.

use super::{
    Acted, BackupsReply, BlameReply, CheckReply, Cut, DiffReply, ErrorBody, ErrorCode, EventsReply, ExternalReply,
    FlushReply, FsckReply, LeaveReply, LogReply, MeterReply, Op, PatchReply, ReadReply, ReloadReply, ReviewReply,
    RunReply, Status, UnmountReply, VersionReply,
};
use crate::model::Digest;
use serde::{Deserialize, Serialize};

/// The most bytes of outcomes in an answer that is too long with all of them. `unmount`'s held changes get half of it.
const OUTCOMES_BYTES_MAX: usize = super::REPLY_BYTES_MAX / 4;

/// The result of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Response {
    Done(Box<Reply>),
    Failed(Box<ErrorBody>),
}

/// An answer, tagged by `op`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Reply {
    Status(Box<Status>),
    Diff(DiffReply),
    Confirm(Acted),
    Discard(Acted),
    Rollback(Acted),
    Undo(Acted),
    Backups(BackupsReply),
    Log(LogReply),
    Blame(BlameReply),
    Events(EventsReply),
    External(ExternalReply),
    Fsck(FsckReply),
    Reload(ReloadReply),
    Read(Box<ReadReply>),
    Meter(MeterReply),
    Patch(PatchReply),
    Check(Box<CheckReply>),
    RequestReview(ReviewReply),
    Flush(FlushReply),
    Unmount(UnmountReply),
    Run(RunReply),
    Leave(LeaveReply),
    Version(VersionReply),
}

/// The reason why some bytes are not a response.
#[derive(Debug, thiserror::Error)]
pub enum ResponseError {
    #[error("the answer is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the answer is empty")]
    Empty,
    #[error("the daemon speaks protocol version {0}, this program version {ours}", ours = super::VERSION)]
    Version(u64),
    #[error("the answer is of an operation that this program does not know: {0}")]
    Op(String),
    #[error("the answer says neither what was done nor what failed")]
    Neither,
}

#[derive(Serialize)]
struct Line<'a> {
    v: u64,
    ok: bool,
    #[serde(flatten)]
    reply: Option<&'a Reply>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Refusal<'a>>,
}

/// An error with its remedy, so that its reader need not know what each code calls for.
#[derive(Serialize)]
struct Refusal<'a> {
    #[serde(flatten)]
    body: &'a ErrorBody,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

/// The fields that tell how to read the rest.
#[derive(Deserialize)]
struct Head {
    v: u64,
    ok: bool,
    op: Option<String>,
    next: Option<u64>,
    error: Option<ErrorBody>,
}

impl Response {
    pub fn done(reply: Reply) -> Self {
        Self::Done(Box::new(reply))
    }

    pub fn failed(error: impl Into<ErrorBody>) -> Self {
        Self::Failed(Box::new(error.into()))
    }

    /// Returns the response as one line. An answer too long, or impossible in JSON, becomes an error that says so.
    pub fn to_line(&self) -> Vec<u8> {
        let fits = |line: &Vec<u8>| line.len() <= super::REPLY_BYTES_MAX;
        let line = Some(self.to_whole_line()).filter(fits);
        line.or_else(|| self.shortened().map(|short| short.to_whole_line()).filter(fits)).unwrap_or_else(|| {
            refusal(ErrorCode::TooLarge, "the reply is longer than 8 MiB; ask for less with `limit`")
        })
    }

    fn shortened(&self) -> Option<Reply> {
        match self {
            Self::Done(reply) => reply.shortened(),
            Self::Failed(_) => None,
        }
    }

    /// Returns the response as one line of any length, for output that is printed and not sent.
    pub fn to_whole_line(&self) -> Vec<u8> {
        match self {
            Self::Done(reply) => reply.to_whole_line(),
            Self::Failed(body) => {
                let error = Some(Refusal { body, remedy: body.remedy() });
                Line { v: super::VERSION, ok: false, reply: None, error }.to_bytes()
            }
        }
    }

    pub fn parse(line: &[u8]) -> Result<Self, ResponseError> {
        if line.trim_ascii().is_empty() {
            return Err(ResponseError::Empty);
        }
        let head: Head = serde_json::from_slice(line)?;
        match head {
            Head { v, .. } if v != super::VERSION => Err(ResponseError::Version(v)),
            Head { ok: true, op: Some(op), .. } => match Op::from_name(&op) {
                Some(op) => Ok(Self::done(Reply::read(op, line)?)),
                None => Err(ResponseError::Op(op)),
            },
            Head { error: Some(error), .. } => Ok(Self::failed(error)),
            Head { error: None, .. } => Err(ResponseError::Neither),
        }
    }
}

/// Whether a line is an answer to `op` with no further page, which can be passed on as it is without parsing all of it.
pub fn is_whole(line: &[u8], op: Op) -> bool {
    // serde does not check the UTF-8 of what it skips.
    let head = std::str::from_utf8(line).ok().and_then(|line| serde_json::from_str::<Head>(line).ok());
    head.is_some_and(|head| {
        (head.v, head.ok, head.next) == (super::VERSION, true, None) && head.op.as_deref() == Some(op.name())
    })
}

impl Line<'_> {
    fn to_bytes(&self) -> Vec<u8> {
        match serde_json::to_vec(self) {
            Ok(mut bytes) => {
                bytes.push(b'\n');
                bytes
            }
            Err(err) => refusal(ErrorCode::Io, &format!("encode the reply: {err}")),
        }
    }
}

/// Written by hand, because it must work even if nothing else can be encoded.
fn refusal(code: ErrorCode, message: &str) -> Vec<u8> {
    let code = if code == ErrorCode::TooLarge { "too_large" } else { "io" };
    let message = serde_json::Value::from(message);
    format!("{{\"v\":1,\"ok\":false,\"error\":{{\"code\":\"{code}\",\"message\":{message}}}}}\n").into_bytes()
}

impl From<Result<Reply, ErrorBody>> for Response {
    fn from(result: Result<Reply, ErrorBody>) -> Self {
        match result {
            Ok(reply) => Self::done(reply),
            Err(error) => Self::failed(error),
        }
    }
}

impl Reply {
    /// Returns the answer as a line of any length, for output that is printed and not sent.
    pub fn to_whole_line(&self) -> Vec<u8> {
        Line { v: super::VERSION, ok: true, reply: Some(self), error: None }.to_bytes()
    }

    /// The line of a reply that is not what was asked for, with the reason.
    pub fn to_refused_line(&self, why: &ErrorBody) -> Vec<u8> {
        let error = Some(Refusal { body: why, remedy: why.remedy() });
        Line { v: super::VERSION, ok: false, reply: Some(self), error }.to_bytes()
    }

    /// Parses the answer to `op`. With a tag among the fields, serde would copy everything once more before it reads it.
    fn read(op: Op, line: &[u8]) -> serde_json::Result<Self> {
        use serde_json::from_slice as read;
        Ok(match op {
            Op::Status => Self::Status(read(line)?),
            Op::Diff => Self::Diff(read(line)?),
            Op::Confirm => Self::Confirm(read(line)?),
            Op::Discard => Self::Discard(read(line)?),
            Op::Rollback => Self::Rollback(read(line)?),
            Op::Undo => Self::Undo(read(line)?),
            Op::Backups => Self::Backups(read(line)?),
            Op::Log => Self::Log(read(line)?),
            Op::Blame => Self::Blame(read(line)?),
            Op::Events => Self::Events(read(line)?),
            Op::External => Self::External(read(line)?),
            Op::Fsck => Self::Fsck(read(line)?),
            Op::Reload => Self::Reload(read(line)?),
            Op::Read => Self::Read(read(line)?),
            Op::Meter => Self::Meter(read(line)?),
            Op::Patch => Self::Patch(read(line)?),
            Op::Check => Self::Check(read(line)?),
            Op::RequestReview => Self::RequestReview(read(line)?),
            Op::Flush => Self::Flush(read(line)?),
            Op::Unmount => Self::Unmount(read(line)?),
            Op::Run => Self::Run(read(line)?),
            Op::Leave => Self::Leave(read(line)?),
            Op::Version => Self::Version(read(line)?),
        })
    }

    /// Returns the same with only the outcomes that fit: they are done, so nobody can request them again in pages.
    fn shortened(&self) -> Option<Self> {
        let mut short = self.clone();
        let (outcomes, more) = match &mut short {
            Self::Confirm(acted) | Self::Discard(acted) => (&mut acted.outcomes, &mut acted.more),
            Self::Rollback(acted) | Self::Undo(acted) => (&mut acted.outcomes, &mut acted.more),
            Self::Flush(reply) => (&mut reply.outcomes, &mut reply.more),
            Self::Unmount(reply) => (&mut reply.outcomes, &mut reply.more),
            Self::Check(reply) => (&mut reply.outcomes, &mut reply.more),
            Self::Status(_) | Self::Diff(_) | Self::Backups(_) | Self::Log(_) | Self::Blame(_) => return None,
            Self::External(_) | Self::Fsck(_) | Self::Read(_) | Self::Meter(_) | Self::Patch(_) => return None,
            Self::Events(_) | Self::Reload(_) | Self::RequestReview(_) | Self::Run(_) | Self::Leave(_) => return None,
            Self::Version(_) => return None,
        };
        let all = std::mem::take(outcomes);
        let count = all.len();
        *outcomes = Cut::within(OUTCOMES_BYTES_MAX).part(all);
        *more = (count - outcomes.len()) as u64;
        Some(short)
    }

    /// Whether the answer reports something that is done, and would not be reported again.
    pub fn has_acted(&self) -> bool {
        match self {
            Self::Confirm(acted) | Self::Discard(acted) => acted.has_acted(),
            Self::Rollback(acted) | Self::Undo(acted) => acted.has_acted(),
            Self::Patch(reply) => !reply.dry_run,
            Self::Unmount(reply) => !reply.dry_run,
            Self::Reload(reply) => !reply.dry_run,
            Self::Status(_) | Self::Diff(_) | Self::Backups(_) | Self::Log(_) | Self::Blame(_) => false,
            Self::External(_) | Self::Fsck(_) | Self::Read(_) | Self::Meter(_) | Self::Check(_) => false,
            Self::Events(_) | Self::RequestReview(_) | Self::Run(_) | Self::Leave(_) => false,
            Self::Flush(_) | Self::Version(_) => false,
        }
    }

    /// Where the next page begins; `None` if this is the last.
    pub fn next_page(&mut self) -> Option<u64> {
        *self.next_mut()?
    }

    /// Returns `None` for an answer that never has pages.
    fn next_mut(&mut self) -> Option<&mut Option<u64>> {
        match self {
            Self::Status(status) => Some(&mut status.next),
            Self::Diff(reply) => Some(&mut reply.next),
            Self::Backups(reply) => Some(&mut reply.next),
            Self::Log(reply) => Some(&mut reply.next),
            Self::Blame(reply) => Some(&mut reply.next),
            Self::External(reply) => Some(&mut reply.next),
            Self::Fsck(reply) => Some(&mut reply.next),
            Self::Read(reply) => Some(&mut reply.next),
            Self::Meter(_) | Self::Patch(_) | Self::Check(_) | Self::RequestReview(_) => None,
            Self::Confirm(_) | Self::Discard(_) | Self::Rollback(_) | Self::Undo(_) => None,
            Self::Events(_) | Self::Reload(_) | Self::Flush(_) | Self::Unmount(_) | Self::Version(_) => None,
            Self::Run(_) | Self::Leave(_) => None,
        }
    }

    /// The digest to pass along with `offset` when asking for the next page.
    pub fn told(&self) -> Option<Digest> {
        let Self::Diff(diff) = self else { return None };
        diff.told
    }

    /// False if `page` is of another text than this one, which has changed between them.
    pub fn goes_on_in(&self, page: &Self) -> bool {
        match (self, page) {
            (Self::Read(all), Self::Read(page)) => all.sha256 == page.sha256,
            _ => true,
        }
    }

    /// Appends the page that follows this one. A page of another operation, which no daemon sends, counts as the last, so
    /// that no client asks forever.
    pub fn append(&mut self, page: Self) {
        match (self, page) {
            (Self::Status(all), Self::Status(page)) => {
                all.held.extend(page.held);
                all.external.extend(page.external);
                all.backups.extend(page.backups);
                all.writers.extend(page.writers);
                all.next = page.next;
            }
            (Self::Diff(all), Self::Diff(page)) => all.append(page),
            (Self::Backups(all), Self::Backups(page)) => {
                all.backups.extend(page.backups);
                all.next = page.next;
            }
            (Self::Log(all), Self::Log(page)) => {
                all.events.extend(page.events);
                all.next = page.next;
            }
            (Self::Blame(all), Self::Blame(page)) => {
                all.spans.extend(page.spans);
                all.next = page.next;
            }
            (Self::External(all), Self::External(page)) => {
                all.external.extend(page.external);
                all.next = page.next;
            }
            (Self::Fsck(all), Self::Fsck(page)) => {
                all.problems.extend(page.problems);
                all.next = page.next;
            }
            (Self::Read(all), Self::Read(page)) => all.append(*page),
            (all, _) => {
                if let Some(next) = all.next_mut() {
                    *next = None;
                }
            }
        }
    }
}
