//! Filters lists by the names in a request.

use super::find::glob_of;
use crate::model::{Glob, RelPath};
use crate::protocol::{ErrorBody, Target};

type Result<T> = std::result::Result<T, ErrorBody>;

/// Selects list entries by name. A name that matches nothing leaves a list empty; no names at all leave it whole.
pub struct Filter {
    targets: Vec<(Target, Option<Glob>)>,
}

impl Filter {
    pub fn of(targets: &[Target]) -> Result<Self> {
        let compiled = |target: &Target| Ok((target.clone(), glob_of(target)?));
        Ok(Self { targets: targets.iter().map(compiled).collect::<Result<_>>()? })
    }

    /// Whether the entry with this path, or with a name or id that `is_called` recognizes, is wanted.
    pub fn wants(&self, path: Option<&RelPath>, is_called: impl Fn(&str) -> bool) -> bool {
        let by_path = |target: &Target, glob: &Option<Glob>| {
            path.is_some_and(|path| {
                target.path.as_ref().is_some_and(|dir| path.is_within(dir))
                    || glob.as_ref().is_some_and(|glob| glob.is_match(path.as_os_str()))
            })
        };
        self.targets.is_empty()
            || self
                .targets
                .iter()
                .any(|(target, glob)| by_path(target, glob) || target.id.as_deref().is_some_and(&is_called))
    }
}
