//! From the configuration to a running gateway: read everything, tell all mistakes, then listen.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc;

use super::Files;
use super::control::{Asker, Counting, Fetcher};
use super::running::Running;
use super::shared::{Bound, Forwarding, Shared};
use super::worker::Worker;
use super::{settings, status};
use crate::authenticate::{Authenticator, TokenFile, Tokens};
use crate::availability::report::{self, Reports, View};
use crate::availability::{self, Board};
use crate::config::GatewayConfig;
use crate::discovery::{Discovery, Known};
use crate::egress::Pool;
use crate::forward::Stamp;
use crate::listen::{Acceptor, Connections, Incoming, Limits, accept, bind, raise_descriptor_limit};
use crate::observe::access::{self, AccessLog};
use crate::observe::health::{Check, Health};
use crate::observe::log::LogLevel;
use crate::observe::metrics::Metrics;
use crate::openapi::OpenApi;
use crate::process::{Drain, Phase, Problem, Problems, Published, Publisher};
use crate::registry::{Directory, Registry};
use crate::route::{self, Inflight, Table};
use crate::tls::server::ServingPublishers;
use crate::tls::{Identity, PairFiles, SelfMade, Wanted, serving_names};
use crate::{admin, authenticate, tls};

/// What a role that contains the gateway adds to it.
#[derive(Default)]
pub struct Extra {
    /// Further self-made certificates to keep.
    pub certificates: Vec<Wanted>,
}

/// Starts the gateway with what was read. When this returns, it listens.
///
/// # Errors
/// What else keeps it from listening: a port in use, certificates that cannot be made.
pub fn start(config: &GatewayConfig, files: Files, extra: Extra, log_level: LogLevel) -> Result<Running, Problems> {
    let limits = settings::limits(config);
    let (drainer, drain) = Drain::new();
    let metrics = Metrics::new();
    let Files { mut serving, identity, registry, tokens, request_headers } = files;

    // The port first: the kubeconfig names it, and a taken port is the likeliest mistake.
    let listener = bind(config.serving.address)?;
    let address = listener.local_addr().map_err(|error| Problem::new(config.serving.address, error))?;

    let own = own_certificates(config, address, extra);
    own.made.ensure(SystemTime::now())?;
    serving.add(own.serving, own.client_ca)?;
    let (identity, our_identity) = match identity {
        Some(named) => named,
        None => Identity::load(own.made.store().files("front-proxy"))?,
    };
    let access_log = AccessLog::to_standard_error(&metrics)?;

    let (serving_publishers, serving_readers) = serving.publish()?;
    let (directory, registry) =
        registry.map_or_else(Default::default, |(directory, registry)| (Some(directory), registry));
    let board = Board::default();
    let rules = config.behind.rules;
    let table = Table::build(&registry, rules, &board, None);
    let (registry_publisher, registry) = Published::new(registry);
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
    // Both are made on the control thread and shared from here.
    let (ready, discovered) = std::sync::mpsc::channel();

    let control = Control {
        serving,
        serving_publishers,
        made: own.made,
        identity,
        our_identity: our_identity.clone(),
        directory,
        registry_publisher,
        registry: registry.clone(),
        table_publisher,
        table: table.clone(),
        board: board.clone(),
        view: view_publisher,
        rules,
        tokens: tokens_publisher,
        resolver: config.behind.resolver,
        metrics: metrics.clone(),
        in_use: serving_readers.in_use.clone(),
        drain: drain.clone(),
    };
    let mut threads = Vec::new();
    thread("control", move || control.run(ready))?;
    let Ok((documents, openapi)) = discovered.recv() else {
        return Err(Problem::new("control", "the control thread ended early").into());
    };

    let health = health(&drain, &access_log);
    let shared = Arc::new(Shared {
        authenticator: Authenticator::new(authenticate::Settings {
            trust: serving_readers.trust.clone(),
            request_headers,
            tokens,
            anonymous: config.who.anonymous,
        }),
        authorizer: settings::authorizer(config),
        serving: serving_readers,
        reports: Reports::new(view, drain.clone()),
        table,
        documents,
        openapi,
        identity: our_identity,
        metrics,
        health,
        forwarding: Forwarding {
            error_format: config.forwarding.error_format,
            forward_uid: config.forwarding.forward_uid,
            reject_redirects: config.forwarding.reject_redirects,
            goaway_chance: config.serving.goaway_chance,
            send_retry_after: config.shutdown.send_retry_after,
        },
        reading: Bound { running: Inflight::default(), most: config.forwarding.max_inflight.unwrap_or(0) },
        mutating: Bound { running: Inflight::default(), most: config.forwarding.max_mutating_inflight.unwrap_or(0) },
        drain: drain.clone(),
    });

    let access_log = Arc::new(access_log);
    let settings = config.seen.access;
    let mut acceptor = Acceptor::default();
    let mut all_connections = Vec::new();
    let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    for number in 0..workers {
        let incoming = acceptor.worker();
        let connections = Connections::default();
        all_connections.push(connections.clone());
        let work = Work {
            connections,
            shared: shared.clone(),
            access_log: access_log.clone(),
            settings,
            resolver: config.behind.resolver,
            incoming,
            limits: limits.clone(),
        };
        threads.push(thread(&format!("worker-{number}"), move || work.run())?);
    }
    let descriptors = raise_descriptor_limit();
    // A few descriptors stay free for files and the operator; a proxied connection takes up to two.
    let most = if limits.max_connections == usize::MAX {
        descriptors.map_or(usize::MAX, |all| usize::try_from(all.saturating_sub(64) / 2).unwrap_or(usize::MAX).max(16))
    } else {
        limits.max_connections
    };
    threads.push(thread("accept", move || {
        if let Some(runtime) = runtime() {
            runtime.block_on(accept(listener, acceptor, most, drain));
        }
    })?);

    let admin = match config.seen.admin_address {
        Some(at) => {
            let told = status::Told {
                address,
                registry,
                board,
                connections: all_connections,
                log_level,
                access_log: access_log.clone(),
            };
            Some(admin::spawn(&at.to_string(), status::state(&shared, told))?)
        }
        None => None,
    };
    say_where(config, address, admin.as_ref().map(|admin| admin.local_addr), own.kubeconfig.as_deref());
    Ok(Running::new(address, admin, drainer, config, threads, shared, access_log))
}

/// The certificates that no flag names, to be made by ourselves.
struct Own {
    made: SelfMade,
    serving: Option<PairFiles>,
    client_ca: Option<PathBuf>,
    kubeconfig: Option<PathBuf>,
}

fn own_certificates(config: &GatewayConfig, address: SocketAddr, extra: Extra) -> Own {
    let directory = config.serving.certificate_dir.clone().unwrap_or_else(|| config.data_dir.join("pki"));
    let named = &config.serving.tls;
    let own_serving = named.pair.is_none() && named.named.is_empty();
    let own_clients = named.client_ca.is_none();
    let mut wanted = extra.certificates;
    if own_serving {
        wanted.push(Wanted::serving(&serving_names(Some(address.ip()))));
    }
    if own_clients {
        wanted.push(Wanted::admin());
    }
    if config.behind.proxy_client.is_none() {
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

/// Where this machine's own users reach `address`.
fn reachable(address: SocketAddr) -> SocketAddr {
    let mut address = address;
    if address.ip().is_unspecified() {
        address.set_ip(if address.is_ipv4() { [127, 0, 0, 1].into() } else { std::net::Ipv6Addr::LOCALHOST.into() });
    }
    address
}

pub(super) fn health(drain: &Drain, access_log: &AccessLog) -> Vec<Health> {
    let leaving = |drain: Drain| {
        Check::new("shutdown", move || {
            if drain.phase() == Phase::Serving { Ok(()) } else { Err("process is shutting down".to_owned()) }
        })
    };
    vec![
        Health::new("livez", [Check::ping()]),
        Health::new("readyz", [Check::ping(), access_log.check(), leaving(drain.clone())]),
        Health::new("healthz", [Check::ping()]),
    ]
}

fn say_where(
    config: &GatewayConfig,
    address: SocketAddr,
    admin: Option<SocketAddr>,
    kubeconfig: Option<&std::path::Path>,
) {
    tracing::info!(%address, "serving");
    if let Some(address) = admin {
        tracing::info!(%address, "admin");
    }
    if let Some(path) = kubeconfig {
        tracing::info!(path = %path.display(), "kubeconfig of an administrator");
    }
    if config.behind.registry.is_none() {
        tracing::info!("no registry is given, so there is nothing behind; name a directory with --registry-dir");
    }
}

/// A runtime for one thread.
fn runtime() -> Option<tokio::runtime::Runtime> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.inspect_err(|error| tracing::error!(%error, "no runtime for a thread")).ok()
}

fn thread(name: &str, run: impl FnOnce() + Send + 'static) -> Result<std::thread::JoinHandle<()>, Problem> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .map_err(|error| Problem::new(format!("thread {name}"), error))
}

/// What one worker thread is started with.
struct Work {
    connections: Connections,
    shared: Arc<Shared>,
    access_log: Arc<AccessLog>,
    settings: access::Settings,
    resolver: settings::ResolverChoice,
    incoming: mpsc::UnboundedReceiver<Incoming>,
    limits: Limits,
}

impl Work {
    fn run(self) {
        let Some(runtime) = runtime() else { return };
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async move {
            let reports = access::Worker::new(&self.shared.metrics, &self.access_log, self.settings);
            let worker = Worker::new(self.shared, reports, settings::resolver(self.resolver));
            worker.run(self.incoming, self.limits, self.connections).await;
        });
    }
}

/// What the control thread is started with.
struct Control {
    serving: tls::server::Files,
    serving_publishers: ServingPublishers,
    made: SelfMade,
    identity: Identity,
    our_identity: Published<tls::KeyPair>,
    directory: Option<Directory>,
    registry_publisher: Publisher<Registry>,
    registry: Published<Registry>,
    table_publisher: Publisher<Table>,
    table: Published<Table>,
    board: Board,
    view: Publisher<View>,
    rules: crate::registry::Rules,
    tokens: Option<(TokenFile, Publisher<Tokens>)>,
    resolver: settings::ResolverChoice,
    metrics: Arc<Metrics>,
    in_use: Published<Vec<tls::server::InUse>>,
    drain: Drain,
}

type Discovered = (Published<crate::discovery::Documents>, Published<crate::openapi::Index>);

impl Control {
    fn run(self, ready: std::sync::mpsc::Sender<Discovered>) {
        let Some(runtime) = runtime() else { return };
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, self.follow(ready));
    }

    async fn follow(self, ready: std::sync::mpsc::Sender<Discovered>) {
        let stamp = match Stamp::new(&Asker::user(), false) {
            Ok(stamp) => stamp,
            Err(unspeakable) => return tracing::error!(why = unspeakable.0, "our own name cannot be sent"),
        };
        let asker = Rc::new(Asker {
            pool: Pool::new(settings::resolver(self.resolver)),
            identity: self.our_identity,
            table: self.table,
            stamp,
            metrics: self.metrics.clone(),
        });
        let (discovery, documents) = Discovery::start(Fetcher(asker.clone()));
        let (openapi, index) = OpenApi::start(Fetcher(asker.clone()));
        if ready.send((documents, index)).is_err() {
            return;
        }
        let spawn = tokio::task::spawn_local::<std::pin::Pin<Box<dyn Future<Output = ()>>>>;
        let serving = self.serving.follow(self.serving_publishers, Box::new(|_| {}), self.drain.clone());
        spawn(Box::pin(serving));
        spawn(Box::pin(self.made.renew(self.drain.clone())));
        spawn(Box::pin(self.identity.follow(Box::new(|_| {}), self.drain.clone())));
        if let Some((file, publisher)) = self.tokens {
            spawn(Box::pin(file.follow(publisher, Box::new(|_| {}), self.drain.clone())));
        }
        let metrics = self.metrics.clone();
        if let Some(directory) = self.directory {
            spawn(Box::pin(directory.follow(self.registry_publisher, self.drain.clone(), |_| {})));
        }
        spawn(Box::pin(route::follow(
            self.registry.clone(),
            self.rules,
            self.board.clone(),
            self.table_publisher,
            self.drain.clone(),
        )));
        spawn(Box::pin(report::follow(self.registry.clone(), self.board.clone(), self.view, self.drain.clone())));
        let (registry, rules, board, drain) =
            (self.registry.clone(), self.rules, self.board.clone(), self.drain.clone());
        let probing = asker.clone();
        spawn(Box::pin(async move {
            availability::run(registry, rules, board, &*probing, Counting(metrics), drain).await;
        }));
        let known = Knowing {
            registry: self.registry,
            board: self.board,
            metrics: self.metrics,
            asker,
            in_use: self.in_use,
            drain: self.drain,
        };
        known.follow(&discovery, &openapi).await;
    }
}

/// Keeps discovery and OpenAPI told of what is registered and of what came back.
struct Knowing {
    registry: Published<Registry>,
    board: Board,
    metrics: Arc<Metrics>,
    asker: Rc<Asker>,
    in_use: Published<Vec<tls::server::InUse>>,
    drain: Drain,
}

impl Knowing {
    async fn follow(mut self, discovery: &Discovery<Fetcher>, openapi: &OpenApi<Fetcher>) {
        let mut changes = self.board.changes();
        let mut available = std::collections::HashMap::new();
        let mut counted = 0;
        let mut places: Vec<String> = Vec::new();
        let mut round = tokio::time::interval(Duration::from_secs(1));
        let aggregations = discovery.aggregations();
        let mut told = u64::MAX;
        loop {
            let registry = self.registry.get();
            if registry.version != told {
                told = registry.version;
                let known: Vec<Known> = registry.api_services.iter().filter_map(|one| Known::of(one)).collect();
                discovery.follow(known.clone());
                openapi.follow(known);
            }
            // Files with mistakes, each counted; those that were mended go.
            let mut now: Vec<String> = registry.problems.0.iter().map(|problem| file_of(&problem.place)).collect();
            for gone in places.iter().filter(|place| !now.contains(place)) {
                self.metrics.registry_errors(gone, 0);
            }
            for place in &now {
                self.metrics.registry_errors(place, now.iter().filter(|other| *other == place).count());
            }
            now.dedup();
            places = now;
            for one in &registry.api_services {
                let is = self.board.of(&one.name).is_available();
                // What comes back is asked at once, and so is what went away: its documents turn stale when it does.
                if available.insert(one.name.clone(), is).is_some_and(|was| was != is) {
                    discovery.nudge(&one.name);
                    openapi.nudge(&one.name);
                }
            }
            available.retain(|name: &String, _| registry.api_service(name).is_some());
            let total = aggregations.load(std::sync::atomic::Ordering::Relaxed);
            for _ in counted..total {
                self.metrics.discovery_aggregated();
            }
            counted = total;
            tokio::select! {
                () = self.registry.changed() => {}
                changed = changes.changed() => if changed.is_err() { return },
                _ = round.tick() => {
                    self.asker.pool.sweep();
                    self.tell_expiry();
                }
                () = self.drain.reached(Phase::Ending) => return,
            }
        }
    }
}

impl Knowing {
    /// When each certificate in use ends.
    fn tell_expiry(&self) {
        let seconds = |time: rustls::pki_types::UnixTime| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        for in_use in self.in_use.load().iter() {
            self.metrics.certificate_expires(&in_use.file.display().to_string(), seconds(in_use.not_after));
        }
        let ours = self.asker.identity.load();
        self.metrics.certificate_expires(ours.place(), seconds(ours.not_after()));
    }
}

/// The file in a problem's place, without the number of its document.
fn file_of(place: &str) -> String {
    place.split(" document ").next().unwrap_or(place).trim_end_matches(',').to_owned()
}
