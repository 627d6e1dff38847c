"""SQLite in every journal mode, judged and passing, while its writer or the daemon is killed with SIGKILL.

What must hold after each kill: `PRAGMA integrity_check` says ok, every transaction whose commit had returned is there,
nothing is there that was not begun, and none is there in part. Without kills the same work gives the same file, byte
for byte, as on the plain directory; and two writers with a reader beside them never see half a transaction.

Run as a program it is the writer: `database.py write FILE MODE` prints the number of each transaction once its commit
has returned.
"""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import zlib
from pathlib import Path

from bed import Stop, digest, is_mounted, run

MODES = ["delete", "truncate", "persist", "wal"]
# A kill in the middle of a transaction may lose everything: SQLite promises nothing in these.
MODES_WITHOUT_KILLS = ["memory", "off"]
BUSY_SECONDS = 60


def connect(path, mode):
    base = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    told = base.execute(f"PRAGMA journal_mode={mode}").fetchone()[0]
    if told != mode:
        raise SystemExit(f"asked for journal_mode={mode}, got {told}")
    base.execute("PRAGMA synchronous=NORMAL")
    base.execute("CREATE TABLE IF NOT EXISTS entry (turn INTEGER, part INTEGER, payload BLOB, crc INTEGER)")
    base.execute("CREATE TABLE IF NOT EXISTS total (turns INTEGER)")
    return base


def transact(base, turn):
    """One transaction: some entries of a turn, all or none; the total; now and then old turns go."""
    rng = random.Random(turn)
    base.execute("BEGIN IMMEDIATE")
    for part in range(4):
        payload = rng.randbytes(rng.randrange(100, 6000))
        base.execute("INSERT INTO entry VALUES (?, ?, ?, ?)", (turn, part, payload, zlib.crc32(payload)))
    if turn % 50 == 0:
        base.execute("UPDATE entry SET payload = zeroblob(10), crc = ? WHERE turn < ?", (zlib.crc32(bytes(10)), turn - 60))
    base.execute("DELETE FROM total")
    base.execute("INSERT INTO total SELECT count(DISTINCT turn) FROM entry")
    base.execute("COMMIT")


def turns(path):
    """The turns that are there; an exception when anything is torn."""
    base = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        said = base.execute("PRAGMA integrity_check").fetchall()
        if said != [("ok",)]:
            raise ValueError(f"integrity_check: {said[:3]}")
        return check_turns(base)
    finally:
        base.close()


def check_turns(base):
    base.execute("BEGIN")
    there = {}
    for turn, payload, crc in base.execute("SELECT turn, payload, crc FROM entry"):
        if zlib.crc32(payload) != crc:
            raise ValueError(f"turn {turn}: payload and checksum differ")
        there[turn] = there.get(turn, 0) + 1
    total = base.execute("SELECT turns FROM total").fetchall()
    base.execute("COMMIT")
    torn = [turn for turn, parts in there.items() if parts != 4]
    if torn:
        raise ValueError(f"torn transactions: {torn[:5]}")
    if there and total != [(len(there),)]:
        raise ValueError(f"total says {total}, there are {len(there)} turns")
    return sorted(there)


def write(path, mode):
    base = connect(path, mode)
    turn = base.execute("SELECT coalesce(max(turn), 0) FROM entry").fetchone()[0]
    while True:
        turn += 1
        transact(base, turn)
        os.write(1, f"{turn}\n".encode())


class Writer:
    """The writer process; knows the last transaction that it was told is committed."""

    def __init__(self, bed, path, mode):
        command = [sys.executable, __file__, "write", path, mode]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        bed.children.append(self.process)
        self.last = 0

    def let_work(self, count):
        for _ in range(count):
            line = self.process.stdout.readline()
            if not line:
                raise ValueError(f"the writer ended with {self.process.wait()}")
            self.last = int(line)

    def end(self, kill):
        """What it had said before it was gone counts as committed."""
        if kill:
            self.process.send_signal(signal.SIGKILL)
        for line in self.process.stdout:
            if line.endswith(b"\n"):
                self.last = int(line)
        self.process.stdout.close()
        self.process.wait(60)


def play(bed):
    top = bed.scratch / "sqlite"
    (top / "pass").mkdir(parents=True)
    (top / ".gitignore").write_text("pass/\n")
    run("git", "init", "--quiet", cwd=top, env=bed.env)
    mount = bed.mount(top)
    for where in ("judged", "pass"):
        (top / where).mkdir(exist_ok=True)
        for mode in MODES + MODES_WITHOUT_KILLS:
            same_bytes(bed, top / where / f"same-{mode}.db", mode, where)
        for mode in MODES:
            path = top / where / f"{mode}.db"
            kill_writers(bed, path, mode, where)
            kill_daemons(bed, mount, path, mode, where)
        together(bed, top / where / "together.db", where)
    want = {path: turns(path) for path in sorted(top.glob("*/*.db"))}
    held = len(mount.status()["held"])
    mount.confirm_all()
    mount.unmount()
    for path, there in want.items():
        check(bed, f"{path.parent.name}/{path.name} below", lambda: expect_equal(turns(path), there))
    bed.confirmed += held
    bed.steps += 1
    bed.say("sqlite", "the project after confirm --all and unmount", f"{len(want)} databases as in the view; {held} confirmed")


def check(bed, name, act):
    """A fault is told and the others go on."""
    try:
        return act()
    except (ValueError, OSError, Stop, sqlite3.Error, subprocess.TimeoutExpired) as error:
        bed.fault(f"sqlite: {name}", f"{type(error).__name__}: {error}")


def expect_equal(got, want):
    if got != want:
        raise ValueError(f"{len(got)} turns, not {len(want)}; missing: {sorted(set(want) - set(got))[:5]}")


def same_bytes(bed, path, mode, where):
    """The same work, undisturbed, here and on the plain directory."""
    plain = bed.scratch / f"plain-{where}-{mode}.db"

    def act():
        for place in (plain, path):
            base = connect(place, mode)
            for turn in range(1, 20 if bed.quick else 200):
                transact(base, turn)
            base.close()
        if digest(plain) != digest(path):
            raise ValueError("not the bytes that the plain directory has")

    check(bed, f"{where}, {mode}, undisturbed", act)
    bed.steps, bed.compared = bed.steps + 1, bed.compared + 1


def check_after_kill(path, writer, begun_from):
    there = turns(path)
    missing = set(range(begun_from, writer.last + 1)) - set(there)
    if missing:
        raise ValueError(f"committed and lost: {sorted(missing)[:5]} of {writer.last}")
    if there and there[-1] > writer.last + 1:
        raise ValueError(f"never begun and there: {there[-1]}, after {writer.last}")


def kill_writers(bed, path, mode, where):
    rounds, rng, last = 2 if bed.quick else 15, random.Random(f"{mode} {where}"), 0

    def act():
        nonlocal last
        for _ in range(rounds):
            writer = Writer(bed, path, mode)
            writer.let_work(rng.randrange(5, 60))
            writer.end(kill=True)
            check_after_kill(path, writer, 1)
            last = writer.last

    check(bed, f"{where}, {mode}, killed writer", act)
    bed.steps += 1
    bed.say("sqlite", f"{where}, {mode}, {rounds} killed writers", f"{last} transactions, none lost or torn")


def kill_daemons(bed, mount, path, mode, where):
    rounds, rng, last = 1 if bed.quick else 6, random.Random(f"daemon {mode} {where}"), 0

    def act():
        nonlocal last
        for _ in range(rounds):
            writer = Writer(bed, path, mode)
            writer.let_work(rng.randrange(5, 60))
            mount.kill()
            # Its descriptors are dead; it ends by itself, or waits for a lock it will never get.
            writer.end(kill=True)
            mount.start()
            check_after_kill(path, writer, 1)
            last = writer.last

    try:
        check(bed, f"{where}, {mode}, killed daemon", act)
    finally:
        if not is_mounted(mount.top):
            mount.start()
    bed.steps += 1
    bed.say("sqlite", f"{where}, {mode}, {rounds} killed daemons", f"{last} transactions, none lost or torn")


def together(bed, path, where):
    """Two writers in turns and a reader, all in WAL mode: shared memory through a mapping."""
    rounds = 20 if bed.quick else 150

    def act():
        connect(path, "wal").close()
        command = [sys.executable, __file__, "together", path, str(rounds)]
        pair = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
        bed.children.extend(pair)
        base, looks = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None), 0
        while any(writer.poll() is None for writer in pair):
            check_turns(base)
            looks += 1
        base.close()
        for writer in pair:
            if writer.returncode != 0:
                raise ValueError(f"a writer ended with {writer.returncode}: {writer.stderr.read()[-300:]!r}")
        expect_equal(turns(path), list(range(1, 2 * rounds + 1)))
        bed.say("sqlite", f"{where}, wal, two writers and a reader", f"{2 * rounds} transactions, {looks} looks")

    check(bed, f"{where}, wal, together", act)
    bed.steps += 1


def write_together(path, rounds):
    base = connect(path, "wal")
    for _ in range(rounds):
        base.execute("BEGIN IMMEDIATE")
        turn = base.execute("SELECT coalesce(max(turn), 0) + 1 FROM entry").fetchone()[0]
        for part in range(4):
            payload = random.randbytes(500)
            base.execute("INSERT INTO entry VALUES (?, ?, ?, ?)", (turn, part, payload, zlib.crc32(payload)))
        base.execute("DELETE FROM total")
        base.execute("INSERT INTO total SELECT count(DISTINCT turn) FROM entry")
        base.execute("COMMIT")
    base.close()


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]), sys.argv[3])
    else:
        write_together(Path(sys.argv[2]), int(sys.argv[3]))
