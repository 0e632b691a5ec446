//! Narthex's Konnectivity client and the reference client at the same jobs, in turns, through the reference server and
//! agent: CPU per GiB, dials per second, memory per idle tunnel.
//!
//! ```text
//! tests/interop/peers/build konnectivity
//! cargo bench --bench konnectivity                 # three rounds
//! cargo bench --bench konnectivity -- --rounds 5
//! cargo bench --bench konnectivity -- --pairs      # narthex's server and agent, with each other and with the reference's
//! ```
//!
//! Server, agent, target and client share the machine, so speeds show the cost of each, not the speed of a network. The
//! client is a separate process; CPU time and memory are the kernel's. Narthex keeps one connection for all its tunnels;
//! the reference opens one for each, as in kube-apiserver.

// It stops at what it did not expect.
#![allow(clippy::unwrap_used)]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use narthex::egress::proxy::konnectivity::{KonnectivityClient, KonnectivityTunnel};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::task::LocalSet;

/// What is moved in a transfer.
const SIZE: u64 = 1 << 30;
const TIMEOUT: Duration = Duration::from_secs(30);

/// A job: its name, how much of it, by how many at a time, and what the target does.
const JOBS: &[(&str, &str, u64, u64)] = &[
    ("download", "a GiB down", 1, 1),
    ("upload", "a GiB up", 1, 1),
    ("dials", "2000 dials", 2000, 1),
    ("dials", "4000 dials, 16 at a time", 4000, 16),
    ("idle", "1000 idle tunnels", 1000, 1),
];

/// Whether server and agent are narthex's, and how the table calls them.
const PAIRS: [([bool; 2], &str); 4] = [
    ([false, false], "theirs"),
    ([true, false], "our server"),
    ([false, true], "our agent"),
    ([true, true], "both ours"),
];

#[derive(Clone, Copy, Debug)]
struct TunnelFigures {
    seconds: f64,
    /// The client's, the server's and the agent's.
    cpu: [f64; 3],
    /// Bytes that the client has more at the end.
    resident: f64,
    /// Bytes that server and agent have more at their peak.
    peaks: [f64; 2],
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if arguments.first().is_some_and(|first| first.starts_with("--socket=")) {
        return run_narthex_client(&arguments);
    }
    let rounds = match arguments.iter().position(|argument| argument == "--rounds") {
        Some(at) => arguments[at + 1].parse().unwrap(),
        None => 3,
    };
    let directory = std::env::temp_dir().join(format!("konnectivity-bench-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (source, sink, quiet) = (start_target(serve_source), start_target(serve_sink), start_target(serve_idle));
    let ports = [("download", source), ("upload", sink), ("dials", quiet), ("idle", quiet)];
    let port = |job: &str| ports.iter().find(|(name, _)| *name == job).unwrap().1;
    let own_client = std::env::current_exe().unwrap();
    if arguments.iter().any(|argument| argument == "--pairs") {
        let titles = PAIRS.map(|(_, title)| format!("{title:>10}")).join(" ");
        println!("{:26} {titles}   medians of {rounds} rounds, narthex's client", "");
        print_direct(&own_client, source, sink, rounds);
        for job in JOBS {
            let mut figures = PAIRS.map(|_| Vec::new());
            for _ in 0..rounds {
                for ((own, _), figures) in PAIRS.iter().zip(&mut figures) {
                    figures.push(measure(&directory, *own, &own_client, job, port(job.0)));
                }
            }
            print_job(job, &figures, false);
        }
    } else {
        println!("{:26} {:>10} {:>10}   medians of {rounds} rounds, ours and the reference's", "", "ours", "theirs");
        for job in JOBS {
            let mut figures = [Vec::new(), Vec::new()];
            for _ in 0..rounds {
                for (client, figures) in [&own_client, &peer("konnectivity-client")].into_iter().zip(&mut figures) {
                    figures.push(measure(&directory, [false, false], client, job, port(job.0)));
                }
            }
            print_job(job, &figures, true);
        }
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

/// Runs one client at one job, through fresh peers: the reference's keep what they once needed.
fn measure(
    directory: &Path,
    own: [bool; 2],
    client: &Path,
    (job, _, count, workers): &(&str, &str, u64, u64),
    port: u16,
) -> TunnelFigures {
    let peers = KonnectivityPeers::start(directory, own);
    let before = peers.cpu();
    let resident = peers.memory("VmRSS");
    let output_text =
        run_client(client, &[format!("--socket={}", peers.socket.display())], job, *count, *workers, port);
    let (after, peaks) = (peers.cpu(), peers.memory("VmHWM"));
    let number = |name: &str| output_text[name].as_f64().unwrap();
    TunnelFigures {
        seconds: number("seconds"),
        cpu: [number("cpu"), after[0] - before[0], after[1] - before[1]],
        resident: number("resident"),
        peaks: [peaks[0] - resident[0], peaks[1] - resident[1]],
    }
}

fn run_client(client: &Path, more: &[String], job: &str, count: u64, workers: u64, port: u16) -> serde_json::Value {
    let words = [
        format!("--target=127.0.0.1:{port}"),
        format!("--job={job}"),
        format!("--bytes={SIZE}"),
        format!("--count={count}"),
        format!("--workers={workers}"),
    ];
    let output = Command::new(client).args(more).args(words).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{job}: {}", output.status);
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The same transfers without a tunnel.
fn print_direct(client: &Path, source: u16, sink: u16, rounds: usize) {
    for (job, port) in [("download", source), ("upload", sink)] {
        let mut speeds: Vec<f64> = (0..rounds)
            .map(|_| {
                let output = run_client(client, &["--socket=".to_owned()], job, 1, 1, port);
                SIZE as f64 / 1e6 / output["seconds"].as_f64().unwrap()
            })
            .collect();
        speeds.sort_unstable_by(f64::total_cmp);
        println!("{job:26} {:10.2}   MB/s without a tunnel", speeds[speeds.len() / 2]);
    }
}

fn print_job((job, title, count, _): &(&str, &str, u64, u64), figures: &[Vec<TunnelFigures>], is_of_clients: bool) {
    let row = |what: &str, figure: &dyn Fn(&TunnelFigures) -> f64| {
        let values: Vec<String> = figures.iter().map(|figures| format!("{:10.2}", median(figures, figure))).collect();
        println!("{title:26} {}   {what}", values.join(" "));
    };
    match *job {
        "idle" if is_of_clients => row("KiB of the client for each", &|it| it.resident / 1024.0 / *count as f64),
        "idle" => {
            row("KiB of the server for each", &|it| it.peaks[0] / 1024.0 / *count as f64);
            row("KiB of the agent for each", &|it| it.peaks[1] / 1024.0 / *count as f64);
        }
        "dials" => row("a second", &|it| *count as f64 / it.seconds),
        _ => row("MB/s", &|it| SIZE as f64 / 1e6 / it.seconds),
    }
    for (at, user) in ["client", "server", "agent"].iter().enumerate() {
        row(&format!("CPU seconds of the {user}"), &|it| it.cpu[at]);
    }
}

fn median(all: &[TunnelFigures], figure: &dyn Fn(&TunnelFigures) -> f64) -> f64 {
    let mut values: Vec<f64> = all.iter().map(figure).collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

fn peer(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/bin").join(name)
}

/// A server and an agent; dropped, they end.
struct KonnectivityPeers {
    server: Child,
    agent: Child,
    socket: PathBuf,
}

impl KonnectivityPeers {
    fn start(directory: &Path, [own_server, own_agent]: [bool; 2]) -> KonnectivityPeers {
        let pki = directory.join("pki");
        if !pki.exists() {
            let make = |words: &str| {
                let mut command = Command::new(env!("CARGO_BIN_EXE_narthex"));
                command.arg("pki").args(words.split_whitespace()).arg("--dir").arg(&pki).stdout(Stdio::null());
                assert!(command.status().unwrap().success(), "pki {words}");
            };
            make("init");
            make("issue --ca client --name agent");
        }
        let pki = pki.display();
        let socket = directory.join("front.sock");
        let ports: Vec<u16> = (0..5).map(|_| free_port()).collect();
        let server = format!(
            "--mode=grpc --uds-name={} --server-port=0 --cluster-cert={pki}/serving.crt \
             --cluster-key={pki}/serving.key --cluster-ca-cert={pki}/client-ca.crt --agent-port={} --agent-bind-address=127.0.0.1 --health-port={} \
             --health-bind-address=127.0.0.1 --admin-port={} --admin-bind-address=127.0.0.1 --v=0",
            socket.display(),
            ports[0],
            ports[1],
            ports[2]
        );
        let agent = format!(
            "--ca-cert={pki}/serving-ca.crt --agent-cert={pki}/agent.crt --agent-key={pki}/agent.key --proxy-server-host=127.0.0.1 \
             --proxy-server-port={} --health-server-host=127.0.0.1 --health-server-port={} \
             --admin-bind-address=127.0.0.1 --admin-server-port={} --v=0",
            ports[0], ports[3], ports[4]
        );
        let start = |name: &str, is_own: bool, words: &str| {
            let mut command = match is_own {
                true => Command::new(env!("CARGO_BIN_EXE_narthex")),
                false => Command::new(peer(name)),
            };
            command
                .args(is_own.then_some(name))
                .args(words.split_whitespace())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        };
        let server = start("konnectivity-server", own_server, &server);
        let peers = KonnectivityPeers { server, agent: start("konnectivity-agent", own_agent, &agent), socket };
        let deadline = Instant::now() + Duration::from_secs(30);
        while !is_ready(ports[1]) {
            assert!(Instant::now() < deadline, "the agent does not connect");
            std::thread::sleep(Duration::from_millis(50));
        }
        peers
    }

    fn cpu(&self) -> [f64; 2] {
        [cpu(&self.server.id().to_string()), cpu(&self.agent.id().to_string())]
    }
}

impl KonnectivityPeers {
    /// A figure in bytes of `/proc/PID/status`, for server and agent.
    fn memory(&self, name: &str) -> [f64; 2] {
        [&self.server, &self.agent].map(|child| {
            let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() * 1024.0
        })
    }
}

impl Drop for KonnectivityPeers {
    fn drop(&mut self) {
        for child in [&mut self.agent, &mut self.server] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The server refuses ports that the kernel gives away.
fn free_port() -> u16 {
    loop {
        let port = fastrand::u16(20_000..32_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn is_ready(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let mut response = String::new();
    stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").is_ok()
        && stream.read_to_string(&mut response).is_ok()
        && response.contains(" 200 ")
}

/// Seconds of CPU that a process used; the kernel counts hundredths.
fn cpu(process: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / 100.0
}

/// Bytes of memory this process has.
fn resident() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<f64>().unwrap() * 4096.0
}

fn start_target(serve: fn(TcpStream)) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::Builder::new().stack_size(256 << 10).spawn(move || serve(stream)).unwrap();
        }
    });
    port
}

/// Waits to be asked: the reference's client loses what comes before it is ready for it.
fn serve_source(mut stream: TcpStream) {
    if stream.read_exact(&mut [0]).is_err() {
        return;
    }
    let buffer = vec![7; 64 << 10];
    for _ in 0..SIZE / buffer.len() as u64 {
        if stream.write_all(&buffer).is_err() {
            return;
        }
    }
}

fn serve_sink(mut stream: TcpStream) {
    let (mut buffer, mut all) = (vec![0; 64 << 10], 0);
    while all < SIZE {
        match stream.read(&mut buffer) {
            Ok(length @ 1..) => all += length as u64,
            _ => return,
        }
    }
    let _ = stream.write_all(b"k");
}

fn serve_idle(mut stream: TcpStream) {
    let _ = stream.read(&mut [0]);
}

/// Our client at a job, in a process of its own.
fn run_narthex_client(arguments: &[String]) {
    let word = |name: &str| {
        let found = arguments.iter().find_map(|argument| argument.strip_prefix(&format!("--{name}=")));
        found.unwrap_or_else(|| panic!("--{name} is missing"))
    };
    let number = |name: &str| word(name).parse::<u64>().unwrap();
    if word("socket").is_empty() {
        return run_direct(word("target"), word("job"), number("bytes"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(LocalSet::new().run_until(async {
        let stream = UnixStream::connect(word("socket")).await.unwrap();
        let client = KonnectivityClient::connect(stream, "localhost").await.unwrap();
        let dial = async || client.dial(word("target"), TIMEOUT).await.unwrap();
        let mut kept: Vec<KonnectivityTunnel> = Vec::new();
        if word("job") == "idle" {
            drop(dial().await);
        }
        let (before, began) = (resident(), Instant::now());
        let mut buffer = vec![0; 64 << 10];
        match word("job") {
            "download" => {
                let mut tunnel = dial().await;
                tunnel.write_all(b"g").await.unwrap();
                let mut all = 0;
                while let length @ 1.. = tunnel.read(&mut buffer).await.unwrap() {
                    all += length as u64;
                }
                assert_eq!(all, number("bytes"));
            }
            "upload" => {
                let mut tunnel = dial().await;
                for _ in 0..number("bytes") / buffer.len() as u64 {
                    tunnel.write_all(&buffer).await.unwrap();
                }
                tunnel.read_exact(&mut [0]).await.unwrap();
            }
            "dials" => {
                let each = number("count") / number("workers");
                let workers = (0..number("workers")).map(async |_| {
                    for _ in 0..each {
                        drop(dial().await);
                    }
                });
                futures_util::future::join_all(workers).await;
            }
            _ => {
                for _ in 0..number("count") {
                    kept.push(dial().await);
                }
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        let resident = resident() - before;
        println!("{}", serde_json::json!({"seconds": seconds, "cpu": cpu("self"), "resident": resident}));
    }));
}

/// A transfer without a tunnel.
fn run_direct(target: &str, job: &str, bytes: u64) {
    let mut stream = TcpStream::connect(target).unwrap();
    let (mut buffer, began) = (vec![0; 64 << 10], Instant::now());
    if job == "download" {
        stream.write_all(b"g").unwrap();
        let mut all = 0;
        while let length @ 1.. = stream.read(&mut buffer).unwrap() {
            all += length as u64;
        }
        assert_eq!(all, bytes);
    } else {
        for _ in 0..bytes / buffer.len() as u64 {
            stream.write_all(&buffer).unwrap();
        }
        stream.read_exact(&mut [0]).unwrap();
    }
    println!("{}", serde_json::json!({"seconds": began.elapsed().as_secs_f64()}));
}
