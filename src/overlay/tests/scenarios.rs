//! What is tried with deaths (`crash.rs`) and with faults below (`faults.rs`): a project made ready, an act, and what there
//! is before and after it, as programs and people see it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use super::*;
use crate::overlay::review::Review;
use crate::protocol::ErrorBody;
use crate::store::{AnchorState, Known};
use crate::sys::steps::test_apart;

/// What a death may leave, and how a fault may end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// Everything as before the act or everything as after it.
    AllOrNothing,
    /// The same, and a death right after the act forgets that what was made came in this session: it is one call below,
    /// and its record. What is taken for older is reviewed sooner, not later.
    Made,
    /// The same of an act below and its record: a death right after it forgets the act, and nothing that came before it.
    Unrecorded,
    /// The same, but that on a disk that nobody can write to any more what was set stays in the view until it can be judged.
    Looks,
    /// The view all old or all new, and each path of the project by itself; what has not landed is held.
    EachPath,
    /// The act is a close: what was written is in the view, whether it has landed, is held, or was interrupted.
    Closes,
    /// Refused, everything is as before the act. Done, it is in the view, whether it has landed, is held, or is left to be
    /// judged.
    Shown,
    /// The act opens, writes and closes. Refused in the middle, the view has what was written so far.
    Writes,
}

pub(super) struct Scenario {
    pub name: &'static str,
    pub rule: Rule,
    pub ready: fn(&mut Bench),
    pub act: fn(&Bench) -> Acted,
    /// Content that must be somewhere afterwards: in the view, in the project, held, or among the backups.
    pub precious: &'static [&'static str],
}

/// Why an act was refused, as who acted is told.
#[derive(Debug)]
pub(super) struct Refusal {
    /// Only what a program is told; a person gets words.
    pub errno: Option<i32>,
    pub words: String,
}

pub(super) type Acted = std::result::Result<(), Refusal>;

impl From<Error> for Refusal {
    fn from(err: Error) -> Self {
        Self { errno: Some(err.code()), words: err.to_string() }
    }
}

impl From<ErrorBody> for Refusal {
    fn from(err: ErrorBody) -> Self {
        Self { errno: None, words: err.message }
    }
}

/// What there is, as programs and people see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Picture {
    pub lower: BTreeMap<String, String>,
    pub view: BTreeMap<String, String>,
    pub held: BTreeSet<String>,
    /// What paths had, by which they will be judged.
    pub past: Vec<String>,
}

fn lines(what: &str, count: usize) -> String {
    (0..count).map(|number| format!("{what} {number}\n")).collect()
}

/// Written to and not closed: the close is what is tried.
fn write_and_leave_open(bench: &Bench, path: &str, content: &str) {
    let handle = bench.open_for_save(path);
    bench.view().write(handle, 0, content.as_bytes()).unwrap();
}

/// Gives what `close(2)` gives; nobody waits for the release.
fn close_all(bench: &Bench) -> Acted {
    let handles: Vec<HandleId> = bench.view().state.lock().handles.keys().copied().collect();
    for handle in handles {
        let closed = bench.view().flush(handle, &ME);
        let released = bench.view().release(handle);
        closed.and(released)?;
    }
    Ok(())
}

/// The close of which the release has not come yet.
fn flush_all(bench: &Bench) {
    let handles: Vec<HandleId> = bench.view().state.lock().handles.keys().copied().collect();
    handles.into_iter().for_each(|handle| bench.view().flush(handle, &ME).unwrap());
}

fn small(what: &str) -> String {
    lines(what, 40).replacen(&format!("{what} 7\n"), "small edit\n", 1)
}

/// The directory of a path, looked up as the kernel does.
fn parent<'a>(bench: &Bench, path: &'a str) -> Result<(NodeId, &'a OsStr)> {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    let mut node = ROOT;
    for part in dir.split('/').filter(|part| !part.is_empty()) {
        node = bench.view().lookup(node, OsStr::new(part))?.node;
    }
    Ok((node, OsStr::new(name)))
}

fn rename_with(bench: &Bench, one: &str, other: &str, flags: RenameFlags) -> Acted {
    Ok(super::rename(bench.view(), parent(bench, one)?, parent(bench, other)?, flags)?)
}

fn rename(bench: &Bench, from: &str, to: &str) -> Acted {
    rename_with(bench, from, to, RenameFlags::empty())
}

/// What lands otherwise where content waits in memory before it is on a disk.
const TAKES_PLACE: &str = "a small edit takes the place of its file";

const fn small_edit_renamed(name: &'static str) -> Scenario {
    Scenario {
        name,
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("a", &lines("old", 40));
            bench.save("a.tmp", &small("old"));
        },
        act: |bench| rename(bench, "a.tmp", "a"),
        precious: &["old 7\n", "small edit\n"],
    }
}

fn exchange(bench: &Bench, one: &str, other: &str) -> Acted {
    rename_with(bench, one, other, RenameFlags::EXCHANGE)
}

/// As a patch does: each path, what it has, and what it is to have.
fn rewrite(bench: &Bench, files: &[(&str, String, String)]) -> Acted {
    let rewrites = files.iter().map(|(path, old, new)| Rewrite {
        path: RelPath::parse(path.as_bytes()).unwrap(),
        base: Digest::of(old.as_bytes()),
        content: new.clone().into_bytes(),
    });
    let how = RewriteHow { caller: ME, may_write: &|_| true, dry_run: false };
    bench.view().rewrite_all(&rewrites.collect::<Vec<_>>(), &how)?;
    Ok(())
}

/// As `>` does. The descriptor is closed whatever comes.
fn save(bench: &Bench, path: &str, content: &str) -> Acted {
    let (dir, name) = parent(bench, path)?;
    let flags = OpenFlags::from_raw(libc::O_WRONLY | libc::O_TRUNC);
    let handle = match bench.view().lookup(dir, name) {
        Ok(entry) => bench.view().open(entry.node, flags, &ME)?.handle,
        Err(err) if err.code() == libc::ENOENT => bench.view().create(dir, name, 0o644, flags, &ME)?.1.handle,
        Err(err) => return Err(err.into()),
    };
    let written = bench.view().write(handle, 0, content.as_bytes());
    let closed = bench.view().flush(handle, &ME);
    let released = bench.view().release(handle);
    written?;
    closed.and(released)?;
    Ok(())
}

/// As truncate(2) does.
pub(super) fn truncate(bench: &Bench, path: &str, size: usize) -> Acted {
    let (dir, name) = parent(bench, path)?;
    let node = bench.view().lookup(dir, name)?.node;
    let (atime, mtime) = (SetTime::Keep, SetTime::Keep);
    let set = SetAttributes { size: Some(size as u64), atime, mtime, ..SetAttributes::NOTHING };
    bench.view().set_attributes(node, None, &set, &ME)?;
    Ok(())
}

fn unlink(bench: &Bench, path: &str) -> Acted {
    let (dir, name) = parent(bench, path)?;
    Ok(bench.view().unlink(dir, name, &ME)?)
}

fn undo_latest(bench: &Bench) -> Acted {
    bench.view().undo(bench.latest().id, &crate::overlay::UndoHow::default())?;
    Ok(())
}

fn mkdir(bench: &Bench, path: &str) -> Acted {
    let (dir, name) = parent(bench, path)?;
    bench.view().mkdir(dir, name, 0o755, &ME)?;
    Ok(())
}

fn symlink(bench: &Bench, name: &str, target: &str) -> Acted {
    bench.view().symlink(ROOT, OsStr::new(name), OsStr::new(target), &ME)?;
    Ok(())
}

fn roll_back_all(bench: &Bench) -> Acted {
    let backups = bench.view().store().backups().map_err(Error::from)?;
    bench.view().rollback(&backups, &RollbackHow::default())?;
    Ok(())
}

fn ids(bench: &Bench) -> Vec<ChangeId> {
    bench.held().into_iter().filter_map(|row| Some(row.held?.id)).collect()
}

fn confirm_all(bench: &Bench) -> Acted {
    let review = Review::default();
    let how = ConfirmHow { review, force: false, wait: false, expiry: Expiry::Ignore, merging: Merging::Allowed };
    bench.view().confirm(&ids(bench), &how)?;
    Ok(())
}

fn discard_all(bench: &Bench) -> Acted {
    bench.view().discard(&ids(bench), &Review::default())?;
    Ok(())
}

/// The first and the last thirty of a hundred lines are new.
fn hold_in_two_hunks(bench: &mut Bench) {
    bench.put("a", &lines("old", 100));
    let side = |number: usize| if (30..70).contains(&number) { "old" } else { "new" };
    let new: String = (0..100).map(|number| format!("{} {number}\n", side(number))).collect();
    bench.save("a", &new);
}

/// Held changes of all kinds: files changed, made and deleted, one in a directory that somebody removes below.
fn hold_many(bench: &mut Bench, count: usize) {
    for number in 0..count {
        let path = format!("d{}/f{number}", number % 3);
        match number % 3 {
            0 => {
                bench.put(&path, &lines("old", 100));
                bench.save(&path, &lines(&format!("new {number}"), 100));
            }
            1 => {
                std::fs::create_dir_all(bench.lower_path("d1/deep")).unwrap();
                bench.save(&format!("d1/deep/AGENTS{number}.md"), &format!("made {number}\n"));
                bench.save("d1/deep/AGENTS.md", &lines("agents", 3));
            }
            _ => {
                bench.put(&path, &lines("gone", 100));
                bench.unlink(&path);
            }
        }
    }
    if count > 1 {
        let made = bench.lower_path("d1/deep");
        for entry in std::fs::read_dir(&made).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
        std::fs::remove_dir(made).unwrap();
        // By a look at it, it waits as well.
        assert_eq!(bench.names("d1"), ["deep"]);
    }
    bench.remount();
}

/// Two files rewritten and one deleted, then one more of either, which are held.
fn burst(bench: &mut Bench) {
    bench.flags = vec![(Key::Burst, "3".to_owned())];
    bench.remount();
    ["f0", "f1", "f2"].iter().for_each(|path| bench.put(path, &lines("old", 40)));
    ["d/gone", "d/gone_too"].iter().for_each(|path| bench.put(path, &lines("gone", 8)));
    bench.unlink("d/gone");
    ["f0", "f1", "f2"].iter().for_each(|path| bench.save(path, &small("old")));
    bench.unlink("d/gone_too");
}

/// Below the limit: a file made, one deleted with its directory, two rewritten, one of which is held.
fn go(bench: &mut Bench) {
    bench.put("f0", &lines("old", 40));
    bench.put("f1", &lines("old", 100));
    bench.put("d/gone", &lines("gone", 8));
    bench.save("made", "made\n");
    bench.unlink("d/gone");
    bench.rmdir("d").unwrap();
    bench.save("f0", &small("old"));
    bench.save("f1", &lines("new", 100));
}

/// A directory in which there are files held, made and untouched, one of them in a directory of its own.
fn hold_in_directory(bench: &mut Bench) {
    bench.put("d/a", &lines("old", 100));
    bench.put("d/sub/b", &lines("old", 100));
    bench.put("d/gone", &lines("gone", 100));
    bench.put("d/plain", "plain\n");
    bench.save("d/a", &lines("new a", 100));
    bench.save("d/sub/b", &lines("new b", 100));
    bench.save("d/AGENTS.md", "made\n");
    bench.save("d/fresh", "fresh\n");
    bench.unlink("d/gone");
}

/// A directory with one in it, removed: all of it waits for review.
fn remove_nested_directory(bench: &mut Bench) {
    bench.put("d/a", &lines("gone a", 100));
    bench.put("d/sub/b", &lines("gone b", 100));
    bench.unlink("d/a");
    bench.unlink("d/sub/b");
    bench.rmdir("d/sub").unwrap();
    bench.rmdir("d").unwrap();
}

/// A directory in the place of a held deletion, with files, a symlink, a FIFO and a directory in it.
fn hold_dir_for_file(bench: &mut Bench) {
    bench.put("f", &lines("gone", 100));
    bench.unlink("f");
    bench.mkdir("f");
    bench.mkdir("f/sub");
    bench.save("f/x", "made x\n");
    bench.save("f/sub/y", "made y\n");
    let dir = bench.node("f").unwrap();
    bench.view().symlink(dir, OsStr::new("l"), OsStr::new("x"), &ME).unwrap();
    bench.view().mknod(dir, OsStr::new("p"), libc::S_IFIFO | 0o600, 0, &ME).unwrap();
    // It lands last, once what is in it has.
    chmod(bench, "f/sub", 0o555);
}

/// A held change and a new file that waits, in directories that somebody has removed below.
fn hold_in_removed_directory(bench: &mut Bench) {
    bench.put("d/sub/a", &lines("old", 100));
    bench.save("d/sub/a", &lines("new", 100));
    bench.save("d/sub/AGENTS.md", "made\n");
    std::fs::remove_dir_all(bench.lower_path("d")).unwrap();
    assert_eq!(bench.names("d/sub"), ["AGENTS.md", "a"]);
}

/// Somebody renames a directory below, and somebody looks at both names in the view.
fn rename_below(bench: &Bench, from: &str, to: &str) -> Acted {
    std::fs::rename(bench.lower_path(from), bench.lower_path(to)).unwrap();
    [from, to].into_iter().for_each(|path| drop(bench.node(path)));
    Ok(())
}

pub(super) fn chmod(bench: &Bench, path: &str, mode: u32) {
    try_chmod(bench, path, mode).unwrap();
}

fn try_chmod(bench: &Bench, path: &str, mode: u32) -> Acted {
    let set = SetAttributes { mode: Some(mode), ..SetAttributes::NOTHING };
    let (dir, name) = parent(bench, path)?;
    let node = bench.view().lookup(dir, name)?.node;
    bench.view().set_attributes(node, None, &set, &ME)?;
    Ok(())
}

/// One more name of what the view has.
fn link(bench: &Bench, of: &str, name: &str) {
    let node = bench.node(of).unwrap();
    bench.view().link(node, ROOT, OsStr::new(name), &ME).unwrap();
}

/// A file of lower with two names.
fn two_names(bench: &Bench) {
    bench.put("a", &lines("old", 40));
    std::fs::hard_link(bench.lower_path("a"), bench.lower_path("b")).unwrap();
}

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "a patch of three files",
        rule: Rule::EachPath,
        ready: |bench| {
            bench.put("a", &lines("old", 40));
            bench.put("b", &lines("old", 100));
            bench.put("d/c", &lines("older", 100));
            bench.save("d/c", &lines("held", 100));
        },
        act: |bench| {
            rewrite(
                bench,
                &[
                    ("d/c", lines("held", 100), lines("patched", 100)),
                    ("a", lines("old", 40), small("old")),
                    ("b", lines("old", 100), lines("new", 100)),
                ],
            )
        },
        precious: &["old 99\n", "older 99\n", "old 39\n"],
    },
    Scenario {
        name: "a file is emptied where nobody judges, and its judged name waits as deleted",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("AGENTS.md", &lines("old", 100));
            bench.put(".git/x", "x\n");
            std::fs::hard_link(bench.lower_path("AGENTS.md"), bench.lower_path(".git/y")).unwrap();
            bench.unlink("AGENTS.md");
        },
        act: |bench| {
            let (dir, name) = parent(bench, ".git/y")?;
            let node = bench.view().lookup(dir, name)?.node;
            let opened = bench.view().open(node, OpenFlags::from_raw(libc::O_WRONLY | libc::O_TRUNC), &ME)?;
            Ok(bench.view().release(opened.handle)?)
        },
        precious: &["old 99\n"],
    },
    Scenario {
        name: "a file made a moment ago is renamed to where nobody judges",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put(".git/x", "x\n");
            bench.save("a", "made\n");
        },
        act: |bench| rename(bench, "a", ".git/a"),
        precious: &["made\n"],
    },
    Scenario {
        name: "a small edit is closed",
        rule: Rule::Closes,
        ready: |bench| {
            bench.put("a", &lines("old", 40));
            write_and_leave_open(bench, "a", &small("old"));
        },
        act: close_all,
        precious: &["old 39\n", "small edit\n"],
    },
    Scenario {
        name: "a new file is closed",
        rule: Rule::Closes,
        ready: |bench| write_and_leave_open(bench, "a", "new\n"),
        act: close_all,
        precious: &["new\n"],
    },
    Scenario {
        name: "a large rewrite is closed",
        rule: Rule::Closes,
        ready: |bench| {
            bench.put("a", &lines("old", 100));
            write_and_leave_open(bench, "a", &lines("new", 100));
        },
        act: close_all,
        precious: &["old 99\n", "new 99\n"],
    },
    Scenario {
        name: "a held file is written again",
        rule: Rule::Closes,
        ready: |bench| {
            bench.put("a", &lines("old", 100));
            bench.save("a", &lines("new", 100));
            write_and_leave_open(bench, "a", &lines("newer", 100));
        },
        act: close_all,
        precious: &["old 99\n", "newer 99\n"],
    },
    Scenario {
        name: "a sensitive file is given another mode",
        rule: Rule::Looks,
        ready: |bench| bench.put(".envrc", "one\n"),
        act: |bench| try_chmod(bench, ".envrc", 0o755),
        precious: &["one\n"],
    },
    Scenario {
        name: "a held file is given another mode",
        rule: Rule::Looks,
        ready: |bench| hold_many(bench, 1),
        act: |bench| try_chmod(bench, "d0/f0", 0o755),
        precious: &["old 99\n"],
    },
    Scenario {
        name: "a mode that waits is confirmed",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put(".envrc", "one\n");
            chmod(bench, ".envrc", 0o755);
        },
        act: confirm_all,
        precious: &["one\n"],
    },
    Scenario {
        name: "large content is replaced",
        rule: Rule::Closes,
        ready: |bench| {
            bench.put("a", &lines("old", 9000));
            write_and_leave_open(bench, "a", &lines("old", 9000).replacen("old 7\n", "small edit\n", 1));
        },
        act: close_all,
        precious: &["old 7\n", "small edit\n"],
    },
    Scenario {
        name: "a file with two names is written in place",
        rule: Rule::Closes,
        ready: |bench| {
            two_names(bench);
            write_and_leave_open(bench, "a", &small("old"));
        },
        act: close_all,
        precious: &["old 7\n", "small edit\n"],
    },
    Scenario {
        name: "a path is made anew after a rename, and held",
        rule: Rule::Closes,
        ready: |bench| {
            bench.put("a", &lines("old", 100));
            bench.rename("a", "a~");
            write_and_leave_open(bench, "a", &lines("new", 100));
        },
        act: close_all,
        precious: &["old 99\n", "new 99\n"],
    },
    Scenario {
        name: "a path is made anew after a rename of one name of a held file",
        rule: Rule::Closes,
        ready: |bench| {
            two_names(bench);
            bench.save("a", &lines("newer", 100));
            bench.rename("a", "a~");
            write_and_leave_open(bench, "a", &lines("new", 100));
        },
        act: close_all,
        precious: &["old 7\n", "newer 99\n", "new 99\n"],
    },
    Scenario {
        name: "a temporary file that is still open is renamed over a file",
        rule: Rule::EachPath,
        ready: |bench| {
            bench.put("a", &lines("old", 40));
            write_and_leave_open(bench, "a.tmp", &small("old"));
            flush_all(bench);
        },
        act: |bench| rename(bench, "a.tmp", "a").and_then(|()| close_all(bench)),
        precious: &["old 7\n", "small edit\n"],
    },
    Scenario {
        name: "a temporary file that is still open is renamed over a file, and held",
        rule: Rule::EachPath,
        ready: |bench| {
            bench.put("a", &lines("old", 100));
            write_and_leave_open(bench, "a.tmp", &lines("new", 100));
            flush_all(bench);
        },
        act: |bench| rename(bench, "a.tmp", "a").and_then(|()| close_all(bench)),
        precious: &["old 99\n", "new 99\n"],
    },
    Scenario {
        name: "a small file is deleted",
        rule: Rule::AllOrNothing,
        ready: |bench| bench.put("a", "one\n"),
        act: |bench| unlink(bench, "a"),
        precious: &["one\n"],
    },
    Scenario {
        name: "a large file is deleted",
        rule: Rule::AllOrNothing,
        ready: |bench| bench.put("a", &lines("old", 100)),
        act: |bench| unlink(bench, "a"),
        precious: &["old 99\n"],
    },
    Scenario {
        name: "a held file is deleted",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("a", &lines("old", 100));
            bench.save("a", &lines("new", 100));
        },
        act: |bench| unlink(bench, "a"),
        precious: &["old 99\n", "new 99\n"],
    },
    Scenario {
        name: "a held file that was made is deleted",
        rule: Rule::AllOrNothing,
        ready: |bench| bench.save("AGENTS.md", &lines("made", 3)),
        act: |bench| unlink(bench, "AGENTS.md"),
        precious: &["made 2\n"],
    },
    Scenario {
        name: "large held content that was made is deleted",
        rule: Rule::AllOrNothing,
        ready: |bench| bench.save("AGENTS.md", &lines("made", 9_000)),
        act: |bench| unlink(bench, "AGENTS.md"),
        precious: &["made 8999\n"],
    },
    Scenario {
        name: "the deletion of a held file that was made is undone",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.save("AGENTS.md", &lines("made", 3));
            bench.unlink("AGENTS.md");
        },
        act: undo_latest,
        precious: &["made 2\n"],
    },
    Scenario {
        name: "the deletion of a held file that was being added to is undone",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.save("AGENTS.md", &lines("made", 3));
            let handle = bench.open("AGENTS.md", libc::O_WRONLY | libc::O_APPEND).unwrap();
            bench.view().write_by(handle, crate::overlay::Position::End, b"more\n", &ME).unwrap();
            bench.unlink("AGENTS.md");
            bench.close(handle);
        },
        act: undo_latest,
        precious: &["made 2\nmore\n"],
    },
    Scenario {
        name: "one of two names of a held file is deleted",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            two_names(bench);
            bench.save("a", &lines("new", 100));
        },
        act: |bench| unlink(bench, "a"),
        precious: &["old 39\n", "new 99\n"],
    },
    Scenario {
        name: "a held deletion is made anew as a symlink",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("a", &lines("old", 100));
            bench.unlink("a");
        },
        act: |bench| symlink(bench, "a", "b"),
        precious: &["old 99\n"],
    },
    small_edit_renamed("a small edit is renamed over its file"),
    small_edit_renamed(TAKES_PLACE),
    Scenario {
        name: "an older file is renamed over another",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("a", &lines("old", 40));
            bench.put("b", &small("old"));
        },
        act: |bench| rename(bench, "b", "a"),
        precious: &["old 7\n", "small edit\n"],
    },
    Scenario {
        name: "an older file of the same content is renamed over another",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("a", &lines("old", 40));
            bench.put("b", &lines("old", 40));
        },
        act: |bench| rename(bench, "b", "a"),
        precious: &["old 7\n"],
    },
    Scenario {
        name: "a large rewrite is renamed over its file",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("a", &lines("old", 100));
            bench.save("a.tmp", &lines("new", 100));
        },
        act: |bench| rename(bench, "a.tmp", "a"),
        precious: &["old 99\n", "new 99\n"],
    },
    Scenario {
        name: "a held file is renamed over another",
        rule: Rule::EachPath,
        ready: |bench| {
            bench.put("a", &lines("old", 100));
            bench.put("b", &lines("other", 100));
            bench.save("a", &lines("new", 100));
        },
        act: |bench| rename(bench, "a", "b"),
        precious: &["old 99\n", "new 99\n", "other 99\n"],
    },
    Scenario {
        name: "a held file is renamed over another that is held",
        rule: Rule::EachPath,
        ready: |bench| {
            bench.put("a", &lines("old", 100));
            bench.put("b", &lines("other", 100));
            bench.save("a", &lines("new", 100));
            bench.save("b", &lines("newer", 100));
        },
        act: |bench| rename(bench, "a", "b"),
        precious: &["old 99\n", "new 99\n", "other 99\n", "newer 99\n"],
    },
    Scenario {
        name: "a file made a moment ago is renamed over another that is held",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("b", &lines("other", 100));
            bench.save("b", &lines("newer", 100));
            bench.save("a", &lines("made", 3));
        },
        act: |bench| rename(bench, "a", "b"),
        precious: &["other 99\n", "newer 99\n", "made 2\n"],
    },
    Scenario {
        name: "a file made a moment ago is renamed to where a held file had been",
        rule: Rule::EachPath,
        ready: |bench| {
            bench.put("b", &lines("other", 100));
            bench.save("b", &lines("newer", 100));
            bench.rename("b", "b~");
            bench.save("a", &lines("made", 3));
        },
        act: |bench| rename(bench, "a", "b"),
        precious: &["other 99\n", "newer 99\n", "made 2\n"],
    },
    Scenario {
        name: "a gated file is renamed over another",
        rule: Rule::EachPath,
        ready: |bench| {
            bench.put("AGENTS.md", &lines("gated", 40));
            bench.put("b", &lines("other", 40));
        },
        act: |bench| rename(bench, "AGENTS.md", "b"),
        precious: &["gated 39\n", "other 39\n"],
    },
    Scenario {
        name: "an older file is renamed over a gated one",
        rule: Rule::EachPath,
        ready: |bench| {
            bench.put("AGENTS.md", &lines("gated", 40));
            bench.put("b", &lines("other", 40));
        },
        act: |bench| rename(bench, "b", "AGENTS.md"),
        precious: &["gated 39\n", "other 39\n"],
    },
    Scenario {
        name: "an older file is renamed over another that is held",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("b", &lines("other", 100));
            bench.save("b", &lines("newer", 100));
            bench.put("a", &lines("old", 100));
        },
        act: |bench| rename(bench, "a", "b"),
        precious: &["other 99\n", "newer 99\n", "old 99\n"],
    },
    Scenario {
        name: "one name of a held file that was made is renamed over another that is held",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("b", &lines("other", 100));
            bench.save("b", &lines("newer", 100));
            bench.save("AGENTS.md", &lines("made", 3));
            link(bench, "AGENTS.md", "also");
        },
        act: |bench| rename(bench, "AGENTS.md", "b"),
        precious: &["other 99\n", "newer 99\n", "made 2\n"],
    },
    Scenario {
        name: "a further name of a held file that was made is renamed over another that is held",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("b", &lines("other", 100));
            bench.save("b", &lines("newer", 100));
            bench.save("AGENTS.md", &lines("made", 3));
            link(bench, "AGENTS.md", "also");
        },
        act: |bench| rename(bench, "also", "b"),
        precious: &["other 99\n", "newer 99\n", "made 2\n"],
    },
    Scenario {
        name: "the name that a held file has below is renamed over another that is held",
        rule: Rule::EachPath,
        ready: |bench| {
            bench.put("b", &lines("other", 100));
            bench.save("b", &lines("newer", 100));
            bench.put("a", &lines("old", 100));
            bench.save("a", &lines("new", 100));
            link(bench, "a", "also");
        },
        act: |bench| rename(bench, "a", "b"),
        precious: &["other 99\n", "newer 99\n", "old 99\n", "new 99\n"],
    },
    Scenario {
        name: "the name of a held file that is gated is renamed over another that is held",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("b", &lines("other", 100));
            bench.save("b", &lines("newer", 100));
            bench.put("AGENTS.md", &lines("old", 3));
            bench.save("AGENTS.md", &lines("made", 3));
            link(bench, "AGENTS.md", "also");
        },
        act: |bench| rename(bench, "AGENTS.md", "b"),
        precious: &["other 99\n", "newer 99\n", "old 2\n", "made 2\n"],
    },
    Scenario {
        name: "one name of a held file of two is renamed over another that is held",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            two_names(bench);
            bench.save("a", &lines("new", 100));
            bench.put("c", &lines("other", 100));
            bench.save("c", &lines("newer", 100));
        },
        act: |bench| rename(bench, "a", "c"),
        precious: &["other 99\n", "newer 99\n", "old 39\n", "new 99\n"],
    },
    Scenario {
        name: "the other name of a held file of two is renamed over another that is held",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            two_names(bench);
            bench.save("a", &lines("new", 100));
            bench.put("c", &lines("other", 100));
            bench.save("c", &lines("newer", 100));
        },
        act: |bench| rename(bench, "b", "c"),
        precious: &["other 99\n", "newer 99\n", "old 39\n", "new 99\n"],
    },
    Scenario {
        name: "a held file is renamed over the name that another has below",
        rule: Rule::EachPath,
        ready: |bench| {
            bench.put("b", &lines("other", 100));
            bench.save("b", &lines("newer", 100));
            link(bench, "b", "also");
            bench.save("AGENTS.md", &lines("made", 3));
        },
        act: |bench| rename(bench, "AGENTS.md", "b"),
        precious: &["other 99\n", "newer 99\n", "made 2\n"],
    },
    Scenario {
        name: "a held file is renamed over a further name of another",
        rule: Rule::EachPath,
        ready: |bench| {
            bench.put("b", &lines("other", 100));
            bench.save("b", &lines("newer", 100));
            link(bench, "b", "also");
            bench.save("AGENTS.md", &lines("made", 3));
        },
        act: |bench| rename(bench, "AGENTS.md", "also"),
        precious: &["other 99\n", "newer 99\n", "made 2\n"],
    },
    Scenario {
        name: "a held file is renamed over one name of a held file of two",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            two_names(bench);
            bench.save("a", &lines("new", 100));
            bench.put("c", &lines("other", 100));
            bench.save("c", &lines("newer", 100));
        },
        act: |bench| rename(bench, "c", "a"),
        precious: &["other 99\n", "newer 99\n", "old 39\n", "new 99\n"],
    },
    Scenario {
        name: "a held file is renamed over the other name of a held file of two",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            two_names(bench);
            bench.save("a", &lines("new", 100));
            bench.put("c", &lines("other", 100));
            bench.save("c", &lines("newer", 100));
        },
        act: |bench| rename(bench, "c", "b"),
        precious: &["other 99\n", "newer 99\n", "old 39\n", "new 99\n"],
    },
    Scenario {
        name: "a file made a moment ago is renamed over the name that a held file has below",
        rule: Rule::EachPath,
        ready: |bench| {
            bench.put("b", &lines("other", 100));
            bench.save("b", &lines("newer", 100));
            link(bench, "b", "also");
            bench.save("a", &lines("made", 3));
        },
        act: |bench| rename(bench, "a", "b"),
        precious: &["other 99\n", "newer 99\n", "made 2\n"],
    },
    Scenario {
        name: "an older file is renamed over a further name of a held file",
        rule: Rule::EachPath,
        ready: |bench| {
            bench.put("b", &lines("other", 100));
            bench.save("b", &lines("newer", 100));
            link(bench, "b", "also");
            bench.put("a", &lines("old", 100));
        },
        act: |bench| rename(bench, "a", "also"),
        precious: &["other 99\n", "newer 99\n", "old 99\n"],
    },
    Scenario {
        name: "one name of a held file is renamed over one name of another",
        rule: Rule::EachPath,
        ready: |bench| {
            bench.put("a", &lines("old", 100));
            bench.save("a", &lines("new", 100));
            link(bench, "a", "also");
            bench.put("b", &lines("other", 100));
            bench.save("b", &lines("newer", 100));
            link(bench, "b", "too");
        },
        act: |bench| rename(bench, "a", "b"),
        precious: &["other 99\n", "newer 99\n", "old 99\n", "new 99\n"],
    },
    Scenario {
        name: "two files that are held under two names each change places",
        rule: Rule::EachPath,
        ready: |bench| {
            bench.put("a", &lines("old", 100));
            bench.save("a", &lines("new", 100));
            link(bench, "a", "also");
            bench.put("b", &lines("other", 100));
            bench.save("b", &lines("newer", 100));
            link(bench, "b", "too");
        },
        act: |bench| exchange(bench, "a", "b"),
        precious: &["other 99\n", "newer 99\n", "old 99\n", "new 99\n"],
    },
    Scenario {
        name: "two files change places, and both land",
        rule: Rule::EachPath,
        ready: |bench| {
            bench.put("a", &lines("old", 40));
            bench.put("b", &small("old"));
        },
        act: |bench| exchange(bench, "a", "b"),
        precious: &["old 7\n", "small edit\n"],
    },
    Scenario {
        name: "two files change places, and both are held",
        rule: Rule::EachPath,
        ready: |bench| {
            bench.put("a", &lines("old", 100));
            bench.put("b", &lines("other", 100));
            bench.save("b", &lines("newer", 100));
        },
        act: |bench| exchange(bench, "a", "b"),
        precious: &["old 99\n", "other 99\n", "newer 99\n"],
    },
    Scenario {
        name: "a file is renamed",
        rule: Rule::AllOrNothing,
        ready: |bench| bench.put("a", "one\n"),
        act: |bench| rename(bench, "a", "b"),
        precious: &["one\n"],
    },
    Scenario {
        name: "a held file is renamed",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("a", &lines("old", 100));
            bench.save("a", &lines("new", 100));
        },
        act: |bench| rename(bench, "a", "b"),
        precious: &["old 99\n", "new 99\n"],
    },
    Scenario {
        name: "a held file that was made is renamed",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("sub/x", "x\n");
            bench.save("AGENTS.md", &lines("made", 3));
        },
        act: |bench| rename(bench, "AGENTS.md", "sub/plan.md"),
        precious: &["made 2\n"],
    },
    Scenario {
        name: "a held file is renamed to where its directory had been",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("d/a", &lines("old", 100));
            bench.save("d/a", &lines("new", 100));
            bench.rename("d", "e");
        },
        act: |bench| rename(bench, "e/a", "d"),
        precious: &["old 99\n", "new 99\n"],
    },
    Scenario {
        name: "a directory with held files is renamed",
        rule: Rule::AllOrNothing,
        ready: hold_in_directory,
        act: |bench| rename(bench, "d", "e"),
        precious: &["new a 99\n", "new b 99\n", "gone 99\n", "made\n", "fresh\n"],
    },
    Scenario {
        name: "a directory with held files is renamed over an empty one",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            hold_in_directory(bench);
            std::fs::create_dir(bench.lower_path("e")).unwrap();
        },
        act: |bench| rename(bench, "d", "e"),
        precious: &["new a 99\n", "new b 99\n", "made\n"],
    },
    Scenario {
        name: "a directory is renamed to where another had been",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            hold_in_directory(bench);
            bench.put("e/a", &lines("other", 100));
            bench.save("e/a", &lines("other new", 100));
            bench.rename("e", "f");
        },
        act: |bench| rename(bench, "d/sub", "e"),
        precious: &["new a 99\n", "new b 99\n", "other new 99\n"],
    },
    Scenario {
        name: "a directory is renamed back",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            hold_in_directory(bench);
            bench.rename("d", "e");
        },
        act: |bench| rename(bench, "e", "d"),
        precious: &["new a 99\n", "new b 99\n", "made\n"],
    },
    Scenario {
        name: "two directories with held files change places",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            hold_in_directory(bench);
            bench.put("e/x", &lines("old", 100));
            bench.save("e/x", &lines("new x", 100));
        },
        act: |bench| exchange(bench, "d", "e"),
        precious: &["new a 99\n", "new b 99\n", "new x 99\n"],
    },
    Scenario {
        name: "a held file and a directory with held files change places",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            hold_in_directory(bench);
            bench.put("f", &lines("old f", 100));
            bench.save("f", &lines("new f", 100));
        },
        act: |bench| exchange(bench, "f", "d"),
        precious: &["old f 99\n", "new f 99\n", "new a 99\n", "new b 99\n"],
    },
    Scenario {
        name: "a symlink is made",
        rule: Rule::Made,
        ready: |bench| bench.put("a", "one\n"),
        act: |bench| symlink(bench, "l", "a"),
        precious: &["one\n"],
    },
    Scenario {
        name: "one change is confirmed",
        rule: Rule::AllOrNothing,
        ready: |bench| hold_many(bench, 1),
        act: confirm_all,
        precious: &["old 99\n", "new 0 99\n"],
    },
    Scenario {
        name: "three changes are confirmed",
        rule: Rule::AllOrNothing,
        ready: |bench| hold_many(bench, 3),
        act: confirm_all,
        precious: &["old 99\n", "new 0 99\n", "gone 99\n", "agents 2\n"],
    },
    Scenario {
        name: "ten changes are confirmed",
        rule: Rule::AllOrNothing,
        ready: |bench| hold_many(bench, 10),
        act: confirm_all,
        precious: &["old 99\n", "new 9 99\n", "gone 99\n", "agents 2\n"],
    },
    Scenario {
        name: "a change in another project's state is confirmed between two others",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            for path in ["a", "sub/.fettle/conf", "z/b"] {
                bench.put(path, &lines("old", 100));
                bench.save(path, &lines(&format!("new {path}"), 100));
            }
        },
        act: confirm_all,
        precious: &["old 99\n", "new a 99\n", "new sub/.fettle/conf 99\n", "new z/b 99\n"],
    },
    Scenario {
        name: "rules are confirmed, and before them a file",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            hold_many(bench, 1);
            bench.save(PROJECT_FILE, "[[rule]]\nmatch = \"d0/**\"\naction = \"deny\"\n");
        },
        act: |bench| {
            let file_first = [bench.id_of("d0/f0"), bench.id_of(PROJECT_FILE)];
            bench.view().confirm(&file_first, &HOW)?;
            Ok(())
        },
        precious: &["old 99\n"],
    },
    Scenario {
        name: "a change with a second name is confirmed",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("a", &lines("old", 100));
            bench.save("a", &lines("new", 100));
            let node = bench.node("a").unwrap();
            bench.view().link(node, ROOT, OsStr::new("also"), &ME).unwrap();
        },
        act: confirm_all,
        precious: &["old 99\n", "new 99\n"],
    },
    Scenario {
        name: "a removed directory is confirmed",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("d/a", &lines("gone a", 100));
            bench.put("d/b", &lines("gone b", 100));
            bench.unlink("d/a");
            bench.unlink("d/b");
            bench.view().rmdir(ROOT, OsStr::new("d"), &ME).unwrap();
        },
        act: confirm_all,
        precious: &["gone a 99\n", "gone b 99\n"],
    },
    Scenario {
        name: "the last deletion in directories that are hidden is confirmed",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            remove_nested_directory(bench);
            bench.applied("d/a");
        },
        act: |bench| {
            bench.view().confirm(&[bench.id_of("d/sub/b")], &HOW)?;
            Ok(())
        },
        precious: &["gone a 99\n", "gone b 99\n"],
    },
    Scenario {
        name: "a file in the place of a removed directory is confirmed",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            remove_nested_directory(bench);
            bench.save("d", &lines("instead", 3));
        },
        act: confirm_all,
        precious: &["gone a 99\n", "gone b 99\n", "instead 2\n"],
    },
    Scenario {
        name: "a file in the place of a directory that had nothing but directories is confirmed",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("d/one/a", &lines("gone a", 100));
            bench.put("d/two/deep/b", &lines("gone b", 100));
            bench.unlink("d/one/a");
            bench.unlink("d/two/deep/b");
            ["d/one", "d/two/deep", "d/two", "d"].iter().for_each(|dir| bench.rmdir(dir).unwrap());
            bench.save("d", &lines("instead", 3));
        },
        act: confirm_all,
        precious: &["gone a 99\n", "gone b 99\n", "instead 2\n"],
    },
    Scenario {
        name: "a symlink in the place of a removed directory is confirmed",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            remove_nested_directory(bench);
            symlink(bench, "d", "e").unwrap();
        },
        act: confirm_all,
        precious: &["gone a 99\n", "gone b 99\n"],
    },
    Scenario {
        name: "a directory is made where a deletion is held",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("f", &lines("gone", 100));
            bench.unlink("f");
        },
        act: |bench| mkdir(bench, "f"),
        precious: &["gone 99\n"],
    },
    Scenario {
        name: "a held directory is removed",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("f", &lines("gone", 100));
            bench.unlink("f");
            bench.mkdir("f");
        },
        act: |bench| Ok(bench.rmdir("f")?),
        precious: &["gone 99\n"],
    },
    Scenario {
        name: "a new file is closed in a held directory",
        rule: Rule::Closes,
        ready: |bench| {
            hold_dir_for_file(bench);
            write_and_leave_open(bench, "f/new", "new\n");
        },
        act: close_all,
        precious: &["gone 99\n", "made y\n", "new\n"],
    },
    Scenario {
        name: "a held directory is renamed",
        rule: Rule::AllOrNothing,
        ready: hold_dir_for_file,
        act: |bench| rename(bench, "f", "g"),
        precious: &["gone 99\n", "made x\n", "made y\n"],
    },
    Scenario {
        name: "a held directory is renamed to where a deletion is held",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            hold_dir_for_file(bench);
            bench.put("g", &lines("other", 100));
            bench.unlink("g");
        },
        act: |bench| rename(bench, "f", "g"),
        precious: &["gone 99\n", "other 99\n", "made x\n", "made y\n"],
    },
    Scenario {
        name: "a held directory is confirmed with all that is in it",
        rule: Rule::AllOrNothing,
        ready: hold_dir_for_file,
        act: confirm_all,
        precious: &["gone 99\n", "made x\n", "made y\n"],
    },
    Scenario {
        name: "one file in a held directory is confirmed",
        rule: Rule::AllOrNothing,
        ready: hold_dir_for_file,
        act: |bench| {
            let how = ConfirmHow { expiry: Expiry::Ignore, ..HOW };
            bench.view().confirm(&[bench.id_of("f/sub/y")], &how)?;
            Ok(())
        },
        precious: &["gone 99\n", "made x\n", "made y\n"],
    },
    Scenario {
        name: "a held directory is discarded",
        rule: Rule::AllOrNothing,
        ready: hold_dir_for_file,
        act: discard_all,
        precious: &["gone 99\n", "made x\n", "made y\n"],
    },
    Scenario {
        name: "a file in a directory that was removed below is confirmed",
        rule: Rule::AllOrNothing,
        ready: hold_in_removed_directory,
        act: |bench| {
            let how = ConfirmHow { expiry: Expiry::Ignore, ..HOW };
            bench.view().confirm(&[bench.id_of("d/sub/AGENTS.md")], &how)?;
            Ok(())
        },
        precious: &["new 99\n", "made\n"],
    },
    Scenario {
        name: "the changes in a directory that was removed below are discarded",
        rule: Rule::AllOrNothing,
        ready: hold_in_removed_directory,
        act: |bench| {
            let changes = ["d/sub/a", "d/sub/AGENTS.md"].map(|path| bench.id_of(path));
            bench.view().discard(&changes, &Review::default())?;
            Ok(())
        },
        precious: &["new 99\n", "made\n"],
    },
    Scenario {
        name: "one change is discarded",
        rule: Rule::AllOrNothing,
        ready: |bench| hold_many(bench, 1),
        act: discard_all,
        precious: &["old 99\n", "new 0 99\n"],
    },
    Scenario {
        name: "all changes are discarded",
        rule: Rule::AllOrNothing,
        ready: |bench| hold_many(bench, 10),
        act: discard_all,
        precious: &["old 99\n", "new 9 99\n", "gone 99\n", "agents 2\n"],
    },
    Scenario {
        name: "a backup is rolled back",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("d/a", &lines("old", 40));
            bench.save("d/a", &small("old"));
        },
        act: roll_back_all,
        precious: &["old 7\n", "small edit\n"],
    },
    Scenario {
        name: "a deleted file is rolled back into a directory that is gone",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("d/deep/a", "one\n");
            bench.unlink("d/deep/a");
            std::fs::remove_dir_all(bench.lower_path("d")).unwrap();
        },
        act: roll_back_all,
        precious: &["one\n"],
    },
    Scenario {
        name: "a confirm is undone",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            hold_many(bench, 4);
            confirm_all(bench).unwrap();
        },
        act: undo_latest,
        precious: &["old 99\n", "new 3 99\n", "gone 99\n", "agents 2\n"],
    },
    Scenario {
        name: "a discard is undone",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            hold_many(bench, 4);
            discard_all(bench).unwrap();
        },
        act: undo_latest,
        precious: &["old 99\n", "new 3 99\n", "gone 99\n", "agents 2\n"],
    },
    Scenario {
        name: "a burst is undone, part of which is held",
        rule: Rule::AllOrNothing,
        ready: burst,
        act: undo_latest,
        precious: &["old 7\n", "small edit\n", "gone 7\n"],
    },
    Scenario {
        name: "the undo of a burst is undone, and part of it held again",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            burst(bench);
            undo_latest(bench).unwrap();
        },
        act: undo_latest,
        precious: &["old 7\n", "small edit\n", "gone 7\n"],
    },
    Scenario {
        name: "what was done in one go is undone, part of which is held",
        rule: Rule::AllOrNothing,
        ready: go,
        act: undo_latest,
        precious: &["old 7\n", "small edit\n", "gone 7\n", "new 99\n"],
    },
    Scenario {
        name: "a small edit is closed, the second change of a go",
        rule: Rule::Closes,
        ready: |bench| {
            bench.put("f0", &lines("old", 40));
            bench.put("f1", &lines("old", 40));
            bench.save("f1", &lines("new", 40));
            write_and_leave_open(bench, "f0", &small("old"));
        },
        act: close_all,
        precious: &["old 7\n", "new 39\n"],
    },
    Scenario {
        name: "the making of a directory is undone",
        rule: Rule::AllOrNothing,
        ready: |bench| bench.mkdir("d"),
        act: undo_latest,
        precious: &[],
    },
    Scenario {
        name: "the removal of a directory is undone",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            std::fs::create_dir(bench.lower_path("d")).unwrap();
            bench.rmdir("d").unwrap();
        },
        act: undo_latest,
        precious: &[],
    },
    Scenario {
        name: "the deletion of a FIFO is undone",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.view().mknod(ROOT, OsStr::new("pipe"), libc::S_IFIFO | 0o640, 0, &ME).unwrap();
            bench.unlink("pipe");
        },
        act: undo_latest,
        precious: &[],
    },
    Scenario {
        name: "new permissions are undone",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            bench.put("a", "one\n");
            chmod(bench, "a", 0o600);
        },
        act: undo_latest,
        precious: &["one\n"],
    },
    Scenario {
        name: "a small edit is closed, one too many in one go",
        rule: Rule::Closes,
        ready: |bench| {
            let path = |number: usize| format!("f{number}");
            (0..21).for_each(|number| bench.put(&path(number), &lines("old", 40)));
            (0..20).for_each(|number| bench.save(&path(number), &small("old")));
            write_and_leave_open(bench, &path(20), &small("old"));
        },
        act: close_all,
        precious: &["old 7\n", "small edit\n"],
    },
    Scenario {
        name: "a small edit is closed, and none of what came before it at that path is recorded",
        rule: Rule::Closes,
        ready: |bench| {
            bench.put("a", &lines("old", 40));
            bench.put("gone", &small("gone"));
            bench.rename("a", "b");
            bench.unlink("gone");
            bench.save("b", &small("old"));
            bench.save("b", &small("old").replacen("old 9\n", "second edit\n", 1));
            bench.save("made", "made\n");
            bench.save("made", "made again\n");
            write_and_leave_open(bench, "b", &small("old").replacen("old 11\n", "third edit\n", 1));
        },
        act: close_all,
        precious: &["old 7\n", "gone 11\n", "made again\n", "second edit\n", "third edit\n"],
    },
    Scenario {
        name: "a directory is removed of which a file has just been renamed away",
        rule: Rule::Unrecorded,
        ready: |bench| {
            bench.put("d/f", &lines("old", 100));
            bench.put("e/other", "one\n");
            bench.rename("d/f", "e/f");
        },
        act: |bench| bench.rmdir("d").map_err(Refusal::from),
        precious: &["old 99\n"],
    },
    Scenario {
        name: "some hunks of a change are confirmed",
        rule: Rule::AllOrNothing,
        ready: hold_in_two_hunks,
        act: |bench| {
            bench.view().confirm_hunks(&ids(bench)[0], &[2], &HOW)?;
            Ok(())
        },
        precious: &["old 0\n", "new 0\n", "old 99\n", "new 99\n"],
    },
    Scenario {
        name: "some hunks of a change are discarded",
        rule: Rule::AllOrNothing,
        ready: hold_in_two_hunks,
        act: |bench| {
            bench.view().discard_hunks(&ids(bench)[0], &[2], &HOW.review)?;
            Ok(())
        },
        precious: &["old 0\n", "new 0\n", "old 99\n", "new 99\n"],
    },
    Scenario {
        name: "the discard of some hunks is undone",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            hold_in_two_hunks(bench);
            bench.view().discard_hunks(&ids(bench)[0], &[2], &HOW.review).unwrap();
        },
        act: undo_latest,
        precious: &["old 0\n", "new 0\n", "old 99\n", "new 99\n"],
    },
    Scenario {
        name: "the undo of the discard of some hunks is undone",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            hold_in_two_hunks(bench);
            bench.view().discard_hunks(&ids(bench)[0], &[2], &HOW.review).unwrap();
            undo_latest(bench).unwrap();
        },
        act: undo_latest,
        precious: &["old 0\n", "new 0\n", "old 99\n", "new 99\n"],
    },
    Scenario {
        name: "the exchange of directories with held files is undone",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            hold_in_directory(bench);
            bench.put("e/x", &lines("old", 100));
            bench.save("e/x", &lines("new x", 100));
            exchange(bench, "d", "e").unwrap();
        },
        act: undo_latest,
        precious: &["new a 99\n", "new b 99\n", "new x 99\n"],
    },
    Scenario {
        name: "the rename of a directory with held files is undone",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            hold_in_directory(bench);
            bench.rename("d", "e");
        },
        act: undo_latest,
        precious: &["new a 99\n", "new b 99\n", "made\n"],
    },
    Scenario {
        name: "the rename of a directory with held files over an empty one is undone",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            hold_in_directory(bench);
            std::fs::create_dir(bench.lower_path("e")).unwrap();
            bench.rename("d", "e");
        },
        act: undo_latest,
        precious: &["new a 99\n", "new b 99\n", "made\n"],
    },
    Scenario {
        name: "a directory is renamed to where a new file of it is judged",
        rule: Rule::EachPath,
        ready: |bench| {
            bench.put("e/x", &lines("older", 3));
            bench.unlink("e/x");
            bench.rmdir("e").unwrap();
            bench.put("d/plain", "plain\n");
            bench.save("d/x", "fresh\n");
        },
        act: |bench| rename(bench, "d", "e"),
        precious: &["plain\n", "fresh\n", "older 2\n"],
    },
    Scenario {
        name: "directories change places, and a new file stands where an older one was",
        rule: Rule::EachPath,
        ready: |bench| {
            bench.put("d/plain", "plain\n");
            bench.put("e/x", &lines("older", 100));
            bench.save("d/x", &lines("fresh", 100));
        },
        act: |bench| exchange(bench, "d", "e"),
        precious: &["plain\n", "fresh 99\n", "older 99\n"],
    },
];

/// Only with faults: several calls of a program, of which each may be refused.
pub(super) const FAULTY: &[Scenario] = &[
    Scenario {
        name: "a file is made and written",
        rule: Rule::Writes,
        ready: |bench| bench.put("b", "one\n"),
        act: |bench| save(bench, "a", "new\n"),
        precious: &["one\n"],
    },
    Scenario {
        name: "a small edit is saved",
        rule: Rule::Writes,
        ready: |bench| bench.put("a", &lines("old", 40)),
        act: |bench| save(bench, "a", &small("old")),
        precious: &["old 7\n"],
    },
    Scenario {
        name: "a large rewrite is saved",
        rule: Rule::Writes,
        ready: |bench| bench.put("a", &lines("old", 100)),
        act: |bench| save(bench, "a", &lines("new", 100)),
        precious: &["old 99\n"],
    },
    Scenario {
        name: "a file is cut by its path, and lands",
        rule: Rule::Shown,
        ready: |bench| bench.put("a", &lines("old", 40)),
        act: |bench| truncate(bench, "a", lines("old", 38).len()),
        precious: &["old 7\n"],
    },
    Scenario {
        name: "a file is cut by its path, and held",
        rule: Rule::Shown,
        ready: |bench| bench.put("a", &lines("old", 200)),
        act: |bench| truncate(bench, "a", lines("old", 10).len()),
        precious: &["old 199\n"],
    },
    Scenario {
        name: "a file is emptied by its path",
        rule: Rule::Shown,
        ready: |bench| bench.put("a", &lines("old", 200)),
        act: |bench| truncate(bench, "a", 0),
        precious: &["old 199\n"],
    },
    Scenario {
        name: "a small file is emptied by its path",
        rule: Rule::Shown,
        ready: |bench| bench.put("a", "one\ntwo\n"),
        act: |bench| truncate(bench, "a", 0),
        precious: &["two\n"],
    },
    Scenario {
        name: "a held file is cut by its path",
        rule: Rule::Shown,
        ready: |bench| {
            bench.put("a", &lines("old", 100));
            bench.save("a", &lines("new", 100));
        },
        act: |bench| truncate(bench, "a", lines("new", 90).len()),
        precious: &["old 99\n"],
    },
    Scenario {
        name: "a held file is emptied by its path",
        rule: Rule::Shown,
        ready: |bench| {
            bench.put("a", &lines("old", 100));
            bench.save("a", &lines("new", 100));
        },
        act: |bench| truncate(bench, "a", 0),
        precious: &["old 99\n"],
    },
    Scenario {
        name: "a link is made where something older was",
        rule: Rule::Shown,
        ready: |bench| {
            bench.put("a", &lines("one", 40));
            bench.put("b", &lines("two", 5));
            bench.unlink("b");
        },
        act: |bench| {
            let (dir, name) = parent(bench, "a")?;
            let node = bench.view().lookup(dir, name)?.node;
            bench.view().link(node, ROOT, OsStr::new("b"), &ME)?;
            Ok(())
        },
        precious: &["one 7\n", "two 4\n"],
    },
    Scenario {
        name: "a directory is made",
        rule: Rule::Made,
        ready: |bench| bench.put("a", "one\n"),
        act: |bench| {
            bench.view().mkdir(ROOT, OsStr::new("d"), 0o755, &ME)?;
            Ok(())
        },
        precious: &["one\n"],
    },
    Scenario {
        name: "a directory is removed in which all waits for review as deleted",
        rule: Rule::Unrecorded,
        ready: |bench| {
            bench.put("d/a", &lines("gone", 100));
            bench.unlink("d/a");
        },
        act: |bench| bench.rmdir("d").map_err(Refusal::from),
        precious: &["gone 99\n"],
    },
];

/// Only with deaths: somebody else acts below, and no fault of ours is told to him.
pub(super) const BELOW: &[Scenario] = &[
    Scenario {
        name: "a directory with held changes is removed below",
        rule: Rule::AllOrNothing,
        ready: hold_in_directory,
        act: |bench| rename_below(bench, "d", "away"),
        precious: &["new a 99\n", "new b 99\n", "made\n"],
    },
    Scenario {
        name: "a directory with held changes that was removed below is there again",
        rule: Rule::AllOrNothing,
        ready: |bench| {
            hold_in_directory(bench);
            rename_below(bench, "d", "away").unwrap();
        },
        act: |bench| rename_below(bench, "away", "d"),
        precious: &["new a 99\n", "new b 99\n", "made\n"],
    },
];

/// Only in the script: some thousand deaths.
pub(super) const FIFTY: Scenario = Scenario {
    name: "fifty changes are confirmed",
    rule: Rule::AllOrNothing,
    ready: |bench| hold_many(bench, 50),
    act: confirm_all,
    precious: &["old 99\n", "new 48 99\n", "gone 99\n", "agents 2\n"],
};

/// More than there are processors: each waits half of the time for the processes that it has started.
const AT_A_TIME: usize = 4;

/// Tries each of these in a process of its own, some at a time. Gives what was wrong.
pub(super) fn try_each_apart<'a>(
    scenarios: impl Iterator<Item = &'a Scenario>,
    module: &str,
    variable: &str,
) -> Vec<String> {
    let (queue, wrong) = (Mutex::new(scenarios.collect::<Vec<_>>()), Mutex::new(Vec::new()));
    std::thread::scope(|threads| {
        for _ in 0..AT_A_TIME {
            threads.spawn(|| {
                while let Some(scenario) = { queue.lock().pop() } {
                    // Not in one line with the lock, which would be held meanwhile: one scenario at a time.
                    let found = scenario.try_apart(module, variable);
                    wrong.lock().extend(found);
                }
            });
        }
    });
    wrong.into_inner()
}

impl Scenario {
    /// A project of its own.
    pub fn scratch(&self) -> tempfile::TempDir {
        if self.name == TAKES_PLACE { scratch_on_disk() } else { scratch_in_memory() }
    }

    /// In a process of its own, by `one_scenario` of a module that knows it by `variable`. Gives what that had to say, if
    /// anything was wrong.
    fn try_apart(&self, module: &str, variable: &str) -> Option<String> {
        let (passed, told) = test_apart(&format!("overlay::tests::{module}::one_scenario"), (variable, self.name));
        let counts = format!("{module}: ");
        told.lines().filter(|line| line.starts_with(&counts)).for_each(tell);
        (!passed || !told.contains(&counts)).then_some(format!("{}: {told}", self.name))
    }

    /// Content that was there before the act and is nowhere any more.
    pub fn lost(&self, bench: &Bench, now: &Picture) -> Vec<&'static str> {
        let backups = bench.view().store().backups().unwrap();
        let backups = backups.iter().map(|backup| bench.view().store().content(backup.digest).unwrap().unwrap());
        let held = bench.held();
        let held = held.iter().filter_map(|row| bench.view().sides(row).unwrap().new.map(bytes));
        let kept: Vec<String> =
            backups.chain(held).map(|content| String::from_utf8_lossy(&content).into_owned()).collect();
        let everywhere = || now.lower.values().chain(now.view.values()).chain(&kept);
        let lost = self.precious.iter().filter(|content| !everywhere().any(|found| found.contains(**content)));
        lost.copied().collect()
    }
}

impl Picture {
    /// What differs from another, for people: a line each, not whole contents.
    pub fn against(&self, other: &Self) -> String {
        let mut told = differing("below", &self.lower, &other.lower);
        told += &differing("in the view", &self.view, &other.view);
        for (which, these, those) in [("only here", self, other), ("only there", other, self)] {
            let held = these.held.difference(&those.held).map(String::as_str);
            let past = these.past.iter().filter(|line| !those.past.contains(line)).map(String::as_str);
            held.chain(past).for_each(|line| told += &format!("\n    {which}: {line}"));
        }
        told
    }

    pub fn of(bench: &Bench) -> Self {
        let mut lower = BTreeMap::new();
        collect_lower(&bench.dir, "", &mut lower);
        let mut view = BTreeMap::new();
        collect_view(bench, "", &mut view);
        let held = |row: UpperRow| {
            let held = row.held.unwrap();
            format!("{} {:?} {}", held.id, row.names, held.kind)
        };
        Self { lower, view, held: bench.held().into_iter().map(held).collect(), past: past(bench) }
    }
}

fn differing(place: &str, these: &BTreeMap<String, String>, those: &BTreeMap<String, String>) -> String {
    let paths: BTreeSet<&String> = these.keys().chain(those.keys()).collect();
    let brief = |content: Option<&String>| content.map(|content| content.chars().take(60).collect::<String>());
    let differing = paths.into_iter().filter(|path| these.get(*path) != those.get(*path));
    let told =
        |path: &String| format!("\n    {path} {place}: {:?}, not {:?}", brief(these.get(path)), brief(those.get(path)));
    differing.map(told).collect()
}

/// Anchors and renamed directories, without what differs between two projects: inodes and times.
fn past(bench: &Bench) -> Vec<String> {
    let state = bench.view().state.lock();
    let anchors: BTreeMap<&RelPath, &Known> = state.past.iter().collect();
    let anchor = |(path, known): (&RelPath, &Known)| {
        let had = match &known.had {
            Some(AnchorState::Moved { to, .. }) => format!("is at {to}"),
            Some(AnchorState::Content(kept)) => format!("is kept as {}", kept.digest),
            Some(AnchorState::Nothing) => "was free".to_owned(),
            None => "is where directories took it".to_owned(),
        };
        let went = known.went.as_ref().map(|went| &went.to);
        format!("{path} {had}, fresh: {}, from: {:?}, went: {went:?}", known.fresh, known.from)
    };
    anchors.into_iter().map(anchor).chain([format!("{:?}", state.past.dirs())]).collect()
}

pub(super) fn collect_lower(dir: &Path, below: &str, found: &mut BTreeMap<String, String>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if below.is_empty() && name == ".fettle" {
            continue;
        }
        let path = format!("{below}{name}");
        let meta = std::fs::symlink_metadata(entry.path()).unwrap();
        let mode = meta.permissions().mode();
        let what = if meta.is_dir() {
            collect_lower(&entry.path(), &format!("{path}/"), found);
            format!("{mode:o}")
        } else if meta.is_symlink() {
            format!("-> {}", std::fs::read_link(entry.path()).unwrap().display())
        } else if meta.file_type().is_fifo() {
            format!("{mode:o}")
        } else {
            format!("{mode:o} {}", std::fs::read_to_string(entry.path()).unwrap())
        };
        found.insert(path, what);
    }
}

fn collect_view(bench: &Bench, dir: &str, found: &mut BTreeMap<String, String>) {
    use crate::sys::file::FileKind;
    let prefix = if dir.is_empty() { String::new() } else { format!("{dir}/") };
    for name in bench.names(dir) {
        let path = format!("{prefix}{name}");
        let looked_up = bench.node(&path).and_then(|node| Ok((node, bench.view().attributes(node)?.meta)));
        let Ok((node, meta)) = looked_up else {
            // Somebody has removed its directory below.
            found.insert(path, "out of reach".to_owned());
            continue;
        };
        let what = match meta.kind {
            FileKind::Directory => {
                collect_view(bench, &path, found);
                format!("{:o}", meta.mode)
            }
            FileKind::Symlink => format!("-> {}", bench.view().read_symlink(node).unwrap().to_string_lossy()),
            FileKind::Fifo => format!("{:o}", meta.mode),
            _ => format!("{:o} {}", meta.mode, bench.read(&path).unwrap()),
        };
        found.insert(path, what);
    }
}

/// In memory where there is such a place: a death of a process asks nothing of a disk.
fn scratch_in_memory() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

/// Where content waits in memory before it is written out, as in most projects: the working copy is on a disk.
pub(super) fn scratch_on_disk() -> tempfile::TempDir {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("target");
    std::fs::create_dir_all(&target).unwrap();
    tempfile::tempdir_in(target).unwrap()
}

/// Past the capture of the test harness: the numbers are part of the result.
pub(super) fn tell(line: &str) {
    writeln!(std::io::stderr().lock(), "{line}").unwrap();
}
