//! Finds out where the lines of a file come from, by comparing the versions that events and kept contents tell of.
//!
//! A version is a content, identified by its hash. The content an event left is kept as a backup when the next event
//! replaces it, so the log names all versions since it began, and a version is known as long as its backup exists. Where
//! one is no longer known, the lines of the next known version came with that or with any unknown one before it.

use super::answers::failed;
use super::rights;
use super::{Asker, Project};
use crate::diff::{self, Blame};
use crate::model::{Digest, RelPath};
use crate::overlay::{Layered, Waiting};
use crate::protocol::{
    BlameReply, BlameSpan, BlamedOn, ErrorBody, ErrorCode, Event, LineOrigin, Reply, Request, page, refused_at,
};
use crate::store::{self, Effect, Held, PathEffect};
use crate::sys::file::FileKind;

type Result<T> = std::result::Result<T, ErrorBody>;

/// The most text in one span, so that a page can carry it: JSON may spell a byte with six.
const SPAN_BYTES_MAX: usize = 128 << 10;

pub fn blame(request: &Request, asker: &Asker, project: &Project) -> Result<Reply> {
    let Some(path) = &request.path else {
        return Err(ErrorBody::new(ErrorCode::BadRequest, "blame of what? Give a file"));
    };
    rights::check_reachable(asker, project, path)?;
    project.overlay.settle_pending();
    let shown = project.overlay.layered(path).map_err(failed)?;
    let shown = shown.ok_or_else(|| refused_at(path, ErrorCode::UnknownPath, "no such file"))?;
    let row = shown.upper.as_ref().map(|waiting| &waiting.row);
    if !rights::may_read_file(asker, project, path, row) {
        return Err(refused_at(path, ErrorCode::NotPermitted, "you may not read this file"));
    }
    let text = text_of(path, &shown)?.to_vec();
    let backup = |name: &str| project.overlay.store().backup(name).ok().flatten().map(|backup| backup.digest);
    let steps = steps(project.overlay.store().history().map_err(failed)?, path, backup);
    let versions = versions(steps, &shown);
    let spans = spans(&compared(project, &versions, &shown, text)?, &versions);
    let page = page(spans, request.offset, request.limit);
    Ok(Reply::Blame(BlameReply { path: path.clone(), spans: page.entries, next: page.next }))
}

/// Returns the file's text, or refuses if it has no lines.
fn text_of<'a>(path: &RelPath, shown: &'a Layered) -> Result<&'a [u8]> {
    let refused = |why: &str| Err(refused_at(path, ErrorCode::BadRequest, why));
    match (shown.kind, &shown.text) {
        (FileKind::Regular | FileKind::Symlink, Some(text)) => match diff::classify(Some(text)) {
            diff::Side::Binary => refused("binary: it has no lines"),
            diff::Side::Text | diff::Side::Large | diff::Side::Absent => Ok(text),
        },
        (FileKind::Regular, None) => refused("larger than 5 MiB, where no lines are compared"),
        (FileKind::Directory, _) => refused("a directory has no lines: name a file"),
        (kind, _) => refused(&format!("a {} has no lines", kind.name())),
    }
}

/// What an event did to the content of the file, under its name at the time.
#[derive(Clone, Debug, PartialEq)]
struct Step {
    event: Event,
    before: Content,
    after: Content,
}

/// The content at a path, as far as the log tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Nothing,
    Known(Digest),
    /// Too large to be hashed while its writer waited.
    Unknown,
}

impl Content {
    fn of(version: Option<&store::Version>) -> Self {
        match version.map(|version| version.content) {
            None => Self::Nothing,
            Some(Some(kept)) => Self::Known(kept.digest),
            Some(None) => Self::Unknown,
        }
    }

    fn is(text: Option<&[u8]>) -> Self {
        text.map_or(Self::Nothing, |text| Self::Known(Digest::of(text)))
    }
}

/// A content that the file has had, and what brought it.
#[derive(Clone, Debug, PartialEq)]
struct Version {
    content: Content,
    origin: LineOrigin,
    by: BlamedOn,
}

/// Returns what happened to the content of the file now at `path`, the oldest first. Follows its names back, and past
/// deletions: what is made in place of something is a change to it (SPEC §4.3). `backup` returns a backup's content.
fn steps(log: Vec<(Event, Vec<PathEffect>)>, path: &RelPath, backup: impl Fn(&str) -> Option<Digest>) -> Vec<Step> {
    let (mut at, mut steps) = (path.clone(), Vec::new());
    for (event, effects) in log {
        let Some(came_from) = effects.iter().find_map(|done| name_before(done, &effects, &at)) else { continue };
        // A file that came here under another name has the content it had there.
        let changed = effects.iter().filter(|_| came_from == at).find_map(|done| contents(done, &at));
        if let Some((before, after)) = changed {
            // Where lower had nothing, the content that used to be there may still be kept as a backup.
            let kept = event.backup.as_deref().filter(|_| before == Content::Nothing).and_then(&backup);
            let before = kept.map_or(before, Content::Known);
            steps.push(Step { event, before, after });
        }
        at = came_from;
    }
    steps.reverse();
    steps
}

/// Returns the contents before and after an effect at a path; `None` if the effect does not concern them.
fn contents(done: &PathEffect, at: &RelPath) -> Option<(Content, Content)> {
    match &done.effect {
        Effect::Content { before, after, .. } if done.path == *at => {
            Some((Content::of(before.as_ref()), Content::of(after.as_ref())))
        }
        _ => None,
    }
}

/// Returns the file's name before something was done; `None` if that did not concern the file.
fn name_before(done: &PathEffect, all: &[PathEffect], at: &RelPath) -> Option<RelPath> {
    match &done.effect {
        Effect::Content { .. } if done.path == *at => {
            // A file older than the session was renamed over the one here: its old name loses it in the same event.
            let source = all.iter().find(|other| is_source(other, done));
            Some(source.map_or_else(|| at.clone(), |source| source.path.clone()))
        }
        Effect::Linked { of } if done.path == *at => Some(of.clone()),
        Effect::Renamed { from, .. } => at.rebase(&done.path, from),
        Effect::Exchanged { with, .. } => at.rebase(&done.path, with).or_else(|| at.rebase(with, &done.path)),
        _ => None,
    }
}

fn is_source(other: &PathEffect, target: &PathEffect) -> bool {
    let (Effect::Content { before: Some(went), after: None, .. }, Effect::Content { after: Some(came), .. }) =
        (&other.effect, &target.effect)
    else {
        return false;
    };
    other.path != target.path && went.content.is_some() && went.content == came.content
}

/// Returns all versions that are known of, consecutive duplicates merged. The last is what the view shows.
fn versions(steps: Vec<Step>, shown: &Layered) -> Vec<Version> {
    let mut versions = Versions(Vec::new());
    for Step { event, before, after } in steps {
        versions.found(before);
        if after != Content::Nothing {
            versions.add(Version { content: after, origin: LineOrigin::Event, by: by_event(&event) });
        }
    }
    match &shown.upper {
        None => versions.found(Content::is(shown.below.as_deref())),
        Some(Waiting { row, is_judged }) => {
            versions.found(match (row.base.digest(), &row.held) {
                (Some(base), _) => Content::Known(base),
                (None, Some(_)) => Content::Nothing,
                (None, None) => Content::is(shown.below.as_deref()),
            });
            let held = row.held.as_ref().filter(|_| *is_judged);
            let origin = if held.is_some() { LineOrigin::Held } else { LineOrigin::Unjudged };
            let by = held.map(by_held).unwrap_or_default();
            versions.add(Version { content: Content::is(shown.text.as_deref()), origin, by });
        }
    }
    versions.0
}

struct Versions(Vec<Version>);

impl Versions {
    /// Notes a content found at the path. Unless it is the first, or some event put it there, it came from outside.
    fn found(&mut self, content: Content) {
        let origin = if self.0.is_empty() { LineOrigin::BeforeLog } else { LineOrigin::Outside };
        // Finding nothing where something was means a deletion.
        if content != Content::Nothing || self.0.is_empty() {
            self.add(Version { content, origin, by: BlamedOn::default() });
        }
    }

    /// The same content once more is no version of its own.
    fn add(&mut self, version: Version) {
        let is_last = |last: &Version| version.content != Content::Unknown && last.content == version.content;
        if !self.0.last().is_some_and(is_last) {
            self.0.push(version);
        }
    }
}

/// In an event of a review, `pid` and `uid` are those of the asker, so the program's come first.
fn by_event(event: &Event) -> BlamedOn {
    let program = event.written_by.as_ref().or(event.opened_by.as_ref());
    BlamedOn {
        seq: Some(event.seq),
        event: Some(event.event),
        time: Some(event.time),
        id: event.id.clone(),
        operation: event.operation.clone(),
        session: event.session.clone(),
        pid: program.map(|program| program.pid).or(event.pid),
        uid: program.map(|program| program.uid).or(event.uid),
        opened_by: event.opened_by.clone(),
        written_by: event.written_by.clone(),
    }
}

fn by_held(held: &Held) -> BlamedOn {
    let writer = held.writer.clone().unwrap_or_default();
    BlamedOn {
        time: jiff::Timestamp::from_millisecond(held.created).ok(),
        id: Some(held.id.to_string()),
        operation: held.operation.map(|operation| operation.to_string()),
        session: writer.session,
        pid: Some(writer.pid),
        uid: Some(writer.uid),
        opened_by: writer.opened_by,
        written_by: writer.written_by,
        ..BlamedOn::default()
    }
}

/// The versions that a line may have come with, as indices: the first and the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Between {
    first: usize,
    last: usize,
}

/// Compares all known versions, one after another. The last is `text`.
fn compared(project: &Project, versions: &[Version], shown: &Layered, text: Vec<u8>) -> Result<Blame<Between>> {
    let mut blame: Option<Blame<Between>> = None;
    let mut first = 0;
    for (last, version) in versions.iter().enumerate() {
        let content = match last + 1 == versions.len() {
            true => Some(text.clone()),
            false => kept(project, version.content, shown)?,
        };
        let Some(content) = content else { continue };
        blame = Some(match blame {
            None => Blame::begin(content, Between { first, last }),
            Some(older) => older.then(content, Between { first, last }),
        });
        first = last + 1;
    }
    blame.ok_or_else(|| ErrorBody::new(ErrorCode::Io, "internal fault: a file without a version"))
}

/// Returns a content if lower or the store still has it.
fn kept(project: &Project, content: Content, shown: &Layered) -> Result<Option<Vec<u8>>> {
    let digest = match content {
        Content::Nothing => return Ok(Some(Vec::new())),
        Content::Unknown => return Ok(None),
        Content::Known(digest) => digest,
    };
    if let Some(below) = shown.below.as_ref().filter(|below| Digest::of(below) == digest) {
        return Ok(Some(below.clone()));
    }
    let content = project.overlay.store().content(digest).map_err(failed)?;
    Ok(content.filter(|content| diff::classify_size(content.len() as u64).is_none()))
}

/// Joins consecutive lines that came with the same versions.
fn spans(blame: &Blame<Between>, versions: &[Version]) -> Vec<BlameSpan> {
    let mut spans: Vec<(Between, BlameSpan)> = Vec::new();
    for ((text, came), line) in blame.lines().zip(1..) {
        let text = String::from_utf8_lossy(text);
        match spans.last_mut().filter(|(with, span)| *with == came && span.text.len() + text.len() <= SPAN_BYTES_MAX) {
            Some((_, span)) => span.text.push_str(&text),
            None => spans.push((came, span(versions, came, line, text.into_owned()))),
        }
    }
    spans.into_iter().map(|(_, span)| span).collect()
}

fn span(versions: &[Version], came: Between, line: u64, text: String) -> BlameSpan {
    let Version { origin, by, .. } = versions[came.last].clone();
    let since = versions[came.first].by.seq.filter(|_| came.first < came.last);
    BlameSpan { line, text, origin, certain: came.first == came.last, since, by }
}

#[cfg(test)]
mod tests;
