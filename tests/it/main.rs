//! Every test that needs the built program, a real mount or the whole source tree: one binary, so that it links once.
//!
//! `harness` makes scratch projects and mounts them; `tidy` reads the sources and keeps the architecture true.

mod harness;
mod save_patterns;
mod tidy;
mod tiers;
