//! `fettlefs review` on a real terminal: what a person sees, and what becomes of what he decides.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use crate::cli::SMALL;
use crate::harness::{Mounting, Scratch, Screen, View, eventually, mounted_scratch};

const ROWS: u16 = 30;
const COLUMNS: u16 = 120;

/// Twenty lines, of which those in `new` are.
fn text(new: &[usize]) -> String {
    (1..=20).map(|number| format!("{} {number}\n", if new.contains(&number) { "new" } else { "line" })).collect()
}

fn small(scratch: &Scratch) -> Mounting<'_> {
    SMALL.iter().fold(scratch.mounting(), |mounting, flag| mounting.flag(*flag))
}

fn command(scratch: &Scratch, view: &View<'_>) -> Command {
    let mut command = scratch.fettlefs();
    command.arg("review").current_dir(view.root());
    command
}

fn review(scratch: &Scratch, view: &View<'_>) -> Screen {
    Screen::start(&command(scratch, view), ROWS, COLUMNS)
}

/// Two changes are held: of three hunks, and of one.
fn two_held(scratch: &Scratch) -> View<'_> {
    two_held_in(scratch, small(scratch))
}

fn two_held_in<'s>(scratch: &Scratch, mounting: Mounting<'s>) -> View<'s> {
    scratch.write("a.txt", text(&[]));
    scratch.write("b.txt", text(&[]));
    let view = mounting.start();
    view.write("a.txt", text(&[1, 10, 20]));
    view.write("b.txt", text(&[2, 3]));
    view
}

#[test]
fn one_hunk_is_confirmed_and_another_file_discarded() {
    let scratch = mounted_scratch!();
    let view = two_held(&scratch);
    let mut screen = review(&scratch, &view);
    screen.shows("2 held changes in");
    screen.shows("hunk 1 of 3");
    screen.shows("-line 1");
    screen.press("\rnn");
    screen.shows("hunk 3 of 3");
    screen.press("p ");
    screen.shows("hunk 2 of 3, 1 marked");
    screen.press("c");
    screen.shows("Applied a.txt");
    screen.shows("hunk 1 of 2");
    assert_eq!(scratch.read("a.txt"), text(&[10]));
    screen.press("hj");
    screen.shows("+new 3");
    screen.press("d");
    screen.shows("Discard b.txt (+2 -2)? [y/N]");
    screen.press("n");
    screen.shows("nothing was done");
    screen.press("dy");
    screen.shows("Discarded b.txt");
    screen.shows("1 held change in");
    screen.press("q");
    assert_eq!(screen.ends(), 0);
    assert!(screen.is_given_back());
    assert_eq!((scratch.read("a.txt"), view.read("a.txt")), (text(&[10]), text(&[1, 10, 20])));
    assert_eq!((scratch.read("b.txt"), view.read("b.txt")), (text(&[]), text(&[])));
    assert_eq!(view.only_held().path, "a.txt");
}

#[test]
fn what_was_done_here_can_be_undone() {
    let scratch = mounted_scratch!();
    let view = two_held(&scratch);
    let mut screen = review(&scratch, &view);
    screen.shows("hunk 1 of 3");
    screen.press("cy");
    screen.shows("Applied a.txt");
    screen.shows("1 held change in");
    assert_eq!(scratch.read("a.txt"), text(&[1, 10, 20]));
    screen.press("u");
    screen.shows("Undo op");
    screen.press("y");
    screen.shows("Undone a.txt");
    assert_eq!((scratch.read("a.txt"), view.only_held().path), (text(&[]), "b.txt".to_owned()));
    screen.press("u");
    screen.shows("nothing was done here that could be undone");
}

#[test]
fn what_others_do_meanwhile_shows_and_the_selection_stays() {
    let scratch = mounted_scratch!();
    let view = two_held(&scratch);
    scratch.write("0.txt", text(&[]));
    let mut screen = review(&scratch, &view);
    screen.shows("2 held changes in");
    screen.press("j");
    screen.shows("+new 3");
    view.write("0.txt", text(&[3, 4]));
    screen.shows("3 held changes in");
    screen.shows("0.txt");
    screen.shows("+new 3");
    view.write("b.txt", text(&[2, 3, 4]));
    screen.shows("+new 4");
    view.cli(&["confirm", "--all", "--yes", "--renew"]).ok();
    screen.shows("0 held changes in");
    screen.shows("Nothing is held");
    view.write("a.txt", text(&[5, 6]));
    screen.shows("+new 5");
}

#[test]
fn it_goes_on_without_the_mount_and_with_a_later_one() {
    let scratch = mounted_scratch!();
    let view = two_held(&scratch);
    let mut outside = scratch.fettlefs();
    // By a relative path: the harness takes who names the project for its daemon.
    outside.args(["-C", "project", "review"]).current_dir(scratch.root());
    let mut screen = Screen::start(&outside, ROWS, COLUMNS);
    screen.shows("hunk 1 of 3");
    view.unmount();
    screen.press("cy");
    screen.shows("Applied a.txt");
    assert_eq!(scratch.read("a.txt"), text(&[1, 10, 20]));
    screen.shows("1 held change in");
    let view = small(&scratch).start();
    view.write("a.txt", text(&[7, 8]));
    screen.shows("2 held changes in");
    screen.press("q");
    assert_eq!(screen.ends(), 0);
}

#[test]
fn nothing_in_names_and_contents_is_obeyed() {
    const NASTY: &str = "a\x1b]0;title\x07\n\rc\u{202e}d";
    let scratch = mounted_scratch!();
    scratch.write(NASTY, "one\n");
    let view = small(&scratch).start();
    view.write(NASTY, "\x1b[2J\x1b]0;title\x07two\rthree\u{202e}four\u{200b}\u{9b}5n\n2\n3\n4\n");
    let mut screen = review(&scratch, &view);
    screen.shows(r"+\u{1b}[2J\u{1b}]0;title\u{7}two\rthree\u{202e}four\u{200b}\u{9b}5n");
    screen.shows(r"a\u{1b}]0;title\u{7}\n\rc\u{202e}d");
    screen.press("d");
    screen.shows("Discard a\\u{1b}");
    screen.press("y");
    screen.shows("Discarded a\\u{1b}");
    screen.press("q");
    assert_eq!(screen.ends(), 0);
    let sent = String::from_utf8_lossy(&screen.sent()).into_owned();
    assert!(!sent.contains("\x1b]") && !sent.contains('\x07') && !sent.contains("\x1b[5n"), "{sent:?}");
    assert!(!sent.contains(['\u{202e}', '\u{200b}', '\u{9b}']), "{sent:?}");
}

#[test]
fn a_signal_gives_the_terminal_back_and_ends_it() {
    let scratch = mounted_scratch!();
    let view = two_held(&scratch);
    for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let mut screen = review(&scratch, &view);
        screen.shows("hunk 1 of 3");
        assert!(!screen.is_given_back());
        kill_process(Pid::from_raw(screen.pid()).unwrap(), signal).unwrap();
        assert_eq!(screen.ends(), status);
        eventually("the terminal is given back", || screen.is_given_back());
    }
    assert_eq!(view.held().len(), 2);
}

#[test]
fn it_stops_and_goes_on_as_a_shell_has_it() {
    let scratch = mounted_scratch!();
    let view = two_held(&scratch);
    let mut shell = scratch.command("bash");
    shell.args(["--norc", "--noprofile", "-i"]).env("PS1", "$ ").current_dir(view.root());
    let mut screen = Screen::start(&shell, ROWS, COLUMNS);
    screen.shows("$ ");
    screen.press(&format!("{} review\r", scratch.fettlefs().get_program().display()));
    screen.shows("hunk 1 of 3");
    screen.press("\x1a");
    screen.shows("Stopped");
    assert!(!screen.text().contains("hunk 1 of 3"));
    screen.press("echo $((20 + 22))\r");
    screen.shows("42");
    screen.press("fg\r");
    screen.shows("hunk 1 of 3");
    screen.press("\rn");
    screen.shows("hunk 2 of 3");
    screen.press("q");
    screen.shows_no_more("hunk 2 of 3");
    // What is typed before the shell has its terminal back may be lost.
    eventually("the shell asks for more", || screen.text().trim_end().ends_with('$'));
    screen.press("echo $?-$((20 + 23))\r");
    screen.shows("0-43");
}

#[test]
fn it_follows_the_size_of_the_terminal() {
    let scratch = mounted_scratch!();
    scratch.write("wide.txt", "start\n");
    let view = small(&scratch).start();
    view.write("wide.txt", format!("{}end\n2\n3\n4\n", "wide \u{5b57} ".repeat(40)));
    let mut screen = review(&scratch, &view);
    screen.shows("end");
    for (rows, columns) in [(24, 60), (3, 10), (1, 1), (50, 200)] {
        screen.resize(rows, columns);
    }
    screen.shows("end");
    screen.press("?");
    screen.shows("quit; what is not decided stays held");
    screen.press("qq");
    assert_eq!(screen.ends(), 0);
}

#[test]
fn who_may_not_decide_is_told_and_changes_nothing() {
    let scratch = mounted_scratch!();
    let view = two_held_by_owner(&scratch);
    std::fs::set_permissions(scratch.root(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut user = scratch.command("setpriv");
    user.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]);
    user.arg(scratch.fettlefs().get_program()).arg("review").current_dir(view.root());
    let mut screen = Screen::start(&user, ROWS, COLUMNS);
    screen.shows("hunk 1 of 3");
    for keys in ["cy", "dy", "\r c"] {
        screen.press(keys);
        screen.shows("may");
        assert!(!screen.text().contains("Applied"), "{}", screen.text());
        screen.press("g");
        screen.shows_no_more("may");
    }
    screen.press("q");
    assert_eq!(screen.ends(), 0);
    assert_eq!((scratch.read("a.txt"), view.held().len()), (text(&[]), 2));
}

fn two_held_by_owner(scratch: &Scratch) -> View<'_> {
    two_held_in(scratch, small(scratch).flag("--approve").flag("owner"))
}

#[test]
fn a_conflict_is_shown_with_its_hunks_and_changes_nothing() {
    let scratch = mounted_scratch!();
    let view = two_held(&scratch);
    scratch.write("a.txt", text(&[]).replace("line 10\n", "theirs\n"));
    let mut screen = review(&scratch, &view);
    screen.shows("[changed outside]");
    screen.shows("hunk 1 of 3");
    screen.press("c");
    screen.shows("Apply a.txt");
    screen.press("y");
    screen.shows("refused");
    screen.shows("theirs");
    screen.press("x");
    screen.shows_no_more("refused");
    assert_eq!(scratch.read("a.txt"), text(&[]).replace("line 10\n", "theirs\n"));
    assert_eq!(view.held().len(), 2);
}

#[test]
fn looking_renews_and_what_expires_meanwhile_is_refused() {
    let scratch = mounted_scratch!();
    scratch.write("a.txt", text(&[]));
    let view = small(&scratch).flag("--ttl").flag("1").start();
    view.write("a.txt", text(&[3, 4]));
    eventually("it expires", || view.only_held().json["expired"] == true);
    let mut screen = review(&scratch, &view);
    screen.shows("+new 3");
    assert!(!screen.text().contains("[expired]"), "{}", screen.text());
    eventually("it expires again", || view.only_held().json["expired"] == true);
    screen.press("cy");
    screen.shows("r looks again");
    assert_eq!(scratch.read("a.txt"), text(&[]));
    screen.press("rc");
    screen.shows("Apply a.txt");
    screen.press("y");
    screen.shows("Applied a.txt");
    assert_eq!(scratch.read("a.txt"), text(&[3, 4]));
}

#[test]
fn without_a_terminal_or_anything_held_it_says_so() {
    let scratch = mounted_scratch!();
    let view = small(&scratch).start();
    let mut screen = review(&scratch, &view);
    assert_eq!(screen.ends(), 0);
    screen.shows("fettlefs: Nothing is held");
    assert!(!String::from_utf8_lossy(&screen.sent()).contains('\x1b'));
    let refused = view.cli(&["review"]).exits(2);
    let message = "fettlefs: review needs a terminal with a whole screen: `fettlefs status` lists what is held, \
        `fettlefs diff` shows it\n";
    assert_eq!((refused.stdout.as_str(), refused.stderr.as_str()), ("", message));
    assert_eq!(view.cli(&["review", "--json"]).exits(2).error_code(), "bad_request");
    let mut dumb = command(&scratch, &view);
    dumb.env("TERM", "dumb");
    let mut screen = Screen::start(&dumb, ROWS, COLUMNS);
    assert_eq!(screen.ends(), 2);
    screen.shows("review needs a terminal with a whole screen");
}

#[test]
fn no_color_is_obeyed() {
    let scratch = mounted_scratch!();
    let view = two_held(&scratch);
    let sent = |value: &str| {
        let mut command = command(&scratch, &view);
        command.env("NO_COLOR", value);
        let mut screen = Screen::start(&command, ROWS, COLUMNS);
        screen.shows("hunk 1 of 3");
        screen.press("q");
        screen.ends();
        String::from_utf8_lossy(&screen.sent()).into_owned()
    };
    // Green, as crossterm spells it.
    assert!(sent("").contains("\x1b[38;5;2"), "{:?}", sent(""));
    assert!(!sent("1").contains("\x1b[38;"), "{:?}", sent("1"));
}
