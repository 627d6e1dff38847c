use super::RiskSignal::{Binary, ConflictMarkers, Executable, Placeholder, PrivateKey, Token};
use super::*;

const PLAIN: u32 = 0o100_644;
const SCRIPT: u32 = 0o100_755;

fn side(content: &[u8]) -> RiskSide<'_> {
    RiskSide { content, mode: PLAIN }
}

fn raised(subject: RiskSubject) -> Vec<RiskSignal> {
    signals(&subject, &RiskSwitches::default())
}

fn check(old: &str, new: &str, want: &[RiskSignal]) {
    let subject = RiskSubject { old: Some(side(old.as_bytes())), new: side(new.as_bytes()) };
    assert_eq!(raised(subject), want, "{old:?} -> {new:?}");
}

/// Put together here, so that no scanner takes this file for a leak.
fn fake_token() -> String {
    ["gh", "p_", "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"].concat()
}

fn fake_key(body: &str) -> String {
    ["-----BEGIN RSA PRIV", "ATE KEY-----\n", body, "\n"].concat()
}

#[test]
fn a_placeholder_counts_only_where_most_of_the_file_is_gone() {
    let code = "let x = 1;\n".repeat(40);
    check(&code, "let x = 1;\n// ... existing code ...\n", &[Placeholder]);
    check(&code, "# Rest unchanged\n", &[Placeholder]);
    check(&code, "let x = 1;\n", &[]);
    check(&code, &(code.clone() + "// existing code\n"), &[]);
    let always = code.clone() + "// existing code\n";
    check(&always, "// existing code\n", &[]);
    check(&code, &format!("{} existing code {}", "p".repeat(100), "q".repeat(100)), &[]);
}

#[test]
fn less_than_half_is_less_than_half() {
    let remark = "// existing code\n";
    check(&"o".repeat(2 * remark.len()), remark, &[]);
    check(&"o".repeat(2 * remark.len() + 1), remark, &[Placeholder]);
}

#[test]
fn conflict_markers_count_as_a_whole_and_when_they_are_new() {
    let conflict = "<<<<<<< HEAD\na\n=======\nb\n>>>>>>> branch\n";
    check("a\n", conflict, &[ConflictMarkers]);
    check("a\n", &format!("{conflict}\r\n"), &[ConflictMarkers]);
    check(conflict, &format!("{conflict}{conflict}"), &[ConflictMarkers]);
    check(conflict, &format!("{conflict}more\n"), &[]);
    check(conflict, "a\n", &[]);
    check("a\n", "Heading\n=======\n", &[]);
    check("a\n", "<<<<<<< HEAD\n=======\n", &[]);
}

#[test]
fn a_private_key_counts_with_its_body() {
    let key = fake_key("MIIEowIBAAKCAQEA0m59l2u9iDnMbrXHfqkOrn2dVQ3vfBJqcDuFUK03d");
    check("", &key, &[PrivateKey]);
    check("", &key.replace('\n', "\\n"), &[PrivateKey]);
    check(&key, &format!("# moved\n{key}"), &[]);
    check("", &fake_key("\"); // looks for keys"), &[]);
}

#[test]
fn a_token_counts_when_it_is_new_and_looks_random() {
    let token = fake_token();
    check("", &format!("token = \"{token}\"\n"), &[Token]);
    check(&token, &format!("moved {token}"), &[]);
    check("", &format!("not_a_{token}"), &[]);
    check(&format!("a\n{}\nb\n", &token[..20]), &format!("a\n{token}\nb\n"), &[Token]);
    check(&format!("a\n{}\nb\n", &token[20..]), &format!("a\n{token}\nb\n"), &[Token]);
    check("a\n", &format!("a\n{token}\na\n"), &[Token]);
    check("", &token[..20], &[]);
    check("", &format!("ghp_{}", "x".repeat(36)), &[]);
    check("", &["AK", "IAIOSFODNN7EXAMPLE"].concat(), &[]);
    check("", &["AK", "IA2E7QHZ4KXW5LMTRB"].concat(), &[Token]);
}

#[test]
fn an_executable_bit_counts_when_it_comes_with_other_content() {
    let with = |old: Option<(&'static [u8], u32)>, mode| {
        let old = old.map(|(content, mode)| RiskSide { content, mode });
        raised(RiskSubject { old, new: RiskSide { content: b"#!/bin/sh\n", mode } })
    };
    assert_eq!(with(Some((b"notes", PLAIN)), SCRIPT), [Executable]);
    assert_eq!(with(Some((b"#!/bin/sh\n", PLAIN)), SCRIPT), []);
    assert_eq!(with(Some((b"#!/bin/bash\n", SCRIPT)), SCRIPT), []);
    assert_eq!(with(Some((b"notes", SCRIPT)), PLAIN), []);
    assert_eq!(with(None, SCRIPT), []);
}

#[test]
fn text_becoming_binary_counts_and_the_reverse_does_not() {
    let change = |old, new| raised(RiskSubject { old: Some(side(old)), new: side(new) });
    assert_eq!(change(b"text", b"\xff"), [Binary]);
    assert_eq!(change(b"\xff", b"text"), []);
    assert_eq!(change(b"\xff", b"\xfe"), []);
    assert_eq!(raised(RiskSubject { old: None, new: side(b"\xff") }), []);
}

#[test]
fn a_signal_switched_off_stays_silent() {
    let subject = RiskSubject { old: Some(side(b"text")), new: RiskSide { content: b"\xff", mode: SCRIPT } };
    assert_eq!(raised(subject), [Executable, Binary]);
    let switches = RiskSwitches { executable: false, ..RiskSwitches::default() };
    assert_eq!(signals(&subject, &switches), [Binary]);
}
