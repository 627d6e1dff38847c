//! The project settings files that the user has trusted: the text of `trusted` in the user's own configuration directory.
//!
//! Each line is the SHA-256 of the file in hex, two blanks, and the project's absolute path, in which `\n` stands for a
//! newline and `\\` for a backslash (as `sha256sum` spells names). Both must match: the same text in another project may
//! refer to other files, and changed text has not been trusted. Lines of any other shape are ignored.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::model::Digest;

/// What separates hash and path.
const GAP: &[u8] = b"  ";
/// A SHA-256 in hex.
const HASH_DIGITS: usize = 64;

/// Returns whether `text` trusts the file `digest` of `project`.
pub fn is_trusted(text: &[u8], project: &Path, digest: Digest) -> bool {
    let wanted = line(project, digest);
    lines(text).any(|line| line == wanted)
}

/// Returns `text` with the file `digest` of `project` trusted, and no other file of that project.
pub fn with_trust(text: &[u8], project: &Path, digest: Digest) -> Vec<u8> {
    let mut new = without_trust(text, project);
    new.extend(line(project, digest));
    new.push(b'\n');
    new
}

/// Returns `text` with nothing of `project` trusted. All other lines stay as they are.
pub fn without_trust(text: &[u8], project: &Path) -> Vec<u8> {
    let ending = [GAP, &spelled(project)].concat();
    let is_its = |line: &&[u8]| line.len() == HASH_DIGITS + ending.len() && line.ends_with(&ending);
    let others = lines(text).filter(|line| !is_its(line));
    others.flat_map(|line| line.iter().copied().chain([b'\n'])).collect()
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty())
}

fn line(project: &Path, digest: Digest) -> Vec<u8> {
    [digest.to_string().as_bytes(), GAP, &spelled(project)].concat()
}

fn spelled(path: &Path) -> Vec<u8> {
    let mut spelled = Vec::new();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'\n' => spelled.extend(b"\\n"),
            b'\\' => spelled.extend(b"\\\\"),
            other => spelled.push(*other),
        }
    }
    spelled
}
