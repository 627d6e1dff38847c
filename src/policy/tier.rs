//! Stand-in until the tiers are merged: only the shape of the thresholds.

/// How much of a file may change before it is held (SPEC §5).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// Up to this many changed lines always land.
    pub floor: u64,
    /// From this many changed lines on, always hold.
    pub ceil: u64,
    /// Above this part of the file's lines, hold.
    pub ratio: f64,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self { floor: 10, ceil: 80, ratio: 0.40 }
    }
}
