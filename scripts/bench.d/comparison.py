"""Every workload on every system in turn."""

import os
import platform
import subprocess
import sys
import time

from bed import Bench
from rig import Wrong, resident_bytes, workplace
from rows import chosen_rows
from systems import chosen, mounted

SCHEMA = "fettlefs.bench/1"


def compare(options):
    """Measures all of it, and gives it as a document."""
    kinds, rows = chosen(options), chosen_rows(options.only)
    with workplace() as (place, what):
        bench = Bench(place, options.smoke)
        about = machine(what, options, kinds)
        with mounted(kinds, place, bench) as systems:
            taken, failed, notes = measure(bench, rows, systems, options.rounds)
            about["memory"] = {system.name: resident_bytes(system.daemon()) for system in systems}
        about["load_after"] = os.getloadavg()[0]
    return {"schema": SCHEMA, "machine": about, "rounds": options.rounds, "smoke": options.smoke,
            "files": bench.files, "saves": bench.saves, "systems": [kind.name for kind in kinds],
            "unit": "ns", "rows": taken, "notes": notes,
            "failed": [{"system": name, "row": row, "why": why} for (name, row), why in failed.items()]}


def measure(bench, rows, systems, rounds):
    """Row name → system name → the value of each round, or the list of each round's single operations."""
    taken = {row.name: {system.name: [] for system in systems if row.runs_on(system)} for row in rows}
    failed, notes = {}, {}
    for number in range(rounds):
        for at, row in enumerate(rows):
            turn = (number + at) % len(systems)
            for system in systems[turn:] + systems[:turn]:
                if (system.name, row.name) in failed or not row.runs_on(system):
                    continue
                say(f"round {number + 1}/{rounds}  {row.name}  {system.name}")
                try:
                    taken[row.name][system.name].append(row.work(bench, system, number))
                except (Wrong, OSError, subprocess.TimeoutExpired) as err:
                    failed[system.name, row.name] = str(err)
                else:
                    note = system.note()
                    if note:
                        notes.setdefault(system.name, f"after {row.name}: {note}")
    say("")
    return taken, failed, notes


def say(text):
    """Progress, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def machine(place, options, systems):
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    with open("/proc/meminfo", encoding="utf-8") as file:
        memory = int(file.readline().split()[1]) / (1 << 20)
    versions = {system.name: system.version(options) for system in systems if system.name != "native"}
    return {
        "cpu": models[0] if models else platform.machine(), "cores": os.cpu_count(), "memory_gib": round(memory, 1),
        "kernel": platform.release(), "directory": place, "load": os.getloadavg()[0], "versions": versions,
        "date": time.strftime("%Y-%m-%d"),
    }
