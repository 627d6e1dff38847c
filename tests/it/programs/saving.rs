//! One way to save one file, run on a plain directory and in the view.

use std::ffi::OsStr;
use std::fs::{self, FileTimes};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use fettlefs::model::Digest;
use serde_json::Value;

use crate::harness::{Output, Scratch, Tree, View, lines, mounted_scratch, with_changed_lines};

const OLD_LINES: usize = 200;
const SMALL_LINES: usize = 2;
/// More than the ceiling allows, of any file.
const LARGE_LINES: usize = 100;
/// The default ceiling (SPEC §5): so many changed lines are held.
const CEIL: usize = 80;
/// 2020-01-02: long before any test, so that a time which is kept can be told from one of now.
const LONG_AGO: Duration = Duration::from_secs(1_577_934_245);

/// A way to save a file. Scripts are run by `sh -e` in the project's directory, with `$N` for how many lines to change,
/// `$NEW` for a file with the lines of `a.txt` of which so many are changed, and `$OUT` for a directory elsewhere that
/// each run has for itself.
#[derive(Clone, Copy)]
pub struct Saving {
    script: &'static str,
    file: &'static str,
    prepare: &'static str,
    asks: &'static str,
    large: Large,
    reason: &'static str,
}

/// What a large edit comes to.
#[derive(Clone, Copy, PartialEq)]
enum Large {
    Held,
    /// It is written in slices, each judged with those before it. What landed before the limit stays (SPEC §4.6).
    HeldAfterSlices,
    /// Its old content is binary: such files are not reviewed by size (SPEC §5).
    Landed,
}

/// Saves `a.txt`, a file of 200 lines with mode, times and an attribute of its own.
pub const fn saving(script: &'static str) -> Saving {
    Saving { script, file: "a.txt", prepare: "", asks: "", large: Large::Held, reason: "size" }
}

impl Saving {
    /// The file that is saved instead of `a.txt`; it is made by what prepares.
    pub const fn of(self, file: &'static str) -> Self {
        Self { file, ..self }
    }

    /// What is run before, without a mount.
    pub const fn prepared(self, prepare: &'static str) -> Self {
        Self { prepare, ..self }
    }

    /// A script whose output must be the same on the plain directory and in the view, afterwards.
    pub const fn asking(self, asks: &'static str) -> Self {
        Self { asks, ..self }
    }

    pub const fn of_binary(self) -> Self {
        Self { large: Large::Landed, ..self }
    }

    /// A large edit is held, and so is that the file can be run then.
    pub const fn made_executable(self) -> Self {
        Self { reason: "risk", ..self }
    }

    pub const fn of_slices(self) -> Self {
        Self { large: Large::HeldAfterSlices, ..self }
    }

    #[track_caller]
    pub fn small(self) {
        let scratch = mounted_scratch!();
        self.run(&scratch, SMALL_LINES, Self::must_land);
    }

    #[track_caller]
    pub fn large(self) {
        let scratch = mounted_scratch!();
        match self.large {
            Large::Held | Large::HeldAfterSlices => self.run(&scratch, LARGE_LINES, Self::must_be_held),
            Large::Landed => self.run(&scratch, LARGE_LINES, Self::must_land),
        }
    }

    fn run(self, scratch: &Scratch, changed: usize, judge: fn(Self, &View<'_>, &Run, &mut Faults)) {
        let new = scratch.root().join("new.txt");
        fs::write(&new, with_changed_lines(&lines(OLD_LINES), changed)).expect("the new content");
        let plain = Place::new(scratch, changed, scratch.root().join("plain"));
        make_old(&plain.dir);
        plain.sh(self.prepare).ok();
        make_old_times(&plain.dir);
        let project = Place::new(scratch, changed, scratch.project());
        plain.sh("cp -a . ../project/").ok();
        for place in [&plain, &project] {
            // Git knows files by their inode numbers.
            place.sh("if test -e .git; then git update-index -q --refresh || :; fi").ok();
        }
        let before = Tree::of(&plain.dir);
        let wanted = plain.sh(self.script).ok();
        let run = Run { before, want: Tree::of(&plain.dir) };
        assert_ne!(run.want.content(self.file), run.before.content(self.file), "the program changes its file");

        let view = scratch.mount();
        let mut faults = Faults::default();
        let saved = project.sh(self.script);
        faults.check("how it ended", (saved.status, said(&saved, &project)), (0, said(&wanted, &plain)));
        faults.trees("the view", &Tree::of(view.root()), &run.want);
        judge(self, &view, &run, &mut faults);
        let (asked, wanted) = (project.sh(self.asks), plain.sh(self.asks));
        faults.check("what was asked", (asked.stdout, asked.stderr), (wanted.stdout, wanted.stderr));
        view.unmount();
        faults.trees("the project without a mount", &Tree::of(&scratch.project()), &run.want);
        assert!(faults.0.is_empty(), "{}", faults.0.join("\n"));
    }

    fn must_land(self, view: &View<'_>, run: &Run, faults: &mut Faults) {
        faults.check("held", view.held(), vec![]);
        faults.trees("lower", &Tree::of(&view.lower()), &run.want);
        self.must_have_backup(view, run, faults);
    }

    fn must_be_held(self, view: &View<'_>, run: &Run, faults: &mut Faults) {
        let held = view.held();
        let told: Vec<_> = held.iter().map(|held| (&*held.path, &*held.kind, &*held.reason)).collect();
        faults.check("held", told, vec![(self.file, "modify", self.reason)]);
        // As before, but for what the program itself leaves behind, such as `a.txt.bak`. That may be another name of
        // what is below, or will be of what is held.
        let below = Tree::of(&view.lower()).without_links();
        let stays = if self.large == Large::Held { &run.before } else { &below };
        let want = run.want.clone().with_entry_of(self.file, stays).without_links();
        faults.trees("lower, held", &below, &want);
        let landed = lines_changed(run.before.content(self.file), below.content(self.file));
        faults.check("what landed of it is small", landed < CEIL, true);
        let ids: Vec<&str> = held.iter().map(|held| &*held.id).collect();
        let confirmed = view.cli(&[&["confirm"], &ids[..]].concat());
        faults.check("confirm", (confirmed.status, confirmed.stderr), (0, String::new()));
        faults.check("held, confirmed", view.held(), vec![]);
        faults.trees("lower, confirmed", &Tree::of(&view.lower()), &run.want);
        faults.trees("the view, confirmed", &Tree::of(view.root()), &run.want);
        self.must_have_backup(view, run, faults);
    }

    /// What the file was can be brought back by its own name.
    fn must_have_backup(self, view: &View<'_>, run: &Run, faults: &mut Faults) {
        let old = Value::from(Digest::of(run.before.content(self.file)).to_string());
        let answer = view.cli(&["backups", "--json"]).ok().json();
        let backups = answer["backups"].as_array().unwrap_or_else(|| panic!("no `backups` in {answer}"));
        let is_ours = |backup: &&Value| backup["sha256"] == old && backup["path"] == self.file;
        if !backups.iter().any(|backup| is_ours(&backup)) {
            let told = |backup: &Value| format!("{} {} {}", backup["path"], backup["kind"], backup["sha256"] == old);
            faults.0.push(format!("no backup of {}: {:?}", self.file, backups.iter().map(told).collect::<Vec<_>>()));
        }
    }
}

/// What the plain directory was before and after.
struct Run {
    before: Tree,
    want: Tree,
}

/// A directory in which scripts are run.
struct Place<'s> {
    scratch: &'s Scratch,
    changed: usize,
    dir: PathBuf,
    /// `$OUT`.
    out: PathBuf,
}

impl<'s> Place<'s> {
    fn new(scratch: &'s Scratch, changed: usize, dir: PathBuf) -> Self {
        let out = dir.with_extension("out");
        for dir in [&dir, &out] {
            fs::create_dir_all(dir).expect("a directory");
        }
        Self { scratch, changed, dir, out }
    }

    fn sh(&self, script: &str) -> Output {
        let mut command = self.scratch.command("sh");
        command.current_dir(&self.dir).args(["-ec", script]);
        command.env("N", self.changed.to_string()).env("OUT", &self.out);
        command.env("NEW", self.scratch.root().join("new.txt"));
        command.env("PATH", path_with_rust()).env("TERM", "xterm");
        // Commits made twice are the same commit.
        command.envs([("GIT_AUTHOR_DATE", "1700000000 +0000"), ("GIT_COMMITTER_DATE", "1700000000 +0000")]);
        command.output().expect("a shell").into()
    }
}

/// Insertions and deletions, where all that changed lies together.
fn lines_changed(old: &[u8], new: &[u8]) -> usize {
    let lines = |text: &[u8]| text.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect::<Vec<_>>();
    let (old, new) = (lines(old), lines(new));
    let same = |pairs: &mut dyn Iterator<Item = (&Vec<u8>, &Vec<u8>)>| pairs.take_while(|(a, b)| a == b).count();
    let first = same(&mut old.iter().zip(&new));
    let last = same(&mut old[first..].iter().rev().zip(new[first..].iter().rev()));
    old.len() + new.len() - 2 * (first + last)
}

/// rustfmt is not found by rustup's own way: that needs the home of whoever runs the tests.
fn path_with_rust() -> std::ffi::OsString {
    let cargo = PathBuf::from(std::env::var_os("CARGO").expect("cargo runs the tests"));
    let tools = cargo.parent().map_or(OsStr::new(""), Path::as_os_str);
    let path = std::env::var_os("PATH").unwrap_or_default();
    [tools, OsStr::new(":"), &path].into_iter().collect()
}

/// What a program printed as a complaint, with its directory left out.
fn said(output: &Output, place: &Place<'_>) -> String {
    output.stderr.replace(&*place.dir.to_string_lossy(), "[dir]").replace(&*place.out.to_string_lossy(), "[out]")
}

/// `a.txt`, which is to be saved, and what must stay as it is.
fn make_old(dir: &Path) {
    let file = dir.join("a.txt");
    fs::write(&file, lines(OLD_LINES)).expect("a.txt");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("its mode");
    rustix::fs::setxattr(&file, "user.mark", b"kept", rustix::fs::XattrFlags::empty()).expect("its attribute");
    fs::write(dir.join("beside.txt"), "not to be touched\n").expect("a file beside it");
    std::os::unix::fs::symlink("a.txt", dir.join("to-a")).expect("a symlink to it");
}

fn make_old_times(dir: &Path) {
    for entry in fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry")) {
        let kind = entry.file_type().expect("its type");
        if kind.is_dir() && entry.file_name() != ".git" {
            make_old_times(&entry.path());
        } else if kind.is_file() {
            let time = SystemTime::UNIX_EPOCH + LONG_AGO;
            let file = fs::File::open(entry.path()).expect("a file");
            file.set_times(FileTimes::new().set_modified(time)).expect("its time");
        }
    }
}

/// What went wrong: one run shows all of it.
#[derive(Default)]
struct Faults(Vec<String>);

impl Faults {
    fn check<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, is: T, want: T) {
        if is != want {
            self.0.push(format!("{what}\n  is   {is:?}\n  want {want:?}"));
        }
    }

    fn trees(&mut self, what: &str, is: &Tree, want: &Tree) {
        let differences = is.differences(want);
        if !differences.is_empty() {
            self.0.push(format!("{what}\n  {}", differences.join("\n  ")));
        }
    }
}

/// One row a way to save, two tests a row: a small edit and a large one.
macro_rules! savings {
    ($($name:ident => $saving:expr;)*) => {$(
        mod $name {
            #[allow(unused_imports, reason = "rows share what they are made of")]
            use super::*;

            const SAVING: $crate::programs::saving::Saving = $saving;

            #[test]
            fn small() {
                SAVING.small();
            }

            #[test]
            fn large() {
                SAVING.large();
            }
        }
    )*};
}

/// A Python script that has `old`, the lines of `a.txt`, and `new`, their text with the first `$N` lines changed.
macro_rules! python {
    ($script:literal) => {
        concat!(
            "python3 - <<'END'\nimport os\n",
            "old = open('a.txt').read().splitlines(True)\n",
            "new = ''.join('changed ' * (at < int(os.environ['N'])) + line for at, line in enumerate(old))\n",
            $script,
            "\nEND"
        )
    };
}

pub(crate) use {python, savings};
