//! Requests of an ordinary user that need much work, and what another user notices of them. The long form gives figures.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use http::Method;
use serde_json::{Value, json};

use crate::support::client::{Client, ClientResponse, request};
use crate::support::embedded_api::{CONFIG_MAPS, EmbeddedApiFixture, send_json};
use crate::support::fixtures::eventually;

/// Minutes of the long form.
const MINUTES: &str = "NARTHEX_TEST_HOSTILE_MINUTES";

/// Memory in MiB by which hostile requests may grow the process.
const MAX_GROWTH: u64 = 500;

/// Connections of another user that see whether requests of the attacker hold up a worker.
const OTHER_CONNECTIONS: usize = 4;
/// Pause after an answer that such a connection gets.
const COUNT_INTERVAL: Duration = Duration::from_millis(50);
/// Duration from which a request counts as long: each of the other connections gets an answer meanwhile.
const LONG_REQUEST: Duration = Duration::from_secs(5);

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDE: &str = "/apis/hostile.example.com/v1/namespaces/default/wides";

/// A gateway that allows ordinary users everything.
fn start() -> EmbeddedApiFixture {
    EmbeddedApiFixture::start_with(|environment| environment.anonymous_flags().into())
}

async fn client(api: &EmbeddedApiFixture, user: &str) -> Client {
    Client::http2(&api.environment, &api.gateway, Some(&api.environment.issue_user(user, &[]))).await
}

fn texts(count: usize, name: &str) -> Vec<String> {
    (0..count).map(|number| format!("{name}{number}")).collect()
}

/// A ConfigMap that is large for its finalizers, which must be domain-qualified.
fn finalized(name: &str, count: usize) -> Value {
    json!({"metadata": {"name": name, "finalizers": texts(count, "a.io/f")}})
}

async fn patch(client: &Client, path: &str, kind: &str, patch: &Value) -> ClientResponse {
    let headers = [("content-type", kind)];
    client.send_and_read(request(Method::PATCH, path, &headers, &patch.to_string())).await
}

/// A patch that leaves an object as it is, each of whose operations moves all items of a list.
fn moving_patch(pairs: usize) -> Value {
    let path = "/metadata/finalizers/0";
    let pair = || [json!({"op": "add", "path": path, "value": "a.io/x"}), json!({"op": "remove", "path": path})];
    (0..pairs).flat_map(|_| pair()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_patches_of_one_user_leave_compute_threads_to_others() {
    let api = start();
    let (eve, anna) = (client(&api, "eve").await, client(&api, "anna").await);
    let created = send_json(&eve, Method::POST, CONFIG_MAPS, &finalized("large", 80_000)).await;
    assert_eq!(created.status, 201, "{}", created.text());
    let mine = json!({"metadata": {"name": "mine"}, "data": {"k": "x".repeat(100_000)}});
    assert_eq!(send_json(&anna, Method::POST, CONFIG_MAPS, &mine).await.status, 201);
    let (own, large) = (format!("{CONFIG_MAPS}/mine"), format!("{CONFIG_MAPS}/large"));
    let moving = moving_patch(5_000);
    let mut patches: FuturesUnordered<_> =
        (0..10).map(|_| patch(&eve, &large, "application/json-patch+json", &moving)).collect();
    // Those that are not answered now run or wait.
    let mut answered = vec![patches.next().await.unwrap().status];
    let mut replaced = Box::pin(send_json(&anna, Method::PUT, &own, &mine));
    let replaced = loop {
        tokio::select! {
            biased;
            Some(patched) = patches.next() => answered.push(patched.status),
            replaced = &mut replaced => break replaced,
        }
    };
    assert_eq!(replaced.status, 200, "{}", replaced.text());
    assert!(answered.len() < 9, "the other user waits for all patches: {answered:?}");
    while let Some(patched) = patches.next().await {
        answered.push(patched.status);
    }
    // Those that take too long are given up.
    assert!(answered.iter().all(|status| matches!(status.as_u16(), 200 | 413 | 504)), "{answered:?}");
    let unchanged = eve.get(&large).await.json();
    assert_eq!(unchanged["metadata"]["finalizers"].as_array().unwrap().len(), 80_000);
}

/// The CRD of objects with many columns, each of which prints all of an object, and with large defaults.
fn wide_crd() -> Value {
    let columns: Vec<Value> =
        (0..300).map(|n| json!({"name": format!("C{n}"), "type": "string", "jsonPath": ".spec"})).collect();
    let item = json!({"type": "object", "properties": {"text": {"type": "string", "default": "x".repeat(2_000)}}});
    let spec = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {
        "items": {"type": "array", "items": item},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
    }});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "wides.hostile.example.com"},
        "spec": {
            "group": "hostile.example.com", "scope": "Namespaced", "names": {"plural": "wides", "kind": "Wide"},
            "versions": [{"name": "v1", "served": true, "storage": true, "additionalPrinterColumns": columns,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}}],
        },
    })
}

fn wide(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "hostile.example.com/v1", "kind": "Wide", "metadata": {"name": name}, "spec": spec})
}

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

#[tokio::test(flavor = "multi_thread")]
async fn hostile_table_is_not_much_larger_than_its_objects() {
    let api = start();
    let eve = client(&api, "eve").await;
    assert_eq!(send_json(&eve, Method::POST, CRDS, &wide_crd()).await.status, 201);
    eventually("the CRD to be served", async || (eve.get(WIDE).await.status == 200).then_some(())).await;
    for name in texts(20, "w") {
        let created = send_json(&eve, Method::POST, WIDE, &wide(&name, &json!({"text": "x".repeat(50_000)}))).await;
        assert_eq!(created.status, 201, "{}", created.text());
    }
    let table = eve.send_and_read(request(Method::GET, WIDE, &[("accept", TABLE)], "")).await;
    assert_eq!(table.json()["rows"].as_array().unwrap().len(), 20);
    // Of 300 MB that its cells would have.
    assert!(table.body.len() < 1 << 20, "{} bytes", table.body.len());
}

/// Definitions whose schemas make work: of each value, of a text, and of what is read.
fn costly_crds() -> [Value; 3] {
    let all_of: Vec<Value> = (0..20_000).map(|number| json!({"maximum": number + 1_000})).collect();
    let alternatives: Vec<String> =
        (0..60).map(|number| format!("[a{}]{{1000}}[!#]", char::from(b'A' + number % 26))).collect();
    [
        ("alternatives", json!({"type": "array", "items": {"type": "integer", "allOf": all_of}})),
        ("patterns", json!({"type": "string", "pattern": alternatives.join("|")})),
        ("defaults", json!({"type": "string"})),
    ]
    .map(|(plural, schema)| {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.hostile.example.com")},
            "spec": {
                "group": "hostile.example.com", "scope": "Namespaced",
                "names": {"plural": plural, "kind": format!("Costly{plural}")},
                "versions": [version_of_value(&schema)],
            },
        })
    })
}

/// A version whose objects have `spec.value`.
fn version_of_value(schema: &Value) -> Value {
    let spec = json!({"type": "object", "properties": {"value": schema}});
    json!({"name": "v1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}})
}

/// Sends hostile requests.
struct Attacker<'t> {
    client: Client,
    /// Answers that each connection of another user got so far.
    answered: &'t [AtomicUsize; OTHER_CONNECTIONS],
}

impl Attacker<'_> {
    /// Waits for the answer to a request. No other connection may wait for it: of a long one, each has seen answers
    /// meanwhile.
    async fn send(&self, name: &str, answer: impl Future<Output = ClientResponse>) -> ClientResponse {
        let counts = || self.answered.iter().map(|count| count.load(Relaxed)).collect::<Vec<_>>();
        let (began, before) = (Instant::now(), counts());
        let answer = answer.await;
        let (elapsed, after) = (began.elapsed(), counts());
        println!("{name}: {} after {elapsed:?}", answer.status);
        if elapsed > LONG_REQUEST {
            let waited = before.iter().zip(&after).filter(|(before, after)| before == after).count();
            assert_eq!(waited, 0, "{name}: {waited} of {} other connections waited {elapsed:?}", after.len());
        }
        answer
    }

    async fn post(&self, name: &str, path: &str, object: &Value) -> ClientResponse {
        self.send(name, send_json(&self.client, Method::POST, path, object)).await
    }

    async fn patch(&self, name: &str, path: &str, kind: &str, content: &Value) {
        self.send(name, patch(&self.client, path, kind, content)).await;
    }

    async fn get(&self, name: &str, path: &str, accept: &str) -> ClientResponse {
        self.send(name, self.client.send_and_read(request(Method::GET, path, &[("accept", accept)], ""))).await
    }

    async fn delete(&self, name: &str, path: &str) {
        self.send(name, self.client.send_and_read(request(Method::DELETE, path, &[], ""))).await;
    }
}

/// One hostile request of each kind.
async fn send_hostile(eve: &Attacker<'_>, round: usize) {
    let name = |kind: &str| format!("{kind}-{round}");
    let owner = |n: usize| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": format!("o{n}"), "uid": format!("u{n}"), "controller": true});
    let owners: Vec<Value> = (0..20_000).map(owner).collect();
    eve.post("owners", CONFIG_MAPS, &json!({"metadata": {"name": name("owners"), "ownerReferences": owners}})).await;
    let labels: Value =
        texts(90_000, "-").into_iter().map(|key| (key, json!("-"))).collect::<serde_json::Map<_, _>>().into();
    eve.post("labels", CONFIG_MAPS, &json!({"metadata": {"name": name("labels"), "labels": labels}})).await;
    let addresses: Vec<String> = (0..80_000).map(|n| format!("10.{}.{}.{}", n >> 16, n >> 8 & 255, n & 255)).collect();
    let ports = json!([{"port": 80}]);
    let service = |spec: Value| json!({"metadata": {"name": name("s")}, "spec": spec});
    let services = "/api/v1/namespaces/default/services";
    eve.post("external IPs", services, &service(json!({"ports": ports, "externalIPs": addresses}))).await;
    // What is stored is not what a request costs.
    eve.delete("service", &format!("{services}/{}", name("s"))).await;
    eve.post("IP families", services, &service(json!({"ports": ports, "ipFamilies": vec!["IPv4"; 100_000]}))).await;
    let large = name("finalizers");
    eve.post("finalizers", CONFIG_MAPS, &finalized(&large, 80_000)).await;
    let large = format!("{CONFIG_MAPS}/{large}");
    eve.patch("small patch", &large, "application/merge-patch+json", &json!({"data": {"k": "v"}})).await;
    eve.patch("moving patch", &large, "application/json-patch+json", &moving_patch(2_000)).await;
    let copies: Vec<Value> =
        (0..2_000).map(|n| json!({"op": "copy", "from": "/metadata", "path": format!("/x{n}")})).collect();
    eve.patch("copies", &large, "application/json-patch+json", &copies.into()).await;
    eve.delete("finalized object", &large).await;
    let unfinalized = json!({"metadata": {"finalizers": null}});
    eve.patch("finalizers removed", &large, "application/merge-patch+json", &unfinalized).await;
    let twice = [texts(90_000, ""), texts(90_000, "")].concat();
    eve.post("set", WIDE, &wide(&name("set"), &json!({"set": twice}))).await;
    eve.post("defaults", WIDE, &wide(&name("defaults"), &json!({"items": vec![json!({}); 100_000]}))).await;
    eve.post("row", WIDE, &wide(&name("row"), &json!({"text": "x".repeat(1_000_000)}))).await;
    eve.post("small values", WIDE, &wide(&name("small"), &json!({"x": vec![json!({"": 0}); 440_000]}))).await;
    for accept in [TABLE, "application/yaml", "application/json;pretty=1"] {
        eve.get("list", WIDE, accept).await;
    }
    eve.delete("collection", WIDE).await;
    send_costly(eve, round).await;
    let old =
        eve.get("page", &format!("{CONFIG_MAPS}?limit=1"), "*/*").await.json()["metadata"]["resourceVersion"].take();
    let exact = format!("{CONFIG_MAPS}?resourceVersionMatch=Exact&resourceVersion={}", old.as_str().unwrap_or("1"));
    eve.get("old list", &exact, "*/*").await;
    eve.post("namespace", "/api/v1/namespaces", &json!({"metadata": {"name": name("gone")}})).await;
    let stuck = format!("/api/v1/namespaces/{}/configmaps", name("gone"));
    eve.post("stuck object", &stuck, &finalized("stuck", 1)).await;
    eve.delete("namespace", &format!("/api/v1/namespaces/{}", name("gone"))).await;
}

/// Requests for objects whose schemas make work.
async fn send_costly(eve: &Attacker<'_>, round: usize) {
    let costly = async |plural: &str, number: usize, value: Value| {
        let path = format!("/apis/hostile.example.com/v1/namespaces/default/{plural}");
        let object = json!({"apiVersion": "hostile.example.com/v1", "kind": format!("Costly{plural}"),
            "metadata": {"name": format!("c{round}-{number}")}, "spec": {"value": value}});
        eve.post(plural, &path, &object).await;
        path
    };
    costly("alternatives", 0, json!(vec![1; 400])).await;
    costly("patterns", 0, json!("a".repeat(4_000))).await;
    let crd = format!("{CRDS}/defaults.hostile.example.com");
    let versions = |schema: Value| json!({"spec": {"versions": [version_of_value(&schema)]}});
    let set_schema = async |schema: Value| {
        eve.patch("definition", &crd, "application/merge-patch+json", &versions(schema)).await;
    };
    set_schema(json!({"type": "string"})).await;
    let mut path = String::new();
    for number in 0..50 {
        path = costly("defaults", number, Value::Null).await;
    }
    // What is stored has no default; what is read has.
    set_schema(json!({"type": "string", "default": "x".repeat(1_000_000)})).await;
    for accept in [TABLE, "application/json"] {
        eve.get("list with defaults", &path, accept).await;
    }
    eve.delete("collection", &path).await;
}

/// What another user notices: durations of its requests by what they are.
#[derive(Default)]
struct Noticed([Vec<Duration>; 3]);

impl Noticed {
    const NAMES: [&str; 3] = ["/livez", "GET", "PUT of 100 kB"];

    /// Sends one request of each kind, each of which must succeed.
    async fn observe(&mut self, anna: &Client, object: &Value) {
        let own = format!("{CONFIG_MAPS}/mine");
        for (name, durations) in Self::NAMES.iter().zip(&mut self.0) {
            let began = Instant::now();
            let answered = match *name {
                "/livez" => anna.get("/livez").await,
                "GET" => anna.get(&own).await,
                _ => send_json(anna, Method::PUT, &own, object).await,
            };
            assert_eq!(answered.status, 200, "{name}: {}", answered.text());
            durations.push(began.elapsed());
        }
    }

    fn print(&mut self) {
        for (name, durations) in Self::NAMES.iter().zip(&mut self.0) {
            durations.sort();
            let [p50, p99] =
                [50, 99].map(|percent| durations[(durations.len() * percent / 100).min(durations.len() - 1)]);
            let worst = durations.last().copied().unwrap_or_default();
            println!("{name}: {} requests, p50 {p50:?}, p99 {p99:?}, longest {worst:?}", durations.len());
        }
    }
}

/// What another user sees until the attack is over, and the most memory in kB. It has a thread of its own, because the
/// attacker's bodies take much of the time of the test itself.
async fn observe_as_other_user(
    api: &EmbeddedApiFixture,
    answered: &[AtomicUsize; OTHER_CONNECTIONS],
    is_over: &AtomicBool,
) -> (Noticed, u64) {
    let anna = client(api, "anna").await;
    // Connections are divided among the workers.
    let others = join_all(answered.iter().map(|_| client(api, "anna"))).await;
    let mine = json!({"metadata": {"name": "mine"}, "data": {"k": "x".repeat(100_000)}});
    assert_eq!(send_json(&anna, Method::POST, CONFIG_MAPS, &mine).await.status, 201);
    let mut counting = Box::pin(join_all(others.iter().zip(answered).map(async |(other, answered)| {
        loop {
            assert_eq!(other.get("/livez").await.status, 200);
            answered.fetch_add(1, Relaxed);
            tokio::time::sleep(COUNT_INTERVAL).await;
        }
    })));
    let (mut noticed, mut most) = (Noticed::default(), 0);
    while !is_over.load(Relaxed) {
        tokio::select! {
            biased;
            _ = &mut counting => unreachable!("it has no end"),
            () = noticed.observe(&anna, &mine) => most = most.max(api.gateway.resident_kilobytes()),
        }
    }
    (noticed, most)
}

/// Attacks for a time, or once, as long as `goes_on`, with so many requests at a time. Returns the number of rounds.
/// `resident_kilobytes`: of the gateway, printed after each round.
async fn attack(
    eve: &Attacker<'_>,
    whole: Duration,
    copies: usize,
    goes_on: impl Fn() -> bool,
    resident_kilobytes: impl Fn() -> u64,
) -> usize {
    for crd in costly_crds().into_iter().chain([wide_crd()]) {
        assert_eq!(eve.post("definition", CRDS, &crd).await.status, 201);
        let plural = crd["spec"]["names"]["plural"].as_str().unwrap();
        let path = format!("/apis/hostile.example.com/v1/{plural}");
        eventually("the CRD to be served", async || (eve.client.get(&path).await.status == 200).then_some(())).await;
    }
    let (began, mut rounds) = (Instant::now(), 0);
    loop {
        let hostile: FuturesUnordered<_> = (0..copies).map(|copy| send_hostile(eve, copies * rounds + copy)).collect();
        hostile.collect::<Vec<()>>().await;
        rounds += 1;
        println!("{:4} s, round {rounds}: {} MiB", began.elapsed().as_secs(), resident_kilobytes() >> 10);
        if began.elapsed() >= whole || !goes_on() {
            return rounds;
        }
    }
}

/// Ends the observation also if the attack fails.
struct SetOnDrop<'t>(&'t AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn hostile_requests_leave_others_and_memory_alone() {
    let api = start();
    let minutes = std::env::var(MINUTES).ok().map_or(0.0, |text| text.parse::<f64>().expect("a number of minutes"));
    let whole = Duration::from_secs_f64(minutes * 60.0);
    let (answered, is_over) = (<[AtomicUsize; OTHER_CONNECTIONS]>::default(), AtomicBool::default());
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // In the long form, several of each kind at a time.
    let copies = if whole.is_zero() { 1 } else { 3 };
    let before = api.gateway.resident_kilobytes();
    let (rounds, (mut noticed, most)) = std::thread::scope(|scope| {
        let observation = scope.spawn(|| runtime().block_on(observe_as_other_user(&api, &answered, &is_over)));
        let over = SetOnDrop(&is_over);
        let rounds = runtime().block_on(async {
            let eve = Attacker { client: client(&api, "eve").await, answered: &answered };
            attack(&eve, whole, copies, || !observation.is_finished(), || api.gateway.resident_kilobytes()).await
        });
        drop(over);
        (rounds, observation.join().unwrap())
    });
    println!("{rounds} rounds: {} MiB before, at most {} MiB", before >> 10, most >> 10);
    noticed.print();
    let growth = most.saturating_sub(before) >> 10;
    assert!(growth < MAX_GROWTH * copies as u64, "grew by {growth} MiB");
}
