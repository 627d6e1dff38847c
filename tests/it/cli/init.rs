//! `fettlefs init`: what it writes, once, and what it leaves alone.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

use serde_json::json;

use crate::harness::{Scratch, mounted_scratch};

fn did(scratch: &Scratch, arguments: &[&str]) -> Vec<String> {
    let files = scratch.cli(&[&["init", "--json"], arguments].concat()).ok().json()["files"].clone();
    let word = |file: &serde_json::Value, key: &str| file[key].as_str().expect("a word").to_owned();
    files.as_array().expect("files").iter().map(|file| word(file, "did") + " " + &word(file, "path")).collect()
}

#[test]
fn a_project_gets_settings_and_a_section_once() {
    let scratch = mounted_scratch!();
    assert_eq!(did(&scratch, &["--dry-run"]), ["made .fettle.toml", "made AGENTS.md"]);
    assert!(!scratch.has(".fettle.toml") && !scratch.has("AGENTS.md"));
    let told = scratch.cli(&["init"]).ok().stdout;
    assert_eq!(told, "fettlefs: Wrote 2 files\n  made      .fettle.toml\n  made      AGENTS.md\n");
    let written = (scratch.read(".fettle.toml"), scratch.read("AGENTS.md"));
    assert!(written.1.contains("fettlefs status"), "{}", written.1);
    let told = scratch.cli(&["init"]).ok().stdout;
    assert_eq!(told, "fettlefs: Nothing to do\n  kept      .fettle.toml\n  kept      AGENTS.md\n");
    assert_eq!((scratch.read(".fettle.toml"), scratch.read("AGENTS.md")), written);
    // The project mounts with them, and nothing is ignored for want of trust.
    let view = scratch.mount();
    let notices = view.cli(&["reload", "--json"]).ok().json()["notices"].clone();
    assert_eq!(notices.as_array().map(Vec::len), Some(0), "{notices}");
}

#[test]
fn in_a_view_what_is_held_is_not_told_as_written() {
    let scratch = mounted_scratch!();
    scratch.write("CLAUDE.md", "# Ours\n");
    let view = scratch.mount_at("view");
    let told = view.cli(&["init"]).ok().stdout;
    let id = |path: &str| view.held().into_iter().find(|held| held.path == path).expect("it is held").id;
    let (settings, section) = (id(".fettle.toml"), id("CLAUDE.md"));
    let want = format!(
        "fettlefs: Held 2 files\n  made      .fettle.toml (id {settings})\n  added to  CLAUDE.md (id {section})\n\
         To apply: fettlefs confirm {settings} {section}\n"
    );
    assert_eq!(told, want);
    assert!(!scratch.has(".fettle.toml") && scratch.read("CLAUDE.md") == "# Ours\n");
    // What was held before is nothing that it has done.
    view.cli(&["discard", &section]).ok();
    let files = view.cli(&["init", "--json"]).ok().json()["files"].clone();
    assert_eq!(files[0], json!({"path": ".fettle.toml", "did": "kept", "held": null}));
    assert_eq!((&files[1]["did"], &files[1]["held"]), (&json!("added"), &json!(section)));
}

#[test]
fn what_people_wrote_stays() {
    let scratch = mounted_scratch!();
    scratch.write(".fettle.toml", "floor = 3\n");
    scratch.write("CLAUDE.md", "# Ours\r\nNo last newline");
    fs::set_permissions(scratch.project().join("CLAUDE.md"), fs::Permissions::from_mode(0o640)).expect("chmod");
    assert_eq!(did(&scratch, &[]), ["kept .fettle.toml", "added CLAUDE.md"]);
    assert_eq!(scratch.read(".fettle.toml"), "floor = 3\n");
    let written = scratch.read("CLAUDE.md");
    assert!(written.starts_with("# Ours\r\nNo last newline\r\n\r\n<!-- fettlefs: begin"), "{written}");
    let mode = scratch.project().join("CLAUDE.md").metadata().expect("stat").permissions().mode();
    assert_eq!((mode & 0o777, scratch.has("AGENTS.md")), (0o640, false));
    if rustix::process::geteuid().is_root() {
        scratch.write("CLAUDE.md", "# Theirs\n");
        chown(scratch.project().join("CLAUDE.md"), Some(65534), Some(65533)).expect("chown");
        assert_eq!(did(&scratch, &[]), ["kept .fettle.toml", "added CLAUDE.md"]);
        let owner = scratch.project().join("CLAUDE.md").metadata().expect("stat");
        assert_eq!((owner.uid(), owner.gid(), owner.mode() & 0o777), (65534, 65533, 0o640));
    }

    // A link to the other file goes on being one.
    symlink("CLAUDE.md", scratch.project().join("AGENTS.md")).expect("a link");
    assert_eq!(did(&scratch, &[]), ["kept .fettle.toml", "kept AGENTS.md", "kept CLAUDE.md"]);
    scratch.write("CLAUDE.md", "# Ours\n");
    assert_eq!(did(&scratch, &[]), ["kept .fettle.toml", "added AGENTS.md", "kept CLAUDE.md"]);
    assert!(scratch.project().join("AGENTS.md").is_symlink());
    assert_eq!(scratch.read("CLAUDE.md").matches("fettlefs: begin").count(), 1);
}

/// A clone may bring one.
#[test]
fn a_link_out_of_the_project_is_not_written_through() {
    for (name, target) in [("CLAUDE.md", "../outside"), ("AGENTS.md", "docs/link")] {
        let scratch = mounted_scratch!();
        let outside = scratch.root().join("outside");
        fs::write(&outside, "mine\n").expect("a file");
        fs::create_dir(scratch.project().join("docs")).expect("a directory");
        symlink(&outside, scratch.project().join("docs/link")).expect("a link");
        symlink(target, scratch.project().join(name)).expect("a link");
        for arguments in [&["init"][..], &["init", "--dry-run"]] {
            let refused = scratch.cli(arguments).exits(1);
            assert!(
                refused.stderr.contains(&format!("/{name}: a link out of the project, to /")),
                "{}",
                refused.stderr
            );
        }
        assert_eq!(fs::read_to_string(&outside).expect("a file"), "mine\n");
        assert!(!scratch.has(".fettle.toml"));
    }
}

#[test]
fn a_link_that_is_in_the_way_stops_all_of_it() {
    for (name, target, why, other) in [
        ("AGENTS.md", "missing", "a link that leads nowhere", ".fettle.toml"),
        (".fettle.toml", "/etc/hosts", "a link, from which no mount takes settings", "AGENTS.md"),
    ] {
        let scratch = mounted_scratch!();
        symlink(target, scratch.project().join(name)).expect("a link");
        for arguments in [&["init"][..], &["init", "--dry-run"]] {
            let refused = scratch.cli(arguments).exits(1);
            assert!(refused.stderr.contains(&format!("/{name}: {why}")), "{}", refused.stderr);
        }
        assert!(!scratch.has(other), "{name}");
    }
}

#[test]
fn what_cannot_be_written_stops_all_of_it() {
    let scratch = mounted_scratch!();
    fs::create_dir(scratch.project().join("CLAUDE.md")).expect("a directory");
    let refused = scratch.cli(&["init"]).exits(1);
    assert!(refused.stderr.ends_with("/CLAUDE.md: not a file\n"), "{}", refused.stderr);
    assert!(!scratch.has(".fettle.toml") && !scratch.has("AGENTS.md"));
    assert_eq!(scratch.cli(&["init", "nowhere", "--json"]).exits(4).error_code(), "unknown_path");
}
