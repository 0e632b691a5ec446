//! Through the real Konnectivity server and agent.

mod client;
mod cut;
mod far;
mod faults;
mod gateway;
mod upgrade;
mod upload;

use std::time::Duration;

use narthex::egress::proxy::konnectivity::{KonnectivityClient, KonnectivityTunnel, TunnelFailure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::LocalSet;

use super::{Trial, TrialWith};
use crate::world::{Front, runtime};

/// Our client alone, without a gateway.
pub(super) const CLIENT: &[(&str, Trial)] = &[
    ("konnectivity: tunnels over a socket and over TLS", client::carries),
    ("konnectivity: a target that speaks first is heard, 400 times of 400", client::speaks_first),
    ("konnectivity: what is uploaded and closed at once arrives", client::upload_and_close),
    ("konnectivity: 1000 tunnels on one connection", client::a_thousand),
    ("konnectivity: 10000 dials in a row leave nothing behind", client::ten_thousand_dials),
    ("konnectivity: an agent is killed in mid-transfer", faults::agent_killed),
    ("konnectivity: an agent is stopped while we dial", faults::agent_stopped),
    ("konnectivity: the server is restarted", faults::server_restarted),
    ("konnectivity: a reader that stops, beside 100 others", faults::reader_stops),
    ("konnectivity: a target that never reads, beside 100 others", faults::target_never_reads),
];

/// narthex as a whole.
pub(super) const THROUGH: &[(&str, Trial)] = &[
    ("konnectivity: an upgraded connection through an agent", upgrade::echoes),
    ("konnectivity: an agent with a service account's token, as in the Kubernetes task", gateway::agent_with_token),
    ("konnectivity: a backend that does not read what is uploaded over HTTP/2", upload::nobody_else_notices),
    ("konnectivity: 500 watches, agents and the server go and come, GRPC", |world| {
        gateway::watches_and_faults(world, Front::GrpcUnix);
    }),
    ("konnectivity: 500 watches, agents and the server go and come, http-connect", |world| {
        gateway::watches_and_faults(world, Front::ConnectUnix);
    }),
    ("konnectivity: 500 watches, agents and the server go and come, http-connect over TLS", |world| {
        gateway::watches_and_faults(world, Front::ConnectTls);
    }),
    ("konnectivity: what is cut is not taken for whole, GRPC", |world| cut::is_noticed(world, Front::GrpcUnix)),
    ("konnectivity: what is cut is not taken for whole, http-connect", |world| {
        cut::is_noticed(world, Front::ConnectUnix);
    }),
    ("konnectivity: what is cut is not taken for whole, http-connect over TLS", |world| {
        cut::is_noticed(world, Front::ConnectTls);
    }),
    ("konnectivity: a download over HTTP/2 that is cut", cut::is_noticed_over_http2),
    ("konnectivity: 10000 dials by http-connect leave nothing behind", client::ten_thousand_connects),
];

pub(super) const WITH_KUBECTL: &[(&str, TrialWith)] = &[
    ("konnectivity: all stories, through GRPC over a socket", gateway::kubectl_says_the_same),
    ("konnectivity: reading, through the other three fronts", gateway::every_front),
];

const PATIENCE: Duration = Duration::from_secs(30);

/// Runs a story on one thread.
fn here<T>(story: impl Future<Output = T>) -> T {
    let local = LocalSet::new();
    runtime().block_on(local.run_until(async {
        tokio::time::timeout(Duration::from_secs(180), story).await.expect("the story comes to an end")
    }))
}

async fn dial(client: &KonnectivityClient, port: u16) -> Result<KonnectivityTunnel, TunnelFailure> {
    client.dial(&format!("127.0.0.1:{port}"), PATIENCE).await.map_err(|error| {
        println!("{error}");
        error.failure
    })
}

/// Sends `words` to an echo, and has them back.
async fn asks(tunnel: &mut KonnectivityTunnel, words: &[u8]) {
    let mut back = vec![0; words.len()];
    let (mut reader, mut writer) = tokio::io::split(tunnel);
    let (read, written) = tokio::join!(reader.read_exact(&mut back), writer.write_all(words));
    written.unwrap();
    read.unwrap();
    assert!(back == words);
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length as u32).map(|at| (at % 251) as u8).collect()
}
