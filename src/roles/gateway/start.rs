//! Starts a gateway from its files: generate missing certificates, listen, spawn the threads.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use super::Files;
use super::auditing::Auditing;
use super::control::Control;
use super::delegation::{self, Delegation};
use super::doubts::Doubts;
use super::endpoints::Endpoints;
use super::handshakes::HandshakeLog;
use super::mistakes::Mistakes;
use super::reached::{self, Reached};
use super::registering::Registering;
use super::running::{Logs, Running};
use super::shared::{Bound, Forwarding, Guard, Shared};
use super::worker::{Most, Worker};
use super::{settings, status};
use crate::authenticate::{ANONYMOUS, Authenticator, GroupFilter};
use crate::authorize::Impersonator;
use crate::authorize::rbac_proxy::Rules;
use crate::availability::Board;
use crate::availability::report::{Reports, View};
use crate::config::GatewayConfig;
use crate::config::sidecar::Asks;
use crate::discovery::Documents;
use crate::discovery::Kept;
use crate::kubeapi::User;
use crate::kubeclient::certificate_request;
use crate::listen::{Acceptor, Connections, accept, bind, raise_descriptor_limit};
use crate::observe::access::{self, AccessLog};
use crate::observe::health::{Check, Health};
use crate::observe::log::LogLevel;
use crate::observe::metrics::Metrics;
use crate::process::{Drain, Phase, Problem, Problems, Published};
use crate::registry::Registry;
use crate::reviewer::{Reviewer, Speaker};
use crate::roles::threads::thread;
use crate::route::{Dealer, Inflight, Table};
use crate::tls::{AskedFor, Identity, PairFiles, SelfMade, Wanted, serving_names};
use crate::{admin, authenticate, authorize, tls};

/// Worker limit of a sidecar: each worker takes about a megabyte, every pod of a large machine has a sidecar, and four
/// workers forward more requests than one server answers.
const MOST_WORKERS_BESIDE: usize = 4;

/// Options for commands that contain a gateway.
#[derive(Default)]
pub struct Extra {
    /// Further generated certificates to maintain.
    pub certificates: Vec<Wanted>,
}

/// Starts the gateway with the files read. When this returns, it listens.
///
/// # Errors
/// Other start failures, for example a port in use or certificates that cannot be generated.
pub fn start(config: &GatewayConfig, files: Files, extra: Extra, log_level: LogLevel) -> Result<Running, Problems> {
    let limits = settings::limits(config);
    let (drainer, drain) = Drain::new();
    let metrics = Metrics::new();
    let Files {
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

    let endpoints = config.serving.endpoints.map(|at| bind(at, "--proxy-endpoints-port")).transpose()?;
    let own = own_certificates(config, address, extra);
    own.made.ensure(SystemTime::now())?;
    let requested = config.serving.requested.as_ref().map(|requested| {
        let asked = AskedFor::new(own.made.store().clone(), requested.names.clone());
        asked.ensure().map(|()| certificate_request::Wanted { asked, signer: requested.signer.clone() })
    });
    let requested = requested.transpose()?;
    let own_serving = requested.as_ref().map(|requested| requested.asked.files()).or(own.serving);
    serving.add(own_serving, own.client_ca)?;
    let identity = match identity {
        None if !config.is_sidecar() => Some(Identity::load(own.made.store().files("front-proxy"))?),
        named => named,
    };
    let our_identity = identity.as_ref().map(|(_, ours)| ours.clone());
    let access_log = AccessLog::to_standard_error(&metrics)?;
    let (ways_file, ways) = egress;
    let (ways_publisher, ways) = Published::new(ways);
    let egress = settings::Egress { resolver: config.behind.resolver, ways: ways.clone(), metrics: metrics.clone() };
    let auditing = audit.map(|files| files.start(egress.clone(), &metrics)).transpose()?;
    let (auditor, audit_ending, audit_following) = match auditing {
        Some(Auditing { auditor, ending, following }) => (Some(auditor), Some(ending), Some(following)),
        None => (None, None, None),
    };

    let (policy_publisher, policy) = match policy {
        Some((file, policy)) => {
            policy.tell();
            let (publisher, published) = Published::new(policy);
            (Some((file, publisher)), Some(published))
        }
        None => (None, None),
    };
    let asks_by_rules = config.guard.asks != Asks::Request;
    let (rules_file, by_rules) = match rules_file {
        Some((file, rules)) => {
            rules.tell();
            let (publisher, published) = Published::new(rules);
            (Some((file, publisher)), Some(published))
        }
        None => (None, asks_by_rules.then(|| Published::fixed(Rules::default()))),
    };
    let mistakes = Mistakes::default();
    let webhooks = authorize::configuration::WebhookSettings {
        stale_allow_ttl: config.delegated.access_reviews.stale_allow_ttl,
        longest: config.forwarding.request_timeout,
        probes: config.delegated.readiness_requires_reviews,
    };
    let (authorizers, authorizers_following) = match authorization {
        Some(file) => file
            .start(webhooks, policy.clone(), &metrics)
            .map(|(authorizers, following)| (Some(authorizers), Some((following, mistakes.of("authorization")))))?,
        None => (None, None),
    };
    let delegation =
        Delegation::start(kubeconfigs, requested, authorizers_following, config, &egress, &metrics, &drain)?;
    if let Some(announced) = delegation.announced {
        serving.announce(announced)?;
    }
    let (serving_publishers, serving_readers) = serving.publish()?;
    let (directory, mut registry) =
        registry.map_or_else(|| (None, Registry::nothing()), |(directory, registry)| (Some(directory), registry));
    registry.complete = cluster.is_none();
    let board = Board::default();
    let rules = config.behind.rules;
    let delegate = delegate.map(|(file, delegate)| {
        let (publisher, published) = Published::new(delegate);
        (file, publisher, published)
    });
    let table = Table::build(&registry, rules, &ways.get(), &board, None);
    let first = delegate.as_ref().map(|(.., delegate)| delegate.get());
    let table = table.with_delegate(first.as_ref(), &board, None);
    let sidecar = upstreams.is_some();
    let (reached_publisher, reached) = Published::new(Reached::new());
    let first = upstreams.as_ref().map_or(&[][..], |(_, upstreams)| upstreams);
    let table = table.with_upstreams(first, &board, None);
    let upstreams = upstreams.map(|(files, upstreams)| {
        let (publisher, published) = Published::new(upstreams);
        (files, publisher, published)
    });
    let (registry_publisher, registry) = Published::new(registry);
    let (doubts_publisher, doubts) = Published::new(Doubts::default());
    let (view_publisher, view) = Published::new(View::empty(SystemTime::now()));
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
    let groups = GroupFilter::new(&config.who.pass_on_groups, &config.who.drop_groups);
    let (speaker, reviewer) = match our_identity.clone().filter(|_| config.serve_delegation) {
        Some(our_identity) => {
            let front_proxy = config.behind.proxy_client.is_none();
            let speaker = Speaker {
                trust: serving_readers.trust.clone(),
                identity: our_identity,
                own_authority: front_proxy
                    .then(|| own.made.store().authority_files(tls::Kind::RequestHeader).certificate),
                with_uid: config.forwarding.forward_uid,
                with_clients: groups.is_empty(),
            };
            let (publisher, config_map) = Published::new(speaker.begin(SystemTime::now())?);
            (Some((speaker, publisher)), Some(Reviewer { config_map, drain: drain.clone() }))
        }
        None => (None, None),
    };
    // Documents and OpenAPI are created on the control thread and shared from here.
    let (ready, discovered) = std::sync::mpsc::channel();

    let registrations_elsewhere = config.behind.cluster.is_some() && config.behind.delegate.is_some();
    let control = Control {
        serving,
        serving_publishers,
        made: own.made,
        identity,
        delegate,
        reached: upstreams.is_some().then_some(reached_publisher),
        upstreams,
        registry: registry.clone(),
        table_publisher,
        table: table.clone(),
        board: board.clone(),
        view: view_publisher,
        trust: serving_readers.trust.clone(),
        doubts: doubts_publisher,
        rules,
        tokens: tokens_publisher,
        policy: policy_publisher,
        rules_file,
        jwt: jwt_following,
        speaker,
        registrations_elsewhere: registrations_elsewhere && config.behind.delegates_all,
        delegates_all: config.behind.delegates_all,
        mistakes: mistakes.clone(),
        audit: audit_following,
        egress: egress.clone(),
        ways_file: ways_file.map(|file| (file, ways_publisher)),
        metrics: metrics.clone(),
        in_use: serving_readers.in_use.clone(),
        kept: if sidecar { Kept::nowhere() } else { Kept::within(&config.data_dir.join("last-good")) },
        drain: drain.clone(),
    };
    let mut threads = Vec::new();
    let registering = Registering {
        directory,
        cluster,
        election: config.behind.cluster.as_ref().and_then(|cluster| cluster.election.clone()),
        publisher: registry_publisher,
        board: board.clone(),
        egress: egress.clone(),
        metrics: metrics.clone(),
        drain: drain.clone(),
    };
    // A sidecar has no registry.
    let (cluster, returning) = if sidecar { (None, None) } else { registering.start()? };
    thread("control", move || control.run(ready))?;
    let Ok((documents, openapi, openapi2)) = discovered.recv() else {
        return Err(Problem::new("control", "the control thread ended early").into());
    };

    let registered = cluster.as_ref().map(|cluster| cluster.check(&table));
    let more = registered.into_iter();
    let more = more.chain(sidecar.then(|| reached::check(reached.clone())));
    let asks = config.delegated.authorization_kubeconfig.is_some() || config.authorization_config.is_some();
    let asks = asks || !delegation.token_reviews.is_empty();
    let more = more.chain(asks.then(|| delegation::check(&metrics, config.delegated.readiness_requires_reviews)));
    let more = more.chain(delegation.certificate.map(waiting_for_certificate)).collect::<Vec<_>>();
    let health = health(&drain, &access_log, (&table, &documents), &more);
    let shared = Arc::new(Shared {
        authenticator: Authenticator::new(authenticate::Settings {
            trust: serving_readers.trust.clone(),
            request_headers,
            tokens,
            jwt,
            groups,
            token_reviews: delegation.token_reviews,
            audiences: config.delegated.token_reviews.audiences.clone(),
            anonymous: config.who.anonymous,
            told_under: config.guard.wording.names(),
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
        reports: Reports::new(view, drain.clone()),
        table,
        documents,
        openapi,
        openapi2,
        identity: our_identity,
        reviewer,
        registrations_elsewhere,
        delegates_all: config.behind.delegates_all,
        delegates_metrics: config.behind.delegates_metrics,
        sidecar,
        reached,
        metrics,
        handshakes: HandshakeLog::default(),
        health: if config.guard.says_health { health.clone() } else { Vec::new() },
        forwarding: Forwarding {
            error_format: config.forwarding.error_format,
            reject_redirects: config.forwarding.reject_redirects,
            goaway_chance: config.serving.goaway_chance,
            send_retry_after: config.shutdown.send_retry_after,
        },
        guard: Guard {
            rules: by_rules,
            paths: config.guard.paths.clone(),
            wording: config.guard.wording.clone(),
            nobody: Arc::new(User { name: ANONYMOUS.to_owned(), ..User::default() }),
        },
        browsers: config.serving.browsers.clone(),
        dealer: Dealer::default(),
        reading: Bound { running: Inflight::default(), most: config.forwarding.max_inflight.unwrap_or(0) },
        mutating: Bound { running: Inflight::default(), most: config.forwarding.max_mutating_inflight.unwrap_or(0) },
        drain: drain.clone(),
    });

    let access_log = Arc::new(access_log);
    let mut acceptor = Acceptor::default();
    let mut all_connections = Vec::new();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let workers = if sidecar { cores.min(MOST_WORKERS_BESIDE) } else { cores };
    let descriptors = raise_descriptor_limit();
    let most = Most::of(descriptors, workers);
    shared.metrics.connections_are_bounded(most.to_all);
    for number in 0..workers {
        let incoming = acceptor.worker();
        let connections = Connections::default();
        all_connections.push(connections.clone());
        let (shared, access_log, limits) = (shared.clone(), access_log.clone(), limits.clone());
        let (recording, egress) = (config.seen.access, egress.clone());
        let work = async move || {
            let reports = access::Worker::new(&shared.metrics, &access_log, recording);
            let worker = Worker::new(shared, reports, egress.dialler(), most);
            worker.run(incoming, limits, connections).await;
        };
        threads.push(thread(&format!("worker-{number}"), work)?);
    }
    // Some descriptors stay free for files and the admin listener; a proxied connection takes up to two.
    let most = if limits.max_connections == usize::MAX {
        descriptors.map_or(usize::MAX, |all| usize::try_from(all.saturating_sub(64) / 2).unwrap_or(usize::MAX).max(16))
    } else {
        limits.max_connections
    };
    threads.push(thread("accept", move || accept(listener, acceptor, most, drain))?);

    if let Some(listener) = endpoints {
        let (tls, drain) = (shared.serving.config.clone(), shared.drain.clone());
        threads.push(Endpoints { listener, tls, health, limits, drain }.start()?);
    }

    let admin = match config.seen.admin_address {
        Some(at) => {
            let admin_token = admin_token.map(|(file, token)| {
                admin::AdminTokenGuard::new(file, token, mistakes.of("admin-token"), shared.drain.clone())
            });
            let told = status::Told {
                doubts,
                address,
                registry,
                cluster,
                mistakes,
                board,
                ways,
                connections: all_connections,
                log_level,
                access_log: access_log.clone(),
                more,
            };
            Some(admin::spawn(at, status::state(&shared, told, admin_token))?)
        }
        None => None,
    };
    say_where(config, address, admin.as_ref().map(|admin| admin.local_addr), own.kubeconfig.as_deref());
    Ok(Running::new(
        address,
        admin,
        drainer,
        config,
        threads,
        shared,
        Logs { access: access_log, audit: audit_ending, returning },
    ))
}

/// The certificates that no flag names and that are generated.
struct Own {
    made: SelfMade,
    serving: Option<PairFiles>,
    client_ca: Option<PathBuf>,
    kubeconfig: Option<PathBuf>,
}

fn own_certificates(config: &GatewayConfig, address: SocketAddr, extra: Extra) -> Own {
    let directory = config.serving.certificate_dir.clone().unwrap_or_else(|| config.data_dir.join("pki"));
    let named = &config.serving.tls;
    let own_serving = named.pair.is_none() && named.named.is_empty() && named.unwritten.is_empty();
    // If a cluster defines the client CAs, no client CA is generated.
    let own_clients = named.client_ca.is_none() && !config.delegated.look_up && !config.is_sidecar();
    let mut wanted = extra.certificates;
    if own_serving {
        wanted.push(Wanted::serving(&serving_names(Some(address.ip()))));
    }
    if own_clients {
        wanted.push(Wanted::admin());
    }
    if config.behind.proxy_client.is_none() && !config.is_sidecar() {
        wanted.push(Wanted::front_proxy());
    }
    let mut made = SelfMade::new(directory, wanted);
    let store = made.store();
    let serving = own_serving.then(|| store.files("serving"));
    let client_ca = own_clients.then(|| store.authority_files(tls::Kind::Client).certificate);
    let mut kubeconfig = None;
    if own_serving && own_clients {
        let path = config.data_dir.join("admin.kubeconfig");
        made = made.with_kubeconfig(&path, format!("https://{}", reachable(address)));
        kubeconfig = Some(path);
    }
    Own { made, serving, client_ca, kubeconfig }
}

/// The address at which users of this machine reach `address`: loopback for an unspecified one.
fn reachable(address: SocketAddr) -> SocketAddr {
    let mut address = address;
    if address.ip().is_unspecified() {
        address.set_ip(if address.is_ipv4() { [127, 0, 0, 1].into() } else { std::net::Ipv6Addr::LOCALHOST.into() });
    }
    address
}

/// The health endpoints `/livez`, `/readyz` and `/healthz`; `more` are further readiness checks.
pub(super) fn health(
    drain: &Drain,
    access_log: &AccessLog,
    (table, documents): (&Published<Table>, &Published<Documents>),
    more: &[Check],
) -> Vec<Health> {
    let leaving = |drain: Drain| {
        Check::new("shutdown", move || {
            if drain.phase() == Phase::Serving { Ok(()) } else { Err("process is shutting down".to_owned()) }
        })
    };
    let last = [discovery(table.clone(), documents.clone()), leaving(drain.clone())];
    let ready = [Check::ping(), access_log.check()].into_iter().chain(more.iter().cloned()).chain(last);
    vec![Health::new("livez", [Check::ping()]), Health::new("readyz", ready), Health::new("healthz", [Check::ping()])]
}

/// A readiness check that fails until the requested serving certificate is issued.
fn waiting_for_certificate(waits: Published<Option<String>>) -> Check {
    Check::new("serving-certificate", move || waits.load().as_ref().clone().map_or(Ok(()), Err))
}

/// A readiness check that succeeds, for good, once the registry is complete and discovery was fetched from every
/// backend (KEP-3352). The name is kube-apiserver's.
fn discovery(table: Published<Table>, documents: Published<Documents>) -> Check {
    let complete = AtomicBool::default();
    Check::new("poststarthook/apiservice-discovery-controller", move || {
        if complete.load(Ordering::Relaxed) || (table.load().complete && documents.load().all_asked()) {
            complete.store(true, Ordering::Relaxed);
            return Ok(());
        }
        Err("discovery not fetched from all backends yet".to_owned())
    })
}

fn say_where(config: &GatewayConfig, address: SocketAddr, admin: Option<SocketAddr>, kubeconfig: Option<&Path>) {
    tracing::info!(%address, "serving");
    if let Some(address) = admin {
        tracing::info!(%address, "admin listener");
    }
    if let Some(path) = kubeconfig {
        tracing::info!(path = %path.display(), "administrator kubeconfig");
    }
    if config.behind.registry.is_none() && config.behind.cluster.is_none() && !config.is_sidecar() {
        tracing::info!(
            "no registry configured, so there are no backends; set --registry-dir, or --kubeconfig for a kube-apiserver"
        );
    }
}
