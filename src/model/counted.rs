//! Counts and ages as people say them.

/// Returns the age in the largest unit that it fills: `(5, "minute")`, as [`plural`] takes it.
pub fn age(seconds: u64) -> (u64, &'static str) {
    match seconds {
        0..60 => (seconds, "second"),
        60..3600 => (seconds / 60, "minute"),
        3600..86_400 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    }
}

/// `1 line`, `45 lines`.
pub fn plural(count: u64, word: &str) -> String {
    match count {
        1 => format!("1 {word}"),
        _ => format!("{count} {word}s"),
    }
}
