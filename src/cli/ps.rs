//! `fettlefs ps`: lists the mounts, and who runs what in which project.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::desk::Done;
use super::text::Text;
use super::words::age;
use super::{Desk, Failure, offline};
use crate::client::{Client, ClientError, Reach, fettle_mounts, other_answer, projects_elsewhere};
use crate::protocol::{ErrorBody, ErrorCode, Exit, Op, Reply, Request, Run};
use crate::sys::mount::MountEntry;

/// How long to wait for all daemons together: one that is stopped must not hold up the list.
const ANSWER_WAIT: Duration = Duration::from_secs(2);

/// List the mounts of fettlefs, and the commands that `fettlefs run` has started
#[derive(clap::Args)]
pub struct Arguments {}

/// What a daemon answers, or that it is gone while its mount is still there.
enum DaemonSays {
    Runs(Vec<Run>),
    Dead,
}

/// The answers of all daemons.
#[derive(Default)]
struct Answers {
    running: Vec<Running>,
    /// Projects with a mount whose daemon is gone.
    dead: HashSet<PathBuf>,
}

/// A run and its project.
struct Running {
    project: PathBuf,
    run: Run,
}

pub fn run(Arguments {}: Arguments, desk: &Desk) -> Result<Exit, Failure> {
    let mounts = fettle_mounts()?;
    let Answers { running, dead } = ask_all(&mounts, desk)?;
    let is_dead = |mount: &MountEntry| dead.contains(Path::new(&mount.source));
    let listed: Vec<_> = mounts.iter().map(|mount| json_of_mount(mount, is_dead(mount))).collect();
    let runs = running.iter().map(Running::json).collect::<Result<Vec<_>, _>>()?;
    desk.answer_value(json!({"v": 1, "ok": true, "mounts": listed, "runs": runs}), Done::Nothing, |text| {
        for mount in &mounts {
            text.name(mount.source.as_bytes()).put("  on  ").name(mount.mountpoint.as_os_str().as_bytes());
            text.put(if is_dead(mount) { "  dead: its daemon is gone\n" } else { "\n" });
        }
        running.iter().for_each(|running| running.render(text));
    })?;
    Ok(Exit::Done)
}

/// Asks each daemon once, all at the same time. A failure to ask one does not hide the others.
fn ask_all(mounts: &[MountEntry], desk: &Desk) -> Result<Answers, Failure> {
    let visible = mounts.iter().map(|mount| (PathBuf::from(&mount.source), mount.mountpoint.clone()));
    let elsewhere = projects_elsewhere()?.into_iter().map(|project| (project.clone(), project));
    let mut asked: Vec<(PathBuf, Receiver<_>)> = Vec::new();
    for (project, way) in visible.chain(elsewhere) {
        if asked.iter().all(|(other, _)| *other != project) {
            asked.push((project, ask(way)?));
        }
    }
    let (until, mut answers) = (Instant::now() + ANSWER_WAIT, Answers::default());
    for (project, answer) in asked {
        let silent = |_| Err(ErrorBody::new(ErrorCode::Busy, "its daemon does not answer"));
        match answer.recv_timeout(until.saturating_duration_since(Instant::now())).unwrap_or_else(silent) {
            Ok(DaemonSays::Runs(runs)) => {
                answers.running.extend(runs.into_iter().map(|run| Running { project: project.clone(), run }));
            }
            Ok(DaemonSays::Dead) => drop(answers.dead.insert(project)),
            Err(err) => desk.remark(|text| {
                text.put("fettlefs: ").name(project.as_os_str().as_bytes()).put(": ").name(err.message).put("\n");
            })?,
        }
    }
    Ok(answers)
}

/// Asks on a thread of its own, which may block on a stopped daemon and ends with the program.
fn ask(way: PathBuf) -> Result<Receiver<Result<DaemonSays, ErrorBody>>, Failure> {
    let (tell, answer) = channel();
    // The receiver may have given up.
    let work = move || drop(tell.send(told_by(&way)));
    std::thread::Builder::new().name("ps".to_owned()).spawn(work).map_err(Failure::from)?;
    Ok(answer)
}

/// Returns no runs if nothing answers: there is no daemon, or the path means something else in this mount namespace.
fn told_by(way: &Path) -> Result<DaemonSays, ErrorBody> {
    let mut client = match Client::open(way, offline::answer) {
        Err(ClientError::Stale(_)) => return Ok(DaemonSays::Dead),
        Err(err) if err.code() == ErrorCode::NotMounted || !way.exists() => return Ok(DaemonSays::Runs(Vec::new())),
        opened => opened?,
    };
    match client.reach() {
        Reach::Stale(_) => return Ok(DaemonSays::Dead),
        Reach::Offline => return Ok(DaemonSays::Runs(Vec::new())),
        Reach::View(_) | Reach::Socket(_) => {}
    }
    // Every page contains all runs.
    match client.ask(&Request { limit: Some(1), ..Request::new(Op::Status) })? {
        Reply::Status(status) => Ok(DaemonSays::Runs(status.runs)),
        _ => Err(other_answer()),
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
        text.put(format!("  {}\n", age(*started, text.now())));
    }
}

fn json_of_mount(mount: &MountEntry, is_dead: bool) -> Value {
    json!({
        "project": mount.source.to_string_lossy(), "mountpoint": mount.mountpoint.to_string_lossy(), "dead": is_dead
    })
}
