//! A file as the view shows it, beside what lower has: the start for finding out where its lines come from.

use super::state::lookup::Origin;
use super::{Overlay, Result};
use crate::model::RelPath;
use crate::store::UpperRow;
use crate::sys::file::FileKind;

/// What the view shows at a path.
#[derive(Clone, Debug)]
pub struct Layered {
    pub kind: FileKind,
    /// A file's bytes or a symlink's target; `None` for anything else, and for a file too large to be compared.
    pub text: Option<Vec<u8>>,
    /// What lower has; `None` if that is nothing, or has no such text.
    pub below: Option<Vec<u8>>,
    /// What upper has, unless that has landed.
    pub upper: Option<Waiting>,
}

/// Content that lower does not have.
#[derive(Clone, Debug)]
pub struct Waiting {
    pub row: UpperRow,
    /// It is as it was judged: what is held is what the view shows.
    pub is_judged: bool,
}

impl Overlay {
    /// `None` if the view has nothing at `path`.
    pub fn layered(&self, path: &RelPath) -> Result<Option<Layered>> {
        let (kind, id) = match self.origin(path)? {
            Origin::Nothing | Origin::Hidden(_) => return Ok(None),
            Origin::Lower(meta) => (meta.kind, None),
            Origin::Upper(id, meta) => (meta.kind, Some(id)),
        };
        let below = self.present_side(path)?.bytes;
        let upper = id.and_then(|id| {
            let state = self.state.lock();
            let upper = state.uppers.get(id).filter(|upper| !upper.is_landed())?;
            Some(Waiting { row: upper.row.clone(), is_judged: !upper.dirty })
        });
        let text = match &upper {
            Some(waiting) => self.row_side(&waiting.row)?.bytes,
            None => below.clone(),
        };
        Ok(Some(Layered { kind, text, below, upper }))
    }
}
