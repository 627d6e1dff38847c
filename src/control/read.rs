//! Reading with memory: what a session has received already is not sent again (SPEC §16).
//!
//! A text counts as received when the answer has been delivered ([`Receipt`]), not when it is made: a client that
//! gave up has received nothing.

use super::rights::{self, FileAccess};
use super::{Asker, Project, Served};
use crate::control::answers::failed;
use crate::diff::{Delta, delta, measure};
use crate::model::{Digest, RelPath, plural};
use crate::overlay::Shown;
use crate::protocol::{
    ErrorBody, ErrorCode, External, ExternalKind, Meter, MeterCounts, MeterReply, REPLY_BYTES_MAX, ReadForm, ReadReply,
    Reply, Request, Response, refused_at,
};
use crate::store::{self, Counted, Reader};
use crate::sys::{file, process};

type Result<T> = std::result::Result<T, ErrorBody>;

/// The largest file that is read: its text is kept in memory as a whole.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The longest name of a session.
const SESSION_BYTES_MAX: usize = 128;

/// Room in an answer for everything but its text.
const REPLY_BYTES_AROUND: usize = 64 << 10;

/// To be noted on delivery of an answer: what its reader has received, and what it counts for.
pub struct Receipt {
    uid: u32,
    reader: Option<Reader>,
    path: RelPath,
    /// The whole text, if that is what the reader has now.
    received: Option<Received>,
    counted: Counted,
}

/// A text and its hash.
type Received = (Digest, Vec<u8>);

impl Receipt {
    /// If this fails, the reader is sent the whole text again, which is no reason to fail now.
    pub fn note(self, project: &Project) {
        let store = project.overlay.store();
        let received = self.reader.as_ref().zip(self.received.as_ref());
        let noted =
            received.map_or(Ok(()), |(reader, (digest, text))| store.note_received(reader, &self.path, *digest, text));
        let session = self.reader.as_ref().map(|reader| reader.session.as_str());
        let noted = noted.and_then(|()| store.count_read(self.uid, session, self.counted));
        if let Err(err) = noted {
            log::warn!("note that {} was read: {err}", self.path);
        }
    }
}

/// A text file of the view.
struct Text {
    path: RelPath,
    text: String,
    lines: u64,
    external: Option<ExternalKind>,
}

pub fn read(request: &Request, asker: &Asker, project: &Project) -> Served {
    match read_file(request, asker, project) {
        Ok((reply, receipt)) => Served { response: Response::done(Reply::Read(Box::new(reply))), receipt },
        Err(err) => Served { response: Response::failed(err), receipt: None },
    }
}

fn read_file(request: &Request, asker: &Asker, project: &Project) -> Result<(ReadReply, Option<Receipt>)> {
    let reader = reader_of(request, asker)?;
    let Some(path) = &request.path else {
        return forget_all(request, reader.as_ref(), project).map(|reply| (reply, None));
    };
    let text = text_of(path, asker, project)?;
    if let (true, Some(reader)) = (request.reset, &reader) {
        project.overlay.store().forget_received(reader, Some(path)).map_err(failed)?;
    }
    let is_whole = request.offset == 0 && request.limit.is_none() && text.text.len() <= ReadReply::PAGE_BYTES_MAX;
    let (reply, received) = match is_whole {
        true => whole(&text, reader.as_ref(), project)?,
        false => (part(&text, reader.as_ref(), request)?, None),
    };
    let asked = if is_whole { text.text.len() } else { reply.text.len() };
    let counted = Counted { asked: asked as u64, returned: reply.text.len() as u64 };
    Ok((reply, Some(Receipt { uid: asker.uid, reader, path: text.path, received, counted })))
}

/// Returns the reader: by the session that was named, else by the process tree; `None` if that is unknown.
pub fn reader_of(request: &Request, asker: &Asker) -> Result<Option<Reader>> {
    let session = match &request.session {
        Some(name) if name.is_empty() || name.len() > SESSION_BYTES_MAX || name.contains(char::is_control) => {
            let message =
                format!("a session's name has 1 to {SESSION_BYTES_MAX} bytes and no control characters: {name:?}");
            return Err(ErrorBody::new(ErrorCode::BadRequest, message));
        }
        Some(name) => Some(name.clone()),
        None => process::tree_name(asker.pid),
    };
    Ok(session.map(|session| Reader { uid: asker.uid, session }))
}

fn forget_all(request: &Request, reader: Option<&Reader>, project: &Project) -> Result<ReadReply> {
    if !request.reset {
        return Err(ErrorBody::new(ErrorCode::BadRequest, "read of what? Give a path"));
    }
    if let Some(reader) = reader {
        project.overlay.store().forget_received(reader, None).map_err(failed)?;
    }
    Ok(ReadReply {
        path: RelPath::root(),
        form: ReadForm::Forgotten,
        text: String::new(),
        sha256: None,
        size: 0,
        lines: 0,
        session: reader.map(|reader| reader.session.clone()),
        insertions: None,
        deletions: None,
        externally_modified: false,
        external: None,
        hint: None,
        next: None,
    })
}

fn text_of(path: &RelPath, asker: &Asker, project: &Project) -> Result<Text> {
    let content = content_of(path, asker, project, FileAccess::Read)?;
    let external = project.overlay.externally(path).map_err(failed)?;
    let unended = !content.is_empty() && !content.ends_with('\n');
    let lines = memchr::memchr_iter(b'\n', content.as_bytes()).count() as u64 + u64::from(unended);
    Ok(Text { path: path.clone(), text: content, lines, external })
}

/// Returns the text of a file, if the asker could open it as a plain file too.
pub fn content_of(path: &RelPath, asker: &Asker, project: &Project, access: FileAccess) -> Result<String> {
    rights::check_reachable(asker, project, path)?;
    let shown = project.overlay.shown(path)?;
    if !rights::may_open(asker, &shown, access) {
        let what = if access == FileAccess::Read { "read" } else { "write" };
        return Err(refused_at(path, ErrorCode::NotPermitted, &format!("you may not {what} this file")));
    }
    let Shown { file, meta, .. } = shown;
    if meta.size > FILE_BYTES_MAX {
        let why = format!("it has {} bytes, the limit is {FILE_BYTES_MAX}: open the file itself", meta.size);
        return Err(refused_at(path, ErrorCode::TooLarge, &why));
    }
    let bytes = file::read_all(&file, FILE_BYTES_MAX)
        .map_err(|err| refused_at(path, ErrorCode::Io, &format!("read it: {err}")))?;
    let size = bytes.len();
    String::from_utf8(bytes).map_err(|_| {
        let why = format!("it is not UTF-8 text ({size} bytes): open the file itself");
        refused_at(path, ErrorCode::BadRequest, &why)
    })
}

/// What a reader has received of a file before.
enum Had {
    Nothing,
    TheSame,
    /// `own` is what the reader's patches have made of that text since.
    Another {
        text: Vec<u8>,
        own: Option<Digest>,
    },
}

/// `digest` is that of the current text: what the reader has is looked up only if it differs.
fn had_before(text: &Text, reader: Option<&Reader>, digest: Digest, project: &Project) -> Result<Had> {
    let Some(reader) = reader else { return Ok(Had::Nothing) };
    let store = project.overlay.store();
    let Some(baseline) = store.baseline(reader, &text.path).map_err(failed)? else { return Ok(Had::Nothing) };
    if baseline.own.is_some_and(|own| own != digest) {
        // The reader also knows what its own patches made, and that text is not kept. Neither `[unchanged]` nor a diff
        // against what it received would show what has happened since.
        return Ok(Had::Nothing);
    }
    if baseline.digest == digest {
        return Ok(Had::TheSame);
    }
    let had = store.received_text(reader, &text.path, &baseline).map_err(failed)?;
    Ok(had.map_or(Had::Nothing, |text| Had::Another { text, own: baseline.own }))
}

/// Returns the file, or only what the reader lacks, and the text that the reader has after that.
fn whole(text: &Text, reader: Option<&Reader>, project: &Project) -> Result<(ReadReply, Option<Received>)> {
    let content = text.text.as_bytes();
    let digest = Digest::of(content);
    let (had, own) = match had_before(text, reader, digest, project)? {
        Had::Nothing => {
            let reply = text.reply(reader, ReadForm::Content, digest, text.text.clone());
            return Ok((reply, Some((digest, content.to_vec()))));
        }
        Had::TheSame => {
            let line = format!("[unchanged] {}: {}\n", text.path, text.facts());
            return Ok((text.reply(reader, ReadForm::Unchanged, digest, line), None));
        }
        Had::Another { text, own } => (text, own),
    };
    let counts = measure(&had, content);
    let counted = |reply: ReadReply| ReadReply {
        insertions: Some(counts.insertions),
        deletions: Some(counts.deletions),
        ..reply
    };
    if own == Some(digest) {
        let (added, gone) = (counts.insertions, counts.deletions);
        let (path, facts) = (&text.path, text.facts());
        let line = format!("[your edit] {path}: +{added} -{gone} since you read it, sha256 {digest}, {facts}\n");
        return Ok((counted(text.reply(reader, ReadForm::Certificate, digest, line)), None));
    }
    let (form, shown) = match delta(&text.path, &had, content) {
        // Both sides are text, so the diff is.
        Delta::Diff(diff) => (ReadForm::Diff, String::from_utf8_lossy(&diff).into_owned()),
        Delta::Whole | Delta::Same => (ReadForm::Content, text.text.clone()),
    };
    Ok((counted(text.reply(reader, form, digest, shown)), Some((digest, content.to_vec()))))
}

/// Returns whole lines from line `offset` on, counted from 0: as many as were asked for and fit.
fn part(text: &Text, reader: Option<&Reader>, request: &Request) -> Result<ReadReply> {
    let limit = usize::try_from(request.limit.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    let skipped = usize::try_from(request.offset).unwrap_or(usize::MAX);
    let mut shown = String::new();
    let mut lines = 0;
    for line in text.text.split_inclusive('\n').skip(skipped).take(limit) {
        if !shown.is_empty() && shown.len() + line.len() > ReadReply::PAGE_BYTES_MAX {
            break;
        }
        shown.push_str(line);
        lines += 1;
    }
    check_fits(text, &shown, request.offset)?;
    let end = request.offset.saturating_add(lines);
    let digest = Digest::of(text.text.as_bytes());
    let reply = text.reply(reader, ReadForm::Part, digest, shown);
    Ok(ReadReply { next: (lines > 0 && end < text.lines).then_some(end), ..reply })
}

/// Refuses a line too long for any answer. It is never cut, because the reader could not tell.
fn check_fits(text: &Text, shown: &str, line: u64) -> Result<()> {
    let spelled =
        if shown.len() > ReadReply::PAGE_BYTES_MAX { serde_json::Value::from(shown).to_string().len() } else { 0 };
    if spelled + REPLY_BYTES_AROUND <= REPLY_BYTES_MAX {
        return Ok(());
    }
    let why = format!("line {} has {} bytes: open the file itself", line + 1, shown.len());
    Err(refused_at(&text.path, ErrorCode::TooLarge, &why))
}

impl Text {
    fn reply(&self, reader: Option<&Reader>, form: ReadForm, digest: Digest, text: String) -> ReadReply {
        ReadReply {
            path: self.path.clone(),
            form,
            text,
            sha256: Some(digest),
            size: self.text.len() as u64,
            lines: self.lines,
            session: reader.map(|reader| reader.session.clone()),
            insertions: None,
            deletions: None,
            externally_modified: self.external.is_some(),
            external: self.external,
            hint: self.external.map(|_| External::HINT.to_owned()),
            next: None,
        }
    }

    /// Lets a reader without the text notice that it has another than it thinks, and says how to get this one.
    fn facts(&self) -> String {
        let lines = plural(self.lines, "line");
        format!("{lines}, {} bytes; --reset if you do not have it", self.text.len())
    }
}

/// The owner and root see what other users read, too.
pub fn meter(request: &Request, asker: &Asker, project: &Project) -> Result<Reply> {
    let uid = (!rights::sees_all(asker, project)).then_some(asker.uid);
    let store = project.overlay.store();
    let rows = store.meters(uid, request.session.as_deref()).map_err(failed)?;
    if request.reset {
        store.reset_meters(uid, request.session.as_deref()).map_err(failed)?;
    }
    let sum = |of: fn(&store::MeterRow) -> u64| rows.iter().map(of).sum();
    let total = MeterCounts::of(sum(|row| row.reads), sum(|row| row.counted.asked), sum(|row| row.counted.returned));
    let meter = |row: &store::MeterRow| Meter {
        session: row.session.clone(),
        uid: row.uid,
        counts: MeterCounts::of(row.reads, row.counted.asked, row.counted.returned),
    };
    Ok(Reply::Meter(MeterReply { sessions: rows.iter().map(meter).collect(), total, reset: request.reset }))
}
