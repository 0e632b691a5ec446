//! Backup and verification of a store: in use, closed, copied without its log, damaged.

use std::fs;

use super::super::lock::lock_path;
use super::super::wal::wal_path;
use super::*;
use crate::{BackupError, StoreDamage, back_up_store, verify_store};

fn fill(store: &LocalStore, count: usize) {
    for number in 0..count {
        let key = prefix("/registry/configmaps/").key("default", &format!("n{number}")).unwrap();
        commit(store, &key, Expect::Absent, &Mutation::put(vec![b'a'; 500]));
    }
}

fn open_at(file: &Path) -> Result<LocalStore, OpenError> {
    LocalStore::open(LocalStoreSettings::new(file))
}

#[track_caller]
fn assert_damaged(file: &Path, words: &str) {
    let damage = verify_store(file, &mut |_| {}).expect_err("no damage found").to_string();
    assert!(damage.contains(words), "{words} is not in: {damage}");
}

#[test]
fn backup_of_store_in_use_has_every_acknowledged_write_and_starts() {
    let fixture = StoreFixture::new();
    let store = fixture.open();
    fill(&store, 300);
    let backup = fixture.folder.path().join("backup.db");
    let content = back_up_store(&fixture.file(), &backup, false, &mut |_| {}).unwrap();
    assert_eq!((content.revision, content.objects["configmaps"], content.rows), (301, 300, 300));
    assert_eq!(fs::metadata(&backup).unwrap().permissions().mode() & 0o777, 0o600);
    put(&store, "/registry/configmaps/default/later", Expect::Absent, "1");
    let exists = back_up_store(&fixture.file(), &backup, false, &mut |_| {});
    assert!(matches!(exists, Err(BackupError::Exists(_))), "{exists:?}");
    let again = back_up_store(&fixture.file(), &backup, true, &mut |_| {}).unwrap();
    assert_eq!((again.revision, verify_store(&backup, &mut |_| {}).unwrap().revision), (302, 302));
    let left = fs::read_dir(fixture.folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    assert_eq!(left.len(), 4, "{left:?}");
    let restored = open_at(&backup).unwrap();
    let loaded = wait(restored.load(&prefix("/registry/"))).unwrap();
    assert_eq!((loaded.revision, loaded.records.len()), (302, 301));
    drop((store, restored));
    assert_eq!(back_up_store(&fixture.file(), &backup, true, &mut |_| {}).unwrap().revision, 302, "not in use");
}

/// Also through links, and where a file of the store will be.
#[test]
fn backup_in_place_of_a_file_of_a_store_is_refused() {
    let fixture = StoreFixture::new();
    let store = fixture.open();
    fill(&store, 3);
    let folder = fixture.folder.path();
    std::os::unix::fs::symlink(fixture.file(), folder.join("link.db")).unwrap();
    std::os::unix::fs::symlink(folder, folder.join("folder")).unwrap();
    fs::hard_link(wal_path(&fixture.file()), folder.join("hard.db")).unwrap();
    let names = ["store.db", "store.db-wal", "store.db-shm", "store.db-journal", "store.db.lock", "link.db", "hard.db"];
    for name in names.map(str::to_owned).into_iter().chain(names.map(|name| format!("folder/{name}"))) {
        for overwrites in [true, false] {
            let error = back_up_store(&fixture.file(), &folder.join(&name), overwrites, &mut |_| {}).unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, BackupError::Itself { .. }), "{name}: {text}");
            assert!(text.contains(&name) && text.contains("a file of the store"), "{name}: {text}");
        }
    }
    let other = StoreFixture::new();
    let used = other.open();
    let error = back_up_store(&fixture.file(), &other.file(), true, &mut |_| {}).unwrap_err();
    assert!(matches!(error, BackupError::InUse(_)), "{error}");
    drop((store, used));
    let error = back_up_store(&fixture.file(), &wal_path(&fixture.file()), true, &mut |_| {}).unwrap_err();
    assert!(matches!(error, BackupError::Itself { .. }), "{error}");
    assert_eq!(wait(fixture.open().current()).unwrap(), 4, "nothing is lost");
}

/// The log is begun anew again and again meanwhile.
#[test]
fn backup_is_consistent_while_store_is_written() {
    let fixture = StoreFixture::new();
    let store = fixture.open();
    fill(&store, 1);
    let writer = store.clone();
    // Some writes for each backup. Without a limit the store grows faster than it is copied, if the disk is fast.
    let (grant, grants) = mpsc::channel();
    let writing = std::thread::spawn(move || {
        for written in grants.into_iter().flatten() {
            let key = prefix("/registry/secrets/").key("default", &format!("n{written}")).unwrap();
            commit(&writer, &key, Expect::Absent, &Mutation::put(vec![b'b'; 2_000]));
        }
    });
    for number in 0..10 {
        grant.send(number * 100..(number + 1) * 100).unwrap();
        let before = wait(store.current()).unwrap();
        let backup = fixture.folder.path().join(format!("backup{number}.db"));
        let content = back_up_store(&fixture.file(), &backup, false, &mut |_| {}).unwrap();
        assert!(content.revision >= before, "{} < {before}", content.revision);
        assert_eq!(content.rows, content.revision - 1, "no row is missing");
    }
    drop(grant);
    writing.join().unwrap();
}

#[test]
fn store_copied_without_its_log_is_refused_until_the_log_is_given_up() {
    let fixture = StoreFixture::new();
    let store = LocalStore::open(LocalStoreSettings::new(fixture.file())).unwrap();
    fill(&store, 20);
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("store.db");
    fs::copy(fixture.file(), &copy).unwrap();
    let error = open_at(&copy).err().expect("the copy was opened").to_string();
    assert!(error.contains("was copied while it was in use, without its log"), "{error}");
    assert!(check_store_file(&copy).unwrap_err().to_string().contains("without its log"));
    assert_damaged(&copy, "without its log");
    // With its log it is whole.
    fs::copy(wal_path(&fixture.file()), wal_path(&copy)).unwrap();
    assert_eq!(verify_store(&copy, &mut |_| {}).unwrap().revision, 21);
    let whole = open_at(&copy).unwrap();
    assert_eq!(wait(whole.current()).unwrap(), 21);
    drop(whole);
    // A store that was closed is whole by itself.
    let moved = folder.path().join("moved.db");
    fs::copy(&copy, &moved).unwrap();
    assert_eq!(wait(open_at(&moved).unwrap().current()).unwrap(), 21);
    // An empty log is a decision.
    fs::copy(fixture.file(), &copy).unwrap();
    assert!(open_at(&copy).is_err());
    fs::write(wal_path(&copy), "").unwrap();
    open_at(&copy).unwrap();
}

/// What a release from before the mark of the log does with a store: its lock file, and its end in WAL mode.
fn use_by_older_release(file: &Path, statements: &str) {
    fs::write(lock_path(file), "4711\n").unwrap();
    let connection = Connection::open(file).unwrap();
    connection.pragma_update(None, "journal_mode", "WAL").unwrap();
    connection.execute_batch(statements).unwrap();
    drop(connection);
    assert!(!wal_path(file).exists());
}

/// Opens a store, and leaves its files as a killed process does.
fn kill(fixture: &StoreFixture) {
    let store = fixture.open();
    let number = wait(store.current()).unwrap();
    put(&store, &format!("/registry/configmaps/default/n{number}"), Expect::Absent, "1");
    let files = [fixture.file(), wal_path(&fixture.file()), lock_path(&fixture.file())];
    let kept = files.each_ref().map(|file| fs::read(file).unwrap());
    drop(store);
    files.iter().zip(kept).for_each(|(file, bytes)| fs::write(file, bytes).unwrap());
}

#[test]
fn store_of_killed_process_is_whole_after_an_older_release_closed_it() {
    let change = "UPDATE meta SET value = 5 WHERE name = 'clock'; INSERT OR IGNORE INTO meta VALUES ('clock', 5)";
    for statements in ["", change] {
        let fixture = StoreFixture::new();
        kill(&fixture);
        let file = fixture.file();
        use_by_older_release(&file, statements);
        assert_eq!(verify_store(&file, &mut |_| {}).unwrap().revision, 2);
        check_store_file(&file).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let copy = elsewhere.path().join("store.db");
        for name in [&file, &lock_path(&file)] {
            fs::copy(name, elsewhere.path().join(name.file_name().unwrap())).unwrap();
        }
        assert!(matches!(open_at(&copy), Err(OpenError::MissingLog { .. })), "it may be any copy");
        assert!(matches!(open_at(&copy), Err(OpenError::MissingLog { .. })), "nor does an attempt change that");
        kill(&fixture);
        use_by_older_release(&file, statements);
        // It is killed, too.
        let connection = Connection::open(&file).unwrap();
        connection.execute_batch("UPDATE meta SET value = 6 WHERE name = 'clock'").unwrap();
        let kept = [fs::read(&file).unwrap(), fs::read(wal_path(&file)).unwrap()];
        drop(connection);
        [&file, &wal_path(&file)].into_iter().zip(kept).for_each(|(file, bytes)| fs::write(file, bytes).unwrap());
        // A start that fails does not change what the lock file says.
        drop(lock_file(&file).unwrap());
        assert_eq!(wait(fixture.open().current()).unwrap(), 3);
        kill(&fixture);
        fs::remove_file(wal_path(&file)).unwrap();
        let synchronizing = LocalStoreSettings { synchronizes: true, ..fixture.settings() };
        assert!(matches!(LocalStore::open(synchronizing), Err(OpenError::MissingLog { .. })), "its own log is missing");
    }
}

#[test]
fn verification_keeps_the_store_from_being_opened() {
    let fixture = StoreFixture::new();
    let store = fixture.open();
    fill(&store, 3);
    drop(store);
    let mut opened = Vec::new();
    verify_store(&fixture.file(), &mut |_| opened.push(LocalStore::open(fixture.settings()).err())).unwrap();
    assert!(matches!(&opened[..], [Some(OpenError::InUse { .. })]), "{opened:?}");
    assert_eq!(wait(fixture.open().current()).unwrap(), 4);
}

#[test]
fn store_beside_log_of_another_store_is_refused() {
    let fixture = StoreFixture::new();
    let store = fixture.open();
    fill(&store, 20);
    let backup = fixture.folder.path().join("backup.db");
    back_up_store(&fixture.file(), &backup, false, &mut |_| {}).unwrap();
    let log = fs::read(wal_path(&fixture.file())).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let restored = folder.path().join("store.db");
    fs::copy(&backup, &restored).unwrap();
    fs::write(wal_path(&restored), &log).unwrap();
    for error in [open_at(&restored).err().unwrap().to_string(), check_store_file(&restored).unwrap_err().to_string()] {
        assert!(error.contains("does not belong to store") && error.contains("remove the log"), "{error}");
    }
    fs::remove_file(wal_path(&restored)).unwrap();
    let other = open_at(&restored).unwrap();
    let copy = folder.path().join("copy.db");
    fs::copy(&restored, &copy).unwrap();
    fs::write(wal_path(&copy), &log).unwrap();
    assert!(matches!(open_at(&copy), Err(OpenError::ForeignLog { .. })));
    drop(other);
}

#[test]
fn verification_lists_damaged_rows_and_changes_nothing() {
    let fixture = StoreFixture::new();
    let store = fixture.open();
    fill(&store, 60);
    drop(store);
    fixture.edit(
        "UPDATE record SET value = x'32' WHERE key LIKE '%/n7'; UPDATE record SET value = x'32' WHERE key LIKE '%/n9'; \
         DELETE FROM record WHERE key LIKE '%/n30'",
    );
    let before = fs::read(fixture.file()).unwrap();
    let damage = verify_store(&fixture.file(), &mut |_| {}).unwrap_err();
    let StoreDamage::Faults(faults) = &damage else { panic!("{damage}") };
    assert_eq!(faults.len(), 3, "{damage}");
    for (fault, words) in faults.iter().zip(["/n7", "/n9", "the revision before it is missing: key \"/registry/"]) {
        assert!(fault.contains(words), "{fault}");
    }
    assert!(fs::read(fixture.file()).unwrap() == before && !wal_path(&fixture.file()).exists());
    let backup = fixture.folder.path().join("backup.db");
    assert!(back_up_store(&fixture.file(), &backup, false, &mut |_| {}).is_err());
    assert!(!backup.exists(), "what is damaged is no backup");
    let page = before.len() - 2_000;
    let mut damaged = before;
    damaged[page..page + 1_500].fill(0xa5);
    fs::write(fixture.file(), damaged).unwrap();
    assert!(verify_store(&fixture.file(), &mut |_| {}).is_err());
}

#[test]
fn store_behind_a_link_is_locked_and_logged_beside_its_target() {
    let fixture = StoreFixture::new();
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("store.db");
    std::os::unix::fs::symlink(fixture.file(), &link).unwrap();
    let store = open_at(&link).unwrap();
    assert!(open_at(&fixture.file()).is_err(), "it is in use");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "lock and log are beside the target");
    drop(store);
}
