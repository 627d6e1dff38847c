#![no_main]

#[path = "../checks/settings.rs"]
mod settings;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| settings::check(bytes));
