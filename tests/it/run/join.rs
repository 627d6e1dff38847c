//! Several runs of one project, and runs beside a mount: one daemon, and each run told apart.

use std::fs;
use std::path::Path;

use super::{Going, REWRITE, nobody_is_left, rewritten, run};
use crate::harness::{Held, Output, Scratch, lines, mounted_scratch};

#[track_caller]
fn session_of(scratch: &Scratch, path: &str) -> String {
    let log = scratch.cli(&["log", "--json", path]).ok().json();
    let session = log["events"][0]["session"].as_str();
    session.unwrap_or_else(|| panic!("no session in {log}")).to_owned()
}

#[test]
fn a_second_run_joins_the_first_and_the_last_one_ends_the_daemon() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let first = Going::start(&scratch, "first", REWRITE);
    let daemon = first.status()["pid"].clone();
    let second = Going::start(&scratch, "second", "echo second > b; cp a $ROOT/seen");
    assert_eq!(fs::read_to_string(scratch.root().join("seen")).expect("what it saw"), rewritten(), "one held set");
    let status = second.status();
    assert_eq!(status["pid"], daemon);
    let sessions: Vec<_> = status["runs"].as_array().expect("runs").iter().map(|run| &run["session"]).collect();
    assert_eq!(sessions.len(), 2);
    assert_eq!(
        [session_of(&scratch, "a"), session_of(&scratch, "b")].map(serde_json::Value::from),
        [sessions[0].clone(), sessions[1].clone()]
    );
    let output = first.finish().exits(7);
    assert!(output.stderr.contains("0 paths landed, 1 held"), "only its own: {}", output.stderr);
    assert_eq!(second.status()["pid"], daemon);
    let output = second.finish().exits(7);
    assert!(output.stderr.contains("landed b"), "{}", output.stderr);
    nobody_is_left(&scratch);
}

#[test]
fn ps_tells_who_runs_what_in_which_project() {
    let (one, other) = (mounted_scratch!(), mounted_scratch!());
    let listed = |scratch: &Scratch| {
        let told = scratch.cli(&["ps", "--json"]).ok().json();
        let project = scratch.project().to_string_lossy().into_owned();
        let runs = told["runs"].as_array().expect("runs").iter().filter(|run| run["project"] == *project);
        runs.cloned().collect::<Vec<_>>()
    };
    assert_eq!(listed(&one), [] as [serde_json::Value; 0]);
    let inside = one.root().join("inside");
    let first = Going::start(&one, "first", "$FETTLEFS ps > $ROOT/inside");
    let second = Going::start(&one, "second", "true");
    // Beside a mount that everybody sees, too.
    let view = other.mount_at("view");
    let third = Going::start(&other, "third", "true");
    let pids = |runs: &[serde_json::Value]| runs.iter().map(|run| run["pid"].as_i64()).collect::<Vec<_>>();
    let told = listed(&one);
    assert_eq!(pids(&told), [Some(first.pid().into()), Some(second.pid().into())]);
    assert_eq!(told[0]["uid"], rustix::process::getuid().as_raw());
    assert!(told[0]["command"].as_str().is_some_and(|command| command.starts_with("bash -c ")), "{told:?}");
    assert!(told[0]["session"].is_string() && told[0]["started"].is_string(), "{told:?}");
    assert_eq!(pids(&listed(&other)), [Some(third.pid().into())]);
    let words = one.cli(&["ps"]).ok().stdout;
    let line = format!("{}  run  pid {}  uid ", one.project().display(), first.pid());
    assert!(words.lines().any(|listed| listed.starts_with(&line)), "{words}");
    // Inside, where the view covers the project, it is the same.
    let seen = fs::read_to_string(inside).expect("what it saw");
    assert!(seen.contains(&line), "{seen}");
    for going in [first, second, third] {
        going.finish().exits(7);
    }
    assert!(listed(&one).is_empty() && listed(&other).is_empty());
    view.unmount();
    nobody_is_left(&one);
}

#[test]
fn runs_that_come_while_the_last_one_goes_find_a_daemon() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(3));
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let scratch = &scratch;
            scope.spawn(move || {
                for round in 0..5 {
                    run(scratch, &[], &format!("echo x > f{worker}-{round}")).ok();
                }
            });
        }
    });
    assert!((0..4).all(|worker| (0..5).all(|round| scratch.has(format!("f{worker}-{round}")))));
    nobody_is_left(&scratch);
    scratch.cli(&["fsck"]).ok();
}

#[test]
fn settings_are_those_of_the_daemon_that_is_there() {
    let scratch = mounted_scratch!();
    let going = Going::start(&scratch, "one", "true");
    let refused = run(&scratch, &["--approve", "anyone"], "touch b").exits(125);
    assert!(refused.stderr.contains("settings of its own"), "{}", refused.stderr);
    assert_eq!(going.status()["runs"].as_array().map(Vec::len), Some(1), "nothing is left of it");
    going.finish().exits(7);
    assert!(!scratch.has("b"));
}

#[test]
fn a_run_beside_a_mount_elsewhere_covers_the_project_and_leaves_the_mount() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let view = scratch.mount_at("view");
    let going = Going::start(&scratch, "one", &format!("{REWRITE}; echo x > new"));
    assert_eq!(fs::read_to_string(scratch.project().join("a")).expect("the project"), lines(100));
    view.assert_held("a", &rewritten(), &lines(100));
    let refused = run(&scratch, &[], "$FETTLEFS confirm --all --yes").exits(6);
    assert!(refused.stderr.contains("from outside"), "{}", refused.stderr);
    going.finish().exits(7);
    // By default a mount lets anyone decide who is not in a run.
    view.cli(&["confirm", "a"]).ok();
    view.assert_landed("a", &rewritten());
    view.unmount();
}

#[test]
fn a_run_beside_a_mount_over_the_project_is_a_run_all_the_same() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let view = scratch.mount();
    let output =
        run(&scratch, &[], &format!("{REWRITE}; $FETTLEFS confirm a; echo $?; $FETTLEFS run -- true; echo $?"));
    assert_eq!((output.status, output.stdout.as_str()), (0, "6\n125\n"), "{}", output.stderr);
    assert_eq!(Held::all_in(&view.status()).len(), 1);
    assert_eq!(view.status()["runs"], serde_json::Value::Null);
    view.cli(&["confirm", "a"]).ok();
    view.unmount();
}

/// Where mounts come and go in all namespaces, as most machines have it, those of a run beside a mount are its own all the
/// same. `$END` takes the mount away from outside. What is written until the view is shut, a moment later, is held. The view
/// that lost no more than the mount outside stays to the end of the run, which ends as its command does.
#[test]
fn what_takes_a_mount_away_uncovers_no_project_to_a_run_beside_it() {
    let script = r#"set -e
        mkfifo go; cd $PROJECT; $FETTLEFS mount $PROJECT 2> /dev/null
        $FETTLEFS -C $PROJECT run $FLAGS --no-effects -- sh -c \
            "cat a > $ROOT/seen; read -r _ < $ROOT/go
             for _ in \$(seq 200); do cd / && cd $PROJECT && echo x > a || exit; sleep 0.02; done" 2> /dev/null &
        trap "kill $! 2> /dev/null" EXIT; until [ -s $ROOT/seen ]; do :; done
        eval "$END"; until head -n 1 $PROJECT/a 2> /dev/null; do :; done
        echo go > $ROOT/go; wait $! || echo shut; head -n 1 a"#;
    let given_up = "echo wrong > .fettle.toml; kill -9 $(sed 's/.*\"pid\":\\([0-9]*\\).*/\\1/' .fettle/holder.json)";
    let refused = "$FETTLEFS unmount $PROJECT || echo $?; ";
    let by_force = format!("{refused}$FETTLEFS unmount --force $PROJECT");
    let ends = [(by_force.as_str(), "", "shut\n"), ("umount -l $PROJECT", "--isolate", ""), (given_up, "", "shut\n")];
    for (end, flags, shut) in ends {
        let scratch = mounted_scratch!();
        scratch.write("a", lines(100));
        let mut command = scratch.command("unshare");
        command.args(["-m", "--propagation", "shared", "sh", "-c", script]).current_dir(scratch.root());
        command.env("FETTLEFS", scratch.fettlefs().get_program()).env("PROJECT", scratch.project());
        command.env("ROOT", scratch.root()).env("FLAGS", flags).env("END", end);
        let output = Output::from(command.output().expect("unshare"));
        assert!(output.stdout.ends_with(&format!("line 1\n{shut}line 1\n")), "{end}: {output:?}");
        assert_eq!(output.stdout.starts_with("5\n"), end.starts_with(refused), "{end}: {output:?}");
    }
}

/// Whatever it has for state: a program in the view may have made that.
#[test]
fn what_lies_in_a_project_that_is_mounted_is_no_project_to_run_in() {
    let scratch = mounted_scratch!();
    scratch.write("inner/.fettle/instance", "a1b2");
    let view = scratch.mount();
    let run = |project: &Path| -> Output {
        let mut command = scratch.fettlefs();
        command.current_dir(project).args(["run", "--", "touch", "b"]).output().expect("it runs").into()
    };
    let output = run(&view.path("inner")).ok();
    let said = format!("fettlefs: the project is {}, in which ", view.root().display());
    assert!(output.stderr.starts_with(&said), "{}", output.stderr);
    view.assert_landed("inner/b", "");
    assert!(!scratch.has("inner/.fettle/fettle.db"), "it was taken for a project");
}

#[test]
fn a_view_that_is_unmounted_by_force_is_shut_and_its_runs_say_so() {
    for is_beside in [false, true] {
        let scratch = mounted_scratch!();
        scratch.write("a", lines(100));
        let view = is_beside.then(|| scratch.mount());
        let going = Going::start(&scratch, "one", REWRITE);
        let refused = scratch.cli(&["unmount"]).exits(5);
        assert!(refused.stderr.contains("; --force shuts its view"), "{is_beside}: {}", refused.stderr);
        scratch.cli(&["unmount", "--force"]).ok();
        let output = going.finish().exits(7);
        let said = "fettlefs: somebody has unmounted the view, which shuts it, or has moved the project away; what was held and kept is safe";
        assert!(output.stderr.contains(said), "{is_beside}: {}", output.stderr);
        assert_eq!(scratch.read("a"), lines(100));
        drop(view);
        nobody_is_left(&scratch);
    }
}
