//! What is known of paths, found by path, and by the places where what they had is now.
//!
//! Each rename and each landing asks which paths speak of one place: a session knows a hundred thousand paths, of which
//! one or none does.
//!
//! Invariant: `by_place` has the path of each entry of `by_path` under each of its places, once, and nothing else.

use std::collections::HashMap;

use crate::model::RelPath;
use crate::store::{Anchor, AnchorState, Known};

#[derive(Clone, Default)]
pub struct Anchors {
    by_path: HashMap<RelPath, Known>,
    by_place: HashMap<RelPath, Vec<RelPath>>,
}

impl Known {
    /// The places at which it says that something is.
    fn places(&self) -> impl Iterator<Item = &RelPath> {
        let moved = match &self.had {
            Some(AnchorState::Moved { to, .. }) => Some(to),
            Some(AnchorState::Nothing | AnchorState::Content(_)) | None => None,
        };
        let went = self.went.as_ref().map(|went| &went.to).filter(|went| Some(*went) != moved);
        moved.into_iter().chain(went)
    }
}

impl Anchors {
    pub fn get(&self, path: &RelPath) -> Option<&Known> {
        self.by_path.get(path)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&RelPath, &Known)> {
        self.by_path.iter()
    }

    /// The paths of which it is known that something of theirs is at `place`.
    pub fn speaking_of(&self, place: &RelPath) -> impl Iterator<Item = &RelPath> {
        self.by_place.get(place).into_iter().flatten()
    }

    pub fn know(&mut self, Anchor { path, known }: Anchor) {
        self.remove(&path);
        if known == Known::default() {
            return;
        }
        for place in known.places() {
            self.by_place.entry(place.clone()).or_default().push(path.clone());
        }
        self.by_path.insert(path, known);
    }

    fn remove(&mut self, path: &RelPath) {
        let Some(known) = self.by_path.remove(path) else { return };
        for place in known.places() {
            let Some(paths) = self.by_place.get_mut(place) else { continue };
            paths.retain(|speaks| speaks != path);
            if paths.is_empty() {
                self.by_place.remove(place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Stamp, Timestamp};
    use crate::store::Went;

    #[test]
    fn what_speaks_of_a_place_is_found_through_all_changes() {
        let path = |number: usize| RelPath::parse(format!("p{number}").as_bytes()).unwrap();
        let time = Timestamp::default();
        let stamp = Stamp { device: 1, inode: 1, size: 1, mtime: time, ctime: time, btime: time };
        let mut anchors = Anchors::default();
        // Every pair of places, of which one or both may be none, in turn at each path; and none at all.
        for turn in 0..1000 {
            let (moved, went, at) = (turn % 5, turn % 7, turn % 11);
            let had = match moved {
                0 => None,
                to => Some(AnchorState::Moved { to: path(to), stamp }),
            };
            let went = Some(went).filter(|went| *went != 0).map(|to| Went { to: path(to), stamp });
            let known = if turn % 13 == 0 { Known::default() } else { Known { had, went, ..Known::default() } };
            anchors.know(Anchor { path: path(at), known });
            for place in (0..8).map(path) {
                let mut found: Vec<&RelPath> = anchors.speaking_of(&place).collect();
                let speaks = |known: &Known| known.places().any(|of| *of == place);
                let mut want: Vec<&RelPath> =
                    anchors.iter().filter(|(_, known)| speaks(known)).map(|(path, _)| path).collect();
                found.sort();
                want.sort();
                assert_eq!(found, want, "turn {turn}, {place}");
            }
            assert!(anchors.by_place.values().all(|paths| !paths.is_empty()));
        }
    }
}
