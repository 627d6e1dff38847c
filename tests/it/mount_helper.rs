//! mount(8), umount(8) and fstab(5) with the type `fuse.fettlefs` (SPEC §2): real ones, in a mount namespace where the
//! program stands in /sbin under the name they look for.

use std::os::unix::fs::PermissionsExt;

use crate::harness::{Output, Scratch, lines, mounted_scratch};

/// `/sbin` as it is, and our link in it. Everything is gone with the namespace.
const INSTALL: &str = r#"set -e
    mkdir "$ROOT/true-sbin" "$ROOT/sbin" "$VIEW"
    mount --bind /sbin "$ROOT/true-sbin"
    ln -s -t "$ROOT/sbin" "$ROOT"/true-sbin/*
    ln -s "$FETTLEFS" "$ROOT/sbin/mount.fuse.fettlefs"
    mount --bind "$ROOT/sbin" /sbin
    shown() { findmnt -n -o SOURCE,FSTYPE --mountpoint "$1"; }
    set +e
"#;

fn installed(scratch: &Scratch, script: &str) -> Output {
    let mut command = scratch.command("unshare");
    command.args(["-m", "--propagation", "private", "bash", "-c", &format!("{INSTALL}\n{script}")]);
    command.env("FETTLEFS", scratch.fettlefs().get_program()).current_dir(scratch.root());
    command.env("PROJECT", scratch.project()).env("VIEW", scratch.root().join("view")).env("ROOT", scratch.root());
    command.output().expect("unshare").into()
}

#[test]
fn mount_8_mounts_the_view_and_umount_takes_it_away() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(100));
    let script = r#"
        mount -t fuse.fettlefs "$PROJECT" "$VIEW" -o noauto,nofail,_netdev,user,x-systemd.automount,noexec && shown "$VIEW"
        printf 'mine\n' > "$VIEW/a"; printf 'new\n' > "$VIEW/b"
        findmnt -n -o OPTIONS --mountpoint "$VIEW" | grep -cw noexec
        umount "$VIEW" && shown "$VIEW"; echo $?
        mount -v -t fuse.fettlefs "$PROJECT" "$PROJECT" && shown "$PROJECT"; head -c 5 "$PROJECT/a"
        umount "$PROJECT"; head -c 7 "$PROJECT/a"
        mount -t fuse.fettlefs -o 'atime,diratime,norelatime,nolazytime,symfollow,comment="a,b"' "$PROJECT" "$VIEW"
        shown "$VIEW"; umount "$VIEW""#;
    let output = installed(&scratch, script).ok();
    let project = scratch.project();
    let shown = format!("{} fuse.fettlefs\n", project.display());
    assert_eq!(output.stdout, format!("{shown}1\n1\n{shown}mine\nline 1\n{shown}"), "{}", output.stderr);
    assert!(output.stderr.contains(" mounted on "), "{}", output.stderr);
    assert_eq!(scratch.read("b"), "new\n");
}

#[test]
fn a_line_of_fstab_is_enough() {
    let scratch = mounted_scratch!();
    scratch.write("a", lines(3));
    // A blank in a name is written as fstab(5) has it.
    let project = scratch.root().join("my project");
    std::fs::rename(scratch.project(), &project).expect("another name");
    let (from, point) = (project.display().to_string().replace(' ', "\\040"), scratch.root().join("view"));
    let table = format!("# ours\n{from} {} fuse.fettlefs defaults,noauto,nofail,ro,x-more 0 0\n", point.display());
    std::fs::write(scratch.root().join("fstab"), table).expect("a table");
    let script = r#"
        mount -T "$ROOT/fstab" "$VIEW" && shown "$VIEW"; echo no 2>/dev/null > "$VIEW/a"; echo $?; umount "$VIEW"
        mount --fstab "$ROOT/fstab" -o rw "$ROOT/my project" && echo yes > "$VIEW/a"; umount "$VIEW""#;
    let output = installed(&scratch, script).ok();
    let shown = format!("{} fuse.fettlefs\n", project.display());
    assert_eq!(output.stdout, format!("{shown}1\n"), "{}", output.stderr);
    assert_eq!(std::fs::read_to_string(project.join("a")).expect("a"), "yes\n");
    scratch.clear();
}

#[test]
fn what_makes_no_sense_is_refused_by_name_and_mounts_nothing() {
    let scratch = mounted_scratch!();
    let script = r#"
        for how in '-o umask=022' '-o ceil=3,ro' '-o watches=all' '-t fuse.other' '-N 1'; do
            "$ROOT/sbin/mount.fuse.fettlefs" "$PROJECT" "$VIEW" $how; echo "$?"
        done
        "$ROOT/sbin/mount.fuse.fettlefs" "$PROJECT"; echo "$?"
        mount -t fuse.fettlefs -o umask=022 "$PROJECT" "$VIEW"; echo "$?"
        mount -t fuse.fettlefs "$PROJECT/not-there" "$VIEW"; echo "$?"
        mount -f -t fuse.fettlefs "$PROJECT" "$VIEW" && shown "$VIEW"; echo "$?"
        mount -s -v -t fuse.fettlefs -o umask=022 "$PROJECT" "$VIEW"; echo "$?"
        umount "$VIEW"; shown "$VIEW"; echo "$?""#;
    let output = installed(&scratch, script).ok();
    assert_eq!(output.stdout, "1\n1\n1\n1\n1\n1\n1\n32\n1\n0\n1\n", "{}", output.stderr);
    for word in [
        "-N \"1\": no other mount namespace",
        "\"umask=022\"",
        "\"ceil=3\"",
        "\"watches=all\"",
        "\"fuse.other\"",
        "not-there",
        "<MOUNTPOINT>",
    ] {
        assert!(output.stderr.contains(word), "no {word} in {}", output.stderr);
    }
}

#[test]
fn who_is_named_by_user_in_fstab_mounts_and_unmounts_alone() {
    const AGENT: u32 = 65534;
    let scratch = mounted_scratch!();
    scratch.write("a", lines(3));
    for path in [scratch.project(), scratch.project().join("a"), scratch.root().join("home")] {
        std::os::unix::fs::chown(path, Some(AGENT), Some(AGENT)).expect("root may");
    }
    std::fs::set_permissions(scratch.root(), PermissionsExt::from_mode(0o755)).expect("a mode");
    let script = format!(
        r#"
        mknod -m 666 "$ROOT/fuse" c 10 229; mount --bind "$ROOT/fuse" /dev/fuse; chown {AGENT} "$VIEW"
        echo "$PROJECT $VIEW fuse.fettlefs user,noauto 0 0" > "$ROOT/fstab"; mount --bind "$ROOT/fstab" /etc/fstab
        as() {{ setpriv --reuid={AGENT} --regid={AGENT} --clear-groups --inh-caps=-all -- "$@"; }}
        as mount "$VIEW" && shown "$VIEW"; as sh -c 'echo mine > "$VIEW/a"'; cat "$PROJECT/a"
        as umount "$VIEW"; echo $?; shown "$VIEW"; echo $?"#
    );
    let output = installed(&scratch, &script).ok();
    let shown = format!("{} fuse.fettlefs\n", scratch.project().display());
    assert_eq!(output.stdout, format!("{shown}mine\n0\n1\n"), "{}", output.stderr);
}
