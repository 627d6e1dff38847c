//! The screen of `review`: held changes on the left, what the selected one would do on the right, and keys that decide.
//!
//! [`model`](model::Model) is what is on the screen and how each key changes it, without a terminal, a clock or a daemon;
//! [`draw`](draw::draw) draws it. `screen` takes the terminal and gives it back. `asking` asks the daemon and follows its
//! events in threads of their own, so that no key waits for an answer. `session` ties these together. This layer decides
//! nothing: rights, expiry and conflicts are the daemon's, as for any other client. Begin with [`review`].

mod asking;
mod draw;
mod model;
mod screen;
mod session;
mod sheet;
#[cfg(test)]
mod tests;
pub mod words;

pub use draw::Paint;
pub use session::{End, Review, ReviewError, review};
