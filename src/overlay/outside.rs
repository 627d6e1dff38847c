//! What others do below: [`watch`] notices it, and says how long an answer holds; [`external`] reports it.

pub(super) mod external;
pub(super) mod watch;
