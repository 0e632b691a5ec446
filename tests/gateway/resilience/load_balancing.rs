//! Load balancing over three endpoints of one Service: requests and watches when endpoints die, stall, fail, come and
//! go.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use http::Method;
use tokio::task::JoinSet;

use crate::support::assert_refused::retry_after_seconds;
use crate::support::backend::{Backend, BackendSettings, data_frame, json_response, streamed_response};
use crate::support::client::{Client, ClientResponse, admin_request, get, metric_value, next_chunk, request};
use crate::support::fixtures::{TestEnvironment, eventually};
use crate::support::gateway_fixture::{GatewayFixture, THINGS, annotations_yaml, register_things};
use crate::support::process::{BackendProcess, signed_response};
use crate::support::raw_backend::{self, RawConnection};

const NAMES: [&str; 3] = ["a", "b", "c"];

/// Responses per endpoint, and failures.
#[derive(Default)]
struct ResponseTally {
    answered_by: Mutex<BTreeMap<String, usize>>,
    failures: Mutex<Vec<(Method, ClientResponse)>>,
    is_finished: AtomicBool,
}

impl ResponseTally {
    fn count_by(&self, name: &str) -> usize {
        self.answered_by.lock().unwrap().get(name).copied().unwrap_or_default()
    }

    fn total(&self) -> usize {
        self.answered_by.lock().unwrap().values().sum()
    }

    /// Waits until so many more requests are answered.
    async fn wait_for_more(&self, count: usize) {
        let then = self.total() + count;
        eventually("more answers", async || (self.total() >= then).then_some(())).await;
    }

    fn take_failures(&self) -> Vec<(Method, ClientResponse)> {
        std::mem::take(&mut *self.failures.lock().unwrap())
    }
}

/// Asks without end, over connections of both kinds, until `scenario` is over.
async fn run_under_load<T>(
    fixture: &GatewayFixture,
    tally: &Arc<ResponseTally>,
    scenario: impl Future<Output = T>,
) -> T {
    let mut load = JoinSet::new();
    for number in 0..12 {
        let client = if number % 3 == 0 { fixture.http1().await } else { fixture.http2().await };
        let tally = tally.clone();
        load.spawn(async move {
            while !tally.is_finished.load(Ordering::SeqCst) {
                for method in [Method::GET, Method::GET, Method::POST] {
                    let body = if method == Method::GET { "" } else { "{}" };
                    let path = format!("{THINGS}?wait={}", fastrand::u8(0..10));
                    let reply = client.send_and_read(request(method.clone(), &path, &[], body)).await;
                    if reply.status == 200 && reply.is_complete {
                        let by = reply.json()["by"].as_str().unwrap().to_owned();
                        *tally.answered_by.lock().unwrap().entry(by).or_default() += 1;
                    } else {
                        tally.failures.lock().unwrap().push((method, reply));
                    }
                }
            }
        });
    }
    let result = scenario.await;
    tally.is_finished.store(true, Ordering::SeqCst);
    load.join_all().await;
    result
}

fn start_processes(environment: &TestEnvironment, settings: &BackendSettings) -> Vec<BackendProcess> {
    NAMES.iter().map(|name| BackendProcess::start(environment, name, settings)).collect()
}

/// What may be lost when an endpoint dies or stalls: a POST that may have been carried out, and is said to be.
fn assert_only_ambiguous_posts_failed(refused: &[(Method, ClientResponse)]) {
    for (method, reply) in refused {
        assert_eq!(method, Method::POST, "{} {}", reply.status, reply.text());
        let status = reply.assert_failure(503, "ServiceUnavailable");
        let reason = status["details"]["causes"][0]["reason"].as_str();
        assert!(matches!(reason, Some("ConnectionBroken" | "NoAnswer")), "{status}");
        assert_eq!(retry_after_seconds(reply), None, "it may have been carried out: {status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn load_balancing_endpoint_killed_under_load_and_restarted() {
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let environment = TestEnvironment::new();
        let mut all = start_processes(&environment, &settings);
        let addresses: Vec<SocketAddr> = all.iter().map(|one| one.address).collect();
        let fixture = GatewayFixture::with_addresses(environment, &addresses, &[]);
        let tally = Arc::new(ResponseTally::default());
        run_under_load(&fixture, &tally, async {
            tally.wait_for_more(300).await;
            for name in NAMES {
                assert!(tally.count_by(name) > 30, "{:?}", tally.answered_by.lock().unwrap());
            }
            let address = all.pop().unwrap().kill();
            tally.wait_for_more(300).await;
            assert_only_ambiguous_posts_failed(&tally.take_failures());
            let before = tally.count_by("c");
            tally.wait_for_more(300).await;
            assert_eq!(tally.count_by("c"), before);
            assert!(tally.take_failures().is_empty(), "no failures once the endpoint is ejected");
            let ejected =
                format!("narthex_endpoint_ejected{{apiservice=\"v1.things.example.com\",endpoint=\"{address}\"}}");
            eventually("the operator to see it", async || {
                (metric_value(&fixture.gateway, &ejected).await == Some(1.0)).then_some(())
            })
            .await;
            all.push(BackendProcess::start(
                &fixture.environment,
                "c",
                &BackendSettings { address, ..settings.clone() },
            ));
            eventually("it to be used again", async || (tally.count_by("c") > before + 30).then_some(())).await;
            assert!(tally.take_failures().is_empty());
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn load_balancing_endpoint_stalled_under_load_and_resumed() {
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let environment = TestEnvironment::new();
        let all = start_processes(&environment, &settings);
        let addresses: Vec<SocketAddr> = all.iter().map(|one| one.address).collect();
        let fixture = GatewayFixture::with_addresses(environment, &addresses, &[]);
        let tally = Arc::new(ResponseTally::default());
        run_under_load(&fixture, &tally, async {
            tally.wait_for_more(300).await;
            all[2].pause();
            // Requests on a stalled connection wait until it is closed by its timeout.
            let state = eventually("it to be left", async || {
                let report = admin_request(&fixture.gateway, get("/status.json", &[])).await.json();
                let endpoints = report["apiservices"][0]["endpoints"].as_array().unwrap().clone();
                endpoints.into_iter().find(|one| one["state"] == "unreachable")
            })
            .await;
            assert_eq!(state["address"], addresses[2].to_string());
            let before = tally.count_by("c");
            tally.wait_for_more(600).await;
            assert_eq!(tally.count_by("c"), before);
            let output =
                || fixture.gateway.log_lines().iter().filter(|line| line.contains("does not answer; not used")).count();
            eventually("it to be said", async || (output() > 0).then_some(())).await;
            all[2].resume();
            eventually("it to be used again", async || (tally.count_by("c") > before + 30).then_some(())).await;
            // The recovered state is no longer reported.
            let before = output();
            tally.wait_for_more(300).await;
            assert_eq!(output(), before);
        })
        .await;
        assert_only_ambiguous_posts_failed(&tally.take_failures());
    }
}

/// Endpoints with hints for the gateway's zone get all requests while they exist; so do terminating endpoints that
/// still serve when none is ready.
#[tokio::test(flavor = "multi_thread")]
async fn endpoint_topology_hints_and_conditions_honored() {
    let environment = TestEnvironment::new();
    let mut backends = Vec::new();
    for name in NAMES {
        backends.push(
            Backend::start(&environment, BackendSettings::default(), move |request| signed_response(name, request))
                .await,
        );
    }
    let addresses: Vec<SocketAddr> = backends.iter().map(|backend| backend.address).collect();
    let listed = |of: [(&str, bool); 3]| {
        let text = environment.apiservice_manifests("things.example.com", "v1", &addresses, &annotations_yaml(&[]));
        let mut slices = text.split("conditions: {ready: true}");
        let mut all = slices.next().unwrap().to_owned();
        for ((zone, ready), rest) in of.into_iter().zip(slices) {
            let conditions = if ready { "ready: true" } else { "ready: false, serving: true, terminating: true" };
            all += &format!("conditions: {{{conditions}}}, hints: {{forZones: [{{name: {zone}}}]}}{rest}");
        }
        environment.write_registry("things.yaml", &all);
    };
    listed([("there", true), ("here", true), ("there", true)]);
    let gateway = environment.start_gateway(&["--zone=here"]);
    let jane = environment.issue_user("jane", &[]);
    let client = Client::http2(&environment, &gateway, Some(&jane)).await;
    let recorded = async || {
        let mut by = std::collections::BTreeSet::new();
        for _ in 0..30 {
            by.insert(client.get(THINGS).await.json()["by"].as_str().unwrap().to_owned());
        }
        by.into_iter().collect::<String>()
    };
    assert_eq!(recorded().await, "b");
    listed([("here", true), ("here", false), ("there", true)]);
    eventually("the next to take over", async || (recorded().await == "a").then_some(())).await;
    listed([("here", false), ("here", false), ("here", false)]);
    eventually("those that end to serve", async || (recorded().await == "abc").then_some(())).await;
    listed([("there", true), ("there", true), ("there", false)]);
    eventually("hints for others to be no hints", async || (recorded().await == "ab").then_some(())).await;
    listed([("here", true), ("there", true), ("there", true)]);
    eventually("the hint to be heeded", async || (recorded().await == "a").then_some(())).await;
    backends.remove(0).stop().await;
    eventually("the others to serve when none of the zone is left", async || (recorded().await == "bc").then_some(()))
        .await;
}

/// Reads a watch to its end; the number of the endpoint and the last event.
async fn open_watch(client: &Client, path: &str) -> (hyper::body::Incoming, String) {
    let mut body = client.send(get(&format!("{path}?watch=1"), &[])).await.unwrap().into_body();
    let line = next_chunk(&mut body).await.unwrap().unwrap();
    let by = serde_json::from_slice::<serde_json::Value>(&line).unwrap()["by"].as_str().unwrap().to_owned();
    (body, by)
}

/// The rest of a watch, which ends between two events.
async fn assert_ends_cleanly(mut body: hyper::body::Incoming) {
    let mut last = "\n".to_owned();
    while let Some(frame) = next_chunk(&mut body).await {
        last = String::from_utf8(frame.expect("no error").to_vec()).unwrap();
    }
    assert!(last.ends_with('\n'), "{last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_ends_cleanly_when_endpoint_dies_and_resumes_elsewhere() {
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let environment = TestEnvironment::new();
        let mut all: BTreeMap<String, BackendProcess> =
            NAMES.iter().map(|name| (name.to_string(), BackendProcess::start(&environment, name, &settings))).collect();
        let addresses: Vec<SocketAddr> = all.values().map(|one| one.address).collect();
        let fixture = GatewayFixture::with_addresses(environment, &addresses, &[]);
        for client in fixture.both_protocols().await {
            let (body, by) = open_watch(&client, THINGS).await;
            all.remove(&by).expect("the endpoint of the watch").kill();
            assert_ends_cleanly(body).await;
            let (_, elsewhere) = open_watch(&client, THINGS).await;
            assert_ne!(elsewhere, by);
        }
    }
}

/// Each event of a protobuf watch stands behind its length; only after a whole one is the watch whole.
#[tokio::test(flavor = "multi_thread")]
async fn protobuf_watch_ends_cleanly_only_between_events() {
    let environment = TestEnvironment::new();
    let (send, mut writers) = tokio::sync::mpsc::unbounded_channel();
    let backend = Backend::start(&environment, BackendSettings::default(), move |_| {
        let (writer, mut reply) = streamed_response(200);
        let kind = "application/vnd.kubernetes.protobuf;stream=watch";
        reply.headers_mut().insert("content-type", kind.parse().unwrap());
        send.send(writer).unwrap();
        async { reply }
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    for (last, whole) in [("\0\0\0\u{3}two", true), ("\0\0\0\u{9}half", false), ("\0\0", false)] {
        for client in fixture.both_protocols().await {
            let pending = client.send(get(&format!("{THINGS}?watch=1"), &[]));
            let writing = async {
                let writer = writers.recv().await.unwrap();
                writer.send(data_frame("\0\0\0\u{3}one")).unwrap();
                writer
            };
            let (response, writer) = tokio::join!(pending, writing);
            let mut body = response.unwrap().into_body();
            assert_eq!(next_chunk(&mut body).await.unwrap().unwrap(), "\0\0\0\u{3}one");
            writer.send(data_frame(last)).unwrap();
            assert_eq!(next_chunk(&mut body).await.unwrap().unwrap(), last);
            writer.send(Err(std::io::Error::other("gone"))).unwrap();
            assert_eq!(next_chunk(&mut body).await.is_none(), whole, "{last:?}");
        }
    }
}

/// One endpoint that speaks HTTP/1.1 needs a connection for each request: it gets so many, and no more.
#[tokio::test(flavor = "multi_thread")]
async fn connections_per_endpoint_limited() {
    use narthex::egress::{Address, BackendTls, EndpointKey, Host, Pool, Resolver, SendError, TransportSecurity};
    let environment = TestEnvironment::new();
    let (go, hold) = (Arc::new(tokio::sync::Semaphore::new(0)), Arc::new(AtomicBool::new(true)));
    let (gone, holds) = (go.clone(), hold.clone());
    let backend = Backend::start(&environment, BackendSettings::http1(), move |_| {
        let (go, hold) = (gone.clone(), holds.load(Ordering::SeqCst));
        async move {
            if hold {
                go.acquire().await.unwrap().forget();
            }
            json_response(200, "{}")
        }
    })
    .await;
    let pair = narthex::tls::PairFiles::new(environment.path("front-proxy.crt"), environment.path("front-proxy.key"));
    let identity = Some(Arc::new(narthex::tls::KeyPair::load(&pair).unwrap()));
    let settings = narthex::tls::client::ClientSettings {
        ca_bundle: None,
        insecure_skip_verify: true,
        identity,
        alpn: Vec::new(),
    };
    let upstream = EndpointKey {
        address: Address::tcp(Host::Ip(backend.address.ip()), backend.address.port()),
        security: TransportSecurity::Tls(Arc::new(BackendTls::new("things-v1.things.svc", settings).unwrap())),
        connect_timeout: std::time::Duration::from_secs(10),
        egress_route: narthex::egress::EgressRoute::Direct,
        preserve_host: false,
    };
    let scenario = async {
        let endpoint = Pool::new(Resolver::System).with_max_per_endpoint(3).endpoint(&upstream);
        let send = || {
            let endpoint = endpoint.clone();
            async move {
                let mut request = http::Request::new(narthex::message::Body::Empty);
                *request.uri_mut() = THINGS.parse().unwrap();
                let sent = endpoint.send(Box::new(request)).await;
                sent.map(|mut sent| sent.guard.finish()).map_err(|error| match error {
                    SendError::NotSent { error, .. } => error.reason,
                    _ => "sent",
                })
            }
        };
        // The first says what is spoken; then three at a time.
        hold.store(false, Ordering::SeqCst);
        assert_eq!(send().await, Ok(()));
        hold.store(true, Ordering::SeqCst);
        let running: Vec<_> = (0..3).map(|_| tokio::task::spawn_local(send())).collect();
        eventually("three to be under way", async || (backend.received().len() == 4).then_some(())).await;
        assert_eq!(send().await, Err("TooManyStreams"));
        assert!(endpoint.is_usable(), "that says nothing against it");
        go.add_permits(3);
        for one in running {
            assert_eq!(one.await.unwrap(), Ok(()));
        }
        hold.store(false, Ordering::SeqCst);
        assert_eq!(send().await, Ok(()));
        assert!(backend.connections() <= 4);
    };
    tokio::task::LocalSet::new().run_until(scenario).await;
}

/// The pod is gone from the slices, and its process does not say so: its watches move on, those of others do not.
#[tokio::test(flavor = "multi_thread")]
async fn watches_drained_from_endpoint_removed_from_slice() {
    let environment = TestEnvironment::new();
    let start = async |name: &'static str| {
        Backend::start(&environment, BackendSettings::default(), move |request| signed_response(name, request)).await
    };
    let (a, b) = (start("a").await, start("b").await);
    let fixture = GatewayFixture::with_addresses(environment, &[a.address], &[]);
    let [one, two] = fixture.both_protocols().await;
    let leaving = [open_watch(&one, THINGS).await.0, open_watch(&two, THINGS).await.0];
    register_things(&fixture.environment, &[b.address], &[]);
    let staying = eventually("the new one to be used", async || {
        let (body, by) = open_watch(&fixture.http2().await, THINGS).await;
        (by == "b").then_some(body)
    })
    .await;
    let staying = tokio::spawn(assert_ends_cleanly(staying));
    for watch in leaving {
        assert_ends_cleanly(watch).await;
    }
    assert!(!staying.is_finished());
    assert_eq!(open_watch(&one, THINGS).await.1, "b");
}

/// Two versions are served by the same endpoint, over the same connections. One of them moves elsewhere, and only its
/// watches do.
#[tokio::test(flavor = "multi_thread")]
async fn watches_of_other_version_kept_when_one_version_moves() {
    let environment = TestEnvironment::new();
    let shared =
        Backend::start(&environment, BackendSettings::http2(), |request| signed_response("shared", request)).await;
    let others = BackendSettings { names: vec!["others-v1.others.svc"], ..BackendSettings::http2() };
    let own = Backend::start(&environment, others, |request| signed_response("own", request)).await;
    let second =
        environment.apiservice_manifests("things.example.com", "v2", &[shared.address], &annotations_yaml(&[]));
    environment.write_registry("second.yaml", &second.replace("things-v2", "things-v1"));
    let first = environment.apiservice_manifests("things.example.com", "v1", &[], &annotations_yaml(&[]));
    environment.write_registry("first.yaml", first.split("---").next().unwrap());
    let fixture = GatewayFixture::from_registry(environment, &[]);
    let client = fixture.http2().await;
    let [mut leaving, mut staying] = [JoinSet::new(), JoinSet::new()];
    for _ in 0..10 {
        for (version, watches) in [("v1", &mut leaving), ("v2", &mut staying)] {
            let path = THINGS.replace("/v1/", &format!("/{version}/"));
            let (body, by) = open_watch(&client, &path).await;
            assert_eq!(by, "shared");
            watches.spawn(assert_ends_cleanly(body));
        }
    }
    let moved =
        fixture.environment.apiservice_manifests("others.example.com", "v1", &[own.address], &annotations_yaml(&[]));
    let moved = moved.replace("name: v1.others.", "name: v1.things.").replace("group: others.", "group: things.");
    fixture.environment.write_registry("first.yaml", &moved);
    leaving.join_all().await;
    assert!(staying.try_join_next().is_none() && staying.len() == 10);
    assert_eq!(open_watch(&client, THINGS).await.1, "own");
}

/// Endpoints come and go: each is listed when it serves, and stops when it has been off the list for a while.
#[tokio::test(flavor = "multi_thread")]
async fn rolling_update_under_load_loses_no_request() {
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let environment = TestEnvironment::new();
        let start = async |environment: &TestEnvironment, name: String| {
            let running = Arc::new(AtomicUsize::new(0));
            let counter = running.clone();
            let backend = Backend::start(environment, settings.clone(), move |request| {
                let (name, running) = (name.clone(), counter.clone());
                running.fetch_add(1, Ordering::SeqCst);
                async move {
                    let reply = signed_response(&name, request).await;
                    running.fetch_sub(1, Ordering::SeqCst);
                    reply
                }
            })
            .await;
            (backend, running)
        };
        let mut listed = Vec::new();
        for name in NAMES {
            listed.push(start(&environment, name.to_owned()).await);
        }
        let addresses = |listed: &[(Backend, Arc<AtomicUsize>)]| -> Vec<SocketAddr> {
            listed.iter().map(|(backend, _)| backend.address).collect()
        };
        let fixture = GatewayFixture::with_addresses(environment, &addresses(&listed), &[]);
        let tally = Arc::new(ResponseTally::default());
        run_under_load(&fixture, &tally, async {
            for round in 0..6 {
                tally.wait_for_more(100).await;
                listed.push(start(&fixture.environment, format!("new-{round}")).await);
                let (old, running) = listed.remove(0);
                register_things(&fixture.environment, &addresses(&listed), &[]);
                // As a pod that waits in its preStop hook, and then finishes what it has.
                let new = format!("new-{round}");
                eventually("the new one to be used", async || (tally.count_by(&new) > 0).then_some(())).await;
                let before = old.received().len();
                tally.wait_for_more(100).await;
                assert!(old.received().len() <= before + 12, "it gets nothing new");
                eventually("the old one to be done", async || (running.load(Ordering::SeqCst) == 0).then_some(()))
                    .await;
                tally.wait_for_more(20).await;
                old.stop().await;
            }
        })
        .await;
        let refused = tally.take_failures();
        assert!(refused.is_empty(), "{} of {}: {}", refused.len(), tally.total(), refused[0].1.text());
    }
}

/// One of three answers 500 to everything, at once: it does not draw all requests, and is left for a while.
#[tokio::test(flavor = "multi_thread")]
async fn outlier_detection_ejects_endpoint_returning_500_and_readmits_it() {
    let environment = TestEnvironment::new();
    let broken = Arc::new(AtomicBool::new(false));
    let recorded = Arc::new(AtomicUsize::new(0));
    let mut backends = Vec::new();
    for name in NAMES {
        let (broken, recorded) = (broken.clone(), recorded.clone());
        backends.push(
            Backend::start(&environment, BackendSettings::default(), move |request| {
                let (broken, recorded) = (broken.clone(), recorded.clone());
                async move {
                    if name == "c" && broken.load(Ordering::SeqCst) {
                        recorded.fetch_add(1, Ordering::SeqCst);
                        return json_response(500, "{}");
                    }
                    signed_response(name, request).await
                }
            })
            .await,
        );
    }
    let fixture = GatewayFixture::new(environment, &backends.iter().collect::<Vec<_>>(), &[]);
    let tally = Arc::new(ResponseTally::default());
    run_under_load(&fixture, &tally, async {
        tally.wait_for_more(200).await;
        broken.store(true, Ordering::SeqCst);
        tally.wait_for_more(600).await;
        let during = recorded.load(Ordering::SeqCst);
        assert!(during < 100, "of 600 requests {during} went to the one that fails");
        broken.store(false, Ordering::SeqCst);
        let before = tally.count_by("c");
        eventually("it to be used again", async || (tally.count_by("c") > before + 20).then_some(())).await;
    })
    .await;
    for (_, reply) in tally.take_failures() {
        assert_eq!(reply.status, 500, "{}", reply.text());
    }
}

/// Requests without an answer at once: one more, and the circuit opens when they take a second.
const FAILURES: usize = 9;

/// A backend that breaks every request gets a fifth more of them than are asked, and what one endpoint may have had
/// under way: not three times as many, and no more for every change of its endpoints.
#[tokio::test(flavor = "multi_thread")]
async fn retry_budget_limits_extra_requests() {
    let environment = TestEnvironment::new();
    let mut backends = Vec::new();
    for _ in NAMES {
        let broken = Arc::new(AtomicUsize::new(0));
        let counter = broken.clone();
        let backend = raw_backend::http1(&environment, BackendSettings::http1(), move |mut talk: RawConnection| {
            let broken = counter.clone();
            async move {
                if talk.head.contains("fine=1") {
                    talk.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await;
                    return talk.close().await;
                }
                broken.fetch_add(1, Ordering::SeqCst);
                talk.reset();
            }
        })
        .await;
        backends.push((backend, broken));
    }
    let count = |number: usize| backends[number % 3].1.load(Ordering::SeqCst);
    let began = std::time::Instant::now();
    let fixture = GatewayFixture::new(environment, &[&backends[0].0, &backends[1].0], &[]);
    let client = fixture.http2().await;
    let (mut recorded, mut fine) = (0, 0);
    for round in 0..6 {
        if round > 0 {
            let listed = [round, round + 1].map(|number| backends[number % 3].0.address);
            register_things(&fixture.environment, &listed, &[]);
        }
        let (enough, before) = (recorded + 300, count(round + 1));
        eventually("those that are listed to be used", async || {
            let all = futures_util::future::join_all((0..FAILURES).map(|_| client.get(THINGS))).await;
            for reply in all {
                assert_eq!(reply.status, 503, "{}", reply.text());
            }
            (recorded, fine) = (recorded + FAILURES, fine + 1);
            let reply = client.get(&format!("{THINGS}?fine=1")).await;
            assert_eq!(reply.status, 200, "{}", reply.text());
            (recorded >= enough && count(round + 1) > before).then_some(())
        })
        .await;
    }
    let started: usize = (0..3).map(count).sum();
    // A fifth of all requests, the initial balance, and the minimum rate.
    let retries = (recorded + fine) / 5 + 500 + 5 * (usize::try_from(began.elapsed().as_secs()).unwrap() + 1);
    assert!(started > recorded && started <= recorded + retries, "{started} of {recorded}, {retries} retries");
}
