//! What a terminal must not be sent, and what it may be asked to show.
//!
//! Names and contents come from programs that nobody trusts yet: an escape sequence in one could hide the very
//! change that is reviewed. On a terminal everything but printable text is spelled out; a pipe gets the bytes.

use std::io::IsTerminal;

/// How one stream is written to.
#[derive(Clone, Debug)]
pub struct Style {
    pub paint: Paint,
    pub bytes: Bytes,
    /// What ages are counted from.
    pub now: jiff::Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    Plain,
    Colored,
}

/// What becomes of bytes that a terminal could obey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bytes {
    Raw,
    Escaped,
}

/// What a piece of text is, as a colour.
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
    /// For a stream of this process.
    pub fn of(stream: &impl IsTerminal) -> Self {
        let (paint, bytes) = match stream.is_terminal() {
            true => (paint_wanted(), Bytes::Escaped),
            false => (Paint::Plain, Bytes::Raw),
        };
        Self { paint, bytes, now: jiff::Timestamp::now() }
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

/// A name, on one line: everything but printable text is spelled out.
pub fn escape_name(bytes: &[u8]) -> String {
    escape(bytes, |character| is_obeyed(character) || character == '\u{2028}' || character == '\u{2029}')
}

/// Content: as a name, but lines and tabs stay.
pub fn escape_content(bytes: &[u8]) -> String {
    escape(bytes, |character| is_obeyed(character) && !matches!(character, '\n' | '\t'))
}

fn escape(bytes: &[u8], spell_out: impl Fn(char) -> bool) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match spell_out(character) {
                true => text.extend(character.escape_default()),
                false => text.push(character),
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// Control characters (C1 too), and those that reorder or hide text: "Trojan Source", CVE-2021-42574.
fn is_obeyed(character: char) -> bool {
    let reorders = matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{61c}');
    let hides = matches!(character, '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}');
    character.is_control() || reorders || hides
}
