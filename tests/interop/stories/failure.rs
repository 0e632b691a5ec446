//! The backend dies and comes back; narthex itself is asked to end.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use hyper::StatusCode;
use rustix::process::Signal;

use super::{Trial, TrialWith};
use crate::world::{
    Door, Extension, Gateway, Identity, Kubectl, NOT_LET_IN, Step, Stream, Target, World, eventually, free_port,
    kubeconfig, kubectl_run, register, runtime,
};

pub(super) const THROUGH: &[(&str, Trial)] = &[
    ("a backend that was killed is 503, and works again when it is back", backend_restart),
    ("a watch outlives --request-timeout", watch_outlives_timeout),
    ("SIGTERM under load ends with 0 and loses nothing", end_under_load),
];

pub(super) const WITH_KUBECTL: &[(&str, TrialWith)] = &[
    ("kubectl prints at once why a backend does not serve", kubectl_prints_reason_at_once),
    ("get -w while narthex ends", kubectl_sees_the_end),
    ("wait, when one of two servers is killed, resumes at the other", kubectl_waits_on),
];

const FLUNDERS: &str = "/apis/wardle.example.com/v1alpha1/flunders";

fn backend_restart(world: &World) {
    let directory = world.scratch("backend-restart");
    let mut extension = Extension::start(&world.cluster, &directory, "mortal");
    let gateway = Gateway::start(&world.cluster, &extension, &directory, "narthex-before-mortal", &[]);
    let jane = world.cluster.jane();
    assert_eq!(gateway.door.get(Some(jane), FLUNDERS).unwrap().status, 200);
    let runtime = runtime();
    let watch = runtime.block_on(async {
        let response = gateway.door.multiplexed(jane).await.get(&format!("{FLUNDERS}?watch=1")).await.unwrap();
        assert_eq!(response.status(), 200);
        response.into_body()
    });

    extension.process.signal(Signal::KILL);
    extension.process.wait();
    // From the first request on, long before a probe could have noticed.
    for _ in 0..3 {
        is_unavailable(&gateway, jane);
    }
    // Between two events a watch is whole, and ends: its client asks for the rest, instead of for everything.
    let end = runtime.block_on(watch.collect()).expect("an end between two events").to_bytes();
    assert!(end.is_empty() || end.ends_with(b"\n"), "half an event: {end:?}");

    gateway.wait_until_available("False");
    let reason = is_unavailable(&gateway, jane);
    assert_eq!(reason, "FailedDiscoveryCheck");
    // Discovery goes on from what was last known.
    for path in ["/apis", "/apis/wardle.example.com", "/openapi/v3"] {
        let answer = gateway.door.get(Some(jane), path).unwrap();
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        assert!(answer.text().contains("wardle.example.com"), "{path}: {}", answer.text());
    }
    assert_eq!(gateway.door.get(None, "/readyz").unwrap().status, 200);

    extension.start_again();
    eventually("the backend answering again through narthex", || {
        let answer = gateway.door.get(Some(jane), FLUNDERS)?;
        if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
    });
    gateway.wait_until_available("True");
}

/// kubectl repeats a request whose answer has the header `Retry-After` ten times, a second or more apart, before it prints
/// why; answers for what is down have none.
fn kubectl_prints_reason_at_once(world: &World, kubectl: &Kubectl) {
    let name = format!("narthex-before-the-dead-{}", kubectl.version.replace('.', "-"));
    let directory = world.scratch(&name);
    let (cluster, authorities) = (&world.cluster, &world.cluster.authorities);
    let nobody = format!("https://127.0.0.1:{}", free_port());
    let dead = kubeconfig::write(&directory, "dead", &nobody, &authorities.backend.file, None);
    let flags = [("--delegate-kubeconfig", dead.to_str().unwrap())];
    let gateway = Gateway::begin(cluster, ("dead", free_port()), &directory, &name, &flags);
    let registry = directory.join(format!("{name}-registry"));
    let live = world.extension.door.port;
    register(&registry, ("tls.example.com", "v1"), ("tls", live), &authorities.client.file);
    gateway.wait_until_available("False");

    let door = &gateway.door;
    let config = kubeconfig::write(&directory, "admin", &door.url(), &door.authority, Some(cluster.admin()));
    let run = |words: &str| {
        let mut command = kubectl.command(&config, &directory);
        command.args(words.split_whitespace());
        let began = Instant::now();
        let step = Step::run(words, command, "{\"kind\": \"Any\", \"apiVersion\": \"v1\"}");
        (step, began.elapsed())
    };
    eventually("a handshake that fails", || {
        let (step, _) = run("get --raw /apis/tls.example.com/v1/things");
        if step.errors.contains("UnknownIssuer") { Ok(()) } else { Err(step.errors) }
    });
    for (path, reason) in [
        (FLUNDERS, "ConnectionRefused"),
        ("/apis/tls.example.com/v1/things", "UnknownIssuer"),
        ("/api/v1/namespaces/default/pods", "ConnectionRefused"),
    ] {
        for words in [format!("get --raw {path}"), format!("create --raw {path} -f -")] {
            let (step, took) = run(&words);
            step.refused("(ServiceUnavailable)");
            step.refused(reason);
            assert!(took < Duration::from_secs(8), "{words} took {took:?}");
        }
    }
}

/// A request is answered 503, with all that a client should know and nothing of the inside; gives the cause.
fn is_unavailable(gateway: &Gateway, who: &Identity) -> String {
    let answer = gateway.door.get(Some(who), FLUNDERS).unwrap();
    assert_eq!(answer.status, 503, "{}", answer.text());
    let document = answer.json();
    assert_eq!(document["kind"], "Status", "{document}");
    assert_eq!(document["reason"], "ServiceUnavailable", "{document}");
    assert!(document["message"].as_str().unwrap().contains("v1alpha1.wardle.example.com"), "{document}");
    let cause = &document["details"]["causes"][0];
    assert!(cause["message"].is_string(), "{document}");
    // kubectl would repeat a request whose answer has the header, ten times, and say nothing meanwhile.
    assert!(!answer.headers.contains_key("retry-after"), "{document}");
    assert!(document["details"]["retryAfterSeconds"].is_u64(), "{document}");
    let text = answer.text();
    assert!(!text.contains("127.0.0.1") && !text.contains("os error"), "inner words: {text}");
    cause["reason"].as_str().unwrap().to_owned()
}

/// A watch is bounded by nothing but its server: here by 3 seconds, thrice what other requests may take.
fn watch_outlives_timeout(world: &World) {
    let directory = world.scratch("watch-outlives-timeout");
    let hasty = [("--request-timeout", "1s")];
    let gateway = Gateway::start(&world.cluster, &world.extension, &directory, "narthex-in-haste", &hasty);
    let jane = world.cluster.jane();
    let path = format!("{FLUNDERS}?watch=1&timeoutSeconds=3");
    let answer = gateway.door.get(Some(jane), &path).expect("a watch that ends cleanly");
    assert_eq!(answer.status, 200, "{}", answer.text());
}

fn end_under_load(world: &World) {
    let directory = world.scratch("end-under-load");
    let mut gateway = Gateway::start(&world.cluster, &world.extension, &directory, "narthex-that-ends", &[]);
    let load = Load { answered: AtomicUsize::new(0), ending: AtomicBool::new(false) };
    let (door, jane) = (gateway.door.clone(), world.cluster.jane());
    std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for _ in 0..3 {
            workers.push(scope.spawn(|| load.on_new_connections(&door, jane)));
            workers.push(scope.spawn(|| runtime().block_on(load.on_one_connection(&door, jane))));
        }
        workers.push(scope.spawn(|| runtime().block_on(load.watch(&door, jane))));
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

/// kubectl that watches sees an end, not an error.
fn kubectl_sees_the_end(world: &World, kubectl: &Kubectl) {
    let directory = world.scratch(&format!("watched end {}", kubectl.version));
    // A name is a certificate's file too, and both kubectls are at it at once.
    let name = format!("narthex-watched-by-{}", kubectl.version);
    let mut gateway = Gateway::start(&world.cluster, &world.extension, &directory, &name, &[]);
    let (door, jane) = (&gateway.door, world.cluster.jane());
    let kubeconfig = kubeconfig::write(&directory, "jane", &door.url(), &door.authority, Some(jane));
    let command = |words: &[&str]| {
        let mut command = kubectl.command(&kubeconfig, &directory);
        command.args(words);
        command
    };
    let namespace = format!("watched-{:08x}", fastrand::u32(..));
    world.cluster.create_namespace(&namespace);
    let path = format!("/apis/wardle.example.com/v1alpha1/namespaces/{namespace}/flunders");
    let document = serde_json::json!({
        "apiVersion": "wardle.example.com/v1alpha1", "kind": "Flunder",
        "metadata": {"name": "seen"}, "spec": {"reference": "x"},
    });
    world.door(Target::Direct).create(jane, &path, &document);
    let (namespace, raw) = (format!("--namespace={namespace}"), format!("{path}?watch=1"));
    let mut watches = [["get", "flunders", "-w", namespace.as_str()].as_slice(), &["get", "--raw", &raw]]
        .map(|words| Stream::start(command(words)));
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

/// Two servers of one API; the one that kubectl's informer watches at is killed. What happens then is seen by the
/// other's watch.
fn kubectl_waits_on(world: &World, kubectl: &Kubectl) {
    let name = format!("twin-{}", kubectl.version.replace('.', "-"));
    let directory = world.scratch(&name);
    let start = |which: &str| {
        let directory = world.scratch(&format!("{name}-{which}"));
        Extension::start_with(&world.cluster, &world.cluster.admin_kubeconfig, &directory, &name, free_port(), &[])
    };
    let mut twins = [start("a"), start("b")];
    let gateway_name = format!("narthex-before-{name}");
    let registry = directory.join(format!("{gateway_name}-registry"));
    std::fs::create_dir_all(&registry).unwrap();
    let second = format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: {name}-second, namespace: {name}, labels: {{kubernetes.io/service-name: {name}}}}}\n\
         addressType: IPv4\nports: [{{name: https, port: {}}}]\nendpoints: [{{addresses: [127.0.0.1]}}]\n",
        twins[1].door.port
    );
    std::fs::write(registry.join("second.yaml"), second).unwrap();
    let gateway = Gateway::start(&world.cluster, &twins[0], &directory, &gateway_name, &[]);
    let (door, jane) = (&gateway.door, world.cluster.jane());
    let kubeconfig = kubeconfig::write(&directory, "jane", &door.url(), &door.authority, Some(jane));
    let namespace = format!("{name}-{:08x}", fastrand::u32(..));
    world.cluster.create_namespace(&namespace);
    let command = |words: &[&str]| {
        let mut command = kubectl.command(&kubeconfig, &directory);
        command.arg(format!("--namespace={namespace}")).args(words);
        command
    };
    let document = serde_json::json!({
        "apiVersion": "wardle.example.com/v1alpha1", "kind": "Flunder",
        "metadata": {"name": "slow"}, "spec": {"reference": "begun"},
    });
    door.create(jane, &format!("/apis/wardle.example.com/v1alpha1/namespaces/{namespace}/flunders"), &document);
    let waiting = Stream::start(command(&["wait", "flunder/slow", "--for=jsonpath={.metadata.labels.done}=yes"]));
    // Which of these is watched at, as of the last second.
    let watched = |twins: &[&Extension]| {
        eventually("kubectl to watch", || {
            let metrics = door.get(Some(world.cluster.admin()), "/metrics")?.text();
            let busy = |twin: &&Extension| {
                let endpoint = format!("endpoint=\"127.0.0.1:{}\"}} 1", twin.door.port);
                metrics.lines().any(|line| line.starts_with("narthex_backend_inflight{") && line.ends_with(&endpoint))
            };
            twins.iter().position(busy).ok_or_else(|| "nobody is watched at".to_owned())
        })
    };
    let first = watched(&[&twins[0], &twins[1]]);
    twins[first].process.signal(Signal::KILL);
    twins[first].process.wait();
    watched(&[&twins[1 - first]]);
    let labeled = kubectl_run(command(&["label", "flunder", "slow", "done=yes"]), "");
    assert!(labeled.status.success(), "{}", String::from_utf8_lossy(&labeled.stderr));
    let (success, lines) = waiting.finish();
    assert!(success && lines.iter().any(|line| line.contains("condition met")), "{lines:?}");
}

/// Requests without end, until narthex lets nobody in any more.
struct Load {
    answered: AtomicUsize,
    ending: AtomicBool,
}

impl Load {
    fn on_new_connections(&self, door: &Door, who: &Identity) {
        loop {
            match door.get(Some(who), FLUNDERS) {
                Ok(answer) => self.count(answer.status, &answer.text()),
                Err(error) if error.starts_with(NOT_LET_IN) && self.ending.load(Ordering::Relaxed) => break,
                Err(error) => panic!("a request that was let in got no answer: {error}"),
            }
        }
    }

    async fn on_one_connection(&self, door: &Door, who: &Identity) {
        let mut connection = door.multiplexed(who).await;
        loop {
            match connection.get(FLUNDERS).await {
                Ok(response) => {
                    let status = response.status();
                    let body = response.into_body().collect().await.expect("an answer that began also ends").to_bytes();
                    self.count(status, &String::from_utf8_lossy(&body));
                }
                // GOAWAY: the request provably was not begun.
                Err(error) if self.ending.load(Ordering::Relaxed) && was_not_begun(&error) => break,
                Err(error) => panic!("a request on an open connection got no answer: {error:?}"),
            }
        }
    }

    /// A watch that was open must end, and as one whose time is up: cleanly.
    async fn watch(&self, door: &Door, who: &Identity) {
        let mut connection = door.multiplexed(who).await;
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

fn was_not_begun(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<h2::Error>());
    let refused = source.is_some_and(|error| {
        error.reason() == Some(h2::Reason::REFUSED_STREAM)
            || (error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR))
    });
    refused || error.is_canceled() || error.is_closed()
}
