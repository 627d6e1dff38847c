//! Globs of paths, as somebody wrote them: bounded before they are read, so that none can end or stall who reads it.

use std::path::Path;

use globset::{GlobBuilder, GlobSet};

/// As long as a path may be. What a pattern takes to compile and to match grows with its length.
const BYTES_MAX: usize = 4096;
/// What reads alternatives calls itself once for each `{` that stands in another: some ten thousand overflow its stack, and
/// some hundred are more than a regular expression may have.
const BRACES_MAX: usize = 32;

/// One glob: `*` stays within a name, `**` does not.
#[derive(Clone, Debug)]
pub struct Glob(GlobSet);

/// Text that is no glob, or no pattern of a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GlobError {
    #[error("a glob or pattern may have {BYTES_MAX} bytes at most")]
    TooLong,
    #[error("a glob or pattern may have {BRACES_MAX} of `{{` at most")]
    TooManyBraces,
    #[error(transparent)]
    Unreadable(#[from] globset::Error),
}

impl Glob {
    pub fn new(text: &str) -> Result<Self, GlobError> {
        Self::check_bounds(text)?;
        let glob = GlobBuilder::new(text).literal_separator(true).build()?;
        // Of a set, since `compile_matcher` panics where the regular expression would be too large.
        Ok(Self(GlobSet::new([glob])?))
    }

    pub fn is_match(&self, path: impl AsRef<Path>) -> bool {
        self.0.is_match(path)
    }

    /// Whether what is written like a glob, as a pattern of gitignore's is, may be read at all.
    pub fn check_bounds(text: &str) -> Result<(), GlobError> {
        if text.len() > BYTES_MAX {
            return Err(GlobError::TooLong);
        }
        // All of them, not those that are open at once: which close one only their reader knows.
        match text.bytes().filter(|byte| *byte == b'{').count() > BRACES_MAX {
            true => Err(GlobError::TooManyBraces),
            false => Ok(()),
        }
    }
}
