//! What can be found out without mounting.

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::StatVfsMountFlags;
use rustix::thread::CapabilitySet;

use super::super::mount::SettingFlags;
use super::super::{offline, sources};
use super::Finding;
use crate::client::{Client, DeadMount};
use crate::overlay::Policy;
use crate::protocol::{ErrorBody, ErrorCode, Op, Request, STATE_DIRECTORY};
use crate::sys::mount::{HELPERS, aliases, open_fuse_device};
use crate::sys::tree::Tree;
use crate::sys::watch::{are_told_of, user_limit};

/// With less than this, little is left for the copies of a landing and for the reserve.
const SPACE_LEFT_MIN: u64 = 64 << 20;
/// With fewer, a project of usual size cannot be watched as a whole: half of them are ours.
const WATCHES_MIN: usize = 16 << 10;
/// The first kernel that reads and writes passing files by itself.
const PASSTHROUGH_SINCE: (u32, u32) = (6, 9);

/// The name of the check for the right to mount.
pub const MOUNTING: &str = "mounting";

pub fn of_machine() -> Vec<Finding> {
    vec![device(), privilege(), kernel(), watches()]
}

pub fn of_project(project: &Path) -> Vec<Finding> {
    let mut findings = settings(project);
    findings.extend([outsiders(project), space(project)]);
    findings.extend(state(project));
    findings.extend(place(project));
    findings.extend(second_mounts(project));
    findings
}

/// Where the project's file system is mounted once more, a mount of the view covers nothing.
fn second_mounts(project: &Path) -> Option<Finding> {
    const CHECK: &str = "other paths";
    let aliases = match aliases(project) {
        Ok(aliases) => aliases,
        Err(err) => return Some(Finding::note(CHECK, format!("the mount table: {err}"), "mount /proc")),
    };
    let places: Vec<_> = aliases.iter().map(|alias| alias.place.display().to_string()).collect();
    (!places.is_empty()).then(|| {
        let message = format!("the project, or a part of it, is also at {}", places.join(", "));
        Finding::note(CHECK, message, "start agents by `fettlefs run`: it covers those, and `mount` does not")
    })
}

/// `/` cannot be the project: no program would be in the view.
fn place(project: &Path) -> Option<Finding> {
    let fault = || {
        Finding::fault("project", "/ is no project: programs would go on below a view there", "name a directory in it")
    };
    project.parent().is_none().then(fault)
}

/// The finding for a dead mount, through which nothing of the project can be seen.
pub fn dead(mount: &DeadMount) -> Finding {
    Finding::fault("project", mount.to_string(), mount.remedy())
}

fn device() -> Finding {
    const CHECK: &str = "/dev/fuse";
    match open_fuse_device() {
        Ok(_) => Finding::ok(CHECK, "can be opened"),
        Err(err) if err.raw_os_error() == Some(libc::EACCES) => {
            Finding::fault(CHECK, "may not be opened by this user", "as root: chmod 666 /dev/fuse")
        }
        Err(err) => {
            let remedy = if in_container() { "start the container with --device /dev/fuse" } else { "modprobe fuse" };
            Finding::fault(CHECK, err.to_string(), remedy)
        }
    }
}

/// Root mounts by itself, every other user by the set-uid program.
fn privilege() -> Finding {
    match rustix::process::geteuid().is_root() {
        true => root_privilege(),
        false => helper(),
    }
}

fn root_privilege() -> Finding {
    const CHECK: &str = MOUNTING;
    match rustix::thread::capabilities(None) {
        Ok(sets) if sets.effective.contains(CapabilitySet::SYS_ADMIN) => Finding::ok(CHECK, "as root"),
        Ok(_) => {
            let remedy = match in_container() {
                true => "start the container with --cap-add SYS_ADMIN --device /dev/fuse",
                false => "run with CAP_SYS_ADMIN, or as an ordinary user with fusermount3",
            };
            Finding::fault(CHECK, "root has no CAP_SYS_ADMIN here", remedy)
        }
        Err(err) => Finding::fault(CHECK, format!("capabilities: {err}"), "look at capget(2)"),
    }
}

fn helper() -> Finding {
    const CHECK: &str = MOUNTING;
    let install = "as root: apt-get install fuse3";
    let Some((program, meta)) = find_helper() else {
        return Finding::fault(CHECK, "there is no fusermount3, by which ordinary users mount", install);
    };
    if meta.mode() & libc::S_ISUID == 0 || meta.uid() != 0 {
        return Finding::fault(CHECK, format!("{} is not set-uid root", program.display()), install);
    }
    match rustix::thread::no_new_privs() {
        Ok(true) => {
            let remedy = "start without no_new_privs (docker: not with --security-opt no-new-privileges)";
            Finding::fault(CHECK, format!("{} may not gain privileges here", program.display()), remedy)
        }
        Ok(false) | Err(_) => Finding::ok(CHECK, format!("by {}", program.display())),
    }
}

fn find_helper() -> Option<(PathBuf, std::fs::Metadata)> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let candidates = HELPERS.iter().flat_map(|name| match name.contains('/') {
        true => vec![PathBuf::from(name)],
        false => directories.iter().map(|directory| directory.join(name)).collect(),
    });
    let mut found = candidates.filter_map(|path| path.metadata().ok().map(|meta| (path, meta)));
    found.find(|(_, meta)| meta.is_file())
}

fn kernel() -> Finding {
    const CHECK: &str = "kernel";
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    match version(&release) {
        Some(version) if version < PASSTHROUGH_SINCE => {
            let (major, minor) = PASSTHROUGH_SINCE;
            let message = format!("Linux {release}: files that nobody judges go through the daemon");
            Finding::note(CHECK, message, format!("Linux {major}.{minor} or later reads and writes them by itself"))
        }
        Some(_) | None => Finding::ok(CHECK, format!("Linux {release}")),
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|digit: char| !digit.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// A fault if a mount would be refused for its settings, and a note for each setting that waits for trust.
fn settings(project: &Path) -> Vec<Finding> {
    const CHECK: &str = "settings";
    let remedy = "correct it: docs/SETTINGS.md lists all keys";
    let source = match sources::rule_source(project, None, &SettingFlags::default()) {
        Ok(source) => source,
        Err(failure) => return vec![Finding::fault(CHECK, failure.message(), remedy)],
    };
    let loaded = Tree::open(project).map_err(|err| err.to_string());
    let policy = match loaded.and_then(|lower| Policy::load(&lower, &source).map_err(|err| err.to_string())) {
        Err(message) => return vec![Finding::fault(CHECK, message, remedy)],
        Ok(policy) => policy,
    };
    let ignored = policy.notices.iter().map(|notice| {
        let message = format!("ignored, for a project may not loosen them by itself: {notice}");
        Finding::note(CHECK, message, "`fettlefs trust`, if you know what the file says")
    });
    let git = policy.git_notice().map(|notice| {
        Finding::note(CHECK, notice, "a `pass` rule for what may be written there unreviewed (docs/SETTINGS.md)")
    });
    let notes: Vec<Finding> = ignored.chain(git).collect();
    if notes.is_empty() { vec![Finding::ok(CHECK, "can be read")] } else { notes }
}

/// Checks that the project's state can be read. `None` if there is none yet, or if another process is using it.
fn state(project: &Path) -> Option<Finding> {
    const CHECK: &str = "state";
    let ask = || -> Result<(), ErrorBody> {
        let mut client = Client::open(project, offline::answer)?;
        // State found for a project above this one says nothing about this one.
        if client.place().root == project {
            client.ask(&Request { limit: Some(1), ..Request::new(Op::Status) })?;
        }
        Ok(())
    };
    match ask() {
        Ok(()) => Some(Finding::ok(CHECK, "can be read, as far as there is any")),
        Err(err) if matches!(err.code, ErrorCode::NotMounted | ErrorCode::Busy) => None,
        Err(err) => {
            Some(Finding::fault(CHECK, err.message, "until that is mended nothing can be mounted or confirmed"))
        }
    }
}

/// Checks that changes made below by others are seen at once.
fn outsiders(project: &Path) -> Finding {
    const CHECK: &str = "project";
    let told = std::fs::File::open(project).and_then(|file| are_told_of(file.as_fd()));
    match told {
        Ok(true) => Finding::ok(CHECK, project.display().to_string()),
        Ok(false) => {
            let message =
                format!("{} is where changes from elsewhere are not announced: they show late", project.display());
            Finding::note(CHECK, message, "none needed: they show within a second, and at every open")
        }
        Err(err) => Finding::fault(CHECK, format!("{}: {err}", project.display()), "make it readable for this user"),
    }
}

fn watches() -> Finding {
    const CHECK: &str = "watches";
    match user_limit() {
        Ok(limit) if limit < WATCHES_MIN => {
            let message = format!("a user may watch {limit} directories: changes in others show within a second");
            Finding::note(CHECK, message, "sysctl fs.inotify.max_user_watches=524288")
        }
        Ok(limit) => Finding::ok(CHECK, format!("{limit} directories a user")),
        Err(err) => Finding::note(CHECK, format!("inotify: {err}"), "mount /proc"),
    }
}

fn space(project: &Path) -> Finding {
    const CHECK: &str = "space";
    let named = match sources::location() {
        Ok(location) => location.state,
        Err(failure) => return Finding::fault(CHECK, failure.message(), "correct the variable"),
    };
    let state = named.unwrap_or_else(|| project.join(STATE_DIRECTORY));
    // Held changes are in the existing state, and would not be found from another place.
    let (place, or_elsewhere) = match state.exists() {
        true => (state.as_path(), ""),
        false => (project, ", or name another place by FETTLE_STATE_DIR"),
    };
    match rustix::fs::statvfs(place) {
        Ok(facts) if facts.f_flag.contains(StatVfsMountFlags::RDONLY) => {
            let message = format!("{} is on a read-only file system", place.display());
            Finding::fault(CHECK, message, format!("mount it read-write{or_elsewhere}"))
        }
        Ok(facts) => match facts.f_bavail.saturating_mul(facts.f_frsize) {
            left if left < SPACE_LEFT_MIN => {
                let message = format!("{} MiB left at {}", left >> 20, place.display());
                Finding::note(CHECK, message, format!("make room{or_elsewhere}"))
            }
            left => Finding::ok(CHECK, format!("{} MiB left at {}", left >> 20, place.display())),
        },
        Err(err) => Finding::fault(CHECK, format!("{}: {err}", place.display()), "mend the file system"),
    }
}

/// Recognises a container by the marks that docker, podman and Kubernetes leave.
pub fn in_container() -> bool {
    let marks = ["/.dockerenv", "/run/.containerenv"];
    marks.iter().any(|mark| Path::new(mark).exists())
        || ["container", "KUBERNETES_SERVICE_HOST"].iter().any(|variable| std::env::var_os(variable).is_some())
}
