//! Completions in a real bash, and manual pages.

use super::{id_of, small, work};
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
    let operations = offered(&view, &scratch, &["undo", ""]);
    assert!(operations.iter().any(|operation| operation.starts_with("op")), "{operations:?}");

    view.unmount();
    let refused = scratch.cli(&["completions", "tcsh"]).exits(2);
    assert!(refused.stderr.contains("tcsh"), "{}", refused.stderr);
}

#[test]
fn there_is_a_manual_page_for_every_command() {
    let scratch = Scratch::new();
    let page = scratch.cli(&["man"]).ok().stdout;
    assert!(page.contains(".TH fettlefs 1"), "{page}");
    let pages = scratch.root().join("man1");
    scratch.cli(&["man", pages.to_str().expect("text")]).ok();
    for command in ["confirm", "mount", "events"] {
        let page = std::fs::read_to_string(pages.join(format!("fettlefs-{command}.1"))).expect("a page");
        assert!(page.contains(&format!(".TH fettlefs-{command} 1")), "{page}");
    }
    let refused = scratch.cli(&["man", "/dev/null/pages"]).exits(1);
    assert!(refused.stderr.contains("/dev/null/pages"), "{}", refused.stderr);
}
