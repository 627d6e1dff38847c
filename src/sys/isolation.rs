//! Shuts a process in: limits what it can name, and what it can do to things that it cannot name.

use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::MountFlags;
use rustix::process::{DumpableBehavior, Signal};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::keystrokes::type_nothing;

/// The capabilities that root keeps: rights over files and processes that it sees, none over the machine. The same as in
/// containers, but without device nodes, by which a disk could be read past every file system.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::AUDIT_WRITE)
    .union(CapabilitySet::SETFCAP);

/// From here on this process is killed when the one that started it ends, however that ends.
pub fn end_with_parent() -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// To be called by the first process of a pid namespace, in a mount namespace of its own. The process ends with its
/// parent. The directories `hidden` are empty from then on.
pub fn shut_in(hidden: &[PathBuf]) -> io::Result<()> {
    end_with_parent()?;
    let harmless = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("proc", "/proc", "proc", harmless, None)?;
    // Settings of the whole machine are files that root may write without any capability.
    for settings in ["/proc/sys", "/proc/sysrq-trigger"] {
        match rustix::mount::mount_bind(settings, settings) {
            Ok(()) => rustix::mount::mount_remount(settings, MountFlags::BIND | MountFlags::RDONLY | harmless, "")?,
            Err(rustix::io::Errno::NOENT) => {}
            Err(err) => return Err(err.into()),
        }
    }
    hidden.iter().try_for_each(|dir| cover(dir))?;
    // Programs that it starts have the same user and rights, and could otherwise take descriptors and memory from it.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::thread::set_no_new_privs(true)?;
    type_nothing()?;
    drop_capabilities()
}

/// Covers a directory with an empty one, and anything else with a device that has nothing. No process inside can take
/// that away: root lacks the capability, and in a namespace of a user's own these mounts are locked.
pub fn cover(path: &Path) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
    match rustix::mount::mount("tmpfs", path, "tmpfs", flags, Some(c"mode=755")) {
        Err(rustix::io::Errno::NOTDIR) => Ok(rustix::mount::mount_bind("/dev/null", path)?),
        // The directory is inside another that is covered, or cannot be seen from here.
        Err(rustix::io::Errno::NOENT) => Ok(()),
        covered => Ok(covered?),
    }
}

fn drop_capabilities() -> io::Result<()> {
    rustix::thread::clear_ambient_capability_set()?;
    for one in (0..u64::BITS).map(|number| CapabilitySet::from_bits_retain(1 << number)) {
        match rustix::thread::capability_is_in_bounding_set(one) {
            Ok(true) if !KEPT.contains(one) => rustix::thread::remove_capability_from_bounding_set(one)?,
            Ok(_) => {}
            // The kernel knows no more of them.
            Err(rustix::io::Errno::INVAL) => break,
            Err(err) => return Err(err.into()),
        }
    }
    let now = rustix::thread::capabilities(None)?;
    let permitted = now.permitted & KEPT;
    let sets = CapabilitySets { effective: permitted, permitted, inheritable: CapabilitySet::empty() };
    Ok(rustix::thread::set_capabilities(None, sets)?)
}
