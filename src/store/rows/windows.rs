//! What the log keeps of windows, so that a daemon that is started again goes on with them (SPEC §4.6).
//!
//! It is part of the row that each landing has in the log, and so costs no write of its own.

use std::collections::HashSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::events::EventDraft;
use super::operations::{Effect, PathEffect, Version};
use super::parse_row;
use super::upper::Kept;
use crate::model::{RelPath, Stamp};
use crate::protocol::{Event, EventName};
use crate::store::journal::intent::Epilogue;
use crate::store::{Result, Store};
use crate::sys::process;

/// What the next write to a landed file is judged against.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowNote {
    /// The path at which the window was opened, by its name then; `None` if that is the path that landed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened_at: Option<RelPath>,
    /// Content before the first landing in the window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<Kept>,
    /// Device and inode of what landed; `None` for whatever recovery leaves at the path once it has finished the landing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<(u64, u64)>,
    /// The time, by a clock that cannot be set ([`process::uptime`]).
    pub at: Duration,
}

/// A landing that may have a window open.
#[derive(Clone, Debug)]
pub struct RecentLanding {
    pub path: RelPath,
    pub note: WindowNote,
    /// True if nothing has landed at the path since, and no person has decided about it.
    pub is_last: bool,
    /// What it left; `None` if nothing.
    pub left: Option<Version>,
    /// At least this much time has passed since.
    pub age: Duration,
}

impl RecentLanding {
    pub fn opened_at(&self) -> &RelPath {
        self.note.opened_at.as_ref().unwrap_or(&self.path)
    }

    /// Returns the stamp that lower has there as long as nothing has touched it.
    pub fn stamp(&self) -> Option<Stamp> {
        let Version { size, mtime, .. } = self.left?;
        let (device, inode) = self.note.file.unwrap_or_default();
        Some(Stamp { device, inode, size, mtime, ..Stamp::default() })
    }
}

impl WindowNote {
    pub fn now(opened_at: Option<RelPath>, first: Option<Kept>, file: Option<(u64, u64)>) -> Self {
        Self { opened_at, first, file, at: process::uptime() }
    }

    /// After a start of the machine the clock begins at zero and shows less than has passed: a window may stay open for
    /// longer, but none is closed too early.
    fn age(&self) -> Duration {
        process::uptime().saturating_sub(self.at)
    }
}

impl Epilogue {
    /// Sets the window, once it is known what a landing has left; `None` if it opens none.
    pub fn note_window(&mut self, note: Option<WindowNote>) {
        let landing = self.events.iter_mut().find(|event| event.window.is_some());
        if let Some(landing) = landing {
            landing.window = note;
        }
    }
}

impl Store {
    /// Returns the landings of this session that are no older than `age_max`, the latest first. Content that a window
    /// began with is kept while it is open; a landing is left out if the content its window began with is gone.
    pub fn recent_landings(&self, age_max: Duration) -> Result<Vec<RecentLanding>> {
        let mut recent = Vec::new();
        {
            let database = self.reading()?;
            let mut statement = database.reader().prepare("SELECT row FROM event WHERE row != '' ORDER BY seq DESC")?;
            let mut rows = statement.query([])?;
            let mut decided = HashSet::new();
            while let Some(row) = rows.next()? {
                let mut draft: EventDraft = parse_row(&row.get::<_, String>(0)?, self.dirs.describe())?;
                let note = draft.window.take();
                let (event, effects) = draft.into_parts();
                if is_session_end(&event) || note.as_ref().is_some_and(|note| note.age() > age_max) {
                    break;
                }
                let Some(path) = event.path.filter(|_| note.is_some() || is_decision(event.event)) else { continue };
                let is_last = decided.insert(path.clone());
                recent.extend(note.map(|note| {
                    let left = left_at(&path, &effects);
                    RecentLanding { path, age: note.age(), note, is_last, left }
                }));
            }
        }
        let mut kept = Vec::with_capacity(recent.len());
        for landing in recent {
            let is_kept = landing.note.first.map_or(Ok(true), |first| self.has_content(first.digest))?;
            kept.extend(is_kept.then_some(landing));
        }
        Ok(kept)
    }
}

fn left_at(path: &RelPath, effects: &[PathEffect]) -> Option<Version> {
    effects.iter().filter(|done| done.path == *path).find_map(|done| match &done.effect {
        Effect::Content { after, .. } => *after,
        _ => None,
    })
}

/// True for the end of the daemon's session, not of a run, which is a process.
fn is_session_end(event: &Event) -> bool {
    event.event == EventName::SessionEnded && event.pid.is_none()
}

/// A decision by a person ends the window.
fn is_decision(name: EventName) -> bool {
    matches!(name, EventName::Confirmed | EventName::RolledBack | EventName::Undone)
}
