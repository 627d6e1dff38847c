//! The kind of content on one side of a change (SPEC §5).

/// One side of a change, as far as a line diff cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Nothing is there.
    Absent,
    /// UTF-8, and small enough to diff. NUL is UTF-8 too, so a file that contains it is text.
    Text,
    /// Not UTF-8.
    Binary,
    /// Over [`TEXT_BYTES_MAX`], whatever it contains.
    Large,
}

/// The most bytes of a content that is read for a diff (SPEC §5): 5 MiB.
pub const TEXT_BYTES_MAX: u64 = 5 * 1024 * 1024;

pub fn classify(content: Option<&[u8]>) -> Side {
    match content {
        None => Side::Absent,
        Some(bytes) => classify_size(bytes.len() as u64).unwrap_or_else(|| classify_encoding(bytes)),
    }
}

/// Returns the side if the size alone tells; `None` means that the content must be read.
pub fn classify_size(bytes: u64) -> Option<Side> {
    (bytes > TEXT_BYTES_MAX).then_some(Side::Large)
}

fn classify_encoding(bytes: &[u8]) -> Side {
    if std::str::from_utf8(bytes).is_ok() { Side::Text } else { Side::Binary }
}
