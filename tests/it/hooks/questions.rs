//! What a program is told, and in which surroundings.

use std::fs;

use serde_json::{Value, json};

use super::{mounting, program, script};
use crate::harness::{Scratch, lines, mounted_scratch, with_changed_lines};

/// Writes down what it is asked, a line each.
fn recorder(scratch: &Scratch) -> std::path::PathBuf {
    let record = scratch.root().join("asked");
    program(scratch, "recorder", &format!("#!/bin/sh\ncat >> {record:?}\necho '{{\"decision\":\"land\"}}'\n"))
}

fn asked(scratch: &Scratch) -> Vec<Value> {
    let record = scratch.root().join("asked");
    let text = fs::read_to_string(&record).unwrap_or_default();
    if record.exists() {
        fs::remove_file(record).expect("removed");
    }
    text.lines().map(|line| serde_json::from_str(line).expect("a question is one line of JSON")).collect()
}

#[test]
fn each_kind_of_change_is_asked_about_once() {
    let scratch = mounted_scratch!();
    scratch.write("old", "a\nb\n");
    let recorder = recorder(&scratch);
    let view = mounting(&scratch, &[&recorder]).start();

    script(&scratch, &view, r#"put("old", b"a\nc\n")"#);
    let [question] = &asked(&scratch)[..] else { panic!("one close, one question") };
    let by = (question["pid"].as_u64(), question["uid"].as_u64());
    assert!(by.0.is_some_and(|pid| pid > 1) && by.1 == Some(u64::from(rustix::process::getuid().as_raw())));
    assert!(question["exe"].as_str().is_some_and(|exe| exe.contains("python")), "{question}");
    let diff = "diff --git a/old b/old\n--- a/old\n+++ b/old\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n";
    // Of `a` and `c`.
    let sha256 = "b72cf6d7918130f75347ff0f8b6e9fde004ee6d7fc26af90a349707207f72750";
    let want = json!({
        "v": 1, "op": "modify", "project": scratch.project(), "path": "old", "from": null, "tier": "land",
        "reasons": [], "insertions": 1, "deletions": 1, "old_lines": 2, "bytes": 4, "sha256": sha256, "diff": diff,
        "diff_omitted": 0, "pid": question["pid"], "uid": question["uid"], "exe": question["exe"],
    });
    assert_eq!(*question, want);

    for (act, want) in [
        ("put('made', b'x\\n')", json!(["create", "made", null, "land", 1, 0])),
        ("os.unlink('old')", json!(["delete", "old", null, "land", 0, 2])),
        ("put('tmp', b'y\\n')", json!(["create", "tmp", null, "land", 1, 0])),
        ("os.rename('tmp', 'made')", json!(["rename", "made", "tmp", "land", 1, 1])),
    ] {
        script(&scratch, &view, act);
        let [question] = &asked(&scratch)[..] else { panic!("{act}: not one question") };
        let fields = ["op", "path", "from", "tier", "insertions", "deletions"].map(|field| question[field].clone());
        assert_eq!(Value::from(fields.to_vec()), want, "{act}");
    }
    // The same again, and what only looks, is nothing to ask about.
    script(&scratch, &view, "put('made', b'y\\n'); get('made'); os.mkdir('d'); os.chmod('made', 0o600)");
    assert_eq!(asked(&scratch), Vec::<Value>::new());
}

#[test]
fn a_large_change_is_asked_about_before_it_is_held() {
    let scratch = mounted_scratch!();
    scratch.write("big", lines(1000));
    let recorder = recorder(&scratch);
    let view = mounting(&scratch, &[&recorder]).start();
    let new = with_changed_lines(&lines(1000), 900);
    view.write("big", &new);
    view.assert_held("big", &new, &lines(1000));
    let [question] = &asked(&scratch)[..] else { panic!("one close, one question") };
    assert_eq!((&question["tier"], &question["reasons"]), (&json!("hold"), &json!(["size"])));
    let sent = question["diff"].as_str().map_or(0, |diff| diff.lines().count());
    assert_eq!((sent, question["diff_omitted"].as_u64().is_some_and(|left| left > 1000)), (200, true));
    // Their word does not loosen anything.
    assert_eq!(view.only_held().reason, "size");
}

#[test]
fn nobody_is_asked_about_what_nobody_judges() {
    let scratch = mounted_scratch!();
    scratch.git_init();
    scratch.write(".gitignore", "target/\n");
    let recorder = recorder(&scratch);
    let view = mounting(&scratch, &[&recorder]).start();
    view.sh("mkdir target && echo x > target/x && git config user.name Somebody && git add -A").ok();
    let paths: Vec<_> = asked(&scratch).into_iter().map(|question| question["path"].clone()).collect();
    assert_eq!(paths, Vec::<Value>::new());
}

#[test]
fn the_surroundings_are_bare() {
    let scratch = mounted_scratch!();
    let out = scratch.root().join("surroundings");
    let script = format!(
        "#!/usr/bin/python3 -SE
import json, os, resource, sys
sys.stdin.read()
status = dict(line.split(':', 1) for line in open('/proc/self/status'))
told = {{
    'environment': sorted(os.environ), 'cwd': os.getcwd(), 'arguments': sys.argv[1:],
    'descriptors': sorted(fd for fd in range(64) if os.path.exists(f'/proc/self/fd/{{fd}}')),
    'leads': os.getpgrp() == os.getpid(), 'apart': os.getsid(0) != os.getsid(int(open('/proc/1/stat').read().split()[0])),
    # Of the 31 with a name; Python ignores two by itself.
    'blocked': int(status['SigBlk'], 16), 'ignored': int(status['SigIgn'], 16) & 0x7effefff,
    'files': resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= 1024,
}}
open({out:?}, 'w').write(json.dumps(told))
print(json.dumps({{'decision': 'land'}}))
"
    );
    let hook = program(&scratch, "looks", &script);
    let command = format!("[{hook:?}, 'one', 'two words', '$HOME;*']");
    let mounting =
        scratch.mounting().env("FETTLE_HOOKS_PRE_WRITE", command).env("SECRET", "x").env("LD_LIBRARY_PATH", "");
    let view = mounting.in_background_of_script().start();
    view.sh("echo x > a").ok();
    view.assert_landed("a", "x\n");
    let told: Value = serde_json::from_slice(&fs::read(&out).expect("it ran")).expect("JSON");
    let environment = told["environment"].as_array().expect("a list").clone();
    let allowed = ["HOME", "LANG", "LC_CTYPE", "LOGNAME", "PATH", "TZ", "USER"];
    assert!(environment.iter().all(|name| allowed.contains(&name.as_str().unwrap_or(""))), "{environment:?}");
    assert_eq!(told["descriptors"], json!([0, 1, 2]));
    assert_eq!((&told["cwd"], &told["arguments"]), (&json!("/"), &json!(["one", "two words", "$HOME;*"])));
    for fact in ["leads", "apart", "files"] {
        assert_eq!(told[fact], true, "{fact}: {told}");
    }
    assert_eq!((&told["blocked"], &told["ignored"]), (&json!(0), &json!(0)));
}
