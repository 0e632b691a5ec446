//! The process is killed at random points, again and again, while three clients write, read and list, and two watch.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use http::Method;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::recorded_history::{
    EventType, ObjectStates, RecordedEvent, RecordedHistory, RecordedList, RecordedRead, RecordedWrite, Revision,
    WriteOutcome, name_of, state_of,
};
use crate::support::client::{Client, ClientResponse, get, read_response, request};
use crate::support::embedded_api::{CONFIG_MAPS, EmbeddedApiFixture, send_json};

/// How often the process is killed in all; 10 if unset.
const KILLS: &str = "NARTHEX_TEST_KILLS";

/// Seed of the first history; random if unset.
const SEED: &str = "NARTHEX_TEST_SEED";

/// Kills in one history, which has a store of its own.
const KILLS_PER_HISTORY: usize = 100;

const CLIENTS: usize = 3;

/// Number of names that the clients share.
const NAMES: usize = 12;

/// Token of the last write of a history.
const END: &str = "end";

/// The latest acknowledged revision of each name, of all clients.
type Acknowledged = Arc<Mutex<BTreeMap<String, Revision>>>;

/// A client that sends random requests until its connection breaks.
struct RandomClient {
    client: Client,
    random: fastrand::Rng,
    /// Begins the tokens of its writes.
    id: String,
    acknowledged: Acknowledged,
    /// Told of each acknowledged write.
    progress: mpsc::UnboundedSender<()>,
    history: RecordedHistory,
    /// The last version of objects that it saw.
    seen: BTreeMap<String, Revision>,
}

impl RandomClient {
    async fn run(mut self) -> RecordedHistory {
        for number in 0.. {
            let token = format!("{}-{number}", self.id);
            let name = format!("n{}", self.random.usize(..NAMES));
            let step = match self.random.u8(..20) {
                0..=4 => self.write(Method::POST, CONFIG_MAPS.to_owned(), name, token).await,
                5..=9 => self.write(Method::PUT, format!("{CONFIG_MAPS}/{name}"), name, token).await,
                10..=12 => self.write(Method::PATCH, format!("{CONFIG_MAPS}/{name}"), name, token).await,
                13..=14 => self.delete(&name).await,
                15..=17 => self.get(name).await,
                _ => self.list().await,
            };
            if step.is_none() {
                break;
            }
        }
        self.history
    }

    /// The response; none if the connection broke before its head.
    async fn send(&self, method: Method, path: &str, media_type: &str, body: &str) -> Option<ClientResponse> {
        let response = self.client.send(request(method, path, &[("content-type", media_type)], body)).await.ok()?;
        Some(read_response(response).await)
    }

    async fn write(&mut self, method: Method, path: String, name: String, token: String) -> Option<()> {
        let length = if self.random.u8(..10) == 0 { 20_000 } else { self.random.usize(..2_000) };
        let mut object = json!({"data": {"token": token, "filling": "x".repeat(length)}});
        let media_type = if method == Method::PATCH {
            "application/merge-patch+json"
        } else {
            object["metadata"] = json!({"name": name});
            "application/json"
        };
        // A version that may be stale by now, or none.
        if let Some(version) = self.seen.get(&name).filter(|_| method == Method::PUT && self.random.bool()) {
            object["metadata"]["resourceVersion"] = json!(version.to_string());
        }
        let response = self.send(method, &path, media_type, &object.to_string()).await;
        let outcome = match &response {
            None => WriteOutcome::Unknown,
            Some(response) => match response.status.as_u16() {
                200 | 201 => {
                    let revision = response.is_complete.then(|| state_of(&response.json()).0);
                    if let Some(revision) = revision {
                        self.note_acknowledged(&name, revision);
                    }
                    let _ = self.progress.send(());
                    WriteOutcome::Acknowledged(revision)
                }
                404 | 409 => WriteOutcome::Refused,
                // The store ended before it answered.
                500..=599 => WriteOutcome::Unknown,
                _ => panic!("{response:?}"),
            },
        };
        self.history.writes.push(RecordedWrite { name, token, outcome });
        response.filter(|response| response.is_complete).map(drop)
    }

    fn note_acknowledged(&mut self, name: &str, revision: Revision) {
        self.seen.insert(name.to_owned(), revision);
        let mut acknowledged = self.acknowledged.lock().unwrap();
        let latest = acknowledged.entry(name.to_owned()).or_default();
        *latest = revision.max(*latest);
    }

    async fn delete(&mut self, name: &str) -> Option<()> {
        let response = self.send(Method::DELETE, &format!("{CONFIG_MAPS}/{name}"), "application/json", "").await?;
        if !response.is_complete {
            return None;
        }
        match response.status.as_u16() {
            200 => {
                self.history.deletions.push(response.json()["details"]["uid"].as_str().unwrap().to_owned());
                let _ = self.progress.send(());
            }
            404 | 409 | 500..=599 => {}
            _ => panic!("{response:?}"),
        }
        Some(())
    }

    async fn get(&mut self, name: String) -> Option<()> {
        let acknowledged = self.acknowledged.lock().unwrap().get(&name).copied().unwrap_or_default();
        let response = self.send(Method::GET, &format!("{CONFIG_MAPS}/{name}"), "", "").await?;
        if !response.is_complete || response.status.is_server_error() {
            return None;
        }
        let found = (response.status == 200).then(|| state_of(&response.json()));
        assert!(found.is_some() || response.status == 404, "{response:?}");
        if let Some((revision, _)) = &found {
            self.seen.insert(name.clone(), *revision);
        }
        self.history.reads.push(RecordedRead { name, acknowledged, found });
        Some(())
    }

    /// Lists the latest state, from the cache, at an older version, or in pages.
    async fn list(&mut self) -> Option<()> {
        let latest = self.acknowledged.lock().unwrap().values().copied().max().unwrap_or_default();
        let older = latest.saturating_sub(self.random.u64(..50));
        let kind = self.random.u8(..4);
        let (query, not_before) = match kind {
            0 => ("limit=500".to_owned(), latest),
            1 => ("resourceVersion=0".to_owned(), 0),
            2 if older > 20 => (format!("resourceVersion={older}&resourceVersionMatch=Exact"), older),
            _ => ("limit=3".to_owned(), latest),
        };
        let mut items = ObjectStates::new();
        let mut continues = String::new();
        loop {
            let path = format!("{CONFIG_MAPS}?{query}{continues}");
            let response = self.send(Method::GET, &path, "", "").await?;
            if !response.is_complete || response.status.is_server_error() {
                return None;
            }
            assert_eq!(response.status, 200, "{path}: {response:?}");
            let page = response.json();
            let found = page["items"].as_array().unwrap().iter();
            items.extend(found.filter(|item| is_tested(item)).map(|item| (name_of(item), state_of(item))));
            let revision = page["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
            assert!(!query.ends_with("Exact") || revision == older);
            match page["metadata"]["continue"].as_str().unwrap_or_default() {
                "" => {
                    self.history.lists.push(RecordedList { revision, not_before, items });
                    return Some(());
                }
                token => continues = format!("&continue={token}"),
            }
        }
    }
}

fn is_tested(object: &Value) -> bool {
    object["data"]["token"].is_string()
}

/// A watch that goes on from its last version when the process is there again.
struct ResumedWatch {
    selector: &'static str,
    last: Revision,
    events: Vec<RecordedEvent>,
}

impl ResumedWatch {
    /// Reads until the connection breaks, or the last object of the history was created.
    async fn run(mut self, client: Client) -> ResumedWatch {
        let path =
            format!("{CONFIG_MAPS}?watch=1&allowWatchBookmarks=true&resourceVersion={}{}", self.last, self.selector);
        let Ok(response) = client.send(get(&path, &[])).await else { return self };
        if response.status().is_server_error() {
            return self;
        }
        assert_eq!(response.status(), 200, "{path}");
        let mut body = response.into_body();
        let mut bytes = Vec::new();
        // Without a time limit: a slow disk leaves the watch of one object without events for long.
        while let Some(Ok(frame)) = body.frame().await {
            bytes.extend_from_slice(&frame.into_data().unwrap_or_default());
            while let Some(length) = bytes.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = bytes.drain(..=length).collect();
                let line: Value = serde_json::from_slice(&line).unwrap();
                let object = &line["object"];
                assert_ne!(line["type"], "ERROR", "{line}");
                self.last = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
                if is_tested(object) {
                    self.events.extend(RecordedEvent::parse(&line));
                }
                if object["data"]["token"] == END {
                    return self;
                }
            }
        }
        self
    }
}

#[derive(Default)]
struct Counts {
    kills: usize,
    kills_at_start: usize,
    acknowledged: usize,
    refused: usize,
    unknown: usize,
    unknown_and_stored: usize,
    reads: usize,
    lists: usize,
    events: usize,
}

impl Counts {
    fn add(&mut self, history: &RecordedHistory, events: &[RecordedEvent]) {
        let tokens: std::collections::HashSet<_> = events.iter().map(|event| event.token.as_str()).collect();
        for write in &history.writes {
            match write.outcome {
                WriteOutcome::Acknowledged(_) => self.acknowledged += 1,
                WriteOutcome::Refused => self.refused += 1,
                WriteOutcome::Unknown => {
                    self.unknown += 1;
                    self.unknown_and_stored += usize::from(tokens.contains(write.token.as_str()));
                }
            }
        }
        self.acknowledged += history.deletions.len();
        self.reads += history.reads.len();
        self.lists += history.lists.len();
        self.events += events.len();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn process_kills_leave_one_history() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let kills = number(KILLS).map_or(10, |kills| usize::try_from(kills).unwrap());
    let first = number(SEED).unwrap_or_else(|| fastrand::u64(..1_000_000));
    let mut counts = Counts::default();
    for seed in first.. {
        let kills = (kills - counts.kills).min(KILLS_PER_HISTORY);
        if kills == 0 {
            break;
        }
        println!("history of {SEED}={seed}, {kills} kills");
        run_history(seed, kills, &mut counts).await;
        println!(
            "{} kills ({} of them while the process starts), {} writes acknowledged, {} refused, {} unknown ({} of them \
             stored), {} gets, {} lists, {} watch events",
            counts.kills,
            counts.kills_at_start,
            counts.acknowledged,
            counts.refused,
            counts.unknown,
            counts.unknown_and_stored,
            counts.reads,
            counts.lists,
            counts.events
        );
    }
}

async fn run_history(seed: u64, kills: usize, counts: &mut Counts) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut api = EmbeddedApiFixture::start_synchronized();
    let mut history = RecordedHistory::default();
    let acknowledged = Acknowledged::default();
    let start = api.http2().await.get(&format!("{CONFIG_MAPS}?limit=1")).await.json();
    let start = start["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    let watch = |selector| ResumedWatch { selector, last: start, events: Vec::new() };
    let mut watches = [watch(""), watch("&fieldSelector=metadata.name%3Dn0")];
    for round in 0..kills {
        let (progress, mut progressed) = mpsc::unbounded_channel();
        let mut clients = Vec::new();
        for client in 0..CLIENTS {
            let client = RandomClient {
                client: api.http2().await,
                random: random.fork(),
                id: format!("{round}-{client}"),
                acknowledged: acknowledged.clone(),
                progress: progress.clone(),
                history: RecordedHistory::default(),
                seen: BTreeMap::new(),
            };
            clients.push(tokio::spawn(client.run()));
        }
        drop(progress);
        let [all, one] = watches;
        let all = tokio::spawn(all.run(api.http2().await));
        let one = tokio::spawn(one.run(api.http2().await));
        for _ in 0..random.usize(..60) {
            progressed.recv().await;
        }
        // Not always right behind a response.
        tokio::time::sleep(Duration::from_micros(random.u64(..4_000))).await;
        api.gateway.signal("KILL");
        api.gateway.wait_for_exit().await;
        counts.kills += 1;
        for client in join_all(clients).await {
            history.extend(client.unwrap());
        }
        watches = [all.await.unwrap(), one.await.unwrap()];
        if random.u8(..5) == 0 {
            kill_while_starting(&api, Duration::from_millis(random.u64(..150))).await;
            counts.kills_at_start += 1;
        }
        api.restart();
    }
    // Both watches see this object last.
    let client = api.http2().await;
    let path = format!("{CONFIG_MAPS}/n0");
    assert!([200, 404].contains(&client.send_and_read(request(Method::DELETE, &path, &[], "")).await.status.as_u16()));
    let object = json!({"metadata": {"name": "n0"}, "data": {"token": END}});
    let created = send_json(&client, Method::POST, CONFIG_MAPS, &object).await.json();
    let outcome = WriteOutcome::Acknowledged(Some(state_of(&created).0));
    history.writes.push(RecordedWrite { name: "n0".to_owned(), token: END.to_owned(), outcome });
    let [all, one] = watches;
    let (all, one) = (all.run(api.http2().await).await, one.run(api.http2().await).await);
    history.assert_explained_by(&all.events);
    let expected: Vec<_> = all.events.iter().filter(|event| event.name == "n0").cloned().collect();
    assert_eq!(one.events, expected, "a watch of one object has no gap");
    assert!(all.events.iter().any(|event| event.event_type == EventType::Deleted));
    counts.add(&history, &all.events);
}

/// Starts a process on the same store and kills it before or soon after it serves.
async fn kill_while_starting(api: &EmbeddedApiFixture, after: Duration) {
    let mut process = Command::new(env!("CARGO_BIN_EXE_narthex"))
        .arg("gateway")
        .args(api.arguments())
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    tokio::time::sleep(after).await;
    process.kill().unwrap();
    process.wait().unwrap();
}
