//! How programs save files (SAVE-PATTERNS): whatever the sequence of calls, the outcome is that of one change to the
//! file a person knows. Each program runs once on plain directories and once in the view; nothing but the verdict may
//! differ.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use crate::harness::{Output, Scratch, View, lines, mounted_scratch, with_changed_lines};

const OLD_LINES: usize = 200;

/// A way to save `a.txt` with the content of the file `$NEW`. What has `prepare` is prepared on the plain directory.
struct Pattern {
    name: &'static str,
    /// The program that must be there; where it is not, the pattern is left out.
    needs: &'static str,
    prepare: &'static str,
    save: &'static str,
}

const fn pattern(name: &'static str, needs: &'static str, save: &'static str) -> Pattern {
    Pattern { name, needs, prepare: "", save }
}

const GIT_BRANCHES: &str = "git init -q -b main . && echo /.git >.git/info/exclude && git add a.txt && git commit -qm old \
    && git checkout -qb new && cp $NEW a.txt && git commit -qam new && git checkout -q main";

const PATTERNS: &[Pattern] = &[
    pattern("redirect", "sh", "cat $NEW > a.txt"),
    pattern("redirect-in-child", "sh", "(sh -c 'cat $NEW') > a.txt"),
    pattern("tee", "tee", "tee a.txt < $NEW > /dev/null"),
    pattern("cp", "cp", "cp $NEW a.txt"),
    pattern("cp-force-unlink", "cp", "cp --remove-destination $NEW a.txt"),
    pattern("cp-backup", "cp", "cp -b $NEW a.txt"),
    pattern("mv-from-elsewhere", "mv", "cp $NEW $NEW.$$ && mv -f $NEW.$$ a.txt"),
    pattern("mv-over", "mv", "cp $NEW .a.txt.tmp && mv -f .a.txt.tmp a.txt"),
    pattern("mv-backup", "mv", "cp $NEW .a.txt.tmp && mv -b .a.txt.tmp a.txt"),
    pattern("install", "install", "install -m 600 $NEW a.txt"),
    pattern("dd", "dd", "dd if=$NEW of=a.txt status=none"),
    pattern("dd-notrunc-then-shorten", "dd", "dd if=$NEW of=a.txt conv=notrunc status=none; truncate -s $(stat -c %s $NEW) a.txt"),
    pattern("sort-in-place", "sort", "cp $NEW b; sort -m -o a.txt b; rm b"),
    pattern("sed-i", "sed", "sed -i -e \"1{r $NEW\" -e 'd};d' a.txt"),
    pattern("sed-i-backup", "sed", "sed -i.bak -e \"1{r $NEW\" -e 'd};d' a.txt"),
    pattern("perl-i", "perl", "perl -i -ne 'BEGIN{open F,$ENV{NEW}} if($.==1){print while <F>}' a.txt"),
    pattern("perl-i-backup", "perl", "perl -i.bak -ne 'BEGIN{open F,$ENV{NEW}} if($.==1){print while <F>}' a.txt"),
    pattern("tar", "tar", "mkdir ../t-$PPID && cp $NEW ../t-$PPID/a.txt && tar -C ../t-$PPID -cf - a.txt | tar xf - ; rm -r ../t-$PPID"),
    pattern("rsync", "rsync", "rsync --ignore-times $NEW a.txt"),
    pattern("rsync-inplace", "rsync", "rsync --ignore-times --inplace $NEW a.txt"),
    pattern("vim", "vim", "vim -es -u NONE -N a.txt +%d +\"r $NEW\" +wq"),
    pattern("vim-rename", "vim", "vim -es -u NONE -N a.txt +'set backupcopy=no' +%d +\"r $NEW\" +wq"),
    pattern("vim-in-place", "vim", "vim -es -u NONE -N a.txt +'set backupcopy=yes' +%d +\"r $NEW\" +wq"),
    pattern("vim-keeps-a-backup", "vim", "vim -es -u NONE -N a.txt +'set backup' +%d +\"r $NEW\" +wq"),
    pattern("patch", "patch", "diff -u a.txt $NEW | patch -s a.txt"),
    pattern("patch-backup", "patch", "diff -u a.txt $NEW | patch -s -b a.txt"),
    pattern("ed", "ed", "printf '%%d\\nr %s\\nw\\nq\\n' $NEW | ed -s a.txt"),
    pattern("node", "node", "node -e 'fs.writeFileSync(\"a.txt\", fs.readFileSync(process.env.NEW))'"),
    pattern("unlink-and-create", "sh", "rm a.txt; cat $NEW > a.txt"),
    pattern("rename-away-and-create", "sh", "mv a.txt a.txt~; cat $NEW > a.txt; rm a.txt~"),
    pattern("rename-away-and-back", "sh", "mv a.txt b; mv b a.txt; cp $NEW a.txt"),
    pattern("three-renames", "sh", "cp $NEW t; mv a.txt a.txt.bak; mv t a.txt"),
    pattern("link-away-and-rename", "ln", "ln a.txt a.txt.bak; cp $NEW t; mv t a.txt"),
    pattern("through-another-directory", "sh", "mkdir d; cp $NEW d/a.txt; mv d/a.txt a.txt; rmdir d"),
    pattern("python-open-w", "python3", "python3 -SE -c 'import os; open(\"a.txt\",\"w\").write(open(os.environ[\"NEW\"]).read())'"),
    pattern("python-r+", "python3", "python3 -SE -c 'import os
f=open(\"a.txt\",\"r+\"); f.write(open(os.environ[\"NEW\"]).read()); f.truncate()'"),
    pattern("python-os-replace", "python3", "python3 -SE -c 'import os
f=open(\"a.txt.x\",\"w\"); f.write(open(os.environ[\"NEW\"]).read()); f.flush(); os.fsync(f.fileno()); f.close(); os.replace(\"a.txt.x\",\"a.txt\")'"),
    pattern("python-replace-while-open", "python3", "python3 -SE -c 'import os
f=open(\"a.txt.x\",\"w\"); f.write(open(os.environ[\"NEW\"]).read()); f.flush(); os.replace(\"a.txt.x\",\"a.txt\"); f.close()'"),
    pattern("python-write-after-rename", "python3", "python3 -SE -c 'import os
f=open(\"a.txt.x\",\"w\"); os.replace(\"a.txt.x\",\"a.txt\"); f.write(open(os.environ[\"NEW\"]).read()); f.close()'"),
    pattern("python-fileinput", "python3", "python3 -E -c 'import os,fileinput
for n,l in enumerate(fileinput.input(\"a.txt\",inplace=True)):
  if n==0: print(open(os.environ[\"NEW\"]).read(),end=\"\")'"),
    pattern("python-mmap", "python3", "python3 -SE -c 'import os,mmap
new=open(os.environ[\"NEW\"],\"rb\").read(); f=open(\"a.txt\",\"r+b\"); f.truncate(len(new)); m=mmap.mmap(f.fileno(),len(new)); m[:]=new; m.flush(); m.close(); f.close()'"),
    pattern("python-dup", "python3", "python3 -SE -c 'import os
f=os.open(\"a.txt\",os.O_WRONLY|os.O_TRUNC); g=os.dup(f); os.close(f); os.write(g,open(os.environ[\"NEW\"],\"rb\").read()); os.close(g)'"),
    pattern("python-forked-child-writes-last", "python3", "python3 -SE -c 'import os
f=os.open(\"a.txt\",os.O_WRONLY|os.O_TRUNC); r,w=os.pipe()
if os.fork()==0:
  os.close(w); os.read(r,1); os.write(f,open(os.environ[\"NEW\"],\"rb\").read()); os._exit(0)
os.close(f); os.close(w); os.wait()'"),
    pattern("python-otmpfile-or-temp", "python3", "python3 -SE -c 'import os
new=open(os.environ[\"NEW\"],\"rb\").read()
try:
  f=os.open(\".\",os.O_TMPFILE|os.O_WRONLY,0o644); os.write(f,new); os.link(\"/proc/self/fd/%d\"%f,\"t\",follow_symlinks=True)
except OSError: open(\"t\",\"wb\").write(new)
os.rename(\"t\",\"a.txt\")'"),
    Pattern { name: "git-checkout", needs: "git", prepare: GIT_BRANCHES, save: "git checkout -q new" },
    Pattern { name: "git-merge", needs: "git", prepare: GIT_BRANCHES, save: "git merge -q new" },
    Pattern {
        name: "git-stash",
        needs: "git",
        prepare: "git init -q -b main . && git add a.txt && git commit -qm old && cp $NEW a.txt && git stash -q",
        save: "git stash pop -q",
    },
];

/// A pattern that ran: what plain directories have before and after it.
struct Saved {
    name: &'static str,
    before: Looks,
    want: Looks,
}

/// What a person sees of a directory: its names without `.git`, and of `a.txt` the bytes, mode and attributes.
#[derive(Clone, Debug, PartialEq)]
struct Looks {
    names: Vec<String>,
    content: String,
    mode: u32,
    links: u64,
    attributes: BTreeMap<String, String>,
}

fn looks(dir: &Path, new: &[u8]) -> Looks {
    let names = fs::read_dir(dir).expect("a directory").map(|it| it.expect("an entry").file_name());
    let mut names: Vec<_> =
        names.map(|name| name.to_string_lossy().into_owned()).filter(|name| name != ".git").collect();
    names.sort();
    let file = dir.join("a.txt");
    let meta = file.metadata().expect("a.txt");
    Looks {
        names,
        content: named(&fs::read(&file).expect("a.txt"), new),
        mode: meta.permissions().mode(),
        links: meta.nlink(),
        attributes: attributes(&file),
    }
}

/// A content by what it is, so that a failure can be read.
fn named(content: &[u8], new: &[u8]) -> String {
    match content {
        _ if content == new => "new".to_owned(),
        _ if content == lines(OLD_LINES).as_bytes() => "old".to_owned(),
        _ => format!("{} bytes that are neither old nor new", content.len()),
    }
}

/// `user.` attributes that are the file's own.
fn attributes(file: &Path) -> BTreeMap<String, String> {
    let mut names = vec![0; 4096];
    let length = rustix::fs::listxattr(file, &mut names[..]).expect("list attributes");
    let names = names[..length].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user."));
    let value = |name: &str| {
        let mut value = vec![0; 256];
        let length = rustix::fs::getxattr(file, name, &mut value[..]).expect("an attribute");
        String::from_utf8_lossy(&value[..length]).into_owned()
    };
    let names = names.map(|name| String::from_utf8_lossy(name).into_owned());
    names.map(|name| (name.clone(), value(&name))).collect()
}

fn make_old(dir: &Path) {
    fs::create_dir_all(dir).expect("a directory");
    let file = dir.join("a.txt");
    fs::write(&file, lines(OLD_LINES)).expect("a.txt");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("its mode");
    rustix::fs::setxattr(&file, "user.mark", b"kept", rustix::fs::XattrFlags::empty()).expect("its attribute");
}

fn run(scratch: &Scratch, dir: &Path, script: &str, new: &Path) -> Output {
    let output = scratch.command("sh").current_dir(dir).env("NEW", new).args(["-ec", script]).output();
    output.expect("a shell").into()
}

fn is_there(scratch: &Scratch, program: &str) -> bool {
    let found = scratch.command("sh").args(["-c", "command -v \"$0\"", program]).output().expect("a shell");
    if !found.status.success() {
        eprintln!("left out: no {program} here");
    }
    found.status.success()
}

/// Every pattern with `changed` modified lines, in one mount. Gives what is held to `judge`.
fn save_all(changed: usize, judge: impl Fn(&Scratch, &View<'_>, &[Saved], &[u8], &mut Faults)) {
    let scratch = mounted_scratch!();
    let content = with_changed_lines(&lines(OLD_LINES), changed);
    let new = scratch.root().join("new.txt");
    fs::write(&new, &content).expect("the new content");
    let patterns: Vec<_> = PATTERNS.iter().filter(|pattern| is_there(&scratch, pattern.needs)).collect();
    let native = scratch.root().join("native");
    for pattern in &patterns {
        for base in [&native, &scratch.project()] {
            let dir = base.join(pattern.name);
            make_old(&dir);
            run(&scratch, &dir, pattern.prepare, &new).ok();
        }
    }
    let view = scratch.mounting().flag("--burst=1000").start();
    let mut all_saved = Vec::new();
    let mut faults = Faults::default();
    for pattern in &patterns {
        let before = looks(&native.join(pattern.name), content.as_bytes());
        run(&scratch, &native.join(pattern.name), pattern.save, &new).ok();
        let want = looks(&native.join(pattern.name), content.as_bytes());
        assert_eq!(want.content, "new", "{}: the pattern itself saves the new content", pattern.name);
        let saved = run(&scratch, &view.path(pattern.name), pattern.save, &new);
        faults.check(pattern.name, "ran", (saved.status, saved.stderr), (0, String::new()));
        faults.check(pattern.name, "the view", &looks(&view.path(pattern.name), content.as_bytes()), &want);
        all_saved.push(Saved { name: pattern.name, before, want });
    }
    view.cli(&["flush"]).ok();
    judge(&scratch, &view, &all_saved, content.as_bytes(), &mut faults);
    assert!(faults.0.is_empty(), "{}", faults.0.join("\n"));
}

/// What went wrong with which pattern: one run shows all of it.
#[derive(Default)]
struct Faults(Vec<String>);

impl Faults {
    fn check<T: PartialEq + std::fmt::Debug>(&mut self, name: &str, what: &str, is: T, want: T) {
        if is != want {
            self.0.push(format!("{name}: {what}\n   is {is:?}\n want {want:?}"));
        }
    }
}

#[test]
fn a_small_edit_lands_however_it_is_saved() {
    save_all(2, |scratch, view, all_saved, new, faults| {
        faults.check("all", "held", view.held(), vec![]);
        for Saved { name, want, .. } in all_saved {
            faults.check(name, "the project", &looks(&scratch.lower().join(name), new), want);
        }
    });
}

#[test]
fn a_large_edit_is_one_held_change_however_it_is_saved() {
    save_all(100, |scratch, view, all_saved, new, faults| {
        let held = view.held();
        for Saved { name, want, before } in all_saved {
            let below = looks(&scratch.lower().join(name), new);
            // But for what the program itself leaves behind, such as `a.txt.bak`.
            let want_below = Looks { names: want.names.clone(), ..before.clone() };
            faults.check(name, "the project", Looks { links: 1, ..below }, want_below);
            let ours = held.iter().filter(|held| held.path.starts_with(&format!("{name}/")));
            let ours: Vec<_> = ours.map(|held| (held.path.clone(), held.kind.as_str())).collect();
            faults.check(name, "held", ours, vec![(format!("{name}/a.txt"), "modify")]);
        }
        view.cli(&["confirm", "--all", "--yes"]).ok();
        faults.check("all", "held after confirm", view.held(), vec![]);
        for Saved { name, want, .. } in all_saved {
            faults.check(name, "the project, confirmed", &looks(&scratch.lower().join(name), new), want);
            faults.check(name, "the view, confirmed", &looks(&view.path(name), new), want);
        }
    });
}
