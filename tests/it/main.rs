//! Every test that needs the built program, a real mount or the whole source tree: one binary, so that it links once.
//!
//! `harness` makes scratch projects and mounts them; `tidy` reads the sources and keeps the architecture true.
//! `tiers` has the verdicts, `programs` and `save_patterns` how programs save, `semantics` what only a kernel shows,
//! `looks` what waits beside content, `mounts` how a mount comes and goes, `passthrough` what the kernel does past the daemon, `rings` requests that come another way, `durability` what survives,
//! `structure` directories that wait for review, `concurrency` many at once, `outside` what others do below, `races` what
//! they do at the worst moment, `sparse` files of holes, `read`, `patch`, `check` and `review` the commands of these names, `faults` disks that fail, `hooks`
//! permission programs, `mcp` agents with tools, `run` commands in a view of their own, `security` what is a boundary,
//! `damage` what programs do by accident and one command undoes, `mount_helper` and `service` who else starts a mount,
//! `inherited` what a daemon has from the shell that starts it,
//! `containers` what those let through, `fuzz` what others may have written, `statedirs` state that is shared, copied or gone.

mod appends;
mod around;
mod attribution;
mod badinput;
mod blame;
mod check;
mod cli;
mod concurrency;
mod containers;
mod control;
mod damage;
mod database;
mod durability;
mod external;
mod faults;
mod fuzz;
mod harness;
mod hooks;
mod inherited;
mod limits;
mod looks;
mod mapped;
mod mcp;
mod mount_helper;
mod mounts;
mod outside;
mod passthrough;
mod patch;
mod posix;
mod programs;
mod races;
mod read;
mod repository;
mod review;
mod rings;
mod rules;
mod run;
mod save_patterns;
mod security;
mod semantics;
mod service;
mod sparse;
mod statedirs;
mod structure;
mod tidy;
mod tiers;
mod tracked;
