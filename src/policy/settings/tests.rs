use std::path::Path;

use super::*;
use crate::model::Digest;
use crate::policy::rules::{Action, HoldSource};

fn file(text: &str) -> SettingsFile {
    SettingsFile::parse(".fettle.toml", text.as_bytes()).expect(text)
}

fn refusal(text: &str) -> String {
    SettingsFile::parse(".fettle.toml", text.as_bytes()).unwrap_err().to_string()
}

fn mount() -> Settings {
    Settings::defaults()
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn settings(text: &str) -> Settings {
    Settings::layered(mount(), [&file(text).values]).expect(text)
}

#[test]
fn every_key_of_a_file_is_read() {
    let file = file(
        "floor = 5\nceil = 60\nratio = 0.5\nttl = \"10m\"\nwindow = \"session\"\nburst = 7\napprove = \"owner\"\n\
         on_hold = \"fail\"\n[risk]\nplaceholder = false\nconflict_markers = false\nprivate_key = false\ntoken = false\nexecutable = false\n\
         binary = false\n[hooks]\npre_write = [\"check\", \"-x\"]\ntimeout = \"90s\"\n[backups]\nmax_age = \"7d\"\nmax_per_path = 3\n\
         quota = \"16MiB\"\n[limits]\nupper = \"1GiB\"\nheld = 50\nopen = 0\n[[rule]]\nmatch = \"docs/\"\nexe = \"vim\"\naction = \"hold\"\n[[rule]]\nmatch = \"x\"\n\
         action = \"pass\"\n",
    );
    let settings = Settings::layered(mount(), [&file.values]).unwrap();
    assert_eq!(settings.thresholds, Thresholds { floor: 5, ceil: 60, ratio: 0.5 });
    assert_eq!((settings.ttl, settings.window), (Ttl::After(seconds(600)), Window::Session));
    assert_eq!((settings.burst, settings.approve, settings.on_hold), (7, Approve::Owner, OnHold::Fail));
    let off = RiskSwitches {
        placeholder: false,
        conflict_markers: false,
        private_key: false,
        token: false,
        executable: false,
        binary: false,
    };
    assert_eq!(settings.risk, off);
    assert_eq!(settings.pre_write, [["check", "-x"]]);
    assert_eq!(settings.hook_timeout, seconds(90));
    let backups = BackupLimits { age_max: Some(seconds(7 * 86400)), per_path_max: 3, quota_bytes: 16 << 20 };
    assert_eq!(settings.backups, backups);
    assert_eq!(settings.limits, Limits { upper_bytes: 1 << 30, held: 50, open: 0 });
    let rules: Vec<_> = file.rules.iter().map(|rule| (rule.pattern.as_str(), rule.action, rule.at.as_str())).collect();
    assert_eq!(
        rules,
        [("docs/", Action::Hold(HoldSource::Rule), ".fettle.toml:27"), ("x", Action::Pass, ".fettle.toml:31")]
    );
    assert_eq!(file.rules[0].exe.as_deref(), Some("vim"));
    for &key in Key::ALL {
        assert!(matches!(settings.origin(key), Origin::File { .. }), "{}", key.name());
    }
}

#[test]
fn values_may_be_written_in_several_ways() {
    for (text, key, same) in [
        ("ttl = 0", Key::Ttl, "ttl = \"0s\""),
        ("ttl = 120", Key::Ttl, "ttl = \"2m\""),
        ("window = 0", Key::Window, "window = \"0\""),
        ("window = 2", Key::Window, "window = \"2000ms\""),
        ("ratio = 1", Key::Ratio, "ratio = 1.0"),
        ("backups.quota = 1024", Key::BackupQuota, "backups.quota = \"1KiB\""),
        ("limits.upper = 1048576", Key::LimitUpper, "limits.upper = \"1MiB\""),
        ("hooks.pre_write = [[\"a\"], [\"b\", \"c d\"]]", Key::PreWrite, "hooks.pre_write = [['a'], ['b', 'c d']]"),
        ("hooks.pre_write = \"a b\"", Key::PreWrite, "hooks.pre_write = ['a', 'b']"),
        ("hooks.pre_write = []", Key::PreWrite, ""),
    ] {
        let (one, other) = (settings(text), settings(same));
        assert!(!looser(key, &one, &other) && !looser(key, &other, &one), "{text} / {same}");
    }
    assert_eq!(settings("ttl = 0").ttl, Ttl::Never);
    assert_eq!(settings("window = 0").window, Window::Each);
    assert_eq!(settings("hooks.pre_write = [['a'], ['b', 'c d']]").pre_write, [vec!["a"], vec!["b", "c d"]]);
}

#[test]
fn what_a_file_may_not_say_is_named_with_its_line() {
    for (text, want) in [
        ("floor = 1\n[rule]\nmatch = 'a'", ".fettle.toml:2: a rule begins with `[[rule]]`, in double brackets"),
        ("\nfloor = -1", ".fettle.toml:2: floor = \"-1\": must be a whole number from 0 to 1000000"),
        ("ceil = 1000001", ".fettle.toml:1: ceil = \"1000001\": must be a whole number from 0 to 1000000"),
        ("ceil = 1.5", ".fettle.toml:1: ceil = \"1.5\": must be a whole number from 0 to 1000000"),
        ("ratio = 1.01", ".fettle.toml:1: ratio = \"1.01\": must be 0 to 1"),
        ("ratio = nan", ".fettle.toml:1: ratio = \"nan\": must be 0 to 1"),
        ("ttl = \"10 minutes\"", ".fettle.toml:1: ttl = \"10 minutes\": must be 0 to 365d"),
        ("window = \"366d\"", ".fettle.toml:1: window = \"366d\": must be \"session\""),
        ("approve = \"all\"", ".fettle.toml:1: approve = \"all\": must be anyone, owner or outside"),
        ("on_hold = true", ".fettle.toml:1: on_hold = \"true\": must be continue or fail"),
        ("[risk]\n\ntoken = 1", ".fettle.toml:3: risk.token = \"1\": must be true or false"),
        ("hooks.pre_write = [['a'], []]", ".fettle.toml:1: hooks.pre_write = "),
        ("hooks.pre_write = ['']", ".fettle.toml:1: hooks.pre_write = "),
        ("hooks.pre_write = ['a', ['b']]", ".fettle.toml:1: hooks.pre_write = "),
        ("backups.quota = \"1GB\"", ".fettle.toml:1: backups.quota = \"1GB\": must be a size"),
        ("floor = 1\nflor = 2", ".fettle.toml:2: unknown field `flor`"),
        ("[risk]\nplaceholders = false", ".fettle.toml:2: unknown field `placeholders`"),
        ("[[rule]]\nmatch = 'a'\naction = 'hold'\nexes = 'b'", ".fettle.toml:4: unknown field `exes`"),
        ("[[rule]]\nmatch = 'a'\naction = 'allow'", ".fettle.toml:3: action = \"allow\": must be auto, pass"),
        ("rule = [['a', '', 'pass']]", ".fettle.toml:1: invalid type: sequence, expected an object"),
        ("risk = [false]", ".fettle.toml:1: invalid type: sequence, expected an object"),
        ("\nhooks = [['a'], '5s']", ".fettle.toml:2: invalid type: sequence, expected an object"),
        ("backups = ['1h']", ".fettle.toml:1: invalid type: sequence, expected an object"),
        ("limits = ['1GiB']", ".fettle.toml:1: invalid type: sequence, expected an object"),
        ("[[rule]]\nmatch = 'a'", ".fettle.toml:1: missing field `action`"),
        ("floor = 1\nceil =", ".fettle.toml:2: "),
        ("floor = 1\nfloor = 2", ".fettle.toml:2: duplicate key"),
    ] {
        let err = refusal(text);
        assert!(err.starts_with(want) && !err.contains('\n'), "{text:?}: {err}");
    }
    let err = SettingsFile::parse("config.toml", b"floor = 1\n\xff").unwrap_err();
    assert_eq!(err.to_string(), "config.toml:2: not UTF-8");
}

#[test]
fn a_flag_beats_the_environment_beats_the_project_beats_the_user() {
    let user = file("floor = 1\nceil = 101\nburst = 1\nratio = 0.1").values;
    let project = file("floor = 2\nceil = 102\nburst = 2").values;
    let environment = |name: &str| match name {
        "FETTLE_WRITE_FLOOR" => Some(OsString::from("3")),
        "FETTLE_WRITE_CEIL" => Some(OsString::from("103")),
        _ => None,
    };
    let environment = Layer::environment(environment).unwrap();
    let flags = Layer::flags([(Key::Floor, "4".to_owned())]).unwrap();
    let settings = Settings::layered(mount(), [&user, &project, &environment, &flags]).unwrap();
    assert_eq!(settings.thresholds, Thresholds { floor: 4, ceil: 103, ratio: 0.1 });
    assert_eq!((settings.burst, settings.ttl), (2, mount().ttl));
    for (key, want) in [
        (Key::Floor, "--floor"),
        (Key::Ceil, "FETTLE_WRITE_CEIL"),
        (Key::Burst, ".fettle.toml:3"),
        (Key::Ratio, ".fettle.toml:4"),
        (Key::Ttl, "default"),
    ] {
        assert_eq!(settings.origin(key).to_string(), want);
    }
}

#[test]
fn a_bad_variable_or_flag_is_named() {
    let err = |value: &str| {
        Layer::environment(|name| (name == "FETTLE_WRITE_STAGE_TTL").then(|| value.into())).unwrap_err().to_string()
    };
    assert!(err("soon").starts_with("FETTLE_WRITE_STAGE_TTL: ttl = \"soon\": must be 0 to 365d"));
    assert!(err("").starts_with("FETTLE_WRITE_STAGE_TTL: ttl = \"\": "));
    let err = Layer::flags([(Key::Ratio, "2".to_owned())]).unwrap_err();
    assert_eq!(err.to_string(), "--ratio: ratio = \"2\": must be 0 to 1");
}

#[test]
fn floor_must_be_below_ceil_when_all_is_merged() {
    let project = file("floor = 90").values;
    let err = Settings::layered(mount(), [&project]).unwrap_err();
    assert_eq!(err.to_string(), "floor = 90 (.fettle.toml:1) must be below ceil = 80 (default)");
    let flags = Layer::flags([(Key::Ceil, "91".to_owned())]).unwrap();
    assert!(Settings::layered(mount(), [&project, &flags]).is_ok());
    assert!(Settings::layered(mount(), [&file("floor = 5\nceil = 5").values]).is_err());
}

#[test]
fn an_untrusted_project_may_tighten_each_value_and_loosen_none() {
    for (tighter, looser) in [
        ("floor = 5", "floor = 11"),
        ("limits.upper = '1MiB'", "limits.upper = 0"),
        ("limits.held = 100", "limits.held = 100001"),
        ("limits.open = 9", "limits.open = 0"),
        ("ceil = 79", "ceil = 81"),
        ("ratio = 0.3", "ratio = 0.41"),
        ("ttl = 60", "ttl = 0"),
        ("ttl = 599", "ttl = 601"),
        ("window = 3", "window = 1"),
        ("window = \"session\"", "window = 0"),
        ("burst = 3", "burst = 21"),
        ("approve = \"outside\"", "approve = \"anyone\""),
        ("on_hold = \"continue\"", "hooks.pre_write = ['rm']"),
        ("on_hold = \"fail\"", "risk.token = false"),
        ("burst = 4", "hooks.timeout = '1h'"),
        ("risk.binary = true", "risk.placeholder = false"),
        ("backups.quota = \"2GiB\"", "backups.quota = 0"),
        ("backups.max_age = 0", "backups.max_age = 1"),
        ("backups.max_per_path = 100", "backups.max_per_path = 99"),
    ] {
        let defaults = Settings { approve: Approve::Owner, ..Settings::defaults() };
        let (kept, notes) = untrusted(file(tighter), &Layer::default(), &defaults);
        assert_eq!((kept, notes), (file(tighter), vec![]), "{tighter}");
        let (kept, notes) = untrusted(file(looser), &Layer::default(), &defaults);
        assert_eq!(kept, SettingsFile::default(), "{looser}");
        let key = looser.split(' ').next().unwrap();
        assert!(notes.len() == 1 && notes[0].starts_with(&format!(".fettle.toml:1: {key} = ")), "{notes:?}");
    }
}

#[test]
fn an_untrusted_project_cannot_undo_what_the_user_tightened() {
    let user = file("ceil = 40\nratio = 0.9\nhooks.pre_write = ['mine']\nbackups.max_age = 0").values;
    let text = "ceil = 60\nratio = 0.8\n[hooks]\npre_write = []\n[backups]\nmax_age = \"300d\"";
    let (kept, notes) = untrusted(file(text), &user, &mount());
    let settings = Settings::layered(mount(), [&user, &kept.values]).unwrap();
    assert_eq!(settings.thresholds, Thresholds { floor: 10, ceil: 40, ratio: 0.8 });
    assert_eq!((settings.pre_write, settings.backups.age_max), (vec![vec!["mine".to_owned()]], None));
    assert_eq!(notes.len(), 3);
}

#[test]
fn an_untrusted_project_lets_nobody_decide_who_is_in_a_run_and_that_is_told() {
    let told = |user: &str, text: &str| {
        let (kept, notes) = untrusted(file(text), &file(user).values, &Settings::defaults());
        (kept == file(text), notes)
    };
    let ignored = |what: &str| vec![format!(".fettle.toml:1: approve = {what}")];
    assert_eq!(told("", "approve = 'anyone'"), (true, ignored("anyone, for who is in a run")));
    assert_eq!(told("", "approve = 'owner'"), (true, ignored("owner, for who is in a run")));
    assert_eq!(told("", "approve = 'outside'"), (true, Vec::new()));
    assert_eq!(told("approve = 'owner'", "approve = 'anyone'"), (false, ignored("anyone")), "for nobody");
    assert_eq!(told("approve = 'owner'", "approve = 'owner'"), (true, Vec::new()), "the user's own word");
}

#[test]
fn rules_without_force_are_told() {
    let text = "[[rule]]\nmatch = 'out/'\naction = 'pass'\n[[rule]]\nmatch = 'docs/'\naction = 'auto'\n\
        [[rule]]\nmatch = 'AGENTS.md'\naction = 'auto'\n[[rule]]\nmatch = '.vscode/'\naction = 'auto'\n\
        [[rule]]\nmatch = '*.rs'\naction = 'hold'\n";
    let (kept, notes) = untrusted(file(text), &Layer::default(), &mount());
    assert_eq!(kept.rules.len(), 5);
    let want = [
        ".fettle.toml:1: rule \"out/\": pass",
        ".fettle.toml:7: rule \"AGENTS.md\": auto, for sensitive paths",
        ".fettle.toml:10: rule \".vscode/\": auto, for sensitive paths",
    ];
    assert_eq!(notes, want);
}

#[test]
fn trust_is_kept_by_content_and_path() {
    let (one, other) = (Digest::of(b"one"), Digest::of(b"other"));
    let [a, b, odd] = ["/p/a", "/p/b", "/p/new\nline\\"].map(Path::new);
    let text = with_trust(&with_trust(&with_trust(b"# a remark\n", a, one), b, one), odd, other);
    assert_eq!(text, format!("# a remark\n{one}  /p/a\n{one}  /p/b\n{other}  /p/new\\nline\\\\\n").into_bytes());
    for (project, digest, want) in
        [(a, one, true), (a, other, false), (b, one, true), (odd, other, true), (odd, one, false)]
    {
        assert_eq!(is_trusted(&text, project, digest), want, "{project:?} {digest}");
    }
    // A file has one content at a time, and a hash alone trusts nothing.
    let changed = with_trust(&text, a, other);
    assert!(is_trusted(&changed, a, other) && !is_trusted(&changed, a, one) && is_trusted(&changed, b, one));
    assert!(!is_trusted(format!("{one}\n").as_bytes(), a, one));
    assert!(!is_trusted(&without_trust(&text, b), b, one));
    assert_eq!(without_trust(&text, Path::new("a")), text);
}
