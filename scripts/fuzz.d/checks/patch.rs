//! A patch as JSON or in blocks, and a content to apply it to: read or refused, and where it applies the result has exactly
//! what was taken out less and what was put in more.

use fettlefs::diff::{Anchored, apply_anchored};
use fettlefs::protocol::parse_patch;

/// Between the patch and the content; in neither, for both are UTF-8.
const SEPARATOR: u8 = 0xff;

pub fn check(bytes: &[u8]) {
    let mut parts = bytes.splitn(2, |byte| *byte == SEPARATOR);
    let [patch, content] = std::array::from_fn(|_| parts.next().unwrap_or_default());
    let Ok(files) = parse_patch(patch) else { return };
    for file in files {
        let hunks: Vec<Anchored> = file
            .hunks
            .iter()
            .map(|hunk| Anchored {
                left: hunk.left.as_bytes(),
                old: hunk.old.as_bytes(),
                right: hunk.right.as_bytes(),
                new: hunk.new.as_bytes(),
                matches: hunk.matches as usize,
                whole_lines: hunk.whole_lines,
            })
            .collect();
        match apply_anchored(content, &hunks) {
            Ok(patched) => {
                let taken: usize = hunks.iter().map(|hunk| hunk.matches * hunk.old.len()).sum();
                let put: usize = hunks.iter().map(|hunk| hunk.matches * hunk.new.len()).sum();
                assert_eq!(patched.len() + taken, content.len() + put);
            }
            Err(refusal) => assert!(!refusal.to_string().is_empty()),
        }
    }
}
