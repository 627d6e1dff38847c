//! What is remembered, each kind of row in its file.
//!
//! - [`upper`]: what the view has and lower has not, held or still being written; [`windows`] that go on after a restart
//! - [`ids`] of held changes, which never come to mean anything else, and the [`verdicts`] on those that are gone
//! - [`anchors`]: what a path had at first; [`backups`]: what was replaced
//! - [`events`], and the [`followers`] of their log; [`operations`]: what can be undone, and the [`inspections`] of it
//! - [`readings`]: what readers have received; [`runs`]: where they were started from;
//!   [`settings`]: single values by name

pub(super) mod anchors;
pub(super) mod backups;
pub(super) mod events;
pub(super) mod followers;
mod ids;
pub(super) mod inspections;
pub mod operations;
pub(super) mod readings;
pub(super) mod runs;
pub(super) mod settings;
pub(super) mod upper;
pub(super) mod verdicts;
pub(super) mod windows;
