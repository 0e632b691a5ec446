//! Records that another server wrote into `store.db`.

use std::path::Path;

use rusqlite::Connection;

/// Appends a record to the store of a gateway that has ended.
pub(crate) fn insert_record(file: &Path, key: &str, value: &[u8]) {
    let connection = Connection::open(file).unwrap();
    let last: i64 = connection.query_row("SELECT max(revision) FROM record", [], |row| row.get(0)).unwrap();
    let revision = last + 1;
    let mut crc = crc32fast::Hasher::new();
    // Revision, creation, previous revision and time of expiry.
    for number in [revision, revision, 0, 0] {
        crc.update(&number.to_le_bytes());
    }
    crc.update(&(key.len() as u64).to_le_bytes());
    crc.update(key.as_bytes());
    crc.update(&[0]);
    crc.update(value);
    let row = (revision, key, revision, crc.finalize(), value);
    let insert = "INSERT INTO record (revision, key, created, previous, deleted, expires, crc, value)
                  VALUES (?1, ?2, ?3, 0, 0, 0, ?4, ?5)";
    assert_eq!(connection.execute(insert, row).unwrap(), 1);
    drop(connection);
    // SQLite removes the log. Beside a store that was in use, an empty one says that this was meant.
    let log = format!("{}-wal", file.display());
    if !Path::new(&log).exists() {
        std::fs::write(log, "").unwrap();
    }
}
