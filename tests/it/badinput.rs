//! Bad input: each a clear message that names it, the right exit status, and nothing changed, byte for byte.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use serde_json::Value;

use crate::cli::{EDITED, NEW, OLD, named, small, work};
use crate::harness::{Output, Scratch, mounted_scratch};

/// Everything below a directory: path, mode and content.
fn tree(dir: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    // An empty write-ahead log means the same as none: closing the database removes it. A refusal counts in `generation`.
    let means_nothing = |path: &Path, content: &[u8]| {
        content.is_empty() && path.ends_with("fettle.db-wal") || path.ends_with(".fettle/generation")
    };
    let mut rest = vec![dir.to_owned()];
    while let Some(path) = rest.pop() {
        let meta = path.symlink_metadata().unwrap_or_else(|err| panic!("{}: {err}", path.display()));
        let mut content = Vec::new();
        if meta.is_dir() {
            rest.extend(fs::read_dir(&path).expect("a directory").map(|entry| entry.expect("an entry").path()));
        } else if meta.is_file() {
            content = fs::read(&path).expect("a file");
        }
        if !means_nothing(&path, &content) {
            found.insert(path, (meta.mode(), content));
        }
    }
    found
}

/// Runs what must be refused, in words and as JSON, and panics when anything below the scratch directory changed.
#[track_caller]
fn refused(scratch: &Scratch, run: impl Fn(&[&str]) -> Output, status: i32, code: &str, message: &str) {
    let before = tree(scratch.root());
    let words = run(&[]);
    let said = named(scratch, words.stderr.lines().last().unwrap_or_default());
    assert_eq!(
        (words.status, said.as_str()),
        (status, &*format!("fettlefs: {message}")),
        "{}{}",
        words.stdout,
        words.stderr
    );
    let json = run(&["--json"]);
    let error = json.json()["error"].clone();
    assert_eq!((json.status, error["code"].as_str()), (status, Some(code)), "{error}");
    assert_eq!(named(scratch, error["message"].as_str().unwrap_or_default()), message);
    let after = tree(scratch.root());
    let changed: Vec<_> =
        after.iter().filter(|(path, entry)| before.get(*path) != Some(entry)).map(|(path, _)| path).collect();
    let gone: Vec<_> = before.keys().filter(|path| !after.contains_key(*path)).collect();
    assert!(changed.is_empty() && gone.is_empty(), "{message}: changed {changed:?}, gone {gone:?}");
}

/// `fettlefs mount` in the scratch directory.
fn mount<'s>(
    scratch: &'s Scratch,
    arguments: &'s [&'s str],
    env: &'s [(&'s str, &'s str)],
) -> impl Fn(&[&str]) -> Output + 's {
    move |more| {
        let mut command = scratch.fettlefs();
        command.current_dir(scratch.root()).arg("mount").args(arguments).args(more).envs(env.iter().copied());
        command.output().expect("the built program runs").into()
    }
}

#[test]
fn wrong_paths_are_named() {
    let scratch = mounted_scratch!();
    scratch.write("inside/file", OLD);
    for (arguments, status, code, message) in [
        (vec!["nowhere"], 4, "unknown_path", "project ./nowhere: No such file or directory (os error 2)"),
        (vec!["project/inside/file"], 4, "unknown_path", "project ./project/inside/file: not a directory"),
        (vec!["project", "nowhere"], 4, "unknown_path", "mountpoint ./nowhere: No such file or directory (os error 2)"),
        (
            vec!["project", "project/inside/file"],
            4,
            "unknown_path",
            "mountpoint ./project/inside/file: not a directory",
        ),
        (
            vec!["project", "project/inside"],
            2,
            "bad_request",
            "the mountpoint [project]/inside lies in the project [project]: mount over the project itself, or outside of it",
        ),
        (vec!["project", "-o", "nonsense"], 2, "bad_request", "unknown mount option \"nonsense\""),
    ] {
        refused(&scratch, mount(&scratch, &arguments, &[]), status, code, message);
    }
    let state = scratch.root().join("state");
    fs::create_dir_all(state.join("point")).expect("a directory");
    let env = [("FETTLE_STATE_DIR", state.to_str().expect("scratch paths are UTF-8"))];
    let message = "the mountpoint [scratch]/state/point lies in the state directory [scratch]/state";
    refused(&scratch, mount(&scratch, &["project", "state/point"], &env), 2, "bad_request", message);
    std::os::unix::fs::symlink(scratch.project(), scratch.root().join("link")).expect("a symlink");
    for (variable, place) in
        [("FETTLE_STATE_DIR", "project/st"), ("FETTLE_BACKUP_DIR", "link/src"), ("FETTLE_STAGE_DIR", "project")]
    {
        let place = scratch.root().join(place);
        let env = [(variable, place.to_str().expect("scratch paths are UTF-8"))];
        let message = format!(
            "the state directory {} lies in the project [project]: leave it out, or choose one outside of it",
            named(&scratch, env[0].1)
        );
        refused(&scratch, mount(&scratch, &["project", "state"], &env), 2, "bad_request", &message);
        assert!(!scratch.has("st"));
    }
    let outside = |more: &[&str]| -> Output {
        let mut command = scratch.fettlefs();
        command.current_dir(scratch.root()).args(["-C", "nowhere", "status"]).args(more);
        command.output().expect("the built program runs").into()
    };
    let message = "[scratch]/nowhere: No such file or directory (os error 2)";
    refused(&scratch, outside, 4, "unknown_path", message);
    let in_file = |more: &[&str]| -> Output {
        let mut command = scratch.fettlefs();
        command.current_dir(scratch.project()).args(["-C", "inside/file", "status"]).args(more);
        command.output().expect("the built program runs").into()
    };
    refused(&scratch, in_file, 4, "unknown_path", "[project]/inside/file: not a directory");
}

#[test]
fn a_directory_that_cannot_be_made_is_told_with_the_variable_that_names_it() {
    let scratch = mounted_scratch!();
    let file = scratch.root().join("file");
    fs::write(&file, "").expect("a file");
    let place = format!("{}/x", file.display());
    for variable in ["FETTLE_STAGE_DIR", "FETTLE_BACKUP_DIR"] {
        let said = mount(&scratch, &["project"], &[(variable, place.as_str())])(&[]).exits(1).stderr;
        assert!(said.starts_with(&format!("fettlefs: open state directory {place}/")), "{said}");
        assert!(said.contains(&format!(" ({variable}): Not a directory")), "{said}");
    }
}

/// Else it would be taken for an option that nobody knows.
#[test]
fn a_negative_number_is_refused_by_the_option_that_it_is_given_to() {
    let scratch = mounted_scratch!();
    for (words, range) in [
        (["mount", "--floor", "-1"], "must be a whole number from 0 to 1000000"),
        (["mount", "--floor", "x"], "must be a whole number from 0 to 1000000"),
        (["run", "--ceil", "-5"], "must be a whole number from 0 to 1000000"),
        (["mount", "--burst", "-1"], "must be a whole number from 0 to 1000000"),
        (["mount", "--ratio", "-0.5"], "from 0 to 1"),
        (["mount", "--ttl", "-1"], "must be 0 to 365d, in seconds or like 2s, 10m, 24h"),
        (["mount", "--window", "-1"], "must be \"session\", or 0 to 365d"),
        (["unmount", "--timeout", "-1"], "must be a number from 0 on"),
        (["flush", "--timeout", "-1"], "must be a number from 0 on"),
        (["events", "--since", "-1"], "must be a number from 0 on"),
        (["log", "-n", "-1"], "must be a number from 0 on"),
        (["backups", "--limit", "-1"], "must be a number from 1 on"),
        (["read", "--offset", "-1"], "must be a number from 0 on"),
    ] {
        let output = scratch.fettlefs().current_dir(scratch.project()).args(words).output();
        let output = Output::from(output.expect("the built program runs"));
        assert_eq!(output.status, if words[0] == "run" { 125 } else { 2 }, "{words:?}: {}", output.stderr);
        let option = if words[1] == "-n" { "--limit" } else { words[1] };
        let named = format!("error: invalid value '{}' for '", words[2]);
        assert!(output.stderr.starts_with(&named), "{words:?}: {}", output.stderr);
        assert!(output.stderr.contains(option) && output.stderr.contains(range), "{words:?}: {}", output.stderr);
    }
}

/// Whoever comes in the place of a daemon that died could not reach it below the dead mount.
#[test]
fn a_state_directory_below_the_mountpoint_is_refused() {
    let scratch = mounted_scratch!();
    let view = scratch.root().join("view");
    fs::create_dir(&view).expect("a directory");
    std::os::unix::fs::symlink(&view, scratch.root().join("link")).expect("a symlink");
    for variable in ["FETTLE_STATE_DIR", "FETTLE_BACKUP_DIR", "FETTLE_STAGE_DIR"] {
        for (arguments, place, mountpoint) in [
            (&["project", "view"][..], "view/kept", "[scratch]/view"),
            (&["project", "view"], "link/kept", "[scratch]/view"),
            (&["project"], "project/.fettle", "[project]"),
            (&["project"], "project/.fettle/kept", "[project]"),
        ] {
            let place = scratch.root().join(place);
            let env = [(variable, place.to_str().expect("scratch paths are UTF-8"))];
            let message = format!(
                "the state directory {} lies in the mountpoint {mountpoint}: leave it out, or choose one outside of it",
                named(&scratch, env[0].1)
            );
            refused(&scratch, mount(&scratch, arguments, &env), 2, "bad_request", &message);
        }
        assert!(!scratch.has(".fettle") && fs::read_dir(&view).expect("it is there").next().is_none(), "{variable}");
    }
    // Nothing covers it where the view is elsewhere, or a run's own.
    let inside = scratch.project().join(".fettle/kept");
    let mut run = scratch.fettlefs();
    run.env("FETTLE_STATE_DIR", &inside).current_dir(scratch.project()).args(["run", "--", "true"]);
    Output::from(run.output().expect("the built program runs")).ok();
    scratch.mounting().at("view").env("FETTLE_STATE_DIR", &inside).start().unmount();
}

#[test]
fn a_directory_variable_that_is_empty_or_relative_is_refused() {
    let scratch = mounted_scratch!();
    for variable in ["FETTLE_STATE_DIR", "FETTLE_BACKUP_DIR", "FETTLE_STAGE_DIR"] {
        for value in ["", "state", "./state"] {
            let message = format!("{variable} = \"{value}\": must be an absolute path");
            refused(&scratch, mount(&scratch, &["project"], &[(variable, value)]), 2, "bad_request", &message);
            let mut command = scratch.fettlefs();
            command.env(variable, value).current_dir(scratch.project()).args(["run", "--", "true"]);
            let output: Output = command.output().expect("the built program runs").into();
            assert_eq!((output.status, output.stderr), (125, format!("fettlefs: {message}\n")), "{variable}");
        }
    }
    assert!(!scratch.has(".fettle") && !scratch.has("state"));
}

#[test]
fn a_variable_that_nobody_reads_is_remarked_on_with_the_nearest() {
    let scratch = mounted_scratch!();
    let remark = "fettlefs: no variable is called FETTLE_WRITE_FLOR: FETTLE_WRITE_FLOOR is the nearest\n";
    let view = small(&scratch).env("FETTLE_WRITE_FLOR", "3").env("FETTLE_SESSION", "s").env("FETTLE_FOO", "3").start();
    let said = view.mount_output.stderr.clone();
    assert!(said.contains(remark) && said.matches("no variable is called").count() == 2, "{said}");
    // Nothing is near enough to have been meant.
    assert!(said.contains("fettlefs: no variable is called FETTLE_FOO\n"), "{said}");
    view.unmount();
    let mut command = scratch.fettlefs();
    // Those of the run itself are known to a run and a mount in it.
    command.env("FETTLE_WRITE_FLOR", "3").current_dir(scratch.project());
    command.args(["run", "--", "bash", "-c", "unset FETTLE_WRITE_FLOR; bash -c '$0 run -- true' $0"]);
    let output: Output = command.arg(scratch.fettlefs().get_program()).output().expect("the built program runs").into();
    assert_eq!(output.stderr.matches("no variable is called").count(), 1, "{}", output.stderr);
    assert!(output.stderr.starts_with(remark), "{}", output.stderr);
}

#[test]
fn a_state_directory_with_other_files_in_it_is_refused_and_left_as_it_is() {
    let scratch = mounted_scratch!();
    let shared = scratch.root().join("shared");
    fs::create_dir_all(shared.join("notes")).expect("a directory");
    fs::create_dir(scratch.root().join("view")).expect("a directory");
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).expect("a mode");
    let env = [("FETTLE_STATE_DIR", shared.to_str().expect("scratch paths are UTF-8"))];
    let message = "open state directory [scratch]/shared: it has other files in it, and is no state directory";
    refused(&scratch, mount(&scratch, &["project", "view"], &env), 1, "io", message);
    let names: Vec<_> =
        fs::read_dir(&shared).expect("it is there").map(|entry| entry.expect("an entry").file_name()).collect();
    assert_eq!(names, ["notes"]);
    assert_eq!(fs::metadata(&shared).expect("it is there").permissions().mode() & 0o7777, 0o1777);
    // What a file system of its own comes with is nothing of anybody's.
    fs::rename(shared.join("notes"), shared.join("lost+found")).expect("a rename");
    mount(&scratch, &["project", "view"], &env)(&[]).ok();
    scratch
        .fettlefs()
        .arg("unmount")
        .arg(scratch.root().join("view"))
        .output()
        .map(Output::from)
        .expect("it runs")
        .ok();
}

#[test]
fn a_project_inside_a_mounted_one_is_refused() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    let output = mount(&scratch, &["project/src"], &[])(&[]).exits(5);
    let want = "fettlefs: [project]/src lies in [project], which is mounted on [project] (pid [pid])\n";
    assert_eq!(named(&scratch, &output.stderr), want);
    let output = mount(&scratch, &["project"], &[])(&[]).exits(5);
    assert_eq!(
        named(&scratch, &output.stderr),
        "fettlefs: [project] is already covered by a mount of [project] (pid [pid])\n"
    );
    assert_eq!(view.read("src/a.rs"), OLD);
}

#[test]
fn settings_out_of_range_are_told_with_their_key_value_origin_and_range() {
    let scratch = mounted_scratch!();
    for (variable, value, message) in [
        ("FETTLE_WRITE_RATIO", "2", "FETTLE_WRITE_RATIO: ratio = \"2\": must be 0 to 1"),
        ("FETTLE_WRITE_RATIO", "NaN", "FETTLE_WRITE_RATIO: ratio = \"NaN\": must be 0 to 1"),
        ("FETTLE_WRITE_FLOOR", "-1", "FETTLE_WRITE_FLOOR: floor = \"-1\": must be a whole number from 0 to 1000000"),
        (
            "FETTLE_WRITE_CEIL",
            "1000001",
            "FETTLE_WRITE_CEIL: ceil = \"1000001\": must be a whole number from 0 to 1000000",
        ),
        ("FETTLE_WRITE_CEIL", "", "FETTLE_WRITE_CEIL: ceil = \"\": must be a whole number from 0 to 1000000"),
        ("FETTLE_WRITE_CEIL", "10", "floor = 10 (default) must be below ceil = 10 (FETTLE_WRITE_CEIL)"),
        (
            "FETTLE_WRITE_STAGE_TTL",
            "soon",
            "FETTLE_WRITE_STAGE_TTL: ttl = \"soon\": must be 0 to 365d, in seconds or like 2s, 10m, 24h",
        ),
        (
            "FETTLE_WRITE_WINDOW",
            "ever",
            "FETTLE_WRITE_WINDOW: window = \"ever\": must be \"session\", or 0 to 365d, in seconds or like 2s, 10m, 24h",
        ),
    ] {
        refused(&scratch, mount(&scratch, &["project"], &[(variable, value)]), 2, "bad_request", message);
    }
    for (flags, message) in [
        (["--floor", "80"], "floor = 80 (--floor) must be below ceil = 80 (default)"),
        (["--ceil", "10"], "floor = 10 (default) must be below ceil = 10 (--ceil)"),
    ] {
        refused(&scratch, mount(&scratch, &["project", flags[0], flags[1]], &[]), 2, "bad_request", message);
    }
    // What a flag alone shows to be wrong is a usage error, which names flag, value and range.
    for (flags, wants) in [
        (["--ratio", "2"], ["'2'", "--ratio", "0 to 1"]),
        (["--floor", "1000001"], ["1000001", "--floor", "1000000"]),
        (["--ceil", "many"], ["'many'", "--ceil", "invalid"]),
        (["--ttl", "soon"], ["'soon'", "--ttl", "10m"]),
    ] {
        let output = mount(&scratch, &["project", flags[0], flags[1]], &[])(&[]).exits(2);
        assert!(wants.iter().all(|want| output.stderr.contains(want)), "{}", output.stderr);
    }
    assert!(!scratch.has(".fettle"), "state was made for a mount that was refused");
}

#[test]
fn a_settings_file_is_refused_with_the_line_that_is_wrong() {
    let scratch = mounted_scratch!();
    for (text, status, message) in [
        ("floor = 5\nratio = 2\n", 2, ".fettle.toml:2: ratio = \"2\": must be 0 to 1"),
        ("ceil = \"many\"\n", 2, ".fettle.toml:1: ceil = \"many\": must be a whole number from 0 to 1000000"),
        (
            "[[rule]]\nmatch = \"x\"\naction = \"wait\"\n",
            2,
            ".fettle.toml:3: action = \"wait\": must be auto, pass, hold, deny or freeze",
        ),
    ] {
        scratch.write(".fettle.toml", text);
        refused(&scratch, mount(&scratch, &["project"], &[]), status, "bad_request", message);
    }
    for (text, wants) in [
        ("flor = 5\n", [".fettle.toml:1: ", "flor"]),
        ("\n[hook]\n", [".fettle.toml:2: ", "hook"]),
        ("floor = \n", [".fettle.toml:1: ", ""]),
        ("floor = 5\nfloor = 6\n", [".fettle.toml:2: ", "duplicate key"]),
    ] {
        scratch.write(".fettle.toml", text);
        let output = mount(&scratch, &["project"], &[])(&[]).exits(2);
        assert!(wants.iter().all(|want| output.stderr.contains(want)), "{text:?}: {}", output.stderr);
    }
    assert!(!scratch.has(".fettle"), "state was made for a mount that was refused");
}

/// As one that a person keeps elsewhere and links to.
#[test]
fn a_settings_file_that_is_no_regular_file_is_no_silent_default() {
    let message = ".fettle.toml is no regular file: rules are read from what the project itself has there";
    for make in
        ["ln -s rules.toml .fettle.toml", "ln -s gone .fettle.toml", "mkdir .fettle.toml", "mkfifo .fettle.toml"]
    {
        let scratch = mounted_scratch!();
        scratch.write("rules.toml", "[[rule]]\nmatch = \"a\"\naction = \"freeze\"\n");
        let view = small(&scratch).start();
        scratch.command("sh").current_dir(scratch.lower()).args(["-c", make]).status().expect(make);
        let output = view.cli(&["reload"]).exits(2);
        assert_eq!(output.stderr, format!("fettlefs: nothing was reloaded: {message}\n"), "{make}");
        view.unmount();
        refused(&scratch, mount(&scratch, &["project"], &[]), 2, "bad_request", message);
        let told = scratch.cli(&["status"]).ok().stdout;
        assert!(told.contains(&format!("only what is built in is in force: {message}")), "{told}");
    }
}

#[test]
fn reload_keeps_the_old_settings_when_the_new_ones_are_wrong() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    scratch.write(".fettle.toml", "flor = 5\n");
    let output = view.cli(&["reload"]).exits(2);
    assert!(output.stderr.starts_with("fettlefs: nothing was reloaded: .fettle.toml:1: "), "{}", output.stderr);
    assert_eq!(view.cli(&["reload", "--dry-run", "--json"]).exits(2).error_code(), "bad_request");
    scratch.write(".fettle.toml", "floor = 70\n");
    let told = view.cli(&["reload"]).ok().stdout;
    assert_eq!(told, "fettlefs: Reloaded the settings\n  ignored until `fettlefs trust`: .fettle.toml:1: floor = 70\n");
    view.write("c.txt", NEW);
    view.assert_held("c.txt", NEW, OLD);
}

/// A project with state, left behind by a mount.
fn with_state(scratch: &Scratch) {
    let view = small(scratch).start();
    work(&view);
    view.unmount();
}

#[test]
fn a_corrupt_state_directory_is_named_and_left_as_it_is() {
    let scratch = mounted_scratch!();
    with_state(&scratch);
    let database = scratch.project().join(".fettle/fettle.db");
    let sound = fs::read(&database).expect("the database");
    let mut of_another_version = sound.clone();
    // The user version of the SQLite header, big-endian at byte 60.
    of_another_version[60..64].copy_from_slice(&99u32.to_be_bytes());
    let cases = [
        ("garbage", b"this is no database, and long enough to be looked at as one\n".repeat(100)),
        ("cut short", sound[..sound.len() / 2].to_vec()),
        ("cut within its header", sound[..50].to_vec()),
        ("of another version", of_another_version),
        ("empty", Vec::new()),
    ];
    for (what, bytes) in cases {
        fs::write(&database, &bytes).expect("root may");
        let before = tree(&scratch.project());
        let offline = |command: &str| scratch.cli(&command.split(' ').collect::<Vec<_>>());
        for command in
            ["status", "diff", "confirm src/a.rs", "discard --all --yes", "rollback notes.txt", "backups", "log"]
        {
            let output = offline(command).exits(1);
            assert!(
                output.stderr.starts_with("fettlefs: ") && output.stderr.contains(".fettle"),
                "{what}: {command}: {}",
                output.stderr
            );
            let json = offline(&format!("{command} --json"));
            assert_eq!((json.status, json.error_code().as_str()), (1, "io"), "{what}: {command}");
        }
        let output = scratch.mounting().run().exits(1);
        assert!(output.stderr.contains(".fettle"), "{what}: mount: {}", output.stderr);
        assert_eq!(tree(&scratch.project()), before, "{what}");
    }
    // Put back, everything is there again.
    fs::write(&database, &sound).expect("root may");
    let view = scratch.mount();
    assert_eq!((view.held().len(), view.read("src/a.rs")), (2, NEW.to_owned()));
}

#[test]
fn a_state_directory_that_is_none_is_refused() {
    let scratch = mounted_scratch!();
    scratch.write(".fettle", "not a directory\n");
    refused(
        &scratch,
        mount(&scratch, &["project"], &[]),
        1,
        "io",
        "open state directory [project]/.fettle: Not a directory (os error 20)",
    );
    scratch.cli(&["status"]).exits(3);
    fs::remove_file(scratch.project().join(".fettle")).expect("removed");
    let elsewhere = scratch.root().join("elsewhere");
    fs::create_dir(&elsewhere).expect("a directory");
    std::os::unix::fs::symlink(&elsewhere, scratch.project().join(".fettle")).expect("a link");
    let output = mount(&scratch, &["project"], &[])(&[]);
    assert!(output.status != 0 && output.stderr.contains(".fettle"), "{}", output.stderr);
    assert_eq!(fs::read_dir(&elsewhere).expect("still there").count(), 0, "a link led the state elsewhere");
}

#[test]
fn state_that_may_not_be_read_is_not_permitted() {
    let scratch = mounted_scratch!();
    if !rustix::process::geteuid().is_root() {
        return;
    }
    with_state(&scratch);
    fs::set_permissions(scratch.root(), fs::Permissions::from_mode(0o755)).expect("root may");
    let stranger = |arguments: &[&str]| -> Output {
        let mut command = scratch.command("setpriv");
        command.args(["--reuid=4321", "--regid=4321", "--clear-groups"]).arg(scratch.fettlefs().get_program());
        command.current_dir(scratch.root()).args(["-C", "project"]).args(arguments);
        command.output().expect("setpriv runs").into()
    };
    if stranger(&["version"]).status != 0 {
        eprintln!("skipped: another user cannot reach {}", scratch.root().display());
        return;
    }
    let before = tree(scratch.root());
    for command in ["status", "confirm src/a.rs", "rollback notes.txt"] {
        let output = stranger(&command.split(' ').collect::<Vec<_>>()).exits(6);
        assert!(output.stderr.contains(".fettle"), "{}", output.stderr);
    }
    assert_eq!(tree(scratch.root()), before);
}

/// Names that a program may give, and that must not trouble anybody.
fn odd_names() -> Vec<OsString> {
    let mut names: Vec<OsString> = [
        "new\nline",
        "esc\x1b[2Jape",
        "tab\tand\rreturn",
        " blanks ",
        "quo\"te\\s'",
        "-dash",
        "[glob]*?",
        "größe",
        "{a,b}",
    ]
    .map(OsString::from)
    .to_vec();
    names.push(OsStr::from_bytes(b"not \xff utf-8 \xc3").to_owned());
    names.push(OsStr::from_bytes(&[b"\xe9".repeat(3), b"n".repeat(252)].concat()).to_owned());
    names.push("x".repeat(255).into());
    names.push("ö".repeat(127).into());
    names
}

/// The path that an entry of JSON means: `path_b64` where there is one.
fn path_of(entry: &Value) -> OsString {
    match entry["path_b64"].as_str() {
        Some(base64) => {
            let bytes = base64::engine::general_purpose::STANDARD.decode(base64).expect("base64");
            assert!(std::str::from_utf8(&bytes).is_err(), "base64 of what is UTF-8: {entry}");
            OsStr::from_bytes(&bytes).to_owned()
        }
        None => entry["path"].as_str().expect("a path").into(),
    }
}

#[test]
fn odd_names_work_everywhere() {
    let scratch = mounted_scratch!();
    let names = odd_names();
    for name in &names {
        scratch.write(Path::new("odd").join(name), OLD);
    }
    let view = small(&scratch).start();
    let cli = |arguments: &[&OsStr]| -> Output {
        let mut command = scratch.fettlefs();
        command.current_dir(view.path("odd")).args(arguments).output().expect("the built program runs").into()
    };
    let word = OsStr::new;
    for name in &names {
        let path = Path::new("odd").join(name);
        let shown = name.to_string_lossy();
        view.write(&path, NEW);
        let held = view.only_held();
        assert_eq!(path_of(&held.json), path, "{shown}");
        // By its name, whatever is in it.
        let diff = cli(&[word("diff"), word("--json"), word("--"), name]).ok().json();
        assert_eq!(
            (path_of(&diff["changes"][0]), &diff["changes"][0]["id"]),
            (path.clone().into(), &held.json["id"]),
            "{shown}"
        );
        let discarded = cli(&[word("discard"), word("--json"), word("--"), name]).ok().json();
        assert_eq!(path_of(&discarded["outcomes"][0]), path, "{shown}");
        assert_eq!(scratch.try_read(&path).expect("it is there"), OLD.as_bytes());
        view.write(&path, NEW);
        // By its id.
        let confirmed = cli(&[word("confirm"), word("--json"), word(&view.only_held().id)]).ok().json();
        assert_eq!(path_of(&confirmed["outcomes"][0]), path, "{shown}");
        assert_eq!(scratch.try_read(&path).expect("it is there"), NEW.as_bytes());
        // The backup's name comes back as it was told, in JSON, as a file, and to rollback.
        let backups = cli(&[word("backups"), word("--json"), word("--"), name]).ok().json();
        assert_eq!(path_of(&backups["backups"][0]), path, "{shown}");
        let backup = backups["backups"][0]["name"].as_str().expect("a name");
        assert!(backup.len() <= 255, "{backup}");
        let kept =
            view.try_read(Path::new(".fettle/backups").join(backup)).unwrap_or_else(|err| panic!("{backup}: {err}"));
        assert_eq!(kept, OLD.as_bytes(), "{shown}");
        cli(&[word("rollback"), word("--"), word(backup)]).ok();
        assert_eq!(scratch.try_read(&path).expect("it is there"), OLD.as_bytes(), "{shown}");
        cli(&[word("rollback"), word("--to"), word("again"), word("--"), name]).ok();
        // Through a pipe the name's bytes stay as they are.
        let log = cli(&[word("log"), word("-n"), word("0"), word("--"), name]).ok().stdout_bytes;
        assert!(log.windows(name.len()).any(|bytes| bytes == name.as_bytes()), "{shown}");
    }
    let events = cli(&[word("log"), word("-n"), word("0"), word("--json")]).ok().json();
    let held_events =
        events["events"].as_array().expect("events").iter().filter(|event| event["event"] == "write_held");
    assert_eq!(held_events.filter(|event| path_of(event).as_bytes().starts_with(b"odd/")).count(), 2 * names.len());
}

#[test]
fn git_outside_neither_shows_nor_cleans_the_state() {
    drop(mounted_scratch!());
    // A repository from before the first mount, and one that came later.
    for already in [true, false] {
        let scratch = Scratch::new();
        if already {
            for path in ["src/a.rs", "src/b.rs", "notes.txt", "c.txt", "d.txt"] {
                scratch.write(path, OLD);
            }
            scratch.git_init();
        }
        let view = small(&scratch).start();
        if !already {
            scratch.git_init();
        }
        work(&view);
        let status =
            |expected: &str| assert_eq!(scratch.git(&["status", "--porcelain", "--ignored"]).ok().stdout, expected);
        status(" M notes.txt\n M src/a.rs\n D src/b.rs\n");
        scratch.git(&["clean", "-fdxq"]).ok();
        // `git init` makes a list of what is ignored, which is held like every such list.
        let held = if already { 2 } else { 3 };
        assert_eq!(view.held().len(), held);
        view.unmount();
        assert_eq!(scratch.git(&["status", "--porcelain"]).ok().stdout, " M notes.txt\n");
        scratch.git(&["clean", "-fdxq"]).ok();
        scratch.git(&["add", "-A"]).ok();
        assert_eq!(scratch.git(&["status", "--porcelain"]).ok().stdout, "M  notes.txt\n");
        scratch.git(&["stash", "-q", "--all"]).ok();
        scratch.git(&["stash", "pop", "-q"]).ok();
        let view = scratch.mount();
        assert_eq!(
            (view.held().len(), view.read("src/a.rs"), view.read("notes.txt")),
            (held, NEW.to_owned(), EDITED.to_owned())
        );
        let kept = view.cli(&["backups", "notes.txt", "--json"]).ok().json();
        let name = kept["backups"][0]["name"].as_str().expect("a backup");
        assert_eq!(view.read(format!(".fettle/backups/{name}")), OLD);
    }
}

#[test]
fn what_cannot_be_mounted_here_says_why() {
    let scratch = mounted_scratch!();
    if !rustix::process::geteuid().is_root() {
        return;
    }
    // In a mount namespace of its own, so that nothing of it is left.
    let within = |prepare: &'static str| {
        let scratch = &scratch;
        move |more: &[&str]| -> Output {
            let script = format!("{prepare} && exec \"$0\" mount project \"$@\"");
            let mut command = scratch.command("unshare");
            command.args(["--mount", "sh", "-c", &script]).arg(scratch.fettlefs().get_program()).args(more);
            command.current_dir(scratch.root()).output().expect("unshare runs").into()
        }
    };
    let read_only = within("mount --bind project project && mount -o remount,bind,ro project");
    let message = "[project] is on a read-only file system, and .fettle has to be made there: name another place by FETTLE_STATE_DIR";
    refused(&scratch, read_only, 6, "not_permitted", message);
    scratch.mount().unmount();
    let message = "[project] is on a read-only file system, and .fettle has to be written to: make it read-write, and what is held there can be reviewed";
    refused(&scratch, read_only, 6, "not_permitted", message);
    let no_fuse = within("mount -t tmpfs none /dev && : > /dev/null");
    let message = "there is no /dev/fuse: `modprobe fuse`, or `--device /dev/fuse` for a container";
    refused(&scratch, no_fuse, 1, "io", message);
}
