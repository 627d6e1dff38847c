//! What a container lets through, as docs/CI.md tells it: the device, the capability, seccomp and AppArmor, each by what
//! the kernel answers. The recipes of docs/ci.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::harness::{Output, Scratch, mounted_scratch};

/// Has the calls named in its first argument fail with the errno of its second, and becomes the rest.
const REFUSING: &str = r#"
import ctypes, os, struct, sys
numbers = {"x86_64": {"mount": 165, "umount2": 166, "unshare": 272, "setns": 308},
           "aarch64": {"mount": 40, "umount2": 39, "unshare": 97, "setns": 268}}[os.uname().machine]
calls, errno = [numbers[name] for name in sys.argv[1].split(",")], int(sys.argv[2])
code = [(0x20, 0, 0, 0)] + [(0x15, len(calls) - at, 0, call) for at, call in enumerate(calls)]
code += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050000 | errno)]
text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
class Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("code", ctypes.c_void_p)]
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(22, 2, ctypes.byref(Program(len(code), ctypes.addressof(text))), 0, 0) != 0:
    sys.exit("seccomp: " + os.strerror(ctypes.get_errno()))
os.execvp(sys.argv[3], sys.argv[3:])
"#;

/// docker's default profile, for who has no CAP_SYS_ADMIN: EPERM.
const SECCOMP: &str = "python3 -c \"$REFUSING\" mount,umount2,unshare,setns 1";
/// AppArmor's `docker-default`: EACCES.
const APPARMOR: &str = "python3 -c \"$REFUSING\" mount 13";
const NO_SYS_ADMIN: &str = "setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin";
const USER: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all";
const DEVICE: &str = "mknod -m 666 $ROOT/fuse c 10 229; mount --bind $ROOT/fuse /dev/fuse";
const NO_DEVICE: &str = "mknod -m 666 $ROOT/null c 1 3; mount -t tmpfs none /dev; cp -a $ROOT/null /dev/null";

/// `fettlefs ARGUMENTS` in a mount namespace that `prepare` has made, behind `wrapped`.
fn contained(scratch: &Scratch, prepare: &str, wrapped: &str, arguments: &[&str]) -> Output {
    let script = format!("set -e\nrm -f $ROOT/fuse $ROOT/null\n{prepare}\nexec {wrapped} \"$FETTLEFS\" \"$@\"");
    let mut command = scratch.command("unshare");
    command.args(["-m", "--propagation", "private", "bash", "-c", &script, "bash", "-C"]).arg(scratch.project());
    command.args(arguments).env("ROOT", scratch.root()).env("FETTLEFS", scratch.fettlefs().get_program());
    command.env("REFUSING", REFUSING).current_dir(scratch.root()).output().expect("unshare").into()
}

fn given_to_a_user(scratch: &Scratch) {
    for path in [scratch.project(), scratch.project().join("a"), scratch.root().join("home")] {
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).expect("root may");
    }
    fs::set_permissions(scratch.root(), PermissionsExt::from_mode(0o777)).expect("a mode");
}

#[test]
fn what_a_container_must_be_given() {
    let scratch = mounted_scratch!();
    scratch.write("a", "as it was\n");
    let (default, named) = (format!("{SECCOMP} {NO_SYS_ADMIN}"), "not in a container without --cap-add SYS_ADMIN");
    let apparmor = "--security-opt apparmor=unconfined";
    for (what, prepare, wrapped, runs, run_says, doctor_says) in [
        ("nothing", NO_DEVICE, default.as_str(), false, "there is no /dev/fuse", "--device /dev/fuse"),
        ("the device", DEVICE, &default, false, named, "--cap-add SYS_ADMIN"),
        ("device and capability", DEVICE, "", true, "", "all is well"),
        ("the same under AppArmor", DEVICE, APPARMOR, false, "Permission denied", apparmor),
        ("no seccomp", DEVICE, NO_SYS_ADMIN, true, "", "`run` works, `mount` does not"),
    ] {
        let ran = contained(&scratch, prepare, wrapped, &["run", "--", "sh", "-c", "cat a; echo new >> a"]);
        assert_eq!(ran.status, if runs { 0 } else { 125 }, "{what}: {}", ran.stderr);
        assert!(ran.stderr.contains(run_says), "{what}: no {run_says:?} in {}", ran.stderr);
        assert_eq!(scratch.read("a"), if runs { "as it was\nnew\n" } else { "as it was\n" }, "{what}");
        scratch.write("a", "as it was\n");
        let doctor = contained(&scratch, prepare, wrapped, &["doctor"]);
        assert!(doctor.stdout.contains(doctor_says), "{what}: no {doctor_says:?} in {}", doctor.stdout);
    }
}

#[test]
fn a_containers_user_runs_by_a_user_namespace_also_without_new_privileges() {
    let scratch = mounted_scratch!();
    scratch.write("a", "as it was\n");
    given_to_a_user(&scratch);
    let tried = |wrapped: &str| contained(&scratch, DEVICE, wrapped, &["run", "--", "sh", "-c", "echo new > a"]);
    assert_eq!(tried(&format!("{SECCOMP} {USER}")).status, 125);
    assert_eq!(scratch.read("a"), "as it was\n");
    tried(&format!("{USER} --no-new-privs")).ok();
    assert_eq!(scratch.read("a"), "new\n");
}

/// The recipes, by name.
fn recipes() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/ci");
    let files = fs::read_dir(folder).expect("recipes").map(|entry| entry.expect("a recipe").path());
    let named = |path: std::path::PathBuf| path.file_name().expect("a name").to_string_lossy().into_owned();
    let mut all: Vec<_> = files.map(|path| (named(path.clone()), fs::read_to_string(path).expect("text"))).collect();
    all.push(("CI.md".to_owned(), include_str!("../../docs/CI.md").to_owned()));
    all
}

#[test]
fn the_recipes_parse_and_name_commands_that_there_are() {
    let scratch = Scratch::new();
    let mut commands = 0;
    for (name, text) in recipes() {
        if name.ends_with(".yml") || name.ends_with(".yaml") {
            let file = scratch.root().join(&name);
            fs::write(&file, &text).expect("a copy");
            let lint = |file: &Path| {
                let rules = "{extends: relaxed, rules: {line-length: disable, truthy: disable}}";
                Output::from(
                    scratch.command("yamllint").args(["-s", "-d", rules]).arg(file).output().expect("yamllint"),
                )
            };
            lint(&file).ok();
            fs::write(&file, text.replace("  ", " \t")).expect("what is no YAML");
            assert_ne!(lint(&file).status, 0, "{name}: yamllint finds nothing");
        }
        for line in text.lines().filter(|line| !line.trim_start().starts_with('#')) {
            for after in line.split("fettlefs ").skip(1) {
                let word: String = after.chars().take_while(|letter| letter.is_ascii_lowercase()).collect();
                let is_command = after[word.len()..].chars().next().is_none_or(|next| " `\n".contains(next));
                if word.is_empty()
                    || !is_command
                    || ["needs", "command", "in", "diff"].contains(&word.as_str()) && name == "CI.md"
                {
                    continue;
                }
                scratch.cli(&[&word, "--help"]).ok();
                commands += 1;
            }
        }
    }
    assert!(commands > 8, "{commands} commands were found");
}
