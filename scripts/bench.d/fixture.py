"""What every system gets to work on, and what of it is expected afterwards."""

import hashlib
import os

from rig import run

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


def saved_text(number):
    def line(at):
        count = number if at == SAVE_LINES // 2 else 0
        return f"line {at} of a file that is saved again and again: {count}\n"
    return "".join(line(at) for at in range(1, SAVE_LINES + 1))


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def tree_dirs(files):
    return sorted({f"d{number // 50:03}" for number in range(files)})


def make_tree(root, files):
    for name in tree_dirs(files):
        (root / name).mkdir(parents=True)
    for number in range(files):
        text = f"file {number}\n" * (1 + number % 40)
        (root / f"d{number // 50:03}" / f"n{number:05}.txt").write_text(text)


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
