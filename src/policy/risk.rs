//! Stand-in until the risk signals are merged: only their switches.

/// Which risk signals are asked (SPEC §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RiskSwitches {
    pub placeholder: bool,
    pub conflict_markers: bool,
    pub private_key: bool,
    pub token: bool,
    pub executable: bool,
    pub binary: bool,
}

impl Default for RiskSwitches {
    fn default() -> Self {
        Self {
            placeholder: true,
            conflict_markers: true,
            private_key: true,
            token: true,
            executable: true,
            binary: true,
        }
    }
}
