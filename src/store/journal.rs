//! How lower changes: all or nothing, whenever the daemon dies.
//!
//! - [`intent`]: the promise that is written before, and what is recorded once it is kept; [`fulfilment`]: when that is
//! - [`landing`]: the steps themselves, for one path or for many
//! - [`recovery`]: what a dead daemon has left; [`sweep`]: its temporary names; [`spared`]: what a program wrote meanwhile

pub(super) mod fulfilment;
pub(super) mod intent;
pub(super) mod landing;
pub(super) mod recovery;
mod spared;
pub(super) mod sweep;
