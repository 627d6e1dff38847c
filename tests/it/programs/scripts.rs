//! How programs written in Python and JavaScript save files: by their standard libraries, and as the libraries do that
//! write atomically. prettier saves by `fs.promises.writeFile`, npm by the temp file and rename of write-file-atomic.

use super::saving::{python, saving, savings};

/// A script for node that has `text`, the content of `a.txt` with the first `$N` lines changed.
macro_rules! node {
    ($script:literal) => {
        concat!(
            "node - <<'END'\nconst fs = require('fs');\n",
            "const old = fs.readFileSync('a.txt', 'utf8').split('\\n');\n",
            "const text = old.map((line, at) => at < process.env.N ? 'changed ' + line : line).join('\\n');\n",
            $script,
            "\nEND"
        )
    };
}

savings! {
    python_open_w => saving(python!("with open('a.txt', 'w') as f: f.write(new)"));
    python_open_w_unclosed => saving(python!("open('a.txt', 'w').write(new)"));
    python_open_w_unbuffered => saving(python!("
with open('a.txt', 'wb', buffering=0) as f:
    for line in new.splitlines(True): f.write(line.encode())"));
    python_open_w_fsynced_in_the_middle => saving(python!("
with open('a.txt', 'w') as f:
    f.write(new[:100]); f.flush(); os.fsync(f.fileno()); f.write(new[100:])"));
    python_writes_and_exits_hard => saving(python!("
f = os.open('a.txt', os.O_WRONLY | os.O_TRUNC)
os.write(f, new.encode())
os._exit(0)"));
    python_is_killed_after_writing => saving(python!("
if os.fork() == 0:
    f = os.open('a.txt', os.O_WRONLY | os.O_TRUNC)
    os.write(f, new.encode())
    os.kill(os.getpid(), 9)
os.wait()"));
    python_pathlib => saving(python!("import pathlib; pathlib.Path('a.txt').write_text(new)"));
    python_append => saving(python!("
with open('a.txt', 'a') as f: f.writelines('more\\n' for _ in range(int(os.environ['N'])))"));
    python_r_plus_then_truncate => saving(python!("
with open('a.txt', 'r+') as f:
    f.write(new); f.truncate()"));
    python_truncate_then_write => saving(python!("
with open('a.txt', 'r+') as f:
    f.truncate(0); f.write(new)"));
    python_truncate_by_path => saving(python!("
os.truncate('a.txt', 0)
with open('a.txt', 'r+') as f: f.write(new)"));
    python_fileinput => saving(python!("
import fileinput
for line in fileinput.input('a.txt', inplace=True):
    print('changed ' * (fileinput.filelineno() <= int(os.environ['N'])) + line, end='')"));
    python_fileinput_backup => saving(python!("
import fileinput
for line in fileinput.input('a.txt', inplace=True, backup='.bak'):
    print('changed ' * (fileinput.filelineno() <= int(os.environ['N'])) + line, end='')"));
    python_replace => saving(python!("
with open('.a.txt.tmp', 'w') as f:
    f.write(new); f.flush(); os.fsync(f.fileno())
os.replace('.a.txt.tmp', 'a.txt')"));
    python_named_temporary_file => saving(python!("
import shutil, tempfile
with tempfile.NamedTemporaryFile('w', dir='.', delete=False) as f: f.write(new)
shutil.copystat('a.txt', f.name)
os.replace(f.name, 'a.txt')"));
    python_replace_and_sync_the_directory => saving(python!("
with open('a.txt.tmp', 'w') as f:
    f.write(new); f.flush(); os.fsync(f.fileno())
os.rename('a.txt.tmp', 'a.txt')
d = os.open('.', os.O_DIRECTORY); os.fsync(d); os.close(d)"));
    python_replace_while_open => saving(python!("
with open('.a.txt.tmp', 'w') as f:
    f.write(new); f.flush()
    os.replace('.a.txt.tmp', 'a.txt')"));
    python_write_after_replace => saving(python!("
with open('.a.txt.tmp', 'w') as f:
    os.replace('.a.txt.tmp', 'a.txt')
    f.write(new)"));
    python_shutil_copyfile => saving("python3 -c 'import os, shutil; shutil.copyfile(os.environ[\"NEW\"], \"a.txt\")'");
    python_shutil_copy2 => saving("python3 -c 'import os, shutil; shutil.copy2(os.environ[\"NEW\"], \"a.txt\")'");
    python_shutil_move => saving(python!("
import shutil, tempfile
with tempfile.NamedTemporaryFile('w', dir='/dev/shm', delete=False) as f: f.write(new)
shutil.move(f.name, 'a.txt')"));
    python_copy_file_range => saving(python!("
with open('new', 'w') as f: f.write(new)
with open('new', 'rb') as f, open('a.txt', 'r+b') as g:
    g.truncate(0)
    while os.copy_file_range(f.fileno(), g.fileno(), 1 << 20): pass
os.unlink('new')"));
    python_sendfile => saving(python!("
with open(os.environ['NEW'], 'rb') as f, open('a.txt', 'wb') as g:
    while os.sendfile(g.fileno(), f.fileno(), None, 1 << 20): pass"));
    python_pwrite => saving(python!("
f = os.open('a.txt', os.O_WRONLY)
for at in range(0, len(new), 100): os.pwrite(f, new[at:at + 100].encode(), at)
os.close(f)"));
    python_mmap => saving(python!("
import mmap
with open('a.txt', 'r+b') as f:
    f.truncate(len(new))
    with mmap.mmap(f.fileno(), len(new)) as m:
        m[:] = new.encode(); m.flush()"));
    python_mmap_stored_after_close => saving(python!("
import mmap
with open('a.txt', 'r+b') as f: m = mmap.mmap(f.fileno(), 0)
for line in range(int(os.environ['N'])): m[9 * line:9 * line + 4] = b'LINE'
m.close()"));
    python_mmap_never_synced => saving(python!("
import mmap
with open('a.txt', 'r+b') as f: m = mmap.mmap(f.fileno(), 0)
for line in range(int(os.environ['N'])): m[9 * line:9 * line + 4] = b'LINE'
os._exit(0)"));
    python_dup => saving(python!("
f = os.open('a.txt', os.O_WRONLY | os.O_TRUNC)
g = os.dup(f)
os.close(f); os.write(g, new.encode()); os.close(g)"));
    python_forked_child_writes_last => saving(python!("
f = os.open('a.txt', os.O_WRONLY | os.O_TRUNC)
r, w = os.pipe()
if os.fork() == 0:
    os.close(w); os.read(r, 1); os.write(f, new.encode()); os._exit(0)
os.close(f); os.close(w); os.wait()"));
    python_two_writers_of_halves => saving(python!("
half = len(new) // 2
f = os.open('a.txt', os.O_WRONLY | os.O_TRUNC)
g = os.open('a.txt', os.O_WRONLY)
os.write(f, new[:half].encode()); os.close(f)
os.pwrite(g, new[half:].encode(), half); os.close(g)"));
    python_lockf => saving(python!("
import fcntl
with open('a.txt', 'r+') as f:
    fcntl.lockf(f, fcntl.LOCK_EX); f.truncate(0); f.write(new); f.flush()"));
    python_through_proc_self_fd => saving(python!("
f = os.open('a.txt', os.O_RDONLY)
with open('/proc/self/fd/%d' % f, 'w') as g: g.write(new)
os.close(f)"));
    python_json_like_config_save => saving(python!("
os.rename('a.txt', 'a.txt.old')
with open('a.txt', 'w') as f: f.write(new)
os.chmod('a.txt', 0o640)
os.unlink('a.txt.old')"));
    node_write_file_sync => saving(node!("fs.writeFileSync('a.txt', text);"));
    node_write_file_promise => saving(node!("fs.promises.writeFile('a.txt', text);"));
    node_write_file_by_bytes_of_a_handle => saving(node!("
(async () => {
    const file = await fs.promises.open('a.txt', 'r+');
    await file.truncate(0); await file.writeFile(text); await file.close();
})();"));
    node_append_file_sync => saving(node!("fs.appendFileSync('a.txt', 'more\\n'.repeat(process.env.N));"));
    node_write_stream => saving(node!("
const stream = fs.createWriteStream('a.txt');
for (const line of text.split(/(?<=\\n)/)) stream.write(line);
stream.end();"));
    node_rename_sync => saving(node!("
fs.writeFileSync('a.txt.tmp', text);
fs.renameSync('a.txt.tmp', 'a.txt');"));
    node_write_file_atomic => saving(node!("
const temp = 'a.txt.' + process.pid + '1234';
const { mode, uid, gid } = fs.statSync('a.txt');
const fd = fs.openSync(temp, 'w', mode);
fs.writeSync(fd, text); fs.fsyncSync(fd); fs.closeSync(fd);
fs.chownSync(temp, uid, gid); fs.chmodSync(temp, mode);
fs.renameSync(temp, 'a.txt');"));
    node_copy_file_sync => saving(node!("
fs.writeFileSync(process.env.OUT + '/new', text);
fs.copyFileSync(process.env.OUT + '/new', 'a.txt');"));
    node_cp_with_force => saving(node!("
fs.writeFileSync('new', text);
fs.cpSync('new', 'a.txt', { force: true });
fs.unlinkSync('new');"));
    node_unlink_then_exclusive => saving(node!("
fs.unlinkSync('a.txt');
fs.writeFileSync('a.txt', text, { flag: 'wx' });"));
    perl_open => saving("perl -e 'open F, \"<\", $ENV{NEW}; @new = <F>; open G, \">\", \"a.txt\"; print G @new'");
    perl_read_write => saving("perl -e 'open F, \"<\", $ENV{NEW}; @new = <F>; open G, \"+<\", \"a.txt\"; print G @new; \
        truncate G, tell G'");
}
