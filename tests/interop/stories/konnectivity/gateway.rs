//! narthex before an extension API server that only an agent reaches.

use std::net::TcpStream;

use super::super::{compare, crowd, discovery, everywhere, reading};
use crate::world::{Behind, Front, Gateway, Kubectl, Session, Target, Tokens, World, eventually};

const FLUNDERS: &str = "/apis/wardle.example.com/v1alpha1/flunders";

/// All that kubectl can say to the extension server, it can say through a tunnel, to the letter.
pub(super) fn kubectl_says_the_same(world: &World, kubectl: &Kubectl) {
    let name = format!("tunnelled-{}", kubectl.version.replace('.', "-"));
    let behind = Behind::start(&world.cluster, &world.scratch(&name), &name, Front::GrpcUnix);
    if behind.network.is_some() {
        assert!(TcpStream::connect(("127.0.0.1", behind.port)).is_err(), "it is not reached without the tunnel");
    }
    for (story, tell) in everywhere() {
        println!("{story}");
        says_the_same(world, kubectl, &behind, tell);
    }
    assert!(behind.konnectivity.count("konnectivity_network_proxy_server_dial_duration_seconds_count") > 0.0);
}

/// The other ways to speak to the server, and to be known to it.
pub(super) fn every_front(world: &World, kubectl: &Kubectl) {
    for front in [Front::GrpcTls, Front::ConnectUnix, Front::ConnectTls] {
        println!("{front:?}");
        let name = format!("{front:?}-{}", kubectl.version.replace('.', "-")).to_lowercase();
        let behind = Behind::start(&world.cluster, &world.scratch(&name), &name, front);
        for (story, tell) in reading::STORIES.iter().chain(discovery::STORIES) {
            println!("{story}");
            says_the_same(world, kubectl, &behind, *tell);
        }
        assert!(behind.konnectivity.count("konnectivity_network_proxy_server_dial_duration_seconds_count") > 0.0);
    }
}

fn says_the_same(world: &World, kubectl: &Kubectl, behind: &Behind, tell: super::super::Story) {
    let jane = world.cluster.jane();
    let mut direct = Session::open(world, kubectl, Target::Direct, jane);
    tell(&mut direct);
    let mut through = Session::open_at(world, kubectl, &behind.gateway.door, jane);
    tell(&mut through);
    compare(&direct.into_transcript(), &through.into_transcript());
}

/// The Konnectivity server asks a real kube-apiserver who its agents are.
pub(super) fn agent_with_token(world: &World) {
    let directory = world.scratch("tunnelled-token");
    let tokens = Tokens::make(&world.cluster, &directory);
    let behind = Behind::start_with(&world.cluster, &directory, "tunnelled-token", Front::GrpcUnix, Some(tokens));
    let answer = behind.gateway.door.get(Some(world.cluster.jane()), FLUNDERS).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// First 500 watches, then the agent dies and another comes, the server dies and comes back; what is said to be
/// available and what discovery shows are true all along.
pub(super) fn watches_and_faults(world: &World, front: Front) {
    let name = format!("tunnelled-{front:?}").to_lowercase();
    let directory = world.scratch(&name);
    let Behind { gateway, mut konnectivity, network, _extension, .. } =
        Behind::start(&world.cluster, &directory, &name, front);
    let dials = || konnectivity.count("konnectivity_network_proxy_server_dial_duration_seconds_count");
    assert!(dials() > 0.0, "it went through the server");
    is_discovered(world, &gateway);
    crowd::watch_at(world, &gateway.door);
    let jane = world.cluster.jane();
    let well = |what: &str| {
        eventually(what, || {
            let answer = gateway.door.get(Some(jane), FLUNDERS)?;
            if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
        });
    };
    let mut agent = konnectivity.agents.remove(0);
    agent.process.signal(rustix::process::Signal::KILL);
    agent.process.wait();
    gateway.wait_until_available("False");
    let answer = gateway.door.get(Some(jane), FLUNDERS).unwrap();
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert_eq!(answer.json()["kind"], "Status");
    is_discovered(world, &gateway);
    konnectivity.start_agent("agent-b", network.as_ref());
    well("flunders after another agent came");
    gateway.wait_until_available("True");

    konnectivity.server.signal(rustix::process::Signal::KILL);
    konnectivity.server.wait();
    gateway.wait_until_available("False");
    konnectivity.start_again();
    konnectivity.wait_for_agents(1);
    well("flunders after the server came back");
    gateway.wait_until_available("True");

    if !front.is_unix() {
        return;
    }
    // The socket's file goes, too, and comes back later.
    konnectivity.server.signal(rustix::process::Signal::KILL);
    konnectivity.server.wait();
    let _ = std::fs::remove_file(&konnectivity.socket);
    gateway.wait_until_available("False");
    konnectivity.start_again();
    konnectivity.wait_for_agents(1);
    well("flunders after the socket appeared");
}

/// The group is in every document, with what its server says of it or last said.
fn is_discovered(world: &World, gateway: &Gateway) {
    for path in ["/apis", "/apis/wardle.example.com", "/openapi/v3"] {
        let answer = gateway.door.get(Some(world.cluster.jane()), path).unwrap();
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        assert!(answer.text().contains("wardle.example.com"), "{path}: {}", answer.text());
    }
    let accept = [("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")];
    let answer = gateway.door.send(Some(world.cluster.jane()), "GET", "/apis", &accept, b"").unwrap();
    assert!(answer.text().contains("\"flunders\""), "{}", answer.text());
}
