//! The interop suite: kubectl, curl and bare HTTP against the real sample-apiserver, directly and
//! through narthex, with a real kube-apiserver and etcd behind them.
//!
//! `tests/interop/run` builds the peers and starts this; what stands after `--` are the test harness's
//! usual arguments (a filter, `--list`, `--test-threads`). `NARTHEX_INTEROP=direct` leaves narthex out and
//! compares the server with itself, which tells whether a failure is ours or the peers'. `NARTHEX_INTEROP=hold`
//! runs no test but prints how to use the world by hand, until Enter.

// A test stops at what it did not expect.
#![allow(clippy::unwrap_used)]

#[path = "../docs/page_runner.rs"]
mod page_runner;
mod stories;
mod world;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use libtest_mimic::{Arguments, Trial};

use world::{Kubectl, World};

/// What `tests/interop/peers/build` builds for it.
const PEERS: [&str; 10] = [
    "etcd",
    "kube-apiserver",
    "kube-scheduler",
    "metrics-server",
    "kube-rs-controller",
    "konnectivity-server",
    "konnectivity-agent",
    "sample-apiserver",
    "kubectl",
    "kube-rbac-proxy",
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    if let Some(missing) = PEERS.iter().find(|name| !built(name)) {
        eprintln!("interop: {missing} is not built; run tests/interop/run, which builds the peers first");
        return ExitCode::FAILURE;
    }
    // Every kubectl is a process of its own beside the servers: more at once only wait for each other.
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    arguments.test_threads.get_or_insert(processors.clamp(2, 8));

    let kubectls = kubectls();
    let mode = std::env::var("NARTHEX_INTEROP").unwrap_or_default();
    if mode == "hold" {
        World::start(true).hold();
        return ExitCode::SUCCESS;
    }
    let with_narthex = mode != "direct";
    let shared: Arc<OnceLock<World>> = Arc::default();
    let trials = trials(&shared, &kubectls, with_narthex);
    if !arguments.list {
        // On this thread, which outlives all tests: the peers end with the thread that started them.
        let _ = shared.set(World::start(with_narthex));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    if let Some(world) = Arc::into_inner(shared).and_then(OnceLock::into_inner) {
        world.end(conclusion.has_failed());
    }
    conclusion.exit_code()
}

fn trials(shared: &Arc<OnceLock<World>>, kubectls: &[Kubectl], with_narthex: bool) -> Vec<Trial> {
    let mut trials = Vec::new();
    let mut add = |name: String, test: Box<dyn FnOnce(&World) + Send>| {
        let shared = Arc::clone(shared);
        trials.push(Trial::test(name, move || {
            test(shared.get().expect("the world was started before the tests"));
            Ok(())
        }));
    };
    for kubectl in kubectls {
        for (name, story) in stories::everywhere() {
            let teller = kubectl.clone();
            add(
                format!("kubectl {}: {name}", kubectl.version),
                Box::new(move |world| stories::tell(world, &teller, story)),
            );
        }
        for (name, story) in stories::of_a_cluster() {
            let teller = kubectl.clone();
            add(
                format!("kubectl {}: cluster: {name}", kubectl.version),
                Box::new(move |world| stories::tell_of_a_cluster(world, &teller, story)),
            );
        }
        for (name, story) in stories::through_narthex().into_iter().filter(|_| with_narthex) {
            let teller = kubectl.clone();
            add(
                format!("kubectl {}: {name}", kubectl.version),
                Box::new(move |world| stories::tell_through(world, &teller, story)),
            );
        }
        for (name, trial) in stories::trials_with_kubectl().into_iter().filter(|_| with_narthex) {
            let kubectl = kubectl.clone();
            add(format!("kubectl {}: {name}", kubectl.version), Box::new(move |world| trial(world, &kubectl)));
        }
    }
    for (name, trial) in stories::trials_everywhere() {
        add(name.to_owned(), Box::new(trial));
    }
    for (name, trial) in stories::trials_of_narthex().into_iter().filter(|_| with_narthex) {
        add(name.to_owned(), Box::new(trial));
    }
    trials
}

fn built(name: &str) -> bool {
    world::peer(name).is_file()
}

/// The kubectl that was built, and the machine's own when it has one of another version.
fn kubectls() -> Vec<Kubectl> {
    let built = Kubectl::at(&world::peer("kubectl")).expect("the kubectl that was built runs");
    let mut kubectls = vec![built];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed: Option<PathBuf> = std::env::split_paths(&path).map(|dir| dir.join("kubectl")).find(|p| p.is_file());
    match installed.as_deref().and_then(|program: &Path| Kubectl::at(program)) {
        Some(kubectl) if kubectl.version != kubectls[0].version => kubectls.push(kubectl),
        _ => println!("interop: no kubectl of another version on this machine; one version is tested"),
    }
    kubectls
}
