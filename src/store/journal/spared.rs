//! What a program wrote to a change that it has open while that was being confirmed or discarded and the daemon died. It
//! is no part of what was decided, and was in the view.

use std::collections::HashSet;
use std::io;

use super::intent::{Fate, Intent};
use crate::model::ChangeId;
use crate::store::rows::upper::{Base, Below, UpperRow, What};
use crate::store::{Context, Error, Result, Store};
use crate::sys::file;
use crate::sys::tree::Tree;

impl Store {
    /// Returns the intent, once lower is as it says, without letting go of what was written since: that stays as an entry
    /// that is not judged, as it would have been without the crash. Not after a power cut, which may leave anything of a
    /// file that was not synced.
    pub(super) fn spare_written(&self, lower: &Tree, mut intent: Intent) -> Result<Intent> {
        for row in self.decided(&intent)? {
            if self.is_written_since(&row)? {
                let path = row.path();
                let below = lower.stat(path).doing(|| format!("stat {path}"))?;
                intent.epilogue.drop.retain(|id| *id != row.id);
                let base = Base::of(Below::of(below.as_ref()));
                intent.epilogue.save.push(UpperRow { held: None, base, ..row });
            }
        }
        Ok(intent)
    }

    /// Returns the files that go because a person has decided on them.
    fn decided(&self, intent: &Intent) -> Result<Vec<UpperRow>> {
        let is_decision = |fate: &Fate| matches!(fate, Fate::Applied | Fate::Discarded);
        let verdicts = intent.epilogue.verdicts.iter().filter(|(_, _, fate)| is_decision(fate));
        let ids: HashSet<&ChangeId> = verdicts.map(|(id, ..)| id).collect();
        if ids.is_empty() || self.lost_power()? {
            return Ok(Vec::new());
        }
        let is_decided = |row: &UpperRow| row.held.as_ref().is_some_and(|held| ids.contains(&held.id));
        let goes = |row: &UpperRow| row.what == What::File && intent.epilogue.drop.contains(&row.id);
        Ok(self.load_upper()?.into_iter().filter(|row| goes(row) && is_decided(row)).collect())
    }

    fn is_written_since(&self, row: &UpperRow) -> Result<bool> {
        let file = match self.read_upper(row.id) {
            // Another program has removed it.
            Err(Error::Io { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => return Ok(false),
            file => file?,
        };
        let found = file::digest(&file).doing(|| format!("read upper file {}", row.id))?;
        Ok(row.held.as_ref().is_some_and(|held| held.new != Some(found)))
    }
}
