//! The certificates of the gateway: missing ones are generated or requested.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use futures_util::FutureExt as _;

use super::access::group_filter;
use crate::commands::gateway::control::ControlTasks;
use crate::config::GatewayConfig;
use crate::delegation_server::{self, AuthConfigMapSource};
use crate::kubeclient::certificate_request::SigningRequest;
use crate::process::{Problem, Problems, Published};
use crate::rest::ApiServer;
use crate::tls::server::{ClientTrust, ClusterTrust, ServingFiles, ServingReaders};
use crate::tls::{
    CertificateKind, ClientIdentity, GeneratedCertificates, KeyPair, KeyType, ManagedCertificate, PairFiles,
    RequestedCertificate, serving_names,
};

/// Certificates besides those of serving.
pub(super) struct Certificates {
    /// The front-proxy client certificate.
    pub(super) identity: Option<Published<KeyPair>>,
    /// The serving certificate to request from a cluster.
    pub(super) request: Option<SigningRequest>,
    /// The CA of the front-proxy certificate, if that is generated.
    front_proxy_ca: Option<PathBuf>,
    /// The administrator's kubeconfig, if it is generated.
    pub(super) kubeconfig: Option<PathBuf>,
    /// The authority of the serving certificate, if that is generated.
    pub(super) serving_ca: Option<PathBuf>,
    /// The generated certificates; none for a control plane.
    generated: Option<Arc<GeneratedCertificates>>,
}

impl Certificates {
    /// Generates missing certificates for `address`, loads all, and adds generated ones to those of `serving`.
    ///
    /// # Errors
    /// Certificates that cannot be generated or loaded.
    pub(super) fn load(
        config: &GatewayConfig,
        address: SocketAddr,
        serving: &mut ServingFiles,
        identity: Option<(ClientIdentity, Published<KeyPair>)>,
        key_type: KeyType,
        tasks: &mut ControlTasks,
    ) -> Result<Certificates, Problems> {
        let defaults = default_certificates(config, address, key_type);
        let generated = Arc::new(defaults.generated);
        generated.ensure(SystemTime::now())?;
        let request = config.serving.certificate_request.as_ref().map(|request| {
            let pending = RequestedCertificate::new(generated.store().clone(), request.names.clone());
            pending.ensure_fallback().map(|()| SigningRequest { pending, signer: request.signer.clone() })
        });
        let request = request.transpose()?;
        let serving_authority = || generated.store().authority_files(CertificateKind::Serving).certificate;
        let serving_ca = defaults.serving.is_some().then(serving_authority);
        let pair = request.as_ref().map(|request| request.pending.files()).or(defaults.serving);
        serving.add_generated(pair, defaults.client_ca)?;
        let identity = match identity {
            None if !config.is_sidecar() => Some(ClientIdentity::load(generated.store().files("front-proxy"))?),
            configured => configured,
        };
        let identity = identity.map(|identity| follow_identity(identity, tasks));
        let front_proxy_ca = generated.store().authority_files(CertificateKind::RequestHeader).certificate;
        let front_proxy_ca = config.backends.proxy_client.is_none().then_some(front_proxy_ca);
        let renewed = generated.clone();
        tasks.add("generated-certificates", move |context| renewed.renew(context.drain));
        let (kubeconfig, generated) = (defaults.kubeconfig, Some(generated));
        Ok(Certificates { identity, request, front_proxy_ca, kubeconfig, serving_ca, generated })
    }

    /// The files to write once nothing can prevent the start any more.
    pub(super) fn kubeconfig_writer(&self) -> impl FnOnce() -> Result<(), Problem> + use<> {
        let generated = self.generated.clone();
        move || generated.map_or(Ok(()), |generated| generated.write_kubeconfig())
    }

    /// The certificates of a control plane: its own front-proxy certificate if it has one, else that of the gateway.
    pub(super) fn for_control_plane(
        &self,
        config: &GatewayConfig,
        own: Option<(ClientIdentity, Published<KeyPair>)>,
        tasks: &mut ControlTasks,
    ) -> Certificates {
        let (identity, front_proxy_ca) = match own {
            Some(own) => (Some(follow_identity(own, tasks)), None),
            // Each upstream has its own.
            None if config.is_sidecar() => (None, None),
            None => (self.identity.clone(), self.front_proxy_ca.clone()),
        };
        Certificates { identity, request: None, front_proxy_ca, kubeconfig: None, serving_ca: None, generated: None }
    }

    /// Publishes the ConfigMap by which backends verify the gateway and clients, with `--serve-delegation`.
    ///
    /// # Errors
    /// No backend could verify the gateway by it.
    pub(super) fn publish_auth_config_map(
        &self,
        config: &GatewayConfig,
        trust: &Published<ClientTrust>,
        api: &ApiServer,
        tasks: &mut ControlTasks,
    ) -> Result<(), Problem> {
        let Some(identity) = self.identity.clone() else { return Ok(()) };
        let source = AuthConfigMapSource {
            trust: trust.clone(),
            identity,
            own_ca_file: self.front_proxy_ca.clone(),
            includes_uid: config.forwarding.forward_uid,
            includes_client_ca: group_filter(config).is_empty(),
        };
        let object = source.build()?;
        let publisher = api.publisher("", "v1", "configmaps");
        let publisher = publisher.ok_or_else(|| Problem::new("--serve-delegation", "ConfigMaps are not served"))?;
        let publish = async move |object| {
            let (namespace, name) = (delegation_server::NAMESPACE, delegation_server::NAME);
            if let Err(error) = publisher.publish(namespace, name, Some(object)).await {
                tracing::error!(%error, "ConfigMap {namespace}/{name} is not shown to clients");
            }
        };
        // A store in memory has it at once: before the first request.
        publish(object.clone()).now_or_never();
        tasks.add("auth-configmap", move |context| source.run(object, publish, context.drain));
        Ok(())
    }
}

fn follow_identity(
    (files, identity): (ClientIdentity, Published<KeyPair>),
    tasks: &mut ControlTasks,
) -> Published<KeyPair> {
    let on_failure = tasks.file_errors().reporter("identity");
    tasks.add("identity", move |context| files.follow(on_failure, context.drain));
    identity
}

/// Publishes the serving certificates and the trusted CAs, with those that the cluster announces.
///
/// # Errors
/// Front-proxy CAs that are client CAs, too.
pub(super) fn publish_serving(
    mut serving: ServingFiles,
    cluster_trust: Option<Published<ClusterTrust>>,
    tasks: &mut ControlTasks,
) -> Result<ServingReaders, Problems> {
    if let Some(trust) = cluster_trust {
        serving.follow_cluster_trust(trust)?;
    }
    let (publishers, readers) = serving.publish()?;
    let on_failure = tasks.file_errors().reporter("serving");
    tasks.add("serving", move |context| serving.follow(publishers, on_failure, context.drain));
    Ok(readers)
}

/// The certificates that no flag names and that are generated.
struct DefaultCertificates {
    generated: GeneratedCertificates,
    serving: Option<PairFiles>,
    client_ca: Option<PathBuf>,
    kubeconfig: Option<PathBuf>,
}

fn default_certificates(config: &GatewayConfig, address: SocketAddr, key_type: KeyType) -> DefaultCertificates {
    let directory = config.serving.certificate_dir.clone().unwrap_or_else(|| config.data_dir.join("pki"));
    let named = &config.serving.tls;
    let own_serving = named.pair.is_none() && named.named.is_empty() && named.in_memory_names.is_empty();
    // If a cluster defines the client CAs, no client CA is generated.
    let own_clients = named.client_ca.is_none() && !config.delegated_auth.lookup_auth_configmap && !config.is_sidecar();
    let mut wanted = Vec::new();
    if own_serving {
        wanted.push(ManagedCertificate::serving(&serving_names(Some(address.ip()))));
    }
    if own_clients {
        wanted.push(ManagedCertificate::admin());
    }
    if config.backends.proxy_client.is_none() && !config.is_sidecar() {
        wanted.push(ManagedCertificate::front_proxy());
    }
    let mut made = GeneratedCertificates::new(directory, wanted).with_key_type(key_type);
    let store = made.store();
    let serving = own_serving.then(|| store.files("serving"));
    let client_ca = own_clients.then(|| store.authority_files(CertificateKind::Client).certificate);
    let mut kubeconfig = None;
    if own_serving && own_clients {
        let path = config.data_dir.join("admin.kubeconfig");
        made = made.with_kubeconfig(&path, format!("https://{}", reachable_address(address)));
        kubeconfig = Some(path);
    }
    DefaultCertificates { generated: made, serving, client_ca, kubeconfig }
}

/// The address at which users of this machine reach `address`: loopback for an unspecified one.
fn reachable_address(address: SocketAddr) -> SocketAddr {
    let mut address = address;
    if address.ip().is_unspecified() {
        address.set_ip(if address.is_ipv4() { [127, 0, 0, 1].into() } else { std::net::Ipv6Addr::LOCALHOST.into() });
    }
    address
}
