//! What is offered, by itself.

use std::collections::HashSet;

use serde_json::Value;

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
