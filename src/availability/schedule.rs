//! When each backend is asked: every APIService by itself, none waits for another.

use std::collections::HashMap;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::StreamExt as _;
use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio::time::sleep;

use super::board::Board;
use super::condition::{Condition, ConditionStatus};
use super::judge::{Finding, Judge};
use super::probe::{Probe, ProbeFailure, one_probe};
use crate::egress::{Destination, Ways};
use crate::process::{Drain, Phase, Published};
use crate::registry::{ApiService, Mark, Registry, Resolved, Rules, Unavailable, resolve};

/// Hears what changes, for metrics (`aggregator_unavailable_apiservice` and its `_total`).
pub trait Witness {
    /// Whether `name` is unavailable now; told whenever anything about its condition changed.
    fn unavailable(&self, name: &str, unavailable: bool);
    /// `name` became unavailable, or is so for another reason than before.
    fn became_unavailable(&self, name: &str, reason: &str);
    /// `name` is no more.
    fn forgotten(&self, name: &str);
}

/// While a backend is away it is asked again this soon at first, then twice as long after each time,
const SOON: Duration = Duration::from_secs(1);
/// up to this long, or its probe interval if that is shorter: whoever waits for it should not wait long.
const SELDOM: Duration = Duration::from_secs(5);

/// Probes every APIService of `registry` until the process ends.
///
/// A change of an APIService makes a fresh start for it alone. Other endpoints of the same backend do not: what was found
/// out so far counts, and a probe under way goes on.
pub async fn run(
    mut registry: Published<Registry>,
    rules: Rules,
    mut ways: Published<Ways>,
    board: Board,
    probe: impl Probe,
    witness: impl Witness,
    mut drain: Drain,
) {
    let judges = Judges { board: &board, witness: &witness };
    let mut running = FuturesUnordered::<Pin<Box<dyn Future<Output = ()> + '_>>>::new();
    let mut subjects: HashMap<String, Subject> = HashMap::new();
    let mut seen = None;
    loop {
        let now = registry.get();
        let ways_now = ways.get();
        // Another way may lead anything elsewhere.
        let same_ways = |seen: &&(Mark, Arc<Ways>)| Arc::ptr_eq(&seen.1, &ways_now);
        let services = seen.as_ref().filter(same_ways).and_then(|(mark, _)| now.only_endpoints_since(mark));
        seen = Some((now.mark(), ways_now.clone()));
        // All that may lead elsewhere than before.
        let moved = |one: &ApiService| match &services {
            Some(services) => one.backend.is_one_of(services),
            None => true,
        };
        subjects.retain(|name, subject| {
            let stays = services.is_some() || now.api_service(name).is_some();
            if !stays {
                subject.watch.abort();
                board.forget(name);
                witness.forgotten(name);
            }
            stays
        });
        for api_service in now.api_services.iter().filter(|one| moved(one)) {
            let led = Led { api_service: api_service.clone(), place: resolve(api_service, &now, rules, &ways_now) };
            if let Some(known) = subjects.get(&api_service.name) {
                let before = known.led.borrow().clone();
                if Arc::ptr_eq(&before.api_service, api_service) && before.place == led.place {
                    continue;
                }
                if before.is_asked_like(&led) {
                    known.led.send_replace(Rc::new(led));
                    continue;
                }
            }
            let judge = match subjects.remove(&api_service.name) {
                Some(known) => {
                    known.watch.abort();
                    known.judge
                }
                None => SharedJudge::default(),
            };
            let (watch, registration) = AbortHandle::new_pair();
            let (led, following) = watch::channel(Rc::new(led));
            let asking = ask(following, judge.clone(), &judges, &probe);
            running.push(Box::pin(async move {
                // Aborted is ended.
                let _ = Abortable::new(asking, registration).await;
            }));
            subjects.insert(api_service.name.clone(), Subject { led, judge, watch });
        }
        loop {
            tokio::select! {
                () = registry.changed() => break,
                () = ways.changed() => break,
                () = drain.reached(Phase::Ending) => return,
                Some(()) = running.next() => {}
            }
        }
    }
}

struct Subject {
    led: watch::Sender<Rc<Led>>,
    judge: SharedJudge,
    watch: AbortHandle,
}

/// An APIService and where it leads now.
struct Led {
    api_service: Arc<ApiService>,
    place: Result<Resolved, Unavailable>,
}

impl Led {
    /// Whether `other` is the same backend, asked in the same way; perhaps at other endpoints.
    fn is_asked_like(&self, other: &Led) -> bool {
        let (Ok(place), Ok(other_place)) = (&self.place, &other.place) else { return false };
        if (&place.server_name, &place.prefix) != (&other_place.server_name, &other_place.prefix) {
            return false;
        }
        if Arc::ptr_eq(&self.api_service, &other.api_service) {
            return true;
        }
        fn trust(of: &ApiService) -> impl PartialEq {
            (&of.backend, &of.ca_bundle, of.insecure_skip_tls_verify, &of.client_certificate)
        }
        fn manner(of: &ApiService) -> impl PartialEq {
            let settings = &of.settings;
            let times = [settings.probe_interval, settings.probe_timeout, settings.connect_timeout];
            (times, settings.failure_threshold, settings.success_threshold)
        }
        let (one, other) = (&*self.api_service, &*other.api_service);
        trust(one) == trust(other) && manner(one) == manner(other)
    }
}

/// Shared between the old and the new way of asking when an APIService changes; never borrowed across an
/// await.
type SharedJudge = Rc<std::cell::RefCell<Option<Judge>>>;

/// Where verdicts go.
struct Judges<'r, W> {
    board: &'r Board,
    witness: &'r W,
}

impl<W: Witness> Judges<'_, W> {
    fn announce(&self, name: &str, before: Option<&Condition>, now: &Condition) {
        self.board.put(name, now);
        let unavailable = now.status == ConditionStatus::False;
        self.witness.unavailable(name, unavailable);
        let (reason, message, detail) = (now.reason.as_ref(), &now.message, &now.detail);
        if unavailable {
            if before.is_none_or(|before| before.status != ConditionStatus::False || before.reason != now.reason) {
                self.witness.became_unavailable(name, reason);
            }
            tracing::warn!(apiservice = name, reason, detail, "APIService is not available: {message}");
        } else if now.status == ConditionStatus::True {
            tracing::info!(apiservice = name, reason, "APIService is available");
        }
    }

    fn begin(&self, api_service: &ApiService, judge: &SharedJudge) {
        let now = SystemTime::now();
        let (failures, successes) = (api_service.settings.failure_threshold, api_service.settings.success_threshold);
        let mut judge = judge.borrow_mut();
        let before = judge.as_ref().map(|judge| judge.condition().clone());
        let judge = judge.get_or_insert_with(|| Judge::new(failures, successes, now));
        judge.begin_again(failures, successes, now);
        if before.as_ref() != Some(judge.condition()) {
            self.announce(&api_service.name, before.as_ref(), judge.condition());
        }
    }

    /// The condition's status after it.
    fn hear(&self, api_service: &ApiService, judge: &SharedJudge, finding: Finding) -> ConditionStatus {
        let mut judge = judge.borrow_mut();
        let Some(judge) = judge.as_mut() else { return ConditionStatus::Unknown };
        let before = judge.condition().clone();
        if judge.hear(finding, SystemTime::now()) {
            self.announce(&api_service.name, Some(&before), judge.condition());
        }
        judge.condition().status
    }
}

async fn ask<W: Witness>(
    mut following: watch::Receiver<Rc<Led>>,
    judge: SharedJudge,
    judges: &Judges<'_, W>,
    probe: &impl Probe,
) {
    let first = following.borrow().clone();
    let api_service = &first.api_service;
    match &first.place {
        Ok(_) => judges.begin(api_service, &judge),
        Err(Unavailable { reason: "Local", .. }) => {
            judges.begin(api_service, &judge);
            judges.hear(api_service, &judge, Finding::Local);
        }
        Err(Unavailable { reason, message }) => {
            let now = SystemTime::now();
            let settings = &api_service.settings;
            judge
                .borrow_mut()
                .get_or_insert_with(|| Judge::new(settings.failure_threshold, settings.success_threshold, now));
            judges.hear(api_service, &judge, Finding::Nowhere { reason, message: message.clone() });
        }
    }
    let interval = api_service.settings.probe_interval;
    let mut turn = fastrand::usize(..);
    let mut pause = SOON.min(interval);
    loop {
        let now = following.borrow_and_update().clone();
        let (api_service, Ok(resolved)) = (&now.api_service, &now.place) else { return };
        let availability = judges.board.of(&api_service.name);
        let heard = |endpoint: &Destination, answered| availability.probed(endpoint, answered);
        let finding = match one_probe(api_service, resolved, turn, probe, heard).await {
            Ok(()) => Finding::Answered,
            Err(ProbeFailure { message, detail }) => Finding::Failed { message, detail },
        };
        turn = turn.wrapping_add(1);
        let away = judges.hear(api_service, &judge, finding) == ConditionStatus::False;
        // One that is away is looked for more often, so that it is found soon after it came back. One that fails
        // while it is available is not: `failure-threshold` intervals are what the operator granted it.
        let wait = if away { pause } else { interval };
        pause = if away { (pause * 2).min(SELDOM) } else { SOON }.min(interval);
        tokio::select! {
            () = sleep(wait.mul_f64(0.9 + 0.2 * fastrand::f64())) => {}
            // Others may answer where the last ones did not.
            Ok(()) = following.changed(), if away => pause = SOON.min(interval),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::availability::Availability;
    use crate::process::Drainer;
    use crate::registry::snapshot::tests::{api_service, registry};

    /// How each APIService's backend behaves now, and how often it was asked.
    #[derive(Clone, Default)]
    struct Backends(Rc<RefCell<HashMap<String, (Behaviour, u32)>>>);

    #[derive(Clone, Copy, Default, PartialEq)]
    enum Behaviour {
        #[default]
        Answers,
        Fails,
        Stalls,
        /// It answers after two seconds.
        IsSlow,
    }

    impl Backends {
        fn set(&self, name: &str, behaviour: Behaviour) {
            self.0.borrow_mut().entry(name.to_owned()).or_default().0 = behaviour;
        }

        fn asked(&self, name: &str) -> u32 {
            self.0.borrow().get(name).map_or(0, |(_, asked)| *asked)
        }
    }

    impl Probe for Backends {
        async fn probe(&self, api_service: &ApiService, _: &Resolved, at: &Destination) -> Result<(), ProbeFailure> {
            let behaviour = {
                let mut all = self.0.borrow_mut();
                let known = all.entry(api_service.name.clone()).or_default();
                known.1 += 1;
                known.0
            };
            match behaviour {
                Behaviour::Answers => Ok(()),
                Behaviour::Fails => Err(ProbeFailure::unreachable(api_service, "connection refused", at)),
                Behaviour::Stalls => std::future::pending().await,
                Behaviour::IsSlow => {
                    sleep(Duration::from_secs(2)).await;
                    Ok(())
                }
            }
        }
    }

    #[derive(Clone, Default)]
    struct Heard(Rc<RefCell<Vec<String>>>);

    impl Witness for Heard {
        fn unavailable(&self, _: &str, _: bool) {}
        fn became_unavailable(&self, name: &str, reason: &str) {
            self.0.borrow_mut().push(format!("{name} {reason}"));
        }
        fn forgotten(&self, name: &str) {
            self.0.borrow_mut().push(format!("{name} forgotten"));
        }
    }

    const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: api, namespace: ns}\nspec: {clusterIP: 10.0.0.1, ports: [{port: 443}]}\n---\n";

    fn text(name: &str) -> String {
        let service = "service: {name: api, namespace: ns}";
        api_service(name, &format!("groupPriorityMinimum: 1, versionPriority: 1, {service}"))
    }

    async fn until(board: &Board, name: &str, wanted: impl Fn(&Condition) -> bool) -> Arc<Availability> {
        let mut changes = board.changes();
        let availability = board.of(name);
        let change = async {
            while !wanted(&availability.condition()) {
                changes.changed().await.unwrap();
            }
        };
        timeout(Duration::from_secs(3600), change).await.expect("the verdict");
        availability
    }

    type World = (crate::process::Publisher<Registry>, Board, Backends, Heard, Drainer);

    /// Runs `scenario` beside the probing of `documents`, on a clock of the test's own.
    async fn with<F: Future<Output = ()>>(documents: &str, backends: Backends, scenario: impl FnOnce(World) -> F) {
        let (publisher, published) = Published::new(registry(documents));
        let (drainer, drain) = Drain::new();
        let (board, heard) = (Board::default(), Heard::default());
        let probing = run(
            published,
            Rules::default(),
            Published::fixed(Ways::default()),
            board.clone(),
            backends.clone(),
            heard.clone(),
            drain,
        );
        tokio::join!(probing, scenario((publisher, board, backends, heard, drainer)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_backend_delays_no_other() {
        let backends = Backends::default();
        backends.set("v1.slow.io", Behaviour::Stalls);
        let begin = Instant::now();
        with(&format!("{}{}{SERVICE}", text("v1.slow.io"), text("v1.fine.io")), backends, async |world| {
            let (_publisher, board, _, _, _drainer) = world;
            until(&board, "v1.fine.io", |now| now.status == ConditionStatus::True).await;
            assert!(begin.elapsed() < Duration::from_secs(1));
            assert_eq!(board.of("v1.slow.io").condition().status, ConditionStatus::Unknown);
            assert!(board.of("v1.slow.io").is_available(), "not yet judged is let through");
            let slow = until(&board, "v1.slow.io", |now| now.status == ConditionStatus::False).await;
            assert_eq!(slow.condition().message, "timed out waiting for /apis/slow.io/v1");
            assert!(slow.condition().detail.contains("10.0.0.1:443"));
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn it_takes_three_failures_to_fall_and_little_time_to_rise() {
        let documents = format!("{}{SERVICE}", text("v1.a.io"));
        with(&documents, Backends::default(), async |world| {
            let (_publisher, board, backends, heard, _drainer) = world;
            until(&board, "v1.a.io", |now| now.status == ConditionStatus::True).await;
            backends.set("v1.a.io", Behaviour::Fails);
            let (begin, asked) = (Instant::now(), backends.asked("v1.a.io"));
            let fallen = until(&board, "v1.a.io", |now| now.status == ConditionStatus::False).await;
            assert!(!fallen.is_available());
            assert_eq!(backends.asked("v1.a.io") - asked, 3);
            assert!(begin.elapsed() > Duration::from_secs(60));
            assert!(!fallen.condition().message.contains("10.0.0.1"), "clients read no inner address");
            backends.set("v1.a.io", Behaviour::Answers);
            let begin = Instant::now();
            until(&board, "v1.a.io", |now| now.status == ConditionStatus::True).await;
            assert!(begin.elapsed() < Duration::from_secs(2));
            assert_eq!(*heard.0.borrow(), ["v1.a.io FailedDiscoveryCheck"]);
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_registry_is_judged_at_once() {
        with(&text("v1.a.io"), Backends::default(), async |world| {
            let (publisher, board, backends, heard, _drainer) = world;
            let one = until(&board, "v1.a.io", |now| now.reason == "ServiceNotFound").await;
            assert!(!one.is_available());
            assert_eq!(backends.asked("v1.a.io"), 0);
            publisher.publish(Arc::new(registry(&format!("{}{SERVICE}", text("v1.a.io")))));
            until(&board, "v1.a.io", |now| now.reason == "Passed").await;
            publisher.publish(Arc::new(registry("")));
            while heard.0.borrow().len() < 2 {
                tokio::task::yield_now().await;
            }
            assert_eq!(*heard.0.borrow(), ["v1.a.io ServiceNotFound", "v1.a.io forgotten"]);
        })
        .await;
    }

    /// The endpoint of `v1.a.io`, which is another for each number.
    fn led_to(number: usize) -> Registry {
        let slice = format!(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: api-1, namespace: ns, labels: {{kubernetes.io/service-name: api}}}}\naddressType: IPv4\nports: [{{port: 1}}]\nendpoints: [{{addresses: ['10.0.1.{number}']}}]\n"
        );
        registry(&format!("{}{SERVICE}{slice}", text("v1.a.io")))
    }

    #[tokio::test(start_paused = true)]
    async fn other_endpoints_are_no_fresh_start() {
        let documents = format!("{}{SERVICE}", text("v1.a.io"));
        with(&documents, Backends::default(), async |world| {
            let (publisher, board, backends, _, _drainer) = world;
            until(&board, "v1.a.io", |now| now.status == ConditionStatus::True).await;
            backends.set("v1.a.io", Behaviour::Fails);
            let (begin, asked) = (Instant::now(), backends.asked("v1.a.io"));
            // A roll-out: a pod comes and another goes, every five seconds.
            let rolling = async {
                for number in 1.. {
                    sleep(Duration::from_secs(5)).await;
                    publisher.publish(Arc::new(led_to(number % 200)));
                }
            };
            let fallen = tokio::select! {
                fallen = until(&board, "v1.a.io", |now| now.status == ConditionStatus::False) => fallen,
                () = rolling => unreachable!("it goes on"),
            };
            assert_eq!(backends.asked("v1.a.io") - asked, 3);
            assert!(begin.elapsed() > Duration::from_secs(60));
            assert!(fallen.condition().detail.contains("10.0.1."), "{}", fallen.condition().detail);
            // While it is away others are asked at once.
            backends.set("v1.a.io", Behaviour::Fails);
            sleep(Duration::from_secs(60)).await;
            backends.set("v1.a.io", Behaviour::Answers);
            let begin = Instant::now();
            publisher.publish(Arc::new(led_to(201)));
            until(&board, "v1.a.io", |now| now.status == ConditionStatus::True).await;
            assert!(begin.elapsed() < Duration::from_millis(1));
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_under_way_is_let_finish() {
        let backends = Backends::default();
        backends.set("v1.a.io", Behaviour::IsSlow);
        with(&format!("{}{SERVICE}", text("v1.a.io")), backends, async |world| {
            let (publisher, board, backends, _, _drainer) = world;
            let rolling = async {
                for number in 1.. {
                    sleep(Duration::from_millis(300)).await;
                    publisher.publish(Arc::new(led_to(number % 200)));
                }
            };
            tokio::select! {
                _ = until(&board, "v1.a.io", |now| now.status == ConditionStatus::True) => {}
                () = rolling => unreachable!("it goes on"),
            }
            assert_eq!(backends.asked("v1.a.io"), 1);
            // Another backend is another matter: it is asked, and not what was.
            let text = text("v1.a.io").replace("name: api,", "name: other,");
            backends.set("v1.a.io", Behaviour::Answers);
            publisher.publish(Arc::new(registry(&format!("{text}{}", SERVICE.replace("name: api", "name: other")))));
            while backends.asked("v1.a.io") < 2 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}
