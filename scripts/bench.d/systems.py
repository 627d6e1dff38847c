"""What is measured: the plain directory, the overlays that are installed, and fettlefs."""

import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from rig import Wrong, detach, is_mounted, run

# A path that is always held, in a directory of the fixture.
HELD = ".claude/{}-{:05}"
PEERS = ["fuse-overlayfs", "unionfs-fuse", "mergerfs"]


class System:
    """The plain directory, and what every other system has in common with it."""

    name = "native"

    def __init__(self, root):
        self.root = root
        self.lower = root / "lower"
        self.upper, self.work = root / "upper", root / "work"
        self.view = self.lower

    @classmethod
    def missing(cls, _options):
        """Why it cannot run here, or None."""
        return None

    @classmethod
    def version(cls, _options):
        return ""

    def mount(self):
        pass

    def unmount(self):
        pass

    def settle_down(self):
        """What goes on after the last call returned has come to its end."""

    def daemon(self):
        """The process that answers, or None."""
        return None

    def below(self, path):
        """Where the result of work on `path` must show once it is done, besides the view."""
        return self.lower / path

    def note(self):
        """A remark on the state that the work left, or None."""
        return None


class Mounted(System):
    program = ""

    def __init__(self, root):
        super().__init__(root)
        self.view = root / "view"
        for directory in (self.view, self.upper, self.work):
            directory.mkdir()

    @classmethod
    def missing(cls, _options):
        if not os.path.exists("/dev/fuse"):
            return "no /dev/fuse"
        return None if shutil.which(cls.program) else "not installed (--install)"

    @classmethod
    def version(cls, _options):
        said = run(cls.program, "--version", check=False)
        own = [line for line in (said.stdout + said.stderr).splitlines() if cls.name in line]
        words = " ".join(own).replace(",", " ").split()
        return next((word for word in words if word[:1].isdigit()), "")

    def mount(self):
        run(*self.command())
        self.wait()

    def wait(self):
        deadline = time.monotonic() + 10
        while not is_mounted(self.view):
            if time.monotonic() > deadline:
                raise Wrong(f"{self.name}: not mounted within 10 s")
            time.sleep(0.01)

    def unmount(self):
        detach(self.view)

    def below(self, path):
        return None


class KernelOverlay(Mounted):
    name, program = "overlayfs", "mount"

    @classmethod
    def missing(cls, _options):
        return None if os.geteuid() == 0 else "needs root"

    @classmethod
    def version(cls, _options):
        return platform.release()

    def command(self):
        layers = f"lowerdir={self.lower},upperdir={self.upper},workdir={self.work}"
        return ["mount", "-t", "overlay", "overlay", "-o", layers, self.view]


class FuseOverlayfs(Mounted):
    name = program = "fuse-overlayfs"

    def daemon(self):
        return program_of(self.view)

    def command(self):
        layers = f"lowerdir={self.lower},upperdir={self.upper},workdir={self.work}"
        return ["fuse-overlayfs", "-o", layers, self.view]


class Unionfs(Mounted):
    name, program = "unionfs-fuse", "unionfs"

    def daemon(self):
        return program_of(self.view)

    def command(self):
        return ["unionfs", "-o", "cow", f"{self.upper}=RW:{self.lower}=RO", self.view]


class Mergerfs(Mounted):
    """One branch: a pass-through to lower, without copy-up."""

    name = program = "mergerfs"

    def daemon(self):
        return program_of(self.view)

    def command(self):
        # It keeps 4 GiB free unless told otherwise, which is all there is.
        return ["mergerfs", "-o", "minfreespace=0", self.lower, self.view]

    def below(self, path):
        return self.lower / path


class Fettlefs(Mounted):
    name = "fettlefs"
    program = None  # set from --bin
    options = []
    pid = None
    outlived = False  # its mount: a fault, though not one of speed

    def __init__(self, root):
        super().__init__(root)
        self.settings = {}

    @classmethod
    def missing(cls, _options):
        if not os.path.exists("/dev/fuse"):
            return "no /dev/fuse"
        return None if cls.program.is_file() else f"{cls.program} is not built (cargo build --release)"

    def call(self, *arguments):
        return run(*self.command(*arguments), env=self.env(), cwd=self.root, timeout=120)

    def command(self, *arguments):
        return [self.program, "-C", self.view, *arguments]

    def env(self):
        """Without any setting of the person who measures."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("FETTLE_")}
        return {**env, "XDG_CONFIG_HOME": str(self.root / "no-settings"), **self.settings}

    def mount(self):
        # The daemon must not inherit our pipes: reading them would wait for its end.
        log = self.root / "mount.log"
        with open(log, "w", encoding="utf-8") as out:
            # What lands is measured, and not what is held for coming with much else.
            command = [self.program, "mount", "--burst=1000000", *self.options, self.lower, self.view]
            status = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=self.env(),
                                    check=False)
        if status.returncode != 0:
            raise Wrong(f"fettlefs mount: status {status.returncode}\n{log.read_text(errors='replace')}")
        self.wait()
        self.pid = None

    def mount_anew(self, settings):
        """By these settings, from variables."""
        self.settle_down()
        self.unmount()
        self.settings = settings
        self.mount()

    def hold(self, name, numbers):
        """New files that wait for review: agents' own settings always do."""
        before = self.held_count()
        for number in numbers:
            (self.view / HELD.format(name, number)).write_text(f"{number}\n")
        made = self.held_count() - before
        if made != len(numbers):
            raise Wrong(f"{self.name}: {made} changes are held, not {len(numbers)}")

    def expect_landed(self, name, numbers):
        for number in numbers:
            path = self.lower / HELD.format(name, number)
            if path.read_text() != f"{number}\n":
                raise Wrong(f"{self.name}: {path} is not what was confirmed")

    def daemon(self):
        self.pid = self.pid or self.status()["pid"]
        return self.pid

    def settle_down(self):
        self.call("flush")

    def held_count(self):
        return len(self.status()["held"])

    def requests(self):
        return self.status("--trace-ops").get("requests", {})

    def status(self, *more):
        said = self.call("status", "--json", *more).stdout
        try:
            return json.loads(said)
        except json.JSONDecodeError as err:
            raise Wrong(f"fettlefs status --json: {err}: {said[:200]!r}") from err

    def unmount(self):
        if is_mounted(self.view):
            with contextlib.suppress(Wrong, subprocess.TimeoutExpired):
                self.daemon()
            with contextlib.suppress(Wrong, subprocess.TimeoutExpired):
                self.call("unmount")
        detach(self.view)
        self.end_daemon()

    def end_daemon(self):
        deadline = time.monotonic() + 5
        while self.pid and os.path.exists(f"/proc/{self.pid}"):
            if time.monotonic() > deadline:
                print(f"bench: killed the fettlefs daemon, pid {self.pid}, left after unmount", file=sys.stderr)
                os.kill(self.pid, signal.SIGKILL)
                Fettlefs.outlived = True
                break
            time.sleep(0.01)
        self.pid = None

    def below(self, path):
        return self.lower / path

    def note(self):
        held = self.status()["held"]
        first = ", ".join(f"{change['path']} ({change['reason']})" for change in held[:3])
        return f"fettlefs holds {len(held)} changes: {first}" if held else None


class ByRings(Fettlefs):
    """Its requests by the kernel's rings, which are switched on while it is mounted. None of the others knows them."""

    name = "by rings"
    options = ["-o", "rings"]
    switch = Path("/sys/module/fuse/parameters/enable_uring")

    @classmethod
    def missing(cls, options):
        if not os.access(cls.switch, os.W_OK):
            return f"{cls.switch} is not there, or not ours to write"
        return super().missing(options)

    def mount(self):
        before = self.switch.read_text()
        self.switch.write_text("Y")
        try:
            super().mount()
        finally:
            self.switch.write_text(before)

    def note(self):
        # Not once it is mounted: that is measured, too.
        status = self.status()
        if not status["rings"]:
            raise Wrong(f"{self.name}: requests come by the device: {status.get('notices')}")
        return super().note()


def program_of(view):
    """The process that was started with this path among its arguments."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.fsencode(view) in (process / "cmdline").read_bytes().split(b"\0"):
                return int(process.name)
    return None


SYSTEMS = [System, KernelOverlay, FuseOverlayfs, Unionfs, Mergerfs, Fettlefs, ByRings]


@contextlib.contextmanager
def mounted(kinds, place, bench):
    """Every system, mounted over its own copy of the fixture."""
    fixture = place / "fixture"
    fixture.mkdir()
    bench.make_fixture(fixture)
    systems = []
    try:
        for kind in kinds:
            root = place / kind.name
            root.mkdir()
            run("cp", "-a", fixture, root / "lower")
            run("git", "-C", root / "lower", "status")
            system = kind(root)
            systems.append(system)
            system.mount()
        yield systems
    finally:
        for system in systems:
            system.unmount()


def chosen(options):
    """The systems to run, the plain directory always first."""
    wanted = options.systems.split(",") if options.systems else None
    known = [kind.name for kind in SYSTEMS]
    for name in wanted or []:
        if name not in known:
            sys.exit(f"bench: no system {name!r}; there are {', '.join(known)}")
    kinds = []
    for kind in SYSTEMS:
        if wanted is not None and kind.name not in wanted and kind is not System:
            continue
        why = kind.missing(options)
        if why is None:
            kinds.append(kind)
        elif wanted is not None:
            sys.exit(f"bench: {kind.name}: {why}")
        else:
            print(f"bench: without {kind.name}: {why}", file=sys.stderr)
    builds = [type("Build", (Fettlefs,), {"name": name, "program": program}) for name, program in options.beside]
    return kinds + builds
