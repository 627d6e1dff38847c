//! Signals in a change that its size does not show (SPEC §7, `risk`). Pure functions over both sides.
//!
//! Only what the new side has and the old one lacks counts, so that editing a file that always held a test key or a
//! conflict marker raises nothing. Disguised content is missed: the patterns catch accidents, not an adversary.

use std::collections::HashSet;

use memchr::memmem;

use crate::diff::{Side, classify};
use crate::model::{common_prefix, common_suffix};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RiskSignal {
    /// The file shrank to less than half, and a line like "rest unchanged" stands in for what is gone.
    Placeholder,
    ConflictMarkers,
    PrivateKey,
    Token,
    /// New content and a new executable bit at once.
    Executable,
    /// Text became content that cannot be reviewed.
    Binary,
}

impl RiskSignal {
    pub fn name(self) -> &'static str {
        match self {
            Self::Placeholder => "placeholder",
            Self::ConflictMarkers => "conflict_markers",
            Self::PrivateKey => "private_key",
            Self::Token => "token",
            Self::Executable => "executable",
            Self::Binary => "binary",
        }
    }
}

/// The signals that are switched on: one field each, named as in `[risk]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RiskSwitches {
    pub placeholder: bool,
    pub conflict_markers: bool,
    pub private_key: bool,
    pub token: bool,
    pub executable: bool,
    pub binary: bool,
}

impl Default for RiskSwitches {
    fn default() -> Self {
        Self {
            placeholder: true,
            conflict_markers: true,
            private_key: true,
            token: true,
            executable: true,
            binary: true,
        }
    }
}

/// One file before and after. A deletion raises nothing, so callers need not ask about it.
#[derive(Clone, Copy, Debug)]
pub struct RiskSubject<'a> {
    pub old: Option<RiskSide<'a>>,
    pub new: RiskSide<'a>,
}

#[derive(Clone, Copy, Debug)]
pub struct RiskSide<'a> {
    pub content: &'a [u8],
    /// `st_mode`; only the executable bits are read.
    pub mode: u32,
}

/// Returns the signals that the change raises, among those switched on.
pub fn signals(subject: &RiskSubject, switches: &RiskSwitches) -> Vec<RiskSignal> {
    let old = subject.old.map_or(&b""[..], |side| side.content);
    let new = subject.new.content;
    if subject.old.is_some() && old == new {
        return Vec::new();
    }
    let asked: [(RiskSignal, bool, &dyn Fn() -> bool); 6] = [
        (RiskSignal::Placeholder, switches.placeholder, &|| placeholder_replaces_code(old, new)),
        (RiskSignal::ConflictMarkers, switches.conflict_markers, &|| conflict_markers_appear(old, new)),
        (RiskSignal::PrivateKey, switches.private_key, &|| private_key_appears(old, new)),
        (RiskSignal::Token, switches.token, &|| token_appears(old, new)),
        (RiskSignal::Executable, switches.executable, &|| executable_bit_appears(subject)),
        (RiskSignal::Binary, switches.binary, &|| text_becomes_binary(subject)),
    ];
    asked.iter().filter(|(_, on, raised)| *on && raised()).map(|&(signal, _, _)| signal).collect()
}

/// What models write in place of code they did not repeat, in lower case.
const PLACEHOLDERS: [&str; 16] = [
    "rest unchanged",
    "existing code",
    "existing implementation",
    "keep existing",
    "remains unchanged",
    "remain unchanged",
    "unchanged code",
    "code unchanged",
    "remaining code",
    "previous code",
    "rest of the code",
    "rest of the file",
    "rest of file",
    "same as before",
    "code omitted",
    "omitted for brevity",
];

/// A placeholder is a short remark; a longer line that contains such words is prose.
const PLACEHOLDER_LINE_BYTES_MAX: usize = 160;

fn placeholder_replaces_code(old: &[u8], new: &[u8]) -> bool {
    new.len() < old.len().div_ceil(2) && {
        let known: HashSet<&[u8]> = old.split(is_newline).collect();
        new.split(is_newline).any(|line| is_placeholder(line) && !known.contains(line))
    }
}

fn is_placeholder(line: &[u8]) -> bool {
    line.len() <= PLACEHOLDER_LINE_BYTES_MAX && {
        let line = String::from_utf8_lossy(line).to_lowercase();
        PLACEHOLDERS.iter().any(|words| line.contains(words))
    }
}

fn conflict_markers_appear(old: &[u8], new: &[u8]) -> bool {
    let may_have_one = contains(new, CONFLICT_MARKERS[2]);
    may_have_one && conflicts(new) > conflicts(old)
}

const CONFLICT_MARKERS: [&[u8]; 3] = [b"<<<<<<< ", b"=======", b">>>>>>> "];

/// Counts whole conflicts: a lone row of equal signs may underline a heading, a lone `<<<<<<<` may be quoted.
fn conflicts(content: &[u8]) -> usize {
    let mut awaited = CONFLICT_MARKERS.into_iter().cycle().peekable();
    let markers = content.split(is_newline).filter(|line| awaited.next_if(|marker| line.starts_with(marker)).is_some());
    markers.count() / 3
}

/// The ends of a key block's first line: RSA, EC, OPENSSH, ENCRYPTED, plain, and PGP with `BLOCK`.
const KEY_HEADS: [&[u8]; 2] = [b"PRIVATE KEY-----", b"PRIVATE KEY BLOCK-----"];

/// A real key has at least this much unbroken base64 soon after its head; code that searches for such heads does not.
const KEY_BODY_BYTES_MIN: usize = 32;
const KEY_HEADERS_BYTES_MAX: usize = 256;

fn private_key_appears(old: &[u8], new: &[u8]) -> bool {
    KEY_HEADS.iter().flat_map(|head| memmem::find_iter(new, head).map(|at| &new[at + head.len()..])).any(|rest| {
        let near = &rest[..rest.len().min(KEY_HEADERS_BYTES_MAX)];
        let body = near.split(|byte| !is_base64(*byte)).find(|run| run.len() >= KEY_BODY_BYTES_MIN);
        body.is_some_and(|body| !contains(old, body))
    })
}

/// A kind of token known by its prefix: how many characters follow at least, and which.
struct TokenKind {
    prefix: &'static [u8],
    tail_min: usize,
    alphabet: fn(u8) -> bool,
}

/// At most 32, see [`KINDS_BEGINNING_WITH`].
const TOKEN_KINDS: [TokenKind; 24] = [
    // Amazon access key ids.
    token("AKIA", 16, is_upper_alphanumeric),
    token("ASIA", 16, is_upper_alphanumeric),
    // GitHub, GitLab.
    token("ghp_", 36, is_alphanumeric),
    token("gho_", 36, is_alphanumeric),
    token("ghu_", 36, is_alphanumeric),
    token("ghs_", 36, is_alphanumeric),
    token("ghr_", 36, is_alphanumeric),
    token("github_pat_", 60, is_word),
    token("glpat-", 20, is_word_or_dash),
    // Slack.
    token("xoxb-", 24, is_word_or_dash),
    token("xoxp-", 24, is_word_or_dash),
    token("xoxa-", 24, is_word_or_dash),
    token("xoxr-", 24, is_word_or_dash),
    token("xapp-", 24, is_word_or_dash),
    // Stripe, live keys only: test keys are meant to be shared.
    token("sk_live_", 24, is_alphanumeric),
    token("rk_live_", 24, is_alphanumeric),
    // Anthropic, OpenAI, Hugging Face.
    token("sk-ant-", 40, is_word_or_dash),
    token("sk-proj-", 40, is_word_or_dash),
    token("hf_", 34, is_alphanumeric),
    // Google, npm, PyPI, SendGrid (up to its first dot), DigitalOcean.
    token("AIza", 35, is_word_or_dash),
    token("npm_", 36, is_alphanumeric),
    token("pypi-AgE", 50, is_word_or_dash),
    token("SG.", 22, is_word_or_dash),
    token("dop_v1_", 64, is_alphanumeric),
];

/// The kinds of token that begin with each byte, one bit per kind: most bytes begin none, the others few.
const KINDS_BEGINNING_WITH: [u32; 256] = {
    let mut kinds = [0; 256];
    let mut kind = 0;
    while kind < TOKEN_KINDS.len() {
        kinds[TOKEN_KINDS[kind].prefix[0] as usize] |= 1 << kind;
        kind += 1;
    }
    kinds
};

const fn token(prefix: &'static str, tail_min: usize, alphabet: fn(u8) -> bool) -> TokenKind {
    TokenKind { prefix: prefix.as_bytes(), tail_min, alphabet }
}

fn token_appears(old: &[u8], new: &[u8]) -> bool {
    // One pass over the words that may be new: contents may be large, and there are many kinds.
    let changed = changed_lines(old, new);
    let kinds_at = |at: usize| KINDS_BEGINNING_WITH[usize::from(changed[at])];
    let word_starts = (0..changed.len()).filter(|at| kinds_at(*at) != 0 && !continues_a_word(changed, *at));
    let mut tokens =
        word_starts.flat_map(|at| kinds(kinds_at(at)).filter_map(move |kind| kind.match_start(&changed[at..])));
    tokens.any(|token| !contains(old, token))
}

/// The kinds whose bits are set.
fn kinds(mut bits: u32) -> impl Iterator<Item = &'static TokenKind> {
    std::iter::from_fn(move || {
        let kind = TOKEN_KINDS.get(usize::try_from(bits.trailing_zeros()).ok()?)?;
        bits &= bits - 1;
        Some(kind)
    })
}

impl TokenKind {
    /// Returns the token that `content` begins with, if it is of this kind.
    fn match_start<'a>(&self, content: &'a [u8]) -> Option<&'a [u8]> {
        let tail = content.strip_prefix(self.prefix)?;
        let length = tail.iter().take_while(|byte| (self.alphabet)(**byte)).count();
        let is_token = length >= self.tail_min && is_random(&tail[..length]);
        is_token.then(|| &content[..self.prefix.len() + length])
    }
}

/// Returns the new content from the first differing line to the last.
fn changed_lines<'a>(old: &[u8], new: &'a [u8]) -> &'a [u8] {
    let before = common_prefix(old, new);
    let start = new[..before].iter().rposition(is_newline).map_or(0, |at| at + 1);
    let (old, new) = (&old[start..], &new[start..]);
    let after = common_suffix(old, new);
    let kept = &new[new.len() - after..];
    let end = kept.iter().position(is_newline).map_or(new.len(), |at| new.len() - after + at);
    &new[..end]
}

fn continues_a_word(content: &[u8], at: usize) -> bool {
    at > 0 && is_word(content[at - 1])
}

/// Rejects the `ghp_xxxxxxxx` and `AKIAIOSFODNN7EXAMPLE` of documentation; a random tail has many different
/// characters, a digit among them.
fn is_random(tail: &[u8]) -> bool {
    let distinct: HashSet<&u8> = tail.iter().collect();
    distinct.len() >= 8 && tail.iter().any(u8::is_ascii_digit) && !contains(tail, b"EXAMPLE")
}

fn executable_bit_appears(subject: &RiskSubject) -> bool {
    // A new file has no old mode to compare with, and creating a script ready to run is everyday work.
    subject.old.is_some_and(|old| old.mode & 0o111 == 0 && subject.new.mode & 0o111 != 0)
}

fn text_becomes_binary(subject: &RiskSubject) -> bool {
    subject.old.is_some_and(|old| classify(Some(old.content)) == Side::Text)
        && classify(Some(subject.new.content)) == Side::Binary
}

fn contains(content: &[u8], needle: &[u8]) -> bool {
    memmem::find(content, needle).is_some()
}

fn is_newline(byte: &u8) -> bool {
    *byte == b'\n'
}

fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=')
}

fn is_alphanumeric(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
}

fn is_upper_alphanumeric(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit()
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn is_word_or_dash(byte: u8) -> bool {
    is_word(byte) || byte == b'-'
}

#[cfg(test)]
mod tests;
