//! Disks for a scratch project: small, full, failing, with a quota.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system of its own on a scratch directory's project, or on another directory. Unmounted at the end.
pub struct Disk {
    point: PathBuf,
}

impl Disk {
    /// tmpfs.
    pub fn memory(point: &Path, size: &str) -> Self {
        run("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "none", &point.display().to_string()]);
        Self { point: point.to_owned() }
    }

    /// ext4 in a file beside it. No journal to speak of, no blocks kept for root: its last block is for everybody.
    pub fn ext4(point: &Path, megabytes: u64) -> Self {
        let make = ["mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal"];
        let disk = Self::of_image(point, megabytes, &make, "loop,errors=remount-ro");
        fs::remove_dir(point.join("lost+found")).expect("an empty disk");
        disk
    }

    /// The same, whose listings tell no file types.
    pub fn ext4_without_types(point: &Path, megabytes: u64) -> Self {
        let make = ["mkfs.ext4", "-q", "-O", "^has_journal,^filetype,^metadata_csum"];
        Self::of_image(point, megabytes, &make, "loop")
    }

    /// xfs in a file beside it, as small as there is one. Full, it has no place for another file either.
    pub fn xfs(point: &Path) -> Self {
        Self::of_image(point, 300, &["mkfs.xfs", "-q"], "loop")
    }

    /// btrfs in a file beside it, of which names and contents share the room: full, it has no place for another file either.
    pub fn btrfs(point: &Path, megabytes: u64) -> Self {
        Self::of_image(point, megabytes, &["mkfs.btrfs", "-q", "-M"], "loop")
    }

    /// btrfs in a file beside it, with room enough and a quota on what is in it: of the kernels at hand not all have
    /// quotas for the others.
    pub fn btrfs_with_quota(point: &Path, megabytes: u64, quota_megabytes: u64) -> Self {
        let disk = Self::of_image(point, megabytes, &["mkfs.btrfs", "-q"], "loop");
        let at = point.display().to_string();
        run("btrfs", &["quota", "enable", &at]);
        run("btrfs", &["qgroup", "limit", &format!("{quota_megabytes}M"), "0/5", &at]);
        disk
    }

    fn of_image(point: &Path, megabytes: u64, make: &[&str], options: &str) -> Self {
        let image = point.with_extension("img");
        File::create(&image).and_then(|file| file.set_len(megabytes << 20)).expect("an image");
        let (image, at) = (image.display().to_string(), point.display().to_string());
        run(make[0], &[&make[1..], &[&image]].concat());
        run("mount", &["-o", options, &image, &at]);
        Self { point: point.to_owned() }
    }

    /// As if the disk had failed: the kernel makes the file system read-only under whoever has it open.
    pub fn fail(&self) {
        let mounts = fs::read_to_string("/proc/mounts").expect("the mounts");
        let point = self.point.display().to_string();
        let line = mounts.lines().find(|line| line.split(' ').nth(1) == Some(&point)).expect("the disk is mounted");
        let device = line.strip_prefix("/dev/").and_then(|line| line.split(' ').next()).expect("a device");
        // Else what nobody synced would be gone, as after a power cut.
        run("sync", &["-f", &point]);
        fs::write(format!("/sys/fs/ext4/{device}/trigger_fs_error"), "1").expect("let the disk fail");
    }

    /// Taken out, checked and put in again.
    pub fn repair(&self) {
        let image = self.point.with_extension("img");
        run("umount", &[&self.point.display().to_string()]);
        let checked = Command::new("/usr/sbin/e2fsck").args(["-f", "-y"]).arg(&image).output().expect("e2fsck");
        assert!(checked.status.code().is_some_and(|code| code < 4), "{checked:?}");
        run("mount", &["-o", "loop", &image.display().to_string(), &self.point.display().to_string()]);
    }

    /// With other options of mount(8).
    pub fn remount(&self, how: &str) {
        run("mount", &["-o", &format!("remount,{how}"), &self.point.display().to_string()]);
    }
}

/// The scratch project may have detached it already.
impl Drop for Disk {
    fn drop(&mut self) {
        let point = self.point.display().to_string();
        if let Err(err) = Command::new("umount").args(["-q", "-l", &point]).status() {
            eprintln!("unmount {point}: {err}");
        }
    }
}

/// A program that must succeed.
#[track_caller]
pub fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin").output();
    let output = output.unwrap_or_else(|err| panic!("{program}: {err}"));
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}
