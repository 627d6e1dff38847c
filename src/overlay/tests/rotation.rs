//! The log of events is bounded; what is left goes on as if it had always begun there.

use super::*;
use crate::overlay::RollbackHow;
use crate::protocol::{Event, EventName};
use crate::store::EventDraft;

const WAIT: Duration = Duration::ZERO;

impl Bench {
    fn events(&self) -> Vec<Event> {
        self.view().store().events_since(0).unwrap()
    }

    fn log_bytes(&self) -> u64 {
        self.events().iter().map(|event| serde_json::to_vec(event).unwrap().len() as u64).sum()
    }

    /// Saves until there are about twice as many events as `bytes_max` allows.
    fn fill_log(&self, bytes_max: u64) {
        for turn in 0.. {
            if self.log_bytes() > 2 * bytes_max {
                return;
            }
            self.save(&format!("new{turn}"), "new\n");
        }
    }
}

#[test]
fn the_oldest_events_go_and_numbers_go_on() {
    let mut bench = Bench::new();
    bench.fill_log(8 << 10);
    let before = bench.events();
    let gone = bench.view().store().rotate_events(8 << 10).unwrap();
    let left = bench.events();
    assert!(gone > 0 && bench.log_bytes() <= 6 << 10, "{gone} went, {} bytes are left", bench.log_bytes());
    assert_eq!(left, before[gone as usize..]);
    assert_eq!(bench.view().store().rotate_events(8 << 10).unwrap(), 0, "there is room again");
    bench.save("later", "new\n");
    bench.remount();
    bench.save("last", "new\n");
    let numbers: Vec<u64> = bench.events().iter().map(|event| event.seq).collect();
    assert_eq!(numbers, (gone + 1..=before.len() as u64 + 2).collect::<Vec<_>>());
    assert_eq!(bench.view().check().unwrap().0, []);
}

#[test]
fn what_became_of_ids_goes_with_what_told_it_but_for_what_leads_to_what_waits() {
    let bench = Bench::new();
    bench.put("discarded", &lines(100));
    bench.save("discarded", &changed(100, 60));
    let discarded = bench.only_id();
    bench.view().discard(std::slice::from_ref(&discarded), &HOW.review).unwrap();
    bench.put("waits", &lines(100));
    let superseded = [60, 70, 80].map(|count| {
        bench.save("waits", &changed(100, count));
        bench.only_id()
    });
    let known = |id| bench.view().store().verdict(id).unwrap().is_some();
    let all = || [&discarded, &superseded[0], &superseded[1]].map(known);
    assert_eq!(all(), [true; 3]);
    // And what they stand for.
    let given = || {
        let given = bench.view().store().load_given_ids().unwrap();
        given.into_iter().map(|(id, _)| id).collect::<std::collections::HashSet<_>>()
    };
    assert_eq!(given(), superseded.iter().chain([&discarded]).cloned().collect());
    bench.fill_log(8 << 10);
    assert!(bench.view().store().rotate_events(8 << 10).unwrap() > 0);
    assert_eq!(all(), [false, true, true]);
    assert_eq!(given(), superseded.iter().cloned().collect());
    assert_eq!(bench.view().check().unwrap().0, []);
    bench.view().discard(&superseded[2..], &HOW.review).unwrap();
    bench.fill_log(8 << 10);
    bench.view().store().rotate_events(8 << 10).unwrap();
    assert_eq!((all(), given()), ([false; 3], Default::default()));
    assert_eq!(bench.view().check().unwrap().0, []);
}

#[test]
fn however_little_is_allowed_the_latest_stays() {
    let bench = Bench::new();
    (0..3).for_each(|turn| bench.save(&format!("new{turn}"), "new\n"));
    bench.view().store().rotate_events(0).unwrap();
    bench.save("later", "new\n");
    assert_eq!(bench.events().iter().map(|event| event.seq).collect::<Vec<_>>(), [3, 4]);
}

#[test]
fn a_reader_in_the_middle_loses_nothing_of_what_is_left_and_is_told_nothing_twice() {
    let bench = Bench::new();
    bench.fill_log(8 << 10);
    let store = bench.view().store();
    let all = bench.events();
    // One that has read half, one that has read everything.
    let half = store.events_after(0, all.len() as u64 / 2, WAIT).unwrap().unwrap();
    store.rotate_events(8 << 10).unwrap();
    bench.save("later", "new\n");
    let after = |seq| store.events_after(seq, 10_000, WAIT).unwrap().unwrap();
    let rest = after(half.last().unwrap().seq);
    assert_eq!(rest, bench.events());
    assert_eq!(after(all.last().unwrap().seq).len(), 1);
}

#[test]
fn what_a_follower_has_yet_to_read_stays_up_to_four_times_as_much() {
    let bench = Bench::new();
    bench.fill_log(8 << 10);
    let store = bench.view().store();
    store.note_follower((std::process::id(), 0), 2, 4);
    store.rotate_events(8 << 10).unwrap();
    assert_eq!(bench.events()[0].seq, 3, "told is not read");
    assert_eq!(store.rotate_events(8 << 10).unwrap(), 0);
    // It stands still, and the log grows.
    for _ in 0..48 {
        let draft = EventDraft::new(EventName::CheckPassed);
        store.record(&draft.with(|event| event.message = Some("x".repeat(1 << 10)))).unwrap();
    }
    store.rotate_events(8 << 10).unwrap();
    // The latest, which always stays, is not counted.
    let left = (bench.events()[0].seq, bench.log_bytes());
    assert!(left.0 > 3 && left.1 > 8 << 10 && left.1 <= 34 << 10, "{left:?}");
    // It has read all, and is as any other.
    let last = store.last_seq().unwrap();
    store.note_follower((std::process::id(), 0), last, last);
    store.note_follower((std::process::id(), 0), 4, last);
    store.note_follower((std::process::id(), 0), last, last);
    store.rotate_events(8 << 10).unwrap();
    assert!(bench.log_bytes() <= 8 << 10, "{}", bench.log_bytes());
}

/// Each time more than the log's limit gathers, and is rotated, before the follower reads on, in pages.
#[test]
fn a_follower_reads_through_many_rotations_and_misses_nothing() {
    let bench = Bench::new();
    let store = bench.view().store();
    let (mut seen, mut since, mut gone) = (Vec::new(), 0, 0);
    for _ in 0..8 {
        store.note_follower((std::process::id(), 0), since, since);
        for _ in 0..16 {
            let draft = EventDraft::new(EventName::CheckPassed);
            store.record(&draft.with(|event| event.message = Some("x".repeat(1 << 10)))).unwrap();
            gone += store.rotate_events(8 << 10).unwrap();
        }
        loop {
            let page = store.events_after(since, 5, WAIT).unwrap().unwrap();
            let Some(last) = page.last().map(|event| event.seq) else { break };
            store.note_follower((std::process::id(), 0), since, last);
            gone += store.rotate_events(8 << 10).unwrap();
            seen.extend(page.iter().map(|event| event.seq));
            since = last;
        }
    }
    assert_eq!(seen, (1..=store.last_seq().unwrap()).collect::<Vec<_>>());
    assert!(gone > 64, "{gone} events were let go");
}

#[test]
fn events_come_in_pages_that_an_answer_has_room_for() {
    let bench = Bench::new();
    let store = bench.view().store();
    let first = store.last_seq().unwrap();
    for _ in 0..6 {
        let draft = EventDraft::new(EventName::CheckPassed);
        store.record(&draft.with(|event| event.message = Some("x".repeat(1 << 20)))).unwrap();
    }
    let page = |after| store.events_after(after, 100, WAIT).unwrap().unwrap().iter().map(|event| event.seq).collect();
    let (one, other, none): (Vec<u64>, Vec<u64>, Vec<u64>) = (page(first), page(first + 3), page(first + 6));
    assert_eq!((one, other, none), ((first + 1..=first + 3).collect(), (first + 4..=first + 6).collect(), vec![]));
}

#[test]
fn half_an_operation_is_not_undone() {
    let bench = Bench::new();
    for number in 0..20 {
        bench.put(&format!("f{number}"), &lines(100));
        bench.save(&format!("f{number}"), &changed(100, 60));
    }
    let ids: Vec<ChangeId> = bench.held().into_iter().filter_map(|row| Some(row.held?.id)).collect();
    let outcomes = bench.view().confirm(&ids, &HOW).unwrap();
    let operation = outcomes[0].operation.clone().unwrap();
    let id = crate::model::OperationId::parse(&operation).unwrap();
    assert!(bench.view().store().operation(id).unwrap().is_some());
    bench.view().store().rotate_events(4 << 10).unwrap();
    assert!(bench.events().iter().any(|event| event.operation.as_ref() == Some(&operation)), "some of it is left");
    assert_eq!(bench.view().store().operation(id).unwrap(), None);
}

#[test]
fn a_rollback_knows_an_edit_though_the_log_begins_after_what_was_edited() {
    let bench = Bench::new();
    bench.put("a", &lines(20));
    bench.save("a", &changed(20, 2));
    bench.put("a", "edited outside\n");
    bench.fill_log(16 << 10);
    bench.view().store().rotate_events(4 << 10).unwrap();
    assert!(bench.events().iter().all(|event| event.path.as_ref().is_none_or(|path| path.to_string() != "a")));
    let mut bench = bench;
    // Nothing is known of the path by memory.
    bench.remount();
    let backups = bench.view().store().backups().unwrap();
    let backup = backups.into_iter().find(|backup| backup.path.to_string() == "a").unwrap();
    let refusal = bench.view().rollback(&[backup], &RollbackHow::default()).unwrap_err();
    assert_eq!(refusal.code, ErrorCode::Conflict);
    assert_eq!(bench.lower("a").as_deref(), Some("edited outside\n"));
    // Nor is it kept for ever.
    bench.purge_all();
    bench.view().store().rotate_events(0).unwrap();
    let landed = bench.view().store().last_landed(&[RelPath::parse(b"a").unwrap()].into()).unwrap();
    assert!(landed.is_empty(), "{landed:?}");
}

#[test]
fn what_became_of_an_id_stays_although_the_clock_was_ahead_before() {
    let mut bench = Bench::new();
    bench.fill_log(8 << 10);
    let ahead = "UPDATE event SET row = json_set(row, '$.time', '2100-01-01T00:00:00Z')";
    check::run_sql(&mut bench, ahead);
    bench.put("a", &lines(100));
    bench.save("a", &changed(100, 60));
    let id = bench.only_id();
    bench.view().discard(std::slice::from_ref(&id), &HOW.review).unwrap();
    assert!(bench.view().store().rotate_events(8 << 10).unwrap() > 0);
    assert!(bench.events()[0].time > jiff::Timestamp::now(), "the oldest is of that time");
    assert!(bench.view().store().verdict(&id).unwrap().is_some());
}
