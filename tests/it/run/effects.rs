//! What a shell's command has changed is told on its standard error when it ends (SPEC §14).

use super::{REWRITE, run};
use crate::harness::{Output, Scratch, lines, mounted_scratch};

/// An agent that is no shell starts `bash -c SCRIPT`; gives the shell's own output.
fn shell(scratch: &Scratch, script: &str) -> Output {
    agent(scratch, &["bash", "-c", script])
}

fn agent(scratch: &Scratch, tool: &[&str]) -> Output {
    let (out, err) = (scratch.root().join("tool.out"), scratch.root().join("tool.err"));
    let words = serde_json::to_string(tool).expect("words");
    let start = "import json,os,subprocess,sys; r=os.environ['ROOT']; \
                 sys.exit(subprocess.run(json.loads(sys.argv[1]), stdout=open(r+'/tool.out','wb'), \
                 stderr=open(r+'/tool.err','wb')).returncode)";
    let mut command = scratch.fettlefs();
    command.current_dir(scratch.root()).arg("-C").arg(scratch.project()).args(["run", "--", "python3", "-c", start]);
    let output = command.arg(words).env("ROOT", scratch.root()).output().expect("the built program runs");
    let read = |path| std::fs::read(path).unwrap_or_default();
    Output::from(std::process::Output { status: output.status, stdout: read(out), stderr: read(err) })
}

#[test]
fn each_path_gets_one_line_and_status_and_output_stay() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    scratch.write("b", lines(5));
    let script = format!("{REWRITE}; echo one >> b; echo two >> b; echo new > c; echo said; exit 9");
    let output = shell(&scratch, &script).exits(9);
    assert_eq!(output.stdout, "said\n");
    let told: Vec<_> = output.stderr.lines().collect();
    assert!(
        told[0].starts_with("[fettlefs] held ") && told[0].contains(" a (+100 -100): waits for review; "),
        "{told:?}"
    );
    assert!(told[0].contains("you see your version, the project does not. Details: fettlefs diff "), "{told:?}");
    assert_eq!(told[1..], ["[fettlefs] landed b (+2 -0)", "[fettlefs] landed c (+1 -0) [new file]"]);
}

#[test]
fn what_waits_is_told_with_the_lines_of_the_whole_change() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let output = shell(&scratch, &format!("rm a; {REWRITE}; seq 200 320 > a")).ok();
    assert!(output.stderr.contains(" a (+121 -100): waits for review; "), "{}", output.stderr);
}

#[test]
fn nothing_is_said_where_nothing_was_done() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    for script in ["true", "cat a > /dev/null", "exit 3", "echo x > $ROOT/elsewhere", "cat a > b; rm b; true"] {
        let output = shell(&scratch, script);
        let of_structure = output.stderr.lines().all(|line| line == "[fettlefs] landed b [deleted]");
        assert!(output.stderr.is_empty() || script.contains("rm b") && of_structure, "{script}: {}", output.stderr);
    }
}

#[test]
fn nested_shells_tell_once_and_each_its_own() {
    let scratch = mounted_scratch!();
    let nested =
        "bash -c 'echo x > inner; bash -c \"echo y > innermost\"'; python3 -c 'open(\"deep\",\"w\").write(\"z\\n\")'";
    let output = shell(&scratch, nested).ok();
    let told: Vec<_> = output.stderr.lines().collect();
    assert_eq!(told, ["deep", "inner", "innermost"].map(|path| format!("[fettlefs] landed {path} (+1 -0) [new file]")));
    // Two at once do not tell of each other.
    let both = "import subprocess,sys; ps=[subprocess.Popen(['bash','-c',f'for i in 1 2 3; do echo x > {n}$i; done'], \
                stderr=subprocess.PIPE) for n in 'pq']; es=[p.communicate()[1].decode() for p in ps]; \
                print(es); sys.exit(not all(e.count('landed')==3 and e.count(f'landed {n}')==3 for n,e in zip('pq',es)))";
    agent(&scratch, &["python3", "-c", both]).ok();
}

#[test]
fn options_traps_and_startup_files_of_the_user_stay_theirs() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(3));
    for (script, status, out, err) in [
        ("set -eu; echo x > n1; false; echo never", 1, "", "[fettlefs] landed n1 (+1 -0) [new file]\n"),
        ("trap 'echo mine; exit 4' EXIT; echo x > n2", 4, "mine\n", ""),
        (
            "set -x 2>/dev/null; set +x 2>/dev/null; echo x > n3; (exit 6)",
            6,
            "",
            "[fettlefs] landed n3 (+1 -0) [new file]\n",
        ),
        ("IFS=x; set -f; echo y > nx4; echo $-", 0, "", "[fettlefs] landed nx4 (+1 -0) [new file]\n"),
        ("echo x > n5; exec true", 0, "", ""),
        ("readonly line REPLY IFS; echo y > n7", 0, "", "[fettlefs] landed n7 (+1 -0) [new file]\n"),
        ("echo x > n6; kill -9 $$", -9, "", ""),
    ] {
        let output = shell(&scratch, script);
        let kept = |text: &str| {
            text.lines().filter(|line| !line.starts_with('+')).map(|line| format!("{line}\n")).collect::<String>()
        };
        assert_eq!(kept(&output.stderr), err, "{script}");
        assert!(out.is_empty() || output.stdout == out, "{script}: {}", output.stdout);
        assert!(output.status == status || status == -9 && output.status > 128, "{script}: {}", output.status);
    }
    let own = scratch.root().join("own.bash");
    std::fs::write(&own, "OWN=read\n").expect("a startup file");
    let mut command = super::command(
        &scratch,
        &[],
        "python3 -c 'import subprocess; subprocess.run([\"bash\",\"-c\",\"echo $OWN\"])'",
    );
    let output = Output::from(command.env("BASH_ENV", &own).output().expect("it runs")).ok();
    assert_eq!(output.stdout, "read\n");
}

#[test]
fn zsh_tells_once_whatever_ends_it_and_status_and_output_stay() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let landed = |name: &str| format!("[fettlefs] landed {name} (+1 -0) [new file]\n");
    for (script, status, out, err) in [
        ("echo x > z1; echo said; exit 9", 9, "said\n", landed("z1")),
        // zsh would become its last command.
        ("echo x > z2; /bin/false", 1, "", landed("z2")),
        ("set -eu; echo x > z3; false; echo never", 1, "", landed("z3")),
        ("trap 'echo mine; exit 4' EXIT; echo x > z4", 4, "mine\n", landed("z4")),
        ("(echo x > z5; true); y=$(/bin/echo y); echo $y; (exit 6)", 6, "y\n", landed("z5")),
        ("setopt ksh_arrays noclobber; echo x > z6", 0, "", landed("z6")),
        ("zsh -c 'echo x > z7; zsh -c true'; bash -c 'echo x > z8'", 0, "", landed("z7") + &landed("z8")),
        ("python3 -c 'open(\"z9\",\"w\").write(\"z\\n\")'", 0, "", landed("z9")),
        ("readonly said=1 line=1 IFS; echo x > z12", 0, "", landed("z12")),
        ("exit 3", 3, "", String::new()),
        ("echo x > z10; kill -TERM $$", -15, "", String::new()),
        ("echo x > z11; exec true", 0, "", String::new()),
    ] {
        let output = agent(&scratch, &["zsh", "-c", script]);
        assert_eq!((output.stdout.as_str(), output.stderr.as_str()), (out, err.as_str()), "{script}");
        // A signal's is what Python makes of it.
        assert!(output.status == status || status == -15 && output.status == 256 - 15, "{script}: {}", output.status);
    }
    let held = agent(&scratch, &["zsh", "-lc", REWRITE]).ok();
    assert!(held.stderr.starts_with("[fettlefs] held ") && held.stderr.lines().count() == 1, "{}", held.stderr);
    let inner = agent(&scratch, &["bash", "-c", "zsh -c 'echo x > inner'; true"]).ok();
    assert_eq!(inner.stderr, landed("inner"));
}

#[test]
fn shells_below_one_that_became_another_program_tell() {
    let scratch = mounted_scratch!();
    // Not zsh below zsh: the outer one has given `ZDOTDIR` back.
    for (outer, inner) in [("bash", "zsh"), ("zsh", "bash"), ("bash", "bash")] {
        let name = format!("{outer}-{inner}");
        let become_other = format!("exec env {inner} -c 'echo x > {name}; {outer} -c true'");
        // As programs do that are started by a script: it becomes a shell once more, and then something else.
        let twice = format!("exec {outer} -c 'exec env {inner} -c \"echo x > {name}2; true\"'");
        for (script, name) in [(become_other, name.clone()), (twice, format!("{name}2"))] {
            let output = agent(&scratch, &[outer, "-c", &script]).ok();
            assert_eq!(output.stderr, format!("[fettlefs] landed {name} (+1 -0) [new file]\n"), "{script}");
        }
    }
}

/// In a home with startup files of its own, each of which says that it was read.
fn with_startup_files(scratch: &Scratch, directory: &str) -> std::path::PathBuf {
    let home = scratch.root().join(directory);
    std::fs::create_dir_all(&home).expect("a directory");
    for (name, word) in [(".zshenv", "env"), (".zprofile", "profile"), (".zshrc", "rc"), (".zlogin", "login")] {
        std::fs::write(home.join(name), format!("print {word} ${{ZDOTDIR-none}}\n")).expect("a startup file");
    }
    home
}

#[test]
fn startup_files_of_a_zsh_user_are_read_as_ever() {
    let scratch = mounted_scratch!();
    let home = with_startup_files(&scratch, "home");
    let own = with_startup_files(&scratch, "own");
    let start = |flags: &str, own: Option<&std::path::Path>| {
        let script = format!("import subprocess; subprocess.run(['zsh', '{flags}', 'echo x >> n'])");
        let mut command = scratch.fettlefs();
        command.current_dir(scratch.project()).args(["run", "--", "python3", "-c", &script]);
        match own {
            Some(own) => command.env("ZDOTDIR", own),
            None => command.env_remove("ZDOTDIR"),
        };
        let output = Output::from(command.env("HOME", &home).output().expect("it runs")).ok();
        assert!(output.stderr.contains("[fettlefs] landed n"), "{flags}: {}", output.stderr);
        output.stdout
    };
    assert_eq!(start("-c", None), "env none\n");
    assert_eq!(start("-lc", None), "env none\nprofile none\nlogin none\n");
    assert_eq!(start("-ic", None), "env none\nrc none\n");
    let named = own.display();
    assert_eq!(start("-lc", Some(&own)), format!("env {named}\nprofile {named}\nlogin {named}\n"));
}

/// Of another project: inside its own no other begins.
#[test]
fn shells_of_a_run_inside_another_projects_tell_end_and_read_the_users_own_files_once() {
    let scratch = mounted_scratch!();
    let (home, other, own) =
        (scratch.root().join("home"), scratch.root().join("other"), scratch.root().join("own.bash"));
    std::fs::create_dir_all(&other).expect("a project");
    std::fs::create_dir_all(&home).expect("a home");
    for path in [&own, &home.join(".zshenv")] {
        // Not exported, so that each shell counts for itself.
        std::fs::write(path, "OWN+=x\n").expect("a startup file");
    }
    let program = scratch.fettlefs().get_program().to_owned();
    for (shell, zdotdir) in [("bash", None), ("zsh", None), ("zsh", Some(&home))] {
        // What recurses is not waited for.
        let mut command = scratch.command("timeout");
        command
            .current_dir(scratch.root())
            .arg("60")
            .arg(&program)
            .arg("-C")
            .arg(scratch.project())
            .args(["run", "--"]);
        command.arg(&program).arg("-C").arg(&other).args(["run", "--", "python3", "-c"]);
        command.arg(format!("import subprocess; subprocess.run(['{shell}', '-c', 'echo x > n; echo said $OWN'])"));
        match zdotdir {
            Some(own) => command.env("ZDOTDIR", own),
            None => command.env_remove("ZDOTDIR"),
        };
        let output = command.env("BASH_ENV", &own).env("HOME", &home).output().expect("it runs");
        let output = Output::from(output).ok();
        assert_eq!(output.stdout, "said x\n", "{shell}: {}", output.stderr);
        let told = output.stderr.lines().filter(|line| line.starts_with("[fettlefs] landed n (+1 -0)")).count();
        assert_eq!(told, 1, "{shell}: {}", output.stderr);
        std::fs::remove_file(other.join("n")).expect("what it wrote");
    }
}

#[test]
fn a_zdotdir_that_a_person_sets_at_a_prompt_stays_theirs() {
    let scratch = mounted_scratch!();
    let home = with_startup_files(&scratch, "home");
    std::fs::write(home.join(".zshenv"), "setopt nounset\n").expect("a startup file");
    let script = r#"
        zmodload zsh/zpty
        zpty prompt 'zsh -i'
        zpty -w prompt 'export ZDOTDIR=/mine'
        zpty -w prompt 'print -r -- $ZDOTDIR > $ROOT/said; exit'
        while zpty -r prompt line; do print -rn -- $line; done"#;
    let mut command = scratch.fettlefs();
    command.current_dir(scratch.project()).args(["run", "--", "zsh", "-fc", script]).env("ROOT", scratch.root());
    let output = Output::from(command.env("HOME", &home).env_remove("ZDOTDIR").output().expect("it runs")).ok();
    let said = std::fs::read_to_string(scratch.root().join("said")).unwrap_or_default();
    assert_eq!(said, "/mine\n", "{}", output.stdout);
    assert!(!output.stdout.contains("parameter not set"), "{}", output.stdout);
}

#[test]
fn what_a_person_starts_at_a_prompt_of_zsh_tells_and_the_prompt_is_theirs() {
    let scratch = mounted_scratch!();
    with_startup_files(&scratch, "home");
    // A terminal from zsh's own library: the first zsh is nobody's command, the second has a prompt.
    let script = r#"
        zmodload zsh/zpty
        zpty prompt 'zsh -i'
        zpty -w prompt "python3 -c 'import subprocess; subprocess.run([\"zsh\", \"-c\", \"echo x > n\"])' 2> $ROOT/told"
        zpty -w prompt "fc -W $ROOT/history; exit"
        while zpty -r prompt line; do print -rn -- $line; done"#;
    let mut command = scratch.fettlefs();
    command.current_dir(scratch.project()).args(["run", "--", "zsh", "-fc", script]).env("ROOT", scratch.root());
    let output = Output::from(command.env_remove("ZDOTDIR").output().expect("it runs")).ok();
    assert!(output.stdout.contains("rc none"), "{}", output.stdout);
    let told = std::fs::read_to_string(scratch.root().join("told")).expect("what it told");
    assert_eq!(told, "[fettlefs] landed n (+1 -0) [new file]\n");
}

#[test]
fn a_run_can_do_without_and_other_shells_say_nothing() {
    let scratch = mounted_scratch!();
    let tell = "python3 -c 'import subprocess; subprocess.run([\"SHELL\",\"-c\",\"echo x >> a\"])'";
    let told = |flags: &[&str], shell| {
        let output = run(&scratch, flags, &tell.replace("SHELL", shell)).ok();
        output.stderr.contains("[fettlefs]")
    };
    for (flags, shell, want) in [
        (&[][..], "bash", true),
        (&["--no-effects"], "bash", false),
        (&[], "zsh", true),
        (&["--no-effects"], "zsh", false),
        (&[], "dash", false),
    ] {
        assert_eq!(told(flags, shell), want, "{shell} {flags:?}");
    }
}

#[test]
fn a_denied_write_is_told_with_its_reason() {
    let scratch = mounted_scratch!();
    scratch.write(".fettle.toml", "[[rule]]\nmatch = \"no\"\naction = \"deny\"\n");
    let output = shell(&scratch, "echo x > no; mv /dev/null/x y 2>/dev/null; exit 0").ok();
    assert!(output.stderr.contains("[fettlefs] denied no"), "{}", output.stderr);
}

#[test]
fn a_temporary_file_that_was_renamed_over_another_is_not_told_of() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let script = "sed -i 's/line 5$/line five/' a; awk '{ print } NR == 9 { print \"more\" }' a > a.tmp; mv a.tmp a; \
                  echo stays > b.tmp";
    let output = agent(&scratch, &["bash", "-c", script]).ok();
    assert_eq!(output.stderr, "[fettlefs] landed a (+2 -1)\n[fettlefs] landed b.tmp (+1 -0) [new file]\n");
    let summary = run(&scratch, &["--json"], "sed -i 's/line 6$/line six/' a").ok();
    let summary: serde_json::Value = serde_json::from_str(&summary.stderr).expect("a summary");
    let landed: Vec<_> = summary["landed"].as_array().expect("landed").iter().map(|it| &it["path"]).collect();
    assert_eq!(landed, ["a"]);
}
