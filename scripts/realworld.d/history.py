"""A git repository with a long history, made from real files by a seeded hand: the same one every time.

Branches: `main`; `half`, which rewrites half the files; `topic`, a dozen commits that rebase cleanly; `clash`, which
edits the same lines as main; `layout`, which moves directories and changes files into symlinks and directories.
"""

import random
import subprocess

from bed import run

AUTHOR = b"A Hand <hand@example.org>"
# Paths that `topic` and `clash` edit, by number in the list of text files; everybody else leaves the first alone.
TOPIC = range(0, 12)
CLASH = range(12, 20)


class Stream:
    """A `git fast-import` stream, and the files of the branch as it goes."""

    def __init__(self, taken):
        self.out, self.clock = [], 1_600_000_000
        self.files = {path: (b"100755" if executable else b"100644", content) for path, content, executable in taken}

    def commit(self, branch, message, changes, parent=None):
        """`changes`: path -> (mode, content), or None to remove it."""
        self.clock += 60
        self.out.append(b"commit refs/heads/%s\n" % branch)
        self.out.append(b"mark :%d\n" % self.clock)
        self.out.append(b"author %s %d +0000\ncommitter %s %d +0000\n" % (AUTHOR, self.clock, AUTHOR, self.clock))
        self.out.append(b"data %d\n%s\n" % (len(message), message))
        if parent is not None:
            self.out.append(b"from :%d\n" % parent)
        for path, change in changes.items():
            if change is None:
                self.out.append(b"D %s\n" % path.encode())
            else:
                mode, content = change
                self.out.append(b"M %s inline %s\ndata %d\n" % (mode, path.encode(), len(content)))
                self.out.append(content + b"\n")
        return self.clock

    def follow(self, changes):
        """What a commit on main leaves for the next one."""
        for path, change in changes.items():
            if change is None:
                self.files.pop(path)
            else:
                self.files[path] = change


def edited(content, rng, share):
    """Some lines changed, some added, some gone, as a person does it; `share` of them, and always one."""
    lines = content.split(b"\n")
    for _ in range(max(1, int(len(lines) * share))):
        at = rng.randrange(len(lines))
        act = rng.randrange(4)
        if act == 0 and len(lines) > 3:
            del lines[at]
        elif act == 1:
            lines.insert(at, b"    // added: %d" % rng.randrange(10**6))
        else:
            lines[at] = lines[at] + b" // changed: %d" % rng.randrange(10**6)
    return b"\n".join(lines)


def is_text(content):
    return b"\0" not in content[:8000] and content.count(b"\n") > 5


def make(bare, taken, commits):
    """Writes the repository to `bare`."""
    rng, stream = random.Random("a long history"), Stream(taken)
    texts = [path for path, content, _ in taken if is_text(content)]
    kept, common = texts[:20], texts[20:]
    mains = [stream.commit(b"main", b"everything there is", stream.files)]
    for number in range(commits):
        changes = ordinary_changes(stream, rng, common)
        if number == commits - 5:
            changes |= {kept[at]: edit_first_line(stream.files[kept[at]], b"main") for at in CLASH}
        mains.append(stream.commit(b"main", b"main: edit %d" % number, changes))
        stream.follow(changes)
        if number == commits - 10:
            before_clash = dict(stream.files)
    half = {
        path: (mode, edited(content, rng, rng.choice([0.01, 0.05, 0.3, 0.9])) if is_text(content) else content[::-1])
        for path, (mode, content) in list(stream.files.items())[::2]
    }
    stream.commit(b"half", b"half of everything", half, mains[-1])
    parent = mains[-10]
    for number, at in enumerate(TOPIC):
        mode, content = before_clash[kept[at]]
        changes = {kept[at]: (mode, edited(content, rng, 0.1)), f"topic/new{number}.rs": (b"100644", content)}
        parent = stream.commit(b"topic", b"topic: step %d" % number, changes, parent)
    clash = {kept[at]: edit_first_line(before_clash[kept[at]], b"clash") for at in CLASH}
    stream.commit(b"clash", b"clash: the same lines", clash, mains[-10])
    stream.commit(b"layout", b"layout: everything elsewhere", layout(stream, kept), mains[-1])
    run("git", "init", "--quiet", "--bare", "--initial-branch=main", bare)
    subprocess.run(
        ["git", "-C", bare, "fast-import", "--quiet"], input=b"".join(stream.out), check=True, capture_output=True
    )


def edit_first_line(file, word):
    mode, content = file
    return mode, b"// " + word + b" was here\n" + content


def ordinary_changes(stream, rng, common):
    """One commit of main: edits, now and then a new file, a removal, a rename, a mode."""
    alive = [path for path in rng.sample(common, min(40, len(common))) if path in stream.files]
    changes = {}
    for path in alive[: rng.randrange(1, 20)]:
        mode, content = stream.files[path]
        changes[path] = (mode, edited(content, rng, rng.choice([0.01, 0.02, 0.1])))
    spare = [path for path in alive if path not in changes]
    if spare and rng.random() < 0.3:
        path = spare.pop()
        changes[f"{path}.moved"] = stream.files[path]
        changes[path] = None
    if spare and rng.random() < 0.3:
        changes[spare.pop()] = None
    if spare and rng.random() < 0.1:
        path = spare.pop()
        changes[path] = (b"100755", stream.files[path][1])
    if rng.random() < 0.3:
        changes[f"new/file{rng.randrange(10**6)}.txt"] = (b"100644", b"made up\n" * rng.randrange(1, 200))
    return changes


def layout(stream, kept):
    """Directories move; files become symlinks, directories, executables; directories become files."""
    changes = {}
    tops = sorted({path.split("/")[0] for path in stream.files})
    for path, file in stream.files.items():
        if path.startswith(tops[0] + "/"):
            changes[path] = None
            changes["moved/" + path] = file
        elif path.startswith(tops[1] + "/"):
            changes[path] = None
    # What was a directory is a file.
    changes[tops[1]] = (b"100644", b"once a directory\n" * 50)
    rest = [path for path in kept if not path.startswith((tops[0] + "/", tops[1] + "/"))] or [
        path for path in stream.files if path not in changes
    ]
    mode, content = stream.files[rest[0]]
    changes[rest[0]] = (b"120000", b"inside-the-project")
    if len(rest) > 2:
        changes[rest[1]] = None
        changes[rest[1] + "/now/a/directory"] = stream.files[rest[1]]
        changes[rest[2]] = (b"100755", stream.files[rest[2]][1])
    return changes
