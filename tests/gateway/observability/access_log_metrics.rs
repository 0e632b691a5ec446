//! Metrics and access log: what is recorded of every request, and what never is.

use std::collections::BTreeSet;

use http::Method;
use serde_json::{Value, json as value};

use crate::observability::admin::connect_as_jane;
use crate::support::backend::{Backend, BackendSettings, data_frame, json_response, start_scripted_backend};
use crate::support::client::{Client, admin_request, get, metric_value, next_chunk, request};
use crate::support::fixtures::{GatewayProcess, TestEnvironment, eventually};

const THINGS: &str = "/apis/things.example.com/v1/namespaces/default/things";

async fn start_things_backend(environment: &TestEnvironment) -> Backend {
    let backend = Backend::start(environment, BackendSettings::default(), async |request| {
        if request.uri().path().ends_with("/broken") { json_response(500, "{}") } else { json_response(200, "{}") }
    })
    .await;
    environment.register_apiservice("things.example.com", "v1", &[&backend]);
    backend
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_of_traffic_have_upstream_names() {
    let environment = TestEnvironment::new();
    let (backend, mut writers) = start_scripted_backend(&environment, BackendSettings::default()).await;
    environment.register_apiservice("things.example.com", "v1", &[&backend]);
    let gateway = environment.start_gateway(&[]);
    let client = connect_as_jane(&environment, &gateway).await;
    let ask = |request| {
        let client = client.clone();
        tokio::spawn(async move { client.send_and_read(request).await })
    };

    let pending = ask(get(THINGS, &[]));
    let writer = writers.recv().await.unwrap();
    let is = async |name: String, wanted: f64| {
        eventually(&format!("{name} to be {wanted}"), async || {
            (metric_value(&gateway, &name).await == Some(wanted)).then_some(())
        })
        .await;
    };
    is("apiserver_current_inflight_requests{request_kind=\"readOnly\"}".to_owned(), 1.0).await;
    writer.send(data_frame("{}")).unwrap();
    drop(writer);
    assert_eq!(pending.await.unwrap().status, 200);
    is("apiserver_current_inflight_requests{request_kind=\"readOnly\"}".to_owned(), 0.0).await;

    let pending = ask(request(Method::POST, &format!("{THINGS}?dryRun=All"), &[], "{}"));
    let writer = writers.recv().await.unwrap();
    is("apiserver_current_inflight_requests{request_kind=\"mutating\"}".to_owned(), 1.0).await;
    drop(writer);
    assert_eq!(pending.await.unwrap().status, 200);

    let watching = client.clone();
    let watching = tokio::spawn(async move { watching.send(get(&format!("{THINGS}?watch=1"), &[])).await.unwrap() });
    let writer = writers.recv().await.unwrap();
    writer.send(data_frame("{}\n")).unwrap();
    let mut body = watching.await.unwrap().into_body();
    next_chunk(&mut body).await.unwrap().unwrap();
    is("narthex_watches{apiservice=\"v1.things.example.com\"}".to_owned(), 1.0).await;
    let longrunning = "apiserver_longrunning_requests{component=\"apiserver\",group=\"things.example.com\",resource=\"things\",scope=\"namespace\",subresource=\"\",verb=\"WATCH\",version=\"v1\"}";
    is(longrunning.to_owned(), 1.0).await;
    drop(writer);
    assert!(next_chunk(&mut body).await.is_none());
    is("narthex_watches{apiservice=\"v1.things.example.com\"}".to_owned(), 0.0).await;

    // Connections are counted once a second.
    let text = eventually("the connection to the backend", async || {
        let text = client.get("/metrics").await.text();
        text.contains("narthex_backend_connections{").then_some(text)
    })
    .await;
    let total = |code: &str, dry: &str, verb: &str, scope: &str| {
        format!(
            "apiserver_request_total{{code=\"{code}\",component=\"apiserver\",dry_run=\"{dry}\",group=\"things.example.com\",resource=\"things\",scope=\"{scope}\",subresource=\"\",verb=\"{verb}\",version=\"v1\"}} 1"
        )
    };
    for line in [
        total("200", "", "LIST", "namespace"),
        total("200", "All", "POST", "resource"),
        total("200", "", "WATCH", "namespace"),
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\nin\n{text}");
    }
    let endpoint = format!("apiservice=\"v1.things.example.com\",endpoint=\"{}\"", backend.address);
    for start in [
        "apiserver_request_duration_seconds_bucket{",
        "apiserver_response_sizes_bucket{",
        "aggregator_unavailable_apiservice{name=\"v1.things.example.com\"} 0",
        "aggregator_discovery_aggregation_count_total",
        "authentication_attempts{result=\"success\"}",
        "authenticated_user_requests{username=\"other\"}",
        &format!("narthex_backend_request_duration_seconds_count{{{endpoint},phase=\"headers\"}} 3"),
        &format!("narthex_backend_connections{{{endpoint}"),
        "narthex_build_info{version=",
        "process_resident_memory_bytes ",
        "process_open_fds ",
    ] {
        assert!(text.lines().any(|line| line.starts_with(start)), "{start}\nin\n{text}");
    }
    for file in ["serving.crt", "client-ca.crt", "requestheader-ca.crt", "front-proxy.crt"] {
        let expiry = text
            .lines()
            .find(|line| line.starts_with("narthex_certificate_expiry_timestamp_seconds{") && line.contains(file))
            .unwrap_or_else(|| panic!("{file}\nin\n{text}"));
        let at: f64 = expiry.rsplit_once(' ').unwrap().1.parse().unwrap();
        let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
        assert!(at > now && at < now + 20.0 * 366.0 * 86400.0, "{expiry}");
    }
    // Every family says what it is, and every sample belongs to one.
    let families: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let known = ["", "_bucket", "_sum", "_count"]
            .iter()
            .any(|end| name.strip_suffix(end).is_some_and(|family| families.contains(family)));
        assert!(known, "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_labels_not_controlled_by_clients() {
    let environment = TestEnvironment::new();
    let _backend = start_things_backend(&environment).await;
    let gateway = environment.start_gateway(&environment.anonymous_flags().each_ref().map(String::as_str));
    let client = connect_as_jane(&environment, &gateway).await;
    let marked =
        Client::http2(&environment, &gateway, Some(&environment.issue_user("zzmark-user", &["zzmark-group"]))).await;
    let bad_issuer = Client::http1(&environment, &gateway, None).await;
    for path in [
        "/apis/zzmark.example.com/v1/things",
        "/apis/things.example.com/zzmark/things",
        "/apis/things.example.com/v1/zzmarks",
        "/apis/things.example.com/v1/namespaces/zzmark/things/zzmark/zzmark",
        "/apis/things.example.com/v1/namespaces/zzmark/zzmarks/a/zzmark",
        "/apis/things.example.com/v1/zzmark/things",
        "/api/v1/zzmark",
        "/zzmark",
        "/openapi/v3/zzmark",
        "/livez/zzmark",
        "/apis/things.example.com/v1/things?dryRun=zzmark&watch=zzmark&fieldManager=zzmark",
    ] {
        for client in [&client, &marked, &bad_issuer] {
            for method in ["GET", "POST", "DELETE", "PATCH", "ZZMARK", "PROPFIND"] {
                let headers =
                    [("user-agent", "zzmark"), ("x-remote-user", "zzmark"), ("content-type", "zzmark/zzmark")];
                client.send_and_read(request(method.parse().unwrap(), path, &headers, "")).await;
            }
        }
    }
    let text = client.get("/metrics").await.text();
    let found: Vec<&str> = text.lines().filter(|line| line.to_lowercase().contains("zzmark")).collect();
    assert!(found.is_empty(), "{found:#?}");
    assert!(text.contains("verb=\"other\"") && text.contains("resource=\"other\""), "{text}");
    assert!(!text.contains("PROPFIND"));
}

/// The access records among the log's lines.
fn access_records(gateway: &GatewayProcess) -> Vec<Value> {
    let lines = gateway.log_lines().into_iter().filter_map(|line| serde_json::from_str::<Value>(&line).ok());
    lines.filter(|line| line["kind"] == "access").collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn access_log_modes() {
    let environment = TestEnvironment::new();
    let backend = start_things_backend(&environment).await;
    for (mode, wanted) in [
        ("off", &[][..]),
        ("errors", &["broken", "nobody", "absent"]),
        ("all", &["good", "broken", "nobody", "absent"]),
    ] {
        let mut gateway = environment.start_gateway(&[&format!("--access-log={mode}"), "--access-log-format=json"]);
        let client = connect_as_jane(&environment, &gateway).await;
        let anonymous = Client::http1(&environment, &gateway, None).await;
        let id = |id| [("audit-id", id)];
        assert_eq!(client.send_and_read(get(&format!("{THINGS}?limit=5"), &id("good"))).await.status, 200);
        assert_eq!(client.send_and_read(get(&format!("{THINGS}/broken"), &id("broken"))).await.status, 500);
        assert_eq!(client.send_and_read(get("/apis/none.example.com/v1", &id("absent"))).await.status, 404);
        assert_eq!(anonymous.send_and_read(get(THINGS, &id("nobody"))).await.status, 401);
        gateway.signal("TERM");
        drop((client, anonymous));
        assert_eq!(gateway.wait_for_exit().await.code(), Some(0));
        // The end of the log is written before the process ends, and read soon after.
        eventually("the records", async || {
            let records = access_records(&gateway);
            let all = wanted.iter().all(|id| records.iter().any(|record| record["audit"] == *id));
            all.then_some(())
        })
        .await;
        let records = access_records(&gateway);
        let mut ids: Vec<&str> =
            records.iter().filter_map(|record| record["audit"].as_str()).filter(|id| !id.contains('-')).collect();
        let mut expected = wanted.to_vec();
        ids.sort_unstable();
        expected.sort_unstable();
        assert_eq!(ids, expected, "one record a request with --access-log={mode}");
        let of = |id: &str| records.iter().find(|record| record["audit"] == id).unwrap();
        if mode == "all" {
            let good = of("good");
            for (key, wanted) in [
                ("user", value!("jane")),
                ("verb", value!("LIST")),
                ("method", value!("GET")),
                ("path", value!(format!("{THINGS}?limit=5"))),
                ("protocol", value!("h2")),
                ("status", value!(200)),
                ("apiservice", value!("v1.things.example.com")),
                ("endpoint", value!(backend.address.to_string())),
                ("out", value!(2)),
                ("end", value!("complete")),
            ] {
                assert_eq!(good[key], wanted, "{key} of {good}");
            }
            for key in ["admit_us", "headers_us", "body_us", "total_us", "time", "client"] {
                assert!(!good[key].is_null(), "{key} of {good}");
            }
        }
        if mode != "off" {
            assert_eq!(of("broken")["status"], 500);
            assert_eq!((&of("nobody")["status"], &of("nobody")["refused"]), (&value!(401), &value!("Unauthorized")));
            assert!(of("nobody")["user"].is_null());
            assert_eq!((&of("absent")["refused"], &of("absent")["blame"]), (&value!("NotFound"), &value!("client")));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn access_log_text_format_is_one_line() {
    let environment = TestEnvironment::new();
    let _backend = start_things_backend(&environment).await;
    let gateway = environment.start_gateway(&["--access-log=all"]);
    let client = connect_as_jane(&environment, &gateway).await;
    let path = format!("{THINGS}?labelSelector=a%0Ab%22c&x=%22");
    client.send_and_read(get(&path, &[("audit-id", "odd"), ("user-agent", "a \"quoted\" agent\t")])).await;
    let line = gateway.wait_for_log(&[" access ", "audit=\"odd\""]).await;
    assert!(line.contains(" user=\"jane\" groups=2 verb=LIST method=\"GET\" path=\"/apis/things"), "{line}");
    assert!(
        line.contains(" status=200 apiservice=\"v1.things.example.com\" endpoint=") && line.contains(" end=complete"),
        "{line}"
    );
    assert!(line.contains("labelSelector=a%0Ab%22c") && line.contains("x=***"), "{line}");
    assert_eq!(gateway.log_lines().iter().filter(|line| line.contains("audit=\"odd\"")).count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn log_and_status_contain_no_secrets() {
    let environment = TestEnvironment::new();
    let _backend = start_things_backend(&environment).await;
    std::fs::write(environment.path("tokens.csv"), "sesame-42,jane,1,devs\n").unwrap();
    let tokens = format!("--token-auth-file={}", environment.path("tokens.csv").display());
    let gateway = environment.start_gateway(&[&tokens, "-v=10", "--access-log=all"]);
    for http1 in [true, false] {
        // After a 401 the client is asked to close its HTTP/2 connection.
        let connect = async || {
            if http1 {
                Client::http1(&environment, &gateway, None).await
            } else {
                Client::http2(&environment, &gateway, None).await
            }
        };
        let client = connect().await;
        let good = [("authorization", "Bearer sesame-42"), ("cookie", "session=sesame-43"), ("audit-id", "sealed")];
        assert_eq!(
            client.send_and_read(get(&format!("{THINGS}?token=sesame-44&access_token=sesame-45"), &good)).await.status,
            200
        );
        for header in ["Bearer sesame-46", "Basic sesame-47", "bearer  sesame-48", "sesame-49"] {
            connect()
                .await
                .send_and_read(get(THINGS, &[("authorization", header)]))
                .await
                .assert_failure(401, "Unauthorized");
        }
        let path = format!("{THINGS}/a/exec?command=sesame-50&code=sesame-51");
        client
            .send_and_read(request(
                Method::POST,
                &path,
                &[("authorization", "Bearer sesame-42")],
                "{\"password\":\"sesame-52\"}",
            ))
            .await;
        let websocket = format!("base64url.bearer.authorization.k8s.io.{}", "c2VzYW1lLTUz");
        let headers = [
            ("connection", "upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "c2VzYW1lLTU0AAAAAA=="),
            ("sec-websocket-protocol", &*websocket),
        ];
        if http1 {
            connect().await.send_and_read(get(THINGS, &headers)).await.assert_failure(401, "Unauthorized");
        }
    }
    gateway.wait_for_log(&["audit=\"sealed\""]).await;
    gateway.wait_for_log(&["/exec"]).await;
    let all = gateway.log_lines().join("\n");
    assert!(all.contains("TRACE") || all.contains("DEBUG"), "the log says all it can");
    let leaked: Vec<&str> = all.lines().filter(|line| line.contains("sesame-") || line.contains("c2VzYW1l")).collect();
    assert!(leaked.is_empty(), "{leaked:#?}");
    let key = environment.read_file("serving.key");
    let key = key.lines().nth(1).unwrap();
    assert!(!all.contains(key));
    for path in ["/status.json", "/", "/debug/connections", "/metrics"] {
        let text = admin_request(&gateway, get(path, &[])).await.text();
        assert!(!text.contains("sesame-") && !text.contains(key), "{path}: {text}");
    }
}

/// Endpoints come and go all day: what is gone must not be counted for ever.
#[tokio::test(flavor = "multi_thread")]
async fn endpoint_refusing_shown_as_unreachable_and_metrics_removed_with_it() {
    let environment = TestEnvironment::new();
    let backend = start_things_backend(&environment).await;
    let dead =
        Backend::start(&environment, BackendSettings::default(), async |_| json_response(200, "{}")).await.stop().await;
    let both = environment.apiservice_manifests("things.example.com", "v1", &[dead, backend.address], "");
    environment.write_registry("v1.things.example.com.yaml", &both);
    let gateway = environment.start_gateway(&[]);
    let client = connect_as_jane(&environment, &gateway).await;
    let labels = |address| format!("{{apiservice=\"v1.things.example.com\",endpoint=\"{address}\"}}");
    let ejected = format!("narthex_endpoint_ejected{}", labels(dead));
    eventually("the ejection", async || {
        assert_eq!(client.get(THINGS).await.status, 200, "another endpoint is asked");
        (metric_value(&gateway, &ejected).await == Some(1.0)).then_some(())
    })
    .await;
    let report = admin_request(&gateway, get("/status.json", &[])).await.json();
    let endpoints = report["apiservices"][0]["endpoints"].as_array().unwrap();
    let state = |address: std::net::SocketAddr| {
        endpoints.iter().find(|one| one["address"] == address.to_string()).unwrap()["state"].clone()
    };
    assert_eq!((state(dead), state(backend.address)), (value!("unreachable"), value!("ready")));

    environment.register_apiservice("things.example.com", "v1", &[&backend]);
    eventually("the endpoint to be forgotten", async || {
        assert_eq!(client.get(THINGS).await.status, 200);
        let text = admin_request(&gateway, get("/metrics", &[])).await.text();
        (!text.contains(&dead.to_string())).then_some(())
    })
    .await;
    std::fs::remove_file(environment.path("registry/v1.things.example.com.yaml")).unwrap();
    eventually("all of its metrics to go", async || {
        let text = admin_request(&gateway, get("/metrics", &[])).await.text();
        let left = text.lines().any(|line| line.contains("apiservice=\"") || line.contains("{name=\"v1.things"));
        (!left).then_some(())
    })
    .await;
}
