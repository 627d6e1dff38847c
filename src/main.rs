//! The `fettlefs` program: all of it is in the library.

fn main() -> std::process::ExitCode {
    let argv: Vec<_> = std::env::args_os().collect();
    match fettlefs::hooks::is_supervisor(&argv) {
        true => fettlefs::hooks::supervise(&argv),
        false => fettlefs::cli::run(argv),
    }
}
