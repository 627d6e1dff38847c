"""Which workloads there are, in the order of a round."""

import os
import shutil
import sys
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Callable

import files
import mixed
import programs
from systems import Fettlefs


class Shown(Enum):
    """What is told of a row."""

    MEAN = "its ratio to native, from one value a round"
    EACH = "the same, from a list of single operations a round, and how they are spread"
    WAITS = "only how they are spread"


@dataclass(frozen=True)
class Row:
    """A workload: a row of one table or two."""

    name: str  # on the command line
    title: str  # in the table
    work: Callable  # of a bench, a system and the number of the round
    needs: str | None = None  # a program
    as_root: bool = False  # only root may do it
    shown: Shown = Shown.MEAN
    only: type | None = None  # the one system that can
    goal: float | None = None  # the ratio that fettlefs is to reach

    def runs_on(self, system):
        return self.only is None or isinstance(system, self.only)


def waits(name, title, load, only=None):
    """What a small save, and what a small read waits beside a load."""
    return [
        Row(f"wait-save-{name}", f"save, {title}", partial(mixed.save_waits, load=load), shown=Shown.WAITS, only=only),
        Row(f"wait-read-{name}", f"read, {title}", partial(mixed.read_waits, load=load), shown=Shown.WAITS, only=only),
    ]


ROWS = [
    Row("save-truncate", "save by truncate in place, 200 lines",
        partial(files.save, how="save-truncate", path="save/truncate.txt"), shown=Shown.EACH, goal=8),
    Row("save-rename", "save by temp + rename, 200 lines",
        partial(files.save, how="save-rename", path="save/rename.txt"), shown=Shown.EACH, goal=5),
    Row("create-pass", "create, pass path", partial(files.create, where="target/pass"), goal=3.5),
    Row("rename-pass", "rename, pass path", partial(files.rename, where="target/pass"), goal=3),
    Row("unlink-pass", "unlink, pass path", partial(files.unlink, where="target/pass"), goal=3.5),
    Row("create-judged", "create, judged path", partial(files.create, where="judged"), goal=8),
    Row("rename-judged", "rename, judged path", partial(files.rename, where="judged"), goal=6),
    Row("unlink-judged", "unlink, judged path", partial(files.unlink, where="judged"), goal=8),
    Row("stat", "stat, warm", partial(files.look, how="stat"), goal=1.1),
    Row("missing", "stat of a missing name", partial(files.look, how="missing"), goal=1.2),
    Row("read", "open + read + close, warm", files.read, goal=4),
    Row("walk", "tree walk, warm, an entry", files.walk, goal=1.2),
    Row("git-status", "git status, again", programs.git_status, goal=1.1),
    Row("tar-x", "tar x", programs.tar_extract, goal=6),
    Row("rm-r", "rm -r", programs.remove_tree, goal=4),
    Row("git-clone", "git clone into the mount", programs.git_clone, goal=3.5),
    Row("git-checkout", "git checkout, half of the files", programs.git_checkout, goal=4),
    Row("cargo-build", "cargo build, `target` in the mount", programs.cargo_build, needs="cargo", goal=1.03),
    Row("agent", "agent's trace: edits, git, grep", programs.agent, goal=1.6),
    Row("beside", "open + read + close beside a creator", mixed.beside, goal=4),
    Row("log-pass", "append of a line to an open file, pass path", partial(files.log, where="target")),
    Row("log-judged", "append of a line to an open file, judged", partial(files.log, where="judged")),
    Row("write-pass", "sequential write with close, pass path", partial(files.put, where="target"), goal=1.05),
    Row("write-judged", "sequential write with close, judged", partial(files.put, where="judged"), goal=4),
    Row("seq-pass", "sequential read, warm, pass path", partial(files.get, where="target"), goal=1.0),
    Row("seq-judged", "sequential read, warm, judged", partial(files.get, where="judged"), goal=1.1),
    Row("append", "first append to a large file, up to close", files.append),
    Row("worst-wait", "a reader's worst wait beside that append", mixed.worst_wait),
    Row("rg", "ripgrep, warm", programs.ripgrep, needs="rg", goal=3),
    Row("rg-cold", "ripgrep, cold", programs.ripgrep_cold, needs="rg", as_root=True, goal=2.2),
    Row("walk-cold", "tree walk, cold", files.walk_cold, as_root=True, goal=2),
    Row("mount", "mount, until it answers", files.mount_ready),
    *waits("alone", "alone", mixed.nothing),
    *waits("append", "beside first appends to large files", mixed.copy_ups),
    *waits("tar-x", "beside tar x", mixed.many_files),
    *waits("confirm", "beside confirm --all", mixed.confirm, only=Fettlefs),
    Row("wait-save-hook", "save, alone, a program is asked", partial(mixed.save_waits, load=mixed.quick_hook),
        shown=Shown.WAITS, only=Fettlefs),
    *waits("slow-hook", "beside a save about which that program thinks 50 ms", mixed.slow_hook, only=Fettlefs),
]


def chosen_rows(only):
    for name in only or []:
        if not any(row.name.startswith(name) for row in ROWS):
            sys.exit(f"bench: no workload {name!r}; there are {', '.join(row.name for row in ROWS)}")
    wanted = [row for row in ROWS if not only or row.name.startswith(tuple(only))]
    return [row for row in wanted if is_possible(row)]


def is_possible(row):
    if row.needs and not shutil.which(row.needs):
        print(f"bench: without {row.name}: {row.needs} is not installed", file=sys.stderr)
        return False
    return os.geteuid() == 0 or not row.as_root
