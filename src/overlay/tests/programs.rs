//! Rules for programs: `exe` tightens for the program that opened the file, and for no other (SPEC §6).

use std::process::{Child, Command, Stdio};

use super::*;

/// A process that runs `cat` until it is dropped.
struct Cat(Child);

impl Cat {
    fn start() -> Self {
        Self(Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
    }

    fn caller(&self) -> Caller {
        Caller { pid: self.0.id(), ..ME }
    }
}

impl Drop for Cat {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

/// This test's own process, which no rule names.
fn other() -> Caller {
    Caller { pid: std::process::id(), ..ME }
}

fn bench(rules: &str) -> Bench {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(".fettle.toml"), rules).unwrap();
    Bench::within(dir, &[])
}

fn rule(pattern: &str, action: &str) -> String {
    format!("[[rule]]\nmatch = \"{pattern}\"\nexe = \"cat\"\naction = \"{action}\"\n")
}

fn open(bench: &Bench, path: &str, caller: &Caller) -> Result<HandleId> {
    let (parent, name) = bench.parent(path);
    let flags = OpenFlags::from_raw(libc::O_WRONLY);
    match bench.view().lookup(parent, name) {
        Ok(entry) => Ok(bench.view().open(entry.node, flags, caller)?.handle),
        Err(_) => Ok(bench.view().create(parent, name, 0o644, flags, caller)?.1.handle),
    }
}

fn close(bench: &Bench, handle: HandleId, caller: &Caller) {
    bench.view().flush(handle, caller).unwrap();
    bench.view().release(handle).unwrap();
}

fn write(bench: &Bench, path: &str, content: &str, caller: &Caller) -> Result<()> {
    let handle = open(bench, path, caller)?;
    bench.view().write(handle, 0, content.as_bytes())?;
    close(bench, handle, caller);
    Ok(())
}

fn rename(bench: &Bench, from: &str, to: &str, caller: &Caller) -> Result<()> {
    bench.view().rename(ROOT, OsStr::new(from), ROOT, OsStr::new(to), RenameFlags::empty(), caller)
}

#[test]
fn a_hold_for_a_program_holds_what_that_program_writes() {
    let bench = bench(&rule("a*", "hold"));
    let cat = Cat::start();
    bench.put("a", &lines(100));
    write(&bench, "a", "LINE 0", &other()).unwrap();
    assert_eq!((bench.held().len(), &bench.lower("a").unwrap()[..6]), (0, "LINE 0"));
    write(&bench, "a", "line 0", &cat.caller()).unwrap();
    assert_eq!((bench.reasons(), &bench.lower("a").unwrap()[..6]), (vec![Reason::Rule], "LINE 0"));
    write(&bench, "a2", "new\n", &other()).unwrap();
    assert_eq!(bench.lower("a2"), Some("new\n".to_owned()));
    rename(&bench, "a2", "a3", &cat.caller()).unwrap();
    assert_eq!((bench.lower("a2"), bench.lower("a3")), (Some("new\n".to_owned()), None));
}

#[test]
fn what_a_program_wrote_is_held_whoever_closes_last() {
    let bench = bench(&rule("a", "hold"));
    let cat = Cat::start();
    bench.put("a", &lines(100));
    let handles = [cat.caller(), other()].map(|caller| (open(&bench, "a", &caller).unwrap(), caller));
    for (handle, _) in &handles {
        bench.view().write(*handle, 0, b"LINE 0").unwrap();
    }
    handles.iter().for_each(|(handle, caller)| close(&bench, *handle, caller));
    assert_eq!((bench.reasons(), bench.lower("a")), (vec![Reason::Rule], Some(lines(100))));
    bench.view().discard(&[bench.only_id()], &Review::default()).unwrap();
    write(&bench, "a", "LINE 0", &other()).unwrap();
    assert_eq!(bench.held().len(), 0, "it is forgotten with what it was said of");
}

#[test]
fn a_mode_waits_where_the_program_that_sets_it_is_named() {
    let bench = bench(&rule("a", "hold"));
    let cat = Cat::start();
    bench.put("a", "one\n");
    let chmod = |mode: u32, caller: &Caller| {
        let set = SetAttributes { mode: Some(mode), ..SetAttributes::NOTHING };
        bench.view().set_attributes(bench.node("a").unwrap(), None, &set, caller).unwrap();
    };
    chmod(0o600, &other());
    assert_eq!((bench.held().len(), bench.looks_below("a").0), (0, 0o600));
    chmod(0o700, &cat.caller());
    assert_eq!((bench.reasons(), bench.looks_below("a").0), (vec![Reason::Rule], 0o600));
    chmod(0o640, &other());
    assert_eq!((bench.reasons(), bench.looks_below("a").0), (vec![Reason::Rule], 0o600));
}

#[test]
fn a_denial_for_a_program_is_for_its_every_act() {
    let bench = bench(&(rule("a", "deny") + &rule("f", "freeze")));
    let cat = Cat::start();
    let refused = |result: Result<()>| assert_eq!(result.map_err(|err| err.code()), Err(libc::EPERM));
    for name in ["a", "f"] {
        bench.put(name, "one\n");
        refused(write(&bench, name, "two\n", &cat.caller()));
        refused(bench.view().unlink(ROOT, OsStr::new(name), &cat.caller()));
        refused(rename(&bench, name, "b", &cat.caller()));
        write(&bench, name, "two\n", &other()).unwrap();
        assert_eq!(bench.lower(name), Some("two\n".to_owned()));
        bench.view().unlink(ROOT, OsStr::new(name), &other()).unwrap();
        refused(write(&bench, name, "three\n", &cat.caller()));
        refused(bench.view().mkdir(ROOT, OsStr::new(name), 0o755, &cat.caller()).map(|_| ()));
        refused(bench.view().symlink(ROOT, OsStr::new(name), OsStr::new("x"), &cat.caller()).map(|_| ()));
        write(&bench, name, "four\n", &other()).unwrap();
    }
}

#[test]
fn what_is_frozen_for_a_program_keeps_its_mode_owner_and_attributes() {
    let bench = bench(&rule("f", "freeze"));
    let cat = Cat::start();
    bench.put("f", "one\n");
    let node = bench.node("f").unwrap();
    let keep = SetTime::Keep;
    let set = |mode, uid, atime| SetAttributes { mode, uid, atime, ..SetAttributes::NOTHING };
    let change = |set: SetAttributes, caller| bench.view().set_attributes(node, None, &set, &caller).map(|_| ());
    let attribute = |caller: Caller| {
        bench.view().set_xattr(node, OsStr::new("user.x"), b"1", rustix::fs::XattrFlags::empty(), &caller)
    };
    let refused = |result: Result<()>| assert_eq!(result.map_err(|err| err.code()), Err(libc::EPERM));
    refused(change(set(Some(0o600), None, keep), cat.caller()));
    refused(change(set(None, Some(1), keep), cat.caller()));
    refused(attribute(cat.caller()));
    change(set(None, None, SetTime::Now), cat.caller()).unwrap();
    change(set(Some(0o600), None, keep), other()).unwrap();
    attribute(other()).unwrap();
}

#[test]
fn what_passes_for_all_but_one_program_passes_for_the_others() {
    let bench = bench(&rule(".git/x", "hold"));
    let cat = Cat::start();
    bench.put(".git/x", &lines(100));
    write(&bench, ".git/x", &changed(100, 90), &other()).unwrap();
    assert_eq!((bench.held().len(), &bench.lower(".git/x").unwrap()[..5]), (0, "new 0"));
    write(&bench, ".git/x", "mew 0", &cat.caller()).unwrap();
    assert_eq!((bench.reasons()[0], &bench.lower(".git/x").unwrap()[..5]), (Reason::Rule, "new 0"));
}

#[test]
fn a_rule_for_a_program_never_loosens() {
    let bench = bench(&rule("AGENTS.md", "pass"));
    let cat = Cat::start();
    write(&bench, "AGENTS.md", "x\n", &cat.caller()).unwrap();
    assert_eq!((bench.reasons(), bench.lower("AGENTS.md")), (vec![Reason::Sensitive], None));
}
