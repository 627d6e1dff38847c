//! Programs that copy, move and filter files: coreutils, sed, perl -i, patch, rsync.

use super::saving::{Saving, saving, savings};

const fn with_new_beside(script: &'static str) -> Saving {
    saving(script).prepared("cp $NEW new")
}

savings! {
    sed_i => saving("sed -i \"1,${N}s/^/changed /\" a.txt");
    sed_i_backup => saving("sed -i.bak \"1,${N}s/^/changed /\" a.txt");
    sed_i_backup_elsewhere => saving("mkdir bak; sed -i'bak/*' \"1,${N}s/^/changed /\" a.txt");
    sed_i_follows_symlinks => saving("sed -i --follow-symlinks \"1,${N}s/^/changed /\" to-a");
    perl_i => saving("perl -i -pe 's/^/changed / if $. <= $ENV{N}' a.txt");
    perl_i_backup => saving("perl -i.bak -pe 's/^/changed / if $. <= $ENV{N}' a.txt");
    awk_and_mv => saving("awk -v n=$N 'NR <= n { $0 = \"changed \" $0 } 1' a.txt > a.txt.new && mv a.txt.new a.txt");
    cp => saving("cp $NEW a.txt");
    cp_force => saving("cp -f $NEW a.txt");
    cp_reflink_auto => saving("cp --reflink=auto $NEW a.txt");
    cp_reflink_never => saving("cp --reflink=never $NEW a.txt");
    cp_within => with_new_beside("cp new a.txt");
    cp_sparse => saving("cp --sparse=always $NEW a.txt");
    cp_preserving => saving("touch -d 2019-01-01 $NEW; cp -p $NEW a.txt");
    cp_archive_of_attributes => with_new_beside("setfattr -n user.other -v set new; cp -a new a.txt");
    cp_removes_destination => saving("cp --remove-destination $NEW a.txt");
    cp_backup => saving("cp -b $NEW a.txt");
    cp_backup_numbered => saving("cp --backup=numbered $NEW a.txt");
    mv_over => saving("cp $NEW t; mv t a.txt");
    mv_backup => saving("cp $NEW t; mv -b t a.txt");
    mv_across_file_systems => saving("t=$(mktemp -p /dev/shm); cp $NEW $t; chmod 600 $t; mv $t a.txt");
    install => saving("install $NEW a.txt").made_executable();
    install_mode => saving("install -m 600 $NEW a.txt");
    install_backup => saving("install -b $NEW a.txt").made_executable();
    install_compare => saving("install -C -m 640 $NEW a.txt");
    ln_force => saving("cp $NEW t; ln -f t a.txt; rm t");
    ln_backup => saving("cp $NEW t; ln -b t a.txt; rm t");
    dd => saving("dd if=$NEW of=a.txt status=none");
    dd_notrunc => saving("head -n $N $NEW | dd of=a.txt conv=notrunc bs=64 status=none");
    dd_in_the_middle => saving("yes | head -n $N | dd of=a.txt conv=notrunc seek=1 bs=100 status=none");
    dd_append => saving("tail -n $N $NEW | dd of=a.txt oflag=append conv=notrunc status=none");
    dd_fsync => saving("dd if=$NEW of=a.txt conv=fsync status=none");
    sort_in_place => saving("cp $NEW t; sort -m -o a.txt t; rm t");
    sort_of_itself => saving("sort -o a.txt a.txt")
        .prepared("sort a.txt > t; { tail -n $((N / 2)) t; head -n -$((N / 2)) t; } > a.txt; rm t");
    truncate => saving("truncate -s -$((N * 9)) a.txt");
    truncate_then_grow => saving("truncate -s 0 a.txt; cat $NEW >> a.txt");
    split_and_join => saving("split -l 50 $NEW part-; cat part-* > a.txt; rm part-*");
    patch => saving("diff -u a.txt $NEW | patch -s a.txt");
    patch_backup => saving("diff -u a.txt $NEW | patch -s -b a.txt");
    patch_by_its_name => saving("diff -u a.txt $NEW > $OUT/p || :; sed -i '1,2s,^\\(...\\) [^\\t]*,\\1 a.txt,' $OUT/p; patch -s -p0 -i $OUT/p");
    rsync => saving("rsync --ignore-times $NEW a.txt");
    rsync_archive => saving("touch -d 2019-01-01 $NEW; rsync -aX $NEW a.txt");
    rsync_inplace => saving("rsync --ignore-times --inplace $NEW a.txt");
    rsync_inplace_by_blocks => saving("rsync --ignore-times --inplace --no-whole-file --block-size=256 $NEW a.txt");
    rsync_append => saving("cat a.txt > $OUT/a.txt; tail -n $N $NEW >> $OUT/a.txt; rsync --append $OUT/a.txt a.txt");
    rsync_backup => saving("rsync --ignore-times --backup $NEW a.txt");
    rsync_delay_updates => saving("cp $NEW $OUT/a.txt; rsync -r --ignore-times --delay-updates $OUT/ ./");
    cc_output => saving("printf 'int x[] = {%s};\\n' $(seq -s, $N) > $OUT/x.c; cc -c -o x.o $OUT/x.c")
        .of("x.o")
        .prepared("echo 'int y;' > $OUT/x.c; cc -c -o x.o $OUT/x.c")
        .of_binary();
}
