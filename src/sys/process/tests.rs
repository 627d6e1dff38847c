use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use super::*;
use crate::sys::steps::assert_passes_apart;

/// A child that waits for its standard input to end, which dropping it does.
struct Waiting(Child);

impl Waiting {
    fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::piped()).spawn().unwrap())
    }

    /// Returns once the program runs: `spawn` returns a little before the kernel gives it its name.
    fn answer(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"?").unwrap();
        self.0.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

#[test]
fn a_process_is_shown_by_name_and_pid_as_far_as_there_is_one() {
    let mut child = Waiting::start(Command::new("cat").args(["-u", "-"]).stdout(Stdio::piped()));
    child.answer();
    let pid = child.pid();
    assert_eq!(shown(pid), format!("cat (pid {pid})"));
    drop(child);
    assert_eq!(shown(pid), format!("unknown (pid {pid})"));
    assert_eq!(shown(0), "a process that cannot be seen from here");
}

#[test]
fn a_child_is_described() {
    let mut child = Waiting::start(Command::new("cat").args(["-u", "-"]).stdout(Stdio::piped()));
    child.answer();
    let program = Program::of(child.pid()).unwrap();
    assert_eq!((program.pid, name(child.pid()).unwrap().to_str()), (child.pid(), Some("cat")));
    assert_eq!(program.cmdline.as_deref(), Some(b"cat -u -".as_slice()));
    assert!(program.exe.unwrap().ends_with("cat"));
    assert_eq!(uid(child.pid()), uid(std::process::id()));
    assert_eq!(parent(child.pid()), Some(std::process::id()));
    assert_eq!(session(child.pid()), session(std::process::id()));
}

#[test]
fn a_thread_belongs_to_its_process_and_not_to_another() {
    let own = std::process::id();
    let child = Waiting::start(&mut Command::new("cat"));
    let tid = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    assert_eq!(tgid(tid), Some(own));
    assert!(same_thread_group(tid, own));
    assert_eq!(Program::of(tid).map(|program| program.pid), Some(own));
    assert!(!same_thread_group(tid, child.pid()));
}

#[test]
fn a_process_that_becomes_another_program_is_described_as_what_it_is() {
    let script = "read line; exec cat -u -";
    let mut child = Waiting::start(Command::new("sh").args(["-c", script]).stdout(Stdio::piped()));
    let is_sh = |program: &Program| program.cmdline.as_deref() == Some(format!("sh -c {script}").as_bytes());
    let asked = std::iter::repeat_with(|| Program::of(child.pid()).unwrap()).find(is_sh).unwrap();
    child.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    child.answer();
    let now = Program::of(child.pid()).unwrap();
    assert_eq!((now.pid, now.cmdline.as_deref()), (asked.pid, Some(b"cat -u -".as_slice())));
    assert!(now.exe.unwrap().ends_with("cat") && name(child.pid()).unwrap() == "cat");
}

#[test]
fn who_was_asked_about_and_has_ended_is_nobody() {
    let child = Waiting::start(&mut Command::new("cat"));
    let pid = child.pid();
    assert_eq!(leader(pid), Some(pid));
    drop(child);
    assert_eq!((name(pid), leader(pid), Program::of(pid)), (None, None, None));
}

#[test]
fn pid_zero_and_pids_that_are_gone_are_nobody() {
    for pid in [0, u32::MAX] {
        assert_eq!(tgid(pid), None);
        assert_eq!(Program::of(pid), None);
    }
    assert!(!same_thread_group(0, 0));
    assert!(!same_thread_group(u32::MAX, u32::MAX - 1));
}

/// By which a process knows that it is meant.
const STANDING: &str = "FETTLE_PROCESS_STANDING";

/// In a process of its own: what another test has forked has our descriptors until it is another program.
#[test]
fn who_stands_in_a_tree_is_listed_by_directory_and_by_open_file() {
    assert_passes_apart("sys::process::tests::who_stands_in_a_tree_is_listed", (STANDING, "on"));
}

/// Not a test by itself: what the one above starts.
#[test]
fn who_stands_in_a_tree_is_listed() {
    if std::env::var(STANDING).is_err() {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().canonicalize().unwrap();
    std::fs::create_dir_all(dir.join("project/src")).unwrap();
    std::fs::create_dir_all(dir.join("project-2")).unwrap();
    let by_directory = Waiting::start(Command::new("cat").current_dir(dir.join("project/src")));
    let open = File::create(dir.join("project/file")).unwrap();
    let by_file = Waiting::start(Command::new("cat").stdout(open));
    let _beside = Waiting::start(Command::new("cat").current_dir(dir.join("project-2")));
    let _own = File::open(dir.join("project")).unwrap();
    let mut found: Vec<u32> = standing_in(&dir.join("project")).into_iter().map(|one| one.pid).collect();
    found.sort_unstable();
    let mut want = [by_directory.pid(), by_file.pid()];
    want.sort_unstable();
    assert_eq!(found, want);
}

#[test]
fn status_fields_are_found_at_the_beginning_of_a_line() {
    let status = b"Name:\tUid: 7\nTgid:\t41\nUid:\t1000\t0\t0\t0\n";
    assert_eq!(parse_status(status, "Uid:"), Some(1000));
    assert_eq!(parse_status(status, "Tgid:"), Some(41));
    assert_eq!(parse_status(status, "PPid:"), None);
}

#[test]
fn a_name_with_parentheses_does_not_shift_the_fields() {
    assert_eq!(parse_stat(b"12 (a) S 1 (b)) S 1 2 77 0", 6), Some(77));
    assert_eq!(parse_stat(b"12 (a", 6), None);
}

#[test]
fn a_command_line_is_told_with_blanks_and_no_longer_than_it_may_be() {
    for (bytes, want) in [
        (b"a\0".to_vec(), b"a".to_vec()),
        (b"a\0\0".to_vec(), b"a ".to_vec()),
        (b"a b".to_vec(), b"a b".to_vec()),
        (b"sh\0-c\0echo \xff\0".to_vec(), b"sh -c echo \xff".to_vec()),
        (vec![b'x'; CMDLINE_BYTES_MAX], vec![b'x'; CMDLINE_BYTES_MAX]),
        (vec![b'x'; CMDLINE_BYTES_MAX + 1], [vec![b'x'; CMDLINE_BYTES_MAX], "…".into()].concat()),
    ] {
        assert_eq!(readable_cmdline(&bytes), want);
    }
    let long = "y".repeat(100_000);
    let mut child =
        Waiting::start(Command::new("cat").args(["-u", "-", &long]).stdout(Stdio::piped()).stderr(Stdio::null()));
    child.answer();
    let told = Program::of(child.pid()).unwrap().cmdline.unwrap();
    assert_eq!(told, [b"cat -u - ", "y".repeat(CMDLINE_BYTES_MAX - 9).as_bytes(), "…".as_bytes()].concat());
}

#[test]
fn a_signal_waits_only_where_it_is_neither_blocked_nor_ignored() {
    let status = b"Name:\tx\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000004000\nSigBlk:\t0000000000000000\n";
    assert_eq!(parse_hexadecimal(status, "SigPnd:"), Some(1 << 8));
    assert_eq!(parse_hexadecimal(status, "ShdPnd:"), Some(1 << 14));
    assert_eq!(parse_hexadecimal(status, "SigIgn:"), None);
    assert!(!is_signalled(std::process::id()));
    assert!(!is_signalled(0));
}

#[test]
fn who_may_lend_a_group_is_in_it_or_keeps_set_ids() {
    for (groups, capabilities, want) in [
        ("7 42 100", CapabilitySet::empty(), true),
        ("7 420", CapabilitySet::empty(), false),
        ("", CapabilitySet::FSETID, true),
        ("", CapabilitySet::all(), true),
        ("", CapabilitySet::all() - CapabilitySet::FSETID, false),
    ] {
        let status = format!("Name:\tsh\nGid:\t5\t5\t5\t5\nGroups:\t{groups} \n").into_bytes();
        let rights = Rights { status, capabilities };
        assert_eq!(rights.lends_group(42), want, "{groups} {capabilities:?}");
    }
    assert!(rights(0).is_none(), "nobody we can see");
}

#[test]
fn capabilities_in_another_user_namespace_count_for_nothing() {
    let mut command = Command::new("unshare");
    let mut child = Waiting::start(command.args(["-U", "-r", "cat"]).stdout(Stdio::piped()));
    child.answer();
    let effective = parse_hexadecimal(&read(child.pid(), "status").unwrap(), "CapEff:").unwrap();
    assert!(effective & CapabilitySet::FSETID.bits() != 0, "{effective:x}");
    let there = rights(child.pid()).unwrap();
    assert!(!there.keeps_set_id() && !there.opens_all() && !there.acts_for_owners());
    let here = rights(std::process::id()).unwrap();
    let own = parse_hexadecimal(&read(std::process::id(), "status").unwrap(), "CapEff:").unwrap();
    assert_eq!(here.keeps_set_id(), own & CapabilitySet::FSETID.bits() != 0);
}

#[test]
fn as_many_descriptors_as_the_machine_allows() {
    let limit = raise_descriptor_limit().unwrap();
    assert_eq!(rustix::process::getrlimit(rustix::process::Resource::Nofile).current, Some(limit));
}

#[test]
fn a_process_has_open_what_it_has_not_closed() {
    use std::os::unix::fs::MetadataExt;
    let file = tempfile::tempfile().unwrap();
    let (own, inode) = (std::process::id(), file.metadata().unwrap().ino());
    assert!(has_open(own, inode).unwrap());
    let mut child = Waiting::start(Command::new("cat").args(["-u", "-"]).stdout(Stdio::piped()));
    // Until it is the program, it has what we have.
    child.answer();
    assert!(!has_open(child.pid(), inode).unwrap());
    assert!(has_open(0, inode).is_err(), "nobody knows");
    let ended = child.pid();
    drop(child);
    assert!(!has_open(ended, inode).unwrap());
}

#[test]
fn what_a_child_has_open_others_have() {
    use std::os::unix::fs::MetadataExt;
    let file = tempfile::tempfile().unwrap();
    let inode = file.metadata().unwrap().ino();
    let mut child = Waiting::start(Command::new("cat").args(["-u", "-"]).stdout(Stdio::piped()).stderr(file));
    // The command, which has the file as well, has gone, and the child is the program.
    child.answer();
    assert!(others_have_open(inode));
    assert!(!others_have_open(u64::MAX));
}

#[test]
fn who_is_stopped_is_told_from_who_runs_and_what_it_has_open_by_name() {
    let child = Waiting::start(Command::new("cat").stdout(File::options().write(true).open("/dev/null").unwrap()));
    let pid = rustix::process::Pid::from_raw(child.pid().cast_signed()).unwrap();
    let is_stopped = || stopped().any(|stopped| stopped == child.pid());
    assert!(!is_stopped());
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    while !is_stopped() {
        std::thread::yield_now();
    }
    assert!(opens(child.pid(), Path::new("/dev/null")) && !opens(child.pid(), Path::new("/dev")));
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
}

#[test]
fn who_is_above_a_process_is_told_up_to_nobody() {
    let own = std::process::id();
    let above: Vec<u32> = ancestors(own).collect();
    assert_eq!((above[0], Some(above[1]), above.last()), (own, parent(own), Some(&0)));
    assert_eq!(ancestors(0).collect::<Vec<_>>(), [0]);
    let gone = u32::MAX >> 1;
    assert_eq!(ancestors(gone).collect::<Vec<_>>(), [gone], "nobody is left to ask");
}
