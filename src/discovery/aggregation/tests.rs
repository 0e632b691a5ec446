//! Discovery against good, slow, dead, old and misbehaving backends, on a paused clock.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep};

use super::super::media::DiscoveryFormat;
use super::super::polling::fetch::{FetchedResponse, MAX_BODY, TIMEOUT};
use super::super::snapshot::Root;
use super::*;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Backends by APIService and path; records their requests.
#[derive(Clone, Default)]
struct FakeBackends(Rc<RefCell<Inner>>);

#[derive(Default)]
struct Inner {
    answers: BTreeMap<(String, String), FetchBehavior>,
    asked: Vec<(String, String, Option<String>)>,
}

#[derive(Clone)]
enum FetchBehavior {
    Answer(FetchedResponse),
    Hang,
    Refuse,
}

impl FakeBackends {
    fn set(&self, apiservice: &str, path: &str, behavior: FetchBehavior) {
        self.0.borrow_mut().answers.insert((apiservice.into(), path.into()), behavior);
    }

    fn asked(&self) -> Vec<(String, String, Option<String>)> {
        std::mem::take(&mut self.0.borrow_mut().asked)
    }
}

impl Fetch for FakeBackends {
    async fn fetch(
        &self,
        apiservice: &str,
        path: &str,
        _: &str,
        if_none_match: Option<&str>,
        _: usize,
    ) -> Result<FetchedResponse, FetchError> {
        let key = (apiservice.to_owned(), path.to_owned());
        let behavior = {
            let mut inner = self.0.borrow_mut();
            inner.asked.push((key.0.clone(), key.1.clone(), if_none_match.map(str::to_owned)));
            inner.answers.get(&key).cloned()
        };
        match behavior {
            None => Ok(FetchedResponse { status: 404, ..FetchedResponse::default() }),
            Some(FetchBehavior::Refuse) => Err(FetchError::new("connection refused")),
            Some(FetchBehavior::Hang) => std::future::pending().await,
            Some(FetchBehavior::Answer(fetched))
                if if_none_match.is_some() && fetched.etag.as_deref() == if_none_match =>
            {
                Ok(FetchedResponse { status: 304, ..FetchedResponse::default() })
            }
            Some(FetchBehavior::Answer(fetched)) => Ok(fetched),
        }
    }
}

fn known(group: &str, version: &str, service_key: &str) -> ApiServiceClaim {
    ApiServiceClaim {
        name: format!("{version}.{group}"),
        group: group.into(),
        version: version.into(),
        group_priority_minimum: 1000,
        version_priority: 15,
        service_key: service_key.into(),
        backend: service_key.into(),
        served_by: ServedBy::Backend,
    }
}

fn answer(content_type: &str, body: String) -> FetchBehavior {
    FetchBehavior::Answer(FetchedResponse {
        status: 200,
        content_type: content_type.into(),
        etag: None,
        body: body.into(),
        ..FetchedResponse::default()
    })
}

/// A good backend that serves `resource` in each of `versions`, with an entity tag.
fn good(group: &str, versions: &[&str], resource: &str) -> FetchBehavior {
    let versions: Vec<String> = versions
        .iter()
        .map(|version| {
            format!(
                r#"{{"version":"{version}","freshness":"Current","resources":[{{"resource":"{resource}","scope":"Namespaced","verbs":["get"]}}]}}"#
            )
        })
        .collect();
    let body = format!(
        r#"{{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{{}},"items":[{{"metadata":{{"name":"{group}"}},"versions":[{}]}}]}}"#,
        versions.join(",")
    );
    let etag = Some(format!("\"{resource}{}\"", versions.len()));
    FetchBehavior::Answer(FetchedResponse {
        status: 200,
        content_type: AGGREGATED.into(),
        etag,
        body: body.into(),
        ..FetchedResponse::default()
    })
}

/// The served resources of each group and version, with a `!` if marked stale.
fn served(documents: &Published<DiscoverySnapshot>) -> Vec<String> {
    let documents = documents.get();
    let list: serde_json::Value =
        serde_json::from_slice(&documents.list(Root::Named, DiscoveryFormat::V2).json).unwrap();
    let mut lines = Vec::new();
    for group in list["items"].as_array().unwrap() {
        for version in group["versions"].as_array().unwrap() {
            let resources = version["resources"].as_array().cloned().unwrap_or_default();
            let resources: Vec<&str> = resources.iter().map(|it| it["resource"].as_str().unwrap()).collect();
            let stale = if version["freshness"] == "Stale" { "!" } else { "" };
            let (group, version) = (group["metadata"]["name"].as_str().unwrap(), version["version"].as_str().unwrap());
            lines.push(format!("{group}/{version}:{}{stale}", resources.join(",")));
        }
    }
    assert_eq!(lines.remove(0), "apiregistration.k8s.io/v1:apiservices");
    assert_eq!(lines.pop().unwrap(), "authorization.k8s.io/v1:selfsubjectaccessreviews,selfsubjectrulesreviews");
    assert_eq!(lines.pop().unwrap(), "authentication.k8s.io/v1:selfsubjectreviews");
    lines
}

/// Runs a test on a paused clock.
fn run(
    test: impl AsyncFnOnce(FakeBackends, DiscoveryAggregator<FakeBackends>, Published<DiscoverySnapshot>) + 'static,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, async move {
        let world = FakeBackends::default();
        let (discovery, documents) =
            DiscoveryAggregator::start(world.clone(), LocalGroups::default(), &DiskCache::disabled());
        test(world, discovery, documents).await;
    });
}

/// Runs all that is ready without advancing time.
async fn settle() {
    sleep(Duration::from_millis(1)).await;
}

#[test]
fn discovery_slow_and_dead_backends_delay_no_other() {
    run(async |world, discovery, documents| {
        world.set("v1.good", "/apis", good("good", &["v1"], "things"));
        world.set("v1.slow", "/apis", FetchBehavior::Hang);
        world.set("v1.dead", "/apis", FetchBehavior::Refuse);
        let begun = Instant::now();
        discovery.set_api_services(vec![known("slow", "v1", "s"), known("good", "v1", "g"), known("dead", "v1", "d")]);
        assert_eq!(served(&documents), ["dead/v1:!", "good/v1:!", "slow/v1:!"], "served before any backend was polled");
        settle().await;
        assert!(begun.elapsed() < Duration::from_millis(5));
        assert_eq!(served(&documents), ["dead/v1:!", "good/v1:things", "slow/v1:!"]);
        assert!(!documents.get().all_asked());
        sleep(TIMEOUT).await;
        assert!(documents.get().all_asked());
        let documents = documents.get();
        let sources = documents.sources();
        assert_eq!(sources[0].problem, "connection refused");
        assert_eq!(sources[2].problem, "no answer to GET /apis within 5 s");
        assert_eq!((sources[1].current, sources[1].resources), (true, 1));
    });
}

#[test]
fn discovery_last_good_marked_stale_after_failures() {
    run(async |world, discovery, documents| {
        world.set("v1.good", "/apis", good("good", &["v1"], "things"));
        discovery.set_api_services(vec![known("good", "v1", "g")]);
        settle().await;
        world.set("v1.good", "/apis", FetchBehavior::Refuse);
        sleep(Duration::from_secs(63)).await;
        assert_eq!(served(&documents), ["good/v1:things!"], "after three rounds that failed");
        world.set("v1.good", "/apis", good("good", &["v1"], "things"));
        world.asked();
        sleep(Duration::from_secs(60)).await;
        assert_eq!(served(&documents), ["good/v1:things"]);
        assert_eq!(world.asked()[0].2.as_deref(), Some("\"things1\""), "the tag outlives the trouble");
    });
}

#[test]
fn discovery_stale_until_new_backend_answers() {
    run(async |world, discovery, documents| {
        world.set("v1.good", "/apis", good("good", &["v1"], "things"));
        discovery.set_api_services(vec![known("good", "v1", "old")]);
        settle().await;
        assert_eq!(served(&documents), ["good/v1:things"]);
        // Another CA is not another backend.
        discovery.set_api_services(vec![ApiServiceClaim { service_key: "older".into(), ..known("good", "v1", "old") }]);
        assert_eq!(served(&documents), ["good/v1:things"]);
        settle().await;
        world.set("v1.good", "/apis", FetchBehavior::Hang);
        discovery.set_api_services(vec![known("good", "v1", "new")]);
        settle().await;
        assert_eq!(served(&documents), ["good/v1:things!"]);
        assert!(!documents.get().all_asked());
        sleep(TIMEOUT).await;
        assert_eq!(served(&documents), ["good/v1:things!"]);
        world.set("v1.good", "/apis", good("good", &["v1"], "parts"));
        sleep(Duration::from_secs(2)).await;
        assert_eq!(served(&documents), ["good/v1:parts"]);
        // Content of a new backend that equals the old is current at once.
        discovery.set_api_services(vec![known("good", "v1", "newer")]);
        assert_eq!(served(&documents), ["good/v1:parts!"]);
        settle().await;
        assert_eq!(served(&documents), ["good/v1:parts"]);
    });
}

#[test]
fn discovery_unchanged_is_not_published() {
    run(async |world, discovery, documents| {
        world.set("v1.good", "/apis", good("good", &["v1"], "things"));
        discovery.set_api_services(vec![known("good", "v1", "g")]);
        settle().await;
        let (before, count) = (documents.get(), discovery.aggregations().load(Ordering::Relaxed));
        world.asked();
        sleep(Duration::from_secs(301)).await;
        discovery.set_api_services(vec![known("good", "v1", "g")]);
        assert!((5..=6).contains(&world.asked().len()), "once a minute");
        assert!(Arc::ptr_eq(&before, &documents.get()));
        assert_eq!(discovery.aggregations().load(Ordering::Relaxed), count);
    });
}

#[test]
fn discovery_versions_share_one_fetch() {
    run(async |world, discovery, documents| {
        world.set("v1.good", "/apis", good("good", &["v1", "v2"], "things"));
        discovery.set_api_services(vec![known("good", "v1", "g")]);
        settle().await;
        assert_eq!(served(&documents), ["good/v1:things"]);
        discovery.set_api_services(vec![known("good", "v1", "g"), known("good", "v2", "g"), known("good", "v3", "g")]);
        settle().await;
        assert_eq!(served(&documents), ["good/v3:!", "good/v2:things", "good/v1:things"]);
        let asked = world.asked();
        assert_eq!(asked.len(), 2);
        assert_eq!(asked[1].2, None, "without the tag that would hide the new version");
    });
}

#[test]
fn discovery_legacy_backend_fetched_per_version() {
    run(async |world, discovery, documents| {
        let list = |group_version: &str, name: &str| {
            let resource = format!(r#"{{"name":"{name}","namespaced":true,"kind":"Thing","verbs":["get"]}}"#);
            let body =
                format!(r#"{{"kind":"APIResourceList","groupVersion":"{group_version}","resources":[{resource}]}}"#);
            answer("application/json", body)
        };
        world.set("v1.old", "/apis", answer("application/json", r#"{"kind":"APIGroupList","groups":[]}"#.into()));
        world.set("v1.old", "/apis/old/v1", list("old/v1", "things"));
        world.set("v2.old", "/apis/old/v2", FetchBehavior::Hang);
        world.set("v3.old", "/apis/old/v3", list("other/v3", "things"));
        world.set("v1.", "/api/v1", list("v1", "pods"));
        discovery.set_api_services(vec![
            known("old", "v1", "o"),
            known("old", "v2", "o"),
            known("old", "v3", "o"),
            known("", "v1", "core"),
        ]);
        sleep(TIMEOUT + Duration::from_millis(1)).await;
        assert_eq!(served(&documents), ["old/v3:!", "old/v2:!", "old/v1:things"]);
        let documents = documents.get();
        let core: serde_json::Value =
            serde_json::from_slice(&documents.list(Root::Core, DiscoveryFormat::V2).json).unwrap();
        assert_eq!(core["items"][0]["versions"][0]["resources"][0]["resource"], "pods");
        assert!(
            documents.sources().iter().any(|it| it.problem == "the response is not for old/v3, which was requested")
        );
    });
}

#[test]
fn discovery_invalid_answers_ignored() {
    run(async |world, discovery, documents| {
        world.set(
            "v1.good",
            "/apis",
            FetchBehavior::Answer(FetchedResponse { status: 304, ..FetchedResponse::default() }),
        );
        discovery.set_api_services(vec![known("good", "v1", "g")]);
        settle().await;
        assert_eq!(served(&documents), ["good/v1:!"], "unchanged, but since when?");
        for lie in [
            answer("text/html", "<html>log in</html>".into()),
            answer(AGGREGATED, "<html>".into()),
            answer(AGGREGATED, "[".repeat(100_000)),
            answer(
                AGGREGATED,
                "{\"kind\":\"APIGroupDiscoveryList\",\"apiVersion\":\"apidiscovery.k8s.io/v2\",\"items\":[7]}".into(),
            ),
            answer(AGGREGATED, " ".repeat(MAX_BODY + 1)),
            FetchBehavior::Answer(FetchedResponse { status: 302, ..FetchedResponse::default() }),
            FetchBehavior::Answer(FetchedResponse {
                status: 503,
                body: Bytes::from_static(b"{}"),
                ..FetchedResponse::default()
            }),
        ] {
            world.set("v1.good", "/apis", good("good", &["v1"], "things"));
            discovery.refresh_now("v1.good");
            settle().await;
            assert_eq!(served(&documents), ["good/v1:things"]);
            world.set("v1.good", "/apis", lie);
            for expected in ["good/v1:things", "good/v1:things", "good/v1:things!"] {
                discovery.refresh_now("v1.good");
                settle().await;
                assert_eq!(served(&documents), [expected]);
            }
            assert!(!documents.get().sources()[0].problem.is_empty());
        }
        world.set("v1.good", "/apis", good("evil", &["v1"], "stolen"));
        discovery.refresh_now("v1.good");
        settle().await;
        assert_eq!(served(&documents), ["good/v1:things!"], "it answers, but not about this one");
        assert_eq!(documents.get().sources()[0].problem, "the backend does not list this group and version");
    });
}

#[test]
fn discovery_retries_with_backoff_and_at_once_on_refresh() {
    run(async |world, discovery, documents| {
        world.set("v1.good", "/apis", FetchBehavior::Refuse);
        discovery.set_api_services(vec![known("good", "v1", "g")]);
        sleep(Duration::from_millis(600)).await;
        assert!((2..=3).contains(&world.asked().len()));
        sleep(Duration::from_secs(600)).await;
        assert!((14..=32).contains(&world.asked().len()));
        world.set("v1.good", "/apis", good("good", &["v1"], "things"));
        discovery.refresh_now("v1.good");
        discovery.refresh_now("v1.unknown");
        settle().await;
        assert_eq!(served(&documents), ["good/v1:things"]);
    });
}

#[test]
fn discovery_unregistered_removed_and_not_fetched() {
    run(async |world, discovery, documents| {
        world.set("v1.good", "/apis", good("good", &["v1"], "things"));
        world.set("v1.gone", "/apis", FetchBehavior::Hang);
        discovery.set_api_services(vec![
            known("good", "v1", "g"),
            known("gone", "v1", "x"),
            known("apiregistration.k8s.io", "v1", "evil"),
        ]);
        settle().await;
        discovery.set_api_services(vec![known("good", "v1", "g")]);
        assert_eq!(served(&documents), ["good/v1:things"]);
        world.asked();
        sleep(Duration::from_secs(600)).await;
        assert!(world.asked().iter().all(|(name, _, _)| name == "v1.good"));
        drop(discovery);
        world.asked();
        sleep(Duration::from_secs(600)).await;
        assert_eq!(world.asked(), [], "dropping it ends its tasks");
    });
}
