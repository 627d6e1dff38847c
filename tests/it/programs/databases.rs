//! Databases: a file and its companions change together over time. They are binary, and land with a backup.

use super::saving::{Saving, saving, savings};

const fn sqlite(prepare: &'static str, script: &'static str) -> Saving {
    let asks = "sqlite3 a.db 'PRAGMA integrity_check; SELECT count(*), sum(length(text)) FROM t'";
    saving(script).of("a.db").prepared(prepare).asking(asks).of_binary()
}

const ROLLBACK: &str = "sqlite3 a.db \"CREATE TABLE t(id INTEGER PRIMARY KEY, text); \
    WITH RECURSIVE n(i) AS (VALUES(1) UNION ALL SELECT i+1 FROM n WHERE i<200) INSERT INTO t SELECT i, 'line '||i FROM n\"";
const WAL: &str = "sqlite3 a.db \"PRAGMA journal_mode=WAL; CREATE TABLE t(id INTEGER PRIMARY KEY, text); \
    WITH RECURSIVE n(i) AS (VALUES(1) UNION ALL SELECT i+1 FROM n WHERE i<200) INSERT INTO t SELECT i, 'line '||i FROM n\"";

savings! {
    sqlite_rollback_journal => sqlite(ROLLBACK, "sqlite3 a.db \"UPDATE t SET text = 'changed '||text WHERE id <= $N\"");
    sqlite_truncated_journal =>
        sqlite(ROLLBACK, "sqlite3 a.db \"PRAGMA journal_mode=TRUNCATE; UPDATE t SET text = 'changed '||text WHERE id <= $N\"");
    sqlite_wal => sqlite(WAL, "sqlite3 a.db \"UPDATE t SET text = 'changed '||text WHERE id <= $N\"");
    sqlite_wal_by_mapping =>
        sqlite(WAL, "sqlite3 a.db \"PRAGMA mmap_size=1000000; UPDATE t SET text = 'changed '||text WHERE id <= $N\"");
    sqlite_many_transactions =>
        sqlite(ROLLBACK, "for n in $(seq $((N / 2))); do echo \"UPDATE t SET text = 'changed '||text WHERE id = $n;\"; done | sqlite3 a.db");
    sqlite_vacuum => sqlite(ROLLBACK, "sqlite3 a.db \"DELETE FROM t WHERE id <= $N; VACUUM\"");
}
