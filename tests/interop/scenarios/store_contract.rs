//! The contract of `store::Store` for a store in a real etcd. etcd limits the size of requests, not of values: its own
//! limit has to be larger than `MAX_VALUE_BYTES`.

#[path = "../../../crates/store/src/contract.rs"]
mod contract;
#[path = "../../../crates/store/src/random_history.rs"]
mod random_history;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use etcd_store::{ByteStream, Dial, EtcdStore, EtcdStoreSettings, LocalFuture};
use http::Uri;
// The contract takes its names from here.
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::TestRunner;
use rustix::process::Signal;
use serde_json::json;
use store::*;
use tokio::net::TcpStream;

use self::contract::{StoreUnderTest, assert_contract};
use self::random_history::{assert_history, steps};
use super::TestFn;
use crate::environment::{Process, TestEnvironment, call_etcd, free_port, peer};

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
        let store = open_store(etcd.address);
        let compacted = store.clone();
        let compact = move |revision| {
            contract::wait(compacted.compact(revision)).unwrap();
            let _ = &etcd;
        };
        StoreUnderTest { store: Arc::new(store), compact: Box::new(compact) }
    });
}

fn random_histories_across_kills(environment: &TestEnvironment) {
    let directory = environment.scratch("store-histories");
    let mut runner = TestRunner::deterministic();
    for number in 0..HISTORIES {
        let steps = steps().new_tree(&mut runner).unwrap().current();
        let mut etcd = EtcdServer::start(&directory, &format!("etcd-{number}"));
        assert_history(Arc::new(open_store(etcd.address)), steps, |store| {
            drop(store);
            etcd.kill_and_restart();
            Arc::new(open_store(etcd.address))
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

/// Connects to etcd without TLS.
struct PlainDial;

impl Dial for PlainDial {
    fn dial(&self, endpoint: &Uri) -> LocalFuture<std::io::Result<Box<dyn ByteStream>>> {
        let address = endpoint.authority().unwrap().to_string();
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            Ok(Box::new(stream) as Box<dyn ByteStream>)
        })
    }
}

fn open_store(address: SocketAddr) -> EtcdStore {
    let endpoints = vec![Uri::try_from(format!("http://{address}")).unwrap()];
    let root = Prefix::parse("/r/").unwrap();
    EtcdStore::open(EtcdStoreSettings {
        dialer: Box::new(|| Box::new(PlainDial)),
        endpoints,
        root,
        compaction_interval: None,
    })
    .unwrap()
}
