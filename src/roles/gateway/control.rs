//! The control thread: watches files, probes backends, and fetches their documents.
//!
//! It shares only published snapshots with the workers, so that no request waits for it.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::{Duration, SystemTime};

use tokio::task::spawn_local;

use super::asker::{Asker, Counting, DOCUMENT_MEMORY, Fetcher};
use super::doubts::{self, Doubts};
use super::expiry::{ExpiryLog, Sources};
use super::mistakes::Mistakes;
use super::reached::{self, Reached};
use super::settings;
use super::status::delegate;
use crate::authenticate::{TokenFile, Tokens, jwt};
use crate::authorize::rbac_proxy::{self, RulesFile};
use crate::authorize::{Policy, PolicyFile};
use crate::availability::report::{self, View};
use crate::availability::{self, Board, ConditionStatus};
use crate::discovery::{Change, Discovery, Documents, Kept, Known, Own};
use crate::egress::{Pool, Ways, WaysFile};
use crate::forward::Stamp;
use crate::observe::audit;
use crate::observe::metrics::{Circuit, Metrics};
use crate::openapi::{Aggregation2, Index, OpenApi, Version2};
use crate::process::{Drain, Phase, Published, Publisher, Shares};
use crate::registry::{ApiService, Backend, DELEGATE, Delegate, Mark, Registry, Rules, UpstreamFiles, Upstreams};
use crate::reviewer::{ConfigMap, Speaker};
use crate::route::{self, Route, Table};
use crate::tls::server::{self, InUse, ServingPublishers, Trust};
use crate::tls::{Identity, KeyPair, SelfMade};

/// Inputs of the control thread.
pub(super) struct Control {
    pub(super) serving: server::Files,
    pub(super) serving_publishers: ServingPublishers,
    pub(super) made: SelfMade,
    /// Client certificate for backends; each upstream of a sidecar has its own.
    pub(super) identity: Option<(Identity, Published<KeyPair>)>,
    /// With `--delegate-kubeconfig`: its file, publisher and snapshot.
    pub(super) delegate: Option<(Delegate, Publisher<ApiService>, Published<ApiService>)>,
    /// The upstreams of a sidecar.
    pub(super) upstreams: Option<(UpstreamFiles, Publisher<Upstreams>, Published<Upstreams>)>,
    /// Readiness of the upstreams.
    pub(super) reached: Option<Publisher<Reached>>,
    pub(super) registry: Published<Registry>,
    pub(super) table_publisher: Publisher<Table>,
    pub(super) table: Published<Table>,
    pub(super) board: Board,
    pub(super) view: Publisher<View>,
    pub(super) trust: Published<Trust>,
    pub(super) doubts: Publisher<Doubts>,
    pub(super) rules: Rules,
    pub(super) tokens: Option<(TokenFile, Publisher<Tokens>)>,
    pub(super) policy: Option<(PolicyFile, Publisher<Policy>)>,
    pub(super) rules_file: Option<(RulesFile, Publisher<rbac_proxy::Rules>)>,
    pub(super) jwt: Option<jwt::Following>,
    /// With `--serve-delegation`.
    pub(super) speaker: Option<(Speaker, Publisher<ConfigMap>)>,
    /// Whether the delegate serves the APIService API: they are registered in its kube-apiserver.
    pub(super) registrations_elsewhere: bool,
    /// Whether the delegate gets all requests that no APIService claims.
    pub(super) delegates_all: bool,
    pub(super) mistakes: Mistakes,
    pub(super) audit: Option<(audit::PolicyFile, Publisher<audit::Policy>)>,
    pub(super) egress: settings::Egress,
    /// With `--egress-selector-config-file`.
    pub(super) ways_file: Option<(WaysFile, Publisher<Ways>)>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) in_use: Published<Vec<InUse>>,
    /// Documents of backends from earlier processes.
    pub(super) kept: Kept,
    pub(super) drain: Drain,
}

/// Snapshots published by the control thread and read by workers.
pub(super) type Discovered = (Published<Documents>, Published<Index>, Version2);

impl Control {
    /// Runs until the process ends. `ready` receives the readers of the published documents.
    pub(super) async fn run(self, ready: Sender<Discovered>) {
        let stamp = match Stamp::new(&Asker::user(), false) {
            Ok(stamp) => stamp,
            Err(unspeakable) => return tracing::error!(why = unspeakable.0, "own user name is no valid header value"),
        };
        let dialler = self.egress.dialler();
        let ways = self.egress.ways;
        let seen_ways = ways.clone();
        let (identity, our_identity) = self.identity.unzip();
        let asker = Rc::new(Asker {
            pool: Pool::new(dialler.clone()),
            identity: our_identity,
            table: self.table,
            stamp,
            metrics: self.metrics.clone(),
        });
        let own = Own {
            delegation: self.speaker.is_some(),
            delegate: self.delegates_all,
            registrations_elsewhere: self.registrations_elsewhere,
        };
        let memory = Shares::new(DOCUMENT_MEMORY);
        let fetcher = || Fetcher { asker: asker.clone(), memory: memory.clone() };
        let (discovery, documents) = Discovery::start(fetcher(), own, &self.kept);
        let delegate_documents = self.delegates_all.then(|| documents.clone());
        let (openapi, index) = OpenApi::start(fetcher(), own, &self.kept);
        let (openapi2, version2) = Aggregation2::start(fetcher(), &self.kept);
        if ready.send((documents, index, version2)).is_err() {
            return;
        }
        let drain = || self.drain.clone();
        spawn_local(self.serving.follow(self.serving_publishers, self.mistakes.of("serving"), drain()));
        spawn_local(self.made.renew(drain()));
        if let Some(identity) = identity {
            spawn_local(identity.follow(self.mistakes.of("identity"), drain()));
        }
        if let Some((file, publisher)) = self.tokens {
            spawn_local(file.follow(publisher, self.mistakes.of("tokens"), drain()));
        }
        if let Some(jwt) = self.jwt {
            spawn_local(jwt.run(dialler.clone(), self.mistakes.of("authentication"), drain()));
        }
        if let Some((file, publisher)) = self.ways_file {
            spawn_local(file.follow(publisher, self.mistakes.of("egress"), drain()));
        }
        if let Some((file, publisher)) = self.policy {
            spawn_local(file.follow(publisher, self.mistakes.of("policy"), drain()));
        }
        if let Some((file, publisher)) = self.rules_file {
            spawn_local(file.follow(publisher, self.mistakes.of("config-file"), drain()));
        }
        if let Some((speaker, publisher)) = self.speaker {
            spawn_local(speaker.follow(publisher, drain()));
        }
        if let Some((file, publisher)) = self.audit {
            spawn_local(file.follow(publisher, self.mistakes.of("audit"), drain()));
        }
        let (registry, rules, board) = (&self.registry, self.rules, &self.board);
        let delegate = self.delegate.map(|(file, publisher, delegate)| {
            spawn_local(file.follow(publisher, self.mistakes.of("delegate"), drain()));
            delegate
        });
        let upstreams = self.upstreams.map(|(files, publisher, upstreams)| {
            spawn_local(files.follow(publisher, self.mistakes.of("upstream"), drain()));
            upstreams
        });
        if let Some(reached) = self.reached {
            spawn_local(reached::follow(asker.table.clone(), dialler.clone(), reached, drain()));
        }
        let table_publisher = self.table_publisher;
        let sources =
            route::Sources { registry: registry.clone(), delegate: delegate.clone(), upstreams, ways: ways.clone() };
        spawn_local(route::follow(sources, rules, board.clone(), table_publisher, drain()));
        spawn_local(report::follow(registry.clone(), board.clone(), self.view, drain()));
        spawn_local(doubts::follow(registry.clone(), self.trust, self.doubts, self.metrics.clone(), drain()));
        let (registry, board, drain) = (registry.clone(), board.clone(), drain());
        let (probing, counting) = (asker.clone(), Counting(self.metrics.clone()));
        spawn_local(async move { availability::run(registry, rules, ways, board, &*probing, counting, drain).await });
        let known = Knowing {
            registry: self.registry,
            table: asker.table.clone(),
            delegates_all: self.delegates_all,
            board: self.board,
            delegate: delegate_documents.map(DelegateSeen::new),
            metrics: self.metrics,
            asker,
            in_use: self.in_use,
            ways: seen_ways,
            proxies_told: Vec::new(),
            expiry: ExpiryLog::default(),
            kept: self.kept,
            drain: self.drain,
        };
        known.follow(&discovery, &openapi, &openapi2).await;
    }
}

/// Updates discovery, OpenAPI and metrics when the registry or availability changes.
struct Knowing {
    registry: Published<Registry>,
    table: Published<Table>,
    delegates_all: bool,
    /// With `--delegate-kubeconfig`.
    delegate: Option<DelegateSeen>,
    board: Board,
    metrics: Arc<Metrics>,
    asker: Rc<Asker>,
    in_use: Published<Vec<InUse>>,
    ways: Published<Ways>,
    /// Files of client certificates for egress proxies that have an expiry series in the metrics.
    proxies_told: Vec<String>,
    expiry: ExpiryLog,
    kept: Kept,
    drain: Drain,
}

impl Knowing {
    async fn follow(
        mut self,
        discovery: &Discovery<Fetcher>,
        openapi: &OpenApi<Fetcher>,
        openapi2: &Aggregation2<Fetcher>,
    ) {
        let mut changes = self.board.changes();
        let mut counted = 0;
        let mut mistakes: HashMap<String, usize> = HashMap::new();
        let mut problems = None;
        let mut round = tokio::time::interval(Duration::from_secs(1));
        let aggregations = discovery.aggregations();
        let mut told: Option<(Mark, Option<*const ApiService>)> = None;
        let mut judged = 0;
        let mut seen = Seen::default();
        let mut rounds = 0_u32;
        let mut swept = false;
        loop {
            let registry = self.registry.get();
            // Documents are fetched by the table: an older one has the old addresses of moved backends.
            let table = self.table.get();
            if !table.is_of(&registry) {
                tokio::select! {
                    () = self.table.changed() => continue,
                    () = self.drain.reached(Phase::Ending) => return,
                }
            }
            let delegate = table.delegate().filter(|_| self.delegates_all).map(|route| &route.api_service);
            let delegate_now = delegate.map(Arc::as_ptr);
            let (version, turned) = self.board.changed_since(judged);
            judged = version;
            // Documents do not depend on endpoint addresses.
            let registered = told.as_ref().and_then(|(mark, _)| registry.changes_since(mark));
            let registered = registered.map(|changes| changes.api_services);
            match &registered {
                Some(names) => {
                    let mut changed: Vec<Change> = names
                        .iter()
                        .map(|name| ((*name).to_owned(), registry.api_service(name).map(|one| Known::of(one))))
                        .collect();
                    if told.as_ref().is_none_or(|(_, before)| *before != delegate_now) {
                        changed.push((DELEGATE.to_owned(), delegate.map(|delegate| Known::of(delegate))));
                    }
                    if !changed.is_empty() {
                        discovery.follow_changes(changed.clone());
                        openapi.follow_changes(changed.clone());
                        openapi2.follow_changes(changed);
                    }
                }
                None => {
                    let known: Vec<Known> = registry.api_services().chain(delegate).map(|one| Known::of(one)).collect();
                    discovery.follow(known.clone());
                    openapi.follow(known.clone());
                    openapi2.follow(known);
                }
            }
            told = Some((registry.mark(), delegate_now));
            if registry.complete && !swept {
                swept = true;
                self.forget_others(&registry);
            }
            if problems.as_ref().is_none_or(|known| !Arc::ptr_eq(known, &registry.problems)) {
                problems = Some(registry.problems.clone());
                // A file without errors stays at 0: a series that ends looks like a failed scrape.
                mistakes.values_mut().for_each(|count| *count = 0);
                for problem in &registry.problems.0 {
                    *mistakes.entry(file_of(&problem.place)).or_default() += 1;
                }
                for (file, count) in &mistakes {
                    self.metrics.registry_errors(file, *count);
                }
            }
            let names: BTreeSet<String> = match (&registered, &turned) {
                (Some(registered), Some(turned)) => {
                    registered.iter().copied().chain(turned.iter().map(AsRef::as_ref)).map(str::to_owned).collect()
                }
                _ => registry.api_services().map(|one| one.name.clone()).chain(seen.names()).collect(),
            };
            // Fetched at once when availability changes: the documents become current or stale.
            for name in seen.look(names, &table, &self.metrics) {
                discovery.nudge(&name);
                openapi.nudge(&name);
                openapi2.nudge(&name);
            }
            let total = aggregations.load(Ordering::Relaxed);
            for _ in counted..total {
                self.metrics.discovery_aggregated();
            }
            counted = total;
            tokio::select! {
                () = self.registry.changed() => {}
                () = self.table.changed() => {}
                changed = changes.changed() => if changed.is_err() { return },
                _ = round.tick() => {
                    rounds += 1;
                    if rounds.is_multiple_of(ALL_AGAIN) {
                        seen.circuits.clear();
                    }
                    // Circuits have no change notification.
                    let delegate = table.delegate().filter(|_| self.delegates_all);
                    seen.look_at_circuits(table.routes().chain(delegate), &self.metrics);
                    if let Some(delegate) = &mut self.delegate {
                        delegate.observe(&self.metrics);
                    }
                    self.asker.pool.sweep();
                    self.tell_expiry();
                    self.check_expiry(&table, rounds);
                }
                () = self.drain.reached(Phase::Ending) => return,
            }
        }
    }

    /// Removes cached documents of APIServices that were unregistered while no process ran.
    fn forget_others(&self, registry: &Registry) {
        let names = registry.api_services().map(|one| one.name.clone());
        self.kept.sweep(names.chain([DELEGATE.to_owned()]).collect());
    }

    /// Warns of certificates that expire soon, every `EXPIRY_ROUNDS` seconds.
    fn check_expiry(&mut self, table: &Table, rounds: u32) {
        if rounds % EXPIRY_ROUNDS != 2 {
            return;
        }
        let identity = self.asker.identity.as_ref().map(Published::get);
        let (in_use, ways) = (self.in_use.get(), self.ways.get());
        let sources = Sources { in_use: &in_use, identity, ways: &ways, table, metrics: &self.metrics };
        if rounds / EXPIRY_ROUNDS % FORGET_EVERY == FORGET_EVERY - 1 {
            sources.forget_peers();
        }
        self.expiry.check(&sources, SystemTime::now());
    }

    /// Records in the metrics when each certificate in use expires.
    fn tell_expiry(&mut self) {
        let seconds = |time: rustls::pki_types::UnixTime| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        for in_use in self.in_use.load().iter() {
            self.metrics.certificate_expires(&in_use.file.display().to_string(), seconds(in_use.not_after));
        }
        let mut gone = std::mem::take(&mut self.proxies_told);
        for identity in self.ways.load().identities() {
            let place = identity.place();
            gone.retain(|file| file != place);
            if self.proxies_told.iter().all(|told| told != place) {
                self.metrics.certificate_expires(place, seconds(identity.not_after()));
                self.proxies_told.push(place.to_owned());
            }
        }
        gone.iter().for_each(|file| self.metrics.certificate_is_gone(file));
        // Last: an egress proxy may have the same certificate.
        if let Some(ours) = &self.asker.identity {
            let ours = ours.load();
            self.metrics.certificate_expires(ours.place(), seconds(ours.not_after()));
        }
    }
}

/// Seconds between two checks of certificate expiry.
const EXPIRY_ROUNDS: u32 = 10;
/// Number of expiry checks between two removals of unused peer certificates: once an hour.
const FORGET_EVERY: u32 = 360;

/// Availability of the delegate, for the metric `aggregator_unavailable_apiservice`.
struct DelegateSeen {
    documents: Published<Documents>,
    /// The last recorded value.
    available: Option<bool>,
}

impl DelegateSeen {
    fn new(documents: Published<Documents>) -> DelegateSeen {
        DelegateSeen { documents, available: None }
    }

    /// Records a change. Nothing is recorded before the first fetch from the delegate.
    fn observe(&mut self, metrics: &Metrics) {
        let condition = delegate(&self.documents.load());
        let available = match condition.status {
            ConditionStatus::True => true,
            ConditionStatus::False => false,
            ConditionStatus::Unknown => return,
        };
        if self.available.replace(available) != Some(available) {
            metrics.apiservice_is(DELEGATE, (!available).then_some(&*condition.reason));
        }
    }
}

/// Seconds after which every circuit state is recorded again, in case its series was removed.
const ALL_AGAIN: u32 = 30;

/// The last observed availability and circuit state of APIServices, by name.
#[derive(Default)]
struct Seen {
    available: HashMap<String, bool>,
    circuits: HashMap<String, Circuit>,
}

impl Seen {
    /// The names of all observed APIServices.
    fn names(&self) -> Vec<String> {
        self.available.keys().cloned().collect()
    }

    /// Observes the APIServices `names`. Returns those that changed their availability.
    fn look(&mut self, names: BTreeSet<String>, table: &Table, metrics: &Metrics) -> Vec<String> {
        let mut turned = Vec::new();
        for name in names {
            // The series of a re-created APIService was removed.
            self.circuits.remove(&name);
            let Some(route) = table.by_name(&name).filter(|_| name != DELEGATE) else {
                self.available.remove(&name);
                continue;
            };
            self.look_at_circuit(route, metrics);
            let is = route.availability.is_available();
            if self.available.insert(name.clone(), is).is_some_and(|was| was != is) {
                turned.push(name);
            }
        }
        turned
    }

    /// Observes the circuits of all routes. A closed circuit, as nearly all are, costs one load, so that an idle second
    /// stays cheap with many APIServices. Names are looked up only if a circuit was not closed or none is recorded.
    fn look_at_circuits<'r>(&mut self, routes: impl Iterator<Item = &'r Arc<Route>>, metrics: &Metrics) {
        let all = self.circuits.is_empty() || self.circuits.values().any(|told| *told != Circuit::Closed);
        for route in routes {
            if all || route.availability.circuit() != Circuit::Closed {
                self.look_at_circuit(route, metrics);
            }
        }
    }

    fn look_at_circuit(&mut self, route: &Route, metrics: &Metrics) {
        let (name, now) = (&route.api_service.name, route.availability.circuit());
        if !matches!(route.api_service.backend, Backend::Local) && self.circuits.get(name) != Some(&now) {
            self.circuits.insert(name.clone(), now);
            metrics.circuit_is(name, now);
        }
    }
}

/// The file in a problem's place, without the document number; or `kube-apiserver`.
fn file_of(place: &str) -> String {
    if place.starts_with("kube-apiserver, ") {
        return "kube-apiserver".to_owned();
    }
    place.split(" document ").next().unwrap_or(place).trim_end_matches(',').to_owned()
}
