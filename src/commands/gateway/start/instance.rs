//! One gateway in the process: authentication, authorization, backends and documents, from its files to the state that
//! requests use. The process has one, or one more for each control plane.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::access::access_control;
use super::certificates::{Certificates, publish_serving};
use super::embedded_api::{embedded_registry, start_embedded_api, wait_for_routes};
use super::files::InstanceFiles;
use super::generated_api::generated_api;
use super::health::{health_endpoints, informer_check, readiness_checks, start_checks};
use super::routing::{RegistryObjects, Routing};
use crate::commands::gateway::control::{ControlTasks, ControlThread};
use crate::commands::gateway::handshake_log::HandshakeLog;
use crate::commands::gateway::object_store::ObjectStore;
use crate::commands::gateway::request_policy::RequestPolicy;
use crate::commands::gateway::review_thread::DelegatedAuth;
use crate::commands::gateway::settings::EgressSettings;
use crate::commands::gateway::state::{DelegateScope, Documents, GatewayState, InflightPools, ResponseSettings};
use crate::commands::threads::TaskThreads;
use crate::config::GatewayConfig;
use crate::discovery::{DiskCache, LocalGroups};
use crate::observe::Auditor;
use crate::observe::access::AccessLog;
use crate::observe::health::{HealthCheck, HealthChecks};
use crate::observe::trace::Tracer;
use crate::process::{Drain, FileErrors, Problem, Problems, Published};
use crate::resources::catalog::ResourceCatalog;
use crate::tls::server::{ClientTrust, ServingReaders};

/// What an instance gets from the process.
pub(super) struct InstanceInputs {
    pub(super) files: InstanceFiles,
    pub(super) certificates: Certificates,
    /// The CAs of clients, if they are those of the gateway and not of `files`.
    pub(super) shared_trust: Option<Published<ClientTrust>>,
    pub(super) auditor: Option<Arc<Auditor>>,
    pub(super) tracer: Option<Arc<Tracer>>,
    pub(super) access_log: Arc<AccessLog>,
    /// With the metrics of the instance.
    pub(super) egress: EgressSettings,
    /// The address of the client listener.
    pub(super) address: SocketAddr,
    /// The prefix that clients put before its paths.
    pub(super) path_prefix: Option<Arc<str>>,
    /// The store of the embedded API server, if it is open already.
    pub(super) store: Option<ObjectStore>,
    pub(super) tasks: ControlTasks,
    pub(super) threads: TaskThreads,
    pub(super) drain: Drain,
}

/// A running instance.
pub(super) struct Instance {
    pub(super) shared: Arc<GatewayState>,
    pub(super) routing: Routing,
    pub(super) file_errors: FileErrors,
    pub(super) health: Vec<HealthChecks>,
    /// The store of the embedded API server and its thread.
    pub(super) store: Option<(ObjectStore, JoinHandle<()>)>,
}

impl Instance {
    /// Starts an instance. Its tasks end with its [`Drain`], also if it could not be started.
    ///
    /// # Errors
    /// Failures after the files are read.
    pub(super) fn start(config: &GatewayConfig, inputs: InstanceInputs) -> Result<Instance, Problems> {
        let InstanceInputs { files, mut certificates, shared_trust, auditor, access_log, egress, .. } = inputs;
        let InstanceInputs { tracer, address, path_prefix, store, mut tasks, threads, drain, .. } = inputs;
        let metrics = egress.metrics.clone();
        let embedded = start_embedded_api(
            config,
            store,
            address,
            &egress,
            certificates.serving_ca.as_deref(),
            (&mut tasks, &drain),
        )?;
        let stored_policy = embedded.as_ref().map(|embedded| embedded.api.policy());
        let (authorization, chain_watcher) =
            files.authorization.publish(config, stored_policy, &metrics, &mut tasks)?;
        let signing_request = certificates.request.take();
        let mut delegated =
            DelegatedAuth::start(files.kubeconfigs, signing_request, chain_watcher, config, &egress, &threads, &drain)?;
        let mut serving = publish_serving(files.serving, delegated.cluster_trust.take(), &mut tasks)?;
        serving.trust = shared_trust.unwrap_or(serving.trust);
        let policy = RequestPolicy::new(config, authorization.rules.clone());
        let access = access_control(
            config,
            files.authentication,
            files.request_headers,
            &serving.trust,
            (&delegated, embedded.as_ref().map(|embedded| &embedded.tokens)),
            authorization,
            (auditor, &metrics, &mut tasks),
        )?;
        let serves_delegation = config.serve_delegation && certificates.identity.is_some();
        // A kube-apiserver always answers them.
        let serves_reviews = serves_delegation || embedded.is_some();
        let api = match &embedded {
            Some(embedded) => embedded.api.clone(),
            None => generated_api(config, serves_delegation, &drain),
        };
        if serves_delegation || embedded.is_some() {
            let published = certificates.publish_auth_config_map(config, &serving.trust, &api, &mut tasks);
            match published {
                Err(problem) if serves_delegation => return Err(problem.into()),
                // A kube-apiserver always has it, as far as it can.
                Err(problem) => tracing::info!(%problem, "no ConfigMap extension-apiserver-authentication"),
                Ok(()) => {}
            }
        }
        let leadership = embedded.as_ref().map(|embedded| embedded.leadership.clone());
        let objects = match leadership.and_then(|leadership| embedded_registry(config, &api, leadership)) {
            Some(registry) => RegistryObjects::Stored(registry),
            None => RegistryObjects::Generated(api.publisher("apiregistration.k8s.io", "v1", "apiservices")),
        };
        let trust = &serving.trust;
        let routing = Routing::start(config, files.backends, &egress, trust, objects, (&threads, &drain), &mut tasks)?;
        let file_errors = tasks.file_errors().clone();
        let catalog = embedded.as_ref().map(|embedded| embedded.api.catalog().clone());
        let documents = start_control(
            config,
            (tasks, catalog, path_prefix),
            &certificates,
            &serving,
            &routing,
            &egress,
            (&threads, &drain),
        )?;
        let own_checks: Vec<HealthCheck> = embedded.as_ref().map_or_else(Vec::new, |embedded| {
            [access_log.check(), embedded.check.clone()].into_iter().chain(start_checks(&embedded.api)).collect()
        });
        let mut readiness_checks = readiness_checks(config, &routing, &delegated, &metrics);
        readiness_checks.extend(embedded.as_ref().map(|embedded| informer_check(&embedded.api)));
        let documents_of = (&routing.table, &documents.discovery);
        let health = health_endpoints(&drain, &access_log, documents_of, &own_checks, &readiness_checks);
        if let Some(embedded) = &embedded {
            embedded.api.set_routes(routing.table.clone());
            wait_for_routes(routing.table.clone())?;
        }
        let shared = Arc::new(GatewayState {
            serving,
            handshake_log: HandshakeLog::default(),
            access,
            tracer,
            table: routing.table.clone(),
            documents,
            identity: certificates.identity,
            serves_reviews,
            api,
            delegate: DelegateScope::new(config),
            health: if config.sidecar.serves_health { health.clone() } else { Vec::new() },
            responses: ResponseSettings::new(config),
            policy,
            inflight: InflightPools::new(config),
            review_turns: Default::default(),
            metrics,
            drain,
        });
        let store = embedded.map(|embedded| (embedded.store, embedded.thread));
        Ok(Instance { shared, routing, file_errors, health, store })
    }
}

/// Starts the control thread, which creates the discovery and OpenAPI documents.
fn start_control(
    config: &GatewayConfig,
    (tasks, catalog, path_prefix): (ControlTasks, Option<Published<ResourceCatalog>>, Option<Arc<str>>),
    certificates: &Certificates,
    serving: &ServingReaders,
    routing: &Routing,
    egress: &EgressSettings,
    (threads, drain): (&TaskThreads, &Drain),
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
            reviews: config.serve_delegation && certificates.identity.is_some() || catalog.is_some(),
            delegate: delegate.all,
            embedded: catalog.as_ref().map(Published::get),
            apiregistration_from_delegate: delegate.apiservices && delegate.all,
            path_prefix,
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
    threads.spawn("control", move || control.run(documents_sender))?;
    documents.recv().map_err(|_| Problem::new("control", "the control thread ended early"))
}
