//! The command line: one file per subcommand, each with its arguments, its action and its rendering.
//!
//! This layer owns how things are asked for and how answers look. What a request does is decided by whatever answers the
//! client: the daemon, or this process offline. Begin with [`run`].

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

mod act;
mod backups;
mod blame;
mod check;
mod completions;
mod confirm;
mod desk;
mod diff;
mod discard;
mod doctor;
mod events;
mod external;
mod failure;
mod flush;
mod fsck;
mod held;
mod init;
mod log;
mod man;
mod mcp;
mod meter;
pub mod mount;
mod mount_helper;
mod mount_start;
mod offline;
mod outcome;
mod pager;
mod patch;
mod project;
mod ps;
mod read;
mod reload;
mod repository;
mod review;
mod rollback;
mod run;
mod show;
mod sources;
mod status;
mod terminal;
#[cfg(test)]
mod tests;
mod text;
mod trust;
mod undo;
mod unmount;
mod version;

pub use failure::Failure;

use crate::protocol::Exit;
use crate::ui::words;
use desk::{Desk, Format};

/// Reviews what programs write in a project before it lands.
#[derive(Parser)]
#[command(
    name = "fettlefs",
    version,
    propagate_version = false,
    max_term_width = 100,
    subcommand_value_name = "COMMAND"
)]
struct Arguments {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Args)]
struct Global {
    /// Work as if started in DIR
    #[arg(short = 'C', value_name = "DIR", global = true)]
    directory: Option<PathBuf>,
    /// Print JSON, errors included, on stdout
    #[arg(long, global = true)]
    json: bool,
}

impl Global {
    fn format(&self) -> Format {
        if self.json { Format::Json } else { Format::Human }
    }
}

#[derive(Subcommand)]
enum Command {
    Mount(mount::Arguments),
    Run(run::Arguments),
    Unmount(unmount::Arguments),
    Ps(ps::Arguments),
    Status(status::Arguments),
    Diff(diff::Arguments),
    Show(show::Arguments),
    Confirm(confirm::Arguments),
    Discard(discard::Arguments),
    Review(review::Arguments),
    Rollback(rollback::Arguments),
    Undo(undo::Arguments),
    Backups(backups::Arguments),
    Log(log::Arguments),
    Blame(blame::Arguments),
    Events(events::Arguments),
    External(external::Arguments),
    Reload(reload::Arguments),
    Trust(trust::Arguments),
    Flush(flush::Arguments),
    Read(read::Arguments),
    Meter(meter::Arguments),
    Patch(patch::Arguments),
    Check(check::Arguments),
    Fsck(fsck::Arguments),
    Doctor(doctor::Arguments),
    Init(init::Arguments),
    Mcp(mcp::Arguments),
    Completions(completions::Arguments),
    Man(man::Arguments),
    Version(version::Arguments),
}

/// Runs one command line, whose first word is the program's name, and returns the exit status (SPEC §12).
pub fn run(argv: Vec<OsString>) -> ExitCode {
    if mount_helper::is_called(&argv) {
        return ExitCode::from(mount_helper::run(&argv));
    }
    ExitCode::from(match completions::answered(&argv) {
        Ok(true) => Exit::Done as u8,
        Ok(false) => run_command(&argv),
        Err(err) => failure::report_usage(&err, &argv) as u8,
    })
}

fn run_command(argv: &[OsString]) -> u8 {
    let parsed = grammar().try_get_matches_from(argv).and_then(|matches| Arguments::from_arg_matches(&matches));
    match parsed {
        Ok(arguments) => {
            let format = arguments.global.format();
            let desk = Desk::new(arguments.global.directory, format);
            match arguments.command {
                // `run` passes on the status of the command that it ran.
                Command::Run(arguments) => run::run(arguments, &desk),
                command => dispatch(command, &desk).unwrap_or_else(|failure| desk.report(&failure)) as u8,
            }
        }
        Err(err) => run::usage_status(failure::report_usage(&err, argv), argv),
    }
}

/// The command line for clap, with negative numbers taken as values: the option that gets one then refuses it by name.
fn grammar() -> clap::Command {
    let numbers = |arg: clap::Arg| match arg.get_long().is_some() && arg.get_action().takes_values() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    };
    Arguments::command().mut_subcommands(|command| command.mut_args(numbers))
}

/// Returns a parser of counts from `least` on. Its error names that range; clap would only call a sign a bad digit.
fn at_least(least: u64) -> impl Fn(&str) -> Result<u64, String> + Clone {
    let must_be = move || format!("must be a number from {least} on");
    move |text| text.parse().ok().filter(|count| *count >= least).ok_or_else(must_be)
}

fn dispatch(command: Command, desk: &Desk) -> Result<Exit, Failure> {
    match command {
        Command::Run(_) => unreachable!("its statuses are not ours: see `run_command`"),
        Command::Mount(arguments) => mount::run(arguments, desk),
        Command::Unmount(arguments) => unmount::run(arguments, desk),
        Command::Ps(arguments) => ps::run(arguments, desk),
        Command::Status(arguments) => status::run(arguments, desk),
        Command::Diff(arguments) => diff::run(arguments, desk),
        Command::Show(arguments) => show::run(arguments, desk),
        Command::Confirm(arguments) => confirm::run(arguments, desk),
        Command::Discard(arguments) => discard::run(arguments, desk),
        Command::Review(arguments) => review::run(arguments, desk),
        Command::Rollback(arguments) => rollback::run(arguments, desk),
        Command::Undo(arguments) => undo::run(arguments, desk),
        Command::Backups(arguments) => backups::run(arguments, desk),
        Command::Log(arguments) => log::run(arguments, desk),
        Command::Blame(arguments) => blame::run(arguments, desk),
        Command::Events(arguments) => events::run(arguments, desk),
        Command::External(arguments) => external::run(arguments, desk),
        Command::Reload(arguments) => reload::run(arguments, desk),
        Command::Trust(arguments) => trust::run(arguments, desk),
        Command::Flush(arguments) => flush::run(arguments, desk),
        Command::Read(arguments) => read::run(arguments, desk),
        Command::Meter(arguments) => meter::run(arguments, desk),
        Command::Patch(arguments) => patch::run(arguments, desk),
        Command::Check(arguments) => check::run(arguments, desk),
        Command::Fsck(arguments) => fsck::run(arguments, desk),
        Command::Doctor(arguments) => doctor::run(arguments, desk),
        Command::Init(arguments) => init::run(arguments, desk),
        Command::Mcp(arguments) => mcp::run(arguments, desk),
        Command::Completions(arguments) => completions::run(arguments, desk),
        Command::Man(arguments) => man::run(arguments, desk),
        Command::Version(arguments) => version::run(arguments, desk),
    }
}
