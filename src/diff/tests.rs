//! Tables for what a person can check by eye, a naive subsequence and git itself as judges for the rest.

use super::*;
use crate::model::{Digest, RelPath};
use proptest::prelude::*;
use std::path::Path;
use std::process::Command;

const PLAIN: u32 = 0o100_644;

fn numbers(range: impl Iterator<Item = usize>) -> Vec<u8> {
    range.flat_map(|number| format!("{number}\n").into_bytes()).collect()
}

/// Longest common subsequence by the textbook table.
fn naive_counts(old: &[u8], new: &[u8]) -> (u64, u64) {
    let split = |bytes: &[u8]| bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect::<Vec<_>>();
    let (old, new) = (split(old), split(new));
    let mut table = vec![vec![0; new.len() + 1]; old.len() + 1];
    for (x, line) in old.iter().enumerate() {
        for (y, other) in new.iter().enumerate() {
            let skip = usize::max(table[x][y + 1], table[x + 1][y]);
            table[x + 1][y + 1] = if line == other { table[x][y] + 1 } else { skip };
        }
    }
    let common = table[old.len()][new.len()];
    ((new.len() - common) as u64, (old.len() - common) as u64)
}

#[test]
fn a_side_is_what_its_encoding_and_size_say() {
    for (content, want) in [
        (None, Side::Absent),
        (Some(&b""[..]), Side::Text),
        (Some("z\u{fc}ri\r\n\0".as_bytes()), Side::Text),
        (Some(b"\xff\n"), Side::Binary),
        (Some(&vec![b'\n'; TEXT_BYTES_MAX as usize]), Side::Text),
        (Some(&vec![0xff; TEXT_BYTES_MAX as usize + 1]), Side::Large),
    ] {
        assert_eq!(classify(content), want);
    }
    assert_eq!(classify_size(TEXT_BYTES_MAX), None);
    assert_eq!(classify_size(TEXT_BYTES_MAX + 1), Some(Side::Large));
}

#[test]
fn lines_end_at_newlines_only() {
    for (old, new, want) in [
        ("", "", "+0 -0 ~0"),
        ("", "a", "+1 -0 ~0"),
        ("a\n", "", "+0 -1 ~0"),
        ("a", "a\n", "+1 -1 ~1"),
        ("a\nb\nc\n", "a\nc\n", "+0 -1 ~0"),
        ("a\rb\u{2028}c\n", "a\rB\u{2028}c\n", "+1 -1 ~1"),
        ("a\r\n", "a\n", "+1 -1 ~1"),
        ("a\nb\n", "x\ny\nz\n", "+3 -2 ~2"),
    ] {
        assert_eq!(measure(old.as_bytes(), new.as_bytes()).summary().to_string(), want, "{old:?} -> {new:?}");
    }
}

#[test]
fn changed_bytes_leave_out_what_a_changed_run_keeps_at_its_ends() {
    for (old, new, want) in [
        ("let one = 1;\n", "let two = 1;\n", 3),
        ("aa\n", "aaa\n", 1),
        ("a\nb\nc\n", "a\nc\n", 2),
        ("ab\nkeep\ncd\n", "aXb\nkeep\ncYYd\n", 3),
        ("same\n", "same\n", 0),
    ] {
        let measure = measure(old.as_bytes(), new.as_bytes());
        assert_eq!((measure.changed_bytes, measure.total_bytes), (want, old.len() as u64), "{old:?} -> {new:?}");
    }
}

#[test]
fn a_hundred_thousand_unrelated_lines_are_counted_exactly() {
    let measure = measure(&numbers(0..100_000), &numbers(100_000..200_000));
    assert!(!measure.bounded);
    assert_eq!(measure.summary().to_string(), "+100000 -100000 ~100000");
}

#[test]
fn past_the_bound_a_file_counts_as_wholly_changed() {
    let (old, new) = (numbers(0..5_000), numbers((0..5_000).rev()));
    let measure = measure(&old, &new);
    assert!(measure.bounded);
    assert_eq!((measure.insertions, measure.deletions, measure.changed_bytes), (5_000, 5_000, old.len() as u64 - 1));
    assert_eq!(apply_all(&old, &new), new);
}

#[test]
fn up_to_the_bound_counts_are_exact() {
    let half = script::EDITS_MAX / 2;
    let rotated = |by: usize| [numbers(by..9_000), numbers(0..by)].concat();
    let at_bound = measure(&numbers(0..9_000), &rotated(half));
    assert!(!at_bound.bounded);
    assert_eq!(at_bound.changed(), script::EDITS_MAX as u64);
    assert!(measure(&numbers(0..9_000), &rotated(half + 1)).bounded);
}

#[test]
fn an_inserted_block_begins_at_its_own_first_line() {
    let old = "fn a() {\n}\n\nfn c() {\n}\n";
    let new = "fn a() {\n}\n\nfn b() {\n}\n\nfn c() {\n}\n";
    let hunks = hunks(old.as_bytes(), new.as_bytes());
    assert_eq!(hunks[0].edits, [Edit { old: 3..3, new: 3..6 }]);
}

#[test]
fn changes_further_apart_than_their_contexts_are_two_hunks() {
    let old = numbers(0..20);
    for (second, want) in [(9, 1), (10, 2)] {
        let new = numbers((0..20).map(|number| if number == 2 || number == second { number + 100 } else { number }));
        assert_eq!(hunks(&old, &new).len(), want, "lines 2 and {second}");
    }
}

#[test]
fn hunks_are_numbered_from_one_and_apply_one_by_one() {
    let old = numbers(0..30);
    let edit = |at: &'static [usize]| {
        numbers((0..30).map(move |number| if at.contains(&number) { number + 100 } else { number }))
    };
    let new = edit(&[0, 15, 29]);
    for (chosen, want) in
        [(&[][..], old.clone()), (&[1], edit(&[0])), (&[3, 2, 3], edit(&[15, 29])), (&[1, 2, 3], new.clone())]
    {
        assert_eq!(apply_hunks(&old, &new, chosen), Ok(want), "{chosen:?}");
    }
    for number in [0, 4] {
        assert_eq!(apply_hunks(&old, &new, &[1, number]), Err(NoSuchHunk { number, count: 3 }));
    }
}

fn apply_all(old: &[u8], new: &[u8]) -> Vec<u8> {
    let all: Vec<usize> = hunks(old, new).iter().map(|hunk| hunk.number).collect();
    apply_hunks(old, new, &all).expect("numbers come from the hunks")
}

#[test]
fn names_are_quoted_as_git_quotes_them() {
    for (name, want) in [
        (&b"a/plain name"[..], &b"a/plain name"[..]),
        (b"tab\tquote\"back\\", b"\"tab\\tquote\\\"back\\\\\""),
        (b"\n\r\x01\x7f", b"\"\\n\\r\\001\\177\""),
        (b"\xc3\xbc\xff", b"\"\\303\\274\\377\""),
    ] {
        assert_eq!(quote_path(name), want);
    }
}

type Content<'a> = Option<(&'a [u8], u32)>;

fn patch(path: &RelPath, old: Content, new: Content, unreadable: Unreadable) -> Vec<u8> {
    let side = |(bytes, mode)| FileSide { content: FileContent::Bytes(bytes), mode };
    unified(&FileDiff { path, old: old.map(side), new: new.map(side) }, unreadable)
}

fn check_text(old: Content, new: Content, want: &str) {
    let path = RelPath::parse(b"dir/x").expect("valid");
    assert_eq!(String::from_utf8_lossy(&patch(&path, old, new, Unreadable::Named)), want);
}

#[test]
fn a_diff_reads_as_git_writes_it() {
    check_text(
        Some((b"a\nb\nc\nd\ne\nf", PLAIN)),
        Some((b"a\nb\nc\nd\nE\nf\n", 0o100_755)),
        "diff --git a/dir/x b/dir/x\nold mode 100644\nnew mode 100755\n--- a/dir/x\n+++ b/dir/x\n@@ -2,5 +2,5 @@\n b\n c\n d\n\
         -e\n-f\n\\ No newline at end of file\n+E\n+f\n",
    );
    check_text(
        None,
        Some((b"a\n", PLAIN)),
        "diff --git a/dir/x b/dir/x\nnew file mode 100644\n--- /dev/null\n+++ b/dir/x\n@@ -0,0 +1 @@\n+a\n",
    );
    check_text(
        Some((b"a\xff", PLAIN)),
        Some((b"b", PLAIN)),
        "diff --git a/dir/x b/dir/x\nindex 4d79631c27e15f648237a5d31c26bc521534d15c..63d8dbd40c23542e740659a7168a0ce3138ea748\nBinary files a/dir/x and b/dir/x differ\n",
    );
    check_text(
        Some((b"a\n", PLAIN)),
        Some((b"target", 0o120_777)),
        "diff --git a/dir/x b/dir/x\ndeleted file mode 100644\n--- a/dir/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n\
         diff --git a/dir/x b/dir/x\nnew file mode 120000\n--- /dev/null\n+++ b/dir/x\n@@ -0,0 +1 @@\n+target\n\
         \\ No newline at end of file\n",
    );
    check_text(Some((b"a\n", PLAIN)), Some((b"a\n", PLAIN)), "");
}

/// Writes the old side, lets git apply our diff, and compares what stands there with the new side.
fn check_git_applies(name: &[u8], old: Content, new: Content) {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a scratch directory");
    let path = RelPath::parse(name).expect("valid");
    let file = dir.path().join(Path::new(std::ffi::OsStr::from_bytes(name)));
    if let Some((content, mode)) = old {
        std::fs::write(&file, content).expect("written");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode & 0o777)).expect("permitted");
    }
    let patch = patch(&path, old, new, Unreadable::Whole);
    let content = || std::fs::read(&file).ok();
    assert!(git_apply(dir.path(), &[], &patch), "{}", String::from_utf8_lossy(&patch));
    assert_eq!(content().as_deref(), new.map(|(content, _)| content), "{}", file.display());
    let runs = std::fs::metadata(&file).ok().map(|found| found.permissions().mode() & 0o111 != 0);
    assert_eq!(runs, new.map(|(_, mode)| mode & 0o111 != 0), "{}", file.display());
    // That a binary file could be run git forgets when it brings one back, of its own patches as well.
    assert!(git_apply(dir.path(), &["-R"], &patch), "{}", String::from_utf8_lossy(&patch));
    assert_eq!(content().as_deref(), old.map(|(content, _)| content), "{}", file.display());
}

/// Whether git takes the patch.
fn git_apply(dir: &Path, flags: &[&str], patch: &[u8]) -> bool {
    use std::io::Write;
    let mut git = Command::new("git")
        .args(["apply", "--whitespace=nowarn"])
        .args(flags)
        .current_dir(dir)
        .env("GIT_CEILING_DIRECTORIES", dir.parent().expect("a parent"))
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("git runs");
    git.stdin.take().expect("piped").write_all(patch).expect("git reads");
    git.wait().expect("git ends").success()
}

/// What is no text and hardly gets shorter.
fn noise(seed: u32, length: usize) -> Vec<u8> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    [0xff].into_iter().chain((1..length).map(next)).collect()
}

#[test]
fn git_applies_what_is_no_text() {
    const RUNS: u32 = 0o100_755;
    // As long as makes lines of each length, and more than one block of what does not compress.
    for length in (1..120).chain([70_000, 200_000]) {
        check_git_applies(b"x", None, Some((&noise(1, length), PLAIN)));
    }
    let (one, other, zeros) = (noise(2, 5_000), noise(3, 300), [&[0xff][..], &[0; 100_000]].concat());
    for (old, new) in [
        (Some((&one[..], PLAIN)), Some((&other[..], PLAIN))),
        (Some((&one, PLAIN)), Some((&other, RUNS))),
        (Some((&one, RUNS)), Some((&one, PLAIN))),
        (Some((&one, PLAIN)), None),
        (Some((&one, RUNS)), None),
        (None, Some((&zeros, RUNS))),
        (Some((b"text\n", PLAIN)), Some((&other, PLAIN))),
        (Some((&other, PLAIN)), Some((b"text\n", PLAIN))),
        (Some((b"", PLAIN)), Some((&other, PLAIN))),
        (Some((&other, PLAIN)), Some((b"", PLAIN))),
        (Some((b"a\0b\n", PLAIN)), Some((b"a\0c\n", PLAIN))),
    ] {
        check_git_applies(b"x", old, new);
        check_git_applies(b"with space \xff", old, new);
    }
}

#[test]
fn git_refuses_what_only_says_that_something_differs() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let path = |name: &str| RelPath::parse(name.as_bytes()).expect("valid");
    std::fs::write(dir.path().join("a"), b"a\n").expect("written");
    std::fs::write(dir.path().join("b"), b"\xff").expect("written");
    let text = patch(&path("a"), Some((b"a\n", PLAIN)), Some((b"b\n", PLAIN)), Unreadable::Whole);
    let side = |content| Some(FileSide { content, mode: PLAIN });
    let (bytes, large) = (FileContent::Bytes(b"\xff"), FileContent::Large(Digest::of(b"large")));
    let path = path("b");
    for (file, unreadable) in [
        (FileDiff { path: &path, old: side(bytes), new: side(FileContent::Bytes(b"\xfe")) }, Unreadable::Named),
        (FileDiff { path: &path, old: side(bytes), new: side(large) }, Unreadable::Whole),
        (FileDiff { path: &path, old: side(large), new: side(bytes) }, Unreadable::Whole),
    ] {
        let named = unified(&file, unreadable);
        for patch in [[text.clone(), named.clone()].concat(), [named, text.clone()].concat()] {
            assert!(!git_apply(dir.path(), &[], &patch), "{}", String::from_utf8_lossy(&patch));
            assert_eq!(std::fs::read(dir.path().join("a")).expect("there"), b"a\n", "none of it is applied");
        }
    }
}

#[test]
fn git_applies_what_we_write() {
    for (old, new) in [
        (Some(&b"a\nb\nc\n"[..]), Some(&b"a\nB\nc\nd\n"[..])),
        (None, Some(b"new\n")),
        (None, Some(b"new, no newline")),
        (None, Some(b"")),
        (Some(b"old\n"), None),
        (Some(b"old, no newline"), None),
        (Some(b""), None),
        (Some(b""), Some(b"a\n")),
        (Some(b"a\n"), Some(b"")),
        (Some(b"a"), Some(b"a\n")),
        (Some(b"a\nb\n"), Some(b"a\nb")),
        (Some(b"a\nb"), Some(b"a\nB\nc")),
        (Some(b"a\r\nb\r\n"), Some(b"a\r\nB\r\n")),
        (Some(b"a\rb\nc\n"), Some(b"a\rB\nc\n")),
    ] {
        check_git_applies(b"x", old.map(|content| (content, PLAIN)), new.map(|content| (content, PLAIN)));
    }
}

#[test]
fn git_finds_files_by_the_names_we_write() {
    for name in [
        &b"with space"[..],
        b" lead",
        b"trail ",
        b"quo\"te",
        b"back\\slash",
        b"new\nline",
        b"tab\t",
        b"\xff\xfe",
        b"\xc3\xbc",
    ] {
        for (old, new) in
            [(Some(&b"a\n"[..]), Some(&b"b\n"[..])), (None, Some(b"b\n")), (Some(b"a\n"), None), (None, Some(b""))]
        {
            check_git_applies(name, old.map(|content| (content, PLAIN)), new.map(|content| (content, PLAIN)));
        }
    }
}

#[test]
fn edits_apart_merge_and_edits_that_meet_conflict() {
    let clean = |text: &str| Merge::Clean(text.as_bytes().to_vec());
    for (base, ours, theirs, want) in [
        ("a\nb\nc\n", "A\nb\nc\n", "a\nb\nC\n", clean("A\nb\nC\n")),
        ("a\nb\nc\n", "A\nb\nc\n", "A\nb\nc\n", clean("A\nb\nc\n")),
        ("a\nb\nc\n", "A\nb\nc\n", "A\nb\nC\n", clean("A\nb\nC\n")),
        ("a\nb\nc\n", "b\nc\n", "a\nb\nc\nd\n", clean("b\nc\nd\n")),
        ("a\nb\nc", "A\nb\nc", "a\nb\nc\nd", clean("A\nb\nc\nd")),
        ("a\n", "a\n", "", clean("")),
    ] {
        let got = merge(base.as_bytes(), ours.as_bytes(), theirs.as_bytes());
        assert_eq!(got, want, "{base:?}: {ours:?} + {theirs:?}");
    }
}

#[test]
fn a_conflict_shows_all_three_versions() {
    let hunks = "@@ line 2 @@\n<<<<<<< project\nours\n||||||| base\nb\n=======\ntheirs\n>>>>>>> held\n";
    assert_eq!(merge(b"a\nb", b"a\nours", b"a\ntheirs"), Merge::Conflict { hunks: hunks.to_owned() });
    assert!(matches!(merge(b"a\nb\n", b"A\nb\n", b"a\nB\n"), Merge::Conflict { .. }), "edits that touch");
}

/// Few different lines, so that they repeat; the last may lack its newline.
fn text() -> impl Strategy<Value = Vec<u8>> {
    let line = prop::sample::select(vec![&b"a\n"[..], b"b\n", b"c\n", b"\n", b"a\r\n", b"\xff\n"]);
    let last = prop::sample::select(vec![&b""[..], b"", b"a", b"b"]);
    (prop::collection::vec(line, 0..24), last).prop_map(|(lines, last)| [lines.concat(), last.to_vec()].concat())
}

/// A text and two edits of it, so that there is something in common to merge.
fn text_and_edits() -> impl Strategy<Value = [Vec<u8>; 3]> {
    let edit = || prop::collection::vec((0usize..40, prop::sample::select(vec![&b""[..], b"x\n", b"y\nz\n"])), 0..3);
    (edit(), edit()).prop_map(|(ours, theirs)| {
        let lines = |edits: &[(usize, &[u8])]| {
            let line = |at: usize| {
                let edit = edits.iter().find(|(place, _)| *place == at).map(|(_, text)| text.to_vec());
                edit.unwrap_or_else(|| format!("{at}\n").into_bytes())
            };
            (0..40).flat_map(line).collect()
        };
        [lines(&[]), lines(&ours), lines(&theirs)]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn counts_are_those_of_a_longest_common_subsequence(old in text(), new in text()) {
        let measure = measure(&old, &new);
        prop_assert_eq!((measure.insertions, measure.deletions), naive_counts(&old, &new));
    }

    #[test]
    fn hunks_count_what_the_measure_counts_and_give_the_new_content(old in text(), new in text()) {
        let hunks = hunks(&old, &new);
        let edits = || hunks.iter().flat_map(|hunk| &hunk.edits);
        let measure = measure(&old, &new);
        prop_assert_eq!(edits().map(|edit| edit.new.len() as u64).sum::<u64>(), measure.insertions);
        prop_assert_eq!(edits().map(|edit| edit.old.len() as u64).sum::<u64>(), measure.deletions);
        prop_assert_eq!(measure.hunks, Some(hunks.len() as u64));
        prop_assert_eq!(&apply_all(&old, &new), &new);
        prop_assert_eq!(apply_hunks(&old, &new, &[]), Ok(old));
    }

    #[test]
    fn what_some_hunks_leave_is_what_the_others_bring(old in text(), new in text(), choice in any::<u32>()) {
        let (chosen, others): (Vec<_>, Vec<_>) =
            hunks(&old, &new).iter().map(|hunk| hunk.number).partition(|number| choice >> (number % 32) & 1 == 1);
        let middle = apply_hunks(&old, &new, &chosen).expect("known");
        let rest = measure(&middle, &new).changed();
        let brought = measure(&old, &apply_hunks(&old, &new, &others).expect("known")).changed();
        prop_assert!(rest <= measure(&old, &new).changed());
        prop_assert!(brought <= measure(&old, &new).changed());
    }

    #[test]
    fn merging_with_an_unchanged_side_takes_the_other(base in text(), side in text()) {
        prop_assert_eq!(merge(&base, &base, &side), Merge::Clean(side.clone()));
        prop_assert_eq!(merge(&base, &side, &base), Merge::Clean(side.clone()));
        prop_assert_eq!(merge(&base, &side, &side), Merge::Clean(side));
    }

    #[test]
    fn merging_is_the_same_from_both_sides([base, ours, theirs] in text_and_edits()) {
        match (merge(&base, &ours, &theirs), merge(&base, &theirs, &ours)) {
            (Merge::Clean(one), Merge::Clean(other)) => prop_assert_eq!(one, other),
            (Merge::Conflict { .. }, Merge::Conflict { .. }) => {}
            (one, other) => prop_assert!(false, "{:?} and {:?}", one, other),
        }
    }

    #[test]
    fn an_approximate_script_still_gives_the_new_content(old in text(), new in text()) {
        let (old_lines, new_lines) = (lines::Lines::of(&old), lines::Lines::of(&new));
        let mut out = Vec::new();
        let mut at = 0;
        for edit in script::approximate(&old_lines, &new_lines) {
            out.extend_from_slice(old_lines.span(at..edit.old.start));
            out.extend_from_slice(new_lines.span(edit.new.clone()));
            at = edit.old.end;
        }
        out.extend_from_slice(old_lines.span(at..old_lines.len()));
        prop_assert_eq!(out, new);
    }
}

/// With which version each line came, as one character a line.
fn blamed(versions: &[&str]) -> String {
    let mut versions = versions.iter().zip('0'..);
    let (first, origin) = versions.next().unwrap();
    let first = Blame::begin(first.as_bytes().to_vec(), origin);
    let blame = versions.fold(first, |blame, (content, origin)| blame.then(content.as_bytes().to_vec(), origin));
    blame.lines().map(|(_, origin)| origin).collect()
}

#[test]
fn a_line_came_with_the_version_that_first_had_it_there() {
    for (versions, want) in [
        (&["", ""][..], ""),
        (&["a\nb\n"], "00"),
        (&["", "a\nb\n"], "11"),
        (&["a\nb\nc\n", "a\nB\nc\n", "a\nB\nc\nd\n"], "0102"),
        // Gone and back again: it came back with who brought it.
        (&["a\nb\n", "a\n", "a\nb\n"], "02"),
        // All that was below an insertion is as old as it was.
        (&["b\nc\n", "a\nb\nc\n", "a\nb\nx\nc\n"], "1020"),
        (&["a\nb", "a\nb\n"], "01"),
        (&["a\nb\n", "", "a\nb\n"], "22"),
    ] {
        assert_eq!(blamed(versions), want, "{versions:?}");
    }
}

proptest! {
    #[test]
    fn what_a_diff_inserts_is_what_came_with_the_last_version(
        versions in proptest::collection::vec("([a-d]\n){0,12}", 1..6),
    ) {
        let versions: Vec<&str> = versions.iter().map(String::as_str).collect();
        let blamed = blamed(&versions);
        let last = versions.len() - 1;
        prop_assert_eq!(blamed.len(), versions[last].lines().count());
        if last > 0 {
            let inserted = measure(versions[last - 1].as_bytes(), versions[last].as_bytes()).insertions as usize;
            let of_last = char::from(b'0' + last as u8);
            prop_assert_eq!(blamed.chars().filter(|origin| *origin == of_last).count(), inserted);
        }
    }
}
