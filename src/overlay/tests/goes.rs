//! Goes: what one process does to several paths in one go is one operation, below the limit of a burst, too.

use super::*;
use crate::model::OperationId;
use crate::protocol::{Event, Outcome};

impl Bench {
    /// What follows is no part of what was done until now: as after a pause of two seconds.
    pub(super) fn pauses(&self) {
        self.view().go_ends(ME.pid);
    }

    /// What a path's latest event says it is part of.
    fn operation_of(&self, path: &str) -> Option<OperationId> {
        let events = self.view().store().events_since(0).unwrap();
        let of_path = |event: &&Event| event.path.as_ref().is_some_and(|at| at.to_string() == path);
        OperationId::parse(events.iter().rev().find(of_path)?.operation.as_ref()?)
    }

    #[track_caller]
    fn one_operation(&self, paths: &[&str]) -> OperationId {
        let operations: Vec<_> = paths.iter().map(|path| self.operation_of(path)).collect();
        assert!(operations.iter().all(|operation| *operation == operations[0]), "{paths:?}: {operations:?}");
        operations[0].unwrap()
    }

    fn undo_of(&self, operation: OperationId) -> OperationId {
        let outcomes: Vec<Outcome> = self.view().undo(operation, &UndoHow::default()).unwrap().outcomes;
        let undone = outcomes[0].operation.clone();
        assert!(outcomes.iter().all(|outcome| outcome.operation == undone), "{outcomes:?}");
        OperationId::parse(&undone.unwrap()).unwrap()
    }
}

/// Has ended, and is a process of its own.
const OTHER: Caller = Caller { pid: i32::MAX as u32, ..ME };

fn three() -> Bench {
    let bench = Bench::with(&[(Key::Window, "0")]);
    ["a", "b", "d/c"].iter().for_each(|path| bench.put(path, &lines(40)));
    bench
}

#[test]
fn files_made_rewritten_and_deleted_in_one_go_are_undone_as_one_and_that_again() {
    let mut bench = three();
    bench.put("d/c", "small\n");
    bench.save("a", &changed(40, 1));
    bench.unlink("d/c");
    bench.rmdir("d").unwrap();
    let (parent, name) = bench.parent("e");
    bench.view().mkdir(parent, name, 0o755, &ME).unwrap();
    bench.save("e/new", "new\n");
    bench.save("b", &changed(40, 2));
    let operation = bench.one_operation(&["a", "d/c", "d", "e", "e/new", "b"]);
    let undone = bench.undo_of(operation);
    assert_eq!((bench.lower("a"), bench.lower("b")), (Some(lines(40)), Some(lines(40))));
    assert_eq!(
        (bench.lower("d/c").as_deref(), bench.lower_names()),
        (Some("small\n"), vec!["a".into(), "b".into(), "d".into()])
    );
    bench.remount();
    bench.undo_of(undone);
    assert_eq!((bench.lower("a"), bench.lower("b")), (Some(changed(40, 1)), Some(changed(40, 2))));
    assert_eq!(
        (bench.lower("e/new").as_deref(), bench.lower_names()),
        (Some("new\n"), vec!["a".into(), "b".into(), "e".into()])
    );
}

/// Whichever comes first.
#[test]
fn what_is_held_of_it_goes_with_what_landed() {
    for first_held in [true, false] {
        let bench = three();
        let change = |path: &str, is_held: bool| bench.save(path, &changed(40, if is_held { 40 } else { 1 }));
        change("a", first_held);
        change("b", !first_held);
        change("d/c", true);
        let operation = bench.one_operation(&["a", "b", "d/c"]);
        let held = bench.view().held_of(operation);
        assert_eq!((held.len(), bench.held().len()), (2, 2), "each row tells it");
        let undone = bench.undo_of(operation);
        assert!(bench.held().is_empty() && bench.lower("b") == Some(lines(40)) && bench.lower("a") == Some(lines(40)));
        bench.undo_of(undone);
        assert_eq!(bench.view().held_of(operation), held);
        bench.confirm(&bench.view().held_of(operation)).unwrap();
        assert_eq!((bench.lower("d/c"), bench.held().len()), (Some(changed(40, 40)), 0));
    }
}

#[test]
fn what_is_held_alone_is_no_operation_however_often_it_is_written() {
    let bench = three();
    bench.save("a", &changed(40, 40));
    bench.save("a", &changed(40, 39));
    assert_eq!((bench.operation_of("a"), bench.held()[0].held.as_ref().unwrap().operation), (None, None));
}

/// As `sed -i` saves.
#[test]
fn a_temporary_file_is_no_change_beside_what_it_becomes() {
    for (first, second) in [(40, 40), (1, 40), (40, 1), (1, 1)] {
        let bench = three();
        let save = |path: &str, lines: usize| {
            bench.save("temp", &changed(40, lines));
            bench.rename("temp", path);
        };
        save("a", first);
        let alone = bench.operation_of("a");
        assert_eq!(alone.is_some(), first == 1, "what is held alone is no operation");
        save("b", second);
        let both = bench.one_operation(&["a", "b"]);
        bench.undo_of(both);
        assert_eq!(bench.lower_names(), ["a", "b", "d"]);
        assert!(bench.held().is_empty() && bench.lower("a") == Some(lines(40)) && bench.lower("b") == Some(lines(40)));
    }
}

#[test]
fn a_file_written_twice_in_one_go_goes_back_to_what_it_was_first() {
    let bench = three();
    bench.save("a", &changed(40, 1));
    bench.save("a", &changed(40, 2));
    let undone = bench.undo_of(bench.one_operation(&["a"]));
    assert_eq!(bench.lower("a"), Some(lines(40)));
    bench.undo_of(undone);
    assert_eq!(bench.lower("a"), Some(changed(40, 2)));
}

#[test]
fn another_process_and_another_life_of_the_daemon_begin_their_own() {
    let mut bench = three();
    bench.save("a", &changed(40, 1));
    bench.save_as("b", &changed(40, 1), &OTHER);
    assert_ne!(bench.operation_of("a"), bench.operation_of("b"));
    bench.remount();
    bench.save("d/c", &changed(40, 1));
    assert_ne!(bench.operation_of("a"), bench.operation_of("d/c"));
    bench.undo_of(bench.operation_of("a").unwrap());
    assert_eq!(["a", "b", "d/c"].map(|path| bench.lower(path).unwrap() == lines(40)), [true, false, false]);
}

#[test]
fn nothing_joins_what_a_person_has_decided_about() {
    let decide: [fn(&Bench); 4] = [
        |bench| {
            bench.undo_of(bench.operation_of("a").unwrap());
        },
        |bench| drop(bench.confirm(&[bench.only_id()]).unwrap()),
        |bench| drop(bench.view().discard(&[bench.only_id()], &HOW.review).unwrap()),
        |bench| {
            let backups = bench.view().store().backups().unwrap();
            bench.view().rollback(&backups, &RollbackHow::default()).unwrap();
        },
    ];
    for decide in decide {
        let bench = three();
        bench.save("a", &changed(40, 1));
        bench.save("b", &changed(40, 40));
        let before = bench.one_operation(&["a", "b"]);
        decide(&bench);
        bench.save("d/c", &changed(40, 1));
        assert_ne!(bench.operation_of("d/c"), Some(before));
    }
}

/// Its undo is a call of its own, and what came before can be undone only after it.
#[test]
fn a_rename_to_a_free_name_stands_between_and_new_modes_do_not() {
    let bench = three();
    bench.save("a", &changed(40, 1));
    scenarios::chmod(&bench, "a", 0o755);
    bench.save("b", &changed(40, 1));
    let first = bench.one_operation(&["b"]);
    bench.rename("a", "moved");
    bench.save("moved", &changed(40, 2));
    bench.save("d/c", &changed(40, 1));
    let last = bench.one_operation(&["moved", "d/c"]);
    assert_ne!(first, last);
    bench.undo_of(last);
    let renamed = bench.view().store().history().unwrap();
    let renamed = renamed.iter().find(|(event, _)| event.message.as_deref() == Some("[renamed from a]")).unwrap();
    bench.undo_of(OperationId::parse(renamed.0.operation.as_ref().unwrap()).unwrap());
    bench.undo_of(first);
    assert_eq!(["a", "b", "d/c"].map(|path| bench.lower(path).unwrap() == lines(40)), [true; 3]);
}

/// A person's edit between two writes is not undone with them.
#[test]
fn what_somebody_else_wrote_in_between_begins_another() {
    let bench = three();
    bench.save("a", &changed(40, 1));
    bench.put("a", &lines(41));
    bench.save("a", &changed(41, 1));
    bench.save("b", &changed(40, 1));
    let last = bench.one_operation(&["a", "b"]);
    let events = bench.view().store().events_since(0).unwrap();
    assert!(events.iter().any(|event| event.operation.is_some() && event.operation != Some(last.to_string())));
    bench.undo_of(last);
    assert_eq!((bench.lower("a"), bench.lower("b")), (Some(lines(41)), Some(lines(40))));
}

#[test]
fn a_burst_takes_along_all_that_was_done_in_the_go_it_grew_from() {
    let bench = Bench::with(&[(Key::Burst, "3"), (Key::Window, "0")]);
    (0..5).for_each(|number| bench.put(&format!("f{number}"), &lines(40)));
    bench.save("made", "made\n");
    (0..5).for_each(|number| bench.save(&format!("f{number}"), &changed(40, 1)));
    bench.save("made_too", "made\n");
    let operation = bench.one_operation(&["made", "f0", "f4"]);
    assert_ne!(bench.operation_of("made_too"), Some(operation), "what is made loses nothing");
    assert_eq!(bench.view().held_of(operation).len(), 2);
    bench.undo_of(operation);
    assert_eq!((bench.lower_names().len(), bench.lower("f0")), (6, Some(lines(40))));
}

/// Others of the tree had their own until then.
#[test]
fn a_burst_of_several_processes_makes_one_of_theirs() {
    let bench = Bench::with(&[(Key::Burst, "3"), (Key::Window, "0")]);
    (0..5).for_each(|number| bench.put(&format!("f{number}"), &lines(40)));
    // It ends when its input does.
    let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
    let (one, other) = (Caller { pid: std::process::id(), ..ME }, Caller { pid: child.id(), ..ME });
    let save = |number: u32, by: &Caller| bench.save_as(&format!("f{number}"), &changed(40, 1), by);
    bench.view().mkdir(ROOT, OsStr::new("made"), 0o755, &one).unwrap();
    save(0, &one);
    (1..3).for_each(|number| save(number, &other));
    let before = [bench.one_operation(&["made", "f0"]), bench.one_operation(&["f1", "f2"])];
    assert_ne!(before[0], before[1]);
    (3..5).for_each(|number| save(number, &one));
    drop(child.stdin.take());
    child.wait().unwrap();
    let operation = bench.one_operation(&["made", "f0", "f1", "f4"]);
    bench.undo_of(operation);
    assert_eq!((bench.lower_names().len(), bench.lower("f0"), bench.held().len()), (5, Some(lines(40)), 0));
}

/// Undoes all operations, the latest first, and these again; the project is then as it was after them.
#[track_caller]
fn back_and_forth(bench: &Bench, files: &[&str]) {
    let looks = |bench: &Bench| {
        let kinds = bench.lower_names().into_iter().map(|name| {
            let meta = std::fs::symlink_metadata(bench.dir.join(&name)).unwrap();
            (name, meta.file_type())
        });
        (kinds.collect::<Vec<_>>(), files.iter().map(|path| bench.lower(path)).collect::<Vec<_>>())
    };
    let after = looks(bench);
    let told = bench.view().store().events_since(0).unwrap();
    let all: std::collections::BTreeSet<OperationId> =
        told.iter().filter_map(|event| OperationId::parse(event.operation.as_ref()?)).collect();
    let undone: Vec<OperationId> = all.into_iter().rev().map(|operation| bench.undo_of(operation)).collect();
    assert_eq!(bench.lower_names(), ["f0", "f1", "f2", "f3", "f4"]);
    assert!((0..5).all(|number| bench.lower(&format!("f{number}")) == Some(lines(5))));
    for operation in undone.into_iter().rev() {
        bench.undo_of(operation);
    }
    assert_eq!(looks(bench), after);
}

fn five() -> Bench {
    let bench = Bench::with(&[(Key::Burst, "3"), (Key::Window, "0")]);
    (0..5).for_each(|number| bench.put(&format!("f{number}"), &lines(5)));
    bench
}

/// Whoever of the tree does it, and before the burst is one, too.
#[test]
fn another_kind_of_thing_in_the_place_of_what_a_burst_took_is_no_part_of_it() {
    let another = Caller { pid: std::process::id(), ..ME };
    for who in [ME, another] {
        for before in [2, 5] {
            let bench = five();
            (0..before).for_each(|number| bench.unlink(&format!("f{number}")));
            bench.view().mkdir(ROOT, OsStr::new("f1"), 0o755, &who).unwrap();
            let ((parent, name), flags) = (bench.parent("f1/x"), OpenFlags::from_raw(libc::O_WRONLY));
            let (_, opened) = bench.view().create(parent, name, 0o644, flags, &who).unwrap();
            bench.view().write(opened.handle, 0, b"x\n").unwrap();
            bench.view().flush(opened.handle, &who).unwrap();
            bench.view().release(opened.handle).unwrap();
            (before..5).for_each(|number| bench.unlink(&format!("f{number}")));
            back_and_forth(&bench, &["f1/x"]);
        }
    }
}

#[test]
fn a_further_name_and_a_fifo_are_operations_of_their_own_and_end_what_came_before() {
    let bench = five();
    bench.save("c", "c\n");
    let (from, (parent, name)) = (bench.node("f0").unwrap(), bench.parent("linked"));
    bench.view().link(from, parent, name, &ME).unwrap();
    bench.save("f0", &lines(6));
    bench.view().mknod(ROOT, OsStr::new("p"), libc::S_IFIFO | 0o644, 0, &ME).unwrap();
    bench.save("d", "d\n");
    let of = ["c", "linked", "f0", "p", "d"].map(|path| bench.operation_of(path).unwrap());
    assert_eq!(std::collections::BTreeSet::from(of).len(), 5, "{of:?}");
    // The further name comes back as a copy.
    back_and_forth(&bench, &["c", "d"]);
}

/// What comes and what goes are of one writer, and of one operation.
#[test]
fn the_source_of_a_held_rename_waits_with_its_target() {
    let bench = Bench::new();
    bench.put("a", &lines(100));
    bench.put("c", &changed(100, 90));
    bench.rename("a", "c");
    let mut held: Vec<UpperRow> = bench.held();
    held.sort_by(|one, other| one.names.cmp(&other.names));
    let told: Vec<_> = held.iter().map(|row| (row.path().to_string(), row.held.as_ref().unwrap())).collect();
    let [(from, goes), (to, comes)] = &told[..] else { panic!("{told:?}") };
    assert_eq!((from.as_str(), to.as_str()), ("a", "c"));
    assert_eq!(
        (goes.reasons.as_slice(), goes.writer.as_ref().unwrap().pid),
        (&[Reason::Parent, Reason::Size][..], ME.pid)
    );
    assert_eq!((&goes.writer, goes.operation), (&comes.writer, comes.operation));
}
