//! What the registry of a cluster costs, measured: `cargo test --release --test gateway costs -- --ignored --nocapture`.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use crate::backend::{Backend, Settings, json as answer};
use crate::client::Client;
use crate::cluster::Cluster;
use crate::world::{Gateway, World, eventually};

/// Endpoints of each APIService.
const ENDPOINTS: usize = 5;
const CHANGES: u32 = 200;

/// One APIService and its Service; where its endpoints are, `slice` says.
fn documents(world: &World, number: usize, priority: usize) -> String {
    let annotations = "  annotations:\n    narthex.dev/server-name: things-v1.things.svc\n    \
                       narthex.dev/probe-interval: 24h\n";
    let text = world.manifests(&format!("g{number}.example.com"), "v1", &[], annotations);
    text.replace("versionPriority: 15", &format!("versionPriority: {priority}"))
        .replace(&format!("namespace: g{number}"), &format!("namespace: ns{}", number % 10))
}

fn slice(number: usize, port: u16, first: usize) -> String {
    let mut text = format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  namespace: ns{}\n  name: g{number}-v1-0\n  \
         labels: {{kubernetes.io/service-name: g{number}-v1}}\naddressType: IPv4\nports: [{{name: https, port: {port}}}]\n\
         endpoints:\n",
        number % 10
    );
    for endpoint in first..first + ENDPOINTS {
        let _ = writeln!(text, "- {{addresses: [127.0.0.{endpoint}], conditions: {{ready: true}}}}");
    }
    text
}

/// CPU time until nothing is done any more, less what is done anyhow.
async fn work(gateway: &Gateway, change: impl AsyncFnOnce()) -> Duration {
    let quiet = Duration::from_secs(1);
    let before = gateway.cpu();
    let began = Instant::now();
    change().await;
    loop {
        let now = gateway.cpu();
        tokio::time::sleep(quiet).await;
        let idle = gateway.cpu() - now;
        if idle < Duration::from_millis(60) {
            return (now - before).saturating_sub(idle.mul_f64(began.elapsed().as_secs_f64() - quiet.as_secs_f64()));
        }
    }
}

#[ignore = "measures, and takes its time"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_change_at_ten_a_hundred_and_a_thousand() {
    println!(
        "APIServices  endpoints  known after  CPU by then  an endpoint's change  an APIService's change  resident"
    );
    for all in [10, 100, 1000] {
        let world = World::new();
        let settings = Settings { address: "0.0.0.0:0".parse().unwrap(), ..Settings::http2() };
        let backend = Backend::start(&world, settings, |_| async { answer(200, "{}") }).await;
        let port = backend.address.port();
        let cluster = Cluster::start(&world).await;
        for number in 0..all {
            cluster.apply(&documents(&world, number, 15));
            cluster.apply(&slice(number, port, 1));
        }
        let began = Instant::now();
        let gateway = world.gateway(&[&Cluster::flag(&world), "--leader-elect=false", "--access-log=off"]);
        let jane = world.user("jane", &[]);
        let last = format!("/apis/g{}.example.com/v1/namespaces/default/things", all - 1);
        eventually("the registry to be known", async || {
            let client = Client::http2(&world, &gateway, Some(&jane)).await;
            (client.get("/readyz/registry").await.status == 200 && client.get(&last).await.status == 200).then_some(())
        })
        .await;
        let (ready, by_then) = (began.elapsed(), gateway.cpu());
        work(&gateway, async || {}).await;
        let pace = || tokio::time::sleep(Duration::from_millis(10));
        let endpoints = work(&gateway, async || {
            for change in 0..CHANGES {
                cluster.apply(&slice(all / 2, port, 1 + (change as usize + 1) % 50));
                pace().await;
            }
        })
        .await;
        let objects = work(&gateway, async || {
            for change in 0..CHANGES {
                cluster.apply(documents(&world, all / 2, 16 + change as usize).split("---\n").next().unwrap());
                pace().await;
            }
        })
        .await;
        println!(
            "{all:11}  {:9}  {ready:>11.1?}  {by_then:>11.1?}  {:>20.1?}  {:>22.1?}  {:>5} MiB",
            all * ENDPOINTS,
            endpoints / CHANGES,
            objects / CHANGES,
            gateway.resident() >> 10,
        );
    }
}
