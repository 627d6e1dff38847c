//! Who may ask for what (SPEC §8). Decided here and nowhere else.

use std::collections::HashSet;
use std::fmt::Display;

use crate::model::{Acl, Digest, RelPath};
use crate::overlay::{Caller, Overlay, Permits, Runs, Shown, Touch};
use crate::policy::settings::Approve;
use crate::protocol::{ErrorBody, ErrorCode, Op};
use crate::store::{self, Backup, Effect, Kept, UpperRow, What};
use crate::sys::file::{Meta, SET_ID};
use crate::sys::namespace::{self, Kind};
use crate::sys::process;

use super::Project;

/// Who asks, as the kernel tells. A request cannot claim to come from somebody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// 0: nobody we can see.
    pub pid: u32,
    pub uid: u32,
    pub gid: u32,
    whereabouts: Whereabouts,
}

/// Where a process stands to the runs of a project (SPEC §8), whatever its uid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Whereabouts {
    Outside,
    /// The kernel does not tell, or tells that it is in a pid namespace of its own: inside, where there is an inside.
    Unseen,
    /// A run has started it, or it is in a mount namespace as a run's is.
    Inside,
}

/// What a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    /// Everyone may; contents are asked for one by one.
    Look,
    Change,
}

impl Asker {
    /// Requests of the kernel carry thread ids; what everybody calls the pid is the thread group's.
    pub fn of(caller: &Caller, project: &Project) -> Self {
        Self::by_ids(caller.pid, (caller.uid, caller.gid), project)
    }

    pub fn by_ids(pid: u32, (uid, gid): (u32, u32), project: &Project) -> Self {
        let pid = process::tgid(pid).unwrap_or(pid);
        Self { pid, uid, gid, whereabouts: Whereabouts::of(pid, project.overlay.runs()) }
    }

    /// Of two who have a hand in one request, the one who may do less.
    pub fn lesser(&self, other: &Self, project: &Project) -> Self {
        let lesser = if is_owner(self, project.owner) { *other } else { *self };
        Self { whereabouts: self.whereabouts.max(other.whereabouts), ..lesser }
    }

    /// As it stands now: what is known of a connection from its beginning, and what its process has become.
    pub fn again(&self, project: &Project) -> Self {
        let now = Whereabouts::of(self.pid, project.overlay.runs());
        Self { whereabouts: self.whereabouts.max(now), ..*self }
    }

    /// Whether the kernel does not tell where it stands, as a user's daemon of a process of root's.
    pub fn is_unseen(&self) -> bool {
        self.whereabouts == Whereabouts::Unseen
    }

    /// The process itself, where it works without a daemon.
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
            // A daemon that somebody has started elsewhere shuts nobody out.
            Some(false) if runs.were_started_beside(pid) => Self::Outside,
            Some(false) if runs.have_been() => Self::Inside,
            Some(_) => Self::Outside,
            None => Self::Unseen,
        }
    }

    /// The same where no daemon answers, which would compare with its own namespaces.
    fn without_daemon(pid: u32, runs: &Runs) -> Self {
        match runs.has_started(pid) || runs.may_have_left(pid) {
            true => Self::Inside,
            false => Self::Outside,
        }
    }
}

/// None where that cannot be seen.
pub fn same_namespace(pid: u32, kind: Kind) -> Option<bool> {
    if pid == 0 {
        return None;
    }
    Some(namespace::of(pid, kind).ok()? == namespace::own(kind).ok()?)
}

fn need(op: Op) -> Need {
    match op {
        Op::Confirm | Op::Discard | Op::Rollback | Op::Undo | Op::Reload | Op::Unmount => Need::Change,
        // It reads all that is kept, and tells of paths that not everyone may see.
        Op::Fsck => Need::Change,
        Op::Status | Op::Diff | Op::Backups | Op::Log | Op::Blame | Op::Events | Op::External => Need::Look,
        Op::Read | Op::Meter | Op::Flush | Op::Version => Need::Look,
        // A write as any program's, and a record of a command: asked of each file, and of the project.
        Op::Patch | Op::Check | Op::RequestReview => Need::Look,
        // Who begins a run gains nothing by it, and only its own can be left.
        Op::Run | Op::Leave => Need::Look,
    }
}

/// Whether `asker` may ask for `op`; asked at every request. Whoever may not has left an event.
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

/// Whether a process may do `doing` to a dead view, which uncovers the project: there nobody can be asked. What a run has
/// started may not, whatever settings say: they are those of whoever acts.
pub fn check_outside(doing: &str, pid: u32, runs: &Runs) -> Result<(), ErrorBody> {
    allow(doing, Whereabouts::without_daemon(pid, runs) == Whereabouts::Outside)
}

/// Whether a process may start a daemon where no view is that it could uncover. Whoever stands in a mount namespace of his own
/// may have come there by himself.
pub fn check_in_no_run(doing: &str, pid: u32, runs: &Runs) -> Result<(), ErrorBody> {
    allow(doing, !runs.has_started(pid))
}

fn allow(doing: &str, is_outside: bool) -> Result<(), ErrorBody> {
    match is_outside {
        true => Ok(()),
        false => Err(ErrorBody::new(ErrorCode::NotPermitted, refused_inside(doing))),
    }
}

/// Where somebody stands, if that is what hinders him: who may not from outside either is refused as he would be there.
fn hindrance(uid: u32, stands: Whereabouts, approve: Approve, owner: u32) -> Whereabouts {
    match may_approve(uid, Whereabouts::Outside, approve, owner) {
        true => stands,
        false => Whereabouts::Outside,
    }
}

fn refusal(op: Op, hindrance: Whereabouts, owner: u32) -> String {
    match hindrance {
        Whereabouts::Outside => {
            format!("{op}: only its owner (uid {owner}) and root may change the state of this project")
        }
        Whereabouts::Inside => refused_inside(op),
        Whereabouts::Unseen => format!(
            "{op}: only a process whose namespaces can be seen may change the state of this project, its owner's (uid \
             {owner}) or root's"
        ),
    }
}

fn refused_inside(doing: impl Display) -> String {
    format!(
        "{doing}: what a run has started may not change the state of this project (approve = \"outside\"): ask the person \
         you work for, who does it from outside"
    )
}

/// Where `asker` stands, as far as that matters for the settings in force.
fn stand(asker: &Asker, project: &Project) -> Whereabouts {
    match asker.whereabouts {
        Whereabouts::Unseen if project.overlay.runs().have_been() => Whereabouts::Inside,
        whereabouts => whereabouts,
    }
}

pub fn may_change(asker: &Asker, project: &Project) -> bool {
    let (settings, stands) = (project.overlay.settings(), stand(asker, project));
    let approve = match stands {
        // Without a daemon settings are the asker's own, environment included.
        Whereabouts::Inside if project.mounted.is_none() => Approve::Outside,
        Whereabouts::Inside => settings.approve_in_run,
        Whereabouts::Outside | Whereabouts::Unseen => settings.approve,
    };
    may_approve(asker.uid, stands, approve, project.owner)
}

/// Whether somebody is in a run already, so that none can begin there.
pub fn is_in_run(asker: &Asker, project: &Project) -> bool {
    stand(asker, project) == Whereabouts::Inside
}

fn may_approve(uid: u32, stands: Whereabouts, approve: Approve, owner: u32) -> bool {
    let is_owner = uid == ROOT || uid == owner;
    match approve {
        // Under a user's mount others only read (SPEC §2).
        Approve::Anyone => owner == ROOT || is_owner,
        Approve::Owner => is_owner,
        Approve::Outside => is_owner && stands == Whereabouts::Outside,
    }
}

const ROOT: u32 = 0;

fn is_owner(asker: &Asker, owner: u32) -> bool {
    asker.uid == ROOT || asker.uid == owner
}

/// Whether `asker` could read a held change's both sides as plain files.
pub fn may_read(asker: &Asker, project: &Project, row: &UpperRow) -> bool {
    is_owner(asker, project.owner) || is_readable(asker, &project.overlay, row).unwrap_or(false)
}

/// The same for a file of the view: `row` where that is upper's.
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

/// Whether `asker` could open a file of the view for reading, or for more.
pub fn may_open(asker: &Asker, shown: &Shown, access: FileAccess) -> bool {
    let bits: &[u32] = match access {
        FileAccess::Read => &[READ],
        FileAccess::ReadWrite => &[READ, WRITE],
    };
    let decides = Access::listed((shown.meta, shown.acl.clone()));
    let permitted = bits.iter().all(|bit| has_bit(asker, &decides, *bit));
    asker.uid == ROOT || (permitted && lets_through(asker, &shown.dirs))
}

/// What `asker` may do to the project by an undo or a rollback: what he could do himself, however `approve` lets him decide
/// about what waits.
pub fn permits(asker: &Asker, project: &Project) -> store::Result<Permits> {
    if is_owner(asker, project.owner) {
        return Ok(Permits::default());
    }
    let backups = project.overlay.store().backups()?.into_iter().filter(|backup| backup.for_all);
    let for_all: HashSet<(RelPath, Digest)> = backups.map(|backup| (backup.path, backup.digest)).collect();
    let asker = *asker;
    Ok(Permits::some(move |touch| may_touch(&asker, &for_all, touch)))
}

/// `for_all` are the contents that all the world could read where they were.
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
            // He had it before him when he did it.
            let is_own = || operation.events.iter().all(|event| event.uid == Some(asker.uid)) && is_readable();
            let was_for_all = |kept: Kept| for_all.contains(&((*path).clone(), kept.digest));
            let may_read = asker.uid == version.uid || version.content.is_some_and(was_for_all) || is_own();
            may_read && version.mode & SET_ID == 0
        }
    }
}

/// What an owner may give to what is his.
fn may_give(effect: &Effect) -> bool {
    match effect {
        Effect::Mode { before, .. } => before & SET_ID == 0,
        Effect::Times { .. } => true,
        Effect::Xattr { name, .. } => name.starts_with(b"user.") || name.starts_with(b"system.posix_acl_"),
        _ => false,
    }
}

/// Whether `asker` could make, remove or replace an entry of the last of these directories, which may be `there`.
fn may_change_entry(asker: &Asker, dirs: &[(Meta, Option<Acl>)], there: Option<&Meta>) -> bool {
    let Some((dir, _)) = dirs.last() else { return false };
    let may_write = dirs.last().is_some_and(|dir| has_bit(asker, &Access::listed(dir.clone()), WRITE));
    // In a sticky directory only who owns it or the entry.
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

/// Whether what `asker` does may be recorded: who could make a file in the project makes events all the same.
pub fn may_record(asker: &Asker, project: &Project) -> bool {
    let may_write = || dir_access(&project.overlay, &RelPath::root()).is_some_and(|dir| has_bit(asker, &dir, WRITE));
    is_owner(asker, project.owner) || may_write()
}

/// Whether `asker` may see what concerns other users, too.
pub fn sees_all(asker: &Asker, project: &Project) -> bool {
    is_owner(asker, project.owner)
}

/// Whether places are kept for `asker` where many ask at once. A run that may change nothing takes none of them from its
/// owner, whose uid it has.
pub fn has_kept_places(asker: &Asker, project: &Project) -> bool {
    is_owner(asker, project.owner) && may_change(asker, project)
}

/// Whether `asker` may have a backup's content. Whose file it was is not kept, so only what all the world could read
/// counts: when it was made, for other directories may be at its path since, and now.
pub fn may_read_backup(asker: &Asker, project: &Project, backup: &Backup) -> bool {
    is_owner(asker, project.owner) || (backup.for_all && is_reachable(asker, &project.overlay, &backup.path))
}

/// Whether `asker` may put it anywhere.
pub fn may_roll_back(asker: &Asker, project: &Project, backup: &Backup) -> bool {
    let is_plain = backup.mode & SET_ID == 0;
    may_read_backup(asker, project, backup) && (is_plain || is_owner(asker, project.owner))
}

/// Whether `asker` may learn anything of a path, its absence included. What lies below a directory that he cannot search is
/// refused in the same words whatever is there.
pub fn check_reachable(asker: &Asker, project: &Project, path: &RelPath) -> Result<(), ErrorBody> {
    if is_owner(asker, project.owner) || may_look(asker, &project.overlay, path) {
        return Ok(());
    }
    let message = format!("{path}: you may not look there");
    Err(ErrorBody { path: Some(path.clone()), ..ErrorBody::new(ErrorCode::NotPermitted, message) })
}

/// From the root on, as far as there are directories: who may search the last of them sees that there is no other.
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

/// Nothing, something else, a symlink, and what cannot be a name.
const NO_DIRECTORY: [i32; 4] = [libc::ENOENT, libc::ENOTDIR, libc::ELOOP, libc::ENAMETOOLONG];

/// Every directory on the way lets `asker` through. One that is gone lets nobody through.
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

/// What decides over one file.
#[derive(Clone, Debug)]
struct Access {
    uid: u32,
    gid: u32,
    mode: u32,
    /// Where there is one, it decides for all but the owner.
    acl: Option<Acl>,
}

impl Access {
    fn listed((meta, acl): (Meta, Option<Acl>)) -> Self {
        Self { uid: meta.uid, gid: meta.gid, mode: meta.mode, acl }
    }
}

/// The kernel's rule without further groups, which we are not told: when in doubt, no.
fn has_bit(asker: &Asker, access: &Access, bit: u32) -> bool {
    if let Some(acl) = access.acl.as_ref().filter(|_| asker.uid != access.uid) {
        return acl.permits(asker.uid, &[asker.gid], asker.gid == access.gid) & bit != 0;
    }
    let class = match (asker.uid == access.uid, asker.gid == access.gid) {
        (true, _) => access.mode >> 6,
        (false, true) => access.mode >> 3,
        // A group that we do not know of may be shut out where the world is not.
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
