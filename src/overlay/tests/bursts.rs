//! Bursts: what one process tree does to many files in one go is one operation, and held past the limit.

use super::*;
use crate::model::OperationId;
use crate::protocol::{ErrorBody, ErrorCode, EventName, Outcome};

/// Files `f0` to `f7`, of which five may be rewritten at once.
fn eight() -> Bench {
    let bench = Bench::with(&[(Key::Burst, "5"), (Key::Window, "0")]);
    (0..8).for_each(|number| bench.put(&format!("f{number}"), &lines(40)));
    bench
}

/// With one line of each changed.
fn burst() -> (Bench, OperationId) {
    let bench = eight();
    (0..8).for_each(|number| bench.save(&format!("f{number}"), &changed(40, 1)));
    let events = bench.view().store().events_since(0).unwrap();
    let first = events.iter().find(|event| event.path.is_some()).unwrap();
    (bench, OperationId::of_first_event(first.seq))
}

impl Bench {
    fn undo_operation(&self, id: OperationId) -> std::result::Result<Vec<Outcome>, ErrorBody> {
        Ok(self.view().undo(id, &UndoHow::default())?.outcomes)
    }

    /// Which of the eight the project has as `content`.
    fn below(&self, content: &str) -> Vec<usize> {
        (0..8).filter(|number| self.lower(&format!("f{number}")).as_deref() == Some(content)).collect()
    }
}

#[test]
fn what_exceeds_the_limit_is_held_and_all_of_it_is_one_operation() {
    let (mut bench, operation) = burst();
    assert_eq!(bench.below(&changed(40, 1)), [0, 1, 2, 3, 4]);
    for row in bench.held() {
        let held = row.held.unwrap();
        assert_eq!((held.reasons, held.operation), (vec![Reason::Burst], Some(operation)));
    }
    let events = bench.view().store().events_since(0).unwrap();
    let told: Vec<Option<String>> =
        events.into_iter().filter(|event| event.path.is_some()).map(|event| event.operation).collect();
    assert_eq!(told, vec![Some(operation.to_string()); 8]);
    bench.remount();
    let held = bench.view().held_of(operation);
    assert_eq!(held.len(), 3);
    bench.confirm(&held).unwrap();
    assert_eq!(bench.below(&changed(40, 1)).len(), 8);
}

#[test]
fn its_held_part_is_dropped_and_its_landed_part_undone_whole() {
    let (bench, operation) = burst();
    bench.view().discard(&bench.view().held_of(operation), &HOW.review).unwrap();
    assert_eq!(bench.read("f7"), Some(lines(40)));
    assert_eq!(bench.below(&changed(40, 1)), [0, 1, 2, 3, 4]);
    bench.undo_operation(operation).unwrap();
    assert_eq!(bench.below(&lines(40)).len(), 8);
    assert!(bench.held().is_empty());
}

#[test]
fn all_of_it_is_undone_at_once_and_that_is_undone_in_its_turn() {
    let (mut bench, operation) = burst();
    let held: Vec<ChangeId> = bench.view().held_of(operation);
    let outcomes = bench.undo_operation(operation).unwrap();
    let undone = OperationId::parse(outcomes[0].operation.as_ref().unwrap()).unwrap();
    assert!(outcomes.iter().all(|outcome| outcome.operation == Some(undone.to_string())), "{outcomes:?}");
    assert!(outcomes.iter().all(|outcome| outcome.backup.is_some()), "{outcomes:?}");
    assert_eq!((bench.below(&lines(40)).len(), bench.held().len()), (8, 0));

    let back = bench.undo_operation(undone).unwrap();
    assert_eq!(bench.below(&changed(40, 1)), [0, 1, 2, 3, 4]);
    assert_eq!(bench.view().held_of(operation), held, "under their ids");
    bench.remount();
    assert_eq!(bench.read("f7"), Some(changed(40, 1)));
    assert_eq!(bench.below(&lines(40)), [5, 6, 7]);

    bench.undo_operation(OperationId::parse(back[0].operation.as_ref().unwrap()).unwrap()).unwrap();
    assert_eq!((bench.below(&lines(40)).len(), bench.held().len()), (8, 0));
}

#[test]
fn what_only_had_something_held_is_undone_once() {
    let decide: [fn(&Bench, OperationId); 2] = [
        |bench, operation| drop(bench.undo_operation(operation).unwrap()),
        |bench, operation| drop(bench.confirm(&bench.view().held_of(operation)).unwrap()),
    ];
    for decide in decide {
        let bench = eight();
        (0..8).for_each(|number| bench.save(&format!("f{number}"), &changed(40, 30)));
        let operation = bench.held()[0].held.as_ref().unwrap().operation.unwrap();
        decide(&bench, operation);
        let refusal = bench.undo_operation(operation).unwrap_err();
        let said = format!("nothing of {operation} waits any more");
        assert!(refusal.code == ErrorCode::AlreadyApplied && refusal.message.starts_with(&said), "{refusal:?}");
    }
}

/// A confirm is an operation of its own, which also lands what others had held.
#[test]
fn of_what_was_held_and_then_confirmed_the_confirm_is_named_to_be_undone() {
    let bench = eight();
    (0..8).for_each(|number| bench.save(&format!("f{number}"), &changed(40, 30)));
    let operation = bench.held()[0].held.as_ref().unwrap().operation.unwrap();
    let refused = || bench.undo_operation(operation).unwrap_err();
    let halves = bench.view().held_of(operation);
    let (first, rest) = halves.split_at(3);
    let confirm = |ids: &[ChangeId]| bench.view().confirm(ids, &HOW).unwrap()[0].operation.clone().unwrap();
    let one = confirm(first);
    // Under another id by then.
    bench.save("f7", &changed(40, 35));
    bench.view().discard(&rest[..1], &HOW.review).unwrap();
    let still: Vec<ChangeId> = bench.held().into_iter().filter_map(|row| Some(row.held?.id)).collect();
    let other = confirm(&still);
    let want = format!(
        "nothing of {operation} waits any more, and what was confirmed of it landed as {one}, {other}: `fettlefs undo` \
         of each takes that back"
    );
    assert_eq!((refused().code, refused().message), (ErrorCode::AlreadyApplied, want));
    bench.undo_operation(OperationId::parse(&other).unwrap()).unwrap();
    bench.undo_operation(OperationId::parse(&one).unwrap()).unwrap();
    assert_eq!(bench.below(&lines(40)).len(), 8);
}

/// Its own part is undone, and the rest is not as it was before it.
#[test]
fn the_undo_of_what_landed_in_part_names_the_confirm_of_the_rest_unless_that_is_undone() {
    let (bench, operation) = burst();
    let confirmed = bench.view().confirm(&bench.view().held_of(operation), &HOW).unwrap()[0].operation.clone().unwrap();
    let landed = |of: &str| {
        format!("what was confirmed of {of} landed as {confirmed}: `fettlefs undo {confirmed}` takes that back")
    };
    let undo = |id: OperationId| bench.view().undo(id, &UndoHow::default());
    let refused = || {
        let refusal = undo(operation).unwrap_err();
        (refusal.code, refusal.message)
    };
    assert_eq!(undo(operation).unwrap().notices, [landed(&operation.to_string())]);
    assert_eq!(bench.below(&lines(40)), [0, 1, 2, 3, 4]);
    let already = |rest: String| (ErrorCode::AlreadyApplied, format!("{operation} is undone already{rest}"));
    let of_it = already(format!(", and {}", landed("it")));
    assert_eq!(refused(), of_it);
    let nothing_left = already(": everything is as it was before it".to_owned());
    let undone = bench.undo_operation(OperationId::parse(&confirmed).unwrap()).unwrap();
    assert_eq!((bench.below(&lines(40)).len(), refused()), (8, nothing_left.clone()));
    // What it landed is there again, and gone once more.
    let again = bench.undo_told(&undone);
    assert_eq!(refused(), of_it);
    bench.undo_told(&again);
    assert_eq!(refused(), nothing_left);
}

/// An undo that holds again what had been discarded is undone by dropping that: not where it has landed.
#[test]
fn the_undo_of_what_was_held_again_and_then_confirmed_names_the_confirm() {
    let bench = eight();
    (0..8).for_each(|number| bench.save(&format!("f{number}"), &changed(40, 30)));
    let operation = bench.held()[0].held.as_ref().unwrap().operation.unwrap();
    bench.undo_operation(operation).unwrap();
    bench.undo(&bench.latest()).unwrap();
    let again = bench.latest().id;
    let confirmed = bench.view().confirm(&bench.view().held_of(operation), &HOW).unwrap()[0].operation.clone().unwrap();
    let names = format!("landed as {confirmed}: `fettlefs undo {confirmed}` takes that back");
    for id in [again, operation] {
        let refusal = bench.undo_operation(id).unwrap_err();
        assert!(refusal.code == ErrorCode::AlreadyApplied && refusal.message.ends_with(&names), "{refusal:?}");
    }
    bench.undo_operation(OperationId::parse(&confirmed).unwrap()).unwrap();
    let refusal = bench.undo_operation(operation).unwrap_err();
    assert_eq!(
        refusal.message,
        format!("nothing of {operation} waits any more, and what was confirmed of it is undone")
    );
}

/// What landed of it first is what the rest is held over.
#[test]
fn a_file_that_is_held_over_what_landed_of_it_goes_back_whole_and_comes_back_whole() {
    let bench = eight();
    bench.save("f0", &changed(40, 1));
    (1..8).for_each(|number| bench.save(&format!("f{number}"), &changed(40, 1)));
    bench.save("f0", &changed(40, 2));
    assert_eq!((bench.lower("f0"), bench.read("f0")), (Some(changed(40, 1)), Some(changed(40, 2))));
    let operation = bench.held()[0].held.as_ref().unwrap().operation.unwrap();
    let outcomes = bench.undo_operation(operation).unwrap();
    assert_eq!((bench.lower("f0"), bench.read("f0")), (Some(lines(40)), Some(lines(40))));
    assert!(bench.held().is_empty());
    bench.undo_operation(OperationId::parse(outcomes[0].operation.as_ref().unwrap()).unwrap()).unwrap();
    assert_eq!((bench.lower("f0"), bench.read("f0")), (Some(changed(40, 1)), Some(changed(40, 2))));
    let events = bench.view().store().events_since(0).unwrap();
    let of_it = events.iter().filter(|event| event.path.as_ref().is_some_and(|path| path.to_string() == "f0"));
    let undone = of_it.filter(|event| event.operation == outcomes[0].operation);
    let backups: Vec<&String> = undone.filter_map(|event| event.backup.as_ref()).collect();
    assert!(backups.len() == 2 && backups[0] != backups[1], "each tells its own: {backups:?}");
}

impl Bench {
    fn undo_told(&self, outcomes: &[Outcome]) -> Vec<Outcome> {
        self.undo_operation(OperationId::parse(outcomes[0].operation.as_ref().unwrap()).unwrap()).unwrap()
    }
}

/// What is held is judged against what the file had first, and is held over what landed of it since.
#[test]
fn a_file_that_is_held_over_a_slice_of_the_same_window_comes_back_whole() {
    let bench = Bench::with(&[(Key::Burst, "5")]);
    (0..8).for_each(|number| bench.put(&format!("f{number}"), &lines(40)));
    bench.save("f0", &changed(40, 1));
    (1..8).for_each(|number| bench.save(&format!("f{number}"), &changed(40, 1)));
    bench.save("f0", &changed(40, 2));
    let operation = bench.held()[0].held.as_ref().unwrap().operation.unwrap();
    let undone = bench.undo_operation(operation).unwrap();
    assert_eq!((bench.lower("f0"), bench.read("f0")), (Some(lines(40)), Some(lines(40))));
    bench.undo_told(&undone);
    assert_eq!((bench.lower("f0"), bench.read("f0")), (Some(changed(40, 1)), Some(changed(40, 2))));
    bench.confirm(&bench.view().held_of(operation)).unwrap();
    assert_eq!(bench.lower("f0"), Some(changed(40, 2)), "it is based on what the project has");
}

#[test]
fn a_directory_that_is_only_hidden_is_told_as_held_and_one_that_went_as_landed() {
    let bench = Bench::new();
    bench.put("d/large", &lines(200));
    bench.put("e/small", &lines(2));
    for (dir, file, event) in [("d", "d/large", EventName::WriteHeld), ("e", "e/small", EventName::WriteLanded)] {
        bench.unlink(file);
        bench.rmdir(dir).unwrap();
        let told = bench.view().store().events_since(0).unwrap().pop().unwrap();
        assert_eq!((told.event, told.path.unwrap().to_string().as_str()), (event, dir));
        let held = bench.held().into_iter().find(|row| row.path().to_string() == dir).and_then(|row| row.held);
        assert_eq!(
            (told.id, told.reason),
            (held.map(|held| held.id.to_string()), (dir == "d").then_some(Reason::Parent))
        );
        assert_eq!(bench.lower_path(dir).exists(), dir == "d");
    }
}

#[test]
fn a_removed_directory_comes_back_and_goes_again() {
    let mut bench = Bench::with(&[(Key::Burst, "5")]);
    (0..8).for_each(|number| bench.put(&format!("d/f{number}"), &lines(8)));
    (0..8).for_each(|number| bench.unlink(&format!("d/f{number}")));
    bench.rmdir("d").unwrap();
    let operation = bench.held()[0].held.as_ref().unwrap().operation.unwrap();
    let undone = bench.undo_operation(operation).unwrap();
    assert_eq!((bench.names("d").len(), bench.held().len()), (8, 0));
    let again = bench.undo_told(&undone);
    assert_eq!((bench.names(""), bench.held().len()), (vec![], 4));
    let told = bench.view().store().events_since(0).unwrap();
    let dropped = told.iter().filter(|event| event.event == EventName::Discarded);
    assert!(
        dropped.clone().count() == 4 && dropped.clone().all(|event| event.backup.is_none()),
        "nothing was kept of them"
    );
    bench.remount();
    bench.undo_told(&again);
    assert_eq!((bench.names("d").len(), bench.held().len()), (8, 0));
}

#[test]
fn what_is_held_again_takes_the_next_write_of_who_has_it_open() {
    let bench = eight();
    (0..8).for_each(|number| bench.save(&format!("f{number}"), &changed(40, 1)));
    let operation = bench.held()[0].held.as_ref().unwrap().operation.unwrap();
    let undone = bench.undo_operation(operation).unwrap();
    let node = bench.node("f7").unwrap();
    let handle = bench.view().open(node, OpenFlags::from_raw(libc::O_RDWR), &ME).unwrap().handle;
    bench.undo_told(&undone);
    bench.view().write(handle, 0, b"LINE").unwrap();
    bench.view().flush(handle, &ME).unwrap();
    bench.view().release(handle).unwrap();
    assert!(bench.read("f7").unwrap().starts_with("LINE"));
    assert_eq!(bench.lower("f7"), Some(lines(40)));
    assert_eq!(bench.view().held_of(operation).len(), 3);
}

/// A program that sets modes as it goes does nothing that its burst could not be undone with.
#[test]
fn new_modes_in_between_do_not_keep_a_burst_from_being_undone() {
    let bench = eight();
    for number in 0..8 {
        let path = format!("f{number}");
        bench.save(&path, &changed(40, 1));
        scenarios::chmod(&bench, &path, 0o755);
    }
    let operation = bench.held()[0].held.as_ref().unwrap().operation.unwrap();
    bench.undo_operation(operation).unwrap();
    assert_eq!(bench.below(&lines(40)).len(), 8);
}

#[test]
fn what_somebody_writes_to_keeps_all_of_it_as_it_is() {
    let bench = eight();
    bench.save("f0", &changed(40, 1));
    (1..8).for_each(|number| bench.save(&format!("f{number}"), &changed(40, 1)));
    bench.save("f0", &changed(40, 2));
    let operation = bench.held()[0].held.as_ref().unwrap().operation.unwrap();
    let handle = bench.open_for_save("f0");
    bench.view().write(handle, 0, b"half a line").unwrap();
    let refusal = bench.undo_operation(operation).unwrap_err();
    assert_eq!(refusal.code, ErrorCode::Busy);
    assert_eq!(bench.below(&changed(40, 1)), [0, 1, 2, 3, 4]);
    assert_eq!(bench.view().held_of(operation).len(), 4);
    assert_eq!(bench.read("f7"), Some(changed(40, 1)));
}

#[test]
fn a_file_that_was_written_twice_in_a_burst_goes_back_to_what_it_was_first() {
    let bench = eight();
    bench.save("f0", &changed(40, 1));
    bench.save("f0", &changed(40, 2));
    (1..8).for_each(|number| bench.save(&format!("f{number}"), &changed(40, 1)));
    let first = bench.held()[0].held.as_ref().unwrap().operation.unwrap();
    bench.undo_operation(first).unwrap();
    assert_eq!((bench.lower("f0"), bench.lower("f1")), (Some(lines(40)), Some(lines(40))));
}

#[test]
fn deletions_count_and_creations_and_what_was_made_in_this_session_do_not() {
    let bench = eight();
    for number in 0..12 {
        bench.save(&format!("made{number}"), "made\n");
        bench.save(&format!("made{number}"), "and written again\n");
        bench.unlink(&format!("made{number}"));
    }
    assert!(bench.held().is_empty());
    (0..8).for_each(|number| bench.put(&format!("f{number}"), "small\n"));
    (0..8).for_each(|number| bench.unlink(&format!("f{number}")));
    assert_eq!(bench.below("small\n"), [5, 6, 7]);
    assert_eq!(bench.reasons(), [Reason::Burst]);
    assert_eq!(bench.names(""), Vec::<String>::new());
}

/// Five small deletions have landed and three are held, by which what comes next is past the limit.
fn all_deleted() -> Bench {
    let bench = eight();
    (0..8).for_each(|number| bench.put(&format!("f{number}"), "small\n"));
    (0..8).for_each(|number| bench.unlink(&format!("f{number}")));
    assert_eq!(bench.below("small\n"), [5, 6, 7]);
    bench
}

#[test]
fn what_is_put_back_as_it_was_lands_past_the_limit() {
    let mut bench = all_deleted();
    (0..8).for_each(|number| bench.save(&format!("f{number}"), "small\n"));
    assert_eq!((bench.below("small\n").len(), bench.held().len()), (8, 0));
    bench.remount();
    assert_eq!((bench.below("small\n").len(), bench.held().len()), (8, 0));
}

/// Where the new file is closed before anything is in it, that is judged first.
#[test]
fn what_is_put_back_in_two_steps_waits_no_longer_than_for_the_second() {
    let bench = all_deleted();
    bench.save("f0", "");
    assert_eq!((bench.below(""), bench.held().len()), (vec![], 4));
    bench.save("f0", "small\n");
    assert_eq!((bench.below("small\n"), bench.held().len()), (vec![0, 5, 6, 7], 3));
}

#[test]
fn what_is_put_back_with_anything_else_in_it_is_held_past_the_limit() {
    let bench = all_deleted();
    bench.save("f0", "other\n");
    assert_eq!((bench.below("other\n"), bench.held().len()), (vec![], 4));
    bench.save("f1", &lines(200));
    assert_eq!((bench.lower("f1"), bench.held().len()), (None, 5));
}

#[test]
fn small_edits_that_are_taken_back_at_once_land_past_the_limit() {
    let bench = Bench::with(&[(Key::Burst, "5")]);
    (0..8).for_each(|number| bench.put(&format!("f{number}"), &lines(40)));
    (0..8).for_each(|number| bench.save(&format!("f{number}"), &changed(40, 1)));
    (0..8).for_each(|number| bench.save(&format!("f{number}"), &lines(40)));
    assert_eq!((bench.below(&lines(40)).len(), bench.held().len()), (8, 0));
}

#[test]
fn what_is_copied_back_to_where_it_was_renamed_from_lands_past_the_limit() {
    let bench = all_deleted();
    bench.put("big", &lines(200));
    bench.rename("big", "elsewhere");
    bench.save("big", &lines(200));
    assert_eq!((bench.lower("big"), bench.lower("elsewhere")), (Some(lines(200)), Some(lines(200))));
    assert_eq!(bench.held().len(), 3);
}

/// Another tree puts them back, for which these paths have not counted yet.
#[test]
fn what_is_put_back_as_it_was_does_not_count() {
    let bench = eight();
    (0..5).for_each(|number| bench.put(&format!("f{number}"), "small\n"));
    let other = Caller { pid: i32::MAX as u32, ..ME };
    (0..5).for_each(|number| bench.view().unlink(ROOT, OsStr::new(&format!("f{number}")), &other).unwrap());
    (0..5).for_each(|number| bench.save(&format!("f{number}"), "small\n"));
    (5..8).for_each(|number| bench.save(&format!("f{number}"), &changed(40, 1)));
    assert_eq!((bench.below("small\n").len(), bench.below(&changed(40, 1)), bench.held().len()), (5, vec![5, 6, 7], 0));
}

#[test]
fn another_tree_has_its_own_count() {
    let bench = eight();
    (0..5).for_each(|number| bench.save(&format!("f{number}"), &changed(40, 1)));
    // A process that has ended is a tree of its own.
    let other = Caller { pid: i32::MAX as u32, ..ME };
    for number in 5..8 {
        let node = bench.node(&format!("f{number}")).unwrap();
        let flags = OpenFlags::from_raw(libc::O_WRONLY | libc::O_TRUNC);
        let handle = bench.view().open(node, flags, &other).unwrap().handle;
        bench.view().write(handle, 0, changed(40, 1).as_bytes()).unwrap();
        bench.view().flush(handle, &other).unwrap();
        bench.view().release(handle).unwrap();
    }
    assert!(bench.held().is_empty());
    bench.save("f0", &changed(40, 2));
    assert!(bench.held().is_empty(), "a path that has counted");
    bench.save("f5", &changed(40, 2));
    assert_eq!(bench.reasons(), [Reason::Burst]);
}

#[test]
fn what_is_held_for_another_reason_belongs_to_the_burst_it_came_in() {
    let bench = eight();
    bench.save("f0", &changed(40, 40));
    (1..8).for_each(|number| bench.save(&format!("f{number}"), &changed(40, 1)));
    let held = bench.held();
    let reasons: Vec<Reason> = held.iter().map(|row| row.held.as_ref().unwrap().reasons[0]).collect();
    assert_eq!(reasons, [Reason::Size, Reason::Burst, Reason::Burst, Reason::Burst]);
    let operation = held[0].held.as_ref().unwrap().operation.unwrap();
    assert_eq!(bench.view().held_of(operation).len(), 4);
}

/// The files have an operation already, so that the directory is the first to ask for that of the second tree.
#[test]
fn a_directory_whose_files_were_held_by_another_tree_is_part_of_the_burst_that_removes_it() {
    let bench = Bench::with(&[(Key::Burst, "5")]);
    let names: Vec<String> = (0..8).map(|number| format!("f{number}")).collect();
    names.iter().for_each(|name| bench.put(&format!("d/{name}"), &lines(100)));
    names.iter().for_each(|name| bench.save(&format!("d/{name}"), &changed(100, 60)));
    let other = Caller { pid: u32::MAX, ..ME };
    let dir = bench.node("d").unwrap();
    names.iter().for_each(|name| bench.view().unlink(dir, OsStr::new(name), &other).unwrap());
    bench.view().rmdir(ROOT, OsStr::new("d"), &other).unwrap();
    let operation = |path: &str| {
        let row = bench.held().into_iter().find(|row| row.path().to_string() == path).unwrap();
        row.held.unwrap().operation
    };
    let events = bench.view().store().events_since(0).unwrap();
    let first = events.iter().find(|event| event.pid == Some(other.pid)).unwrap();
    assert_eq!(operation("d"), Some(OperationId::of_first_event(first.seq)));
    assert_ne!(operation("d"), operation("d/f0"));
    let undone = bench.view().held_of(operation("d").unwrap());
    bench.view().discard(&undone, &HOW.review).unwrap();
    assert_eq!(bench.names(""), ["d"]);
}
