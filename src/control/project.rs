//! What is asked about: one project, its view, and how it is mounted.

use std::path::PathBuf;
use std::sync::Arc;

use crate::overlay::{Overlay, RuleSource};

pub struct Project {
    pub overlay: Arc<Overlay>,
    /// Absolute; below a covering mount only a name, never followed.
    pub path: PathBuf,
    /// Where `reload` reads settings and rules again.
    pub source: RuleSource,
    /// Who mounted it, or without a mount whose state it is.
    pub owner: u32,
    /// None: somebody works on the state directory under the lock.
    pub mounted: Option<Mounted>,
}

pub struct Mounted {
    /// Where programs find the view: where it covers the project only in some namespaces, in those.
    pub mountpoint: PathBuf,
    /// Of the view of runs alone: who keeps the namespace it is mounted in.
    pub keeper: Option<u32>,
    /// Asks the daemon to end; returns at once. Called when the answer to `unmount` has been delivered.
    pub ask_end: Arc<dyn Fn() + Send + Sync>,
}
