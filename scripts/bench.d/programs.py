"""Workloads that are programs: git, tar, rm, ripgrep, and what an agent does with them."""

import os
import time

from files import chill
from fixture import expect_tree
from rig import Wrong, run
from workspace import printed


def git_status(_bench, system, _number):
    command = ["git", "-C", system.view, "status", "--porcelain", "--", "tree", "files"]
    run(*command)
    began = time.perf_counter_ns()
    said = run(*command).stdout
    took = time.perf_counter_ns() - began
    if said:
        raise Wrong(f"{system.name}: git sees changes where there are none:\n{said[:500]}")
    return took


def tar_extract(bench, system, _number):
    drop_unpacked(system)
    took = timed("tar", "-xf", bench.pack.tar, "-C", system.view)
    expect_tree(system, bench.pack)
    return took


def remove_tree(bench, system, _number):
    if not (system.view / "unpacked").exists():
        run("tar", "-xf", bench.pack.tar, "-C", system.view)
    return drop_unpacked(system)


def drop_unpacked(system):
    took = timed("rm", "-rf", system.view / "unpacked")
    if (system.view / "unpacked").exists():
        raise Wrong(f"{system.name}: unpacked is still in the view")
    return took


def timed(*command, **options):
    began = time.perf_counter_ns()
    run(*command, **options)
    return time.perf_counter_ns() - began


def git_clone(bench, system, _number):
    clone = system.view / "clone"
    run("rm", "-rf", clone)
    took = timed("git", "clone", "-q", "--no-local", bench.base / "repository", clone)
    expect_clean(system, clone)
    return took


def git_checkout(bench, system, number):
    clone = system.view / "clone"
    if not clone.exists():
        run("git", "clone", "-q", "--no-local", bench.base / "repository", clone)
    branches = ["origin/other", "origin/main"]
    run("git", "-C", clone, "checkout", "-q", "--detach", branches[(number + 1) % 2])
    took = timed("git", "-C", clone, "checkout", "-q", "--detach", branches[number % 2])
    expect_clean(system, clone)
    return took


def expect_clean(system, clone):
    said = run("git", "-C", clone, "status", "--porcelain").stdout
    if said:
        raise Wrong(f"{system.name}: git sees changes where there are none:\n{said[:500]}")


def cargo_build(bench, system, _number):
    """Everything anew, in the profile that people build all day; `target` is in the view, as the sources are."""
    top = system.view / "workspace"
    run("rm", "-rf", top / "target")
    took = timed("cargo", "build", "--offline", "--quiet", cwd=top, env=without_settings_of_cargo())
    want = printed(bench.parts, bench.items)
    for place in (top, system.below("workspace")):
        said = want if place is None else run(place / "target/debug/program").stdout
        if said != want:
            raise Wrong(f"{system.name}: the program in {place} prints {said!r}, not {want!r}")
    return took


def without_settings_of_cargo():
    """Of the person who measures: another target directory, other flags. Where cargo and its toolchains are stays."""
    stay = ("CARGO_HOME", "RUSTUP_HOME")
    return {name: value for name, value in os.environ.items()
            if name in stay or not name.startswith(("CARGO", "RUST"))}


def ripgrep(_bench, system, _number):
    return grep(system)


def ripgrep_cold(_bench, system, _number):
    chill(system)
    return grep(system)


def grep(system):
    began = time.perf_counter_ns()
    said = run("rg", "--no-ignore", "-c", "file 7$", system.view / "tree").stdout
    took = time.perf_counter_ns() - began
    if len(said.splitlines()) != 1:
        raise Wrong(f"{system.name}: rg found {said[:200]!r}")
    return took


def agent(bench, system, number):
    """What an agent does: edits, and looks at what came of them."""
    view = system.view
    began = time.perf_counter_ns()
    for edit in range(bench.edits):
        path = view / f"tree/d{edit % 4:03}/n{edit % 4 * 50 + edit // 4 % 50:05}.txt"
        text = path.read_text() + f"edit {number} {edit}\n"
        temp = path.with_name(f"{path.name}.tmp")
        if edit % 2:
            path.write_text(text)
        else:
            temp.write_text(text)
            temp.rename(path)
        if edit % 10 == 9:
            run("git", "-C", view, "status", "--porcelain", "--", "tree")
        if edit % 50 == 49:
            run("grep", "-r", "-l", "edit", view / "tree")
    took = time.perf_counter_ns() - began
    for place in (path, system.below(path.relative_to(view))):
        if place is not None and not place.read_text().endswith(f"edit {number} {bench.edits - 1}\n"):
            raise Wrong(f"{system.name}: {place} is not what was saved last")
    run("git", "-C", view, "checkout", "-q", "--", "tree")
    return took
