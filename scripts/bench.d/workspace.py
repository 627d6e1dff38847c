"""A cargo workspace that needs no registry: small crates that depend on each other, and a program of all of them."""

import shutil
from pathlib import Path

from rig import run

# The one that has built fettlefs is there.
TOOLCHAIN = Path(__file__).resolve().parents[2] / "rust-toolchain.toml"
# Each part depends on those so far before it, so that cargo can build two or three at a time.
BEFORE = (2, 3)


def make_workspace(root, parts, items):
    """So many parts of so many types each. `target` is ignored by git, and passes."""
    for number in range(parts):
        source = "".join(item_source(item) for item in range(items)) + value_source(number, items)
        write_crate(root / part(number), depended_on(number), "lib.rs", source)
    last = list(range(parts - 1, max(-1, parts - 4), -1))
    calls = " + ".join(f"{part(number)}::value()" for number in last)
    write_crate(root / "program", last, "main.rs", f'fn main() {{\n    println!("{{}}", {calls});\n}}\n')
    members = ", ".join(f'"{name}"' for name in [*map(part, range(parts)), "program"])
    (root / "Cargo.toml").write_text(f'[workspace]\nresolver = "2"\nmembers = [{members}]\n')
    (root / ".gitignore").write_text("/target/\n")
    shutil.copy(TOOLCHAIN, root)
    run("cargo", "generate-lockfile", "--offline", "--quiet", cwd=root)


def part(number):
    return f"part{number:02}"


def depended_on(number):
    return [number - before for before in BEFORE if number >= before]


def write_crate(root, parts, name, source):
    (root / "src").mkdir(parents=True)
    paths = "".join(f'{part(number)} = {{ path = "../{part(number)}" }}\n' for number in parts)
    package = f'[package]\nname = "{root.name}"\nversion = "0.1.0"\nedition = "2021"\n\n[dependencies]\n{paths}'
    (root / "Cargo.toml").write_text(package)
    (root / "src" / name).write_text(source)


def item_source(item):
    """A type whose derived code gives the compiler some work; its `weight` is its number."""
    return f"""\
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Item{item} {{
    pub name: String,
    pub parts: Vec<u64>,
    pub others: std::collections::BTreeMap<String, Vec<u8>>,
}}

impl Item{item} {{
    pub fn weight(&self) -> u64 {{
        let mut sorted: Vec<_> = self.parts.iter().copied().filter(|part| *part > 0).collect();
        sorted.sort_unstable();
        sorted.iter().sum::<u64>() + self.others.values().map(|bytes| bytes.len() as u64).sum::<u64>()
    }}
}}

pub fn item{item}() -> u64 {{
    let mut item = Item{item} {{ name: format!("{{}}", {item}), ..Item{item}::default() }};
    item.parts.extend([0, {item}]);
    item.clone().max(item).weight()
}}

"""


def value_source(number, items):
    """The sum of this part's items and of the parts that it depends on."""
    own = " + ".join(f"item{item}()" for item in range(items))
    others = "".join(f" + {part(other)}::value()" for other in depended_on(number))
    return f"pub fn value() -> u64 {{\n    {own}{others}\n}}\n"


def printed(parts, items):
    """What the program prints."""
    values = []
    for number in range(parts):
        values.append(sum(range(items)) + sum(values[other] for other in depended_on(number)))
    return f"{sum(values[-3:])}\n"
