//! The name of every setting in files, in the environment and as a flag, and the values it allows.

/// A setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    Floor,
    Ceil,
    Ratio,
    Ttl,
    Window,
    Burst,
    Approve,
    OnHold,
    RiskPlaceholder,
    RiskConflictMarkers,
    RiskPrivateKey,
    RiskToken,
    RiskExecutable,
    RiskBinary,
    PreWrite,
    HookTimeout,
    BackupAge,
    BackupsPerPath,
    BackupQuota,
    LimitUpper,
    LimitHeld,
    LimitOpen,
}

const LINES: &str = "a whole number from 0 to 1000000";
const SWITCH: &str = "true or false";
const SIZE: &str = "a size in bytes or like 16MiB, 1GiB";
const TIME: &str = "0 to 365d, in seconds or like 2s, 10m, 24h";

/// Lists each setting once: its name in a file, its variable, its flag and the values it takes.
macro_rules! keys {
    ($($key:ident $name:literal $variable:literal $flag:literal $allowed:expr;)+) => {
        impl Key {
            pub const ALL: &'static [Self] = &[$(Self::$key),+];

            /// The name in a settings file, with its table: `backups.quota`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$key => $name),+ }
            }

            pub fn variable(self) -> &'static str {
                match self { $(Self::$key => $variable),+ }
            }

            /// The flag with its dashes.
            pub fn flag(self) -> &'static str {
                match self { $(Self::$key => $flag),+ }
            }

            /// The allowed values in words, for messages.
            pub fn allowed(self) -> &'static str {
                match self { $(Self::$key => $allowed),+ }
            }
        }
    };
}

keys! {
    Floor "floor" "FETTLE_WRITE_FLOOR" "--floor" LINES;
    Ceil "ceil" "FETTLE_WRITE_CEIL" "--ceil" LINES;
    Ratio "ratio" "FETTLE_WRITE_RATIO" "--ratio" "0 to 1";
    Ttl "ttl" "FETTLE_WRITE_STAGE_TTL" "--ttl" TIME;
    Window "window" "FETTLE_WRITE_WINDOW" "--window" "\"session\", or 0 to 365d, in seconds or like 2s, 10m, 24h";
    Burst "burst" "FETTLE_WRITE_BURST" "--burst" LINES;
    Approve "approve" "FETTLE_APPROVE" "--approve" "anyone, owner or outside";
    OnHold "on_hold" "FETTLE_ON_HOLD" "--on-hold" "continue or fail";
    RiskPlaceholder "risk.placeholder" "FETTLE_RISK_PLACEHOLDER" "--risk-placeholder" SWITCH;
    RiskConflictMarkers "risk.conflict_markers" "FETTLE_RISK_CONFLICT_MARKERS" "--risk-conflict-markers" SWITCH;
    RiskPrivateKey "risk.private_key" "FETTLE_RISK_PRIVATE_KEY" "--risk-private-key" SWITCH;
    RiskToken "risk.token" "FETTLE_RISK_TOKEN" "--risk-token" SWITCH;
    RiskExecutable "risk.executable" "FETTLE_RISK_EXECUTABLE" "--risk-executable" SWITCH;
    RiskBinary "risk.binary" "FETTLE_RISK_BINARY" "--risk-binary" SWITCH;
    PreWrite "hooks.pre_write" "FETTLE_HOOKS_PRE_WRITE" "--hooks-pre-write"
        "a command as an array of strings, or an array of such commands";
    HookTimeout "hooks.timeout" "FETTLE_HOOKS_TIMEOUT" "--hooks-timeout" "100ms to 1h, in seconds or like 2s, 10m";
    BackupAge "backups.max_age" "FETTLE_BACKUP_MAX_AGE" "--backup-max-age" TIME;
    BackupsPerPath "backups.max_per_path" "FETTLE_BACKUP_MAX_PER_PATH" "--backup-max-per-path" LINES;
    BackupQuota "backups.quota" "FETTLE_BACKUP_QUOTA" "--backup-quota" SIZE;
    LimitUpper "limits.upper" "FETTLE_LIMIT_UPPER" "--limit-upper" SIZE;
    LimitHeld "limits.held" "FETTLE_LIMIT_HELD" "--limit-held" LINES;
    LimitOpen "limits.open" "FETTLE_LIMIT_OPEN" "--limit-open" LINES;
}
