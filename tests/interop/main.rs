//! Interop tests: kubectl, curl and plain HTTP clients against the real sample-apiserver, directly and through
//! narthex, with a real kube-apiserver and etcd.
//!
//! `tests/interop/run` builds the peers and runs this binary; arguments after `--` go to the test harness (a filter,
//! `--list`, `--test-threads`). `NARTHEX_INTEROP=direct` runs without narthex and compares the server with itself, to
//! tell whether a failure is narthex's or a peer's. `NARTHEX_INTEROP=hold` runs no test: it starts the environment
//! and prints how to use it until Enter is pressed.

// A test panics at the first unexpected result.
#![allow(clippy::unwrap_used)]

mod environment;
#[path = "../docs/hardening.rs"]
mod hardening;
#[path = "../docs/install_root.rs"]
mod install_root;
#[path = "../docs/page_runner.rs"]
mod page_runner;
mod scenarios;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Trial};

use environment::{Kubectl, TestEnvironment};

/// Time limit of one test, beside what [`scenarios::LONGER_VARIABLE`] asks for. The slowest takes about three minutes on
/// two cores.
const TEST_TIMEOUT: Duration = Duration::from_secs(12 * 60);

/// When it is set, all tests with kubectl run with the second one, too, not just the scenarios.
const EVERY_KUBECTL_VARIABLE: &str = "NARTHEX_INTEROP_EVERY_KUBECTL";

/// The tests that run, with their start times.
static RUNNING_TESTS: Mutex<BTreeMap<String, Instant>> = Mutex::new(BTreeMap::new());

/// The tests that ended, with what they took.
static ENDED_TESTS: Mutex<Vec<(Duration, String)>> = Mutex::new(Vec::new());

/// Lines of the list of slow tests.
const SLOW_TESTS: usize = 30;

/// Programs that `tests/interop/peers/build` builds.
const PEERS: [&str; 27] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "metrics-server",
    "kube-rs-controller",
    "kube-rs-watchers",
    "kube-rs-operator",
    "konnectivity-server",
    "konnectivity-agent",
    "konnectivity-conformance",
    "sample-apiserver",
    "kubectl",
    "kube-rbac-proxy",
    "website-operator",
    "sample-controller",
    "chaospod-controller",
    "informers",
    "leader-election",
    "kinds",
    "oracle",
    "helm",
    "kubeconform",
    "kwok",
    "promtool",
    "otel-collector",
    "h2spec",
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    if let Some(missing) = PEERS.iter().find(|name| !built(name)) {
        eprintln!("interop: {missing} is not built; run tests/interop/run, which builds the peers first");
        return ExitCode::FAILURE;
    }
    // Most tests wait for other processes half of the time.
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    arguments.test_threads.get_or_insert((2 * processors).clamp(2, 8));

    let kubectls = kubectls();
    let mode = std::env::var("NARTHEX_INTEROP").unwrap_or_default();
    if mode == "hold" {
        TestEnvironment::start(true).hold();
        return ExitCode::SUCCESS;
    }
    let with_gateway = mode != "direct";
    let shared: Arc<OnceLock<TestEnvironment>> = Arc::default();
    let tests = tests(&shared, &kubectls, with_gateway);
    if !arguments.list {
        // Started on the main thread, which outlives all tests: peers end with the thread that started them.
        let _ = shared.set(TestEnvironment::start(with_gateway));
        std::thread::spawn(enforce_test_timeout);
    }
    let conclusion = libtest_mimic::run(&arguments, tests);
    print_slow_tests();
    if let Some(environment) = Arc::into_inner(shared).and_then(OnceLock::into_inner) {
        environment.end(conclusion.has_failed());
    }
    conclusion.exit_code()
}

fn tests(shared: &Arc<OnceLock<TestEnvironment>>, kubectls: &[Kubectl], with_gateway: bool) -> Vec<Trial> {
    let mut tests = Vec::new();
    let mut add = |name: String, test: Box<dyn FnOnce(&TestEnvironment) + Send>| {
        let shared = Arc::clone(shared);
        tests.push(Trial::test(name.clone(), move || {
            let _running = RunningTest::start(name);
            shared.get().expect("the environment was started before the tests").run_test(test);
            Ok(())
        }));
    };
    for kubectl in kubectls {
        for (name, scenario) in scenarios::extension_scenarios() {
            let kubectl = kubectl.clone();
            add(
                format!("kubectl {}: {name}", kubectl.version),
                Box::new(move |environment| scenarios::compare_extension_server(environment, &kubectl, scenario)),
            );
        }
        for (name, scenario) in scenarios::cluster_scenarios() {
            let kubectl = kubectl.clone();
            add(
                format!("kubectl {}: cluster: {name}", kubectl.version),
                Box::new(move |environment| scenarios::compare_cluster(environment, &kubectl, scenario)),
            );
        }
        for (name, scenario) in scenarios::gateway_scenarios().into_iter().filter(|_| with_gateway) {
            let kubectl = kubectl.clone();
            add(
                format!("kubectl {}: {name}", kubectl.version),
                Box::new(move |environment| scenarios::run_at_gateway(environment, &kubectl, scenario)),
            );
        }
        // Whole programs, most of whose time is not kubectl's.
        let is_built = kubectl.version == kubectls[0].version;
        let is_wanted = with_gateway && (is_built || std::env::var_os(EVERY_KUBECTL_VARIABLE).is_some());
        for (name, test) in scenarios::kubectl_tests().into_iter().filter(|_| is_wanted) {
            let kubectl = kubectl.clone();
            add(
                format!("kubectl {}: {name}", kubectl.version),
                Box::new(move |environment| test(environment, &kubectl)),
            );
        }
    }
    for (name, test) in scenarios::tests_of_all_targets() {
        add(name.to_owned(), Box::new(test));
    }
    for (name, test) in scenarios::gateway_tests().into_iter().filter(|_| with_gateway) {
        add(name.to_owned(), Box::new(test));
    }
    tests
}

/// An entry of [`RUNNING_TESTS`], removed on drop.
struct RunningTest(String);

impl RunningTest {
    fn start(name: String) -> RunningTest {
        RUNNING_TESTS.lock().unwrap().insert(name.clone(), Instant::now());
        RunningTest(name)
    }
}

impl Drop for RunningTest {
    fn drop(&mut self) {
        if let Some((name, start)) = RUNNING_TESTS.lock().unwrap().remove_entry(&self.0) {
            ENDED_TESTS.lock().unwrap().push((start.elapsed(), name));
        }
    }
}

/// Where the time of a run goes: the slowest tests, and the sum of all, which ran several at a time.
fn print_slow_tests() {
    let mut tests = std::mem::take(&mut *ENDED_TESTS.lock().unwrap());
    if tests.len() <= SLOW_TESTS {
        return;
    }
    tests.sort_by(|a, b| b.cmp(a));
    let sum: Duration = tests.iter().map(|(duration, _)| *duration).sum();
    println!("interop: {} tests, {} s one after the other; the slowest:", tests.len(), sum.as_secs());
    for (duration, name) in tests.iter().take(SLOW_TESTS) {
        println!("{:6} s  {name}", duration.as_secs());
    }
}

/// Ends the suite with an error when a test exceeds [`TEST_TIMEOUT`]: a test that hangs must not take CI's whole time.
/// The peers end with this process; their logs stay in the scratch directory.
fn enforce_test_timeout() {
    let minutes = std::env::var(scenarios::LONGER_VARIABLE).ok().and_then(|minutes| minutes.parse::<u64>().ok());
    let limit = TEST_TIMEOUT + Duration::from_secs(minutes.unwrap_or(0) * 60);
    loop {
        std::thread::sleep(Duration::from_secs(5));
        let running = RUNNING_TESTS.lock().unwrap();
        if running.values().all(|start| start.elapsed() < limit) {
            continue;
        }
        eprintln!("interop: a test exceeded {} s; running tests:", limit.as_secs());
        for (name, start) in running.iter() {
            eprintln!("interop:   {name}: {} s", start.elapsed().as_secs());
        }
        std::process::exit(1);
    }
}

fn built(name: &str) -> bool {
    environment::peer(name).is_file()
}

/// The kubectl that was built, and the one on PATH if its version differs.
fn kubectls() -> Vec<Kubectl> {
    let built = Kubectl::at(&environment::peer("kubectl")).expect("the kubectl that was built runs");
    let mut kubectls = vec![built];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed: Option<PathBuf> = std::env::split_paths(&path).map(|dir| dir.join("kubectl")).find(|p| p.is_file());
    match installed.as_deref().and_then(|program: &Path| Kubectl::at(program)) {
        Some(kubectl) if kubectl.version != kubectls[0].version => kubectls.push(kubectl),
        _ => println!("interop: no kubectl of another version on this machine; one version is tested"),
    }
    kubectls
}
