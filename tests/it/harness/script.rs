//! Python scripts that make the system calls a test is about, without anything of their own between.

use std::path::Path;
use std::process::Command;

use super::{Output, Scratch};

/// What every script begins with: `raises(errno name, call, …)`, calls that Python does not have, and `ask(op=…)`, a
/// request to the control file of the view it stands in.
const PRELUDE: &str = r#"
import os, sys, errno, json, stat, mmap, fcntl, ctypes, subprocess, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def raises(name, call, *args, **named):
    try:
        call(*args, **named)
    except OSError as err:
        assert err.errno == getattr(errno, name), (name, err)
    else:
        raise AssertionError("no " + name)
def renameat2(a, b, flags):
    if libc.renameat2(-100, os.fsencode(a), -100, os.fsencode(b), flags) != 0:
        err = ctypes.get_errno()
        raise OSError(err, os.strerror(err))
def put(path, data=b""):
    with open(path, "wb") as f: f.write(data)
def get(path):
    with open(path, "rb") as f: return f.read()
def ask(**request):
    fd = os.open(".fettle/control", os.O_RDWR)
    os.write(fd, json.dumps(dict(v=1, **request)).encode())
    answer = b""
    while True:
        piece = os.read(fd, 1 << 20)
        if not piece: break
        answer += piece
    os.close(fd)
    return json.loads(answer)
"#;

/// A command that runs `script` in `dir`.
pub fn command(scratch: &Scratch, dir: &Path, script: &str) -> Command {
    let mut command = scratch.command("python3");
    command.args(["-SE", "-c", &format!("{PRELUDE}{script}")]).current_dir(dir);
    command
}

pub fn python(scratch: &Scratch, dir: &Path, script: &str) -> Output {
    command(scratch, dir, script).output().expect("python3").into()
}
