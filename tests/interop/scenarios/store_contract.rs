//! The contract of `store::Store` for a store in a real etcd. etcd limits the size of requests, not of values: its own
//! limit has to be larger than `MAX_VALUE_BYTES`.

#[path = "../../../crates/store/src/contract.rs"]
mod contract;
#[path = "../../../crates/store/src/random_history.rs"]
mod random_history;

use std::net::SocketAddr;
use std::sync::Arc;

use etcd_store::{ByteStream, Dial, EtcdStore, EtcdStoreSettings, LocalFuture};
use http::Uri;
// The contract takes its names from here.
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::TestRunner;
use store::*;
use tokio::net::TcpStream;

use self::contract::{StoreUnderTest, assert_contract};
use self::random_history::{assert_history, steps};
use super::TestFn;
use crate::environment::{EtcdServer, TestEnvironment};

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
        let etcd = EtcdServer::start(&directory, &format!("etcd-{}", number.get()), &large_requests());
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
        let mut etcd = EtcdServer::start(&directory, &format!("etcd-{number}"), &large_requests());
        assert_history(Arc::new(open_store(etcd.address)), steps, |store| {
            drop(store);
            etcd.kill();
            etcd.restart();
            Arc::new(open_store(etcd.address))
        });
    }
}

/// A value of the largest size, its key and what is around them.
fn large_requests() -> Vec<String> {
    vec![format!("--max-request-bytes={}", MAX_VALUE_BYTES + (64 << 10))]
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
        is_read_only: false,
    })
    .unwrap()
}
