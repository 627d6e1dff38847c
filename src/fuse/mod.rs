//! The door: fuser on one side, the view on the other. Nothing is decided here, and no file is looked at.
//!
//! Begin with [`serve`]. [`adapter`] has one method per request: decode, ask, reply; [`ring`] does the same for requests
//! that come by the kernel's rings. [`door`] is where a panic stops and a fault is logged; [`view`] sends each question
//! to the overlay or to the desk behind `.fettle`; [`readers`] decides which thread reads next, and [`workers`] keeps
//! requests that may take long from holding up the rest; [`observer`] tells the kernel what to forget, by [`notices`];
//! [`watchers`] makes events for programs that watch the view.

mod adapter;
mod answer;
mod attr;
mod company;
mod door;
mod listing;
mod notices;
mod observer;
mod readers;
mod ring;
mod session;
#[cfg(test)]
mod tests;
mod view;
mod watchers;
mod workers;

pub use session::{Channel, Means, Passing, Running, Watching, serve};
