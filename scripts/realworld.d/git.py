"""git as people use it, in a repository of thousands of files with hundreds of commits."""

import random
from pathlib import Path

import crates
import history
from bed import TURN, Play, Step, Stop

# Files below .git that hold times or inode numbers. `state` compares what the index says.
VARYING = (b"/index",)


def play(bed):
    files, commits = (250, 30) if bed.quick else (10_000, 300)
    source = bed.scratch / "source.git"
    history.make(source, crates.files(bed.env, files), commits)
    configure(bed)
    bed.play(Play("git", steps(source), varies=lambda path: path.endswith(VARYING) and b".git/" in path))


def configure(bed):
    """Deterministic packs: one thread; nothing in the background."""
    Path(bed.env["HOME"], ".gitconfig").write_text(
        "[user]\n name = A Hand\n email = hand@example.org\n[gc]\n auto = 0\n[maintenance]\n auto = false\n"
        "[pack]\n threads = 1\n[advice]\n detachedHead = false\n[commit]\n gpgsign = false\n"
        "[core]\n editor = true\n[init]\n defaultBranch = main\n"
    )


def steps(source):
    return [
        Step("clone", lambda place: place.text("git", "clone", "--quiet", "--no-hardlinks", source, "repo") + state(place)),
        Step("checkout half", of("checkout --quiet half")),
        Step("checkout main", of("checkout --quiet main")),
        Step("rebase topic", of("checkout --quiet topic", "rebase --quiet main")),
        TURN,
        Step("checkout half again", of("checkout --quiet half")),
        Step("switch layout", of("switch --quiet layout")),
        Step("switch main", of("switch --quiet main")),
        Step("stash", stash),
        Step("stash pop", of("stash pop --quiet")),
        Step("commit", of("add --all", "commit --quiet --message worked")),
        TURN,
        Step("merge with conflicts", merge),
        Step("resolve", resolve),
        Step("cherry-pick", of("checkout --quiet -b picked origin/main~3", "cherry-pick origin/topic~6..origin/topic")),
        Step("reset --hard", lambda place: (edit(place, "reset", 60), state(place, "reset --quiet --hard HEAD~2"))[1]),
        Step("clean -fd", clean),
        Step("git mv", of("mv new elsewhere", "mv topic new", "commit --quiet --all --message moved")),
        Step("worktree add", of("worktree add --quiet ../second half", "-C ../second status --porcelain")),
        Step("worktree remove", of("worktree remove --force ../second")),
        TURN,
        Step("gc", of("gc --quiet --prune=now")),
        Step("checkout all branches", of(*(f"checkout --quiet {name}" for name in ("half", "layout", "topic", "main")))),
        Step("remove and check out", remove_and_check_out),
        Step("fsck", of("fsck --full --strict --no-progress")),
    ]


def of(*commands):
    return lambda place: state(place, *commands)


def state(place, *commands):
    """What the commands print, then everything git knows: status, index, refs, stashes."""
    commands = [*commands, "status --porcelain", "ls-files --stage", "for-each-ref", "stash list", "diff --stat"]
    return "\n".join(place.text("git", *command.split(), check=False, at="repo") for command in commands)


def edit(place, seed, count):
    """Real edits of `count` tracked files, small and large."""
    rng = random.Random(seed)
    names = place.run("git", "ls-files", "-z", at="repo").stdout.split(b"\0")[:-1]
    for name in rng.sample(names, min(count, len(names))):
        path = Path(place.top, "repo", name.decode())
        if path.is_symlink() or not path.is_file():
            continue
        content = path.read_bytes()
        if history.is_text(content):
            path.write_bytes(history.edited(content, rng, rng.choice([0.01, 0.05, 0.5])))


def stash(place):
    edit(place, "stash", 80)
    (place.top / "repo/untracked").mkdir()
    (place.top / "repo/untracked/note").write_text("not yet\n" * 30)
    return state(place, "stash push --quiet --include-untracked")


def merge(place):
    said = state(place, "merge --quiet origin/clash")
    if not said.startswith("1\n") or "UU " not in said:
        raise Stop(f"the merge was to have conflicts: {said[:300]}")
    return said


def resolve(place):
    return state(place, "checkout --quiet --theirs .", "add --all", "commit --quiet --message resolved")


def clean(place):
    for number in range(200):
        path = place.top / f"repo/junk/{number % 7}/{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"junk {number}\n" * number)
    return state(place, "clean --quiet -fd")


def remove_and_check_out(place):
    """Every tracked file goes and comes back as it was."""
    place.run("find", "repo", "-mindepth", "1", "-maxdepth", "1", "!", "-name", ".git", "-exec", "rm", "-rf", "{}", "+")
    return state(place, "checkout --quiet .")
