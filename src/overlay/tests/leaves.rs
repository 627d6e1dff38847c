//! What the project had leaves it by review alone, whatever names it went by: what stands where it came from is no
//! reason to let it go, unless that has been judged as a change of it.

use super::*;

fn exchange(bench: &Bench, one: &str, other: &str) -> Result<()> {
    rename(bench.view(), bench.parent(one), bench.parent(other), RenameFlags::EXCHANGE)
}

fn mkfifo(bench: &Bench, path: &str) {
    let (dir, name) = bench.parent(path);
    bench.view().mknod(dir, name, libc::S_IFIFO | 0o600, 0, &ME).unwrap();
}

fn link(bench: &Bench, from: &str, to: &str) {
    let (dir, name) = bench.parent(to);
    bench.view().link(bench.node(from).unwrap(), dir, name, &ME).unwrap();
}

type Way = (&'static str, fn(&Bench), &'static str);

/// Ways by which `d/f` comes to another name, and what is no content to where it was.
const WAYS: [Way; 9] = [
    (
        "a directory",
        |bench| {
            bench.rename("d/f", "x");
            bench.mkdir("d/f");
        },
        "x",
    ),
    (
        "a FIFO",
        |bench| {
            bench.rename("d/f", "x");
            mkfifo(bench, "d/f");
        },
        "x",
    ),
    (
        "a directory that came",
        |bench| {
            bench.rename("d/f", "x");
            bench.rename("old", "d/f");
        },
        "x",
    ),
    (
        "a directory with something in it",
        |bench| {
            bench.rename("d/f", "x");
            bench.mkdir("d/f");
            bench.save("d/f/x", "x\n");
        },
        "x",
    ),
    (
        "exchanged with a new directory",
        |bench| {
            bench.mkdir("x");
            exchange(bench, "d/f", "x").unwrap();
        },
        "x",
    ),
    ("exchanged with an older directory", |bench| exchange(bench, "d/f", "old").unwrap(), "old"),
    (
        "renamed with its directory",
        |bench| {
            bench.rename("d", "e");
            bench.mkdir("d");
            bench.mkdir("d/f");
        },
        "e/f",
    ),
    (
        "renamed further",
        |bench| {
            bench.rename("d/f", "x");
            bench.mkdir("d/f");
            bench.rename("x", "y");
        },
        "y",
    ),
    (
        "linked",
        |bench| {
            link(bench, "d/f", "x");
            bench.rename("d/f", "y");
            bench.mkdir("d/f");
            bench.unlink("y");
        },
        "x",
    ),
];

fn project() -> Bench {
    let bench = Bench::new();
    bench.put("d/f", &lines(100));
    bench.put("old/other", "other\n");
    bench.put("target", &changed(100, 100));
    bench
}

fn deleted(path: &str, reasons: &[Reason]) -> (String, ChangeKind, Vec<Reason>) {
    (path.to_owned(), ChangeKind::Delete, reasons.to_vec())
}

#[test]
fn a_deletion_is_judged_whatever_stands_where_the_content_came_from_but_content() {
    for (how, go, last) in WAYS {
        let bench = project();
        go(&bench);
        bench.unlink(last);
        assert!(bench.waiting().contains(&deleted(last, &[Reason::Size])), "{how}: {:?}", bench.waiting());
        assert_eq!(bench.lower(last), Some(lines(100)), "{how}");
    }
}

#[test]
fn the_source_of_a_rename_that_is_held_stays_below_whatever_stands_where_it_came_from_but_content() {
    for (how, go, last) in WAYS {
        let bench = project();
        go(&bench);
        bench.rename(last, "target");
        let waiting = bench.waiting();
        assert!(waiting.contains(&deleted(last, &[Reason::Parent, Reason::Size])), "{how}: {waiting:?}");
        assert!(waiting.contains(&("target".to_owned(), ChangeKind::Modify, vec![Reason::Size])), "{how}: {waiting:?}");
        assert_eq!((bench.lower(last), bench.lower("target")), (Some(lines(100)), Some(changed(100, 100))), "{how}");
    }
}

/// It waits in upper, and may go without a trace; lower has nothing there.
#[test]
fn what_is_still_being_written_where_older_content_was_is_no_reason_to_let_that_go() {
    let bench = project();
    bench.rename("d/f", "d/f~");
    let handle = bench.open_for_save("d/f");
    bench.view().write(handle, 0, lines(99).as_bytes()).unwrap();
    bench.unlink("d/f~");
    assert_eq!((bench.waiting(), bench.lower("d/f~")), (vec![deleted("d/f~", &[Reason::Size])], Some(lines(100))));
    bench.close(handle);
    assert_eq!(bench.read("d/f"), Some(lines(99)));
}

/// As editors save: by then the file has been judged as a change of its copy.
#[test]
fn a_copy_by_renaming_goes_once_the_file_is_saved_anew() {
    for (edits, waiting) in [(2, 0), (60, 1)] {
        let bench = project();
        bench.rename("d/f", "d/f~");
        bench.save("d/f", &changed(100, edits));
        bench.unlink("d/f~");
        assert_eq!((bench.waiting().len(), bench.lower("d/f~")), (waiting, None));
    }
}

/// Of a change with a name that is to be made, lower's file takes that name when its own goes. That one came by a rename.
#[test]
fn what_replaces_a_name_of_a_held_file_is_judged_by_what_the_name_had() {
    let ways: [Way; 4] = [
        (
            "renamed over",
            |bench| {
                bench.save("tmp", &lines(300));
                bench.rename("tmp", "q");
            },
            "q",
        ),
        (
            "renamed over by a change",
            |bench| {
                bench.save("target", &lines(300));
                bench.rename("target", "q");
            },
            "q",
        ),
        (
            "exchanged",
            |bench| {
                bench.save("tmp", &lines(300));
                exchange(bench, "tmp", "q").unwrap();
            },
            "q",
        ),
        (
            "removed and made anew",
            |bench| {
                bench.unlink("q");
                bench.save("q", &lines(300));
            },
            "q",
        ),
    ];
    for (how, replace, name) in ways {
        let bench = project();
        bench.rename("d/f", name);
        bench.save(name, &changed(100, 100));
        link(&bench, name, "l");
        replace(&bench);
        let waiting = bench.waiting();
        let told = waiting.iter().find(|(path, ..)| path == name);
        assert_eq!(told, Some(&(name.to_owned(), ChangeKind::Modify, vec![Reason::Size])), "{how}: {waiting:?}");
        assert_eq!(bench.read(name), Some(lines(300)), "{how}");
        assert_ne!(bench.lower(name), Some(lines(300)), "{how}");
        assert!([name, "l"].iter().any(|path| bench.lower(path) == Some(lines(100))), "{how}");
    }
}
