//! Shells: redirections of every kind, and what writes through them.

use super::saving::{saving, savings};

savings! {
    redirect => saving("cat $NEW > a.txt");
    redirect_by_bash => saving("bash -c 'cat $NEW > a.txt'");
    redirect_by_dash => saving("dash -c 'cat $NEW > a.txt'");
    redirect_over_noclobber => saving("bash -c 'set -C; cat $NEW >| a.txt'");
    redirect_of_a_child => saving("sh -c 'cat $NEW' > a.txt");
    redirect_of_a_group => saving("{ head -n $N $NEW; tail -n +$((N + 1)) $NEW; } > a.txt");
    redirect_of_a_subshell => saving("(head -n $N $NEW; (tail -n +$((N + 1)) $NEW)) > a.txt");
    redirect_of_a_pipeline => saving(r#"cat a.txt | sed "1,${N}s/^/changed /" | cat > $OUT/t; cat $OUT/t > a.txt"#);
    redirect_of_a_background_job => saving("cat $NEW > a.txt & wait");
    redirect_read_and_write => saving("cat $NEW 1<>a.txt");
    redirect_of_builtins => saving(r#"new=$(cat $NEW); printf '%s\n' "$new" > a.txt"#);
    redirect_of_the_shell_itself => saving("exec 3>a.txt; cat $NEW >&3; exec 3>&-");
    redirect_of_lines => saving("while read -r line; do echo \"$line\"; done < $NEW > a.txt");
    here_document => saving("cat > a.txt <<END\n$(cat $NEW)\nEND");
    append => saving("tail -n $N $NEW >> a.txt");
    append_by_bash => saving("bash -c 'tail -n $N $NEW >> a.txt'");
    append_by_dash => saving("dash -c 'tail -n $N $NEW >> a.txt'");
    append_of_a_child => saving("sh -c 'tail -n $N $NEW' >> a.txt");
    append_of_a_loop => saving("for n in $(seq $N); do echo more $n; done >> a.txt");
    emptied_then_appended_to => saving(": > a.txt; cat $NEW >> a.txt");
    removed_then_redirected => saving("rm a.txt; cat $NEW > a.txt");
    moved_away_then_redirected => saving("mv a.txt a.txt~; sed \"1,${N}s/^/changed /\" a.txt~ > a.txt; rm a.txt~");
    through_a_symlink => saving("cat $NEW > to-a");
    through_another_directory => saving("mkdir d; cat $NEW > d/a.txt; mv d/a.txt a.txt; rmdir d");
    tee => saving("tee a.txt < $NEW > /dev/null");
    tee_append => saving("tail -n $N $NEW | tee -a a.txt > /dev/null");
    sponge => saving(r#"sed "1,${N}s/^/changed /" a.txt | TMPDIR=/dev/shm sponge a.txt"#);
    sponge_append => saving("tail -n $N $NEW | TMPDIR=/dev/shm sponge -a a.txt");
}
