use super::*;
use gix::ObjectId;
use std::path::PathBuf;
use std::process::Command;

fn path(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).expect(text)
}

/// A scratch repository, away from the settings of whoever runs the tests.
struct Repository(tempfile::TempDir);

impl Repository {
    fn new(init: &[&str]) -> Self {
        let repository = Self(tempfile::tempdir().unwrap());
        repository.git(&[&["init", "-q"], init].concat());
        repository
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("git");
        command.current_dir(self.0.path()).args(arguments).env("HOME", self.0.path());
        command.env("GIT_CONFIG_GLOBAL", self.0.path().join(".git/global")).env("GIT_CONFIG_NOSYSTEM", "1");
        command.env_remove("XDG_CONFIG_HOME").env_remove("GIT_DIR");
        command
    }

    fn git(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Puts what is not there into the index.
    fn add_entry(&self, mode: &str, path: &str) {
        let empty = self.git(&["hash-object", "-w", "/dev/null"]);
        self.git(&["update-index", "--add", "--cacheinfo", &format!("{mode},{},{path}", empty.trim())]);
    }

    fn write(&self, file: &str, text: &[u8]) {
        let file = self.0.path().join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }

    fn read(&self, file: PathBuf) -> Option<Vec<u8>> {
        std::fs::read(self.0.path().join(file)).ok()
    }

    fn index(&self) -> Vec<u8> {
        self.read(".git/index".into()).unwrap()
    }

    /// What git says of a directory that exists.
    fn ignores(&self, dir: &str) -> bool {
        std::fs::create_dir_all(self.0.path().join(dir)).unwrap();
        self.command(&["check-ignore", "-q", "--no-index", dir]).status().unwrap().success()
    }

    /// Those of some paths that git ignores, of which nothing is tracked.
    fn ignored_among(&self, dirs: &[&str]) -> Vec<String> {
        for dir in dirs {
            std::fs::create_dir_all(self.0.path().join(dir)).unwrap();
        }
        self.write(".git/asked", dirs.join("\0").as_bytes());
        let asked = std::fs::File::open(self.0.path().join(".git/asked")).unwrap();
        let listed = self.command(&["check-ignore", "-z", "--no-index", "--stdin"]).stdin(asked).output().unwrap();
        let names = String::from_utf8(listed.stdout).unwrap();
        names.split_terminator('\0').map(str::to_owned).collect()
    }

    /// What we say, walking down as a caller does.
    fn scope_ignores(&self, dir: &str) -> bool {
        let files = [".git/excludes", ".git/info/exclude", ".gitignore"];
        let files = files.into_iter().filter_map(|file| self.read(file.into()));
        let mut scope = IgnoreScope::root(files.map(IgnoreFile::Text));
        let dir = path(dir);
        for ancestor in dir.components().scan(RelPath::root(), |at, name| {
            *at = at.join(name).unwrap();
            Some(at.clone())
        }) {
            let name = ancestor.name().unwrap();
            if ancestor == dir {
                return scope.ignores_dir(name);
            }
            let text = self.read(PathBuf::from(ancestor.as_os_str()).join(".gitignore"));
            scope = scope.child(name, text.map(IgnoreFile::Text));
        }
        false
    }
}

#[test]
fn of_a_file_that_is_no_list_for_git_nothing_is_ignored() {
    let of_bytes = |count: usize| [&b"target/\n"[..], &b"#".repeat(count - 8)].concat();
    for (text, want) in [(of_bytes(TEXT_BYTES_MAX), true), (of_bytes(TEXT_BYTES_MAX + 1), false)] {
        let files = [b"target/\n".to_vec(), text.clone()];
        let scope = IgnoreScope::root(files.map(IgnoreFile::Text));
        assert_eq!(scope.ignores_dir(OsStr::new("target")), want, "{} bytes", text.len());
    }
}

#[test]
fn directories_are_ignored_as_git_ignores_them() {
    let repository = Repository::new(&[]);
    repository.git(&["config", "core.excludesFile", ".git/excludes"]);
    repository.write(".git/excludes", b"global/\ntaken/\n");
    repository.write(".git/info/exclude", b"\xef\xbb\xbfexcluded\n!taken/\n");
    repository.write(
        ".gitignore",
        b"target/\n/anchored\nmid/dle/\n*.tmp\n!keep.tmp\nbuild\n!build/out\n\n# comment\n\\#hash\n\\!bang\n\
          trailing   \nescaped\\ \n{a,b}\ncr/\r\n**/deep/x\nall/**\n!all/not/\ninner/*\n!inner/kept/\nq?x\n[xy]z\n[!xy]w\n\
          re/\n!re/\nfoo[[:digit:]]\n",
    );
    repository.write("sub/.gitignore", b"!target/\n/own\nonly/here\n*.log\n");
    repository.write("sub/lower/.gitignore", b"target/\n!*.log\n");
    repository.write("build/.gitignore", b"!*\n");
    for dir in [
        "global",
        "taken",
        "excluded",
        "a/excluded",
        "target",
        "x/target",
        "targets",
        "anchored",
        "x/anchored",
        "mid/dle",
        "x/mid/dle",
        "d.tmp",
        "x/d.tmp",
        "keep.tmp",
        "build",
        "build/out",
        "build/out/x",
        "#hash",
        "!bang",
        "trailing",
        "escaped ",
        "escaped",
        "{a,b}",
        "a",
        "b",
        "cr",
        "x/deep/x",
        "deep/x",
        "deep/y",
        "all",
        "all/x",
        "all/not",
        "all/not/x",
        "inner",
        "inner/x",
        "inner/kept",
        "qax",
        "q/x",
        "xz",
        "zz",
        "xw",
        "zw",
        "re",
        "sub/target",
        "sub/a/target",
        "sub/own",
        "sub/a/own",
        "sub/only/here",
        "only/here",
        "sub/d.log",
        "d.log",
        "sub/lower/d.log",
        "sub/lower/target",
        "sub/lower/x/target",
        "sub/d.tmp",
        "target/sub/deep",
    ] {
        assert_eq!(repository.scope_ignores(dir), repository.ignores(dir), "{dir}");
    }
}

/// Names that the lines below are about, each once in another directory.
const NAMES: &[&str] = &[
    "src",
    "src\t",
    "x",
    "x/y",
    "xzy",
    "xay",
    "xby",
    "x-y",
    "\\",
    "a\\",
    "a\\ ",
    "a",
    "a ",
    "a  ",
    "[",
    "[a-",
    "[a",
    "b",
    "-",
    "]",
    "[/]",
    "*#",
    "*#\\",
    "#",
    "#a",
    "!",
    "{a,b}",
    "Debug",
    "debug",
    "é",
    "fé",
    "fo",
    "foo",
    "f",
    "1",
    "x1y",
    "a.b",
    "a_b",
    "...",
    "***",
    "q/r/s",
    "q/s",
    "sub/src",
    "sub/x/y",
    "sub/[",
    "sub/a",
    "sub/debug",
    "sub/q/s",
];

/// Whatever a line looks like, nothing passes that git does not ignore.
#[test]
fn no_line_makes_more_ignored_than_git_does() {
    let repository = Repository::new(&[]);
    for line in [
        "src\t",
        "src \t",
        "src\u{a0}",
        "src\u{b}",
        "src\r\r",
        "x[!a]y",
        "x[^a]y",
        "x[+-9]y",
        "x[--1]y",
        "x[/]y",
        "[/]",
        "x[.-9]y",
        "\\/",
        "*#\\/",
        "*\\/",
        "a\\",
        "a\\ ",
        "a\\  ",
        "a\\\\ ",
        "a\\\\",
        "[",
        "[a-",
        "[a",
        "[]",
        "[!",
        "[!]",
        "[]a]",
        "[!]a]",
        "[a-]",
        "[a\\]b]",
        "[[:alpha:]]",
        "[b-a]",
        "[A-z]",
        "[0-a]",
        "x[é]y",
        "[é]",
        "f?",
        "?",
        "f??",
        "/",
        "//",
        "//src",
        "x//y",
        "src//",
        "/src/",
        "./src",
        "src/.",
        "***",
        "***/s",
        "q/***/s",
        "q/**/s",
        "q/**",
        "**",
        "**/",
        "/**",
        "**/s",
        "q**s",
        "q/**s",
        "{a,b}",
        "\\{a,b\\}",
        "{a",
        "a}",
        "!",
        "!!a",
        "*\n!",
        "*\n!/",
        "*\n!a\\ ",
        "*\n![!b]",
        "*\n!\ta",
        "*\n!a\0b",
        "*\n!src\t",
        "*\n!*\\/",
        "*\n!x[!a]y",
        "*\n!//a",
        "*\n![a-",
    ] {
        repository.write(".gitignore", line.as_bytes());
        let theirs = repository.ignored_among(NAMES);
        let ours: Vec<_> = NAMES.iter().filter(|dir| repository.scope_ignores(dir)).collect();
        let more: Vec<_> = ours.iter().filter(|dir| !theirs.contains(&(**dir).to_string())).collect();
        assert!(more.is_empty(), "{line:?} makes us ignore {more:?}, git {theirs:?}");
    }
}

#[test]
fn what_people_write_is_read_as_git_reads_it() {
    let repository = Repository::new(&[]);
    for line in [
        "src",
        "src/",
        "/src",
        "src  ",
        "src\r",
        "a\\ ",
        "[Dd]ebug/",
        "x[a-z]y",
        "x[!a]y",
        "x[^a-c]y",
        "x[0-9a-f]y",
        "a[._]b",
        "[._]*",
        "#",
        "#[ab]",
        "\\#[ab]",
        "\\#",
        "\\!",
        "*",
        "f*",
        "?",
        "x?y",
        "**/s",
        "q/**",
        "q/**/s",
        "x/y",
        "*/y",
        "{a,b}",
        "*\n![Dd]ebug/",
        "*\n!x[a-b]y",
        "*\n!x[!a]y",
        "*\n!src  ",
    ] {
        repository.write(".gitignore", line.as_bytes());
        let ours: Vec<_> = NAMES.iter().copied().filter(|dir| repository.scope_ignores(dir)).collect();
        assert_eq!(ours, repository.ignored_among(NAMES), "{line:?}");
    }
}

#[test]
fn a_line_that_cannot_be_read_never_makes_more_ignored() {
    for (text, name, want) in [
        (&b"*\n"[..], "d", true),
        (b"*\n![[:alpha:]]\n", "d", false),
        (b"*\n!\xff\n", "d", false),
        (b"\xff\nd\n", "d", true),
        (b"[[:alpha:]]\n", "d", false),
    ] {
        let scope = IgnoreScope::root([IgnoreFile::Text(text.to_vec())]);
        assert_eq!(scope.ignores_dir(OsStr::new(name)), want, "{}", String::from_utf8_lossy(text));
    }
}

#[test]
fn below_an_ignored_directory_nothing_is_taken_back() {
    let scope = IgnoreScope::root([IgnoreFile::Text(b"a/\n!a/b/\n".to_vec())]);
    let inside = scope.child(OsStr::new("a"), Some(IgnoreFile::Text(b"!*\n".to_vec())));
    assert!(inside.ignores_dir(OsStr::new("b")));
    assert!(inside.child(OsStr::new("b"), None).ignores_dir(OsStr::new("c")));
}

const TRACKED: &[&str] =
    &["a/b/c.rs", "a-b/x", "a/b-c", "long/name/of/some/kind.txt", "long/name/of/some/kind2.txt", "z"];

fn tracked_dirs(index: &[u8]) -> Result<TrackedSet, IndexError> {
    Index::read(index).map(|index| index.tracked)
}

fn repository_with_files(init: &[&str]) -> Repository {
    let repository = Repository::new(init);
    for file in TRACKED {
        repository.write(file, b"x");
    }
    repository.write(&"n".repeat(200), b"x");
    repository.git(&["add", "."]);
    repository
}

fn repository_with_submodule(init: &[&str]) -> Repository {
    let repository = repository_with_files(init);
    repository.add_entry("160000", "sub");
    repository
}

fn check_tracked(index: &[u8], version: u8) {
    assert_eq!(index[7], version);
    let tracked = tracked_dirs(index).unwrap();
    for dir in ["", "a", "a/b", "a-b", "long", "long/name/of", "sub"] {
        assert!(tracked.any_within(&path(dir)), "{dir}");
    }
    // Of `z` git tracks a file: as a directory it holds nothing that is tracked.
    for dir in ["a/b/c", "a/c", "b", "long/name/o", "sub/x", "z", "zz", "target"] {
        assert!(!tracked.any_within(&path(dir)), "{dir}");
    }
}

#[test]
fn every_version_of_the_index_is_read() {
    let repository = repository_with_submodule(&[]);
    for version in [2, 4] {
        repository.git(&["update-index", "--index-version", &version.to_string()]);
        check_tracked(&repository.index(), version);
    }
    repository.write("intent/file", b"x");
    repository.git(&["add", "--intent-to-add", "intent/file"]);
    for version in [3, 4] {
        repository.git(&["update-index", "--index-version", &version.to_string()]);
        check_tracked(&repository.index(), version);
        assert!(tracked_dirs(&repository.index()).unwrap().any_within(&path("intent")));
    }
}

#[test]
fn an_index_with_longer_hashes_is_read() {
    for version in ["2", "4"] {
        let repository = repository_with_submodule(&["--object-format=sha256"]);
        repository.git(&["update-index", "--index-version", version]);
        check_tracked(&repository.index(), version.parse().unwrap());
    }
}

#[test]
fn names_longer_than_their_length_field_are_read() {
    let repository = Repository::new(&[]);
    let deep = vec!["d".repeat(250); 20].join("/");
    repository.add_entry("100644", &deep);
    assert!(tracked_dirs(&repository.index()).unwrap().any_within(&path(&"d".repeat(250))));
}

#[test]
fn an_index_that_does_not_name_every_file_is_refused() {
    let split = repository_with_files(&[]);
    split.git(&["update-index", "--split-index"]);
    assert!(tracked_dirs(&split.index()).is_err());
    let empty_split = [b"DIRC\0\0\0\x02\0\0\0\0link\0\0\0\0".as_slice(), &[0; 20]].concat();
    assert_eq!(tracked_dirs(&empty_split), Err(IndexError::Extension("link".to_owned())));

    let sparse = repository_with_files(&[]);
    sparse.git(&["-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "x"]);
    sparse.git(&["sparse-checkout", "set", "--cone", "--sparse-index", "a"]);
    assert!(matches!(tracked_dirs(&sparse.index()), Err(IndexError::Sparse | IndexError::Extension(_))));
}

#[test]
fn a_damaged_index_is_an_error_and_never_a_panic() {
    let repository = repository_with_files(&[]);
    for version in ["2", "4"] {
        repository.git(&["update-index", "--index-version", version]);
        let index = repository.index();
        for length in 0..index.len() {
            assert!(tracked_dirs(&index[..length]).is_err(), "cut at {length}");
        }
        for at in 0..index.len() {
            for value in [0, 0xff, index[at] ^ 0x40] {
                let mut damaged = index.clone();
                damaged[at] = value;
                // Only that it returns: a flipped bit in a hash or a time is no damage here.
                drop(tracked_dirs(&damaged));
            }
        }
    }
    for (bytes, want) in [
        (&b""[..], IndexError::NotAnIndex),
        (b"DIRC\0\0\0\x09\0\0\0\0", IndexError::Version(9)),
        (b"DIRC\0\0\0\x02\xff\xff\xff\xff", IndexError::Malformed),
    ] {
        assert_eq!(tracked_dirs(bytes), Err(want));
    }
}

/// The index that git would write for some sorted names, in version 4: the packed size is a fraction of theirs.
fn packed_index(names: impl IntoIterator<Item = String>) -> Vec<u8> {
    let (mut entries, mut count, mut before) = (Vec::new(), 0_u32, String::new());
    for name in names {
        let kept = before.bytes().zip(name.bytes()).take_while(|(one, other)| one == other).count();
        let mut stat = [0; 40];
        stat[24..28].copy_from_slice(&0o100_644_u32.to_be_bytes());
        entries.extend_from_slice(&stat);
        entries.extend_from_slice(&[1; 20]);
        entries.extend_from_slice(&u16::try_from(name.len().min(0xfff)).unwrap().to_be_bytes());
        entries.extend_from_slice(&varint(before.len() - kept));
        entries.extend_from_slice(&name.as_bytes()[kept..]);
        entries.push(0);
        (count, before) = (count + 1, name);
    }
    [b"DIRC", &4_u32.to_be_bytes()[..], &count.to_be_bytes(), &entries, &[0; 20]].concat()
}

fn varint(mut value: usize) -> Vec<u8> {
    let byte = |value: usize| u8::try_from(value & 0x7f).unwrap();
    let mut bytes = vec![byte(value)];
    while value > 0x7f {
        value = (value >> 7) - 1;
        bytes.insert(0, 0x80 | byte(value));
    }
    bytes
}

#[test]
fn an_index_that_unpacks_to_much_is_refused() {
    let long = vec!["d".repeat(200); 19].join("/");
    let deep = vec!["d"; 1900].join("/");
    type Name<'a> = &'a dyn Fn(u32) -> String;
    for (count, name, want) in [
        (1_000, &(|i| format!("{long}/{i:06}/f")) as Name<'_>, Ok(())),
        (20_000, &|i| format!("{long}/{i:06}/f"), Err(IndexError::TooLarge)),
        (20_000, &|i| format!("{}{i:06}", "f".repeat(4_000)), Err(IndexError::TooLarge)),
        (100, &|i| format!("{i:06}/{deep}/f"), Err(IndexError::TooLarge)),
        (1, &|_| "f".repeat(8_192), Ok(())),
        (1, &|_| "f".repeat(8_193), Err(IndexError::Malformed)),
        (200_000, &|i| format!("modules/module-{:04}/src/part-{:06}/file-{i:08}.rs", i / 500, i / 5), Ok(())),
    ] {
        let index = packed_index((0..count).map(name));
        assert_eq!(Index::read(&index).map(drop), want, "{count}: {} bytes", index.len());
    }
}

#[test]
fn an_empty_index_tracks_nothing() {
    let index = [b"DIRC\0\0\0\x02\0\0\0\0".as_slice(), &[0; 20]].concat();
    let tracked = tracked_dirs(&index).unwrap();
    assert!(tracked.is_empty() && !tracked.any_within(&RelPath::root()));
}

/// Names that sort otherwise with a slash at their end are among them.
#[test]
fn an_index_has_the_trees_that_git_writes_of_it() {
    for init in [&[][..], &["--object-format=sha256"]] {
        let repository = repository_with_files(init);
        for file in ["a.b", "a/b.c", "a/b/d/e/f", "a0/x", "z0"] {
            repository.write(file, b"x");
        }
        repository.git(&["add", "."]);
        repository.add_entry("160000", "sub");
        repository.git(&["-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "x"]);
        let index = Index::read(&repository.index()).unwrap();
        let mut trees = vec![(String::new(), repository.git(&["rev-parse", "HEAD^{tree}"]))];
        let listed = repository.git(&["ls-tree", "-rtd", "--format=%(path) %(objectname)", "HEAD"]);
        let listed = listed.lines().filter(|line| !line.starts_with("sub "));
        trees.extend(listed.map(|line| line.split_once(' ').unwrap()).map(|(dir, id)| (dir.into(), id.into())));
        assert_eq!(trees.len(), 11, "{trees:?}");
        for (dir, id) in trees {
            let id = ObjectId::from_hex(id.trim().as_bytes()).unwrap();
            assert!(index.trees.has(&path(&dir), &id), "{dir}");
            assert!(!index.trees.has(&path("target"), &id), "{dir}");
        }
        repository.write("a/b/d/e/f", b"y");
        repository.git(&["add", "a"]);
        let index = Index::read(&repository.index()).unwrap();
        for (dir, is_same) in [("a/b/d", false), ("a", false), ("", false), ("a-b", true)] {
            let id = repository.git(&["rev-parse", &format!("HEAD:{dir}")]);
            assert_eq!(
                index.trees.has(&path(dir), &ObjectId::from_hex(id.trim().as_bytes()).unwrap()),
                is_same,
                "{dir}"
            );
        }
    }
}
