//! Failover between endpoints, and the ways to name one: balanced, skipped when failing, used again when recovered.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use http::Method;
use tokio::sync::Semaphore;

use crate::backend::{Backend, Settings, data, json, watched};
use crate::client::{Client, get, next, request};
use crate::raw::{self, Talk};
use crate::refused::retry_after_seconds;
use crate::scene::{Scene, THINGS, annotated, register, watch};
use crate::world::{World, eventually};

async fn fine(world: &World, settings: Settings) -> Backend {
    Backend::start(world, settings, async |_| json(200, "{}")).await
}

/// A port where nothing listens.
async fn nobody() -> SocketAddr {
    tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

/// Takes connections and says nothing.
async fn staller() -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((socket, _)) = listener.accept().await {
            kept.push(socket);
        }
    });
    address
}

async fn post(client: &Client) {
    let answer = client.ask(request(Method::POST, THINGS, &[], "{}")).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_go_where_the_fewest_are_under_way() {
    let world = World::new();
    let go = Arc::new(Semaphore::new(0));
    let counts: [Arc<AtomicUsize>; 3] = Default::default();
    let mut backends = Vec::new();
    for count in &counts {
        let (go, count) = (go.clone(), count.clone());
        backends.push(
            Backend::start(&world, Settings::default(), move |_| {
                let go = go.clone();
                count.fetch_add(1, Ordering::SeqCst);
                async move {
                    go.acquire().await.unwrap().forget();
                    json(200, "{}")
                }
            })
            .await,
        );
    }
    let scene = Scene::new(world, &backends.iter().collect::<Vec<_>>(), &[]);
    // One connection is one worker, and each worker balances by what it sees.
    let client = scene.http2().await;
    let all = join_all((0..30).map(|_| post(&client)));
    let release = async {
        eventually("all to be under way", async || {
            (counts.iter().map(|count| count.load(Ordering::SeqCst)).sum::<usize>() == 30).then_some(())
        })
        .await;
        go.add_permits(30);
    };
    tokio::join!(all, release);
    // The better of two, not the best of all: nearly even.
    for count in &counts {
        assert!((6..=14).contains(&count.load(Ordering::SeqCst)), "{counts:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_refuses_costs_nobody_a_request_and_is_used_again_when_it_is_back() {
    let world = World::new();
    let (one, two) = (fine(&world, Settings::http1()).await, fine(&world, Settings::http2()).await);
    let address = nobody().await;
    let scene = Scene::at(world, &[one.address, two.address, address], &[]);
    let clients = scene.both().await;
    for _ in 0..10 {
        for client in &clients {
            post(client).await;
        }
    }
    let back = fine(&scene.world, Settings { address, ..Settings::default() }).await;
    eventually("the third to be used", async || {
        for client in &clients {
            post(client).await;
        }
        (!back.seen().is_empty()).then_some(())
    })
    .await;
    // And one that goes away while requests run loses none that can be saved.
    let address = one.stop().await;
    for _ in 0..20 {
        for client in &clients {
            assert_eq!(client.get(THINGS).await.status, 200);
        }
    }
    drop(fine(&scene.world, Settings { address, ..Settings::default() }).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_stalls_in_its_handshake_delays_and_loses_nothing() {
    let world = World::new();
    let good = fine(&world, Settings::default()).await;
    let scene = Scene::at(world, &[staller().await, good.address], &[("connect-timeout", "300ms")]);
    for client in scene.both().await {
        for _ in 0..10 {
            post(&client).await;
        }
    }
}

/// TLS is done, HTTP/2 agreed on, and then nothing: what was not greeted back is not given a request.
#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_never_greets_back_gets_no_request() {
    let world = World::new();
    let good = fine(&world, Settings::default()).await;
    let mute = Backend::raw(&world, Settings::http2(), async |mut stream| {
        let mut some = [0; 1024];
        while let Ok(1..) = tokio::io::AsyncReadExt::read(&mut stream, &mut some).await {}
    })
    .await;
    let scene = Scene::at(world, &[mute.address, good.address], &[("connect-timeout", "400ms")]);
    for client in scene.both().await {
        for _ in 0..10 {
            post(&client).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_goes_to_an_endpoint_that_answers() {
    let world = World::new();
    let backend = raw::http1(&world, Settings::http1(), |mut talk: Talk| async move {
        talk.say("HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\nhello").await;
        talk.close().await;
    })
    .await;
    let scene = Scene::at(world, &[nobody().await, staller().await, backend.address], &[("connect-timeout", "300ms")]);
    for _ in 0..4 {
        let mut request = get(THINGS, &[("connection", "Upgrade"), ("upgrade", "websocket")]);
        request.headers_mut().insert("sec-websocket-version", "13".parse().unwrap());
        let response = scene.http1().await.send(request).await.unwrap();
        assert_eq!(response.status(), 101);
        let mut tunnel = hyper_util::rt::TokioIo::new(hyper::upgrade::on(response).await.unwrap());
        let mut said = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut tunnel, &mut said).await.unwrap();
        assert_eq!(said, "hello");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_good_endpoint_among_many_dead_ones_is_found_by_the_first_request() {
    let world = World::new();
    let good = fine(&world, Settings::default()).await;
    let mut addresses = vec![good.address];
    for _ in 0..6 {
        addresses.push(nobody().await);
    }
    let scene = Scene::at(world, &addresses, &[]);
    for client in scene.both().await {
        post(&client).await;
    }
}

/// An endpoint that takes every connection and breaks every request.
#[tokio::test(flavor = "multi_thread")]
async fn a_rotten_endpoint_costs_no_get() {
    let world = World::new();
    let good = fine(&world, Settings::http1()).await;
    let rotten = raw::http1(&world, Settings::http1(), |talk: Talk| async move { talk.reset() }).await;
    let scene = Scene::at(world, &[good.address, rotten.address], &[]);
    for client in scene.both().await {
        for _ in 0..20 {
            let answer = client.get(THINGS).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_never_means_never() {
    let world = World::new();
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let backend = raw::http1(&world, Settings::http1(), move |talk: Talk| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move { talk.close().await }
    })
    .await;
    let scene = Scene::new(world, &[&backend], &[("retry", "never")]);
    for (number, client) in scene.both().await.into_iter().enumerate() {
        client.get(THINGS).await.refused(503, "ServiceUnavailable");
        assert_eq!(asked.load(Ordering::SeqCst), number + 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_address_families_the_services_first_one_first() {
    let world = World::new();
    let four = fine(&world, Settings::default()).await;
    let six = fine(&world, Settings { address: "[::1]:0".parse().unwrap(), ..Settings::default() }).await;
    let both = |first: &str, four: SocketAddr, six: SocketAddr| {
        let text = world.manifests("things.example.com", "v1", &[four, six], &annotated(&[]));
        let (head, tail) = text.rsplit_once("addressType: IPv4").unwrap();
        let families = if first == "IPv6" { "IPv6, IPv4" } else { "IPv4, IPv6" };
        format!("{head}addressType: IPv6{tail}")
            .replace("addresses: [::1]", "addresses: ['::1']")
            .replace("clusterIP: 10.0.0.1,", &format!("clusterIP: 10.0.0.1, ipFamilies: [{families}],"))
    };
    world.registry("things.yaml", &both("IPv6", four.address, six.address));
    let refused: SocketAddr = format!("[::1]:{}", nobody().await.port()).parse().unwrap();
    let second = both("IPv6", four.address, refused).replace("things.example.com", "others.example.com");
    world.registry("others.yaml", &second.replace("name: things-v1", "name: others-v1"));
    let scene = Scene::of(world, &[]);
    let client = scene.http2().await;
    for _ in 0..5 {
        post(&client).await;
    }
    assert_eq!((six.seen().len(), four.seen().len()), (5, 0), "the first family while any of it is there");
    assert_eq!(six.last().all("host").len() + six.last().uri.authority().map_or(0, |_| 1), 1);
    let path = THINGS.replace("things.example.com", "others.example.com");
    for _ in 0..5 {
        let answer = client.ask(request(Method::POST, &path, &[], "{}")).await;
        // The certificate is for the other Service's name: what counts is that the second family was asked.
        assert!(answer.status == 200 || answer.text().contains("NameMismatch"), "{}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_external_name_a_cluster_ip_and_another_server_name() {
    let world = World::new();
    let names = vec!["things-v1.things.svc", "api.example.com"];
    let backend = fine(&world, Settings { names, ..Settings::default() }).await;
    let port = backend.address.port();
    let base = |version: &str, annotations: &[(&str, &str)]| {
        world
            .manifests("things.example.com", version, &[], &annotated(annotations))
            .replace("port: 443", &format!("port: {port}"))
            .replace("things-v2}", "things-v1}")
    };
    let name = ("server-name", "things-v1.things.svc");
    world.registry("v1.yaml", &base("v1", &[]).replace("clusterIP: 10.0.0.1", "clusterIP: 127.0.0.1"));
    let external = base("v2", &[name])
        .replace("type: ClusterIP, clusterIP: 10.0.0.1", "type: ExternalName, externalName: localhost")
        .replace("name: things-v1", "name: things-v2");
    world.registry("v2.yaml", &external);
    let named = base("v3", &[("server-name", "api.example.com")]);
    world.registry("v3.yaml", &named.replace("clusterIP: 10.0.0.1", "clusterIP: 127.0.0.1"));
    let wrong = base("v4", &[("server-name", "wrong.example.com")]);
    world.registry("v4.yaml", &wrong.replace("clusterIP: 10.0.0.1", "clusterIP: 127.0.0.1"));
    let scene = Scene::of(world, &[]);
    let client = scene.http2().await;
    for version in ["v1", "v2", "v3"] {
        let answer = client.get(&format!("/apis/things.example.com/{version}/things")).await;
        assert_eq!(answer.status, 200, "{version} {}", answer.text());
    }
    let answer = client.get("/apis/things.example.com/v4/things").await;
    answer.refused(503, "ServiceUnavailable");
    assert!(answer.text().contains("NameMismatch"), "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_url_with_a_prefix() {
    for settings in [Settings::http1(), Settings::http2()] {
        let world = World::new();
        let backend = fine(&world, Settings { names: vec!["localhost"], ..settings }).await;
        let url = format!("https://localhost:{}/behind/a-prefix", backend.address.port());
        let text = world.manifests("things.example.com", "v1", &[], &annotated(&[("url", &url)]));
        // A URL stands instead of a Service.
        let text = text.split("---\n").next().unwrap();
        let text: String =
            text.lines().filter(|line| !line.starts_with("  service:")).map(|line| format!("{line}\n")).collect();
        world.registry("things.yaml", &text);
        let scene = Scene::of(world, &["--allow-url-backends"]);
        let answer = scene.http2().await.get(&format!("{THINGS}?limit=1")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        // Probes go behind the prefix, too.
        let seen = backend.seen().into_iter().find(|seen| seen.all("x-remote-user") == ["jane"]).unwrap();
        let expected = format!("/behind/a-prefix{THINGS}?limit=1");
        assert_eq!(seen.uri.path_and_query().unwrap().as_str(), expected);
        assert_eq!(seen.all("x-forwarded-uri"), [THINGS]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_that_change_lose_nothing_and_old_watches_go_on() {
    let world = World::new();
    let (old, writers) = watched(&world, Settings::default()).await;
    let new = fine(&world, Settings::default()).await;
    let scene = Scene::at(world, &[old.address], &[]);
    let client = scene.http2().await;
    let mut watch = watch(&client).await;
    register(&scene.world, &[new.address], &[]);
    eventually("the new endpoint to be used", async || {
        post(&client).await;
        (!new.seen().is_empty()).then_some(())
    })
    .await;
    let before = old.seen().len();
    for _ in 0..10 {
        post(&client).await;
    }
    assert_eq!(old.seen().len(), before, "the old one gets no new request");
    writers.lock().unwrap()[0].send(data("second\n")).unwrap();
    assert_eq!(next(&mut watch).await.unwrap().unwrap(), "second\n");
    // None ready: that is said, with its reason.
    let text = scene.world.manifests("things.example.com", "v1", &[new.address], &annotated(&[]));
    scene.world.registry("things.yaml", &text.replace("ready: true", "ready: false"));
    let answer = eventually("no endpoint to be left", async || {
        let answer = client.ask(request(Method::POST, THINGS, &[], "{}")).await;
        (answer.status != 200).then_some(answer)
    })
    .await;
    let status = answer.refused(503, "ServiceUnavailable");
    assert_eq!(status["details"]["causes"][0]["reason"], "MissingEndpoints", "{status}");
    assert!(retry_after_seconds(&answer).is_some());
}
