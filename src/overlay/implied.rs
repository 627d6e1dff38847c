//! What is known of paths by way of directories that were renamed, and of no path by itself.
//!
//! Another directory that moves may hide it: it comes to where paths are known by themselves, or has files of this session
//! come to where older content went from. So much is said of those paths themselves before it does.

use super::carry::Move;
use super::error::Context;
use super::{Known, Overlay, Result, State};
use crate::model::RelPath;
use crate::store::AnchorState;

/// A path, and where the content is that it had.
type Went = (RelPath, RelPath);

impl Overlay {
    /// Before directories move.
    pub(super) fn implied_anchors(&self, state: &State, moves: &[Move<'_>]) -> Result<Vec<(RelPath, Known)>> {
        let mut implied = Vec::new();
        for (path, at) in moves.iter().flat_map(|one| state.implied_by(one)) {
            let meta = self.lower.stat(&at).doing(|| format!("stat {at}"))?;
            if let Some(meta) = meta.filter(|meta| !meta.is_dir()) {
                implied.push((path, Known::of(AnchorState::Moved { to: at, stamp: meta.stamp() })));
            }
        }
        Ok(implied)
    }
}

impl State {
    fn implied_by<'a>(&'a self, moves: &'a Move<'_>) -> impl Iterator<Item = Went> + 'a {
        let arrives =
            self.anchors.iter().filter_map(|(path, _)| self.known_by_arriving(&path.rebase(moves.to, moves.from)?));
        let fresh = self.anchors.iter().filter(|(_, known)| known.fresh);
        let covered = fresh.filter_map(|(path, _)| self.known_by_leaving(&path.rebase(moves.from, moves.to)?, path));
        arrives.chain(covered)
    }

    /// Whose content lies at a path, where that is not known by itself.
    fn known_by_arriving(&self, at: &RelPath) -> Option<Went> {
        let first = self.left_in_moved_dir(at).unwrap_or_else(|| at.clone());
        let is_implied = !self.anchors.contains(at) && !self.anchors.contains(&first);
        is_implied.then(|| (first, at.clone()))
    }

    /// Where the content of a path lies to which something fresh is about to come, if that is not the same.
    fn known_by_leaving(&self, path: &RelPath, fresh: &RelPath) -> Option<Went> {
        if self.anchors.contains(path) {
            return None;
        }
        let stays = || self.left_in_moved_dir(path).is_none().then(|| path.clone());
        let at = self.came_along(path).or_else(stays).filter(|at| at != fresh)?;
        Some((path.clone(), at))
    }
}
