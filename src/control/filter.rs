//! Lists, shorter.

use super::find::glob_of;
use crate::model::{Glob, RelPath};
use crate::protocol::{ErrorBody, Target};

type Result<T> = std::result::Result<T, ErrorBody>;

/// Lists are filtered by what is named; what matches nothing leaves them empty.
pub struct Filter {
    targets: Vec<(Target, Option<Glob>)>,
}

impl Filter {
    pub fn of(targets: &[Target]) -> Result<Self> {
        let compiled = |target: &Target| Ok((target.clone(), glob_of(target)?));
        Ok(Self { targets: targets.iter().map(compiled).collect::<Result<_>>()? })
    }

    /// Whether something of this path, or of a name or id that `is_called` knows, is wanted.
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
