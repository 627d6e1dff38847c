//! Numbers, times and marks as a person reads them, for lines and for the screen.

use crate::model::{self, ChangeKind};
use crate::protocol::{Counts, Held};

/// `812B`, `2.1KB`, `3.0MB`: units of 1024.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KB", "MB", "GB", "TB", "PB"];
    if bytes < 1024 {
        return format!("{bytes}B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // 1023.95 would round to "1024.0KB".
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1}{}", UNITS[unit])
}

/// `0.62` is `62%`. A share too small for a whole percent does not become zero.
pub fn percent(ratio: f64) -> String {
    match ratio * 100.0 {
        small if small > 0.0 && small < 0.5 => "<1%".to_owned(),
        percent => format!("{percent:.0}%"),
    }
}

/// `+3 -2 ~1`: lines inserted, deleted, and how many of these are modifications.
pub fn counts_with_modified(counts: &Counts) -> String {
    format!("+{} -{} ~{}", counts.insertions, counts.deletions, counts.insertions.min(counts.deletions))
}

/// `5m ago`. A clock that was set back does not make an age negative.
pub fn age(then: jiff::Timestamp, now: jiff::Timestamp) -> String {
    let seconds = now.as_second().saturating_sub(then.as_second());
    let (count, unit) = model::age(u64::try_from(seconds).unwrap_or(0));
    format!("{count}{} ago", &unit[..1])
}

/// `2026-03-12 14:30:22Z`, for lists.
pub fn moment(time: jiff::Timestamp) -> String {
    time.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}

/// What a person should know about a held change besides its lines and its reason.
pub fn marks(change: &Held) -> Vec<String> {
    let what = change.detail.clone().filter(|_| change.kind == ChangeKind::Structure);
    let marks = [
        (change.kind != ChangeKind::Modify, what.unwrap_or_else(|| change.kind.to_string())),
        (change.expired, "expired".to_owned()),
        (change.externally_modified, "changed outside".to_owned()),
        (change.in_head, "in HEAD".to_owned()),
    ];
    marks.into_iter().filter(|(applies, _)| *applies).map(|(_, mark)| mark).collect()
}
