//! `fettlefs mount`: the arguments, checked.

use super::{Desk, Failure, mount_start, project};
use crate::policy::settings::{Key, Ttl, Window};
use crate::protocol::Exit;
use clap::ValueEnum;
use std::path::PathBuf;

/// Mount a project's view
#[derive(clap::Args)]
pub struct Arguments {
    /// The project's directory; if not given, the project that the working directory lies in, or that itself
    project: Option<PathBuf>,
    /// Where the view appears; over the project itself if not given
    mountpoint: Option<PathBuf>,
    /// Stay in the foreground
    #[arg(short, long)]
    foreground: bool,
    /// Mount options, as for mount(8)
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    #[command(flatten)]
    settings: SettingFlags,
}

/// Settings from flags, which come before every other source (SPEC §15).
#[derive(clap::Args, Clone, Debug, PartialEq, Default)]
pub struct SettingFlags {
    /// Changes of at most so many lines land
    #[arg(long, value_name = "LINES", value_parser = count)]
    pub floor: Option<u32>,
    /// Changes of at least so many lines are held
    #[arg(long, value_name = "LINES", value_parser = count)]
    pub ceil: Option<u32>,
    /// Changes of more than this share of the file are held
    #[arg(long, value_parser = ratio)]
    pub ratio: Option<f64>,
    /// How long a held change stays fresh, as 600, 600s or 10m; 0 for ever
    #[arg(long, value_name = "TIME", value_parser = ttl)]
    pub ttl: Option<String>,
    /// Writes to a path within this time count as one, as 2s; `session` for all
    #[arg(long, value_name = "TIME|session", value_parser = window)]
    pub window: Option<String>,
    /// Paths that a process and its children, in a run all of it, may rewrite or delete within 2 s
    #[arg(long, value_name = "N", value_parser = count)]
    pub burst: Option<u32>,
    /// Who may confirm, discard and undo
    #[arg(long)]
    pub approve: Option<Approve>,
    /// What a program is told whose write is held
    #[arg(long)]
    pub on_hold: Option<OnHold>,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Approve {
    Anyone,
    Owner,
    Outside,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnHold {
    Continue,
    Fail,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    Background,
    Foreground,
}

/// Which processes see the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// All processes.
    Everyone,
    /// Those that `fettlefs run` starts, over the project in a private mount namespace. The view ends with the last run.
    Runs,
}

/// What to mount, where and how. Paths are relative to the process's working directory.
#[derive(Clone, Debug, PartialEq)]
pub struct MountArgs {
    pub project: PathBuf,
    /// `None`: over the project itself.
    pub mountpoint: Option<PathBuf>,
    pub ground: Ground,
    pub audience: Audience,
    /// `-o`, split at commas, unchecked.
    pub options: Vec<String>,
    pub settings: SettingFlags,
}

pub fn run(arguments: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    mount_start::start(typed(arguments, desk)?)?;
    Ok(Exit::Done)
}

pub(super) fn typed(arguments: Arguments, desk: &Desk) -> Result<MountArgs, Failure> {
    let settings = arguments.settings;
    if let (Some(floor), Some(ceil)) = (settings.floor, settings.ceil)
        && floor >= ceil
    {
        return Err(Failure::usage(format!("--floor {floor} must be less than --ceil {ceil}")));
    }
    let project = match arguments.project {
        Some(named) => desk.directory.join(named),
        None => project::around(desk)?.1,
    };
    Ok(MountArgs {
        project,
        mountpoint: arguments.mountpoint.map(|point| desk.directory.join(point)),
        ground: if arguments.foreground { Ground::Foreground } else { Ground::Background },
        audience: Audience::Everyone,
        options: mount_start::words_of(&arguments.options),
        settings,
    })
}

/// Of lines or of paths: the same are allowed.
fn count(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|count| *count <= 1_000_000).ok_or_else(|| must_be(Key::Floor))
}

fn ratio(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
        _ => Err("not a number from 0 to 1".to_owned()),
    }
}

fn ttl(text: &str) -> Result<String, String> {
    Ttl::parse(text).map(|_| text.to_owned()).ok_or_else(|| must_be(Key::Ttl))
}

fn window(text: &str) -> Result<String, String> {
    Window::parse(text).map(|_| text.to_owned()).ok_or_else(|| must_be(Key::Window))
}

fn must_be(key: Key) -> String {
    format!("must be {}", key.allowed())
}
