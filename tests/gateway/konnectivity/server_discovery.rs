//! Agents connect to each server of a list, of a DNS name with several addresses, and behind a load balancer.

use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use crate::konnectivity::fixture::{
    KonnectivityProcess, ServerProcess, agent_arguments, free_port, new_environment, start_agent,
};
use crate::konnectivity::status::status_json;
use crate::support::fixtures::TestEnvironment;

const ADDRESSES: [&str; 3] = ["127.0.0.2", "127.0.0.3", "127.0.0.4"];

/// Servers at the first `count` addresses, all at one port.
async fn start_servers(environment: &TestEnvironment, count: usize, more: &[&str]) -> Vec<ServerProcess> {
    let port = free_port();
    let mut servers = Vec::new();
    for address in &ADDRESSES[..count] {
        let id = format!("server-{address}");
        servers.push(ServerProcess::start_at(environment, &id, "http-connect", (address, port), more).await);
    }
    servers
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_agent_connects_to_a_list_of_servers() {
    let environment = new_environment();
    let mut servers = start_servers(&environment, 3, &[]).await;
    let port = servers[0].agent_port;
    let agent = start_agent(&environment, "a", &ADDRESSES.join(","), port);
    for server in &servers {
        server.wait_for_agents(1).await;
    }
    // A server that is replaced is found again; the others keep their connection.
    drop(servers.remove(1));
    agent.wait_for_log(&["connection to a server broke", "server-127.0.0.3"]).await;
    let again = ServerProcess::start_at(&environment, "again", "http-connect", (ADDRESSES[1], port), &[]).await;
    again.wait_for_agents(1).await;
    for server in &servers {
        server.wait_for_agents(1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_server_that_does_not_answer_holds_up_no_other() {
    let environment = new_environment();
    let mut servers = start_servers(&environment, 1, &[]).await;
    let port = servers[0].agent_port;
    // It accepts connections, and says nothing.
    let silent = TcpListener::bind((ADDRESSES[1], port)).unwrap();
    let agent = start_agent(&environment, "a", &[ADDRESSES[1], ADDRESSES[0]].join(","), port);
    // Both sides: the server counts the agent before the agent has the answer.
    servers[0].wait_for_agents(1).await;
    agent.wait_for_log(&["connected to a server"]).await;
    let attempt = tokio::task::spawn_blocking(move || silent.accept().unwrap()).await.unwrap();
    drop(servers.pop());
    let again = ServerProcess::start_at(&environment, "again", "http-connect", (ADDRESSES[0], port), &[]).await;
    again.wait_for_agents(1).await;
    agent.wait_for_log(&["connected to a server", "server=\"again\""]).await;
    // That attempt still waits, and there was one connection to each of the others.
    let log = agent.log_lines();
    assert!(!log.iter().any(|line| line.contains("no TLS connection within")), "{log:?}");
    assert_eq!(log.iter().filter(|line| line.contains("connected to a server")).count(), 2, "{log:?}");
    drop(attempt);
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_agent_finds_all_servers_behind_a_load_balancer() {
    let environment = new_environment();
    let servers = start_servers(&environment, 3, &["--server-count=3"]).await;
    let port = start_load_balancer(servers[0].agent_port);
    let agent = start_agent(&environment, "a", "127.0.0.1", port);
    for server in &servers {
        server.wait_for_agents(1).await;
    }
    agent.wait_for_log(&["connected to a server", "servers=3"]).await;
}

/// The servers say that there is one of them.
#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_agent_that_syncs_forever_finds_further_servers() {
    let environment = new_environment();
    let first = start_servers(&environment, 1, &[]).await;
    let port = first[0].agent_port;
    let balancer = start_load_balancer(port);
    let command = |id: &str, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_narthex"));
        command.args(agent_arguments(&environment, id, "127.0.0.1", balancer)).arg("--sync-interval=200ms").args(more);
        KonnectivityProcess::spawn(command)
    };
    let _satisfied = command("satisfied", &[]);
    first[0].wait_for_agents(1).await;
    let _seeking = command("seeking", &["--sync-forever"]);
    first[0].wait_for_agents(2).await;
    let second = ServerProcess::start_at(&environment, "second", "http-connect", (ADDRESSES[1], port), &[]).await;
    second.wait_for_agents(1).await;
    let agents = status_json(second.admin)["agents"].clone();
    assert_eq!((agents.as_array().unwrap().len(), &agents[0]["agentId"]), (1, &"seeking".into()), "{agents}");
}

/// Forwards each connection to the next server.
fn start_load_balancer(port: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let open = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for (inside, address) in listener.incoming().map_while(Result::ok).zip(ADDRESSES.iter().cycle()) {
            let Ok(outside) = TcpStream::connect((*address, port)) else { continue };
            for (mut from, mut to) in [(inside.try_clone().unwrap(), outside.try_clone().unwrap()), (outside, inside)] {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
    open
}

/// A headless Service is a DNS name whose addresses change.
#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_agent_follows_the_addresses_of_a_dns_name() {
    let environment = new_environment();
    let servers = start_servers(&environment, 3, &[]).await;
    let Some(names) = Names::start(&environment, &ADDRESSES[..2]) else {
        return println!("neither a DNS server nor a file in place of /etc/hosts is permitted here");
    };
    let agent = names.start_agent(&environment, servers[0].agent_port);
    servers[0].wait_for_agents(1).await;
    servers[1].wait_for_agents(1).await;
    servers[2].wait_for_agents(0).await;
    names.set(&ADDRESSES);
    servers[2].wait_for_agents(1).await;
    assert!(!agent.log_lines().iter().any(|line| line.contains("broke")));
}

/// The addresses of `konnectivity.test`, by a DNS server or by a file in place of /etc/hosts.
struct Names {
    addresses: Arc<Mutex<Vec<Ipv4Addr>>>,
    /// What the agent sees in place of the second path.
    file: (String, &'static str),
}

impl Names {
    fn start(environment: &TestEnvironment, addresses: &[&str]) -> Option<Names> {
        // resolv.conf has no ports.
        const RESOLVER: &str = "127.0.0.77";
        let file = environment.path("names");
        std::fs::write(&file, "").unwrap();
        let mounted = Command::new("unshare").args(["-rm", "mount", "--bind"]).arg(&file).arg("/etc/hosts").status();
        if !mounted.is_ok_and(|status| status.success()) {
            return None;
        }
        let addresses_now = Arc::default();
        let hides = match UdpSocket::bind((RESOLVER, 53)) {
            Ok(socket) => {
                std::fs::write(&file, format!("nameserver {RESOLVER}\noptions timeout:1\n")).unwrap();
                let addresses = Arc::clone(&addresses_now);
                std::thread::spawn(move || answer_questions(&socket, &addresses));
                "/etc/resolv.conf"
            }
            Err(_) => "/etc/hosts",
        };
        println!("names by {hides}");
        let names = Names { addresses: addresses_now, file: (file.display().to_string(), hides) };
        names.set(addresses);
        Some(names)
    }

    fn set(&self, addresses: &[&str]) {
        *self.addresses.lock().unwrap() = addresses.iter().map(|address| address.parse().unwrap()).collect();
        let (file, hides) = &self.file;
        if *hides == "/etc/hosts" {
            let lines: String = addresses.iter().map(|address| format!("{address} konnectivity.test\n")).collect();
            // In place: a mount shows this file, not its successor.
            std::fs::write(Path::new(file), lines).unwrap();
        }
    }

    fn start_agent(&self, environment: &TestEnvironment, port: u16) -> KonnectivityProcess {
        let (file, hides) = &self.file;
        let script = format!("mount --bind '{file}' {hides} && exec \"$0\" \"$@\"");
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", &script, env!("CARGO_BIN_EXE_narthex")]);
        command.args(agent_arguments(environment, "a", "konnectivity.test", port));
        KonnectivityProcess::spawn(command)
    }
}

/// A DNS server (RFC 1035) that knows one name: any question for an A record is answered by the addresses.
fn answer_questions(socket: &UdpSocket, addresses: &Mutex<Vec<Ipv4Addr>>) {
    let mut buffer = [0; 1500];
    while let Ok((length, client)) = socket.recv_from(&mut buffer) {
        let query = &buffer[..length];
        // The question: labels up to an empty one, the type and the class.
        let Some(end) = query.iter().skip(12).position(|byte| *byte == 0) else { continue };
        let question = &query[12..12 + end + 5];
        let is_address = question[end + 1..end + 3] == [0, 1];
        let records = if is_address { addresses.lock().unwrap().clone() } else { Vec::new() };
        let mut answer = query[..2].to_vec();
        answer.extend([0x81, 0x80, 0, 1, 0, records.len() as u8, 0, 0, 0, 0]);
        answer.extend(question);
        for address in records {
            // The name of the question, type A, class IN, a TTL of 0.
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
            answer.extend(address.octets());
        }
        let _ = socket.send_to(&answer, client);
    }
}
