//! The test environment: real peers on loopback and test users.

mod browser;
mod certificates;
mod cluster;
mod conversion_webhook;
mod curl;
mod echo_server;
mod etcd;
mod extension;
mod gateway;
mod http;
mod konnectivity;
mod konnectivity_backend;
pub(crate) mod kubeconfig;
mod kubectl;
mod network;
mod ports;
mod process;
mod raw_response;
mod session;

pub(crate) use browser::Browser;
pub(crate) use certificates::{Authority, Identity};
pub(crate) use cluster::{Cluster, audit_policy};
pub(crate) use conversion_webhook::start_conversion_webhook;
pub(crate) use curl::{curl, curl_with_input};
pub(crate) use echo_server::{ServerProtocol, start_echo_server};
pub(crate) use etcd::{EtcdServer, call_etcd, values_in_etcd};
pub(crate) use extension::Extension;
pub(crate) use gateway::{Gateway, LIKE_KUBE_APISERVER, register};
pub(crate) use http::{CONNECT_FAILED, HttpResponse, HttpsEndpoint, plain_get, runtime};
pub(crate) use konnectivity::{Agent, ClientStream, Konnectivity, KonnectivityMode, KonnectivityPair, Tokens};
pub(crate) use konnectivity_backend::{KonnectivityBackend, write_egress_configuration};
pub(crate) use kubectl::{Kubectl, RunningKubectl, run as kubectl_run};
pub(crate) use network::Network;
pub(crate) use ports::free_port;
pub(crate) use process::{Process, TIMEOUT, eventually, retry};
pub(crate) use raw_response::RawResponse;
pub(crate) use session::{CommandResult, Session};

use std::cell::RefCell;
use std::path::{Path, PathBuf};

thread_local! {
    /// Scratch directories of the test that runs on this thread.
    static SCRATCH_DIRECTORIES: RefCell<Vec<PathBuf>> = const { RefCell::new(Vec::new()) };
}

/// The server a scenario runs against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The extension API server, without narthex.
    Direct,
    /// Narthex in front of the extension API server.
    Gateway,
    /// kube-apiserver, without narthex.
    Cluster,
    /// Narthex in front of kube-apiserver and the extension API server.
    ClusterGateway,
}

/// Everything that is started once and shared by all tests.
pub(crate) struct TestEnvironment {
    // Dropped in this order: gateways before their backends.
    pub(crate) gateway: Option<Gateway>,
    pub(crate) cluster_gateway: Option<Gateway>,
    pub(crate) extension: Extension,
    pub(crate) cluster: Cluster,
    directory: tempfile::TempDir,
}

impl TestEnvironment {
    /// Starts etcd, kube-apiserver, sample-apiserver and, with `with_gateway`, narthex in front of them.
    pub(crate) fn start(with_gateway: bool) -> TestEnvironment {
        let directory = tempfile::Builder::new().prefix("interop-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        println!("environment: files and logs are in {}", directory.path().display());
        let cluster = Cluster::start(directory.path());
        let extension = Extension::start(&cluster, directory.path(), "wardle");
        let gateway = with_gateway.then(|| Gateway::start(&cluster, &extension, directory.path(), "narthex", &[]));
        let cluster_gateway = with_gateway.then(|| {
            let cluster_itself = cluster.admin_kubeconfig.display().to_string();
            let flags = [("--kubeconfig", cluster_itself.as_str()), ("--delegate-kubeconfig", cluster_itself.as_str())];
            Gateway::start(&cluster, &extension, directory.path(), "front", &flags)
        });
        TestEnvironment { gateway, cluster_gateway, extension, cluster, directory }
    }

    /// The endpoint of a target.
    pub(crate) fn endpoint(&self, target: Target) -> &HttpsEndpoint {
        let gateway = match target {
            Target::Direct => return &self.extension.endpoint,
            Target::Cluster => return &self.cluster.endpoint,
            Target::Gateway => &self.gateway,
            Target::ClusterGateway => &self.cluster_gateway,
        };
        &gateway.as_ref().expect("narthex was started").endpoint
    }

    /// Targets of extension server scenarios, the reference first. Without narthex the scenario runs twice at the
    /// server, which shows that only the target makes a difference.
    pub(crate) fn targets(&self) -> [Target; 2] {
        [Target::Direct, if self.gateway.is_some() { Target::Gateway } else { Target::Direct }]
    }

    /// Targets of cluster scenarios, the reference first.
    pub(crate) fn cluster_targets(&self) -> [Target; 2] {
        [Target::Cluster, if self.cluster_gateway.is_some() { Target::ClusterGateway } else { Target::Cluster }]
    }

    /// Creates a scratch directory for one test.
    pub(crate) fn scratch(&self, name: &str) -> PathBuf {
        let path = self.directory.path().join("scenarios").join(name);
        std::fs::create_dir_all(&path).unwrap();
        SCRATCH_DIRECTORIES.with_borrow_mut(|directories| directories.push(path.clone()));
        path
    }

    /// Runs a test and removes its scratch directories, unless it panics: each etcd allocates 128 MB.
    pub(crate) fn run_test(&self, test: impl FnOnce(&TestEnvironment)) {
        SCRATCH_DIRECTORIES.take();
        test(self);
        for directory in SCRATCH_DIRECTORIES.take() {
            let _ = std::fs::remove_dir_all(directory);
        }
    }

    /// Prints kubectl commands for manual use and waits for a line (or the end) of standard input.
    pub(crate) fn hold(self) {
        for (name, target) in [
            ("direct", Target::Direct),
            ("through", Target::Gateway),
            ("cluster", Target::Cluster),
            ("front", Target::ClusterGateway),
        ] {
            let endpoint = self.endpoint(target);
            for (user, identity) in [("jane", self.cluster.jane()), ("admin", self.cluster.admin())] {
                let file = format!("{user}-{name}");
                let path = kubeconfig::write(
                    self.directory.path(),
                    &file,
                    &endpoint.url(),
                    &endpoint.authority,
                    Some(identity),
                );
                println!("{} --kubeconfig={}", peer("kubectl").display(), path.display());
            }
        }
        println!("Press Enter to stop.");
        let _ = std::io::stdin().read_line(&mut String::new());
        self.end(false);
    }

    /// Stops the peers. Files and logs are kept when a test failed.
    pub(crate) fn end(self, failed: bool) {
        let TestEnvironment { gateway, cluster_gateway, extension, cluster, directory } = self;
        if failed {
            for gateway in [&gateway, &cluster_gateway].into_iter().flatten() {
                gateway.process.print_tail(40);
            }
            extension.process.print_tail(40);
        }
        drop((gateway, cluster_gateway, extension, cluster));
        if failed {
            println!("environment: logs kept in {}", directory.keep().display());
        }
    }
}

/// Path of a program built by `tests/interop/run`.
pub(crate) fn peer(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/bin").join(name)
}
