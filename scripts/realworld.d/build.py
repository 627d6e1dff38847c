"""A crate built and tested with its dependencies, and a package tree installed: thousands of files made by programs.

Once with the directory ignored by git, so that it passes, and for npm once judged.
"""

import shutil
from pathlib import Path

import crates
from bed import TURN, Play, Step, Stop, run

# Small, with dependencies, and with tests that walk directories.
CRATE = "ignore-0.4."
PACKAGES = ["express@4.17.1", "mocha@10.2.0", "eslint@8.57.0"]
PACKAGES_QUICK = ["express@4.17.1"]


def play_cargo(bed):
    bed.env["CARGO_INCREMENTAL"] = "0"
    bed.env["CARGO_NET_OFFLINE"] = "true"
    cargo = ["cargo", "--config", "build.jobs=2"]

    def built(*arguments):
        # What it says is full of times; what it made is compared.
        return lambda place: str(place.run(*cargo, *arguments, "--quiet").returncode)

    steps = [
        Step("cargo check" if bed.quick else "cargo build", built("check" if bed.quick else "build")),
        Step("edit, build again", lambda place: (touch_source(place), built("check" if bed.quick else "build")(place))[1]),
        *([] if bed.quick else [Step("cargo test", built("test"))]),
        TURN,
        *([] if bed.quick else [Step("cargo test again", built("test"))]),
        Step("cargo clean", built("clean")),
    ]
    bed.play(Play("cargo", steps, prepare=lambda top: prepare_crate(bed, top), varies=cargo_varies))


def cargo_varies(path):
    """Cargo's notes of which sources a unit was made of: their order differs between any two builds."""
    return b"/.fingerprint/" in path and path.rpartition(b"/")[2].startswith(b"dep-")


def prepare_crate(bed, top):
    crate = [crate for crate in crates.unpacked(bed.env) if crate.name.startswith(CRATE)]
    if not crate:
        raise Stop(f"{CRATE}* is not in the cargo registry: build fettlefs once")
    run("cp", "-rT", crate[-1], top)
    Path(top, ".cargo-ok").unlink(missing_ok=True)
    Path(top, ".gitignore").write_text("/target/\n")
    run("git", "init", "--quiet", cwd=top, env=bed.env)
    run("git", "add", "--all", cwd=top, env=bed.env)
    # Which versions are in the registry is this checkout's choice, not the crate's.
    Path(top, "Cargo.lock").unlink(missing_ok=True)
    run("cargo", "generate-lockfile", "--offline", "--quiet", cwd=top, env=bed.env)


def touch_source(place):
    path = place.top / "src/walk.rs"
    path.write_text(path.read_text() + "\n// One more line.\n")


def play_npm(bed):
    if shutil.which("npm") is None:
        raise Stop("npm is not installed")
    packages = PACKAGES_QUICK if bed.quick else PACKAGES
    template = bed.scratch / "npm.template"
    template.mkdir()
    Path(template, "package.json").write_text('{"name":"play","version":"1.0.0","private":true}\n')
    npm(bed, template, "install", "--ignore-scripts", *packages)
    shutil.rmtree(template / "node_modules")
    # Judged is the harder one: all of it is made, renamed and removed through the engine.
    for ignored in [False] if bed.quick else [True, False]:
        bed.play(Play("npm, node_modules passes" if ignored else "npm, node_modules is judged", npm_steps(bed),
                      prepare=lambda top, ignored=ignored: prepare_packages(bed, template, top, ignored)))


def npm(bed, top, *arguments):
    return run("npm", *arguments, "--prefer-offline", "--no-progress", "--loglevel=error", cwd=top, env=bed.env)


def prepare_packages(bed, template, top, ignored):
    run("cp", "-rT", template, top)
    if ignored:
        Path(top, ".gitignore").write_text("node_modules/\n")
        run("git", "init", "--quiet", cwd=top, env=bed.env)


def npm_steps(bed):
    def step(name, *arguments):
        return Step(name, lambda place: str(npm(bed, place.top, *arguments).returncode))

    runs = "console.log(Object.keys(require('express')).join())"
    if bed.quick:
        return [
            step("npm ci", "ci"),
            Step("node runs it", lambda place: place.text("node", "-e", runs)),
            TURN,
            Step("rm -rf node_modules", lambda place: place.text("rm", "-rf", "node_modules")),
            step("npm ci again", "ci"),
        ]
    return [
        step("npm ci", "ci"),
        Step("node runs it", lambda place: place.text("node", "-e", runs)),
        step("npm install another version", "install", "express@4.18.2"),
        TURN,
        step("npm uninstall", "uninstall", "express"),
        step("npm install", "install", "express@4.17.1"),
        Step("rm -rf node_modules", lambda place: place.text("rm", "-rf", "node_modules")),
        step("npm ci again", "ci"),
    ]
