"""What no noise touches: how many requests the kernel makes of fettlefs."""

import collections

from bed import Bench
from report import table_head
from rig import workplace
from systems import Fettlefs, System, mounted


def trace_ops(options):
    """What the kernel asks of fettlefs for one operation of each kind, once all names have been looked up."""
    with workplace() as (place, _):
        bench = Bench(place, options.smoke)
        with mounted([System, Fettlefs], place, bench) as (_, system):
            what = "requests of the kernel for each, those that are waited for and the others"
            print(table_head(["operation", what]))
            for title, count, arguments in operations(bench, system.view):
                if arguments[0] in ("stat", "missing", "read", "walk"):
                    bench.helper(*arguments)
                system.settle_down()
                idle = asked(system.requests(), system.requests())
                before = system.requests()
                bench.helper(*arguments)
                system.settle_down()
                each = asked(before, system.requests())
                # `flush` and `status` ask, too.
                each.subtract(idle)
                each.subtract(idle)
                told = [f"{number / count:.2g} {name}" for name, number in each.most_common() if number / count >= 0.05]
                print(f"| {title} | {', '.join(told) or 'none'} |")
    return 0


def operations(bench, view):
    """What is done, how often, and how the helper is asked to; each finds what the one before has left."""
    names, reps, saves = bench.names, 2, bench.saves
    return [
        ("save by truncate in place", saves, ["save-truncate", view / "save/truncate.txt", saves, 1]),
        ("save by temp + rename", saves, ["save-rename", view / "save/rename.txt", saves, 1]),
        *((f"{op}, {title}", names, [op, view / where, names])
          for where, title in (("target/pass", "pass path"), ("judged", "judged path"))
          for op in ("create", "rename", "unlink")),
        ("stat", names * reps, ["stat", view / "files", names, reps]),
        ("stat of a missing name", names * reps, ["missing", view / "files", names, reps]),
        ("open + read + close", names * reps, ["read", view / "files", names, reps]),
        ("tree walk, an entry", bench.files, ["walk", view / "tree"]),
    ]


def asked(before, after):
    return collections.Counter({name: count - before.get(name, 0) for name, count in after.items()})
