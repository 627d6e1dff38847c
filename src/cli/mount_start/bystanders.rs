//! Processes that stand in the project before a mount covers it, and so stay below (SPEC §2).

use std::path::Path;
use std::{fs, process};

use super::Plan;
use crate::cli::mount::Audience;
use crate::sys::process::{Bystander, parent, standing_in};

/// The process that asks for a mount; the processes forked from it have other pids.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub pid: u32,
    parent: Option<u32>,
}

impl Caller {
    pub fn this_process() -> Self {
        let pid = process::id();
        Self { pid, parent: parent(pid) }
    }
}

/// True if there may be bystanders to report. A daemon that replaces a dead one covers nobody anew.
pub fn are_told(plan: &Plan) -> bool {
    plan.is_first_start() && plan.mountpoint == plan.project && plan.audience == Audience::Everyone
}

/// Returns remarks on bystanders. Call it before the mount, after which the same names lead into the view. It takes some
/// 4 µs for each open file of each program, which on a busy machine is as long as the rest of the start.
pub fn remarks(project: &Path, caller: Caller) -> Vec<String> {
    let remark = |Bystander { pid, name }: Bystander| {
        let name = name.to_string_lossy().escape_default().to_string();
        match Some(pid) == caller.parent && works_in(pid, project) {
            true => {
                format!("{name} (pid {pid}), which called this, stands below the mount: a shell leaves it by `cd .`")
            }
            false => format!("{name} (pid {pid}) stays below the mount"),
        }
    };
    standing_in(project).into_iter().filter(|one| one.pid != caller.pid).map(remark).collect()
}

/// True if a process has its working directory in `project`. One that only has a file open there is not helped by `cd .`.
fn works_in(pid: u32, project: &Path) -> bool {
    fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|directory| directory.starts_with(project))
}
