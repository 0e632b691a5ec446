//! Narthex's Konnectivity client and the reference client at the same jobs, in turns, through the reference server and
//! agent: CPU per GiB, dials per second, memory per idle tunnel.
//!
//! ```text
//! tests/interop/peers/build konnectivity
//! cargo bench --bench konnectivity                 # three rounds
//! cargo bench --bench konnectivity -- --rounds 5
//! ```
//!
//! Server, agent, target and client share the machine, so speeds show the cost of each, not the speed of a network. The
//! client is a separate process; CPU time and memory are the kernel's. Narthex keeps one connection for all its tunnels;
//! the reference opens one for each, as in kube-apiserver. Needs `openssl`, for the agent's certificate.

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

#[derive(Clone, Copy, Debug)]
struct TunnelFigures {
    seconds: f64,
    /// The client's, the server's and the agent's.
    cpu: [f64; 3],
    resident: f64,
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
    println!("{:26} {:>10} {:>10}   medians of {rounds} rounds, ours and the reference's", "", "ours", "theirs");
    for (job, title, count, workers) in JOBS {
        let port = match *job {
            "download" => source,
            "upload" => sink,
            _ => quiet,
        };
        let (mut actual, mut expected) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            for (program, figures) in
                [(std::env::current_exe().unwrap(), &mut actual), (peer("konnectivity-client"), &mut expected)]
            {
                // Fresh ones: the reference's keep what they once needed.
                let peers = KonnectivityPeers::start(&directory);
                let socket = peers.socket.display();
                let words = [
                    format!("--socket={socket}"),
                    format!("--target=127.0.0.1:{port}"),
                    format!("--job={job}"),
                    format!("--bytes={SIZE}"),
                    format!("--count={count}"),
                    format!("--workers={workers}"),
                ];
                let before = peers.cpu();
                let output = Command::new(program).args(words).stderr(Stdio::inherit()).output().unwrap();
                assert!(output.status.success(), "{job}: {}", output.status);
                let after = peers.cpu();
                let output_text: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
                let number = |name: &str| output_text[name].as_f64().unwrap();
                let cpu = [number("cpu"), after[0] - before[0], after[1] - before[1]];
                figures.push(TunnelFigures { seconds: number("seconds"), cpu, resident: number("resident") });
            }
        }
        let row = |what: &str, figure: &dyn Fn(&TunnelFigures) -> f64| {
            println!("{:26} {:10.2} {:10.2}   {what}", title, median(&actual, figure), median(&expected, figure));
        };
        match *job {
            "idle" => row("KiB of the client for each", &|it| it.resident / 1024.0 / *count as f64),
            "dials" => row("a second", &|it| *count as f64 / it.seconds),
            _ => row("MB/s", &|it| SIZE as f64 / 1e6 / it.seconds),
        }
        for (at, user) in ["client", "server", "agent"].iter().enumerate() {
            row(&format!("CPU seconds of the {user}"), &|it| it.cpu[at]);
        }
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

fn median(all: &[TunnelFigures], figure: &dyn Fn(&TunnelFigures) -> f64) -> f64 {
    let mut values: Vec<f64> = all.iter().map(figure).collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

fn peer(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/bin").join(name)
}

/// The reference's server and agent; dropped, they end.
struct KonnectivityPeers {
    server: Child,
    agent: Child,
    socket: PathBuf,
}

impl KonnectivityPeers {
    fn start(directory: &Path) -> KonnectivityPeers {
        let (certificate, key) = (directory.join("both.crt"), directory.join("both.key"));
        if !key.exists() {
            // One that signed itself is server, agent and authority.
            let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=bench \
                         -addext subjectAltName=IP:127.0.0.1 -keyout KEY -out CERTIFICATE";
            let words =
                words.replace("KEY", key.to_str().unwrap()).replace("CERTIFICATE", certificate.to_str().unwrap());
            let made = Command::new("openssl").args(words.split_whitespace()).stderr(Stdio::null()).status().unwrap();
            assert!(made.success());
        }
        let (certificate, key) = (certificate.display(), key.display());
        let socket = directory.join("front.sock");
        let ports: Vec<u16> = (0..5).map(|_| free_port()).collect();
        let server = format!(
            "--mode=grpc --uds-name={} --server-port=0 --cluster-cert={certificate} --cluster-key={key} \
             --cluster-ca-cert={certificate} --agent-port={} --agent-bind-address=127.0.0.1 --health-port={} \
             --health-bind-address=127.0.0.1 --admin-port={} --admin-bind-address=127.0.0.1 --v=0",
            socket.display(),
            ports[0],
            ports[1],
            ports[2]
        );
        let agent = format!(
            "--ca-cert={certificate} --agent-cert={certificate} --agent-key={key} --proxy-server-host=127.0.0.1 \
             --proxy-server-port={} --health-server-host=127.0.0.1 --health-server-port={} \
             --admin-bind-address=127.0.0.1 --admin-server-port={} --v=0",
            ports[0], ports[3], ports[4]
        );
        let start = |name: &str, words: &str| {
            let mut command = Command::new(peer(name));
            command.args(words.split_whitespace()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        };
        let server = start("konnectivity-server", &server);
        let peers = KonnectivityPeers { server, agent: start("konnectivity-agent", &agent), socket };
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
