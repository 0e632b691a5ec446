//! Tests with the real Konnectivity server and agent.

mod back_off;
#[path = "../../../../src/konnectivity/blackhole.rs"]
mod blackhole;
mod client;
mod client_library;
mod defects;
mod faults;
mod flags;
mod gateway;
mod http_answers;
mod interrupted_transfer;
mod ipv6;
mod kube_apiserver;
mod kubelet_streams;
mod leases;
mod metric_families;
mod node;
mod pairs;
mod replaced_server;
mod soak;
mod status_page;
mod stopped_peers;
mod target_server;
mod transfer;
mod transfers;
mod upgrade;
mod upload;

use std::time::Duration;

use konnectivity_client::{KonnectivityClient, KonnectivityTunnel, TunnelFailure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::LocalSet;

use super::{KubectlTestFn, TestFn};
use crate::environment::{KonnectivityMode, KonnectivityPair, runtime};

pub(super) use soak::MINUTES_VARIABLE as SOAK_MINUTES_VARIABLE;

/// Tests of the Konnectivity client alone.
pub(super) const CLIENT_TESTS: &[(&str, TestFn)] = &[
    ("konnectivity: client over a Unix socket and over TLS", client::tunnels_over_both_transports),
    (
        "konnectivity: client receives the banner of a target that sends first, 400 of 400 times",
        client::target_speaks_first,
    ),
    ("konnectivity: client upload complete when closed at once", client::upload_and_close),
    ("konnectivity: client with 1000 tunnels on one connection", client::thousand_tunnels),
    ("konnectivity: client leaks nothing in 10000 dials", client::ten_thousand_dials),
    ("konnectivity: agent killed during a transfer", faults::agent_killed),
    ("konnectivity: agent stopped during dials", faults::agent_stopped),
    ("konnectivity: server restarted", faults::server_restarted),
    ("konnectivity: one client stops reading, 100 others unaffected", faults::reader_stops),
    ("konnectivity: one target never reads, beside 100 others", faults::target_never_reads),
];

/// Tests of narthex's server and agent, each also with the reference on the other side.
pub(super) const PAIR_TESTS: &[(&str, TestFn)] = &[
    ("konnectivity: narthex's server and agent", |environment| pairs::run(environment, pairs::OWN)),
    ("konnectivity: narthex's server, the reference's agent", |environment| {
        pairs::run(environment, pairs::OWN_SERVER);
    }),
    ("konnectivity: the reference's server, narthex's agent", |environment| {
        pairs::run(environment, pairs::OWN_AGENT);
    }),
    ("konnectivity: transfers, narthex's server and agent", |environment| transfers::run(environment, pairs::OWN)),
    ("konnectivity: transfers, narthex's server and the reference's agent", |environment| {
        transfers::run(environment, pairs::OWN_SERVER);
    }),
    ("konnectivity: transfers, the reference's server and narthex's agent", |environment| {
        transfers::run(environment, pairs::OWN_AGENT);
    }),
    ("konnectivity: transfers, the reference alone", |environment| {
        transfers::run(environment, KonnectivityPair::REFERENCE);
    }),
    ("konnectivity: narthex's agent is stopped", stopped_peers::stopped_agent),
    ("konnectivity: narthex's server is stopped", stopped_peers::stopped_server),
    ("konnectivity: agents of a server with an IPv6 address", ipv6::agents_connect),
    ("konnectivity: a draining server is replaced, narthex's agent connects to its successor", replaced_server::run),
    ("konnectivity: network between narthex's server and agent drops packets", stopped_peers::partition),
    ("konnectivity: the reference's client library", client_library::conforms),
    ("konnectivity: metric families of the reference", metric_families::are_served),
    ("konnectivity: flags of the reference", flags::are_accepted),
    ("konnectivity: HTTP answers of the reference", http_answers::are_alike),
    ("konnectivity: agents killed and restarted during transfers", soak::run),
    ("konnectivity: status page shows an agent that comes and goes", status_page::agent_comes_and_goes),
];

/// The defects of the reference, with each pair.
pub(super) const DEFECT_TESTS: &[(&str, TestFn)] = &[
    ("konnectivity: B1, a target that does not read", defects::b1_target_that_does_not_read),
    ("konnectivity: B2, an HTTP-CONNECT client that does not read", defects::b2_connect_client_that_does_not_read),
    ("konnectivity: B3, a gRPC client that does not read", defects::b3_grpc_client_that_does_not_read),
    ("konnectivity: B4, an upload before a close", defects::b4_upload_before_a_close),
    ("konnectivity: B5, a target that sends first", defects::b5_target_that_sends_first),
    ("konnectivity: B6, a half-closed request", defects::b6_half_closed_request),
    ("konnectivity: B7, a client that leaves during a dial", defects::b7_client_that_leaves_during_a_dial),
    ("konnectivity: B8, an agent that dies during a dial", defects::b8_agent_that_dies_during_a_dial),
    ("konnectivity: B9, a dial of a stopped agent", defects::b9_dial_of_a_stopped_agent),
    ("konnectivity: B10, a server that is terminated", defects::b10_server_that_is_terminated),
    ("konnectivity: B11, an agent that is terminated", defects::b11_agent_that_is_terminated),
    ("konnectivity: B12, a refused agent", defects::b12_refused_agent),
    ("konnectivity: B13, connection ids of other clients", defects::b13_foreign_connection_ids),
    ("konnectivity: B14, two agents of one id", defects::b14_agents_of_one_id),
    ("konnectivity: B16, a client that pauses", defects::b16_client_that_pauses),
];

/// Tests of kube-apiserver.
pub(super) const KUBE_APISERVER_TESTS: &[(&str, TestFn)] = &[
    ("konnectivity: kube-apiserver through narthex's server and agent, GRPC", |environment| {
        kube_apiserver::reaches_its_backends(environment, KonnectivityMode::GrpcUnix, pairs::OWN);
    }),
    ("konnectivity: kube-apiserver through narthex's server and agent, http-connect over TLS", |environment| {
        kube_apiserver::reaches_its_backends(environment, KonnectivityMode::ConnectTls, pairs::OWN);
    }),
    ("konnectivity: kube-apiserver through narthex's server and agent, http-connect", |environment| {
        kube_apiserver::reaches_its_backends(environment, KonnectivityMode::ConnectUnix, pairs::OWN);
    }),
    ("konnectivity: kube-apiserver through narthex's server and the reference's agent, GRPC", |environment| {
        kube_apiserver::reaches_its_backends(environment, KonnectivityMode::GrpcUnix, pairs::OWN_SERVER);
    }),
    ("konnectivity: kube-apiserver through the reference's server and narthex's agent, GRPC", |environment| {
        kube_apiserver::reaches_its_backends(environment, KonnectivityMode::GrpcUnix, pairs::OWN_AGENT);
    }),
    ("konnectivity: kube-apiserver through narthex's server and the reference's agent, http-connect", |environment| {
        kube_apiserver::reaches_its_backends(environment, KonnectivityMode::ConnectUnix, pairs::OWN_SERVER);
    }),
    (
        "konnectivity: kube-apiserver through the reference's server and narthex's agent, http-connect over TLS",
        |environment| {
            kube_apiserver::reaches_its_backends(environment, KonnectivityMode::ConnectTls, pairs::OWN_AGENT);
        },
    ),
    ("konnectivity: steps of the how-to on a node, its manifests as containers", node::follows_the_how_to),
    ("konnectivity: B15, connections and TokenReviews when servers are missing", back_off::agents_back_off),
    ("konnectivity: Leases of servers, ours and the reference's", leases::leases_are_published_counted_and_collected),
];

/// Tests of narthex with Konnectivity.
pub(super) const GATEWAY_TESTS: &[(&str, TestFn)] = &[
    ("konnectivity: upgraded connection through an agent", upgrade::echoes),
    ("konnectivity: agent with a service account token, as in the Kubernetes task", gateway::agent_with_token),
    ("konnectivity: narthex's server reviews service account tokens", gateway::own_server_reviews_tokens),
    ("konnectivity: unread HTTP/2 upload does not block the agent", upload::unread_upload_isolated),
    ("konnectivity: 500 watches, agent replaced, server restarted, GRPC", |environment| {
        gateway::watches_and_faults(environment, KonnectivityMode::GrpcUnix);
    }),
    ("konnectivity: 500 watches, agent replaced, server restarted, http-connect", |environment| {
        gateway::watches_and_faults(environment, KonnectivityMode::ConnectUnix);
    }),
    ("konnectivity: 500 watches, agent replaced, server restarted, http-connect over TLS", |environment| {
        gateway::watches_and_faults(environment, KonnectivityMode::ConnectTls);
    }),
    ("konnectivity: interrupted transfer reported as an error, GRPC", |environment| {
        interrupted_transfer::transfer_fails(environment, KonnectivityMode::GrpcUnix)
    }),
    ("konnectivity: interrupted transfer reported as an error, http-connect", |environment| {
        interrupted_transfer::transfer_fails(environment, KonnectivityMode::ConnectUnix);
    }),
    ("konnectivity: interrupted transfer reported as an error, http-connect over TLS", |environment| {
        interrupted_transfer::transfer_fails(environment, KonnectivityMode::ConnectTls);
    }),
    ("konnectivity: interrupted HTTP/2 download reported as an error", interrupted_transfer::http2_download_fails),
    ("konnectivity: socks5 leaks nothing in 10000 dials, http-connect", client::ten_thousand_connects),
];

pub(super) const KUBECTL_TESTS: &[(&str, KubectlTestFn)] = &[
    ("konnectivity: all scenarios, GRPC over a Unix socket", gateway::all_scenarios),
    ("konnectivity: read scenarios, the other three modes", gateway::every_mode),
];

const TIMEOUT: Duration = Duration::from_secs(30);

/// Metric of a server: dials that succeeded.
const DIALS: &str = "konnectivity_network_proxy_server_dial_duration_seconds_count";

/// Runs a future on one thread with a timeout.
fn run_local<T>(future: impl Future<Output = T>) -> T {
    let local = LocalSet::new();
    runtime().block_on(
        local.run_until(async {
            tokio::time::timeout(Duration::from_secs(180), future).await.expect("the test to end")
        }),
    )
}

async fn dial(client: &KonnectivityClient, port: u16) -> Result<KonnectivityTunnel, TunnelFailure> {
    client.dial(&format!("127.0.0.1:{port}"), TIMEOUT).await.map_err(|error| {
        println!("{error}");
        error.failure
    })
}

/// Sends `bytes` to an echo target and asserts that they come back.
async fn assert_echo(tunnel: &mut KonnectivityTunnel, bytes: &[u8]) {
    let mut back = vec![0; bytes.len()];
    let (mut reader, mut writer) = tokio::io::split(tunnel);
    let (read, written) = tokio::join!(reader.read_exact(&mut back), writer.write_all(bytes));
    written.unwrap();
    read.unwrap();
    assert!(back == bytes);
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length as u32).map(|at| (at % 251) as u8).collect()
}
