use super::*;
use crate::store::Location;
use crate::sys::tree::Tree;

fn store() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&Tree::open(dir.path()).unwrap(), &Location::default()).unwrap();
    (dir, store)
}

fn reader(session: &str) -> Reader {
    Reader { uid: 7, session: session.to_owned() }
}

fn path(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).unwrap()
}

fn receive(store: &Store, session: &str, at: &str, text: &str) {
    store.note_received(&reader(session), &path(at), Digest::of(text.as_bytes()), text.as_bytes()).unwrap();
}

fn text_of(store: &Store, session: &str, at: &str) -> Option<String> {
    let baseline = store.baseline(&reader(session), &path(at)).unwrap()?;
    let text = store.received_text(&reader(session), &path(at), &baseline).unwrap().unwrap();
    assert_eq!(Digest::of(&text), baseline.digest);
    let of_another = Baseline { digest: Digest::of(b"another"), own: None };
    assert_eq!(store.received_text(&reader(session), &path(at), &of_another).unwrap(), None);
    Some(String::from_utf8(text).unwrap())
}

#[test]
fn each_session_of_each_user_has_received_what_it_has() {
    let (_dir, store) = store();
    receive(&store, "a", "x", "one");
    receive(&store, "a", "y", "two");
    receive(&store, "b", "x", "three");
    receive(&store, "a", "x", "four");
    assert_eq!(text_of(&store, "a", "x").as_deref(), Some("four"));
    assert_eq!(text_of(&store, "b", "x").as_deref(), Some("three"));
    assert_eq!(store.baseline(&Reader { uid: 8, ..reader("a") }, &path("x")).unwrap(), None);
    store.forget_received(&reader("a"), Some(&path("x"))).unwrap();
    assert_eq!((text_of(&store, "a", "x"), text_of(&store, "a", "y").as_deref()), (None, Some("two")));
    store.forget_received(&reader("a"), None).unwrap();
    assert_eq!((text_of(&store, "a", "y"), text_of(&store, "b", "x").as_deref()), (None, Some("three")));
}

#[test]
fn a_session_knows_what_it_made_of_what_it_had_and_of_nothing_else() {
    let (_dir, store) = store();
    let (one, two, three) = (Digest::of(b"one"), Digest::of(b"two"), Digest::of(b"three"));
    let own = |store: &Store| store.baseline(&reader("a"), &path("x")).unwrap().and_then(|baseline| baseline.own);
    store.note_own_edit(&reader("a"), &path("x"), one, two).unwrap();
    assert_eq!(own(&store), None);
    receive(&store, "a", "x", "one");
    store.note_own_edit(&reader("a"), &path("x"), three, two).unwrap();
    assert_eq!(own(&store), None);
    store.note_own_edit(&reader("a"), &path("x"), one, two).unwrap();
    store.note_own_edit(&reader("a"), &path("x"), two, three).unwrap();
    assert_eq!(own(&store), Some(three));
    receive(&store, "a", "x", "five");
    assert_eq!(own(&store), None);
}

#[test]
fn the_oldest_sessions_go_and_what_they_read_stays_counted() {
    let (_dir, store) = store();
    let counted = Counted { asked: 10, returned: 3 };
    for number in 0..SESSIONS_MAX + 5 {
        let session = format!("s{number}");
        receive(&store, &session, "x", "text");
        store.count_read(7, Some(&session), counted).unwrap();
    }
    let meters = store.meters(None, None).unwrap();
    let nobody: Vec<_> = meters.iter().filter(|meter| meter.session.is_none()).collect();
    assert_eq!((meters.len(), nobody.len()), (SESSIONS_MAX + 1, 1));
    assert_eq!((nobody[0].reads, nobody[0].counted), (5, Counted { asked: 50, returned: 15 }));
    assert_eq!((text_of(&store, "s4", "x"), text_of(&store, "s5", "x").as_deref()), (None, Some("text")));
}

#[test]
fn the_oldest_texts_go_when_there_are_too_many_bytes_of_them() {
    let (_dir, store) = store();
    let text = "x".repeat(8 << 20);
    for number in 0..10 {
        receive(&store, "a", &format!("p{number}"), &text);
    }
    let kept: Vec<bool> = (0..10).map(|number| text_of(&store, "a", &format!("p{number}")).is_some()).collect();
    assert_eq!(kept, [false, false, true, true, true, true, true, true, true, true]);
}

#[test]
fn counts_are_each_users_own_and_can_begin_anew() {
    let (_dir, store) = store();
    let counted = Counted { asked: 100, returned: 40 };
    store.count_read(7, Some("a"), counted).unwrap();
    store.count_read(7, Some("a"), counted).unwrap();
    store.count_read(8, None, counted).unwrap();
    let of = |uid, session| -> Vec<(Option<String>, u64, u64)> {
        let meters: Vec<MeterRow> = store.meters(uid, session).unwrap();
        meters.into_iter().map(|meter| (meter.session, meter.reads, meter.counted.returned)).collect()
    };
    assert_eq!(of(Some(7), None), [(Some("a".to_owned()), 2, 80)]);
    assert_eq!(of(None, None), [(None, 1, 40), (Some("a".to_owned()), 2, 80)]);
    store.reset_meters(Some(7), None).unwrap();
    assert_eq!(of(None, None), [(None, 1, 40)]);
}

/// A database that was made before there were readers.
#[test]
fn an_older_database_gets_the_tables_and_keeps_the_rest() {
    let (dir, store) = store();
    let kept = store.stage_content(&std::fs::File::open("/dev/null").unwrap()).unwrap();
    store.keep_content(&kept).unwrap();
    store.database.lock().write(|tx| Ok(tx.execute_batch("DROP TABLE reading; DROP TABLE reader;")?)).unwrap();
    drop(store);
    let store = Store::open(&Tree::open(dir.path()).unwrap(), &Location::default()).unwrap();
    receive(&store, "a", "x", "one");
    assert_eq!(text_of(&store, "a", "x").as_deref(), Some("one"));
    assert!(store.has_content(kept.digest).unwrap());
}
