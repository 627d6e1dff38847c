"""fettlefs against the number of files and of held changes; the plain directory has no curve of its own.

For each number of files a project of its own, and in it each number of held changes, from few to many. What was held
last is confirmed, since that ends it.
"""

import contextlib
import json
import os
import random
import time

from bed import Bench
from comparison import machine
from files import create, expect_readable, look, mount_ready, save, walk_new
from fixture import add_tree, commit_all, sha256
from report import cell, machine_line, percentile, table_head
from rig import Wrong, resident_bytes, workplace
from systems import Fettlefs

SCHEMA = "fettlefs.bench.growth/1"
# One image has room for the largest: ext4 makes 655 360 inodes on 10 GiB, and the tree is not copied.
SIZES, SIZES_SMOKE = [1000, 20_000, 100_000, 500_000], [200, 1000]
HELDS, HELDS_SMOKE = [0, 100, 1000, 10_000], [0, 20]
# At once, beside nothing and beside all that is held.
CONFIRMED, CONFIRMED_SMOKE = [1, 100], [1, 5]
LONG_LINES, LONG_LINES_SMOKE = 100_000, 2000
# What is measured: the name in the document, the head of the column, its unit and digits.
COLUMNS = [
    ("mount", "mount, ms", 1e6, 0),
    ("walk", "first walk, µs an entry", 1e3, 1),
    ("save", "save p50, µs", 1e3, 0),
    ("create", "create, µs", 1e3, 0),
    ("stat", "stat, µs", 1e3, 2),
    ("status", "status, ms", 1e6, 0),
    ("memory", "memory, MiB", 1 << 20, 0),
]


def growth(options):
    """Measures and prints all of it, and gives it as a document."""
    smoke, rounds = options.smoke, options.rounds
    helds = HELDS_SMOKE if smoke else HELDS
    document = {"schema": SCHEMA, "rounds": rounds, "smoke": smoke, "unit": "ns, and bytes for memory",
                "points": [], "confirm": [], "verdict": []}
    print(table_head(["files", "held", *(title for _, title, _, _ in COLUMNS)]))
    for files in SIZES_SMOKE if smoke else SIZES:
        with project(options, files) as (bench, system, what):
            document.setdefault("machine", machine(what, options, [Fettlefs]))
            for held in helds:
                system.hold("many", range(system.held_count(), held))
                document["points"].append(point(bench, system, files, held, rounds))
                print(point_line(document["points"][-1]), flush=True)
                if held in (helds[0], helds[-1]):
                    document["confirm"] += confirm_some(system, files, held, rounds, smoke)
            if not document["verdict"]:
                document["verdict"] = [verdict(bench, system, number) for number in range(rounds)]
                system.call("discard", "long", "--yes")
            document["confirm"].append(confirm_all(system, files, held))
    document["machine"]["load_after"] = os.getloadavg()[0]
    print("\n".join(told_below(document)))
    return document


@contextlib.contextmanager
def project(options, files):
    """A tree of so many files, all of them known to git, and its view."""
    with workplace() as (place, what):
        bench = Bench(place, options.smoke)
        bench.files = files
        root = place / Fettlefs.name
        lower = root / "lower"
        bench.lay_out(lower)
        for number in range(options.rounds):
            write_long(lower / f"long/old{number}.txt", options.smoke, number)
        write_long(place / "unrelated.txt", options.smoke, "unrelated")
        commit_all(lower)
        add_tree(lower, files)
        system = Fettlefs(root)
        try:
            system.mount()
            yield bench, system, what
        finally:
            system.unmount()


def write_long(path, smoke, seed):
    """Lines of which no other seed has any."""
    path.parent.mkdir(exist_ok=True)
    numbers = random.Random(str(seed))
    lines = LONG_LINES_SMOKE if smoke else LONG_LINES
    path.write_text("".join(f"{numbers.getrandbits(64):016x}\n" for _ in range(lines)))


def point(bench, system, files, held, rounds):
    """What things cost with so many files and held changes: the value of each round."""
    values = {name: [] for name, _, _, _ in COLUMNS}
    for number in range(rounds):
        values["mount"].append(mount_ready(bench, system, number))
    # Once: all names are known afterwards, as the memory says.
    values["walk"].append(walk_new(bench, system))
    save(bench, system, rounds, "save-truncate", "save/truncate.txt")
    for number in range(rounds):
        values["save"].append(percentile(save(bench, system, number, "save-truncate", "save/truncate.txt"), 0.5))
        values["create"].append(create(bench, system, number, "judged"))
        values["stat"].append(look(bench, system, number, "stat"))
        values["status"].append(status(system, held))
        values["memory"].append(resident_bytes(system.daemon()))
    expect_readable(bench, system)
    return {"files": files, "held": held, "values": values}


def status(system, held):
    """The command alone: what reads its answer afterwards is not its cost."""
    began = time.perf_counter_ns()
    said = system.call("status", "--json").stdout
    took = time.perf_counter_ns() - began
    told = len(json.loads(said)["held"])
    if told != held:
        raise Wrong(f"{told} changes are held, not {held}: {system.note()}")
    return took


def verdict(bench, system, number):
    """A long text is saved over another of which it has no line: what the close takes, after which it is held."""
    path, before = f"long/old{number}.txt", system.held_count()
    was = sha256((system.lower / path).read_bytes())
    written, closed = bench.helper("replace", system.view / path, bench.base / "unrelated.txt")
    if system.held_count() != before + 1 or sha256((system.lower / path).read_bytes()) != was:
        raise Wrong(f"{path} is not held")
    return closed - written


def confirm_some(system, files, beside, rounds, smoke):
    """A few at once, of which nothing is left; `beside` others stay held."""
    taken = []
    for count in CONFIRMED_SMOKE if smoke else CONFIRMED:
        values = []
        for number in range(rounds):
            name = f"{count}-{beside}-{number}"
            system.hold(name, range(count))
            values.append(confirm(system, name, count, f".claude/{name}-*"))
        taken.append({"files": files, "count": count, "beside": beside, "values": values})
    return taken


def confirm_all(system, files, held):
    """Once: making them again takes too long."""
    return {"files": files, "count": held, "beside": 0, "values": [confirm(system, "many", held, "--all")]}


def confirm(system, name, count, what):
    """The command's own start is part of it."""
    began = time.perf_counter_ns()
    system.call("confirm", what, "--yes")
    took = time.perf_counter_ns() - began
    system.expect_landed(name, range(count))
    return took


def point_line(measured):
    cells = [cell(measured["values"][name], unit, digits) for name, _, unit, digits in COLUMNS]
    return f"| {measured['files']} | {measured['held']} | {' | '.join(cells)} |"


def told_below(document):
    lines = ["", table_head(["files", "confirmed at once", "held beside", "ms"])]
    lines += [f"| {each['files']} | {each['count']} | {each['beside']} | {cell(each['values'], 1e6, 1)} |"
              for each in document["confirm"]]
    long_lines = LONG_LINES_SMOKE if document["smoke"] else LONG_LINES
    return [
        *lines, "",
        f"A save of {long_lines} lines over as many others: its close took {cell(document['verdict'], 1e6, 1)} ms, "
        "after which it was held.",
        f"Rounds: {document['rounds']}; median (range) where there are several. {machine_line(document['machine'])}",
    ]
