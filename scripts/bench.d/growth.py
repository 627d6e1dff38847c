"""fettlefs against the number of files and of held changes."""

import json
import statistics
import time

from bed import Bench
from files import look, mount_ready
from rig import Wrong, resident_bytes, workplace
from systems import Fettlefs, System, mounted


def growth(options):
    """What operations cost by how many files and held changes there are; the plain directory has no curve of its own."""
    sizes = [200, 1000] if options.smoke else [1000, 20_000, 100_000]
    helds = [0, 20] if options.smoke else [0, 100, 10_000]
    print("| files | held | mount, ms | save p50, µs | create, µs | stat, µs | status, ms | memory, MiB |\n" + "|---" * 8 + "|")
    for files in sizes:
        with workplace() as (place, _):
            bench = Bench(place, True)
            bench.files = files
            with mounted([System, Fettlefs], place, bench) as (_, system):
                bench.helper("walk", system.view / "tree")
                made = 0
                for held in helds:
                    hold(system, made, held)
                    made = max(made, held)
                    print(growth_row(bench, system, files, held), flush=True)
    return 0


def hold(system, first, count):
    """As many files wait for review as are asked for."""
    if count <= first:
        return
    where = system.view / ".claude"
    where.mkdir(parents=True, exist_ok=True)
    for number in range(first, count):
        (where / f"held{number:05}").write_text(f"{number}\n")
    held = len(json.loads(system.call("-C", system.view, "diff", "--json", check=False).stdout or "{}").get("changes", []))
    if held < min(count, 1):
        raise Wrong(f"{held} changes are held, not {count}")


def growth_row(bench, system, files, held):
    mount = mount_ready(bench, system, 0) / 1e6
    bench.helper("walk", system.view / "tree")
    bench.helper("save-truncate", system.view / "save/truncate.txt", 50, 1)
    saves = bench.helper("save-truncate", system.view / "save/truncate.txt", 300, 1)
    create = bench.helper("create", system.view / "judged", 200)[0] / 1e3
    for number in range(200):
        (system.view / f"judged/new{number:05}").unlink()
    stat = look(bench, system, 0, "stat") / 1e3
    began = time.perf_counter_ns()
    system.call("-C", system.view, "status", "--json")
    status = (time.perf_counter_ns() - began) / 1e6
    memory = resident_bytes(system.daemon()) / (1 << 20)
    save = statistics.median(saves) / 1e3
    return f"| {files} | {held} | {mount:.0f} | {save:.0f} | {create:.0f} | {stat:.2f} | {status:.0f} | {memory:.0f} |"
