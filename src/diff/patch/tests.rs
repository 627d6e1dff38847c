use super::*;
use proptest::prelude::*;

fn hunk<'a>(left: &'a str, old: &'a str, right: &'a str, new: &'a str) -> Anchored<'a> {
    let [left, old, right, new] = [left, old, right, new].map(str::as_bytes);
    Anchored { left, old, right, new, matches: 1, whole_lines: false }
}

#[test]
fn what_matches_exactly_is_replaced() {
    let everywhere = |hunk, matches| Anchored { matches, ..hunk };
    for (content, hunks, want) in [
        ("a\nb\nc\n", vec![hunk("", "b", "", "B")], "a\nB\nc\n"),
        ("a\nb\nc\n", vec![hunk("a\n", "b", "\nc", "B")], "a\nB\nc\n"),
        // The order of the hunks does not matter, and what one brings is nothing for another to find.
        ("a\nb\nc\n", vec![hunk("", "c", "", "a"), hunk("", "a", "", "c")], "c\nb\na\n"),
        ("x=1\ny=1\n", vec![hunk("y=", "1", "", "2")], "x=1\ny=2\n"),
        ("a\n", vec![hunk("a\n", "", "", "b\n")], "a\nb\n"),
        ("a\n", vec![hunk("", "a\n", "", "")], ""),
        ("a\na\na\n", vec![everywhere(hunk("", "a", "", "b"), 3)], "b\nb\nb\n"),
        // The surroundings of two places may be the same bytes.
        ("\na\na\n", vec![everywhere(hunk("\n", "a", "\n", "b"), 2)], "\nb\nb\n"),
        // One ends where the next begins.
        ("ab", vec![hunk("", "a", "", "1"), hunk("", "b", "", "2")], "12"),
        ("ab", vec![hunk("", "a", "", "1"), hunk("a", "", "b", "-")], "1-b"),
        ("a", vec![], "a"),
    ] {
        let done = apply_anchored(content.as_bytes(), &hunks);
        assert_eq!(done.map(|done| String::from_utf8(done).unwrap()), Ok(want.to_owned()), "{content:?} {hunks:?}");
    }
}

#[test]
fn whole_lines_match_where_a_line_begins() {
    let text = "call(1);\n    call(1);\n";
    let lines = |old, new| Anchored { whole_lines: true, ..hunk("", old, "", new) };
    let done = |hunk| apply_anchored(text.as_bytes(), &[hunk]).map(|done| String::from_utf8(done).unwrap());
    assert_eq!(done(lines("call(1);\n", "call(2);\n")), Ok("call(2);\n    call(1);\n".to_owned()));
    assert_eq!(done(lines("    call(1);\n", "call(2);\n")), Ok("call(1);\ncall(2);\n".to_owned()));
    let refused = done(lines("  call(1);\n", "    call(2);\n")).unwrap_err();
    assert!(refused.near().unwrap().starts_with("here it is but for white space, line 1:\n"), "{refused:?}");
}

#[test]
fn what_does_not_match_exactly_is_refused_with_what_may_have_been_meant() {
    let text = "fn one() {\n    call(1);\n}\n\nfn two() {\n    call(2);\n}\n";
    for (hunks, message, near) in [
        (vec![hunk("", "", "", "x")], "hunk 1 has no left, no old and no right", ""),
        (
            vec![hunk("", "}", "", "x")],
            "hunk 1 matches in 2 places, not in 1",
            "it matches here, line 3:\n     1 | fn one() {\n",
        ),
        (
            vec![hunk("fn three() {\n", "    call(2);\n", "", "x")],
            "hunk 1 matches nowhere",
            "the old text is here, in other surroundings, line 6:\n",
        ),
        (
            vec![hunk("", "\tcall( 1 );\n", "", "x")],
            "hunk 1 matches nowhere",
            "here it is but for white space, line 2:\n     1 | fn one() {\n     2 |     call(1);\n     3 | }\n",
        ),
        (vec![hunk("", "call(3);", "", "x")], "hunk 1 matches nowhere", "did you mean this, line 2:\n"),
        (vec![hunk("", "nothing of the kind", "", "x")], "hunk 1 matches nowhere", ""),
        (vec![hunk("", "call(1)", "", "x"), hunk("", "all(1);", "", "y")], "hunks 1 and 2 replace the same text", ""),
        (
            vec![hunk("one", "", "", "x"), hunk("", "", "() {\n    call(1)", "y")],
            "hunks 1 and 2 replace the same text, or begin at the same place",
            "",
        ),
        (
            vec![hunk("", "fn one", "", "x"), hunk("", "fn three", "", "y")],
            "hunk 2 matches nowhere",
            "did you mean this, line",
        ),
    ] {
        let refused = apply_anchored(text.as_bytes(), &hunks).expect_err(message);
        assert!(refused.to_string().starts_with(message), "{refused}");
        let told = refused.near().unwrap_or_default();
        assert!(told.starts_with(near) && told.is_empty() == near.is_empty(), "{message}: {told}");
    }
}

#[test]
fn overlapping_places_are_places_and_cannot_all_be_replaced() {
    let aa = hunk("", "aa", "", "b");
    let refused = apply_anchored(b"aaa", &[aa]).unwrap_err();
    assert!(matches!(refused, Unpatched::Elsewhere { found: 2, want: 1, .. }), "{refused:?}");
    let refused = apply_anchored(b"aaa", &[Anchored { matches: 2, ..aa }]).unwrap_err();
    assert_eq!(refused, Unpatched::Overlap { first: 1, second: 1 });
}

#[test]
fn what_a_refusal_shows_is_bounded() {
    let long = format!("{}\n", "x".repeat(100_000)).repeat(20);
    let Err(Unpatched::Elsewhere { found, is_all, near, .. }) =
        apply_anchored(long.as_bytes(), &[hunk("", "xx", "", "y")])
    else {
        panic!("it matches everywhere");
    };
    assert_eq!((found, is_all), (1 + COUNTED_BEYOND, false));
    assert!(near.len() < 4096, "{} bytes", near.len());
    assert!(near.ends_with("and in 98 more\n"), "{near}");
    let refused = apply_anchored(long.as_bytes(), &[hunk("", &long.replace('x', "x "), "", "y")]).unwrap_err();
    assert!(refused.near().unwrap_or_default().len() < 4096);
}

/// Each of some hundred thousand places is like it but for the last of its twenty thousand lines.
#[test]
fn what_a_refusal_looks_for_is_bounded() {
    let blank = "\n".repeat(400_000);
    let refused = apply_anchored(blank.as_bytes(), &[hunk("", &("\n".repeat(20_000) + "x"), "", "y")]).unwrap_err();
    assert_eq!(refused, Unpatched::Nowhere { hunk: 1, near: String::new() });
}

/// Each of some hundred thousand places is found by an anchor of some ten thousand bytes.
#[test]
fn what_overlaps_too_often_is_refused_and_does_not_keep_anybody_waiting() {
    let same = "a".repeat(400_000);
    let anchor = "a".repeat(30_000);
    let often = Anchored { matches: 300_000, ..hunk("", &anchor, "", "b") };
    assert_eq!(apply_anchored(same.as_bytes(), &[often]), Err(Unpatched::TooMany { hunk: 1 }));
    // Not one of them begins a line, but the first.
    let line = Anchored { whole_lines: true, ..hunk("", &anchor, "", "b") };
    let done = apply_anchored(same.as_bytes(), &[line]).unwrap();
    assert_eq!(done.len(), 370_001);
    // All that one file is asked for together.
    let each = "b\n".repeat(PLACES_MAX / 2 + 1);
    let every = |old| Anchored { matches: PLACES_MAX / 2 + 1, ..hunk("", old, "", "") };
    let refused = apply_anchored(each.as_bytes(), &[every("b"), every("\n")]);
    assert_eq!(refused, Err(Unpatched::TooMany { hunk: 2 }));
}

/// Every place of `anchor`, by looking at each.
fn naive(content: &[u8], anchor: &[u8]) -> Vec<usize> {
    (0..=content.len()).filter(|at| content[*at..].starts_with(anchor)).collect()
}

fn letters(max: usize) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(b"ab\n".to_vec()), 0..max)
}

proptest! {
    /// One hunk against the definition: it is applied if and only if it matches as often as it says, and not twice the
    /// same text; everything else stays byte for byte.
    #[test]
    fn one_hunk_does_what_its_definition_says(
        content in letters(30), left in letters(3), old in letters(4), right in letters(3), new in letters(4),
        matches in 1..4_usize,
    ) {
        let anchor = [left.clone(), old.clone(), right.clone()].concat();
        let places = naive(&content, &anchor);
        let apart = places.windows(2).all(|two| two[1] - two[0] >= old.len().max(1));
        let hunk = Anchored { left: &left, old: &old, right: &right, new: &new, matches, whole_lines: false };
        let done = apply_anchored(&content, &[hunk]);
        if anchor.is_empty() || places.len() != matches || !apart {
            prop_assert!(done.is_err());
        } else {
            let mut want = content.clone();
            for at in places.iter().rev() {
                let start = at + left.len();
                want.splice(start..start + old.len(), new.iter().copied());
            }
            prop_assert_eq!(done.unwrap(), want);
        }
    }

    /// Whatever is asked for: a patch that puts back what it takes changes nothing, and none panics.
    #[test]
    fn a_patch_of_equals_changes_nothing(
        content in letters(60), hunks in prop::collection::vec((letters(2), letters(4), letters(2)), 0..5),
    ) {
        let hunks: Vec<_> = hunks
            .iter()
            .map(|(left, old, right)| Anchored { left, old, right, new: old, matches: 1, whole_lines: false })
            .collect();
        if let Ok(done) = apply_anchored(&content, &hunks) {
            prop_assert_eq!(done, content);
        }
    }
}
