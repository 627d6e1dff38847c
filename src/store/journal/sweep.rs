//! Removes temporary names that landings left behind, as notes tell; only names of our own pattern.

use std::collections::HashSet;

use super::landing::{first_error, remove_if_empty};
use crate::model::RelPath;
use crate::store::{Context, Result, STATE_DIR_NAME, is_temp_name};
use crate::sys::file::FileKind;
use crate::sys::sqlite::Transaction;
use crate::sys::tree::{Tree, is_absent};

/// A temporary name to remove, or a directory in which there may be some.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SweepNote {
    pub at: RelPath,
    /// Set if what another program wrote may go with the name: the path at which that stood.
    pub of: Option<RelPath>,
}

impl SweepNote {
    /// Both paths with a NUL in between, which neither contains.
    fn to_bytes(&self) -> Vec<u8> {
        let of = self.of.iter().flat_map(|of| [b"\0".as_slice(), of.as_bytes()]);
        [self.at.as_bytes()].into_iter().chain(of).collect::<Vec<_>>().concat()
    }

    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut paths = bytes.split(|byte| *byte == 0).map(|path| RelPath::parse(path).ok());
        let at = paths.next().flatten()?;
        Some(Self { at, of: paths.next().flatten() })
    }
}

pub(super) fn note_sweep(tx: &Transaction<'_>, notes: &[SweepNote]) -> Result<Vec<i64>> {
    let mut statement = tx.prepare_cached("INSERT INTO sweep (path) VALUES (?1)")?;
    notes
        .iter()
        .map(|note| {
            statement.execute([note.to_bytes()])?;
            Ok(tx.last_insert_rowid())
        })
        .collect()
}

/// A start must not fail because something cannot be looked into, kept or removed: that is logged, and `None` is
/// returned. A lack of space is an error: room is then made, and the caller tries again.
pub(super) fn told_if_it_stays<T>(sweeping: Result<T>) -> Result<Option<T>> {
    match sweeping {
        Err(err) if !err.is_full() => {
            log::error!("remove what a landing has left: {err}");
            Ok(None)
        }
        other => other.map(Some),
    }
}

/// Removes as many temporary names as it can. The first error is returned at the end.
pub(in crate::store) struct Sweep<'a> {
    pub lower: &'a Tree,
    /// Names with another program's bytes that could not be kept: these stay, though all others of their directory go.
    spared: HashSet<RelPath>,
}

impl<'a> Sweep<'a> {
    pub fn of(lower: &'a Tree) -> Self {
        Self { lower, spared: HashSet::new() }
    }

    pub fn spare(&mut self, name: RelPath) {
        self.spared.insert(name);
    }

    /// Sweeps the whole project.
    pub fn everywhere(&self) -> Result<usize> {
        let (mut dirs, mut swept) = (vec![RelPath::default()], 0);
        while let Some(dir) = dirs.pop() {
            swept += told_if_it_stays(self.dir(&dir))?.unwrap_or_default();
            // If it cannot be listed, that has been logged above.
            let entries = self.lower.list(&dir).unwrap_or_default();
            let below = entries.iter().filter(|entry| entry.kind == FileKind::Directory);
            let below = below.filter(|entry| !(dir.is_root() && entry.name == STATE_DIR_NAME));
            dirs.extend(below.filter_map(|entry| dir.join(&entry.name).ok()));
        }
        Ok(swept)
    }

    pub fn dir(&self, dir: &RelPath) -> Result<usize> {
        let entries = match self.lower.list(dir) {
            // A directory that is gone has no names to sweep.
            Err(err) if is_absent(&err) => return Ok(0),
            listed => listed.doing(|| format!("look for temporary names in {dir}"))?,
        };
        let mut swept = 0;
        let names = entries.iter().filter_map(|entry| dir.join(&entry.name).ok());
        let removed = names.map(|name| self.name(&name).map(|is_gone| swept += usize::from(is_gone)));
        first_error(removed)?;
        Ok(swept)
    }

    /// Returns true if the name was there and is gone now.
    pub fn name(&self, path: &RelPath) -> Result<bool> {
        if !path.name().is_some_and(is_temp_name) || self.spared.contains(path) {
            return Ok(false);
        }
        match self.lower.place(path).and_then(|place| place.unlink()) {
            Ok(()) => Ok(true),
            Err(err) if is_absent(&err) => Ok(false),
            Err(err) if err.raw_os_error() == Some(libc::EISDIR) => self.temp_dir(path).map(|()| true),
            Err(err) => Err(err).doing(|| format!("sweep {path}")),
        }
    }

    /// With a directory that was to land, or to go, only those entries go that were to land in it or to go with it. In
    /// a loop, because a program may nest more directories than a stack has room for calls.
    fn temp_dir(&self, path: &RelPath) -> Result<()> {
        let (mut dirs, mut looked_into) = (vec![path.clone()], 0);
        let mut swept = Ok(());
        while let Some(dir) = dirs.get(looked_into).cloned() {
            looked_into += 1;
            swept = swept.and(self.temp_entries(&dir).map(|below| dirs.extend(below)));
        }
        // What is in a directory goes before it.
        swept.and(first_error(dirs.iter().rev().map(|dir| {
            let doing = || format!("sweep {dir}");
            remove_if_empty(&self.lower.place(dir).doing(doing)?).doing(doing)
        })))
    }

    /// Removes the temporary names of files in such a directory, and returns the directories in it.
    fn temp_entries(&self, dir: &RelPath) -> Result<Vec<RelPath>> {
        let mut below = Vec::new();
        let entries = self.lower.list(dir).doing(|| format!("sweep {dir}"))?;
        let entries = entries.iter().filter_map(|entry| Some((dir.join(&entry.name).ok()?, entry)));
        let swept = entries.map(|(path, entry)| match entry.kind {
            FileKind::Directory if !self.spared.contains(&path) => {
                below.push(path);
                Ok(())
            }
            _ => self.name(&path).map(drop),
        });
        first_error(swept)?;
        Ok(below)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::thread::on_a_small_stack;

    #[test]
    fn a_deep_tree_under_a_temporary_name_goes() {
        let scratch = tempfile::tempdir().unwrap();
        let temp = scratch.path().join(".fettle-tmp-0123456789abcdef");
        std::fs::create_dir_all(temp.join("d/".repeat(1000))).unwrap();
        let lower = Tree::open(scratch.path()).unwrap();
        let name = RelPath::parse(b".fettle-tmp-0123456789abcdef").unwrap();
        assert!(on_a_small_stack(|| Sweep::of(&lower).name(&name).unwrap()));
        assert!(!temp.exists());
    }
}
