//! A rule that refuses writes and comes with a `reload`: what is open by then is held, and what is held stays so.

use super::*;

const REFUSING: [&str; 2] = ["deny", "freeze"];

fn reload(bench: &Bench, rules: &[(&str, &str)]) {
    let rule = |(path, action): &(&str, &str)| format!("[[rule]]\nmatch = \"{path}\"\naction = \"{action}\"\n");
    bench.put(".fettle.toml", &rules.iter().map(rule).collect::<String>());
    let policy = bench.view().read_rules(&RuleSource::default()).unwrap();
    bench.view().set_policy(policy).unwrap();
}

/// Whether a confirm of all that is held is refused by a rule for some path, and nothing landed.
#[track_caller]
fn assert_refused(bench: &Bench, path: &str) {
    let ids: Vec<ChangeId> = bench.held().iter().map(|row| row.held.as_ref().unwrap().id.clone()).collect();
    for dry_run in [true, false] {
        let how = ConfirmHow { review: Review { dry_run, ..HOW.review }, force: true, ..HOW };
        let refusal = bench.view().confirm(&ids, &how).unwrap_err();
        let want = (ErrorCode::NotPermitted, format!("a rule keeps {path} from being written"));
        assert_eq!((refusal.code, refusal.message), want);
    }
    assert_eq!(bench.held().len(), ids.len());
    bench.check();
}

#[test]
fn what_is_open_when_a_rule_comes_to_refuse_it_is_held_until_the_rule_goes() {
    for action in REFUSING {
        let bench = Bench::new();
        bench.put("f", &lines(100));
        let handle = bench.open_to_write("f");
        reload(&bench, &[("f", action)]);
        bench.write_and_close(handle, 0, "LINE");
        assert_eq!((bench.reasons(), bench.lower("f")), (vec![Reason::Rule], Some(lines(100))));
        assert_refused(&bench, "f");
        reload(&bench, &[]);
        bench.confirm(&[bench.only_id()]).unwrap();
        assert_eq!(bench.lower("f"), Some(lines(100).replacen("line", "LINE", 1)));
    }
}

#[test]
fn what_is_open_under_a_name_of_several_is_held_when_a_rule_comes_to_refuse_another() {
    for action in REFUSING {
        let bench = Bench::new();
        bench.put("f", &lines(100));
        std::fs::hard_link(bench.lower_path("f"), bench.lower_path("g")).unwrap();
        let handle = bench.open_to_write("f");
        reload(&bench, &[("g", action)]);
        bench.write_and_close(handle, 0, "LINE");
        assert_eq!((bench.reasons(), bench.lower("g")), (vec![Reason::Rule], Some(lines(100))));
        assert_refused(&bench, "g");
    }
}

#[test]
fn what_is_held_when_a_rule_comes_to_refuse_it_stays_held() {
    type Change = (&'static str, fn(&Bench));
    let changes: [Change; 4] = [
        ("d/f", |bench| bench.save("d/f", &changed(100, 60))),
        ("d/f", |bench| bench.unlink("d/f")),
        ("d/AGENTS.md", |bench| bench.save("d/AGENTS.md", "be bold\n")),
        ("d", |bench| {
            bench.unlink("d/f");
            bench.view().rmdir(ROOT, OsStr::new("d"), &ME).unwrap();
        }),
    ];
    for action in REFUSING {
        for (number, (path, change)) in changes.iter().enumerate() {
            let bench = Bench::new();
            bench.put("d/f", &lines(100));
            bench.put("other", &lines(100));
            bench.save("other", &changed(100, 60));
            change(&bench);
            assert!(bench.held().iter().any(|row| row.path().as_bytes() == path.as_bytes()), "{number}");
            reload(&bench, &[(&format!("/{path}"), action)]);
            assert_refused(&bench, path);
            assert_eq!(bench.lower("other"), Some(lines(100)), "{number}");
        }
    }
}

#[test]
fn no_hunk_lands_where_a_rule_has_come_to_refuse_it() {
    for action in REFUSING {
        let bench = Bench::new();
        bench.put("f", &lines(200));
        bench.save("f", &(lines(200).replace("line 3\n", "3\n").replace("line 150\n", "150\n") + &lines(90)));
        reload(&bench, &[("f", action)]);
        let refusal = bench.view().confirm_hunks(&bench.only_id(), &[1], &HOW).unwrap_err();
        assert_eq!((refusal.code, bench.lower("f")), (ErrorCode::NotPermitted, Some(lines(200))));
    }
}
