//! Who may ask for what (SPEC §8). Decided here and nowhere else.

use crate::model::{Acl, RelPath};
use crate::overlay::{Caller, Overlay, Shown};
use crate::policy::settings::Approve;
use crate::protocol::{ErrorBody, ErrorCode, Op};
use crate::store::{Backup, UpperRow, What};
use crate::sys::file::Meta;
use crate::sys::process;

use super::Project;

/// Who asks, as the kernel tells. A request cannot claim to come from somebody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// 0: nobody we can see.
    pub pid: u32,
    pub uid: u32,
    pub gid: u32,
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
    pub fn of(caller: &Caller) -> Self {
        let pid = process::tgid(caller.pid).unwrap_or(caller.pid);
        Self { pid, uid: caller.uid, gid: caller.gid }
    }

    /// Of two who have a hand in one request, the one who may do less.
    pub fn lesser(&self, other: &Self, project: &Project) -> Self {
        if is_owner(self, project.owner) { *other } else { *self }
    }

    /// The process itself, where it works without a daemon.
    pub fn myself() -> Self {
        Self {
            pid: std::process::id(),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        }
    }
}

fn need(op: Op) -> Need {
    match op {
        Op::Confirm | Op::Discard | Op::Rollback | Op::Undo | Op::Reload | Op::Unmount => Need::Change,
        // It reads all that is kept, and tells of paths that not everyone may see.
        Op::Fsck => Need::Change,
        Op::Status | Op::Diff | Op::Backups | Op::Log | Op::Blame | Op::Events | Op::External => Need::Look,
        Op::Read | Op::Meter | Op::Flush | Op::Version => Need::Look,
        // A write as any program's, and a record of a command: asked of each file, and of the project.
        Op::Patch | Op::Check => Need::Look,
    }
}

/// Whether `asker` may ask for `op`; asked at every request.
pub fn check(op: Op, asker: &Asker, project: &Project) -> Result<(), ErrorBody> {
    match need(op) {
        Need::Look => Ok(()),
        Need::Change if may_change(asker, project) => Ok(()),
        Need::Change => Err(ErrorBody::new(ErrorCode::NotPermitted, refusal(op, project))),
    }
}

fn refusal(op: Op, project: &Project) -> String {
    let who = match project.overlay.settings().approve {
        Approve::Anyone | Approve::Owner => "its owner",
        Approve::Outside => "its owner, from outside",
    };
    format!("{op}: only {who} (uid {}) and root may change the state of this project", project.owner)
}

pub fn may_change(asker: &Asker, project: &Project) -> bool {
    may_approve(asker, project.overlay.settings().approve, project.owner)
}

fn may_approve(asker: &Asker, approve: Approve, owner: u32) -> bool {
    match approve {
        // Under a user's mount others only read (SPEC §2).
        Approve::Anyone => owner == ROOT || is_owner(asker, owner),
        Approve::Owner => is_owner(asker, owner),
        // Taken for the owner alone: which processes are inside is known once `run` starts them.
        Approve::Outside => is_owner(asker, owner),
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
        let below = || project.overlay.lower().stat(path).ok().flatten();
        let readable = || below().is_some_and(|meta| has_bit(asker, &Access::of(&meta), READ));
        return is_owner(asker, project.owner) || (readable() && is_reachable(asker, &project.overlay, path));
    };
    may_read(asker, project, row)
}

fn is_readable(asker: &Asker, overlay: &Overlay, row: &UpperRow) -> Option<bool> {
    let path = row.names.first()?;
    let below = overlay.lower().stat(path).ok()?;
    let above = match row.what {
        What::File | What::Symlink | What::Dir | What::Node => Some(overlay.store().upper_meta(row.id).ok()?),
        What::Whiteout => None,
    };
    let sides = [below, above];
    let readable = sides.iter().flatten().all(|meta| has_bit(asker, &Access::of(meta), READ));
    Some(readable && is_reachable(asker, overlay, path))
}

/// Whether `asker` could open a file of the view for reading, or for more.
pub fn may_open(asker: &Asker, project: &Project, path: &RelPath, shown: &Shown, access: FileAccess) -> bool {
    let bits: &[u32] = match access {
        FileAccess::Read => &[READ],
        FileAccess::ReadWrite => &[READ, WRITE],
    };
    let decides = Access { acl: shown.acl.clone(), ..Access::of(&shown.meta) };
    let permitted = || bits.iter().all(|bit| has_bit(asker, &decides, *bit));
    asker.uid == ROOT || (permitted() && is_reachable(asker, &project.overlay, path))
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

/// Whether `asker` may have a backup's content. Whose file it was is not kept, so only what all the world could read
/// counts.
pub fn may_read_backup(asker: &Asker, project: &Project, backup: &Backup) -> bool {
    is_owner(asker, project.owner) || (backup.mode & READ != 0 && is_reachable(asker, &project.overlay, &backup.path))
}

/// Every directory on the way lets `asker` through. One that is gone lets nobody through.
fn is_reachable(asker: &Asker, overlay: &Overlay, path: &RelPath) -> bool {
    std::iter::successors(path.parent(), RelPath::parent)
        .all(|dir| dir_access(overlay, &dir).is_some_and(|access| has_bit(asker, &access, SEARCH)))
}

fn dir_access(overlay: &Overlay, dir: &RelPath) -> Option<Access> {
    let (meta, acl) = overlay.dir_access(dir)?;
    Some(Access { acl, ..Access::of(&meta) })
}

/// Permission bits of the last of the three classes.
const READ: u32 = 0o4;
const WRITE: u32 = 0o2;
const SEARCH: u32 = 0o1;

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
    fn of(meta: &Meta) -> Self {
        Self { uid: meta.uid, gid: meta.gid, mode: meta.mode, acl: None }
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

    fn asker(uid: u32) -> Asker {
        Asker { pid: 7, uid, gid: uid }
    }

    #[test]
    fn who_may_change_state_depends_on_the_setting_and_the_mounter() {
        for (approve, owner, uid, want) in [
            (Approve::Anyone, 0, 0, true),
            (Approve::Anyone, 0, 1000, true),
            (Approve::Anyone, 1000, 1000, true),
            (Approve::Anyone, 1000, 0, true),
            (Approve::Anyone, 1000, 1001, false),
            (Approve::Owner, 0, 1000, false),
            (Approve::Owner, 1000, 1000, true),
            (Approve::Owner, 1000, 0, true),
            (Approve::Owner, 1000, 1001, false),
            (Approve::Outside, 0, 1000, false),
            (Approve::Outside, 1000, 1000, true),
        ] {
            assert_eq!(may_approve(&asker(uid), approve, owner), want, "{approve:?}, owner {owner}, uid {uid}");
        }
    }

    #[test]
    fn everyone_may_look_and_only_some_may_change() {
        for (op, want) in [
            (Op::Status, Need::Look),
            (Op::Diff, Need::Look),
            (Op::Log, Need::Look),
            (Op::Flush, Need::Look),
            (Op::Version, Need::Look),
            (Op::Read, Need::Look),
            (Op::Meter, Need::Look),
            (Op::Patch, Need::Look),
            (Op::Check, Need::Look),
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
            let asker = Asker { pid: 7, uid, gid };
            let access = Access { uid: 1000, gid: 1000, mode, acl: None };
            assert_eq!(has_bit(&asker, &access, READ), want, "{mode:o} by {uid}:{gid}");
        }
    }
}
