#![no_main]

#[path = "../checks/git_files.rs"]
mod git_files;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| git_files::check(bytes));
