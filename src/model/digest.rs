//! The sure identity of content: SHA-256.

use sha2::Digest as _;

const HEX_DIGITS: usize = 64;

/// A SHA-256, shown as 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    pub fn of(content: &[u8]) -> Self {
        Self(sha2::Sha256::digest(content).into())
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

/// Hashes content that comes in pieces.
#[derive(Default)]
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
