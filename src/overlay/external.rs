//! Changes that somebody else made below (SPEC §9).

use super::copy_up::same_content_stamp;
use super::error::Context;
use super::review::{Reviewed, failed};
use super::{Overlay, Result};
use crate::model::RelPath;
use crate::protocol::ExternalKind;
use crate::store::Below;

impl Overlay {
    /// How somebody else changed a path that fettlefs knows (SPEC §9). Times are only a hint; the hash decides.
    pub fn externally(&self, path: &RelPath) -> Result<Option<ExternalKind>> {
        let known = {
            let state = self.state.lock();
            let held =
                state.uppers.at(path).and_then(|id| state.uppers.get(id)).filter(|upper| upper.row.held.is_some());
            match (held.map(|upper| upper.row.base), state.seen.get(path)) {
                (Some(base), _) => match base.below {
                    Below::Entry { stamp, .. } => Some((stamp, base.digest())),
                    Below::Nothing => None,
                },
                (None, Some(seen)) => Some((seen.stamp, seen.digest)),
                (None, None) => None,
            }
        };
        let Some((stamp, digest)) = known else { return Ok(None) };
        let mut present = self.present_side(path)?;
        let Some(meta) = present.meta else { return Ok(Some(ExternalKind::Deleted)) };
        if same_content_stamp(&stamp, &meta.stamp()) {
            return Ok(None);
        }
        if digest.is_some() && present.digest().doing(|| format!("hash {path}"))? == digest {
            return Ok(None);
        }
        Ok(Some(if meta.inode == stamp.inode { ExternalKind::Modified } else { ExternalKind::Replaced }))
    }

    pub fn external_paths(&self) -> Reviewed<Vec<(RelPath, ExternalKind)>> {
        let mut paths: Vec<RelPath> = {
            let state = self.state.lock();
            let held = state.uppers.iter().filter(|upper| upper.row.held.is_some());
            state.seen.keys().cloned().chain(held.map(|upper| upper.row.names[0].clone())).collect()
        };
        paths.sort();
        paths.dedup();
        let mut external = Vec::new();
        for path in paths {
            if let Some(kind) = self.externally(&path).map_err(|err| failed(&path, &err))? {
                external.push((path, kind));
            }
        }
        Ok(external)
    }
}
