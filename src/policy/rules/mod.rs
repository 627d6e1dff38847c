//! What a path is to fettlefs: judged, passed, or gated by a rule (SPEC §6).
//!
//! A [`RuleSet`] is compiled once; asking it costs no I/O. Three lists are read in order and the last match wins: the
//! built-in rules (`.git/` and directories git ignores pass, sensitive paths hold), the user's own rules, the project's.
//! A rule matches a path when its pattern matches the path or any directory above it.
//!
//! Patterns are gitignore's as the `ignore` crate reads them, so unlike in git `{a,b}` is an alternative. Rules never
//! look through a symlink: callers ask about the canonical path.

mod git_config;
mod sensitive;
#[cfg(test)]
mod tests;

pub use git_config::risky_git_config_change;
pub(super) use sensitive::examples as sensitive_examples;
pub use sensitive::{Sensitive, sensitive};

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ignore::gitignore::{Gitignore, GitignoreBuilder};

use crate::model::{Glob, GlobError, Reason, RelPath};

/// What is to be done with writes to a path. [`Action::stricter`] orders them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Judged by its size and the other reasons.
    Auto,
    /// Straight to lower, never judged.
    Pass,
    /// A git config file: held as sensitive if [`risky_git_config_change`] finds a key, else it lands whatever its size.
    GitConfig,
    /// Always reviewed.
    Hold(HoldSource),
    /// Writes fail with EPERM.
    Deny,
    /// Writing, removing or renaming the path, or any directory above it, fails with EPERM.
    Freeze,
}

impl Action {
    /// What a `[[rule]]` may ask for.
    pub const NAMES: &'static str = "auto, pass, hold, deny or freeze";

    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "auto" => Some(Self::Auto),
            "pass" => Some(Self::Pass),
            "hold" => Some(Self::Hold(HoldSource::Rule)),
            "deny" => Some(Self::Deny),
            "freeze" => Some(Self::Freeze),
            _ => None,
        }
    }

    /// Whether every write fails.
    pub fn refuses(self) -> bool {
        matches!(self, Self::Deny | Self::Freeze)
    }

    /// What holds a change that is there already, whatever its content. A rule that refuses writes may be younger than
    /// the open.
    pub fn gate(self) -> Option<HoldSource> {
        match self {
            Self::Hold(source) => Some(source),
            Self::Deny | Self::Freeze => Some(HoldSource::Rule),
            Self::Auto | Self::Pass | Self::GitConfig => None,
        }
    }

    /// Returns the action that lets less through, or `self` if both are equally strict.
    pub fn stricter(self, other: Self) -> Self {
        if other.strictness() > self.strictness() { other } else { self }
    }

    fn strictness(self) -> u8 {
        match self {
            Self::Pass => 0,
            Self::Auto => 1,
            Self::GitConfig => 2,
            Self::Hold(_) => 3,
            Self::Deny => 4,
            Self::Freeze => 5,
        }
    }
}

/// Where a hold comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldSource {
    Rule,
    Sensitive,
}

impl HoldSource {
    pub fn reason(self) -> Reason {
        match self {
            Self::Rule => Reason::Rule,
            Self::Sensitive => Reason::Sensitive,
        }
    }
}

/// The kind of entry that stands, or is to stand, at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    Dir,
    Symlink,
    /// A regular file, or anything else that is not a directory or symlink.
    File,
}

/// A path and what rules may know about it.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    pub path: &'a RelPath,
    pub entry: Entry,
    /// The topmost directory at or above `path` that passes because git ignores it (see [`super::ignored`]).
    pub ignored: Option<&'a RelPath>,
}

/// A `[[rule]]` as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub pattern: String,
    /// A glob for the program that opened the file: for its whole path if the glob has a slash, otherwise for its name.
    pub exe: Option<String>,
    /// One that [`Action::from_name`] gives.
    pub action: Action,
    /// Where the rule is written, for messages: `.fettle.toml:12`.
    pub at: String,
}

/// Whether the project's rules may loosen the built-in rules and the user's (SPEC §15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    Trusted,
    Untrusted,
}

/// A pattern or glob that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {what}")]
pub struct RuleError {
    pub at: String,
    pub what: String,
}

/// All rules of a project, compiled.
#[derive(Debug)]
pub struct RuleSet {
    user: Vec<Compiled>,
    project: Vec<Compiled>,
    trust: Trust,
}

impl RuleSet {
    pub fn compile(user: &[Rule], project: &[Rule], trust: Trust) -> Result<Self, RuleError> {
        let all = |rules: &[Rule]| rules.iter().map(Compiled::new).collect::<Result<Vec<_>, _>>();
        Ok(Self { user: all(user)?, project: all(project)?, trust })
    }

    /// Returns what to do with a write by `exe` to `place`. An unknown `exe` matches every program glob: such rules only
    /// tighten, so a doubt counts as the case they guard against.
    pub fn action(&self, place: &Place, exe: Option<&OsStr>) -> Action {
        let user = apply(&self.user, built_in(place), place, exe);
        let project = apply(&self.project, user, place, exe);
        let granted = match self.trust {
            Trust::Trusted => project,
            // The project's rules may relax each other, but nothing that stood before them.
            Trust::Untrusted => user.stricter(project),
        };
        granted.stricter(at_least(place.path)).stricter(self.through_link(place, exe))
    }

    /// Returns the strictest guarding rule for anything that could show below a symlink at `place`, so that a link in a
    /// directory's place bypasses no rule for the contents. [`sensitive`] does the same for the built-in rules.
    fn through_link(&self, place: &Place, exe: Option<&OsStr>) -> Action {
        let rules = self.user.iter().chain(&self.project).filter(|_| place.entry == Entry::Symlink);
        let guards = |rule: &&Compiled| matches!(rule.action, Action::Hold(_) | Action::Deny | Action::Freeze);
        let reaching = rules.filter(guards).filter(|rule| rule.speaks_of(exe) && rule.reaches_through(place.path));
        reaching.fold(Action::Pass, |now, rule| now.stricter(rule.action))
    }

    /// Whether any rule depends on the program. If none does, callers need not find out who the writer is.
    pub fn names_programs(&self) -> bool {
        self.user.iter().chain(&self.project).any(|rule| rule.exe.is_some())
    }

    /// Whether any rule refuses writes. No built-in rule does.
    pub fn refuses(&self) -> bool {
        self.user.iter().chain(&self.project).any(|rule| rule.action.refuses())
    }

    /// Whether a frozen path may exist below `dir`, going by patterns alone. `false` is certain.
    pub fn may_freeze_below(&self, dir: &RelPath) -> bool {
        self.user.iter().chain(&self.project).any(|rule| rule.action == Action::Freeze && rule.reaches_below(dir))
    }

    /// Whether anything below the passing directory `dir` may be judged, held or refused, going by names alone. `false`
    /// is certain, and is the answer for `target/` and `node_modules/`: what is sensitive inside an ignored directory
    /// is so by a name in that directory's own path, and all such names begin with a dot, in whatever disguise.
    pub fn may_judge_below(&self, dir: &RelPath) -> bool {
        let is_plain = |name: &OsStr| {
            let name = name.as_bytes();
            name.is_ascii() && !name.starts_with(b".") && !name.contains(&b'~')
        };
        let by_rule = |rule: &Compiled| rule.action != Action::Pass && rule.reaches_below(dir);
        !dir.components().all(is_plain) || self.user.iter().chain(&self.project).any(by_rule)
    }
}

/// The action before any rule is read.
fn built_in(place: &Place) -> Action {
    match sensitive(place.path, place.entry) {
        Some(found) if outranks_ignored(&found, place.ignored) => found.action,
        _ if place.ignored.is_some() || in_git_dir(place) => Action::Pass,
        _ => Action::Auto,
    }
}

/// An ignored `.vscode/` is as sensitive as any other; a `.vscode/` inside an ignored `node_modules/` is not.
fn outranks_ignored(found: &Sensitive, ignored: Option<&RelPath>) -> bool {
    ignored.is_none_or(|dir| found.depth < dir.components().count())
}

/// Whether this is `.git/` or anything below it. A `.git` file (of a submodule or worktree) is judged.
fn in_git_dir(place: &Place) -> bool {
    let last = place.path.components().count().saturating_sub(1);
    let is_dir = |depth| depth < last || place.entry == Entry::Dir;
    place.path.components().enumerate().any(|(depth, name)| name == ".git" && is_dir(depth))
}

/// What no rule can relax: the hold on the file with the rules itself (SPEC §6).
fn at_least(path: &RelPath) -> Action {
    match sensitive::fold(path.as_bytes()).as_ref() == b".fettle.toml" {
        true => Action::Hold(HoldSource::Sensitive),
        false => Action::Pass,
    }
}

fn apply(rules: &[Compiled], before: Action, place: &Place, exe: Option<&OsStr>) -> Action {
    rules.iter().filter(|rule| rule.matches(place)).fold(before, |now, rule| match &rule.exe {
        Some(glob) if glob.matches(exe) => now.stricter(rule.action),
        Some(_) => now,
        // The earlier hold keeps its source: the reason reported is the first that applies.
        None if matches!((now, rule.action), (Action::Hold(_), Action::Hold(_))) => now,
        None => rule.action,
    })
}

/// Whether a pattern matches a path or a directory above it; a pattern that does not compile matches nothing.
pub(super) fn pattern_matches(rule: &Rule, path: &RelPath) -> bool {
    let place = Place { path, entry: Entry::File, ignored: None };
    Compiled::new(rule).is_ok_and(|compiled| compiled.matches(&place))
}

#[derive(Debug)]
struct Compiled {
    patterns: Gitignore,
    /// The leading wildcard-free components of an anchored pattern; `None` if the pattern can match at any depth.
    literal: Option<Vec<String>>,
    /// Matches the directories above what `patterns` matches, see [`directories_above`].
    above: Gitignore,
    exe: Option<ExeGlob>,
    action: Action,
}

impl Compiled {
    fn new(rule: &Rule) -> Result<Self, RuleError> {
        let fault = |what: String| RuleError { at: rule.at.clone(), what };
        Glob::check_bounds(&rule.pattern).map_err(|err| fault(format!("match: {err}")))?;
        check_pattern(&rule.pattern).map_err(|why| fault(format!("match = {:?}: {why}", rule.pattern)))?;
        let patterns = compile_all(&[&rule.pattern]).map_err(|err| fault(format!("match: {err}")))?;
        // A prefix may not be a valid pattern by itself, as in `{a/b,c}/d`: then any directory counts.
        let above = compile_all(&directories_above(&rule.pattern)).or_else(|_| compile_all(&["**"]));
        let above = above.map_err(|err| fault(format!("match: {err}")))?;
        if rule.exe.as_deref().is_some_and(|exe| exe.trim().is_empty()) {
            return Err(fault("exe = \"\": matches nothing: no program is called so".to_owned()));
        }
        let exe = rule.exe.as_deref().map(ExeGlob::new).transpose().map_err(|err| fault(format!("exe: {err}")))?;
        Ok(Self { patterns, literal: literal_prefix(&rule.pattern), above, exe, action: rule.action })
    }

    fn matches(&self, place: &Place) -> bool {
        let is_dir = place.entry == Entry::Dir;
        self.patterns.matched_path_or_any_parents(Path::new(place.path.as_os_str()), is_dir).is_ignore()
    }

    fn speaks_of(&self, exe: Option<&OsStr>) -> bool {
        self.exe.as_ref().is_none_or(|glob| glob.matches(exe))
    }

    /// Whether something below a symlink at `path` could match there but not at the link's target.
    fn reaches_through(&self, path: &RelPath) -> bool {
        self.above.matched(Path::new(path.as_os_str()), false).is_ignore()
    }

    /// Whether something below `dir` could match. In doubt, yes.
    fn reaches_below(&self, dir: &RelPath) -> bool {
        let Some(literal) = &self.literal else { return true };
        literal.iter().zip(dir.components()).all(|(wanted, name)| name == wanted.as_str())
    }
}

/// The most names a pattern may have. Each adds a longer pattern for a directory above the match, so the cost of
/// compiling them grows with the square.
const PATTERN_NAMES_MAX: usize = 64;

/// Refuses patterns that would silently match nothing, or not what they seem to.
fn check_pattern(pattern: &str) -> Result<(), &'static str> {
    match pattern.trim() {
        text if names_nothing(text) => Err("matches nothing: no path of a project is spelt so"),
        text if text.starts_with('!') => Err("negation is not for rules: add a later rule with action = \"auto\""),
        text if text.starts_with('#') => Err("is a comment; write \\# for a name that begins with #"),
        text if text.contains(['\n', '\0']) => Err("has a line break or NUL"),
        text if text.split('/').count() > PATTERN_NAMES_MAX => Err("has more than 64 names"),
        _ => Ok(()),
    }
}

fn compile_all(patterns: &[impl AsRef<str>]) -> Result<Gitignore, ignore::Error> {
    let mut builder = GitignoreBuilder::new("");
    builder.allow_unclosed_class(false);
    for pattern in patterns {
        builder.add_line(None, pattern.as_ref())?;
    }
    builder.build()
}

/// Whether some name in the pattern is empty, `.` or `..`, which no real name is.
fn names_nothing(pattern: &str) -> bool {
    let names = pattern.strip_suffix('/').unwrap_or(pattern);
    names.strip_prefix('/').unwrap_or(names).split('/').any(|name| matches!(name, "" | "." | ".."))
}

/// Returns a pattern for each directory above what `pattern` matches, and `pattern` itself if it matches only
/// directories. Prefixes of `**` alone are left out: what matches at any depth also matches at a link's target.
fn directories_above(pattern: &str) -> Vec<String> {
    let body = pattern.trim_end();
    let name = body.trim_end_matches('/');
    let names: Vec<&str> = name.trim_start_matches('/').split('/').collect();
    let above = (1..names.len()).map(|count| &names[..count]).filter(|names| names.iter().any(|name| *name != "**"));
    let above = above.map(|names| format!("/{}", names.join("/")));
    above.chain((name != body).then(|| name.to_owned())).collect()
}

/// The wildcard-free start of an anchored pattern. A slash before its end anchors a pattern; gitignore(5).
fn literal_prefix(pattern: &str) -> Option<Vec<String>> {
    let body = pattern.trim().trim_end_matches('/');
    if !body.contains('/') {
        return None;
    }
    let is_literal = |name: &&str| !name.contains(['*', '?', '[', '{', '\\']);
    Some(body.trim_start_matches('/').split('/').take_while(is_literal).map(str::to_owned).collect())
}

#[derive(Debug)]
enum ExeGlob {
    Name(Glob),
    Path(Glob),
}

impl ExeGlob {
    fn new(text: &str) -> Result<Self, GlobError> {
        let glob = Glob::new(text)?;
        Ok(if text.contains('/') { Self::Path(glob) } else { Self::Name(glob) })
    }

    fn matches(&self, exe: Option<&OsStr>) -> bool {
        let Some(exe) = exe.map(Path::new) else { return true };
        match self {
            Self::Name(glob) => exe.file_name().is_some_and(|name| glob.is_match(name)),
            Self::Path(glob) => glob.is_match(exe),
        }
    }
}
