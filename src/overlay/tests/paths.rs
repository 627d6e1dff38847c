//! Random moves of directories and of what is in them: no path of the project becomes more than a small edit of what it had.
//!
//! No model of the outcomes: nobody reviews anything here, so that whatever stands at a path of the project is judged
//! against what stood there first, wherever that has gone. What the kernel refuses by itself is not asked.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::links::may_land;
use super::*;
use crate::model::RelPath;
use crate::sys::file::FileKind;

const DIRS: [&str; 6] = ["a", "a/b", "c", "c/d", "new", "a/new"];
/// What the project has at first; the other two directories are free.
const FILES: [&str; 5] = ["f", "a/f", "a/b/f", "c/f", "c/d/f"];
const CASES: u32 = 40;
const OPERATIONS_MAX: usize = 150;

#[derive(Clone, Debug)]
enum Op {
    Save(String, usize),
    Rename(String, String),
    Exchange(String, String),
    Link(String, String),
    Unlink(String),
    MakeDir(String),
    RemoveDir(String),
}

fn op() -> impl Strategy<Value = Op> {
    let dir = || prop::sample::select(&DIRS[..]).prop_map(str::to_owned);
    let name = prop::sample::select(&["f", "f", "g"][..]);
    let file = (prop::option::of(dir()), name).prop_map(|(dir, name)| match dir {
        Some(dir) => format!("{dir}/{name}"),
        None => name.to_owned(),
    });
    let file = || file.clone();
    let either = || prop_oneof![dir(), file()];
    prop_oneof![
        4 => (file(), prop::sample::select(&[1, 10, 20][..])).prop_map(|(file, lines)| Op::Save(file, lines)),
        4 => (file(), file()).prop_map(|(from, to)| Op::Rename(from, to)),
        4 => (dir(), dir()).prop_map(|(from, to)| Op::Rename(from, to)),
        2 => (file(), file()).prop_map(|(one, other)| Op::Exchange(one, other)),
        3 => (dir(), either()).prop_map(|(one, other)| Op::Exchange(one, other)),
        2 => (file(), file()).prop_map(|(from, to)| Op::Link(from, to)),
        2 => file().prop_map(Op::Unlink),
        2 => dir().prop_map(Op::MakeDir),
        2 => dir().prop_map(Op::RemoveDir),
    ]
}

fn ten_lines(path: &str) -> String {
    (0..10).map(|number| format!("{path} {number}\n")).collect()
}

struct Project {
    bench: Bench,
    saves: usize,
}

impl Project {
    fn new() -> Self {
        let flags = [(Key::Floor, "2"), (Key::Ceil, "8"), (Key::Ratio, "0.4"), (Key::Window, "session")];
        let bench = Bench::with(&[&flags[..], &[(Key::Burst, "1000000")]].concat());
        FILES.iter().for_each(|file| bench.put(file, &ten_lines(file)));
        Self { bench, saves: 0 }
    }

    fn act(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::Save(file, lines) => self.save(file, *lines),
            Op::Rename(from, to) => self.rename(from, to, RenameFlags::empty()),
            Op::Exchange(one, other) => self.rename(one, other, RenameFlags::EXCHANGE),
            Op::Link(from, to) => {
                let (node, (parent, name)) = (self.look_up(from)?.node, self.place(to)?);
                self.bench.view().link(node, parent, name, &ME).map(drop)
            }
            Op::Unlink(file) => {
                let (parent, name) = self.place(file)?;
                self.look_up(file)?;
                self.bench.view().unlink(parent, name, &ME)
            }
            Op::MakeDir(dir) => {
                let (parent, name) = self.place(dir)?;
                self.bench.view().mkdir(parent, name, 0o755, &ME).map(drop)
            }
            Op::RemoveDir(dir) => {
                let (parent, name) = self.place(dir)?;
                self.look_up(dir)?;
                self.bench.view().rmdir(parent, name, &ME)
            }
        }
    }

    fn save(&mut self, file: &str, lines: usize) -> Result<()> {
        self.place(file)?;
        if self.look_up(file).is_ok_and(|entry| entry.attributes.meta.kind != FileKind::Regular) {
            return Ok(());
        }
        self.saves += 1;
        let saves = self.saves;
        self.bench.save(file, &(0..lines).map(|line| format!("written {saves} {line}\n")).collect::<String>());
        Ok(())
    }

    fn rename(&self, from: &str, to: &str, flags: RenameFlags) -> Result<()> {
        let within = |one: &str, other: &str| {
            let [one, other] = [one, other].map(|path| RelPath::parse(path.as_bytes()).unwrap());
            one.is_within(&other)
        };
        if within(from, to) || within(to, from) {
            return Ok(());
        }
        let ends = (self.place(from)?, self.place(to)?);
        self.look_up(from)?;
        drop(self.look_up(to));
        rename(self.bench.view(), ends.0, ends.1, flags)
    }

    fn look_up(&self, path: &str) -> Result<Entry> {
        let (parent, name) = self.place(path)?;
        self.bench.view().lookup(parent, name)
    }

    fn place<'a>(&self, path: &'a str) -> Result<(NodeId, &'a OsStr)> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut parent = ROOT;
        for part in dir.split('/').filter(|part| !part.is_empty()) {
            let entry = self.bench.view().lookup(parent, OsStr::new(part))?;
            if entry.attributes.meta.kind != FileKind::Directory {
                return Err(Error::Errno(libc::ENOTDIR));
            }
            parent = entry.node;
        }
        Ok((parent, OsStr::new(name)))
    }

    fn check(&self) {
        for file in FILES {
            let Some(now) = self.bench.lower(file) else { continue };
            assert!(may_land(&ten_lines(file), &now), "{file} became {now:?} unreviewed");
        }
    }
}

#[test]
fn whatever_moves_no_path_of_the_project_becomes_something_else_unreviewed() {
    let setting = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
    let number = setting("FETTLE_MODEL_SEED").unwrap_or(1);
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&number.to_le_bytes());
    let cases = setting("FETTLE_MODEL_CASES").map_or(CASES, |cases| cases as u32);
    let config = Config { cases, failure_persistence: None, max_shrink_time: 30_000, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    let lists = prop::collection::vec(op(), OPERATIONS_MAX / 2..OPERATIONS_MAX);
    let result = runner.run(&lists, |operations| {
        let mut project = Project::new();
        for op in &operations {
            if let Err(err) = project.act(op) {
                assert!(err.code() != libc::EIO, "{op:?}: {err}");
            }
            project.check();
        }
        Ok(())
    });
    if let Err(err) = result {
        panic!("seed {number}: {err}");
    }
}
