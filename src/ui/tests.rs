use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use jiff::Timestamp;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::draw::{Paint, draw};
use super::model::{Act, Input, Mode, Model, Task};
use super::sheet::Sheet;
use crate::model::{ChangeId, RelPath};
use crate::protocol::{Acted, Action, ChangeDiff, DiffReply, DiffText, ErrorBody, ErrorCode, Held, Outcome, Status};

const TWO_HUNKS: &str = "\
diff --git a/a.txt b/a.txt
--- a/a.txt
+++ b/a.txt
@@ -1,2 +1,2 @@ hunk 1
-one
+ONE
 two
@@ -9,2 +9,2 @@ hunk 2
 nine
-ten
+TEN
";

const ONE_HUNK: &str = "\
diff --git a/b.txt b/b.txt
--- a/b.txt
+++ b/b.txt
@@ -1 +1 @@
-x
+y
";

fn held(id: &str, path: &str) -> Held {
    serde_json::from_value(serde_json::json!({
        "id": id, "path": path, "kind": "modify", "also": [], "reason": "size", "insertions": 2, "deletions": 2,
        "old_lines": 10, "ratio": 0.4, "hunks": 2, "base_sha256": null, "new_sha256": null, "externally_modified": false,
        "expired": false, "operation": null, "writer": null, "created": "2026-03-12T14:30:00Z",
    }))
    .unwrap()
}

fn status(held: Vec<Held>) -> Status {
    let mut status: Status = serde_json::from_value(serde_json::json!({
        "schema": Status::SCHEMA, "project": "/p", "mountpoint": null, "mounted": true, "pid": 1, "session": null,
        "seq": 7, "held": [], "external": [], "backups": [], "writers": [],
        "counters": {"landed": 0, "held": 0, "denied": 0}, "readonly": null,
    }))
    .unwrap();
    status.held = held;
    status
}

fn id(text: &str) -> ChangeId {
    ChangeId::parse(text).unwrap()
}

const A: &str = "aaaaaaaa";
const B: &str = "bbbbbbbb";
const C: &str = "cccccccc";

/// Two changes, the diff of the first on the screen.
fn two() -> Model {
    let mut model = Model::new(status(vec![held(A, "a.txt"), held(B, "b.txt")]));
    assert_eq!(model.begin(), [Task::Diff(id(A))]);
    model.fit(40, 10, 5);
    compared(&mut model, A, "a.txt", TWO_HUNKS);
    model
}

fn compared(model: &mut Model, of: &str, path: &str, text: &str) -> Vec<Task> {
    let change = ChangeDiff { held: held(of, path), text: DiffText(text.as_bytes().to_vec()) };
    model.handle(Input::Compared(id(of), Ok(DiffReply { changes: vec![change], ..DiffReply::default() })))
}

fn code(model: &mut Model, code: KeyCode) -> Vec<Task> {
    model.handle(Input::Key(KeyEvent::new(code, KeyModifiers::NONE)))
}

/// The tasks of the last key.
fn press(model: &mut Model, keys: &str) -> Vec<Task> {
    keys.chars().map(|key| code(model, if key == '\r' { KeyCode::Enter } else { KeyCode::Char(key) })).last().unwrap()
}

fn listed(model: &mut Model, held: Vec<Held>) -> Vec<Task> {
    model.handle(Input::Listed(Ok(Box::new(status(held)))))
}

fn done(operation: &str) -> Acted {
    let mut outcome = Outcome::new(Action::Applied, RelPath::parse(b"a.txt").unwrap());
    outcome.operation = Some(operation.to_owned());
    Acted { outcomes: vec![outcome], ..Acted::default() }
}

fn confirm(of: &str, hunks: &[u32]) -> Act {
    Act::Confirm { id: id(of), hunks: hunks.to_vec() }
}

fn discard(of: &str) -> Act {
    Act::Discard { id: id(of), hunks: Vec::new() }
}

#[test]
fn a_whole_change_is_decided_after_a_question() {
    let mut model = two();
    assert_eq!(press(&mut model, "c"), []);
    let question = "Apply a.txt (+2 -2)?".to_owned();
    assert_eq!(model.mode, Mode::Asking { question, act: confirm(A, &[]) });
    assert_eq!(press(&mut model, "n"), []);
    assert_eq!(press(&mut model, "dy"), [Task::Act(discard(A))]);
}

#[test]
fn marked_hunks_are_decided_at_once() {
    let mut model = two();
    assert_eq!(press(&mut model, "\rn c"), [Task::Act(confirm(A, &[2]))]);
    let mut model = two();
    assert_eq!(press(&mut model, " n c"), [Task::Act(confirm(A, &[1, 2]))]);
    let mut model = two();
    press(&mut model, "  c");
    assert!(matches!(model.mode, Mode::Asking { .. }), "a mark that was taken back is none");
}

#[test]
fn nothing_is_decided_whose_diff_is_not_on_the_screen() {
    let mut model = two();
    assert_eq!(press(&mut model, "j"), [Task::Diff(id(B))]);
    assert_eq!(press(&mut model, "cy"), []);
    compared(&mut model, B, "b.txt", ONE_HUNK);
    assert_eq!(press(&mut model, "cy"), [Task::Act(confirm(B, &[]))]);
    // What is written meanwhile has another id: neither the marks nor a question that is open are about it.
    let mut model = two();
    press(&mut model, "c");
    assert_eq!(listed(&mut model, vec![held(C, "a.txt"), held(B, "b.txt")]), [Task::Diff(id(C))]);
    assert_eq!(model.mode, Mode::Browsing);
    assert_eq!(press(&mut model, "y"), []);
    assert_eq!(model.said.as_ref().map(|said| said.1.as_str()), None);
    assert_eq!(press(&mut model, "c"), []);
    compared(&mut model, C, "a.txt", TWO_HUNKS);
    assert_eq!(press(&mut model, "cy"), [Task::Act(confirm(C, &[]))]);
}

#[test]
fn one_diff_is_asked_for_at_a_time() {
    let mut model = two();
    listed(&mut model, vec![held(A, "a.txt"), held(B, "b.txt"), held(C, "c.txt")]);
    assert_eq!(press(&mut model, "j"), [Task::Diff(id(B))]);
    assert_eq!(press(&mut model, "j"), []);
    assert_eq!(compared(&mut model, B, "b.txt", ONE_HUNK), [Task::Diff(id(C))]);
    assert!(!model.shows_selected());
}

#[test]
fn the_selection_stays_with_its_path() {
    let mut model = two();
    press(&mut model, "j");
    compared(&mut model, B, "b.txt", ONE_HUNK);
    listed(&mut model, vec![held(C, "0.txt"), held(A, "a.txt"), held(B, "b.txt")]);
    assert_eq!((model.at(), model.shows_selected()), (2, true));
    listed(&mut model, vec![held(A, "a.txt")]);
    assert_eq!((model.at(), model.selected().map(|held| held.id.clone())), (0, Some(id(A))));
    assert_eq!(listed(&mut model, vec![]), []);
    assert_eq!(model.selected(), None);
    assert_eq!(press(&mut model, "cy d n p \rju"), []);
}

#[test]
fn what_was_done_is_undone_the_last_first() {
    let mut model = two();
    press(&mut model, "cy");
    assert_eq!(model.handle(Input::Acted(confirm(A, &[]), Ok((done("op4"), "Applied a.txt".into())))), [Task::List]);
    press(&mut model, "dy");
    model.handle(Input::Acted(discard(A), Ok((done("op5"), "Discarded a.txt".into()))));
    let undo = |operation: &str| Act::Undo { operation: operation.into() };
    assert_eq!(press(&mut model, "uy"), [Task::Act(undo("op5"))]);
    // Refused: it is still what was done last.
    model.handle(Input::Acted(undo("op5"), Err(ErrorBody::new(ErrorCode::Conflict, "edited since"))));
    assert_eq!(press(&mut model, "uy"), [Task::Act(undo("op5"))]);
    model.handle(Input::Acted(undo("op5"), Ok((done("op6"), "Undone".into()))));
    assert_eq!(press(&mut model, "uy"), [Task::Act(undo("op4"))]);
    model.handle(Input::Acted(undo("op4"), Ok((done("op7"), "Undone".into()))));
    assert_eq!(press(&mut model, "uy"), []);
}

#[test]
fn who_leaves_while_something_is_done_waits_for_it() {
    let mut model = two();
    press(&mut model, "cy");
    assert_eq!(press(&mut model, "dy"), [], "one thing after the other");
    press(&mut model, "q");
    assert!(!model.is_over());
    model.handle(Input::Acted(confirm(A, &[]), Ok((done("op4"), "Applied a.txt".into()))));
    assert!(model.is_over());
    let mut model = two();
    press(&mut model, "q");
    assert!(model.is_over());
}

#[test]
fn lists_are_asked_for_one_at_a_time() {
    let mut model = two();
    assert_eq!(model.handle(Input::Happened), [Task::List]);
    assert_eq!(model.handle(Input::Happened), []);
    assert_eq!(model.handle(Input::Happened), []);
    let both = || vec![held(A, "a.txt"), held(B, "b.txt")];
    assert_eq!(listed(&mut model, both()), [Task::List]);
    assert_eq!(listed(&mut model, both()), []);
    assert_eq!(model.handle(Input::Listed(Err(ErrorBody::new(ErrorCode::NotMounted, "gone")))), []);
    assert_eq!((model.unreachable.as_deref(), model.held_count()), (Some("gone"), 2));
}

#[test]
fn a_refused_diff_is_not_asked_for_without_end() {
    let mut model = Model::new(status(vec![held(A, "a.txt")]));
    model.begin();
    let refused = || Err(ErrorBody::new(ErrorCode::NotPermitted, "you may not"));
    assert_eq!(model.handle(Input::Compared(id(A), refused())), []);
    assert_eq!(listed(&mut model, vec![held(A, "a.txt")]), []);
    assert_eq!(press(&mut model, "r"), [Task::List, Task::Diff(id(A))]);
    let empty = DiffReply::default();
    assert_eq!(model.handle(Input::Compared(id(A), Ok(empty))), []);
}

#[test]
fn only_paths_with_a_text_in_them_are_listed() {
    let mut model = two();
    assert_eq!(press(&mut model, "/B."), [] as [Task; 0]);
    assert_eq!(model.selected(), None);
    code(&mut model, KeyCode::Esc);
    assert_eq!(model.listed_changes().len(), 2);
    assert_eq!(press(&mut model, "/b."), []);
    assert_eq!(model.selected().map(|held| held.id.clone()), Some(id(B)));
    code(&mut model, KeyCode::Enter);
    // `q` and the others are keys again.
    press(&mut model, "q");
    assert!(model.is_over());
}

#[test]
fn rows_show_everything_and_are_never_too_wide() {
    let text = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,2 +1,3 @@\n-\tone\n+\u{5b57}\u{5b57}\u{5b57}\r\n+e\u{301} \u{301}\n a\u{1b}[2J\u{202e}\n\\ No newline at end of file\n";
    let change = ChangeDiff { held: held(A, "x"), text: DiffText(text.as_bytes().to_vec()) };
    let sheet = Sheet::of(&change);
    for columns in 1..60 {
        let rows = sheet.rows(columns);
        for row in &rows {
            let text = &sheet.lines[row.line].text[row.start..row.end];
            assert!(super::sheet::width(text) <= columns.max(2), "{columns}: {text:?}");
        }
        for (at, line) in sheet.lines.iter().enumerate() {
            let parts = rows.iter().filter(|row| row.line == at).map(|row| &line.text[row.start..row.end]);
            assert_eq!(parts.collect::<String>(), line.text);
        }
    }
    let lines: Vec<String> = sheet.lines.iter().skip(6).map(|line| format!("{}{}", line.sign, line.text)).collect();
    let want = [
        "-        one",
        "+\u{5b57}\u{5b57}\u{5b57}\\r",
        "+e\u{301} \u{301}",
        " a\\u{1b}[2J\\u{202e}",
        " \\ No newline at end of file",
    ];
    assert_eq!(lines, want);
}

#[test]
fn a_change_of_type_has_no_hunks_to_choose() {
    let text = [TWO_HUNKS, ONE_HUNK].concat();
    let sheet = Sheet::of(&ChangeDiff { held: held(A, "a.txt"), text: DiffText(text.into_bytes()) });
    assert_eq!(sheet.hunk_count(), 0);
    let binary = "diff --git a/a b/a\nBinary files a/a and b/a differ\n";
    let sheet = Sheet::of(&ChangeDiff { held: held(A, "a"), text: DiffText(binary.into()) });
    assert_eq!(sheet.hunk_count(), 0);
    let mut model = two();
    listed(&mut model, vec![held(B, "a")]);
    compared(&mut model, B, "a", binary);
    press(&mut model, " ");
    assert_eq!(model.said.as_ref().map(|said| said.1.as_str()), Some("it has no hunks to choose from"));
}

/// The rows of a terminal, blanks at their ends cut off.
fn drawn(model: &mut Model, columns: u16, rows: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    let now: Timestamp = "2026-03-12T14:33:00Z".parse().unwrap();
    terminal.draw(|frame| draw(model, frame, Paint::Plain, now)).unwrap();
    let buffer = terminal.backend().buffer();
    let row = |y| (0..columns).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned() + "\n";
    (0..rows).map(row).collect()
}

const SIDE_BY_SIDE: &str = " fettlefs review: 2 held changes in /p
┌ held ────────────────────────────────┐┌ a.txt aaaaaaaa, hunk 2 of 2, 1 marked ───────────────┐
│>a.txt                                ││   held: size, +2 -2, 40% of file                     │
│   +2 -2 40% size 3m ago              ││                                                      │
│ b.txt                                ││   diff --git a/a.txt b/a.txt                         │
│   +2 -2 40% size 3m ago              ││   --- a/a.txt                                        │
│                                      ││   +++ b/a.txt                                        │
│                                      ││   @@ -1,2 +1,2 @@ hunk 1                             │
│                                      ││  -one                                                │
│                                      ││  +ONE                                                │
│                                      ││   two                                                │
│                                      ││>* @@ -9,2 +9,2 @@ hunk 2                             │
│                                      ││>* nine                                               │
│                                      ││>*-ten                                                │
│                                      ││>*+TEN                                                │
│                                      ││                                                      │
│                                      ││                                                      │
└──────────────────────────────────────┘└──────────────────────────────────────────────────────┘

 j/k move  Enter diff  n/p hunk  space mark  c confirm  d discard  u undo  ? help  q quit
";

const NARROW: &str = " fettlefs review: 2 held changes in /p
┌ held ────────────────────────────────────┐
│>a.txt                                    │
│   +2 -2 40% size 3m ago                  │
│ b.txt                                    │
│   +2 -2 40% size 3m ago                  │
└──────────────────────────────────────────┘
┌ a.txt aaaaaaaa, hunk 1 of 2 ─────────────┐
│   held: size, +2 -2, 40% of file         │
│                                          │
│   diff --git a/a.txt b/a.txt             │
│   --- a/a.txt                            │
│   +++ b/a.txt                            │
│>  @@ -1,2 +1,2 @@ hunk 1                 │
│> -one                                    │
│> +ONE                                    │
│>  two                                    │
│   @@ -9,2 +9,2 @@ hunk 2                 │
│   nine                                   │
│  -ten                                    │
│  +TEN                                    │
└──────────────────────────────────────────┘
 Discard a.txt (+2 -2)? [y/N]
 y yes  any other key no
";

#[test]
fn the_screen_side_by_side() {
    let mut model = two();
    press(&mut model, "\rn ");
    let want = SIDE_BY_SIDE;
    assert_eq!(drawn(&mut model, 96, 20), want);
}

#[test]
fn the_screen_of_a_narrow_terminal() {
    let mut model = two();
    press(&mut model, "d");
    let want = NARROW;
    assert_eq!(drawn(&mut model, 44, 24), want);
}

#[test]
fn any_size_can_be_drawn() {
    let mut model = two();
    for keys in ["n", "\r", "?", "x", "/b", "\r", "c"] {
        press(&mut model, keys);
        for (columns, rows) in [(0, 0), (1, 1), (3, 2), (20, 4), (89, 5), (90, 3), (300, 100), (5, 60)] {
            drawn(&mut model, columns, rows);
        }
    }
}
