//! Isolation of backends: when one of five dies, stalls, slows down or sends garbage, the others are not affected.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::Method;
use tokio::task::JoinSet;

use crate::support::assert_refused::retry_after_seconds;
use crate::support::backend::{Backend, BackendSettings, json_response};
use crate::support::client::{Client, get, metric_value, read_response, request};
use crate::support::fixtures::{CertKeyPair, GatewayProcess, TestEnvironment, eventually};
use crate::support::gateway_fixture::{GatewayFixture, THINGS, annotations_yaml, register_things};
use crate::support::process::{BackendProcess, signed_response};
use crate::support::raw_backend::{self, RawConnection};

/// The victim first.
const GROUPS: [&str; 5] =
    ["one.example.com", "two.example.com", "three.example.com", "four.example.com", "five.example.com"];
const NAMES: [&str; 5] =
    ["one-v1.one.svc", "two-v1.two.svc", "three-v1.three.svc", "four-v1.four.svc", "five-v1.five.svc"];

fn things_path(group: &str) -> String {
    format!("/apis/{group}/v1/namespaces/default/things")
}

/// A gateway before five backends; the first is the test's to maltreat.
struct FiveBackends {
    environment: TestEnvironment,
    gateway: GatewayProcess,
    jane: CertKeyPair,
    _others: Vec<Backend>,
}

impl FiveBackends {
    /// `victim` is where the first group is served, as `settings` say.
    async fn new(environment: TestEnvironment, victim: SocketAddr, annotations: &[(&str, &str)]) -> FiveBackends {
        let mut others = Vec::new();
        for (group, name) in GROUPS.into_iter().zip(NAMES).skip(1) {
            let settings = BackendSettings { names: vec![name], ..BackendSettings::default() };
            others.push(Backend::start(&environment, settings, move |request| signed_response(group, request)).await);
        }
        let addresses = std::iter::once(victim).chain(others.iter().map(|other| other.address));
        for (group, address) in GROUPS.into_iter().zip(addresses) {
            let annotations = if group == GROUPS[0] { annotations_yaml(annotations) } else { String::new() };
            environment.write_registry(
                &format!("{group}.yaml"),
                &environment.apiservice_manifests(group, "v1", &[address], &annotations),
            );
        }
        let gateway = environment.start_gateway(&["--access-log=off"]);
        let jane = environment.issue_user("jane", &["devs"]);
        let five = FiveBackends { environment, gateway, jane, _others: others };
        let client = five.client().await;
        eventually("all five to be known", async || (five.discovered_groups(&client).await.len() == 5).then_some(()))
            .await;
        five
    }

    async fn client(&self) -> Client {
        Client::http2(&self.environment, &self.gateway, Some(&self.jane)).await
    }

    /// The groups in discovery that have a resource.
    async fn discovered_groups(&self, client: &Client) -> BTreeSet<String> {
        let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let all = client.send_and_read(get("/apis", &[("accept", accept)])).await.json();
        let groups = all["items"].as_array().unwrap().iter();
        let groups = groups.filter(|group| group["versions"][0]["resources"][0]["resource"] == "things");
        groups.map(|group| group["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Requests to the other backends, over a connection shared with requests to the faulty backend: status and
    /// backend are as without the fault.
    async fn assert_others_unaffected(&self, client: &Client) {
        for group in GROUPS.into_iter().skip(1) {
            for method in [Method::GET, Method::POST] {
                let response = client.send_and_read(request(method, &things_path(group), &[], "{}")).await;
                assert_eq!((response.status.as_u16(), response.text()), (200, format!("{{\"by\":\"{group}\"}}")));
            }
            let response = client.get(&format!("/apis/{group}/v1")).await;
            assert_eq!(response.status, 200, "{}", response.text());
        }
        assert_eq!(self.discovered_groups(client).await, GROUPS.map(str::to_owned).into());
        let openapi = client.get("/openapi/v3").await;
        assert_eq!(openapi.status, 200, "{}", openapi.text());
        for path in ["/readyz", "/livez"] {
            assert_eq!(client.get(path).await.status, 200);
        }
    }

    /// Jane's requests to the victim go on all the while. Each is answered some way or other, and long before its time
    /// is over.
    async fn run_under_load(&self, scenario: impl Future<Output = ()>) {
        let over = Arc::new(AtomicBool::new(false));
        let mut load = JoinSet::new();
        let client = self.client().await;
        for number in 0..8 {
            let (client, over) = (client.clone(), over.clone());
            load.spawn(async move {
                while !over.load(Ordering::SeqCst) {
                    let method = if number % 2 == 0 { Method::GET } else { Method::POST };
                    let body = if number % 2 == 0 { "" } else { "{}" };
                    client.send_and_read(request(method, &things_path(GROUPS[0]), &[], body)).await;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            });
        }
        scenario.await;
        over.store(true, Ordering::SeqCst);
        load.join_all().await;
    }

    /// The victim's requests come to be refused with a Status that says why, and when to come again.
    async fn wait_until_refused(&self, client: &Client, reasons: &[&str]) {
        eventually("the victim's requests to be refused", async || {
            let response = client.get(&things_path(GROUPS[0])).await;
            if response.status != 503 {
                return None;
            }
            let status = response.assert_failure(503, "ServiceUnavailable");
            let reason = status["details"]["causes"][0]["reason"].as_str().unwrap();
            assert!(retry_after_seconds(&response).is_some(), "{status}");
            reasons.contains(&reason).then_some(())
        })
        .await;
    }

    async fn wait_until_available(&self, client: &Client) {
        eventually("the victim to be used again", async || {
            (client.get(&things_path(GROUPS[0])).await.status == 200).then_some(())
        })
        .await;
    }
}

fn victim_settings(settings: BackendSettings) -> BackendSettings {
    BackendSettings { names: vec![NAMES[0]], ..settings }
}

#[tokio::test(flavor = "multi_thread")]
async fn isolation_backend_killed_does_not_affect_others() {
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let environment = TestEnvironment::new();
        let process = BackendProcess::start(&environment, GROUPS[0], &victim_settings(settings.clone()));
        let five = FiveBackends::new(environment, process.address, &[]).await;
        let client = five.client().await;
        five.run_under_load(async {
            five.assert_others_unaffected(&client).await;
            let address = process.kill();
            for _ in 0..20 {
                five.assert_others_unaffected(&client).await;
            }
            five.wait_until_refused(&client, &["ConnectionRefused"]).await;
            let _again = BackendProcess::start(
                &five.environment,
                GROUPS[0],
                &BackendSettings { address, ..victim_settings(settings) },
            );
            five.wait_until_available(&client).await;
            five.assert_others_unaffected(&client).await;
        })
        .await;
    }
}

/// Must not take three sequential probes, a minute and a half.
#[tokio::test(flavor = "multi_thread")]
async fn apiservice_unavailable_soon_after_failed_requests() {
    let environment = TestEnvironment::new();
    let backend =
        Backend::start(&environment, BackendSettings::default(), |request| signed_response("a", request)).await;
    let annotations = annotations_yaml(&[]).replace("1000", "3");
    environment.write_registry(
        "things.yaml",
        &environment.apiservice_manifests("things.example.com", "v1", &[backend.address], &annotations),
    );
    let fixture = GatewayFixture::from_registry(environment, &[]);
    let client = fixture.http2().await;
    let unavailable = "aggregator_unavailable_apiservice{name=\"v1.things.example.com\"}";
    let is = async |expected| {
        eventually("the verdict", async || {
            (metric_value(&fixture.gateway, unavailable).await == Some(expected)).then_some(())
        })
        .await;
    };
    is(0.0).await;
    assert_eq!(client.get(THINGS).await.status, 200);
    let address = backend.stop().await;
    eventually("a request to fail", async || (client.get(THINGS).await.status != 200).then_some(())).await;
    is(1.0).await;
    let _back =
        Backend::start(&fixture.environment, BackendSettings { address, ..BackendSettings::default() }, |request| {
            signed_response("a", request)
        })
        .await;
    is(0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn isolation_backend_stalled_does_not_affect_others() {
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let environment = TestEnvironment::new();
        let process = BackendProcess::start(&environment, GROUPS[0], &victim_settings(settings));
        let five = FiveBackends::new(environment, process.address, &[]).await;
        let client = five.client().await;
        five.run_under_load(async {
            five.assert_others_unaffected(&client).await;
            process.pause();
            for _ in 0..20 {
                five.assert_others_unaffected(&client).await;
            }
            five.wait_until_refused(&client, &["ConnectTimeout", "NoAnswer"]).await;
            five.assert_others_unaffected(&client).await;
            process.resume();
            five.wait_until_available(&client).await;
            five.assert_others_unaffected(&client).await;
        })
        .await;
    }
}

/// Slow is not dead: its requests take their time, and are answered.
#[tokio::test(flavor = "multi_thread")]
async fn isolation_slow_backend_does_not_affect_others() {
    let environment = TestEnvironment::new();
    let slow = Arc::new(AtomicBool::new(false));
    let message = slow.clone();
    let settings = victim_settings(BackendSettings::default());
    let backend = Backend::start(&environment, settings, move |request| {
        let wait = if message.load(Ordering::SeqCst) { 10_000 } else { 0 };
        async move {
            tokio::time::sleep(Duration::from_millis(wait)).await;
            signed_response(GROUPS[0], request).await
        }
    })
    .await;
    let five = FiveBackends::new(environment, backend.address, &[]).await;
    let client = five.client().await;
    five.run_under_load(async {
        slow.store(true, Ordering::SeqCst);
        for _ in 0..20 {
            five.assert_others_unaffected(&client).await;
        }
        let response = client.get(&things_path(GROUPS[0])).await;
        assert_eq!(response.status, 200, "{}", response.text());
    })
    .await;
    assert_eq!(
        metric_value(&five.gateway, "narthex_circuit_state{apiservice=\"v1.one.example.com\"}").await,
        Some(0.0)
    );
}

/// An open circuit lets one request through to see how the backend is. One that we refuse ourselves was not that one.
#[tokio::test(flavor = "multi_thread")]
async fn circuit_breaker_trial_not_consumed_by_refused_request() {
    let environment = TestEnvironment::new();
    let malformed = Arc::new(AtomicBool::new(false));
    let message = malformed.clone();
    let backend = raw_backend::http1(&environment, BackendSettings::http1(), move |mut talk: RawConnection| {
        let malformed = message.load(Ordering::SeqCst);
        async move {
            let sane = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
            talk.write(if malformed { "\0\u{1}\r\n\r\n" } else { sane }).await;
            talk.close().await;
        }
    })
    .await;
    // No question of our own finds it well again.
    let annotations = [("probe-interval", "24h"), ("max-request-bytes", "10")];
    let fixture = GatewayFixture::new(environment, &[&backend], &annotations);
    let client = fixture.http2().await;
    assert_eq!(client.get(THINGS).await.status, 200);
    malformed.store(true, Ordering::SeqCst);
    for refused in ["too large", "an upgrade"] {
        eventually("the circuit to open", async || {
            let response = client.get(THINGS).await;
            (response.json()["details"]["causes"][0]["reason"] == "CircuitOpen").then_some(())
        })
        .await;
        malformed.store(refused == "too large", Ordering::SeqCst);
        let http1 = fixture.http1().await;
        eventually("the trial to be taken", async || {
            let request = match refused {
                "too large" => request(Method::POST, THINGS, &[], "more than ten bytes"),
                _ => get(THINGS, &[("connection", "upgrade"), ("upgrade", "nonsense")]),
            };
            let response = http1.send_and_read(request).await;
            (response.status != 503)
                .then(|| assert!(matches!(response.status.as_u16(), 403 | 413), "{}", response.text()))
        })
        .await;
        // It is the next one's, which the backend answers, or does not.
        let expected = if refused == "too large" { 502 } else { 200 };
        assert_eq!(client.get(THINGS).await.status, expected);
    }
}

/// A backend that is slow for all users does not use up the gateway's inflight permits, readonly and mutating, even
/// without a limit of its own and for any number of users.
#[tokio::test(flavor = "multi_thread")]
async fn inflight_limit_leaves_capacity_beside_slow_apiservice() {
    let environment = TestEnvironment::new();
    let settings = |name| BackendSettings { names: vec![name], ..BackendSettings::default() };
    let slow = Backend::start(&environment, settings(NAMES[0]), |request| async move {
        if request.uri().path().ends_with("/things") {
            std::future::pending::<()>().await;
        }
        json_response(200, "{}")
    })
    .await;
    let other = Backend::start(&environment, settings(NAMES[1]), |request| signed_response(GROUPS[1], request)).await;
    let unlimited = annotations_yaml(&[("max-inflight", "0")]);
    environment
        .write_registry("slow.yaml", &environment.apiservice_manifests(GROUPS[0], "v1", &[slow.address], &unlimited));
    environment
        .write_registry("other.yaml", &environment.apiservice_manifests(GROUPS[1], "v1", &[other.address], &unlimited));
    let flags = ["--max-requests-inflight=18", "--max-mutating-requests-inflight=9", "--access-log=off"];
    let gateway = environment.start_gateway(&flags);
    let mut clients = Vec::new();
    for number in 0..30 {
        clients.push(
            Client::http2(&environment, &gateway, Some(&environment.issue_user(&format!("user-{number}"), &[]))).await,
        );
    }
    let last = clients.pop().unwrap();
    let mut waiting = JoinSet::new();
    for client in &clients {
        for method in [Method::GET, Method::POST] {
            let (client, path) = (client.clone(), format!("{}?timeout=60s", things_path(GROUPS[0])));
            waiting.spawn(async move { client.send_and_read(request(method, &path, &[], "{}")).await });
        }
    }
    // Eight ninths of each.
    for _ in 0..2 * clients.len() - 16 - 8 {
        waiting.join_next().await.unwrap().unwrap().assert_failure(429, "TooManyRequests");
    }
    for client in clients.iter().chain([&last]) {
        for method in [Method::GET, Method::POST] {
            let response = client.send_and_read(request(method, &things_path(GROUPS[1]), &[], "{}")).await;
            assert_eq!(response.status, 200, "{}", response.text());
        }
    }
    assert!(waiting.try_join_next().is_none(), "as many wait as may");
}

/// Recovery is gradual: each user's first sixteen requests are admitted, then as many more as were answered.
#[tokio::test(flavor = "multi_thread")]
async fn recovery_limits_concurrency_to_returning_backend() {
    let environment = TestEnvironment::new();
    let address = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let fixture = GatewayFixture::with_addresses(environment, &[address], &[]);
    let client = fixture.http2().await;
    eventually("the backend to be known as away", async || {
        let response = client.get(THINGS).await;
        (response.json()["details"]["causes"][0]["reason"] == "FailedDiscoveryCheck").then_some(())
    })
    .await;
    let over = Arc::new(AtomicBool::new(false));
    let mut crowd = JoinSet::new();
    for _ in 0..100 {
        // Several connections, so that all workers have a part in it.
        let (client, over) = (fixture.http2().await, over.clone());
        crowd.spawn(async move {
            while !over.load(Ordering::SeqCst) {
                let response = client.get(THINGS).await;
                if response.status != 200 {
                    response.assert_failure(503, "ServiceUnavailable");
                    assert!(retry_after_seconds(&response).is_some());
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        });
    }
    // Under way, answered, and the most there ever were more than that and what each second brings.
    let counts = Arc::new(std::sync::Mutex::new((0_usize, 0_usize, 0_usize)));
    let counter = counts.clone();
    let began = std::time::Instant::now();
    let _back = Backend::start(
        &fixture.environment,
        BackendSettings { address, ..BackendSettings::default() },
        move |request| {
            let counts = counter.clone();
            {
                let (running, answered, most) = &mut *counts.lock().unwrap();
                *running += 1;
                let seconds = began.elapsed().as_secs() as usize;
                *most = (*most).max(running.saturating_sub(*answered + 32 * seconds));
            }
            async move {
                tokio::time::sleep(Duration::from_millis(100)).await;
                {
                    let (running, answered, _) = &mut *counts.lock().unwrap();
                    *running -= 1;
                    *answered += 1;
                }
                signed_response("back", request).await
            }
        },
    )
    .await;
    eventually("all to be served", async || (counts.lock().unwrap().1 > 1000).then_some(())).await;
    over.store(true, Ordering::SeqCst);
    crowd.join_all().await;
    // Two threads may each let one through at the same moment.
    let most = counts.lock().unwrap().2;
    assert!(most <= 20, "{most} at once beyond what was answered");
}

/// While a backend comes back, one user's watches and requests that it does not answer do not keep others from it.
#[tokio::test(flavor = "multi_thread")]
async fn recovery_is_shared_fairly_between_users() {
    let environment = TestEnvironment::new();
    let address = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let fixture = GatewayFixture::with_addresses(environment, &[address], &[]);
    let [jane, again] = [fixture.http2().await, fixture.http2().await];
    let tom =
        Client::http2(&fixture.environment, &fixture.gateway, Some(&fixture.environment.issue_user("tom", &[]))).await;
    eventually("the backend to be known as away", async || {
        let response = jane.get(THINGS).await;
        (response.json()["details"]["causes"][0]["reason"] == "FailedDiscoveryCheck").then_some(())
    })
    .await;
    let back = Backend::start(
        &fixture.environment,
        BackendSettings { address, ..BackendSettings::default() },
        |request| async move {
            if request.headers()["x-remote-user"] == "jane" {
                std::future::pending::<()>().await;
            }
            json_response(200, "{}")
        },
    )
    .await;
    let mut noise = JoinSet::new();
    eventually("jane to be held back", async || {
        for query in ["watch=1", "timeout=60s"] {
            let (client, request) = (again.clone(), get(&format!("{THINGS}?{query}"), &[]));
            noise.spawn(async move { client.send(request).await.unwrap() });
        }
        while let Some(refused) = noise.try_join_next() {
            let refused = read_response(refused.unwrap()).await;
            if refused.json()["details"]["causes"][0]["reason"] == "Recovering" {
                return Some(());
            }
        }
        None
    })
    .await;
    assert!(!back.received().is_empty());
    for _ in 0..5 {
        assert_eq!(tom.get(THINGS).await.status, 200);
    }
}

/// Rejected requests get the reason and Retry-After in the encoding they accept.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_encoded_as_client_accepts() {
    let environment = TestEnvironment::new();
    let backend = raw_backend::http1(&environment, BackendSettings::http1(), |mut talk: RawConnection| async move {
        if talk.head.contains("mad=1") {
            talk.write("\0\u{1}\r\n\r\n").await;
        } else {
            // Until the gateway has had enough.
            while talk.read_more().await.is_some() {}
        }
    })
    .await;
    let dead = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    register_things(&environment, &[backend.address], &[("request-timeout", "1s"), ("max-inflight", "1")]);
    let text = environment.apiservice_manifests("dead.example.com", "v1", &[dead], &annotations_yaml(&[]));
    environment.write_registry("dead.yaml", &text);
    let fixture = GatewayFixture::from_registry(environment, &[]);
    let client = fixture.http2().await;
    for (accept, kind, begins) in [
        ("application/json", "application/json", "{".as_bytes()),
        ("application/yaml", "application/yaml", b""),
        ("application/cbor", "application/cbor", b"\xd9\xd9\xf7"),
        ("application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf", b"k8s\0"),
    ] {
        let ask = async |path: String| client.send_and_read(get(&path, &[("accept", accept)])).await;
        let [malformed, stalled] = ["mad=1", "mad=0"].map(|query| format!("{THINGS}?{query}"));
        let malformed = ask(malformed).await;
        // One place, taken by whichever comes first.
        let (timeout, crowded) = tokio::join!(ask(stalled.clone()), ask(stalled.clone()));
        let mut codes = [timeout.status.as_u16(), crowded.status.as_u16()];
        codes.sort();
        assert_eq!(codes, [429, 504]);
        let dead = ask(things_path("dead.example.com")).await;
        assert_eq!((malformed.status.as_u16(), dead.status.as_u16()), (502, 503));
        for response in [malformed, timeout, crowded, dead] {
            assert_eq!(response.headers["content-type"], kind);
            let header = response.headers.contains_key("retry-after");
            assert_eq!(header, response.status == 429, "{} {:?}", response.status, response.text());
            assert!(response.body.starts_with(begins), "{:?}", response.text());
            let whole = response.text();
            assert!(whole.contains("Failure") && whole.contains("v1.") && whole.contains("example.com"), "{whole:?}");
        }
    }
}

/// Whatever it is asked, what it says is no HTTP.
#[tokio::test(flavor = "multi_thread")]
async fn isolation_backend_sending_garbage_does_not_affect_others() {
    let environment = TestEnvironment::new();
    let malformed = Arc::new(AtomicBool::new(false));
    let message = malformed.clone();
    let backend =
        raw_backend::http1(&environment, victim_settings(BackendSettings::http1()), move |mut talk: RawConnection| {
            let malformed = message.load(Ordering::SeqCst);
            async move {
                let text = format!("{{\"by\":\"{}\"}}", GROUPS[0]);
                let response = if malformed {
                    "\0\u{1}\u{2}\u{3}\r\n\r\n".to_owned()
                } else {
                    format!(
                        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{text}",
                        text.len()
                    )
                };
                talk.write(response).await;
                talk.close().await;
            }
        })
        .await;
    let five = FiveBackends::new(environment, backend.address, &[]).await;
    let client = five.client().await;
    let circuit = "narthex_circuit_state{apiservice=\"v1.one.example.com\"}";
    five.run_under_load(async {
        malformed.store(true, Ordering::SeqCst);
        for _ in 0..20 {
            five.assert_others_unaffected(&client).await;
        }
        five.wait_until_refused(&client, &["CircuitOpen"]).await;
        eventually("the circuit to be seen", async || {
            (metric_value(&five.gateway, circuit).await != Some(0.0)).then_some(())
        })
        .await;
        five.assert_others_unaffected(&client).await;
        malformed.store(false, Ordering::SeqCst);
        five.wait_until_available(&client).await;
        five.assert_others_unaffected(&client).await;
        eventually("the circuit to be closed", async || {
            (metric_value(&five.gateway, circuit).await == Some(0.0)).then_some(())
        })
        .await;
    })
    .await;
}
