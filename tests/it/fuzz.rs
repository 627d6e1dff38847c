//! The checks of `scripts/fuzz`, on its corpus and on what a blind mutator makes of it: no input may break what they say.
//! `scripts/fuzz` does the same for hours, and knows by the compiler's marks which inputs lead to new places. Building that
//! takes longer than all that this gate may take.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

#[path = "../../scripts/fuzz.d/checks/git_files.rs"]
mod git_files;
#[path = "../../scripts/fuzz.d/checks/hunks.rs"]
mod hunks;
#[path = "../../scripts/fuzz.d/checks/journal.rs"]
mod journal;
#[path = "../../scripts/fuzz.d/checks/patch.rs"]
mod patch;
#[path = "../../scripts/fuzz.d/checks/request.rs"]
mod request;
#[path = "../../scripts/fuzz.d/checks/settings.rs"]
mod settings;

#[test]
fn a_request_is_read_or_refused() {
    try_all("request", request::check, 500_000);
}

#[test]
fn settings_and_rules_are_read_or_refused() {
    try_all("settings", settings::check, 100_000);
}

#[test]
fn what_git_wrote_is_read_or_refused() {
    try_all("git_files", git_files::check, 500_000);
}

#[test]
fn hunks_add_up_whatever_they_are_cut_from() {
    try_all("hunks", hunks::check, 100_000);
}

#[test]
fn a_patch_is_read_or_refused_and_takes_and_puts_what_it_says() {
    try_all("patch", patch::check, 100_000);
}

#[test]
fn a_planted_journal_loses_nothing_and_leads_nowhere() {
    try_all("journal", journal::check, 2_500);
}

#[track_caller]
fn try_all(target: &str, check: fn(&[u8]), mutants: usize) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/fuzz.d/corpus").join(target);
    let mut entries: Vec<_> =
        fs::read_dir(corpus).expect("a corpus").map(|entry| entry.expect("its file").path()).collect();
    entries.sort();
    let seeds: Vec<Vec<u8>> = entries.iter().map(|path| fs::read(path).expect("an input")).collect();
    assert!(!seeds.is_empty(), "no corpus of {target}");
    seeds.iter().for_each(|seed| try_one(check, seed));
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    (0..mutants).for_each(|_| try_one(check, &dice.mutant(&seeds)));
}

fn try_one(check: fn(&[u8]), input: &[u8]) {
    if catch_unwind(AssertUnwindSafe(|| check(input))).is_err() {
        panic!("by the input b\"{}\"", input.escape_ascii());
    }
}

/// xorshift64: the same inputs in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit.max(1) as u64).expect("below a length")
    }

    fn mutant(&mut self, seeds: &[Vec<u8>]) -> Vec<u8> {
        let mut input = seeds[self.below(seeds.len())].clone();
        for _ in 0..=self.below(6) {
            let (from, to) = (self.below(input.len() + 1), self.below(input.len() + 1));
            let range = from.min(to)..from.max(to).min(from.min(to) + 64);
            match self.below(5) {
                // Bytes that parsers mind, and any.
                0 => input.insert(from, b"\0\xff\n\"\\{}[],:/.-09*"[self.below(17)]),
                1 => input.insert(from, self.below(256) as u8),
                2 if from < input.len() => input[from] ^= 1 << self.below(8),
                3 => drop(input.drain(range)),
                _ => {
                    let other = &seeds[self.below(seeds.len())];
                    let begin = self.below(other.len() + 1);
                    let piece = other[begin..].iter().take(64).copied().collect::<Vec<_>>();
                    drop(input.splice(range, piece));
                }
            }
        }
        input
    }
}
