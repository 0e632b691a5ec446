//! Starts a gateway from its files: generate missing certificates, listen, spawn the threads.

mod access;
mod backend_files;
mod certificates;
mod embedded_api;
mod files;
mod findings;
mod generated_api;
mod health;
mod routing;
mod workers;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

pub(in crate::commands) use self::backend_files::ReadPurpose;
pub use self::files::GatewayFiles;
pub(in crate::commands) use self::files::prepare;

use self::access::access_control;
use self::certificates::{Certificates, publish_serving};
use self::embedded_api::{embedded_registry, start_embedded_api, wait_for_routes};
use self::generated_api::generated_api;
use self::health::{health_endpoints, readiness_checks};
use self::routing::{RegistryObjects, Routing};
use self::workers::Listeners;
use super::control::{ControlTasks, ControlThread};
use super::gateway_handle::{GatewayHandle, ShutdownHandles};
use super::handshake_log::HandshakeLog;
use super::request_observers::RequestObservers;
use super::request_policy::RequestPolicy;
use super::review_thread::DelegatedAuth;
use super::settings::EgressSettings;
use super::state::{DelegateScope, Documents, GatewayState, InflightPools, RelaySettings};
use super::status;
use crate::admin::{self, AdminTokenConfig};
use crate::commands::threads::spawn_thread;
use crate::config::GatewayConfig;
use crate::discovery::{DiskCache, LocalGroups};
use crate::egress::{EgressConfigFile, EgressRoutes};
use crate::observe::access::AccessLog;
use crate::observe::log::LogLevel;
use crate::observe::metrics::Metrics;
use crate::process::{Drain, Problem, Problems, Published};
use crate::resources::catalog::ResourceCatalog;
use crate::tls::ManagedCertificate;
use crate::tls::server::ServingReaders;

/// Options for commands that embed a gateway.
#[derive(Default)]
pub struct StartOptions {
    /// Further generated certificates to maintain.
    pub certificates: Vec<ManagedCertificate>,
}

/// Starts the gateway with the files read. Once this has returned, clients can connect.
///
/// # Errors
/// Failures after the files are read, for example a port in use or certificates that cannot be generated.
pub fn start(
    config: &GatewayConfig,
    mut files: GatewayFiles,
    options: StartOptions,
    log_level: LogLevel,
) -> Result<GatewayHandle, Problems> {
    let (drainer, drain) = Drain::new();
    let (metrics, mut tasks) = (Metrics::new(), ControlTasks::default());
    // Bind first: the kubeconfig contains the port, and a port in use is the most likely failure.
    let listeners = Listeners::bind(config)?;
    let address = listeners.address;
    let identity = files.backends.identity.take();
    let mut certificates = Certificates::load(config, address, &mut files.serving, identity, options, &mut tasks)?;
    let access_log = Arc::new(AccessLog::to_standard_error(&metrics)?);
    let egress = publish_egress(config, files.egress, &metrics, &mut tasks);
    let observers = RequestObservers::start(files.audit, files.tracing.as_ref(), &egress, &metrics, &mut tasks)?;
    let (authorization, chain_watcher) = files.authorization.publish(config, &metrics, &mut tasks)?;
    let signing_request = certificates.request.take();
    let mut delegated =
        DelegatedAuth::start(files.kubeconfigs, signing_request, chain_watcher, config, &egress, &metrics, &drain)?;
    let serving = publish_serving(files.serving, delegated.cluster_trust.take(), &mut tasks)?;
    let request_policy = RequestPolicy::new(config, authorization.rules.clone());
    let access = access_control(
        config,
        files.authentication,
        files.request_headers,
        &serving.trust,
        &delegated,
        authorization,
        (observers.auditor, &metrics, &mut tasks),
    )?;
    let embedded = start_embedded_api(config, address, &egress, &drain)?;
    let serves_delegation = config.serve_delegation && certificates.identity.is_some();
    let api = match &embedded {
        Some(embedded) => embedded.api.clone(),
        None => generated_api(config, serves_delegation, &drain),
    };
    if serves_delegation {
        certificates.publish_auth_config_map(config, &serving.trust, &api, &mut tasks)?;
    }
    let objects = match embedded_registry(config, &api) {
        Some(registry) => RegistryObjects::Stored(registry),
        None => RegistryObjects::Generated(api.publisher("apiregistration.k8s.io", "v1", "apiservices")),
    };
    let routing =
        Routing::start(config, files.backends, &egress, &serving.trust, objects, (&metrics, &drain), &mut tasks)?;
    let file_errors = tasks.file_errors().clone();
    let delegate = DelegateScope::new(config);
    let catalog = embedded.as_ref().map(|embedded| embedded.api.catalog().clone());
    let documents = start_control(config, (tasks, catalog), &certificates, &serving, &routing, &egress, &drain)?;
    let store_check = embedded.as_ref().map(|embedded| embedded.check.clone());
    let readiness_checks = readiness_checks(config, &routing, &delegated, &metrics);
    let documents_of = (&routing.table, &documents.discovery);
    let health = health_endpoints(&drain, &access_log, documents_of, store_check, &readiness_checks);
    if embedded.is_some() {
        wait_for_routes(routing.table.clone())?;
    }
    let (store, store_thread) = embedded.map(|one| (one.store, one.thread)).unzip();
    let shared = Arc::new(GatewayState {
        serving,
        handshake_log: HandshakeLog::default(),
        access,
        tracer: observers.tracer,
        table: routing.table,
        documents,
        identity: certificates.identity,
        serves_delegation,
        api,
        delegate,
        health: if config.sidecar.serves_health { health.clone() } else { Vec::new() },
        relay: RelaySettings::new(config),
        policy: request_policy,
        inflight: InflightPools::new(config),
        metrics,
        drain,
    });
    let mut workers = listeners.serve(config, &shared, &access_log, &egress, health.clone())?;
    workers.threads.extend(store_thread);
    let inputs = status::StatusInputs {
        warnings: routing.warnings,
        address,
        registry: routing.registry,
        cluster: routing.cluster,
        file_errors,
        availability: routing.availability,
        upstream_readiness: routing.upstream_readiness,
        egress_routes: egress.routes,
        connections: workers.connections,
        log_level,
        access_log: access_log.clone(),
        health,
    };
    let admin = start_admin(config, &shared, inputs, files.admin_token)?;
    log_addresses(config, address, admin.as_ref().map(|admin| admin.local_addr), certificates.kubeconfig.as_deref());
    let (lease_release, observers) = (routing.lease_release, observers.shutdown);
    let shutdown_handles = ShutdownHandles { access: access_log, observers, lease_release, store };
    Ok(GatewayHandle::new(address, admin, drainer, config, workers.threads, shared, shutdown_handles))
}

/// Publishes the egress routes to backends and API servers.
fn publish_egress(
    config: &GatewayConfig,
    (file, routes): (Option<EgressConfigFile>, EgressRoutes),
    metrics: &Arc<Metrics>,
    tasks: &mut ControlTasks,
) -> EgressSettings {
    let routes = match file {
        Some(file) => tasks.follow("egress", (file, routes)),
        None => Published::fixed(routes),
    };
    EgressSettings { resolver: config.backends.resolver, routes, metrics: metrics.clone() }
}

/// Starts the control thread, which creates the discovery and OpenAPI documents.
fn start_control(
    config: &GatewayConfig,
    (tasks, catalog): (ControlTasks, Option<Published<ResourceCatalog>>),
    certificates: &Certificates,
    serving: &ServingReaders,
    routing: &Routing,
    egress: &EgressSettings,
    drain: &Drain,
) -> Result<Documents, Problem> {
    let delegate = DelegateScope::new(config);
    let control = ControlThread {
        tasks,
        identity: certificates.identity.clone(),
        registry: routing.registry.clone(),
        table: routing.table.clone(),
        availability: routing.availability.clone(),
        resolve_rules: config.backends.resolve_rules,
        egress: egress.clone(),
        certificates_in_use: serving.in_use.clone(),
        local_groups: LocalGroups {
            delegation: config.serve_delegation && certificates.identity.is_some(),
            delegate: delegate.all,
            embedded: catalog.as_ref().map(Published::get),
            apiregistration_from_delegate: delegate.apiservices && delegate.all,
        },
        catalog,
        delegates_all: delegate.all,
        disk_cache: match config.is_sidecar() {
            true => DiskCache::disabled(),
            false => DiskCache::in_directory(&config.data_dir.join("last-good")),
        },
        metrics: egress.metrics.clone(),
        drain: drain.clone(),
    };
    let (documents_sender, documents) = std::sync::mpsc::channel();
    spawn_thread("control", move || control.run(documents_sender))?;
    documents.recv().map_err(|_| Problem::new("control", "the control thread ended early"))
}

/// Starts the admin listener, if it is configured.
fn start_admin(
    config: &GatewayConfig,
    shared: &Arc<GatewayState>,
    inputs: status::StatusInputs,
    token: Option<(admin::AdminTokenFile, admin::AdminToken)>,
) -> Result<Option<admin::AdminListener>, Problem> {
    let Some(address) = config.observability.admin_address else { return Ok(None) };
    let token = token.map(|(file, token)| {
        AdminTokenConfig::new(file, token, inputs.file_errors.reporter("admin-token"), shared.drain.clone())
    });
    admin::spawn(address, status::admin_state(shared, inputs, token)).map(Some)
}

fn log_addresses(config: &GatewayConfig, address: SocketAddr, admin: Option<SocketAddr>, kubeconfig: Option<&Path>) {
    tracing::info!(%address, "serving");
    if let Some(address) = admin {
        tracing::info!(%address, "admin listener");
    }
    if let Some(path) = kubeconfig {
        tracing::info!(path = %path.display(), "administrator kubeconfig");
    }
    if let Some(embedded) = &config.embedded_api {
        tracing::info!(file = %embedded.store_file.display(), "objects are stored");
        if let Some(path) = kubeconfig {
            let path = path.display();
            tracing::info!("try: kubectl --kubeconfig {path} create configmap hello --from-literal=a=b");
        }
    } else if config.backends.registry.is_none() && config.backends.cluster.is_none() && !config.is_sidecar() {
        tracing::info!(
            "no registry configured, so there are no backends; set --registry-dir, or --kubeconfig for a kube-apiserver"
        );
    }
}
