"""Where the time of an operation goes: how long each request of the kernel takes, by the kernel's own tracepoints."""

import collections
import contextlib
import os
import re
import statistics
import time
from pathlib import Path

from bed import Bench
from report import table_head
from rig import Wrong, workplace
from systems import chosen, mounted
from traceops import operations

TRACING = Path("/sys/kernel/tracing")
EVENTS = ("fuse_request_send", "fuse_request_end")
BUFFER_KIB = 16 << 10
LINE = re.compile(r"\s([\d.]+): fuse_request_(send|end): connection \d+ req (\d+)(?: opcode \d+ \(FUSE_(\w+)\))?")


def time_requests(options):
    """Of each system that the kernel asks: what it is asked for one operation of each kind, and how long each takes."""
    if not (TRACING / "events/fuse").is_dir():
        raise Wrong(f"--requests needs root and a kernel that traces requests ({TRACING}/events/fuse)")
    with workplace() as (place, _):
        bench = Bench(place, options.smoke)
        with mounted(chosen(options), place, bench) as systems:
            print(table_head(["operation", "system", "µs", "requests, and the median µs of each", "between them, µs"]))
            of_each = [operations(bench, system.view) for system in systems]
            for turn in zip(*of_each):
                for system, (title, count, arguments) in zip(systems, turn):
                    print(f"| {title} | {system.name} | {account(bench, system, count, arguments)} |")
    return 0


def account(bench, system, count, arguments):
    """Cells of a row: all of one operation, its requests, and the time in which none of them is under way."""
    if arguments[0] in ("stat", "missing", "read", "walk"):
        bench.helper(*arguments)
    system.settle_down()
    with traced(system.view) as lines:
        begun = time.perf_counter_ns()
        bench.helper(*arguments)
        each = (time.perf_counter_ns() - begun) / 1e3 / count
    took, under_way = latencies(lines)
    told = [f"{len(times) / count:.2g} {name.lower()} {statistics.median(times):.0f}"
            for name, times in took.items() if len(times) / count >= 0.05]
    between = "–" if not told else f"{each - under_way / count:.0f}"
    return f"{each:.0f} | {', '.join(told) or 'none'} | {between}"


@contextlib.contextmanager
def traced(view):
    """The lines that the kernel has written of the mount's requests, once that is left."""
    lines, ours = [], TRACING / f"instances/fettle-bench-{os.getpid()}"
    ours.mkdir()
    try:
        (ours / "buffer_size_kb").write_text(str(BUFFER_KIB))
        (ours / "trace_clock").write_text("mono")
        for event in EVENTS:
            # A mount without a device of its own bears the number of its connection.
            (ours / f"events/fuse/{event}/filter").write_text(f"connection == {os.stat(view).st_dev}")
            (ours / f"events/fuse/{event}/enable").write_text("1")
        yield lines
        (ours / "tracing_on").write_text("0")
        lines += (ours / "trace").read_text().splitlines()
    finally:
        ours.rmdir()


def latencies(lines):
    """Name of a request → µs from when it was sent until it was answered, of each; and for how long any was under way."""
    took, sent = collections.defaultdict(list), {}
    under_way, since = 0.0, None
    for line in lines:
        found = LINE.search(line)
        if not found:
            continue
        at, event, request, name = float(found[1]) * 1e6, found[2], found[3], found[4]
        if event == "send":
            since = since if sent else at
            sent[request] = name, at
        elif request in sent:
            name, begun = sent.pop(request)
            took[name].append(at - begun)
            under_way += 0 if sent else at - since
    return took, under_way
