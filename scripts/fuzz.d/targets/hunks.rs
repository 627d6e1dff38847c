#![no_main]

#[path = "../checks/hunks.rs"]
mod hunks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hunks::check(bytes));
