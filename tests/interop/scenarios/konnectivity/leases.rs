//! Leases by which agents count servers, with a real kube-apiserver: published, counted, deleted and collected, by ours and
//! by the reference.

use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::Value;

use super::metric_families::assert_serves;
use crate::environment::{Cluster, Process, TestEnvironment, eventually, free_port, peer, plain_get};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/konnectivity-leases/leases";
const KNOWN_SERVERS: &str = "konnectivity_network_proxy_agent_known_server_count";

/// Servers and agents of one cluster.
struct LeaseFixture<'e> {
    cluster: &'e Cluster,
    directory: PathBuf,
}

impl LeaseFixture<'_> {
    /// Starts `narthex konnectivity-…`, or the program of the reference.
    fn start(&self, name: &str, program: &str, is_own: bool, flags: &[String]) -> Process {
        let (path, command) = match is_own {
            true => (Path::new(env!("CARGO_BIN_EXE_narthex")).to_owned(), Some(program.to_owned())),
            false => (peer(program), None),
        };
        let leases = [
            "--lease-namespace=konnectivity-leases".to_owned(),
            format!("--kubeconfig={}", self.cluster.admin_kubeconfig.display()),
        ];
        let arguments: Vec<String> = command.into_iter().chain(flags.iter().cloned()).chain(leases).collect();
        Process::start(name, &path, arguments, &self.directory)
    }

    /// A server with a Lease. Returns it with its ports for agents and for metrics.
    fn server(&self, id: &str, is_own: bool) -> (Process, u16, u16) {
        let authorities = &self.cluster.authorities;
        let serving = authorities.serving.server(&format!("konnectivity-{id}"), &["127.0.0.1"]);
        let (agents, health, admin) = (free_port(), free_port(), free_port());
        let socket = tempfile::Builder::new().prefix("leases-").tempdir().unwrap().keep().join("front.sock");
        let flags = [
            "--mode=grpc".to_owned(),
            format!("--uds-name={}", socket.display()),
            "--server-port=0".to_owned(),
            format!("--cluster-cert={}", serving.certificate.display()),
            format!("--cluster-key={}", serving.key.display()),
            format!("--cluster-ca-cert={}", authorities.client.file.display()),
            format!("--agent-port={agents}"),
            format!("--health-port={health}"),
            format!("--admin-port={admin}"),
            format!("--server-id={id}"),
            "--server-count=2".to_owned(),
            "--enable-lease-controller".to_owned(),
        ];
        (self.start(&format!("server-{id}"), "konnectivity-server", is_own, &flags), agents, health)
    }

    /// An agent that counts Leases, by `--server-count-source`. Returns it with its port for health and metrics.
    fn agent(&self, name: &str, is_own: bool, server: u16, count_source: &str) -> (Process, u16) {
        let identity = self.cluster.authorities.client.client(name, name, &[], None);
        let health = free_port();
        let flags = [
            format!("--ca-cert={}", self.cluster.authorities.serving.file.display()),
            format!("--agent-cert={}", identity.certificate.display()),
            format!("--agent-key={}", identity.key.display()),
            "--proxy-server-host=127.0.0.1".to_owned(),
            format!("--proxy-server-port={server}"),
            "--health-server-host=127.0.0.1".to_owned(),
            format!("--health-server-port={health}"),
            format!("--admin-server-port={}", free_port()),
            format!("--agent-id={name}"),
            "--count-server-leases".to_owned(),
            format!("--server-count-source={count_source}"),
        ];
        (self.start(name, "konnectivity-agent", is_own, &flags), health)
    }

    fn leases(&self) -> Result<Vec<Value>, String> {
        let response = self.cluster.endpoint.get(Some(self.cluster.admin()), LEASES)?;
        Ok(response.json()["items"].as_array().cloned().unwrap_or_default())
    }

    /// `resourceVersion` of a server's Lease.
    fn version(&self, holder: &str) -> Result<Value, String> {
        let leases = self.leases()?;
        let lease = leases.iter().find(|lease| lease["spec"]["holderIdentity"] == holder).ok_or("no Lease")?;
        Ok(lease["metadata"]["resourceVersion"].clone())
    }

    fn wait_for_renewal(&self, holder: &str) {
        let before = self.version(holder).unwrap();
        eventually("a renewal", || if self.version(holder)? == before { Err("none".into()) } else { Ok(()) });
    }

    fn wait_for_leases(&self, expected: &[&str]) {
        eventually(&format!("Leases of {expected:?}"), || {
            let leases = self.leases()?;
            let mut holders: Vec<&str> =
                leases.iter().map(|lease| lease["spec"]["holderIdentity"].as_str().unwrap_or_default()).collect();
            holders.sort_unstable();
            if holders == expected { Ok(()) } else { Err(format!("{holders:?}")) }
        });
    }
}

fn wait_for_count(agents: &[(&str, u16)], expected: u64) {
    for (name, health) in agents {
        eventually(&format!("{name} to count {expected} servers"), || {
            let text = plain_get(*health, "/metrics")?;
            let line = text.lines().find(|line| line.starts_with(KNOWN_SERVERS)).unwrap_or_default();
            if line == format!("{KNOWN_SERVERS} {expected}") { Ok(()) } else { Err(line.to_owned()) }
        });
    }
}

pub(super) fn leases_are_published_counted_and_collected(environment: &TestEnvironment) {
    let fixture = LeaseFixture { cluster: &environment.cluster, directory: environment.scratch("konnectivity-leases") };
    fixture.cluster.create_namespace("konnectivity-leases");
    let (mut one, port, _) = fixture.server("one", true);
    let (two, _, _) = fixture.server("two", true);
    let (three, _, three_health) = fixture.server("three", false);
    fixture.wait_for_leases(&["one", "three", "two"]);
    // Ours is as the reference's, but for its holder and times.
    let shape = |holder: &str| {
        let leases = fixture.leases().unwrap();
        let mut lease = leases.into_iter().find(|lease| lease["spec"]["holderIdentity"] == holder).unwrap();
        let name = lease["metadata"]["name"].as_str().unwrap().replace(holder, "ID");
        let fields: Vec<String> = lease["spec"].as_object_mut().unwrap().keys().cloned().collect();
        (name, lease["metadata"]["labels"].clone(), lease["spec"]["leaseDurationSeconds"].clone(), fields)
    };
    let (ours, theirs) = (shape("one"), shape("three"));
    assert_eq!((&ours.0, &ours.1, &ours.2), (&theirs.0, &theirs.1, &theirs.2));
    assert!(theirs.3.iter().all(|field| ours.3.contains(field)), "{ours:?} {theirs:?}");

    let (_own, own_health) = fixture.agent("agent-own", true, port, "default");
    let (_reference, reference_health) = fixture.agent("agent-reference", false, port, "default");
    let (_own_max, own_max_health) = fixture.agent("agent-own-max", true, port, "max");
    let (_reference_max, reference_max_health) = fixture.agent("agent-reference-max", false, port, "max");
    let agents = [("our agent", own_health), ("the reference's agent", reference_health)];
    // Each server says that there are two.
    let agents_max = [("our agent, max", own_max_health), ("the reference's agent, max", reference_max_health)];
    wait_for_count(&agents, 3);
    wait_for_count(&agents_max, 3);

    let metrics = |port: u16| plain_get(port, "/metrics").unwrap();
    assert_serves("agent", &metrics(own_health), &metrics(reference_health));

    // The Lease of a successor of the same id is not deleted by its predecessor.
    let (successor, _, successor_health) = fixture.server("one", true);
    eventually("the Lease of the successor", || {
        let text = plain_get(successor_health, "/metrics")?;
        text.contains("_server_lease_list_total").then_some(()).ok_or(text)
    });
    // By each of the two, in any order.
    (0..2).for_each(|_| fixture.wait_for_renewal("one"));
    one.signal(Signal::TERM);
    one.wait();
    assert!(fixture.version("one").is_ok(), "{:?}", fixture.leases());
    assert!(one.log().contains("another server of this id has acquired it"), "{}", one.log());
    let mut one = successor;

    // An orderly end deletes the Lease; without one it is collected by the others.
    one.signal(Signal::TERM);
    one.wait();
    assert!(fixture.version("one").is_err(), "{:?}", fixture.leases());
    fixture.wait_for_leases(&["three", "two"]);
    wait_for_count(&agents[..1], 2);
    two.signal(Signal::KILL);
    drop(two);
    fixture.wait_for_leases(&["three"]);
    let (four, _, four_health) = fixture.server("four", true);
    fixture.wait_for_leases(&["four", "three"]);
    // Each of the two has tried to delete the Lease of the server that was killed, or has listed it.
    let reference = metrics(three_health);
    drop(three);
    // Only ours is left to collect it.
    fixture.wait_for_leases(&["four"]);
    wait_for_count(&agents[..1], 1);
    wait_for_count(&agents_max, 2);
    assert!(four.log().contains("the Lease of a server that no longer renews it was deleted"), "{}", four.log());
    // It has lists and a deletion.
    let own = metrics(four_health);
    for name in ["lease_list_total", "lease_delete_total", "culled_leases_count 1"] {
        assert!(own.contains(&format!("konnectivity_network_proxy_server_{name}")), "{name}\n{own}");
    }
    assert!(reference.contains("_lease_list_total"), "{reference}");
    let leases = |text: &str| -> String {
        let lines = text.lines().filter(|line| line.contains("_server_lease_"));
        lines.map(|line| format!("{line}\n")).collect()
    };
    assert_serves("server", &own, &leases(&reference));
}
