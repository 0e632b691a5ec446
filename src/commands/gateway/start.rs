//! Starts a gateway from its files: generate missing certificates, listen, spawn the threads.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use super::GatewayFiles;
use super::audit_setup::AuditHandle;
use super::control_thread::ControlThread;
use super::file_errors::FileErrors;
use super::gateway_handle::{GatewayHandle, ShutdownHandles};
use super::handshake_log::HandshakeLog;
use super::health_listener::HealthListener;
use super::registry_thread::RegistryThread;
use super::request::RequestPolicy;
use super::review_thread::{self, DelegatedAuth};
use super::state::{GatewayState, InflightPool, RelaySettings};
use super::upstream_readiness::{self, UpstreamReadiness};
use super::warnings::RegistryWarnings;
use super::worker::{ConnectionLimits, GatewayWorker};
use super::{settings, status};
use crate::authenticate::{Authenticator, GroupFilter};
use crate::authorize::Impersonator;
use crate::authorize::rbac_proxy::RbacProxyRules;
use crate::availability::AvailabilityMap;
use crate::availability::apiservice_api::{ApiServiceHandler, ApiServiceView};
use crate::commands::threads::spawn_thread;
use crate::config::GatewayConfig;
use crate::config::sidecar::AttributeSource;
use crate::delegation_server::{AuthConfigMapSource, DelegationServer};
use crate::discovery::DiscoverySnapshot;
use crate::discovery::DiskCache;
use crate::kubeclient::certificate_request;
use crate::listen::{Acceptor, Connections, accept, bind, raise_descriptor_limit};
use crate::observe::access::{self, AccessLog};
use crate::observe::health::{HealthCheck, HealthChecks};
use crate::observe::log::LogLevel;
use crate::observe::metrics::Metrics;
use crate::process::{Drain, Problem, Problems, Published, ShutdownPhase};
use crate::registry::Registry;
use crate::route::{Dealer, Inflight, RouteTable};
use crate::tls::{
    ClientIdentity, GeneratedCertificates, ManagedCertificate, PairFiles, RequestedCertificate, serving_names,
};
use crate::{admin, authenticate, authorize, tls};

/// Worker limit of a sidecar: each worker takes about a megabyte, every pod of a large machine has a sidecar, and four
/// workers forward more requests than one server answers.
const MAX_SIDECAR_WORKERS: usize = 4;

/// Options for commands that contain a gateway.
#[derive(Default)]
pub struct StartOptions {
    /// Further generated certificates to maintain.
    pub certificates: Vec<ManagedCertificate>,
}

/// Starts the gateway with the files read. When this returns, it listens.
///
/// # Errors
/// Other start failures, for example a port in use or certificates that cannot be generated.
pub fn start(
    config: &GatewayConfig,
    files: GatewayFiles,
    extra: StartOptions,
    log_level: LogLevel,
) -> Result<GatewayHandle, Problems> {
    let limits = settings::limits(config);
    let (drainer, drain) = Drain::new();
    let metrics = Metrics::new();
    let GatewayFiles {
        mut serving,
        identity,
        registry,
        delegate,
        upstreams,
        cluster,
        tokens,
        authentication,
        policy,
        authorization,
        rules: rules_file,
        request_headers,
        kubeconfigs,
        audit,
        admin_token,
        egress,
    } = files;

    // Bind first: the kubeconfig contains the port, and a port in use is the most likely failure.
    let listener = bind(config.serving.address, "--secure-port")?;
    let asked = config.serving.address;
    let address = listener.local_addr().map_err(|error| Problem::new(asked, error))?;
    // A dual-stack listener reports `[::]`; keep the configured address.
    let address = SocketAddr::new(asked.ip(), address.port());

    let endpoints = config.serving.health_address.map(|at| bind(at, "--proxy-endpoints-port")).transpose()?;
    let own = default_certificates(config, address, extra);
    own.generated.ensure(SystemTime::now())?;
    let requested = config.serving.certificate_request.as_ref().map(|requested| {
        let asked = RequestedCertificate::new(own.generated.store().clone(), requested.names.clone());
        asked
            .ensure_fallback()
            .map(|()| certificate_request::SigningRequest { pending: asked, signer: requested.signer.clone() })
    });
    let requested = requested.transpose()?;
    let own_serving = requested.as_ref().map(|requested| requested.pending.files()).or(own.serving);
    serving.add_generated(own_serving, own.client_ca)?;
    let identity = match identity {
        None if !config.is_sidecar() => Some(ClientIdentity::load(own.generated.store().files("front-proxy"))?),
        named => named,
    };
    let our_identity = identity.as_ref().map(|(_, ours)| ours.clone());
    let access_log = AccessLog::to_standard_error(&metrics)?;
    let (ways_file, ways) = egress;
    let (ways_publisher, ways) = Published::new(ways);
    let egress =
        settings::EgressSettings { resolver: config.backends.resolver, routes: ways.clone(), metrics: metrics.clone() };
    let auditing = audit.map(|files| files.start(egress.clone(), &metrics)).transpose()?;
    let (auditor, audit_ending, audit_following) = match auditing {
        Some(AuditHandle { auditor, shutdown: ending, policy_file: following }) => {
            (Some(auditor), Some(ending), Some(following))
        }
        None => (None, None, None),
    };

    let (policy_publisher, policy) = match policy {
        Some((file, policy)) => {
            policy.log();
            let (publisher, published) = Published::new(policy);
            (Some((file, publisher)), Some(published))
        }
        None => (None, None),
    };
    let asks_by_rules = config.sidecar.attribute_source != AttributeSource::Request;
    let (rules_file, by_rules) = match rules_file {
        Some((file, rules)) => {
            rules.log();
            let (publisher, published) = Published::new(rules);
            (Some((file, publisher)), Some(published))
        }
        None => (None, asks_by_rules.then(|| Published::fixed(RbacProxyRules::default()))),
    };
    let mistakes = FileErrors::default();
    let webhooks = authorize::configuration::AuthorizationWebhookSettings {
        stale_allow_ttl: config.delegated_auth.access_reviews.stale_allow_ttl,
        max_timeout: config.forwarding.request_timeout,
        probes: config.delegated_auth.readiness_requires_reviews,
    };
    let (authorizers, authorizers_following) = match authorization {
        Some(file) => file.start(webhooks, policy.clone(), &metrics).map(|(authorizers, following)| {
            (Some(authorizers), Some((following, mistakes.reporter("authorization"))))
        })?,
        None => (None, None),
    };
    let delegation =
        DelegatedAuth::start(kubeconfigs, requested, authorizers_following, config, &egress, &metrics, &drain)?;
    if let Some(announced) = delegation.cluster_trust {
        serving.follow_cluster_trust(announced)?;
    }
    let (serving_publishers, serving_readers) = serving.publish()?;
    let (directory, mut registry) =
        registry.map_or_else(|| (None, Registry::empty()), |(directory, registry)| (Some(directory), registry));
    registry.complete = cluster.is_none();
    let board = AvailabilityMap::default();
    let rules = config.backends.resolve_rules;
    let delegate = delegate.map(|(file, delegate)| {
        let (publisher, published) = Published::new(delegate);
        (file, publisher, published)
    });
    let table = RouteTable::build(&registry, rules, &ways.get(), &board, None);
    let first = delegate.as_ref().map(|(.., delegate)| delegate.get());
    let table = table.with_delegate(first.as_ref(), &board, None);
    let sidecar = upstreams.is_some();
    let (reached_publisher, reached) = Published::new(UpstreamReadiness::new());
    let first = upstreams.as_ref().map_or(&[][..], |(_, upstreams)| upstreams);
    let table = table.with_upstreams(first, &board, None);
    let upstreams = upstreams.map(|(files, upstreams)| {
        let (publisher, published) = Published::new(upstreams);
        (files, publisher, published)
    });
    let (registry_publisher, registry) = Published::new(registry);
    let (doubts_publisher, doubts) = Published::new(RegistryWarnings::default());
    let (view_publisher, view) = Published::new(ApiServiceView::empty(SystemTime::now()));
    let (table_publisher, table) = Published::new(table);
    let (tokens_publisher, tokens) = match tokens {
        Some((file, tokens)) => {
            tracing::info!(tokens = tokens.len(), "tokens read");
            let (publisher, published) = Published::new(tokens);
            (Some((file, publisher)), Some(published))
        }
        None => (None, None),
    };
    let (jwt, jwt_following) = match authentication {
        Some(file) => file.start(&metrics).map(|(jwt, following)| (Some(jwt), Some(following)))?,
        None => (None, None),
    };
    let groups = GroupFilter::new(&config.authentication.pass_on_groups, &config.authentication.drop_groups);
    let (speaker, reviewer) = match our_identity.clone().filter(|_| config.serve_delegation) {
        Some(our_identity) => {
            let front_proxy = config.backends.proxy_client.is_none();
            let speaker = AuthConfigMapSource {
                trust: serving_readers.trust.clone(),
                identity: our_identity,
                own_ca_file: front_proxy
                    .then(|| own.generated.store().authority_files(tls::CertificateKind::RequestHeader).certificate),
                includes_uid: config.forwarding.forward_uid,
                includes_client_ca: groups.is_empty(),
            };
            let (publisher, config_map) = Published::new(speaker.build(SystemTime::now())?);
            (Some((speaker, publisher)), Some(DelegationServer { config_map, drain: drain.clone() }))
        }
        None => (None, None),
    };
    // Documents and OpenAPI are created on the control thread and shared from here.
    let (ready, discovered) = std::sync::mpsc::channel();

    let registrations_elsewhere = config.backends.cluster.is_some() && config.backends.delegate.is_some();
    let control = ControlThread {
        serving,
        serving_publishers,
        generated_certificates: own.generated,
        identity,
        delegate,
        upstream_readiness: upstreams.is_some().then_some(reached_publisher),
        upstreams,
        registry: registry.clone(),
        table_publisher,
        table: table.clone(),
        availability: board.clone(),
        apiservice_view: view_publisher,
        trust: serving_readers.trust.clone(),
        warnings: doubts_publisher,
        rules,
        tokens: tokens_publisher,
        policy: policy_publisher,
        rules_file,
        jwt: jwt_following,
        auth_configmap: speaker,
        registrations_elsewhere: registrations_elsewhere && config.backends.delegates_unclaimed_paths,
        delegates_all: config.backends.delegates_unclaimed_paths,
        file_errors: mistakes.clone(),
        audit: audit_following,
        egress: egress.clone(),
        egress_file: ways_file.map(|file| (file, ways_publisher)),
        metrics: metrics.clone(),
        certificates_in_use: serving_readers.in_use.clone(),
        disk_cache: if sidecar {
            DiskCache::disabled()
        } else {
            DiskCache::in_directory(&config.data_dir.join("last-good"))
        },
        drain: drain.clone(),
    };
    let mut threads = Vec::new();
    let registering = RegistryThread {
        directory,
        cluster,
        election: config.backends.cluster.as_ref().and_then(|cluster| cluster.election.clone()),
        publisher: registry_publisher,
        availability: board.clone(),
        egress: egress.clone(),
        metrics: metrics.clone(),
        drain: drain.clone(),
    };
    // A sidecar has no registry.
    let (cluster, returning) = if sidecar { (None, None) } else { registering.start()? };
    spawn_thread("control", move || control.run(ready))?;
    let Ok((documents, openapi, openapi2)) = discovered.recv() else {
        return Err(Problem::new("control", "the control thread ended early").into());
    };

    let registered = cluster.as_ref().map(|cluster| cluster.check(&table));
    let more = registered.into_iter();
    let more = more.chain(sidecar.then(|| upstream_readiness::readiness_check(reached.clone())));
    let asks = config.delegated_auth.authorization_kubeconfig.is_some() || config.authorization_config.is_some();
    let asks = asks || !delegation.token_reviews.is_empty();
    let more = more
        .chain(asks.then(|| review_thread::review_check(&metrics, config.delegated_auth.readiness_requires_reviews)));
    let more = more.chain(delegation.certificate_wait.map(certificate_check)).collect::<Vec<_>>();
    let health = health_endpoints(&drain, &access_log, (&table, &documents), &more);
    let shared = Arc::new(GatewayState {
        authenticator: Authenticator::new(authenticate::Settings {
            trust: serving_readers.trust.clone(),
            request_headers,
            tokens,
            jwt,
            group_filter: groups,
            token_reviews: delegation.token_reviews,
            audiences: config.delegated_auth.token_reviews.audiences.clone(),
            anonymous: config.authentication.anonymous,
            auth_header_names: config.sidecar.identity_headers.custom_names(),
        }),
        impersonator: Impersonator::new(&metrics),
        authorizer: settings::authorizer(
            config,
            policy.as_ref(),
            delegation.access_reviews.as_ref(),
            authorizers,
            by_rules.as_ref(),
        ),
        auditor,
        serving: serving_readers,
        reports: ApiServiceHandler::new(view, drain.clone()),
        table,
        documents,
        openapi,
        openapi_v2: openapi2,
        identity: our_identity,
        reviewer,
        registrations_elsewhere,
        delegates_all: config.backends.delegates_unclaimed_paths,
        delegates_metrics: config.backends.delegates_metrics,
        upstream_readiness: reached,
        metrics,
        handshake_log: HandshakeLog::default(),
        health: if config.sidecar.serves_health { health.clone() } else { Vec::new() },
        relay: RelaySettings {
            error_format: config.forwarding.error_format,
            reject_redirects: config.forwarding.reject_redirects,
            goaway_chance: config.serving.goaway_chance,
            send_retry_after: config.shutdown.send_retry_after,
        },
        policy: RequestPolicy::new(config, by_rules),
        cors: config.serving.cors.clone(),
        dealer: Dealer::default(),
        read_only_inflight: InflightPool {
            requests: Inflight::default(),
            max: config.forwarding.max_inflight.unwrap_or(0),
        },
        mutating_inflight: InflightPool {
            requests: Inflight::default(),
            max: config.forwarding.max_mutating_inflight.unwrap_or(0),
        },
        drain: drain.clone(),
    });

    let access_log = Arc::new(access_log);
    let mut acceptor = Acceptor::default();
    let mut all_connections = Vec::new();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let workers = if sidecar { cores.min(MAX_SIDECAR_WORKERS) } else { cores };
    let descriptors = raise_descriptor_limit();
    let most = ConnectionLimits::new(descriptors, workers);
    shared.metrics.set_connections_limit(most.total);
    for number in 0..workers {
        let incoming = acceptor.add_worker();
        let connections = Connections::default();
        all_connections.push(connections.clone());
        let (shared, access_log, limits) = (shared.clone(), access_log.clone(), limits.clone());
        let (recording, egress) = (config.observability.access, egress.clone());
        let work = async move || {
            let reports = access::WorkerRecorder::new(&shared.metrics, &access_log, recording);
            let worker = GatewayWorker::new(shared, reports, egress.dialer(), most);
            worker.run(incoming, limits, connections).await;
        };
        threads.push(spawn_thread(&format!("worker-{number}"), work)?);
    }
    // Some descriptors stay free for files and the admin listener; a proxied connection takes up to two.
    let most = if limits.max_connections == usize::MAX {
        descriptors.map_or(usize::MAX, |all| usize::try_from(all.saturating_sub(64) / 2).unwrap_or(usize::MAX).max(16))
    } else {
        limits.max_connections
    };
    threads.push(spawn_thread("accept", move || accept(listener, acceptor, most, drain))?);

    if let Some(listener) = endpoints {
        let (tls, drain) = (shared.serving.config.clone(), shared.drain.clone());
        threads.push(HealthListener { listener, tls, health, limits, drain }.start()?);
    }

    let admin = match config.observability.admin_address {
        Some(at) => {
            let admin_token = admin_token.map(|(file, token)| {
                admin::AdminTokenConfig::new(file, token, mistakes.reporter("admin-token"), shared.drain.clone())
            });
            let told = status::StatusInputs {
                warnings: doubts,
                address,
                registry,
                cluster,
                file_errors: mistakes,
                availability: board,
                egress_routes: ways,
                connections: all_connections,
                log_level,
                access_log: access_log.clone(),
                readiness_checks: more,
            };
            Some(admin::spawn(at, status::admin_state(&shared, told, admin_token))?)
        }
        None => None,
    };
    log_addresses(config, address, admin.as_ref().map(|admin| admin.local_addr), own.kubeconfig.as_deref());
    Ok(GatewayHandle::new(
        address,
        admin,
        drainer,
        config,
        threads,
        shared,
        ShutdownHandles { access: access_log, audit: audit_ending, lease_release: returning },
    ))
}

/// The certificates that no flag names and that are generated.
struct DefaultCertificates {
    generated: GeneratedCertificates,
    serving: Option<PairFiles>,
    client_ca: Option<PathBuf>,
    kubeconfig: Option<PathBuf>,
}

fn default_certificates(config: &GatewayConfig, address: SocketAddr, extra: StartOptions) -> DefaultCertificates {
    let directory = config.serving.certificate_dir.clone().unwrap_or_else(|| config.data_dir.join("pki"));
    let named = &config.serving.tls;
    let own_serving = named.pair.is_none() && named.named.is_empty() && named.in_memory_names.is_empty();
    // If a cluster defines the client CAs, no client CA is generated.
    let own_clients = named.client_ca.is_none() && !config.delegated_auth.lookup_auth_configmap && !config.is_sidecar();
    let mut wanted = extra.certificates;
    if own_serving {
        wanted.push(ManagedCertificate::serving(&serving_names(Some(address.ip()))));
    }
    if own_clients {
        wanted.push(ManagedCertificate::admin());
    }
    if config.backends.proxy_client.is_none() && !config.is_sidecar() {
        wanted.push(ManagedCertificate::front_proxy());
    }
    let mut made = GeneratedCertificates::new(directory, wanted);
    let store = made.store();
    let serving = own_serving.then(|| store.files("serving"));
    let client_ca = own_clients.then(|| store.authority_files(tls::CertificateKind::Client).certificate);
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

/// The health endpoints `/livez`, `/readyz` and `/healthz`; `more` are further readiness checks.
pub(super) fn health_endpoints(
    drain: &Drain,
    access_log: &AccessLog,
    (table, documents): (&Published<RouteTable>, &Published<DiscoverySnapshot>),
    more: &[HealthCheck],
) -> Vec<HealthChecks> {
    let leaving = |drain: Drain| {
        HealthCheck::new("shutdown", move || {
            if drain.phase() == ShutdownPhase::Serving { Ok(()) } else { Err("process is shutting down".to_owned()) }
        })
    };
    let last = [discovery_check(table.clone(), documents.clone()), leaving(drain.clone())];
    let ready = [HealthCheck::ping(), access_log.check()].into_iter().chain(more.iter().cloned()).chain(last);
    vec![
        HealthChecks::new("livez", [HealthCheck::ping()]),
        HealthChecks::new("readyz", ready),
        HealthChecks::new("healthz", [HealthCheck::ping()]),
    ]
}

/// A readiness check that fails until the requested serving certificate is issued.
fn certificate_check(waits: Published<Option<String>>) -> HealthCheck {
    HealthCheck::new("serving-certificate", move || waits.load().as_ref().clone().map_or(Ok(()), Err))
}

/// A readiness check that succeeds, for good, once the registry is complete and discovery was fetched from every
/// backend (KEP-3352). The name is kube-apiserver's.
fn discovery_check(table: Published<RouteTable>, documents: Published<DiscoverySnapshot>) -> HealthCheck {
    let complete = AtomicBool::default();
    HealthCheck::new("poststarthook/apiservice-discovery-controller", move || {
        if complete.load(Ordering::Relaxed) || (table.load().complete && documents.load().all_asked()) {
            complete.store(true, Ordering::Relaxed);
            return Ok(());
        }
        Err("discovery not fetched from all backends yet".to_owned())
    })
}

fn log_addresses(config: &GatewayConfig, address: SocketAddr, admin: Option<SocketAddr>, kubeconfig: Option<&Path>) {
    tracing::info!(%address, "serving");
    if let Some(address) = admin {
        tracing::info!(%address, "admin listener");
    }
    if let Some(path) = kubeconfig {
        tracing::info!(path = %path.display(), "administrator kubeconfig");
    }
    if config.backends.registry.is_none() && config.backends.cluster.is_none() && !config.is_sidecar() {
        tracing::info!(
            "no registry configured, so there are no backends; set --registry-dir, or --kubeconfig for a kube-apiserver"
        );
    }
}
