//! What a process tree has not seen of a file it does not overwrite: however it came to know the file, whatever others did
//! to it since, and however it saves (SPEC §7).

use super::stale::OtherTree;
use super::*;

/// A process at work in the view.
struct Hands<'a> {
    bench: &'a Bench,
    who: Caller,
}

impl Hands<'_> {
    fn open(&self, path: &str, flags: i32) -> HandleId {
        let open = |node| Ok(self.bench.view().open(node, OpenFlags::from_raw(flags), &self.who)?.handle);
        ask(self.bench, self.bench.node(path).unwrap(), path, open).unwrap()
    }

    fn look(&self, path: &str) {
        let handle = self.open(path, libc::O_RDONLY);
        self.close(handle);
    }

    fn close(&self, handle: HandleId) {
        self.bench.view().flush(handle, &self.who).unwrap();
        self.bench.view().release(handle).unwrap();
    }

    fn save(&self, path: &str, content: &str) {
        let flags = libc::O_WRONLY | libc::O_TRUNC;
        let handle = match self.bench.node(path) {
            Ok(_) => self.open(path, flags),
            Err(_) => {
                let (parent, name) = self.bench.parent(path);
                let made = self.bench.view().create(parent, name, 0o644, OpenFlags::from_raw(flags), &self.who);
                made.unwrap().1.handle
            }
        };
        self.bench.view().write(handle, 0, content.as_bytes()).unwrap();
        self.close(handle);
    }

    fn rename_as(&self, from: &str, to: &str, flags: RenameFlags) {
        let [(from, name), (to, new_name)] = [from, to].map(|path| self.bench.parent(path));
        self.bench.view().rename(from, name, to, new_name, flags, &self.who).unwrap();
    }

    fn rename(&self, from: &str, to: &str) {
        self.rename_as(from, to, RenameFlags::empty());
    }

    fn save_by_rename(&self, path: &str, content: &str) {
        self.save("temp", content);
        self.rename("temp", path);
    }

    fn unlink(&self, path: &str) {
        let (parent, name) = self.bench.parent(path);
        self.bench.view().unlink(parent, name, &self.who).unwrap();
    }

    fn mkdir(&self, path: &str) {
        let (parent, name) = self.bench.parent(path);
        self.bench.view().mkdir(parent, name, 0o755, &self.who).unwrap();
    }

    fn rmdir(&self, path: &str) {
        let (parent, name) = self.bench.parent(path);
        self.bench.view().rmdir(parent, name, &self.who).unwrap();
    }

    fn set(&self, path: &str, set: &SetAttributes) {
        let set = |node| self.bench.view().set_attributes(node, None, set, &self.who);
        ask(self.bench, self.bench.node(path).unwrap(), path, set).unwrap();
    }
}

/// Small enough that all of it may change at once.
fn nine() -> String {
    lines(9)
}

/// Of `nine`, and too much to land.
fn large() -> String {
    changed(9, 8)
}

fn bench() -> Bench {
    let bench = Bench::with(&[(Key::Window, "0")]);
    bench.put("d/f", &nine());
    bench.put("d/keep", "keep\n");
    bench
}

type Act = (&'static str, fn(&Hands<'_>));
/// With what the file is to have afterwards.
type Edit = (&'static str, fn(&Hands<'_>, &str));

/// How it came to know the file as lower has it.
const SEES: [Act; 4] = [
    ("opened", |me| me.look("d/f")),
    ("landed", |me| me.save("d/f", &changed(9, 1))),
    ("held, confirmed", |me| {
        me.save_by_rename("d/f", &large());
        me.bench.confirm(&[me.bench.only_id()]).unwrap();
    }),
    ("opened, held, opened, discarded", |me| {
        me.look("d/f");
        me.save_by_rename("d/f", &large());
        me.look("d/f");
        me.bench.discard_all().unwrap();
    }),
];

/// Edits of a person below, or of another process tree.
const EDITS: [Edit; 13] = [
    ("written below", |other, content| other.bench.put("d/f", content)),
    ("replaced below", |other, content| {
        other.bench.put("new", content);
        std::fs::rename(other.bench.lower_path("new"), other.bench.lower_path("d/f")).unwrap();
    }),
    ("written", |other, content| other.save("d/f", content)),
    ("renamed over", |other, content| other.save_by_rename("d/f", content)),
    ("made anew beside its backup", |other, content| {
        other.rename("d/f", "d/f~");
        other.save("d/f", content);
    }),
    ("made anew", |other, content| {
        other.unlink("d/f");
        other.save("d/f", content);
    }),
    ("backup, temporary file", |other, content| {
        other.save("temp", content);
        other.rename("d/f", "d/f~");
        other.rename("temp", "d/f");
        other.unlink("d/f~");
    }),
    ("exchanged", |other, content| {
        other.save("temp", content);
        other.rename_as("temp", "d/f", RenameFlags::EXCHANGE);
        other.unlink("temp");
    }),
    ("away, changed, and back", |other, content| {
        other.rename("d/f", "g");
        other.save("g", content);
        other.rename("g", "d/f");
    }),
    ("directory away, changed, and back", |other, content| {
        other.rename("d", "e");
        other.save("e/f", content);
        other.rename("e", "d");
    }),
    ("directory made anew beside the old one", |other, content| {
        other.rename("d", "e");
        other.mkdir("d");
        other.save("d/f", content);
    }),
    ("directory removed and made anew", |other, content| {
        ["d/f", "d/keep"].into_iter().for_each(|path| other.unlink(path));
        other.rmdir("d");
        other.mkdir("d");
        other.save("d/f", content);
    }),
    ("the same made anew, then written below", |other, content| {
        let now = other.bench.lower("d/f").unwrap();
        other.rename("d/f", "d/f~");
        other.save("d/f", &now);
        other.bench.put("d/f", content);
    }),
];

/// What leaves the content as it was.
const OTHER_ACTS: [Act; 6] = [
    ("nothing", |_| {}),
    ("opened", |other| other.look("d/f")),
    ("mode", |other| other.set("d/f", &SetAttributes { mode: Some(0o600), ..SetAttributes::NOTHING })),
    ("times", |other| other.set("d/f", &SetAttributes { mtime: SetTime::Now, ..SetAttributes::NOTHING })),
    ("away and back", |other| {
        other.rename("d/f", "g");
        other.set("g", &SetAttributes { mtime: SetTime::Now, ..SetAttributes::NOTHING });
        other.rename("g", "d/f");
    }),
    ("directory away and back", |other| {
        other.rename("d", "e");
        other.rename("e", "d");
    }),
];

/// How it saves without another look.
const SAVES: [Edit; 3] = [
    ("by a rename", |me, content| me.save_by_rename("d/f", content)),
    ("anew beside a backup", |me, content| {
        me.rename("d/f", "d/f.old");
        me.save("d/f", content);
    }),
    ("by a rename beside a backup", |me, content| {
        me.save("temp", content);
        me.rename("d/f", "d/f.old");
        me.rename("temp", "d/f");
    }),
];

/// Has one tree see the file, the other act and the first save. Returns what that became, for a message.
fn play(see: Option<&Act>, act: impl Fn(&Hands<'_>), save: &Edit) -> (Bench, Vec<Reason>) {
    let (bench, tree) = (bench(), OtherTree::begin());
    let me = Hands { bench: &bench, who: ME };
    if let Some((_, see)) = see {
        see(&me);
    }
    let mine = bench.lower("d/f").unwrap() + "mine\n";
    act(&Hands { bench: &bench, who: Caller { pid: tree.pid(), ..ME } });
    assert_eq!(bench.reasons_if_held(), [], "what others did has landed");
    save.1(&me, &mine);
    let reasons = bench.reasons_if_held();
    (bench, reasons)
}

#[test]
fn what_others_have_edited_since_it_was_seen_is_not_overwritten() {
    for (see, edit, save) in
        SEES.iter().flat_map(|see| EDITS.iter().flat_map(move |edit| SAVES.iter().map(move |save| (see, edit, save))))
    {
        let how = format!("{}; {}; {}", see.0, edit.0, save.0);
        let edited = std::cell::RefCell::new(String::new());
        let act = |other: &Hands<'_>| {
            *edited.borrow_mut() = other.bench.lower("d/f").unwrap().replace("line 8\n", "by another\n");
            edit.1(other, &edited.borrow());
        };
        let (bench, reasons) = play(Some(see), act, save);
        assert!(reasons.contains(&Reason::Stale), "{how}: {reasons:?}");
        assert_eq!(bench.lower("d/f"), Some(edited.into_inner()), "{how}");
    }
}

#[test]
fn who_has_missed_nothing_or_never_saw_the_file_saves_it() {
    let seen = SEES.iter().map(Some).flat_map(|see| OTHER_ACTS.iter().map(move |act| (see, act)));
    for ((see, act), save) in seen.flat_map(|one| SAVES.iter().map(move |save| (one, save))) {
        let (bench, reasons) = play(see, act.1, save);
        let how = format!("{:?}; {}; {}", see.map(|see| see.0), act.0, save.0);
        assert_eq!(reasons, [], "{how}");
        assert!(bench.lower("d/f").unwrap().ends_with("mine\n"), "{how}");
    }
    for (edit, save) in EDITS[..4].iter().flat_map(|edit| SAVES.iter().map(move |save| (edit, save))) {
        let act = |other: &Hands<'_>| edit.1(other, &nine().replace("line 8\n", "by another\n"));
        assert_eq!(play(None, act, save).1, [], "never seen; {}; {}", edit.0, save.0);
    }
}

/// Nor does it by what it has open: it goes on with lower, and writes to a copy of that.
#[test]
fn who_opens_what_is_held_sees_no_edit_that_it_lacks() {
    type Save = fn(&Hands<'_>, HandleId, &str);
    let saves: [Save; 2] = [
        |me, opened, content| {
            me.close(opened);
            me.save_by_rename("d/f", content);
        },
        |me, opened, content| {
            me.bench.view().write(opened, 0, content.as_bytes()).unwrap();
            me.close(opened);
        },
    ];
    for save in saves {
        let bench = bench();
        let me = Hands { bench: &bench, who: ME };
        me.look("d/f");
        let edited = nine().replace("line 8\n", "by a person\n");
        bench.put("d/f", &edited);
        me.save_by_rename("d/f", &changed(9, 1));
        assert_eq!(bench.reasons(), [Reason::Stale]);
        let opened = me.open("d/f", libc::O_RDWR);
        bench.discard_all().unwrap();
        save(&me, opened, &changed(9, 2));
        assert_eq!((bench.reasons_if_held(), bench.lower("d/f")), (vec![Reason::Stale], Some(edited)));
    }
}

#[test]
fn what_a_confirm_merges_in_has_not_been_seen_by_who_looked_at_what_was_held() {
    let bench = bench();
    let me = Hands { bench: &bench, who: ME };
    me.look("d/f");
    me.save_by_rename("d/f", &large());
    me.look("d/f");
    bench.put("d/f", &(nine() + "by a person\n"));
    bench.confirm(&[bench.only_id()]).unwrap();
    let merged = large() + "by a person\n";
    assert_eq!(bench.lower("d/f"), Some(merged.clone()));
    me.save_by_rename("d/f", &changed(9, 7));
    assert_eq!((bench.reasons(), bench.lower("d/f")), (vec![Reason::Stale], Some(merged)));
}

#[test]
fn what_was_confirmed_has_been_seen_by_who_opened_it_and_not_by_who_saw_what_it_changes() {
    for (looks_again, reasons) in [(true, vec![]), (false, vec![Reason::Stale])] {
        let (bench, tree) = (bench(), OtherTree::begin());
        let [me, other] = [ME, Caller { pid: tree.pid(), ..ME }].map(|who| Hands { bench: &bench, who });
        me.look("d/f");
        other.save_by_rename("d/f", &large());
        if looks_again {
            me.look("d/f");
        }
        // Its times are no part of it.
        other.set("d/f", &SetAttributes { mtime: SetTime::Now, ..SetAttributes::NOTHING });
        bench.confirm(&[bench.only_id()]).unwrap();
        me.save_by_rename("d/f", &(large() + "mine\n"));
        assert_eq!(bench.reasons_if_held(), reasons, "looks again: {looks_again}");
    }
}

/// Its tree is known from the open, and so are those of others.
#[test]
fn what_is_judged_at_a_release_after_its_process_has_ended_is_unseen_by_others() {
    let (bench, tree) = (bench(), OtherTree::begin());
    let [me, other] = [ME, Caller { pid: tree.pid(), ..ME }].map(|who| Hands { bench: &bench, who });
    me.look("d/f");
    let emptied = other.open("d/f", libc::O_WRONLY | libc::O_TRUNC);
    drop(tree);
    bench.view().release(emptied).unwrap();
    assert_eq!(bench.lower("d/f").as_deref(), Some(""));
    me.save_by_rename("d/f", &changed(9, 1));
    assert_eq!((bench.reasons(), bench.lower("d/f").as_deref()), (vec![Reason::Stale], Some("")));
}
