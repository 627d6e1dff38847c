//! Finds changes to a git config file that can run a program or include a file (SPEC §6).
//!
//! The syntax is that of git's `config.c`: sections with quoted subsections, several statements on a line, values with
//! quotes, comments and continuation lines. A file that git would refuse counts as risky, so that no difference between
//! the two parsers lets a key through.

use std::collections::BTreeMap;

use crate::model::RelPath;

/// Keys that run a program or read another file as configuration. `s.k` is exact, `s.*.k` means any subsection, `s.*`
/// every key of the section. From git-config(1) of 2.47, and git-lfs.
const RISKY: &[&str] = &[
    "alias.*",
    "browser.*.cmd",
    "browser.*.path",
    "core.alternaterefscommand",
    "core.askpass",
    "core.attributesfile",
    "core.editor",
    "core.excludesfile",
    "core.fsmonitor",
    "core.gitproxy",
    "core.hookspath",
    "core.pager",
    "core.sshcommand",
    "credential.*",
    "diff.*.command",
    "diff.*.textconv",
    "diff.external",
    "difftool.*.cmd",
    "difftool.*.path",
    "filter.*",
    "gc.recentobjectshook",
    "gpg.*.defaultkeycommand",
    "gpg.*.program",
    "gpg.program",
    "guitool.*",
    "help.browser",
    "hook.*",
    "imap.tunnel",
    "include.*",
    "includeif.*",
    "init.templatedir",
    "instaweb.*",
    "interactive.difffilter",
    "lfs.*.clean",
    "lfs.*.path",
    "lfs.*.smudge",
    "man.*.cmd",
    "man.*.path",
    "man.viewer",
    "merge.*.driver",
    "mergetool.*.cmd",
    "mergetool.*.layout",
    "mergetool.*.path",
    "pager.*",
    "protocol.*",
    "remote.*.receivepack",
    "remote.*.uploadpack",
    "remote.*.vcs",
    "sendemail.*",
    "sequence.editor",
    "svn.authorsprog",
    "tar.*.command",
    "trailer.*.cmd",
    "trailer.*.command",
    "uploadpack.packobjectshook",
    "url.*.insteadof",
    "url.*.pushinsteadof",
    "web.browser",
];

/// Returns a key that can run a program or include a file and is new or has another value; `config` is the file's path.
/// Removing a key is no risk. `(unreadable)` stands for a file that git itself would refuse.
pub fn risky_git_config_change(config: &RelPath, old: &[u8], new: &[u8]) -> Option<String> {
    if is_branch_or_log(new) {
        return None;
    }
    let Some(new) = risky_values(config, new) else { return Some("(unreadable)".to_owned()) };
    // An old file that cannot be read excuses no key of the new one.
    let old = risky_values(config, old).unwrap_or_default();
    let (key, _) = new.into_iter().find(|(key, values)| old.get(key) != Some(values))?;
    Some(String::from_utf8_lossy(&key).into_owned())
}

/// Whether `text` is the ref of a branch named `config`, or its reflog. Read as a config, the ref is one key without a
/// section, which git does not know, and the reflog is refused at its first line.
fn is_branch_or_log(text: &[u8]) -> bool {
    let is_object = |word: &[u8]| matches!(word.len(), 40 | 64) && word.iter().all(u8::is_ascii_hexdigit);
    let line = text.split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line.trim_ascii_end().splitn(3, |byte| *byte == b' ');
    match (words.next(), words.next()) {
        (Some(only), None) => is_object(only) && line.len() == text.len(),
        (Some(old), Some(new)) => is_object(old) && is_object(new),
        (None, _) => false,
    }
}

/// Each key with its values, in order.
type Values = BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>>;

/// Returns the risky keys; `None` if git would refuse the file.
fn risky_values(config: &RelPath, text: &[u8]) -> Option<Values> {
    let mut values = Values::new();
    for (key, value) in Parser::new(text).statements()? {
        if is_risky(config, &key, value.as_deref()) {
            values.entry(key).or_default().push(value);
        }
    }
    Some(values)
}

fn is_risky(config: &RelPath, key: &[u8], value: Option<&[u8]>) -> bool {
    let Some(name) = Name::split(key) else { return false };
    match (name.section, name.subsection, name.key) {
        (b"core", None, b"worktree") => !value.is_some_and(|value| stays_inside(config, value)),
        // Git runs the tool script of this name from its own directory; a name with a slash leads elsewhere.
        (b"merge" | b"diff", None, b"tool" | b"guitool") => value.is_some_and(|value| value.contains(&b'/')),
        (b"submodule", Some(_), b"update") => value.is_some_and(|value| value.starts_with(b"!")),
        _ => RISKY.iter().any(|pattern| name.is(pattern)),
    }
}

/// Whether a work tree path, relative to its git directory, stays inside the project, as those of submodules do.
fn stays_inside(config: &RelPath, worktree: &[u8]) -> bool {
    let mut depth = config.components().count().saturating_sub(1);
    for name in worktree.split(|byte| *byte == b'/') {
        match name {
            b"." => {}
            b"" => return false,
            b".." if depth == 0 => return false,
            b".." => depth -= 1,
            _ => depth += 1,
        }
    }
    true
}

/// A full key, split as git's `parse_config_key` does: at the first and the last dot.
struct Name<'a> {
    section: &'a [u8],
    subsection: Option<&'a [u8]>,
    key: &'a [u8],
}

impl<'a> Name<'a> {
    fn split(full: &'a [u8]) -> Option<Self> {
        let first = full.iter().position(|byte| *byte == b'.')?;
        let last = full.iter().rposition(|byte| *byte == b'.')?;
        let subsection = (first < last).then(|| &full[first + 1..last]);
        Some(Self { section: &full[..first], subsection, key: &full[last + 1..] })
    }

    fn is(&self, pattern: &str) -> bool {
        let mut parts = pattern.split('.').map(str::as_bytes);
        let (section, second, third) = (parts.next(), parts.next(), parts.next());
        section == Some(self.section)
            && match (second, third) {
                (Some(b"*"), None) => true,
                (Some(b"*"), Some(key)) => self.subsection.is_some() && key == self.key,
                (Some(key), _) => self.subsection.is_none() && key == self.key,
                (None, _) => false,
            }
    }
}

/// A key and its value; no value (`[a] b`) means true.
type Statement = (Vec<u8>, Option<Vec<u8>>);

/// Every function returns `None` where git stops with "bad config line".
struct Parser<'a> {
    rest: &'a [u8],
}

impl<'a> Parser<'a> {
    fn new(text: &'a [u8]) -> Self {
        Self { rest: text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text) }
    }

    /// Also returns `None` for a NUL: for git, names and values end there, for this parser they would go on.
    fn statements(mut self) -> Option<Vec<Statement>> {
        if self.rest.contains(&0) {
            return None;
        }
        let (mut section, mut found) = (Vec::new(), Vec::new());
        while !self.rest.is_empty() {
            match self.next() {
                byte if is_space(byte) => {}
                b'#' | b';' => self.skip_line(),
                b'[' => section = [self.section()?, vec![b'.']].concat(),
                byte if byte.is_ascii_alphabetic() => found.push(self.statement(&section, byte)?),
                _ => return None,
            }
        }
        Some(found)
    }

    /// Returns the next byte, and, as git does, a line break for `\r\n` and at the end of the file.
    fn next(&mut self) -> u8 {
        if self.rest.starts_with(b"\r\n") {
            self.rest = &self.rest[1..];
        }
        match self.rest.split_first() {
            Some((byte, rest)) => {
                self.rest = rest;
                *byte
            }
            None => b'\n',
        }
    }

    fn skip_line(&mut self) {
        while self.next() != b'\n' {}
    }

    /// Parses from after `[` to the closing `]`, into `core` or `remote.origin` (also from `[remote "origin"]`).
    fn section(&mut self) -> Option<Vec<u8>> {
        let mut name = Vec::new();
        loop {
            match self.next() {
                b']' => return (!name.is_empty()).then_some(name),
                byte if is_space(byte) => return self.subsection(name, byte),
                byte if is_key_byte(byte) || byte == b'.' => name.push(byte.to_ascii_lowercase()),
                _ => return None,
            }
        }
    }

    fn subsection(&mut self, mut name: Vec<u8>, mut byte: u8) -> Option<Vec<u8>> {
        while is_space(byte) {
            if byte == b'\n' {
                return None;
            }
            byte = self.next();
        }
        if byte != b'"' {
            return None;
        }
        name.push(b'.');
        loop {
            match self.next() {
                b'\n' => return None,
                b'"' => return (self.next() == b']').then_some(name),
                b'\\' => match self.next() {
                    b'\n' => return None,
                    escaped => name.push(escaped),
                },
                byte => name.push(byte),
            }
        }
    }

    /// `section` includes its trailing dot; it is empty before the first section.
    fn statement(&mut self, section: &[u8], first: u8) -> Option<Statement> {
        let mut key = section.to_vec();
        let mut byte = first;
        while is_key_byte(byte) {
            key.push(byte.to_ascii_lowercase());
            byte = self.next();
        }
        while byte == b' ' || byte == b'\t' {
            byte = self.next();
        }
        match byte {
            b'\n' => Some((key, None)),
            b'=' => Some((key, Some(self.value()?))),
            _ => None,
        }
    }

    fn value(&mut self) -> Option<Vec<u8>> {
        let (mut value, mut quoted, mut end) = (Vec::new(), false, 0);
        loop {
            match self.next() {
                b'\n' if quoted => return None,
                b'\n' => break,
                byte if is_space(byte) && !quoted => {
                    // Kept for now: blanks count only if more follows.
                    if end > 0 {
                        value.push(byte);
                    }
                    continue;
                }
                b'#' | b';' if !quoted => {
                    self.skip_line();
                    break;
                }
                b'"' => quoted = !quoted,
                b'\\' => value.extend(self.escape()?),
                byte => value.push(byte),
            }
            end = value.len();
        }
        value.truncate(end);
        Some(value)
    }

    /// Parses what follows a backslash in a value. A backslash at the end of a line continues the value on the next.
    fn escape(&mut self) -> Option<Option<u8>> {
        match self.next() {
            b'\n' => Some(None),
            b't' => Some(Some(b'\t')),
            b'b' => Some(Some(8)),
            b'n' => Some(Some(b'\n')),
            byte @ (b'\\' | b'"') => Some(Some(byte)),
            _ => None,
        }
    }
}

/// git's own `isspace`, without form feed and vertical tab.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

fn is_key_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}

/// All statements as `git config -z --list` prints them.
#[cfg(test)]
pub(super) fn listed(text: &[u8]) -> Option<Vec<u8>> {
    let lines = Parser::new(text).statements()?.into_iter().map(|(key, value)| match value {
        Some(value) => [key, value].join(&b'\n'),
        None => key,
    });
    Some(lines.flat_map(|line| [line, vec![0]].concat()).collect())
}
