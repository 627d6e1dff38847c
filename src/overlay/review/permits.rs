//! Whether the caller of an undo or a rollback could make the same changes to the project directly.
//!
//! Rights are decided elsewhere. They are asked of what was found below, together with the directories that lead to
//! exactly that. If something else is there by the time of the landing, the landing refuses.

use std::fmt;
use std::sync::Arc;

use super::{Reviewed, changed_meanwhile, failed};
use crate::model::{Acl, RelPath};
use crate::overlay::files::reading::Way;
use crate::overlay::judge::side::Side;
use crate::overlay::{Overlay, Result, Shown};
use crate::protocol::{ErrorCode, refused_at};
use crate::store::{Effect, Operation, PathEffect, Version};
use crate::sys::file::Meta;

/// What is done to one entry of the project.
pub enum Touch<'a> {
    /// It gets other content.
    Content(&'a Shown),
    /// An entry is added to the last of these directories, or what is there is removed or replaced.
    Entry { dirs: &'a [(Meta, Option<Acl>)], there: Option<&'a Meta> },
    /// What is there gets attributes back: those of these effects, or mode and owner along with its content.
    Looks { dirs: &'a [(Meta, Option<Acl>)], there: &'a Meta, effects: &'a [PathEffect] },
    /// What an operation has replaced or removed at a path comes back.
    Returns { operation: &'a Operation, path: &'a RelPath, version: &'a Version },
}

type May = dyn Fn(&Touch<'_>) -> bool + Send + Sync;

/// What the caller may do; by default everything.
#[derive(Clone, Default)]
pub struct Permits(Option<Arc<May>>);

impl fmt::Debug for Permits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Permits(some)" } else { "Permits(all)" })
    }
}

impl Permits {
    pub fn some(may: impl Fn(&Touch<'_>) -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(may)))
    }

    fn all(&self) -> bool {
        self.0.is_none()
    }

    fn check(&self, path: &RelPath, touch: &Touch<'_>) -> Reviewed<()> {
        let why = match touch {
            Touch::Content(_) | Touch::Entry { .. } => "you may not write it",
            Touch::Looks { .. } => "you may not change its mode, owner or attributes",
            Touch::Returns { .. } => "you may not read what would come back",
        };
        match &self.0 {
            Some(may) if !may(touch) => Err(refused_at(path, ErrorCode::NotPermitted, why)),
            Some(_) | None => Ok(()),
        }
    }
}

impl Overlay {
    /// Asks about replacing a file or symlink, `present` at a path. `stays`: it remains a file; `keeps_looks`: with its
    /// mode and owner.
    pub(in crate::overlay) fn check_may_replace(
        &self,
        path: &RelPath,
        present: &Side,
        (stays, keeps_looks): (bool, bool),
        permits: &Permits,
    ) -> Reviewed<()> {
        if permits.all() {
            return Ok(());
        }
        let there = present.meta.as_ref();
        let way = self.way_below(path, there)?;
        let Some((meta, file)) = present.meta.zip(present.file.clone()).filter(|(meta, _)| stays && meta.is_file())
        else {
            return permits.check(path, &Touch::Entry { dirs: &way.dirs, there });
        };
        // Its other names show what is done to it: its inode is written, and no entry replaced.
        let is_shared = meta.links > 1;
        if !keeps_looks && !is_shared {
            return permits.check(path, &Touch::Entry { dirs: &way.dirs, there });
        }
        if !keeps_looks {
            permits.check(path, &Touch::Looks { dirs: &way.dirs, there: &meta, effects: &[] })?;
        }
        let shown = Shown::below(file, meta, way).map_err(|err| failed(path, &err.into()))?;
        permits.check(path, &Touch::Content(&shown))
    }

    /// Asks about adding, removing or replacing an entry that may be `there`.
    pub(in crate::overlay) fn check_may_change_entry(
        &self,
        path: &RelPath,
        there: Option<&Meta>,
        permits: &Permits,
    ) -> Reviewed<()> {
        if permits.all() {
            return Ok(());
        }
        let way = self.way_below(path, there)?;
        permits.check(path, &Touch::Entry { dirs: &way.dirs, there })
    }

    pub(in crate::overlay) fn check_may_dress(
        &self,
        path: &RelPath,
        there: &Meta,
        operation: &Operation,
        permits: &Permits,
    ) -> Reviewed<()> {
        if permits.all() {
            return Ok(());
        }
        let way = self.way_below(path, Some(there))?;
        permits.check(path, &Touch::Looks { dirs: &way.dirs, there, effects: &operation.effects })
    }

    /// Asks about all that an operation has replaced or removed.
    pub(in crate::overlay) fn check_may_return(operation: &Operation, permits: &Permits) -> Reviewed<()> {
        for PathEffect { path, effect, .. } in &operation.effects {
            if let Effect::Content { before: Some(version), .. } = effect {
                permits.check(path, &Touch::Returns { operation, path, version })?;
            }
        }
        Ok(())
    }

    /// The way to what is `there` below. If nothing is, it ends where directories are still to be made.
    fn way_below(&self, path: &RelPath, there: Option<&Meta>) -> Reviewed<Way> {
        let (way, found) = self.way_as_far_as_it_goes(path).map_err(|err| failed(path, &err))?;
        match found.map(|meta| meta.key()) == there.map(Meta::key) {
            true => Ok(way),
            false => Err(changed_meanwhile(&path.to_string())),
        }
    }

    fn way_as_far_as_it_goes(&self, path: &RelPath) -> Result<(Way, Option<Meta>)> {
        let way = match (self.way_to(path), path.parent()) {
            (Err(err), Some(parent)) if err.code() == libc::ENOENT && !parent.is_root() => {
                return Ok((self.way_as_far_as_it_goes(&parent)?.0, None));
            }
            (way, _) => way?,
        };
        let found = way.place.stat()?;
        Ok((way, found))
    }
}
