//! Starts the embedded API server: opens the store, creates the first objects, makes it the source of the registry.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use store::monotonic_clock;
use store::watch_cache::{Collections, HistoryLimits, ResourceCollection};

use super::controller_election::{RunningElection, controller_election};
use crate::authenticate::service_accounts::{
    RootCa, ServiceAccountAuthenticator, TokenIssuer, TokenObjects, TokenSettings,
};
use crate::commands::gateway::control::ControlTasks;
use crate::commands::gateway::object_store::{ObjectStore, ObjectStoreMonitor, open_store};
use crate::commands::gateway::registry_thread::EmbeddedRegistry;
use crate::commands::gateway::settings::EgressSettings;
use crate::commands::threads::spawn_thread;
use crate::config::GatewayConfig;
use crate::config::gateway::{EmbeddedApiConfig, ServiceAccountConfig};
use crate::controllers::Controllers;
use crate::kubeclient::election::Leadership;
use crate::observe::health::HealthCheck;
use crate::observe::metrics::{Metrics, ResourceStats, StorageStats};
use crate::process::{Drain, Problem, Problems, Published, ShutdownPhase, WatchedFile};
use crate::registry::{StoredObjects, StoredServices};
use crate::resources::Resource;
use crate::rest::{ApiServer, LastUses, ServiceSettings};
use crate::route::RouteTable;
use crate::webhook_client::{WebhookClient, WebhookThread};

/// Interval of dropping history that is too old.
const TRIM_INTERVAL: Duration = Duration::from_secs(60);

/// Longest wait for the first routes.
const ROUTES_TIMEOUT: Duration = Duration::from_secs(5);

/// The embedded API server of a running gateway.
pub(super) struct EmbeddedApi {
    pub(super) api: ApiServer,
    /// Its thread, which creates the first objects and drops old history.
    pub(super) thread: JoinHandle<()>,
    pub(super) store: ObjectStore,
    /// The check of its store.
    pub(super) check: HealthCheck,
    /// Authenticates tokens of its ServiceAccounts.
    pub(super) tokens: Arc<ServiceAccountAuthenticator>,
    /// Whether this gateway runs the controllers.
    pub(super) leadership: Published<Leadership>,
}

/// Opens the store of `--embedded-api`, unless it is open, and starts its thread; none without the flag. When this
/// returns, the system namespaces exist.
///
/// # Errors
/// The store cannot be opened or written.
pub(super) fn start_embedded_api(
    config: &GatewayConfig,
    open: Option<ObjectStore>,
    own: SocketAddr,
    egress: &EgressSettings,
    generated_ca: Option<&Path>,
    (tasks, drain): (&mut ControlTasks, &Drain),
) -> Result<Option<EmbeddedApi>, Problems> {
    let metrics = &egress.metrics;
    let Some(embedded) = &config.embedded_api else { return Ok(None) };
    // A wall clock that jumps would drop the history.
    let clock = monotonic_clock();
    let refuse = |why: &dyn std::fmt::Display| Problem::new("--embedded-api", why);
    let store = open_store(config, embedded, open, egress, tasks)?;
    let monitor = store.monitor();
    let collections = Collections::new(store.contract(), HistoryLimits::default(), clock);
    let mut settings = embedded.settings.clone();
    settings.services.listener = Some(own);
    let issuer = token_issuer(config, embedded, &settings.services, tasks)?;
    let api = ApiServer::new(collections.clone(), settings, drain.clone())
        .with_token_issuer(issuer.clone())
        .with_compute_metrics(metrics.compute().clone())
        .with_work_queue_metrics(metrics.work_queues());
    let api = match stored_services(config, &api) {
        Some(services) => {
            api.with_conversion_webhooks(start_webhooks(services, own, egress)?, metrics.conversion().clone())
        }
        None => api,
    };
    let tokens = Arc::new(token_authenticator(issuer, &api, metrics)?);
    let resources = api.stored_resources().map_err(|status| refuse(&status.message))?;
    count_storage(metrics, monitor.clone(), &resources, api.clone());
    let root_ca = follow_root_ca(embedded.service_accounts.root_ca.as_deref().or(generated_ca), tasks)?;
    let (sender, created) = channel();
    let (leadership, election) = controller_election(config);
    let leads = leadership.clone();
    let enabled = embedded.controllers.clone();
    let (first, metrics, mut drain, verified) = (api.clone(), metrics.clone(), drain.clone(), tokens.clone());
    let thread = spawn_thread("embedded-api", async move || {
        let controllers = match Controllers::start(&first, root_ca, enabled, metrics.work_queues()).await {
            Ok(controllers) => controllers,
            Err(status) => return drop(sender.send(Err(status))),
        };
        let election = match RunningElection::start(election, &first, &metrics, &drain) {
            Ok(election) => election,
            Err(status) => return drop(sender.send(Err(status))),
        };
        let _ = sender.send(Ok(()));
        let notifier = collections.notifier();
        tokio::task::spawn_local({
            let notifier = notifier.clone();
            async move { notifier.run().await }
        });
        tokio::task::spawn_local(controllers.run(notifier, leads));
        // Before the first request for each. A resource that cannot be read is tried again by its requests.
        for (_, collection) in resources {
            let _ = collection.ensure_loaded().await;
        }
        first.note_stored_unenforced().await;
        let mut interval = tokio::time::interval(TRIM_INTERVAL);
        loop {
            tokio::select! {
                _ = interval.tick() => {
                    collections.trim();
                    first.drop_idle_schemas();
                    verified.remove_expired();
                }
                () = drain.wait_for(ShutdownPhase::Draining) => break,
            }
        }
        election.released().await;
    })?;
    let created = created.recv().map_err(|_| refuse(&"its thread ended early"))?;
    created.map_err(|status| refuse(&status.message))?;
    Ok(Some(EmbeddedApi { api, thread, store, check: monitor.check(), tokens, leadership }))
}

/// What issues service account tokens, with keys that are followed.
///
/// # Errors
/// All problems of the key files.
fn token_issuer(
    config: &GatewayConfig,
    embedded: &EmbeddedApiConfig,
    services: &ServiceSettings,
    tasks: &mut ControlTasks,
) -> Result<Arc<TokenIssuer>, Problems> {
    let ServiceAccountConfig { keys, issuers, jwks_uri, max_expiration, extends_expiration, .. } =
        embedded.service_accounts.clone();
    let (keys, watcher) = keys.open()?;
    let own = || services.public_address().map(|address| format!("https://{address}/openid/v1/jwks"));
    let audiences = &config.delegated_auth.token_reviews.audiences;
    let settings = TokenSettings {
        audiences: if audiences.is_empty() { issuers.clone() } else { audiences.clone() },
        issuers,
        jwks_uri: jwks_uri.or_else(own).unwrap_or_default(),
        max_expiration,
        extends_expiration,
    };
    Ok(Arc::new(TokenIssuer::new(settings, tasks.follow("service-account-keys", (watcher, keys)))))
}

/// The authorities by which Pods verify this server; none if no file is known.
///
/// # Errors
/// The file cannot be read, or is no bundle of certificates.
fn follow_root_ca(path: Option<&Path>, tasks: &mut ControlTasks) -> Result<Option<Published<RootCa>>, Problems> {
    let Some(path) = path else {
        tracing::info!("namespaces get no ConfigMap kube-root-ca.crt: give --root-ca-file with --tls-cert-file");
        return Ok(None);
    };
    Ok(Some(tasks.follow("root-ca", WatchedFile::<RootCa>::open(path)?)))
}

/// What authenticates service account tokens.
///
/// # Errors
/// The collections cannot be made, or the system has no random numbers.
fn token_authenticator(
    issuer: Arc<TokenIssuer>,
    api: &ApiServer,
    metrics: &Arc<Metrics>,
) -> Result<ServiceAccountAuthenticator, Problem> {
    let collection = |plural: &str| {
        api.builtin_collection("", plural).ok_or_else(|| Problem::new("--embedded-api", format!("no {plural}")))
    };
    let (last_uses, is_read_only) = (LastUses::default(), api.settings().is_read_only);
    let objects = TokenObjects {
        service_accounts: collection("serviceaccounts")?,
        secrets: collection("secrets")?,
        pods: collection("pods")?,
        nodes: collection("nodes")?,
        record_secret_use: Arc::new(move |secrets, secret| {
            if !is_read_only {
                last_uses.record(secrets, secret);
            }
        }),
    };
    ServiceAccountAuthenticator::new(issuer, objects, metrics)
}

/// Starts the thread that calls webhooks. It ends with the process. Calls to `own`, the address of this server, are
/// refused.
///
/// # Errors
/// The thread cannot be spawned.
fn start_webhooks(
    services: StoredServices,
    own: SocketAddr,
    egress: &EgressSettings,
) -> Result<WebhookClient, Problem> {
    let (client, calls) = WebhookClient::new();
    let egress = egress.clone();
    spawn_thread("webhooks", async move || WebhookThread::new(egress.dialer(), services, own).run(calls).await)?;
    Ok(client)
}

/// The Services of the store; none if the collections cannot be made.
fn stored_services(config: &GatewayConfig, api: &ApiServer) -> Option<StoredServices> {
    Some(StoredServices {
        services: api.builtin_collection("", "services")?,
        endpoint_slices: api.builtin_collection("discovery.k8s.io", "endpointslices")?,
        rules: config.backends.resolve_rules,
    })
}

/// Counts the requests to the store, and has its state read by scrapes.
fn count_storage(
    metrics: &Metrics,
    monitor: ObjectStoreMonitor,
    resources: &[(Arc<Resource>, ResourceCollection)],
    api: ApiServer,
) {
    for (resource, collection) in resources {
        collection.record_requests(metrics.storage().requests(&resource.group, &resource.plural));
    }
    let resources = resources.to_vec();
    metrics.storage().set_source(move || {
        let custom = api.custom_collections();
        let loaded = resources.iter().chain(&custom).filter(|(_, collection)| collection.is_loaded());
        StorageStats {
            location: monitor.location(),
            size: monitor.size(),
            revision: monitor.revision(),
            compacted: monitor.compacted(),
            refusal: monitor.refusal(),
            unenforced_crds: api.unenforced_crds(),
            unenforced_kinds: api.unenforced_kinds(),
            resources: loaded.map(|(resource, collection)| resource_stats(resource, collection)).collect(),
        }
    });
}

fn resource_stats(resource: &Resource, collection: &ResourceCollection) -> ResourceStats {
    let (revision, snapshot) = collection.current();
    ResourceStats {
        group: resource.group.to_string(),
        resource: resource.plural.to_string(),
        objects: snapshot.len() as u64,
        bytes: snapshot.bytes() as u64,
        revision,
        history: collection.history_len() as u64,
        watches: collection.watches() as u64,
    }
}

/// The store as the source of the registry; none if the collections cannot be made.
pub(super) fn embedded_registry(
    config: &GatewayConfig,
    api: &ApiServer,
    leadership: Published<Leadership>,
) -> Option<EmbeddedRegistry> {
    let settings = config.embedded_api.as_ref()?.settings.validation.registry.clone();
    let collection = |group: &str, plural: &str| api.builtin_collection(group, plural);
    let objects = StoredObjects {
        api_services: collection("apiregistration.k8s.io", "apiservices")?,
        services: collection("", "services")?,
        endpoint_slices: collection("discovery.k8s.io", "endpointslices")?,
        notifier: api.collections().notifier(),
    };
    Some(EmbeddedRegistry { objects, settings, leadership })
}

/// Waits until the routes of the stored APIServices are published, so that no request for them is answered with 404
/// after a restart. Late routes only delay the start: until they are published, requests get 503.
///
/// # Errors
/// The thread cannot be spawned.
pub(super) fn wait_for_routes(mut table: Published<RouteTable>) -> Result<(), Problem> {
    let (sender, complete) = channel();
    spawn_thread("first-routes", async move || {
        let routes = async {
            while !table.get().complete {
                table.changed().await;
            }
        };
        let _ = tokio::time::timeout(ROUTES_TIMEOUT, routes).await;
        let _ = sender.send(());
    })?;
    let _ = complete.recv();
    Ok(())
}
