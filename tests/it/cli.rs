//! The command line by whole outputs: every command, in words and as JSON, through every door.
//!
//! Outputs are written as transcripts: `$ arguments`, what was printed (stderr after `! `), `=> exit status`; ids, times
//! and places are named. [`Desk`] is the project they are about: one rewrite and one deletion held, one edit landed.

mod bursts;
mod completions;
mod doctor;
mod events;
mod fsck;
mod hunks;
mod init;
mod offline;
mod refusals;
mod rollbacks;
mod targets;
pub mod terminal;
mod trust;
mod undo;

use std::io::Write;

use crate::harness::{Mounting, Output, Scratch, View, mounted_scratch, normalise};

/// What was printed, in one text, with everything named that differs from run to run.
pub struct Transcript<'s> {
    scratch: &'s Scratch,
    text: String,
}

impl<'s> Transcript<'s> {
    pub fn new(scratch: &'s Scratch) -> Self {
        Self { scratch, text: String::new() }
    }

    /// Adds `output` as the answer to `arguments`.
    pub fn add(&mut self, arguments: &[&str], output: &Output) {
        self.text.push_str(&format!("$ {}\n{}", arguments.join(" "), output.stdout));
        for line in output.stderr.lines() {
            self.text.push_str(&format!("! {line}\n"));
        }
        self.text.push_str(&format!("=> {}\n", output.status));
    }

    pub fn text(&self) -> String {
        named(self.scratch, &self.text)
    }
}

/// All of `commands`, one a line with words apart at blanks, asked through `run`.
pub fn transcript(scratch: &Scratch, commands: &[&str], run: impl Fn(&[&str]) -> Output) -> String {
    let mut transcript = Transcript::new(scratch);
    for command in commands {
        let arguments: Vec<&str> = command.split(' ').collect();
        transcript.add(&arguments, &run(&arguments));
    }
    transcript.text()
}

/// One output, normalised.
pub fn told(scratch: &Scratch, output: &Output) -> String {
    let mut transcript = Transcript::new(scratch);
    transcript.add(&["…"], output);
    let text = transcript.text();
    text.strip_prefix("$ …\n").expect("the head just added").to_owned()
}

/// As [`Scratch::normalise`], and ages, moments, sessions and the tester's uid.
pub fn named(scratch: &Scratch, text: &str) -> String {
    let mut out = String::new();
    for line in text.split_inclusive('\n') {
        out.push_str(&session_named(&uid_named(&exe_named(&program_named(&moment_named(&age_named(line)))))));
    }
    normalise(&out, &[("[project]", &scratch.project()), ("[scratch]", scratch.root())])
}

/// Programs by whom something was written: as `log` and `show` tell them, and as JSON does.
fn program_named(line: &str) -> String {
    if line.starts_with("Written: ") {
        return "Written: [cmdline]\n".to_owned();
    }
    let end = |rest: &str| rest.find("  ").unwrap_or(rest.trim_end().len());
    match (line.split_once("by /"), line.split_once(", /").filter(|(before, _)| before.starts_with("Writer: "))) {
        (Some((before, rest)), _) => format!("{before}by [exe]{}", &rest[end(rest)..]),
        (None, Some((before, _))) => format!("{before}, [exe]\n"),
        (None, None) => ["\"opened_by\":", "\"written_by\":"].iter().fold(line.to_owned(), |line, field| {
            let pieces: Vec<&str> = line.split(field).collect();
            let rests = pieces[1..].iter().map(|rest| format!("{field}[program]{}", &rest[value_len(rest)..]));
            std::iter::once(pieces[0].to_owned()).chain(rests).collect()
        }),
    }
}

/// How long the JSON value is with which a text begins.
fn value_len(json: &str) -> usize {
    let mut values = serde_json::Deserializer::from_str(json).into_iter::<serde_json::Value>();
    values.next().expect("a value").expect("that is JSON");
    values.byte_offset()
}

/// `"exe":…` of a writer, which the kernel may not tell.
fn exe_named(line: &str) -> String {
    const FIELD: &str = "\"exe\":";
    match line.split_once(FIELD) {
        Some((before, rest)) => {
            let end = rest.find([',', '}']).unwrap_or(rest.len());
            format!("{before}{FIELD}[exe]{}", exe_named(&rest[end..]))
        }
        None => line.to_owned(),
    }
}

/// `12s ago` as `[age]`.
fn age_named(line: &str) -> String {
    let Some(end) = line.find(" ago") else { return line.to_owned() };
    let start = line[..end].rfind(|c: char| !c.is_ascii_alphanumeric()).map_or(0, |at| at + 1);
    format!("{}[age]{}", &line[..start], age_named(&line[end + " ago".len()..]))
}

/// `2026-03-12 14:30:22Z` at the beginning of a line, as the log has it.
fn moment_named(line: &str) -> String {
    match line.get(..20).filter(|time| time.ends_with('Z') && time.as_bytes()[10] == b' ') {
        Some(_) => format!("[time]{}", &line[20..]),
        None => line.to_owned(),
    }
}

fn uid_named(line: &str) -> String {
    let uid = rustix::process::getuid().as_raw();
    line.replace(&format!("\"uid\":{uid}"), "\"uid\":[uid]").replace(&format!(", uid {uid}"), ", uid [uid]")
}

/// `"session":"…"` and `"since_session":"…"`.
fn session_named(line: &str) -> String {
    const FIELD: &str = "session\":\"";
    match line.split_once(FIELD) {
        Some((before, rest)) => {
            let rest = rest.split_once('"').map_or(rest, |(_, rest)| rest);
            format!("{before}{FIELD}[session]\"{}", session_named(rest))
        }
        None => line.to_owned(),
    }
}

/// The thresholds that let files of three lines show everything: two changed lines land, four are held.
pub const SMALL: [&str; 4] = ["--floor", "2", "--ceil", "4"];

/// Three lines.
pub const OLD: &str = "one\ntwo\nthree\n";
/// All of them changed, which is held.
pub const NEW: &str = "ONE\nTWO\nTHREE\n";
/// One of them changed, which lands.
pub const EDITED: &str = "one\ntwo\n3\n";

/// Mounts a project of files that are [`OLD`], by flags under which small files show everything.
pub fn small<'s>(scratch: &'s Scratch) -> Mounting<'s> {
    for path in ["src/a.rs", "src/b.rs", "notes.txt", "c.txt", "d.txt"] {
        scratch.write(path, OLD);
    }
    // Said in `status`, so not left to how the suite is run.
    let mounting = scratch.mounting().flag("-o").flag("passthrough");
    SMALL.iter().fold(mounting, |mounting, flag| mounting.flag(flag))
}

/// `src/a.rs` is rewritten and held, `src/b.rs` deleted and held, `notes.txt` edited and landed: by a program each, so that
/// they are no operation together.
#[track_caller]
pub fn work(view: &View<'_>) {
    for command in
        [format!("printf '{NEW}' > src/a.rs"), "rm src/b.rs".to_owned(), format!("printf '{EDITED}' > notes.txt")]
    {
        view.sh(&command).ok();
    }
    view.assert_landed("notes.txt", EDITED);
}

/// A commit can carry what the project does not have yet, in whatever directory.
#[test]
fn status_tells_which_held_content_git_has_committed_already() {
    const COMMIT: &str = "git add -A && git -c user.name=a -c user.email=a@example.org commit -qm one";
    let scratch = mounted_scratch!();
    for path in ["deep/er/a.rs", "deep/er/b.rs", "deep/er/gone.rs", "deep/er/left.rs", "never.rs"] {
        scratch.write(path, OLD);
    }
    let mounting = small(&scratch);
    scratch.git(&["init", "-q"]).ok();
    scratch.write(".git/info/exclude", "never.rs\n");
    let view = mounting.start();
    view.sh(COMMIT).ok();
    view.sh(&format!("printf '{NEW}' > deep/er/a.rs; printf '{NEW}' > c.txt; rm deep/er/gone.rs; {COMMIT}")).ok();
    view.sh(&format!("printf '{NEW}' > deep/er/b.rs; rm deep/er/left.rs; rm src/b.rs never.rs")).ok();
    let told = view.status();
    let held = told["held"].as_array().expect("what is held");
    let of = |wanted: bool| -> Vec<&str> {
        let those = held.iter().filter(|held| held["in_head"] == wanted);
        those.filter_map(|held| held["path"].as_str()).collect()
    };
    assert_eq!(of(true), ["c.txt", "deep/er/a.rs", "deep/er/gone.rs"]);
    assert_eq!(of(false), ["deep/er/b.rs", "deep/er/left.rs", "never.rs", "src/b.rs"]);
    view.unmount();
}

/// The id of what is held at `path`.
#[track_caller]
pub fn id_of(view: &View<'_>, path: &str) -> String {
    let held = view.held();
    held.iter().find(|held| held.path == path).unwrap_or_else(|| panic!("{path} is not held: {held:#?}")).id.clone()
}

/// Commands that only look, whose answers do not depend on who asks.
const LOOKS: [&str; 8] = ["status", "show src/b.rs", "diff", "backups", "log", "external", "flush", "reload --dry-run"];

const LOOKS_IN_WORDS: &str = "\
$ status
fettlefs: [project] mounted (pid [pid]); 1 landed, 2 held

Held for review:
  [id1]  src/a.rs  +3 -3  200%  size  [age]
  [id2]  src/b.rs  +0 -3  100%  size  [age]  [delete]

  fettlefs diff ID            see what would change
  fettlefs confirm ID         land it in the project
  fettlefs discard ID         drop it from the view
=> 0
$ show src/b.rs
change [id2]
Path:    src/b.rs
Kind:    delete, +0 -3 (100% of 3 lines)
Reason:  size
Writer:  pid [pid], uid [uid], [exe]
Written: [cmdline]
Held:    [time] ([age])

diff --git a/src/b.rs b/src/b.rs
deleted file mode 100644
--- a/src/b.rs
+++ /dev/null
@@ -1,3 +0,0 @@
-one
-two
-three

=> 0
$ diff
diff --git a/src/a.rs b/src/a.rs
--- a/src/a.rs
+++ b/src/a.rs
@@ -1,3 +1,3 @@
-one
-two
-three
+ONE
+TWO
+THREE
diff --git a/src/b.rs b/src/b.rs
deleted file mode 100644
--- a/src/b.rs
+++ /dev/null
@@ -1,3 +0,0 @@
-one
-two
-three
=> 0
$ backups
notes.txt.[time]  notes.txt  14B  landed  [age]
=> 0
$ log
[time]  session started
[time]  write held         [id1]  src/a.rs  +3 -3  size  by [exe]
[time]  write held         [id2]  src/b.rs  +0 -3  size  by [exe]
[time]  write landed       notes.txt  +1 -1  by [exe]  [op]
=> 0
$ external
=> 0
$ flush
=> 0
$ reload --dry-run
fettlefs: Would reload the settings
=> 0
";

const LOOKS_IN_JSON: &str = r#"$ status --json
{"v":1,"ok":true,"op":"status","schema":"fettlefs.status/1","project":"[project]","mountpoint":"[project]","mounted":true,"pid":[pid],"session":"[session]","seq":4,"held":[{"id":"[id1]","path":"src/a.rs","kind":"modify","also":[],"reason":"size","insertions":3,"deletions":3,"old_lines":3,"ratio":2.0,"hunks":1,"base_sha256":"[sha256]","new_sha256":"[sha256]","externally_modified":false,"expired":false,"operation":null,"writer":{"pid":[pid],"exe":[exe],"uid":[uid]},"session":"[session]","since_session":"[session]","opened_by":[program],"written_by":[program],"created":"[time]","in_head":false},{"id":"[id2]","path":"src/b.rs","kind":"delete","also":[],"reason":"size","insertions":0,"deletions":3,"old_lines":3,"ratio":1.0,"hunks":1,"base_sha256":"[sha256]","new_sha256":null,"externally_modified":false,"expired":false,"operation":null,"writer":{"pid":[pid],"exe":[exe],"uid":[uid]},"session":"[session]","since_session":"[session]","opened_by":[program],"written_by":[program],"created":"[time]","in_head":false}],"external":[],"backups":[{"name":"notes.txt.[time]","path":"notes.txt","kind":"landed","size":14,"sha256":"[sha256]","created":"[time]","by":{"pid":[pid],"exe":[exe],"uid":[uid]}}],"writers":[],"counters":{"landed":1,"held":2,"denied":0},"passthrough":true,"rings":false,"readonly":null}
=> 0
$ show src/b.rs --json
{"v":1,"ok":true,"op":"diff","changes":[{"id":"[id2]","path":"src/b.rs","kind":"delete","also":[],"reason":"size","insertions":0,"deletions":3,"old_lines":3,"ratio":1.0,"hunks":1,"base_sha256":"[sha256]","new_sha256":null,"externally_modified":false,"expired":false,"operation":null,"writer":{"pid":[pid],"exe":[exe],"uid":[uid]},"session":"[session]","since_session":"[session]","opened_by":[program],"written_by":[program],"created":"[time]","in_head":false,"diff":"diff --git a/src/b.rs b/src/b.rs\ndeleted file mode 100644\n--- a/src/b.rs\n+++ /dev/null\n@@ -1,3 +0,0 @@\n-one\n-two\n-three\n"}]}
=> 0
$ diff --json
{"v":1,"ok":true,"op":"diff","changes":[{"id":"[id1]","path":"src/a.rs","kind":"modify","also":[],"reason":"size","insertions":3,"deletions":3,"old_lines":3,"ratio":2.0,"hunks":1,"base_sha256":"[sha256]","new_sha256":"[sha256]","externally_modified":false,"expired":false,"operation":null,"writer":{"pid":[pid],"exe":[exe],"uid":[uid]},"session":"[session]","since_session":"[session]","opened_by":[program],"written_by":[program],"created":"[time]","in_head":false,"diff":"diff --git a/src/a.rs b/src/a.rs\n--- a/src/a.rs\n+++ b/src/a.rs\n@@ -1,3 +1,3 @@\n-one\n-two\n-three\n+ONE\n+TWO\n+THREE\n"},{"id":"[id2]","path":"src/b.rs","kind":"delete","also":[],"reason":"size","insertions":0,"deletions":3,"old_lines":3,"ratio":1.0,"hunks":1,"base_sha256":"[sha256]","new_sha256":null,"externally_modified":false,"expired":false,"operation":null,"writer":{"pid":[pid],"exe":[exe],"uid":[uid]},"session":"[session]","since_session":"[session]","opened_by":[program],"written_by":[program],"created":"[time]","in_head":false,"diff":"diff --git a/src/b.rs b/src/b.rs\ndeleted file mode 100644\n--- a/src/b.rs\n+++ /dev/null\n@@ -1,3 +0,0 @@\n-one\n-two\n-three\n"}]}
=> 0
$ backups --json
{"v":1,"ok":true,"op":"backups","backups":[{"name":"notes.txt.[time]","path":"notes.txt","kind":"landed","size":14,"sha256":"[sha256]","created":"[time]","by":{"pid":[pid],"exe":[exe],"uid":[uid]}}]}
=> 0
$ external --json
{"v":1,"ok":true,"op":"external","external":[]}
=> 0
$ flush --json
{"v":1,"ok":true,"op":"flush","outcomes":[],"writers":[]}
=> 0
$ reload --dry-run --json
{"v":1,"ok":true,"op":"reload","notices":[],"dry_run":true}
=> 0
"#;

/// The same as JSON, but for the log, whose events have a test of their own.
fn looks_for_json() -> Vec<String> {
    LOOKS.iter().filter(|command| **command != "log").map(|command| format!("{command} --json")).collect()
}

#[test]
fn every_door_gives_the_same_answers_in_words_and_in_json() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    work(&view);
    let in_view = |arguments: &[&str]| view.cli(arguments);
    let outside = |arguments: &[&str]| scratch.cli(arguments);
    let with_directory_last = |arguments: &[&str]| {
        let project = scratch.project();
        let mut command = scratch.fettlefs();
        command.current_dir(scratch.root()).args(arguments).arg("-C").arg(project);
        command.output().expect("the built program runs").into()
    };
    let json = looks_for_json();
    let json: Vec<&str> = json.iter().map(String::as_str).collect();
    for door in [&in_view as &dyn Fn(&[&str]) -> Output, &outside, &with_directory_last] {
        assert_eq!(transcript(&scratch, &LOOKS, door), LOOKS_IN_WORDS);
        assert_eq!(transcript(&scratch, &json, door), LOOKS_IN_JSON);
    }
}

#[test]
fn in_a_view_elsewhere_the_projects_own_path_names_the_same() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).at("view").start();
    work(&view);
    let path = scratch.project().join("src/a.rs");
    let path = path.to_str().expect("a plain path");
    let diff = view.cli(&["diff", "src/a.rs"]).ok().stdout;
    assert_eq!(view.cli(&["diff", path]).ok().stdout, diff);
    view.cli(&["confirm", path]).ok();
    assert_eq!(scratch.read("src/a.rs"), NEW.replace("\\n", "\n"));
}

#[test]
fn a_mount_elsewhere_answers_in_its_view_and_in_the_project_below() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).at("view").start();
    work(&view);
    let elsewhere = LOOKS_IN_WORDS.replace("[project] mounted", "[project] mounted on [scratch]/view");
    let elsewhere_json = LOOKS_IN_JSON.replace(r#""mountpoint":"[project]""#, r#""mountpoint":"[scratch]/view""#);
    let json = looks_for_json();
    let json: Vec<&str> = json.iter().map(String::as_str).collect();
    let socket = |arguments: &[&str]| scratch.cli(arguments);
    for door in [&(|arguments: &[&str]| view.cli(arguments)) as &dyn Fn(&[&str]) -> Output, &socket] {
        assert_eq!(transcript(&scratch, &LOOKS, door), elsewhere);
        assert_eq!(transcript(&scratch, &json, door), elsewhere_json);
    }
    // What acts goes through the socket as well.
    let acts = ["confirm src/a.rs --dry-run", "confirm src/a.rs", "discard src/b.rs", "rollback src/a.rs"];
    assert_eq!(
        transcript(&scratch, &acts, socket),
        "\
$ confirm src/a.rs --dry-run
fettlefs: Would apply src/a.rs (14B, 3 lines, +3 -3 ~3)
=> 0
$ confirm src/a.rs
fettlefs: Applied src/a.rs (14B, 3 lines, +3 -3 ~3)
  backup: a.rs.[time]
=> 0
$ discard src/b.rs
fettlefs: Discarded src/b.rs (id [id1])
=> 0
$ rollback src/a.rs
fettlefs: Restored src/a.rs from backup a.rs.[time] (14B)
  backup: a.rs.[time]
=> 0
"
    );
    view.assert_landed("src/a.rs", OLD);
    view.assert_landed("src/b.rs", OLD);
}

#[test]
fn arguments_are_relative_to_the_directory_one_stands_in() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    work(&view);
    let in_src = |arguments: &[&str]| {
        let mut command = scratch.fettlefs();
        command.current_dir(view.path("src")).args(arguments).output().expect("the built program runs").into()
    };
    let commands = [
        "confirm a.rs --dry-run",
        "confirm ./a.rs --dry-run",
        "confirm ../src/b.rs --dry-run",
        "confirm *.rs --dry-run",
        "confirm . --dry-run",
        "confirm .. --dry-run",
        "confirm src/a.rs --dry-run",
        "-C .. confirm src --dry-run",
        "confirm -C .. **/a.rs --dry-run",
        "-C .. confirm *.rs --dry-run",
        "backups ../notes.txt",
        "log a.rs",
    ];
    let both = "\
fettlefs: Would apply src/a.rs (14B, 3 lines, +3 -3 ~3)
fettlefs: Would apply src/b.rs (deleted, +0 -3 ~0)
=> 0
";
    let want = format!(
        "\
$ confirm a.rs --dry-run
fettlefs: Would apply src/a.rs (14B, 3 lines, +3 -3 ~3)
=> 0
$ confirm ./a.rs --dry-run
fettlefs: Would apply src/a.rs (14B, 3 lines, +3 -3 ~3)
=> 0
$ confirm ../src/b.rs --dry-run
fettlefs: Would apply src/b.rs (deleted, +0 -3 ~0)
=> 0
$ confirm *.rs --dry-run
{both}$ confirm . --dry-run
{both}$ confirm .. --dry-run
{both}$ confirm src/a.rs --dry-run
! fettlefs: src/src/a.rs: no such path, and nothing is held there
=> 4
$ -C .. confirm src --dry-run
{both}$ confirm -C .. **/a.rs --dry-run
fettlefs: Would apply src/a.rs (14B, 3 lines, +3 -3 ~3)
=> 0
$ -C .. confirm *.rs --dry-run
! fettlefs: nothing held matches *.rs
=> 4
$ backups ../notes.txt
notes.txt.[time]  notes.txt  14B  landed  [age]
=> 0
$ log a.rs
[time]  write held         [id1]  src/a.rs  +3 -3  size  by [exe]
=> 0
"
    );
    assert_eq!(transcript(&scratch, &commands, in_src), want);
}

#[test]
fn what_acts_says_what_became_of_each_path() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    work(&view);
    view.write("c.txt", NEW);
    view.write("d.txt", NEW);
    view.write("new.txt", OLD);
    let commands = [
        "confirm src/a.rs --json",
        "confirm src/b.rs",
        "discard c.txt --json",
        "discard d.txt",
        "rollback src/b.rs --json",
        "rollback notes.txt",
        "reload",
        "confirm --all",
        "discard --all --json",
    ];
    let want = r#"$ confirm src/a.rs --json
{"v":1,"ok":true,"op":"confirm","outcomes":[{"action":"applied","path":"src/a.rs","id":"[id1]","kind":"modify","size":14,"lines":3,"insertions":3,"deletions":3,"ratio":2.0,"backup":"a.rs.[time]","operation":"[op]"}],"dry_run":false}
=> 0
$ confirm src/b.rs
fettlefs: Applied src/b.rs (deleted, +0 -3 ~0)
  backup: b.rs.[time]
=> 0
$ discard c.txt --json
{"v":1,"ok":true,"op":"discard","outcomes":[{"action":"discarded","path":"c.txt","id":"[id2]","kind":"modify","backup":"c.txt.[time]","operation":"[op]"}],"dry_run":false}
=> 0
$ discard d.txt
fettlefs: Discarded d.txt (id [id3])
  backup: d.txt.[time]
=> 0
$ rollback src/b.rs --json
{"v":1,"ok":true,"op":"rollback","outcomes":[{"action":"restored","path":"src/b.rs","size":14,"from":"b.rs.[time]","operation":"[op]"}],"dry_run":false}
=> 0
$ rollback notes.txt
fettlefs: Restored notes.txt from backup notes.txt.[time] (14B)
  backup: notes.txt.[time]
=> 0
$ reload
fettlefs: Reloaded the settings
=> 0
$ confirm --all
fettlefs: Nothing is held
=> 0
$ discard --all --json
{"v":1,"ok":true,"op":"discard","outcomes":[],"dry_run":false}
=> 0
"#;
    assert_eq!(transcript(&scratch, &commands, |arguments| view.cli(arguments)), want);
    view.assert_landed("src/a.rs", NEW);
    for path in ["src/b.rs", "notes.txt", "c.txt", "d.txt"] {
        view.assert_landed(path, OLD);
    }
}

#[test]
fn a_dry_run_changes_nothing() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    work(&view);
    let state = || {
        let mut status = view.status();
        status["held"].as_array_mut().expect("held changes").iter_mut().for_each(|held| held["created"] = 0.into());
        (
            status,
            ["src/a.rs", "src/b.rs", "notes.txt"].map(|path| (scratch.try_read(path).ok(), view.try_read(path).ok())),
        )
    };
    let before = state();
    for arguments in [
        "confirm src/a.rs --dry-run",
        "confirm --all --dry-run",
        "discard src/a.rs --dry-run",
        "discard --all --dry-run",
        "rollback notes.txt --dry-run",
        "rollback notes.txt --to elsewhere.txt --dry-run",
        "reload --dry-run",
        "unmount --dry-run",
        "unmount --confirm-all --dry-run",
        "unmount --discard-all --dry-run",
    ] {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let told = view.cli(&arguments).ok().stdout;
        assert!(told.contains("Would "), "{arguments:?}: {told}");
        let json = view.cli(&[&arguments[..], &["--json"]].concat()).ok().json();
        assert!(json["dry_run"] == true || json["op"] == "reload", "{arguments:?}: {json}");
        assert_eq!(state(), before, "{arguments:?} changed something");
    }
}

#[test]
fn a_dry_run_says_that_it_is_one_where_nothing_is_held_and_who_keeps_an_unmount_waiting() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    for act in ["confirm", "discard"] {
        let planned = view.cli(&[act, "--all", "--yes", "--dry-run", "--json"]).ok().json();
        assert_eq!(planned["dry_run"], true, "{planned}");
    }
    let mut writer = std::fs::File::create(view.path("new")).expect("a new file");
    writer.write_all(b"new\n").expect("written");
    let planned = view.cli(&["unmount", "--dry-run", "--json"]).ok().json();
    let notice = planned["notices"][0].as_str().expect("a notice");
    assert!(notice.ends_with(" is still writing new: the unmount waits for it"), "{notice}");
    drop(writer);
    let planned = view.cli(&["unmount", "--dry-run", "--json"]).ok().json();
    assert_eq!(planned["notices"], serde_json::json!([]));
}

#[test]
fn all_needs_somebody_to_ask_or_yes_but_not_where_nothing_is_held() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    for command in ["confirm --all", "discard --all"] {
        assert_eq!(
            transcript(&scratch, &[command], |arguments| view.cli(arguments)),
            format!("$ {command}\nfettlefs: Nothing is held\n=> 0\n")
        );
    }
    view.write("c.txt", NEW);
    let commands = [
        "confirm --all",
        "discard --all",
        "confirm --all --json",
        "confirm --all c.txt",
        "confirm",
        "confirm --all --yes",
    ];
    let want = r#"$ confirm --all
! fettlefs: --all needs --yes where there is no terminal to ask
=> 2
$ discard --all
! fettlefs: --all needs --yes where there is no terminal to ask
=> 2
$ confirm --all --json
{"v":1,"ok":false,"error":{"code":"bad_request","message":"--all needs --yes where there is no terminal to ask"}}
=> 2
$ confirm --all c.txt
! error: the argument '--all' cannot be used with '[ID|PATH|GLOB]...'
! 
! Usage: fettlefs confirm --all [ID|PATH|GLOB]...
! 
! For more information, try '--help'.
=> 2
$ confirm
! error: the following required arguments were not provided:
!   <ID|PATH|GLOB>...
! 
! Usage: fettlefs confirm <ID|PATH|GLOB>...
! 
! For more information, try '--help'.
=> 2
$ confirm --all --yes
fettlefs: Applied c.txt (14B, 3 lines, +3 -3 ~3)
  backup: c.txt.[time]
=> 0
"#;
    assert_eq!(transcript(&scratch, &commands, |arguments| view.cli(arguments)), want);
}

#[test]
fn exit_code_tells_whether_something_is_held() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    let ask = |arguments: &[&str]| (view.cli(arguments).status, scratch.cli(arguments).status);
    assert_eq!((ask(&["status", "--exit-code"]), ask(&["diff", "--exit-code"])), ((0, 0), (0, 0)));
    view.write("c.txt", NEW);
    assert_eq!((ask(&["status", "--exit-code"]), ask(&["diff", "--exit-code"])), ((1, 1), (1, 1)));
    assert_eq!((ask(&["status", "--exit-code", "--json"]), ask(&["status"])), ((1, 1), (0, 0)));
    drop(view);
    let offline = |arguments: &[&str]| scratch.cli(arguments).status;
    assert_eq!((offline(&["status", "--exit-code"]), offline(&["diff", "--exit-code"])), (1, 1));
}

#[test]
fn usage_errors_are_two_and_json_where_it_was_asked_for() {
    let scratch = Scratch::new();
    for arguments in [vec!["frobnicate"], vec!["status", "--nonsense"], vec![], vec!["rollback"], vec!["show"]] {
        let output = scratch.cli(&arguments).exits(2);
        assert_eq!((output.stdout.as_str(), output.stderr.is_empty()), ("", false), "{arguments:?}");
        let output = scratch.cli(&[&arguments[..], &["--json"]].concat()).exits(2);
        assert_eq!((output.error_code().as_str(), output.stderr.as_str()), ("bad_request", ""), "{arguments:?}");
    }
}

#[test]
fn nowhere_is_three_and_says_where_it_looked() {
    let scratch = Scratch::new();
    for command in [
        "status",
        "diff",
        "show x",
        "confirm x",
        "discard x",
        "rollback x",
        "backups",
        "log",
        "external",
        "reload",
        "flush",
        "unmount",
    ] {
        let arguments: Vec<&str> = command.split(' ').collect();
        let want = "! fettlefs: no mount and no state here or above [project]\n=> 3\n";
        assert_eq!(told(&scratch, &scratch.cli(&arguments)), want, "{command}");
        let json = scratch.cli(&[&arguments[..], &["--json"]].concat()).exits(3);
        assert_eq!(json.error_code(), "not_mounted", "{command}");
    }
    // One's own version is known everywhere, and a list of mounts may be empty.
    scratch.cli(&["ps"]).ok();
    assert_eq!(scratch.cli(&["version"]).ok().stdout, format!("fettlefs {} (protocol 1)\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn version_and_ps_tell_of_the_mount() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).at("view").start();
    let version = env!("CARGO_PKG_VERSION");
    let want = format!("fettlefs {version} (protocol 1)\ndaemon   {version} (protocol 1), pid [pid]\n=> 0\n");
    assert_eq!(told(&scratch, &view.cli(&["version"])), want);
    assert_eq!(told(&scratch, &scratch.cli(&["version"])), want);
    let json = scratch.cli(&["version", "--json"]).ok().json();
    assert_eq!(json["daemon"]["pid"].as_i64(), Some(view.daemon_pid().into()));
    let listed = scratch.cli(&["ps"]).ok().stdout;
    let line = format!("{}  on  {}", scratch.project().display(), view.root().display());
    assert!(listed.lines().any(|listed| listed == line), "{listed}");
    let json = scratch.cli(&["ps", "--json"]).ok().json();
    let want = serde_json::json!({"project": scratch.project(), "mountpoint": view.root(), "dead": false});
    assert!(json["mounts"].as_array().expect("mounts").contains(&want), "{json}");
    view.unmount();
    let listed = scratch.cli(&["ps"]).ok().stdout;
    assert!(!listed.contains(&line), "{listed}");
}

#[test]
fn unmount_lists_what_waits_and_does_with_it_what_it_is_told() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    work(&view);
    let output = view.unmount();
    assert_eq!(
        told(&scratch, &output),
        "fettlefs: Unmounted\n\nHeld for review, also without a mount:\n  \
         [id1]  src/a.rs  +3 -3  200%  size  [age]\n  [id2]  src/b.rs  +0 -3  100%  size  [age]  [delete]\n=> 0\n"
    );
    let view = small(&scratch).at("view").start();
    let planned = scratch.cli(&["unmount", "--confirm-all", "--dry-run"]);
    assert_eq!(
        told(&scratch, &planned),
        "fettlefs: Would apply src/a.rs (14B, 3 lines, +3 -3 ~3)\n\
         fettlefs: Would apply src/b.rs (deleted, +0 -3 ~0)\nfettlefs: Would unmount\n=> 0\n"
    );
    let output = view.unmount_with(&["--confirm-all"]);
    assert_eq!(
        told(&scratch, &output),
        "fettlefs: Applied src/a.rs (14B, 3 lines, +3 -3 ~3)\n  backup: a.rs.[time]\n\
         fettlefs: Applied src/b.rs (deleted, +0 -3 ~0)\n  backup: b.rs.[time]\nfettlefs: Unmounted\n=> 0\n"
    );
}

#[test]
fn unmount_tells_as_much_of_what_waits_as_fits_an_answer() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    let dirs = 13;
    let deep = format!(".claude{}", format!("/{}", "\u{1}".repeat(250)).repeat(dirs));
    std::fs::create_dir_all(view.root().join(&deep)).expect("a deep directory");
    // Such a character takes six in JSON, so that each file takes 19 KiB of an answer, and all of them more than its 8 MiB.
    let files = 450;
    for number in 0..files {
        view.write(format!("{deep}/{number}"), "held");
    }
    let json = view.unmount_with(&["--json"]).json();
    let told = json["held"].as_array().expect("held").len();
    assert!(0 < told && told < files, "{told}");
    assert_eq!(json["held_count"], dirs + files);
}

#[test]
fn unmount_discard_all_drops_what_is_held_and_keeps_its_content() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    work(&view);
    let json = view.unmount_with(&["--discard-all", "--yes", "--json"]).json();
    let actions = json["outcomes"].as_array().expect("outcomes").iter().map(|done| done["action"].clone());
    assert_eq!(actions.collect::<Vec<_>>(), ["discarded", "discarded"]);
    assert_eq!((json["held"].clone(), scratch.read("src/a.rs")), (serde_json::json!([]), OLD.to_owned()));
    let kept = scratch.cli(&["backups", "src/a.rs", "--json"]).ok().json();
    assert_eq!(kept["backups"][0]["kind"], "discarded", "{kept}");
    assert_eq!(
        scratch.cli(&["unmount"]).exits(3).stderr,
        format!("fettlefs: unmount: {} is not mounted\n", scratch.project().display())
    );
}

#[test]
fn who_stands_in_a_view_that_is_gone_is_told_so() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).at("view").start();
    let program = scratch.fettlefs().get_program().to_owned();
    let script = "\"$1\" unmount; \"$1\" status; echo $?";
    let mut shell = scratch.command("sh");
    let output: Output =
        shell.current_dir(view.root()).args(["-c", script, "sh"]).arg(program).output().expect("a shell").into();
    assert_eq!(output.stdout, "fettlefs: Unmounted\n3\n");
    assert_eq!(
        output.stderr,
        "fettlefs: you stand in the view that is gone: cd .\n\
         fettlefs: you stand in a view that is gone, or in a directory that was removed: cd .\n"
    );
}

#[test]
fn a_dead_mount_is_named_detached_and_replaced() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    work(&view);
    view.kill_all();
    let dead_at = |mountpoint: &str| {
        let remedies = format!("`fettlefs mount [project]` recovers it, `fettlefs unmount {mountpoint}` detaches it");
        format!("the mount on {mountpoint} is dead (its daemon is gone); {remedies}")
    };
    let dead = dead_at("[project]");
    for command in ["status", "diff", "show src/a.rs", "confirm src/a.rs", "log", "backups", "external", "flush"] {
        let arguments: Vec<&str> = command.split(' ').collect();
        assert_eq!(told(&scratch, &scratch.cli(&arguments)), format!("! fettlefs: {dead}\n=> 3\n"));
    }
    assert_eq!(scratch.cli(&["status", "--json"]).exits(3).error_code(), "not_mounted");
    assert_eq!(told(&scratch, &scratch.cli(&["init"])), format!("! fettlefs: {dead}\n=> 3\n"));
    let listed = scratch.normalise(&scratch.cli(&["ps"]).ok().stdout);
    assert!(listed.contains("[project]  on  [project]  dead: its daemon is gone\n"), "{listed}");
    let found = scratch.normalise(&scratch.cli(&["doctor"]).exits(1).stdout);
    let fault = "  fault  project: the mount on [project] is dead (its daemon is gone)
         `fettlefs mount [project]` recovers it, `fettlefs unmount [project]` detaches it\n";
    assert!(found.starts_with("fettlefs: it does not work: 1 fault\n") && found.ends_with(fault), "{found}");
    for decision in ["--confirm-all", "--discard-all"] {
        let refused = scratch.cli(&["unmount", decision]).exits(3);
        assert!(refused.stderr.contains(" confirm` and `fettlefs discard` do without a mount"), "{}", refused.stderr);
    }
    assert!(std::fs::read_dir(scratch.project()).is_err(), "it is as it was");
    let detached = scratch.cli(&["unmount"]).ok().stdout;
    assert!(detached.starts_with("fettlefs: Unmounted\n\nHeld for review, also without a mount:\n"), "{detached}");
    assert!(detached.contains("src/a.rs"), "{detached}");
    assert_eq!(scratch.cli(&["status", "--json"]).ok().json()["held"].as_array().map(Vec::len), Some(2));
    drop(view);
    // Replaced by the next mount, with what it held.
    let view = scratch.mount();
    view.kill_all();
    let again = scratch.mounting().start();
    assert!(
        named(&scratch, &again.mount_output.stderr).contains("mounts over the dead mount of [project] on [project]\n")
    );
    assert_eq!((again.held().len(), again.read("src/a.rs")), (2, NEW.to_owned()));
    drop(again);
    // What is to be mounted again is the project, wherever the dead mount is.
    let aside = scratch.mount_at("view");
    aside.kill_all();
    let output = scratch.fettlefs().current_dir(scratch.root()).args(["-C", "view", "status"]).output();
    let want = dead_at("[scratch]/view");
    assert_eq!(told(&scratch, &output.expect("the built program runs").into()), format!("! fettlefs: {want}\n=> 3\n"));
}

#[test]
fn a_long_diff_is_whole_in_diff_and_in_show() {
    let scratch = mounted_scratch!();
    scratch.write("long.txt", crate::harness::lines(300));
    let view = small(&scratch).start();
    view.write("long.txt", crate::harness::with_changed_lines(&crate::harness::lines(300), 300));
    let diff = view.cli(&["diff", "long.txt"]).ok().stdout;
    assert_eq!(diff.lines().count(), 4 + 600);
    assert_eq!(view.cli(&["show", "long.txt"]).ok().stdout.matches("changed line").count(), 300);
}
