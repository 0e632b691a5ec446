//! Starts a gateway from its files: generate missing certificates, listen, spawn the threads.

mod access;
mod backend_files;
mod certificates;
mod control_plane;
mod controller_election;
mod embedded_api;
mod files;
mod findings;
mod generated_api;
mod health;
mod instance;
mod routing;
mod workers;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

pub(in crate::commands) use self::backend_files::ReadPurpose;
pub use self::files::GatewayFiles;
pub(in crate::commands) use self::files::prepare;

use self::certificates::Certificates;
use self::control_plane::ControlPlaneBuilder;
use self::instance::{Instance, InstanceInputs};
use self::workers::Listeners;
use super::control::ControlTasks;
use super::control_planes::{ControlPlanesThread, StartControlPlane};
use super::gateway_handle::{GatewayHandle, ShutdownHandles};
use super::object_store::open_file_store;
use super::request_observers::RequestObservers;
use super::settings::EgressSettings;
use super::state::GatewayState;
use super::status;
use crate::admin::{self, AdminSocket, AdminTokenConfig};
use crate::commands::threads::TaskThreads;
use crate::config::GatewayConfig;
use crate::egress::{EgressConfigFile, EgressRoutes};
use crate::observe::access::AccessLog;
use crate::observe::log::LogLevel;
use crate::observe::metrics::Metrics;
use crate::process::{Drain, Problem, Problems, Published};
use crate::tls::KeyType;

/// Starts the gateway with the files read; generated keys are of `key_type`. Once this has returned, clients can
/// connect.
///
/// # Errors
/// Failures after the files are read, for example a port in use or certificates that cannot be generated.
pub fn start(
    config: &GatewayConfig,
    mut files: GatewayFiles,
    key_type: KeyType,
    log_level: LogLevel,
) -> Result<GatewayHandle, Problems> {
    let (drainer, drain) = Drain::new();
    let (metrics, mut tasks) = (Metrics::new(), ControlTasks::default());
    // Bind first, then lock: these are the likely failures, and a process that cannot start writes no file. Another one
    // may use the same.
    let listeners = Listeners::bind(config)?;
    let address = listeners.address;
    let admin_socket = config.observability.admin_address.map(AdminSocket::bind).transpose()?;
    let store = open_file_store(config)?;
    let identity = files.instance.backends.identity.take();
    let certificates =
        Certificates::load(config, address, &mut files.instance.serving, identity, key_type, &mut tasks)?;
    let access_log = Arc::new(AccessLog::to_standard_error(&metrics)?);
    let (egress_files, admin_token, control_planes) = (files.egress, files.admin_token, files.control_planes);
    let egress = publish_egress(config, egress_files, &metrics, &mut tasks);
    let RequestObservers { auditor, tracer, shutdown: observers } =
        RequestObservers::start(files.audit, files.tracing.as_ref(), &egress, &metrics, &mut tasks)?;
    let (kubeconfig, write_kubeconfig) = (certificates.kubeconfig.clone(), certificates.kubeconfig_writer());
    let of_control_planes = certificates.for_control_plane(config, None, &mut tasks);
    let inputs = InstanceInputs {
        files: files.instance,
        certificates,
        shared_trust: None,
        auditor: auditor.clone(),
        tracer: tracer.clone(),
        access_log: access_log.clone(),
        egress: egress.clone(),
        address,
        path_prefix: None,
        store,
        tasks,
        threads: TaskThreads::Own,
        drain: drain.clone(),
    };
    let Instance { shared, routing, file_errors, health, store } = Instance::start(config, inputs)?;
    let control_planes = control_planes.map(|configs| {
        let builder = ControlPlaneBuilder {
            certificates: of_control_planes,
            serving: shared.serving.clone(),
            auditor,
            tracer,
            access_log: access_log.clone(),
            egress: egress.clone(),
            address,
            threads: Arc::default(),
        };
        let start: StartControlPlane =
            Arc::new(move |config, name, number, drain| builder.start(config, name, number, drain));
        ControlPlanesThread::start(config, configs, start, file_errors.reporter("control-planes"), drain)
    });
    let control_planes = control_planes.transpose()?;
    let (store, store_thread) = store.unzip();
    let mut workers =
        listeners.serve(config, (&shared, control_planes.clone()), &access_log, &egress, health.clone())?;
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
        control_planes,
    };
    // Before the admin listener says that the gateway is ready.
    write_kubeconfig()?;
    let admin = start_admin(admin_socket, &shared, inputs, admin_token)?;
    log_addresses(config, address, admin.as_ref().map(|admin| admin.local_addr), kubeconfig.as_deref());
    let lease_release = routing.lease_release;
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

/// Starts the admin listener, if it is configured.
fn start_admin(
    socket: Option<AdminSocket>,
    shared: &Arc<GatewayState>,
    inputs: status::StatusInputs,
    token: Option<(admin::AdminTokenFile, admin::AdminToken)>,
) -> Result<Option<admin::AdminListener>, Problem> {
    let Some(socket) = socket else { return Ok(None) };
    let token = token.map(|(file, token)| {
        AdminTokenConfig::new(file, token, inputs.file_errors.reporter("admin-token"), shared.drain.clone())
    });
    admin::spawn(socket, status::admin_state(shared, inputs, token)).map(Some)
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
        match embedded.store.file() {
            Some(file) => tracing::info!(file = %file.display(), "objects are stored"),
            None => tracing::info!("objects are stored in etcd"),
        }
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
