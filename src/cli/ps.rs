//! `fettlefs ps`: the mounts there are, and who runs what in which project.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::text::Text;
use super::words::age;
use super::{Desk, Failure, offline};
use crate::client::{Client, Reach, fettle_mounts, projects_elsewhere};
use crate::protocol::{ErrorBody, ErrorCode, Exit, Op, Reply, Request, Run};
use crate::sys::mount::MountEntry;

/// How long is waited for all daemons together: one that stands still must not keep the list from being told.
const ANSWER_WAIT: Duration = Duration::from_secs(2);

/// List the mounts of fettlefs, and the commands that `fettlefs run` has started
#[derive(clap::Args)]
pub struct Arguments {}

/// A run, and where it is.
struct Running {
    project: PathBuf,
    run: Run,
}

pub fn run(Arguments {}: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let mounts = fettle_mounts()?;
    let running = running(&mounts, desk)?;
    let listed: Vec<_> = mounts.iter().map(json_of_mount).collect();
    let runs = running.iter().map(Running::json).collect::<Result<Vec<_>, _>>()?;
    desk.answer_value(json!({"v": 1, "ok": true, "mounts": listed, "runs": runs}), |text| {
        for mount in &mounts {
            text.name(mount.source.as_bytes()).put("  on  ").name(mount.mountpoint.as_os_str().as_bytes()).put("\n");
        }
        running.iter().for_each(|running| running.render(text));
    })?;
    Ok(Exit::Done)
}

/// Asks each daemon once, all at the same time. One that cannot be asked keeps nobody from seeing the others.
fn running(mounts: &[MountEntry], desk: &Desk) -> Result<Vec<Running>, Failure> {
    let visible = mounts.iter().map(|mount| (PathBuf::from(&mount.source), mount.mountpoint.clone()));
    let elsewhere = projects_elsewhere()?.into_iter().map(|project| (project.clone(), project));
    let mut asked: Vec<(PathBuf, Receiver<_>)> = Vec::new();
    for (project, way) in visible.chain(elsewhere) {
        if asked.iter().all(|(other, _)| *other != project) {
            asked.push((project, ask(way)?));
        }
    }
    let (until, mut running) = (Instant::now() + ANSWER_WAIT, Vec::new());
    for (project, answer) in asked {
        let silent = |_| Err(ErrorBody::new(ErrorCode::Busy, "its daemon does not answer"));
        match answer.recv_timeout(until.saturating_duration_since(Instant::now())).unwrap_or_else(silent) {
            Ok(runs) => running.extend(runs.into_iter().map(|run| Running { project: project.clone(), run })),
            Err(err) => desk.remark(|text| {
                text.put("fettlefs: ").name(project.as_os_str().as_bytes()).put(": ").name(err.message).put("\n");
            })?,
        }
    }
    Ok(running)
}

/// On a thread of its own, which may wait for a daemon that stands still, and ends with the program.
fn ask(way: PathBuf) -> Result<Receiver<Result<Vec<Run>, ErrorBody>>, Failure> {
    let (tell, answer) = channel();
    // Who listened may have given up.
    let work = move || drop(tell.send(runs_of(&way)));
    std::thread::Builder::new().name("ps".to_owned()).spawn(work).map_err(Failure::from)?;
    Ok(answer)
}

/// None where nobody answers: no daemon, or a path that is another one's here.
fn runs_of(way: &Path) -> Result<Vec<Run>, ErrorBody> {
    let mut client = match Client::open(way, offline::answer).map_err(ErrorBody::from) {
        Err(err) if err.code == ErrorCode::NotMounted || !way.exists() => return Ok(Vec::new()),
        opened => opened?,
    };
    match client.reach() {
        Reach::Offline | Reach::Stale(_) => return Ok(Vec::new()),
        Reach::View(_) | Reach::Socket(_) => {}
    }
    // All runs are in each page.
    match client.ask(&Request { limit: Some(1), ..Request::new(Op::Status) })? {
        Reply::Status(status) => Ok(status.runs),
        _ => Err(ErrorBody::new(ErrorCode::Io, crate::client::OTHER_ANSWER)),
    }
}

impl Running {
    fn json(&self) -> Result<Value, Failure> {
        let mut value = serde_json::to_value(&self.run).map_err(std::io::Error::from)?;
        value["project"] = self.project.to_string_lossy().into();
        Ok(value)
    }

    fn render(&self, text: &mut Text) {
        let Run { pid, uid, command, started, .. } = &self.run;
        text.name(self.project.as_os_str().as_bytes()).put(format!("  run  pid {pid}  uid {uid}  ")).name(command);
        text.put(format!("  {}\n", age(*started, text.style().now)));
    }
}

fn json_of_mount(mount: &MountEntry) -> Value {
    json!({"project": mount.source.to_string_lossy(), "mountpoint": mount.mountpoint.to_string_lossy()})
}
