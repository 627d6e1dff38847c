//! What others do below: [`watch`] hears of it, and says for how long an answer holds; [`external`] tells it.

pub(super) mod external;
pub(super) mod watch;
