//! Keeps git from showing the state directory, by a line in the repository's own, never committed `info/exclude`.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::{DIRECTORY, common_directory, is_there};
use crate::protocol::STATE_DIRECTORY;
use crate::sys::file;

/// A longer file is no list of patterns that a person wrote.
const LIST_BYTES_MAX: u64 = 1 << 20;

/// Adds the line if the project lies in a repository that does not have it yet. Returns whether it was added.
pub fn add_line(project: &Path) -> io::Result<bool> {
    let Some(common) = common_directory(project)? else { return Ok(false) };
    // The project's links are not trusted: none is followed from here on.
    let common = rustix::fs::open(&common, DIRECTORY, Mode::empty())?;
    if !is_there(&common, "HEAD") || !is_there(&common, "objects") {
        return Ok(false);
    }
    let is_made = match rustix::fs::mkdirat(&common, "info", Mode::from_raw_mode(0o777)) {
        Err(rustix::io::Errno::EXIST) => false,
        made => made.map(|()| true)?,
    };
    let info = rustix::fs::openat(&common, "info", DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
    if is_made {
        file::give_to_owner_of(common.as_fd(), info.as_fd())?;
    }
    append(&info)
}

fn append(info: &OwnedFd) -> io::Result<bool> {
    let flags = OFlags::RDWR | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let made = flags | OFlags::CREATE | OFlags::EXCL;
    let mut file = match rustix::fs::openat(info, "exclude", made, Mode::from_raw_mode(0o666)) {
        Err(rustix::io::Errno::EXIST) => File::from(rustix::fs::openat(info, "exclude", flags, Mode::empty())?),
        made => {
            let made = made?;
            file::give_to_owner_of(info.as_fd(), made.as_fd())?;
            File::from(made)
        }
    };
    if !file.metadata()?.is_file() {
        return Ok(false);
    }
    let mut list = Vec::new();
    Read::by_ref(&mut file).take(LIST_BYTES_MAX).read_to_end(&mut list)?;
    if excludes_state(&list) {
        return Ok(false);
    }
    let before = if list.last().is_none_or(|byte| *byte == b'\n') { "" } else { "\n" };
    file.write_all(format!("{before}{STATE_DIRECTORY}/\n").as_bytes())?;
    Ok(true)
}

fn excludes_state(list: &[u8]) -> bool {
    list.split(|byte| *byte == b'\n').any(|line| {
        let line = line.trim_ascii();
        let line = line.strip_suffix(b"/").unwrap_or(line);
        line == STATE_DIRECTORY.as_bytes()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    fn repository(git: &Path) {
        fs::create_dir_all(git.join("objects")).expect("objects");
        fs::write(git.join("HEAD"), "ref: refs/heads/main\n").expect("HEAD");
    }

    #[test]
    fn the_line_is_added_once_to_the_repository_around_the_project() {
        let scratch = tempfile::tempdir().expect("scratch");
        let git = scratch.path().join(".git");
        repository(&git);
        fs::create_dir(git.join("info")).expect("info");
        fs::write(git.join("info/exclude"), "*.o").expect("exclude");
        let below = scratch.path().join("a/b");
        fs::create_dir_all(&below).expect("below");
        add_line(&below).expect("first");
        add_line(scratch.path()).expect("second");
        assert_eq!(fs::read_to_string(git.join("info/exclude")).expect("exclude"), "*.o\n.fettle/\n");
    }

    #[test]
    fn a_work_tree_writes_to_the_directory_it_shares() {
        let scratch = tempfile::tempdir().expect("scratch");
        let git = scratch.path().join("main/.git");
        repository(&git);
        let own = git.join("worktrees/w");
        fs::create_dir_all(&own).expect("own");
        fs::write(own.join("commondir"), "../..\n").expect("commondir");
        let tree = scratch.path().join("w");
        fs::create_dir(&tree).expect("tree");
        fs::write(tree.join(".git"), format!("gitdir: {}\n", own.display())).expect("link");
        add_line(&tree).expect("added");
        assert_eq!(fs::read_to_string(git.join("info/exclude")).expect("exclude"), ".fettle/\n");
    }

    /// Root's daemon in a user's repository.
    #[test]
    fn what_is_made_is_the_owners_of_the_repository() {
        let scratch = tempfile::tempdir().expect("scratch");
        let git = scratch.path().join(".git");
        repository(&git);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&git, Some(12345), Some(12346)).expect("another's");
        }
        let owner = |path: &Path| fs::metadata(path).map(|metadata| (metadata.uid(), metadata.gid())).expect("there");
        add_line(scratch.path()).expect("added");
        assert_eq!([owner(&git.join("info")), owner(&git.join("info/exclude"))], [owner(&git); 2]);
    }

    /// Whoever works in the project makes these files.
    #[test]
    fn nobody_is_waited_for_at_a_pipe() {
        let scratch = tempfile::tempdir().expect("scratch");
        fs::create_dir(scratch.path().join(".bare")).expect("own");
        fs::write(scratch.path().join(".git"), "gitdir: ./.bare\n").expect("link");
        let pipe = scratch.path().join(".bare/commondir");
        let mode = Mode::from_raw_mode(0o644);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
        assert_eq!(add_line(scratch.path()).expect_err("not read").to_string(), "not a file");
    }

    #[test]
    fn what_is_no_repository_is_left_alone() {
        let scratch = tempfile::tempdir().expect("scratch");
        fs::create_dir(scratch.path().join(".git")).expect("empty .git");
        add_line(scratch.path()).expect("nothing");
        assert!(!scratch.path().join(".git/info").exists());
    }

    #[test]
    fn the_line_is_known_in_its_usual_spellings() {
        for (list, want) in [
            (".fettle/\n", true),
            ("*.o\n.fettle\n", true),
            ("  .fettle/ \n", true),
            ("", false),
            (".fettle.toml\n", false),
            ("#.fettle/\n", false),
        ] {
            assert_eq!(excludes_state(list.as_bytes()), want, "{list:?}");
        }
    }
}
