//! What the user asked for: one [`Settings`] made of flags, environment, project file, user file and defaults (SPEC §15).
//!
//! A value travels as text with its [`Origin`] until [`Settings::set`] parses it, so that flags, variables and files
//! follow the same rules and a message can say where a value came from. No file is read here: callers pass their text.
//! Begin with [`SettingsFile::parse`], [`Layer`] and [`Settings::layered`]; [`trust`] says what a project's file may do
//! before it is trusted, [`trusted`] which files are.

mod file;
mod key;
#[cfg(test)]
mod tests;
mod trust;
mod trusted;
mod value;

pub use file::SettingsFile;
pub use key::Key;
pub use trust::{looser, untrusted};
pub use trusted::{is_trusted, with_trust, without_trust};
pub use value::{Approve, OnHold, Ttl, Window};

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use super::risk::RiskSwitches;
use super::tier::Thresholds;

/// Every setting, with its type.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub thresholds: Thresholds,
    pub ttl: Ttl,
    pub window: Window,
    /// How many distinct paths one process tree may delete or rewrite within two seconds.
    pub burst: u64,
    pub approve: Approve,
    /// The same, for callers inside a run.
    pub approve_in_run: Approve,
    pub on_hold: OnHold,
    pub risk: RiskSwitches,
    /// Each hook is a program and its arguments.
    pub pre_write: Vec<Vec<String>>,
    /// How long each hook may take.
    pub hook_timeout: Duration,
    pub backups: BackupLimits,
    pub limits: Limits,
    origins: BTreeMap<Key, Origin>,
}

/// What is kept for rollback (SPEC §13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupLimits {
    /// `None`: no backup is purged for its age.
    pub age_max: Option<Duration>,
    pub per_path_max: u64,
    pub quota_bytes: u64,
}

/// Limits on what a hostile program can use up. 0 leaves only the machine's own limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Disk space for held content and content being written.
    pub upper_bytes: u64,
    /// Paths that are held or being written.
    pub held: u64,
    /// Files open in the view.
    pub open: u64,
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Default,
    File { name: String, line: usize },
    Environment(&'static str),
    Flag(&'static str),
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { name, line } => write!(f, "{name}:{line}"),
            Self::Environment(name) | Self::Flag(name) => f.write_str(name),
        }
    }
}

/// The reason why settings cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// An unknown key, or not TOML. `what` is one line.
    #[error("{at}: {what}")]
    File { at: Origin, what: String },
    #[error("{at}: {key} = {value:?}: must be {allowed}", key = key.name(), allowed = key.allowed())]
    Value { key: Key, value: String, at: Origin },
    #[error("floor = {floor} ({floor_at}) must be below ceil = {ceil} ({ceil_at})")]
    FloorAboveCeil { floor: u64, floor_at: Origin, ceil: u64, ceil_at: Origin },
}

/// The values of one source. Invariant: each was accepted by [`Settings::set`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layer(Vec<Given>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Given {
    key: Key,
    value: String,
    at: Origin,
}

impl Layer {
    /// Collects what `lookup` returns for each key's variable. A variable that is set but empty is an error.
    pub fn environment(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self, SettingsError> {
        let mut layer = Self::default();
        for &key in Key::ALL {
            if let Some(value) = lookup(key.variable()) {
                layer.add(key, value.to_string_lossy().into_owned(), Origin::Environment(key.variable()))?;
            }
        }
        Ok(layer)
    }

    pub fn flags(given: impl IntoIterator<Item = (Key, String)>) -> Result<Self, SettingsError> {
        let mut layer = Self::default();
        for (key, value) in given {
            layer.add(key, value, Origin::Flag(key.flag()))?;
        }
        Ok(layer)
    }

    /// The value this layer sets for `approve`.
    pub fn approve(&self) -> Option<Approve> {
        let given = self.0.iter().rev().find(|given| given.key == Key::Approve)?;
        Approve::parse(&given.value)
    }

    fn add(&mut self, key: Key, value: String, at: Origin) -> Result<(), SettingsError> {
        match Settings::defaults().set(key, &value) {
            Some(()) => self.0.push(Given { key, value, at }),
            None => return Err(SettingsError::Value { key, value, at }),
        }
        Ok(())
    }
}

impl Settings {
    pub fn defaults() -> Self {
        Self {
            thresholds: Thresholds::default(),
            ttl: Ttl::After(Duration::from_secs(600)),
            window: Window::Seconds(Duration::from_secs(2)),
            burst: 20,
            approve: Approve::Anyone,
            approve_in_run: Approve::Outside,
            on_hold: OnHold::Continue,
            risk: RiskSwitches::default(),
            pre_write: Vec::new(),
            hook_timeout: Duration::from_secs(5),
            backups: BackupLimits {
                age_max: Some(Duration::from_secs(24 * 3600)),
                per_path_max: 100,
                quota_bytes: 1 << 30,
            },
            limits: Limits { upper_bytes: 64 << 30, held: 100_000, open: 100_000 },
            origins: BTreeMap::new(),
        }
    }

    /// Applies `layers` to `defaults`, the weakest first: user file, project file, environment, flags.
    pub fn layered<'a>(defaults: Self, layers: impl IntoIterator<Item = &'a Layer>) -> Result<Self, SettingsError> {
        let mut settings = defaults;
        layers.into_iter().for_each(|layer| settings.apply(layer));
        settings.check()?;
        Ok(settings)
    }

    pub fn origin(&self, key: Key) -> Origin {
        self.origins.get(&key).cloned().unwrap_or(Origin::Default)
    }

    fn apply(&mut self, layer: &Layer) {
        for given in &layer.0 {
            // Bad values were refused when the layer was made.
            if self.set(given.key, &given.value).is_some() {
                self.origins.insert(given.key, given.at.clone());
            }
        }
    }

    /// Checked only after merging: a file may set one of the two and a flag the other.
    fn check(&self) -> Result<(), SettingsError> {
        let Thresholds { floor, ceil, .. } = self.thresholds;
        if floor < ceil {
            return Ok(());
        }
        let (floor_at, ceil_at) = (self.origin(Key::Floor), self.origin(Key::Ceil));
        Err(SettingsError::FloorAboveCeil { floor, floor_at, ceil, ceil_at })
    }

    /// Sets `key` from `text`; returns `None` if the key does not allow that value.
    fn set(&mut self, key: Key, text: &str) -> Option<()> {
        match key {
            Key::Floor => self.thresholds.floor = value::count(text)?,
            Key::Ceil => self.thresholds.ceil = value::count(text)?,
            Key::Ratio => self.thresholds.ratio = value::ratio(text)?,
            Key::Ttl => self.ttl = Ttl::parse(text)?,
            Key::Window => self.window = Window::parse(text)?,
            Key::Burst => self.burst = value::count(text)?,
            Key::Approve => self.approve = Approve::parse(text)?,
            Key::OnHold => self.on_hold = OnHold::parse(text)?,
            Key::RiskPlaceholder => self.risk.placeholder = value::switch(text)?,
            Key::RiskConflictMarkers => self.risk.conflict_markers = value::switch(text)?,
            Key::RiskPrivateKey => self.risk.private_key = value::switch(text)?,
            Key::RiskToken => self.risk.token = value::switch(text)?,
            Key::RiskExecutable => self.risk.executable = value::switch(text)?,
            Key::RiskBinary => self.risk.binary = value::switch(text)?,
            Key::PreWrite => self.pre_write = value::commands(text)?,
            Key::HookTimeout => self.hook_timeout = value::hook_timeout(text)?,
            Key::BackupAge => self.backups.age_max = Some(value::duration(text)?).filter(|age| !age.is_zero()),
            Key::BackupsPerPath => self.backups.per_path_max = value::count(text)?,
            Key::BackupQuota => self.backups.quota_bytes = value::bytes(text)?,
            Key::LimitUpper => self.limits.upper_bytes = value::bytes(text)?,
            Key::LimitHeld => self.limits.held = value::count(text)?,
            Key::LimitOpen => self.limits.open = value::count(text)?,
        }
        Some(())
    }
}
