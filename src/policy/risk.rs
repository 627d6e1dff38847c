//! Stand-in until the risk signals are merged: only their switches.

/// Which risk signals are asked (SPEC §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RiskSwitches {
    pub placeholder: bool,
    pub conflict: bool,
    pub secret: bool,
    pub executable: bool,
    pub binary: bool,
}
