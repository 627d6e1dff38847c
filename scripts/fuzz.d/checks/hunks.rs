//! Two or three contents, and hunks by number: parts add up to the whole, a merge with nothing is the other side, and the
//! diff says what the count says.

use fettlefs::diff::{FileContent, FileDiff, FileSide, Merge, Unreadable, apply_hunks, hunks, measure, merge, unified};
use fettlefs::model::RelPath;

/// Between the contents, which are text mostly.
const SEPARATOR: u8 = 0xff;

pub fn check(bytes: &[u8]) {
    let (chosen, bytes) = bytes.split_first_chunk().unwrap_or((&[0; 8], bytes));
    let chosen = u64::from_le_bytes(*chosen);
    let mut contents = bytes.splitn(3, |byte| *byte == SEPARATOR);
    let [old, new, other] = std::array::from_fn(|_| contents.next().unwrap_or_default());
    let count = hunks(old, new).len();
    let some: Vec<usize> = (1..=count).filter(|number| chosen >> (number % 64) & 1 == 1).collect();
    let part = apply_hunks(old, new, &some).expect("these hunks there are");
    let rest: Vec<usize> = (1..=hunks(&part, new).len()).collect();
    assert_eq!(apply_hunks(&part, new, &rest).expect("and these"), new, "a part and the rest are the whole");
    assert_eq!(apply_hunks(old, new, &[]).expect("none"), old);
    assert!(apply_hunks(old, new, &[count + 1]).is_err());
    assert_eq!(merge(old, old, new), Merge::Clean(new.to_vec()));
    assert_eq!(merge(old, new, old), Merge::Clean(new.to_vec()));
    merge(old, new, other);
    let measured = measure(old, new);
    assert_eq!(measured.changed() == 0, old == new);
    let path = RelPath::parse(b"a").expect("a path");
    let [old, new] = [old, new].map(|bytes| Some(FileSide { content: FileContent::Bytes(bytes), mode: 0o100_644 }));
    unified(&FileDiff { path: &path, old, new }, Unreadable::Whole);
}
