//! What must not reach a terminal, and what it may be asked to show.
//!
//! Names and contents come from programs that are not trusted: an escape sequence could hide the very change under
//! review. On a terminal everything but printable text is spelled out; a pipe gets the raw bytes.

use std::io::IsTerminal;

use crate::model::escape_json;
pub use crate::model::{escape_content, escape_name};
pub use crate::ui::Paint;

/// How one stream is written to.
#[derive(Clone, Debug)]
pub struct Style {
    pub paint: Paint,
    pub bytes: Bytes,
}

/// What happens to bytes that could control a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bytes {
    Raw,
    Escaped,
}

/// The meaning of a piece of text, shown as a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    Strong,
    Faint,
    Added,
    Removed,
    Place,
    Warning,
}

impl Style {
    /// The style for a stream of this process.
    pub fn of(stream: &impl IsTerminal) -> Self {
        let (paint, bytes) = match stream.is_terminal() {
            true => (paint_wanted(), Bytes::Escaped),
            false => (Paint::Plain, Bytes::Raw),
        };
        Self { paint, bytes }
    }

    /// Escapes lines of JSON. What could control a terminal occurs only in strings, where an escape means the same.
    pub fn json(&self, lines: Vec<u8>) -> Vec<u8> {
        match self.bytes {
            Bytes::Raw => lines,
            Bytes::Escaped => escape_json(&lines).into_bytes(),
        }
    }
}

/// Any value of `NO_COLOR` but the empty one switches colours off (no-color.org).
fn paint_wanted() -> Paint {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    match set("NO_COLOR").is_some() || set("TERM").is_none_or(|term| term == "dumb") {
        true => Paint::Plain,
        false => Paint::Colored,
    }
}

impl Ink {
    /// The SGR parameters.
    pub fn code(self) -> &'static str {
        match self {
            Self::Strong => "1",
            Self::Faint => "2",
            Self::Added => "32",
            Self::Removed => "31",
            Self::Place => "36",
            Self::Warning => "33",
        }
    }
}
