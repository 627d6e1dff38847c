//! What a run of the program printed and how it ended.

use std::os::unix::process::ExitStatusExt;
use std::process;

use serde_json::Value;

/// A finished run. The texts are lossy; `stdout_bytes` has what was really printed.
#[derive(Debug)]
pub struct Output {
    /// The exit status, or 128 and the signal's number, as a shell counts.
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
    pub stdout_bytes: Vec<u8>,
}

impl Output {
    /// The same output, when the run succeeded; panics with everything printed when it did not.
    #[track_caller]
    pub fn ok(self) -> Self {
        self.exits(0)
    }

    #[track_caller]
    pub fn exits(self, status: i32) -> Self {
        assert_eq!(self.status, status, "exit status\nstdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Standard output as one JSON value, whatever the exit status (errors are JSON, too).
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout_bytes).unwrap_or_else(|err| {
            panic!("not JSON: {err}\nstatus {}\nstdout:\n{}\nstderr:\n{}", self.status, self.stdout, self.stderr)
        })
    }

    /// The `code` of a `--json` error.
    #[track_caller]
    pub fn error_code(&self) -> String {
        let json = self.json();
        json["error"]["code"].as_str().unwrap_or_else(|| panic!("no error code in {json}")).to_owned()
    }
}

impl From<process::Output> for Output {
    fn from(output: process::Output) -> Self {
        let by_signal = || output.status.signal().map_or(-1, |signal| 128 + signal);
        Self {
            status: output.status.code().unwrap_or_else(by_signal),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            stdout_bytes: output.stdout,
        }
    }
}

/// One entry of `held` in `status --json` (SPEC §17).
#[derive(Debug, Clone, PartialEq)]
pub struct Held {
    pub id: String,
    pub path: String,
    pub kind: String,
    pub reason: String,
    pub insertions: u64,
    pub deletions: u64,
    /// The whole entry, for the fields a test seldom asks for.
    pub json: Value,
}

impl Held {
    /// The entries of `held` in a status document.
    #[track_caller]
    pub fn all_in(status: &Value) -> Vec<Self> {
        let held = status["held"].as_array().unwrap_or_else(|| panic!("no `held` in {status}"));
        held.iter().map(Self::from_json).collect()
    }

    fn from_json(json: &Value) -> Self {
        let text = |field: &str| json[field].as_str().unwrap_or_default().to_owned();
        Self {
            id: text("id"),
            path: text("path"),
            kind: text("kind"),
            reason: text("reason"),
            insertions: json["insertions"].as_u64().unwrap_or_default(),
            deletions: json["deletions"].as_u64().unwrap_or_default(),
            json: json.clone(),
        }
    }
}
