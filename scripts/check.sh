#!/usr/bin/env bash
# What "green" means: formatting, lints, the build, the demo, the bench's answers, every test with real mounts.
# On a clean Debian checkout it installs what it needs (as root; otherwise it says what is missing). CI runs this and
# nothing else. Nothing is skipped: without /dev/fuse it fails. The last lines are those of `cargo test`.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
target=${CARGO_TARGET_DIR:-$root/target}

# One line for each program the build, the tests or the demo run: the program, and the Debian package it comes in.
needs='
cc           gcc
fusermount3  fuse3
git          git
python3      python3
rg           ripgrep
rsync        rsync
perl         perl
sed          sed
tar          tar
vim          vim
nano         nano
ed           ed
emacs        emacs-nox
node         nodejs
patch        patch
make         make
unzip        unzip
sqlite3      sqlite3
jq           jq
sponge       moreutils
black        black
mkfs.ext4    e2fsprogs
mkfs.xfs     xfsprogs
mkfs.btrfs   btrfs-progs
stress-ng    stress-ng
fio          fio
losetup      mount
setfattr     attr
setfacl      acl
unshare      util-linux
systemd-analyze systemd
man          man-db
groff        groff-base
zsh          zsh
yamllint     yamllint
fish         fish
inotifywait  inotify-tools
chattr       e2fsprogs
ps           procps
'

say() { printf '\n== %s (after %d s)\n' "$*" "$SECONDS"; }
fail() { printf 'check: %s\n' "$*" >&2; exit 1; }

missing_packages() {
    local program package
    while read -r program package; do
        if [[ -n $program ]] && ! command -v "$program" >/dev/null; then
            printf '%s\n' "$package"
        fi
    done <<<"$needs"
    # No program of its own: the client of the MCP tests is installed into an environment that it makes.
    if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
        printf 'python3-venv\n'
    fi
}

install_missing() {
    PATH=$PATH:/usr/sbin:/sbin
    local missing
    mapfile -t missing < <(missing_packages)
    ((${#missing[@]})) || return 0
    if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
        fail "missing: ${missing[*]}. As root on Debian: apt-get install ${missing[*]}"
    fi
    say "apt-get install ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    mapfile -t missing < <(missing_packages)
    ((${#missing[@]} == 0)) || fail "still missing after the installation: ${missing[*]}"
}

# Mounts of ours: the source or the mountpoint lies in this run's scratch or build directory.
mounts_left() {
    local source point type _rest
    while read -r source point type _rest; do
        [[ $type == fuse.fettlefs ]] || continue
        case $source$'\n'$point in
            *"$scratch"/* | *"$target"/*) printf '%s on %s\n' "$source" "$point" ;;
        esac
    done </proc/mounts
}

# Processes that run a fettlefs which this checkout built and that were not there when the run began.
daemons_now() {
    local link exe
    for link in /proc/[0-9]*/exe; do
        exe=$(readlink "$link" 2>/dev/null) || continue
        exe=${exe% (deleted)}
        if [[ $exe == "$target"/*/fettlefs ]]; then
            link=${link#/proc/}
            printf '%s\n' "${link%/exe}"
        fi
    done
}

daemons_left() {
    comm -13 <(sort <<<"$daemons_before") <(daemons_now | sort)
}

# What goes on beside the rest, with its output in $scratch/beside.log. It has one thread most of the time, or waits for
# disks.
go_beside() {
    set -e
    say "cargo test --no-run, beside the others"
    cargo test --quiet --locked --no-run --lib --test it
    say "scripts/powercut, beside the others"
    scripts/powercut --states 40 --bin "$target/debug/fettlefs"
    say "scripts/conformance --quick, beside the others"
    # Beside what it builds, so that the suites are built once for it.
    scripts/conformance --quick --cache "$target/suites" --bin "$target/debug/fettlefs"
}

start_beside() {
    # A process group of its own, to be ended with all that it has started.
    set -m
    go_beside >"$scratch/beside.log" 2>&1 &
    beside=$!
    set +m
}

await_beside() {
    local status=0
    wait "$beside" || status=$?
    beside=
    cat "$scratch/beside.log"
    return "$status"
}

# They take down what they have mounted.
end_beside() {
    local group=$beside tries=0
    [[ -n $group ]] || return 0
    kill -TERM -- "-$group" 2>/dev/null || true
    await_beside || true
    while kill -0 -- "-$group" 2>/dev/null && ((tries++ < 300)); do
        sleep 0.1
    done
}

finish() {
    local status=$? tries=0 mounts daemons
    trap - EXIT
    end_beside
    # A daemon that has just been unmounted may still be on its way out.
    while mounts=$(mounts_left) daemons=$(daemons_left) && [[ -n $mounts$daemons ]] && ((tries++ < 50)); do
        sleep 0.1
    done
    if [[ -n $mounts ]]; then
        printf 'check: left mounted by this run:\n%s\n' "$mounts" >&2
        status=1
    fi
    if [[ -n $daemons ]]; then
        printf 'check: fettlefs processes left by this run:\n' >&2
        ps -o pid,ppid,etime,args -p "${daemons//$'\n'/,}" >&2 || true
        status=1
    fi
    if [[ -z $mounts$daemons ]]; then
        rm -rf --one-file-system "$scratch"
    else
        printf 'check: %s stays\n' "$scratch" >&2
    fi
    exit "$status"
}

[[ -c /dev/fuse ]] || fail "no /dev/fuse: the tests mount for real (modprobe fuse; in a container: --device /dev/fuse)"
command -v cargo >/dev/null || fail "no cargo: install Rust with rustup; rust-toolchain.toml names the version"
install_missing

mkdir -p "$target"
target=$(cd "$target" && pwd -P)
scratch=$(mktemp -d "$target/check.XXXXXX")
# Tests that run as another user must get in.
chmod 755 "$scratch"
daemons_before=$(daemons_now)
beside=
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
export TMPDIR=$scratch
# No setting of the person who runs this may change an outcome.
unset "${!FETTLE_@}"

# What is built once needs no notes for a second time, which take a fifth of what building ours does.
if [[ -n ${CI:-} ]]; then
    export CARGO_INCREMENTAL=0
fi

say "cargo fmt --check"
cargo fmt --check
say "cargo clippy"
cargo clippy --quiet --locked --all-targets -- -D warnings
say "cargo build"
cargo build --quiet --locked
say "scripts/demo"
scripts/demo --bin "$target/debug/fettlefs"
start_beside
say "scripts/selfhost"
scripts/selfhost --bin "$target/debug/fettlefs"
say "scripts/kill9"
scripts/kill9 --rounds 12 --bin "$target/debug/fettlefs"
say "scripts/names"
scripts/names --rounds 25 --bin "$target/debug/fettlefs"
scripts/names --rounds 6 --kill --bin "$target/debug/fettlefs"
say "scripts/keeps"
scripts/keeps --rounds 6 --bin "$target/debug/fettlefs"
if ((EUID == 0)); then
    scripts/keeps --rounds 3 --seed 50 --as-user --bin "$target/debug/fettlefs"
    scripts/keeps --rounds 3 --seed 50 --full --bin "$target/debug/fettlefs"
fi
say "scripts/alike"
scripts/alike --rounds 25 --bin "$target/debug/fettlefs"
if ((EUID == 0)); then
    scripts/alike --rounds 25 --as-user --bin "$target/debug/fettlefs"
fi
say "scripts/realworld --quick"
# Not cargo and npm, which take minutes.
scripts/realworld --quick --only git --only trees --only sqlite --only traffic --bin "$target/debug/fettlefs"
say "scripts/reading --smoke"
scripts/reading --smoke --bin "$target/debug/fettlefs"
say "scripts/effects --smoke"
scripts/effects --smoke --bin "$target/debug/fettlefs"
say "scripts/endtoend"
scripts/endtoend --bin "$target/debug/fettlefs"
say "scripts/session --check"
scripts/session --check --bin "$target/debug/fettlefs"
if ((EUID == 0)); then
    say "scripts/package --check"
    # Beside what it builds, so that cargo-deb is built once for it.
    scripts/package --profile dev --no-build --check
fi
say "scripts/bench --smoke"
scripts/bench --smoke --bin "$target/debug/fettlefs"
scripts/bench --smoke --growth --bin "$target/debug/fettlefs"
say "what went on beside"
await_beside
say "cargo test"
# Death at every step (scripts/crashpoints) is among them: src/overlay/tests/crash.rs tells its counts.
# Named targets, so that the last summary is that of tests and not of documentation examples, of which there are none.
# Most of them wait for programs and for the disk: twice as many as cores at a time.
# Who starts this in the background of a script, or by nohup, ignores signals, and every program of a test would: bash cannot
# even trap them.
env --default-signal \
    cargo test --locked --no-fail-fast --lib --test it -- --test-threads=$(($(nproc) * 2))
