//! Histories made up by hand, as a table each: which events speak of a file, and which versions that makes.

use super::*;
use crate::model::Timestamp;
use crate::protocol::EventName;
use crate::store::Kept;

fn path(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).unwrap()
}

fn version(content: &str) -> store::Version {
    let kept = Kept { digest: Digest::of(content.as_bytes()), symlink: false };
    store::Version { content: Some(kept), size: 0, mode: 0, uid: 0, gid: 0, mtime: Timestamp::default(), group: None }
}

fn content(at: &str, before: Option<&str>, after: Option<&str>) -> PathEffect {
    let (before, after) = (before.map(version), after.map(version));
    PathEffect::new(&path(at), Effect::Content { before, after, shared: false })
}

fn edit(at: &str) -> PathEffect {
    content(at, Some("x"), Some("y"))
}

fn renamed(from: &str, to: &str) -> PathEffect {
    PathEffect::new(&path(to), Effect::Renamed { from: path(from), onto: None })
}

/// What happened, the oldest first, as the log tells it.
fn log(happened: Vec<Vec<PathEffect>>) -> Vec<(Event, Vec<PathEffect>)> {
    let event = |seq| Event::new(seq, jiff::Timestamp::UNIX_EPOCH, EventName::WriteLanded);
    let mut log: Vec<_> = (1..).zip(happened).map(|(seq, effects)| (event(seq), effects)).collect();
    log.reverse();
    log
}

#[test]
fn a_file_is_followed_back_through_its_names() {
    let linked = PathEffect::new(&path("b"), Effect::Linked { of: path("a") });
    let exchanged = PathEffect::new(&path("d"), Effect::Exchanged { with: path("e"), other: None });
    for (happened, at, want) in [
        (vec![vec![edit("a")], vec![edit("b")], vec![edit("a")]], "a", vec![1, 3]),
        (vec![vec![edit("a")], vec![renamed("a", "b")], vec![edit("b")]], "b", vec![1, 3]),
        (vec![vec![edit("a")], vec![renamed("a", "b")], vec![content("a", None, Some("z"))]], "b", vec![1]),
        // Directories take along what is in them, and no neighbour.
        (vec![vec![edit("d/a")], vec![edit("de/a")], vec![renamed("d", "e")], vec![edit("e/a")]], "e/a", vec![1, 4]),
        (vec![vec![edit("a")], vec![linked]], "b", vec![1]),
        (vec![vec![edit("d/a")], vec![edit("e/a")], vec![exchanged]], "d/a", vec![2]),
        // Renamed over something: from then back it is what came, not what went.
        (
            vec![
                vec![content("a", Some("1"), Some("2"))],
                vec![content("b", Some("3"), Some("4"))],
                vec![content("b", Some("4"), Some("2")), content("a", Some("2"), None)],
            ],
            "b",
            vec![1],
        ),
        // Deleted and made again.
        (
            vec![vec![edit("a")], vec![content("a", Some("y"), None)], vec![content("a", None, Some("z"))]],
            "a",
            vec![1, 2, 3],
        ),
    ] {
        let steps = steps(log(happened.clone()), &path(at), |_| None);
        let numbers: Vec<u64> = steps.into_iter().map(|step| step.event.seq).collect();
        assert_eq!(numbers, want, "{at}: {happened:?}");
    }
}

/// Each version as its origin and, of an event, its number.
fn told(happened: Vec<Vec<PathEffect>>, now: &str) -> Vec<(LineOrigin, Option<u64>)> {
    let text = Some(now.as_bytes().to_vec());
    let shown = Layered { kind: FileKind::Regular, text: text.clone(), below: text, upper: None };
    let steps = steps(log(happened), &path("a"), |_| None);
    versions(steps, &shown).into_iter().map(|version| (version.origin, version.by.seq)).collect()
}

#[test]
fn versions_are_what_events_left_and_what_was_found_otherwise() {
    use LineOrigin::{BeforeLog, Event, Outside};
    for (happened, now, want) in [
        (vec![], "x", vec![(BeforeLog, None)]),
        (vec![content("a", None, Some("x"))], "x", vec![(BeforeLog, None), (Event, Some(1))]),
        (vec![content("a", Some("x"), Some("y"))], "y", vec![(BeforeLog, None), (Event, Some(1))]),
        (vec![content("a", Some("x"), Some("y"))], "z", vec![(BeforeLog, None), (Event, Some(1)), (Outside, None)]),
        (
            vec![content("a", Some("w"), Some("x")), content("a", Some("y"), Some("z"))],
            "z",
            vec![(BeforeLog, None), (Event, Some(1)), (Outside, None), (Event, Some(2))],
        ),
        (
            vec![content("a", Some("w"), None), content("a", None, Some("x"))],
            "x",
            vec![(BeforeLog, None), (Event, Some(2))],
        ),
    ] {
        let happened: Vec<_> = happened.into_iter().map(|done| vec![done]).collect();
        assert_eq!(told(happened.clone(), now), want, "{happened:?}");
    }
}

#[test]
fn what_was_renamed_away_and_made_again_is_known_by_its_backup() {
    let mut log = log(vec![vec![content("a", None, Some("new"))]]);
    log[0].0.backup = Some("a.old".to_owned());
    let steps = steps(log, &path("a"), |name| (name == "a.old").then(|| Digest::of(b"old")));
    assert_eq!(steps[0].before, Content::Known(Digest::of(b"old")));
}
