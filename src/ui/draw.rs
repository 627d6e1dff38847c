//! Draws the model: list, diff, a line of messages, a line of keys.

use jiff::Timestamp;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Clear, Paragraph, Wrap};

use super::model::{Mode, Model, Pane, Tone, name_of};
use super::sheet::{Kind, Row, fit_end, shown, width};
use super::words::{age, marks, percent};
use crate::model::{escape_name, plural};
use crate::protocol::Held;

/// Whether colours may be used. Bold, faint and reversed text do not count as colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    Plain,
    Colored,
}

/// From this width on, list and diff are side by side.
const SIDE_BY_SIDE_COLUMNS: u16 = 90;
const LIST_COLUMNS: u16 = 40;
/// The list's share of a narrow terminal.
const LIST_ROWS_PERCENT: u16 = 30;
/// A change in the list takes two rows: its path, and facts about it.
const CHANGE_ROWS: usize = 2;
/// The columns before each row of a diff: the current hunk, the marked hunks, the sign.
const GUTTER_COLUMNS: usize = 3;
/// Replaces the sign where a line continues.
const GOES_ON: char = '~';

const HELP: &[&str] = &[
    "j k, arrows        move",
    "Enter, Tab, Esc    into the diff and back",
    "n p                next and previous hunk",
    "space              mark a hunk, or unmark it",
    "c                  confirm: the marked hunks, or the whole change",
    "d                  discard: the marked hunks, or the whole change",
    "u                  undo what was done here last",
    "r                  look again: renews an expired change",
    "/                  list only paths that have a text in them",
    "PgUp PgDn g G      a page, the beginning, the end",
    "Ctrl-L Ctrl-Z      draw anew; stop, fg goes on",
    "q                  quit; what is not decided stays held",
];

pub fn draw(model: &mut Model, frame: &mut Frame, paint: Paint, now: Timestamp) {
    let [title, body, said, keys] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1), Constraint::Length(1)])
            .areas(frame.area());
    let (list, diff) = panes(body);
    let inner = framed("", false).inner(diff);
    let list_inner = framed("", false).inner(list);
    let columns = usize::from(inner.width).saturating_sub(GUTTER_COLUMNS);
    model.fit(columns, usize::from(inner.height), usize::from(list_inner.height) / CHANGE_ROWS);
    let ink = Ink(paint);
    frame.render_widget(title_line(model, ink), title);
    draw_list(model, frame, list, ink, now);
    draw_diff(model, frame, diff, ink);
    frame.render_widget(said_line(model, ink), said);
    frame.render_widget(keys_line(model), keys);
    draw_over(model, frame, body);
}

fn panes(body: Rect) -> (Rect, Rect) {
    let layout = match body.width >= SIDE_BY_SIDE_COLUMNS {
        true => Layout::horizontal([Constraint::Length(LIST_COLUMNS), Constraint::Min(0)]),
        false => Layout::vertical([Constraint::Percentage(LIST_ROWS_PERCENT), Constraint::Min(0)]),
    };
    let [list, diff] = layout.areas(body);
    (list, diff)
}

/// Colours by meaning.
#[derive(Clone, Copy)]
struct Ink(Paint);

impl Ink {
    fn colored(self, color: Color) -> Style {
        match self.0 {
            Paint::Colored => Style::new().fg(color),
            Paint::Plain => Style::new(),
        }
    }

    fn warning(self) -> Style {
        self.colored(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    fn of(self, kind: Kind) -> Style {
        match kind {
            Kind::About => Style::new().add_modifier(Modifier::DIM),
            Kind::Header => Style::new().add_modifier(Modifier::BOLD),
            Kind::Place => self.colored(Color::Cyan),
            Kind::Context => Style::new(),
            Kind::Added => self.colored(Color::Green),
            Kind::Removed => self.colored(Color::Red),
        }
    }
}

fn framed(title: &str, is_active: bool) -> Block<'_> {
    let style = if is_active { Modifier::BOLD } else { Modifier::DIM };
    Block::new().borders(Borders::ALL).border_style(Style::new().add_modifier(style)).title(title)
}

fn title_line(model: &Model, ink: Ink) -> Line<'static> {
    let count = plural(model.held_count() as u64, "held change");
    let project = shown(&escape_name(model.project.as_bytes()));
    let mut spans = vec![Span::styled(format!(" fettlefs review: {count} in {project}"), Modifier::BOLD)];
    if !model.search.is_empty() {
        spans.push(Span::raw(format!("  /{}", shown(&escape_name(model.search.as_bytes())))));
    }
    if let Some(why) = &model.unreachable {
        spans.push(Span::styled(format!("  {}", shown(why)), ink.warning()));
    }
    Line::from(spans)
}

fn draw_list(model: &Model, frame: &mut Frame, area: Rect, ink: Ink, now: Timestamp) {
    let block = framed(" held ", model.pane == Pane::List);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let changes = model.listed_changes();
    let columns = usize::from(inner.width);
    let fitting = (usize::from(inner.height) / CHANGE_ROWS).max(1);
    let first = (model.at() + 1).saturating_sub(fitting);
    let mut lines = Vec::new();
    for (at, change) in changes.iter().enumerate().skip(first).take(fitting) {
        let is_selected = at == model.at();
        let style = if is_selected { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        let sign = if is_selected { '>' } else { ' ' };
        lines.push(full(
            vec![Span::raw(format!("{sign}{}", fit_end(&name_of(&change.path), columns.saturating_sub(1))))],
            columns,
            style,
        ));
        lines.push(full(facts(change, ink, now), columns, style));
    }
    if changes.is_empty() {
        let words = if model.search.is_empty() { " Nothing is held" } else { " No path like that" };
        lines.push(Line::raw(words));
    }
    frame.render_widget(Paragraph::new(lines), inner);
}

fn facts(change: &Held, ink: Ink, now: Timestamp) -> Vec<Span<'static>> {
    let mut spans = vec![
        Span::raw("   "),
        Span::styled(format!("+{}", change.insertions), ink.of(Kind::Added)),
        Span::raw(" "),
        Span::styled(format!("-{}", change.deletions), ink.of(Kind::Removed)),
    ];
    // First, so that a narrow list does not cut them off.
    for mark in marks(change) {
        spans.push(Span::styled(format!(" [{}]", shown(&escape_name(mark.as_bytes()))), ink.warning()));
    }
    let share = if change.ratio > 0.0 { format!(" {}", percent(change.ratio)) } else { String::new() };
    spans.push(Span::raw(format!("{share} {} {}", change.reason, age(change.created, now))));
    spans
}

/// Fills a row to its end, so that the selected one is a bar.
fn full(mut spans: Vec<Span<'static>>, columns: usize, style: Style) -> Line<'static> {
    let used: usize = spans.iter().map(Span::width).sum();
    spans.push(Span::raw(" ".repeat(columns.saturating_sub(used))));
    Line::from(spans).style(style)
}

fn draw_diff(model: &Model, frame: &mut Frame, area: Rect, ink: Ink) {
    let title = diff_title(model, usize::from(area.width).saturating_sub(4));
    let block = framed(&title, model.pane == Pane::Diff);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let rows = model.rows.iter().skip(model.top).take(usize::from(inner.height));
    let lines: Vec<_> = rows.filter_map(|row| diff_row(model, row, ink)).collect();
    frame.render_widget(Paragraph::new(lines), inner);
}

fn diff_title(model: &Model, columns: usize) -> String {
    let Some(shown) = &model.shown else { return String::new() };
    let hunks = match (shown.sheet.hunk_count(), model.marks.len()) {
        (0, _) => String::new(),
        (count, 0) => format!(", hunk {} of {count}", model.hunk + 1),
        (count, marked) => format!(", hunk {} of {count}, {marked} marked", model.hunk + 1),
    };
    let rest = format!(" {}{hunks}", shown.held.id);
    let path = fit_end(&name_of(&shown.held.path), columns.saturating_sub(width(&rest)));
    format!(" {path}{rest} ")
}

fn diff_row(model: &Model, row: &Row, ink: Ink) -> Option<Line<'static>> {
    let sheet = &model.shown.as_ref()?.sheet;
    let line = &sheet.lines[row.line];
    let hunk = sheet.hunk_at(row.line);
    let points = if hunk.is_some_and(|hunk| hunk == model.hunk) { '>' } else { ' ' };
    let marked = hunk.and_then(|hunk| u32::try_from(hunk + 1).ok()).is_some_and(|number| model.marks.contains(&number));
    let sign = if row.start == 0 { line.sign } else { GOES_ON };
    let gutter = format!("{points}{}", if marked { '*' } else { ' ' });
    Some(Line::from(vec![
        Span::styled(gutter, ink.warning()),
        Span::styled(format!("{sign}{}", &line.text[row.start..row.end]), ink.of(line.kind)),
    ]))
}

fn said_line(model: &Model, ink: Ink) -> Line<'static> {
    match (&model.mode, &model.said, model.waits_for()) {
        (Mode::Asking { question, .. }, _, _) => Line::styled(format!(" {question} [y/N]"), ink.warning()),
        (Mode::Searching { .. }, _, _) => Line::raw(format!(" /{}_", shown(&escape_name(model.search.as_bytes())))),
        (_, Some((Tone::Warning, said)), _) => Line::styled(format!(" {said}"), ink.warning()),
        (_, Some((Tone::Plain, said)), _) => Line::raw(format!(" {said}")),
        (_, None, Some(what)) => Line::raw(format!(" {what} ...")),
        (_, None, None) => Line::default(),
    }
}

fn keys_line(model: &Model) -> Line<'static> {
    let words = match &model.mode {
        Mode::Asking { .. } => " y yes  any other key no",
        Mode::Searching { .. } => " Enter keep  Esc as before",
        Mode::Helping => " any key goes back",
        Mode::Reading { .. } => " j k move  any other key goes back",
        Mode::Browsing => " j/k move  Enter diff  n/p hunk  space mark  c confirm  d discard  u undo  ? help  q quit",
    };
    Line::styled(words, Modifier::DIM)
}

fn draw_over(model: &Model, frame: &mut Frame, body: Rect) {
    let (title, text, top) = match &model.mode {
        Mode::Helping => (" keys ", HELP.join("\n"), 0),
        Mode::Reading { lines, top } => (" refused ", lines[*top..].join("\n"), *top),
        Mode::Browsing | Mode::Asking { .. } | Mode::Searching { .. } => return,
    };
    let area = match &model.mode {
        Mode::Helping => centred(body, 72, u16::try_from(HELP.len()).unwrap_or(u16::MAX).saturating_add(2)),
        _ => body,
    };
    let block = Block::new().borders(Borders::ALL).title(if top > 0 { " refused, continued " } else { title });
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: false }).block(block), area);
}

fn centred(body: Rect, columns: u16, rows: u16) -> Rect {
    let (width, height) = (columns.min(body.width), rows.min(body.height));
    Rect { x: body.x + (body.width - width) / 2, y: body.y + (body.height - height) / 2, width, height }
}
