//! What the environment and the user's own files say: where state is kept, and where settings come from (SPEC §3, §15).

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::mount::{Approve, OnHold, SettingFlags};
use super::{Failure, completions, read, run};
use crate::overlay::RuleSource;
use crate::policy::settings::{Key, Layer, SettingsError};
use crate::protocol::STATE_VARIABLE;
use crate::store::{BACKUP_VARIABLE, Location, STAGE_VARIABLE};

/// How many letters a misspelt variable may differ from a known one; beyond that it is taken for another program's.
const MISSPELT_MAX: usize = 2;

/// Returns a remark on each variable with our prefix that nothing reads: it is misspelt, or another program's.
pub fn unknown_variables() -> impl Iterator<Item = String> {
    let known: Vec<&str> = known_variables().collect();
    let set = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let unknown = set.filter(|name| name.starts_with("FETTLE_"));
    unknown.filter_map(move |name| {
        let nearest = known.iter().min_by_key(|known| distance(known.as_bytes(), name.as_bytes()))?;
        let unknown = format!("no variable is called {}", name.escape_debug());
        match distance(nearest.as_bytes(), name.as_bytes()) {
            0 => None,
            1..=MISSPELT_MAX => Some(format!("{unknown}: {nearest} is the nearest")),
            _ => Some(unknown),
        }
    })
}

fn known_variables() -> impl Iterator<Item = &'static str> {
    let named = [STATE_VARIABLE, BACKUP_VARIABLE, STAGE_VARIABLE, read::SESSION_VARIABLE, completions::VARIABLE];
    Key::ALL.iter().map(|key| key.variable()).chain(named).chain(run::VARIABLES)
}

/// The Levenshtein distance: how many letters to insert, remove or exchange to turn one into the other.
fn distance(one: &[u8], other: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.iter().enumerate() {
        let mut before = std::mem::replace(&mut row[0], at + 1);
        for (at, wanted) in other.iter().enumerate() {
            let least = (before + usize::from(letter != wanted)).min(row[at] + 1).min(row[at + 1] + 1);
            before = std::mem::replace(&mut row[at + 1], least);
        }
    }
    row[other.len()]
}

/// Returns where a project's state is kept.
pub fn location() -> Result<Location, Failure> {
    Ok(Location {
        state: directory(STATE_VARIABLE)?,
        backups: directory(BACKUP_VARIABLE)?,
        stage: directory(STAGE_VARIABLE)?,
        known: None,
    })
}

fn directory(variable: &str) -> Result<Option<PathBuf>, Failure> {
    let Some(value) = std::env::var_os(variable).map(PathBuf::from) else { return Ok(None) };
    if !value.is_absolute() {
        // A relative path would be another place for each command, depending on where it starts, and none for the daemon.
        return Err(Failure::usage(format!("{variable} = {value:?}: must be an absolute path")));
    }
    let path = std::path::absolute(value);
    path.map(Some).map_err(|err| Failure::usage(format!("{variable}: {err}")))
}

/// Returns a variable's value, with an empty one counted as unset.
fn named(variable: &str) -> Option<OsString> {
    std::env::var_os(variable).filter(|value| !value.is_empty())
}

/// `project` is an absolute path without links; `view` is where programs see it, if it is mounted.
pub fn rule_source(project: &Path, view: Option<&Path>, flags: &SettingFlags) -> Result<RuleSource, Failure> {
    Ok(RuleSource {
        project: project.to_owned(),
        view: view.map(Path::to_owned),
        user_file: config_directory().map(|directory| directory.join("config.toml")),
        trusted_file: trusted_file(),
        environment: Layer::environment(|variable| std::env::var_os(variable)).map_err(refused)?,
        flags: Layer::flags(given(flags)).map_err(refused)?,
    })
}

/// Returns the file that records which projects the user trusts.
pub fn trusted_file() -> Option<PathBuf> {
    config_directory().map(|directory| directory.join("trusted"))
}

fn refused(err: SettingsError) -> Failure {
    Failure::usage(err.to_string())
}

/// Returns the user's settings directory. A relative `XDG_CONFIG_HOME` is ignored (XDG Base Directory Specification).
fn config_directory() -> Option<PathBuf> {
    let named_absolute = |variable| named(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || named_absolute("HOME").map(|home| home.join(".config"));
    Some(named_absolute("XDG_CONFIG_HOME").or_else(home)?.join("fettlefs"))
}

/// Returns the flags that were given, with their values as they would stand in a settings file.
fn given(flags: &SettingFlags) -> Vec<(Key, String)> {
    let values = [
        (Key::Floor, flags.floor.map(|lines| lines.to_string())),
        (Key::Ceil, flags.ceil.map(|lines| lines.to_string())),
        (Key::Ratio, flags.ratio.map(|ratio| ratio.to_string())),
        (Key::Ttl, flags.ttl.clone()),
        (Key::Window, flags.window.clone()),
        (Key::Burst, flags.burst.map(|count| count.to_string())),
        (
            Key::Approve,
            flags.approve.map(|approve| match approve {
                Approve::Anyone => "anyone".to_owned(),
                Approve::Owner => "owner".to_owned(),
                Approve::Outside => "outside".to_owned(),
            }),
        ),
        (
            Key::OnHold,
            flags.on_hold.map(|on_hold| match on_hold {
                OnHold::Continue => "continue".to_owned(),
                OnHold::Fail => "fail".to_owned(),
            }),
        ),
    ];
    values.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
}
