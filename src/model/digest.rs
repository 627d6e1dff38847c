//! The sure identity of content: SHA-256, as long as the content has no more than 64 MiB of zeros.
//!
//! A hole takes no space, so any program can make a file of many TiB at once, and hashing all its zeros would take hours.
//! Of the blocks that are all zeros, only the first 64 MiB are hashed, wherever they are. The others are left out, and
//! the identity is then the SHA-512/256 of where they were and of the SHA-256 of the rest: a function of the bytes alone,
//! stored as holes or not, and another function than for any content with fewer zeros.

#[cfg(test)]
mod tests;

use std::ops::Range;

use sha2::Digest as _;

const HEX_DIGITS: usize = 64;

/// The unit checked for being all zeros: the block size of most file systems, so that no hole is hashed needlessly.
pub const ZERO_BLOCK_BYTES: usize = 4096;

/// Zeros hashed before the others are left out: a twentieth of a second. Content read as a whole never has more.
const ZEROS_HASHED_MAX: u64 = 64 << 20;

/// A SHA-256, or what stands for one, shown as 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    pub fn of(content: &[u8]) -> Self {
        if content.len() as u64 <= ZEROS_HASHED_MAX {
            return Self(sha2::Sha256::digest(content).into());
        }
        let mut hasher = ContentHasher::default();
        hasher.update(content);
        hasher.finish()
    }

    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub fn parse(hex: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        let is_read = hex.len() == HEX_DIGITS && faster_hex::hex_decode(hex.as_bytes(), &mut bytes).is_ok();
        is_read.then_some(Self(bytes))
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Hashes content that arrives in pieces. All pieces but the last consist of whole blocks.
pub struct ContentHasher {
    /// Hashes everything that is not left out.
    rest: sha2::Sha256,
    /// How many more zeros will be hashed.
    zeros_left: u64,
    /// The bytes received so far.
    length: u64,
    /// Hashes the ranges of zeros left out, except the last range.
    left_out: sha2::Sha512_256,
    last_left_out: Option<Range<u64>>,
}

impl Default for ContentHasher {
    fn default() -> Self {
        Self {
            rest: sha2::Sha256::default(),
            zeros_left: ZEROS_HASHED_MAX,
            length: 0,
            left_out: sha2::Sha512_256::default(),
            last_left_out: None,
        }
    }
}

impl ContentHasher {
    pub fn update(&mut self, piece: &[u8]) {
        for block in piece.chunks(ZERO_BLOCK_BYTES) {
            match block == &ZEROS[..block.len()] {
                true => self.zeros(block.len() as u64),
                false => {
                    self.rest.update(block);
                    self.length += block.len() as u64;
                }
            }
        }
    }

    /// Adds `count` zeros without looking at each.
    pub fn zeros(&mut self, count: u64) {
        let part_of_block = count % ZERO_BLOCK_BYTES as u64;
        let hashed = self.zeros_left.min(count - part_of_block);
        self.zeros_left -= hashed;
        self.hash_zeros(hashed);
        self.leave_out(count - part_of_block - hashed);
        self.hash_zeros(part_of_block);
    }

    fn hash_zeros(&mut self, count: u64) {
        let blocks = count / ZERO_BLOCK_BYTES as u64;
        (0..blocks).for_each(|_| self.rest.update(ZEROS));
        self.rest.update(&ZEROS[..(count % ZERO_BLOCK_BYTES as u64) as usize]);
        self.length += count;
    }

    fn leave_out(&mut self, count: u64) {
        if count == 0 {
            return;
        }
        let start = self.length;
        self.length += count;
        match &mut self.last_left_out {
            Some(last) if last.end == start => last.end = self.length,
            Some(_) | None => {
                self.note_left_out();
                self.last_left_out = Some(start..self.length);
            }
        }
    }

    fn note_left_out(&mut self) {
        if let Some(Range { start, end }) = self.last_left_out.take() {
            self.left_out.update(start.to_le_bytes());
            self.left_out.update(end.to_le_bytes());
        }
    }

    pub fn finish(mut self) -> Digest {
        let has_left_out = self.last_left_out.is_some();
        self.note_left_out();
        let rest = self.rest.finalize();
        match has_left_out {
            true => Digest(self.left_out.chain_update(rest).finalize().into()),
            false => Digest(rest.into()),
        }
    }
}

static ZEROS: [u8; ZERO_BLOCK_BYTES] = [0; ZERO_BLOCK_BYTES];

/// Hashes data that is no file content: all of it, zeros included.
#[derive(Clone, Default)]
pub struct Hasher(sha2::Sha256);

impl Hasher {
    pub fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    pub fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut digits = [0; HEX_DIGITS];
        f.write_str(faster_hex::hex_encode(&self.0, &mut digits).map_err(|_| std::fmt::Error)?)
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}
