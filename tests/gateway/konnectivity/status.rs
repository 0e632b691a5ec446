//! What `narthex status` shows of a server and its agents.

use std::net::SocketAddr;
use std::process::Command;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::{Duration, timeout};

use crate::konnectivity::blackhole::Blackhole;
use crate::konnectivity::fixture::{
    KonnectivityProcess, ServerProcess, agent_arguments, check_connect, new_environment, start_echo,
};
use crate::support::fixtures::eventually;

/// Runs `narthex status`; its output and whether it succeeded.
pub(crate) fn narthex_status(admin: u16, more: &[&str]) -> (String, bool) {
    let address = format!("--admin-address=127.0.0.1:{admin}");
    let output = Command::new(env!("CARGO_BIN_EXE_narthex")).arg("status").arg(address).args(more).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr);
    (text, output.status.success())
}

pub(crate) fn status_json(admin: u16) -> Value {
    let (text, is_ok) = narthex_status(admin, &["-o", "json"]);
    assert!(is_ok, "{text}");
    serde_json::from_str(&text).unwrap()
}

/// Asks for a tunnel to `address`.
pub(crate) async fn request(server: &ServerProcess, address: &str) -> UnixStream {
    let mut stream = UnixStream::connect(&server.socket).await.unwrap();
    stream.write_all(format!("CONNECT {address} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_status_shows_agents_tunnels_and_refusals() {
    let environment = new_environment();
    let server = ServerProcess::start(&environment, "http-connect").await;
    let (text, is_ok) = narthex_status(server.admin, &["--fail"]);
    assert!(text.starts_with("no agent is connected\n") && !is_ok, "{text}");

    let mut arguments = agent_arguments(&environment, "node-1", "127.0.0.1", server.agent_port);
    arguments.extend(["--allow-destinations=127.0.0.0/8".to_owned(), "--agent-identifiers=host=node-1".to_owned()]);
    let admin = arguments.iter().find_map(|flag| flag.strip_prefix("--admin-server-port=")?.parse().ok()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_narthex"));
    command.args(&arguments);
    let agent = KonnectivityProcess::spawn(command);
    server.wait_for_agents(1).await;

    // One tunnel whose client reads nothing, one dial that is not answered, one that is refused, and an agent that is.
    let echo = start_echo();
    check_connect(&server.socket, echo).await;
    let mut stalled = request(&server, &format!("127.0.0.1:{echo}")).await;
    while let Ok(written) = timeout(Duration::from_secs(1), stalled.write_all(&[7; 64 << 10])).await {
        written.unwrap();
    }
    let target = Blackhole::new();
    let _pending = request(&server, &target.address.to_string()).await;
    let mut refused = String::new();
    request(&server, "192.0.2.1:443").await.read_to_string(&mut refused).await.unwrap();
    assert!(refused.starts_with("HTTP/1.1 502 "), "{refused}");
    // Probes of load balancers send nothing; they close the connection, some of them with a reset.
    for linger in [None, Some(Duration::ZERO)] {
        let probe = std::net::TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], server.agent_port))).unwrap();
        socket2::SockRef::from(&probe).set_linger(linger).unwrap();
    }
    // It speaks no TLS.
    let stranger = std::net::TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], server.agent_port))).unwrap();
    std::io::Write::write_all(&mut &stranger, b"GET / HTTP/1.1\r\n\r\n").unwrap();

    let report = eventually("the stalled tunnel", async || {
        let report = status_json(server.admin);
        let is_complete = !report["stalledTunnels"].as_array().unwrap().is_empty()
            && !report["refusedConnections"].as_array().unwrap().is_empty();
        is_complete.then_some(report)
    })
    .await;
    let shown = &report["agents"][0];
    assert_eq!((&shown["agentId"], &shown["identifiers"]), (&"node-1".into(), &"host=node-1".into()));
    assert_eq!((&shown["tunnels"], &shown["stalledTunnels"]), (&1.into(), &1.into()), "{report:#}");
    assert!(shown["bytesToAgent"].as_u64().unwrap() > 1 << 20 && shown["bytesFromAgent"].as_u64().unwrap() > 1 << 20);
    assert_eq!(report["stalledTunnels"][0]["address"], format!("127.0.0.1:{echo}"));
    assert_eq!(report["stalledTunnels"][0]["waitsFor"], "client");
    let failed = &report["failedDials"];
    let is_refusal = |dial: &Value| dial["reason"] == "error_response" && dial["address"] == "192.0.2.1:443";
    assert!(failed.as_array().unwrap().iter().any(is_refusal), "{report:#}");
    assert_eq!(report["refusedConnections"][0]["reason"], "agent");
    assert_eq!(report["refusedConnections"].as_array().unwrap().len(), 1, "{report:#}");

    let (text, is_ok) = narthex_status(server.admin, &["--fail"]);
    println!("{text}");
    assert!(is_ok && text.starts_with("OK: 1 agent, 1 tunnel; 1 tunnel stalled; "), "{text}");
    assert!(
        text.contains("; dials of 1 target failed; connections from 1 address refused\n\nNeeds attention:\n"),
        "{text}"
    );
    assert!(text.contains("\n  warning: 192.0.2.1:443: dial failed "), "{text}");
    for words in ["Konnectivity server server, serving", "\nAGENT ", "STALLED TUNNEL", "FAILED DIAL", "REFUSED CONN"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let (text, _) = narthex_status(server.admin, &["refusals"]);
    assert!(text.starts_with("FAILED DIAL") && text.contains("not among --allow-destinations"), "{text}");

    let report = status_json(admin);
    assert_eq!(report["role"], "konnectivity-agent");
    assert_eq!((&report["servers"][0]["serverId"], &report["servers"][0]["tunnels"]), (&"server".into(), &1.into()));
    assert_eq!(report["failedDials"][0]["address"], "192.0.2.1:443", "{report:#}");
    let (text, _) = narthex_status(admin, &[]);
    println!("{text}");
    assert!(text.starts_with("OK: 1 server, 1 tunnel") && text.contains("\nSERVER "), "{text}");

    // What is only drained is no failure of the others.
    agent.signal("TERM");
    eventually("the agent to drain", async || {
        narthex_status(server.admin, &[]).0.contains("1 agent draining").then_some(())
    })
    .await;
    let (text, is_ok) = narthex_status(admin, &["--fail"]);
    assert!(text.starts_with("draining") && !is_ok, "{text}");
    drop(agent);
    server.wait_for_agents(0).await;
    drop(server);
}
