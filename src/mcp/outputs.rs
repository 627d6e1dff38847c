//! What each tool answers, as JSON Schema: the stable JSON of `--json`, which `docs/PROTOCOL.md` describes.
//!
//! Only fields that are always present are required, and fields may be added. Since a refusal is an answer too, each
//! schema has `ok` and `error`.

use rmcp::model::JsonObject;
use serde_json::{Value, json};

use super::tools::Tool;

pub fn schema(tool: Tool) -> JsonObject {
    let mut properties = object(json!({
        "v": {"const": 1, "description": "Version of this JSON."},
        "ok": {"type": "boolean"},
        "op": {"const": tool.name()},
        "error": error(),
    }));
    properties.extend(object(match tool {
        Tool::Status => status(),
        Tool::Diff => diff(),
        Tool::Read => read(),
        Tool::Patch | Tool::Discard | Tool::Confirm => acted(),
        Tool::Check => check(),
        Tool::RequestReview => request_review(),
    }));
    object(json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "required": ["v", "ok"],
        "properties": properties,
    }))
}

fn status() -> Value {
    json!({
        "schema": {"type": "string"},
        "project": {"type": "string"},
        "mountpoint": {"type": ["string", "null"]},
        "mounted": {"type": "boolean"},
        "pid": {"type": ["integer", "null"], "description": "Of the daemon."},
        "session": {"type": ["string", "null"]},
        "seq": {"type": "integer", "description": "Number of the last event."},
        "held": {"type": "array", "items": held()},
        "external": {"type": "array", "items": {
            "type": "object",
            "required": ["path", "kind", "hint"],
            "properties": {
                "path": {"type": "string"},
                "kind": {"enum": ["modified", "deleted", "replaced"]},
                "hint": {"type": "string"},
                "held": {"type": ["string", "null"], "description": "The held change of the same path."},
            },
        }},
        "backups": {"type": "array", "items": {"type": "object"}, "description": "Newest first."},
        "writers": {"type": "array", "items": {"type": "object"}, "description": "Who has written and not closed yet."},
        "runs": {"type": "array", "items": {"type": "object"}},
        "counters": {"type": "object", "properties": {
            "landed": {"type": "integer"}, "held": {"type": "integer"}, "denied": {"type": "integer"},
        }},
        "readonly": {"type": ["string", "null"], "description": "Why nothing can be written, when nothing can."},
        "next": {"type": "integer", "description": "The `offset` that goes on."},
    })
}

fn diff() -> Value {
    let mut change = held();
    change["properties"]["diff"] = json!({"type": "string", "description": "Unified."});
    json!({
        "changes": {"type": "array", "items": change},
        "next": {"type": "integer", "description": "The `offset` that goes on."},
        "told": {"type": "string", "description": "To be given with that."},
    })
}

fn read() -> Value {
    json!({
        "path": {"type": "string"},
        "form": {"enum": ["content", "part", "unchanged", "diff", "certificate", "forgotten"]},
        "text": {"type": "string", "description": "What you have not received yet."},
        "sha256": {"type": "string", "description": "Of the whole file as it is now, whatever the form."},
        "size": {"type": "integer"},
        "lines": {"type": "integer"},
        "session": {"type": ["string", "null"]},
        "insertions": {"type": "integer"},
        "deletions": {"type": "integer"},
        "externally_modified": {"type": "boolean"},
        "external": {"enum": ["modified", "deleted", "replaced"]},
        "hint": {"type": "string"},
        "next": {"type": "integer", "description": "The `offset` that goes on."},
    })
}

fn acted() -> Value {
    let more = json!({"type": "integer", "description": "How many outcomes there was no room for."});
    json!({"outcomes": {"type": "array", "items": outcome()}, "more": more, "dry_run": {"type": "boolean"}})
}

fn check() -> Value {
    json!({
        "command": {"type": "string"},
        "passed": {"type": "boolean"},
        "status": {"type": "integer", "description": "As a shell has it."},
        "seconds": {"type": "number"},
        "tail": {"type": "string", "description": "The last lines of both streams."},
        "held": {"type": "array", "items": held()},
        "held_count": {"type": "integer"},
        "moved": {"type": "array", "items": {"type": "string"}, "description": "What is not as it was tested."},
        "outcomes": {"type": ["array", "null"], "items": outcome(), "description": "What landed."},
    })
}

fn request_review() -> Value {
    json!({
        "held": {"type": "array", "items": held()},
        "held_count": {"type": "integer"},
        "may_confirm": {"type": "boolean", "description": "Whether you may decide without anybody."},
    })
}

fn held() -> Value {
    json!({
        "type": "object",
        "required": ["id", "path", "kind", "reason", "insertions", "deletions"],
        "properties": {
            "id": {"type": "string", "description": "Names this exact content."},
            "path": {"type": "string"},
            "path_b64": {"type": "string", "description": "The path's bytes, where it is not UTF-8."},
            "kind": {"enum": ["modify", "create", "delete", "type", "structure"]},
            "reason": {"type": "string", "description": "Why it is held."},
            "detail": {"type": "string"},
            "remedy": {"type": "string", "description": "What can be done, as words of the command line."},
            "looks": {"type": "array", "items": {"type": "string"}},
            "insertions": {"type": "integer"},
            "deletions": {"type": "integer"},
            "old_lines": {"type": "integer"},
            "ratio": {"type": "number"},
            "hunks": {"type": "integer"},
            "externally_modified": {"type": "boolean"},
            "expired": {"type": "boolean"},
            "created": {"type": "string", "format": "date-time"},
        },
    })
}

fn outcome() -> Value {
    json!({
        "type": "object",
        "required": ["action", "path"],
        "properties": {
            "action": {
                "enum": ["applied", "merged", "discarded", "restored", "undone", "unchanged", "landed", "held"],
            },
            "path": {"type": "string"},
            "id": {"type": "string"},
            "sha256": {"type": "string", "description": "What the next patch of this file is based on."},
            "new_id": {"type": "string", "description": "The rest of a change of which some hunks were taken."},
            "backup": {"type": "string", "description": "Where the replaced or discarded content is kept."},
            "operation": {"type": "string", "description": "What `fettlefs undo` takes."},
            "diff": {"type": "string"},
        },
    })
}

fn error() -> Value {
    json!({
        "type": "object",
        "required": ["code", "message"],
        "properties": {
            "code": {"enum": [
                "unknown_id", "unknown_path", "unknown_backup", "ambiguous", "superseded", "expired", "already_applied",
                "already_discarded", "conflict", "busy", "not_permitted", "not_mounted", "bad_request", "too_large",
                "unsupported_version", "write_failed", "io", "hook_denied",
            ]},
            "message": {"type": "string"},
            "id": {"type": "string"},
            "path": {"type": "string"},
            "new_id": {"type": "string", "description": "The live id that took the place of a superseded one."},
            "detail": {"type": "string"},
        },
    })
}

fn object(value: Value) -> JsonObject {
    match value {
        Value::Object(object) => object,
        other => unreachable!("written above as an object: {other}"),
    }
}
