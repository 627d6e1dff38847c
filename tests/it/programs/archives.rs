//! Programs that unpack: each unlinks what is there, or writes into it.

use super::saving::{Saving, saving, savings};

const fn tar(script: &'static str) -> Saving {
    saving(script).prepared("mkdir t; cp $NEW t/a.txt; touch -d 2019-01-01 t/a.txt; tar -C t -cf a.tar a.txt; rm -r t")
}

const fn zip(script: &'static str) -> Saving {
    saving(script).prepared(
        "mkdir t; cp $NEW t/a.txt; touch -d 2019-01-01 t/a.txt; (cd t; python3 -m zipfile -c ../a.zip a.txt); rm -r t",
    )
}

savings! {
    tar => tar("tar xf a.tar");
    tar_overwrite => tar("tar xf a.tar --overwrite");
    tar_unlink_first => tar("tar xf a.tar --unlink-first");
    tar_touch => tar("tar xmf a.tar");
    tar_to_stdout => tar("tar xOf a.tar a.txt > a.txt");
    tar_through_a_pipe => tar("cat a.tar | tar xf -");
    unzip => zip("unzip -qo a.zip");
    unzip_with_backup => zip("unzip -qoB a.zip");
    unzip_by_python => zip("python3 -m zipfile -e a.zip .");
    untar_by_python => tar("python3 -c 'import tarfile; tarfile.open(\"a.tar\").extractall()'");
    gunzip_force => saving("gunzip -kf a.txt.gz").prepared("gzip -c $NEW > a.txt.gz");
}
