//! What is on the screen, and how keys and answers change it. The model has no terminal and no clock and asks nobody:
//! what is to be asked it returns as [`Task`]s.
//!
//! ```text
//!   key, answer, news ──► handle ──► what is shown, and tasks
//! ```
//!
//! A change is decided by the id whose diff is on the screen, so that nothing is confirmed unseen. Only one diff and one
//! act are asked for at a time: changes that are merely scrolled past in the list are not renewed.

use std::collections::BTreeSet;
use std::mem;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::sheet::{Row, Sheet};
use crate::model::{ChangeId, RelPath, escape_name, plural};
use crate::protocol::{Acted, ChangeDiff, DiffReply, ErrorBody, ErrorCode, Held, Status};

/// What others are to do for the model. All but `Stop` and `Redraw` are answered by an [`Input`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    List,
    Diff(ChangeId),
    Act(Act),
    /// Stop the program, as Ctrl-Z does elsewhere.
    Stop,
    /// Draw all of the screen anew.
    Redraw,
}

/// What a person decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// No hunks means the whole change.
    Confirm {
        id: ChangeId,
        hunks: Vec<u32>,
    },
    Discard {
        id: ChangeId,
        hunks: Vec<u32>,
    },
    Undo {
        operation: String,
    },
}

#[derive(Debug)]
pub enum Input {
    Key(KeyEvent),
    /// Something happened to the project, here or elsewhere.
    Happened,
    Listed(Result<Box<Status>, ErrorBody>),
    Compared(ChangeId, Result<DiffReply, ErrorBody>),
    /// The outcome, with its wording.
    Acted(Act, Result<(Acted, String), ErrorBody>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pane {
    List,
    Diff,
}

/// What keys mean at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    Browsing,
    /// Waits for `y`.
    Asking {
        question: String,
        act: Act,
    },
    /// Part of a path is being typed; `before` is the search to return to.
    Searching {
        before: String,
    },
    Helping,
    /// A text of more than one line, such as a conflict's hunks.
    Reading {
        lines: Vec<String>,
        top: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Warning,
}

/// The diff on the screen.
#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    /// As it was when the diff was made.
    pub held: Held,
    pub sheet: Sheet,
}

#[derive(Debug)]
pub struct Model {
    pub project: String,
    held: Vec<Held>,
    /// Why the list may be out of date.
    pub unreachable: Option<String>,
    /// Only paths that contain this are listed.
    pub search: String,
    /// The index of the selected change in the list.
    at: usize,
    pub pane: Pane,
    pub mode: Mode,
    pub shown: Option<Shown>,
    /// Counted from 0.
    pub hunk: usize,
    /// Marked hunks of the diff on the screen, counted from 1.
    pub marks: BTreeSet<u32>,
    pub said: Option<(Tone, String)>,
    /// Invariant: the rows of `shown` at `columns`.
    pub rows: Vec<Row>,
    columns: usize,
    diff_height: usize,
    list_height: usize,
    pub top: usize,
    comparing: Option<ChangeId>,
    /// A diff that was refused is not requested again on its own.
    refused: Option<ChangeId>,
    listing: bool,
    list_again: bool,
    acting: Option<Act>,
    leaving: bool,
    over: bool,
    /// Operations that can be undone, the latest last, with what was said of each.
    done: Vec<(String, String)>,
}

impl Model {
    pub fn new(status: Status) -> Self {
        Self {
            project: status.project,
            held: status.held,
            unreachable: None,
            search: String::new(),
            at: 0,
            pane: Pane::List,
            mode: Mode::Browsing,
            shown: None,
            hunk: 0,
            marks: BTreeSet::new(),
            said: None,
            rows: Vec::new(),
            columns: 0,
            diff_height: 1,
            list_height: 1,
            top: 0,
            comparing: None,
            refused: None,
            listing: false,
            list_again: false,
            acting: None,
            leaving: false,
            over: false,
            done: Vec::new(),
        }
    }

    /// Returns the first tasks.
    pub fn begin(&mut self) -> Vec<Task> {
        self.compare()
    }

    /// True if the person has left.
    pub fn is_over(&self) -> bool {
        self.over
    }

    pub fn handle(&mut self, input: Input) -> Vec<Task> {
        match input {
            Input::Key(key) => self.press(key),
            Input::Happened => self.list(),
            Input::Listed(answer) => self.listed(answer),
            Input::Compared(id, answer) => self.compared(&id, answer),
            Input::Acted(act, answer) => self.acted(&act, answer),
        }
    }

    /// Returns the changes in the list.
    pub fn listed_changes(&self) -> Vec<&Held> {
        self.held.iter().filter(|held| is_found(held, &self.search)).collect()
    }

    pub fn held_count(&self) -> usize {
        self.held.len()
    }

    /// The index of the selected change.
    pub fn at(&self) -> usize {
        self.at
    }

    pub fn selected(&self) -> Option<&Held> {
        self.listed_changes().get(self.at).copied()
    }

    /// Names what is being waited for.
    pub fn waits_for(&self) -> Option<&'static str> {
        match (&self.acting, &self.comparing) {
            (Some(Act::Confirm { .. }), _) => Some("applying"),
            (Some(Act::Discard { .. }), _) => Some("discarding"),
            (Some(Act::Undo { .. }), _) => Some("undoing"),
            (None, Some(_)) => Some("comparing"),
            (None, None) => None,
        }
    }

    /// True if the diff on the screen is that of the selected change.
    pub fn shows_selected(&self) -> bool {
        match (&self.shown, self.selected()) {
            (Some(shown), Some(selected)) => shown.held.id == selected.id,
            (_, _) => false,
        }
    }

    /// Sets how much room there is. The line at the top of the diff stays there.
    pub fn fit(&mut self, columns: usize, diff_height: usize, list_height: usize) {
        (self.diff_height, self.list_height) = (diff_height.max(1), list_height.max(1));
        if self.columns != columns {
            let line = self.rows.get(self.top).map(|row| row.line);
            self.columns = columns;
            self.lay_out();
            self.top = line.and_then(|line| self.row_of(line)).unwrap_or_default();
        }
        self.top = self.top.min(self.top_max());
    }

    fn lay_out(&mut self) {
        let columns = self.columns;
        self.rows = self.shown.as_ref().map(|shown| shown.sheet.rows(columns)).unwrap_or_default();
    }

    fn row_of(&self, line: usize) -> Option<usize> {
        Some(self.rows.partition_point(|row| row.line < line)).filter(|row| *row < self.rows.len())
    }

    fn top_max(&self) -> usize {
        self.rows.len().saturating_sub(self.diff_height)
    }

    // Answers.

    fn list(&mut self) -> Vec<Task> {
        if self.listing {
            self.list_again = true;
            return Vec::new();
        }
        self.listing = true;
        vec![Task::List]
    }

    fn listed(&mut self, answer: Result<Box<Status>, ErrorBody>) -> Vec<Task> {
        self.listing = false;
        match answer {
            Ok(status) => {
                self.unreachable = None;
                self.replace(status.held);
            }
            Err(err) => self.unreachable = Some(escape_name(err.message.as_bytes())),
        }
        let mut tasks = if mem::take(&mut self.list_again) { self.list() } else { Vec::new() };
        tasks.extend(self.compare());
        tasks
    }

    /// Takes a new list. The same path stays selected; if it is gone, the change now at its index is.
    fn replace(&mut self, held: Vec<Held>) {
        let before = self.selected().map(|held| (held.path.clone(), held.id.clone()));
        self.held = held;
        if let Some((path, id)) = before {
            let listed = self.listed_changes();
            let by_id = listed.iter().position(|held| held.id == id);
            let found = by_id.or_else(|| listed.iter().position(|held| held.path == path));
            let changed = found.is_some() && by_id.is_none();
            self.at = found.unwrap_or(self.at);
            if changed && self.said.is_none() {
                self.say(Tone::Warning, format!("{} has changed: look again", name_of(&path)));
            }
        }
        self.clamp();
        let held = &self.held;
        // A change that is no longer held is not shown, and no question about it stays open.
        if self.shown.as_ref().is_some_and(|shown| !held.iter().any(|held| held.id == shown.held.id)) {
            self.forget_shown();
        }
        if self.selected().is_none() {
            self.pane = Pane::List;
        }
    }

    fn forget_shown(&mut self) {
        self.shown = None;
        self.marks.clear();
        self.rows.clear();
        (self.top, self.hunk) = (0, 0);
        if matches!(&self.mode, Mode::Asking { act: Act::Confirm { .. } | Act::Discard { .. }, .. }) {
            self.mode = Mode::Browsing;
        }
    }

    fn clamp(&mut self) {
        self.at = self.at.min(self.listed_changes().len().saturating_sub(1));
    }

    /// Asks for the diff of the selected change, unless it is there or on its way.
    fn compare(&mut self) -> Vec<Task> {
        let Some(selected) = self.selected() else { return Vec::new() };
        let is_current = self.shown.as_ref().is_some_and(|shown| {
            shown.held.id == selected.id
                && shown.held.externally_modified == selected.externally_modified
                && shown.held.hunks == selected.hunks
        });
        if is_current || self.comparing.is_some() || self.refused.as_ref() == Some(&selected.id) {
            return Vec::new();
        }
        let id = selected.id.clone();
        self.comparing = Some(id.clone());
        vec![Task::Diff(id)]
    }

    fn compared(&mut self, id: &ChangeId, answer: Result<DiffReply, ErrorBody>) -> Vec<Task> {
        self.comparing = None;
        self.refused = None;
        let is_selected = self.selected().is_some_and(|held| held.id == *id);
        match answer {
            Ok(reply) => {
                let change = reply.changes.into_iter().find(|change| change.held.id == *id);
                match (change, is_selected) {
                    (Some(change), true) => self.show(change),
                    (None, true) => self.refused = Some(id.clone()),
                    (_, false) => {}
                }
                self.compare()
            }
            Err(err) => {
                if is_selected {
                    self.forget_shown();
                    self.refused = Some(id.clone());
                    self.tell(&err);
                }
                let gone = matches!(err.code, ErrorCode::Superseded | ErrorCode::UnknownId);
                let mut tasks = if gone { self.list() } else { Vec::new() };
                tasks.extend(self.compare());
                tasks
            }
        }
    }

    fn show(&mut self, change: ChangeDiff) {
        // Looking at a change has renewed it, if this user may do that.
        for held in self.held.iter_mut().filter(|held| held.id == change.held.id) {
            *held = change.held.clone();
        }
        let shown = Shown { sheet: Sheet::of(&change), held: change.held };
        let is_same = self.shown.as_ref().is_some_and(|before| before.sheet == shown.sheet);
        self.shown = Some(shown);
        if !is_same {
            self.marks.clear();
            (self.top, self.hunk) = (0, 0);
            self.lay_out();
        }
    }

    fn acted(&mut self, act: &Act, answer: Result<(Acted, String), ErrorBody>) -> Vec<Task> {
        self.acting = None;
        match answer {
            Ok((acted, said)) => {
                self.marks.clear();
                match act {
                    Act::Confirm { .. } | Act::Discard { .. } => {
                        let operation = acted.outcomes.iter().find_map(|outcome| outcome.operation.clone());
                        self.done.extend(operation.map(|operation| (operation, said.clone())));
                    }
                    Act::Undo { operation } => self.done.retain(|(done, _)| done != operation),
                }
                self.say(Tone::Plain, said);
            }
            Err(err) => self.tell(&err),
        }
        self.over |= self.leaving;
        self.list()
    }

    // What is said.

    fn say(&mut self, tone: Tone, words: impl Into<String>) {
        self.said = Some((tone, words.into()));
    }

    fn tell(&mut self, err: &ErrorBody) {
        let mut message = escape_name(err.message.as_bytes());
        match err.code {
            ErrorCode::Expired => message.push_str("; r looks again"),
            ErrorCode::Superseded => message.push_str("; look again"),
            _ => {}
        }
        if let Some(detail) = &err.detail {
            let lines = detail.lines().map(|line| super::sheet::shown(&crate::model::escape_content(line.as_bytes())));
            let lines = [message.clone(), String::new()].into_iter().chain(lines).collect();
            self.mode = Mode::Reading { lines, top: 0 };
        }
        self.say(Tone::Warning, message);
    }

    // Keys.

    fn press(&mut self, key: KeyEvent) -> Vec<Task> {
        if let (KeyCode::Char(letter), true) = (key.code, key.modifiers.contains(KeyModifiers::CONTROL)) {
            return self.press_control(letter);
        }
        // Combinations with Alt are not ours; Esc followed quickly by a key looks like one.
        if key.modifiers.contains(KeyModifiers::ALT) {
            return Vec::new();
        }
        match mem::replace(&mut self.mode, Mode::Browsing) {
            Mode::Browsing => {
                self.said = None;
                self.browse(key.code)
            }
            Mode::Asking { act, .. } => self.answer(key.code, act),
            Mode::Searching { before } => self.search(key.code, before),
            Mode::Helping => Vec::new(),
            Mode::Reading { lines, top } => self.read(key.code, lines, top),
        }
    }

    fn press_control(&mut self, letter: char) -> Vec<Task> {
        match letter {
            'c' => self.leave(),
            'z' => return vec![Task::Stop],
            'l' => return vec![Task::Redraw],
            'd' => return self.go(Step::HalfPage(Way::Down)),
            'u' => return self.go(Step::HalfPage(Way::Up)),
            'f' => return self.go(Step::Page(Way::Down)),
            'b' => return self.go(Step::Page(Way::Up)),
            _ => {}
        }
        Vec::new()
    }

    fn browse(&mut self, key: KeyCode) -> Vec<Task> {
        match key {
            KeyCode::Char('q') => self.leave(),
            KeyCode::Esc => return self.back(),
            KeyCode::Tab | KeyCode::BackTab => {
                self.enter(if self.pane == Pane::List { Pane::Diff } else { Pane::List })
            }
            KeyCode::Enter | KeyCode::Right | KeyCode::Char('l') => self.enter(Pane::Diff),
            KeyCode::Left | KeyCode::Char('h') => self.enter(Pane::List),
            KeyCode::Char('j') | KeyCode::Down => return self.go(Step::One(Way::Down)),
            KeyCode::Char('k') | KeyCode::Up => return self.go(Step::One(Way::Up)),
            KeyCode::PageDown => return self.go(Step::Page(Way::Down)),
            KeyCode::PageUp => return self.go(Step::Page(Way::Up)),
            KeyCode::Char('g') | KeyCode::Home => return self.go(Step::End(Way::Up)),
            KeyCode::Char('G') | KeyCode::End => return self.go(Step::End(Way::Down)),
            KeyCode::Char('n') => self.go_to_hunk(self.hunk + 1),
            KeyCode::Char('p') => self.go_to_hunk(self.hunk.saturating_sub(1)),
            KeyCode::Char(' ') => self.mark(),
            KeyCode::Char('c') => return self.decide(|id, hunks| Act::Confirm { id, hunks }, "Apply"),
            KeyCode::Char('d') => return self.decide(|id, hunks| Act::Discard { id, hunks }, "Discard"),
            KeyCode::Char('u') => self.ask_undo(),
            KeyCode::Char('r') => return self.reload(),
            KeyCode::Char('/') => self.mode = Mode::Searching { before: self.search.clone() },
            KeyCode::Char('?') | KeyCode::F(1) => self.mode = Mode::Helping,
            _ => {}
        }
        Vec::new()
    }

    /// Leaves after the act that is under way, if there is one.
    fn leave(&mut self) {
        match self.acting {
            Some(_) => {
                self.leaving = true;
                self.say(Tone::Plain, "leaves once that is done");
            }
            None => self.over = true,
        }
    }

    fn back(&mut self) -> Vec<Task> {
        match self.pane {
            Pane::Diff => self.pane = Pane::List,
            Pane::List => return self.search_for(String::new()),
        }
        Vec::new()
    }

    fn enter(&mut self, pane: Pane) {
        if pane == Pane::List || self.shows_selected() {
            self.pane = pane;
        }
    }

    fn go(&mut self, step: Step) -> Vec<Task> {
        match self.pane {
            Pane::List => {
                let last = self.listed_changes().len().saturating_sub(1);
                self.at = step.from(self.at, self.list_height, last);
                self.compare()
            }
            Pane::Diff => {
                self.top = step.from(self.top, self.diff_height, self.top_max());
                self.follow_rows();
                Vec::new()
            }
        }
    }

    /// Makes the current hunk one that is on the screen, if there is one.
    fn follow_rows(&mut self) {
        let Some(shown) = &self.shown else { return };
        let seen = self.rows.iter().skip(self.top).take(self.diff_height);
        let hunks: Vec<usize> = seen.filter_map(|row| shown.sheet.hunk_at(row.line)).collect();
        if let Some(first) = hunks.first().filter(|_| !hunks.contains(&self.hunk)) {
            self.hunk = *first;
        }
    }

    fn go_to_hunk(&mut self, hunk: usize) {
        let Some(shown) = self.shown.as_ref().filter(|shown| hunk < shown.sheet.hunk_count()) else { return };
        let row = self.rows.iter().position(|row| shown.sheet.hunk_at(row.line) == Some(hunk));
        self.hunk = hunk;
        self.top = row.unwrap_or_default().min(self.top_max());
    }

    fn mark(&mut self) {
        let count = self.shown.as_ref().map_or(0, |shown| shown.sheet.hunk_count());
        match count {
            0 => self.say(Tone::Warning, "it has no hunks to choose from"),
            _ if !self.shows_selected() => {}
            _ => {
                let number = u32::try_from(self.hunk + 1).unwrap_or(u32::MAX);
                if !self.marks.remove(&number) {
                    self.marks.insert(number);
                }
            }
        }
    }

    /// Marked hunks are decided without a question: marking them was the answer.
    fn decide(&mut self, act: impl Fn(ChangeId, Vec<u32>) -> Act, verb: &str) -> Vec<Task> {
        let Some(selected) = self.selected() else { return Vec::new() };
        let Some(shown) = self.shown.as_ref().filter(|_| self.shows_selected()) else {
            self.say(Tone::Warning, "its diff is not here yet");
            return Vec::new();
        };
        let id = shown.held.id.clone();
        if !self.marks.is_empty() {
            let hunks = self.marks.iter().copied().collect();
            return self.begin_act(act(id, hunks));
        }
        let also = match selected.also.0.len() as u64 {
            0 => String::new(),
            others => format!(" and {}", plural(others, "other name")),
        };
        let lines = format!("+{} -{}", selected.insertions, selected.deletions);
        let question = format!("{verb} {}{also} ({lines})?", name_of(&selected.path));
        self.mode = Mode::Asking { question, act: act(id, Vec::new()) };
        Vec::new()
    }

    fn ask_undo(&mut self) {
        match self.done.last() {
            None => self.say(Tone::Warning, "nothing was done here that could be undone"),
            Some((operation, said)) => {
                let act = Act::Undo { operation: operation.clone() };
                self.mode = Mode::Asking { question: format!("Undo {operation}: {said}?"), act };
            }
        }
    }

    fn answer(&mut self, key: KeyCode, act: Act) -> Vec<Task> {
        match key {
            KeyCode::Char('y' | 'Y') => self.begin_act(act),
            _ => {
                self.say(Tone::Plain, "nothing was done");
                Vec::new()
            }
        }
    }

    fn begin_act(&mut self, act: Act) -> Vec<Task> {
        if self.acting.is_some() {
            self.say(Tone::Warning, "one thing after the other: something is being done");
            return Vec::new();
        }
        self.acting = Some(act.clone());
        self.said = None;
        vec![Task::Act(act)]
    }

    /// Asks for the diff again, which renews an expired change.
    fn reload(&mut self) -> Vec<Task> {
        let mut tasks = self.list();
        self.refused = None;
        if let (Some(selected), None) = (self.selected(), &self.comparing) {
            let id = selected.id.clone();
            self.comparing = Some(id.clone());
            tasks.push(Task::Diff(id));
        }
        tasks
    }

    fn search(&mut self, key: KeyCode, before: String) -> Vec<Task> {
        let mut text = self.search.clone();
        match key {
            KeyCode::Enter => return Vec::new(),
            KeyCode::Esc => return self.search_for(before),
            KeyCode::Backspace if text.pop().is_none() => return Vec::new(),
            KeyCode::Char(letter) => text.push(letter),
            _ => {}
        }
        self.mode = Mode::Searching { before };
        self.search_for(text)
    }

    fn search_for(&mut self, text: String) -> Vec<Task> {
        let selected = self.selected().map(|held| held.id.clone());
        self.search = text;
        let again = self.listed_changes().iter().position(|held| Some(&held.id) == selected.as_ref());
        self.at = again.unwrap_or(0);
        self.compare()
    }

    fn read(&mut self, key: KeyCode, lines: Vec<String>, top: usize) -> Vec<Task> {
        let last = lines.len().saturating_sub(1);
        let step = match key {
            KeyCode::Char('j') | KeyCode::Down => Step::One(Way::Down),
            KeyCode::Char('k') | KeyCode::Up => Step::One(Way::Up),
            KeyCode::PageDown | KeyCode::Char(' ') => Step::Page(Way::Down),
            KeyCode::PageUp => Step::Page(Way::Up),
            _ => return Vec::new(),
        };
        let top = step.from(top, self.diff_height, last);
        self.mode = Mode::Reading { lines, top };
        Vec::new()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    One(Way),
    HalfPage(Way),
    Page(Way),
    End(Way),
}

impl Step {
    fn from(self, at: usize, height: usize, last: usize) -> usize {
        let (way, count) = match self {
            Self::One(way) => (way, 1),
            Self::HalfPage(way) => (way, height / 2),
            Self::Page(way) => (way, height.saturating_sub(1)),
            Self::End(way) => (way, usize::MAX),
        };
        match way {
            Way::Up => at.saturating_sub(count.max(1)),
            Way::Down => at.saturating_add(count.max(1)).min(last),
        }
    }
}

pub fn name_of(path: &RelPath) -> String {
    super::sheet::shown(&escape_name(path.as_bytes()))
}

/// Ignores case unless the search has a capital letter, as in less.
fn is_found(held: &Held, search: &str) -> bool {
    let found = |path: &RelPath| {
        let name = name_of(path);
        match search.chars().any(char::is_uppercase) {
            true => name.contains(search),
            false => name.to_lowercase().contains(search),
        }
    };
    search.is_empty() || found(&held.path) || held.also.0.iter().any(found)
}
