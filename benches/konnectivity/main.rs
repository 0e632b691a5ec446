//! Konnectivity: CPU per GiB, throughput, dials, latency and memory of Narthex and of the reference, in turns.
//!
//! ```text
//! tests/interop/peers/build konnectivity
//! cargo bench --bench konnectivity                 # servers and agents in each pairing, with narthex's client
//! cargo bench --bench konnectivity -- --transports grpc --jobs echo,stalled-target --rounds 1
//! cargo bench --bench konnectivity -- --columns reference,narthex,two-relays   # not all columns
//! cargo bench --bench konnectivity -- --clients    # both clients, through the reference server and agent
//! ```
//!
//! Server, agent, target and client share the machine, so speeds show the cost of each, not the speed of a network. The
//! client is a separate process; CPU time and memory are the kernel's. In the mode `grpc`, Narthex's client keeps one
//! connection for all its tunnels; the reference opens one for each, as in kube-apiserver. The column `two-relays` is a lower
//! bound: two processes with the same connections and the same TLS, which only copy bytes.

// It stops at what it did not expect.
#![allow(clippy::unwrap_used)]

mod client;
mod jobs;
mod peers;
#[path = "../../tests/interop/environment/ports.rs"]
mod ports;
mod relays;
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

/// A column of the table: what the jobs go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    /// Server and agent, each Narthex's or not, with Narthex's client.
    Pair([bool; 2]),
    /// Server and agent of the reference, with its client.
    ReferenceClient,
    /// Two relays in place of server and agent.
    Relays,
    /// A TCP connection to the target.
    NoTunnel,
}

/// All columns, and their titles, which are also their names for `--columns`.
const COLUMNS: [(Column, &str); 7] = [
    (Column::Pair([false, false]), "reference"),
    (Column::Pair([true, false]), "own-server"),
    (Column::Pair([false, true]), "own-agent"),
    (Column::Pair([true, true]), "narthex"),
    (Column::ReferenceClient, "ref-client"),
    (Column::Relays, "two-relays"),
    (Column::NoTunnel, "no-tunnel"),
];

impl Column {
    /// Whether it can do `job`, and the figures say something.
    fn has_figures(self, transport: Transport, job: &Job) -> bool {
        match self {
            Column::Pair(_) => true,
            Column::ReferenceClient => {
                transport == Transport::Grpc && job.supports_reference_client && job.kind != JobKind::Idle
            }
            Column::Relays | Column::NoTunnel => job.has_baseline(),
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if arguments.first().is_some_and(|first| first.starts_with("--socket=")) {
        return client::run(&arguments);
    }
    if arguments.first().is_some_and(|first| first.starts_with("--relay=")) {
        return relays::run(&arguments);
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
    let columns: Vec<(Column, &str)> = match option("--columns") {
        Some(names) => {
            names.split(',').map(|name| *COLUMNS.iter().find(|(_, title)| *title == name).unwrap()).collect()
        }
        None => COLUMNS.to_vec(),
    };
    for transport in transports.split(',') {
        benchmark.compare(Transport::parse(transport), &jobs, &columns);
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
                    figures.push(self.measure(&self.start_peers(Transport::Grpc, [false, false]), client, job));
                }
            }
            job.print(&figures, true);
        }
    }

    /// One table: each job in all columns, in turns.
    fn compare(&self, transport: Transport, jobs: &[&Job], columns: &[(Column, &str)]) {
        let titles: Vec<String> = columns.iter().map(|(_, title)| format!("{title:>10}")).collect();
        let titles = titles.join(" ");
        println!("{:34} {titles}   medians of {} rounds", transport.title(), self.rounds);
        for job in jobs {
            let mut figures = vec![Vec::new(); columns.len()];
            for _ in 0..self.rounds {
                for ((column, _), figures) in columns.iter().zip(&mut figures) {
                    if column.has_figures(transport, job) {
                        figures.push(self.measure_column(*column, transport, job));
                    }
                }
            }
            if let Some(direct) = columns.iter().position(|(column, _)| *column == Column::NoTunnel) {
                job.print_share(&figures, &figures[direct]);
            }
            job.print(&figures, false);
        }
        println!();
    }

    fn measure_column(&self, column: Column, transport: Transport, job: &Job) -> JobFigures {
        match column {
            Column::Pair(own) => self.measure(&self.start_peers(transport, own), &self.own_client, job),
            Column::ReferenceClient => {
                let client = peer_program("konnectivity-client");
                self.measure(&self.start_peers(transport, [false, false]), &client, job)
            }
            Column::Relays => {
                let relays = KonnectivityPeers::start_relays(&self.directory, transport);
                self.measure(&relays, &self.own_client, job)
            }
            Column::NoTunnel => self.measure_direct(job),
        }
    }

    fn start_peers(&self, transport: Transport, own: [bool; 2]) -> KonnectivityPeers {
        KonnectivityPeers::start(&self.directory, own, transport)
    }

    /// Runs one client at one job, through `peers`, which are fresh: the reference's keep the memory that they once needed.
    fn measure(&self, peers: &KonnectivityPeers, client: &Path, job: &Job) -> JobFigures {
        let (before, resident) = (peers.cpu(), peers.memory("VmRSS"));
        let mut client_arguments = vec![format!("--socket={}", peers.frontend)];
        if client == self.own_client {
            client_arguments.push(format!("--transport={}", peers.transport.name()));
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

    /// The job without a tunnel, over TCP connections to the target.
    fn measure_direct(&self, job: &Job) -> JobFigures {
        let client_arguments = ["--socket=".to_owned(), "--transport=direct".to_owned(), "--pki=".to_owned()];
        let port = self.targets.port(job.target);
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
