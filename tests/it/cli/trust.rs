//! `fettlefs trust` (SPEC §15): what a project's own file may not decide by itself, and when it may.

use std::fs;
use std::path::PathBuf;

use super::terminal::on_terminal;
use crate::harness::{Output, Scratch, View, lines, mounted_scratch, with_changed_lines};

const LAX: &str = "floor = 7000\nceil = 20000\n";

fn trusted_list(scratch: &Scratch) -> PathBuf {
    scratch.root().join("home/.config/fettlefs/trusted")
}

fn notices(view: &View<'_>) -> Vec<String> {
    let notices = view.status()["notices"].clone();
    let text = |notice: &serde_json::Value| notice.as_str().expect("a notice is text").to_owned();
    notices.as_array().into_iter().flatten().map(text).collect()
}

/// Each a setting that lets through what the built-in ones hold, with a path and content to try it on.
#[test]
fn what_loosens_counts_only_after_trust() {
    let (old, new) = (lines(100), with_changed_lines(&lines(100), 90));
    for (settings, path, old, new) in [
        (LAX, "a.txt", old.as_str(), new.as_str()),
        ("[[rule]]\nmatch = '*.txt'\naction = 'pass'\n", "a.txt", &old, &new),
        ("[[rule]]\nmatch = 'AGENTS.md'\naction = 'auto'\n", "AGENTS.md", "old\n", "new\n"),
        ("[risk]\nconflict_markers = false\n", "a.txt", "a\n", "<<<<<<< a\na\n=======\nb\n>>>>>>> b\n"),
    ] {
        let scratch = mounted_scratch!();
        scratch.write(".fettle.toml", settings);
        scratch.write(path, old);
        let view = scratch.mounting().env("FETTLE_WRITE_WINDOW", "0").start();
        assert!(view.mount_output.stderr.contains("ignored until `fettlefs trust`: .fettle.toml:"), "{settings}");
        view.write(path, new);
        view.assert_held(path, new, old);
        view.cli(&["discard", path]).ok();
        assert_ne!(notices(&view), Vec::<String>::new(), "{settings}");

        let said = view.cli(&["trust", "--yes"]).ok();
        assert!(said.stdout.ends_with("takes effect at the next mount, or by: fettlefs reload\n"), "{}", said.stdout);
        view.write(path, new);
        view.assert_held(path, new, old);
        view.cli(&["discard", path]).ok();
        view.cli(&["reload"]).ok();
        assert_eq!(notices(&view), Vec::<String>::new(), "{settings}");
        view.write(path, new);
        view.assert_landed(path, new);
    }
}

#[test]
fn who_may_approve_is_not_for_a_project_to_widen() {
    let scratch = mounted_scratch!();
    fs::create_dir_all(scratch.root().join("home/.config/fettlefs")).expect("a directory");
    fs::write(scratch.root().join("home/.config/fettlefs/config.toml"), "approve = \"owner\"\n").expect("settings");
    scratch.write(".fettle.toml", "approve = \"anyone\"\n");
    let view = scratch.mount();
    let by_other = || -> Output {
        let mut command = scratch.command("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(scratch.fettlefs().get_program());
        command.args(["reload"]).current_dir(view.root()).output().expect("setpriv").into()
    };
    by_other().exits(6);
    view.cli(&["trust", "--yes"]).ok();
    by_other().exits(6);
    view.cli(&["reload"]).ok();
    by_other().ok();
}

#[test]
fn what_tightens_needs_no_trust() {
    let scratch = mounted_scratch!();
    let rules = "[[rule]]\nmatch = 'kept'\naction = 'freeze'\n[[rule]]\nmatch = 'seen'\naction = 'hold'\n";
    scratch.write(".fettle.toml", format!("floor = 0\nceil = 1\non_hold = \"fail\"\napprove = \"outside\"\n{rules}"));
    for path in ["a", "kept", "seen"] {
        scratch.write(path, "old\n");
    }
    let view = scratch.mount();
    assert_eq!(notices(&view), Vec::<String>::new());
    let closes = view.sh("python3 -c 'f = open(\"a\", \"w\"); f.write(\"new\\n\"); f.close()'");
    assert!(closes.stderr.contains("Permission denied"), "the close of what is held was to fail: {}", closes.stderr);
    view.assert_held("a", "new\n", "old\n");
    assert_ne!(view.sh("rm kept").status, 0, "what is frozen was removed");
    view.sh("echo more >> seen");
    view.assert_held("seen", "old\nmore\n", "old\n");
}

/// Over the project and beside it: the file that is shown and trusted is the project's, never the agent's.
#[test]
fn what_the_view_shows_is_neither_shown_nor_trusted() {
    for beside in [false, true] {
        let scratch = mounted_scratch!();
        scratch.write(".fettle.toml", "floor = 20\n");
        let view = if beside { scratch.mount_at("view") } else { scratch.mount() };
        view.write(".fettle.toml", LAX);
        view.assert_held(".fettle.toml", LAX, "floor = 20\n");
        let shown = view.cli(&["trust", "--show"]).ok().stdout;
        assert!(shown.contains("    floor = 20\n") && !shown.contains("7000"), "{shown}");
        assert!(shown.ends_with("fettlefs: It is not trusted\n"), "{shown}");
        view.cli(&["trust", "--yes"]).ok();
        assert!(view.cli(&["trust", "--show"]).ok().stdout.ends_with("fettlefs: It is trusted\n"));
        view.cli(&["confirm", ".fettle.toml"]).ok();
        view.cli(&["reload"]).ok();
        let said = notices(&view).join("\n");
        assert!(said.contains("floor = 7000") && said.contains("ceil = 20000"), "{said}");
    }
}

#[test]
fn trust_is_in_one_content_of_one_project() {
    let scratch = mounted_scratch!();
    scratch.write(".fettle.toml", LAX);
    // Before there is any mount or state.
    assert_eq!(scratch.cli(&["trust", "--yes", "--json"]).ok().json()["trusted"], true);
    assert!(!scratch.has(".fettle"), "trust made state in a project that has none");
    let list = fs::read_to_string(trusted_list(&scratch)).expect("the list");
    assert!(list.ends_with(&format!("  {}\n", scratch.project().display())), "{list}");
    assert_eq!(scratch.cli(&["trust", "--yes"]).ok().stdout.split(' ').nth(1), Some("Already"));
    assert!(!scratch.mounting().run().stderr.contains("trust"));
    scratch.cli(&["unmount"]).ok();

    // The same text elsewhere is another file.
    let other = scratch.root().join("other");
    fs::create_dir(&other).expect("a directory");
    fs::write(other.join(".fettle.toml"), LAX).expect("a file");
    let in_other = |args: &[&str]| -> Output {
        let mut command = scratch.fettlefs();
        command.arg("-C").arg(&other).args(args).output().expect("the built program runs").into()
    };
    assert_eq!(in_other(&["trust", "--show", "--json"]).ok().json()["trusted"], false);
    in_other(&["trust", "--yes"]).ok();

    // And so is another text here.
    scratch.write(".fettle.toml", format!("{LAX}burst = 500\n"));
    assert_eq!(scratch.cli(&["trust", "--show", "--json"]).ok().json()["trusted"], false);
    scratch.write(".fettle.toml", LAX);
    assert_eq!(scratch.cli(&["trust", "--show", "--json"]).ok().json()["trusted"], true);
    scratch.cli(&["trust", "--revoke"]).ok();
    assert_eq!(scratch.cli(&["trust", "--show", "--json"]).ok().json()["trusted"], false);
    assert_eq!(in_other(&["trust", "--show", "--json"]).ok().json()["trusted"], true);
    fs::remove_file(scratch.project().join(".fettle.toml")).expect("removed");
    assert_eq!(scratch.cli(&["trust", "--json"]).exits(4).error_code(), "unknown_path");
    scratch.cli(&["trust", "--revoke"]).ok();
}

#[test]
fn trust_is_asked_for_on_a_terminal_and_nowhere_else() {
    let scratch = mounted_scratch!();
    scratch.write(".fettle.toml", format!("# \u{202e}clear\n{LAX}"));
    let view = scratch.mount();
    assert_eq!(view.cli(&["trust", "--json"]).exits(2).error_code(), "bad_request");
    assert!(view.cli(&["trust"]).exits(2).stderr.contains("trust needs --yes where there is no terminal to ask"));
    let asked = on_terminal(&scratch, &view, &[], "n\n", &["trust"]).exits(1).stdout;
    assert!(asked.contains("    floor = 7000\n") && asked.contains("\\u{202e}clear"), "{asked}");
    assert!(asked.contains("ignored until it is trusted: .fettle.toml:2: floor = 7000\n"), "{asked}");
    assert!(!trusted_list(&scratch).exists(), "no was taken for yes");
    let asked = on_terminal(&scratch, &view, &[], "y\n", &["trust"]).ok().stdout;
    assert!(asked.contains("fettlefs: Trusted "), "{asked}");
    view.cli(&["reload"]).ok();
    assert_eq!(notices(&view), Vec::<String>::new());
}

/// Else what runs in the view could write its own trust, or the user's settings.
#[test]
fn the_users_own_files_are_not_read_from_the_project() {
    let scratch = mounted_scratch!();
    scratch.write(".fettle.toml", LAX);
    scratch.write("conf/fettlefs/config.toml", "floor = 70\n");
    let inside = scratch.project().join("conf");
    let refused = scratch.mounting().env("XDG_CONFIG_HOME", &inside).run();
    assert!(refused.stderr.contains("conf/fettlefs/config.toml is in the project, where"), "{}", refused.stderr);
    assert_ne!(refused.status, 0);
    // Through a link from outside, and written in the view of a mount that had none.
    fs::remove_file(scratch.project().join("conf/fettlefs/config.toml")).expect("removed");
    std::os::unix::fs::symlink(&inside, scratch.root().join("link")).expect("a link");
    let view = scratch.mounting().env("XDG_CONFIG_HOME", scratch.root().join("link")).start();
    view.write("conf/fettlefs/trusted", "\n");
    let refused = view.cli(&["reload"]).exits(2);
    assert!(refused.stderr.contains("fettlefs/trusted is in the project, where"), "{}", refused.stderr);
    assert_eq!(notices(&view).len(), 2);
}

#[test]
fn a_place_that_cannot_be_written_is_named_and_is_no_unknown_path() {
    let scratch = Scratch::new();
    scratch.write(".fettle.toml", LAX);
    let trust = |more: &[&str]| -> Output {
        let mut command = scratch.fettlefs();
        command.env_remove("XDG_CONFIG_HOME").env("HOME", "/proc").current_dir(scratch.project());
        command.args(["trust", "--yes"]).args(more).output().expect("the built program runs").into()
    };
    let want = "fettlefs: write /proc/.config/fettlefs/trusted: No such file or directory (os error 2)\n";
    assert_eq!(trust(&[]).exits(1).stderr, want);
    assert_eq!(trust(&["--json"]).exits(1).error_code(), "io");
    let init = scratch.cli(&["init", "/proc", "--json"]).exits(1);
    assert!(init.error_code() == "io" && init.stdout.contains("write /proc/.fettle.toml: "), "{}", init.stdout);
}
