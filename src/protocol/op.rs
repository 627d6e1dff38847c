//! The operations, and the fields that each takes.

/// One operation of the control protocol (SPEC §11).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    Status,
    Diff,
    Confirm,
    Discard,
    Rollback,
    Undo,
    Backups,
    Log,
    Blame,
    Events,
    External,
    Fsck,
    Reload,
    Read,
    Meter,
    Patch,
    Check,
    /// Asks for a decision by someone who may make it.
    RequestReview,
    Flush,
    Unmount,
    /// Begins a run: what the asker starts from here on belongs to it.
    Run,
    /// Ends the asker's run.
    Leave,
    Version,
}

/// Each operation's name and the fields it takes besides `v` and `op`. Any other field is refused: an operation that acts
/// must never ignore `dry_run`.
const OPS: [(Op, &str, &[&str]); 23] = [
    (Op::Status, "status", &["all", "offset", "limit"]),
    (Op::Diff, "diff", &["ids", "paths", "args", "all", "binary", "offset", "limit", "told"]),
    (
        Op::Confirm,
        "confirm",
        &["ids", "paths", "args", "all", "operation", "session", "hunks", "force", "wait", "renew", "dry_run"],
    ),
    (Op::Discard, "discard", &["ids", "paths", "args", "all", "operation", "session", "hunks", "dry_run"]),
    (Op::Rollback, "rollback", &["name", "path", "path_b64", "args", "to", "to_b64", "force", "dry_run"]),
    (Op::Undo, "undo", &["operation", "force", "dry_run"]),
    (Op::Backups, "backups", &["name", "paths", "args", "offset", "limit"]),
    (Op::Log, "log", &["paths", "args", "operation", "session", "offset", "limit"]),
    (Op::Blame, "blame", &["path", "path_b64", "offset", "limit"]),
    (Op::Events, "events", &["since", "session", "limit", "wait", "timeout"]),
    (Op::External, "external", &["paths", "args", "offset", "limit"]),
    (Op::Fsck, "fsck", &["offset", "limit"]),
    (Op::Reload, "reload", &["dry_run"]),
    (Op::Read, "read", &["path", "path_b64", "session", "reset", "offset", "limit"]),
    (Op::Meter, "meter", &["session", "reset"]),
    (Op::Patch, "patch", &["files", "session", "dry_run"]),
    (Op::Check, "check", &["phase", "name", "tested", "status"]),
    (Op::RequestReview, "request_review", &["ids", "paths", "args", "all", "name"]),
    (Op::Flush, "flush", &["wait", "timeout"]),
    (Op::Unmount, "unmount", &["held", "timeout", "force", "dry_run"]),
    (Op::Run, "run", &["name"]),
    (Op::Leave, "leave", &[]),
    (Op::Version, "version", &[]),
];

impl Op {
    pub fn from_name(name: &str) -> Option<Self> {
        OPS.iter().find(|(_, known, _)| *known == name).map(|(op, ..)| *op)
    }

    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// The fields that this operation takes besides `v` and `op`.
    pub fn fields(self) -> &'static [&'static str] {
        self.row().2
    }

    fn row(self) -> &'static (Op, &'static str, &'static [&'static str]) {
        OPS.iter().find(|(op, ..)| *op == self).expect("every operation has a row in the table")
    }
}

impl std::fmt::Display for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
