//! What is offered, by itself.

use std::collections::HashSet;
use std::sync::mpsc::channel;
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::checks::{Waiting, progress};
use super::tools::{Tool, all};
use crate::protocol::{Acted, Reply, Response, ReviewReply};

#[test]
fn each_tool_is_described_and_takes_and_answers_an_object() {
    let names: HashSet<String> = all().iter().map(|tool| tool.name.to_string()).collect();
    assert_eq!(names.len(), Tool::ALL.len());
    for tool in all() {
        let what = &tool.name;
        assert_eq!(tool.input_schema["type"], "object", "{what}");
        assert_eq!(tool.input_schema["additionalProperties"], false, "{what} must not ignore what it does not know");
        let output = tool.output_schema.as_ref().unwrap_or_else(|| panic!("{what} answers nothing"));
        assert_eq!(output["type"], "object", "{what}");
        assert_eq!(output["properties"]["op"]["const"], what.as_ref(), "{what}");
        assert!(tool.description.as_ref().is_some_and(|text| text.len() > 40), "{what}");
        assert_eq!(Tool::named(what).map(Tool::name), Some(what.as_ref()));
    }
    assert_eq!(Tool::named("unmount"), None);
}

#[test]
fn only_what_changes_nothing_says_so() {
    let read_only: Vec<String> = all()
        .iter()
        .filter(|tool| tool.annotations.as_ref().and_then(|hints| hints.read_only_hint) == Some(true))
        .map(|tool| tool.name.to_string())
        .collect();
    assert_eq!(read_only, ["status", "diff", "read"]);
    for tool in all() {
        let hints = tool.annotations.unwrap_or_default();
        let destroys = ["patch", "check", "discard", "confirm"].contains(&&*tool.name);
        assert_eq!(hints.read_only_hint == Some(false) && hints.is_destructive(), destroys, "{}", tool.name);
    }
}

#[test]
fn the_op_of_an_answer_is_the_tools_name() {
    let op =
        |reply: Reply| serde_json::from_slice::<Value>(&Response::done(reply).to_whole_line()).unwrap()["op"].clone();
    assert_eq!(op(Reply::Confirm(Acted::default())), Tool::Confirm.name());
    assert_eq!(op(Reply::Discard(Acted::default())), Tool::Discard.name());
    assert_eq!(op(Reply::RequestReview(ReviewReply::default())), Tool::RequestReview.name());
}

#[test]
fn who_waits_is_told_now_and_then_and_who_does_not_is_noticed() {
    let (told, heard) = channel();
    let tell = move |seconds, line| told.send((seconds, line)).map_err(std::io::Error::other);
    let (cancelled, gone) = (CancellationToken::new(), CancellationToken::new());
    let waiting = Waiting { cancelled, gone: gone.clone(), tell: Some(Box::new(tell)) };
    let mut progress = progress(&waiting);
    for tenths in 1..=120 {
        progress(Duration::from_millis(100 * tenths), b"a line of its output").unwrap();
    }
    assert_eq!(heard.try_iter().collect::<Vec<_>>(), [5.0, 10.0].map(|at| (at, "a line of its output".to_owned())));
    progress(Duration::from_secs(20), &[b'x'; 1000]).unwrap();
    assert_eq!(heard.try_iter().map(|(_, line)| line.len()).collect::<Vec<_>>(), [200]);
    gone.cancel();
    assert!(progress(Duration::from_secs(21), b"").is_err());
}
