//! Decides. Facts in, verdict out; no I/O.

pub mod risk;
pub mod tier;
