//! The daemon's log: one line per record on standard error, which in the background is its log file.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use log::{Level, LevelFilter, Log, Metadata, Record};

/// A longer log file is emptied.
const BYTES_MAX: u64 = 1 << 20;

struct Lines;

static LINES: Lines = Lines;

/// The file that standard error goes to, if it is ours. One that a person has chosen may be as long as he likes.
static FILE: OnceLock<File> = OnceLock::new();

impl Log for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        // A program may cause as many records as it likes, and a mount may last for months.
        if FILE.get().is_some_and(|file| matches!(shorten(file), Ok(true))) {
            put(Level::Warn, format_args!("the log had grown too long and was emptied"));
        }
        put(record.level(), *record.args());
    }

    fn flush(&self) {}
}

fn put(level: Level, text: fmt::Arguments<'_>) {
    let time = jiff::Timestamp::now();
    // If the log cannot be written, there is nowhere left to report that.
    if let Err(_full) = writeln!(io::stderr(), "{time:.3} {level} {text}") {}
}

/// Installs the logger; a second call changes nothing.
pub fn install() {
    if log::set_logger(&LINES).is_ok() {
        log::set_max_level(LevelFilter::Warn);
    }
}

/// Standard error goes to this log file from here on, which is to stay short.
pub fn keep_short(file: OwnedFd) {
    FILE.get_or_init(|| file.into());
}

/// Empties a log file that is too long, and returns whether it was. Whoever writes to it appends.
pub fn shorten(file: &File) -> io::Result<bool> {
    let is_long = file.metadata()?.len() > BYTES_MAX;
    if is_long {
        file.set_len(0)?;
    }
    Ok(is_long)
}
