//! Load balancing over three endpoints of one Service: requests and watches when endpoints die, stall, fail, come and
//! go.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use http::Method;
use tokio::task::JoinSet;

use crate::backend::{Backend, Settings, data, json, streamed};
use crate::client::{Client, Read, admin, get, next, request, sample};
use crate::process::{Process, signed};
use crate::raw::{self, Talk};
use crate::refused::retry_after_seconds;
use crate::scene::{Scene, THINGS, annotated, register};
use crate::world::{World, eventually};

const NAMES: [&str; 3] = ["a", "b", "c"];

/// Who answered how often, and what was not answered as it should be.
#[derive(Default)]
struct Tally {
    by: Mutex<BTreeMap<String, usize>>,
    refused: Mutex<Vec<(Method, Read)>>,
    over: AtomicBool,
}

impl Tally {
    fn by(&self, name: &str) -> usize {
        self.by.lock().unwrap().get(name).copied().unwrap_or_default()
    }

    fn all(&self) -> usize {
        self.by.lock().unwrap().values().sum()
    }

    /// Waits until so many more requests are answered.
    async fn more(&self, count: usize) {
        let then = self.all() + count;
        eventually("more answers", async || (self.all() >= then).then_some(())).await;
    }

    fn take_refused(&self) -> Vec<(Method, Read)> {
        std::mem::take(&mut *self.refused.lock().unwrap())
    }
}

/// Asks without end, over connections of both kinds, until `scenario` is over.
async fn under_load<T>(scene: &Scene, tally: &Arc<Tally>, scenario: impl Future<Output = T>) -> T {
    let mut load = JoinSet::new();
    for number in 0..12 {
        let client = if number % 3 == 0 { scene.http1().await } else { scene.http2().await };
        let tally = tally.clone();
        load.spawn(async move {
            while !tally.over.load(Ordering::SeqCst) {
                for method in [Method::GET, Method::GET, Method::POST] {
                    let body = if method == Method::GET { "" } else { "{}" };
                    let path = format!("{THINGS}?wait={}", fastrand::u8(0..10));
                    let answer = client.ask(request(method.clone(), &path, &[], body)).await;
                    if answer.status == 200 && answer.whole {
                        let by = answer.json()["by"].as_str().unwrap().to_owned();
                        *tally.by.lock().unwrap().entry(by).or_default() += 1;
                    } else {
                        tally.refused.lock().unwrap().push((method, answer));
                    }
                }
            }
        });
    }
    let result = scenario.await;
    tally.over.store(true, Ordering::SeqCst);
    load.join_all().await;
    result
}

fn processes(world: &World, settings: &Settings) -> Vec<Process> {
    NAMES.iter().map(|name| Process::start(world, name, settings)).collect()
}

/// What may be lost when an endpoint dies or stalls: a POST that may have been carried out, and is said to be.
fn only_what_may_have_been_done(refused: &[(Method, Read)]) {
    for (method, answer) in refused {
        assert_eq!(method, Method::POST, "{} {}", answer.status, answer.text());
        let status = answer.refused(503, "ServiceUnavailable");
        let reason = status["details"]["causes"][0]["reason"].as_str();
        assert!(matches!(reason, Some("ConnectionBroken" | "NoAnswer")), "{status}");
        assert_eq!(retry_after_seconds(answer), None, "it may have been carried out: {status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_three_is_killed_under_load_and_comes_back() {
    for settings in [Settings::http1(), Settings::http2()] {
        let world = World::new();
        let mut all = processes(&world, &settings);
        let addresses: Vec<SocketAddr> = all.iter().map(|one| one.address).collect();
        let scene = Scene::at(world, &addresses, &[]);
        let tally = Arc::new(Tally::default());
        under_load(&scene, &tally, async {
            tally.more(300).await;
            for name in NAMES {
                assert!(tally.by(name) > 30, "{:?}", tally.by.lock().unwrap());
            }
            let address = all.pop().unwrap().kill();
            tally.more(300).await;
            only_what_may_have_been_done(&tally.take_refused());
            let before = tally.by("c");
            tally.more(300).await;
            assert_eq!(tally.by("c"), before);
            assert!(tally.take_refused().is_empty(), "once it is known, nobody feels it");
            let ejected =
                format!("narthex_endpoint_ejected{{apiservice=\"v1.things.example.com\",endpoint=\"{address}\"}}");
            eventually("the operator to see it", async || {
                (sample(&scene.gateway, &ejected).await == Some(1.0)).then_some(())
            })
            .await;
            all.push(Process::start(&scene.world, "c", &Settings { address, ..settings.clone() }));
            eventually("it to be used again", async || (tally.by("c") > before + 30).then_some(())).await;
            assert!(tally.take_refused().is_empty());
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_three_stalls_under_load_and_goes_on() {
    for settings in [Settings::http1(), Settings::http2()] {
        let world = World::new();
        let all = processes(&world, &settings);
        let addresses: Vec<SocketAddr> = all.iter().map(|one| one.address).collect();
        let scene = Scene::at(world, &addresses, &[]);
        let tally = Arc::new(Tally::default());
        under_load(&scene, &tally, async {
            tally.more(300).await;
            all[2].stop();
            // What it had is given up only after a while; whoever asks a connection that stalls waits with it.
            let state = eventually("it to be left", async || {
                let report = admin(&scene.gateway, get("/status.json", &[])).await.json();
                let endpoints = report["apiservices"][0]["endpoints"].as_array().unwrap().clone();
                endpoints.into_iter().find(|one| one["state"] == "unreachable")
            })
            .await;
            assert_eq!(state["address"], addresses[2].to_string());
            let before = tally.by("c");
            tally.more(600).await;
            assert_eq!(tally.by("c"), before);
            let said = || scene.gateway.log().iter().filter(|line| line.contains("does not answer; not used")).count();
            eventually("it to be said", async || (said() > 0).then_some(())).await;
            all[2].go_on();
            eventually("it to be used again", async || (tally.by("c") > before + 30).then_some(())).await;
            // Nobody goes on about what is over.
            let before = said();
            tally.more(300).await;
            assert_eq!(said(), before);
        })
        .await;
        only_what_may_have_been_done(&tally.take_refused());
    }
}

/// Endpoints whose hints are for our zone get everything, as long as they are there; so do those that end and still
/// serve when none is ready.
#[tokio::test(flavor = "multi_thread")]
async fn hints_and_conditions_of_endpoints_are_heeded() {
    let world = World::new();
    let mut backends = Vec::new();
    for name in NAMES {
        backends.push(Backend::start(&world, Settings::default(), move |request| signed(name, request)).await);
    }
    let addresses: Vec<SocketAddr> = backends.iter().map(|backend| backend.address).collect();
    let listed = |of: [(&str, bool); 3]| {
        let text = world.manifests("things.example.com", "v1", &addresses, &annotated(&[]));
        let mut slices = text.split("conditions: {ready: true}");
        let mut all = slices.next().unwrap().to_owned();
        for ((zone, ready), rest) in of.into_iter().zip(slices) {
            let conditions = if ready { "ready: true" } else { "ready: false, serving: true, terminating: true" };
            all += &format!("conditions: {{{conditions}}}, hints: {{forZones: [{{name: {zone}}}]}}{rest}");
        }
        world.registry("things.yaml", &all);
    };
    listed([("there", true), ("here", true), ("there", true)]);
    let gateway = world.gateway(&["--zone=here"]);
    let jane = world.user("jane", &[]);
    let client = Client::http2(&world, &gateway, Some(&jane)).await;
    let asked = async || {
        let mut by = std::collections::BTreeSet::new();
        for _ in 0..30 {
            by.insert(client.get(THINGS).await.json()["by"].as_str().unwrap().to_owned());
        }
        by.into_iter().collect::<String>()
    };
    assert_eq!(asked().await, "b");
    listed([("here", true), ("here", false), ("there", true)]);
    eventually("the next to take over", async || (asked().await == "a").then_some(())).await;
    listed([("here", false), ("here", false), ("here", false)]);
    eventually("those that end to serve", async || (asked().await == "abc").then_some(())).await;
    listed([("there", true), ("there", true), ("there", false)]);
    eventually("hints for others to be no hints", async || (asked().await == "ab").then_some(())).await;
    listed([("here", true), ("there", true), ("there", true)]);
    eventually("the hint to be heeded", async || (asked().await == "a").then_some(())).await;
    backends.remove(0).stop().await;
    eventually("the others to serve when none of the zone is left", async || (asked().await == "bc").then_some(()))
        .await;
}

/// Reads a watch to its end; the number of the endpoint and the last event.
async fn follow(client: &Client, path: &str) -> (hyper::body::Incoming, String) {
    let mut body = client.send(get(&format!("{path}?watch=1"), &[])).await.unwrap().into_body();
    let line = next(&mut body).await.unwrap().unwrap();
    let by = serde_json::from_slice::<serde_json::Value>(&line).unwrap()["by"].as_str().unwrap().to_owned();
    (body, by)
}

/// The rest of a watch, which ends between two events.
async fn rest(mut body: hyper::body::Incoming) {
    let mut last = "\n".to_owned();
    while let Some(frame) = next(&mut body).await {
        last = String::from_utf8(frame.expect("no error").to_vec()).unwrap();
    }
    assert!(last.ends_with('\n'), "{last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_on_a_dying_endpoint_ends_cleanly_and_resumes_elsewhere() {
    for settings in [Settings::http1(), Settings::http2()] {
        let world = World::new();
        let mut all: BTreeMap<String, Process> =
            NAMES.iter().map(|name| (name.to_string(), Process::start(&world, name, &settings))).collect();
        let addresses: Vec<SocketAddr> = all.values().map(|one| one.address).collect();
        let scene = Scene::at(world, &addresses, &[]);
        for client in scene.both().await {
            let (body, by) = follow(&client, THINGS).await;
            all.remove(&by).expect("a watch goes where somebody is").kill();
            rest(body).await;
            let (_, elsewhere) = follow(&client, THINGS).await;
            assert_ne!(elsewhere, by);
        }
    }
}

/// Each event of a protobuf watch stands behind its length; only after a whole one is the watch whole.
#[tokio::test(flavor = "multi_thread")]
async fn a_protobuf_watch_ends_cleanly_after_an_event_and_breaks_within_one() {
    let world = World::new();
    let (send, mut writers) = tokio::sync::mpsc::unbounded_channel();
    let backend = Backend::start(&world, Settings::default(), move |_| {
        let (writer, mut answer) = streamed(200);
        let kind = "application/vnd.kubernetes.protobuf;stream=watch";
        answer.headers_mut().insert("content-type", kind.parse().unwrap());
        send.send(writer).unwrap();
        async { answer }
    })
    .await;
    let scene = Scene::new(world, &[&backend], &[]);
    for (last, whole) in [("\0\0\0\u{3}two", true), ("\0\0\0\u{9}half", false), ("\0\0", false)] {
        for client in scene.both().await {
            let asking = client.send(get(&format!("{THINGS}?watch=1"), &[]));
            let writing = async {
                let writer = writers.recv().await.unwrap();
                writer.send(data("\0\0\0\u{3}one")).unwrap();
                writer
            };
            let (response, writer) = tokio::join!(asking, writing);
            let mut body = response.unwrap().into_body();
            assert_eq!(next(&mut body).await.unwrap().unwrap(), "\0\0\0\u{3}one");
            writer.send(data(last)).unwrap();
            assert_eq!(next(&mut body).await.unwrap().unwrap(), last);
            writer.send(Err(std::io::Error::other("gone"))).unwrap();
            assert_eq!(next(&mut body).await.is_none(), whole, "{last:?}");
        }
    }
}

/// One endpoint that speaks HTTP/1.1 needs a connection for each request: it gets so many, and no more.
#[tokio::test(flavor = "multi_thread")]
async fn connections_to_an_endpoint_are_bounded() {
    use narthex::egress::{Address, BackendTls, Host, Pool, Resolver, SendError, Upstream, Wire};
    let world = World::new();
    let (go, hold) = (Arc::new(tokio::sync::Semaphore::new(0)), Arc::new(AtomicBool::new(true)));
    let (gone, holds) = (go.clone(), hold.clone());
    let backend = Backend::start(&world, Settings::http1(), move |_| {
        let (go, hold) = (gone.clone(), holds.load(Ordering::SeqCst));
        async move {
            if hold {
                go.acquire().await.unwrap().forget();
            }
            json(200, "{}")
        }
    })
    .await;
    let pair = narthex::tls::PairFiles::new(world.path("front-proxy.crt"), world.path("front-proxy.key"));
    let identity = Some(Arc::new(narthex::tls::KeyPair::load(&pair).unwrap()));
    let settings = narthex::tls::client::ClientSettings {
        authorities: None,
        insecure_skip_verify: true,
        identity,
        alpn: Vec::new(),
    };
    let upstream = Upstream {
        address: Address::tcp(Host::Ip(backend.address.ip()), backend.address.port()),
        wire: Wire::Tls(Arc::new(BackendTls::new("things-v1.things.svc", settings).unwrap())),
        connect_timeout: std::time::Duration::from_secs(10),
        way: narthex::egress::Way::Direct,
        keeps_host: false,
    };
    let scenario = async {
        let endpoint = Pool::new(Resolver::System).with_most(3).endpoint(&upstream);
        let send = || {
            let endpoint = endpoint.clone();
            async move {
                let mut request = http::Request::new(narthex::message::Body::Empty);
                *request.uri_mut() = THINGS.parse().unwrap();
                let sent = endpoint.send(Box::new(request)).await;
                sent.map(|mut sent| sent.lease.finished()).map_err(|error| match error {
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
        eventually("three to be under way", async || (backend.seen().len() == 4).then_some(())).await;
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
async fn watches_leave_an_endpoint_that_is_not_listed_any_more() {
    let world = World::new();
    let start = async |name: &'static str| {
        Backend::start(&world, Settings::default(), move |request| signed(name, request)).await
    };
    let (a, b) = (start("a").await, start("b").await);
    let scene = Scene::at(world, &[a.address], &[]);
    let [one, two] = scene.both().await;
    let leaving = [follow(&one, THINGS).await.0, follow(&two, THINGS).await.0];
    register(&scene.world, &[b.address], &[]);
    let staying = eventually("the new one to be used", async || {
        let (body, by) = follow(&scene.http2().await, THINGS).await;
        (by == "b").then_some(body)
    })
    .await;
    let staying = tokio::spawn(rest(staying));
    for watch in leaving {
        rest(watch).await;
    }
    assert!(!staying.is_finished());
    assert_eq!(follow(&one, THINGS).await.1, "b");
}

/// Two versions are served by the same endpoint, over the same connections. One of them moves elsewhere, and only its
/// watches do.
#[tokio::test(flavor = "multi_thread")]
async fn watches_of_another_version_stay_where_one_leaves() {
    let world = World::new();
    let shared = Backend::start(&world, Settings::http2(), |request| signed("shared", request)).await;
    let others = Settings { names: vec!["others-v1.others.svc"], ..Settings::http2() };
    let own = Backend::start(&world, others, |request| signed("own", request)).await;
    let second = world.manifests("things.example.com", "v2", &[shared.address], &annotated(&[]));
    world.registry("second.yaml", &second.replace("things-v2", "things-v1"));
    let first = world.manifests("things.example.com", "v1", &[], &annotated(&[]));
    world.registry("first.yaml", first.split("---").next().unwrap());
    let scene = Scene::of(world, &[]);
    let client = scene.http2().await;
    let [mut leaving, mut staying] = [JoinSet::new(), JoinSet::new()];
    for _ in 0..10 {
        for (version, watches) in [("v1", &mut leaving), ("v2", &mut staying)] {
            let path = THINGS.replace("/v1/", &format!("/{version}/"));
            let (body, by) = follow(&client, &path).await;
            assert_eq!(by, "shared");
            watches.spawn(rest(body));
        }
    }
    let moved = scene.world.manifests("others.example.com", "v1", &[own.address], &annotated(&[]));
    let moved = moved.replace("name: v1.others.", "name: v1.things.").replace("group: others.", "group: things.");
    scene.world.registry("first.yaml", &moved);
    leaving.join_all().await;
    assert!(staying.try_join_next().is_none() && staying.len() == 10);
    assert_eq!(follow(&client, THINGS).await.1, "own");
}

/// Endpoints come and go: each is listed when it serves, and stops when it has been off the list for a while.
#[tokio::test(flavor = "multi_thread")]
async fn rolling_the_backend_under_load_loses_nothing() {
    for settings in [Settings::http1(), Settings::http2()] {
        let world = World::new();
        let start = async |world: &World, name: String| {
            let running = Arc::new(AtomicUsize::new(0));
            let counted = running.clone();
            let backend = Backend::start(world, settings.clone(), move |request| {
                let (name, running) = (name.clone(), counted.clone());
                running.fetch_add(1, Ordering::SeqCst);
                async move {
                    let answer = signed(&name, request).await;
                    running.fetch_sub(1, Ordering::SeqCst);
                    answer
                }
            })
            .await;
            (backend, running)
        };
        let mut listed = Vec::new();
        for name in NAMES {
            listed.push(start(&world, name.to_owned()).await);
        }
        let addresses = |listed: &[(Backend, Arc<AtomicUsize>)]| -> Vec<SocketAddr> {
            listed.iter().map(|(backend, _)| backend.address).collect()
        };
        let scene = Scene::at(world, &addresses(&listed), &[]);
        let tally = Arc::new(Tally::default());
        under_load(&scene, &tally, async {
            for round in 0..6 {
                tally.more(100).await;
                listed.push(start(&scene.world, format!("new-{round}")).await);
                let (old, running) = listed.remove(0);
                register(&scene.world, &addresses(&listed), &[]);
                // As a pod that waits in its preStop hook, and then finishes what it has.
                let new = format!("new-{round}");
                eventually("the new one to be used", async || (tally.by(&new) > 0).then_some(())).await;
                let before = old.seen().len();
                tally.more(100).await;
                assert!(old.seen().len() <= before + 12, "it gets nothing new");
                eventually("the old one to be done", async || (running.load(Ordering::SeqCst) == 0).then_some(()))
                    .await;
                tally.more(20).await;
                old.stop().await;
            }
        })
        .await;
        let refused = tally.take_refused();
        assert!(refused.is_empty(), "{} of {}: {}", refused.len(), tally.all(), refused[0].1.text());
    }
}

/// One of three answers 500 to everything, at once: it does not draw all requests, and is left for a while.
#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_answers_with_errors_is_left_and_tried() {
    let world = World::new();
    let broken = Arc::new(AtomicBool::new(false));
    let asked = Arc::new(AtomicUsize::new(0));
    let mut backends = Vec::new();
    for name in NAMES {
        let (broken, asked) = (broken.clone(), asked.clone());
        backends.push(
            Backend::start(&world, Settings::default(), move |request| {
                let (broken, asked) = (broken.clone(), asked.clone());
                async move {
                    if name == "c" && broken.load(Ordering::SeqCst) {
                        asked.fetch_add(1, Ordering::SeqCst);
                        return json(500, "{}");
                    }
                    signed(name, request).await
                }
            })
            .await,
        );
    }
    let scene = Scene::new(world, &backends.iter().collect::<Vec<_>>(), &[]);
    let tally = Arc::new(Tally::default());
    under_load(&scene, &tally, async {
        tally.more(200).await;
        broken.store(true, Ordering::SeqCst);
        tally.more(600).await;
        let during = asked.load(Ordering::SeqCst);
        assert!(during < 100, "of 600 requests {during} went to the one that fails");
        broken.store(false, Ordering::SeqCst);
        let before = tally.by("c");
        eventually("it to be used again", async || (tally.by("c") > before + 20).then_some(())).await;
    })
    .await;
    for (_, answer) in tally.take_refused() {
        assert_eq!(answer.status, 500, "{}", answer.text());
    }
}

/// A backend that breaks every request gets a fifth more of them than are asked, and what one endpoint may have had
/// under way: not three times as many, and no more for every change of its endpoints.
#[tokio::test(flavor = "multi_thread")]
async fn requests_are_not_multiplied() {
    let world = World::new();
    let mut backends = Vec::new();
    for _ in NAMES {
        let broken = Arc::new(AtomicUsize::new(0));
        let counted = broken.clone();
        let backend = raw::http1(&world, Settings::http1(), move |mut talk: Talk| {
            let broken = counted.clone();
            async move {
                if talk.head.contains("fine=1") {
                    talk.say("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await;
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
    let scene = Scene::new(world, &[&backends[0].0, &backends[1].0], &[]);
    let client = scene.http2().await;
    let mut asked = 0;
    for round in 0..6 {
        if round > 0 {
            let listed = [round, round + 1].map(|number| backends[number % 3].0.address);
            register(&scene.world, &listed, &[]);
        }
        let (enough, before) = (asked + 300, count(round + 1));
        eventually("those that are listed to be used", async || {
            let all = futures_util::future::join_all((0..20).map(|_| client.get(THINGS))).await;
            for answer in all {
                assert_eq!(answer.status, 503, "{}", answer.text());
            }
            asked += 20;
            // Or its circuit would open.
            let fine = client.get(&format!("{THINGS}?fine=1")).await;
            assert_eq!(fine.status, 200, "{}", fine.text());
            (asked >= enough && count(round + 1) > before).then_some(())
        })
        .await;
    }
    let begun: usize = (0..3).map(count).sum();
    assert!(begun > asked && begun <= asked + asked / 5 + 600, "{begun} of {asked}");
}
