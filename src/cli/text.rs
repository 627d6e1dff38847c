//! Text on its way to a stream. This program's own words go in with `put`; anything else with `name` or `content`.

use super::terminal::{Bytes, Ink, Paint, Style, escape_content, escape_name};

pub struct Text<'a> {
    bytes: Vec<u8>,
    style: &'a Style,
    now: jiff::Timestamp,
}

impl<'a> Text<'a> {
    pub fn new(style: &'a Style) -> Self {
        Self::at(style, jiff::Timestamp::now())
    }

    pub fn at(style: &'a Style, now: jiff::Timestamp) -> Self {
        Self { bytes: Vec::new(), style, now }
    }

    /// The moment from which ages are counted.
    pub fn now(&self) -> jiff::Timestamp {
        self.now
    }

    pub fn style(&self) -> &'a Style {
        self.style
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Adds words of this program.
    pub fn put(&mut self, words: impl AsRef<str>) -> &mut Self {
        self.bytes.extend_from_slice(words.as_ref().as_bytes());
        self
    }

    /// Adds words of this program in a colour.
    pub fn ink(&mut self, ink: Ink, words: impl AsRef<str>) -> &mut Self {
        match self.style.paint {
            Paint::Plain => self.put(words),
            Paint::Colored => self.put(format!("\x1b[{}m{}\x1b[0m", ink.code(), words.as_ref())),
        }
    }

    /// Adds a path, or anything else of one line that this program did not word.
    pub fn name(&mut self, name: impl AsRef<[u8]>) -> &mut Self {
        match self.style.bytes {
            Bytes::Raw => self.bytes.extend_from_slice(name.as_ref()),
            Bytes::Escaped => self.bytes.extend_from_slice(escape_name(name.as_ref()).as_bytes()),
        }
        self
    }

    /// A line of its own that asks for attention.
    pub fn note(&mut self, note: &str) {
        self.ink(Ink::Warning, "note: ").name(note).put("\n");
    }

    /// Adds lines of a file.
    pub fn content(&mut self, content: &[u8]) -> &mut Self {
        match self.style.bytes {
            Bytes::Raw => self.bytes.extend_from_slice(content),
            Bytes::Escaped => self.bytes.extend_from_slice(escape_content(content).as_bytes()),
        }
        self
    }

    /// Adds a unified diff, each line coloured by its kind. Without colours the bytes are those of `content`.
    pub fn diff(&mut self, diff: &[u8]) -> &mut Self {
        let mut in_header = true;
        for line in diff.split_inclusive(|byte| *byte == b'\n') {
            in_header = line.starts_with(b"diff --git ") || (in_header && !line.starts_with(b"@@"));
            self.colored_line(ink_of(line, in_header), line);
        }
        self
    }

    fn colored_line(&mut self, ink: Option<Ink>, line: &[u8]) {
        let bare = line.strip_suffix(b"\n").unwrap_or(line);
        match (ink, self.style.paint) {
            (Some(ink), Paint::Colored) => {
                self.put(format!("\x1b[{}m", ink.code())).content(bare).put("\x1b[0m");
                self.content(&line[bare.len()..]);
            }
            (_, _) => {
                self.content(line);
            }
        }
    }
}

fn ink_of(line: &[u8], in_header: bool) -> Option<Ink> {
    match line.first() {
        _ if in_header => Some(Ink::Strong),
        Some(b'+') => Some(Ink::Added),
        Some(b'-') => Some(Ink::Removed),
        Some(b'@') => Some(Ink::Place),
        _ => None,
    }
}
