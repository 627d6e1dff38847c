//! The daemon's log: one line per record on standard error, which in the background is its log file.

use std::io::{self, Write};

use log::{LevelFilter, Log, Metadata, Record};

struct Lines;

static LINES: Lines = Lines;

impl Log for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let time = jiff::Timestamp::now();
        // If the log cannot be written, there is nowhere left to report that.
        if let Err(_full) = writeln!(io::stderr(), "{time:.3} {} {}", record.level(), record.args()) {}
    }

    fn flush(&self) {}
}

/// Installs the logger; a second call changes nothing.
pub fn install() {
    if log::set_logger(&LINES).is_ok() {
        log::set_max_level(LevelFilter::Warn);
    }
}
