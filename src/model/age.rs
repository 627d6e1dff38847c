//! How long ago something was, as people say it.

/// In the largest unit of which there is one: `(5, "minute")`, to be followed by an `s` where it is not one of them.
pub fn age(seconds: u64) -> (u64, &'static str) {
    match seconds {
        0..60 => (seconds, "second"),
        60..3600 => (seconds / 60, "minute"),
        3600..86_400 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    }
}
