//! `fettlefs run` as the daemon sees it: the beginning and the end of a run.

use std::sync::Arc;

use rustix::event::{PollFd, PollFlags};

use super::rights::{self, is_in_run, same_namespace};
use super::{Asker, Mounted, Project};
use crate::overlay::{self, Overlay, Run};
use crate::protocol::{self, DirPath, ErrorBody, ErrorCode, LeaveReply, Op, ProjectPath, Reply, Request, RunReply};
use crate::sys::namespace::{Kind, pidfd_of};
use crate::sys::{process, thread};

type Result<T> = std::result::Result<T, ErrorBody>;

/// The name of a run that gives none of its own.
const UNNAMED: &str = "?";

/// Begins a run: what the asker starts from here on belongs to it, until the asker leaves or ends.
pub fn begin(request: &Request, asker: &Asker, project: &Project) -> Result<Reply> {
    let mounted = mounted(Op::Run, project)?;
    if is_in_run(asker, project) {
        return Err(ErrorBody::new(ErrorCode::BadRequest, already_in_run(asker, project)));
    }
    // Runs cost some processes the right to decide, and other users must not be able to take it from the owner.
    if !rights::sees_all(asker, project) {
        let message = format!("run: only its owner (uid {}) and root may begin one", project.owner);
        return Err(ErrorBody::new(ErrorCode::NotPermitted, message));
    }
    let end = pidfd_of(asker.pid).map_err(|err| failed(&format!("watch process {}: {err}", asker.pid)))?;
    let name = protocol::name_of(request.name.as_deref().unwrap_or(UNNAMED));
    let state_dirs = project.overlay.store().dirs().outside(&project.path);
    let state_dirs = state_dirs.map_err(|err| failed(&format!("look where state is: {err}")))?;
    let state_dirs = state_dirs.into_iter().map(DirPath).collect();
    // From here on, every failure ends the run again.
    let Some(run) = project.overlay.run_begun(asker.pid, asker.uid, &name).map_err(unrecorded)? else {
        let message = format!("{} is ending, or has a run of yours already", project.path.display());
        return Err(ErrorBody::new(ErrorCode::Busy, message));
    };
    let (overlay, ask_end, runner) = (Arc::clone(&project.overlay), Arc::clone(&mounted.ask_end), asker.pid);
    let ends_with_last = mounted.keeper.is_some();
    let watch = move || {
        let mut ended = [PollFd::new(&end, PollFlags::IN)];
        if let Err(err) = rustix::io::retry_on_intr(|| rustix::event::poll(&mut ended, None)) {
            log::error!("wait for the end of a run: {err}");
        }
        match leave_run(&overlay, runner, ends_with_last) {
            Ok(true) => ask_end(),
            Ok(false) => {}
            Err(err) => log::error!("end a run: {}", err.message),
        }
    };
    let spawned = thread::start("run", watch);
    if let Err(err) = spawned {
        leave_run(&project.overlay, runner, ends_with_last)?;
        return Err(failed(&format!("start a thread: {err}")));
    }
    Ok(Reply::Run(RunReply {
        session: run.session,
        of_nobody: project.overlay.session().to_owned(),
        pid: std::process::id(),
        uid: project.owner,
        view: ProjectPath(mounted.mountpoint.clone()),
        keeper: mounted.keeper,
        state_dirs,
    }))
}

fn already_in_run(asker: &Asker, project: &Project) -> String {
    let (path, owner) = (project.path.display(), project.owner);
    match asker.is_unseen() {
        true => format!(
            "run: the daemon of {path}, which is uid {owner}'s, cannot see whether you are in a run of it: run as that user, \
             or when it has ended"
        ),
        false => format!("this is inside a run of {path} already; start programs as they are"),
    }
}

/// Ends the asker's run. If it was the last, the deliverer of the answer ends the daemon.
pub fn leave(asker: &Asker, project: &Project) -> Result<Reply> {
    let ends_with_last = mounted(Op::Leave, project)?.keeper.is_some();
    Ok(Reply::Leave(LeaveReply { last: leave_run(&project.overlay, asker.pid, ends_with_last)? }))
}

/// Whether the run's programs see the mounts of the daemon's namespace, or may see them.
pub fn is_among_us(run: &Run) -> bool {
    let is_elsewhere = |pid| same_namespace(pid, Kind::Mount) == Some(false);
    !process::children(run.runner).into_iter().all(is_elsewhere)
}

/// Returns whether this was the last run and no other can begin.
fn leave_run(overlay: &Overlay, runner: u32, ends_with_last: bool) -> Result<bool> {
    let ended = overlay.run_ended(runner).map_err(unrecorded)?;
    Ok(ended && ends_with_last && overlay.runs().close_if_none())
}

fn mounted(op: Op, project: &Project) -> Result<&Mounted> {
    let not_mounted = || {
        let message = format!("{op}: {} is not mounted", project.path.display());
        ErrorBody::new(ErrorCode::NotMounted, message)
    };
    project.mounted.as_ref().ok_or_else(not_mounted)
}

fn unrecorded(err: overlay::Error) -> ErrorBody {
    failed(&format!("record a run: {err}"))
}

fn failed(message: &str) -> ErrorBody {
    ErrorBody::new(ErrorCode::Io, message)
}
