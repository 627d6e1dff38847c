//! The `fettlefs` program: all of it is in the library.

fn main() -> std::process::ExitCode {
    fettlefs::cli::run(std::env::args_os().collect())
}
