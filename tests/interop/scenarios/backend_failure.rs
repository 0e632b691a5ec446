//! Backend failures and graceful shutdown of narthex.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use hyper::StatusCode;
use rustix::process::Signal;

use super::{KubectlTestFn, TestFn};
use crate::environment::{
    CONNECT_FAILED, CommandResult, Extension, Gateway, HttpsEndpoint, Identity, Kubectl, RunningKubectl, Target,
    TestEnvironment, eventually, free_port, kubeconfig, kubectl_run, register, runtime,
};

pub(super) const GATEWAY_TESTS: &[(&str, TestFn)] = &[
    ("backend failure: 503 after a kill, 200 after a restart", backend_restart),
    ("watch: not limited by --request-timeout", watch_outlives_timeout),
    ("shutdown: SIGTERM under load exits with 0 and loses no request", end_under_load),
];

pub(super) const KUBECTL_TESTS: &[(&str, KubectlTestFn)] = &[
    ("backend failure: kubectl prints the cause without retries", kubectl_prints_reason_at_once),
    ("shutdown: get -w ends without an error", watch_ends_on_shutdown),
    ("failover: kubectl wait resumes at the other endpoint after a kill", wait_resumes_at_other_endpoint),
];

const FLUNDERS: &str = "/apis/wardle.example.com/v1alpha1/flunders";

fn backend_restart(environment: &TestEnvironment) {
    let directory = environment.scratch("backend-restart");
    let mut extension = Extension::start(&environment.cluster, &directory, "mortal");
    let gateway = Gateway::start(&environment.cluster, &extension, &directory, "narthex-before-mortal", &[]);
    let jane = environment.cluster.jane();
    assert_eq!(gateway.endpoint.get(Some(jane), FLUNDERS).unwrap().status, 200);
    let runtime = runtime();
    let watch = runtime.block_on(async {
        let response = gateway.endpoint.connect_http2(jane).await.get(&format!("{FLUNDERS}?watch=1")).await.unwrap();
        assert_eq!(response.status(), 200);
        response.into_body()
    });

    extension.process.signal(Signal::KILL);
    extension.process.wait();
    // From the first request on, before a probe detects the failure.
    for _ in 0..3 {
        assert_unavailable(&gateway, jane);
    }
    // The watch ends between two events, so that the client resumes it instead of listing again.
    let end = runtime.block_on(watch.collect()).expect("a watch that ends between two events").to_bytes();
    assert!(end.is_empty() || end.ends_with(b"\n"), "partial event: {end:?}");

    gateway.wait_until_available("False");
    let reason = assert_unavailable(&gateway, jane);
    assert_eq!(reason, "FailedDiscoveryCheck");
    // Discovery is served from the last known documents.
    for path in ["/apis", "/apis/wardle.example.com", "/openapi/v3"] {
        let response = gateway.endpoint.get(Some(jane), path).unwrap();
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        assert!(response.text().contains("wardle.example.com"), "{path}: {}", response.text());
    }
    assert_eq!(gateway.endpoint.get(None, "/readyz").unwrap().status, 200);

    extension.restart();
    eventually("the backend to respond through narthex", || {
        let response = gateway.endpoint.get(Some(jane), FLUNDERS)?;
        if response.status == 200 { Ok(()) } else { Err(response.text()) }
    });
    gateway.wait_until_available("True");
}

/// kubectl retries a response with the header `Retry-After` ten times, a second or more apart, before it prints the
/// error; responses for an unavailable backend have none.
fn kubectl_prints_reason_at_once(environment: &TestEnvironment, kubectl: &Kubectl) {
    let name = format!("narthex-before-the-dead-{}", kubectl.version.replace('.', "-"));
    let directory = environment.scratch(&name);
    let (cluster, authorities) = (&environment.cluster, &environment.cluster.authorities);
    let dead_address = format!("https://127.0.0.1:{}", free_port());
    let dead = kubeconfig::write(&directory, "dead", &dead_address, &authorities.backend.file, None);
    let flags = [("--delegate-kubeconfig", dead.to_str().unwrap())];
    let gateway = Gateway::start_unready(cluster, ("dead", free_port()), &directory, &name, &flags);
    let registry = directory.join(format!("{name}-registry"));
    let live = environment.extension.endpoint.port;
    register(&registry, ("tls.example.com", "v1"), ("tls", live), &authorities.client.file);
    gateway.wait_until_available("False");

    let endpoint = &gateway.endpoint;
    let config = kubeconfig::write(&directory, "admin", &endpoint.url(), &endpoint.authority, Some(cluster.admin()));
    let run = |args: &str| {
        let mut command = kubectl.command(&config, &directory);
        command.args(args.split_whitespace());
        let began = Instant::now();
        let step = CommandResult::run(args, command, "{\"kind\": \"Any\", \"apiVersion\": \"v1\"}");
        (step, began.elapsed())
    };
    eventually("a failed TLS handshake", || {
        let (step, _) = run("get --raw /apis/tls.example.com/v1/things");
        if step.errors.contains("UnknownIssuer") { Ok(()) } else { Err(step.errors) }
    });
    for (path, reason) in [
        (FLUNDERS, "ConnectionRefused"),
        ("/apis/tls.example.com/v1/things", "UnknownIssuer"),
        ("/api/v1/namespaces/default/pods", "ConnectionRefused"),
    ] {
        for args in [format!("get --raw {path}"), format!("create --raw {path} -f -")] {
            let (step, took) = run(&args);
            step.expect_error("(ServiceUnavailable)");
            step.expect_error(reason);
            assert!(took < Duration::from_secs(8), "{args} took {took:?}");
        }
    }
}

/// Asserts a 503 with cause and details for the client and without internal addresses; returns the cause.
fn assert_unavailable(gateway: &Gateway, identity: &Identity) -> String {
    let response = gateway.endpoint.get(Some(identity), FLUNDERS).unwrap();
    assert_eq!(response.status, 503, "{}", response.text());
    let document = response.json();
    assert_eq!(document["kind"], "Status", "{document}");
    assert_eq!(document["reason"], "ServiceUnavailable", "{document}");
    assert!(document["message"].as_str().unwrap().contains("v1alpha1.wardle.example.com"), "{document}");
    let cause = &document["details"]["causes"][0];
    assert!(cause["message"].is_string(), "{document}");
    // kubectl would retry a response with this header ten times without output.
    assert!(!response.headers.contains_key("retry-after"), "{document}");
    assert!(document["details"]["retryAfterSeconds"].is_u64(), "{document}");
    let text = response.text();
    assert!(!text.contains("127.0.0.1") && !text.contains("os error"), "internal details in the response: {text}");
    cause["reason"].as_str().unwrap().to_owned()
}

/// A watch has no deadline but its server's: here 3 seconds, three times the request timeout.
fn watch_outlives_timeout(environment: &TestEnvironment) {
    let directory = environment.scratch("watch-outlives-timeout");
    let hasty = [("--request-timeout", "1s")];
    let gateway = Gateway::start(&environment.cluster, &environment.extension, &directory, "narthex-in-haste", &hasty);
    let jane = environment.cluster.jane();
    let path = format!("{FLUNDERS}?watch=1&timeoutSeconds=3");
    let response = gateway.endpoint.get(Some(jane), &path).expect("a watch that ends cleanly");
    assert_eq!(response.status, 200, "{}", response.text());
}

fn end_under_load(environment: &TestEnvironment) {
    let directory = environment.scratch("end-under-load");
    let mut gateway =
        Gateway::start(&environment.cluster, &environment.extension, &directory, "narthex-that-ends", &[]);
    let load = RequestLoad { answered: AtomicUsize::new(0), ending: AtomicBool::new(false) };
    let (endpoint, jane) = (gateway.endpoint.clone(), environment.cluster.jane());
    std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for _ in 0..3 {
            workers.push(scope.spawn(|| load.on_new_connections(&endpoint, jane)));
            workers.push(scope.spawn(|| runtime().block_on(load.on_one_connection(&endpoint, jane))));
        }
        workers.push(scope.spawn(|| runtime().block_on(load.watch(&endpoint, jane))));
        eventually("load", || {
            if load.answered.load(Ordering::Relaxed) > 200 { Ok(()) } else { Err("not yet".to_owned()) }
        });
        load.ending.store(true, Ordering::Relaxed);
        gateway.process.signal(Signal::TERM);
        let status = gateway.process.wait();
        for worker in workers {
            worker.join().unwrap();
        }
        assert!(status.success(), "{status}");
    });
}

/// kubectl's watch ends without an error.
fn watch_ends_on_shutdown(environment: &TestEnvironment, kubectl: &Kubectl) {
    let directory = environment.scratch(&format!("watched end {}", kubectl.version));
    // The name includes the kubectl version: it also names certificate files, and both kubectls run at once.
    let name = format!("narthex-watched-by-{}", kubectl.version);
    let mut gateway = Gateway::start(&environment.cluster, &environment.extension, &directory, &name, &[]);
    let (endpoint, jane) = (&gateway.endpoint, environment.cluster.jane());
    let kubeconfig = kubeconfig::write(&directory, "jane", &endpoint.url(), &endpoint.authority, Some(jane));
    let command = |args: &[&str]| {
        let mut command = kubectl.command(&kubeconfig, &directory);
        command.args(args);
        command
    };
    let namespace = format!("watched-{:08x}", fastrand::u32(..));
    environment.cluster.create_namespace(&namespace);
    let path = format!("/apis/wardle.example.com/v1alpha1/namespaces/{namespace}/flunders");
    let document = serde_json::json!({
        "apiVersion": "wardle.example.com/v1alpha1", "kind": "Flunder",
        "metadata": {"name": "seen"}, "spec": {"reference": "x"},
    });
    environment.endpoint(Target::Direct).create(jane, &path, &document);
    let (namespace, raw) = (format!("--namespace={namespace}"), format!("{path}?watch=1"));
    let mut watches = [["get", "flunders", "-w", namespace.as_str()].as_slice(), &["get", "--raw", &raw]]
        .map(|args| RunningKubectl::start(command(args)));
    for watch in &mut watches {
        watch.line_with("seen");
    }
    gateway.process.signal(Signal::TERM);
    assert!(gateway.process.wait().success());
    for watch in watches {
        let (success, lines) = watch.finish();
        assert!(success, "{lines:?}");
    }
}

/// Two endpoints of one API. The endpoint that serves kubectl's watch is killed; the watch resumes at the other.
fn wait_resumes_at_other_endpoint(environment: &TestEnvironment, kubectl: &Kubectl) {
    let name = format!("twin-{}", kubectl.version.replace('.', "-"));
    let directory = environment.scratch(&name);
    let start = |which: &str| {
        let directory = environment.scratch(&format!("{name}-{which}"));
        Extension::start_with(
            &environment.cluster,
            &environment.cluster.admin_kubeconfig,
            &directory,
            &name,
            free_port(),
            &[],
        )
    };
    let mut replicas = [start("a"), start("b")];
    let gateway_name = format!("narthex-before-{name}");
    let registry = directory.join(format!("{gateway_name}-registry"));
    std::fs::create_dir_all(&registry).unwrap();
    let second = format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: {name}-second, namespace: {name}, labels: {{kubernetes.io/service-name: {name}}}}}\n\
         addressType: IPv4\nports: [{{name: https, port: {}}}]\nendpoints: [{{addresses: [127.0.0.1]}}]\n",
        replicas[1].endpoint.port
    );
    std::fs::write(registry.join("second.yaml"), second).unwrap();
    let gateway = Gateway::start(&environment.cluster, &replicas[0], &directory, &gateway_name, &[]);
    let (endpoint, jane) = (&gateway.endpoint, environment.cluster.jane());
    let kubeconfig = kubeconfig::write(&directory, "jane", &endpoint.url(), &endpoint.authority, Some(jane));
    let namespace = format!("{name}-{:08x}", fastrand::u32(..));
    environment.cluster.create_namespace(&namespace);
    let command = |args: &[&str]| {
        let mut command = kubectl.command(&kubeconfig, &directory);
        command.arg(format!("--namespace={namespace}")).args(args);
        command
    };
    let document = serde_json::json!({
        "apiVersion": "wardle.example.com/v1alpha1", "kind": "Flunder",
        "metadata": {"name": "slow"}, "spec": {"reference": "begun"},
    });
    endpoint.create(jane, &format!("/apis/wardle.example.com/v1alpha1/namespaces/{namespace}/flunders"), &document);
    let waiting =
        RunningKubectl::start(command(&["wait", "flunder/slow", "--for=jsonpath={.metadata.labels.done}=yes"]));
    // Index of the endpoint that serves the watch, by a metric of the last second.
    let watched = |replicas: &[&Extension]| {
        eventually("kubectl's watch", || {
            let metrics = endpoint.get(Some(environment.cluster.admin()), "/metrics")?.text();
            let busy = |replica: &&Extension| {
                let endpoint = format!("endpoint=\"127.0.0.1:{}\"}} 1", replica.endpoint.port);
                metrics.lines().any(|line| line.starts_with("narthex_backend_inflight{") && line.ends_with(&endpoint))
            };
            replicas.iter().position(busy).ok_or_else(|| "no endpoint serves a watch".to_owned())
        })
    };
    let first = watched(&[&replicas[0], &replicas[1]]);
    replicas[first].process.signal(Signal::KILL);
    replicas[first].process.wait();
    watched(&[&replicas[1 - first]]);
    let labeled = kubectl_run(command(&["label", "flunder", "slow", "done=yes"]), "");
    assert!(labeled.status.success(), "{}", String::from_utf8_lossy(&labeled.stderr));
    let (success, lines) = waiting.finish();
    assert!(success && lines.iter().any(|line| line.contains("condition met")), "{lines:?}");
}

/// Sends requests until narthex accepts no more connections.
struct RequestLoad {
    answered: AtomicUsize,
    ending: AtomicBool,
}

impl RequestLoad {
    fn on_new_connections(&self, endpoint: &HttpsEndpoint, identity: &Identity) {
        loop {
            match endpoint.get(Some(identity), FLUNDERS) {
                Ok(response) => self.count(response.status, &response.text()),
                Err(error) if error.starts_with(CONNECT_FAILED) && self.ending.load(Ordering::Relaxed) => break,
                Err(error) => panic!("an accepted request got no response: {error}"),
            }
        }
    }

    async fn on_one_connection(&self, endpoint: &HttpsEndpoint, identity: &Identity) {
        let mut connection = endpoint.connect_http2(identity).await;
        loop {
            match connection.get(FLUNDERS).await {
                Ok(response) => {
                    let status = response.status();
                    let body = response.into_body().collect().await.expect("a complete response body").to_bytes();
                    self.count(status, &String::from_utf8_lossy(&body));
                }
                // GOAWAY: the request was not processed.
                Err(error) if self.ending.load(Ordering::Relaxed) && is_unprocessed(&error) => break,
                Err(error) => panic!("a request on an open connection got no response: {error:?}"),
            }
        }
    }

    /// An open watch must end cleanly, as at its timeout.
    async fn watch(&self, endpoint: &HttpsEndpoint, identity: &Identity) {
        let mut connection = endpoint.connect_http2(identity).await;
        let response = connection.get(&format!("{FLUNDERS}?watch=1")).await.expect("a watch opens");
        assert_eq!(response.status(), 200);
        response.into_body().collect().await.expect("the watch ends cleanly");
        assert!(self.ending.load(Ordering::Relaxed), "the watch ended before narthex did");
    }

    fn count(&self, status: StatusCode, text: &str) {
        assert_eq!(status, 200, "{text}");
        self.answered.fetch_add(1, Ordering::Relaxed);
    }
}

fn is_unprocessed(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<h2::Error>());
    let refused = source.is_some_and(|error| {
        error.reason() == Some(h2::Reason::REFUSED_STREAM)
            || (error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR))
    });
    refused || error.is_canceled() || error.is_closed()
}
