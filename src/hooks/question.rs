//! The question to a program: one JSON object on its standard input.

use serde::Serialize;

use crate::model::{ChangeKind, Digest, Reason, RelPath};

/// A change that was judged and has not been acted on.
#[derive(Clone, Debug)]
pub struct Question {
    pub project: String,
    pub path: RelPath,
    pub kind: ChangeKind,
    /// Set if the change comes by a rename over the path: the path it is renamed from.
    pub from: Option<RelPath>,
    /// What becomes of the change if nobody objects.
    pub tier: Tier,
    pub reasons: Vec<Reason>,
    pub counts: Option<Counts>,
    /// The size of the new content; `None` if there is none.
    pub bytes: Option<u64>,
    /// The hash of the new content: an answer about one content holds for no other, however similar their questions look.
    pub sha256: Option<Digest>,
    /// The whole unified diff.
    pub diff: Vec<u8>,
    pub pid: u32,
    pub uid: u32,
    pub exe: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    Land,
    Hold,
}

/// Lines, as the tier counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    pub insertions: u64,
    pub deletions: u64,
    pub old_lines: u64,
}

/// The most lines of diff that a program is sent, and the most bytes: one line may be the whole file.
const DIFF_LINES_MAX: usize = 200;
const DIFF_BYTES_MAX: usize = 128 << 10;

/// The version of the question's JSON object.
const VERSION: u64 = 1;

#[derive(Serialize)]
struct Asked<'a> {
    v: u64,
    op: &'a str,
    project: &'a str,
    #[serde(flatten)]
    path: &'a RelPath,
    from: Option<String>,
    tier: Tier,
    reasons: &'a [Reason],
    insertions: Option<u64>,
    deletions: Option<u64>,
    old_lines: Option<u64>,
    bytes: Option<u64>,
    sha256: Option<Digest>,
    diff: String,
    /// Lines of the diff that were left out.
    diff_omitted: u64,
    pid: u32,
    uid: u32,
    exe: Option<&'a str>,
}

impl Question {
    pub(super) fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        let (diff, diff_omitted) = shortened(&self.diff);
        let mut json = serde_json::to_vec(&Asked {
            v: VERSION,
            op: if self.from.is_some() { "rename" } else { self.kind.name() },
            project: &self.project,
            path: &self.path,
            from: self.from.as_ref().map(RelPath::to_string),
            tier: self.tier,
            reasons: &self.reasons,
            insertions: self.counts.map(|counts| counts.insertions),
            deletions: self.counts.map(|counts| counts.deletions),
            old_lines: self.counts.map(|counts| counts.old_lines),
            bytes: self.bytes,
            sha256: self.sha256,
            diff,
            diff_omitted,
            pid: self.pid,
            uid: self.uid,
            exe: self.exe.as_deref(),
        })?;
        json.push(b'\n');
        Ok(json)
    }
}

/// Returns the part of a diff that is sent, and how many lines are omitted. A line that is cut counts as sent.
fn shortened(diff: &[u8]) -> (String, u64) {
    let lines: Vec<&[u8]> = diff.split_inclusive(|byte| *byte == b'\n').collect();
    let mut sent = Vec::new();
    let mut count = 0;
    for line in lines.iter().take(DIFF_LINES_MAX) {
        let room = DIFF_BYTES_MAX - sent.len();
        if room == 0 {
            break;
        }
        sent.extend_from_slice(&line[..line.len().min(room)]);
        count += 1;
    }
    (String::from_utf8_lossy(&sent).into_owned(), (lines.len() - count) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(diff: &[u8]) -> Question {
        Question {
            project: "/p".to_owned(),
            path: RelPath::parse(b"src/a.rs").expect("a path"),
            kind: ChangeKind::Modify,
            from: None,
            tier: Tier::Land,
            reasons: vec![],
            counts: Some(Counts { insertions: 3, deletions: 2, old_lines: 45 }),
            bytes: Some(17),
            sha256: Some(Digest::of(b"new")),
            diff: diff.to_owned(),
            pid: 7,
            uid: 1000,
            exe: Some("/usr/bin/python3".to_owned()),
        }
    }

    fn asked(question: &Question) -> serde_json::Value {
        serde_json::from_slice(&question.to_json().expect("JSON")).expect("JSON")
    }

    #[test]
    fn a_question_has_these_fields() {
        let want = serde_json::json!({
            "v": 1, "op": "modify", "project": "/p", "path": "src/a.rs", "from": null, "tier": "land", "reasons": [],
            "insertions": 3, "deletions": 2, "old_lines": 45, "bytes": 17, "sha256": Digest::of(b"new").to_string(),
            "diff": "-a\n+b\n", "diff_omitted": 0, "pid": 7, "uid": 1000, "exe": "/usr/bin/python3",
        });
        assert_eq!(asked(&question(b"-a\n+b\n")), want);
        let renamed = Question { from: Some(RelPath::parse(b"tmp").expect("a path")), ..question(b"") };
        assert_eq!((&asked(&renamed)["op"], &asked(&renamed)["from"]), (&"rename".into(), &"tmp".into()));
        let held = Question { tier: Tier::Hold, reasons: vec![Reason::Size], ..question(b"") };
        assert_eq!(asked(&held)["reasons"], serde_json::json!(["size"]));
    }

    #[test]
    fn a_long_diff_is_cut_by_lines_and_by_bytes() {
        let long = asked(&question("+x\n".repeat(1234).as_bytes()));
        assert_eq!(long["diff"].as_str().map(|diff| diff.lines().count()), Some(DIFF_LINES_MAX));
        assert_eq!(long["diff_omitted"], 1034);
        let wide = asked(&question(format!("+{}\n+y\n", "é".repeat(1 << 20)).as_bytes()));
        assert!(wide["diff"].as_str().is_some_and(|diff| diff.len() <= DIFF_BYTES_MAX + 2), "cut within a character");
        assert_eq!(wide["diff_omitted"], 1);
    }
}
