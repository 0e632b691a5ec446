//! Failover between endpoints, and the ways to name one: balanced, skipped when failing, used again when recovered.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use http::Method;
use tokio::sync::Semaphore;

use crate::support::assert_refused::retry_after_seconds;
use crate::support::backend::{Backend, BackendSettings, data_frame, json_response, start_watch_backend};
use crate::support::client::{Client, get, metric_value, next_chunk, request};
use crate::support::fixtures::{TestEnvironment, eventually};
use crate::support::gateway_fixture::{GatewayFixture, THINGS, annotations_yaml, open_watch, register_things};
use crate::support::raw_backend::{self, RawConnection};

async fn start_ok_backend(environment: &TestEnvironment, settings: BackendSettings) -> Backend {
    Backend::start(environment, settings, async |_| json_response(200, "{}")).await
}

/// A port where nothing listens.
async fn closed_port() -> SocketAddr {
    tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

/// Takes connections and says nothing.
async fn stalling_port() -> SocketAddr {
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

async fn post_ok(client: &Client) {
    let reply = client.send_and_read(request(Method::POST, THINGS, &[], "{}")).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn load_balancing_prefers_endpoint_with_fewest_requests() {
    let environment = TestEnvironment::new();
    let go = Arc::new(Semaphore::new(0));
    let counts: [Arc<AtomicUsize>; 3] = Default::default();
    let mut backends = Vec::new();
    for count in &counts {
        let (go, count) = (go.clone(), count.clone());
        backends.push(
            Backend::start(&environment, BackendSettings::default(), move |_| {
                let go = go.clone();
                count.fetch_add(1, Ordering::SeqCst);
                async move {
                    go.acquire().await.unwrap().forget();
                    json_response(200, "{}")
                }
            })
            .await,
        );
    }
    let fixture = GatewayFixture::new(environment, &backends.iter().collect::<Vec<_>>(), &[]);
    // One connection is one worker, and each worker balances by what it sees.
    let client = fixture.http2().await;
    let all = join_all((0..30).map(|_| post_ok(&client)));
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
async fn failover_endpoint_refusing_connections_loses_no_request_and_is_reused() {
    let environment = TestEnvironment::new();
    let (one, two) = (
        start_ok_backend(&environment, BackendSettings::http1()).await,
        start_ok_backend(&environment, BackendSettings::http2()).await,
    );
    let address = closed_port().await;
    let fixture = GatewayFixture::with_addresses(environment, &[one.address, two.address, address], &[]);
    let clients = fixture.both_protocols().await;
    for _ in 0..10 {
        for client in &clients {
            post_ok(client).await;
        }
    }
    let back = start_ok_backend(&fixture.environment, BackendSettings { address, ..BackendSettings::default() }).await;
    eventually("the third to be used", async || {
        for client in &clients {
            post_ok(client).await;
        }
        (!back.received().is_empty()).then_some(())
    })
    .await;
    // And one that goes away while requests run loses none that can be saved.
    let address = one.stop().await;
    for _ in 0..20 {
        for client in &clients {
            assert_eq!(client.get(THINGS).await.status, 200);
        }
    }
    drop(start_ok_backend(&fixture.environment, BackendSettings { address, ..BackendSettings::default() }).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn failover_endpoint_stalled_in_handshake_loses_no_request() {
    let environment = TestEnvironment::new();
    let good = start_ok_backend(&environment, BackendSettings::default()).await;
    let fixture = GatewayFixture::with_addresses(
        environment,
        &[stalling_port().await, good.address],
        &[("connect-timeout", "300ms")],
    );
    for client in fixture.both_protocols().await {
        for _ in 0..10 {
            post_ok(&client).await;
        }
    }
}

/// TLS is done, HTTP/2 agreed on, and then nothing: what was not greeted back is not given a request.
#[tokio::test(flavor = "multi_thread")]
async fn failover_endpoint_without_http2_settings_gets_no_request() {
    let environment = TestEnvironment::new();
    let good = start_ok_backend(&environment, BackendSettings::default()).await;
    let mute = Backend::start_raw(&environment, BackendSettings::http2(), async |mut stream| {
        let mut some = [0; 1024];
        while let Ok(1..) = tokio::io::AsyncReadExt::read(&mut stream, &mut some).await {}
    })
    .await;
    let fixture =
        GatewayFixture::with_addresses(environment, &[mute.address, good.address], &[("connect-timeout", "1500ms")]);
    for client in fixture.both_protocols().await {
        for _ in 0..10 {
            post_ok(&client).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failover_upgrade_uses_reachable_endpoint() {
    let environment = TestEnvironment::new();
    let backend = raw_backend::http1(&environment, BackendSettings::http1(), |mut talk: RawConnection| async move {
        talk.write("HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\nhello").await;
        talk.close().await;
    })
    .await;
    let fixture = GatewayFixture::with_addresses(
        environment,
        &[closed_port().await, stalling_port().await, backend.address],
        &[("connect-timeout", "300ms")],
    );
    for _ in 0..4 {
        let mut request = get(THINGS, &[("connection", "Upgrade"), ("upgrade", "websocket")]);
        request.headers_mut().insert("sec-websocket-version", "13".parse().unwrap());
        let response = fixture.http1().await.send(request).await.unwrap();
        assert_eq!(response.status(), 101);
        let mut tunnel = hyper_util::rt::TokioIo::new(hyper::upgrade::on(response).await.unwrap());
        let mut output = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut tunnel, &mut output).await.unwrap();
        assert_eq!(output, "hello");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failover_first_request_finds_only_live_endpoint() {
    let environment = TestEnvironment::new();
    let good = start_ok_backend(&environment, BackendSettings::default()).await;
    let mut addresses = vec![good.address];
    for _ in 0..6 {
        addresses.push(closed_port().await);
    }
    let fixture = GatewayFixture::with_addresses(environment, &addresses, &[]);
    for client in fixture.both_protocols().await {
        post_ok(&client).await;
    }
}

/// An endpoint that takes every connection and breaks every request.
#[tokio::test(flavor = "multi_thread")]
async fn failover_endpoint_breaking_every_request_loses_no_get() {
    let environment = TestEnvironment::new();
    let good = start_ok_backend(&environment, BackendSettings::http1()).await;
    let rotten =
        raw_backend::http1(&environment, BackendSettings::http1(), |talk: RawConnection| async move { talk.reset() })
            .await;
    let fixture = GatewayFixture::with_addresses(environment, &[good.address, rotten.address], &[]);
    for client in fixture.both_protocols().await {
        for _ in 0..20 {
            let reply = client.get(THINGS).await;
            assert_eq!(reply.status, 200, "{}", reply.text());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_annotation_never_disables_retries() {
    let environment = TestEnvironment::new();
    let recorded = Arc::new(AtomicUsize::new(0));
    let counter = recorded.clone();
    let backend = raw_backend::http1(&environment, BackendSettings::http1(), move |talk: RawConnection| {
        counter.fetch_add(1, Ordering::SeqCst);
        async move { talk.close().await }
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[("retry", "never")]);
    for (number, client) in fixture.both_protocols().await.into_iter().enumerate() {
        client.get(THINGS).await.assert_failure(503, "ServiceUnavailable");
        assert_eq!(recorded.load(Ordering::SeqCst), number + 1);
    }
}

/// A backend that closes kept connections says nothing about its health.
#[tokio::test(flavor = "multi_thread")]
async fn retry_on_stale_connection_is_no_endpoint_failure() {
    let environment = TestEnvironment::new();
    // Each connection serves one request and is closed when the next one comes.
    let backend = raw_backend::http1(&environment, BackendSettings::http1(), |mut talk: RawConnection| async move {
        talk.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await;
        talk.next_head().await;
        talk.close().await;
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    for client in fixture.both_protocols().await {
        for _ in 0..20 {
            let reply = client.get(THINGS).await;
            assert_eq!(reply.status, 200, "{}", reply.text());
        }
    }
    let retries = |reason: &str| {
        format!("narthex_backend_retries_total{{apiservice=\"v1.things.example.com\",reason=\"{reason}\"}}")
    };
    assert!(metric_value(&fixture.gateway, &retries("stale-connection")).await.is_some_and(|count| count >= 10.0));
    assert_eq!(metric_value(&fixture.gateway, &retries("broken-connection")).await.unwrap_or(0.0), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn service_dual_stack_prefers_first_address_family() {
    let environment = TestEnvironment::new();
    let four = start_ok_backend(&environment, BackendSettings::default()).await;
    let six = start_ok_backend(
        &environment,
        BackendSettings { address: "[::1]:0".parse().unwrap(), ..BackendSettings::default() },
    )
    .await;
    let both = |first: &str, four: SocketAddr, six: SocketAddr| {
        let text = environment.apiservice_manifests("things.example.com", "v1", &[four, six], &annotations_yaml(&[]));
        let (head, tail) = text.rsplit_once("addressType: IPv4").unwrap();
        let families = if first == "IPv6" { "IPv6, IPv4" } else { "IPv4, IPv6" };
        format!("{head}addressType: IPv6{tail}")
            .replace("addresses: [::1]", "addresses: ['::1']")
            .replace("clusterIP: 10.0.0.1,", &format!("clusterIP: 10.0.0.1, ipFamilies: [{families}],"))
    };
    environment.write_registry("things.yaml", &both("IPv6", four.address, six.address));
    let refused: SocketAddr = format!("[::1]:{}", closed_port().await.port()).parse().unwrap();
    let second = both("IPv6", four.address, refused).replace("things.example.com", "others.example.com");
    environment.write_registry("others.yaml", &second.replace("name: things-v1", "name: others-v1"));
    let fixture = GatewayFixture::from_registry(environment, &[]);
    let client = fixture.http2().await;
    for _ in 0..5 {
        post_ok(&client).await;
    }
    assert_eq!((six.received().len(), four.received().len()), (5, 0), "the first family while any of it is there");
    assert_eq!(six.last_request().header_values("host").len() + six.last_request().uri.authority().map_or(0, |_| 1), 1);
    let path = THINGS.replace("things.example.com", "others.example.com");
    for _ in 0..5 {
        let reply = client.send_and_read(request(Method::POST, &path, &[], "{}")).await;
        // The certificate is for the other Service's name: what counts is that the second family was asked.
        assert!(reply.status == 200 || reply.text().contains("NameMismatch"), "{}", reply.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn service_external_name_cluster_ip_and_server_name_annotation() {
    let environment = TestEnvironment::new();
    let names = vec!["things-v1.things.svc", "api.example.com"];
    let backend = start_ok_backend(&environment, BackendSettings { names, ..BackendSettings::default() }).await;
    let port = backend.address.port();
    let base = |version: &str, annotations: &[(&str, &str)]| {
        environment
            .apiservice_manifests("things.example.com", version, &[], &annotations_yaml(annotations))
            .replace("port: 443", &format!("port: {port}"))
            .replace("things-v2}", "things-v1}")
    };
    let name = ("server-name", "things-v1.things.svc");
    environment.write_registry("v1.yaml", &base("v1", &[]).replace("clusterIP: 10.0.0.1", "clusterIP: 127.0.0.1"));
    let external = base("v2", &[name])
        .replace("type: ClusterIP, clusterIP: 10.0.0.1", "type: ExternalName, externalName: localhost")
        .replace("name: things-v1", "name: things-v2");
    environment.write_registry("v2.yaml", &external);
    let named = base("v3", &[("server-name", "api.example.com")]);
    environment.write_registry("v3.yaml", &named.replace("clusterIP: 10.0.0.1", "clusterIP: 127.0.0.1"));
    let wrong = base("v4", &[("server-name", "wrong.example.com")]);
    environment.write_registry("v4.yaml", &wrong.replace("clusterIP: 10.0.0.1", "clusterIP: 127.0.0.1"));
    let fixture = GatewayFixture::from_registry(environment, &[]);
    let client = fixture.http2().await;
    for version in ["v1", "v2", "v3"] {
        let reply = client.get(&format!("/apis/things.example.com/{version}/things")).await;
        assert_eq!(reply.status, 200, "{version} {}", reply.text());
    }
    let reply = client.get("/apis/things.example.com/v4/things").await;
    reply.assert_failure(503, "ServiceUnavailable");
    assert!(reply.text().contains("NameMismatch"), "{}", reply.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn url_backend_with_path_prefix() {
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let environment = TestEnvironment::new();
        let backend = start_ok_backend(&environment, BackendSettings { names: vec!["localhost"], ..settings }).await;
        let url = format!("https://localhost:{}/behind/a-prefix", backend.address.port());
        let text =
            environment.apiservice_manifests("things.example.com", "v1", &[], &annotations_yaml(&[("url", &url)]));
        // A URL stands instead of a Service.
        let text = text.split("---\n").next().unwrap();
        let text: String =
            text.lines().filter(|line| !line.starts_with("  service:")).map(|line| format!("{line}\n")).collect();
        environment.write_registry("things.yaml", &text);
        let fixture = GatewayFixture::from_registry(environment, &["--allow-url-backends"]);
        let reply = fixture.http2().await.get(&format!("{THINGS}?limit=1")).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        // Probes go behind the prefix, too.
        let seen = backend.received().into_iter().find(|seen| seen.header_values("x-remote-user") == ["jane"]).unwrap();
        let expected = format!("/behind/a-prefix{THINGS}?limit=1");
        assert_eq!(seen.uri.path_and_query().unwrap().as_str(), expected);
        assert_eq!(seen.header_values("x-forwarded-uri"), [THINGS]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoint_change_loses_no_request_and_keeps_watches() {
    let environment = TestEnvironment::new();
    let (old, writers) = start_watch_backend(&environment, BackendSettings::default()).await;
    let new = start_ok_backend(&environment, BackendSettings::default()).await;
    let fixture = GatewayFixture::with_addresses(environment, &[old.address], &[]);
    let client = fixture.http2().await;
    let mut watch = open_watch(&client).await;
    register_things(&fixture.environment, &[new.address], &[]);
    eventually("the new endpoint to be used", async || {
        post_ok(&client).await;
        (!new.received().is_empty()).then_some(())
    })
    .await;
    let before = old.received().len();
    for _ in 0..10 {
        post_ok(&client).await;
    }
    assert_eq!(old.received().len(), before, "the old one gets no new request");
    writers.lock().unwrap()[0].send(data_frame("second\n")).unwrap();
    assert_eq!(next_chunk(&mut watch).await.unwrap().unwrap(), "second\n");
    // None ready: that is said, with its reason.
    let text =
        fixture.environment.apiservice_manifests("things.example.com", "v1", &[new.address], &annotations_yaml(&[]));
    fixture.environment.write_registry("things.yaml", &text.replace("ready: true", "ready: false"));
    let reply = eventually("no endpoint to be left", async || {
        let reply = client.send_and_read(request(Method::POST, THINGS, &[], "{}")).await;
        (reply.status != 200).then_some(reply)
    })
    .await;
    let status = reply.assert_failure(503, "ServiceUnavailable");
    assert_eq!(status["details"]["causes"][0]["reason"], "MissingEndpoints", "{status}");
    assert!(retry_after_seconds(&reply).is_some());
}
