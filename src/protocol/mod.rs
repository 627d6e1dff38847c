//! The messages between clients and the daemon, as values for JSON. `docs/PROTOCOL.md` describes them for people.
//!
//! Nothing here does I/O or reads a clock. Malformed requests are refused here; whether a request is permitted or
//! possible is decided elsewhere. Begin with [`Request::parse`] and [`Response`].

mod blame;
mod check;
mod error;
mod event;
mod op;
mod page;
mod patch;
mod patch_text;
mod reading;
mod reply;
mod request;
mod response;
mod status;
#[cfg(test)]
pub(crate) mod tests;
mod words;

pub use blame::{BlameReply, BlameSpan, BlamedOn, LineOrigin};
pub use check::{CheckPhase, CheckReply, ReviewReply};
pub use error::{ErrorBody, ErrorCode, Exit, refused_at};
pub use event::{DELETED, Event, EventName, NEW_FILE, Program, last_of_each_path, tells_of_removal};
pub use op::Op;
pub use page::{Cut, DiffCut, Page, page};
pub use patch::{FilePatch, PATCH_FILES_MAX, PATCH_HUNKS_MAX, PATCH_MATCHES_MAX, PatchHunk, PatchReply, parse_patch};
pub use reading::{Meter, MeterCounts, MeterReply, ReadForm, ReadReply};
pub use reply::{
    Acted, Action, BackupsReply, ChangeDiff, Counts, DaemonVersion, DiffReply, DiffText, DirPath, EventsReply,
    ExternalReply, FlushReply, FsckReply, LeaveReply, LogReply, Note, Outcome, Problem, ProjectFile, ProjectPath,
    ReloadReply, RunReply, UnmountReply, VersionReply,
};
pub use request::{HeldAtUnmount, ProtocolError, Request, Target};
pub use response::{Reply, Response, ResponseError, is_whole};
pub use status::{Also, Backup, Counters, External, ExternalKind, Held, Run, Status, Writer, WritingNow};

/// The version of the protocol that this program speaks (`"v":1`).
pub const VERSION: u64 = 1;

/// The largest request, so that a client can neither fill the daemon's memory nor need more than one write (SPEC §11).
pub const REQUEST_BYTES_MAX: usize = 64 << 10;

/// How much of a command a run or a check is named by.
const NAME_CHARACTERS_MAX: usize = 200;

/// The beginning of a command, which may be longer than any request. Only people read it.
pub fn name_of(words: &str) -> String {
    words.chars().take(NAME_CHARACTERS_MAX).collect()
}

/// The largest reply line, end of line included (SPEC §11). Longer answers come in pages.
pub const REPLY_BYTES_MAX: usize = 8 << 20;

/// Names under which clients reach a daemon: the view's virtual file, and the socket in the state directory.
pub const STATE_DIRECTORY: &str = ".fettle";
/// The variable that says where the state directory is to be.
pub const STATE_VARIABLE: &str = "FETTLE_STATE_DIR";
pub const CONTROL_FILE: &str = "control";
pub const CONTROL_SOCKET: &str = "control.sock";
/// A file that every state directory has, and no other directory under that name.
pub const INSTANCE_FILE: &str = "instance";
/// Where the view keeps the files that shells read by themselves.
pub const SHELL_DIRECTORY: &str = "shell";
pub const BASH_SCRIPT: &str = "effects.bash";
/// The name that zsh looks for if `ZDOTDIR` is that directory.
pub const ZSH_SCRIPT: &str = ".zshenv";

/// A symlink to the project, in a state directory outside of it. Without it a client below a subdirectory of the project
/// could not tell what its relative paths are relative to.
pub const PROJECT_LINK: &str = "project";
