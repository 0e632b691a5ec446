//! B15: how often an agent connects, and what it costs, when fewer servers are reachable than `--server-count` says.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::environment::{Process, TestEnvironment, Tokens, eventually, free_port, peer, plain_get};

/// How long the connections of each pair are counted.
const WINDOW: Duration = Duration::from_secs(20);

/// Forwards connections, and counts them. Returns its port.
fn start_forwarder(target: u16) -> (u16, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let count = Arc::<AtomicU64>::default();
    let accepted = count.clone();
    std::thread::spawn(move || {
        for inside in listener.incoming().map_while(Result::ok) {
            accepted.fetch_add(1, SeqCst);
            let Ok(outside) = TcpStream::connect(("127.0.0.1", target)) else { continue };
            for (mut from, mut to) in [(inside.try_clone().unwrap(), outside.try_clone().unwrap()), (outside, inside)] {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
    (port, count)
}

/// Starts `narthex konnectivity-…`, or the program of the reference.
fn start(name: &str, program: &str, is_own: bool, flags: Vec<String>, directory: &Path) -> Process {
    let (path, command) = match is_own {
        true => (PathBuf::from(env!("CARGO_BIN_EXE_narthex")), Some(program.to_owned())),
        false => (peer(program), None),
    };
    let arguments: Vec<String> = command.into_iter().chain(flags).collect();
    Process::start(name, &path, arguments, directory)
}

/// Reviews of the token of `tokens`, which no other test has, by the API server's audit log.
fn count_token_reviews(environment: &TestEnvironment, tokens: &Tokens) -> u64 {
    let token = std::fs::read_to_string(&tokens.token).unwrap();
    let log = std::fs::read_to_string(&environment.cluster.audit_log).unwrap();
    let reviews = log.lines().filter(|line| line.contains(&token) && line.contains("\"stage\":\"ResponseComplete\""));
    reviews.count() as u64
}

/// Connections of the agent and TokenReviews of the server within [`WINDOW`].
fn measure(environment: &TestEnvironment, has_own_server: bool, has_own_agent: bool) -> (u64, u64) {
    let directory = environment.scratch(&format!("konnectivity-back-off-{has_own_server}-{has_own_agent}"));
    let tokens = Tokens::make(&environment.cluster, &directory);
    let serving = environment.cluster.authorities.serving.server("konnectivity-back-off", &["127.0.0.1"]);
    let (agents, health) = (free_port(), free_port());
    let socket = tempfile::Builder::new().prefix("back-off-").tempdir().unwrap().keep().join("front.sock");
    let server = start(
        "back-off-server",
        "konnectivity-server",
        has_own_server,
        vec![
            "--mode=grpc".to_owned(),
            format!("--uds-name={}", socket.display()),
            "--server-port=0".to_owned(),
            format!("--cluster-cert={}", serving.certificate.display()),
            format!("--cluster-key={}", serving.key.display()),
            "--agent-namespace=kube-system".to_owned(),
            "--agent-service-account=konnectivity-agent".to_owned(),
            "--authentication-audience=system:konnectivity-server".to_owned(),
            format!("--kubeconfig={}", tokens.kubeconfig.display()),
            format!("--agent-port={agents}"),
            format!("--health-port={health}"),
            format!("--admin-port={}", free_port()),
            "--server-id=one".to_owned(),
            "--server-count=3".to_owned(),
        ],
        &directory,
    );
    eventually("the server", || plain_get(health, "/healthz").map(drop));
    let (port, connections) = start_forwarder(agents);
    let agent_health = free_port();
    let agent = start(
        "back-off-agent",
        "konnectivity-agent",
        has_own_agent,
        vec![
            format!("--ca-cert={}", environment.cluster.authorities.serving.file.display()),
            format!("--service-account-token-path={}", tokens.token.display()),
            "--proxy-server-host=127.0.0.1".to_owned(),
            format!("--proxy-server-port={port}"),
            "--health-server-host=127.0.0.1".to_owned(),
            format!("--health-server-port={agent_health}"),
            format!("--admin-server-port={}", free_port()),
            "--agent-id=a".to_owned(),
        ],
        &directory,
    );
    let began = Instant::now();
    eventually("the agent to be connected", || match plain_get(agent_health, "/readyz")?.ends_with("ok") {
        true => Ok(()),
        false => Err("not ready".to_owned()),
    });
    std::thread::sleep(WINDOW.saturating_sub(began.elapsed()));
    let counted = (connections.load(SeqCst), count_token_reviews(environment, &tokens));
    drop((agent, server));
    let _ = std::fs::remove_dir_all(socket.parent().unwrap());
    counted
}

pub(super) fn agents_back_off(environment: &TestEnvironment) {
    println!("in {WINDOW:?}, one of three servers reachable:");
    // Side by side: each pair has its own forwarder and token.
    let counts = std::thread::scope(|scope| {
        let pairs = [(false, false), (true, false), (false, true), (true, true)];
        let measured = pairs.map(|(server, agent)| scope.spawn(move || measure(environment, server, agent)));
        pairs.into_iter().zip(measured.map(|thread| thread.join().unwrap())).collect::<Vec<_>>()
    });
    for ((has_own_server, has_own_agent), (connections, reviews)) in &counts {
        let name = |is_own: &bool| if *is_own { "narthex's" } else { "the reference's" };
        println!(
            "{} server, {} agent: {connections} connections, {reviews} TokenReviews",
            name(has_own_server),
            name(has_own_agent)
        );
    }
    let counts: Vec<(u64, u64)> = counts.into_iter().map(|(_, count)| count).collect();
    let [(connections, reviews), (_, cached), (backed_off, _), (own, own_reviews)] = counts[..] else { unreachable!() };
    // The defect is there to compare with; a fast machine and a slow one have the same ratio.
    assert!(connections > 10 && reviews >= connections - 1, "the reference's agent connects less often: {counts:?}");
    assert!(cached * 3 < connections, "token reviews are not cached: {counts:?}");
    assert!(backed_off * 2 < connections && own * 2 < connections, "narthex's agent does not back off: {counts:?}");
    assert!(own_reviews <= own, "{counts:?}");
}
