//! Directories of the project that were renamed in this session: where each is, by where it was when the session began.
//!
//! What lies in one is found through the nearest of them above it, as overlayfs finds it through a redirect.
//!
//! Invariant: `origins` has each place of `places`, once, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::RelPath;
use crate::overlay::names::carry::Move;
use crate::store::{DirPlace, MovedDir};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MovedDirs {
    places: BTreeMap<RelPath, DirPlace>,
    origins: BTreeMap<RelPath, RelPath>,
}

impl MovedDirs {
    /// Where what lay at a path is now, because a directory above it was renamed.
    pub fn now(&self, was: &RelPath) -> Option<RelPath> {
        match self.moved_content(was)? {
            DirPlace::At(now) => Some(now),
            DirPlace::Unjudged(_) | DirPlace::Nowhere => None,
        }
    }

    /// The same, even if it lies where nothing is judged.
    pub fn now_anywhere(&self, was: &RelPath) -> Option<RelPath> {
        self.moved_content(was)?.path().cloned()
    }

    /// Where what lies at a path was before a directory above it was renamed.
    pub fn was(&self, now: &RelPath) -> Option<RelPath> {
        self.origin_of(now).filter(|was| self.now(was).as_ref() == Some(now))
    }

    /// The same, even if it lies where nothing is judged.
    pub fn was_anywhere(&self, now: &RelPath) -> Option<RelPath> {
        self.origin_of(now).filter(|was| self.now_anywhere(was).as_ref() == Some(now))
    }

    /// `None` if nothing has moved, and for a renamed directory itself, which has no content to compare with.
    fn moved_content(&self, was: &RelPath) -> Option<DirPlace> {
        if self.places.contains_key(was) {
            return None;
        }
        Some(self.place_of(was)).filter(|place| place.path() != Some(was))
    }

    /// Where something is now that may itself be a renamed directory.
    fn place_of(&self, was: &RelPath) -> DirPlace {
        match nearest(&self.places, was) {
            Some((dir, place)) => place.with_path(|at| was.rebase(dir, at)),
            None => DirPlace::At(was.clone()),
        }
    }

    /// The reverse; `None` if something else is there by now.
    fn origin_of(&self, now: &RelPath) -> Option<RelPath> {
        let was = match nearest(&self.origins, now) {
            Some((dir, origin)) => now.rebase(dir, origin)?,
            None => now.clone(),
        };
        (self.place_of(&was).path() == Some(now)).then_some(was)
    }

    /// The records to keep once directories have moved and those of `unjudged`, given by their new paths, lie where
    /// nothing is judged.
    pub fn after(&self, moves: &[Move<'_>], unjudged: &[RelPath]) -> Vec<MovedDir> {
        let is_concerned = |at: &RelPath| moves.iter().any(|one| at.is_within(one.from) || at.is_within(one.to));
        let known = self.places.iter().filter(|(_, place)| place.path().is_some_and(is_concerned));
        let before = unjudged.iter().map(|dir| Move::all_back(moves, dir).unwrap_or_else(|| dir.clone()));
        let ends = moves.iter().flat_map(|one| [one.from.clone(), one.to.clone()]).chain(before);
        let origins = known.map(|(origin, _)| origin.clone()).chain(ends.filter_map(|end| self.origin_of(&end)));
        let origins: BTreeSet<RelPath> = origins.collect();
        let after = |origin: RelPath| {
            let place = match self.place_of(&origin).with_path(|at| moved_on(moves, at)) {
                DirPlace::At(at) if unjudged.iter().any(|dir| at.is_within(dir)) => DirPlace::Unjudged(at),
                place => place,
            };
            MovedDir { origin, place }
        };
        origins.into_iter().map(after).collect()
    }

    /// True if what lay at a path, if there was anything, is elsewhere after the moves.
    pub fn takes_away(&self, moves: &[Move<'_>], path: &RelPath) -> bool {
        let at = self.now(path).unwrap_or_else(|| path.clone());
        moved_on(moves, &at).is_some_and(|at| at != *path)
    }

    pub fn know(&mut self, moved: Vec<MovedDir>) {
        for MovedDir { origin, .. } in &moved {
            if let Some(place) = self.places.remove(origin)
                && let Some(at) = place.path()
            {
                self.origins.remove(at);
            }
        }
        for MovedDir { origin, place } in moved {
            if let Some(at) = place.path() {
                self.origins.insert(at.clone(), origin.clone());
            }
            self.places.insert(origin, place);
        }
    }
}

/// Where what is at a path is after the moves. `None` if a directory comes to its place: it was empty, or is gone.
fn moved_on(moves: &[Move<'_>], at: &RelPath) -> Option<RelPath> {
    let stays = || moves.iter().all(|one| !at.is_within(one.to)).then(|| at.clone());
    Move::all(moves, at).or_else(stays)
}

/// The entry of a path, or of the nearest directory above it that has one.
fn nearest<'a, T>(said: &'a BTreeMap<RelPath, T>, path: &RelPath) -> Option<(&'a RelPath, &'a T)> {
    if said.is_empty() {
        // The usual case, and each landing asks.
        return None;
    }
    std::iter::successors(Some(path.clone()), RelPath::parent).find_map(|dir| said.get_key_value(&dir))
}

impl DirPlace {
    pub fn path(&self) -> Option<&RelPath> {
        match self {
            Self::At(path) | Self::Unjudged(path) => Some(path),
            Self::Nowhere => None,
        }
    }

    fn with_path(&self, moved: impl FnOnce(&RelPath) -> Option<RelPath>) -> Self {
        match self {
            Self::At(path) => moved(path).map_or(Self::Nowhere, Self::At),
            Self::Unjudged(path) => moved(path).map_or(Self::Nowhere, Self::Unjudged),
            Self::Nowhere => Self::Nowhere,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::parse(text.as_bytes()).unwrap()
    }

    #[derive(Default)]
    struct Bench(MovedDirs);

    impl Bench {
        fn rename(&mut self, moves: &[(&str, &str)]) {
            self.rename_to_unjudged(moves, &[]);
        }

        fn rename_to_unjudged(&mut self, moves: &[(&str, &str)], unjudged: &[&str]) {
            let ends: Vec<(RelPath, RelPath)> = moves.iter().map(|(from, to)| (path(from), path(to))).collect();
            let moves: Vec<Move<'_>> = ends.iter().map(|(from, to)| Move { from, to }).collect();
            let unjudged: Vec<RelPath> = unjudged.iter().map(|dir| path(dir)).collect();
            self.0.know(self.0.after(&moves, &unjudged));
            let places: BTreeSet<&RelPath> = self.0.places.values().filter_map(DirPlace::path).collect();
            assert_eq!(places, self.0.origins.keys().collect(), "after {moves:?}");
            assert!(self.0.origins.iter().all(|(at, origin)| self.0.places[origin].path() == Some(at)));
        }

        /// Both ways.
        fn is(&self, was: &str, now: &str) {
            assert_eq!(self.0.now(&path(was)), Some(path(now)), "where {was} is");
            assert_eq!(self.0.was(&path(now)), Some(path(was)), "what is at {now}");
        }

        fn is_nowhere(&self, was: &str) {
            assert_eq!(self.0.now(&path(was)), None, "where {was} is");
        }

        fn is_new(&self, now: &str) {
            assert_eq!(self.0.was(&path(now)), None, "what is at {now}");
        }
    }

    #[test]
    fn what_lies_in_a_directory_is_found_however_often_that_is_renamed() {
        let mut bench = Bench::default();
        bench.is_nowhere("a/x");
        bench.rename(&[("a", "b")]);
        bench.is("a/x", "b/x");
        bench.is("a/s/x", "b/s/x");
        bench.is_nowhere("a");
        bench.is_new("b");
        // One inside goes its own way.
        bench.rename(&[("b/s", "c")]);
        bench.is("a/s/x", "c/x");
        bench.is("a/x", "b/x");
        bench.is_new("b/s/x");
        bench.rename(&[("b", "c/d")]);
        bench.is("a/x", "c/d/x");
        bench.is("a/s/x", "c/x");
        bench.rename(&[("c", "e")]);
        bench.is("a/x", "e/d/x");
        bench.is("a/s/x", "e/x");
    }

    #[test]
    fn what_is_back_has_not_moved() {
        let mut bench = Bench::default();
        bench.rename(&[("a", "b")]);
        bench.rename(&[("b", "a")]);
        bench.is_nowhere("a/x");
        bench.is_new("a/x");
        // The path between was free.
        bench.is_nowhere("b/x");
    }

    #[test]
    fn what_stands_where_another_was_is_not_taken_for_it() {
        let mut bench = Bench::default();
        bench.rename(&[("a", "b")]);
        // Made in this session, in its place.
        bench.is_new("a/x");
        bench.rename(&[("a", "c")]);
        bench.is("a/x", "b/x");
        bench.is_new("c/x");
        // An older one comes to where it was.
        bench.rename(&[("d", "a")]);
        bench.is("d/x", "a/x");
        bench.is("a/x", "b/x");
    }

    #[test]
    fn what_was_empty_where_a_directory_comes_to_is_gone() {
        let mut bench = Bench::default();
        bench.rename(&[("a", "b")]);
        bench.rename(&[("c", "b")]);
        bench.is_nowhere("a/x");
        bench.is("c/x", "b/x");
        bench.is_nowhere("b/x");
    }

    #[test]
    fn two_take_the_place_of_each_other() {
        let mut bench = Bench::default();
        bench.rename(&[("a", "b"), ("b", "a")]);
        bench.is("a/x", "b/x");
        bench.is("b/x", "a/x");
        bench.rename(&[("a/s", "b/s"), ("b/s", "a/s")]);
        // These are home again, and the rest is not.
        bench.is_nowhere("a/s/x");
        bench.is_new("b/s/x");
        bench.is("b/t", "a/t");
    }

    #[test]
    fn what_comes_to_where_nobody_judges_is_forgotten_for_good() {
        let mut bench = Bench::default();
        bench.rename(&[("a/s", "b")]);
        bench.rename_to_unjudged(&[("a", "target/a")], &["target/a"]);
        bench.is_nowhere("a/x");
        bench.is_new("target/a/x");
        assert_eq!(bench.0.now_anywhere(&path("a/x")), Some(path("target/a/x")));
        assert_eq!(bench.0.was_anywhere(&path("target/a/x")), Some(path("a/x")));
        bench.is("a/s/x", "b/x");
        bench.rename(&[("target/a", "a")]);
        bench.is_nowhere("a/x");
        bench.is_new("a/x");
    }
}
