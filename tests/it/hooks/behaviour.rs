//! Programs that hang, crash, flood, fork and meddle: a decision in time, others unharmed, nothing left.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{mounting, program};
use crate::harness::script::python;
use crate::harness::{Scratch, View, eventually, lines, mounted_scratch};

/// What they may take in these tests, and by when there must be a decision.
const LIMIT: Duration = Duration::from_secs(1);
const DECIDED: Duration = Duration::from_secs(2);

fn limited<'s>(scratch: &'s Scratch, script: &str) -> View<'s> {
    let hook = program(scratch, "hook", &script.replace("PROJECT", &scratch.project().display().to_string()));
    mounting(scratch, &[&hook]).env("FETTLE_HOOKS_TIMEOUT", "1s").start()
}

/// Pids whose command line has `mark`, a word that only one test uses.
fn marked(mark: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").expect("processes").flatten();
    let has_mark = |dir: &Path| {
        let arguments = fs::read(dir.join("cmdline")).unwrap_or_default();
        arguments.windows(mark.len()).any(|window| window == mark.as_bytes())
    };
    let pids = entries.filter(|entry| has_mark(&entry.path()));
    pids.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Children of the daemon that have ended and that nobody has waited for, and supervisors.
fn leftovers(view: &View<'_>) -> Vec<String> {
    let daemon = view.daemon_pid();
    let children = fs::read_dir(format!("/proc/{daemon}/task")).expect("threads").flatten().flat_map(|thread| {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        children.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    });
    let is_one = |pid: &String| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let name = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        stat.contains(") Z ") || name.starts_with("fettlefs-hook")
    };
    children.filter(is_one).collect()
}

#[track_caller]
fn nothing_is_left(view: &View<'_>, mark: &str) {
    eventually("what the program started has gone", || marked(mark).is_empty());
    eventually("no supervisor and no zombie is left", || leftovers(view).is_empty());
}

fn saved(view: &View<'_>, path: &str, content: &str) -> Duration {
    let began = Instant::now();
    view.sh(&format!("printf %s '{content}' > {path}"));
    began.elapsed()
}

/// `MARK` is a number of seconds that no other test sleeps.
fn mark(number: u32) -> String {
    format!("4{number:02}{}", std::process::id())
}

#[test]
fn whatever_a_program_does_there_is_a_decision_in_time_and_nothing_left() {
    let ignore = "trap '' TERM INT HUP QUIT PIPE ALRM USR1 USR2";
    for (number, (what, body, why)) in [
        ("hangs", "sleep MARK".to_owned(), "no answer within 1s"),
        ("ignores signals", format!("{ignore}; while :; do sleep MARK; done"), "no answer within 1s"),
        ("stops itself", "sleep MARK & kill -STOP $$".to_owned(), "no answer within 1s"),
        ("crashes", "kill -SEGV $$".to_owned(), "it was killed by signal 11"),
        ("fails", "echo '{\"decision\":\"land\"}'; exit 3".to_owned(), "it exited with status 3"),
        ("floods", "sleep MARK & exec head -c 1G /dev/zero".to_owned(), "it answered more than 64 KiB"),
        ("floods stderr", "head -c 1G /dev/zero >&2; sleep MARK".to_owned(), "no answer within 1s"),
        ("says nothing", "exit 0".to_owned(), "it said nothing"),
        ("talks nonsense", "echo yes, do".to_owned(), "what it said is no answer"),
        ("mumbles", r#"printf '{"decision":"land","reason":"\377"}'"#.to_owned(), "it is not UTF-8"),
        ("reads nothing", "exec < /dev/null; sleep MARK".to_owned(), "no answer within 1s"),
        ("closes all", "exec <&- >&- 2>&-; sleep MARK".to_owned(), "no answer within 1s"),
        ("forks", "sleep MARK & setsid sleep MARK & (setsid sh -c 'sleep MARK; :' &) ; wait".to_owned(), "no answer"),
        ("kills who watches it", "kill -KILL $PPID; exec sleep MARK".to_owned(), "who watches over it has died"),
        ("stops who watches it", "kill -STOP $PPID; exec sleep MARK".to_owned(), "who watches over it does not answer"),
        ("forks on and on", "f() { sleep MARK & (f &) ; }; f; sleep MARK".to_owned(), "no answer within 1s"),
    ]
    .into_iter()
    .enumerate()
    {
        let scratch = mounted_scratch!();
        scratch.write("file", "old\n");
        let mark = mark(number as u32);
        // A bomb is kept small: it is to try our patience, not the machine's.
        let guarded = format!("#!/bin/sh\nulimit -u 4000\n{}\n", body.replace("MARK", &mark));
        let view = limited(&scratch, &guarded);
        let took = saved(&view, "file", "new");
        assert!(took < DECIDED, "{what}: decided after {took:?}");
        view.assert_held("file", "new", "old\n");
        let detail = view.status()["held"][0]["detail"].as_str().expect("why").to_owned();
        assert!(detail.starts_with("hook: ") && detail.contains(why), "{what}: {detail}");
        nothing_is_left(&view, &mark);
    }
}

#[test]
fn a_clear_answer_counts_at_once_whatever_goes_on() {
    let scratch = mounted_scratch!();
    let mark = mark(50);
    let body = format!(
        "sleep {mark} & setsid sleep {mark} & (setsid sh -c 'trap \"\" TERM; sleep {mark}; :' &)\n\
         head -c 1M /dev/zero >&2; echo '{{\"decision\":\"land\"}}'"
    );
    let view = limited(&scratch, &format!("#!/bin/sh\n{body}\n"));
    let took = saved(&view, "file", "new");
    assert!(took < LIMIT, "its children hold the pipe, and it has answered: {took:?}");
    view.assert_landed("file", "new");
    nothing_is_left(&view, &mark);
}

/// A program that is asked may itself work in the view.
#[test]
fn a_program_that_works_in_the_view_waits_for_nobody() {
    for (what, body, want) in [
        ("reads", "cat PROJECT/file PROJECT/other; ls PROJECT; stat PROJECT/file", "landed"),
        ("asks for the state", "cat PROJECT/.fettle/status.json", "landed"),
        ("writes beside", "echo mine > PROJECT/beside; rm PROJECT/other", "landed"),
        ("writes the very file", "echo mine >> PROJECT/file", "held"),
        ("replaces the very file", "echo mine > PROJECT/tmp; mv PROJECT/tmp PROJECT/file", "held"),
        ("removes the very file", "rm -f PROJECT/file", "held"),
    ] {
        let scratch = mounted_scratch!();
        scratch.write("file", "old\n");
        scratch.write("other", "old\n");
        // Most do it once, and not again when they are asked of what follows.
        let once = match what {
            "writes the very file" => format!("echo $$ >> {:?}\n{body}", scratch.root().join("asked")),
            _ => format!("if mkdir {:?} 2> /dev/null; then\n{body}\nfi", scratch.root().join("once")),
        };
        let view = limited(
            &scratch,
            &format!("#!/bin/sh\n{{ {once}\n}} > /dev/null 2>&1\necho '{{\"decision\":\"land\"}}'\n"),
        );
        let took = saved(&view, "file", "new");
        assert!(took < DECIDED, "{what}: decided after {took:?}");
        let below = scratch.read("file");
        match want {
            "landed" => assert_eq!(below, "new", "{what}"),
            _ => assert_eq!(below, "old\n", "{what}: what nobody was asked about landed"),
        }
        if what == "writes beside" {
            // What it does itself nobody is asked about: it waits.
            let held = view.held();
            let reasons: Vec<_> = held.iter().map(|held| (held.path.as_str(), held.reason.as_str())).collect();
            assert_eq!(reasons, [("beside", "hook"), ("other", "hook")], "{what}");
            assert!(!scratch.has("beside") && scratch.has("other"));
        }
        if what == "writes the very file" {
            // It is not asked of that again and again.
            eventually("it is held", || view.held().iter().any(|held| held.path == "file" && held.reason == "hook"));
            let asked = fs::read_to_string(scratch.root().join("asked")).expect("it was asked");
            assert_eq!(asked.lines().count(), 1, "{asked}");
        }
        eventually("nothing is left", || leftovers(&view).is_empty());
        // The view answers, and agrees with itself.
        view.sh("ls -l; cat file; echo after > after").ok();
        view.assert_landed("after", "after\n");
    }
}

/// Adds a line to `file` itself when it is asked for the first time, and answers so each time.
fn writing_once(scratch: &Scratch, decision: &str) -> String {
    let once = format!("if mkdir {:?}; then echo mine >> PROJECT/file; fi", scratch.root().join("once"));
    format!("#!/bin/sh\n{{ {once}; }} > /dev/null 2>&1\necho '{{\"decision\":\"{decision}\"}}'\n")
}

/// As a formatter does, which then has a person look.
#[test]
fn what_a_program_writes_to_the_very_file_that_it_holds_can_be_confirmed() {
    let scratch = mounted_scratch!();
    scratch.write("file", "old\n");
    let view = limited(&scratch, &writing_once(&scratch, "hold"));
    saved(&view, "file", "new\n");
    assert_eq!((view.read("file"), scratch.read("file")), ("new\nmine\n".to_owned(), "old\n".to_owned()));
    view.cli(&["confirm", "file"]).ok();
    assert_eq!(scratch.read("file"), "new\nmine\n");
}

/// Nobody is asked about what a program writes itself, and so it waits; also where somebody else's close has it judged.
#[test]
fn what_a_program_writes_to_what_others_are_writing_waits_with_that() {
    let scratch = mounted_scratch!();
    scratch.write("file", "old\n");
    let view = limited(&scratch, &writing_once(&scratch, "land"));
    let mut file = fs::OpenOptions::new().append(true).open(view.path("file")).expect("open");
    file.write_all(b"new\n").expect("write");
    saved(&view, "other", "asked about\n");
    assert_eq!(view.read("file"), "old\nnew\nmine\n");
    drop(file);
    eventually("it is judged", || view.held().iter().any(|held| held.path == "file" && held.reason == "hook"));
    assert_eq!(scratch.read("file"), "old\n");
}

/// The release of what was only made asks: who has written meanwhile was told that it is judged with that.
#[test]
fn what_a_program_writes_to_what_was_only_made_waits() {
    let scratch = mounted_scratch!();
    let view = limited(&scratch, &writing_once(&scratch, "land"));
    view.sh(": > file").ok();
    eventually("it is judged", || view.held().iter().any(|held| held.path == "file" && held.reason == "hook"));
    assert_eq!((view.read("file"), scratch.has("file")), ("mine\n".to_owned(), false));
}

/// Closes that wait at once.
const SLOW: usize = 10;

fn saved_thrice(view: &View<'_>, number: usize) -> Vec<Duration> {
    // Emptied and made files are judged when they are released, which no close waits for.
    view.sh(&format!(": > slow-empty{number}"));
    (0..3).map(|round| saved(view, &format!("slow{number}"), &format!("new {round}"))).collect()
}

/// While some closes wait, others go on as if there was none.
#[test]
fn nobody_else_waits_for_a_program() {
    let scratch = mounted_scratch!();
    scratch.git_init();
    scratch.write(".gitignore", "out/\n");
    (0..SLOW).for_each(|number| scratch.write(format!("slow{number}"), "old\n"));
    scratch.write("dir/other", lines(50));
    scratch.write("out/passing", "");
    let hook = "#!/bin/sh\nq=$(cat)\ncase $q in *'\"path\":\"slow'*) sleep 5 ;; esac\necho '{\"decision\":\"land\"}'\n";
    let view = limited(&scratch, hook);
    let done = AtomicBool::new(false);
    let (rounds, longest) = thread::scope(|scope| {
        let slow = scope.spawn(|| {
            // More than the threads that read requests.
            let took = thread::scope(|scope| {
                let save = |number| saved_thrice(&view, number);
                let slow: Vec<_> = (0..SLOW).map(|number| scope.spawn(move || save(number))).collect();
                slow.into_iter().flat_map(|slow| slow.join().expect("no panic")).collect::<Vec<_>>()
            });
            done.store(true, Ordering::SeqCst);
            took
        });
        let acts: [(&str, &dyn Fn()); 6] = [
            ("read", &|| assert_eq!(view.read("dir/other"), lines(50))),
            ("stat", &|| assert!(view.has("slow0"))),
            ("list", &|| assert_ne!(fs::read_dir(view.path("dir")).expect("a listing").count(), 0)),
            ("stat all", &|| assert!(view.sh("ls -la . dir").ok().stdout.contains("slow0"))),
            ("write what is judged", &|| view.write("dir/made", "x\n")),
            ("write what is not", &|| view.write("out/passing", "x")),
        ];
        let (mut rounds, mut longest) = (0, (Duration::ZERO, ""));
        while !done.load(Ordering::SeqCst) {
            for (what, act) in acts {
                let began = Instant::now();
                act();
                longest = longest.max((began.elapsed(), what));
            }
            rounds += 1;
        }
        let slow = slow.join().expect("no panic");
        assert!(slow.iter().all(|took| (LIMIT..DECIDED).contains(took)), "{slow:?}");
        (rounds, longest)
    });
    assert!(rounds >= 10 && longest.0 < LIMIT, "{rounds} rounds, the longest {longest:?}");
    (0..SLOW).for_each(|number| drop(view.assert_held(&format!("slow{number}"), "new 2", "old\n")));
}

/// More closes at once than programs may run: each has its decision, and none but a clear one lets anything land.
#[test]
fn many_are_asked_at_once() {
    let scratch = mounted_scratch!();
    let view = limited(&scratch, "#!/bin/sh\ncat > /dev/null\necho '{\"decision\":\"land\"}'\n");
    thread::scope(|scope| {
        for thread in 0..40 {
            let view = &view;
            scope.spawn(move || (0..3).for_each(|file| view.write(format!("{thread}-{file}"), "x\n")));
        }
    });
    let held = view.held();
    for path in (0..40).flat_map(|thread| (0..3).map(move |file| format!("{thread}-{file}"))) {
        match held.iter().find(|held| held.path == path) {
            Some(held) => assert_eq!(held.reason, "hook", "{path}"),
            None => view.assert_landed(&path, "x\n"),
        }
    }
    eventually("nothing is left", || leftovers(&view).is_empty());
}

/// What programs do to a few names at once, whatever they are told.
const TURMOIL: &str = r#"
import random
def turmoil(seed):
    rng = random.Random(seed)
    paths = ["a", "b", "d/a", "d/b"]
    def act():
        path, other = rng.choice(paths), rng.choice(paths)
        text = b"%d\n" % rng.randrange(1000) * rng.choice([1, 3, 200])
        kind = rng.randrange(7)
        if kind == 0: put(path, text)
        elif kind == 1: put(path + "~%d" % seed, text); os.rename(path + "~%d" % seed, path)
        elif kind == 2: os.unlink(path)
        elif kind == 3: os.rename(path, other)
        elif kind == 4: os.rename(path, path + "~"); put(path, text)
        elif kind == 5:
            with open(path, "r+b") as f: f.seek(0, 2); f.write(text)
        elif kind == 6: renameat2(path, other, 2)
    for _ in range(60):
        try: act()
        except OSError as err: assert err.errno in (errno.EACCES, errno.ENOENT, errno.EXDEV), err
threads = [threading.Thread(target=turmoil, args=(seed,)) for seed in range(SEED, SEED + 4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"#;

/// Whatever is denied, held and let through at once, all that is kept agrees, survives, and can be decided on.
#[test]
fn a_capricious_program_leaves_everything_in_agreement() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(120));
    scratch.write("d/a", lines(120));
    let hook = "#!/bin/sh\ncat > /dev/null\ncase $(($$ % 4)) in 0) d=deny ;; 1) d=hold ;; *) d=land ;; esac\n\
        echo \"{\\\"decision\\\":\\\"$d\\\"}\"\n";
    let view = limited(&scratch, hook);
    for seed in [1, 100] {
        python(&scratch, view.root(), &TURMOIL.replace("SEED", &seed.to_string())).ok();
        view.cli(&["flush"]).ok();
        view.fsck();
    }
    let denied = view.status()["counters"]["denied"].as_u64();
    assert!(denied.is_some_and(|count| count > 10), "{denied:?} were denied");
    let shown = view.sh("find . -type f | sort | xargs -d '\\n' sha256sum").ok().stdout;
    view.unmount();
    let view = limited(&scratch, hook);
    assert_eq!(view.sh("find . -type f | sort | xargs -d '\\n' sha256sum").ok().stdout, shown);
    view.cli(&["discard", "--all", "--yes"]).ok();
    view.fsck();
    let listed = |dir: &Path| -> Vec<String> {
        let mut command = scratch.command("find");
        let output =
            command.args([".", "-name", ".fettle", "-prune", "-o", "-type", "f", "-print"]).current_dir(dir).output();
        let mut paths: Vec<_> =
            String::from_utf8_lossy(&output.expect("find").stdout).lines().map(str::to_owned).collect();
        paths.sort();
        paths
    };
    // Without what was held the view is the project.
    assert_eq!(listed(view.root()), listed(&scratch.lower()));
}

pub(super) fn writer(scratch: &Scratch, view: &View<'_>) -> Child {
    let mut command = scratch.command("sh");
    command.args(["-c", "printf new > file"]).current_dir(view.root()).spawn().expect("sh")
}

#[test]
fn what_is_written_while_a_program_thinks_is_asked_about_anew() {
    let scratch = mounted_scratch!();
    let (ready, go) = (scratch.root().join("ready"), scratch.root().join("go"));
    let asked = scratch.root().join("asked");
    // The first question waits for the test; then each is recorded and let through.
    let hook = format!(
        "#!/bin/sh\ncat >> {asked:?}\nif mkdir {ready:?} 2> /dev/null; then while ! [ -e {go:?} ]; do sleep 0.01; done; fi\n\
         echo '{{\"decision\":\"land\"}}'\n"
    );
    let hook = program(&scratch, "hook", &hook);
    scratch.write("file", "old\n");
    let view = mounting(&scratch, &[&hook]).start();
    let mut first = writer(&scratch, &view);
    eventually("the program is asked", || ready.exists());
    // Its close waits until the first is judged.
    let second = {
        let mut command = scratch.command("python3");
        let script =
            "f = open('file', 'r+'); f.seek(0, 2); f.write(' more'); f.flush(); open('../written', 'w'); f.close()";
        command.args(["-c", script]).current_dir(view.root()).spawn()
    };
    eventually("the other has written", || scratch.root().join("written").exists());
    fs::write(&go, "").expect("a file");
    for child in [&mut first, &mut second.expect("python3")] {
        assert!(child.wait().expect("it ends").success());
    }
    view.cli(&["flush"]).ok();
    view.assert_landed("file", "new more");
    let questions = fs::read_to_string(asked).expect("questions");
    let last: serde_json::Value = serde_json::from_str(questions.lines().last().expect("one")).expect("JSON");
    assert!(questions.lines().count() >= 2 && last["bytes"] == 8, "what landed was asked about: {questions}");
}

/// The daemon dies while a program thinks: nothing that was written is lost, and the program does not outlive it.
#[test]
fn a_daemon_that_dies_takes_its_programs_along_and_loses_nothing() {
    let scratch = mounted_scratch!();
    let mark = mark(60);
    scratch.write("file", "old\n");
    let hook = program(&scratch, "hook", &format!("#!/bin/sh\nsetsid sleep {mark} & sleep {mark}\n"));
    let view = mounting(&scratch, &[&hook]).env("FETTLE_HOOKS_TIMEOUT", "10m").start();
    let mut writer = writer(&scratch, &view);
    eventually("the program runs", || marked(&mark).len() >= 2);
    view.kill_daemon();
    // Its close has failed; whether it says so is the shell's affair.
    writer.wait().expect("it ends");
    eventually("the program is gone", || marked(&mark).is_empty());
    eventually("a daemon answers again", || view.try_read("file").is_ok_and(|content| content == b"new"));
    view.assert_held("file", "new", "old\n");
    assert_eq!(view.only_held().reason, "interrupted");
}

/// Though its times do not tell of it.
#[test]
fn what_is_saved_below_while_a_program_is_asked_is_not_lost() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(50));
    let script = "#!/bin/sh
cd LOWER && touch -r a TIMES && printf LINE | dd of=a conv=notrunc status=none && touch -r TIMES a
echo '{\"decision\":\"land\"}'
";
    let script = script.replace("LOWER", &scratch.lower().display().to_string());
    let script = script.replace("TIMES", &scratch.root().join("times").display().to_string());
    let view = mounting(&scratch, &[&program(&scratch, "hook", &script)]).env("FETTLE_HOOKS_TIMEOUT", "30s").start();
    view.sh("printf mine | dd of=a bs=1 seek=50 conv=notrunc status=none");
    assert!(scratch.read("a").starts_with("LINE"), "{}", scratch.read("a"));
    assert!(view.read("a").contains("mine"));
}
