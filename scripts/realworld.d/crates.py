"""Real files: the unpacked sources of the crates that a build of fettlefs leaves in the cargo registry."""

import os
from pathlib import Path

from bed import Stop

# Larger ones are generated bindings; they make every step slow and show nothing that smaller ones do not.
FILE_BYTES_MAX = 512 << 10


def unpacked(env):
    """The directories of unpacked crates, in order of their names."""
    registries = sorted(Path(env["CARGO_HOME"], "registry", "src").glob("*"))
    found = sorted((crate for registry in registries for crate in registry.iterdir()), key=lambda crate: crate.name)
    if not found:
        raise Stop(f"no unpacked crates in {env['CARGO_HOME']}/registry/src: build fettlefs once")
    return found


def files(env, count):
    """The first `count` files of the unpacked crates: (relative path, content, whether it can be executed)."""
    taken = []
    for crate in unpacked(env):
        for directory, directories, names in os.walk(crate):
            directories.sort()
            for name in sorted(names):
                path = Path(directory, name)
                meta = path.lstat()
                if path.is_symlink() or meta.st_size > FILE_BYTES_MAX:
                    continue
                taken.append((str(path.relative_to(crate.parent)), path.read_bytes(), bool(meta.st_mode & 0o100)))
                if len(taken) == count:
                    return taken
    raise Stop(f"the registry has {len(taken)} files, not {count}")


def write_tree(top, taken):
    for path, content, executable in taken:
        full = Path(top, path)
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_bytes(content)
        if executable:
            full.chmod(0o755)
