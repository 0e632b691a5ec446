//! The reference's client library (`konnectivity-client`, which kube-apiserver links) against each pairing: each case
//! has the same result as with the reference on both sides.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use super::blackhole::Blackhole;
use super::pairs::{OWN, OWN_AGENT, OWN_SERVER};
use crate::environment::{Konnectivity, KonnectivityMode, KonnectivityPair, TestEnvironment, eventually, peer};

/// Cases whose result does not depend on chance.
const CASES: &str = "echo,parallel,close,target-close,half-close,refused,no-port,protocol,dial-twice,cancel-dial,\
                     large-write,oversized-write,empty-write,pause";
/// Defects B4, B5 and B7: the reference's result is printed, this project's is asserted. A server of the reference tells
/// the client that it is connected before it records the connection, so a client that leaves in between leaves the
/// connection to the target behind (`serveRecvBackend` in pkg/server/server.go).
const DEFECTS: &str = "upload-then-close,banner,cancel-tunnel";
const CANCELED_TUNNEL: &str = "done, read EOF";

pub(super) fn conforms(environment: &TestEnvironment) {
    for mode in [KonnectivityMode::GrpcUnix, KonnectivityMode::GrpcTls] {
        let expected = results(environment, mode, KonnectivityPair::REFERENCE);
        println!("{mode:?}\n  {}", expected.join("\n  "));
        assert!(!expected.iter().any(|result| result.contains("FAILED")), "the reference fails");
        for pair in [OWN, OWN_SERVER, OWN_AGENT] {
            assert_eq!(results(environment, mode, pair), expected, "{mode:?} {pair:?}");
        }
    }
}

/// The results of all cases, one a line.
fn results(environment: &TestEnvironment, mode: KonnectivityMode, pair: KonnectivityPair) -> Vec<String> {
    let name = format!("konnectivity-library-{}-{}-{mode:?}", pair.has_own_server, pair.has_own_agent);
    let mut konnectivity = Konnectivity::with_pair(&environment.scratch(&name), mode, pair);
    let mut results = run(&konnectivity, CASES, |_| {});
    for result in run(&konnectivity, DEFECTS, |_| {}) {
        println!("{pair:?} {result}");
        let (is_required, expected) = match result.split(':').next().unwrap() {
            "upload-then-close" => (pair.has_own_agent, "10 of 10"),
            // A server that delays the first data hides the client's part of the defect.
            "banner" => (pair.has_own_server, "100 of 100"),
            _ => (pair.has_own_server, CANCELED_TUNNEL),
        };
        assert!(!is_required || result.ends_with(expected), "{result}");
    }
    if pair.has_own_server {
        eventually("no pending dial", || {
            let pending = konnectivity.count("konnectivity_network_proxy_server_pending_backend_dials");
            if pending == 0.0 { Ok(()) } else { Err(format!("{pending}")) }
        });
    }
    let agents = std::mem::take(&mut konnectivity.agents);
    let mut agents = Some(agents);
    results.extend(run(&konnectivity, "lost", |line| {
        if line == "lost: open" {
            // Killed.
            drop(agents.take());
        }
    }));
    konnectivity.wait_for_agents(0);
    results.extend(run(&konnectivity, "no-agent", |_| {}));
    results
}

/// Runs the client; `observe` sees each line as it comes.
pub(super) fn run(konnectivity: &Konnectivity, cases: &str, mut observe: impl FnMut(&str)) -> Vec<String> {
    let blackhole = Blackhole::new();
    let mut command = Command::new(peer("konnectivity-conformance"));
    command.arg(format!("-cases={cases}")).arg(format!("-blackhole={}", blackhole.address));
    if konnectivity.mode.is_unix() {
        command.arg("-socket").arg(&konnectivity.socket);
    } else {
        command.arg(format!("-address=127.0.0.1:{}", konnectivity.port));
        command.arg("-ca").arg(&konnectivity.frontend_authority);
        command.arg("-cert").arg(&konnectivity.client.certificate);
        command.arg("-key").arg(&konnectivity.client.key);
    }
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        observe(&line);
        lines.push(line);
    }
    assert!(child.wait().unwrap().success());
    lines
}
