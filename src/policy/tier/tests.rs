use super::*;

const SMALL: Verdict = Verdict::Land(LandNote::Small);
const SIZE: Verdict = Verdict::Hold(Reason::Size);
const BYTES: Verdict = Verdict::Hold(Reason::Bytes);
const RISK: Verdict = Verdict::Hold(Reason::Risk);
const KIB: u64 = 1024;

fn lines(count: usize) -> String {
    (0..count).map(|number| format!("line {number}\n")).collect()
}

fn check(old: impl AsRef<[u8]>, new: impl AsRef<[u8]>, want: Verdict) {
    let facts = Facts::of(Some(old.as_ref()), Some(new.as_ref()));
    assert_eq!(judge(&facts, &Thresholds::default()), want, "{:?}", facts.measure);
}

fn measured(changed: u64, old_lines: u64) -> Facts {
    let measure = Measure {
        insertions: changed,
        deletions: 0,
        old_lines,
        new_lines: old_lines + changed,
        changed_bytes: 0,
        total_bytes: 0,
        hunks: Some(1),
        bounded: false,
    };
    Facts { measure: Some(measure), ..Facts::of(Some(b"old"), Some(b"new")) }
}

fn deletion(old: Side, old_bytes: u64) -> Facts {
    Facts { identical: false, old, old_bytes, new: Side::Absent, measure: None }
}

fn judged(facts: Facts) -> Verdict {
    judge(&facts, &Thresholds::default())
}

#[test]
fn ten_lines_land_whatever_the_file_and_eighty_never_do() {
    for (changed, old_lines, want) in
        [(10, 1, SMALL), (11, 1, SIZE), (11, 27, SIZE), (11, 28, SMALL), (79, 1_000_000, SMALL), (80, 1_000_000, SIZE)]
    {
        assert_eq!(judged(measured(changed, old_lines)), want, "{changed} of {old_lines}");
    }
}

#[test]
fn two_fifths_of_the_file_land_and_a_line_more_does_not() {
    for (changed, old_lines, want) in [(40, 100, SMALL), (41, 100, SIZE), (12, 30, SMALL), (12, 29, SIZE)] {
        assert_eq!(judged(measured(changed, old_lines)), want, "{changed} of {old_lines}");
    }
}

#[test]
fn every_hundredth_is_compared_exactly() {
    for percent in 11..79 {
        let thresholds = Thresholds { ratio: percent as f64 / 100.0, ..Thresholds::default() };
        assert_eq!(judge(&measured(percent, 100), &thresholds), SMALL, "{percent} %");
        assert_eq!(judge(&measured(percent + 1, 100), &thresholds), SIZE, "{percent} % and a line");
    }
}

#[test]
fn an_empty_old_file_has_ratio_zero() {
    check("", lines(79), SMALL);
    check("", lines(80), SIZE);
    check("", "x".repeat(1 << 20), SMALL);
}

#[test]
fn identical_content_is_no_change_before_anything_else() {
    check("a\n", "a\n", Verdict::Unchanged);
    check(b"\xff", b"\xff", Verdict::Unchanged);
}

#[test]
fn a_new_file_lands_whatever_it_contains() {
    for new in [&b""[..], b"text", b"\xff", &vec![b'x'; 6 << 20]] {
        assert_eq!(judged(Facts::of(None, Some(new))), Verdict::Land(LandNote::NewFile));
    }
    assert_eq!(judged(deletion(Side::Absent, 0)), SMALL);
}

#[test]
fn what_cannot_be_compared_lands_with_a_note() {
    check(b"\xff", "text", Verdict::Land(LandNote::DiffSkipped(Side::Binary)));
    check(vec![b'x'; (5 << 20) + 1], "text", Verdict::Land(LandNote::DiffSkipped(Side::Large)));
}

#[test]
fn text_that_becomes_binary_or_large_is_held() {
    check("text\n", b"text\xff\n", RISK);
    check("text\n", vec![b'\n'; (5 << 20) + 1], RISK);
    check(vec![b'\n'; 5 << 20], vec![b'\n'; (5 << 20) - 1], SMALL);
}

#[test]
fn a_deleted_text_changes_all_its_lines() {
    for (old, want) in [(lines(10), SMALL), (lines(11), SIZE), (String::new(), SMALL)] {
        assert_eq!(judged(Facts::of(Some(old.as_bytes()), None)), want);
    }
    // One line, but a giant one.
    assert_eq!(judged(Facts::of(Some(&[b'x'; 16 * 1024]), None)), SMALL);
    assert_eq!(judged(Facts::of(Some(&[b'x'; 16 * 1024 + 1]), None)), BYTES);
}

#[test]
fn a_deleted_binary_is_judged_by_its_bytes() {
    for (side, bytes, want) in [
        (Side::Binary, 16 * KIB, Verdict::Land(LandNote::DiffSkipped(Side::Binary))),
        (Side::Binary, 16 * KIB + 1, SIZE),
        (Side::Large, 6 << 20, SIZE),
    ] {
        assert_eq!(judged(deletion(side, bytes)), want, "{side:?} {bytes}");
    }
}

#[test]
fn a_giant_line_counts_by_its_bytes() {
    let line = |count: usize, byte: &str| byte.repeat(count);
    // 17 KiB of 40 KiB is 42.5 %, of 60 KiB 28 %.
    for (kept, want) in [(23, BYTES), (43, SMALL)] {
        let kept = line(kept * 1024, "k");
        check(kept.clone() + &line(17 * 1024, "a"), kept + &line(17 * 1024, "b"), want);
    }
    check(line(16 * 1024, "a"), line(16 * 1024, "b"), SMALL);
    check(line(16 * 1024 + 1, "a"), line(16 * 1024 + 1, "b"), BYTES);
    // A word in the middle of a minified file.
    let ends = line(50_000, "e");
    check(ends.clone() + "one" + &ends, ends.clone() + "two" + &ends, SMALL);
}

#[test]
fn past_the_bound_only_a_floor_above_the_whole_file_lets_it_land() {
    let mut facts = measured(9_000, 5_000);
    facts.measure = facts.measure.map(|measure| Measure { bounded: true, ..measure });
    let lenient = Thresholds { floor: 1, ceil: 1_000_000, ratio: 1.0 };
    assert_eq!(judge(&facts, &lenient), SIZE);
    assert_eq!(judge(&facts, &Thresholds { floor: 9_000, ..lenient }), SMALL);
}

#[test]
fn a_text_without_a_measure_is_held() {
    assert_eq!(judged(Facts { measure: None, ..measured(1, 1) }), SIZE);
}
