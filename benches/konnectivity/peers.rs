//! Servers and agents under test, and where a client reaches them.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::ports::free_port;

/// How a client reaches the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Mode `grpc` on a Unix socket.
    Grpc,
    /// Mode `http-connect` on a Unix socket.
    HttpConnect,
    /// Mode `http-connect` on mutual TLS.
    MutualTls,
}

impl Transport {
    pub(crate) fn parse(name: &str) -> Transport {
        match name {
            "grpc" => Transport::Grpc,
            "http-connect" => Transport::HttpConnect,
            "mtls" => Transport::MutualTls,
            _ => panic!("--transports: {name} is none of grpc, http-connect, mtls"),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Transport::Grpc => "grpc",
            Transport::HttpConnect => "http-connect",
            Transport::MutualTls => "mtls",
        }
    }

    /// Heading of a table.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Transport::Grpc => "grpc, Unix socket",
            Transport::HttpConnect => "http-connect, Unix socket",
            Transport::MutualTls => "http-connect, mutual TLS",
        }
    }
}

pub(crate) fn peer_program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/bin").join(name)
}

/// A server and an agent; dropped, they end.
pub(crate) struct KonnectivityPeers {
    server: Child,
    agent: Child,
    /// How a client reaches the server.
    pub transport: Transport,
    /// Path of the socket, or address.
    pub frontend: String,
    /// Directory of the certificates.
    pub pki: PathBuf,
}

/// Whether server and agent are narthex's.
type Own = [bool; 2];

impl KonnectivityPeers {
    pub(crate) fn start(directory: &Path, [own_server, own_agent]: Own, transport: Transport) -> KonnectivityPeers {
        let pki = pki(directory);
        let ports: Vec<u16> = (0..6).map(|_| free_port()).collect();
        let socket = directory.join("front.sock").display().to_string();
        let (frontend, frontend_flags) = frontend(transport, &socket, ports[5], &pki);
        let server_flags = format!("{frontend_flags} {}", server_flags(&pki, &ports));
        let server = spawn("konnectivity-server", own_server, &server_flags);
        let agent = spawn("konnectivity-agent", own_agent, &agent_flags(&pki, &ports));
        let mut peers = KonnectivityPeers { server, agent, transport, frontend, pki };
        peers.wait_until(|| is_ready(ports[1]));
        peers
    }

    /// Two relays in their place. A client of the mode `grpc` uses `http-connect` with them.
    pub(crate) fn start_relays(directory: &Path, transport: Transport) -> KonnectivityPeers {
        let pki = pki(directory);
        let transport = if transport == Transport::Grpc { Transport::HttpConnect } else { transport };
        let agent_address = format!("127.0.0.1:{}", free_port());
        let frontend = match transport {
            Transport::MutualTls => format!("127.0.0.1:{}", free_port()),
            _ => directory.join("relay.sock").display().to_string(),
        };
        let _ = std::fs::remove_file(&frontend);
        let spawn = |listen: &str, agent: &str| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.arg(format!("--relay={listen}")).arg(format!("--agent={agent}"));
            command.arg(format!("--pki={}", pki.display())).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        };
        let (server, agent) = (spawn(&frontend, &agent_address), spawn(&agent_address, ""));
        let mut peers = KonnectivityPeers { server, agent, transport, frontend: frontend.clone(), pki };
        peers.wait_until(|| {
            let has_frontend = TcpStream::connect(&frontend).is_ok() || UnixStream::connect(&frontend).is_ok();
            has_frontend && TcpStream::connect(&agent_address).is_ok()
        });
        peers
    }

    fn wait_until(&mut self, is_ready: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !is_ready() {
            let ended = [&mut self.server, &mut self.agent].map(|child| child.try_wait().unwrap());
            assert!(ended == [None; 2], "server or agent ended: {ended:?}");
            assert!(Instant::now() < deadline, "the agent does not connect");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Seconds of CPU of server and agent.
    pub(crate) fn cpu(&self) -> [f64; 2] {
        [cpu(&self.server.id().to_string()), cpu(&self.agent.id().to_string())]
    }

    /// A figure in bytes of `/proc/PID/status`, for server and agent.
    pub(crate) fn memory(&self, name: &str) -> [f64; 2] {
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

/// The directory of the certificates, which are created once.
fn pki(directory: &Path) -> PathBuf {
    let pki = directory.join("pki");
    if pki.exists() {
        return pki;
    }
    for words in ["init", "issue --ca client --name agent"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_narthex"));
        command.arg("pki").args(words.split_whitespace()).arg("--dir").arg(&pki).stdout(Stdio::null());
        assert!(command.status().unwrap().success(), "pki {words}");
    }
    pki
}

/// Where the client connects, and the server's flags for that.
fn frontend(transport: Transport, socket: &str, port: u16, pki: &Path) -> (String, String) {
    let pki = pki.display();
    match transport {
        Transport::Grpc => (socket.to_owned(), format!("--mode=grpc --uds-name={socket} --server-port=0")),
        Transport::HttpConnect => {
            (socket.to_owned(), format!("--mode=http-connect --uds-name={socket} --server-port=0"))
        }
        Transport::MutualTls => (
            format!("127.0.0.1:{port}"),
            format!(
                "--mode=http-connect --server-port={port} --server-bind-address=127.0.0.1 --server-cert={pki}/serving.crt \
                 --server-key={pki}/serving.key --server-ca-cert={pki}/client-ca.crt"
            ),
        ),
    }
}

fn server_flags(pki: &Path, ports: &[u16]) -> String {
    let pki = pki.display();
    format!(
        "--cluster-cert={pki}/serving.crt --cluster-key={pki}/serving.key --cluster-ca-cert={pki}/client-ca.crt \
         --agent-port={} --agent-bind-address=127.0.0.1 --health-port={} --health-bind-address=127.0.0.1 --admin-port={} \
         --admin-bind-address=127.0.0.1 --v=0",
        ports[0], ports[1], ports[2]
    )
}

fn agent_flags(pki: &Path, ports: &[u16]) -> String {
    let pki = pki.display();
    format!(
        "--ca-cert={pki}/serving-ca.crt --agent-cert={pki}/agent.crt --agent-key={pki}/agent.key \
         --proxy-server-host=127.0.0.1 --proxy-server-port={} --health-server-host=127.0.0.1 --health-server-port={} \
         --admin-bind-address=127.0.0.1 --admin-server-port={} --v=0",
        ports[0], ports[3], ports[4]
    )
}

fn spawn(name: &str, is_own: bool, words: &str) -> Child {
    let mut command = match is_own {
        true => Command::new(env!("CARGO_BIN_EXE_narthex")),
        false => Command::new(peer_program(name)),
    };
    command
        .args(is_own.then_some(name))
        .args(words.split_whitespace())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn is_ready(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let mut response = String::new();
    stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n").is_ok()
        && stream.read_to_string(&mut response).is_ok()
        && response.contains(" 200 ")
}

/// Seconds of CPU that a process used; the kernel counts hundredths.
pub(crate) fn cpu(process: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / 100.0
}
