//! Tells which directories git ignores, and which of them hold tracked files all the same (SPEC §6).
//!
//! The caller walks down one directory at a time and brings each `.gitignore`; [`IgnoreScope`] is a cheap value to keep
//! per directory. Only directories are asked about. A line that may be read differently from git counts as "not ignored":
//! a directory judged needlessly costs time, one that passes wrongly costs the review.

mod index;
#[cfg(test)]
mod tests;
mod trees;
mod unpacked;

pub use index::{Index, IndexError, TrackedSet};
pub use trees::IndexTrees;

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

use crate::model::RelPath;

/// The ignore state of one directory.
#[derive(Clone, Debug)]
pub struct IgnoreScope {
    dir: RelPath,
    standing: Standing,
    /// Outermost first: the global excludes, `.git/info/exclude`, then the `.gitignore` files from the root down.
    layers: Arc<[Arc<Layer>]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Patterns decide.
    Open,
    /// This directory is ignored, and nothing below it can be re-included; gitignore(5).
    Ignored,
}

/// An ignore file that is there.
#[derive(Debug)]
pub enum IgnoreFile {
    Text(Vec<u8>),
    Unreadable,
}

/// The patterns of one file, relative to the directory it is in.
#[derive(Debug)]
struct Layer {
    dir: RelPath,
    patterns: Patterns,
}

#[derive(Debug)]
enum Patterns {
    Read(Gitignore),
    /// The file, or a line of it that re-includes, could not be read: nothing within its reach counts as ignored.
    Unreadable,
}

impl IgnoreScope {
    /// The scope of the project's root. `files` are the user's global excludes file, `.git/info/exclude`, and the root's own
    /// `.gitignore`, in this order; an absent one is left out.
    pub fn root(files: impl IntoIterator<Item = IgnoreFile>) -> Self {
        let dir = RelPath::root();
        let layers = files.into_iter().map(|file| Arc::new(Layer::new(&dir, &file))).collect();
        Self { dir, standing: Standing::Open, layers }
    }

    /// The scope of the subdirectory `name`, with its `.gitignore` if it has one.
    pub fn child(&self, name: &OsStr, gitignore: Option<IgnoreFile>) -> Self {
        let Ok(dir) = self.dir.join(name) else { return self.clone() };
        let standing = if self.ignores_dir(name) { Standing::Ignored } else { Standing::Open };
        let layers = match gitignore {
            Some(file) => self.layers.iter().cloned().chain([Arc::new(Layer::new(&dir, &file))]).collect(),
            None => Arc::clone(&self.layers),
        };
        Self { dir, standing, layers }
    }

    /// Whether git ignores the subdirectory `name`. Says nothing about tracked files: see [`TrackedSet`].
    pub fn ignores_dir(&self, name: &OsStr) -> bool {
        let Ok(path) = self.dir.join(name) else { return false };
        self.standing == Standing::Ignored
            || self.layers.iter().rev().find_map(|layer| layer.says(&path)).unwrap_or(false)
    }
}

impl Layer {
    fn new(dir: &RelPath, file: &IgnoreFile) -> Self {
        let read = match file {
            IgnoreFile::Text(text) => compile(text),
            IgnoreFile::Unreadable => None,
        };
        Self { dir: dir.clone(), patterns: read.map_or(Patterns::Unreadable, Patterns::Read) }
    }

    /// Whether this file's patterns ignore the directory `path`; `None` if no pattern matches it.
    fn says(&self, path: &RelPath) -> Option<bool> {
        let Patterns::Read(patterns) = &self.patterns else { return Some(false) };
        let below = path.rebase(&self.dir, &RelPath::root())?;
        match patterns.matched(Path::new(below.as_os_str()), true) {
            Match::None => None,
            Match::Ignore(_) => Some(true),
            Match::Whitelist(_) => Some(false),
        }
    }
}

/// The longest file that is read. Real lists are shorter, and wildcards compile to some five hundred times their length.
const TEXT_BYTES_MAX: usize = 256 << 10;

/// Returns `None` if the file is too long or a re-including line cannot be read; an unreadable ignoring line is skipped.
fn compile(text: &[u8]) -> Option<Gitignore> {
    if text.len() > TEXT_BYTES_MAX {
        return None;
    }
    let mut builder = GitignoreBuilder::new("");
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    for line in text.split(|byte| *byte == b'\n') {
        let read = as_git_reads(line).is_some_and(|line| builder.add_line(None, &line).is_ok());
        if !read && line.starts_with(b"!") {
            return None;
        }
    }
    builder.build().ok()
}

/// Translates a line for the `ignore` crate, which also has `{a,b}`. `None` if git reads it differently, or may.
fn as_git_reads(line: &[u8]) -> Option<String> {
    let line = std::str::from_utf8(line.strip_suffix(b"\r").unwrap_or(line)).ok()?;
    let line = without_trailing_blanks(line);
    let (sign, pattern) = line.strip_prefix('!').map_or(("", line), |pattern| ("!", pattern));
    if line.starts_with('#') || pattern.contains("//") || pattern.contains("***") || pattern == "/" {
        return None;
    }
    // The crate would take a `/` inside a class for one that anchors the pattern.
    let is_anchored = pattern.trim_end_matches('/').contains('/');
    let anywhere = if pattern.contains('[') && !is_anchored { "**/" } else { "" };
    Some(format!("{sign}{anywhere}{}", translated(pattern)?))
}

fn translated(pattern: &str) -> Option<String> {
    let (mut read, mut rest) = (String::with_capacity(pattern.len()), pattern.chars());
    while let Some(character) = rest.next() {
        match character {
            '\\' => read.extend(['\\', rest.next().filter(|escaped| *escaped != '/')?]),
            '[' => {
                let (class, after) = rest.as_str().split_once(']')?;
                read.push_str(&class_without_slash(class)?);
                rest = after.chars();
            }
            '{' | '}' => read.extend(['\\', character]),
            // The crate trims these at the end of a line, git does not.
            _ if character != ' ' && (character.is_whitespace() || character.is_control()) => return None,
            _ => read.push(character),
        }
    }
    Some(read)
}

/// Trims as git's `dir.c` does: spaces only, up to an escaped one.
fn without_trailing_blanks(line: &str) -> &str {
    let kept = line.trim_end_matches(' ');
    let backslashes = kept.len() - kept.trim_end_matches('\\').len();
    match kept.len() < line.len() && backslashes % 2 == 1 {
        true => &line[..=kept.len()],
        false => kept,
    }
}

/// The crate lets a class match `/`. Accepted are classes of letters, digits, `_` and `.`, and ranges among
/// digits or letters of one case.
fn class_without_slash(class: &str) -> Option<String> {
    match class.strip_prefix(['!', '^']) {
        Some(members) => is_plain_class(members).then(|| format!("[!{members}/]")),
        None => is_plain_class(class).then(|| format!("[{class}]")),
    }
}

fn is_plain_class(members: &str) -> bool {
    let is_member = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.');
    let kinds = [u8::is_ascii_lowercase, u8::is_ascii_uppercase, u8::is_ascii_digit];
    let mut rest = members.as_bytes();
    while !rest.is_empty() {
        rest = match rest {
            [first, b'-', last, after @ ..] if kinds.iter().any(|is_kind| is_kind(first) && is_kind(last)) => after,
            [member, after @ ..] if is_member(member) => after,
            _ => return false,
        };
    }
    !members.is_empty()
}
