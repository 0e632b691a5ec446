//! Kills a process that writes, again and again on the same file, and checks that every acknowledged write is there.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::super::super::contract::{FeedReader, prefix, wait};
use super::super::{LocalStore, LocalStoreSettings};
use crate::{CommitOutcome, Error, Expect, FIRST_REVISION, Key, Mutation, Revision, Store};

/// The file that a child process writes to.
const FILE: &str = "NARTHEX_TEST_STORE_FILE";

/// How often the writer is killed; 20 if unset.
const KILLS: &str = "NARTHEX_TEST_STORE_KILLS";

fn settings(file: &std::path::Path) -> LocalStoreSettings {
    // A killed process loses nothing that it gave to the operating system.
    LocalStoreSettings { synchronizes: false, retained_changes: u64::MAX, ..LocalStoreSettings::new(file) }
}

/// The process that is killed: threads that create, update and delete, and print what is acknowledged.
#[test]
#[ignore = "runs as the child process of store_kill_keeps_acknowledged_writes"]
fn store_kill_child() {
    let Some(file) = std::env::var_os(FILE) else { return };
    let store = LocalStore::open(settings(file.as_ref())).unwrap();
    let seed = wait(store.current()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let store = &store;
            scope.spawn(move || write_for_ever(store, thread, seed));
        }
    });
}

fn write_for_ever(store: &LocalStore, thread: u64, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed * 10 + thread);
    let mut held = BTreeMap::<Key, Revision>::new();
    for record in wait(store.load(&prefix("/r/"))).unwrap().records {
        held.insert(record.key.clone(), record.revision);
    }
    loop {
        let key = prefix("/r/a/").key(&format!("t{thread}"), &format!("n{}", random.u8(..10))).unwrap();
        let expect = held.get(&key).map_or(Expect::Absent, |revision| Expect::At(*revision));
        let is_delete = expect != Expect::Absent && random.u8(..4) == 0;
        let value = format!("{} {}", random.u64(..), "x".repeat(random.usize(..3_000)));
        let mutation = if is_delete { Mutation::Delete } else { Mutation::put(value.clone()) };
        match wait(store.commit(&key, expect, mutation)) {
            Ok(CommitOutcome::Committed(revision)) if is_delete => {
                println!("\nacknowledged {revision} {key} -");
                held.remove(&key);
            }
            Ok(CommitOutcome::Committed(revision)) => {
                println!("\nacknowledged {revision} {key} {}", value.split(' ').next().unwrap());
                held.insert(key, revision);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn store_kill_keeps_acknowledged_writes() {
    let kills = std::env::var(KILLS).map_or(20, |kills| kills.parse::<u32>().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("store.db");
    let child = module_path!().split_once("::").unwrap().1.to_owned() + "::store_kill_child";
    let mut random = fastrand::Rng::with_seed(u64::from(kills));
    let mut acknowledged = BTreeMap::<Revision, (String, String)>::new();
    for _ in 0..kills {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", &child])
            .env(FILE, &file)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
        let count = acknowledged.len() + random.usize(..300);
        let mut take = |line: &str| {
            let mut words = line.strip_prefix("acknowledged ")?.split(' ').map(str::to_owned);
            let revision = words.next()?.parse().ok()?;
            let before = acknowledged.insert(revision, (words.next()?, words.next()?));
            assert_eq!(before, None, "revision {revision} twice");
            Some(acknowledged.len())
        };
        while lines.by_ref().next().is_some_and(|line| take(&line).is_none_or(|length| length < count)) {}
        process.kill().unwrap();
        // What was acknowledged before the kill and is still in the pipe; the last line may be cut off.
        let rest: Vec<_> = lines.collect();
        for line in rest.iter().take(rest.len().saturating_sub(1)) {
            take(line);
        }
        process.wait().unwrap();
        assert_present(&file, &acknowledged);
    }
    assert!(acknowledged.len() > kills as usize * 20, "{} writes", acknowledged.len());
}

fn assert_present(file: &std::path::Path, acknowledged: &BTreeMap<Revision, (String, String)>) {
    let store = std::sync::Arc::new(LocalStore::open(settings(file)).unwrap());
    let handle: std::sync::Arc<dyn Store> = store;
    let all = prefix("/r/");
    let changes = FeedReader::new(&handle, &all, FIRST_REVISION).received();
    let current = wait(handle.current()).unwrap();
    assert_eq!(changes.len() as u64, current - FIRST_REVISION, "no revision is missing");
    let mut state = BTreeMap::new();
    for change in &changes {
        let value = change.new.as_ref().map(|new| String::from_utf8(new.value.to_vec()).unwrap());
        let word = value.as_deref().map_or("-", |value| value.split(' ').next().unwrap());
        if let Some(expected) = acknowledged.get(&change.revision) {
            assert_eq!((change.key.as_str(), word), (expected.0.as_str(), expected.1.as_str()), "{}", change.revision);
        }
        match &change.new {
            Some(new) => state.insert(change.key.clone(), new.clone()),
            None => state.remove(&change.key),
        };
    }
    assert!(acknowledged.last_key_value().is_none_or(|(last, _)| *last <= current));
    let loaded = wait(handle.load(&all)).unwrap();
    assert_eq!(loaded.records, state.into_values().collect::<Vec<_>>());
    assert_eq!(
        wait(handle.at(&all, None, 1, current + 1)).err(),
        Some(Error::FutureRevision { requested: current + 1, current })
    );
}
