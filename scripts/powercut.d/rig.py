"""Disks, loop devices, mounts and daemons, each taken down again however the run ends.

`scripts/powercut` runs in a mount namespace of its own: should it be killed, the kernel ends what it started, and
takes the mounts and loop devices down with the last of them.
"""
import contextlib, ctypes, json, os, signal, subprocess, sys, time

# Small enough to be made in a moment, large enough for the file system's own minimum.
IMAGE_BYTES = {"ext4": 96 << 20, "xfs": 300 << 20, "btrfs": 160 << 20}
# What is written as a whole, at the least: btrfs takes its superblock of 4 KiB for damaged where only a part of it is new.
SECTOR_BYTES = {"ext4": 512, "xfs": 512, "btrfs": 4096}
MKFS = {
    "ext4": ["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
    "xfs": ["mkfs.xfs", "-q"],
    "btrfs": ["mkfs.btrfs", "-q"],
}


class Unusable(Exception):
    """The rig itself failed: no statement about what it was to test."""


LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def start(command, **options):
    """A process that ends with the thread that started it, however that ends."""
    return subprocess.Popen(command, preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL), **options)


def run(*command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, **options)
    if done.returncode != 0:
        raise Unusable(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout.strip()


def succeeds(*command):
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return done.returncode == 0


def is_mounted(point):
    """Not by looking there, which fails when what is mounted is dead."""
    with open("/proc/self/mounts") as mounts:
        return any(line.split()[1] == point for line in mounts)


def unmount(point):
    # Polls: what a killed process had open below is let go of a moment after its end.
    for _ in range(500):
        if succeeds("umount", point) or not is_mounted(point):
            return
        time.sleep(0.01)
    raise Unusable(f"{point} stays busy")


def end(process):
    """Waits for a process whose mount is gone; kills it if that does not end it."""
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def make_image(fs, path):
    with open(path, "wb") as image:
        image.truncate(IMAGE_BYTES[fs])
    run(*MKFS[fs], path)


class Disk:
    """A `powercut-disk` process. `with Disk(…) as disk`."""

    def __init__(self, program, mode, base, log, point):
        self.command, self.point = [program, mode, base, log, point], point
        os.makedirs(point, exist_ok=True)

    def __enter__(self):
        self.process = start(self.command, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            self.process.wait()
            raise Unusable(f"{self.command[0]} does not serve")
        self.control = os.open(os.path.join(self.point, "control"), os.O_RDWR)
        return self

    def __exit__(self, *_error):
        os.close(self.control)
        try:
            unmount(self.point)
        except Unusable as busy:
            # Seen once in thousands: the kernel did not let go of a loop device that nobody had open any more.
            print(f"powercut: {busy}: detached", file=sys.stderr)
            run("umount", "--lazy", self.point)
        end(self.process)
        self.process.stdout.close()

    @property
    def image(self):
        return os.path.join(self.point, "disk")

    def position(self):
        """How many records the log has: what was made durable before this question stands before it."""
        return int(os.pread(self.control, 32, 0))

    def cut(self, position, loss, sector):
        os.pwrite(self.control, f"{position} {loss} {sector}".encode(), 0)


@contextlib.contextmanager
def mounted(fs, image, point):
    """The file system on an image, by a loop device of its own."""
    os.makedirs(point, exist_ok=True)
    device = run("losetup", "--find", "--show", image)
    try:
        run("mount", "-t", fs, device, point)
    finally:
        # Goes by itself with the last who has it mounted, also when we are killed.
        run("losetup", "--detach", device)
    try:
        yield point
    finally:
        unmount(point)


class View:
    """fettlefs in front, over a separate mount point. `with View(…) as view`."""

    def __init__(self, program, project, point, log, *options):
        self.project, self.point = project, point
        self.command = [program, "mount", "-f", *options, project, point]
        self.log = log
        os.makedirs(point, exist_ok=True)

    def __enter__(self):
        with open(self.log, "w") as log:
            self.process = start(self.command, stdout=log, stderr=log)
        # Polls: a mount in front has no moment at which it tells that it is ready.
        for _ in range(1000):
            if os.path.exists(os.path.join(self.point, ".fettle", "control")):
                self.control = os.open(os.path.join(self.point, ".fettle", "control"), os.O_RDWR)
                return self
            if self.process.poll() is not None:
                raise Refused(self.said())
            time.sleep(0.01)
        self.kill()
        raise Refused("the view does not answer: " + self.said())

    def __exit__(self, *_error):
        self.kill()

    def kill(self):
        self.close()
        self.process.kill()
        self.process.wait()
        unmount(self.point)

    def close(self):
        control, self.control = getattr(self, "control", None), None
        if control is not None:
            os.close(control)

    def said(self):
        with open(self.log) as log:
            return log.read().strip()

    def ask(self, op, **fields):
        """One request of the control file, and what came of it."""
        os.write(self.control, json.dumps({"v": 1, "op": op, **fields}).encode())
        reply = json.loads(os.read(self.control, 8 << 20))
        if not reply["ok"]:
            raise Refused(f"{op}: {reply['error']['message']}")
        return reply

    def status(self):
        with open(os.path.join(self.point, ".fettle", "status.json")) as file:
            return json.load(file)

    def held(self):
        return {change["path"]: change["id"] for change in self.status()["held"]}


class Refused(Exception):
    """fettlefs did not do what it was asked."""
