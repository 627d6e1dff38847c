//! How long ago something was, as people say it.

/// Returns the age in the largest unit that it fills: `(5, "minute")`. Callers append an `s` unless the number is 1.
pub fn age(seconds: u64) -> (u64, &'static str) {
    match seconds {
        0..60 => (seconds, "second"),
        60..3600 => (seconds / 60, "minute"),
        3600..86_400 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    }
}
