//! Tells whether any process watches a file system by inotify or fanotify. Neither says so; what a process has open does.

use std::fs;
use std::io;
use std::path::Path;

/// What the kernel calls the descriptors that events come from.
const QUEUES: [&str; 2] = ["anon_inode:inotify", "anon_inode:[fanotify]"];

/// Whether a process other than this one has a watch on something of the file system on `device`, a number as `stat`
/// gives it. Those of other users are seen by root alone.
pub fn is_anybody_watching(device: u64) -> io::Result<bool> {
    // In hexadecimal, as the kernel packs it for itself: twelve bits and twenty.
    let packed = (u64::from(rustix::fs::major(device)) << 20) | u64::from(rustix::fs::minor(device));
    let wanted = format!("sdev:{packed:x}");
    let own = std::process::id().to_string();
    for process in fs::read_dir("/proc")?.flatten() {
        let name = process.file_name();
        let is_other = name.to_str().is_some_and(|name| name != own && name.bytes().all(|byte| byte.is_ascii_digit()));
        if is_other && watches(&process.path(), &wanted) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns false as well for a process that has ended meanwhile or whose descriptors we may not see.
fn watches(process: &Path, wanted: &str) -> bool {
    let Ok(descriptors) = fs::read_dir(process.join("fd")) else { return false };
    descriptors.flatten().any(|descriptor| {
        let is_queue = fs::read_link(descriptor.path())
            .is_ok_and(|target| QUEUES.iter().any(|queue| target.as_os_str() == *queue));
        let notes = || fs::read_to_string(process.join("fdinfo").join(descriptor.file_name()));
        is_queue && notes().is_ok_and(|notes| notes.split_whitespace().any(|word| word == wanted))
    })
}
