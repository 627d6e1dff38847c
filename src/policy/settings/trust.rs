//! What a project's file may do before its owner has trusted it: tighten, and nothing else (SPEC §15).
//!
//! The measure is what would apply without the file, that is the user's own file over the defaults: a clone must not undo
//! what its user has tightened either. Callers find out whether a file is trusted.

use super::{Approve, Given, Key, Layer, Settings, SettingsFile};
use crate::model::RelPath;
use crate::policy::rules::{Action, Rule, pattern_matches, sensitive_examples};

/// Returns `file` without the values that loosen something, and a line for each thing that is ignored. Its rules all
/// stay: a [`crate::policy::rules::RuleSet`] compiled as untrusted lets them relax each other and nothing else.
pub fn untrusted(file: SettingsFile, user: &Layer, defaults: &Settings) -> (SettingsFile, Vec<String>) {
    let mut without = defaults.clone();
    without.apply(user);
    let (ignored, kept): (Vec<_>, Vec<_>) =
        file.values.0.into_iter().partition(|given| loosens(given.key, &given.value, &without));
    let line = |given: &Given| format!("{}: {} = {}", given.at, given.key.name(), given.value);
    let in_run = user.approve().unwrap_or(defaults.approve_in_run);
    let let_in = kept.iter().filter(|given| lets_runs_decide(given, in_run));
    let let_in = let_in.map(|given| format!("{}, for who is in a run", line(given)));
    let notes = ignored.iter().map(line).chain(let_in).chain(file.rules.iter().filter_map(rule_note)).collect();
    (SettingsFile { values: Layer(kept), rules: file.rules }, notes)
}

/// Whether a kept `approve` would still loosen what applies to callers inside a run. It then counts only for the others.
fn lets_runs_decide(given: &Given, in_run: Approve) -> bool {
    given.key == Key::Approve && Approve::parse(&given.value).is_some_and(|approve| approve < in_run)
}

fn loosens(key: Key, value: &str, without: &Settings) -> bool {
    let mut with = without.clone();
    with.set(key, value).is_none() || looser(key, &with, without)
}

/// Whether `key` lets more through in `with` than in `without`.
pub fn looser(key: Key, with: &Settings, without: &Settings) -> bool {
    match key {
        Key::Floor => with.thresholds.floor > without.thresholds.floor,
        Key::Ceil => with.thresholds.ceil > without.thresholds.ceil,
        Key::Ratio => with.thresholds.ratio > without.thresholds.ratio,
        Key::Ttl => with.ttl > without.ttl,
        Key::Window => with.window < without.window,
        Key::Burst => with.burst > without.burst,
        Key::Approve => with.approve < without.approve,
        Key::OnHold => with.on_hold < without.on_hold,
        Key::RiskPlaceholder => !with.risk.placeholder && without.risk.placeholder,
        Key::RiskConflictMarkers => !with.risk.conflict_markers && without.risk.conflict_markers,
        Key::RiskPrivateKey => !with.risk.private_key && without.risk.private_key,
        Key::RiskToken => !with.risk.token && without.risk.token,
        Key::RiskExecutable => !with.risk.executable && without.risk.executable,
        Key::RiskBinary => !with.risk.binary && without.risk.binary,
        // A hook is code, and fewer hooks are leniency.
        Key::PreWrite => with.pre_write != without.pre_write,
        // How long writers wait for the user's own hooks is not for a project to decide either.
        Key::HookTimeout => with.hook_timeout != without.hook_timeout,
        // Fewer backups mean fewer ways back. No age limit keeps all of them.
        Key::BackupAge => match (with.backups.age_max, without.backups.age_max) {
            (Some(_), None) => true,
            (Some(with), Some(without)) => with < without,
            (None, _) => false,
        },
        Key::BackupsPerPath => with.backups.per_path_max < without.backups.per_path_max,
        Key::BackupQuota => with.backups.quota_bytes < without.backups.quota_bytes,
        Key::LimitUpper => is_wider(with.limits.upper_bytes, without.limits.upper_bytes),
        Key::LimitHeld => is_wider(with.limits.held, without.limits.held),
        Key::LimitOpen => is_wider(with.limits.open, without.limits.open),
    }
}

/// Compares limits, where 0 means none.
fn is_wider(with: u64, without: u64) -> bool {
    without != 0 && (with == 0 || with > without)
}

/// Returns a note if the rule loses its force. An `auto` may be meant only to relax another rule of the same file, so it
/// gets a note only if it would relax a sensitive path.
fn rule_note(rule: &Rule) -> Option<String> {
    let relaxes = || sensitive_examples().any(|path| matches_text(rule, &path));
    match rule.action {
        Action::Pass => Some(format!("{}: rule {:?}: pass", rule.at, rule.pattern)),
        Action::Auto if rule.exe.is_none() && relaxes() => {
            Some(format!("{}: rule {:?}: auto, for sensitive paths", rule.at, rule.pattern))
        }
        Action::Auto | Action::GitConfig | Action::Hold(_) | Action::Deny | Action::Freeze => None,
    }
}

fn matches_text(rule: &Rule, path: &str) -> bool {
    RelPath::parse(path.as_bytes()).is_ok_and(|path| pattern_matches(rule, &path))
}
