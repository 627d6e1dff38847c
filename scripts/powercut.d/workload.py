"""What is done before the power goes, and what was promised by then.

Every content is written once and never again, but by an undo, so that whatever is found after a power cut can be told. A
promise is noted with the disk's position right after the call that made it had returned.
"""
import contextlib, os, random, subprocess, time

from rig import Refused

LINES = 100
# By these the database's log passes the 4 MiB from which on it is moved.
LOG_FILLING_SAVES = 150
# Files that are rewritten in small steps. The last two do not fit into the state database and into one block.
SAVED = {f"src/s{number}": LINES for number in range(6)} | {"src/long": 700, "src/huge": 4000}
HELD = [f"big/h{number}" for number in range(40)]
# Each is kept in a file of its own, by a confirm and by its undo.
UNDONE = [f"group0/undone{number}" for number in range(24)]
TINY = [f"tiny/t{number}" for number in range(40)]
# Files with a second name, which are written in place.
LINKED = [f"linked/l{number}" for number in range(4)]
OTHER_NAME = ".other"
LINKED_LINES = 400
# How many files each confirm lands at once.
GROUPS = [1, 3, 50, 3, 1, 3, 50, 3, 1, 3]
SETTINGS = "".join(f'[[rule]]\nmatch = "{match}"\naction = "hold"\n' for match in ("group*/**", "linked/**"))


def text(tag, lines=LINES, changed=LINES):
    """The first lines as `tag` wrote them; what is not among them never changes."""
    return "".join(f"{tag} wrote line {line}\n" if line < changed else f"line {line}\n" for line in range(lines))


class Version:
    """A content that a path has from `begin` on. `lands`: without review. `careful`: synced before it lands, so that
    the project must never have it in part."""

    def __init__(self, content, begin, lands=True, careful=False):
        self.content, self.begin, self.lands, self.careful = content, begin, lands, careful


class Group:
    """Files that one confirm or rollback lands. `new` is None for what it deletes."""

    def __init__(self, old, new):
        self.old, self.new, self.begin, self.end = old, new, None, None


class History:
    """All that paths ever had, in order, and from which position on what must not be lost."""

    def __init__(self, files):
        self.versions = {path: [Version(content, 0)] for path, content in files.items()}
        # (position, path, index of the version, "project" or "view")
        self.promises = []
        # What was being done, by the position at which it began: to say so.
        self.steps = []
        self.groups = []
        # (position, id of a change that was discarded)
        self.discarded = []

    def add(self, path, content, begin, **kind):
        self.versions.setdefault(path, [Version(None, 0)]).append(Version(content, begin, **kind))

    def promise(self, position, path, where="view"):
        self.promises.append((position, path, len(self.versions[path]) - 1, where))

    def step_at(self, position):
        begun = [step for begin, step in self.steps if begin < position]
        # Of the first step something is promised before anything is written to the disk.
        return begun[-1] if begun else self.steps[0][1]

    def end_of_step(self, position):
        return min((begin for begin, _step in self.steps if begin >= position), default=position)

    def may_be_torn(self, path, position, where):
        """Whether something was done to the path by then of which nobody had promised yet that it lasts. In the project,
        what was synced in the view is on its way until the step ends, and is not what may be torn there."""
        below, promised = where == "project", 0
        for at, of, index, _where in self.promises:
            if of == path and (self.end_of_step(at) if below else at) <= position:
                promised = max(promised, index)
        later = self.versions[path][promised + 1 :]
        return any(version.begin <= position and not (below and version.careful) for version in later)

    def index(self, path, content, position):
        """The newest version that this is and that was begun by then. None: it never was a whole content."""
        found = [
            index
            for index, version in enumerate(self.versions.get(path, [Version(None, 0)]))
            if version.content == content and version.begin <= position
        ]
        return found[-1] if found else None


def files_at_first():
    files = {path: text("setup " + path, lines, 3) for path, lines in SAVED.items()}
    files |= {path: text("setup " + path) for path in HELD}
    files |= {path: text("setup " + path, 5) for path in TINY}
    files |= {path: text("setup " + path, 2500) for path in UNDONE}
    files |= {name: text("setup " + path, LINKED_LINES) for path in LINKED for name in names_of(path)}
    files |= {path: content for number in range(len(GROUPS)) for path, content in group_at_first(number).items()}
    return files | {".fettle.toml": SETTINGS}


def names_of(path):
    return [path, path + OTHER_NAME]


def group_at_first(number):
    size = GROUPS[number]
    changed = {f"group{number}/changed{file}": text(f"setup group {number} {file}") for file in range((size + 1) // 2)}
    if size == 1:
        return changed
    return changed | {f"group{number}/{name}": text(f"setup group {number} {name}") for name in ("deleted", "moved")}


def put(path, content, sync=None):
    """With `sync`, makes it durable, and calls that right afterwards: a promise has been made."""
    with open(path, "w") as file:
        file.write(content)
        file.flush()
        if sync:
            os.fsync(file.fileno())
            sync()


def sync_dir(path):
    directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class Workload:
    """Does one step after the other, chosen by the seed. `subject` is who keeps the promises."""

    def __init__(self, subject, project, position, seed):
        self.subject, self.project, self.position = subject, project, position
        self.rng = random.Random(seed)
        self.history = History(files_at_first())
        self.fresh_held, self.fresh_tiny, self.fresh_linked = list(HELD), list(TINY), list(LINKED)
        self.turn, self.open = 0, []

    def do_held(self):
        """Nothing lands, from the first mount on."""
        for _ in range(6):
            self.do("held directory")
            self.do("held link")
        self.end()

    def do_undone(self):
        self.do("undo twice")
        self.end()

    def end(self):
        """What the last step promised of the view is on its way to the project until then."""
        self.history.steps.append((self.position(), "end"))

    def do_all(self):
        steps = ["group"] * len(GROUPS) + ["save"] * 24 + ["hold"] * 8 + ["unclosed"] * 6 + ["new"] * 8
        steps += ["delete"] * 6 + ["rename"] * 6 + ["discard"] * 4 + ["rollback"] * 4 + ["late fsync"] * 6 + ["same again"] * 6
        steps += ["pause"] * 3 + ["in place"] * len(LINKED)
        self.rng.shuffle(steps)
        self.groups = iter(range(len(GROUPS)))
        try:
            for step in steps:
                self.do(step)
            self.end()
        finally:
            # Also where a step failed: the view could not be unmounted, and that would be all that is said.
            for file in self.open:
                file.close()

    def do(self, step):
        self.turn += 1
        self.history.steps.append((self.position(), step))
        getattr(self, "do_" + step.replace(" ", "_"))()
        if self.rng.random() < 0.15:
            # As the kernel does by itself after some seconds.
            subprocess.run(["sync", "-f", self.project], check=True)

    def at(self, path):
        return os.path.join(self.subject.root, path)

    def next_text(self, path, lines=LINES, changed=3):
        return text(f"turn {self.turn} {path}", lines, changed)

    def promised(self, path, where="view"):
        return lambda: self.history.promise(self.position(), path, where)

    def do_save(self):
        path = self.rng.choice(list(SAVED))
        content = self.next_text(path, SAVED[path])
        sync = self.promised(path) if self.rng.random() < 0.5 else None
        self.history.add(path, content, self.position(), careful=sync is not None)
        if self.rng.random() < 0.5:
            put(self.at(path), content, sync)
        else:
            self.replace(path, content, sync)

    def replace(self, path, content, sync, root=None):
        """As careful programs save: durable when the directory is. A child of theirs may have the temporary file open yet."""
        temp = path + ".tmp"
        self.history.add(temp, content, self.position())
        self.history.add(temp, None, self.position())
        source, target = (os.path.join(root or self.subject.root, name) for name in (temp, path))
        child = open(source, "a") if self.rng.random() < 0.5 else contextlib.nullcontext()
        with child:
            put(source, content, sync and (lambda: None))
            os.rename(source, target)
            if sync:
                sync_dir(target)
                sync()

    def do_late_fsync(self):
        """Closed first, made durable by another descriptor."""
        path = self.rng.choice(list(SAVED))
        content = self.next_text(path, SAVED[path])
        self.history.add(path, content, self.position())
        put(self.at(path), content)
        with open(self.at(path)) as file:
            os.fsync(file.fileno())
        self.history.promise(self.position(), path)

    def do_same_again(self):
        """What is in the project already, and was not synced then."""
        path = self.rng.choice(list(SAVED))
        content = self.next_text(path, SAVED[path])
        self.history.add(path, content, self.position())
        put(self.at(path), content)
        put(self.at(path), content, self.promised(path))

    def do_unclosed(self):
        """Durable before anybody has judged it."""
        path = self.fresh_held.pop()
        content = self.next_text(path, changed=LINES)
        self.history.add(path, content, self.position(), lands=False)
        file = open(self.at(path), "w")
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        self.history.promise(self.position(), path)
        self.open.append(file)
        if len(self.open) > 2:
            self.open.pop(0).close()

    def do_hold(self):
        path = self.fresh_held.pop()
        content = self.next_text(path, changed=LINES)
        self.history.add(path, content, self.position(), lands=False)
        put(self.at(path), content, self.promised(path) if self.rng.random() < 0.7 else None)

    def do_held_directory(self):
        """Nobody syncs the directories: they come with what is in them."""
        path = f"group1/held{self.turn}/sub/file"
        content = self.next_text(path)
        os.makedirs(os.path.dirname(self.at(path)))
        self.history.add(path, content, self.position(), lands=False)
        put(self.at(path), content, self.promised(path))

    def do_held_link(self):
        """It has no descriptor of its own to be synced by."""
        path, target = f"group1/link{self.turn}", f"/nowhere/{self.turn}"
        self.history.add(path, f"-> {target}", self.position(), lands=False)
        os.symlink(target, self.at(path))
        sync_dir(self.at(path))
        self.history.promise(self.position(), path)

    def do_undo_twice(self):
        """The second keeps anew what the first has kept."""
        group = Group({path: self.history.versions[path][-1].content for path in UNDONE}, {})
        for path in UNDONE:
            self.write_in(group, path, 2500)
        operation = self.land(group, lambda: self.subject.confirm(group.new))
        for _ in range(2):
            group = Group(group.new, group.old)
            operation = self.land(group, lambda: self.subject.undo(operation))
        self.edit_below(group)

    def do_new(self):
        path = f"new{self.turn}/deep/file"
        content = self.next_text(path)
        sync = self.rng.random() < 0.6
        os.makedirs(os.path.dirname(self.at(path)))
        self.history.add(path, content, self.position(), careful=sync)
        put(self.at(path), content, sync and (lambda: None))
        if sync:
            for above in (path, os.path.dirname(path), os.path.dirname(os.path.dirname(path))):
                sync_dir(self.at(above))
            self.history.promise(self.position(), path)

    def do_delete(self):
        path = self.fresh_tiny.pop()
        self.history.add(path, None, self.position(), careful=True)
        os.unlink(self.at(path))
        if self.rng.random() < 0.6:
            sync_dir(self.at(path))
            self.history.promise(self.position(), path)

    def do_rename(self):
        path = self.fresh_tiny.pop()
        to, content = path + ".renamed", self.history.versions[path][-1].content
        begin = self.position()
        self.history.add(path, None, begin, careful=True)
        self.history.add(to, content, begin, careful=True)
        os.rename(self.at(path), self.at(to))
        if self.rng.random() < 0.6:
            sync_dir(self.at(to))
            self.history.promise(self.position(), path)
            self.history.promise(self.position(), to)

    def do_discard(self):
        path = self.fresh_held.pop()
        before = self.history.versions[path][-1].content
        self.history.add(path, self.next_text(path, changed=LINES), self.position(), lands=False)
        put(self.at(path), self.history.versions[path][-1].content)
        self.history.add(path, before, self.position(), careful=True)
        change = self.subject.discard(path, before)
        self.history.discarded.append((self.position(), change))
        self.history.promise(self.position(), path)

    def do_rollback(self):
        path = f"src/s{self.rng.randrange(6)}"
        before = self.history.versions[path][-1].content
        self.history.add(path, self.next_text(path), self.position())
        put(self.at(path), self.history.versions[path][-1].content)
        self.history.add(path, before, self.position(), careful=True)
        self.subject.rollback(path, before)
        self.history.promise(self.position(), path, "project")

    def do_pause(self):
        """So much is saved that the database's log is moved once nobody saves any more."""
        before = self.subject.moved()
        for _ in range(LOG_FILLING_SAVES):
            self.turn += 1
            content = self.next_text("src/long", SAVED["src/long"])
            self.history.add("src/long", content, self.position())
            put(self.at("src/long"), content)
        self.subject.wait_for_move(before)

    def do_group(self):
        number = next(self.groups)
        group = Group(group_at_first(number), {})
        self.prepare(number, group)
        self.land(group, lambda: self.subject.confirm(group.new))
        self.edit_below(group)

    def edit_below(self, group):
        """By a person's editor, right after it: what has landed with it stays."""
        path = self.rng.choice([path for path, content in group.new.items() if content is not None])
        content = self.next_text(path)
        self.history.add(path, content, self.position())
        if self.rng.random() < 0.3:
            put(os.path.join(self.project, path), content, self.promised(path, "project"))
        else:
            self.replace(path, content, self.promised(path, "project"), self.project)

    def do_in_place(self):
        """A file with two names is confirmed and rolled back: both have all of the one content or all of the other."""
        path = self.fresh_linked.pop()
        before, after = self.history.versions[path][-1].content, self.next_text(path, LINKED_LINES // 2, LINKED_LINES)
        old, new = (dict.fromkeys(names_of(path), content) for content in (before, after))
        self.subject.write(path, after)
        self.land(Group(old, new), lambda: self.subject.confirm_in_place(path))
        self.land(Group(new, old), lambda: self.subject.rollback_in_place(path, before))

    def land(self, group, do):
        """All of it or nothing, and all once that has returned."""
        self.history.groups.append(group)
        group.begin = self.position()
        for path, content in group.new.items():
            group.old.setdefault(path, None)
            self.history.add(path, content, group.begin, careful=True)
        done = do()
        group.end = self.position()
        for path in group.new:
            self.history.promise(group.end, path, "project")
        return done

    def prepare(self, number, group):
        """Modifies what is there, and in larger groups deletes, renames, and makes new files, also in new directories."""
        for path in list(group.old):
            name = os.path.basename(path)
            if name == "deleted":
                group.new[path] = None
                self.subject.remove(path)
            elif name == "moved":
                to = os.path.join(os.path.dirname(path), f"to-{number}")
                group.new |= {path: None, to: group.old[path]}
                self.subject.rename(path, to)
            else:
                self.write_in(group, path, LINES)
        for file in range(GROUPS[number] - len(group.new)):
            directory = f"group{number}/new{file % 3}" if file % 2 else f"group{number}"
            # One of them is too long for the state database.
            self.write_in(group, f"{directory}/created{file}", 4000 if file == 5 else LINES)

    def write_in(self, group, path, lines):
        group.new[path] = self.next_text(path, lines, lines)
        self.subject.write(path, group.new[path])


class Fettle:
    """fettlefs keeps the promises."""

    def __init__(self, view):
        self.view, self.root = view, view.point

    def moved(self):
        """When something was last written to the database file itself."""
        return os.stat(os.path.join(self.view.project, ".fettle", "fettle.db")).st_mtime_ns

    def wait_for_move(self, before):
        until = time.monotonic() + 20
        while self.moved() == before:
            if time.monotonic() > until:
                raise Refused("the log was not moved")
            time.sleep(0.01)

    def write(self, path, content):
        os.makedirs(os.path.dirname(os.path.join(self.root, path)), exist_ok=True)
        put(os.path.join(self.root, path), content)

    def remove(self, path):
        os.unlink(os.path.join(self.root, path))

    def rename(self, path, to):
        os.rename(os.path.join(self.root, path), os.path.join(self.root, to))

    def confirm(self, paths):
        held = self.view.held()
        missing = [path for path in paths if path not in held]
        if missing:
            raise Refused(f"not held before the confirm: {missing}")
        return self.view.ask("confirm", ids=[held[path] for path in paths], wait=True)["outcomes"][0]["operation"]

    def confirm_in_place(self, path):
        self.confirm([path])

    def undo(self, operation):
        return self.view.ask("undo", operation=operation)["outcomes"][0]["operation"]

    def discard(self, path, _before):
        change = self.view.held()[path]
        self.view.ask("discard", ids=[change])
        return change

    def rollback(self, path, _before):
        self.view.ask("rollback", path=path)

    def rollback_in_place(self, path, before):
        self.rollback(path, before)


class Careless:
    """Keeps the promises as many programs do: a temporary file and a rename for each file of a confirm, no fsync for the
    rest. The checks must find it out."""

    def __init__(self, project):
        self.root, self.waiting = project, {}

    def moved(self):
        """Has no log."""

    def wait_for_move(self, before):
        pass

    def write(self, path, content):
        self.waiting[path] = content

    def remove(self, path):
        self.waiting[path] = None

    def rename(self, path, to):
        with open(os.path.join(self.root, path)) as file:
            self.waiting |= {to: file.read(), path: None}

    def confirm(self, paths):
        for path in paths:
            self.replace(path, self.waiting.pop(path), sync=lambda: None)

    def confirm_in_place(self, path):
        put(os.path.join(self.root, path), self.waiting.pop(path), sync=lambda: None)

    def replace(self, path, content, sync=None):
        target = os.path.join(self.root, path)
        if content is None:
            os.unlink(target)
            return
        os.makedirs(os.path.dirname(target), exist_ok=True)
        put(target + ".tmp", content, sync)
        os.rename(target + ".tmp", target)

    def discard(self, path, before):
        self.replace(path, before)

    def rollback(self, path, before):
        self.replace(path, before)

    def rollback_in_place(self, path, before):
        put(os.path.join(self.root, path), before, sync=lambda: None)
