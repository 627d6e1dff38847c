//! Held changes as a table, shared by the commands that list them.

use super::terminal::Ink;
use super::text::Text;
use super::words::{age, marks, percent};
use crate::model::ChangeKind;
use crate::protocol::{Also, Held};

/// How wide a path may be before it pushes the following columns to the right.
const PATH_COLUMNS_MAX: usize = 48;

/// One line per change: id, path, lines, share of the file, reason, age.
pub fn render_table(held: &[Held], text: &mut Text) {
    let width = held.iter().map(columns).max().unwrap_or(0).min(PATH_COLUMNS_MAX);
    for change in held {
        render_row(change, width, text);
    }
}

fn render_row(change: &Held, width: usize, text: &mut Text) {
    text.put("  ").ink(Ink::Strong, change.id.as_str()).put("  ").name(change.path.as_bytes());
    text.put(" ".repeat(width.saturating_sub(columns(change)) + 2));
    text.ink(Ink::Added, format!("+{}", change.insertions)).put(" ");
    text.ink(Ink::Removed, format!("-{}", change.deletions));
    if change.ratio > 0.0 {
        text.put(format!("  {}", percent(change.ratio)));
    }
    text.put(format!("  {}", change.reason));
    if let Some(operation) = &change.operation {
        text.put(format!(" {operation}"));
    }
    text.put(format!("  {}", age(change.created, text.now())));
    for mark in marks(change) {
        text.ink(Ink::Warning, format!("  [{mark}]"));
    }
    text.put("\n");
    if let Some(detail) = change.detail.as_ref().filter(|_| change.kind != ChangeKind::Structure) {
        text.put("            ").name(detail).put("\n");
    }
    if !change.also.is_empty() {
        render_also(&change.also, text.put("            "));
    }
    for looks in &change.looks {
        text.put("            ").name(looks).put("\n");
    }
}

/// The other names of a changed file that has several.
pub fn render_also(Also(names): &Also, text: &mut Text) {
    text.put("also: ");
    for (number, name) in names.iter().enumerate() {
        text.put(if number == 0 { "" } else { ", " }).name(name.as_bytes());
    }
    text.put("\n");
}

/// The width of the path, approximated as one column per character.
fn columns(change: &Held) -> usize {
    super::terminal::escape_name(change.path.as_bytes()).chars().count()
}
