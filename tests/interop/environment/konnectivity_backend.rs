//! An extension API server that narthex reaches only through a Konnectivity agent.

use std::path::{Path, PathBuf};

use super::cluster::Cluster;
use super::konnectivity::{KonnectivityPair, Tokens};
use super::{Extension, Gateway, Konnectivity, KonnectivityMode, Network, Process, free_port};

/// A gateway, a Konnectivity server, and an agent with an extension server in a network namespace. Where network
/// namespaces are not permitted, the agent and the extension server run on loopback.
pub(crate) struct KonnectivityBackend {
    // Dropped in this order: gateways before their backends.
    pub(crate) gateway: Gateway,
    pub(crate) konnectivity: Konnectivity,
    pub(crate) _extension: ExtensionProcess,
    pub(crate) network: Option<Network>,
    /// The extension server's port on its own loopback.
    pub(crate) port: u16,
}

/// The extension server's process, killed on drop.
pub(crate) enum ExtensionProcess {
    InNetwork(#[expect(dead_code, reason = "killed on drop")] Process),
    OnHost(#[expect(dead_code, reason = "killed on drop")] Box<Extension>),
}

impl KonnectivityBackend {
    pub(crate) fn start(
        cluster: &Cluster,
        directory: &Path,
        name: &str,
        mode: KonnectivityMode,
    ) -> KonnectivityBackend {
        KonnectivityBackend::start_with(cluster, directory, name, mode, None)
    }

    /// Like [`KonnectivityBackend::start`], with agents authenticated by tokens if `tokens` is given.
    pub(crate) fn start_with(
        cluster: &Cluster,
        directory: &Path,
        name: &str,
        mode: KonnectivityMode,
        tokens: Option<Tokens>,
    ) -> KonnectivityBackend {
        let network = Network::make();
        let mut konnectivity = Konnectivity::start_with(directory, mode, KonnectivityPair::REFERENCE, tokens);
        konnectivity.start_agent("agent-a", network.as_ref());
        let port = free_port();
        let extension = match &network {
            Some(network) => {
                ExtensionProcess::InNetwork(Extension::start_in_network(network, cluster, directory, name, port))
            }
            None => {
                println!("network namespaces are not permitted: the agent and its targets are on loopback");
                let kubeconfig = &cluster.admin_kubeconfig;
                ExtensionProcess::OnHost(Box::new(Extension::start_with(
                    cluster,
                    kubeconfig,
                    directory,
                    name,
                    port,
                    &[],
                )))
            }
        };
        let configuration = write_egress_configuration(&konnectivity, directory);
        let flags = [("--egress-selector-config-file", configuration.to_str().unwrap())];
        let narthex = format!("{name}-narthex");
        let gateway = Gateway::start_unready(cluster, (name, port), directory, &narthex, &flags);
        gateway.wait_until_available("True");
        let konnectivity_backend = KonnectivityBackend { gateway, konnectivity, _extension: extension, network, port };
        konnectivity_backend.wait_until_caches_are_filled(cluster);
        konnectivity_backend
    }

    /// The server reports ready before the RBAC and admission caches are filled; a successful list needs both.
    fn wait_until_caches_are_filled(&self, cluster: &Cluster) {
        super::eventually("flunders through the tunnel", || {
            let response =
                self.gateway.endpoint.get(Some(cluster.admin()), "/apis/wardle.example.com/v1alpha1/flunders")?;
            if response.status == 200 { Ok(()) } else { Err(response.text()) }
        });
    }
}

/// Writes the egress configuration for the server's mode: an EgressSelectorConfiguration where kube-apiserver
/// supports the mode, else narthex's EgressConfiguration.
pub(crate) fn write_egress_configuration(konnectivity: &Konnectivity, directory: &Path) -> PathBuf {
    let socket = konnectivity.socket.display();
    let tls = format!(
        "tcp: {{url: 'https://127.0.0.1:{}', tlsConfig: {{caBundle: {}, clientCert: {}, clientKey: {}}}}}",
        konnectivity.port,
        konnectivity.frontend_authority.display(),
        konnectivity.client.certificate.display(),
        konnectivity.client.key.display(),
    );
    let upstream = "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration";
    let (kind, protocol, transport) = match konnectivity.mode {
        KonnectivityMode::GrpcUnix => (upstream, "GRPC", format!("uds: {{udsName: {socket}}}")),
        KonnectivityMode::ConnectUnix => (upstream, "HTTPConnect", format!("uds: {{udsName: {socket}}}")),
        KonnectivityMode::ConnectTls => (upstream, "HTTPConnect", tls),
        KonnectivityMode::GrpcTls => ("apiVersion: narthex.dev/v1alpha1\nkind: EgressConfiguration", "GRPC", tls),
    };
    let file = directory.join("egress.yaml");
    let text = format!(
        "{kind}\negressSelections:\n- name: cluster\n  connection:\n    proxyProtocol: {protocol}\n    transport:\n      \
         {transport}\n"
    );
    std::fs::write(&file, text).unwrap();
    file
}
