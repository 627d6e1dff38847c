"""Workloads beside something large: does one wait for another?"""

import subprocess
import time

from files import place_large
from rig import Wrong, run


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
    place_large(bench, system)
    reader = subprocess.Popen([bench.loop, "worst", system.view / "files", str(bench.names), "1500"],
                              stdout=subprocess.PIPE, text=True)
    time.sleep(0.2)
    bench.helper("append", system.view / "large")
    return int(reader.communicate()[0])
