//! A bound on memory: in an index of version 4 a name is what differs from the one before, so that a few megabytes can
//! unpack to gigabytes.

use super::IndexError;

/// Enough for the trees of a million files.
const BYTES_MAX: usize = 64 << 20;

/// What a path takes up besides its own bytes, roughly.
const PATH_BYTES: usize = 64;

/// The bytes of memory that are taken up.
#[derive(Default)]
pub struct Unpacked(usize);

impl Unpacked {
    pub fn add(&mut self, bytes: usize) -> Result<(), IndexError> {
        self.0 += bytes;
        if self.0 > BYTES_MAX { Err(IndexError::TooLarge) } else { Ok(()) }
    }

    pub fn add_path(&mut self, path: &[u8]) -> Result<(), IndexError> {
        self.add(PATH_BYTES + path.len())
    }

    /// Takes back what was added.
    pub fn forget(&mut self, bytes: usize) {
        self.0 -= bytes;
    }
}
