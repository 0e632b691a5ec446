//! The files about backends: the front-proxy certificate, the registry, the delegate, the upstreams, the cluster.

use crate::config::GatewayConfig;
use crate::delegation_server;
use crate::process::{Problem, Problems, Published};
use crate::registry::{
    ApiService, ClusterSource, Delegate, Registry, RegistryDirectory, SidecarUpstreams, UpstreamFiles,
};
use crate::tls::{Bundle, ClientIdentity, KeyPair};

/// The purpose of reading the files.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::commands) enum ReadPurpose {
    /// To start the gateway.
    Start,
    /// To find errors only.
    Check,
}

/// Files about backends.
pub(super) struct BackendFiles {
    pub(super) identity: Option<(ClientIdentity, Published<KeyPair>)>,
    pub(super) registry: Option<(RegistryDirectory, Registry)>,
    pub(super) delegate: Option<(Delegate, ApiService)>,
    /// The upstreams of a sidecar.
    pub(super) upstreams: Option<(UpstreamFiles, SidecarUpstreams)>,
    /// The kube-apiserver with the watched registry.
    pub(super) cluster: Option<ClusterSource>,
}

impl BackendFiles {
    /// Reads the files that `config` names; their errors are added to `problems`.
    pub(super) fn read(purpose: ReadPurpose, config: &GatewayConfig, problems: &mut Problems) -> BackendFiles {
        let backends = &config.backends;
        let identity = problems.collect(backends.proxy_client.clone().map(ClientIdentity::load).transpose()).flatten();
        if let Some((_, identity)) = &identity {
            problems.collect(check_front_proxy_trust(config, &identity.get()));
        }
        let registry = match purpose {
            ReadPurpose::Start => {
                problems.collect(backends.registry.clone().map(RegistryDirectory::open).transpose()).flatten()
            }
            ReadPurpose::Check => backends.registry.clone().map(|settings| {
                let (directory, registry, invalid) = RegistryDirectory::check(settings);
                problems.0.extend(invalid.0);
                (directory, registry)
            }),
        };
        let delegate = problems.collect(backends.delegate.clone().map(Delegate::open).transpose()).flatten();
        let upstreams = Some(backends.upstreams.clone()).filter(|upstreams| !upstreams.is_empty());
        let upstreams = problems.collect(upstreams.map(UpstreamFiles::open).transpose()).flatten();
        let cluster = backends.cluster.clone().map(|cluster| ClusterSource::open(cluster.source, cluster.settings));
        let cluster = problems.collect(cluster.transpose()).flatten();
        BackendFiles { identity, registry, delegate, upstreams, cluster }
    }
}

/// With `--serve-delegation` backends get the front-proxy CAs from the gateway; they must include the CA of its own
/// front-proxy certificate. If the CAs come from a cluster, this is checked when they are known.
fn check_front_proxy_trust(config: &GatewayConfig, identity: &KeyPair) -> Result<(), Problem> {
    if !config.serve_delegation || config.delegated_auth.lookup_auth_configmap {
        return Ok(());
    }
    let authorities = match config.serving.tls.request_header_ca.as_deref() {
        None => None,
        // Errors in the file are reported where the gateway reads it for its own use.
        Some(path) => match std::fs::read(path).map(|pem| Bundle::from_pem(&pem, path.display())) {
            Ok(Ok(bundle)) => Some(bundle),
            Ok(Err(_)) | Err(_) => return Ok(()),
        },
    };
    delegation_server::who_vouches(authorities, identity).map(|_| ())
}
