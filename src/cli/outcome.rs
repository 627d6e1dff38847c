//! What became of each path, in the wording of SPEC §12.

use super::held::render_also;
use super::terminal::Ink;
use super::text::Text;
use super::words::{counts_with_modified, percent, size};
use crate::model::{ChangeKind, plural};
use crate::protocol::{Acted, Action, NEW_FILE, Note, Outcome};

/// How many lines of a diff a summary shows; the rest is counted.
pub const SUMMARY_DIFF_LINES_MAX: usize = 200;

pub fn render_acted(acted: &Acted, text: &mut Text) {
    if acted.outcomes.is_empty() {
        text.put("fettlefs: Nothing is held\n");
    }
    render_all(&acted.outcomes, if acted.dry_run { Tense::Planned } else { Tense::Done }, text);
    render_more(acted.more, text);
}

/// Counts the outcomes that did not fit into the answer.
pub fn render_more(more: u64, text: &mut Text) {
    if more > 0 {
        text.put(format!("fettlefs: and so {more} more\n"));
    }
}

/// Whether outcomes are worded as done, or as what a dry run would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tense {
    Done,
    Planned,
}

pub fn render_all(outcomes: &[Outcome], tense: Tense, text: &mut Text) {
    for outcome in outcomes {
        match tense {
            Tense::Done => render(outcome, text),
            Tense::Planned => render_planned(outcome, text),
        }
    }
}

pub fn render(outcome: &Outcome, text: &mut Text) {
    text.put("fettlefs: ").ink(Ink::Strong, done(outcome.action)).put(" ").name(outcome.path.shown());
    summary(outcome, text);
    if let Some(backup) = &outcome.backup {
        text.put("  backup: ").name(backup).put("\n");
    }
    if let Some(rest) = &outcome.new_id {
        text.put(format!("  the rest stays held: {rest}\n"));
    }
    if outcome.action == Action::Held {
        render_held(outcome, text);
    }
}

fn render_planned(outcome: &Outcome, text: &mut Text) {
    text.put("fettlefs: ").ink(Ink::Strong, planned(outcome.action)).put(" ").name(outcome.path.shown());
    summary(outcome, text);
}

fn done(action: Action) -> &'static str {
    match action {
        Action::Applied | Action::Merged => "Applied",
        Action::Discarded => "Discarded",
        Action::Restored => "Restored",
        Action::Undone => "Undone",
        Action::Unchanged => "No changes to",
        Action::Landed => "Wrote",
        Action::Held => "Held",
    }
}

fn planned(action: Action) -> &'static str {
    match action {
        Action::Applied | Action::Merged => "Would apply",
        Action::Discarded => "Would discard",
        Action::Restored => "Would restore",
        Action::Undone => "Would undo",
        Action::Unchanged => "No changes to",
        Action::Landed => "Would write",
        Action::Held => "Would hold",
    }
}

/// Adds the rest of the first line, and the other names that the outcome concerns.
fn summary(outcome: &Outcome, text: &mut Text) {
    if outcome.action == Action::Restored {
        text.put(" from backup");
        if let Some(from) = &outcome.from {
            text.put(" ").name(from);
        }
    }
    let facts = facts(outcome);
    if !facts.is_empty() {
        text.put(format!(" ({})", facts.join(", ")));
    }
    if let Some(note) = outcome.note {
        text.put(format!(" {}", note_words(note)));
    }
    text.put("\n");
    if !outcome.also.is_empty() {
        render_also(&outcome.also, text.put("  "));
    }
}

fn facts(outcome: &Outcome) -> Vec<String> {
    match outcome.action {
        Action::Unchanged => vec!["content identical".to_owned()],
        Action::Restored | Action::Undone => content_facts(outcome),
        Action::Landed | Action::Applied => landed_facts(outcome),
        Action::Merged => {
            std::iter::once("merged with external changes".to_owned()).chain(landed_facts(outcome)).collect()
        }
        Action::Held | Action::Discarded => held_facts(outcome),
    }
}

fn landed_facts(outcome: &Outcome) -> Vec<String> {
    let mut facts = content_facts(outcome);
    facts.extend(outcome.counts.as_ref().map(counts_with_modified));
    facts
}

fn content_facts(outcome: &Outcome) -> Vec<String> {
    let deleted = (outcome.kind == Some(ChangeKind::Delete)).then(|| "deleted".to_owned());
    let bytes = outcome.size.map(size);
    let lines = outcome.lines.map(|lines| plural(lines, "line"));
    [deleted, bytes, lines].into_iter().flatten().collect()
}

fn held_facts(outcome: &Outcome) -> Vec<String> {
    let id = outcome.id.as_ref().map(|id| format!("id {id}"));
    let lines = outcome.counts.map(|counts| format!("+{} -{}", counts.insertions, counts.deletions));
    let share = outcome.counts.filter(|counts| counts.ratio > 0.0).map(|counts| percent(counts.ratio));
    [id, lines, share.map(|percent| format!("{percent} of file"))].into_iter().flatten().collect()
}

fn note_words(note: Note) -> &'static str {
    match note {
        Note::NewFile => NEW_FILE,
        Note::Binary => "[diff skipped: binary]",
        Note::Large => "[diff skipped: large]",
        Note::Merged => "[merged with later changes]",
        Note::Gone => "[its content is gone: no backup]",
    }
}

fn render_held(outcome: &Outcome, text: &mut Text) {
    if let Some(diff) = &outcome.diff {
        render_diff_summary(&diff.0, text);
    }
    if let Some(id) = &outcome.id {
        text.put(format!("To apply: fettlefs confirm {id}\nTo discard: fettlefs discard {id}\n"));
    }
}

/// Adds a diff's first lines, and how many more there are.
pub fn render_diff_summary(diff: &[u8], text: &mut Text) {
    let lines: Vec<&[u8]> = diff.split_inclusive(|byte| *byte == b'\n').collect();
    let (shown, left_out) = lines.split_at(lines.len().min(SUMMARY_DIFF_LINES_MAX));
    text.diff(&shown.concat());
    if shown.last().is_some_and(|line| !line.ends_with(b"\n")) {
        text.put("\n");
    }
    if !left_out.is_empty() {
        text.put(format!("... {} of diff\n", plural(left_out.len() as u64, "more line")));
    }
}
