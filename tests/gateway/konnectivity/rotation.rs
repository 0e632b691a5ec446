//! Certificates, CA bundles and tokens are replaced while a tunnel carries data.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use narthex::tls::Authority;
use rustls::pki_types::CertificateDer;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinHandle;

use crate::konnectivity::fixture::{
    KonnectivityProcess, ServerProcess, agent_arguments, free_port, issue_agent, issue_server, new_environment,
    start_echo, token_flags,
};
use crate::konnectivity::status::status_json;
use crate::support::fake_review_server::{FakeReviewServer, ReviewReply};
use crate::support::fixtures::{CertKeyPair, eventually};

const SERVERS: [&str; 2] = ["127.0.0.2", "127.0.0.3"];

/// A tunnel to an echo target that is always in use.
struct RunningTransfer {
    exchanges: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    running: JoinHandle<std::io::Result<()>>,
}

impl RunningTransfer {
    async fn start(socket: &Path) -> RunningTransfer {
        let mut stream = UnixStream::connect(socket).await.unwrap();
        let request = format!("CONNECT 127.0.0.1:{} HTTP/1.1\r\n\r\n", start_echo());
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = [0; 39];
        stream.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"HTTP/1.1 200 Connection Established\r\n\r\n");
        let (exchanges, is_over) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (counted, ends) = (exchanges.clone(), is_over.clone());
        let running = tokio::spawn(async move {
            while !ends.load(SeqCst) {
                let sent = counted.load(SeqCst).to_be_bytes();
                stream.write_all(&sent).await?;
                let mut received = [0; 8];
                stream.read_exact(&mut received).await?;
                assert_eq!(received, sent);
                counted.fetch_add(1, SeqCst);
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
            Ok(())
        });
        RunningTransfer { exchanges, is_over, running }
    }

    /// Waits for data that is sent from now on.
    async fn assert_running(&self) {
        let before = self.exchanges.load(SeqCst);
        eventually("data in the tunnel", async || {
            assert!(!self.running.is_finished(), "the tunnel has ended");
            (self.exchanges.load(SeqCst) > before + 1).then_some(())
        })
        .await;
    }

    async fn finish(self) {
        self.is_over.store(true, SeqCst);
        self.running.await.unwrap().unwrap();
    }
}

/// Connects as an agent: the certificate of the server, or why there is no connection.
async fn handshake(
    address: SocketAddr,
    trust: &Authority,
    pair: &CertKeyPair,
) -> Result<CertificateDer<'static>, String> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(trust.certificate().clone()).unwrap();
    let mut config = rustls::ClientConfig::builder_with_provider(narthex::tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(pair.0.0.clone(), pair.0.1.clone_key())
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let socket = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    let name = rustls::pki_types::ServerName::from(address.ip());
    let connected = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, socket).await;
    let mut stream = connected.map_err(|error| error.to_string())?;
    // A refused client certificate is an alert after the handshake, else HTTP/2 begins.
    stream.read_u8().await.map_err(|error| error.to_string())?;
    Ok(stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned())
}

async fn start_servers(environment: &crate::support::fixtures::TestEnvironment, more: &[&str]) -> [ServerProcess; 2] {
    let port = free_port();
    [
        ServerProcess::start_at(environment, "first", "http-connect", (SERVERS[0], port), more).await,
        ServerProcess::start_at(environment, "second", "http-connect", (SERVERS[1], port), more).await,
    ]
}

fn start(arguments: &[String]) -> KonnectivityProcess {
    let mut command = Command::new(env!("CARGO_BIN_EXE_narthex"));
    command.args(arguments);
    KonnectivityProcess::spawn(command)
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_certificates_rotate_under_a_running_tunnel() {
    let environment = new_environment();
    let [first, second] = start_servers(&environment, &[]).await;
    let port = first.agent_port;
    let agent = start(&agent_arguments(&environment, "a", &SERVERS.join(","), port));
    for server in [&first, &second] {
        server.wait_for_agents(1).await;
    }
    let transfer = RunningTransfer::start(&first.socket).await;
    let connected = status_json(first.admin)["agents"][0]["remote"].clone();
    let at = |server: usize| SocketAddr::new(SERVERS[server].parse().unwrap(), port);
    let old_agent = CertKeyPair::from_files(&environment.path("agent").display().to_string());
    let old_server = handshake(at(0), &environment.serving_ca, &old_agent).await.unwrap();
    for (from, to) in [("serving-ca.crt", "old-ca.crt"), ("agent.crt", "old-agent.crt"), ("agent.key", "old-agent.key")]
    {
        std::fs::copy(environment.path(from), environment.path(to)).unwrap();
    }

    // Everything is replaced at once: no certificate is of an authority that was trusted before.
    let authority = |name: &str| Authority::new(name, SystemTime::now()).unwrap();
    let ((serving_ca, serving_issued), (client_ca, client_issued)) = (authority("serving-2"), authority("client-2"));
    let (new_server, new_agent) = (issue_server(&serving_ca), issue_agent(&client_ca));
    environment.write_pair("konnectivity", &new_server);
    environment.write_pair("agent", &new_agent);
    std::fs::write(environment.path("client-ca.crt"), &client_issued.certificate).unwrap();
    std::fs::write(environment.path("serving-ca.crt"), &serving_issued.certificate).unwrap();
    let (new_server, new_agent) = (CertKeyPair::from_issued(&new_server), CertKeyPair::from_issued(&new_agent));
    for server in 0..2 {
        let served = eventually("the new certificate and CA bundle", async || {
            handshake(at(server), &serving_ca, &new_agent).await.ok()
        })
        .await;
        assert_eq!(served, new_server.0.0[0]);
        assert_ne!(served, old_server);
    }
    // The old authorities are refused, by both sides.
    let error = handshake(at(0), &serving_ca, &old_agent).await.unwrap_err();
    println!("certificate of the old authority: {error}");
    assert!(error.contains("UnknownCA"), "{error}");
    let mut arguments = agent_arguments(&environment, "old", SERVERS[0], port);
    for (flag, file) in [("--agent-cert", "old-agent.crt"), ("--agent-key", "old-agent.key")] {
        arguments.push(format!("{flag}={}", environment.path(file).display()));
    }
    let refused = start(&arguments);
    println!(
        "{}",
        refused.wait_for_log(&["cannot connect to a Konnectivity server", "UnknownCA", "old-agent.crt"]).await
    );
    let mut arguments = agent_arguments(&environment, "old-too", SERVERS[0], port);
    arguments.push(format!("--ca-cert={}", environment.path("old-ca.crt").display()));
    let distrusts = start(&arguments);
    println!("{}", distrusts.wait_for_log(&["cannot connect to a Konnectivity server", "old-ca.crt"]).await);
    transfer.assert_running().await;

    // The agent connects anew to a server that was replaced, with what is in the files now.
    drop(second);
    agent.wait_for_log(&["connection to a server broke", "second"]).await;
    let again = ServerProcess::start_at(&environment, "again", "http-connect", (SERVERS[1], port), &[]).await;
    again.wait_for_agents(1).await;
    transfer.assert_running().await;
    let report = status_json(first.admin);
    assert_eq!((report["agents"].as_array().unwrap().len(), &report["agents"][0]["remote"]), (1, &connected));
    assert!(report["refusedConnections"].as_array().unwrap().iter().any(|it| it["reason"] == "agent"), "{report:#}");
    transfer.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_token_rotates_under_a_running_tunnel() {
    let environment = new_environment();
    let reviewer = FakeReviewServer::start(&environment).await;
    let valid = Arc::new(Mutex::new(BTreeSet::from(["token-one"])));
    let known = valid.clone();
    reviewer.set_behavior(move |question| {
        let is_valid = known.lock().unwrap().contains(question["spec"]["token"].as_str().unwrap());
        let status = match is_valid {
            true => json!({
                "authenticated": true, "audiences": ["konnectivity"],
                "user": {"username": "system:serviceaccount:kube-system:konnectivity-agent"},
            }),
            false => json!({"authenticated": false}),
        };
        let review: Value = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": status});
        ReviewReply::Json(201, review)
    });
    let flags = token_flags(&environment);
    let flags = flags.each_ref().map(String::as_str);
    let [first, second] = start_servers(&environment, &flags).await;
    let port = first.agent_port;
    let token = environment.path("agent.token");
    std::fs::write(&token, "token-one\n").unwrap();
    let mut arguments = agent_arguments(&environment, "a", &SERVERS.join(","), port);
    arguments.push(format!("--service-account-token-path={}", token.display()));
    let agent = start(&arguments);
    for server in [&first, &second] {
        server.wait_for_agents(1).await;
    }
    let transfer = RunningTransfer::start(&first.socket).await;

    std::fs::write(&token, "token-two\n").unwrap();
    *valid.lock().unwrap() = BTreeSet::from(["token-two"]);
    drop(second);
    agent.wait_for_log(&["connection to a server broke", "second"]).await;
    let again = ServerProcess::start_at(&environment, "again", "http-connect", (SERVERS[1], port), &flags).await;
    again.wait_for_agents(1).await;
    assert_eq!(reviewer.last_review().1["spec"]["token"], "token-two");
    transfer.assert_running().await;

    // The old token is refused, with the reason in one line.
    let old = environment.path("old.token");
    std::fs::write(&old, "token-one").unwrap();
    let mut arguments = agent_arguments(&environment, "old", SERVERS[1], port);
    arguments.push(format!("--service-account-token-path={}", old.display()));
    let refused = start(&arguments);
    let line = refused.wait_for_log(&["cannot connect to a Konnectivity server", "gRPC status 2"]).await;
    println!("{line}");
    assert!(line.contains("Failed to validate authentication token") && line.contains("old.token"), "{line}");
    transfer.finish().await;
}
