//! The diff that people read and `git apply` accepts: headers as git writes them, hunks as `hunks.rs` numbers them.
//!
//! Bytes in, bytes out: only names are escaped. Code that shows the diff on a terminal must escape it (SPEC §12).

use super::binary::binary_patch;
use super::hunks::{Hunk, hunks_of};
use super::lines::Lines;
use super::quote::quote_path;
use super::side::{Side, classify};
use crate::model::{Digest, RelPath};

/// One path before and after.
#[derive(Clone, Copy, Debug)]
pub struct FileDiff<'a> {
    pub path: &'a RelPath,
    pub old: Option<FileSide<'a>>,
    pub new: Option<FileSide<'a>>,
}

/// A file, or a symlink with its target as content.
#[derive(Clone, Copy, Debug)]
pub struct FileSide<'a> {
    pub content: FileContent<'a>,
    /// `st_mode`. git distinguishes executables, other files and symlinks.
    pub mode: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileContent<'a> {
    Bytes(&'a [u8]),
    /// Content too large to be read for a diff.
    Large(Digest),
}

const TYPE_MASK: u32 = 0o170_000;
const SYMLINK: u32 = 0o120_000;
const EXECUTABLE: u32 = 0o100;

/// What is shown of content that is not text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// Only that it differs. `git apply` refuses such a patch as a whole, unless the patch deletes the file.
    Named,
    /// All of it, for `git apply`. Content too large for a diff is still only named.
    Whole,
}

/// Returns the unified diff, empty if nothing differs. A change of type is a deletion and a creation, as in git.
pub fn unified(file: &FileDiff, unreadable: Unreadable) -> Vec<u8> {
    match (file.old, file.new) {
        (Some(old), Some(new)) if old.is_symlink() != new.is_symlink() => {
            let both = [FileDiff { new: None, ..*file }, FileDiff { old: None, ..*file }];
            both.iter().flat_map(|file| render(file, unreadable)).collect()
        }
        _ => render(file, unreadable),
    }
}

fn render(file: &FileDiff, unreadable: Unreadable) -> Vec<u8> {
    let names = Names::of(file);
    let modes = mode_lines(file);
    let body = body(file, &names, unreadable);
    if modes.is_empty() && body.is_empty() {
        return Vec::new();
    }
    [b"diff --git ", names.git_old.as_slice(), b" ", &names.git_new, b"\n", modes.as_bytes(), &body].concat()
}

struct Names {
    git_old: Vec<u8>,
    git_new: Vec<u8>,
    /// The names after `---` and `+++`: `/dev/null` for a side that is absent.
    old: Vec<u8>,
    new: Vec<u8>,
}

impl Names {
    fn of(file: &FileDiff) -> Self {
        let git_old = quote_path(&[b"a/", file.path.as_bytes()].concat());
        let git_new = quote_path(&[b"b/", file.path.as_bytes()].concat());
        let or_null = |side: Option<FileSide>, name: &[u8]| side.map_or(b"/dev/null".to_vec(), |_| name.to_vec());
        Self { old: or_null(file.old, &git_old), new: or_null(file.new, &git_new), git_old, git_new }
    }
}

fn mode_lines(file: &FileDiff) -> String {
    let modes = (file.old.map(|side| side.git_mode()), file.new.map(|side| side.git_mode()));
    match modes {
        (None, Some(new)) => format!("new file mode {new}\n"),
        (Some(old), None) => format!("deleted file mode {old}\n"),
        (Some(old), Some(new)) if old != new => format!("old mode {old}\nnew mode {new}\n"),
        (Some(_), Some(_)) | (None, None) => String::new(),
    }
}

fn body<'a>(file: &FileDiff<'a>, names: &Names, unreadable: Unreadable) -> Vec<u8> {
    let content = |side: Option<FileSide<'a>>| side.map_or(FileContent::Bytes(b""), |side| side.content);
    let (old, new) = (content(file.old), content(file.new));
    if old == new {
        return Vec::new();
    }
    let (Some(old), Some(new)) = (old.text(), new.text()) else {
        let ids = format!("index {}..{}\n", index_id(file.old), index_id(file.new));
        return [ids.as_bytes(), &unreadable_body(old, new, names, unreadable)].concat();
    };
    let (old, new) = (Lines::of(old), Lines::of(new));
    let mut out = [b"--- ", end_name(&names.old).as_slice(), b"\n+++ ", &end_name(&names.new), b"\n"].concat();
    let hunks = hunks_of(&old, &new);
    for hunk in &hunks {
        let number = (hunks.len() > 1).then_some(hunk.number);
        render_hunk(&mut out, hunk, number, &old, &new);
    }
    out
}

fn unreadable_body(old: FileContent, new: FileContent, names: &Names, unreadable: Unreadable) -> Vec<u8> {
    match (old, new, unreadable) {
        (FileContent::Bytes(old), FileContent::Bytes(new), Unreadable::Whole) => binary_patch(old, new),
        (_, _, Unreadable::Named | Unreadable::Whole) => {
            [b"Binary files ", names.old.as_slice(), b" and ", &names.new, b" differ\n"].concat()
        }
    }
}

/// git's id of the content. Without an `index` line `git apply` does not recognize the header and silently skips the
/// file. For content too large to read this is its SHA-256, by which git finds nothing.
fn index_id(side: Option<FileSide>) -> String {
    match side.map(|side| side.content) {
        None => gix::ObjectId::null(gix::hash::Kind::Sha1).to_string(),
        Some(FileContent::Large(digest)) => digest.to_string(),
        Some(FileContent::Bytes(bytes)) => {
            let id = gix::objs::compute_hash(gix::hash::Kind::Sha1, gix::objs::Kind::Blob, bytes);
            // Hashing fails only for content crafted to collide, which git refuses as well.
            id.map_or_else(|_| Digest::of(bytes).to_string(), |id| id.to_string())
        }
    }
}

/// A tab ends a name with spaces, so that a reader does not take the rest for a date.
fn end_name(name: &[u8]) -> Vec<u8> {
    if name.contains(&b' ') { [name, b"\t"].concat() } else { name.to_vec() }
}

/// `number` takes the place where git names the function, so that a person can select hunks by it.
fn render_hunk(out: &mut Vec<u8>, hunk: &Hunk, number: Option<usize>, old: &Lines, new: &Lines) {
    let (minus, plus) = (span(hunk.old_start, hunk.old_lines), span(hunk.new_start, hunk.new_lines));
    let number = number.map_or(String::new(), |number| format!(" hunk {number}"));
    out.extend_from_slice(format!("@@ -{minus} +{plus} @@{number}\n").as_bytes());
    let shown = hunk.old_range();
    let mut at = shown.start;
    for edit in &hunk.edits {
        render_lines(out, b' ', old.iter(at..edit.old.start));
        render_lines(out, b'-', old.iter(edit.old.clone()));
        render_lines(out, b'+', new.iter(edit.new.clone()));
        at = edit.old.end;
    }
    render_lines(out, b' ', old.iter(at..shown.end));
}

fn span(start: usize, lines: usize) -> String {
    if lines == 1 { start.to_string() } else { format!("{start},{lines}") }
}

fn render_lines<'a>(out: &mut Vec<u8>, sign: u8, lines: impl Iterator<Item = &'a [u8]>) {
    for line in lines {
        out.push(sign);
        out.extend_from_slice(line);
        if !line.ends_with(b"\n") {
            out.extend_from_slice(b"\n\\ No newline at end of file\n");
        }
    }
}

impl<'a> FileContent<'a> {
    fn text(self) -> Option<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes).filter(|bytes| classify(Some(bytes)) == Side::Text),
            Self::Large(_) => None,
        }
    }
}

impl FileSide<'_> {
    fn is_symlink(&self) -> bool {
        self.mode & TYPE_MASK == SYMLINK
    }

    fn git_mode(&self) -> &'static str {
        if self.is_symlink() {
            "120000"
        } else if self.mode & EXECUTABLE != 0 {
            "100755"
        } else {
            "100644"
        }
    }
}
