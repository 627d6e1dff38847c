"""One run of the bench: its sizes, its C helper and the fixture."""

import shutil
from pathlib import Path

from fixture import commit_all, make_pack, make_repository, make_tree, saved_text
from rig import run
from workspace import make_workspace

SOURCE = Path(__file__).resolve().parent / "loop.c"


class Bench:
    """What a workload is given besides the system and the number of the round.

    It does the work in the system's view, checks what came out, and gives nanoseconds for one operation, or a list of
    them where each single one counts."""

    def __init__(self, base, smoke):
        self.base = base
        self.loop = base / "loop"
        self.saves = 20 if smoke else 500
        self.names = 50 if smoke else 1000
        self.reps = 2 if smoke else 20
        self.files = 200 if smoke else 5000
        self.large = 2 << 20 if smoke else 256 << 20
        self.edits = 20 if smoke else 300
        self.waits = 20 if smoke else 500
        self.held = 20 if smoke else 1000
        self.parts, self.items = (2, 3) if smoke else (18, 15)
        run("cc", "-O2", "-Wall", "-o", self.loop, SOURCE)

    def helper(self, *arguments, **options):
        return [int(line) for line in run(self.loop, *arguments, **options).stdout.split()]

    def make_fixture(self, root):
        """A git repository: `tree` (many small files), what `lay_out` makes, and a `workspace` for cargo."""
        self.lay_out(root)
        if shutil.which("cargo"):
            make_workspace(root / "workspace", self.parts, self.items)
        make_tree(root / "tree", self.files)
        commit_all(root)
        self.pack = make_pack(self.base / "unpacked", self.files)
        self.few = make_pack(self.base / "few", self.files // 5)
        make_repository(self.base / "repository", self.files // 2)

    def lay_out(self, root):
        """Files to read (4 KiB), to save and to make; git ignores `target`, and what is new in `.claude` is held."""
        for directory in ("save", "files", "judged", ".claude", "target/pass"):
            (root / directory).mkdir(parents=True)
        (root / ".gitignore").write_text("/target/\n")
        for directory in ("judged", ".claude"):
            (root / directory / "keep").write_text("keep\n")
        for name in ("truncate.txt", "rename.txt", "beside.txt", "asked.txt"):
            (root / "save" / name).write_text(saved_text(0))
        for number in range(self.names):
            (root / f"files/f{number:05}").write_text(f"{number:063}\n" * 64)
