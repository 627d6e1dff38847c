#![no_main]

#[path = "../checks/journal.rs"]
mod journal;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| journal::check(bytes));
