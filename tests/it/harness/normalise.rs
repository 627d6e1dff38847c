//! Whole outputs made comparable: what differs from run to run is replaced by what it is.

use std::path::Path;

/// Digits of a short id (SPEC §8) and of a SHA-256.
const ID_LEN: usize = 8;
const DIGEST_LEN: usize = 64;

/// Replaces, in this order: each of `places` (`("[project]", path)`, longest first) by its name; RFC 3339 times and
/// the times in backup names by `[time]`; `pid` numbers by `[pid]`; SHA-256 by `[sha256]`; change ids by `[id1]`,
/// `[id2]` … in order of appearance, so that the same id keeps its name.
pub fn normalise(text: &str, places: &[(&str, &Path)]) -> String {
    let mut places = places.to_vec();
    places.sort_by_key(|(_, path)| std::cmp::Reverse(path.as_os_str().len()));
    let named = places.iter().fold(text.to_owned(), |text, (name, path)| {
        text.replace(path.to_str().expect("scratch paths are UTF-8"), name)
    });
    let mut ids: Vec<String> = Vec::new();
    let mut out = String::with_capacity(named.len());
    let mut rest = named.as_str();
    while let Some(first) = rest.chars().next() {
        if let Some(len) = rfc3339_len(rest) {
            out.push_str("[time]");
            rest = &rest[len..];
            continue;
        }
        let len = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        if len == 0 {
            out.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        out.push_str(&word(&rest[..len], &out, &mut ids));
        rest = &rest[len..];
    }
    out
}

fn word(word: &str, before: &str, ids: &mut Vec<String>) -> String {
    let is_hex = word.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_number = word.bytes().all(|byte| byte.is_ascii_digit());
    let after_pid = before.trim_end_matches([' ', ':', '"', '=']).ends_with("pid") && !before.ends_with("pid");
    match word.len() {
        _ if is_number && after_pid => "[pid]".to_owned(),
        _ if is_backup_time(word) => "[time]".to_owned(),
        _ if is_operation(word) => "[op]".to_owned(),
        DIGEST_LEN if is_hex => "[sha256]".to_owned(),
        ID_LEN if is_hex => {
            let seen = ids.iter().position(|id| id == word).unwrap_or_else(|| {
                ids.push(word.to_owned());
                ids.len() - 1
            });
            format!("[id{}]", seen + 1)
        }
        _ => word.to_owned(),
    }
}

/// `op` and the number of an event.
fn is_operation(word: &str) -> bool {
    word.strip_prefix("op").is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// `YYYYMMDD_HHMMSS_mmm`.
fn is_backup_time(word: &str) -> bool {
    fits(word, "dddddddd_dddddd_ddd") && word.len() == 19
}

/// The length of the time `text` begins with, fraction and zone included.
fn rfc3339_len(text: &str) -> Option<usize> {
    const TO_SECONDS: &str = "dddd-dd-ddTdd:dd:dd";
    if !fits(text, TO_SECONDS) {
        return None;
    }
    let mut len = TO_SECONDS.len();
    if text[len..].starts_with('.') {
        len += 1 + text[len + 1..].bytes().take_while(u8::is_ascii_digit).count();
    }
    match text[len..].chars().next() {
        Some('Z') => Some(len + 1),
        Some('+' | '-') if fits(&text[len + 1..], "dd:dd") => Some(len + 6),
        _ => None,
    }
}

/// Whether `text` begins like `pattern`, in which `d` stands for a digit.
fn fits(text: &str, pattern: &str) -> bool {
    let matches = |(byte, want): (u8, u8)| if want == b'd' { byte.is_ascii_digit() } else { byte == want };
    text.len() >= pattern.len() && text.bytes().zip(pattern.bytes()).all(matches)
}
