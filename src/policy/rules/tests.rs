use super::*;
use std::process::Command;

const SENSITIVE: Action = Action::Hold(HoldSource::Sensitive);
const RULE: Action = Action::Hold(HoldSource::Rule);

fn path(text: &str) -> RelPath {
    RelPath::parse(text.as_bytes()).expect(text)
}

fn rule(pattern: &str, action: Action) -> Rule {
    Rule { pattern: pattern.to_owned(), exe: None, action, at: ".fettle.toml:1".to_owned() }
}

fn exe_rule(pattern: &str, exe: &str, action: Action) -> Rule {
    Rule { exe: Some(exe.to_owned()), ..rule(pattern, action) }
}

fn rules(project: &[Rule]) -> RuleSet {
    RuleSet::compile(&[], project, Trust::Trusted).unwrap()
}

/// A path that ends in a slash is a directory, one that ends in `@` a symlink.
fn ask(rules: &RuleSet, text: &str, exe: Option<&str>, ignored: Option<&str>) -> Action {
    let entry = match text.as_bytes().last() {
        Some(b'/') => Entry::Dir,
        Some(b'@') => Entry::Symlink,
        _ => Entry::File,
    };
    let (subject, ignored) = (path(text.trim_end_matches(['/', '@'])), ignored.map(path));
    rules.action(&Place { path: &subject, entry, ignored: ignored.as_ref() }, exe.map(OsStr::new))
}

fn check_all(rules: &RuleSet, table: &[(&str, Action)]) {
    for (subject, want) in table {
        assert_eq!(ask(rules, subject, None, None), *want, "{subject}");
    }
}

#[test]
fn sensitive_paths_hold_at_any_depth_and_in_any_case() {
    let held = [
        ".fettle.toml",
        ".FETTLE.toml",
        ".gitignore",
        "a/b/.gitignore",
        ".claude/settings.json",
        ".Claude/settings.json",
        ".claude/a/b",
        "sub/.claude/x",
        ".cursor/rules",
        ".codex/config.toml",
        ".vscode/tasks.json",
        "pkg/.VSCode/tasks.json",
        ".mcp.json",
        "AGENTS.md",
        "docs/AGENTS.md",
        "agents.md",
        "CLAUDE.md",
        "a/claude.MD",
        ".envrc",
        ".husky/pre-commit",
        "sub/.fettle/stage/1",
        ".husky/_/husky.sh",
        ".github/workflows/ci.yml",
        ".GitHub/Workflows/ci.yml",
        ".gitlab-ci.yml",
        ".cargo/config.toml",
        ".cargo/config",
        "crates/a/.cargo/config.toml",
        ".c\u{200d}laude/x",
        "AGENT\u{17f}.md",
        ".vscode\u{feff}/tasks.json",
    ];
    for subject in held {
        assert_eq!(ask(&rules(&[]), subject, None, None), SENSITIVE, "{subject:?}");
    }
}

#[test]
fn what_only_looks_sensitive_is_judged() {
    let auto = [
        "claude/settings.json",
        "x.claude/settings.json",
        ".claude/",
        ".vscode/",
        "MY_AGENTS.md",
        "AGENTS.md.bak",
        ".github/CODEOWNERS",
        "workflows/ci.yml",
        ".cargo/registry",
        "config.toml",
        ".env",
        ".gitattributes",
        ".github/",
        "src/main.rs",
        "hooks/pre-commit",
        "modules/a/hooks/x",
        "gitignore",
    ];
    for subject in auto {
        assert_eq!(ask(&rules(&[]), subject, None, None), Action::Auto, "{subject:?}");
    }
}

#[test]
fn a_symlink_in_the_place_of_a_sensitive_directory_holds() {
    check_all(
        &rules(&[]),
        &[
            (".claude@", SENSITIVE),
            (".cargo@", SENSITIVE),
            (".github@", SENSITIVE),
            (".github/workflows@", SENSITIVE),
            (".git@", SENSITIVE),
            (".git/hooks@", SENSITIVE),
            (".git/info@", SENSITIVE),
            (".git/config@", SENSITIVE),
            (".git/config.worktree@", SENSITIVE),
            (".git/modules@", SENSITIVE),
            (".git/modules/a@", SENSITIVE),
            (".git/modules/a/modules/b@", SENSITIVE),
            (".git/modules/a/config@", SENSITIVE),
            (".git/worktrees@", SENSITIVE),
            (".git/worktrees/w@", SENSITIVE),
            (".git/worktrees/w/modules/a@", SENSITIVE),
            ("AGENTS.md@", SENSITIVE),
            ("src@", Action::Auto),
            ("cargo@", Action::Auto),
            (".git/HEAD@", Action::Pass),
        ],
    );
}

#[test]
fn a_git_directory_passes_but_for_what_runs_programs() {
    check_all(
        &rules(&[]),
        &[
            (".git/", Action::Pass),
            ("sub/.git/", Action::Pass),
            (".git", SENSITIVE),
            ("sub/.git", SENSITIVE),
            ("sub/.GIT", SENSITIVE),
            (".git/index", Action::Pass),
            (".git/objects/ab/cdef", Action::Pass),
            (".git/hooks/", Action::Pass),
            (".git/info/", Action::Pass),
            (".git/info/attributes", Action::Pass),
            (".git/hooks/pre-commit.sample", Action::Pass),
            (".git/config.lock", Action::Pass),
            (".git/refs/heads/config", Action::Pass),
            (".git/refs/heads/hooks/x", Action::Pass),
            (".git/AGENTS.md", SENSITIVE),
            (".git/hooks/pre-commit", SENSITIVE),
            (".git/hooks/sub/x", SENSITIVE),
            (".GIT/hooks/x", SENSITIVE),
            (".git/HOOKS/x", SENSITIVE),
            ("sub/.git/hooks/pre-commit", SENSITIVE),
            (".git/info/exclude", SENSITIVE),
            ("sub/.git/info/exclude", SENSITIVE),
            (".git/commondir", SENSITIVE),
            (".git/config", Action::GitConfig),
            (".Git/Config", Action::GitConfig),
            ("sub/.git/config", Action::GitConfig),
            (".git/config.worktree", Action::GitConfig),
            (".git/worktrees/w/config.worktree", Action::GitConfig),
            (".git/worktrees/w/HEAD", Action::Pass),
            (".git/worktrees/w/commondir", SENSITIVE),
            (".git/worktrees/w/modules/a/config", Action::GitConfig),
            (".GIT/index", Action::Auto),
        ],
    );
}

#[test]
fn a_submodules_git_directory_is_guarded_like_the_projects() {
    check_all(
        &rules(&[]),
        &[
            (".git/modules/", Action::Pass),
            (".git/modules/a/", Action::Pass),
            (".git/modules/a/HEAD", Action::Pass),
            (".git/modules/a/hooks/", Action::Pass),
            (".git/modules/a/hooks/x", SENSITIVE),
            (".git/modules/a/hooks/x.sample", Action::Pass),
            (".git/modules/libs/b/hooks/x", SENSITIVE),
            (".git/modules/a/modules/b/hooks/x", SENSITIVE),
            (".git/modules/a/config", Action::GitConfig),
            (".git/modules/libs/b/config", Action::GitConfig),
            (".git/modules/a/modules/b/config", Action::GitConfig),
            (".git/modules/a/info/exclude", SENSITIVE),
            (".git/modules/a/refs/heads/hooks/x", Action::Pass),
            (".git/modules/a/refs/heads/x/info/exclude", Action::Pass),
            (".git/modules/a/logs/refs/heads/hooks/x", Action::Pass),
            (".git/modules/a/logs/HEAD", Action::Pass),
            (".git/modules/a/objects/ab/cdef", Action::Pass),
            (".git/modules/a/lfs/cache/locks/refs/heads/hooks/verifiable", Action::Pass),
            // A branch, or that of a submodule `a/refs/heads`: its content tells.
            (".git/modules/a/refs/heads/config", Action::GitConfig),
            (".git/modules/a/logs/refs/heads/config", Action::GitConfig),
            (".git/modules/a/refs/heads/hooks/pre-commit", SENSITIVE),
            (".git/modules/a/refs/heads/commondir", SENSITIVE),
        ],
    );
}

#[test]
fn a_submodule_may_be_called_like_a_part_of_a_git_directory() {
    for name in ["logs", "refs", "objects", "lfs", "logs/refs", "refs/heads"] {
        let dir = format!(".git/modules/lib/{name}");
        check_all(
            &rules(&[]),
            &[
                (&format!("{dir}/config"), Action::GitConfig),
                (&format!("{dir}/config.worktree"), Action::GitConfig),
                (&format!("{dir}/hooks/pre-commit"), SENSITIVE),
                (&format!("{dir}/hooks/pre-commit.sample"), Action::Pass),
                (&format!("{dir}/commondir"), SENSITIVE),
                (&format!("{dir}/modules/b/config"), Action::GitConfig),
                (&format!("{dir}/HEAD"), Action::Pass),
                (&format!("{dir}@"), SENSITIVE),
            ],
        );
    }
}

#[test]
fn a_branch_called_config_and_its_log_are_no_configs() {
    let object = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391";
    let log = format!("{object} {object} a <a@b> 1 +0000\tcommit\n[core]\npager = x\n");
    let text = format!("{object}\n[core]\npager = x\n");
    for (content, want) in [
        (format!("{object}\n"), None),
        (log, None),
        (text, Some("core.pager")),
        (format!("{object} = x\n[core]\npager = x\n"), Some("core.pager")),
        ("abc abc\n".to_owned(), Some("(unreadable)")),
    ] {
        let branch = path(".git/modules/a/refs/heads/config");
        let found = risky_git_config_change(&branch, b"", content.as_bytes());
        assert_eq!(found.as_deref(), want, "{content:?}");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &content).unwrap();
        let git = Command::new("git").args(["config", "--list", "--file"]).arg(file.path()).output().unwrap();
        assert!(want.is_some() || !git.stdout.contains(&b'.'), "git finds a key in {content:?}");
    }
}

#[test]
fn an_ignored_directory_passes_unless_it_is_sensitive_itself() {
    for (subject, ignored, want) in [
        ("target/debug/a", "target", Action::Pass),
        ("target/", "target", Action::Pass),
        ("node_modules/p/AGENTS.md", "node_modules", Action::Pass),
        ("node_modules/p/.vscode/tasks.json", "node_modules", Action::Pass),
        ("build/c/.git/hooks/x", "build", Action::Pass),
        (".vscode/tasks.json", ".vscode", SENSITIVE),
        ("a/.claude/x/y", "a/.claude/x", SENSITIVE),
        (".cargo/config.toml", ".cargo", SENSITIVE),
        (".cargo/bin/x", ".cargo", Action::Pass),
    ] {
        assert_eq!(ask(&rules(&[]), subject, None, Some(ignored)), want, "{subject}");
    }
    let held = rules(&[rule("*.key", RULE)]);
    assert_eq!(ask(&held, "target/a.key", None, Some("target")), RULE, "a rule comes after what is built in");
}

#[test]
fn the_last_rule_that_matches_a_path_or_a_directory_above_it_wins() {
    let rules = rules(&[
        rule("docs/", RULE),
        rule("docs/*.md", Action::Auto),
        rule("/gen", Action::Pass),
        rule("*.lock", Action::Deny),
        rule("gen/keep.lock", Action::Freeze),
        rule("a/**/z", RULE),
        rule("vendor/**", Action::Deny),
    ]);
    check_all(
        &rules,
        &[
            ("docs/a.txt", RULE),
            ("docs/", RULE),
            ("docs", Action::Auto),
            ("docs/deep/a.md", RULE),
            ("docs/a.md", Action::Auto),
            ("gen/x/y", Action::Pass),
            ("sub/gen/x", Action::Auto),
            ("gen/a.lock", Action::Deny),
            ("Cargo.lock", Action::Deny),
            ("Cargo.LOCK", Action::Auto),
            ("gen/keep.lock", Action::Freeze),
            ("a/b/c/z", RULE),
            ("a/z/below", RULE),
            ("vendor/", Action::Auto),
            ("vendor/x", Action::Deny),
            ("docs/CLAUDE.md", Action::Auto),
            ("docs/sub/CLAUDE.md", SENSITIVE),
        ],
    );
}

#[test]
fn a_trusted_project_relaxes_sensitive_paths_but_not_its_own_settings() {
    let rules = rules(&[rule("*", Action::Pass)]);
    check_all(
        &rules,
        &[
            ("AGENTS.md", Action::Pass),
            (".git/hooks/x", Action::Pass),
            (".git/config", Action::Pass),
            (".fettle.toml", SENSITIVE),
            ("sub/.fettle.toml", Action::Pass),
        ],
    );
    let frozen = RuleSet::compile(&[], &[rule(".fettle.toml", Action::Freeze)], Trust::Trusted).unwrap();
    assert_eq!(ask(&frozen, ".fettle.toml", None, None), Action::Freeze);
}

#[test]
fn an_untrusted_project_only_tightens() {
    let user = [rule("secret/", Action::Deny), rule("out/", Action::Pass)];
    let project = [
        rule("*", RULE),
        rule("docs/", Action::Pass),
        rule("AGENTS.md", Action::Auto),
        rule(".git/config", Action::Auto),
        rule("secret/", Action::Auto),
        rule("keys/", Action::Freeze),
        rule("out/", Action::Auto),
    ];
    let rules = RuleSet::compile(&user, &project, Trust::Untrusted).unwrap();
    check_all(
        &rules,
        &[
            ("src/a", RULE),
            ("docs/a", Action::Auto),
            ("AGENTS.md", SENSITIVE),
            (".git/config", Action::GitConfig),
            ("secret/a", Action::Deny),
            ("keys/a", Action::Freeze),
            ("out/a", Action::Auto),
        ],
    );
    let trusted = RuleSet::compile(&user, &project, Trust::Trusted).unwrap();
    check_all(&trusted, &[("docs/a", Action::Pass), ("AGENTS.md", Action::Auto), ("secret/a", Action::Auto)]);
}

#[test]
fn a_rule_for_a_program_tightens_and_never_loosens() {
    let rules = rules(&[
        rule("held", RULE),
        exe_rule("held", "vim", Action::Auto),
        exe_rule("src/", "python3*", Action::Deny),
        exe_rule("lib/", "/usr/bin/*", RULE),
        exe_rule("AGENTS.md", "*", Action::Pass),
    ]);
    for (subject, exe, want) in [
        ("held", Some("/usr/bin/vim"), RULE),
        ("src/a", Some("/usr/bin/python3.13"), Action::Deny),
        ("src/a", Some("/usr/bin/perl"), Action::Auto),
        ("lib/a", Some("/usr/bin/perl"), RULE),
        ("lib/a", Some("/usr/bin/x/perl"), Action::Auto),
        ("AGENTS.md", Some("/bin/sh"), SENSITIVE),
        ("src/a", None, Action::Deny),
    ] {
        assert_eq!(ask(&rules, subject, exe, None), want, "{subject} by {exe:?}");
    }
}

#[test]
fn a_rule_that_cannot_work_is_refused_with_its_place() {
    for (pattern, exe, want) in [
        ("!keep", None, "negation"),
        ("", None, "matches nothing"),
        ("/", None, "matches nothing"),
        ("./src/**", None, "match = \"./src/**\": matches nothing"),
        ("../src", None, "matches nothing"),
        ("src/../a", None, "matches nothing"),
        ("a/./b", None, "matches nothing"),
        ("a//b", None, "matches nothing"),
        ("a//", None, "matches nothing"),
        ("..", None, "matches nothing"),
        (&"*/".repeat(64), None, "has more than 64 names"),
        ("# x", None, "comment"),
        ("a[", None, "match: "),
        ("a{b", None, "match: "),
        ("ok", Some("a["), "exe: "),
        ("ok", Some(""), "exe = \"\": matches nothing"),
    ] {
        let rule = Rule { exe: exe.map(str::to_owned), ..rule(pattern, RULE) };
        let err = RuleSet::compile(&[], &[rule], Trust::Untrusted).unwrap_err().to_string();
        assert!(err.starts_with(".fettle.toml:1: ") && err.contains(want), "{pattern:?}: {err}");
    }
}

#[test]
fn a_rule_that_nothing_could_compile_is_refused_with_its_place() {
    let nested = |depth: usize| format!("{}a{}", "{".repeat(depth), "}".repeat(depth));
    let (many_braces, long) =
        ("a glob or pattern may have 32 of `{` at most", "a glob or pattern may have 4096 bytes at most");
    for (pattern, exe, want) in [
        (nested(300), None, format!("match: {many_braces}")),
        (nested(100_000), None, format!("match: {long}")),
        ("a/".repeat(50_000) + "b", None, format!("match: {long}")),
        ("ok".to_owned(), Some(nested(300)), format!("exe: {many_braces}")),
        ("ok".to_owned(), Some(nested(100_000)), format!("exe: {long}")),
    ] {
        let rule = Rule { exe, ..rule(&pattern, RULE) };
        let refused = RuleSet::compile(&[], &[rule], Trust::Untrusted).unwrap_err();
        assert_eq!(refused.to_string(), format!(".fettle.toml:1: {want}"));
    }
    let deepest = rules(&[exe_rule(&nested(32), &nested(32), Action::Deny)]);
    assert_eq!(ask(&deepest, "sub/a", Some("/bin/a"), None), Action::Deny);
    assert_eq!(ask(&deepest, "sub/a", Some("/bin/b"), None), Action::Auto);
}

#[test]
fn only_directories_that_a_frozen_pattern_may_reach_need_a_look() {
    for (pattern, dir, want) in [
        ("a/b/c", "a", true),
        ("a/b/c", "a/b", true),
        ("/a/b/", "a/b/c", true),
        ("a/b/c", "a/x", false),
        ("a/b/c", "b", false),
        ("a/*/c", "a/x", true),
        ("a/*/c", "b", false),
        ("/top", "other", false),
        ("*.key", "anything", true),
        ("**/x/y", "anything", true),
        ("a/\\*", "a", true),
        ("a/b/c", "", true),
    ] {
        assert_eq!(rules(&[rule(pattern, Action::Freeze)]).may_freeze_below(&path(dir)), want, "{pattern} {dir}");
        assert!(!rules(&[rule(pattern, Action::Deny)]).may_freeze_below(&path(dir)));
    }
}

#[test]
fn a_symlink_bears_what_rules_say_of_anything_below_it() {
    for (pattern, link, want) in [
        ("mig/**", "mig", true),
        ("mig/", "mig", true),
        ("mig/", "sub/mig", true),
        ("/mig/", "sub/mig", false),
        ("/den/x", "den", true),
        ("/den/x", "den/y", false),
        ("/den/x", "sub/den", false),
        ("a/b/c", "a", true),
        ("a/b/c", "a/b", true),
        ("a/b/c", "b", false),
        ("a/*/c", "a/x", true),
        ("a/*/c", "a/x/y", false),
        ("src/*.rs", "src/x", false),
        ("src/**/*.rs", "src/x/y", true),
        ("**/keys/prod", "sub/keys", true),
        ("**/keys/prod", "sub", false),
        ("{a/b,c}/d", "a", true),
        // Where the link leads they are covered as they are.
        ("*.key", "x", false),
        ("**/x", "a", false),
    ] {
        for says in [RULE, Action::Deny, Action::Freeze] {
            let rules = rules(&[rule(pattern, says)]);
            let want = if want { says } else { Action::Auto };
            assert_eq!(ask(&rules, &format!("{link}@"), None, None), want, "{pattern} {link}");
            assert_eq!(ask(&rules, "other@", None, None), if pattern.contains('{') { says } else { Action::Auto });
        }
    }
    let several = [rule("mig/**", Action::Freeze), rule("mig/x", RULE), rule("mig", Action::Pass)];
    check_all(&rules(&several), &[("mig@", Action::Freeze), ("mig/", Action::Pass), ("mig", Action::Pass)]);
    let by_program = rules(&[exe_rule("mig/**", "claude", Action::Deny), rule("pas/x", Action::Auto)]);
    assert_eq!(ask(&by_program, "mig@", Some("/bin/claude"), None), Action::Deny);
    assert_eq!(ask(&by_program, "mig@", Some("/bin/sh"), None), Action::Auto);
    assert_eq!(ask(&by_program, "pas@", None, Some("pas")), Action::Pass);
}

fn risky(old: &str, new: &str) -> Option<String> {
    risky_git_config_change(&path(".git/config"), old.as_bytes(), new.as_bytes())
}

#[test]
fn a_key_that_runs_a_program_is_found_however_it_is_written() {
    for (text, want) in [
        ("[core]\n\thooksPath = x\n", "core.hookspath"),
        ("[CORE] HooksPath=x", "core.hookspath"),
        ("[core]hookspath", "core.hookspath"),
        ("\u{feff}[core]\r\n\tfsmonitor = x\r\n", "core.fsmonitor"),
        ("[a]\nb = \"x\\\n[core]\" \n[core]\npager = p", "core.pager"),
        ("[a]\nb = x ; [core] \\\n[core]\nsshCommand = p", "core.sshcommand"),
        ("[a] ; comment\n# [core]\n[core] # x\neditor = p", "core.editor"),
        ("[alias]\nst = status", "alias.st"),
        ("[alias \"x\"]\ncommand = y", "alias.x.command"),
        ("[filter \"A.b\"]\nclean = x", "filter.A.b.clean"),
        ("[filter.lfs]\nsmudge = x", "filter.lfs.smudge"),
        ("[filter \"q\\\"uote\\]\"]\nprocess = x", "filter.q\"uote].process"),
        ("[diff]\nexternal = x", "diff.external"),
        ("[diff \"d\"]\ntextconv = x", "diff.d.textconv"),
        ("[diff \"d\"]\ncommand = x", "diff.d.command"),
        ("[merge \"m\"]\ndriver = x", "merge.m.driver"),
        ("[credential]\nhelper = x", "credential.helper"),
        ("[credential \"https://a.b\"]\nhelper = x", "credential.https://a.b.helper"),
        ("[include]\npath = x", "include.path"),
        ("[includeIf \"gitdir:~/x/\"]\npath = x", "includeif.gitdir:~/x/.path"),
        ("[gpg]\nprogram = x", "gpg.program"),
        ("[gpg \"ssh\"]\nprogram = x", "gpg.ssh.program"),
        ("[gpg \"ssh\"]\ndefaultKeyCommand = x", "gpg.ssh.defaultkeycommand"),
        ("[remote \"o\"]\nuploadpack = x", "remote.o.uploadpack"),
        ("[protocol \"ext\"]\nallow = always", "protocol.ext.allow"),
        ("[url \"a\"]\ninsteadOf = b", "url.a.insteadof"),
        ("[submodule \"s\"]\nupdate = !x", "submodule.s.update"),
        ("[core]\nworktree = /", "core.worktree"),
        ("[core]\nworktree = ../..", "core.worktree"),
        ("[core]\nattributesFile = x\nbare = false", "core.attributesfile"),
        ("[pager]\nlog = x", "pager.log"),
        ("[hook \"a\"]\ncommand = x", "hook.a.command"),
        ("[sequence]\neditor = x", "sequence.editor"),
        ("[mergetool \"m\"]\ncmd = x", "mergetool.m.cmd"),
        ("[mergetool \"vimdiff\"]\nlayout = x", "mergetool.vimdiff.layout"),
        ("[merge]\ntool = ../../x", "merge.tool"),
        ("[merge]\nguitool = /x", "merge.guitool"),
        ("[diff]\ntool = x/y", "diff.tool"),
        ("[diff]\nguiTool = ../x", "diff.guitool"),
        ("[svn]\nauthorsProg = x", "svn.authorsprog"),
    ] {
        assert_eq!(risky("[core]\nbare = false\n", text).as_deref(), Some(want), "{text:?}");
    }
}

#[test]
fn what_init_clone_and_daily_work_write_is_no_risk() {
    let harmless = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n\
        [remote \"origin\"]\n\turl = https://x/y\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n\
        [branch \"main\"]\n\tremote = origin\n\tmerge = refs/heads/main\n[submodule \"s\"]\n\tactive = true\n\
        \turl = ../s\n\tupdate = rebase\n[user]\n\tname = \"core.pager = x\" ; [core] pager = x\n[merge]\n\ttool = vim\n\
        [diff]\n\ttool = meld\n\tguitool\n";
    assert_eq!(risky("", harmless), None);
    assert_eq!(risky(harmless, ""), None);
    let submodule = b"[core]\n\tworktree = ../../../libs/a\n";
    assert_eq!(risky_git_config_change(&path(".git/modules/a/config"), b"", submodule), None);
}

#[test]
fn a_risky_key_counts_when_it_appears_or_changes_and_not_when_it_stays_or_goes() {
    let two = "[core]\npager = a\npager = b\n";
    for (old, new, want) in [
        (two, two, None),
        (two, "[core]\npager = a ; c\n\tpager = \"b\"\n[x]\ny = 1\n", None),
        (two, "[core]\npager = b\npager = a\n", Some("core.pager")),
        (two, "[core]\npager = a\n", Some("core.pager")),
        (two, "[core]\nbare = true\n", None),
        ("[core]\npager\n", "[core]\npager =\n", Some("core.pager")),
        ("[core\npager = a\n", "[core]\npager = a\n", Some("core.pager")),
        (two, "[core\npager = a\n", Some("(unreadable)")),
        (two, "[core]\npager = \"a\n", Some("(unreadable)")),
        (two, "[core]\nx = \\q\n", Some("(unreadable)")),
        (two, "=\n", Some("(unreadable)")),
        (two, "[a \"b\" ]\n", Some("(unreadable)")),
        // Git ends the key and the value there.
        (two, "[core \"fsmonitor\0\"]\nx = y\n", Some("(unreadable)")),
        (two, "[diff \"x.textconv\0\"]\ny = z\n", Some("(unreadable)")),
        (two, "[a]\nb = c\0d\n", Some("(unreadable)")),
        ("[core \"pager\0\"]\nx = y\n", "[core]\npager = y\n", Some("core.pager")),
    ] {
        assert_eq!(risky(old, new).as_deref(), want, "{old:?} -> {new:?}");
    }
}

/// The parser against git itself: what git lists is what we see, and what git refuses we call unreadable.
#[test]
fn the_config_parser_reads_as_git_does() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config");
    for text in [
        "[alias]a=b\\\n c  d # e\n",
        "[alias] a = \"x ; y\" z ;w\n",
        "[alias]\na = \\\"q\\\"\\t.\\n\n",
        "[alias]\na\n",
        "[alias \"S p\\\\\"]\nA-b = 1\n",
        "[Alias.Sub]\nX=1\n",
        "[alias]\na = b\r\nc = d\r\n",
        "[alias]\na = b\\\r\nc\n",
        "[alias]\n a = \"  b  \"   \n",
        "[alias]\na = x \\\n   # y\n",
        "[alias]\na_b = 1\n",
        "[alias]\n1a = 1\n",
        "[alias]\na = \"b\n",
        "[al ias]\na = 1\n",
        "[alias \"x]\na=1\n",
        "[alias]\na b\n",
        "[alias] x=1 [alias] y=2\n",
        "[alias]x[alias]y\n",
        "[alias]\na=1\u{b}\n",
        "[alias]\u{c}\na=1\n",
        "[alias]\na = \"b\" \"c\"\n",
        "[alias]\n=\n",
        "[alias]\na =   \n",
        "[alias\t\"t\"]\na=1",
        "[alias \"t\" ]\na=1",
        "[]\na=1\n",
        "[ \"t\"]\na=1",
        "[.]\na=1",
        "[.x]\na=1",
        "[alias.]\na=1",
        "[alias \"\"]\na=1",
        "a=1\n[alias]\nb=2",
        "[alias]\n-a=1",
        "[alias \"x\\y\"]\na=\"\\\"\"",
        "[alias]\na=1\rb\n",
        "\r[alias]\ra=1\r\n",
        "[alias]\na=1\\",
        "[alias]\na = \" \\\n \"\n",
    ] {
        std::fs::write(&file, text).unwrap();
        let git = Command::new("git").args(["config", "-z", "--list", "--file"]).arg(&file).output().unwrap();
        let ours = git_config::listed(text.as_bytes());
        assert_eq!(ours, git.status.success().then_some(git.stdout), "{text:?}");
    }
}
