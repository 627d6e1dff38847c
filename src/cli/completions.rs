//! `fettlefs completions`: has a shell complete commands, flags, and what is held here.
//!
//! The shell's script calls this program, with [`VARIABLE`] set, for what may follow; so the script never goes stale.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::path::Path;

use clap::CommandFactory;
use clap::builder::StyledStr;
use clap_complete::CompletionCandidate;
use clap_complete::env::{CompleteEnv, Shells};

use super::{Desk, Failure, offline};
use crate::client::{Client, Reach};
use crate::model::{RelPath, escape_name, is_plain_word};
use crate::protocol::{Backup, Exit, Op, Reply, Request};

/// Set by the script to the shell's name.
pub(super) const VARIABLE: &str = "FETTLE_COMPLETE";
const PROGRAM: &str = "fettlefs";
/// The newest ones; a longer list is no help in choosing.
const BACKUPS_OFFERED: u64 = 200;
/// How many of the latest events are searched for operations to offer.
const EVENTS_ASKED: u64 = 200;

/// Print what makes a shell complete fettlefs's commands, and the ids and backups of the project it stands in
///
/// bash: put `source <(fettlefs completions bash)` into ~/.bashrc. zsh: the same in ~/.zshrc. fish: write it to
/// ~/.config/fish/completions/fettlefs.fish.
#[derive(clap::Args)]
pub struct Arguments {
    #[arg(value_parser = Shells::builtins().names().collect::<Vec<_>>())]
    shell: String,
}

pub fn run(Arguments { shell }: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let shells = Shells::builtins();
    let Some(completer) = shells.completer(&shell) else {
        return Err(Failure::usage(format!("no completions are made for {shell}")));
    };
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut script)?;
    desk.print_bytes(&script)?;
    Ok(Exit::Done)
}

/// Answers a shell that asks what may follow. Returns false if this is no such call.
pub fn answered(argv: &[std::ffi::OsString]) -> Result<bool, clap::Error> {
    let directory = std::env::current_dir().ok();
    let environment = CompleteEnv::with_factory(super::Arguments::command).var(VARIABLE);
    environment.try_complete(argv, directory.as_deref())
}

/// Returns the ids of held changes that begin with what was typed, each with its path.
pub fn held(typed: &OsStr) -> Vec<CompletionCandidate> {
    let Some(Reply::Status(status)) = ask(&Request::new(Op::Status)) else { return Vec::new() };
    let offered =
        status.held.iter().map(|held| CompletionCandidate::new(held.id.as_str()).help(Some(help_of(&held.path))));
    beginning(typed, offered)
}

/// Returns the names of backups that begin with what was typed, each with its path. A shell prints a name as it is, and
/// bash puts it on the command line without quotes. Who writes in the view has chosen it: names that could control the
/// terminal are left out, and those in which a shell sees more than a word.
pub fn backups(typed: &OsStr) -> Vec<CompletionCandidate> {
    let request = Request { limit: Some(BACKUPS_OFFERED), ..Request::new(Op::Backups) };
    let Some(Reply::Backups(reply)) = ask(&request) else { return Vec::new() };
    let is_offered =
        |backup: &&Backup| escape_name(backup.name.as_bytes()) == backup.name && is_plain_word(&backup.name);
    let offered = reply.backups.iter().filter(is_offered);
    let offered = offered.map(|backup| CompletionCandidate::new(&backup.name).help(Some(help_of(&backup.path))));
    beginning(typed, offered)
}

/// Returns the operations that begin with what was typed, the latest first, each with one of its paths.
pub fn operations(typed: &OsStr) -> Vec<CompletionCandidate> {
    let request = Request { limit: Some(EVENTS_ASKED), ..Request::new(Op::Log) };
    let Some(Reply::Log(reply)) = ask(&request) else { return Vec::new() };
    let mut offered = HashSet::new();
    let candidates = reply.events.iter().filter_map(|event| {
        let operation = event.operation.as_ref().filter(|operation| offered.insert(*operation))?;
        Some(CompletionCandidate::new(operation).help(event.path.as_ref().map(help_of)))
    });
    beginning(typed, candidates)
}

fn help_of(path: &RelPath) -> StyledStr {
    escape_name(path.shown()).into()
}

fn beginning(typed: &OsStr, offered: impl Iterator<Item = CompletionCandidate>) -> Vec<CompletionCandidate> {
    let begins = |candidate: &CompletionCandidate| {
        candidate.get_value().as_encoded_bytes().starts_with(typed.as_encoded_bytes())
    };
    offered.filter(begins).collect()
}

/// Asks a running daemon only. A key press must neither take a lock nor start a recovery, and cannot show an error.
fn ask(request: &Request) -> Option<Reply> {
    let mut client = Client::open(Path::new("."), offline::answer).ok()?;
    match client.reach() {
        Reach::View(_) | Reach::Socket(_) => client.ask(request).ok(),
        Reach::Offline | Reach::Stale(_) => None,
    }
}
