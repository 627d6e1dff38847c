//! How files are saved, class by class (SAVE-PATTERNS): sequences of calls that no program at hand makes by itself, each
//! with a small and a large edit, judged as [`crate::programs`] judges programs. What is a class there and not here is
//! covered by programs there: truncation, partial writes, mappings, temporary files, git.

use crate::programs::saving::{Saving, python, saving, savings};

/// `a.txt` in a directory, which is what is swapped.
const fn in_directory(script: &'static str) -> Saving {
    saving(script).of("d/a.txt").prepared("mkdir d; mv a.txt d; echo beside > d/b.txt; ln -sfn d/a.txt to-a")
}

savings! {
    three_renames => saving("cp $NEW t; mv a.txt a.txt.bak; mv t a.txt");
    jetbrains_safe_write => saving(python!("
with open('a.txt___jb_tmp___', 'w') as f: f.write(new)
os.rename('a.txt', 'a.txt___jb_old___')
os.rename('a.txt___jb_tmp___', 'a.txt')
os.unlink('a.txt___jb_old___')"));
    jetbrains_safe_write_keeping_the_mode => saving(python!("
import shutil
with open('a.txt___jb_tmp___', 'w') as f: f.write(new)
shutil.copystat('a.txt', 'a.txt___jb_tmp___')
os.utime('a.txt___jb_tmp___')
os.rename('a.txt', 'a.txt___jb_old___')
os.rename('a.txt___jb_tmp___', 'a.txt')
os.unlink('a.txt___jb_old___')"));
    temp_with_the_mode_of_the_old => saving(python!("
temp = 'a.txt.tmp.%d.1700000000000' % os.getpid()
with open(temp, 'x') as f:
    f.write(new); f.flush(); os.fsync(f.fileno())
os.chmod(temp, os.stat('a.txt').st_mode & 0o7777)
os.rename(temp, 'a.txt')"));
    temp_in_another_directory => saving("mkdir d; cp $NEW d/t; mv d/t a.txt; rmdir d");
    renamed_away_and_back => saving("mv a.txt b; mv b a.txt; cp $NEW a.txt");
    renamed_away_and_made_anew => saving("mv a.txt a.txt~; cp -a a.txt~ a.txt; cat $NEW > a.txt; rm a.txt~");
    renamed_away_removed_and_made_anew => saving("mv a.txt a.txt~; rm a.txt~; cat $NEW > a.txt");
    renamed_away_twice => saving("mv a.txt b; mv b c; cat $NEW > a.txt; rm c");
    renamed_away_to_another_directory => saving("mkdir d; mv a.txt d; cat $NEW > a.txt; rm -r d");
    saved_twice_by_renaming_away => saving("
for part in 1 2; do
    mv a.txt a.txt~; sed \"1,${N}s/^/$part /\" a.txt~ > a.txt; rm a.txt~
done");
    saved_twice_by_temp_and_rename => saving("
for part in 1 2; do sed \"1,${N}s/^/$part /\" a.txt > t; mv t a.txt; done");
    saved_twice_by_unlinking => saving("
for part in 1 2; do sed \"1,${N}s/^/$part /\" a.txt > $OUT/t; rm a.txt; cat $OUT/t > a.txt; done");
    exchanged => saving(python!("
import ctypes
with open('t', 'w') as f: f.write(new)
assert ctypes.CDLL(None).renameat2(-100, b't', -100, b'a.txt', 2) == 0
os.unlink('t')"));
    directory_swapped => in_directory("cp -a d d.new; cat $NEW > d.new/a.txt; mv d d.old; mv d.new d; rm -r d.old");
    // In the view an exchange that would bring content to a path unjudged is refused as one across file systems is.
    directory_exchanged_or_copied => in_directory(
        "cp -a d d.new; cat $NEW > d.new/a.txt; python3 -c '
import ctypes, errno
exchanged = ctypes.CDLL(None, use_errno=True).renameat2(-100, b\"d.new\", -100, b\"d\", 2)
assert exchanged == 0 or ctypes.get_errno() == errno.EXDEV
raise SystemExit(exchanged)' || cp d.new/a.txt d; rm -r d.new"
    );
    directory_removed_and_made_anew => in_directory("cp $NEW $OUT/t; rm -r d; mkdir d; cat $OUT/t > d/a.txt; echo beside > d/b.txt");
    linked_away_and_renamed_over => saving("ln a.txt a.txt.bak; cp $NEW t; mv t a.txt");
    linked_away_and_unlinked => saving("ln a.txt a.txt.bak; rm a.txt; cat $NEW > a.txt; rm a.txt.bak");
    temp_linked_into_place => saving("cp $NEW t; rm a.txt; ln t a.txt; rm t");
    tmpfile_linked_into_place => saving(python!("
try:
    f = os.open('.', os.O_TMPFILE | os.O_WRONLY, 0o644)
    os.write(f, new.encode())
    os.link('/proc/self/fd/%d' % f, 't', follow_symlinks=True)
except OSError:
    with open('t', 'w') as f: f.write(new)
os.rename('t', 'a.txt')"));
    opened_by_its_descriptor => saving(python!("
p = os.open('a.txt', os.O_PATH)
with open('/proc/self/fd/%d' % p, 'r+') as f: f.write(new); f.truncate()"));
    many_writers_at_once => saving(python!("
with open('a.txt', 'r+') as f: f.truncate(len(new))
size = len(new) // 4 + 1
for part in range(4):
    if os.fork() == 0:
        f = os.open('a.txt', os.O_WRONLY)
        os.pwrite(f, new[part * size:(part + 1) * size].encode(), part * size)
        os._exit(0)
for part in range(4): os.wait()")).of_slices();
    kept_open_while_others_save => saving(python!("
f = open('a.txt', 'r+')
with open('a.txt', 'w') as g: g.write(new)
f.close()"));
    appended_to_by_many => saving("for n in $(seq $N); do sh -c 'echo more >> a.txt' & done; wait").of_slices();
    appended_to_in_a_loop => saving("for n in $(seq $N); do echo more $n >> a.txt; done").of_slices();
}
