#![no_main]

#[path = "../checks/request.rs"]
mod request;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| request::check(bytes));
