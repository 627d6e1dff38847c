"""Every workload on every system in turn, and what is told of it."""

import json
import os
import platform
import statistics
import subprocess
import sys
import time

from rig import Wrong
from rows import Shown


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


def one(value):
    """What one operation took in a round."""
    return statistics.median(value) if isinstance(value, list) else value


def time_text(ns):
    if ns >= 1e8:
        return f"{ns / 1e9:.2f} s"
    if ns >= 1e5:
        return f"{ns / 1e6:.2f} ms"
    return f"{ns / 1e3:.2f} µs"


def ratio_text(values, native):
    ratios = sorted(one(value) / one(base) for value, base in zip(values, native))
    if not ratios:
        return "fails"
    middle = f"{statistics.median(ratios):.2f}"
    return middle if len(ratios) == 1 else f"{middle} ({ratios[0]:.2f}-{ratios[-1]:.2f})"


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def spread_text(rounds, share):
    """The percentile of all rounds together, and between which it lay in each."""
    whole = percentile([ns for each in rounds for ns in each], share) / 1e3
    apart = sorted(percentile(each, share) / 1e3 for each in rounds)
    return f"{whole:.0f}" if len(apart) == 1 else f"{whole:.0f} ({apart[0]:.0f}-{apart[-1]:.0f})"


def tables(rows, names, taken):
    ratios = [row for row in rows if row.shown is not Shown.WAITS]
    saves = [row for row in rows if row.shown is Shown.EACH]
    waits = [row for row in rows if row.shown is Shown.WAITS]
    return [
        *ratio_table(ratios, names, taken),
        *spread_table("one save, µs: p50 / p99", (0.5, 0.99), saves, names, taken),
        *spread_table("one save or read, µs: p50 / p99 / longest", (0.5, 0.99, 1), waits, names, taken),
    ]


def ratio_table(rows, names, taken):
    lines = head("workload", names) if rows else []
    for row in rows:
        native = taken[row.name]["native"]
        cells = [time_text(statistics.median(map(one, native))) if native else "fails"]
        cells += [ratio_text(taken[row.name][other], native) for other in names[1:]]
        lines.append(f"| {row.title} | " + " | ".join(cells) + " |")
    return lines


def spread_table(what, shares, rows, names, taken):
    lines = head(f"{what}, each with the range of the rounds", names) if rows else []
    for row in rows:
        cells = [spread_cell(taken[row.name].get(name), shares) for name in names]
        lines.append(f"| {row.title} | " + " | ".join(cells) + " |")
    return lines


def spread_cell(rounds, shares):
    if rounds is None:
        return "–"
    return " / ".join(spread_text(rounds, share) for share in shares) if rounds else "fails"


def head(first, names):
    return ["", f"| {first} | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]


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


def report(options, about, bench, rows, systems, taken, failed, notes):
    versions = ", ".join(f"{name} {version}".strip() for name, version in about["versions"].items())
    print(f"{about['cpu']}, {about['cores']} cores, {about['memory_gib']} GiB, Linux {about['kernel']}, "
          f"{about['directory']}, load {about['load']:.1f} before and {about['load_after']:.1f} after, "
          f"{about['date']}. {versions}.")
    print(f"{options.rounds} interleaved rounds; {bench.files} files in the tree, {bench.saves} saves a round. "
          "Native: median of one operation. Others: ratio to native, median (range) of the rounds; lower is better.")
    if options.smoke:
        print("\nSmoke run: too short to say anything about speed.")
    print("\n".join(tables(rows, [system.name for system in systems], taken)))
    kept = [f"{name} {size / (1 << 20):.1f} MiB" for name, size in about["memory"].items() if size]
    print(f"\nMemory of its own that a daemon has at the end: {', '.join(kept) or 'not known'}.")
    for name, note in notes.items():
        print(f"\nNote, {name}: {note}")
    for (name, row), why in failed.items():
        print(f"\nFAILED {name}, {row}: {why}", file=sys.stderr)
    if options.json:
        document = {"schema": "fettlefs.bench/1", "machine": about, "rounds": options.rounds, "smoke": options.smoke,
                    "unit": "ns", "rows": taken, "notes": notes,
                    "failed": [{"system": name, "row": row, "why": why} for (name, row), why in failed.items()]}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
