//! Completions in a real bash, zsh and fish, and manual pages.

use super::{NEW, OLD, id_of, small, work};
use crate::harness::{Scratch, View, mounted_scratch};

/// What bash offers after `line`, whose last word is being typed; asked of the function that the script defines.
fn offered(view: &View, scratch: &Scratch, line: &[&str]) -> Vec<String> {
    const ASK: &str = r#"
        fettlefs() { "$PROGRAM" "$@"; }
        export -f fettlefs
        source <("$PROGRAM" completions bash | sed "s|\"fettlefs\" --|\"$PROGRAM\" --|")
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_TYPE=9
        compopt() { :; }
        $(complete -p fettlefs | sed 's/.*-F \([^ ]*\).*/\1/') fettlefs "${COMP_WORDS[COMP_CWORD]}" ""
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let mut command = scratch.command("bash");
    command.env("PROGRAM", scratch.fettlefs().get_program()).current_dir(view.root());
    let out = command.args(["-c", ASK, "bash", "fettlefs"]).args(line).output().expect("bash runs");
    let text = String::from_utf8(out.stdout).expect("text");
    text.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
}

#[test]
fn bash_completes_commands_ids_backups_and_operations() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    work(&view);
    assert_eq!(offered(&view, &scratch, &["conf"]), ["confirm"]);
    assert!(offered(&view, &scratch, &["confirm", "--f"]).contains(&"--force".to_owned()));
    let (rewritten, deleted) = (id_of(&view, "src/a.rs"), id_of(&view, "src/b.rs"));
    let ids = offered(&view, &scratch, &["confirm", ""]);
    assert!(ids.contains(&rewritten) && ids.contains(&deleted), "{ids:?}");
    assert_eq!(offered(&view, &scratch, &["diff", &rewritten[..6]]), std::slice::from_ref(&rewritten));
    assert_eq!(offered(&view, &scratch, &["diff", "no such"]), [""; 0]);
    let backups = offered(&view, &scratch, &["rollback", "notes"]);
    assert!(backups.len() == 1 && backups[0].starts_with("notes.txt."), "{backups:?}");
    for takes_one in [&["undo", ""][..], &["log", "--operation", ""]] {
        let operations = offered(&view, &scratch, takes_one);
        assert!(operations.iter().any(|operation| operation.starts_with("op")), "{takes_one:?}: {operations:?}");
    }

    view.unmount();
    let refused = scratch.cli(&["completions", "tcsh"]).exits(2);
    assert!(refused.stderr.contains("tcsh"), "{}", refused.stderr);
}

#[test]
fn nothing_is_offered_or_told_that_a_terminal_would_obey() {
    let scratch = mounted_scratch!();
    let name = "a\u{202e}sr.b";
    scratch.write(name, OLD);
    scratch.write("plain", OLD);
    let view = small(&scratch).start();
    view.write("plain", NEW);
    view.write(name, NEW);
    view.cli(&["confirm", "--all", "--yes"]).ok();
    view.write(name, OLD);
    // With what stands beside each, as fish is told it.
    let offered = |line: &[&str]| {
        let mut command = scratch.fettlefs();
        command.env("FETTLE_COMPLETE", "fish").current_dir(view.root()).args(["--", "fettlefs"]).args(line);
        crate::harness::Output::from(command.output().expect("it runs")).ok().stdout
    };
    let asked = [&["confirm", ""][..], &["rollback", ""], &["undo", ""]].map(offered);
    let [ids, backups, operations] = &asked;
    assert!(ids.starts_with(&format!("{}\ta\\u{{202e}}sr.b\n", id_of(&view, name))), "{ids}");
    assert!(backups.starts_with("plain.") && !backups.contains("sr.b"), "{backups}");
    assert!(operations.contains("\ta\\u{202e}sr.b\n") && !operations.contains('\u{202e}'), "{operations}");
}

#[test]
fn nothing_is_offered_that_a_shell_would_take_for_more_than_a_word() {
    let scratch = mounted_scratch!();
    let names = ["report;touch pwned;.md", "report one", "report$(id)", "report*", "report.md"];
    for name in names {
        scratch.write(name, OLD);
    }
    let view = small(&scratch).start();
    for name in names {
        view.write(name, NEW);
        view.write(name, OLD);
    }
    view.cli(&["confirm", "--all", "--yes"]).ok();
    let backups = offered(&view, &scratch, &["rollback", "report"]);
    assert!(!backups.is_empty() && backups.iter().all(|name| name.starts_with("report.md.")), "{backups:?}");
}

/// The line that a real zsh at a prompt makes of `line` by the Tab key, which has `fettlefs` on its path.
fn completed_by_zsh(view: &View, scratch: &Scratch, line: &str) -> String {
    let (home, bin) = (scratch.root().join("zsh"), scratch.root().join("bin"));
    std::fs::create_dir_all(&home).expect("a home");
    if !bin.exists() {
        std::fs::create_dir(&bin).expect("a directory for programs");
        std::os::unix::fs::symlink(scratch.fettlefs().get_program(), bin.join("fettlefs")).expect("a link");
    }
    const STARTUP: &str = r#"
        autoload -Uz compinit; compinit -u -D
        source <(fettlefs completions zsh)
        tell() { print -r -- "$BUFFER" > $TOLD; exit }
        zle -N tell; bindkey '^X' tell; bindkey '^I' complete-word; unsetopt list_beep"#;
    std::fs::write(home.join(".zshrc"), STARTUP).expect("a startup file");
    const PRESS: &str = r#"
        zmodload zsh/zpty
        zpty prompt 'zsh -i'
        zpty -w -n prompt "$LINE"$'\t\x18'
        while zpty -r prompt rest; do :; done"#;
    let told = scratch.root().join("told");
    let mut command = scratch.command("zsh");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("a path"));
    command.args(["-fc", PRESS]).current_dir(view.root()).env("ZDOTDIR", &home).env("PATH", path);
    let out = command.env("LINE", line).env("TOLD", &told).env("TERM", "xterm").output().expect("zsh runs");
    let text = std::fs::read_to_string(&told);
    text.unwrap_or_else(|err| panic!("{err}: {}", String::from_utf8_lossy(&out.stderr))).trim_end().to_owned()
}

#[test]
fn zsh_completes_commands_flags_and_ids() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    work(&view);
    let id = id_of(&view, "src/a.rs");
    for (typed, want) in [
        ("fettlefs conf", "fettlefs confirm".to_owned()),
        ("fettlefs confirm --forc", "fettlefs confirm --force".to_owned()),
        (&format!("fettlefs diff {}", &id[..6]), format!("fettlefs diff {id}")),
        (&format!("fettlefs confirm --yes {}", &id[..6]), format!("fettlefs confirm --yes {id}")),
        ("fettlefs diff nosuch", "fettlefs diff nosuch".to_owned()),
    ] {
        assert_eq!(completed_by_zsh(&view, &scratch, typed), want, "{typed}");
    }
}

#[test]
fn fish_completes_commands_and_ids() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    work(&view);
    let id = id_of(&view, "src/a.rs");
    let offered = |line: &str| {
        let script = "function fettlefs; $PROGRAM $argv; end; fettlefs completions fish | source; complete -C $LINE";
        let mut command = scratch.command("fish");
        command.env("PROGRAM", scratch.fettlefs().get_program()).env("LINE", line).current_dir(view.root());
        let out = command.args(["--no-config", "-c", script]).output().expect("fish runs");
        let text = String::from_utf8(out.stdout).expect("text");
        text.lines().map(|line| line.split('\t').next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(offered("fettlefs conf"), ["confirm"]);
    assert_eq!(offered(&format!("fettlefs discard {}", &id[..6])), [id]);
}

#[test]
fn every_manual_page_is_rendered_without_a_warning() {
    let scratch = Scratch::new();
    let pages = scratch.root().join("pages");
    let written = scratch.fettlefs().arg("-C").arg(scratch.root()).args(["man", "pages"]).current_dir("/").output();
    crate::harness::Output::from(written.expect("it runs")).ok();
    let render = |program: &str, args: &[&str], page: &std::path::Path| {
        let output = scratch.command(program).args(args).arg(page).env("MANWIDTH", "80").output();
        crate::harness::Output::from(output.expect("it runs"))
    };
    let mut count = 0;
    let of_section = |section: &str| std::fs::read_dir(pages.join(section)).expect("pages");
    for page in of_section("man1").chain(of_section("man8")) {
        let page = page.expect("a page").path();
        let output = render("groff", &["-man", "-ww", "-z", "-Tutf8"], &page).ok();
        assert_eq!(output.stderr, "", "{}", page.display());
        let output = render("man", &["--warnings", "-E", "UTF-8", "-l"], &page).ok();
        let name = page.file_stem().expect("a name").to_string_lossy().into_owned();
        assert!(output.stdout.contains(&name) && output.stderr.is_empty(), "{name}: {}", output.stderr);
        count += 1;
    }
    assert!(count > 30 && pages.join("man8/mount.fuse.fettlefs.8").exists(), "{count} pages");
    // groff would have said something.
    std::fs::write(pages.join("wrong.1"), ".TH wrong 1\n.nosuchmacro\n").expect("a page");
    assert_ne!(render("groff", &["-man", "-ww", "-z", "-Tutf8"], &pages.join("wrong.1")).stderr, "");
}

#[test]
fn there_is_a_manual_page_for_every_command() {
    let scratch = Scratch::new();
    let page = scratch.cli(&["man"]).ok().stdout;
    assert!(page.contains(".TH fettlefs 1") && page.contains(".SH EXIT STATUS\n.TP\n0\ndone\n"), "{page}");
    assert!(!page.contains("subcommands\\fR>"), "{page}");
    let pages = scratch.root().join("man");
    scratch.cli(&["man", pages.to_str().expect("text")]).ok();
    assert_eq!(std::fs::read_to_string(pages.join("man1/fettlefs.1")).expect("a page"), page);
    for command in ["confirm", "mount", "events"] {
        let page = std::fs::read_to_string(pages.join(format!("man1/fettlefs-{command}.1"))).expect("a page");
        assert!(page.contains(&format!(".TH fettlefs-{command} 1")), "{page}");
    }
    let refused = scratch.cli(&["man", "/dev/null/pages"]).exits(1);
    assert!(refused.stderr.contains("/dev/null/pages"), "{}", refused.stderr);
}
