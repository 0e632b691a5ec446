//! Agents that are killed and restarted while transfers run: descriptors and memory of the processes stay.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::pairs::OWN;
use super::transfer::{Transfer, TransferOutcome, TransferTarget};
use crate::environment::{Agent, Konnectivity, KonnectivityMode, TestEnvironment, eventually, runtime};

/// Length of the soak in minutes.
pub(crate) const MINUTES_VARIABLE: &str = "NARTHEX_TEST_SOAK_MINUTES";
const DEFAULT_LENGTH: Duration = Duration::from_secs(16);
const WORKERS: usize = 12;
const AGENTS: usize = 3;
/// Descriptors that may come and go at any time.
const DESCRIPTOR_SLACK: usize = 6;
/// Growth of memory after the first half: allocators keep some.
const MEMORY_SLACK_KILOBYTES: u64 = 16 << 10;

/// What a process holds while it carries nothing.
#[derive(Clone, Copy, Debug)]
struct Usage {
    descriptors: usize,
    resident_kilobytes: u64,
}

/// Outcomes of all transfers.
#[derive(Default)]
struct SoakCounts {
    complete: AtomicUsize,
    incomplete: AtomicUsize,
    refused: AtomicUsize,
    corrupt: AtomicUsize,
    kills: AtomicUsize,
}

pub(super) fn run(environment: &TestEnvironment) {
    let minutes = std::env::var(MINUTES_VARIABLE).ok().map(|text| text.parse::<u64>().expect("minutes"));
    let length = minutes.map_or(DEFAULT_LENGTH, |minutes| Duration::from_secs(minutes * 60));
    for mode in [KonnectivityMode::GrpcUnix, KonnectivityMode::ConnectUnix] {
        let directory = environment.scratch(&format!("konnectivity-soak-{mode:?}"));
        // The first agent lives to the end.
        let konnectivity = Konnectivity::with_pair(&directory, mode, OWN);
        let others: Vec<Agent> = (1..AGENTS).map(|number| spawn(&konnectivity, &format!("agent-{number}"))).collect();
        konnectivity.wait_for_agents(AGENTS);
        let others = Mutex::new(others);
        let target = TransferTarget::start();
        let counts = SoakCounts::default();
        // What is allocated once is there before the first look.
        phase(&konnectivity, &others, &target, &counts, length.min(Duration::from_secs(20)) / 4);
        let start = measure(&konnectivity, "start");
        phase(&konnectivity, &others, &target, &counts, length / 4);
        let middle = measure(&konnectivity, "middle");
        phase(&konnectivity, &others, &target, &counts, length / 4);
        let end = measure(&konnectivity, "end");
        let SoakCounts { complete, incomplete, refused, corrupt, kills } = counts;
        println!(
            "{mode:?}: {} kills, {} transfers complete, {} incomplete, {} dials failed, {} corrupt",
            kills.into_inner(),
            complete.load(Relaxed),
            incomplete.into_inner(),
            refused.into_inner(),
            corrupt.load(Relaxed),
        );
        assert_eq!(corrupt.into_inner(), 0);
        assert!(complete.into_inner() > 0);
        for ((start, middle), end) in start.into_iter().zip(middle).zip(end) {
            assert!(end.descriptors <= start.descriptors + DESCRIPTOR_SLACK, "descriptors grow: {start:?}, {end:?}");
            let limit = middle.resident_kilobytes.max(start.resident_kilobytes) + MEMORY_SLACK_KILOBYTES;
            assert!(end.resident_kilobytes <= limit, "memory grows: {start:?}, {middle:?}, {end:?}");
        }
    }
}

fn spawn(konnectivity: &Konnectivity, name: &str) -> Agent {
    let agent = konnectivity.spawn_agent(name, None);
    eventually("the agent to connect", || if agent.is_connected() { Ok(()) } else { Err(name.to_owned()) });
    agent
}

/// Transfers for a time, while agents come and go; then waits until nothing is open.
fn phase(
    konnectivity: &Konnectivity,
    others: &Mutex<Vec<Agent>>,
    target: &TransferTarget,
    counts: &SoakCounts,
    length: Duration,
) {
    let deadline = Instant::now() + length;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let workers = (0..WORKERS).map(|_| transfer_until(&is_over, konnectivity, target, counts));
            let local = tokio::task::LocalSet::new();
            runtime().block_on(local.run_until(futures_util::future::join_all(workers)));
        });
        let mut others = others.lock().unwrap();
        // Agents end with the thread that started them: this one.
        while Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(fastrand::u64(200..3000)));
            let next = fastrand::usize(..others.len());
            let mut agent = others.swap_remove(next);
            if fastrand::bool() {
                agent.process.signal(Signal::TERM);
                std::thread::sleep(Duration::from_millis(fastrand::u64(..500)));
            }
            agent.process.signal(Signal::KILL);
            agent.process.wait();
            let kill = counts.kills.fetch_add(1, Relaxed);
            others.push(spawn(konnectivity, &format!("agent-r{kill}")));
        }
        is_over.store(true, Relaxed);
    });
    eventually("no open connection", || {
        let server = konnectivity.established();
        let agent = konnectivity.agents[0].count("konnectivity_network_proxy_agent_open_endpoint_connections");
        if server + agent == 0.0 { Ok(()) } else { Err(format!("{server} in the server, {agent} in the agent")) }
    });
}

async fn transfer_until(
    is_over: &AtomicBool,
    konnectivity: &Konnectivity,
    target: &TransferTarget,
    counts: &SoakCounts,
) {
    let mut random = fastrand::Rng::new();
    while !is_over.load(Relaxed) {
        let counter = match Transfer::random(&mut random).run(konnectivity, target).await {
            Ok(TransferOutcome::Complete) => &counts.complete,
            Ok(TransferOutcome::Truncated | TransferOutcome::Failed) => &counts.incomplete,
            Ok(TransferOutcome::Corrupt) => &counts.corrupt,
            Err(_) => &counts.refused,
        };
        counter.fetch_add(1, Relaxed);
    }
}

/// Usage of the server and of the agent that lives.
fn measure(konnectivity: &Konnectivity, when: &str) -> [Usage; 2] {
    [("server", &konnectivity.server), ("agent", &konnectivity.agents[0].process)].map(|(name, process)| {
        let usage = Usage { descriptors: process.descriptors(), resident_kilobytes: process.resident_kilobytes() };
        println!(
            "{:?} {when}: {name} has {} descriptors, {} kB",
            konnectivity.mode, usage.descriptors, usage.resident_kilobytes
        );
        usage
    })
}
