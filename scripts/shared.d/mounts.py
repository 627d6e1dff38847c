"""Mounts that nobody else sees, and work in them as an ordinary user who may mount."""
import errno, os, shutil, signal, stat, subprocess, sys, tempfile, traceback

USER = 65534
ENTERED = "FETTLE_SCRIPT_OWN_MOUNTS"


def enter_own_mounts():
    """Runs this script anew in a mount namespace of its own, which takes all its mounts along when it ends. What was dead
    before is not in it: mkfs.btrfs looks at the source of every mount, and fails where nobody answers."""
    if ENTERED not in os.environ:
        os.environ[ENTERED] = "yes"
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv])
    for point in fuse_mounts():
        if is_dead(point):
            subprocess.run(["umount", "--lazy", point], check=True)


def fuse_mounts():
    with open("/proc/self/mounts", "rb") as mounts:
        entries = [line.split() for line in mounts]
    # Blanks and backslashes of a path are written as octal escapes.
    return [point.decode("unicode_escape").encode("latin-1") for _source, point, kind, *_ in entries if kind.startswith(b"fuse")]


def is_dead(point):
    try:
        # Asks who serves it, where `stat` may answer from memory.
        os.statvfs(point)
    except OSError as error:
        return error.errno == errno.ENOTCONN
    return False


def as_user(program, work):
    """The status of `work`, given a copy of `program`, in a child that is that user, with a device that he may open. Nothing
    changes for anybody else: to be called in a mount namespace of its own. SIGINT and SIGTERM become SIGTERM to the child."""
    with tempfile.TemporaryDirectory(prefix="fettle.user.") as scratch:
        device, own, copy = (os.path.join(scratch, name) for name in ("fuse", "own", "fettlefs"))
        os.chmod(scratch, 0o755)
        os.mkdir(own)
        os.chown(own, USER, USER)
        shutil.copy(program, copy)
        os.mknod(device, stat.S_IFCHR, os.makedev(10, 229))
        os.chmod(device, 0o666)
        subprocess.run(["mount", "--bind", device, "/dev/fuse"], check=True)
        child = os.fork()
        if child == 0:
            be_user(own, lambda: work(copy))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: os.kill(child, signal.SIGTERM))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        subprocess.run(["umount", "/dev/fuse"], check=True)
        return status


def be_user(own, work):
    """Ends this process, whatever comes of it: what its parent has set up is its parent's to take away."""
    status = 1
    try:
        tempfile.tempdir = own
        os.setgroups([])
        os.setgid(USER)
        os.setuid(USER)
        status = work()
    except SystemExit as end:
        print(end, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
