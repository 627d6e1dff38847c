"""Where a play is run: scratch space, the mount over it, and the comparison of the two runs.

Both runs happen at the same path, one after the other, so that programs that write absolute paths into files (cargo,
git worktree) write the same ones. `Bed.play` is the whole of it; the rest serves it.
"""

import hashlib
import json
import os
import select
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

# Ours, at the root of the project: listed below, hidden in the view.
STATE = b".fettle"
# How much of a difference is worth printing.
SHOWN_MAX = 6
# A step that takes longer than this hangs.
STEP_SECONDS_MAX = 1200


class Stop(Exception):
    """A play cannot go on: a program failed, or gave no answer."""


def run(*command, check=True, env=None, cwd=None, stdin=None):
    """Runs a program; gives its status and what it printed (stdout, stderr)."""
    words = [os.fspath(part) for part in command]
    try:
        done = subprocess.run(
            words, cwd=cwd, env=env, input=stdin, capture_output=True, timeout=STEP_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired as late:
        raise Stop(f"{words}: no end after {STEP_SECONDS_MAX} s") from late
    if check and done.returncode != 0:
        said = (done.stdout + done.stderr).decode(errors="replace").splitlines()
        raise Stop("\n  ".join([f"{words[:6]}: status {done.returncode}", *said[:10]]))
    return done


@dataclass
class Step:
    name: str
    # Gets the Place; gives what must be the same text in both runs (or None).
    act: Callable


# A step of its own: everything held is confirmed, the view unmounted, the project compared, and mounted again.
TURN = Step("confirm --all, unmount", lambda place: None)


@dataclass
class Play:
    name: str
    steps: list
    # Fills the directory before it is mounted.
    prepare: Callable = lambda top: None
    # Whether the times of files must agree as well: only where the programs set them.
    times: bool = False
    # Relative paths (bytes) that hold times or inode numbers and so differ between any two runs.
    varies: Callable = lambda path: False
    # Extra arguments of `fettlefs mount`.
    flags: list = field(default_factory=list)


@dataclass
class Place:
    """What a step gets: the directory, and programs run in it."""

    top: Path
    env: dict
    quick: bool

    def run(self, *command, check=True, at=""):
        return run(*command, check=check, env=self.env, cwd=self.top / at)

    def text(self, *command, check=True, at=""):
        """Status and output of a program, for comparison."""
        done = self.run(*command, check=check, at=at)
        return f"{done.returncode}\n{done.stdout.decode(errors='backslashreplace')}"


class Mount:
    """fettlefs over a directory, in the background."""

    def __init__(self, binary, top, env, flags=()):
        self.binary, self.top, self.env, self.pid = binary, top, env, None
        # Nothing here is about a person who has gone to lunch: no change expires.
        self.flags = ["--ttl", "0", *flags]

    def start(self):
        run(self.binary, "mount", *self.flags, self.top, env=self.env, cwd="/")
        self.pid = self.status()["pid"]

    def cli(self, *command, check=True):
        return run(self.binary, "-C", self.top, *command, check=check, env=self.env, cwd="/")

    def status(self):
        return json.loads(self.cli("status", "--json").stdout)

    def confirm_all(self):
        self.cli("confirm", "--all", "--yes")

    def unmount(self):
        self.cli("unmount")
        self.pid = None

    def kill(self):
        """SIGKILL to the daemon, and to its watchdog before, which would start another; returns when it is gone."""
        parent = int(Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()[1])
        if is_fettlefs(parent, self.binary):
            os.kill(parent, signal.SIGKILL)
        watch = os.pidfd_open(self.pid)
        signal.pidfd_send_signal(watch, signal.SIGKILL)
        # Readable when the process has ended.
        ended, _, _ = select.select([watch], [], [], 30)
        os.close(watch)
        if not ended:
            raise Stop(f"the daemon {self.pid} outlives SIGKILL")

    def clear(self):
        """Whatever happened, nothing stays mounted and no daemon runs."""
        if not is_mounted(self.top):
            return
        subprocess.run(
            [self.binary, "-C", self.top, "unmount", "--force"], env=self.env, cwd="/", capture_output=True,
            timeout=60, check=False,
        )
        for command in (["umount", "-l"], ["fusermount3", "-uz"]):
            if is_mounted(self.top) and shutil.which(command[0]):
                subprocess.run([*command, self.top], capture_output=True, check=False)
        if self.pid is not None and is_fettlefs(self.pid, self.binary):
            os.kill(self.pid, signal.SIGKILL)


def is_mounted(top):
    escaped = str(top).replace("\\", "\\134").replace(" ", "\\040")
    return any(line.split()[4] == escaped for line in Path("/proc/self/mountinfo").read_text().splitlines())


def is_fettlefs(pid, binary):
    try:
        return os.path.samefile(f"/proc/{pid}/exe", binary)
    except OSError:
        return False


def digest(path):
    with open(path, "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def picture(top, times=False, varies=lambda path: False):
    """Relative path -> everything that is compared about it, as a short text."""
    top, seen = os.fsencode(top), {}

    def look(directory, below):
        for entry in os.scandir(directory):
            path = below + entry.name
            if path == STATE or varies(path):
                continue
            meta = entry.stat(follow_symlinks=False)
            seen[path] = describe(entry.path, meta, times)
            if stat.S_ISDIR(meta.st_mode):
                look(entry.path, path + b"/")

    look(top, b"")
    return seen


def describe(path, meta, times):
    facts = [oct(meta.st_mode), f"{meta.st_uid}:{meta.st_gid}"]
    if stat.S_ISREG(meta.st_mode):
        # fettlefs hides its state directory from git by a line in this file (docs/SEMANTICS.md).
        facts.append(without_our_line(path) if path.endswith(b".git/info/exclude") else digest(path))
    elif stat.S_ISLNK(meta.st_mode):
        facts.append(repr(os.readlink(path)))
    if times and not stat.S_ISDIR(meta.st_mode):
        facts.append(str(meta.st_mtime_ns))
    return " ".join(facts)


def without_our_line(path):
    with open(path, "rb") as file:
        return hashlib.sha256(b"".join(line for line in file if line.strip() != STATE + b"/")).hexdigest()


def differences(want, got):
    """Lines that say where two pictures differ."""
    for path in sorted(want.keys() | got.keys()):
        if want.get(path) != got.get(path):
            yield f"{os.fsdecode(path)}: plain {want.get(path, 'has none')} | here {got.get(path, 'has none')}"


@dataclass
class Seen:
    """One step on the plain directory: what must be seen again in the view."""

    said: str
    picture: dict
    seconds: float


class Bed:
    def __init__(self, binary, lower, quick):
        self.binary, self.quick, self.lower = binary, quick, lower
        self.faults, self.compared, self.confirmed, self.steps = [], 0, 0, 0
        self.mounts, self.children = [], []
        self.began = time.monotonic()

    def __enter__(self):
        self.scratch = Path(tempfile.mkdtemp(prefix="realworld.", dir=self.lower)).resolve()
        (self.scratch / "home").mkdir()
        self.env = self.environment()
        return self

    def __exit__(self, *_):
        for child in self.children:
            if child.poll() is None:
                child.kill()
                child.wait()
        for mount in self.mounts:
            mount.clear()
        still = [mount.top for mount in self.mounts if is_mounted(mount.top)]
        if still:
            print(f"realworld: still mounted, so {self.scratch} stays: {still}")
        else:
            shutil.rmtree(self.scratch)

    def environment(self):
        """No setting of the person who runs this may change an outcome, no clock may change a commit."""
        env = {key: value for key, value in os.environ.items() if not key.startswith(("FETTLE_", "GIT_", "CARGO_"))}
        home = Path.home()
        env |= {
            "CARGO_HOME": os.environ.get("CARGO_HOME", str(home / ".cargo")),
            "RUSTUP_HOME": os.environ.get("RUSTUP_HOME", str(home / ".rustup")),
            "npm_config_userconfig": os.environ.get("npm_config_userconfig", str(home / ".npmrc")),
            "npm_config_cache": str(self.scratch / "npm-cache"),
            "HOME": str(self.scratch / "home"),
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_DATE": "1700000000 +0000",
            "GIT_COMMITTER_DATE": "1700000000 +0000",
        }
        return env

    def say(self, part, name, text):
        print(f"realworld: {part}: {name}: {text}", flush=True)

    def fault(self, part, text):
        self.faults.append(f"{part}: {text}")
        print(f"realworld: DIFFERENT: {part}: {text}", flush=True)

    def summary(self):
        seconds = time.monotonic() - self.began
        print(
            f"realworld: {self.steps} steps, {self.compared} files compared, {self.confirmed} held changes confirmed, "
            f"{len(self.faults)} differences, {seconds:.0f} s"
        )
        for fault in self.faults:
            print(f"realworld: different: {fault.splitlines()[0]}")

    def mount(self, top, flags=()):
        mount = Mount(self.binary, top, self.env, flags)
        self.mounts.append(mount)
        mount.start()
        return mount

    def play(self, play):
        """Runs every step on the plain directory, then in the view, and compares."""
        here, kept = self.scratch / play.name, self.scratch / f"{play.name}.prepared"
        kept.mkdir()
        play.prepare(kept)
        plain = self.play_plain(play, here, kept)
        shutil.rmtree(here)
        run("cp", "-a", kept, here)
        self.play_view(play, here, plain)
        shutil.rmtree(here)
        shutil.rmtree(kept)

    def play_plain(self, play, here, kept):
        run("cp", "-a", kept, here)
        place, seen = Place(here, self.env, self.quick), []
        for step in play.steps:
            began = time.monotonic()
            said = step.act(place)
            seconds = time.monotonic() - began
            seen.append(Seen(said, picture(here, play.times, play.varies), seconds))
        return seen

    def play_view(self, play, here, plain):
        mount = self.mount(here, play.flags)
        place, last = Place(here, self.env, self.quick), plain[0]
        for step, want in zip(play.steps, plain):
            if step is TURN:
                self.turn(play, mount, want)
                mount.start()
                continue
            began = time.monotonic()
            try:
                said = step.act(place)
            except (Stop, OSError) as error:
                self.fault(f"{play.name}: {step.name}", f"failed in the view only: {error}")
                # The rest would only repeat it. The project must still become what the view is.
                last = Seen("", picture(here, play.times, play.varies), 0)
                break
            last = want
            seconds = time.monotonic() - began
            status = mount.status()
            alike = self.compare(f"{play.name}: {step.name}", play, want, here, said)
            counters = status["counters"]
            self.say(
                play.name,
                step.name,
                f"{alike}; {len(status['held'])} held, {counters['landed']} landed; "
                f"{seconds:.1f} s, plain {want.seconds:.1f} s",
            )
            self.steps += 1
        self.turn(play, mount, last)

    def compare(self, where, play, want, here, said=None):
        got = picture(here, play.times, play.varies)
        found = list(differences(want.picture, got))
        if said is not None and said != want.said:
            found.insert(0, f"programs said\n    {want.said!r:.2000}\n  here\n    {said!r:.2000}")
        self.compared += len(want.picture)
        if found:
            more = [f"... {len(found) - SHOWN_MAX} more"] if len(found) > SHOWN_MAX else []
            self.fault(where, "\n  ".join([f"{len(found)} differences", *found[:SHOWN_MAX], *more]))
            return f"{len(found)} DIFFERENCES"
        return f"{len(got)} alike"

    def turn(self, play, mount, want):
        """Confirms everything, unmounts; then the project itself must be what the plain directory is."""
        held = len(mount.status()["held"])
        mount.confirm_all()
        left = mount.status()["held"]
        if left:
            self.fault(f"{play.name}: confirm --all", f"{len(left)} are held still, the first: {left[0]}")
        mount.unmount()
        alike = self.compare(f"{play.name}: the project below", play, want, mount.top)
        self.confirmed += held
        self.say(play.name, "the project after confirm --all and unmount", f"{alike}; {held} confirmed")
