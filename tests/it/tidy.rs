//! The architecture as a test: reads the sources as text and reports each place where a promise of
//! `docs/ARCHITECTURE.md` is broken.
//!
//! A check is a function from a [`Tree`] to the faults in it. One test runs them all on this repository; the others
//! run each on a made-up tree that breaks it, so that no check can pass by never looking.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Inner to outer. A file names its own layer and those to its left.
const LAYERS: [&str; 14] = [
    "model", "diff", "policy", "protocol", "sys", "store", "hooks", "overlay", "control", "fuse", "client", "mcp",
    "ui", "cli",
];

/// The layers that do no I/O, read no clock and spawn nothing.
const PURE_LAYERS: [&str; 4] = ["model", "diff", "policy", "protocol"];

/// What a pure layer may not name: the doors to the world.
const WORLD: [&str; 7] =
    ["std::fs", "std::net", "std::process", "std::env", "std::time::SystemTime", "std::time::Instant", "rustix"];

const CHECKS: [fn(&Tree) -> Vec<String>; 13] = [
    layers_name_only_what_lies_below,
    unsafe_lives_in_sys,
    fuser_stays_in_fuse,
    rusqlite_stays_in_store_and_sys,
    the_runtime_stays_in_mcp,
    the_screen_stays_in_ui,
    files_begin_with_a_head,
    pure_layers_stay_out_of_the_world,
    nothing_unwraps,
    no_test_is_ignored,
    tests_do_not_sleep,
    dependencies_say_why,
    each_file_stands_in_the_head_of_its_room,
];

#[test]
fn this_repository_is_tidy() {
    let tree = Tree::read(Path::new(env!("CARGO_MANIFEST_DIR")));
    assert!(tree.sources().count() > 10, "the sources were not found");
    let faults: Vec<String> = CHECKS.iter().flat_map(|check| check(&tree)).collect();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

fn layers_name_only_what_lies_below(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    for file in tree.sources().filter(|file| !["src/lib.rs", "src/main.rs"].contains(&file.path)) {
        let Some(own) = file.layer() else {
            faults.push(format!("{}: lies in no layer", file.path));
            continue;
        };
        for (line, name) in names_below_crate(&file.code()) {
            match LAYERS.iter().position(|layer| *layer == name) {
                Some(named) if named <= own => {}
                Some(_) => faults.push(format!("{}:{line}: {} may not name crate::{name}", file.path, LAYERS[own])),
                None => faults.push(format!("{}:{line}: crate::{name} is no layer", file.path)),
            }
        }
        for (line, steps) in climbs(&without_tests(&file.code())) {
            if steps >= file.depth() {
                faults.push(format!("{}:{line}: `super` leaves the layer; say crate::", file.path));
            }
        }
    }
    faults
}

fn unsafe_lives_in_sys(tree: &Tree) -> Vec<String> {
    word_only_in(tree, "unsafe", &["sys"])
}

/// A test in `sys` that mounts needs something that answers the mount.
fn fuser_stays_in_fuse(tree: &Tree) -> Vec<String> {
    let mut faults = word_only_in(tree, "fuser", &["fuse"]);
    faults.retain(|fault| !fault.starts_with("src/sys/mount/tests.rs:"));
    faults
}

fn rusqlite_stays_in_store_and_sys(tree: &Tree) -> Vec<String> {
    word_only_in(tree, "rusqlite", &["store", "sys"])
}

/// A daemon, and a command that only asks, have threads that a reader can count.
fn the_runtime_stays_in_mcp(tree: &Tree) -> Vec<String> {
    ["tokio", "tokio_util", "rmcp"].iter().flat_map(|word| word_only_in(tree, word, &["mcp"])).collect()
}

/// What is on the screen goes there by one way, which escapes it.
fn the_screen_stays_in_ui(tree: &Tree) -> Vec<String> {
    ["ratatui", "crossterm"].iter().flat_map(|word| word_only_in(tree, word, &["ui"])).collect()
}

fn files_begin_with_a_head(tree: &Tree) -> Vec<String> {
    tree.sources()
        .filter(|file| !file.is_test() && !file.text.starts_with("//!"))
        .map(|file| format!("{}:1: does not begin with a `//!` head", file.path))
        .collect()
}

fn pure_layers_stay_out_of_the_world(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    for file in tree.sources().filter(|file| !file.is_test()) {
        let Some(layer) = file.layer().map(|at| LAYERS[at]).filter(|layer| PURE_LAYERS.contains(layer)) else {
            continue;
        };
        for (line, path) in paths(&without_tests(&file.code())) {
            if WORLD.iter().any(|door| path == *door || path.starts_with(&format!("{door}::"))) {
                faults.push(format!("{}:{line}: {layer} may not name {path}", file.path));
            }
        }
    }
    faults
}

fn nothing_unwraps(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    for file in tree.sources().filter(|file| !file.is_test()) {
        for (number, line) in numbered(&without_tests(&file.code())) {
            if line.contains(".unwrap()") {
                faults.push(format!("{}:{number}: `.unwrap()`; say with `expect` why it cannot fail", file.path));
            }
        }
    }
    faults
}

fn no_test_is_ignored(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    for file in tree.rust() {
        for (number, line) in numbered(&file.code()) {
            if line.contains("#[ignore") {
                faults.push(format!("{}:{number}: an ignored test proves nothing", file.path));
            }
        }
    }
    faults
}

/// A sleep is let through where the comment on its line or the one above says what it `polls`.
fn tests_do_not_sleep(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    for file in tree.rust().filter(|file| file.is_test()) {
        let raw: Vec<&str> = file.text.lines().collect();
        for (number, line) in numbered(&file.code()) {
            let said = raw[number.saturating_sub(2)..number].iter().any(|line| line.contains("polls"));
            if line.contains("sleep(") && !said {
                faults.push(format!("{}:{number}: sleeps; wait for an event, or say what it polls", file.path));
            }
        }
    }
    faults
}

fn dependencies_say_why(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    let manifest = tree.files.get("Cargo.toml").map(String::as_str).unwrap_or_default();
    let (mut in_dependencies, mut open, mut above) = (false, 0_usize, "");
    for (number, line) in numbered(manifest) {
        let line = line.trim();
        let header = line.strip_prefix('[').filter(|_| open == 0);
        if let Some(header) = header {
            let name = header.trim_end_matches(']');
            in_dependencies = name.ends_with("dependencies");
            if name.contains("dependencies.") && !above.starts_with('#') {
                faults.push(format!("Cargo.toml:{number}: [{name}] has no sentence above it"));
            }
        } else if in_dependencies {
            let begins = open == 0 && !line.is_empty() && !line.starts_with('#');
            if begins && !above.starts_with('#') {
                faults.push(format!("Cargo.toml:{number}: `{line}` has no sentence above it"));
            }
            if !line.starts_with('#') {
                open += line.matches(['[', '{']).count();
                open = open.saturating_sub(line.matches([']', '}']).count());
            }
        }
        above = line;
    }
    faults
}

/// The head of a room is the one place that names all that is in it.
fn each_file_stands_in_the_head_of_its_room(tree: &Tree) -> Vec<String> {
    let is_room = |path: &str| {
        let within = ["src/overlay/", "src/store/"].iter().find_map(|layer| path.strip_prefix(layer));
        within.is_some_and(|name| !name.contains('/') && name != "tests.rs")
    };
    let mut faults = Vec::new();
    for (path, text) in tree.files.iter().filter(|(path, _)| is_room(path)) {
        let head: String = text.lines().take_while(|line| line.starts_with("//!")).collect();
        for line in without_tests(&code_of(text)).lines() {
            let declared = line.trim().strip_prefix("pub(super) ").unwrap_or(line.trim());
            let Some(file) = declared.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(';')) else { continue };
            if !head.contains(&format!("[`{file}`]")) {
                faults.push(format!("{path}: its head lacks `{file}`"));
            }
        }
    }
    faults
}

fn word_only_in(tree: &Tree, word: &str, layers: &[&str]) -> Vec<String> {
    let mut faults = Vec::new();
    for file in tree.sources() {
        if file.layer().is_some_and(|at| layers.contains(&LAYERS[at])) {
            continue;
        }
        for (number, line) in numbered(&file.code()) {
            if words(line).any(|(_, found)| found == word) {
                faults.push(format!("{}:{number}: `{word}` belongs in src/{}", file.path, layers.join(" or src/")));
            }
        }
    }
    faults
}

/// The files the checks read, by path from the repository's root. Made up in the tests below.
struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    fn read(root: &Path) -> Self {
        let mut files = BTreeMap::new();
        for place in ["src", "tests"] {
            read_rust(root, &root.join(place), &mut files);
        }
        files.insert("Cargo.toml".into(), fs::read_to_string(root.join("Cargo.toml")).expect("Cargo.toml"));
        Self { files }
    }

    fn of(path: &str, text: &str) -> Self {
        Self { files: BTreeMap::from([(path.into(), text.into())]) }
    }

    fn rust(&self) -> impl Iterator<Item = File<'_>> {
        self.files.iter().filter(|(path, _)| path.ends_with(".rs")).map(|(path, text)| File { path, text })
    }

    fn sources(&self) -> impl Iterator<Item = File<'_>> {
        self.rust().filter(|file| file.path.starts_with("src/"))
    }
}

fn read_rust(root: &Path, dir: &Path, files: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(dir).expect("a source directory") {
        let path = entry.expect("a directory entry").path();
        if path.is_dir() {
            read_rust(root, &path, files);
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            let name = path.strip_prefix(root).expect("below the root").to_str().expect("source names are UTF-8");
            files.insert(name.into(), fs::read_to_string(&path).expect("a source file"));
        }
    }
}

struct File<'t> {
    path: &'t str,
    text: &'t str,
}

impl File<'_> {
    /// Position in [`LAYERS`]; none for the crate's root files and for the tests outside `src`.
    fn layer(&self) -> Option<usize> {
        let (name, _) = self.path.strip_prefix("src/")?.split_once('/')?;
        LAYERS.iter().position(|layer| *layer == name)
    }

    /// How many `super` lead from this file's module to the crate's root.
    fn depth(&self) -> usize {
        let inside = self.path.trim_start_matches("src/").trim_end_matches(".rs").trim_end_matches("/mod");
        inside.split('/').count()
    }

    fn is_test(&self) -> bool {
        self.path.starts_with("tests/") || self.path.ends_with("/tests.rs") || self.path.contains("/tests/")
    }

    fn code(&self) -> String {
        code_of(self.text)
    }
}

/// The text with comments, strings and character literals blanked out, line for line.
fn code_of(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = literal_end(bytes, at);
        for byte in &mut code[at..end.max(at)] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end.max(at + 1);
    }
    String::from_utf8(code).expect("whole characters were blanked")
}

/// Where the comment or literal that begins at `at` ends; `at` itself where none begins.
fn literal_end(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let inside_word = at > 0 && is_word(bytes[at - 1]);
    match rest {
        [b'/', b'/', ..] => at + rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()),
        [b'/', b'*', ..] => at + block_comment_len(rest),
        [b'"', ..] => at + string_len(rest),
        [b'r', b'"' | b'#', ..] if !inside_word => at + raw_string_len(rest),
        [b'b' | b'c', b'r', b'"' | b'#', ..] if !inside_word => at + 1 + raw_string_len(&rest[1..]),
        [b'\'', b'\\', b'\'' | b'\\', b'\'', ..] => at + 4,
        [b'\'', b'\\', ..] => at + 3 + rest[2..].iter().position(|byte| *byte == b'\'').unwrap_or(0),
        [b'\'', ..] => at + plain_char_len(rest),
        _ => at,
    }
}

fn block_comment_len(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match &rest[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn string_len(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != b'"' {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

/// Zero for a raw identifier such as `r#type`.
fn raw_string_len(rest: &[u8]) -> usize {
    let hashes = rest[1..].iter().take_while(|byte| **byte == b'#').count();
    if rest.get(1 + hashes) != Some(&b'"') {
        return 0;
    }
    let close = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
    let body = &rest[2 + hashes..];
    let found = body.windows(close.len()).position(|window| window == close);
    found.map_or(rest.len(), |at| 2 + hashes + at + close.len())
}

/// Zero for a lifetime, which has no closing quote right after one character.
fn plain_char_len(rest: &[u8]) -> usize {
    let char_len = match rest.get(1) {
        Some(byte) if *byte >= 0xf0 => 4,
        Some(byte) if *byte >= 0xe0 => 3,
        Some(byte) if *byte >= 0xc0 => 2,
        _ => 1,
    };
    if rest.get(1 + char_len) == Some(&b'\'') { char_len + 2 } else { 0 }
}

/// The code with the items under `#[cfg(test)]` blanked out.
fn without_tests(code: &str) -> String {
    let mut kept = code.to_owned();
    while let Some(start) = kept.find("#[cfg(test)]") {
        let end = start + item_len(&kept[start..]);
        let blank: String = kept[start..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
        kept.replace_range(start..end, &blank);
    }
    kept
}

/// Up to the `;` or the closing brace of the item that begins here.
fn item_len(code: &str) -> usize {
    let mut depth = 0_usize;
    for (at, byte) in code.bytes().enumerate() {
        match byte {
            b';' if depth == 0 => return at + 1,
            b'{' => depth += 1,
            b'}' if depth <= 1 => return at + 1,
            b'}' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(at, line)| (at + 1, line))
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    code.split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .filter(|word| !word.is_empty())
        .map(move |word| (word.as_ptr() as usize - code.as_ptr() as usize, word))
}

fn line_of(code: &str, at: usize) -> usize {
    code[..at].matches('\n').count() + 1
}

/// Every first name after `crate::`, with its line; `*` for a glob.
fn names_below_crate(code: &str) -> Vec<(usize, String)> {
    let found = paths(code).into_iter().filter_map(|(line, path)| {
        let below = path.strip_prefix("crate::")?;
        let name = below.split("::").next()?;
        (name != "self").then(|| (line, name.to_owned()))
    });
    found.collect()
}

/// Runs of `super::` with their line and length.
fn climbs(code: &str) -> Vec<(usize, usize)> {
    let count = |path: &str| path.split("::").take_while(|name| *name == "super").count();
    paths(code).into_iter().map(|(line, path)| (line, count(&path))).filter(|(_, steps)| *steps > 0).collect()
}

/// Every path in the code, `a::b`, those in nested braces written out in full, with the line it begins on.
fn paths(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut end = 0;
    for (at, _) in words(code) {
        if at >= end {
            let mut reader = PathReader { code, at, line: line_of(code, at), found: &mut found };
            reader.read("");
            end = reader.at;
        }
    }
    found
}

struct PathReader<'c> {
    code: &'c str,
    at: usize,
    line: usize,
    found: &'c mut Vec<(usize, String)>,
}

impl PathReader<'_> {
    fn read(&mut self, prefix: &str) {
        let mut path = prefix.to_owned();
        loop {
            let name = self.name();
            path.push_str(name);
            if name.is_empty() || !self.take("::") {
                break;
            }
            path.push_str("::");
            if self.take("{") {
                return self.group(&path);
            }
        }
        self.found.push((self.line, path));
    }

    fn group(&mut self, prefix: &str) {
        while self.at < self.code.len() && !self.take("}") {
            let before = self.at;
            self.read(prefix);
            if self.take("as") {
                self.name();
            }
            self.take(",");
            if self.at == before {
                return;
            }
        }
    }

    fn name(&mut self) -> &str {
        self.skip_space();
        let rest = &self.code[self.at..];
        let len = if rest.starts_with('*') { 1 } else { rest.bytes().take_while(|byte| is_word(*byte)).count() };
        self.at += len;
        &rest[..len]
    }

    fn take(&mut self, token: &str) -> bool {
        let start = self.at;
        self.skip_space();
        let taken = self.code[self.at..].starts_with(token);
        self.at = if taken { self.at + token.len() } else { start };
        taken
    }

    fn skip_space(&mut self) {
        let rest = &self.code[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }
}

#[track_caller]
fn check_bad(check: fn(&Tree) -> Vec<String>, path: &str, text: &str) {
    let faults = check(&Tree::of(path, text));
    assert_eq!(faults.len(), 1, "one fault in {path}:\n{text}\nfound: {faults:?}");
}

#[track_caller]
fn check_good(check: fn(&Tree) -> Vec<String>, path: &str, text: &str) {
    assert_eq!(check(&Tree::of(path, text)), Vec::<String>::new(), "none in {path}:\n{text}");
}

#[test]
fn a_layer_that_names_one_above_it_is_reported() {
    let check = layers_name_only_what_lies_below;
    check_bad(check, "src/store/mod.rs", "use crate::overlay::Overlay;");
    check_bad(check, "src/store/mod.rs", "use crate::{model::{RelPath, Stamp}, fuse};");
    check_bad(check, "src/store/mod.rs", "use crate::{\n    model::{self as words, Stamp},\n    fuse::Door,\n};");
    check_bad(check, "src/model/path.rs", "fn f() { let x = crate::diff::measure(1); }");
    check_bad(check, "src/model/path.rs", "pub(in crate::cli) fn f() {}");
    check_bad(check, "src/model/path.rs", "use crate::*;");
    check_bad(check, "src/model/path.rs", "use crate::Error;");
    check_bad(check, "src/model/mod.rs", "use super::cli;");
    check_bad(check, "src/store/keep/mod.rs", "use super::super::cli;");
    check_bad(check, "src/stray.rs", "");
    check_bad(check, "src/helpers/mod.rs", "");
}

#[test]
fn a_layer_that_names_itself_and_those_below_is_fine() {
    let check = layers_name_only_what_lies_below;
    check_good(check, "src/store/mod.rs", "use crate::{self, model::RelPath, store::{Keep, tree}};");
    check_good(check, "src/store/tree.rs", "//! not crate::fuse\nuse super::Keep; const S: &str = \"crate::cli\";");
    check_good(check, "src/store/tree.rs", "pub(crate) fn f<'a>(x: &'a str) -> char { 'c' }");
    check_good(check, "src/store/tree.rs", "mod a { mod b { fn crate_fuse() {} } } /* crate::fuse /* crate::cli */ */");
    check_good(check, "src/main.rs", "use fettlefs::cli;");
}

#[test]
fn unsafe_outside_sys_is_reported() {
    check_bad(unsafe_lives_in_sys, "src/store/mod.rs", "fn f() { unsafe { g() } }");
    check_bad(unsafe_lives_in_sys, "src/main.rs", "unsafe fn f() {}");
    check_good(unsafe_lives_in_sys, "src/sys/mod.rs", "#![allow(unsafe_code)]\nunsafe fn f() {}");
    check_good(
        unsafe_lives_in_sys,
        "src/lib.rs",
        "#![deny(unsafe_code)] // no unsafe here\nconst A: &str = r#\"unsafe\"#;",
    );
}

#[test]
fn a_library_named_outside_its_room_is_reported() {
    check_bad(fuser_stays_in_fuse, "src/overlay/mod.rs", "use fuser::FileAttr;");
    check_good(fuser_stays_in_fuse, "src/fuse/mod.rs", "use fuser::FileAttr;");
    check_good(fuser_stays_in_fuse, "src/cli/mod.rs", "const HELP: &str = \"fuser logs\"; // fuser");
    check_bad(rusqlite_stays_in_store_and_sys, "src/control/mod.rs", "type E = rusqlite::Error;");
    check_good(rusqlite_stays_in_store_and_sys, "src/store/mod.rs", "use rusqlite::Connection;");
    check_good(rusqlite_stays_in_store_and_sys, "src/sys/vfs.rs", "use rusqlite::ffi;");
    check_bad(the_runtime_stays_in_mcp, "src/cli/mcp.rs", "use tokio::runtime::Runtime;");
    check_good(the_runtime_stays_in_mcp, "src/mcp/server.rs", "use rmcp::ServerHandler;");
    check_bad(the_screen_stays_in_ui, "src/cli/review.rs", "use crossterm::event::read;");
    check_good(the_screen_stays_in_ui, "src/ui/draw.rs", "use ratatui::Frame;");
}

#[test]
fn a_file_without_a_head_is_reported() {
    check_bad(files_begin_with_a_head, "src/model/path.rs", "use std::fmt;\n//! too late\n");
    check_bad(files_begin_with_a_head, "src/model/path.rs", "");
    check_good(files_begin_with_a_head, "src/model/path.rs", "//! Paths.\n");
    check_good(files_begin_with_a_head, "src/model/tests.rs", "use super::*;");
}

#[test]
fn a_file_that_the_head_of_its_room_lacks_is_reported() {
    let check = each_file_stands_in_the_head_of_its_room;
    let room = "mod open;\npub(super) mod close;\n#[cfg(test)]\nmod tests;\n";
    check_bad(check, "src/overlay/files.rs", &format!("//! [`open`]\n{room}"));
    check_bad(check, "src/overlay/files.rs", &format!("//! [`close`]\n{room}// [`open`]"));
    check_good(check, "src/overlay/files.rs", &format!("//! [`open`],\n//! [`close`]\n{room}"));
}

#[test]
fn a_pure_layer_that_touches_the_world_is_reported() {
    let check = pure_layers_stay_out_of_the_world;
    check_bad(check, "src/model/path.rs", "use std::fs::File;");
    check_bad(check, "src/diff/mod.rs", "use std::{fmt, time::{Duration, Instant}};");
    check_bad(check, "src/policy/mod.rs", "fn f() { std::env::var(\"HOME\"); }");
    check_bad(check, "src/protocol/mod.rs", "use rustix;");
    check_good(check, "src/model/path.rs", "use std::time::Duration; #[cfg(test)] mod tests { use std::fs; }");
    check_good(check, "src/model/tests.rs", "use std::fs;");
    check_good(check, "src/sys/mod.rs", "use std::fs;");
}

#[test]
fn an_unwrap_outside_tests_is_reported() {
    check_bad(nothing_unwraps, "src/cli/mod.rs", "fn f() { g().unwrap(); }");
    check_bad(nothing_unwraps, "src/cli/mod.rs", "#[cfg(test)]\nmod tests;\nfn f() { g().unwrap(); }");
    check_good(nothing_unwraps, "src/cli/mod.rs", "#[cfg(test)]\nmod tests { fn f() { g().unwrap(); } }");
    check_good(nothing_unwraps, "src/cli/tests.rs", "fn f() { g().unwrap(); }");
}

#[test]
fn an_ignored_test_is_reported() {
    check_bad(no_test_is_ignored, "tests/it/cli.rs", "#[test]\n#[ignore]\nfn f() {}");
    check_bad(no_test_is_ignored, "src/diff/tests.rs", "#[ignore = \"slow\"]\nfn f() {}");
    check_good(no_test_is_ignored, "tests/it/cli.rs", "// no #[ignore] here\nfn f() {}");
}

#[test]
fn a_sleep_in_a_test_is_reported_unless_it_says_what_it_polls() {
    check_bad(tests_do_not_sleep, "tests/it/cli.rs", "fn f() { thread::sleep(second); }");
    check_good(tests_do_not_sleep, "tests/it/cli.rs", "// This polls the kernel's table.\nthread::sleep(tick);");
    check_good(tests_do_not_sleep, "src/store/mod.rs", "fn f() { thread::sleep(second); }");
}

#[test]
fn a_dependency_without_a_sentence_is_reported() {
    let check = dependencies_say_why;
    check_bad(check, "Cargo.toml", "[dependencies]\nserde = \"1\"\n");
    check_bad(check, "Cargo.toml", "[dev-dependencies]\n# Why.\na = \"1\"\nb = { version = \"1\" }\n");
    check_bad(check, "Cargo.toml", "[dependencies.serde]\nversion = \"1\"\n");
    check_good(
        check,
        "Cargo.toml",
        "[package]\nname = \"x\"\n[dependencies]\n# Why.\na = { features = [\n  \"x\",\n] }\n",
    );
}
