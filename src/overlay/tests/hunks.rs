//! Hunks: some of a change land or go, and what stays held and what does not add up to what was reviewed.

use std::os::unix::fs::PermissionsExt;

use super::scenarios::chmod;
use super::*;
use crate::model::BackupKind;
use crate::protocol::{ErrorBody, Outcome};

type Answer = std::result::Result<Vec<Outcome>, ErrorBody>;

const ALL: [usize; 5] = [1, 2, 3, 4, 5];

/// Two hundred lines in which each hunk of `hunks` has rewritten sixteen: any two of them are held for their size.
fn text(hunks: &[usize]) -> String {
    let line = |number: usize| match number % 40 < 16 && hunks.contains(&(number / 40 + 1)) {
        true => format!("new {number}\n"),
        false => format!("line {number}\n"),
    };
    (0..200).map(line).collect()
}

fn others(hunks: &[usize]) -> Vec<usize> {
    ALL.into_iter().filter(|hunk| !hunks.contains(hunk)).collect()
}

/// With all five held.
fn held() -> Bench {
    let bench = Bench::new();
    bench.put("a", &text(&[]));
    bench.save("a", &text(&ALL));
    assert_eq!(bench.held()[0].held.as_ref().unwrap().hunks, 5);
    bench
}

impl Bench {
    fn confirm_hunks(&self, hunks: &[usize]) -> Answer {
        let numbers: Vec<u32> = hunks.iter().map(|hunk| *hunk as u32).collect();
        self.view().confirm_hunks(&self.only_id(), &numbers, &HOW)
    }

    fn discard_hunks(&self, hunks: &[usize]) -> Answer {
        let numbers: Vec<u32> = hunks.iter().map(|hunk| *hunk as u32).collect();
        self.view().discard_hunks(&self.only_id(), &numbers, &HOW.review)
    }

    /// What the project and the view have, and the hunks that are held.
    fn sides(&self) -> (Option<String>, Option<String>, u64) {
        let held = self.held();
        assert_eq!(held.len(), 1, "{held:?}");
        (self.lower("a"), self.read("a"), held[0].held.as_ref().unwrap().hunks)
    }

    fn assert_nothing_held(&self) {
        assert!(self.held().is_empty(), "{:?}", self.held());
        assert_eq!((self.stage_files(), self.lower_names()), (0, vec!["a".to_owned()]));
    }
}

#[test]
fn some_hunks_land_and_the_rest_stays_held_under_a_new_id() {
    let mut bench = held();
    let whole = bench.only_id();
    let outcome = bench.confirm_hunks(&[3, 1]).unwrap().remove(0);
    assert_eq!(bench.sides(), (Some(text(&[1, 3])), Some(text(&ALL)), 3));
    let rest = bench.only_id();
    assert_eq!((outcome.id, outcome.new_id), (Some(whole.clone()), Some(rest.clone())));
    assert_eq!((outcome.counts.unwrap().insertions, outcome.counts.unwrap().deletions), (32, 32));
    assert_eq!(bench.backups(), ["a"], "what was replaced");
    assert_eq!(bench.confirm(&[whole]).unwrap_err(), ErrorCode::UnknownId);
    // Nobody but the two of us was there, also for the next start.
    bench.remount();
    assert_eq!((bench.only_id(), bench.read("a")), (rest.clone(), Some(text(&ALL))));
    bench.confirm(&[rest]).unwrap();
    assert_eq!(bench.lower("a"), Some(text(&ALL)));
    bench.assert_nothing_held();
}

#[test]
fn some_hunks_go_and_the_view_shows_the_rest_which_stays_held() {
    let mut bench = held();
    let outcome = bench.discard_hunks(&[2]).unwrap().remove(0);
    assert_eq!(bench.sides(), (Some(text(&[])), Some(text(&[1, 3, 4, 5])), 4));
    assert_eq!(outcome.new_id, Some(bench.only_id()));
    let backup = bench.view().store().backup(&outcome.backup.unwrap()).unwrap().unwrap();
    assert_eq!(backup.kind, BackupKind::Discarded);
    assert_eq!(bench.view().store().content(backup.digest).unwrap(), Some(text(&ALL).into_bytes()));
    bench.remount();
    assert_eq!(bench.sides(), (Some(text(&[])), Some(text(&[1, 3, 4, 5])), 4));
    bench.confirm(&[bench.only_id()]).unwrap();
    assert_eq!(bench.lower("a"), Some(text(&[1, 3, 4, 5])));
    bench.assert_nothing_held();
}

#[test]
fn the_parts_always_add_up_to_the_whole() {
    for chosen in 1..31u32 {
        let chosen: Vec<usize> = ALL.into_iter().filter(|hunk| chosen & (1 << (hunk - 1)) != 0).collect();
        let landed = held();
        landed.confirm_hunks(&chosen).unwrap();
        assert_eq!(landed.sides().0, Some(text(&chosen)), "{chosen:?}");
        let trimmed = held();
        trimmed.discard_hunks(&others(&chosen)).unwrap();
        assert_eq!(trimmed.sides().1, Some(text(&chosen)), "{chosen:?}");
        // Then what is left: a discard gives up the others, a confirm lands them.
        landed.confirm(&[landed.only_id()]).unwrap();
        trimmed.confirm(&[trimmed.only_id()]).unwrap();
        assert_eq!((landed.lower("a"), trimmed.lower("a")), (Some(text(&ALL)), Some(text(&chosen))), "{chosen:?}");
    }
}

#[test]
fn all_hunks_are_the_change_as_a_whole() {
    let bench = held();
    assert_eq!(bench.confirm_hunks(&ALL).unwrap()[0].new_id, None);
    assert_eq!(bench.lower("a"), Some(text(&ALL)));
    bench.assert_nothing_held();
    let bench = held();
    assert_eq!(bench.discard_hunks(&[5, 4, 3, 2, 1, 1]).unwrap()[0].new_id, None);
    assert_eq!(bench.read("a"), Some(text(&[])));
    bench.assert_nothing_held();
}

#[test]
fn landed_hunks_are_undone_and_the_rest_is_then_the_whole() {
    let bench = held();
    bench.confirm_hunks(&[1, 3]).unwrap();
    bench.view().undo(bench.latest().id, &UndoHow::default()).unwrap();
    assert_eq!(bench.sides(), (Some(text(&[])), Some(text(&ALL)), 5));
    bench.confirm(&[bench.only_id()]).unwrap();
    assert_eq!(bench.lower("a"), Some(text(&ALL)));
}

#[test]
fn discarded_hunks_are_held_again_with_the_rest_under_the_old_id() {
    let mut bench = held();
    let whole = bench.only_id();
    bench.discard_hunks(&[2]).unwrap();
    let (discard, rest) = (bench.latest(), bench.only_id());
    let reader = bench.view().open(bench.node("a").unwrap(), OpenFlags::from_raw(libc::O_RDONLY), &ME).unwrap().handle;
    bench.view().undo(discard.id, &UndoHow::default()).unwrap();
    assert_eq!((bench.sides(), bench.only_id()), ((Some(text(&[])), Some(text(&ALL)), 5), whole.clone()));
    let read = bench.view().read(reader, 0, 1 << 20).unwrap();
    assert_eq!(String::from_utf8_lossy(&read), text(&ALL));
    bench.close(reader);
    assert_eq!(bench.confirm(&[rest]).unwrap_err(), ErrorCode::UnknownId);
    bench.remount();
    assert_eq!((bench.only_id(), bench.read("a"), bench.stage_files()), (whole, Some(text(&ALL)), 1));
    // What the rest has become since is somebody's, and does not go for it.
    bench.discard_hunks(&[2]).unwrap();
    let discard = bench.latest();
    bench.save("a", &text(&[1, 3, 4]));
    assert_eq!(bench.view().undo(discard.id, &UndoHow::default()).unwrap_err().code, ErrorCode::Conflict);
    assert_eq!(bench.read("a"), Some(text(&[1, 3, 4])));
}

#[test]
fn the_undo_of_discarded_hunks_is_undone_as_often_as_somebody_wants() {
    for chosen in [&[1][..], &[2, 5], &[1, 2, 3, 4]] {
        let mut bench = held();
        let whole = bench.only_id();
        bench.discard_hunks(chosen).unwrap();
        let (rest, kept) = (bench.only_id(), ALL.len() - chosen.len());
        let with = |bench: &Bench| (bench.sides(), bench.only_id());
        let all = ((Some(text(&[])), Some(text(&ALL)), 5), whole.clone());
        let some = ((Some(text(&[])), Some(text(&others(chosen))), kept as u64), rest.clone());
        for round in 0..3 {
            let reader = bench.node("a").unwrap();
            let reader = bench.view().open(reader, OpenFlags::from_raw(libc::O_RDONLY), &ME).unwrap().handle;
            let undone = bench.view().undo(bench.latest().id, &UndoHow::default()).unwrap().outcomes.remove(0);
            assert_eq!((with(&bench), undone.id), (all.clone(), Some(whole.clone())), "{chosen:?}, {round}");
            let backup = bench.view().store().backup(&undone.backup.unwrap()).unwrap().unwrap();
            let content = bench.view().store().content(backup.digest).unwrap().unwrap();
            assert_eq!(String::from_utf8_lossy(&content), text(&others(chosen)), "{chosen:?}, {round}");
            let again = bench.view().undo(bench.latest().id, &UndoHow::default()).unwrap().outcomes.remove(0);
            assert_eq!((with(&bench), again.id), (some.clone(), Some(rest.clone())), "{chosen:?}, {round}");
            let read = bench.view().read(reader, 0, 1 << 20).unwrap();
            assert_eq!(String::from_utf8_lossy(&read), text(&others(chosen)), "who has it open sees it");
            bench.close(reader);
            assert_eq!(bench.confirm(std::slice::from_ref(&whole)).unwrap_err(), ErrorCode::UnknownId);
            if round == 1 {
                bench.remount();
                assert_eq!((with(&bench), bench.stage_files()), (some.clone(), 1));
            }
        }
        bench.confirm(&[rest]).unwrap();
        assert_eq!(bench.lower("a"), Some(text(&others(chosen))));
        bench.assert_nothing_held();
    }
}

#[test]
fn hunks_that_were_discarded_one_after_the_other_come_and_go_in_that_order() {
    let bench = held();
    let mut steps = vec![(bench.only_id(), bench.read("a"))];
    let mut discards = Vec::new();
    for _ in 0..2 {
        bench.discard_hunks(&[1]).unwrap();
        discards.push(bench.latest());
        steps.push((bench.only_id(), bench.read("a")));
    }
    let now = |bench: &Bench| (bench.only_id(), bench.read("a"));
    let refused = bench.undo(&discards[0]).unwrap_err();
    assert_eq!((refused.code, now(&bench)), (ErrorCode::Conflict, steps[2].clone()), "another is held by now");
    let mut undone = Vec::new();
    for at in [1, 0] {
        bench.undo(&discards[at]).unwrap();
        undone.push(bench.latest());
        assert_eq!(now(&bench), steps[at]);
        assert_eq!(bench.undo(&discards[at]).unwrap_err().code, ErrorCode::AlreadyApplied);
    }
    for (at, undo) in [(1, &undone[1]), (2, &undone[0])] {
        bench.undo(undo).unwrap();
        assert_eq!(now(&bench), steps[at]);
        assert_eq!(bench.undo(undo).unwrap_err().code, ErrorCode::AlreadyApplied);
    }
}

#[test]
fn the_rest_does_not_come_back_over_what_became_of_the_whole() {
    let with = |become_of: &dyn Fn(&Bench)| {
        let bench = held();
        bench.discard_hunks(&[2]).unwrap();
        let rest = bench.only_id();
        bench.undo(&bench.latest()).unwrap();
        let undo = bench.latest();
        become_of(&bench);
        let before = (bench.lower("a"), bench.read("a"));
        let again = bench.undo(&undo).map_err(|refused| refused.code);
        (before, (bench.lower("a"), bench.read("a")), again.map(|mut done| done.remove(0).id == Some(rest)))
    };
    let (before, after, refused) = with(&|bench| bench.save("a", &text(&[1, 3, 4])));
    assert_eq!((before, refused), (after, Err(ErrorCode::Conflict)), "somebody went on with the whole");
    let (before, after, refused) = with(&|bench| bench.confirm(&[bench.only_id()]).map(drop).unwrap());
    assert_eq!((before, refused), (after, Err(ErrorCode::Conflict)), "it is in the project");
    let (_, after, again) = with(&|bench| bench.discard("a"));
    assert_eq!((after, again), ((Some(text(&[])), Some(text(&[1, 3, 4, 5]))), Ok(true)));
}

#[test]
fn the_undo_of_landed_hunks_is_undone_as_often_as_somebody_wants() {
    let bench = held();
    bench.confirm_hunks(&[1, 3]).unwrap();
    for _ in 0..3 {
        assert_eq!(bench.sides(), (Some(text(&[1, 3])), Some(text(&ALL)), 3));
        bench.undo(&bench.latest()).unwrap();
        assert_eq!(bench.sides(), (Some(text(&[])), Some(text(&ALL)), 5));
        bench.undo(&bench.latest()).unwrap();
    }
    bench.confirm(&[bench.only_id()]).unwrap();
    assert_eq!(bench.lower("a"), Some(text(&ALL)));
    bench.assert_nothing_held();
}

#[test]
fn what_is_written_afterwards_joins_the_rest() {
    let bench = held();
    bench.confirm_hunks(&[1, 3]).unwrap();
    let more = text(&ALL).replace("line 30\n", "more\n");
    bench.save("a", &more);
    assert_eq!(bench.sides(), (Some(text(&[1, 3])), Some(more), 4));
    // It was held for its size, and is small against what has landed.
    bench.save("a", &text(&[1, 2, 3]));
    assert_eq!(bench.lower("a"), Some(text(&[1, 2, 3])));
    bench.assert_nothing_held();
    let bench = held();
    bench.discard_hunks(&[1, 3]).unwrap();
    bench.save("a", &text(&ALL));
    assert_eq!(bench.sides(), (Some(text(&[])), Some(text(&ALL)), 5));
}

#[test]
fn who_has_it_open_to_read_sees_the_rest() {
    let bench = held();
    let node = bench.node("a").unwrap();
    let reader = bench.view().open(node, OpenFlags::from_raw(libc::O_RDONLY), &ME).unwrap().handle;
    bench.discard_hunks(&[2]).unwrap();
    let read = bench.view().read(reader, 0, 1 << 20).unwrap();
    assert_eq!(String::from_utf8_lossy(&read), text(&[1, 3, 4, 5]));
    bench.close(reader);
    assert_eq!(bench.stage_files(), 1);
}

#[test]
fn what_cannot_be_split_is_refused_and_stays_as_it_was() {
    fn refused(bench: &Bench, hunks: &[usize], code: ErrorCode, why: &str) {
        let before = (bench.only_id(), bench.lower("a"), bench.read("a"));
        for answer in [bench.confirm_hunks(hunks), bench.discard_hunks(hunks)] {
            let refusal = answer.unwrap_err();
            assert!(refusal.code == code && refusal.message.contains(why), "{refusal:?}");
        }
        assert_eq!((bench.only_id(), bench.lower("a"), bench.read("a")), before);
    }
    refused(&held(), &[1, 6], ErrorCode::BadRequest, "has no hunk 6, but 5");
    let bench = held();
    let writer = bench.open_for_save("a");
    bench.view().write(writer, 0, text(&ALL).as_bytes()).unwrap();
    refused(&bench, &[1], ErrorCode::Busy, "is being written");
    bench.close(writer);
    let bench = Bench::new();
    bench.put("a", &text(&[]));
    bench.unlink("a");
    refused(&bench, &[1], ErrorCode::BadRequest, "no hunks to choose from");
}

#[test]
fn hunks_do_not_land_on_what_somebody_changed_below_and_go_all_the_same() {
    let bench = held();
    let outside = text(&[]).replace("line 27\n", "outside\n");
    bench.put("a", &outside);
    let refusal = bench.confirm_hunks(&[1]).unwrap_err();
    assert_eq!(refusal.code, ErrorCode::Conflict);
    assert_eq!((bench.lower("a"), bench.read("a")), (Some(outside.clone()), Some(text(&ALL))));
    bench.discard_hunks(&[1]).unwrap();
    assert_eq!((bench.lower("a"), bench.read("a")), (Some(outside), Some(text(&[2, 3, 4, 5]))));
    bench.confirm(&[bench.only_id()]).unwrap();
    assert_eq!(bench.lower("a"), Some(text(&[2, 3, 4, 5]).replace("line 27\n", "outside\n")), "merged");
}

#[test]
fn hunks_do_not_land_where_somebody_has_set_a_mode_that_the_change_would_take_back() {
    let bench = held();
    super::scenarios::chmod(&bench, "a", 0o755);
    bench.chmod_below("a", 0o600);
    let id = bench.only_id();
    let refusal = bench.confirm_hunks(&[1]).unwrap_err();
    assert!(refusal.code == ErrorCode::Conflict && refusal.message.contains("given mode 600 below"), "{refusal:?}");
    assert_eq!(refusal.message, bench.view().confirm(std::slice::from_ref(&id), &HOW).unwrap_err().message);
    let forced = ConfirmHow { force: true, ..HOW };
    bench.view().confirm_hunks(&id, &[1], &forced).unwrap();
    assert_eq!((bench.lower("a"), bench.looks_below("a").0), (Some(text(&[1])), 0o600));
}

#[test]
fn the_undo_of_confirmed_hunks_lands_none_of_those_that_are_left() {
    let bench = held();
    bench.confirm_hunks(&[1, 2, 3]).unwrap();
    let confirmed = bench.latest();
    bench.discard_hunks(&[1]).unwrap();
    assert_eq!(bench.sides(), (Some(text(&[1, 2, 3])), Some(text(&[1, 2, 3, 5])), 1));
    bench.view().undo(confirmed.id, &UndoHow::default()).unwrap();
    assert_eq!(bench.lower("a"), Some(text(&[])));
    assert_eq!(bench.read("a"), Some(text(&[1, 2, 3, 5])));
}

#[test]
fn who_has_a_further_name_open_goes_on_with_the_whole_when_discarded_hunks_are_held_again() {
    let mut bench = Bench::new();
    bench.put("a", &text(&[]));
    std::fs::hard_link(bench.lower_path("a"), bench.lower_path("b")).unwrap();
    bench.save("a", &text(&ALL));
    bench.remount();
    let handle = bench.open("b", libc::O_RDWR).unwrap();
    let shown = || String::from_utf8(bench.view().read(handle, 0, 1 << 20).unwrap()).unwrap();
    bench.discard_hunks(&[2]).unwrap();
    assert_eq!(shown(), text(&others(&[2])));
    bench.undo(&bench.latest()).unwrap();
    assert_eq!(shown(), text(&ALL));
    bench.view().write(handle, 0, b"NEW").unwrap();
    bench.close(handle);
    let written = text(&ALL).replacen("new", "NEW", 1);
    assert_eq!(["a", "b"].map(|name| bench.read(name).unwrap()), [&written[..]; 2]);
    assert_eq!(bench.lower("b"), Some(text(&[])));
    bench.check();
}

#[test]
fn hunks_of_what_was_written_again_after_its_deletion_landed_bring_file_and_directory_back() {
    let mut bench = Bench::new();
    let old = lines(10);
    bench.put("d/e/a", &old);
    bench.unlink("d/e/a");
    bench.rmdir("d/e").unwrap();
    bench.rmdir("d").unwrap();
    assert_eq!(bench.lower_names(), [""; 0]);
    bench.mkdir("d");
    bench.mkdir("d/e");
    let (before, after) = (lines(120).replace("line", "before"), "after\n".repeat(40));
    let whole = format!("{before}{old}{after}");
    bench.save("d/e/a", &whole);
    chmod(&bench, "d/e/a", 0o640);
    // As a person may do who sees nothing in them.
    std::fs::remove_dir_all(bench.lower_path("d")).unwrap();
    bench.remount();
    assert_eq!(bench.lower_names(), [""; 0]);
    let some = bench.confirm_hunks(&[1]).unwrap().remove(0);
    let landed = format!("{before}{old}");
    let mode = |path| std::fs::metadata(bench.lower_path(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((bench.lower("d/e/a"), mode("d/e/a")), (Some(landed), 0o640));
    assert_eq!((bench.read("d/e/a"), some.backup), (Some(whole.clone()), None));
    bench.undo(&bench.latest()).unwrap();
    assert_eq!((bench.lower("d/e/a"), bench.read("d/e/a")), (None, Some(whole.clone())));
    bench.confirm(&[bench.only_id()]).unwrap();
    assert_eq!(bench.lower("d/e/a"), Some(whole));
}
