"""Programs run, mounts taken down, and the place where the bench works."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

IMAGE_BYTES = 10 << 30


class Wrong(Exception):
    """A system gave a wrong answer, or none."""


def run(*command, check=True, **options):
    options.setdefault("stdin", subprocess.DEVNULL)
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    if check and done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).splitlines()[:5])
        raise Wrong(f"{' '.join(map(str, command))}: status {done.returncode}\n{said}")
    return done


def is_mounted(point):
    escaped = str(point).replace("\\", "\\134").replace(" ", "\\040")
    return any(line.split()[4] == escaped for line in Path("/proc/self/mountinfo").read_text().splitlines())


def detach(point):
    """Unmounts, with force where asking does not help."""
    for command in (["umount"], ["fusermount3", "-u"], ["umount", "-l"], ["fusermount3", "-uz"]):
        if not is_mounted(point):
            return
        if shutil.which(command[0]):
            run(*command, point, check=False)


def resident_bytes(pid):
    """What the process has in memory of its own, or None where there is no such process."""
    with contextlib.suppress(OSError, TypeError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
    return None


@contextlib.contextmanager
def workplace():
    """A directory to work in, and what it is: ext4 on an image in memory for root, else wherever TMPDIR is."""
    base = Path(tempfile.mkdtemp(prefix="fettle-bench-"))
    memory, disk = base / "memory", base / "disk"
    place = base
    what = f"plain directory in {base.parent}"
    try:
        for directory in (memory, disk):
            directory.mkdir()
        if os.geteuid() == 0 and shutil.which("mkfs.ext4"):
            try:
                mount_image(memory, disk)
                place, what = disk, "ext4 on a loop device in memory"
            except Wrong as err:
                print(f"bench: no image in memory, using {base}: {err}", file=sys.stderr)
        yield place, what
    finally:
        for point in (disk, memory):
            detach(point)
        if is_mounted(disk) or is_mounted(memory):
            print(f"bench: {base} is still mounted and stays", file=sys.stderr)
        else:
            shutil.rmtree(base)


def mount_image(memory, disk):
    run("mount", "-t", "tmpfs", "-o", f"size={IMAGE_BYTES + (64 << 20)}", "fettle-bench", memory)
    image = memory / "ext4.img"
    with open(image, "wb") as file:
        file.truncate(IMAGE_BYTES)
    run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", image)
    run("mount", "-o", "loop", image, disk)
