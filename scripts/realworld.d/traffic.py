"""Many processes and threads on the same files at once, judged and passing.

What must hold: a reader of a file that others replace by rename always gets one writer's whole block; a descriptor
keeps the block that it was opened on; appended records are all there, each whole; blocks written side by side into
one file are all there; the daemon has at most one descriptor an open file, however many have it open, and gives them back;
nothing waits for ever.
"""

import multiprocessing
import os
import random
import resource
import threading
import time
import zlib
from pathlib import Path

from bed import run

FILES = 6
# A worker that takes this much longer than it was asked to hangs.
PATIENCE_SECONDS = 120
# What the daemon has open besides the files of programs: its database, the trees, the device, contents being read.
DESCRIPTORS_BESIDE = 200


def block(writer, turn, lines):
    """Text that tells its own checksum."""
    body = "".join(f"{writer} {turn} {line}\n" for line in range(lines)).encode()
    return b"%08x %d\n" % (zlib.crc32(body), len(body)) + body


def check_block(content):
    head, _, body = content.partition(b"\n")
    crc, length = head.split(b" ")
    if len(body) != int(length) or zlib.crc32(body) != int(crc, 16):
        raise ValueError(f"a torn block of {len(content)} bytes: {content[:60]!r}")


def replace(top, name, content, by):
    temp = Path(top, f"{name}.{by}.tmp")
    temp.write_bytes(content)
    os.rename(temp, Path(top, name))


def writer(top, until, number):
    rng, done = random.Random(number), 0
    while time.monotonic() < until:
        # Small ones land, large ones are held: readers see both.
        replace(top, f"block{rng.randrange(FILES)}", block(number, done, rng.choice([2, 4, 200])), number)
        done += 1
    return done


def reader(top, until, number):
    rng, done = random.Random(f"reader {number}"), 0
    while time.monotonic() < until:
        with open(Path(top, f"block{rng.randrange(FILES)}"), "rb", buffering=0) as file:
            # In two reads with time between them: what was opened must stay what it was.
            first = os.pread(file.fileno(), 50, 0)
            os.sched_yield()
            check_block(first + os.pread(file.fileno(), 1 << 20, len(first)))
        done += 1
    return done


def mover(top, until, number):
    """Renames a file away and back while others look for it."""
    done = 0
    while time.monotonic() < until:
        here, there = Path(top, f"moved{number}"), Path(top, f"moved{number}.away")
        replace(top, here.name, block(number, done, 3), f"mover{number}")
        os.rename(here, there)
        check_block(there.read_bytes())
        os.rename(there, here)
        done += 1
    return done


def follower(top, until, number):
    done = 0
    while time.monotonic() < until:
        try:
            check_block(Path(top, f"moved{number}").read_bytes())
            done += 1
        except FileNotFoundError:
            pass
    return done


def appender(top, until, number):
    """Each record in one write at the end of a file that all append to."""
    done = 0
    while time.monotonic() < until:
        with open(Path(top, "log"), "ab", buffering=0) as file:
            for _ in range(5):
                file.write(b"%d %d %08x\n" % (number, done, zlib.crc32(b"%d %d" % (number, done))))
                done += 1
    return done


def neighbour(top, until, number):
    """Has one block of a shared file to itself."""
    done = 0
    with open(Path(top, "shared"), "r+b", buffering=0) as file:
        while time.monotonic() < until:
            mine = bytes([65 + (number + done) % 26]) * 4096
            os.pwrite(file.fileno(), mine, number * 4096)
            if os.pread(file.fileno(), 4096, number * 4096) != mine:
                raise ValueError(f"block {number} is not what was written a moment ago")
            done += 1
    return done


def lister(top, until, number):
    """Files that stay are in every listing, whatever comes and goes beside them."""
    done, stay = 0, {f"block{index}" for index in range(FILES)}
    while time.monotonic() < until:
        missing = stay - set(os.listdir(top))
        if missing:
            raise ValueError(f"a listing lacks {sorted(missing)}")
        done += 1
    return done


ROLES = [writer, reader, mover, follower, appender, neighbour, lister]


def work(role, top, until, number, told):
    """One process: the role in two threads, so that threads of one process meet as well."""
    results = []

    def act(number):
        try:
            results.append((role.__name__, number, role(top, until, number), None))
        except BaseException as error:  # noqa: BLE001: whatever it was, it is told
            results.append((role.__name__, number, 0, f"{type(error).__name__}: {error}"))

    # Movers, followers and neighbours have a file or block each.
    threads = [threading.Thread(target=act, args=(number * 2 + half,)) for half in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told.put(results)


def play(bed):
    top = bed.scratch / "traffic"
    (top / "pass").mkdir(parents=True)
    (top / "judged").mkdir()
    (top / ".gitignore").write_text("pass/\n")
    run("git", "init", "--quiet", cwd=top, env=bed.env)
    mount = bed.mount(top)
    for where in ("judged", "pass"):
        busy(bed, top / where, where)
        many_open(bed, mount, top / where, where)
    held = len(mount.status()["held"])
    view = {path: path.read_bytes() for path in sorted(top.glob("*/*")) if path.is_file() and ".git/" not in str(path)}
    mount.confirm_all()
    mount.unmount()
    differ = [str(path.relative_to(top)) for path, content in view.items() if path.read_bytes() != content]
    if differ:
        bed.fault("traffic: the project below", f"not as the view was: {differ[:5]}")
    bed.steps, bed.compared, bed.confirmed = bed.steps + 1, bed.compared + len(view), bed.confirmed + held
    bed.say("traffic", "the project after confirm --all and unmount", f"{len(view) - len(differ)} alike; {held} confirmed")


def busy(bed, top, where):
    seconds, each = (3, 1) if bed.quick else (30, 3)
    for index in range(FILES):
        (top / f"block{index}").write_bytes(block("start", index, 3))
    for index in range(2 * each):
        (top / f"moved{index}").write_bytes(block("start", index, 3))
    (top / "shared").write_bytes(b"-" * 4096 * 2 * each)
    told, until = multiprocessing.Queue(), time.monotonic() + seconds
    # Forked here: each worker is one process with two threads.
    workers = [
        multiprocessing.Process(target=work, args=(role, top, until, number, told), daemon=True)
        for role in ROLES
        for number in range(each)
    ]
    for process in workers:
        process.start()
    counts, appended = {}, {}
    try:
        for _ in workers:
            for role, number, done, fault in told.get(timeout=seconds + PATIENCE_SECONDS):
                counts[role] = counts.get(role, 0) + done
                if role == "appender":
                    appended[number] = done
                if fault:
                    bed.fault(f"traffic: {where}: {role} {number}", fault)
    except Exception as late:  # noqa: BLE001: an empty queue means that somebody hangs
        bed.fault(f"traffic: {where}", f"a worker hangs: {late!r}")
    for process in workers:
        process.join(10)
        if process.is_alive():
            process.kill()
    check_log(bed, top / "log", where, appended)
    bed.steps += 1
    text = ", ".join(f"{count} {role}" for role, count in sorted(counts.items()))
    bed.say("traffic", f"{where}, {len(workers)} processes, {seconds} s", f"turns: {text}")


def check_log(bed, log, where, appended):
    there = {}
    for line in log.read_bytes().splitlines():
        number, done, crc = line.split(b" ")
        if zlib.crc32(b"%s %s" % (number, done)) != int(crc, 16):
            bed.fault(f"traffic: {where}: log", f"a torn record: {line!r}")
        there.setdefault(int(number), []).append(int(done))
    for number, count in appended.items():
        if there.get(number) != list(range(count)):
            bed.fault(f"traffic: {where}: log", f"appender {number}: {len(there.get(number, []))} of {count} records")


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def many_open(bed, mount, top, where):
    """Thousands of files open at once, each by two handles, half of them being written."""
    count = 1000 if bed.quick else 2500
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20_000), hard))
    tree = top / "many"
    tree.mkdir()
    for index in range(count):
        (tree / str(index)).write_text(f"file {index}\n")
    before, files = descriptors(mount.pid), []
    for index in range(count):
        files.append(open(tree / str(index), "rb", buffering=0))
        files.append(open(tree / str(index), "r+b" if index % 2 else "rb", buffering=0))
    for index in range(1, count, 2):
        files[2 * index + 1].write(b"FILE")
    most = descriptors(mount.pid)
    for index in range(count):
        want = f"{'FILE' if index % 2 else 'file'} {index}\n".encode()
        if os.pread(files[2 * index].fileno(), 100, 0) != want:
            bed.fault(f"traffic: {where}: many open", f"file {index} reads {os.pread(files[2 * index].fileno(), 100, 0)!r}")
            break
    for file in files:
        file.close()
    mount.cli("flush")
    after = descriptors(mount.pid)
    if most - before > count + DESCRIPTORS_BESIDE:
        bed.fault(f"traffic: {where}: many open", f"{most} descriptors of the daemon for {count} files")
    if after > before + DESCRIPTORS_BESIDE:
        bed.fault(f"traffic: {where}: many open", f"{after} descriptors of the daemon when all are closed, {before} before")
    bed.steps += 1
    text = f"the daemon has {before} descriptors before, {most} meanwhile, {after} after"
    bed.say("traffic", f"{where}, {count} files open twice", text)
