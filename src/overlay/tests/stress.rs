//! Eight threads on few paths. The kernel lets one operation at a time change the names of a directory; so does this.
//! Opens, reads, writes, closes and what a person does run as they come.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Instant;

use super::*;

const THREADS: usize = 8;
const OPERATIONS: usize = 200;

/// What one thread knows of the files that nobody else writes, renames or deletes.
type Model = BTreeMap<String, Option<String>>;

struct Actor<'a> {
    bench: &'a Bench,
    names: &'a Mutex<()>,
    number: usize,
    random: u64,
    model: Model,
}

impl Actor<'_> {
    fn below(&mut self, end: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % end
    }

    fn own(&mut self) -> String {
        let which = self.below(3);
        format!("own-{}-{which}", self.number)
    }

    fn shared(&mut self) -> String {
        format!("shared-{}", self.below(4))
    }

    fn content(&mut self) -> String {
        let (count, by) = (self.below(60) as usize, self.number);
        (0..100)
            .map(|line| if line < count { format!("{by} wrote {line}\n") } else { format!("line {line}\n") })
            .collect()
    }

    fn act(&mut self) {
        let (own, other, shared, another) = (self.own(), self.own(), self.shared(), self.shared());
        match self.below(12) {
            0..=2 => {
                let content = self.content();
                self.save(&own, &content).expect("nobody else has it");
                self.model.insert(own, Some(content));
            }
            3 => {
                if self.unlink(&own).is_ok() {
                    self.model.insert(own, None);
                }
            }
            4 => {
                if own != other && self.rename(&own, &other).is_ok() {
                    let moved = self.model.insert(own, None).flatten();
                    self.model.insert(other, moved);
                }
            }
            5..=7 => {
                let content = self.content();
                self.tolerate(|actor| actor.save(&shared, &content));
            }
            8 => self.tolerate(|actor| actor.unlink(&shared)),
            9 => self.tolerate(|actor| actor.rename(&shared, &another)),
            10 => self.review(|bench, row| bench.view().confirm(&[row], &HOW).map(|_| ()).map_err(|err| err.code), ""),
            _ => self.review(
                |bench, row| bench.view().discard(&[row], &Review::default()).map(|_| ()).map_err(|err| err.code),
                "shared",
            ),
        }
        let known = self.model.iter().next().map(|(name, content)| (name.clone(), content.clone()));
        if let Some((name, content)) = known {
            assert_eq!(self.read(&name), content, "{name}");
        }
    }

    /// What others do to the same names may get in between.
    fn tolerate(&mut self, act: impl FnOnce(&mut Self) -> Result<()>) {
        if let Err(err) = act(self) {
            assert!(matches!(err.code(), libc::ENOENT | libc::ESTALE | libc::EEXIST | libc::EBUSY), "{err} {err:?}");
        }
    }

    fn review(&mut self, act: impl FnOnce(&Bench, ChangeId) -> std::result::Result<(), ErrorCode>, prefix: &str) {
        let held = self.bench.held();
        let mut rows: Vec<_> = held.iter().filter(|row| row.path().to_string().starts_with(prefix)).collect();
        if rows.is_empty() {
            return;
        }
        let index = self.below(rows.len() as u64) as usize;
        let id = rows.swap_remove(index).held.as_ref().unwrap().id.clone();
        if let Err(code) = act(self.bench, id) {
            let expected = [ErrorCode::UnknownId, ErrorCode::Superseded, ErrorCode::Conflict, ErrorCode::Busy];
            assert!(expected.contains(&code) || code == ErrorCode::WriteFailed, "{code:?}");
        }
    }

    fn read(&self, name: &str) -> Option<String> {
        for _ in 0..100 {
            let view = self.bench.view();
            let opened = view.lookup(ROOT, OsStr::new(name)).and_then(|entry| {
                let opened = view.open(entry.node, OpenFlags::from_raw(libc::O_RDONLY), &ME);
                let read = opened.and_then(|opened| {
                    let bytes = view.read(opened.handle, 0, 1 << 20);
                    view.release(opened.handle).and(bytes)
                });
                view.forget(entry.node, 1);
                read
            });
            match opened {
                Err(err) if err.code() == libc::ESTALE => continue,
                Err(err) => {
                    assert_eq!(err.code(), libc::ENOENT, "{err:?}");
                    return None;
                }
                Ok(bytes) => return Some(String::from_utf8(bytes).unwrap()),
            }
        }
        panic!("{name} is stale for ever");
    }

    fn save(&self, name: &str, content: &str) -> Result<()> {
        let view = self.bench.view();
        let flags = OpenFlags::from_raw(libc::O_WRONLY | libc::O_TRUNC);
        let (entry, opened) = {
            let _names = self.names.lock();
            match view.lookup(ROOT, OsStr::new(name)) {
                Ok(entry) => (entry, view.open(entry.node, flags, &ME)?),
                Err(_) => view.create(ROOT, OsStr::new(name), 0o644, flags, &ME)?,
            }
        };
        let written = view.write(opened.handle, 0, content.as_bytes());
        let flushed = view.flush(opened.handle, &ME);
        view.release(opened.handle)?;
        view.forget(entry.node, 1);
        written.map(|_| ()).and(flushed)
    }

    fn unlink(&self, name: &str) -> Result<()> {
        let _names = self.names.lock();
        self.bench.view().unlink(ROOT, OsStr::new(name), &ME)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let _names = self.names.lock();
        rename(self.bench.view(), (ROOT, OsStr::new(from)), (ROOT, OsStr::new(to)), RenameFlags::empty())
    }
}

fn run(bench: &Bench, seed: u64) -> Vec<Model> {
    let (names, done) = (Mutex::new(()), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let actors: Vec<_> = (0..THREADS)
            .map(|number| {
                let random = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ ((number as u64 + 1) << 32);
                let mut actor = Actor { bench, names: &names, number, random, model: Model::new() };
                let done = &done;
                scope.spawn(move || {
                    (0..OPERATIONS).for_each(|_| actor.act());
                    done.fetch_add(1, Ordering::SeqCst);
                    actor.model
                })
            })
            .collect();
        let deadline = Instant::now() + Duration::from_secs(120);
        while actors.iter().any(|actor| !actor.is_finished()) {
            if Instant::now() > deadline {
                eprintln!("stuck: {} of {THREADS} done", done.load(Ordering::SeqCst));
                std::process::abort();
            }
            std::thread::yield_now();
            std::thread::park_timeout(Duration::from_millis(20));
        }
        actors.into_iter().map(|actor| actor.join().unwrap()).collect()
    })
}

fn view_of(bench: &Bench) -> BTreeMap<String, Option<String>> {
    bench.names("").into_iter().map(|name| (name.clone(), bench.read(&name))).collect()
}

fn ids(bench: &Bench) -> Vec<ChangeId> {
    bench.held().into_iter().map(|row| row.held.unwrap().id).collect()
}

fn check(seed: u64) {
    let mut bench = Bench::with(&[(Key::Window, "0")]);
    let models = run(&bench, seed);
    for (name, content) in models.iter().flatten() {
        assert_eq!(&bench.read(name), content, "{name}");
    }
    {
        let state = bench.view().state.lock();
        assert!(state.handles.is_empty());
        let mut rows: Vec<UpperRow> = Vec::new();
        for upper in state.uppers.iter() {
            let settled = !upper.busy && !upper.dirty && upper.has_row() && upper.row.held.is_some();
            assert!(settled, "{upper:?}");
            rows.push(upper.row.clone());
        }
        rows.sort_by_key(|row| row.id);
        assert_eq!(rows, bench.view().store().load_upper().unwrap());
        let files = rows.iter().filter(|row| row.what != crate::store::What::Whiteout).count();
        drop(state);
        assert_eq!(bench.stage_files(), files);
    }
    assert!(bench.lower_names().iter().all(|name| !name.starts_with(crate::store::TEMP_PREFIX)));
    let (view, held) = (view_of(&bench), ids(&bench));
    assert!(bench.remount().is_nothing());
    assert_eq!((view_of(&bench), ids(&bench)), (view, held));
}

#[test]
fn threads_on_few_paths_lose_nothing_and_leave_nothing_behind() {
    (0..4).for_each(check);
}

/// Ends what goes on until somebody is done, however he ends.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Opens what it has looked up as the kernel does, with time in between.
fn open_what_is_found(bench: &Bench, dir: &str, flags: i32, (names, done): (&Mutex<()>, &AtomicBool)) {
    let _ending = Ending(done);
    let (view, dir) = (bench.view(), bench.node(dir).unwrap());
    while !done.load(Ordering::SeqCst) {
        let entry = {
            let _names = names.lock();
            view.lookup(dir, OsStr::new("f")).expect("a name that always has a file")
        };
        std::thread::yield_now();
        let opened = view.open(entry.node, OpenFlags::from_raw(flags), &ME).expect("what was found a moment ago");
        view.flush(opened.handle, &ME).unwrap();
        view.release(opened.handle).unwrap();
        view.forget(entry.node, 1);
    }
}

fn replace_again_and_again(bench: &Bench, dir: &str, (names, done): (&Mutex<()>, &AtomicBool)) {
    let _ending = Ending(done);
    let temp = format!("{dir}/temp");
    for turn in 0..OPERATIONS {
        bench.save(&temp, &format!("turn {turn}\n"));
        let _names = names.lock();
        bench.rename(&temp, &format!("{dir}/f"));
    }
}

#[test]
fn a_name_that_always_has_a_file_always_opens() {
    // Nobody judges, somebody does, and every change is held.
    for dir in [".git", "src", ".claude"] {
        let bench = Bench::with(&[(Key::Window, "0")]);
        bench.put(&format!("{dir}/f"), "first\n");
        // A name that it does not know the kernel looks up under the lock of its directory.
        let (names, done) = (Mutex::new(()), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let (bench, done) = (&bench, (&names, &done));
            for flags in [libc::O_RDONLY, libc::O_RDONLY, libc::O_RDWR, libc::O_WRONLY | libc::O_TRUNC] {
                scope.spawn(move || open_what_is_found(bench, dir, flags, done));
            }
            replace_again_and_again(bench, dir, done);
        });
        let mut held: Vec<RelPath> = bench.held().into_iter().flat_map(|row| row.names).collect();
        let count = held.len();
        held.sort();
        held.dedup();
        assert_eq!(held.len(), count, "a path is held once");
    }
}

#[test]
fn who_writes_to_a_file_while_its_directory_is_renamed_to_where_it_is_reviewed_goes_on_there() {
    // Large enough for a copy to be under way when the other side acts.
    let landed = "landed\n".repeat(20_000);
    let written = format!("{landed}written\n");
    for turn in 0..20 {
        let bench = Bench::with(&[(Key::Window, "0")]);
        bench.mkdir("d");
        bench.save("d/x", &landed);
        let flags = OpenFlags::from_raw(libc::O_WRONLY);
        let opened = bench.view().open(bench.node("d/x").unwrap(), flags, &ME).unwrap().handle;
        let start = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                // Now before the rename, now after it, now beside it.
                (0..turn % 8).for_each(|_| std::thread::yield_now());
                bench.view().write(opened, landed.len() as u64, b"written\n").unwrap();
            });
            start.wait();
            bench.rename("d", ".claude");
        });
        bench.close(opened);
        assert!(bench.read(".claude/x").as_ref() == Some(&written), "turn {turn}");
        assert_eq!((bench.lower("d/x"), bench.lower(".claude/x")), (None, None), "turn {turn}");
        assert_eq!(bench.held().len(), 1, "turn {turn}");
        assert_eq!(bench.stage_files(), 1, "turn {turn}");
    }
}
