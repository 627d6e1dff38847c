"""Big trees, unpacked, copied, synchronised and removed; here the programs set times, so times are compared too."""

import os
import random
import tarfile
from pathlib import Path

import crates
import history
from bed import TURN, Play, Step, run

# Some time in 2023, in nanoseconds.
OLD = 1_700_000_000_123_456_789


def play(bed):
    taken = crates.files(bed.env, 200 if bed.quick else 8_000)
    source, later, archive = (bed.scratch / name for name in ("tree", "tree.later", "tree.tar"))
    crates.write_tree(source, taken)
    add_odd_entries(source)
    run("cp", "-a", source, later)
    change(later)
    for name, tree in (("tree.tar", source), ("later.tar", later)):
        with tarfile.open(bed.scratch / name, "w") as out:
            out.add(tree, arcname=".")
    bed.play(Play("trees", steps(source, later, archive, bed.scratch / "later.tar"), times=True))


def add_odd_entries(tree):
    """What a crate does not have: symlinks, empty files and directories, odd names and modes, a hole, hard links."""
    odd = Path(tree, "odd")
    odd.mkdir()
    (odd / "empty").touch()
    (odd / "nothing").mkdir(mode=0o700)
    (odd / "link").symlink_to("empty")
    (odd / "dangling").symlink_to("nowhere/at/all")
    (odd / "out").symlink_to("/etc/passwd")
    (odd / "name with\nline end").write_text("x\n")
    Path(f"{odd}/not-utf8-\udcff").write_text("x\n")
    (odd / ("n" * 255)).write_text("x\n")
    (odd / "secret").write_text("only for the owner\n")
    (odd / "secret").chmod(0o400)
    (odd / "twin").write_text("two names\n" * 100)
    (odd / "twin.also").hardlink_to(odd / "twin")
    with open(odd / "hole", "wb") as file:
        file.seek(3 << 20)
        file.write(b"end")
    # As old as things are that are copied: rsync leaves a link the time it was made when that is the same second.
    for path in [*odd.iterdir(), odd]:
        os.utime(path, ns=(OLD, OLD), follow_symlinks=False)


def change(tree):
    """The tree some time later."""
    rng = random.Random("later")
    for path in sorted(Path(tree).rglob("*")):
        if path.is_symlink() or not path.is_file() or path.is_relative_to(Path(tree, "odd")):
            continue
        dice, content = rng.random(), path.read_bytes()
        if dice < 0.1:
            path.unlink()
        elif dice < 0.4 and history.is_text(content):
            path.write_bytes(history.edited(content, rng, rng.choice([0.01, 0.1, 0.8])))
        elif dice < 0.45:
            path.rename(f"{path}.moved")


def steps(source, later, archive, later_archive):
    def sh(*commands):
        return lambda place: "".join(place.text(*command) for command in commands)

    return [
        Step("tar x", sh(["mkdir", "a"], ["tar", "-xf", archive, "-C", "a"])),
        Step("cp -a", sh(["cp", "-a", "a", "b"])),
        Step("rsync -a", sh(["rsync", "-a", f"{source}/", "c/"])),
        TURN,
        Step("tar x over it", sh(["tar", "-xf", later_archive, "-C", "a"])),
        Step("rsync -a --delete over it", sh(["rsync", "-a", "--delete", f"{later}/", "c/"])),
        Step("cp -a over it", sh(["cp", "-a", f"{later}/.", "b"])),
        Step("mv of a directory", sh(["mv", "b", "d"])),
        Step("rm -rf and tar x again", sh(["rm", "-rf", "a"], ["mkdir", "a"], ["tar", "-xf", archive, "-C", "a"])),
        TURN,
        Step("rm -rf", sh(["rm", "-rf", "a", "d"])),
        Step("rsync --inplace back", sh(["rsync", "-a", "--inplace", "--delete", f"{source}/", "c/"])),
    ]
