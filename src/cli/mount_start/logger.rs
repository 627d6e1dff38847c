//! What the daemon logs: one line each on standard error, which is its log file once it is in the background.

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
        // A log that cannot be written has nobody to be told to.
        if let Err(_full) = writeln!(io::stderr(), "{time:.3} {} {}", record.level(), record.args()) {}
    }

    fn flush(&self) {}
}

/// Once for a process; a second time changes nothing.
pub fn install() {
    if log::set_logger(&LINES).is_ok() {
        log::set_max_level(LevelFilter::Warn);
    }
}
