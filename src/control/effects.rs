//! Reports the effects of a shell's command, one line for each path, to the reader of its standard error (SPEC §14).

use std::collections::BTreeMap;

use super::answers::held_rows;
use super::{Asker, Project};
use crate::model::{RelPath, escape_name};
use crate::protocol::{ErrorBody, Event, EventName, last_of_each_path, tells_of_removal};

/// The most paths named one by one; `log` has the rest.
const PATHS_MAX: usize = 20;

/// `BASH` is sourced by every bash that a run starts, `ZSH` by every zsh.
pub const BASH: &str = include_str!("shell/effects.bash");
pub const ZSH: &str = include_str!("shell/effects.zsh");

/// Records that the asking shell begins.
pub fn begin(project: &Project, asker: &Asker) -> Result<(), ErrorBody> {
    project.overlay.shell_begins(asker.pid).map_err(|err| failed_at("begin", &err))
}

/// Records that the asking shell ends. Returns the text to print, usually none.
pub fn end(project: &Project, asker: &Asker) -> Result<String, ErrorBody> {
    let events = project.overlay.shell_ends(asker.pid).map_err(|err| failed_at("end", &err))?;
    let mut effects = last_of_each_path(events);
    effects.retain(|path, last| !has_passed(path, last, project));
    Ok(told(&effects, project))
}

/// A path that is gone without a removal was renamed, as by programs that save carefully: the new name is reported
/// instead. A path that cannot be looked at is reported.
fn has_passed(path: &RelPath, last: &Event, project: &Project) -> bool {
    let is_removal = last.message.as_deref().is_some_and(tells_of_removal);
    last.event == EventName::WriteLanded && !is_removal && matches!(project.overlay.lower().stat(path), Ok(None))
}

/// Returns `None` for an event that is no effect of the command's own writes.
fn line(path: &RelPath, last: &Event, held: Option<&str>) -> Option<String> {
    let name = escape_name(path.shown());
    let (insertions, deletions) = (last.insertions.unwrap_or_default(), last.deletions.unwrap_or_default());
    let counts = if insertions + deletions == 0 { String::new() } else { format!(" (+{insertions} -{deletions})") };
    let note = last.message.as_deref().map(|note| format!(" {}", escape_name(note.as_bytes()))).unwrap_or_default();
    match (last.event, held) {
        (EventName::WriteHeld, Some(id)) => Some(format!(
            "held {id} {name}{counts}: waits for review; you see your version, the project does not. Details: \
             fettlefs diff {id}"
        )),
        // The change has been decided about already.
        (EventName::WriteHeld, None) => None,
        (EventName::WriteLanded, _) => Some(format!("landed {name}{counts}{note}")),
        (EventName::WriteDenied, _) => {
            Some(format!("denied {name}{note}: the project and your view stay as they were"))
        }
        _ => None,
    }
}

fn told(effects: &BTreeMap<RelPath, Event>, project: &Project) -> String {
    if effects.is_empty() {
        return String::new();
    }
    let held = held_rows(project);
    let id_at = |path: &RelPath| held.iter().find(|row| row.row().names.contains(path)).map(|row| row.id().as_str());
    let lines: Vec<_> = effects.iter().filter_map(|(path, last)| line(path, last, id_at(path))).collect();
    let mut text: String = lines.iter().take(PATHS_MAX).map(|line| format!("[fettlefs] {line}\n")).collect();
    if lines.len() > PATHS_MAX {
        text.push_str(&format!("[fettlefs] … and {} more: fettlefs log\n", lines.len() - PATHS_MAX));
    }
    text
}

fn failed_at(what: &str, err: &crate::overlay::Error) -> ErrorBody {
    ErrorBody::new(crate::protocol::ErrorCode::Io, format!("{what} of a shell: {err}"))
}
