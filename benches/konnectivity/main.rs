//! Konnectivity: CPU per GiB, throughput, dials, latency and memory of Narthex and of the reference, in turns.
//!
//! ```text
//! tests/interop/peers/build konnectivity
//! cargo bench --bench konnectivity                 # servers and agents in each pairing, with narthex's client
//! cargo bench --bench konnectivity -- --transports grpc --jobs echo,stalled-target --rounds 1
//! cargo bench --bench konnectivity -- --pairs reference,narthex   # neither mixed pairs nor runs without a tunnel
//! cargo bench --bench konnectivity -- --clients    # both clients, through the reference server and agent
//! ```
//!
//! Server, agent, target and client share the machine, so speeds show the cost of each, not the speed of a network. The
//! client is a separate process; CPU time and memory are the kernel's. In the mode `grpc`, Narthex's client keeps one
//! connection for all its tunnels; the reference opens one for each, as in kube-apiserver.

// It stops at what it did not expect.
#![allow(clippy::unwrap_used)]

mod client;
mod jobs;
mod peers;
#[path = "../../tests/interop/environment/ports.rs"]
mod ports;
mod targets;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use jobs::{JOBS, Job, JobFigures, JobKind, TRANSFER_BYTES};
use peers::{KonnectivityPeers, Transport, peer_program};
use targets::Targets;

/// How long idle tunnels are open before the memory that they need is read: allocators return what dials needed.
const MEMORY_RETURN_TIME: Duration = Duration::from_secs(20);

/// Whether server and agent are narthex's, and how the table calls them.
type Pair = ([bool; 2], &'static str);

/// All pairs.
const PAIRS: [Pair; 4] = [
    ([false, false], "reference"),
    ([true, false], "own server"),
    ([false, true], "own agent"),
    ([true, true], "narthex"),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if arguments.first().is_some_and(|first| first.starts_with("--socket=")) {
        return client::run(&arguments);
    }
    let option = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        Some(arguments.get(at + 1).unwrap_or_else(|| panic!("{name} needs a value")).as_str())
    };
    let rounds = option("--rounds").map_or(3, |rounds| rounds.parse().unwrap());
    let benchmark = Benchmark::new(rounds);
    if arguments.iter().any(|argument| argument == "--clients") {
        return benchmark.compare_clients();
    }
    let transports = option("--transports").unwrap_or("grpc,http-connect,mtls");
    let jobs: Vec<&Job> = match option("--jobs") {
        Some(names) => names.split(',').map(|name| JOBS.iter().find(|job| job.name == name).unwrap()).collect(),
        None => JOBS.iter().collect(),
    };
    let pairs: Vec<Pair> = match option("--pairs") {
        Some(names) => names.split(',').map(|name| *PAIRS.iter().find(|(_, pair)| *pair == name).unwrap()).collect(),
        None => PAIRS.to_vec(),
    };
    for transport in transports.split(',') {
        benchmark.compare_pairs(Transport::parse(transport), &jobs, &pairs);
    }
}

struct Benchmark {
    rounds: usize,
    directory: PathBuf,
    targets: Targets,
    own_client: PathBuf,
}

impl Drop for Benchmark {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Benchmark {
    fn new(rounds: usize) -> Benchmark {
        let directory = std::env::temp_dir().join(format!("konnectivity-bench-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        Benchmark { rounds, directory, targets: Targets::start(), own_client: std::env::current_exe().unwrap() }
    }

    /// Both clients at the jobs that the reference's knows.
    fn compare_clients(&self) {
        println!("{:34} {:>10} {:>10}   medians of {} rounds", "client", "narthex", "reference", self.rounds);
        for job in JOBS.iter().filter(|job| job.supports_reference_client) {
            let mut figures = [Vec::new(), Vec::new()];
            for _ in 0..self.rounds {
                for (client, figures) in
                    [&self.own_client, &peer_program("konnectivity-client")].into_iter().zip(&mut figures)
                {
                    figures.push(self.measure(Transport::Grpc, [false, false], client, job));
                }
            }
            job.print(&figures, true);
        }
    }

    /// With all pairs, transfers, dials and echoes also without a tunnel, and with the client of the reference.
    fn compare_pairs(&self, transport: Transport, jobs: &[&Job], pairs: &[Pair]) {
        let is_whole = pairs.len() == PAIRS.len();
        let titles: Vec<String> = pairs.iter().map(|(_, title)| format!("{title:>10}")).collect();
        let titles = titles.join(" ");
        println!("{:34} {titles}   medians of {} rounds", transport.title(), self.rounds);
        for job in jobs {
            let mut figures = vec![Vec::new(); pairs.len()];
            for _ in 0..self.rounds {
                for ((own, _), figures) in pairs.iter().zip(&mut figures) {
                    figures.push(self.measure(transport, *own, &self.own_client, job));
                }
            }
            if is_whole && transport == Transport::Grpc && job.supports_reference_client && job.kind != JobKind::Idle {
                let client = peer_program("konnectivity-client");
                let reference = (0..self.rounds).map(|_| self.measure(transport, [false, false], &client, job));
                job.print_beside("its client", &reference.collect::<Vec<_>>());
            }
            if is_whole && job.has_baseline() {
                let target = self.targets.port(job.target);
                let measure = |port| (0..self.rounds).map(|_| self.measure_direct(job, port)).collect::<Vec<_>>();
                let direct = measure(target);
                job.print_beside("no tunnel", &direct);
                job.print_beside("two relays", &measure(targets::start_relays(target)));
                job.print_share(&figures, &direct);
            }
            job.print(&figures, false);
        }
        println!();
    }

    /// Runs one client at one job, through fresh peers: the reference's keep the memory that they once needed.
    fn measure(&self, transport: Transport, own: [bool; 2], client: &Path, job: &Job) -> JobFigures {
        let peers = KonnectivityPeers::start(&self.directory, own, transport);
        let (before, resident) = (peers.cpu(), peers.memory("VmRSS"));
        let mut client_arguments = vec![format!("--socket={}", peers.frontend)];
        if client == self.own_client {
            client_arguments.push(format!("--transport={}", transport.name()));
            client_arguments.push(format!("--pki={}", peers.pki.display()));
        }
        let (mut after, mut memory) = ([0.0; 2], [0.0; 2]);
        let output = self.run_client(client, &client_arguments, job, self.targets.port(job.target), || {
            after = peers.cpu();
            memory = match job.kind {
                JobKind::Idle => {
                    std::thread::sleep(MEMORY_RETURN_TIME);
                    peers.memory("VmRSS")
                }
                _ => peers.memory("VmHWM"),
            };
        });
        let mut figures = JobFigures::parse(&output);
        figures.cpu = [figures.cpu[0], after[0] - before[0], after[1] - before[1]];
        figures.memory = [memory[0] - resident[0], memory[1] - resident[1]];
        figures
    }

    /// The job without a tunnel, over a TCP connection to `port`.
    fn measure_direct(&self, job: &Job, port: u16) -> JobFigures {
        let client_arguments = ["--socket=".to_owned(), "--transport=direct".to_owned(), "--pki=".to_owned()];
        JobFigures::parse(&self.run_client(&self.own_client, &client_arguments, job, port, || {}))
    }

    /// The figures of a client. Its tunnels are open until `measure` returns; those of the reference's client may be closed.
    fn run_client(
        &self,
        client: &Path,
        client_arguments: &[String],
        job: &Job,
        target: u16,
        measure: impl FnOnce(),
    ) -> serde_json::Value {
        let port = |kind| self.targets.port(kind);
        // What one stalled tunnel leads to, beside the echo that is measured.
        let stalled = if job.kind == JobKind::StalledClient {
            port(targets::TargetKind::Source)
        } else {
            port(targets::TargetKind::Idle)
        };
        let mut command = Command::new(client);
        command.args(client_arguments).args([
            format!("--target=127.0.0.1:{target}"),
            format!("--job={}", job.kind.name()),
            format!("--bytes={}", TRANSFER_BYTES / job.workers_of_transfer()),
            format!("--count={}", job.count),
            format!("--workers={}", job.workers),
        ]);
        if client == self.own_client {
            command.arg(format!("--stalled-target=127.0.0.1:{stalled}"));
        }
        let mut client = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut figures = String::new();
        BufReader::new(client.stdout.take().unwrap()).read_line(&mut figures).unwrap();
        measure();
        drop(client.stdin.take());
        let status = client.wait().unwrap();
        assert!(status.success(), "{}: {status}", job.name);
        serde_json::from_str(&figures).unwrap()
    }
}
