"""Workloads beside something large: does one wait for another?"""

import contextlib
import json
import subprocess
import time
from dataclasses import dataclass

from files import expect_readable, place_large
from fixture import expect_saved, expect_tree
from rig import Wrong, run

LARGE_FILES = 4
# What loop.c writes into large files, piece by piece, and what it appends.
LARGE_PIECE = b"0123456789abcde\n" * (1 << 13)
APPENDED = b"one more line\n"
# Of one round: the next begins with other numbers.
SAVES_MAX = 1_000_000
HOOK_SECONDS = 0.05
# One after the other, each of which takes at least as long.
ASKED_SAVES = 20
# Is asked about every change, and thinks long about one file.
HOOK = f"""#!/bin/sh
question=$(cat)
case $question in
    *'"path":"save/asked.txt"'*) sleep {HOOK_SECONDS} ;;
esac
echo '{{"decision":"land"}}'
"""


def beside(bench, system, _number):
    """A reader, while somebody else makes files all the time."""
    where = system.view / "judged"
    stop = bench.base / "stop"
    stop.unlink(missing_ok=True)
    again = 'n=0; while [ ! -e "$1" ]; do mkdir "$2/d$n" && "$3" create "$2/d$n" 100 >&2; n=$((n+1)); done'
    maker = subprocess.Popen(["sh", "-c", again, "sh", stop, where, bench.loop], stderr=subprocess.DEVNULL)
    try:
        took = bench.helper("read", system.view / "files", bench.names, max(1, bench.reps // 4))[0]
    finally:
        stop.touch()
        made = maker.wait()
    if made != 0:
        raise Wrong(f"{system.name}: who made files ended with status {made}")
    run("sh", "-c", 'rm -rf "$1"/d*', "sh", where)
    return took


def worst_wait(bench, system, _number):
    paths = place_large(bench, system, 1)
    reader = subprocess.Popen([bench.loop, "worst", system.view / "files", str(bench.names), "1500"],
                              stdout=subprocess.PIPE, text=True)
    time.sleep(0.2)
    bench.helper("append", *paths)
    return int(reader.communicate()[0])


# What each single save or read waits beside a load. A load is a context manager: it prepares, gives what runs beside,
# and checks what came of that.

@dataclass
class Beside:
    """A command that is run while operations are measured, and again where it ends before there are `least` of them."""

    command: list
    least: int
    options: dict
    starts: int = 0
    seconds: float = 0


def save_waits(bench, system, number, load):
    first = 1 + number * SAVES_MAX
    took = waits(bench, system, load, number, "save", system.view / "save/beside.txt", first)
    expect_saved(system, "save/beside.txt", first + len(took) - 1)
    return took


def read_waits(bench, system, number, load):
    took = waits(bench, system, load, number, "read", system.view / "files", bench.names)
    expect_readable(bench, system)
    return took


def waits(bench, system, load, number, operation, path, last):
    with load(bench, system, f"{operation}{number}") as beside:
        began = time.monotonic()
        beside.starts, *took = bench.helper(
            "beside", operation, path, beside.least, last, *beside.command, **beside.options)
        beside.seconds = time.monotonic() - began
    return took


@contextlib.contextmanager
def nothing(bench, _system, _name):
    yield Beside([], bench.waits, {})


@contextlib.contextmanager
def copy_ups(bench, system, _name):
    """Large files that the system has found get a line more, one after the other: each is copied up by its first."""
    paths = place_large(bench, system, LARGE_FILES)
    beside = Beside([bench.loop, "append", *paths], bench.waits, {})
    yield beside
    for path in paths:
        for place in (path, system.below(path.relative_to(system.view))):
            if place is not None:
                expect_appended(system, place, bench.large // LARGE_FILES, beside.starts)
    place_large(bench, system, 0)


def expect_appended(system, path, size, lines):
    """The file has what it had, and so many lines more."""
    with open(path, "rb") as file:
        for at in range(0, size, len(LARGE_PIECE)):
            if file.read(len(LARGE_PIECE)) != LARGE_PIECE:
                raise Wrong(f"{system.name}: {path} has changed in the 128 KiB from {at} on")
        if file.read() != APPENDED * lines:
            raise Wrong(f"{system.name}: {path} does not end with {lines} new lines")


@contextlib.contextmanager
def many_files(bench, system, _name):
    yield Beside(["tar", "-xf", bench.few.tar, "-C", system.view], bench.waits, {})
    expect_tree(system, bench.few)
    run("rm", "-rf", system.view / bench.few.top)


@contextlib.contextmanager
def confirm(bench, system, name):
    """Somebody lets all land that waits for review. There is nothing more to confirm after that."""
    system.hold(name, range(bench.held))
    yield Beside(system.command("confirm", "--all", "--yes"), 0, {"env": system.env()})
    system.expect_landed(name, range(bench.held))


@contextlib.contextmanager
def quick_hook(bench, system, _name):
    """A program is asked about every change; nothing else runs."""
    with asking(bench, system):
        yield Beside([], bench.waits, {})


@contextlib.contextmanager
def slow_hook(bench, system, _name):
    """Somebody saves the one file about which the program thinks long."""
    with asking(bench, system):
        path = "save/asked.txt"
        beside = Beside([bench.loop, "save-truncate", system.view / path, ASKED_SAVES, 1], bench.waits, {})
        yield beside
        expect_saved(system, path, ASKED_SAVES)
        if beside.seconds < beside.starts * ASKED_SAVES * HOOK_SECONDS:
            raise Wrong(f"{system.name}: {path} was saved without waiting for the program that is asked")


@contextlib.contextmanager
def asking(bench, system):
    """Mounted with a program that is asked about every change."""
    hook = bench.base / "hook"
    hook.write_text(HOOK)
    hook.chmod(0o755)
    system.mount_anew({"FETTLE_HOOKS_PRE_WRITE": json.dumps([str(hook)])})
    try:
        yield
    finally:
        system.mount_anew({})
