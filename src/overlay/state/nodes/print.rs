//! Stamps of which only one thing is ever asked: whether another one is the same.
//!
//! A print is seven bytes of a hash by a key that this process has drawn and tells nobody, so nobody can look for two
//! stamps with one print, and of two others one pair in 2^56 has. Seven bytes, so that one takes eight with what says
//! whether there is one.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::LazyLock;

use crate::model::Stamp;

/// Stands for all of a [`Stamp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::overlay) struct Print([u8; 7]);

/// Stands for what tells content, as [`same_content_stamp`](crate::overlay::files::copy_up::same_content_stamp) has it: all but
/// the ctime.
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
