"""What a power cut left, held against what was promised."""
import os

OWN = {".fettle", ".git"}


def files_of(root):
    """The content of every file, where every symlink leads; what cannot be read tells why."""
    found = {}
    for directory, names, files in os.walk(root):
        names[:] = [name for name in names if directory != root or name not in OWN]
        for name in files + [name for name in names if os.path.islink(os.path.join(directory, name))]:
            path = os.path.join(directory, name)
            found[os.path.relpath(path, root)] = read(path)
    return found


def read(path):
    try:
        if os.path.islink(path):
            return "-> " + os.readlink(path)
        with open(path, errors="surrogateescape") as file:
            return file.read()
    except OSError as error:
        return repr(error)


class Findings:
    """Faults by kind: torn, split, lost, leaked, left, damaged, recovery."""

    def __init__(self, history, position):
        self.history, self.position, self.faults = history, position, []
        # Torn, but by a save that nobody had synced yet: not promised, yet worth a number.
        self.unsynced_torn = 0

    def add(self, kind, what):
        self.faults.append((kind, what))

    def check_project(self, project):
        """Every file has some content it had as a whole, every confirm is all there or not at all."""
        for path in sorted(set(project) | set(self.history.versions)):
            self.check_whole(path, project.get(path))
        for group in self.history.groups:
            self.check_group(group, project)

    def check_whole(self, path, content):
        if path not in self.history.versions:
            self.add("left", f"{path} ({len(content)} bytes)")
        elif self.history.index(path, content, self.position) is None:
            if self.history.may_be_torn(path, self.position, "project"):
                self.unsynced_torn += 1
            else:
                self.add("torn", f"{path} below: {describe(content)}")
        elif not any(version.lands and version.content == content for version in self.history.versions[path]):
            self.add("leaked", f"{path} below has what only waited for review")

    def check_group(self, group, project):
        if group.begin > self.position:
            return
        paths = [path for path in group.new if not self.is_edited_since(group, path)]
        old = [path for path in paths if project.get(path) == group.old[path]]
        new = [path for path in paths if project.get(path) == group.new[path]]
        size = len(paths)
        if len(old) != size and len(new) != size:
            self.add("split", f"a confirm of {size}: {len(new)} new, {len(old)} old, {size - len(new) - len(old)} neither")

    def is_edited_since(self, group, path):
        """By somebody who has not waited for a review."""
        begun = [version.begin for version in self.history.versions[path] if not version.careful]
        return any(group.begin < begin <= self.position for begin in begun)

    def check_promises(self, project, view, held):
        """What must be in the project, and what may be there or in the view."""
        places = {"project": project, "view": view}
        for position, path, promised, where in self.history.promises:
            if position > self.position:
                continue
            content = places[where].get(path)
            index = self.history.index(path, content, self.position)
            if index is None and self.history.may_be_torn(path, self.position, where):
                continue
            if index is None or index < promised:
                self.add("lost", f"{path} in the {where}, promised at {position} ({self.history.step_at(position)}): {describe(content)}")
        for position, change in self.history.discarded:
            if position <= self.position and change in held:
                self.add("lost", f"the discarding of {change}, promised at {position}")


def describe(content):
    if content is None:
        return "not there"
    if not content:
        return "empty"
    return f"{len(content)} bytes, {content[:40]!r}"


def recovery_lines(said):
    return [line for line in said.splitlines() if "recovery" in line]
