//! Editors, driven as a script drives them, and vim and nano at a terminal as well.

use super::saving::{saving, savings};

/// Runs the command on a terminal of its own and types the script's standard input once it has drawn something.
macro_rules! at_a_terminal {
    ($command:literal, $keys:literal) => {
        concat!(
            r#"python3 -c '
import os, pty, sys
keys = sys.stdin.buffer.read()
pid, screen = pty.fork()
if pid == 0:
    os.execvp("sh", ["sh", "-c", sys.argv[1]])
seen = os.read(screen, 4096)
while keys:
    keys = keys[os.write(screen, keys):]
try:
    while os.read(screen, 4096): pass
except OSError: pass
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
' '"#,
            $command,
            "' <<END\n$(",
            $keys,
            ")\nEND"
        )
    };
}

/// Emacs without anybody's settings but these.
macro_rules! by_emacs {
    ($settings:literal) => {
        concat!(
            "emacs -Q --batch a.txt --eval \"(progn ",
            $settings,
            r#" (goto-char (point-min)) (dotimes (i $N) (insert \"changed \") (forward-line)) (save-buffer))""#
        )
    };
}

savings! {
    vim => saving(r#"vim -es -u NONE -N a.txt +"1,${N}s/^/changed /" +wq"#);
    vim_set_backup => saving(r#"vim -es -u NONE -N a.txt +"set backup" +"1,${N}s/^/changed /" +wq"#);
    vim_backupcopy_yes => saving(r#"vim -es -u NONE -N a.txt +"set backupcopy=yes" +"1,${N}s/^/changed /" +wq"#);
    vim_backupcopy_no => saving(r#"vim -es -u NONE -N a.txt +"set backup backupcopy=no" +"1,${N}s/^/changed /" +wq"#);
    vim_backupcopy_breaks_symlinks =>
        saving(r#"vim -es -u NONE -N a.txt +"set backupcopy=auto,breaksymlink" +"1,${N}s/^/changed /" +wq"#);
    vim_without_any_backup =>
        saving(r#"vim -es -u NONE -N a.txt +"set nobackup nowritebackup" +"1,${N}s/^/changed /" +wq"#);
    vim_with_an_undo_file => saving(r#"vim -es -u NONE -N a.txt +"set undofile undodir=$OUT" +"1,${N}s/^/changed /" +wq"#);
    vim_through_a_symlink => saving(r#"vim -es -u NONE -N to-a +"1,${N}s/^/changed /" +wq"#);
    vim_saves_twice => saving(r#"vim -es -u NONE -N a.txt +"1,${N}s/^/ch /" +w +"1,${N}s/^ch /changed /" +wq"#);
    vim_at_a_terminal => saving(at_a_terminal!("vim -u NONE -N a.txt", r#"printf ":1,%ds/^/changed /\r:wq\r" $N"#));
    ex => saving(r#"printf '1,%ds/^/changed /\nwq\n' $N | ex -s -u NONE a.txt"#);
    ed => saving(r#"printf '1,%ds/^/changed /\nw\nq\n' $N | ed -s a.txt"#);
    nano => saving(at_a_terminal!(
        "nano --ignorercfiles a.txt",
        r#"for line in $(seq $N); do printf "changed \016\001"; done; printf "\017\r\030""#
    ));
    nano_with_backup => saving(at_a_terminal!(
        "nano --ignorercfiles --backup a.txt",
        r#"for line in $(seq $N); do printf "changed \016\001"; done; printf "\017\r\030""#
    ));
    emacs => saving(by_emacs!(""));
    emacs_backs_up_by_copying => saving(by_emacs!("(setq backup-by-copying t)"));
    emacs_holds_the_file_precious => saving(by_emacs!("(setq file-precious-flag t)"));
    emacs_without_backups => saving(by_emacs!("(setq make-backup-files nil)"));
    emacs_through_a_write_visited_file => saving(by_emacs!("(setq write-region-inhibit-fsync nil)"));
}
