//! Many processes and threads on the same files at once: nobody sees half of anything, nothing is lost, nobody waits for
//! ever. `scripts/realworld --only traffic` does the same for longer, from many processes.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::harness::{Output, Scratch, View, mounted_scratch};

const DIRS: [&str; 2] = ["judged", "target"];
const FILES: usize = 4;
/// Turns of each worker: a second or two on two slow cores.
const TURNS: usize = 60;

/// A project with a directory that is judged and one that git ignores.
fn project(scratch: &Scratch) {
    scratch.write(".gitignore", "target/\n");
    assert!(scratch.command("git").args(["init", "--quiet"]).arg(scratch.project()).status().expect("git").success());
    for dir in DIRS {
        for file in 0..FILES {
            scratch.write(format!("{dir}/block{file}"), block(0, file, 3));
        }
    }
}

/// Text that tells its own length and sum, so that a part of it, or parts of two, are known for what they are.
fn block(writer: usize, turn: usize, lines: usize) -> String {
    let body: String = (0..lines).map(|line| format!("writer {writer} turn {turn} line {line}\n")).collect();
    format!("{} {}\n{body}", body.len(), sum(body.as_bytes()))
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)))
}

fn is_whole(content: &[u8]) -> bool {
    let text = String::from_utf8_lossy(content);
    let Some((head, body)) = text.split_once('\n') else { return false };
    head == format!("{} {}", body.len(), sum(body.as_bytes()))
}

/// Runs every worker in a thread of its own; readers go on until the writers are done.
fn side_by_side(writers: &[&(dyn Fn() + Sync)], readers: &[&(dyn Fn() + Sync)]) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for reader in readers {
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    reader();
                }
            });
        }
        let writers: Vec<_> = writers.iter().map(|writer| scope.spawn(writer)).collect();
        let ended: Vec<_> = writers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        // Before anybody panics: the readers must end.
        done.store(true, Ordering::SeqCst);
        for end in ended {
            end.expect("a writer failed");
        }
    });
}

#[test]
fn readers_of_a_file_that_others_rename_over_get_one_whole_block() {
    let scratch = mounted_scratch!();
    project(&scratch);
    let view = scratch.mount();
    for dir in DIRS {
        let write = |writer: usize| {
            for turn in 0..TURNS {
                let path = view.path(format!("{dir}/block{}", (turn + writer) % FILES));
                let temp = path.with_extension(format!("{writer}.tmp"));
                // Small ones land, large ones are held: readers see both.
                fs::write(&temp, block(writer, turn, [2, 4, 150][turn % 3])).expect("write");
                fs::rename(&temp, &path).expect("rename over");
            }
        };
        let read = |file: usize| {
            let mut open = File::open(view.path(format!("{dir}/block{file}"))).expect("a name that never goes");
            // In two steps with others in between: what was opened stays what it was.
            let mut content = vec![0; 20];
            let first = open.read(&mut content).expect("read");
            content.truncate(first);
            thread::yield_now();
            open.seek(SeekFrom::Start(first as u64)).expect("seek");
            open.read_to_end(&mut content).expect("read on");
            assert!(is_whole(&content), "torn in {dir}: {}", String::from_utf8_lossy(&content));
        };
        let shell = || sums_in_a_process(&scratch, &view, dir);
        side_by_side(&[&|| write(1), &|| write(2)], &[&|| read(0), &|| read(1), &shell]);
        for file in 0..FILES {
            assert!(is_whole(view.read(format!("{dir}/block{file}")).as_bytes()), "{dir}/block{file}");
        }
    }
    unmounted_as_shown(&scratch, view);
}

/// A process of its own, so that not all is one thread group.
fn sums_in_a_process(scratch: &Scratch, view: &View<'_>, dir: &str) {
    let mut cat = scratch.command("cat");
    let path = view.path(format!("{dir}/block2"));
    let output = cat.arg(&path).stderr(Stdio::inherit()).output().expect("cat");
    assert!(output.status.success() && is_whole(&output.stdout), "cat {} found: {output:?}", path.display());
}

#[test]
fn records_that_many_append_are_all_there_and_whole() {
    let scratch = mounted_scratch!();
    project(&scratch);
    let view = scratch.mount();
    for dir in DIRS {
        let log = view.path(format!("{dir}/log"));
        let append = |writer: usize| {
            for turn in 0..TURNS {
                let mut file = OpenOptions::new().append(true).create(true).open(&log).expect("open");
                file.write_all(format!("{writer} {turn}\n").as_bytes()).expect("append");
            }
        };
        side_by_side(&[&|| append(1), &|| append(2), &|| append(3)], &[]);
        let text = view.read(format!("{dir}/log"));
        for writer in 1..=3 {
            let turns = text.lines().filter_map(|line| line.strip_prefix(&format!("{writer} ")));
            let want: Vec<String> = (0..TURNS).map(|turn| turn.to_string()).collect();
            assert_eq!(turns.collect::<Vec<_>>(), want, "writer {writer} in {dir}");
        }
        assert_eq!(text.lines().count(), 3 * TURNS, "no line is torn in two");
    }
    unmounted_as_shown(&scratch, view);
}

#[test]
fn files_renamed_back_and_forth_are_always_under_one_of_their_names() {
    let scratch = mounted_scratch!();
    project(&scratch);
    let view = scratch.mount();
    for dir in DIRS {
        let (here, away) = (view.path(format!("{dir}/block0")), view.path(format!("{dir}/away")));
        let seen = Mutex::new([0usize; 2]);
        let rename = || {
            for _ in 0..TURNS {
                fs::rename(&here, &away).expect("rename away");
                assert!(is_whole(&fs::read(&away).expect("read")), "away");
                fs::rename(&away, &here).expect("rename back");
            }
        };
        let look = |at: usize, path: &Path| {
            if let Ok(content) = fs::read(path) {
                assert!(is_whole(&content), "torn: {}", String::from_utf8_lossy(&content));
                seen.lock().expect("no reader failed")[at] += 1;
            }
        };
        let list = || {
            let names: Vec<_> =
                fs::read_dir(view.path(dir)).expect("list").map(|entry| entry.expect("entry")).collect();
            let stays = |name: &str| names.iter().filter(|entry| entry.file_name() == name).count();
            assert_eq!((stays("block1"), stays("block2")), (1, 1), "what nobody touches is listed once");
        };
        side_by_side(&[&rename], &[&|| look(0, &here), &|| look(1, &away), &list]);
        assert!(is_whole(view.read(format!("{dir}/block0")).as_bytes()));
        assert!(!view.has(format!("{dir}/away")));
    }
    unmounted_as_shown(&scratch, view);
}

#[test]
fn neighbours_in_one_file_do_not_lose_each_others_blocks() {
    let scratch = mounted_scratch!();
    project(&scratch);
    const BYTES: usize = 4096;
    for dir in DIRS {
        scratch.write(format!("{dir}/shared"), vec![b'-'; 4 * BYTES]);
    }
    let view = scratch.mount();
    for dir in DIRS {
        let path = view.path(format!("{dir}/shared"));
        let write = |at: usize| {
            let file = OpenOptions::new().read(true).write(true).open(&path).expect("open");
            let mut back = vec![0; BYTES];
            for turn in 0..TURNS {
                let mine = vec![b'a' + ((at + turn) % 26) as u8; BYTES];
                file.write_all_at(&mine, (at * BYTES) as u64).expect("write");
                file.read_exact_at(&mut back, (at * BYTES) as u64).expect("read");
                assert!(back == mine, "block {at} is not what was written a moment ago");
            }
        };
        side_by_side(&[&|| write(0), &|| write(1), &|| write(2), &|| write(3)], &[]);
        let content = fs::read(&path).expect("read");
        for (at, block) in content.chunks(BYTES).enumerate() {
            assert!(block.iter().all(|byte| *byte == b'a' + ((at + TURNS - 1) % 26) as u8), "block {at} of {dir}");
        }
    }
    unmounted_as_shown(&scratch, view);
}

/// The daemon needs no more than one descriptor a file that is open, however often, and gives all of them back.
#[test]
fn many_open_files_take_one_descriptor_each() {
    let scratch = mounted_scratch!();
    project(&scratch);
    const COUNT: usize = 400;
    for file in 0..COUNT {
        scratch.write(format!("judged/many/{file}"), format!("file {file}\n"));
    }
    let view = scratch.mount();
    let descriptors = || fs::read_dir(format!("/proc/{}/fd", view.daemon_pid())).expect("its descriptors").count();
    let before = descriptors();
    let path = |file: usize| view.path(format!("judged/many/{file}"));
    let open = |file: usize| (File::open(path(file)), OpenOptions::new().append(true).open(path(file)));
    let mut files = Vec::new();
    for file in 0..COUNT {
        let (reader, writer) = open(file);
        files.push((reader.expect("open for reading"), writer.expect("open for writing")));
        if file % 2 == 0 {
            files[file].1.write_all(b"more\n").expect("write");
        }
    }
    // What the daemon opens for itself meanwhile is little and does not grow with the files.
    let most = descriptors();
    assert!(most <= before + COUNT + 40, "{most} descriptors for {COUNT} files, {before} before");
    for (file, (reader, _)) in files.iter_mut().enumerate() {
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("read");
        assert_eq!(text, format!("file {file}\n{}", if file % 2 == 0 { "more\n" } else { "" }));
    }
    drop(files);
    view.cli(&["flush"]).ok();
    let after = descriptors();
    assert!(after <= before + 40, "{after} descriptors when all is closed, {before} before");
    unmounted_as_shown(&scratch, view);
}

/// Confirms what is held: then the project has, file by file, what the view had.
fn unmounted_as_shown(scratch: &Scratch, view: View<'_>) {
    let shown = |top: &Path| -> Vec<(String, Vec<u8>)> {
        let mut files: Vec<_> = DIRS
            .iter()
            .flat_map(|dir| fs::read_dir(top.join(dir)).expect("list"))
            .map(|entry| entry.expect("entry").path())
            .filter(|path| path.is_file())
            .map(|path| {
                let name = path.strip_prefix(top).expect("below the top").to_string_lossy().into_owned();
                (name, fs::read(&path).expect("read"))
            })
            .collect();
        files.sort();
        files
    };
    let want = shown(view.root());
    view.cli(&["confirm", "--all", "--yes"]).ok();
    view.unmount();
    assert!(shown(&scratch.project()) == want, "the project is not what the view was");
}

/// More files than there are threads that read requests, each kept from being opened by somebody else.
#[test]
fn who_opens_what_others_keep_for_themselves_waits_alone() {
    let scratch = mounted_scratch!();
    let names: Vec<String> = (0..12).map(|file| format!("f{file}")).collect();
    names.iter().for_each(|name| scratch.write(name, "old\n"));
    let view = scratch.mount();
    // Only what fettlefs has put somewhere can be changed by others.
    names.iter().for_each(|name| view.write(name, "landed\n"));
    let script = r#"
import signal
signal.signal(signal.SIGIO, signal.SIG_IGN)
below, names = sys.argv[1], sys.argv[2:]
def kept(name):
    fd = os.open(f"{below}/{name}", os.O_RDWR)
    os.pwrite(fd, b"edited\n", 0)
    while True:
        # The daemon may be looking at the edit.
        try: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except BlockingIOError: time.sleep(.01)
        else: return fd
def is_asked_for(fd):
    return fcntl.fcntl(fd, fcntl.F_GETLEASE) != fcntl.F_WRLCK
for ask in get, lambda name: os.getxattr(name, "user.fettle.externally_modified"):
    leases, answers = [kept(name) for name in names], []
    waiting = [threading.Thread(target=lambda name=name: answers.append(ask(name))) for name in names]
    for thread in waiting: thread.start()
    began = time.monotonic()
    while not all(map(is_asked_for, leases)) and time.monotonic() < began + 20: time.sleep(.01)
    asked = list(map(is_asked_for, leases))
    if all(asked): raises("ENOENT", os.stat, "unrelated")
    assert not answers, answers
    for fd in leases: os.close(fd)
    for thread in waiting: thread.join()
    assert all(asked), (ask, asked)
    assert set(answers) in ({b"edited\n"}, {b"1"}), answers
"#;
    let mut command = crate::harness::script::command(&scratch, view.root(), script);
    Output::from(command.arg(view.lower()).args(&names).output().expect("python3")).ok();
}
