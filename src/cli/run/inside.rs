//! The process that becomes the command: it enters the view and calls `exec`.
//!
//! ```text
//!   fork ─► namespaces ─► working directory ─► exec
//!                └─ isolated: fork ─► first of a pid namespace: /proc, capabilities ─► fork ─► exec
//! ```

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::Errno;

use super::OWN_FAILURE;
use crate::cli::mount_start::say;
use crate::cli::repository;
use crate::protocol::{BASH_SCRIPT, SHELL_DIRECTORY, STATE_DIRECTORY};
use crate::sys::foreground::{Foreground, Happened};
use crate::sys::isolation;
use crate::sys::mount::{self, Alias, FS_TYPE, mount_at};
use crate::sys::{inherited, namespace};

/// Statuses of a command that cannot be run, and of one that does not exist, as in shells.
const NOT_RUNNABLE: i32 = 126;
const NOT_FOUND: i32 = 127;

/// Tells a command which run it is in.
const RUN_VARIABLE: &str = "FETTLE_RUN";

/// Variables by which shells find our scripts: see `control/shell`. The user's own value is kept under the second name.
const BASH_VARIABLES: [&str; 2] = ["BASH_ENV", "FETTLE_BASH_ENV"];
const ZSH_VARIABLES: [&str; 2] = ["ZDOTDIR", "FETTLE_ZDOTDIR"];
const COMMAND_VARIABLE: &str = "FETTLE_COMMAND";
const TELLS_VARIABLE: &str = "FETTLE_TELLS";

/// Every variable that a run sets for its command and for the shells in it.
pub const VARIABLES: [&str; 5] = [RUN_VARIABLE, BASH_VARIABLES[1], ZSH_VARIABLES[1], COMMAND_VARIABLE, TELLS_VARIABLE];

/// How the view comes to cover the project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// It covers the project in the namespaces of this process.
    Enter(u32),
    /// It is mounted for everybody, over the project or elsewhere.
    Cover { view: PathBuf, project: PathBuf },
}

/// What to run, and where.
pub struct Inside {
    pub way: Way,
    /// What an isolated command is not to find. `None`: it is not isolated.
    pub shut_out_of: Option<Vec<PathBuf>>,
    pub project: PathBuf,
    pub directory: PathBuf,
    pub command: Vec<OsString>,
    pub session: String,
    /// The directory of the scripts by which shells report what they have changed.
    pub shells: Option<PathBuf>,
}

impl Inside {
    /// Runs the command and returns only if that fails, with the exit status; under isolation, always.
    pub fn be_the_command(&self, foreground: &Foreground) -> i32 {
        let done = self.enter().and_then(|()| match &self.shut_out_of {
            Some(hidden) => self.be_isolated(hidden, foreground),
            None => self.exec(foreground),
        });
        or_told(done)
    }

    fn enter(&self) -> io::Result<()> {
        let doing = |err: io::Error| io::Error::new(err.kind(), format!("go into the view: {err}"));
        self.go_in().map_err(doing)
    }

    fn go_in(&self) -> io::Result<()> {
        match &self.way {
            Way::Enter(keeper) => {
                namespace::enter(*keeper)?;
                namespace::copy_mounts()?;
            }
            // In a user namespace of its own this user's set-uid programs would not work.
            Way::Cover { view, project } if view == project && self.shut_out_of.is_none() && !is_root() => {
                return Ok(());
            }
            Way::Cover { view, project } => {
                namespace::leave_mounts()?;
                // Also over itself: if the mount for everyone is unmounted, this one stays and keeps the project covered.
                rustix::mount::mount_bind_recursive(view, project)?;
            }
        }
        self.cover_aliases()
    }

    /// Where the project's file system is mounted a second time, the view is there, too.
    fn cover_aliases(&self) -> io::Result<()> {
        for Alias { place, within } in mount::aliases(&self.project)? {
            match rustix::mount::mount_bind_recursive(self.project.join(within), &place) {
                // The view shows nothing of it, or something else.
                Err(Errno::NOENT | Errno::NOTDIR) => isolation::cover(&place)?,
                covered => covered?,
            }
        }
        Ok(())
    }

    /// Waits for the first process of a pid namespace, where everything ends with the run: no one outside would find it.
    fn be_isolated(&self, hidden: &[PathBuf], foreground: &Foreground) -> io::Result<i32> {
        let failed = |err: io::Error| io::Error::new(err.kind(), format!("isolate the command: {err}"));
        inherited::close_directories().map_err(failed)?;
        namespace::leave_pids().and_then(|()| isolation::end_with_parent()).map_err(failed)?;
        let first = foreground.start(|| self.be_the_first(hidden, foreground)).map_err(failed)?;
        status_of(foreground, first)
    }

    /// The first process: waits for the command, and reaps every process that loses its parent.
    fn be_the_first(&self, hidden: &[PathBuf], foreground: &Foreground) -> i32 {
        let shut_in = isolation::shut_in(hidden);
        let shut_in = shut_in.map_err(|err| io::Error::new(err.kind(), format!("isolate the command: {err}")));
        or_told(shut_in.and_then(|()| {
            let command = foreground.start(|| or_told(self.exec(foreground)))?;
            status_of(foreground, command)
        }))
    }

    fn exec(&self, foreground: &Foreground) -> io::Result<i32> {
        let Some((program, arguments)) = self.command.split_first() else { return Ok(NOT_FOUND) };
        if let Err(err) = std::env::set_current_dir(&self.directory) {
            let directory = self.directory.display();
            return Err(io::Error::new(err.kind(), format!("go to {directory} in the view: {err}")));
        }
        self.check_covered()?;
        foreground.hand_signals_back()?;
        if program.is_empty() {
            say("the command's name is empty: there is no such command");
            return Ok(NOT_FOUND);
        }
        let mut command = Command::new(program);
        command.args(arguments).env(RUN_VARIABLE, &self.session);
        self.say_where(&mut command);
        self.lead_git_out(&mut command);
        self.have_shells_tell(&mut command);
        let err = command.exec();
        say(format_args!("{}: {err}", program.to_string_lossy().escape_debug()));
        Ok(if err.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_RUNNABLE })
    }
}

impl Inside {
    /// Whatever was mounted or moved meanwhile: no command begins where nobody reviews what it writes.
    fn check_covered(&self) -> io::Result<()> {
        let top = mount_at(&self.project)?;
        if top.is_some_and(|mount| mount.fs_type == FS_TYPE) {
            return Ok(());
        }
        Err(io::Error::other(format!("{} is not covered by the view here: nothing was run", self.project.display())))
    }

    /// Lets git find a repository of which the project is only a directory: it stops at a mount otherwise.
    fn lead_git_out(&self, command: &mut Command) {
        if repository::above(&self.project).is_ok_and(|above| above.is_some()) {
            command.env("GIT_DISCOVERY_ACROSS_FILESYSTEM", "1");
        }
    }

    /// Corrects `PWD`, unless it leads to the working directory already: it then keeps the links it goes by.
    fn say_where(&self, command: &mut Command) {
        let named = std::env::var_os("PWD").and_then(|named| std::fs::canonicalize(named).ok());
        if named.as_ref() != Some(&self.directory) {
            command.env("PWD", &self.directory);
        }
    }

    /// Every bash that is not interactive reads the file that the one variable names, every zsh a file in the directory
    /// that the other names. Our scripts then read the user's own.
    fn have_shells_tell(&self, command: &mut Command) {
        let Some(directory) = &self.shells else { return };
        command.env(COMMAND_VARIABLE, std::process::id().to_string()).env_remove(TELLS_VARIABLE);
        put_before(command, BASH_VARIABLES, directory.join(BASH_SCRIPT));
        put_before(command, ZSH_VARIABLES, directory.clone());
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn put_before(command: &mut Command, [variable, kept]: [&str; 2], value: PathBuf) {
    match std::env::var_os(variable) {
        // Set by a run around this one, of whatever project, which has already kept the user's own.
        Some(runs) if is_a_runs(Path::new(&runs)) => {}
        Some(own) => {
            command.env(kept, own);
        }
        None => {
            command.env_remove(kept);
        }
    }
    command.env(variable, value);
}

fn is_a_runs(path: &Path) -> bool {
    let shells = Path::new(STATE_DIRECTORY).join(SHELL_DIRECTORY);
    path.ends_with(&shells) || path.ends_with(shells.join(BASH_SCRIPT))
}

/// Returns the command's status, or prints our own failure and returns its status.
fn or_told(status: io::Result<i32>) -> i32 {
    status.unwrap_or_else(|err| {
        say(err);
        i32::from(OWN_FAILURE)
    })
}

fn status_of(foreground: &Foreground, front: crate::sys::foreground::Front) -> io::Result<i32> {
    loop {
        if let Happened::Ended(status) = foreground.wait(front, None, None)? {
            return Ok(status);
        }
    }
}
