//! Deciding what becomes of a change: it lands, is held, or is refused.
//!
//! - [`settle`]: when a change is judged, how often, and what follows; [`claim`]: exclusive access meanwhile;
//!   [`judging`]: what is being judged
//! - [`looks`]: whose mode and attributes it gets
//! - [`compare`], of two [`side`]s; [`ask`]: permission programs
//! - [`land`], [`unchanged`] (lower has the same bytes), [`hold`], [`put_back`], or [`deny`]
//! - [`flush`]: settling everything, and finding who still writes

pub mod ask;
pub(super) mod claim;
pub(super) mod compare;
mod deny;
pub(super) mod flush;
pub(super) mod hold;
pub(super) mod judging;
pub(super) mod land;
pub(super) mod looks;
mod put_back;
pub(super) mod settle;
pub(super) mod side;
mod unchanged;
