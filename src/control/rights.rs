//! Who may ask for what (SPEC §8). Decided here and nowhere else.

use std::collections::HashSet;
use std::fmt::Display;

use crate::model::{Acl, Digest, RelPath};
use crate::overlay::{Caller, Overlay, Permits, Runs, Shown, Touch};
use crate::policy::settings::Approve;
use crate::protocol::{ErrorBody, ErrorCode, Op, refused_at};
use crate::store::{self, Backup, Effect, Kept, UpperRow, What};
use crate::sys::file::{Meta, SET_ID};
use crate::sys::namespace::{self, Kind};
use crate::sys::process;

use super::Project;

/// The asker of a request, as the kernel reports it. A request cannot claim to come from another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// 0 for a process that the daemon cannot see.
    pub pid: u32,
    pub uid: u32,
    pub gid: u32,
    whereabouts: Whereabouts,
}

/// Where a process stands relative to the runs of a project (SPEC §8), whatever its uid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Whereabouts {
    Outside,
    /// The kernel does not tell, or the process is in another pid namespace: counts as inside once there have been runs.
    Unseen,
    /// A run has started the process, or it is in another mount namespace, as a run is.
    Inside,
}

/// The right that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// Everyone may; contents are checked one by one.
    Look,
    Change,
}

impl Asker {
    /// The kernel's requests carry thread ids; what everybody calls the pid is that of the thread group.
    pub fn of(caller: &Caller, project: &Project) -> Self {
        Self::by_ids(caller.pid, (caller.uid, caller.gid), project)
    }

    pub fn by_ids(pid: u32, (uid, gid): (u32, u32), project: &Project) -> Self {
        let pid = process::tgid(pid).unwrap_or(pid);
        Self { pid, uid, gid, whereabouts: Whereabouts::of(pid, project.overlay.runs()) }
    }

    /// Of two processes involved in one request, returns the one that may do less.
    pub fn lesser(&self, other: &Self, project: &Project) -> Self {
        let lesser = if is_owner(self, project.owner) { *other } else { *self };
        Self { whereabouts: self.whereabouts.max(other.whereabouts), ..lesser }
    }

    /// Returns the asker as of now, with the stricter of its whereabouts when it connected and today.
    pub fn again(&self, project: &Project) -> Self {
        let now = Whereabouts::of(self.pid, project.overlay.runs());
        Self { whereabouts: self.whereabouts.max(now), ..*self }
    }

    /// Whether its whereabouts are hidden, as those of root's processes are from a user's daemon.
    pub fn is_unseen(&self) -> bool {
        self.whereabouts == Whereabouts::Unseen
    }

    /// This process itself, when it works without a daemon.
    pub fn myself(runs: &Runs) -> Self {
        let pid = std::process::id();
        Self {
            pid,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            whereabouts: Whereabouts::without_daemon(pid, runs),
        }
    }
}

impl Whereabouts {
    fn of(pid: u32, runs: &Runs) -> Self {
        let Some(is_among_our_pids) = same_namespace(pid, Kind::Pid) else { return Self::Unseen };
        match same_namespace(pid, Kind::Mount) {
            _ if !is_among_our_pids => Self::Unseen,
            _ if runs.has_started(pid) => Self::Inside,
            // The daemon may have been started elsewhere: a process beside the starters of runs is outside all the same.
            Some(false) if runs.were_started_beside(pid) => Self::Outside,
            Some(false) if runs.have_been() => Self::Inside,
            Some(_) => Self::Outside,
            None => Self::Unseen,
        }
    }

    /// The same without a daemon, whose namespaces the process could be compared with.
    fn without_daemon(pid: u32, runs: &Runs) -> Self {
        match runs.has_started(pid) || runs.may_have_left(pid) {
            true => Self::Inside,
            false => Self::Outside,
        }
    }
}

/// Returns `None` if the namespaces cannot be seen.
pub fn same_namespace(pid: u32, kind: Kind) -> Option<bool> {
    if pid == 0 {
        return None;
    }
    Some(namespace::of(pid, kind).ok()? == namespace::own(kind).ok()?)
}

fn need(op: Op) -> Need {
    match op {
        Op::Confirm | Op::Discard | Op::Rollback | Op::Undo | Op::Reload | Op::Unmount => Need::Change,
        // It reads all content that is kept, and reports paths that not everyone may see.
        Op::Fsck => Need::Change,
        Op::Status | Op::Diff | Op::Backups | Op::Log | Op::Blame | Op::Events | Op::External => Need::Look,
        Op::Read | Op::Meter | Op::Flush | Op::Version => Need::Look,
        // A patch is a write like any program's, the others only record: checked for each file, and for the project.
        Op::Patch | Op::Check | Op::RequestReview => Need::Look,
        // Beginning a run gains the asker nothing, and it can leave only its own.
        Op::Run | Op::Leave => Need::Look,
    }
}

/// Checks whether `asker` may ask for `op`, at every request. A refusal leaves an event.
pub fn check(op: Op, asker: &Asker, project: &Project) -> Result<(), ErrorBody> {
    match need(op) {
        Need::Look => Ok(()),
        Need::Change if may_change(asker, project) => Ok(()),
        Need::Change => {
            let (approve, owner) = (project.overlay.settings().approve, project.owner);
            let refusal = refusal(op, hindrance(asker.uid, stand(asker, project), approve, owner), owner);
            project.overlay.note_refused(&refusal, asker.pid, asker.uid);
            Err(ErrorBody::new(ErrorCode::NotPermitted, refusal))
        }
    }
}

/// Refuses `doing` to a process in a run. For actions on a dead view, which uncover the project: no daemon can be asked,
/// and settings do not count, because they are the caller's own.
pub fn check_outside(doing: &str, pid: u32, runs: &Runs) -> Result<(), ErrorBody> {
    allow(doing, Whereabouts::without_daemon(pid, runs) == Whereabouts::Outside)
}

/// Refuses `doing` to a process that a run has started. For starting a daemon where there is no view to uncover: a
/// process in its own mount namespace may have created that itself.
pub fn check_in_no_run(doing: &str, pid: u32, runs: &Runs) -> Result<(), ErrorBody> {
    allow(doing, !runs.has_started(pid))
}

fn allow(doing: &str, is_outside: bool) -> Result<(), ErrorBody> {
    match is_outside {
        true => Ok(()),
        false => Err(ErrorBody::new(ErrorCode::NotPermitted, refused_inside(doing))),
    }
}

/// Returns where the asker stands, if that is the obstacle. If it would be refused outside too, that reason is told.
fn hindrance(uid: u32, stands: Whereabouts, approve: Approve, owner: u32) -> Whereabouts {
    match may_approve(uid, Whereabouts::Outside, approve, owner) {
        true => stands,
        false => Whereabouts::Outside,
    }
}

fn refusal(op: Op, hindrance: Whereabouts, owner: u32) -> String {
    match hindrance {
        Whereabouts::Outside => {
            format!("{op}: only the project's owner (uid {owner}) and root may do that")
        }
        Whereabouts::Inside => refused_inside(op),
        Whereabouts::Unseen => format!(
            "{op}: only a process whose namespaces can be seen may do that, the project owner's (uid {owner}) or root's"
        ),
    }
}

fn refused_inside(doing: impl Display) -> String {
    format!(
        "{doing}: what a run has started may not do that (approve = \"outside\"): ask the person \
         you work for, who does it from outside"
    )
}

/// Where `asker` stands, for the purposes of the settings in force.
fn stand(asker: &Asker, project: &Project) -> Whereabouts {
    match asker.whereabouts {
        Whereabouts::Unseen if project.overlay.runs().have_been() => Whereabouts::Inside,
        whereabouts => whereabouts,
    }
}

pub fn may_change(asker: &Asker, project: &Project) -> bool {
    let (settings, stands) = (project.overlay.settings(), stand(asker, project));
    let approve = match stands {
        // Without a daemon the settings are the asker's own, environment included.
        Whereabouts::Inside if project.mounted.is_none() => Approve::Outside,
        Whereabouts::Inside => settings.approve_in_run,
        Whereabouts::Outside | Whereabouts::Unseen => settings.approve,
    };
    may_approve(asker.uid, stands, approve, project.owner)
}

/// Whether the asker is in a run already, so that it cannot begin another.
pub fn is_in_run(asker: &Asker, project: &Project) -> bool {
    stand(asker, project) == Whereabouts::Inside
}

fn may_approve(uid: u32, stands: Whereabouts, approve: Approve, owner: u32) -> bool {
    let is_owner = uid == ROOT || uid == owner;
    match approve {
        // Under a user's mount other users only read (SPEC §2).
        Approve::Anyone => owner == ROOT || is_owner,
        Approve::Owner => is_owner,
        Approve::Outside => is_owner && stands == Whereabouts::Outside,
    }
}

const ROOT: u32 = 0;

fn is_owner(asker: &Asker, owner: u32) -> bool {
    asker.uid == ROOT || asker.uid == owner
}

/// Whether `asker` could read both sides of a held change as plain files.
pub fn may_read(asker: &Asker, project: &Project, row: &UpperRow) -> bool {
    is_owner(asker, project.owner) || is_readable(asker, &project.overlay, row).unwrap_or(false)
}

/// The same for a file of the view; `row` is its row if it is upper's.
pub fn may_read_file(asker: &Asker, project: &Project, path: &RelPath, row: Option<&UpperRow>) -> bool {
    let Some(row) = row else {
        let below = || project.overlay.access_below(path).ok().flatten();
        let readable = || below().is_some_and(|below| has_bit(asker, &Access::listed(below), READ));
        return is_owner(asker, project.owner) || (readable() && is_reachable(asker, &project.overlay, path));
    };
    may_read(asker, project, row)
}

fn is_readable(asker: &Asker, overlay: &Overlay, row: &UpperRow) -> Option<bool> {
    let path = row.names.first()?;
    let below = overlay.access_below(path).ok()?;
    let above = match row.what {
        What::File | What::Symlink | What::Dir | What::Node => Some(overlay.access_above(row.id).ok()?),
        What::Whiteout => None,
    };
    let mut sides = [below, above].into_iter().flatten();
    let readable = sides.all(|side| has_bit(asker, &Access::listed(side), READ));
    Some(readable && is_reachable(asker, overlay, path))
}

/// Whether `asker` could open a file of the view for reading, or for reading and writing.
pub fn may_open(asker: &Asker, shown: &Shown, access: FileAccess) -> bool {
    let bits: &[u32] = match access {
        FileAccess::Read => &[READ],
        FileAccess::ReadWrite => &[READ, WRITE],
    };
    let decides = Access::listed((shown.meta, shown.acl.clone()));
    let permitted = bits.iter().all(|bit| has_bit(asker, &decides, *bit));
    asker.uid == ROOT || (permitted && lets_through(asker, &shown.dirs))
}

/// Returns what `asker` may do to the project by an undo or a rollback: only what it could do itself, even where
/// `approve` lets it decide about held changes.
pub fn permits(asker: &Asker, project: &Project) -> store::Result<Permits> {
    if is_owner(asker, project.owner) {
        return Ok(Permits::default());
    }
    let backups = project.overlay.store().backups()?.into_iter().filter(|backup| backup.for_all);
    let for_all: HashSet<(RelPath, Digest)> = backups.map(|backup| (backup.path, backup.digest)).collect();
    let asker = *asker;
    Ok(Permits::some(move |touch| may_touch(&asker, &for_all, touch)))
}

/// `for_all` are the contents that everybody could read at their paths.
fn may_touch(asker: &Asker, for_all: &HashSet<(RelPath, Digest)>, touch: &Touch<'_>) -> bool {
    match touch {
        Touch::Content(shown) => may_open(asker, shown, FileAccess::ReadWrite),
        Touch::Entry { dirs, there } => may_change_entry(asker, dirs, *there),
        Touch::Looks { dirs, there, effects } => {
            asker.uid == there.uid && lets_through(asker, dirs) && effects.iter().all(|done| may_give(&done.effect))
        }
        Touch::Returns { operation, path, version } => {
            let is_readable = || {
                let access = Access { uid: version.uid, gid: version.gid, mode: version.mode, acl: None };
                version.group.is_none() && has_bit(asker, &access, READ)
            };
            // The asker could read this content when its own operation replaced it.
            let is_own = || operation.events.iter().all(|event| event.uid == Some(asker.uid)) && is_readable();
            let was_for_all = |kept: Kept| for_all.contains(&((*path).clone(), kept.digest));
            let may_read = asker.uid == version.uid || version.content.is_some_and(was_for_all) || is_own();
            may_read && version.mode & SET_ID == 0
        }
    }
}

/// What an owner may restore on its own file.
fn may_give(effect: &Effect) -> bool {
    match effect {
        Effect::Mode { before, .. } => before & SET_ID == 0,
        Effect::Times { .. } => true,
        Effect::Xattr { name, .. } => name.starts_with(b"user.") || name.starts_with(b"system.posix_acl_"),
        _ => false,
    }
}

/// Whether `asker` could make, remove or replace an entry in the last of `dirs`; `there` is the present entry.
fn may_change_entry(asker: &Asker, dirs: &[(Meta, Option<Acl>)], there: Option<&Meta>) -> bool {
    let Some((dir, _)) = dirs.last() else { return false };
    let may_write = dirs.last().is_some_and(|dir| has_bit(asker, &Access::listed(dir.clone()), WRITE));
    // In a sticky directory, only the owner of the directory or of the entry may.
    let is_kept = dir.mode & STICKY != 0 && there.is_some_and(|there| ![there.uid, dir.uid].contains(&asker.uid));
    lets_through(asker, dirs) && may_write && !is_kept
}

fn lets_through(asker: &Asker, dirs: &[(Meta, Option<Acl>)]) -> bool {
    dirs.iter().all(|dir| has_bit(asker, &Access::listed(dir.clone()), SEARCH))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAccess {
    Read,
    ReadWrite,
}

/// Whether events of `asker` may be recorded: an asker who can make files in the project can cause events anyway.
pub fn may_record(asker: &Asker, project: &Project) -> bool {
    let may_write = || dir_access(&project.overlay, &RelPath::root()).is_some_and(|dir| has_bit(asker, &dir, WRITE));
    is_owner(asker, project.owner) || may_write()
}

/// Whether `asker` may see what concerns other users.
pub fn sees_all(asker: &Asker, project: &Project) -> bool {
    is_owner(asker, project.owner)
}

/// Whether `asker` may use the reserved places when many ask at once. A run that may change nothing must not take them
/// from its owner, whose uid it has.
pub fn has_kept_places(asker: &Asker, project: &Project) -> bool {
    is_owner(asker, project.owner) && may_change(asker, project)
}

/// Whether `asker` may have a backup's content. The file's owner is not recorded, so the content must have been readable
/// by everybody when the backup was made, and its path must be reachable now, since the directories there may be others.
pub fn may_read_backup(asker: &Asker, project: &Project, backup: &Backup) -> bool {
    is_owner(asker, project.owner) || (backup.for_all && is_reachable(asker, &project.overlay, &backup.path))
}

/// Whether `asker` may put it anywhere.
pub fn may_roll_back(asker: &Asker, project: &Project, backup: &Backup) -> bool {
    let is_plain = backup.mode & SET_ID == 0;
    may_read_backup(asker, project, backup) && (is_plain || is_owner(asker, project.owner))
}

/// Refuses to tell `asker` anything about a path it cannot reach, even whether it exists. Below a directory that the
/// asker cannot search, the refusal is worded the same whatever is there.
pub fn check_reachable(asker: &Asker, project: &Project, path: &RelPath) -> Result<(), ErrorBody> {
    if is_owner(asker, project.owner) || may_look(asker, &project.overlay, path) {
        return Ok(());
    }
    Err(refused_at(path, ErrorCode::NotPermitted, "you may not look there"))
}

/// Checks from the root down as far as directories exist: an asker who may search the last one sees that it is the last.
fn may_look(asker: &Asker, overlay: &Overlay, path: &RelPath) -> bool {
    let mut dirs: Vec<RelPath> = std::iter::successors(path.parent(), RelPath::parent).collect();
    dirs.reverse();
    for dir in dirs {
        match overlay.dir_access(&dir).map(Access::listed) {
            Ok(access) if has_bit(asker, &access, SEARCH) => {}
            Ok(_) => return false,
            Err(err) => return NO_DIRECTORY.contains(&err.code()),
        }
    }
    true
}

/// Nothing there, something else there, a symlink, and a name that cannot exist.
const NO_DIRECTORY: [i32; 4] = [libc::ENOENT, libc::ENOTDIR, libc::ELOOP, libc::ENAMETOOLONG];

/// Whether every directory on the way lets `asker` through. A missing directory lets nobody through.
fn is_reachable(asker: &Asker, overlay: &Overlay, path: &RelPath) -> bool {
    std::iter::successors(path.parent(), RelPath::parent)
        .all(|dir| dir_access(overlay, &dir).is_some_and(|access| has_bit(asker, &access, SEARCH)))
}

fn dir_access(overlay: &Overlay, dir: &RelPath) -> Option<Access> {
    overlay.dir_access(dir).ok().map(Access::listed)
}

/// Permission bits of the last of the three classes.
const READ: u32 = 0o4;
const WRITE: u32 = 0o2;
const SEARCH: u32 = 0o1;
const STICKY: u32 = 0o1000;

/// The attributes that decide about access to one file.
#[derive(Clone, Debug)]
struct Access {
    uid: u32,
    gid: u32,
    mode: u32,
    /// If present, it decides for everybody but the owner.
    acl: Option<Acl>,
}

impl Access {
    fn listed((meta, acl): (Meta, Option<Acl>)) -> Self {
        Self { uid: meta.uid, gid: meta.gid, mode: meta.mode, acl }
    }
}

/// The kernel's rule, but without the asker's supplementary groups, which are not known here. In doubt, no.
fn has_bit(asker: &Asker, access: &Access, bit: u32) -> bool {
    if let Some(acl) = access.acl.as_ref().filter(|_| asker.uid != access.uid) {
        return acl.permits(asker.uid, &[asker.gid], asker.gid == access.gid) & bit != 0;
    }
    let class = match (asker.uid == access.uid, asker.gid == access.gid) {
        (true, _) => access.mode >> 6,
        (false, true) => access.mode >> 3,
        // The asker may be in the file's group after all, and the group may have fewer rights than the world.
        (false, false) => access.mode & access.mode >> 3,
    };
    class & bit != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_change_state_depends_on_the_setting_the_mounter_and_where_one_stands() {
        use Whereabouts::{Inside, Outside, Unseen};
        for (approve, owner, uid, stands, want) in [
            (Approve::Anyone, 0, 0, Outside, true),
            (Approve::Anyone, 0, 1000, Outside, true),
            (Approve::Anyone, 0, 1000, Unseen, true),
            (Approve::Anyone, 0, 1000, Inside, true),
            (Approve::Anyone, 1000, 1000, Outside, true),
            (Approve::Anyone, 1000, 0, Outside, true),
            (Approve::Anyone, 1000, 1001, Outside, false),
            (Approve::Owner, 0, 1000, Outside, false),
            (Approve::Owner, 1000, 1000, Outside, true),
            (Approve::Owner, 1000, 1000, Inside, true),
            (Approve::Owner, 1000, 0, Outside, true),
            (Approve::Owner, 1000, 1001, Outside, false),
            (Approve::Outside, 0, 1000, Outside, false),
            (Approve::Outside, 1000, 1000, Outside, true),
            (Approve::Outside, 1000, 0, Outside, true),
            (Approve::Outside, 1000, 1000, Inside, false),
            (Approve::Outside, 1000, 0, Inside, false),
            (Approve::Outside, 1000, 0, Unseen, false),
        ] {
            let may = may_approve(uid, stands, approve, owner);
            assert_eq!(may, want, "{approve:?}, owner {owner}, uid {uid}, {stands:?}");
        }
    }

    #[test]
    fn where_one_stands_is_told_only_to_whom_it_makes_a_difference() {
        use Whereabouts::{Inside, Outside, Unseen};
        for (approve, owner, uid, stands, want) in [
            (Approve::Anyone, 0, 1000, Inside, Inside),
            (Approve::Anyone, 1000, 1000, Inside, Inside),
            (Approve::Anyone, 1000, 0, Unseen, Unseen),
            (Approve::Anyone, 1000, 1001, Inside, Outside),
            (Approve::Owner, 0, 1000, Inside, Outside),
            (Approve::Outside, 1000, 1000, Inside, Inside),
            (Approve::Outside, 1000, 1001, Unseen, Outside),
        ] {
            let hindrance = hindrance(uid, stands, approve, owner);
            assert_eq!(hindrance, want, "{approve:?}, owner {owner}, uid {uid}, {stands:?}");
        }
    }

    #[test]
    fn a_process_is_outside_until_a_run_has_started_it_and_unseen_where_nothing_is_known() {
        let (runs, own) = (Runs::default(), std::process::id());
        assert_eq!(Whereabouts::of(own, &runs), Whereabouts::Outside);
        assert_eq!(Whereabouts::of(0, &runs), Whereabouts::Unseen);
        assert_eq!(Whereabouts::of(u32::MAX >> 1, &runs), Whereabouts::Unseen);
    }

    #[test]
    fn everyone_may_look_and_only_some_may_change() {
        for (op, want) in [
            (Op::Status, Need::Look),
            (Op::Diff, Need::Look),
            (Op::Log, Need::Look),
            (Op::Flush, Need::Look),
            (Op::Version, Need::Look),
            (Op::Run, Need::Look),
            (Op::Leave, Need::Look),
            (Op::Read, Need::Look),
            (Op::Meter, Need::Look),
            (Op::Patch, Need::Look),
            (Op::Check, Need::Look),
            (Op::RequestReview, Need::Look),
            (Op::Confirm, Need::Change),
            (Op::Discard, Need::Change),
            (Op::Rollback, Need::Change),
            (Op::Undo, Need::Change),
            (Op::Reload, Need::Change),
            (Op::Unmount, Need::Change),
        ] {
            assert_eq!(need(op), want, "{op}");
        }
    }

    #[test]
    fn a_file_is_read_by_its_owner_its_group_or_by_all_the_world() {
        for (mode, uid, gid, want) in [
            (0o600, 1000, 1000, true),
            (0o040, 1000, 1000, false),
            (0o640, 1001, 1000, true),
            (0o604, 1001, 1000, false),
            (0o644, 1001, 1001, true),
            (0o604, 1001, 1001, false),
            (0o640, 1001, 1001, false),
        ] {
            let asker = Asker { pid: 7, uid, gid, whereabouts: Whereabouts::Outside };
            let access = Access { uid: 1000, gid: 1000, mode, acl: None };
            assert_eq!(has_bit(&asker, &access, READ), want, "{mode:o} by {uid}:{gid}");
        }
    }
}
