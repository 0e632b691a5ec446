//! An extension API server that narthex reaches only through a Konnectivity agent.

use std::path::{Path, PathBuf};

use super::cluster::Cluster;
use super::konnectivity::Tokens;
use super::{Extension, Front, Gateway, Konnectivity, Network, Process, free_port};

/// The Konnectivity server out here, the agent and the extension server in a network of their own, and narthex before
/// all of it. Where no network can be made, they are out here as well.
pub(crate) struct Behind {
    // Dropped in this order: what stands in front ends first.
    pub(crate) gateway: Gateway,
    pub(crate) konnectivity: Konnectivity,
    pub(crate) _extension: Outside,
    pub(crate) network: Option<Network>,
    /// Where the extension server listens, on its own loopback.
    pub(crate) port: u16,
}

/// Held to be ended.
pub(crate) enum Outside {
    Inside(#[expect(dead_code, reason = "ended with its guard")] Process),
    Here(#[expect(dead_code, reason = "ended with its guard")] Box<Extension>),
}

impl Behind {
    pub(crate) fn start(cluster: &Cluster, directory: &Path, name: &str, front: Front) -> Behind {
        Behind::start_with(cluster, directory, name, front, None)
    }

    /// As [`BackendsConfig::start`], with agents that are known by their tokens.
    pub(crate) fn start_with(
        cluster: &Cluster,
        directory: &Path,
        name: &str,
        front: Front,
        tokens: Option<Tokens>,
    ) -> Behind {
        let network = Network::make();
        let mut konnectivity = Konnectivity::start_with(directory, front, tokens);
        konnectivity.start_agent("agent-a", network.as_ref());
        let port = free_port();
        let extension = match &network {
            Some(network) => Outside::Inside(Extension::start_inside(network, cluster, directory, name, port)),
            None => {
                println!("no network of its own is permitted here: the agent and what is behind it are on loopback");
                let kubeconfig = &cluster.admin_kubeconfig;
                Outside::Here(Box::new(Extension::start_with(cluster, kubeconfig, directory, name, port, &[])))
            }
        };
        let configuration = configuration(&konnectivity, directory);
        let flags = [("--egress-selector-config-file", configuration.to_str().unwrap())];
        let narthex = format!("{name}-narthex");
        let gateway = Gateway::begin(cluster, (name, port), directory, &narthex, &flags);
        gateway.wait_until_available("True");
        let behind = Behind { gateway, konnectivity, _extension: extension, network, port };
        behind.wait_until_caches_are_filled(cluster);
        behind
    }

    /// Ready does not mean that RBAC and admission have their caches: a request that passes both does.
    fn wait_until_caches_are_filled(&self, cluster: &Cluster) {
        super::eventually("flunders through the tunnel", || {
            let answer = self.gateway.door.get(Some(cluster.admin()), "/apis/wardle.example.com/v1alpha1/flunders")?;
            if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
        });
    }
}

/// What kube-apiserver would be given for this front; for the one it does not know, what only narthex is given.
pub(crate) fn configuration(konnectivity: &Konnectivity, directory: &Path) -> PathBuf {
    let socket = konnectivity.socket.display();
    let tls = format!(
        "tcp: {{url: 'https://127.0.0.1:{}', tlsConfig: {{caBundle: {}, clientCert: {}, clientKey: {}}}}}",
        konnectivity.port,
        konnectivity.front_authority.display(),
        konnectivity.client.certificate.display(),
        konnectivity.client.key.display(),
    );
    let upstream = "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration";
    let (kind, protocol, transport) = match konnectivity.front {
        Front::GrpcUnix => (upstream, "GRPC", format!("uds: {{udsName: {socket}}}")),
        Front::ConnectUnix => (upstream, "HTTPConnect", format!("uds: {{udsName: {socket}}}")),
        Front::ConnectTls => (upstream, "HTTPConnect", tls),
        Front::GrpcTls => ("apiVersion: narthex.dev/v1alpha1\nkind: EgressConfiguration", "GRPC", tls),
    };
    let file = directory.join("egress.yaml");
    let text = format!(
        "{kind}\negressSelections:\n- name: cluster\n  connection:\n    proxyProtocol: {protocol}\n    transport:\n      \
         {transport}\n"
    );
    std::fs::write(&file, text).unwrap();
    file
}
