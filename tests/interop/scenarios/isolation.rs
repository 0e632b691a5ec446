//! Failure isolation: one of five real servers is killed or stopped; the other four, discovery, OpenAPI and readiness
//! are not affected.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use rustix::process::Signal;

use super::{TestFn, metrics_server};
use crate::environment::{
    Extension, Gateway, Identity, Process, TestEnvironment, eventually, free_port, register, runtime,
};

pub(super) const GATEWAY_TESTS: &[(&str, TestFn)] = &[
    ("isolation: one of five backends killed, the others unaffected", killed_backend),
    ("isolation: one of five backends stopped, the others unaffected", stopped_backend),
];

/// A path of the faulty server, and paths of the others.
const FAULTY_PATH: &str = "/apis/wardle.example.com/v1alpha1/flunders";
const OTHERS: [(&str, &str); 4] = [
    ("sample-apiserver", "/apis/wardle.example.com/v1beta1/flunders"),
    ("metrics-server", "/apis/metrics.k8s.io/v1beta1/pods"),
    ("kube-apiserver as an APIService", "/apis/apps/v1/deployments"),
    ("kube-apiserver as the delegate", "/api/v1/namespaces"),
];

/// Two sample-apiservers, a metrics-server, and kube-apiserver as an APIService's backend and as the delegate.
struct FiveBackends<'w> {
    environment: &'w TestEnvironment,
    faulty: Extension,
    gateway: Gateway,
    _others: (Extension, Process),
}

impl FiveBackends<'_> {
    fn start<'w>(environment: &'w TestEnvironment, name: &str) -> FiveBackends<'w> {
        let directory: PathBuf = environment.scratch(name);
        let cluster = &environment.cluster;
        let faulty = Extension::start(cluster, &directory, &format!("{name}-victim"));
        let other = Extension::start(cluster, &directory, &format!("{name}-other"));
        let port = free_port();
        let server = metrics_server::start(cluster, &directory, port);
        let registry = directory.join("registry");
        let authorities = &cluster.authorities;
        let wardle = "wardle.example.com";
        let backend = authorities.backend.file.as_path();
        register(&registry, (wardle, "v1alpha1"), (faulty.name(), faulty.endpoint.port), backend);
        register(&registry, (wardle, "v1beta1"), (other.name(), other.endpoint.port), backend);
        register(&registry, metrics_server::GROUP_VERSION, (metrics_server::NAME, port), backend);
        register(&registry, ("apps", "v1"), ("kubernetes", cluster.endpoint.port), &authorities.serving.file);
        let cluster_itself = cluster.admin_kubeconfig.display().to_string();
        let flags =
            [("--registry-dir", registry.to_str().unwrap()), ("--delegate-kubeconfig", cluster_itself.as_str())];
        let gateway = Gateway::start_without_registry(cluster, &directory, &format!("narthex-{name}"), &flags);
        let backends = FiveBackends { environment, faulty, gateway, _others: (other, server) };
        for path in OTHERS.iter().map(|(_, path)| *path).chain([FAULTY_PATH]) {
            eventually(&format!("{path} served"), || backends.is_served(path));
        }
        eventually("discovery of all", || {
            let discovered_resources = backends.discovered_resources();
            if discovered_resources.iter().filter(|(_, resources)| !resources.is_empty()).count() >= 5
                && discovered_resources.contains_key("metrics.k8s.io/v1beta1")
                && discovered_resources.contains_key("wardle.example.com/v1alpha1")
            {
                Ok(())
            } else {
                Err(format!("{discovered_resources:?}"))
            }
        });
        backends
    }

    fn admin(&self) -> &Identity {
        self.environment.cluster.admin()
    }

    fn is_served(&self, path: &str) -> Result<(), String> {
        let response = self.gateway.endpoint.get(Some(self.admin()), path)?;
        if response.status == 200 { Ok(()) } else { Err(format!("{} {}", response.status, response.text())) }
    }

    /// Group versions in discovery with the names of their resources, including stale ones.
    fn discovered_resources(&self) -> BTreeMap<String, Vec<String>> {
        let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let response =
            self.gateway.endpoint.send(Some(self.admin()), "GET", "/apis", &[("accept", accept)], b"").unwrap();
        assert_eq!(response.status, 200, "{}", response.text());
        let document = response.json();
        let mut discovered_resources = BTreeMap::new();
        for group in document["items"].as_array().unwrap() {
            for version in group["versions"].as_array().unwrap() {
                let name = format!("{}/{}", text(&group["metadata"]["name"]), text(&version["version"]));
                let resources = version["resources"].as_array().into_iter().flatten();
                discovered_resources.insert(name, resources.map(|resource| text(&resource["resource"])).collect());
            }
        }
        discovered_resources
    }

    /// Applies `fault` and then `end` under constant requests: one thread and connection per server.
    fn run_with_fault(&mut self, fault: impl FnOnce(&mut Extension), end: impl FnOnce(&mut Extension)) {
        let (before, documents) = (self.discovered_resources(), self.documents());
        let phase = Phase { at: Mutex::new("before"), ended: AtomicBool::new(false) };
        let (endpoint, admin) = (self.gateway.endpoint.clone(), self.admin().clone());
        std::thread::scope(|scope| {
            let clients: Vec<_> = OTHERS
                .iter()
                .map(|(name, path)| (*name, scope.spawn(|| request_in_loop(&endpoint, &admin, path, &phase))))
                .collect();
            let victims = scope.spawn(|| request_in_loop(&endpoint, &admin, FAULTY_PATH, &phase));
            // The client threads must also end when an assertion below panics.
            let ended = StopOnDrop(&phase);
            std::thread::sleep(Duration::from_secs(2));
            fault(&mut self.faulty);
            *phase.at.lock().unwrap() = "fault";
            eventually("503 for the faulty backend", || {
                let response = self.gateway.endpoint.get(Some(&admin), FAULTY_PATH)?;
                if response.status != 503 {
                    return Err(format!("{} {}", response.status, response.text()));
                }
                let document = response.json();
                assert!(document["details"]["causes"][0]["reason"].is_string(), "{document}");
                assert!(document["details"]["retryAfterSeconds"].is_u64(), "{document}");
                Ok(())
            });
            *phase.at.lock().unwrap() = "unavailable";
            for _ in 0..20 {
                assert_eq!(self.gateway.endpoint.get(Some(&admin), FAULTY_PATH).unwrap().status, 503);
                assert_eq!(self.discovered_resources(), before);
                assert_eq!(self.documents(), documents);
                assert_eq!(self.gateway.endpoint.get(None, "/readyz").unwrap().text(), "ok");
                std::thread::sleep(Duration::from_millis(100));
            }
            end(&mut self.faulty);
            *phase.at.lock().unwrap() = "after";
            eventually("the faulty backend to serve again", || self.is_served(FAULTY_PATH));
            std::thread::sleep(Duration::from_secs(2));
            drop(ended);
            for (name, client) in clients {
                let responses = client.join().unwrap();
                report(name, &responses);
                for (phase, status, _) in &responses {
                    assert_eq!(*status, 200, "{name}, {phase}");
                }
            }
            let responses = victims.join().unwrap();
            report("faulty", &responses);
            // A sample-apiserver returns 403 for all users until its caches are filled.
            assert!(responses.iter().all(|(_, status, _)| [200, 403, 502, 503, 504].contains(status)), "{responses:?}");
            assert_eq!(responses.last().unwrap().1, 200, "the faulty backend serves again");
        });
    }

    /// The paths of the OpenAPI index.
    fn documents(&self) -> Vec<String> {
        let response = self.gateway.endpoint.get(Some(self.admin()), "/openapi/v3").unwrap();
        assert_eq!(response.status, 200, "{}", response.text());
        response.json()["paths"].as_object().unwrap().keys().cloned().collect()
    }
}

fn killed_backend(environment: &TestEnvironment) {
    FiveBackends::start(environment, "killed").run_with_fault(
        |faulty| {
            faulty.process.signal(Signal::KILL);
            faulty.process.wait();
        },
        Extension::restart,
    );
}

fn stopped_backend(environment: &TestEnvironment) {
    FiveBackends::start(environment, "stopped")
        .run_with_fault(|faulty| faulty.process.signal(Signal::STOP), |faulty| faulty.process.signal(Signal::CONT));
}

/// State shared with the client threads.
struct Phase {
    at: Mutex<&'static str>,
    ended: AtomicBool,
}

/// Ends the client threads on drop.
struct StopOnDrop<'p>(&'p Phase);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Relaxed);
    }
}

/// Sends requests on one HTTP/2 connection; returns the phase, status and duration of each.
fn request_in_loop(
    endpoint: &crate::environment::HttpsEndpoint,
    identity: &Identity,
    path: &str,
    phase: &Phase,
) -> Vec<(&'static str, u16, Duration)> {
    runtime().block_on(async {
        let mut connection = endpoint.connect_http2(identity).await;
        let mut responses = Vec::new();
        while !phase.ended.load(Ordering::Relaxed) {
            let at = *phase.at.lock().unwrap();
            let began = Instant::now();
            let response = connection.get(path).await.unwrap_or_else(|error| panic!("{path}, {at}: {error}"));
            let status = response.status().as_u16();
            tokio::time::timeout(Duration::from_secs(90), response.into_body().collect())
                .await
                .unwrap_or_else(|_| panic!("{path}, {at}: {status}, no end of the body in 90 s"))
                .unwrap_or_else(|error| panic!("{path}, {at}: {error}"));
            responses.push((at, status, began.elapsed()));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        responses
    })
}

/// Prints latencies; not asserted, since other tests run at the same time.
fn report(name: &str, responses: &[(&'static str, u16, Duration)]) {
    for phase in ["before", "unavailable"] {
        let mut took: Vec<f64> = Vec::new();
        let mut statuses: BTreeMap<u16, usize> = BTreeMap::new();
        for (_, status, time) in responses.iter().filter(|(at, ..)| *at == phase) {
            took.push(time.as_secs_f64() * 1e3);
            *statuses.entry(*status).or_default() += 1;
        }
        took.sort_by(f64::total_cmp);
        let quantile = |part: f64| took.get(((took.len() as f64 - 1.0) * part) as usize).copied().unwrap_or_default();
        println!(
            "{name:>32} {phase:>7}: {statuses:?}, ms: median {:.1}, p99 {:.1}, longest {:.1}",
            quantile(0.5),
            quantile(0.99),
            quantile(1.0)
        );
    }
}

fn text(value: &serde_json::Value) -> String {
    value.as_str().unwrap().to_owned()
}
