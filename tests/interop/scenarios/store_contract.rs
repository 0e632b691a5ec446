//! The contract of `store::Store` on a real etcd. A store in etcd keeps it, if it does what etcd does not:
//!
//! * An answer waits until the feeds have the change: etcd's watches are independent of its transactions.
//! * The deletion of a key that does not exist is a conflict; etcd calls it a success, without a revision.
//! * `Expect::At(0)` is never met; as a ModRevision, 0 is a key that does not exist.
//! * After a compaction to R, `follow` from R - 1 is refused: etcd sends the change at R without the value before it.
//! * The oldest revision is told by a watch only, not by a range.
//! * etcd limits the size of requests, not of values: its own limit has to be larger than `MAX_VALUE_BYTES`.

#[path = "../../../crates/store/src/contract.rs"]
mod contract;
#[path = "../../../crates/store/src/random_history.rs"]
mod random_history;

use std::io::BufRead as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
// The contract takes its names from here.
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::TestRunner;
use rustix::process::Signal;
use serde_json::{Value, json};
use store::*;
use tokio::sync::watch;

use self::contract::{StoreUnderTest, assert_contract};
use self::random_history::{assert_history, steps};
use super::TestFn;
use crate::environment::{Process, TestEnvironment, call_etcd, free_port, open_etcd, peer};

pub(super) const TESTS: &[(&str, TestFn)] = &[
    ("store contract: etcd keeps it", etcd_keeps_the_contract),
    ("store contract: random histories on etcd across kills", random_histories_across_kills),
];

/// Random histories that etcd runs.
const HISTORIES: usize = 5;

fn etcd_keeps_the_contract(environment: &TestEnvironment) {
    let directory = environment.scratch("store-contract");
    let number = std::cell::Cell::new(0);
    assert_contract(|| {
        number.set(number.get() + 1);
        let etcd = EtcdServer::start(&directory, &format!("etcd-{}", number.get()));
        let store = Arc::new(EtcdStore::connect(etcd.address));
        let compacted = store.clone();
        let compact = move |revision| {
            compacted.compact(revision);
            let _ = &etcd;
        };
        StoreUnderTest { store, compact: Box::new(compact) }
    });
}

fn random_histories_across_kills(environment: &TestEnvironment) {
    let directory = environment.scratch("store-histories");
    let mut runner = TestRunner::deterministic();
    for number in 0..HISTORIES {
        let steps = steps().new_tree(&mut runner).unwrap().current();
        let mut etcd = EtcdServer::start(&directory, &format!("etcd-{number}"));
        assert_history(Arc::new(EtcdStore::connect(etcd.address)), steps, |store| {
            drop(store);
            etcd.kill_and_restart();
            Arc::new(EtcdStore::connect(etcd.address))
        });
    }
}

/// An etcd with an empty folder.
struct EtcdServer {
    process: Process,
    address: SocketAddr,
    name: String,
    directory: PathBuf,
}

impl EtcdServer {
    fn start(directory: &Path, name: &str) -> EtcdServer {
        let (process, address) = EtcdServer::spawn(directory, name);
        EtcdServer { process, address, name: name.to_owned(), directory: directory.to_owned() }
    }

    fn spawn(directory: &Path, name: &str) -> (Process, SocketAddr) {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let peers = format!("http://127.0.0.1:{}", free_port());
        let arguments = [
            format!("--data-dir={}", directory.join(name).display()),
            format!("--listen-client-urls=http://{address}"),
            format!("--advertise-client-urls=http://{address}"),
            format!("--listen-peer-urls={peers}"),
            "--log-level=warn".to_owned(),
            // A value of the largest size, its key and what is around them.
            format!("--max-request-bytes={}", MAX_VALUE_BYTES + (64 << 10)),
        ];
        let mut process = Process::start(name, &peer("etcd"), arguments, directory);
        process.wait_until(|| call_etcd(address, "kv/range", &json!({"key": BASE64.encode("/")})).map(drop));
        (process, address)
    }

    fn kill_and_restart(&mut self) {
        self.process.signal(Signal::KILL);
        self.process.wait();
        (self.process, self.address) = EtcdServer::spawn(&self.directory, &self.name);
    }
}

/// Each server allocates 128 MB, and the contract starts one per property.
impl Drop for EtcdServer {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(self.directory.join(&self.name));
        }
    }
}

/// A store in etcd, by its HTTP gateway. One watch of all keys feeds all followers; calls block.
struct EtcdStore {
    address: SocketAddr,
    feeds: Arc<Feeds>,
    published: watch::Receiver<Revision>,
}

#[derive(Default)]
struct Feeds {
    state: Mutex<FeedState>,
    arrived: Condvar,
}

#[derive(Default)]
struct FeedState {
    /// Revision up to which etcd discarded the history.
    oldest: Revision,
    /// Revision up to which the watch has delivered.
    delivered: Revision,
    changes: Vec<Arc<RecordChange>>,
    sinks: Vec<(Prefix, Box<dyn ChangeSink>)>,
}

impl EtcdStore {
    fn connect(address: SocketAddr) -> EtcdStore {
        let current = current(address);
        let oldest = if current == FIRST_REVISION { FIRST_REVISION } else { compacted_revision(address) };
        let feeds = Arc::new(Feeds::default());
        *feeds.lock() = FeedState { oldest, delivered: oldest, ..FeedState::default() };
        let (publisher, published) = watch::channel(oldest);
        let lines = watch_lines(address, oldest + 1);
        let delivering = feeds.clone();
        std::thread::spawn(move || {
            for result in lines {
                let changes = result["events"].as_array().into_iter().flatten().map(change);
                delivering.deliver(changes.map(Arc::new).collect(), &publisher);
            }
        });
        let store = EtcdStore { address, feeds, published };
        drop(store.wait_for(current));
        store
    }

    /// Waits until the watch has delivered a revision: only then is a commit answered.
    fn wait_for(&self, revision: Revision) -> MutexGuard<'_, FeedState> {
        let state = self.feeds.lock();
        self.feeds.arrived.wait_while(state, |state| state.delivered < revision).unwrap()
    }

    fn compact(&self, revision: Revision) {
        call_etcd(self.address, "kv/compaction", &json!({"revision": revision.to_string(), "physical": true})).unwrap();
        self.feeds.lock().oldest = compacted_revision(self.address);
    }

    fn range(&self, from: &str, end: &str, limit: usize, revision: Revision) -> Result<Value, Error> {
        let request = json!({
            "key": BASE64.encode(from), "range_end": BASE64.encode(end), "limit": limit.to_string(),
            "revision": revision.to_string(),
        });
        call_etcd(self.address, "kv/range", &request).map_err(|text| {
            if text.contains("required revision has been compacted") {
                return Error::Compacted(compacted_revision(self.address));
            }
            if text.contains("required revision is a future revision") {
                return Error::FutureRevision { requested: revision, current: current(self.address) };
            }
            Error::Unavailable(text.into())
        })
    }
}

impl Store for EtcdStore {
    fn load(&self, prefix: &Prefix) -> StoreFuture<Loaded> {
        let answer = self.range(prefix.as_str(), &prefix.end(), 0, 0);
        StoreFuture::ready(answer.map(|answer| {
            let revision = number(&answer["header"]["revision"]);
            Loaded { revision, oldest: self.feeds.lock().oldest, records: records(&answer) }
        }))
    }

    fn commit_if(
        &self,
        key: &Key,
        expect: Expect,
        mutation: Mutation,
        conditions: Vec<CommitCondition>,
    ) -> StoreFuture<CommitOutcome> {
        let name = BASE64.encode(key.as_str());
        let get = json!({"request_range": {"key": name}});
        let change = match &mutation {
            Mutation::Put { value, .. } if value.len() > MAX_VALUE_BYTES => {
                return StoreFuture::ready(Err(Error::TooLarge { size: value.len(), limit: MAX_VALUE_BYTES }));
            }
            Mutation::Put { value, .. } => json!({"request_put": {"key": name, "value": BASE64.encode(value)}}),
            Mutation::Delete => json!({"request_delete_range": {"key": name}}),
        };
        // etcd deletes what does not exist, with success and without a revision of its own.
        let is_never_met = expect == Expect::At(0) || (expect == Expect::Absent && mutation == Mutation::Delete);
        let expected = match expect {
            Expect::Absent => 0,
            Expect::At(revision) => revision,
        };
        let compare = json!({"key": name, "target": "MOD", "mod_revision": expected.to_string()});
        let success = if is_never_met { &get } else { &change };
        let (mut compares, mut gets) = (vec![compare], vec![get.clone()]);
        for condition in &conditions {
            let (range, revision) = match condition {
                CommitCondition::At(key, revision) => (json!({"key": BASE64.encode(key.as_str())}), *revision),
                CommitCondition::Absent(key) => (json!({"key": BASE64.encode(key.as_str())}), 0),
                // A range without keys compares as one key that does not exist.
                CommitCondition::Empty(prefix) => {
                    let end = BASE64.encode(prefix.end());
                    (json!({"key": BASE64.encode(prefix.as_str()), "range_end": end}), 0)
                }
            };
            let mut compare = range.clone();
            compare["target"] = json!("MOD");
            compare["mod_revision"] = json!(revision.to_string());
            compares.push(compare);
            gets.push(json!({"request_range": range}));
        }
        let request = json!({"compare": compares, "success": [success], "failure": gets});
        let answer = match call_etcd(self.address, "kv/txn", &request) {
            Ok(answer) => answer,
            Err(text) => return StoreFuture::ready(Err(Error::Unavailable(text.into()))),
        };
        if answer["succeeded"] == true && !is_never_met {
            let revision = number(&answer["header"]["revision"]);
            drop(self.wait_for(revision));
            return StoreFuture::ready(Ok(CommitOutcome::Committed(revision)));
        }
        // In the order of the conditions; a success without a change was one of theirs.
        let failed = conditions.into_iter().enumerate().find(|(place, condition)| {
            let found = records(&answer["responses"][place + 1]["response_range"]);
            answer["succeeded"] != true
                && match condition {
                    CommitCondition::At(_, revision) => found.first().is_none_or(|one| one.revision != *revision),
                    CommitCondition::Absent(_) | CommitCondition::Empty(_) => !found.is_empty(),
                }
        });
        if let Some((_, failed)) = failed {
            return StoreFuture::ready(Ok(CommitOutcome::ConditionFailed(failed)));
        }
        let current = records(&answer["responses"][0]["response_range"]).pop();
        StoreFuture::ready(Ok(CommitOutcome::Conflict(current)))
    }

    fn follow(&self, prefix: &Prefix, after: Revision, mut sink: Box<dyn ChangeSink>) -> StoreFuture<Progress> {
        let mut state = self.wait_for(current(self.address));
        // etcd would give one change more, without the value before it.
        if after < state.oldest {
            return StoreFuture::ready(Err(Error::Compacted(state.oldest)));
        }
        let is_missed = |change: &&Arc<RecordChange>| change.revision > after && prefix.contains(&change.key);
        let missed: Vec<_> = state.changes.iter().filter(is_missed).cloned().collect();
        if missed.is_empty() || sink.apply(&missed) {
            state.sinks.push((prefix.clone(), sink));
        }
        StoreFuture::ready(Ok(self.published.clone()))
    }

    fn at(&self, prefix: &Prefix, from: Option<&str>, limit: usize, revision: Revision) -> StoreFuture<RecordPage> {
        let from = from.unwrap_or_default().max(prefix.as_str());
        let answer = self.range(from, &prefix.end(), limit.min(1 << 30), revision);
        StoreFuture::ready(answer.map(|answer| {
            let records = records(&answer);
            let count = usize::try_from(number(&answer["count"])).unwrap();
            RecordPage { remaining: count - records.len(), records }
        }))
    }

    fn current(&self) -> StoreFuture<Revision> {
        StoreFuture::ready(Ok(current(self.address)))
    }
}

impl Feeds {
    fn lock(&self) -> MutexGuard<'_, FeedState> {
        self.state.lock().unwrap()
    }

    fn deliver(&self, changes: Vec<Arc<RecordChange>>, publisher: &watch::Sender<Revision>) {
        let Some(last) = changes.last().map(|change| change.revision) else { return };
        let mut state = self.lock();
        state.sinks.retain_mut(|(prefix, sink)| {
            let wanted: Vec<_> = changes.iter().filter(|change| prefix.contains(&change.key)).cloned().collect();
            wanted.is_empty() || sink.apply(&wanted)
        });
        state.changes.extend(changes);
        state.delivered = last;
        publisher.send_replace(last);
        self.arrived.notify_all();
    }
}

/// The results of a watch of all keys from a revision, with the values before.
fn watch_lines(address: SocketAddr, from: Revision) -> impl Iterator<Item = Value> + Send {
    let create = json!({
        "key": BASE64.encode("/"), "range_end": BASE64.encode("0"), "start_revision": from.to_string(), "prev_kv": true,
    });
    let answer = open_etcd(address, "watch", &json!({"create_request": create})).unwrap();
    answer.lines().map_while(Result::ok).map(|line| serde_json::from_str::<Value>(&line).unwrap()["result"].clone())
}

/// The revision up to which etcd has discarded the history, which only a watch says. There is a change after it.
fn compacted_revision(address: SocketAddr) -> Revision {
    let mut results = watch_lines(address, FIRST_REVISION);
    let told = results.find(|result| result["canceled"] == true || result["events"].is_array()).unwrap();
    number(&told["compact_revision"]).max(FIRST_REVISION)
}

fn current(address: SocketAddr) -> Revision {
    number(&call_etcd(address, "kv/range", &json!({"key": BASE64.encode("/")})).unwrap()["header"]["revision"])
}

/// A number, which is text in etcd's JSON and left out if it is 0.
fn number(value: &Value) -> u64 {
    value.as_str().map_or(0, |text| text.parse().unwrap())
}

fn decoded(value: &Value) -> Vec<u8> {
    BASE64.decode(value.as_str().unwrap_or_default()).unwrap()
}

fn record(value: &Value) -> Arc<KeyValue> {
    Arc::new(KeyValue {
        key: key(value),
        value: Bytes::from(decoded(&value["value"])),
        created: number(&value["create_revision"]),
        revision: number(&value["mod_revision"]),
        expires: None,
    })
}

fn key(value: &Value) -> Key {
    Key::parse(std::str::from_utf8(&decoded(&value["key"])).unwrap()).unwrap()
}

fn records(answer: &Value) -> Vec<Arc<KeyValue>> {
    answer["kvs"].as_array().into_iter().flatten().map(record).collect()
}

/// A change of an event; without a type it is a put.
fn change(event: &Value) -> RecordChange {
    let kv = &event["kv"];
    RecordChange {
        revision: number(&kv["mod_revision"]),
        key: key(kv),
        old: event.get("prev_kv").map(record),
        new: (event["type"] != "DELETE").then(|| record(kv)),
    }
}
