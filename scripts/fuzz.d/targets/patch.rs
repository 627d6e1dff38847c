#![no_main]

#[path = "../checks/patch.rs"]
mod patch;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| patch::check(bytes));
