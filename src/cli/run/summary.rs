//! What a run has done to the project, for its caller. It goes to standard error; standard output is the command's.

use std::io::{ErrorKind, Write, stderr};
use std::path::Path;

use serde::Serialize;

use crate::cli::desk::Format;
use crate::cli::outcome::{Tense, render_all};
use crate::cli::terminal::Style;
use crate::cli::text::Text;
use crate::cli::{Desk, Failure, failure, held};
use crate::model::{ChangeId, RelPath, plural};
use crate::protocol::{
    ErrorBody, Event, EventName, Held, Outcome, ProjectPath, VERSION, last_of_each_path, tells_of_removal,
};

/// How many paths are named one by one; `log` has the rest.
const NAMED_MAX: usize = 20;

#[derive(Serialize)]
pub struct Summary {
    #[serde(flatten)]
    pub project: ProjectPath,
    pub sessions: Vec<String>,
    pub landed: Vec<Touched>,
    pub denied: Vec<Touched>,
    /// What `--on-exit` did.
    pub outcomes: Vec<Outcome>,
    /// Everything that waits for review in the project.
    pub held: Vec<Held>,
    /// What the run has written more to and `--on-exit` has left as it is: it began to wait elsewhere.
    pub left: Vec<ChangeId>,
    /// What `status` remarks on, such as ignored settings. A run that starts the daemon prints them in words as well.
    pub notices: Vec<String>,
    /// The log no longer tells all that the run did: more has landed, or was denied, than is listed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub incomplete: bool,
}

/// A path that was touched, however often.
#[derive(Clone, Serialize)]
pub struct Touched {
    #[serde(flatten)]
    path: RelPath,
    insertions: u64,
    deletions: u64,
    /// What the last event noted about it: `[new file]`, `[deleted]`, …
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

#[derive(Serialize)]
struct Line<'a> {
    v: u64,
    ok: bool,
    op: &'static str,
    /// The status that the run ends with.
    status: u8,
    #[serde(flatten)]
    summary: Option<&'a Summary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a ErrorBody>,
}

impl Line<'_> {
    fn print(&self) -> Result<(), Failure> {
        let mut bytes = serde_json::to_vec(self).map_err(std::io::Error::from)?;
        bytes.push(b'\n');
        Ok(stderr().write_all(&Style::of(&stderr()).json(bytes))?)
    }
}

impl Touched {
    /// Returns each path of the events with these names once, ordered by path.
    pub fn all(events: &[Event], names: &[EventName]) -> Vec<Self> {
        let named = events.iter().filter(|event| names.contains(&event.event)).cloned();
        let touched = |(path, last): (RelPath, Event)| Self {
            path,
            insertions: last.insertions.unwrap_or_default(),
            deletions: last.deletions.unwrap_or_default(),
            note: last.message,
        };
        last_of_each_path(named).into_iter().map(touched).collect()
    }

    /// True if the path is gone but was not removed: the temporary name of a careful save, whose other name is reported.
    pub fn has_passed(&self, project: &Path) -> bool {
        let looked_at = project.join(self.path.as_os_str()).symlink_metadata();
        let is_gone = looked_at.is_err_and(|err| err.kind() == ErrorKind::NotFound);
        is_gone && !self.note.as_deref().is_some_and(tells_of_removal)
    }

    fn render(&self, verb: &str, text: &mut Text) {
        text.put(format!("  {verb} ")).name(self.path.shown());
        if self.insertions + self.deletions > 0 {
            text.put(format!(" (+{} -{})", self.insertions, self.deletions));
        }
        if let Some(note) = &self.note {
            text.put(" ").name(note);
        }
        text.put("\n");
    }
}

/// Prints in place of a summary, if the command has ended and no daemon is left to make one.
pub fn print_failed(error: &ErrorBody, status: u8, desk: &Desk) -> Result<(), Failure> {
    match desk.format {
        Format::Json => Line { v: VERSION, ok: false, op: "run", status, summary: None, error: Some(error) }.print(),
        Format::Human => desk.remark(|text| {
            text.put("fettlefs: ").name(&error.message).put("\n");
        }),
    }
}

impl Summary {
    /// `status` is what the run ends with. `refused`: why `--on-exit` could not be carried out.
    pub fn print(&self, status: u8, refused: Option<&ErrorBody>, desk: &Desk) -> Result<(), Failure> {
        match desk.format {
            Format::Json => {
                let ok = refused.is_none();
                Line { v: VERSION, ok, op: "run", status, summary: Some(self), error: refused }.print()
            }
            Format::Human => desk.remark(|text| {
                self.render(text);
                if let Some(refused) = refused {
                    failure::render(refused, text);
                }
            }),
        }
    }

    fn render(&self, text: &mut Text) {
        text.put(format!("fettlefs: {} landed, {} held", plural(self.landed.len() as u64, "path"), self.held.len()));
        if !self.denied.is_empty() {
            text.put(format!(", {} denied", self.denied.len()));
        }
        text.put("\n");
        if self.incomplete {
            text.put("  more may have landed or been denied: the log has let go of the beginning of this run\n");
        }
        render_touched(&self.landed, "landed", text);
        render_touched(&self.denied, "denied", text);
        render_all(&self.outcomes, Tense::Done, text);
        if self.held.is_empty() {
            return;
        }
        text.put("held for review; the project has its own version until you confirm:\n");
        held::render_table(&self.held, text);
        for held in self.held.iter().filter(|held| self.left.contains(&held.id)) {
            text.put("  --on-exit leaves ").name(held.path.shown()).put(" as it is: it began to wait in another run\n");
        }
        text.put("  see: fettlefs diff, then fettlefs confirm ID or fettlefs discard ID\n");
    }
}

fn render_touched(all: &[Touched], verb: &str, text: &mut Text) {
    all.iter().take(NAMED_MAX).for_each(|touched| touched.render(verb, text));
    if all.len() > NAMED_MAX {
        text.put(format!("  … and {} more: fettlefs log\n", all.len() - NAMED_MAX));
    }
}
