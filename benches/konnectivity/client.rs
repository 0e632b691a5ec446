//! Narthex's client at one job, in a process of its own.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use konnectivity_client::KonnectivityClient;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::LocalSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::peers::cpu;

const DIAL_TIMEOUT: Duration = Duration::from_secs(30);
/// A round trip that takes longer counts as blocked.
const ECHO_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the other tunnel is stalled before round trips are measured.
const STALL: Duration = Duration::from_secs(2);

pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}

type Tunnel = Box<dyn Stream>;

/// What tunnels are opened through.
enum Dialer {
    Direct,
    Grpc(KonnectivityClient),
    HttpConnect { socket: String },
    MutualTls { address: String, tls: TlsConnector },
}

impl Dialer {
    async fn new(arguments: &Arguments<'_>) -> Dialer {
        let socket = arguments.word("socket").to_owned();
        match arguments.word("transport") {
            "direct" => Dialer::Direct,
            "grpc" => {
                let stream = UnixStream::connect(socket).await.unwrap();
                Dialer::Grpc(KonnectivityClient::connect(stream, "localhost").await.unwrap())
            }
            "http-connect" => Dialer::HttpConnect { socket },
            _ => Dialer::MutualTls {
                address: socket,
                tls: TlsConnector::from(client_config(Path::new(arguments.word("pki")))),
            },
        }
    }

    async fn dial(&self, target: &str) -> Tunnel {
        match self {
            Dialer::Direct => {
                let stream = TcpStream::connect(target).await.unwrap();
                stream.set_nodelay(true).unwrap();
                Box::new(stream)
            }
            Dialer::Grpc(client) => Box::new(client.dial(target, DIAL_TIMEOUT).await.unwrap()),
            Dialer::HttpConnect { socket } => connect_through(UnixStream::connect(socket).await.unwrap(), target).await,
            Dialer::MutualTls { address, tls } => {
                let stream = TcpStream::connect(address).await.unwrap();
                stream.set_nodelay(true).unwrap();
                let name = ServerName::try_from("localhost").unwrap();
                connect_through(tls.connect(name, stream).await.unwrap(), target).await
            }
        }
    }
}

/// The certificates of a PEM file.
pub(crate) fn certificates(file: &Path) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_file_iter(file).unwrap().collect::<Result<_, _>>().unwrap()
}

/// Trusts the benchmark's authority, and presents the agent's certificate.
pub(crate) fn client_config(pki: &Path) -> Arc<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(certificates(&pki.join("serving-ca.crt")));
    let key = PrivateKeyDer::from_pem_file(pki.join("agent.key")).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let chain = certificates(&pki.join("agent.crt"));
    Arc::new(config.with_root_certificates(roots).with_client_auth_cert(chain, key).unwrap())
}

/// One byte at a time until the head ends, so that nothing of the target is read with it.
async fn connect_through(mut stream: impl Stream + 'static, target: &str) -> Tunnel {
    stream.write_all(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").as_bytes()).await.unwrap();
    // TLS may keep it otherwise.
    stream.flush().await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&head));
    Box::new(stream)
}

/// Arguments of the form `--name=value`.
pub(crate) struct Arguments<'a>(pub(crate) &'a [String]);

impl Arguments<'_> {
    pub(crate) fn word(&self, name: &str) -> &str {
        let found =
            self.0.iter().find_map(|argument| argument.strip_prefix("--")?.strip_prefix(name)?.strip_prefix('='));
        found.unwrap_or_else(|| panic!("--{name} is missing"))
    }

    fn number(&self, name: &str) -> u64 {
        self.word(name).parse().unwrap()
    }
}

/// Does the job of the arguments, and prints its figures as JSON.
pub(crate) fn run(arguments: &[String]) {
    let arguments = Arguments(arguments);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(LocalSet::new().run_until(async {
        let dialer = Dialer::new(&arguments).await;
        run_job(&dialer, &arguments).await;
    }));
}

/// Tunnels stay open until standard input ends.
async fn run_job(dialer: &Dialer, arguments: &Arguments<'_>) {
    let (target, count, workers) = (arguments.word("target"), arguments.number("count"), arguments.number("workers"));
    if arguments.word("job") == "idle" {
        drop(dialer.dial(target).await);
    }
    let mut figures = serde_json::json!({});
    let mut kept = Vec::new();
    let (before, began) = (resident(), Instant::now());
    match arguments.word("job") {
        "download" => {
            let transfers = (0..workers).map(|_| download(dialer, target, arguments.number("bytes")));
            futures_util::future::join_all(transfers).await;
        }
        "upload" => {
            let transfers = (0..workers).map(|_| upload(dialer, target, arguments.number("bytes")));
            futures_util::future::join_all(transfers).await;
        }
        "dials" => {
            let workers = (0..workers).map(async |_| {
                for _ in 0..count / workers {
                    drop(dialer.dial(target).await);
                }
            });
            futures_util::future::join_all(workers).await;
        }
        "idle" => {
            for _ in 0..count {
                kept.push(dialer.dial(target).await);
            }
        }
        job => {
            let mut tunnel = dialer.dial(target).await;
            let times = echo(&mut tunnel, count).await.expect("an echo without a stalled tunnel");
            figures["p50"] = percentile(&times, 50).into();
            figures["p99"] = percentile(&times, 99).into();
            if job != "echo" {
                figures["stalledP99"] = echo_beside_stalled(job, &mut tunnel, arguments).await.into();
            }
        }
    }
    figures["seconds"] = began.elapsed().as_secs_f64().into();
    figures["resident"] = (resident() - before).into();
    figures["cpu"] = cpu("self").into();
    println!("{figures}");
    let input = tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    input.await.unwrap().unwrap();
    drop(kept);
}

async fn download(dialer: &Dialer, target: &str, bytes: u64) {
    let mut tunnel = dialer.dial(target).await;
    tunnel.write_all(&bytes.to_be_bytes()).await.unwrap();
    let (mut buffer, mut left) = (vec![0; 64 << 10], bytes);
    while left > 0 {
        let length = tunnel.read(&mut buffer).await.unwrap();
        assert!(length > 0, "closed with {left} bytes to come");
        left -= length as u64;
    }
}

async fn upload(dialer: &Dialer, target: &str, bytes: u64) {
    let mut tunnel = dialer.dial(target).await;
    tunnel.write_all(&bytes.to_be_bytes()).await.unwrap();
    let (buffer, mut left) = (vec![7; 64 << 10], bytes);
    while left > 0 {
        let length = left.min(buffer.len() as u64);
        tunnel.write_all(&buffer[..length as usize]).await.unwrap();
        left -= length;
    }
    // TLS keeps what the socket does not take at once.
    tunnel.flush().await.unwrap();
    tunnel.read_u8().await.unwrap();
}

/// Microseconds of each round trip, sorted; `None` if one took longer than [`ECHO_TIMEOUT`].
async fn echo(tunnel: &mut Tunnel, count: u64) -> Option<Vec<f64>> {
    let (word, mut answer) = ([7; 100], [0; 100]);
    let mut times = Vec::new();
    for _ in 0..count {
        let began = Instant::now();
        let round_trip = async {
            tunnel.write_all(&word).await.unwrap();
            tunnel.flush().await.unwrap();
            tunnel.read_exact(&mut answer).await.unwrap();
        };
        timeout(ECHO_TIMEOUT, round_trip).await.ok()?;
        times.push(began.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_unstable_by(f64::total_cmp);
    Some(times)
}

fn percentile(sorted: &[f64], share: usize) -> f64 {
    sorted[(sorted.len() * share / 100).min(sorted.len() - 1)]
}

/// The 99th percentile of round trips while another tunnel, on a connection of its own, is full: its target or its
/// client does not read. `None` if they are blocked.
async fn echo_beside_stalled(job: &str, tunnel: &mut Tunnel, arguments: &Arguments<'_>) -> Option<f64> {
    let dialer = Dialer::new(arguments).await;
    let mut stalled = dialer.dial(arguments.word("stalled-target")).await;
    let writer = match job {
        "stalled-target" => {
            tokio::task::spawn_local(async move { while stalled.write_all(&[7; 64 << 10]).await.is_ok() {} })
        }
        _ => {
            stalled.write_all(&u64::MAX.to_be_bytes()).await.unwrap();
            tokio::task::spawn_local(async move {
                std::future::pending::<()>().await;
                drop(stalled);
            })
        }
    };
    tokio::time::sleep(STALL).await;
    let times = echo(tunnel, arguments.number("count")).await;
    writer.abort();
    Some(percentile(&times?, 99))
}

/// Bytes of memory this process has.
fn resident() -> f64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<f64>().unwrap() * 4096.0
}
