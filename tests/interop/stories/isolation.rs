//! One of five real servers is killed, or stands still; the other four, discovery, OpenAPI and readiness are as ever.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use rustix::process::Signal;

use super::{Trial, metrics};
use crate::world::{Extension, Gateway, Identity, Process, World, eventually, free_port, register, runtime};

pub(super) const THROUGH: &[(&str, Trial)] = &[
    ("one of five servers is killed and nobody else notices", killed),
    ("one of five servers stands still and nobody else notices", stopped),
];

/// What the victim serves, and what is read of the others.
const VICTIM: &str = "/apis/wardle.example.com/v1alpha1/flunders";
const OTHERS: [(&str, &str); 4] = [
    ("sample-apiserver", "/apis/wardle.example.com/v1beta1/flunders"),
    ("metrics-server", "/apis/metrics.k8s.io/v1beta1/pods"),
    ("kube-apiserver as an APIService", "/apis/apps/v1/deployments"),
    ("kube-apiserver as the delegate", "/api/v1/namespaces"),
];

/// Two sample-apiservers, a metrics-server, and kube-apiserver as an APIService's backend and as the delegate.
struct Five<'w> {
    world: &'w World,
    victim: Extension,
    gateway: Gateway,
    _others: (Extension, Process),
}

impl Five<'_> {
    fn start<'w>(world: &'w World, name: &str) -> Five<'w> {
        let directory: PathBuf = world.scratch(name);
        let cluster = &world.cluster;
        let victim = Extension::start(cluster, &directory, &format!("{name}-victim"));
        let other = Extension::start(cluster, &directory, &format!("{name}-other"));
        let port = free_port();
        let server = metrics::start(cluster, &directory, port);
        let registry = directory.join("registry");
        let authorities = &cluster.authorities;
        let wardle = "wardle.example.com";
        let backend = authorities.backend.file.as_path();
        register(&registry, (wardle, "v1alpha1"), (victim.name(), victim.door.port), backend);
        register(&registry, (wardle, "v1beta1"), (other.name(), other.door.port), backend);
        register(&registry, metrics::GROUP_VERSION, (metrics::NAME, port), backend);
        register(&registry, ("apps", "v1"), ("kubernetes", cluster.door.port), &authorities.serving.file);
        let cluster_itself = cluster.admin_kubeconfig.display().to_string();
        let flags =
            [("--registry-dir", registry.to_str().unwrap()), ("--delegate-kubeconfig", cluster_itself.as_str())];
        let gateway = Gateway::bare(cluster, &directory, &format!("narthex-{name}"), &flags);
        let five = Five { world, victim, gateway, _others: (other, server) };
        for path in OTHERS.iter().map(|(_, path)| *path).chain([VICTIM]) {
            eventually(&format!("{path} being served"), || five.is_served(path));
        }
        eventually("discovery of all", || {
            let known = five.known();
            if known.iter().filter(|(_, resources)| !resources.is_empty()).count() >= 5
                && known.contains_key("metrics.k8s.io/v1beta1")
                && known.contains_key("wardle.example.com/v1alpha1")
            {
                Ok(())
            } else {
                Err(format!("{known:?}"))
            }
        });
        five
    }

    fn admin(&self) -> &Identity {
        self.world.cluster.admin()
    }

    fn is_served(&self, path: &str) -> Result<(), String> {
        let answer = self.gateway.door.get(Some(self.admin()), path)?;
        if answer.status == 200 { Ok(()) } else { Err(format!("{} {}", answer.status, answer.text())) }
    }

    /// Group versions in discovery with the names of their resources, stale ones too.
    fn known(&self) -> BTreeMap<String, Vec<String>> {
        let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let answer = self.gateway.door.send(Some(self.admin()), "GET", "/apis", &[("accept", accept)], b"").unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        let document = answer.json();
        let mut known = BTreeMap::new();
        for group in document["items"].as_array().unwrap() {
            for version in group["versions"].as_array().unwrap() {
                let name = format!("{}/{}", text(&group["metadata"]["name"]), text(&version["version"]));
                let resources = version["resources"].as_array().into_iter().flatten();
                known.insert(name, resources.map(|resource| text(&resource["resource"])).collect());
            }
        }
        known
    }

    /// `fault` happens, and `end` takes it away, while everything is asked all the time: four threads, one for each
    /// of the others, on one connection each, and one for the victim.
    fn suffer(&mut self, fault: impl FnOnce(&mut Extension), end: impl FnOnce(&mut Extension)) {
        let (before, documents) = (self.known(), self.documents());
        let phase = Phase { at: Mutex::new("before"), over: AtomicBool::new(false) };
        let (door, admin) = (self.gateway.door.clone(), self.admin().clone());
        std::thread::scope(|scope| {
            let askers: Vec<_> =
                OTHERS.iter().map(|(name, path)| (*name, scope.spawn(|| ask(&door, &admin, path, &phase)))).collect();
            let victims = scope.spawn(|| ask(&door, &admin, VICTIM, &phase));
            // What follows panics where it fails; the askers must end all the same.
            let over = Over(&phase);
            std::thread::sleep(Duration::from_secs(2));
            fault(&mut self.victim);
            *phase.at.lock().unwrap() = "fault";
            eventually("the victim to be judged", || {
                let answer = self.gateway.door.get(Some(&admin), VICTIM)?;
                if answer.status != 503 {
                    return Err(format!("{} {}", answer.status, answer.text()));
                }
                let document = answer.json();
                assert!(document["details"]["causes"][0]["reason"].is_string(), "{document}");
                assert!(document["details"]["retryAfterSeconds"].is_u64(), "{document}");
                Ok(())
            });
            *phase.at.lock().unwrap() = "judged";
            for _ in 0..20 {
                assert_eq!(self.gateway.door.get(Some(&admin), VICTIM).unwrap().status, 503);
                assert_eq!(self.known(), before);
                assert_eq!(self.documents(), documents);
                assert_eq!(self.gateway.door.get(None, "/readyz").unwrap().text(), "ok");
                std::thread::sleep(Duration::from_millis(100));
            }
            end(&mut self.victim);
            *phase.at.lock().unwrap() = "after";
            eventually("the victim to be used again", || self.is_served(VICTIM));
            std::thread::sleep(Duration::from_secs(2));
            drop(over);
            for (name, asker) in askers {
                let answers = asker.join().unwrap();
                report(name, &answers);
                for (phase, status, _) in &answers {
                    assert_eq!(*status, 200, "{name}, {phase}");
                }
            }
            let answers = victims.join().unwrap();
            report("victim", &answers);
            // A sample-apiserver that just started refuses everybody for a moment, in its own words.
            assert!(answers.iter().all(|(_, status, _)| [200, 403, 502, 503, 504].contains(status)), "{answers:?}");
            assert_eq!(answers.last().unwrap().1, 200, "the victim serves again");
        });
    }

    /// The paths of the OpenAPI index.
    fn documents(&self) -> Vec<String> {
        let answer = self.gateway.door.get(Some(self.admin()), "/openapi/v3").unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["paths"].as_object().unwrap().keys().cloned().collect()
    }
}

fn killed(world: &World) {
    Five::start(world, "killed").suffer(
        |victim| {
            victim.process.signal(Signal::KILL);
            victim.process.wait();
        },
        Extension::start_again,
    );
}

fn stopped(world: &World) {
    Five::start(world, "stopped")
        .suffer(|victim| victim.process.signal(Signal::STOP), |victim| victim.process.signal(Signal::CONT));
}

/// What goes on while the askers ask.
struct Phase {
    at: Mutex<&'static str>,
    over: AtomicBool,
}

/// Ends the askers when it goes.
struct Over<'p>(&'p Phase);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

/// One answer after another of one HTTP/2 connection: the phase in which it was asked for, its status, how long it took.
fn ask(door: &crate::world::Door, who: &Identity, path: &str, phase: &Phase) -> Vec<(&'static str, u16, Duration)> {
    runtime().block_on(async {
        let mut connection = door.multiplexed(who).await;
        let mut answers = Vec::new();
        while !phase.over.load(Ordering::Relaxed) {
            let at = *phase.at.lock().unwrap();
            let began = Instant::now();
            let answer = connection.get(path).await.unwrap_or_else(|error| panic!("{path}, {at}: {error}"));
            let status = answer.status().as_u16();
            answer.into_body().collect().await.unwrap_or_else(|error| panic!("{path}, {at}: {error}"));
            answers.push((at, status, began.elapsed()));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        answers
    })
}

/// For a reader, not for a judgment: other stories run beside this one.
fn report(name: &str, answers: &[(&'static str, u16, Duration)]) {
    for phase in ["before", "judged"] {
        let mut took: Vec<f64> = Vec::new();
        let mut statuses: BTreeMap<u16, usize> = BTreeMap::new();
        for (_, status, time) in answers.iter().filter(|(at, ..)| *at == phase) {
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
