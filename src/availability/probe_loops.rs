//! Runs one probe loop per APIService.

use std::collections::{BTreeSet, HashMap};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::FuturesUnordered;
use tokio::sync::watch;

use super::availability_map::{Availability, AvailabilityMap};
use super::probe::Probe;
use super::prober::{ConditionPublisher, ProbeObserver, ProbeTarget, SharedTracker, probe_repeatedly};
use crate::egress::EgressRoutes;
use crate::process::{Drain, Published, ShutdownPhase};
use crate::registry::{ApiServiceBackend, Registry, ResolveRules, Revision, resolve};

/// Probes every APIService of `registry` until the process ends.
///
/// A change of an APIService restarts its probe loop alone. New endpoints of the same backend do not: results so far
/// count, and a probe in flight continues.
pub async fn run(
    mut registry: Published<Registry>,
    rules: ResolveRules,
    mut routes: Published<EgressRoutes>,
    availability_map: AvailabilityMap,
    probe: impl Probe,
    observer: impl ProbeObserver,
    mut drain: Drain,
) {
    let publisher = ConditionPublisher { map: &availability_map, observer: &observer };
    let mut running = FuturesUnordered::<Pin<Box<dyn Future<Output = ()> + '_>>>::new();
    let mut tasks: HashMap<String, ProbeTask> = HashMap::new();
    let mut applied = None;
    loop {
        let now = registry.get();
        let current_routes = routes.get();
        // Other egress routes may change what anything resolves to.
        let has_same_routes = |applied: &&(Revision, Arc<EgressRoutes>)| Arc::ptr_eq(&applied.1, &current_routes);
        let changes = applied.as_ref().filter(has_same_routes).and_then(|(revision, _)| now.changes_since(revision));
        // All that may resolve differently, or are gone.
        let names: BTreeSet<String> = match changes {
            Some(changes) => changes.affected.into_iter().map(str::to_owned).collect(),
            None => now.api_services().map(|one| one.name.clone()).chain(tasks.keys().cloned()).collect(),
        };
        applied = Some((now.revision(), current_routes.clone()));
        let mut new_local = 0;
        for name in names {
            let Some(api_service) = now.api_service(&name) else {
                if let Some(task) = tasks.remove(&name) {
                    task.abort_handle.abort();
                    availability_map.forget(&name);
                    observer.removed(&name);
                }
                continue;
            };
            let target = ProbeTarget {
                api_service: api_service.clone(),
                resolved: resolve(api_service, &now, rules, &current_routes),
            };
            if let Some(task) = tasks.get(&api_service.name) {
                let before = task.target.borrow().clone();
                if Arc::ptr_eq(&before.api_service, api_service) && before.resolved == target.resolved {
                    continue;
                }
                if before.is_probed_alike(&target) {
                    task.target.send_replace(Rc::new(target));
                    continue;
                }
            }
            let availability = availability_map.get_or_insert(&api_service.name);
            let tracker = match tasks.remove(&api_service.name) {
                Some(task) => {
                    task.abort_handle.abort();
                    task.tracker
                }
                None => {
                    new_local += usize::from(api_service.backend == ApiServiceBackend::Local);
                    SharedTracker::default()
                }
            };
            let (abort_handle, registration) = AbortHandle::new_pair();
            let (target, targets) = watch::channel(Rc::new(target));
            let probing = probe_repeatedly(targets, tracker.clone(), &publisher, &probe);
            running.push(Box::pin(async move {
                // An aborted task ends like any other.
                let _ = Abortable::new(probing, registration).await;
            }));
            tasks.insert(
                api_service.name.clone(),
                ProbeTask { target, tracker, abort_handle, _availability: availability },
            );
        }
        if new_local > 0 {
            tracing::info!(count = new_local, "Local APIServices are available");
        }
        loop {
            tokio::select! {
                () = registry.changed() => break,
                () = routes.changed() => break,
                () = drain.wait_for(ShutdownPhase::Ending) => return,
                Some(()) = running.next() => {}
            }
        }
    }
}

struct ProbeTask {
    target: watch::Sender<Rc<ProbeTarget>>,
    tracker: SharedTracker,
    abort_handle: AbortHandle,
    /// Keeps the availability in use as long as the APIService exists.
    _availability: Arc<Availability>,
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::Duration;

    use tokio::time::{Instant, sleep, timeout};

    use super::*;
    use crate::availability::{
        AvailabilityCondition, BackendOutcome, ConditionStatus, ConnectionSettings, ProbeFailure,
    };
    use crate::egress::{Address, Host};
    use crate::process::Drainer;
    use crate::registry::snapshot::tests::{api_service, registry};
    use crate::registry::{ApiService, ResolvedBackend};

    /// How each APIService's backend behaves now, and how often it was probed.
    #[derive(Clone, Default)]
    struct Backends(Rc<RefCell<HashMap<String, (ProbeBehavior, u32)>>>);

    #[derive(Clone, Copy, Default, PartialEq)]
    enum ProbeBehavior {
        #[default]
        Answers,
        Fails,
        Stalls,
        /// It answers after two seconds.
        IsSlow,
    }

    impl Backends {
        fn set(&self, name: &str, behavior: ProbeBehavior) {
            self.0.borrow_mut().entry(name.to_owned()).or_default().0 = behavior;
        }

        fn asked(&self, name: &str) -> u32 {
            self.0.borrow().get(name).map_or(0, |(_, asked)| *asked)
        }
    }

    impl Probe for Backends {
        async fn probe(&self, api_service: &ApiService, _: &ResolvedBackend, at: &Address) -> Result<(), ProbeFailure> {
            let behavior = {
                let mut all = self.0.borrow_mut();
                let known = all.entry(api_service.name.clone()).or_default();
                known.1 += 1;
                known.0
            };
            match behavior {
                ProbeBehavior::Answers => Ok(()),
                ProbeBehavior::Fails => Err(ProbeFailure::unreachable(api_service, "connection refused", at)),
                ProbeBehavior::Stalls => std::future::pending().await,
                ProbeBehavior::IsSlow => {
                    sleep(Duration::from_secs(2)).await;
                    Ok(())
                }
            }
        }
    }

    #[derive(Clone, Default)]
    struct RecordedEvents(Rc<RefCell<Vec<String>>>);

    impl ProbeObserver for RecordedEvents {
        fn set_unavailable(&self, _: &str, _: bool) {}
        fn became_unavailable(&self, name: &str, reason: &str) {
            self.0.borrow_mut().push(format!("{name} {reason}"));
        }
        fn removed(&self, name: &str) {
            self.0.borrow_mut().push(format!("{name} forgotten"));
        }
    }

    const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: api, namespace: ns}\nspec: {clusterIP: 10.0.0.1, ports: [{port: 443}]}\n---\n";

    fn text(name: &str) -> String {
        let service = "service: {name: api, namespace: ns}";
        api_service(name, &format!("groupPriorityMinimum: 1, versionPriority: 1, {service}"))
    }

    async fn until(
        board: &AvailabilityMap,
        name: &str,
        wanted: impl Fn(&AvailabilityCondition) -> bool,
    ) -> Arc<Availability> {
        let mut changes = board.changes();
        let availability = board.get_or_insert(name);
        let change = async {
            while !wanted(&availability.condition()) {
                changes.changed().await.unwrap();
            }
        };
        timeout(Duration::from_secs(3600), change).await.expect("the condition");
        availability
    }

    type World = (crate::process::Publisher<Registry>, AvailabilityMap, Backends, RecordedEvents, Drainer);

    /// Runs `scenario` beside the probe loops of `documents`, on a paused clock.
    async fn with<F: Future<Output = ()>>(documents: &str, backends: Backends, scenario: impl FnOnce(World) -> F) {
        let (publisher, published) = Published::new(registry(documents));
        let (drainer, drain) = Drain::new();
        let (board, heard) = (AvailabilityMap::default(), RecordedEvents::default());
        let probing = run(
            published,
            ResolveRules::default(),
            Published::fixed(EgressRoutes::default()),
            board.clone(),
            backends.clone(),
            heard.clone(),
            drain,
        );
        tokio::join!(probing, scenario((publisher, board, backends, heard, drainer)));
    }

    #[tokio::test(start_paused = true)]
    async fn probe_stalled_backend_delays_no_other() {
        let backends = Backends::default();
        backends.set("v1.slow.io", ProbeBehavior::Stalls);
        let begin = Instant::now();
        with(&format!("{}{}{SERVICE}", text("v1.slow.io"), text("v1.fine.io")), backends, async |world| {
            let (_publisher, board, _, _, _drainer) = world;
            until(&board, "v1.fine.io", |now| now.status == ConditionStatus::True).await;
            assert!(begin.elapsed() < Duration::from_secs(1));
            assert_eq!(board.get_or_insert("v1.slow.io").condition().status, ConditionStatus::Unknown);
            assert!(board.get_or_insert("v1.slow.io").is_available(), "unknown is admitted");
            let slow = until(&board, "v1.slow.io", |now| now.status == ConditionStatus::False).await;
            assert_eq!(slow.condition().message, "timed out waiting for /apis/slow.io/v1");
            assert!(slow.condition().detail.contains("10.0.0.1:443"));
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn probe_three_failures_make_unavailable_and_one_success_available() {
        let documents = format!("{}{SERVICE}", text("v1.a.io"));
        with(&documents, Backends::default(), async |world| {
            let (_publisher, board, backends, heard, _drainer) = world;
            until(&board, "v1.a.io", |now| now.status == ConditionStatus::True).await;
            backends.set("v1.a.io", ProbeBehavior::Fails);
            let (begin, asked) = (Instant::now(), backends.asked("v1.a.io"));
            let fallen = until(&board, "v1.a.io", |now| now.status == ConditionStatus::False).await;
            assert!(!fallen.is_available());
            assert_eq!(backends.asked("v1.a.io") - asked, 3);
            assert!(begin.elapsed() > Duration::from_secs(60));
            assert!(!fallen.condition().message.contains("10.0.0.1"), "clients read no inner address");
            backends.set("v1.a.io", ProbeBehavior::Answers);
            let begin = Instant::now();
            until(&board, "v1.a.io", |now| now.status == ConditionStatus::True).await;
            assert!(begin.elapsed() < Duration::from_secs(2));
            assert_eq!(*heard.0.borrow(), ["v1.a.io FailedDiscoveryCheck"]);
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn probe_follows_request_failures_and_answers() {
        let documents = format!("{}{SERVICE}", text("v1.a.io"));
        with(&documents, Backends::default(), async |world| {
            let (_publisher, board, backends, _, _drainer) = world;
            let one = until(&board, "v1.a.io", |now| now.status == ConditionStatus::True).await;
            sleep(Duration::from_secs(10)).await;
            backends.set("v1.a.io", ProbeBehavior::Fails);
            let begin = Instant::now();
            one.record_failure(BackendOutcome::Unreachable, "ConnectionRefused");
            until(&board, "v1.a.io", |now| now.status == ConditionStatus::False).await;
            assert!(begin.elapsed() < Duration::from_secs(3));
            sleep(Duration::from_secs(20)).await;
            backends.set("v1.a.io", ProbeBehavior::Answers);
            sleep(Duration::from_millis(10)).await;
            // The answer to a request that was in flight all the while.
            let (begin, asked) = (Instant::now(), backends.asked("v1.a.io"));
            one.record_answer();
            until(&board, "v1.a.io", |now| now.status == ConditionStatus::True).await;
            assert!(begin.elapsed() <= Duration::from_secs(1));
            assert_eq!(backends.asked("v1.a.io") - asked, 1);
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn probe_after_errors_at_all_endpoints_is_bounded() {
        let documents = format!("{}{SERVICE}", text("v1.a.io"));
        with(&documents, Backends::default(), async |world| {
            let (_publisher, board, backends, _, _drainer) = world;
            let one = until(&board, "v1.a.io", |now| now.status == ConditionStatus::True).await;
            let at = |last| Address::tcp(Host::Ip([10, 0, 0, last].into()), 443);
            let standings = one.track_endpoints(ConnectionSettings::default(), &[at(1), at(2)]);
            let five =
                |number: usize| assert_eq!((0..5).filter(|_| standings[number].record_failure(|| false)).count(), 0);
            sleep(Duration::from_secs(5)).await;
            let asked = || backends.asked("v1.a.io");
            let before = asked();
            five(0);
            sleep(Duration::from_secs(1)).await;
            assert_eq!(asked(), before, "another is left");
            five(1);
            sleep(Duration::from_secs(1)).await;
            assert_eq!(asked(), before + 1);
            // Probes succeed all the same: in an hour requests trigger about one more for each scheduled one.
            for _ in 0..3600 {
                five(0);
                five(1);
                sleep(Duration::from_secs(1)).await;
            }
            assert!((200..270).contains(&(asked() - before)), "{}", asked() - before);
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn probe_at_once_after_registry_change() {
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

    /// A registry in which `v1.a.io` has one endpoint, chosen by `number`.
    fn registry_with_endpoint(number: usize) -> Registry {
        let slice = format!(
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: api-1, namespace: ns, labels: {{kubernetes.io/service-name: api}}}}\naddressType: IPv4\nports: [{{port: 1}}]\nendpoints: [{{addresses: ['10.0.1.{number}']}}]\n"
        );
        registry(&format!("{}{SERVICE}{slice}", text("v1.a.io")))
    }

    #[tokio::test(start_paused = true)]
    async fn endpoints_changed_probed_at_once_and_without_fresh_start() {
        let documents = format!("{}{SERVICE}", text("v1.a.io"));
        with(&documents, Backends::default(), async |world| {
            let (publisher, board, backends, _, _drainer) = world;
            until(&board, "v1.a.io", |now| now.status == ConditionStatus::True).await;
            sleep(Duration::from_secs(10)).await;
            // One successful probe is enough; then the interval is as before.
            let asked = backends.asked("v1.a.io");
            publisher.publish(Arc::new(registry_with_endpoint(0)));
            sleep(Duration::from_secs(10)).await;
            assert_eq!(backends.asked("v1.a.io") - asked, 1);
            backends.set("v1.a.io", ProbeBehavior::Fails);
            let (begin, asked) = (Instant::now(), backends.asked("v1.a.io"));
            publisher.publish(Arc::new(registry_with_endpoint(1)));
            let fallen = until(&board, "v1.a.io", |now| now.status == ConditionStatus::False).await;
            assert_eq!(backends.asked("v1.a.io") - asked, 3, "the failure threshold counts as ever");
            assert!(begin.elapsed() < Duration::from_secs(4));
            assert!(fallen.condition().detail.contains("10.0.1.1"), "{}", fallen.condition().detail);
            // While it is unavailable new endpoints are probed at once.
            sleep(Duration::from_secs(60)).await;
            backends.set("v1.a.io", ProbeBehavior::Answers);
            let begin = Instant::now();
            publisher.publish(Arc::new(registry_with_endpoint(201)));
            until(&board, "v1.a.io", |now| now.status == ConditionStatus::True).await;
            assert!(begin.elapsed() < Duration::from_millis(1));
            // Endpoints that change all the time cause about one probe per second.
            let asked = backends.asked("v1.a.io");
            for number in 0..100 {
                sleep(Duration::from_millis(100)).await;
                publisher.publish(Arc::new(registry_with_endpoint(number)));
            }
            assert!((8..=13).contains(&(backends.asked("v1.a.io") - asked)), "{}", backends.asked("v1.a.io") - asked);
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn circuit_open_is_in_the_message_of_an_available_apiservice() {
        let documents = format!("{}{SERVICE}", text("v1.a.io"));
        with(&documents, Backends::default(), async |world| {
            let (_publisher, board, _, _, _drainer) = world;
            let one = until(&board, "v1.a.io", |now| now.message == "all checks passed").await;
            one.record_failure(BackendOutcome::Unreachable, "ConnectionRefused");
            let said = until(&board, "v1.a.io", |now| now.message.contains("circuit open")).await.condition();
            assert_eq!((said.status, said.reason.as_ref()), (ConditionStatus::True, "Passed"));
            assert!(said.message.contains("ConnectionRefused"), "{}", said.message);
            // A successful probe closes the circuit.
            until(&board, "v1.a.io", |now| now.message == "all checks passed").await;
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn probe_result_shared_by_apiservices_of_endpoint() {
        let documents = format!("{}{}{SERVICE}", text("v1.a.io"), text("v2.a.io"));
        with(&documents, Backends::default(), async |world| {
            let (_publisher, board, backends, _, _drainer) = world;
            let at = [Address::tcp(Host::Ip([10, 0, 0, 1].into()), 443)];
            let settings = || ConnectionSettings::default();
            let (one, two) = (board.get_or_insert("v1.a.io"), board.get_or_insert("v2.a.io"));
            drop((one.track_endpoints(settings(), &at), two.track_endpoints(settings(), &at)));
            until(&board, "v1.a.io", |now| now.status == ConditionStatus::True).await;
            until(&board, "v2.a.io", |now| now.status == ConditionStatus::True).await;
            backends.set("v1.a.io", ProbeBehavior::Fails);
            backends.set("v2.a.io", ProbeBehavior::Fails);
            // A request failed at the endpoint of one: both become unavailable within seconds.
            let begin = Instant::now();
            one.track_endpoints(settings(), &at)[0].record_dial(Err("ConnectionRefused"));
            until(&board, "v1.a.io", |now| now.status == ConditionStatus::False).await;
            until(&board, "v2.a.io", |now| now.status == ConditionStatus::False).await;
            assert!(begin.elapsed() < Duration::from_secs(5));
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn probe_in_flight_finishes_when_endpoints_change() {
        let backends = Backends::default();
        backends.set("v1.a.io", ProbeBehavior::IsSlow);
        with(&format!("{}{SERVICE}", text("v1.a.io")), backends, async |world| {
            let (publisher, board, backends, _, _drainer) = world;
            let rolling = async {
                for number in 1.. {
                    sleep(Duration::from_millis(300)).await;
                    publisher.publish(Arc::new(registry_with_endpoint(number % 200)));
                }
            };
            tokio::select! {
                _ = until(&board, "v1.a.io", |now| now.status == ConditionStatus::True) => {}
                () = rolling => unreachable!("it goes on"),
            }
            assert_eq!(backends.asked("v1.a.io"), 1);
            // Another backend restarts the loop: the new one is probed, and not the old one.
            let text = text("v1.a.io").replace("name: api,", "name: other,");
            backends.set("v1.a.io", ProbeBehavior::Answers);
            publisher.publish(Arc::new(registry(&format!("{text}{}", SERVICE.replace("name: api", "name: other")))));
            while backends.asked("v1.a.io") < 2 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}
