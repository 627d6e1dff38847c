//! Path globs that people wrote: bounded before they are parsed, so that none can crash or stall its reader.

use std::path::Path;

use globset::{GlobBuilder, GlobSet};

/// As long as a path may be. The cost of compiling and matching a pattern grows with its length.
const BYTES_MAX: usize = 4096;
/// The parser of alternatives recurses for each nested `{`: some ten thousand overflow its stack, and some hundred exceed
/// what a regular expression may have.
const BRACES_MAX: usize = 32;

/// One glob: `*` stays within a name, `**` does not.
#[derive(Clone, Debug)]
pub struct Glob(GlobSet);

/// The reason why text is no glob, or no pattern of a rule.
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
        // By way of a set: `compile_matcher` panics if the regular expression would be too large.
        Ok(Self(GlobSet::new([glob])?))
    }

    pub fn is_match(&self, path: impl AsRef<Path>) -> bool {
        self.0.is_match(path)
    }

    /// Checks the bounds of text written like a glob, such as a gitignore pattern, before it is parsed.
    pub fn check_bounds(text: &str) -> Result<(), GlobError> {
        if text.len() > BYTES_MAX {
            return Err(GlobError::TooLong);
        }
        // Counts all of them, not those open at once: only the parser knows which brace closes one.
        match text.bytes().filter(|byte| *byte == b'{').count() > BRACES_MAX {
            true => Err(GlobError::TooManyBraces),
            false => Ok(()),
        }
    }
}
