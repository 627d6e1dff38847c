//! Stamps that are only ever compared for equality.
//!
//! A print is seven bytes of a hash whose key this process draws and never reveals, so no program can search for two
//! stamps with the same print. Two different stamps share one with a probability of 2^-56. Seven bytes, so that an
//! optional print takes eight.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::LazyLock;

use crate::model::Stamp;

/// Stands for a whole [`Stamp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::overlay) struct Print([u8; 7]);

/// Stands for the parts of a stamp that identify content, as in [`Stamp::has_same_content`]: all but the ctime and the
/// time at which the inode was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::overlay) struct ContentPrint([u8; 7]);

impl Print {
    pub fn of(stamp: &Stamp) -> Self {
        Self(seven_bytes(stamp))
    }
}

impl ContentPrint {
    pub fn of(stamp: &Stamp) -> Self {
        Self(seven_bytes((stamp.device, stamp.inode, stamp.size, stamp.mtime)))
    }
}

fn seven_bytes(what: impl Hash) -> [u8; 7] {
    static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    let [_, bytes @ ..] = KEY.hash_one(what).to_le_bytes();
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Timestamp;

    #[test]
    fn a_ctime_tells_stamps_apart_and_content_not() {
        let one = Stamp { inode: 7, size: 3, ..Stamp::default() };
        let other = Stamp { ctime: Timestamp { seconds: 1, nanoseconds: 0 }, ..one };
        let written = Stamp { mtime: Timestamp { seconds: 0, nanoseconds: 1 }, ..one };
        assert_eq!(Print::of(&one), Print::of(&one.clone()));
        assert_ne!(Print::of(&one), Print::of(&other));
        assert_eq!(ContentPrint::of(&one), ContentPrint::of(&other));
        assert_ne!(ContentPrint::of(&one), ContentPrint::of(&written));
    }

    #[test]
    fn an_optional_print_takes_eight_bytes() {
        assert_eq!([size_of::<Option<Print>>(), size_of::<Option<ContentPrint>>()], [8, 8]);
    }
}
