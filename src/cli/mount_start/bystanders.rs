//! What stands at the mountpoint before a mount covers it, and so stays below (SPEC §2): processes, and what was written
//! into a directory of its own that no view covered, as after the end of the daemon before.

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

/// True if there may be something to report. A daemon that replaces a dead one covers nothing anew.
pub fn are_told(plan: &Plan) -> bool {
    plan.is_first_start() && plan.audience == Audience::Everyone
}

/// Returns a remark on the names in a mountpoint that is not the project. To be called before the mount.
pub fn names(mountpoint: &Path) -> Option<String> {
    // A dead mount on it cannot be read, and has nothing of its own.
    let mut names: Vec<_> = fs::read_dir(mountpoint).ok()?.flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    let named = names.first()?.to_string_lossy().escape_debug().to_string();
    let others = match names.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!("{} is not empty: {named}{others} cannot be reached until unmount", mountpoint.display()))
}

/// Returns remarks on processes. Call it before the mount, after which the same names lead into the view. It takes some
/// 4 µs for each open file of each program, which on a busy machine is as long as the rest of the start.
pub fn processes(mountpoint: &Path, caller: Caller) -> Vec<String> {
    let remark = |Bystander { pid, name }: Bystander| {
        let name = name.to_string_lossy().escape_default().to_string();
        match Some(pid) == caller.parent && works_in(pid, mountpoint) {
            true => {
                format!("{name} (pid {pid}), which called this, stands below the mount: a shell leaves it by `cd .`")
            }
            false => format!("{name} (pid {pid}) stays below the mount"),
        }
    };
    standing_in(mountpoint).into_iter().filter(|one| one.pid != caller.pid).map(remark).collect()
}

/// True if a process has its working directory in `mountpoint`. One that only has a file open there is not helped by
/// `cd .`.
fn works_in(pid: u32, mountpoint: &Path) -> bool {
    fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|directory| directory.starts_with(mountpoint))
}
