"""What every system gets to work on, and what of it is expected afterwards."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from rig import Wrong, run

SAVE_LINES = 200


def commit_all(root):
    """A git repository of what is there."""
    git = git_in(root)
    run(*git, "init", "-q", "-b", "main")
    run(*git, "add", "-A")
    run(*git, "commit", "-q", "-m", "fixture")


def git_in(root):
    return ["git", "-C", root, "-c", "user.name=bench", "-c", "user.email=bench@localhost"]


def make_repository(root, files):
    """To be cloned: two branches, between which half of the files differ."""
    make_tree(root, files)
    commit_all(root)
    git = git_in(root)
    run(*git, "checkout", "-q", "-b", "other")
    for number, path in enumerate(sorted(root.rglob("*.txt"))):
        if number % 2:
            path.write_text(path.read_text() + "one more line\n")
    run(*git, "commit", "-q", "-a", "-m", "two")
    run(*git, "checkout", "-q", "main")


@dataclass(frozen=True)
class Pack:
    """A tree as a tar file."""

    tar: Path
    top: str  # the directory that it unpacks
    hash: str  # of what is in it


def make_pack(root, files):
    make_tree(root, files)
    tar = root.with_suffix(".tar")
    run("tar", "-cf", tar, "-C", root.parent, root.name)
    return Pack(tar, root.name, tree_hash(root))


def saved_text(number):
    def line(at):
        count = number if at == SAVE_LINES // 2 else 0
        return f"line {at} of a file that is saved again and again: {count}\n"
    return "".join(line(at) for at in range(1, SAVE_LINES + 1))


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def tree_dirs(files):
    return sorted({tree_path(number).parent for number in range(files)})


def tree_path(number):
    return Path(f"d{number // 50:03}/n{number:05}.txt")


def tree_text(number):
    return f"file {number}\n" * (1 + number % 40)


def make_tree(root, files):
    for name in tree_dirs(files):
        (root / name).mkdir(parents=True)
    for number in range(files):
        (root / tree_path(number)).write_text(tree_text(number))


def add_tree(root, files):
    """Commits such a tree in `tree` of a repository: git writes a pack and the files, much faster than we do."""
    stream = root.parent / "tree.import"
    with open(stream, "w", encoding="ascii") as out:
        out.write("commit refs/heads/main\ncommitter bench <bench@localhost> 0 +0000\ndata 4\ntree\n"
                  "from refs/heads/main^0\n")
        for number in range(files):
            text = tree_text(number)
            out.write(f"M 100644 inline tree/{tree_path(number)}\ndata {len(text)}\n{text}")
    with open(stream, "rb") as file:
        run("git", "-C", root, "fast-import", "--quiet", stdin=file)
    stream.unlink()
    run("git", "-C", root, "reset", "--quiet", "--hard")


def tree_hash(root):
    """One hash over every name and content below."""
    whole = hashlib.sha256()
    for directory, names, files in os.walk(root):
        names.sort()
        for name in sorted(files):
            path = os.path.join(directory, name)
            with open(path, "rb") as file:
                whole.update(f"{os.path.relpath(path, root)} {sha256(file.read())}\n".encode())
    return whole.hexdigest()


def expect_tree(system, pack):
    """The tree came out of the tar file as it went in, in the view and below."""
    for place in (system.view / pack.top, system.below(pack.top)):
        if place is not None and tree_hash(place) != pack.hash:
            raise Wrong(f"{system.name}: {place} is not what was packed")


def expect_saved(system, path, number):
    """The file has what save number `number` wrote, in the view and below."""
    want = saved_text(number)
    for place in (system.view / path, system.below(path)):
        if place is not None and sha256(place.read_bytes()) != sha256(want.encode()):
            raise Wrong(f"{system.name}: {place} is not what was saved last")
