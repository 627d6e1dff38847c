//! Paths whose content configures other tools and so can make them run programs: built in as `hold` (SPEC §6).
//!
//! Matched name by name on the case-folded path, at any depth, since an editor or agent started in a subdirectory reads
//! the files there. A symlink in the place of a directory that holds sensitive files is sensitive itself.

use std::borrow::Cow;

use super::{Action, Entry, HoldSource};
use crate::model::RelPath;

/// Files that are sensitive wherever they stand. All names here are case-folded.
const NAMES: &[&str] =
    &[".fettle.toml", ".gitignore", ".mcp.json", "agents.md", "claude.md", ".envrc", ".gitlab-ci.yml"];

/// Directories whose whole contents are sensitive. A `.fettle` in a subdirectory is another project's: a write there
/// could drop or forge its held changes. The view's own `.fettle` is virtual and stands for no directory of lower.
const TREES: &[&[&str]] =
    &[&[".claude"], &[".cursor"], &[".codex"], &[".vscode"], &[".husky"], &[".github", "workflows"], &[".fettle"]];

/// Files that are sensitive in one particular directory. cargo still reads `config` without an extension.
const FILES: &[&[&str]] = &[&[".cargo", "config.toml"], &[".cargo", "config"]];

/// The hooks git runs from `hooks/`: githooks(5) of 2.47.
const GIT_HOOKS: &[&str] = &[
    "applypatch-msg",
    "commit-msg",
    "fsmonitor-watchman",
    "p4-changelist",
    "p4-post-changelist",
    "p4-pre-submit",
    "p4-prepare-changelist",
    "post-applypatch",
    "post-checkout",
    "post-commit",
    "post-index-change",
    "post-merge",
    "post-receive",
    "post-rewrite",
    "post-update",
    "pre-applypatch",
    "pre-auto-gc",
    "pre-commit",
    "pre-merge-commit",
    "pre-push",
    "pre-rebase",
    "pre-receive",
    "prepare-commit-msg",
    "proc-receive",
    "push-to-checkout",
    "reference-transaction",
    "sendemail-validate",
    "update",
];

/// Why a path is sensitive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sensitive {
    /// `Hold(Sensitive)` or `GitConfig`.
    pub action: Action,
    /// The number of names before the one that makes the path sensitive: 1 for `a/.claude/b`.
    pub depth: usize,
    /// The same, but counted to the first name inside the innermost git directory: 3 for `.git/modules/m/hooks/x`.
    /// Renaming a directory above that, as git does with a submodule's, leaves the path as sensitive as it was.
    pub own_depth: usize,
}

/// Returns whether `path` is sensitive, and from which name on.
pub fn sensitive(path: &RelPath, entry: Entry) -> Option<Sensitive> {
    let folded = fold(path.as_bytes());
    let names: Vec<&[u8]> = folded.split(|byte| *byte == b'/').collect();
    (0..names.len()).find_map(|depth| {
        let (action, own) = from(&names[depth..], entry)?;
        Some(Sensitive { action, depth, own_depth: names.len() - own })
    })
}

/// Returns one path for each built-in pattern, for finding rules that would relax one.
pub(in crate::policy) fn examples() -> impl Iterator<Item = String> {
    let names = NAMES.iter().map(|name| match *name {
        "agents.md" | "claude.md" => name.to_uppercase().replace(".MD", ".md"),
        name => name.to_owned(),
    });
    let trees = TREES.iter().map(|tree| format!("{}/x", tree.join("/")));
    let files = FILES.iter().map(|file| file.join("/"));
    let git = [".git/config", ".git/hooks/pre-commit", ".git/info/exclude"].map(str::to_owned);
    names.chain(trees).chain(files).chain(git)
}

/// Returns the action if the first of `names` is sensitive, and how many names [`Sensitive::own_depth`] leaves out.
fn from(names: &[&[u8]], entry: Entry) -> Option<(Action, usize)> {
    match names[0] {
        b".git" => in_git(&names[1..], entry),
        first if NAMES.iter().any(|name| name.as_bytes() == first) => held(names),
        _ if TREES.iter().any(|tree| within(names, tree, entry)) => held(names),
        _ if FILES.iter().any(|file| starts(names, file) || replaces(names, file, entry)) => held(names),
        _ => None,
    }
}

/// Whether this lies below `tree`, or is a symlink in its place or in the place of a directory above it.
fn within(names: &[&[u8]], tree: &[&str], entry: Entry) -> bool {
    (names.len() > tree.len() && starts(names, tree)) || replaces(names, tree, entry)
}

fn starts(names: &[&[u8]], wanted: &[&str]) -> bool {
    names.len() >= wanted.len() && names.iter().zip(wanted).all(|(name, wanted)| *name == wanted.as_bytes())
}

fn replaces(names: &[&[u8]], wanted: &[&str], entry: Entry) -> bool {
    entry == Entry::Symlink
        && names.len() <= wanted.len()
        && names.iter().zip(wanted).all(|(name, wanted)| *name == wanted.as_bytes())
}

/// `rest` is the path below `.git`. Submodules and worktrees keep git directories inside it. A submodule's name may
/// contain slashes, so below `modules/` every depth is tried.
fn in_git(rest: &[&[u8]], entry: Entry) -> Option<(Action, usize)> {
    match rest {
        // A `.git` file or symlink leads git to another directory for its config and hooks.
        [] if entry != Entry::Dir => held(&[b".git"]),
        [] => None,
        [b"modules", below @ ..] if !below.is_empty() => in_modules(below, entry),
        [b"worktrees", name] if entry == Entry::Symlink => held(&[name]),
        [b"worktrees", _name, below @ ..] if !below.is_empty() => in_git(below, entry),
        _ => in_git_dir(rest, entry),
    }
}

/// `below` begins with the first name of a submodule, which is never inside its git directory. Any later name may be.
fn in_modules(below: &[&[u8]], entry: Entry) -> Option<(Action, usize)> {
    if entry == Entry::Symlink {
        // Git makes no symlinks here, and each could stand in the place of a submodule's directory.
        return held(below);
    }
    let at_depth = |depth: usize| match below[1..depth].contains(&b"refs".as_slice()) {
        true => among_branches(&below[depth..]),
        false => in_git_dir(&below[depth..], entry),
    };
    (1..below.len()).find_map(at_depth)
}

/// Below `refs` a path may be a branch, or may belong to a submodule `x/refs/y`. Only the names git itself looks for
/// count, so that a branch `hooks/x` is not taken for a hook.
fn among_branches(rest: &[&[u8]]) -> Option<(Action, usize)> {
    match rest {
        [b"config" | b"config.worktree"] => Some((Action::GitConfig, rest.len())),
        [b"hooks", hook] if GIT_HOOKS.iter().any(|name| name.as_bytes() == *hook) => held(rest),
        [b"commondir"] => held(rest),
        _ => None,
    }
}

/// `rest` is the path within one git directory.
fn in_git_dir(rest: &[&[u8]], entry: Entry) -> Option<(Action, usize)> {
    let is_link = entry == Entry::Symlink;
    match rest {
        [b"config" | b"config.worktree" | b"hooks" | b"info" | b"modules" | b"worktrees"] if is_link => held(rest),
        [b"config" | b"config.worktree"] => Some((Action::GitConfig, rest.len())),
        [b"hooks", .., last] if !last.ends_with(b".sample") => held(rest),
        [b"info", b"exclude"] => held(rest),
        // Points git at another directory for its config and hooks; git itself writes it only for worktrees.
        [b"commondir"] => held(rest),
        _ => None,
    }
}

/// `own` are the names from the start of their git directory, or those from the sensitive name on.
fn held(own: &[&[u8]]) -> Option<(Action, usize)> {
    Some((Action::Hold(HoldSource::Sensitive), own.len()))
}

/// Lower case as case-insensitive file systems see it: Unicode folding, without the characters they ignore.
pub(super) fn fold(path: &[u8]) -> Cow<'_, [u8]> {
    if path.is_ascii() {
        return match path.iter().any(u8::is_ascii_uppercase) {
            true => Cow::Owned(path.to_ascii_lowercase()),
            false => Cow::Borrowed(path),
        };
    }
    let mut folded = Vec::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        folded.extend(
            chunk.valid().chars().filter(|c| !is_ignorable(*c)).flat_map(fold_char).collect::<String>().bytes(),
        );
        folded.extend(chunk.invalid());
    }
    Cow::Owned(folded)
}

/// Goes by way of upper case, so that the long s becomes an s.
fn fold_char(character: char) -> impl Iterator<Item = char> {
    character.to_uppercase().flat_map(char::to_lowercase)
}

/// git's list in `utf8.c` (`next_hfs_char`), plus the soft hyphen.
fn is_ignorable(character: char) -> bool {
    matches!(character, '\u{ad}' | '\u{200c}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{206a}'..='\u{206f}' | '\u{feff}')
}
