//! Parses the values of settings. Every function returns `None` for text that is not an allowed value.

use std::ops::RangeInclusive;
use std::time::Duration;

/// The largest number of lines or paths (SPEC §15).
const COUNT_MAX: u64 = 1_000_000;

/// A year: far from where arithmetic with times could overflow.
const DURATION_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// How long a held change may be confirmed without a fresh look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ttl {
    After(Duration),
    Never,
}

impl Ttl {
    /// Takes a duration; 0 means never.
    pub fn parse(text: &str) -> Option<Self> {
        let time = duration(text)?;
        Some(if time.is_zero() { Self::Never } else { Self::After(time) })
    }
}

/// The time within which writes to a path are judged as one. A longer window is stricter: less can be smuggled in slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Window {
    /// Each write is judged alone.
    Each,
    Seconds(Duration),
    Session,
}

impl Window {
    /// Takes `session` or a duration; 0 judges each write alone.
    pub fn parse(text: &str) -> Option<Self> {
        if text == "session" {
            return Some(Self::Session);
        }
        let time = duration(text)?;
        Some(if time.is_zero() { Self::Each } else { Self::Seconds(time) })
    }
}

/// Who may change state, the laxest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Approve {
    Anyone,
    Owner,
    Outside,
}

impl Approve {
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "anyone" => Some(Self::Anyone),
            "owner" => Some(Self::Owner),
            "outside" => Some(Self::Outside),
            _ => None,
        }
    }
}

/// What the writer of a held change is told at close, the laxest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OnHold {
    Continue,
    Fail,
}

impl OnHold {
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "continue" => Some(Self::Continue),
            "fail" => Some(Self::Fail),
            _ => None,
        }
    }
}

pub(super) fn count(text: &str) -> Option<u64> {
    number(text).filter(|count| *count <= COUNT_MAX)
}

pub(super) fn ratio(text: &str) -> Option<f64> {
    text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio))
}

pub(super) fn switch(text: &str) -> Option<bool> {
    match text {
        "true" | "on" => Some(true),
        "false" | "off" => Some(false),
        _ => None,
    }
}

/// `2s`, `10m`, `24h`, `7d`, `200ms`, or plain seconds.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let (count, unit) = split_unit(text)?;
    let millis_each: u64 = match unit {
        "ms" => 1,
        "" | "s" => 1000,
        "m" => 60 * 1000,
        "h" => 3600 * 1000,
        "d" => 24 * 3600 * 1000,
        _ => return None,
    };
    let time = Duration::from_millis(count.checked_mul(millis_each)?);
    (time <= DURATION_MAX).then_some(time)
}

/// Long enough for a program to start, short enough that a close returns eventually.
const HOOK_TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);

pub(super) fn hook_timeout(text: &str) -> Option<Duration> {
    duration(text).filter(|time| HOOK_TIMEOUT.contains(time))
}

/// `1GiB`, `16MiB`, `4KiB`, or plain bytes.
pub(super) fn bytes(text: &str) -> Option<u64> {
    let (count, unit) = split_unit(text)?;
    let shift = match unit {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return None,
    };
    count.checked_mul(1 << shift)
}

/// `["cmd", "arg"]` is one command, `[["a"], ["b", "arg"]]` are several, `[]` is none; without brackets, `cmd arg` is one
/// command, split at blanks. No command may be empty.
pub(super) fn commands(text: &str) -> Option<Vec<Vec<String>>> {
    let commands = if text.starts_with('[') { array_commands(text)? } else { vec![words(text)] };
    let has_program = |command: &Vec<String>| command.first().is_some_and(|program| !program.is_empty());
    commands.iter().all(has_program).then_some(commands)
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn array_commands(text: &str) -> Option<Vec<Vec<String>>> {
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Commands {
        Several(Vec<Vec<String>>),
        One(Vec<String>),
    }
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Line {
        value: Commands,
    }
    match toml::from_str::<Line>(&format!("value = {text}")).ok()?.value {
        Commands::Several(commands) => Some(commands),
        Commands::One(command) => Some(vec![command]),
    }
}

fn split_unit(text: &str) -> Option<(u64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    Some((number(&text[..digits])?, &text[digits..]))
}

/// Digits only: no sign, blank or underscore.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}
