//! narthex in front of an extension API server that only an agent reaches.

use std::net::TcpStream;

use super::super::{compare, discovery, extension_scenarios, many_watches, read_objects};
use super::pairs::OWN_SERVER;
use crate::environment::{
    Gateway, Konnectivity, KonnectivityBackend, KonnectivityMode, Kubectl, Session, Target, TestEnvironment, Tokens,
    eventually,
};

const FLUNDERS: &str = "/apis/wardle.example.com/v1alpha1/flunders";

/// All extension server scenarios give the same transcript through a tunnel.
pub(super) fn all_scenarios(environment: &TestEnvironment, kubectl: &Kubectl) {
    let name = format!("tunnelled-{}", kubectl.version.replace('.', "-"));
    let konnectivity_backend = KonnectivityBackend::start(
        &environment.cluster,
        &environment.scratch(&name),
        &name,
        KonnectivityMode::GrpcUnix,
    );
    if konnectivity_backend.network.is_some() {
        assert!(
            TcpStream::connect(("127.0.0.1", konnectivity_backend.port)).is_err(),
            "the port is reachable without the tunnel"
        );
    }
    for (scenario, run) in extension_scenarios() {
        println!("{scenario}");
        compare_scenario(environment, kubectl, &konnectivity_backend, run);
    }
    assert!(
        konnectivity_backend.konnectivity.count("konnectivity_network_proxy_server_dial_duration_seconds_count") > 0.0
    );
}

/// Read scenarios in the other three modes.
pub(super) fn every_mode(environment: &TestEnvironment, kubectl: &Kubectl) {
    for mode in [KonnectivityMode::GrpcTls, KonnectivityMode::ConnectUnix, KonnectivityMode::ConnectTls] {
        println!("{mode:?}");
        let name = format!("{mode:?}-{}", kubectl.version.replace('.', "-")).to_lowercase();
        let konnectivity_backend =
            KonnectivityBackend::start(&environment.cluster, &environment.scratch(&name), &name, mode);
        for (scenario, run) in read_objects::SCENARIOS.iter().chain(discovery::SCENARIOS) {
            println!("{scenario}");
            compare_scenario(environment, kubectl, &konnectivity_backend, *run);
        }
        assert!(
            konnectivity_backend.konnectivity.count("konnectivity_network_proxy_server_dial_duration_seconds_count")
                > 0.0
        );
    }
}

fn compare_scenario(
    environment: &TestEnvironment,
    kubectl: &Kubectl,
    konnectivity_backend: &KonnectivityBackend,
    run: super::super::Scenario,
) {
    let jane = environment.cluster.jane();
    let mut direct = Session::open(environment, kubectl, Target::Direct, jane);
    run(&mut direct);
    let mut through = Session::open_at(environment, kubectl, &konnectivity_backend.gateway.endpoint, jane);
    run(&mut through);
    compare(&direct.into_transcript(), &through.into_transcript());
}

/// Agents authenticate by service account tokens, which the server reviews with kube-apiserver.
pub(super) fn agent_with_token(environment: &TestEnvironment) {
    let directory = environment.scratch("tunnelled-token");
    let tokens = Tokens::make(&environment.cluster, &directory);
    let konnectivity_backend = KonnectivityBackend::start_with(
        &environment.cluster,
        &directory,
        "tunnelled-token",
        KonnectivityMode::GrpcUnix,
        Some(tokens),
    );
    let response = konnectivity_backend.gateway.endpoint.get(Some(environment.cluster.jane()), FLUNDERS).unwrap();
    assert_eq!(response.status, 200, "{}", response.text());
}

/// 500 watches; then the agent is replaced and the server restarted. Availability conditions and discovery are
/// correct throughout.
pub(super) fn watches_and_faults(environment: &TestEnvironment, mode: KonnectivityMode) {
    let name = format!("tunnelled-{mode:?}").to_lowercase();
    let directory = environment.scratch(&name);
    let KonnectivityBackend { gateway, mut konnectivity, network, _extension, .. } =
        KonnectivityBackend::start(&environment.cluster, &directory, &name, mode);
    let dials = || konnectivity.count("konnectivity_network_proxy_server_dial_duration_seconds_count");
    assert!(dials() > 0.0, "no dial at the Konnectivity server");
    is_discovered(environment, &gateway);
    many_watches::watch_event_at_endpoint(environment, &gateway.endpoint);
    let jane = environment.cluster.jane();
    let wait_until_served = |what: &str| {
        eventually(what, || {
            let response = gateway.endpoint.get(Some(jane), FLUNDERS)?;
            if response.status == 200 { Ok(()) } else { Err(response.text()) }
        });
    };
    let mut agent = konnectivity.agents.remove(0);
    agent.process.signal(rustix::process::Signal::KILL);
    agent.process.wait();
    gateway.wait_until_available("False");
    let response = gateway.endpoint.get(Some(jane), FLUNDERS).unwrap();
    assert_eq!(response.status, 503, "{}", response.text());
    assert_eq!(response.json()["kind"], "Status");
    is_discovered(environment, &gateway);
    konnectivity.start_agent("agent-b", network.as_ref());
    wait_until_served("flunders through the new agent");
    gateway.wait_until_available("True");

    konnectivity.server.signal(rustix::process::Signal::KILL);
    konnectivity.server.wait();
    gateway.wait_until_available("False");
    konnectivity.restart();
    konnectivity.wait_for_agents(1);
    wait_until_served("flunders after the server's restart");
    gateway.wait_until_available("True");

    if !mode.is_unix() {
        return;
    }
    // The socket file is removed and created again.
    konnectivity.server.signal(rustix::process::Signal::KILL);
    konnectivity.server.wait();
    let _ = std::fs::remove_file(&konnectivity.socket);
    gateway.wait_until_available("False");
    konnectivity.restart();
    konnectivity.wait_for_agents(1);
    wait_until_served("flunders after the socket was created again");
}

/// The group is in every discovery document with its current or last known resources.
fn is_discovered(environment: &TestEnvironment, gateway: &Gateway) {
    for path in ["/apis", "/apis/wardle.example.com", "/openapi/v3"] {
        let response = gateway.endpoint.get(Some(environment.cluster.jane()), path).unwrap();
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        assert!(response.text().contains("wardle.example.com"), "{path}: {}", response.text());
    }
    let accept = [("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")];
    let response = gateway.endpoint.send(Some(environment.cluster.jane()), "GET", "/apis", &accept, b"").unwrap();
    assert!(response.text().contains("\"flunders\""), "{}", response.text());
}

/// As [`agent_with_token`], with narthex's server: an agent's token is reviewed by kube-apiserver, a wrong one refused.
pub(super) fn own_server_reviews_tokens(environment: &TestEnvironment) {
    let directory = environment.scratch("konnectivity-own-token");
    let tokens = Tokens::make(&environment.cluster, &directory);
    let token = tokens.token.clone();
    let mut konnectivity = Konnectivity::start_with(&directory, KonnectivityMode::GrpcUnix, OWN_SERVER, Some(tokens));
    konnectivity.start_agent("agent-a", None);
    std::fs::write(&token, "not-a-token").unwrap();
    konnectivity.launch_agent("agent-b", None);
    let refused = "Failed to validate authentication token";
    eventually("the refusal in the server's log", || {
        let log = konnectivity.server.log();
        if log.contains(refused) { Ok(()) } else { Err(log) }
    });
    assert!(!konnectivity.server.log().contains("not-a-token"), "the token is logged");
    konnectivity.wait_for_agents(1);
}
