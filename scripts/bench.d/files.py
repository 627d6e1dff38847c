"""Workloads on single files and names: saves, creations and removals, looks, large files, and the mount itself."""

import os
import time
from pathlib import Path

from fixture import expect_saved, tree_dirs
from rig import Wrong, run


# Saving.

def save(bench, system, number, how, path):
    seed = 1 + number * bench.saves
    took = bench.helper(how, system.view / path, bench.saves, seed)
    expect_saved(system, path, seed + bench.saves - 1)
    return took


# Names.

def create(bench, system, _number, where):
    fill(bench, system, where, None)
    took = bench.helper("create", system.view / where, bench.names)
    expect_names(system, where, "new", bench.names)
    return took[0]


def rename(bench, system, _number, where):
    fill(bench, system, where, "new")
    took = bench.helper("rename", system.view / where, bench.names)
    expect_names(system, where, "moved", bench.names)
    return took[0]


def unlink(bench, system, _number, where):
    fill(bench, system, where, "moved")
    took = bench.helper("unlink", system.view / where, bench.names)
    expect_names(system, where, "", 0)
    return took[0]


def fill(bench, system, where, prefix):
    """Brings the directory to the state a workload begins with, when the one before it did not run."""
    view = system.view / where
    wanted = {f"{prefix}{number:05}" for number in range(bench.names)} if prefix else set()
    present = {name for name in os.listdir(view) if name != "keep"}
    for name in sorted(present - wanted):
        (view / name).unlink()
    for name in sorted(wanted - present):
        (view / name).touch()


def expect_names(system, where, prefix, count):
    for place in (system.view / where, system.below(where)):
        if place is not None:
            names = [name for name in os.listdir(place) if name != "keep"]
            if len(names) != count or not all(name.startswith(prefix) for name in names):
                raise Wrong(f"{system.name}: {place} has {len(names)} names, not {count} of {prefix}*")


# Looking.

def read(bench, system, number):
    took = look(bench, system, number, "read")
    expect_readable(bench, system)
    return took


def expect_readable(bench, system):
    name = f"files/f{bench.names - 1:05}"
    if (system.view / name).read_text() != f"{bench.names - 1:063}\n" * 64:
        raise Wrong(f"{system.name}: {name} reads wrong")


def look(bench, system, _number, how):
    directory = system.view / "files"
    bench.helper(how, directory, bench.names, 1)
    return bench.helper(how, directory, bench.names, bench.reps)[0]


def walk(bench, system, _number):
    bench.helper("walk", system.view / "tree")
    return walk_new(bench, system)


def walk_new(bench, system):
    """Of what nobody may have looked at yet."""
    took, entries = bench.helper("walk", system.view / "tree")
    want = bench.files + len(tree_dirs(bench.files)) + 1
    if entries != want:
        raise Wrong(f"{system.name}: the walk found {entries} entries, not {want}")
    return took


def walk_cold(bench, system, _number):
    chill(system)
    return walk_new(bench, system)


def chill(system):
    """Nothing of it is in any cache: of the kernel, or of a program that is mounted anew."""
    system.settle_down()
    system.unmount()
    run("sync")
    Path("/proc/sys/vm/drop_caches").write_text("3\n")
    system.mount()


def mount_ready(_bench, system, _number):
    system.settle_down()
    system.unmount()
    began = time.perf_counter_ns()
    system.mount()
    os.stat(system.view / "save")
    return time.perf_counter_ns() - began


# Files that are long or stay open.

def log(bench, system, _number, where):
    path = system.view / where / "log"
    took = bench.helper("log", path, bench.saves)
    if path.read_text() != "one more line\n" * bench.saves:
        raise Wrong(f"{system.name}: {path} lacks lines")
    path.unlink()
    return took[0]


def put(bench, system, _number, where):
    path = system.view / where / "large"
    took = bench.helper("put", path, bench.large)
    if path.stat().st_size != bench.large:
        raise Wrong(f"{system.name}: {path} has {path.stat().st_size} bytes")
    path.unlink()
    return took[1]


def get(bench, system, _number, where):
    path = system.view / where / "large"
    bench.helper("put", path, bench.large)
    bench.helper("get", path)
    took = bench.helper("get", path)[0]
    path.unlink()
    return took


def append(bench, system, _number):
    """The first change of a file that was there before the mount: up to close. What the close costs is another row."""
    return bench.helper("append", *place_large(bench, system, 1))[0]


def place_large(bench, system, count):
    """So many files, `bench.large` together, that the system finds when it is mounted; those of before are gone."""
    system.settle_down()
    system.unmount()
    for layer in (system.lower, system.upper):
        for path in layer.glob("large*"):
            path.unlink()
    names = [f"large{number}" for number in range(count)]
    for name in names:
        bench.helper("put", system.lower / name, bench.large // count)
    run("sync")
    system.mount()
    return [system.view / name for name in names]
