//! Operations: what was done at once and can be undone at once.

/// The short name of an operation: `op` and the number of its first event. No change id looks like it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct OperationId(u64);

const PREFIX: &str = "op";

impl OperationId {
    pub fn of_first_event(seq: u64) -> Self {
        Self(seq)
    }

    pub fn first_event(self) -> u64 {
        self.0
    }

    /// Accepts `op` and a number exactly as printed, without a sign or leading zeros.
    pub fn parse(text: &str) -> Option<Self> {
        let number = text.strip_prefix(PREFIX)?.parse().ok()?;
        Some(Self(number)).filter(|id| id.to_string() == text)
    }
}

impl std::fmt::Display for OperationId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{PREFIX}{}", self.0)
    }
}
