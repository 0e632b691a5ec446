//! The status pages of a server and an agent.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::konnectivity::fixture::{AgentProcess, ServerProcess, free_port, new_environment, start_echo};
use crate::konnectivity::status::request;
use crate::support::client::{ClientResponse, get, plaintext_request};
use crate::support::event_stream::EventStream;
use crate::support::fixtures::TestEnvironment;

fn admin_address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

async fn get_admin(port: u16, path: &str, headers: &[(&str, &str)]) -> ClientResponse {
    plaintext_request(admin_address(port), get(path, headers)).await
}

/// Starts an agent that dials only loopback addresses.
fn start_agent(environment: &TestEnvironment, id: &str, server: &ServerProcess) -> AgentProcess {
    let more = ["--allow-destinations=127.0.0.0/8", "--agent-identifiers=host=node-1"];
    AgentProcess::start(environment, id, server.agent_port, &more)
}

/// An open tunnel to an echo target.
async fn open_tunnel(server: &ServerProcess) -> UnixStream {
    let mut stream = request(server, &format!("127.0.0.1:{}", start_echo())).await;
    stream.write_all(b"ping").await.unwrap();
    let mut response = [0; 43];
    stream.read_exact(&mut response).await.unwrap();
    assert!(response.ends_with(b"ping"));
    stream
}

async fn refuse_dial(server: &ServerProcess) {
    let mut refused = String::new();
    request(server, "192.0.2.1:443").await.read_to_string(&mut refused).await.unwrap();
    assert!(refused.starts_with("HTTP/1.1 502 "), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_status_page_shows_agents_tunnels_and_refused_dials() {
    let environment = new_environment();
    let server = ServerProcess::start(&environment, "http-connect").await;
    let agent = start_agent(&environment, "<i>node-1", &server);
    server.wait_for_agents(1).await;
    let _tunnel = open_tunnel(&server).await;
    refuse_dial(&server).await;

    let page = get_admin(server.admin, "/", &[]).await;
    assert_eq!(page.status, 200);
    assert_eq!(page.headers["content-type"], "text/html; charset=utf-8");
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'; style-src 'sha256-"), "{policy}");
    let text = page.text();
    assert!(
        text.contains("<title>Narthex Konnectivity server: OK: 1 agent, 1 tunnel; dials of 1 target failed</title>"),
        "{text}"
    );
    assert!(text.contains("&#60;i&#62;node-1<span class=\"dim\">host=node-1</span>"), "{text}");
    assert!(text.contains("<td data-label=\"Tunnels\" class=\"n\">1</td>"), "{text}");
    assert!(text.contains("192.0.2.1:443") && text.contains("<td data-label=\"Reason\">error_response</td>"), "{text}");
    assert!(text.contains("not among --allow-destinations of the agent"), "{text}");
    assert!(text.contains("Needs attention") && text.contains("dial failed at agent"), "{text}");

    let text = get_admin(agent.admin, "/", &[]).await.text();
    assert!(
        text.contains("<title>Narthex Konnectivity agent: OK: 1 server, 1 tunnel; dials of 1 target failed</title>"),
        "{text}"
    );
    assert!(text.contains("192.0.2.1:443") && text.contains("not among --allow-destinations"), "{text}");
    assert!(text.contains("<div><dt>Connections to targets</dt><dd>1</dd></div>"), "{text}");
}

/// The status has addresses of targets: it is for the operator of this machine.
#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_status_refused_to_web_pages() {
    let environment = new_environment();
    let server = ServerProcess::start(&environment, "grpc").await;
    let agent = start_agent(&environment, "node-1", &server);
    server.wait_for_agents(1).await;
    for (host, status) in [("localhost", 200), ("127.0.0.1", 200), ("rebound.example", 403)] {
        for (path, admin) in
            [("/", server.admin), ("/status.json", server.admin), ("/", agent.admin), ("/status.json", agent.admin)]
        {
            let response = get_admin(admin, path, &[("host", host)]).await;
            assert_eq!(response.status, status, "{host} {path}: {}", response.text());
            assert_eq!(response.text().contains("node-1"), status == 200, "{host} {path}");
        }
    }
    assert_eq!(get_admin(server.admin, "/events", &[("host", "rebound.example")]).await.status, 403);
    for admin in [server.admin, agent.admin] {
        let response = get_admin(admin, "/events", &[("sec-fetch-site", "cross-site")]).await;
        assert_eq!(response.status, 403, "{}", response.text());
    }
    // The paths of the reference respond to all.
    for host in ["localhost", "rebound.example"] {
        for (path, status) in [("/metrics", 200), ("/debug/pprof", 404), ("/nothing", 404)] {
            assert_eq!(get_admin(server.admin, path, &[("host", host)]).await.status, status, "{host} {path}");
        }
        let response = get_admin(agent.admin, "/metrics", &[("host", &format!("{host}:1"))]).await;
        let location = format!("http://{host}:{}/metrics", agent.health);
        assert_eq!(response.status, 301);
        assert_eq!(response.headers["location"], location);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_status_page_is_live_until_the_server_has_drained() {
    let environment = new_environment();
    let (agents, drain) = (("127.0.0.1", free_port()), "--graceful-shutdown-timeout=30s");
    let server = ServerProcess::start_at(&environment, "server", "http-connect", agents, &[drain]).await;
    let mut events = EventStream::open(admin_address(server.admin)).await;
    assert_eq!(events.status, 200);
    let content = events.wait_for(|content| content.contains("no agent is connected")).await;
    assert!(!content.contains("node-1") && !content.contains("<html"), "{content}");

    let agent = start_agent(&environment, "node-1", &server);
    let content = events.wait_for(|content| content.contains("OK: 1 agent, 0 tunnels")).await;
    assert!(content.contains("node-1<span") && !content.contains("id=\"attention\""), "{content}");
    let tunnel = open_tunnel(&server).await;
    events.wait_for(|content| content.contains("OK: 1 agent, 1 tunnel<")).await;
    refuse_dial(&server).await;
    events.wait_for(|content| content.contains("not among --allow-destinations")).await;

    let mut agent_events = EventStream::open(admin_address(agent.admin)).await;
    agent_events.wait_for(|content| content.contains("OK: 1 server, 1 tunnel;")).await;
    server.process.signal("TERM");
    let content = events.wait_for(|content| content.contains("shutting down: draining")).await;
    assert!(content.contains("node-1<span"), "{content}");
    let content = agent_events.wait_for(|content| content.contains("all connected servers are draining")).await;
    assert!(content.contains("<span class=\"warn\">draining</span>"), "{content}");
    drop((tunnel, agent));
    // The process ends.
    while events.next().await.is_some() {}
}

/// The files of a server and an agent have errors: both say so until the files are valid again.
#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_status_shows_errors_of_changed_files_until_corrected() {
    let environment = new_environment();
    let server = ServerProcess::start(&environment, "grpc").await;
    let agent = start_agent(&environment, "node-1", &server);
    server.wait_for_agents(1).await;
    for (admin, file, effect) in [
        (server.admin, "konnectivity.crt", "(the last good content is in use)"),
        (agent.admin, "agent.crt", "(further connections to servers fail)"),
    ] {
        assert_eq!(get_admin(admin, "/status.json", &[]).await.json()["fileProblems"], serde_json::json!([]));
        let path = environment.path(file);
        let valid = std::fs::read(&path).unwrap();
        std::fs::write(&path, "no certificate").unwrap();
        let mut events = EventStream::open(admin_address(admin)).await;
        let content = events.wait_for(|content| content.contains("id=\"attention\"")).await;
        assert!(content.contains("data-announce>1 mistake in files<") && content.contains(effect), "{content}");
        let report = get_admin(admin, "/status.json", &[]).await.json();
        assert!(report["fileProblems"][0].as_str().unwrap().contains(file), "{report:#}");
        std::fs::write(&path, valid).unwrap();
        events.wait_for(|content| !content.contains("id=\"attention\"")).await;
    }
}
