//! The key of a node's lower inode, in 24 bytes even where it is optional.

use std::num::NonZeroU32;

use crate::model::{InodeKey, Timestamp};

/// Invariant: [`Lower::key`] returns the key that [`Lower::of`] was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lower {
    inode: u64,
    seconds: i64,
    /// The true value plus one, so that zero is left to mean a node without a lower inode.
    nanoseconds: NonZeroU32,
    device: u32,
}

impl Lower {
    pub fn of(key: InodeKey) -> Self {
        let InodeKey { device, inode, btime: Timestamp { seconds, nanoseconds } } = key;
        // Linux has 12 bits of major and 20 of minor numbers, which `makedev` puts into the low 32.
        let device = u32::try_from(device).expect("the kernel keeps a device's number in 32 bits");
        Self { inode, seconds, nanoseconds: NonZeroU32::MIN.saturating_add(nanoseconds), device }
    }

    pub fn key(self) -> InodeKey {
        let Self { inode, seconds, nanoseconds, device } = self;
        let btime = Timestamp { seconds, nanoseconds: nanoseconds.get() - 1 };
        InodeKey { device: device.into(), inode, btime }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_comes_back_as_it_was() {
        let device = u64::from(u32::MAX);
        for btime in [(0, 0), (i64::MIN, 999_999_999), (i64::MAX, 1)] {
            let btime = Timestamp { seconds: btime.0, nanoseconds: btime.1 };
            let key = InodeKey { device, inode: u64::MAX, btime };
            assert_eq!(Lower::of(key).key(), key);
        }
    }

    #[test]
    fn an_optional_key_takes_24_bytes() {
        assert_eq!(size_of::<Option<Lower>>(), 24);
    }
}
