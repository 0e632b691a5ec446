//! What the operator sees: health, metrics, access records, the log, status; and what is said of mistakes.

use std::collections::BTreeSet;
use std::net::TcpListener;

use http::Method;
use serde_json::{Value, json as value};
use tokio::io::AsyncReadExt;

use crate::backend::{Backend, Settings, data, json, told};
use crate::client::{Client, admin, get, next, request, sample};
use crate::world::{Gateway, World, eventually, narthex};

const THINGS: &str = "/apis/things.example.com/v1/namespaces/default/things";

async fn things(world: &World) -> Backend {
    let backend = Backend::start(world, Settings::default(), async |request| {
        if request.uri().path().ends_with("/broken") { json(500, "{}") } else { json(200, "{}") }
    })
    .await;
    world.register("things.example.com", "v1", &[&backend]);
    backend
}

/// A client of the things, which discovery knows by now.
async fn jane(world: &World, gateway: &Gateway) -> Client {
    let client = Client::http2(world, gateway, Some(&world.user("jane", &["devs"]))).await;
    eventually("discovery", async || {
        let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let read = client.ask(get("/apis", &[("accept", accept)])).await;
        read.text().contains(r#""resource":"things""#).then_some(())
    })
    .await;
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn health_is_told_to_anyone_at_both_doors() {
    let world = World::new();
    let gateway = world.gateway(&[]);
    let nobody = Client::http1(&world, &gateway, None).await;
    let checks = "[+]ping ok\n[+]log ok\n[+]shutdown ok\n";
    for (path, code, text) in [
        ("/livez", 200, "ok".to_owned()),
        ("/readyz", 200, "ok".to_owned()),
        ("/healthz", 200, "ok".to_owned()),
        ("/livez?verbose", 200, "[+]ping ok\nlivez check passed\n".to_owned()),
        ("/healthz?verbose", 200, "[+]ping ok\nhealthz check passed\n".to_owned()),
        ("/readyz?verbose", 200, format!("{checks}readyz check passed\n")),
        (
            "/readyz?verbose=1&exclude=log",
            200,
            format!("{}readyz check passed\n", checks.replace("log ok", "log excluded: ok")),
        ),
        (
            "/readyz?verbose&exclude=moon",
            200,
            format!(
                "{checks}warn: some health checks cannot be excluded: no matches for \"moon\"\nreadyz check passed\n"
            ),
        ),
        ("/readyz/ping", 200, "ok".to_owned()),
        ("/readyz/shutdown", 200, "ok".to_owned()),
        ("/livez/ping", 200, "ok".to_owned()),
    ] {
        for answer in [nobody.get(path).await, admin(&gateway, get(path, &[])).await] {
            assert_eq!((answer.status.as_u16(), answer.text()), (code, text.clone()), "{path}");
            assert_eq!(answer.headers["content-type"], "text/plain; charset=utf-8");
            assert_eq!(answer.headers["x-content-type-options"], "nosniff");
        }
    }
    let head = nobody.ask(request(Method::HEAD, "/readyz", &[], "")).await;
    assert_eq!((head.status.as_u16(), head.body.len()), (200, 0));
    assert_eq!(admin(&gateway, get("/readyz/moon", &[])).await.status, 404);
    nobody.get("/readyz/moon").await.refused(401, "Unauthorized");
    nobody.ask(request(Method::POST, "/readyz", &[], "{}")).await.refused(401, "Unauthorized");
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_tell_of_real_traffic_under_upstreams_names() {
    let world = World::new();
    let (backend, mut writers) = told(&world, Settings::default()).await;
    world.register("things.example.com", "v1", &[&backend]);
    let gateway = world.gateway(&[]);
    let client = jane(&world, &gateway).await;
    let ask = |request| {
        let client = client.clone();
        tokio::spawn(async move { client.ask(request).await })
    };

    let asking = ask(get(THINGS, &[]));
    let writer = writers.recv().await.unwrap();
    let is = async |name: String, wanted: f64| {
        eventually(&format!("{name} to be {wanted}"), async || {
            (sample(&gateway, &name).await == Some(wanted)).then_some(())
        })
        .await;
    };
    is("apiserver_current_inflight_requests{request_kind=\"readOnly\"}".to_owned(), 1.0).await;
    writer.send(data("{}")).unwrap();
    drop(writer);
    assert_eq!(asking.await.unwrap().status, 200);
    is("apiserver_current_inflight_requests{request_kind=\"readOnly\"}".to_owned(), 0.0).await;

    let asking = ask(request(Method::POST, &format!("{THINGS}?dryRun=All"), &[], "{}"));
    let writer = writers.recv().await.unwrap();
    is("apiserver_current_inflight_requests{request_kind=\"mutating\"}".to_owned(), 1.0).await;
    drop(writer);
    assert_eq!(asking.await.unwrap().status, 200);

    let watching = client.clone();
    let watching = tokio::spawn(async move { watching.send(get(&format!("{THINGS}?watch=1"), &[])).await.unwrap() });
    let writer = writers.recv().await.unwrap();
    writer.send(data("{}\n")).unwrap();
    let mut body = watching.await.unwrap().into_body();
    next(&mut body).await.unwrap().unwrap();
    is("narthex_watches{apiservice=\"v1.things.example.com\"}".to_owned(), 1.0).await;
    let longrunning = "apiserver_longrunning_requests{component=\"apiserver\",group=\"things.example.com\",resource=\"things\",scope=\"namespace\",subresource=\"\",verb=\"WATCH\",version=\"v1\"}";
    is(longrunning.to_owned(), 1.0).await;
    drop(writer);
    assert!(next(&mut body).await.is_none());
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
async fn nothing_a_client_chooses_becomes_a_label() {
    let world = World::new();
    let _backend = things(&world).await;
    let gateway = world.gateway(&["--anonymous-auth=true"]);
    let client = jane(&world, &gateway).await;
    let marked = Client::http2(&world, &gateway, Some(&world.user("zzmark-user", &["zzmark-group"]))).await;
    let forger = Client::http1(&world, &gateway, None).await;
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
        for client in [&client, &marked, &forger] {
            for method in ["GET", "POST", "DELETE", "PATCH", "ZZMARK", "PROPFIND"] {
                let headers =
                    [("user-agent", "zzmark"), ("x-remote-user", "zzmark"), ("content-type", "zzmark/zzmark")];
                client.ask(request(method.parse().unwrap(), path, &headers, "")).await;
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
fn records(gateway: &Gateway) -> Vec<Value> {
    let lines = gateway.log().into_iter().filter_map(|line| serde_json::from_str::<Value>(&line).ok());
    lines.filter(|line| line["kind"] == "access").collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn access_records_are_written_as_asked() {
    let world = World::new();
    let backend = things(&world).await;
    for (mode, wanted) in [
        ("off", &[][..]),
        ("errors", &["broken", "nobody", "absent"]),
        ("all", &["good", "broken", "nobody", "absent"]),
    ] {
        let mut gateway = world.gateway(&[&format!("--access-log={mode}"), "--access-log-format=json"]);
        let client = jane(&world, &gateway).await;
        let nobody = Client::http1(&world, &gateway, None).await;
        let id = |id| [("audit-id", id)];
        assert_eq!(client.ask(get(&format!("{THINGS}?limit=5"), &id("good"))).await.status, 200);
        assert_eq!(client.ask(get(&format!("{THINGS}/broken"), &id("broken"))).await.status, 500);
        assert_eq!(client.ask(get("/apis/none.example.com/v1", &id("absent"))).await.status, 404);
        assert_eq!(nobody.ask(get(THINGS, &id("nobody"))).await.status, 401);
        gateway.signal("TERM");
        drop((client, nobody));
        assert_eq!(gateway.ended().await.code(), Some(0));
        // The end of the log is written before the process ends, and read soon after.
        eventually("the records", async || {
            let records = records(&gateway);
            let all = wanted.iter().all(|id| records.iter().any(|record| record["audit"] == *id));
            all.then_some(())
        })
        .await;
        let records = records(&gateway);
        let mut ids: Vec<&str> =
            records.iter().filter_map(|record| record["audit"].as_str()).filter(|id| !id.contains('-')).collect();
        let mut expected = wanted.to_vec();
        (ids.sort_unstable(), expected.sort_unstable());
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
async fn access_records_as_text_are_one_line_each() {
    let world = World::new();
    let _backend = things(&world).await;
    let gateway = world.gateway(&["--access-log=all"]);
    let client = jane(&world, &gateway).await;
    let path = format!("{THINGS}?labelSelector=a%0Ab%22c&x=%22");
    client.ask(get(&path, &[("audit-id", "odd"), ("user-agent", "a \"quoted\" agent\t")])).await;
    let line = gateway.said(&[" access ", "audit=\"odd\""]).await;
    assert!(line.contains(" user=\"jane\" groups=2 verb=LIST method=\"GET\" path=\"/apis/things"), "{line}");
    assert!(
        line.contains(" status=200 apiservice=\"v1.things.example.com\" endpoint=") && line.contains(" end=complete"),
        "{line}"
    );
    assert!(line.contains("labelSelector=a%0Ab%22c") && line.contains("x=***"), "{line}");
    assert_eq!(gateway.log().iter().filter(|line| line.contains("audit=\"odd\"")).count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_reaches_a_log() {
    let world = World::new();
    let _backend = things(&world).await;
    std::fs::write(world.path("tokens.csv"), "sesame-42,jane,1,devs\n").unwrap();
    let tokens = format!("--token-auth-file={}", world.path("tokens.csv").display());
    let gateway = world.gateway(&[&tokens, "-v=10", "--access-log=all"]);
    for http1 in [true, false] {
        // Whoever is refused as nobody is asked to leave an HTTP/2 connection.
        let connect = async || {
            if http1 {
                Client::http1(&world, &gateway, None).await
            } else {
                Client::http2(&world, &gateway, None).await
            }
        };
        let client = connect().await;
        let good = [("authorization", "Bearer sesame-42"), ("cookie", "session=sesame-43"), ("audit-id", "sealed")];
        assert_eq!(
            client.ask(get(&format!("{THINGS}?token=sesame-44&access_token=sesame-45"), &good)).await.status,
            200
        );
        for header in ["Bearer sesame-46", "Basic sesame-47", "bearer  sesame-48", "sesame-49"] {
            connect().await.ask(get(THINGS, &[("authorization", header)])).await.refused(401, "Unauthorized");
        }
        let path = format!("{THINGS}/a/exec?command=sesame-50&code=sesame-51");
        client
            .ask(request(Method::POST, &path, &[("authorization", "Bearer sesame-42")], "{\"password\":\"sesame-52\"}"))
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
            connect().await.ask(get(THINGS, &headers)).await.refused(401, "Unauthorized");
        }
    }
    gateway.said(&["audit=\"sealed\""]).await;
    gateway.said(&["/exec"]).await;
    let all = gateway.log().join("\n");
    assert!(all.contains("TRACE") || all.contains("DEBUG"), "the log says all it can");
    let leaked: Vec<&str> = all.lines().filter(|line| line.contains("sesame-") || line.contains("c2VzYW1l")).collect();
    assert!(leaked.is_empty(), "{leaked:#?}");
    let key = world.read("serving.key");
    let key = key.lines().nth(1).unwrap();
    assert!(!all.contains(key));
    for path in ["/status.json", "/", "/debug/connections", "/metrics"] {
        let text = admin(&gateway, get(path, &[])).await.text();
        assert!(!text.contains("sesame-") && !text.contains(key), "{path}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_level_changes_while_we_run() {
    let world = World::new();
    let gateway = world.gateway(&[]);
    assert_eq!(admin(&gateway, get("/log-level", &[])).await.text(), "info\n");
    let put = async |level: &str| admin(&gateway, request(Method::PUT, "/log-level", &[], level)).await;
    assert_eq!(put("debug").await.text(), "debug\n");
    gateway.said(&["the log level was changed", "debug"]).await;
    assert_eq!(admin(&gateway, get("/log-level", &[])).await.text(), "debug\n");
    assert_eq!(admin(&gateway, get("/status.json", &[])).await.json()["logLevel"], "debug");
    // A failed handshake is told at this level.
    let mut socket = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut socket, b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let _ = socket.read_to_end(&mut Vec::new()).await;
    gateway.said(&["DEBUG", "TLS handshake failed"]).await;
    eventually("the failure to be counted", async || {
        (sample(&gateway, "apiserver_tls_handshake_errors_total").await == Some(1.0)).then_some(())
    })
    .await;
    assert_eq!(put("4").await.status, 200);
    let bad = put("loud").await;
    assert_eq!(bad.status, 400);
    assert!(bad.text().contains("loud"), "{}", bad.text());
    assert_eq!(put(&"x".repeat(10_000)).await.status, 400);
    assert_eq!(admin(&gateway, get("/log-level", &[])).await.text(), "4\n");
    assert_eq!(admin(&gateway, request(Method::POST, "/log-level", &[], "info")).await.status, 405);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_door_answers_only_to_its_own_name() {
    let world = World::new();
    let gateway = world.gateway(&[]);
    for host in [
        "evil.example.com",
        "evil.example.com:6480",
        "192.0.2.1",
        "127.0.0.1.evil.example.com",
        "localhost@evil",
        "2130706433",
    ] {
        for path in ["/", "/metrics", "/status.json", "/livez", "/debug/connections"] {
            let answer = admin(&gateway, get(path, &[("host", host)])).await;
            assert_eq!(answer.status, 403, "{host}{path}");
        }
        assert_eq!(admin(&gateway, request(Method::PUT, "/log-level", &[("host", host)], "trace")).await.status, 403);
    }
    for host in ["localhost", "localhost:1", "127.0.0.1", "[::1]:6480"] {
        assert_eq!(admin(&gateway, get("/status.json", &[("host", host)])).await.status, 200, "{host}");
    }
    assert_eq!(admin(&gateway, get("/nothing", &[])).await.status, 404);
    let page = admin(&gateway, get("/", &[])).await;
    assert!(page.headers.contains_key("content-security-policy") && page.text().contains("<html"), "{}", page.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn status_shows_what_runs_in_every_form() {
    let world = World::new();
    let (backend, mut writers) = told(&world, Settings::default()).await;
    world.register("things.example.com", "v1", &[&backend]);
    let gateway = world.gateway(&[]);
    let client = jane(&world, &gateway).await;
    let http1 = Client::http1(&world, &gateway, Some(&world.user("john", &[]))).await;
    assert_eq!(http1.get("/version").await.status, 200);
    let watching = client.clone();
    let watching = tokio::spawn(async move { watching.send(get(&format!("{THINGS}?watch=1"), &[])).await.unwrap() });
    let writer = writers.recv().await.unwrap();
    writer.send(data("{}\n")).unwrap();
    let mut body = watching.await.unwrap().into_body();
    next(&mut body).await.unwrap().unwrap();

    let report = eventually("the watch and its connection to show", async || {
        let report = admin(&gateway, get("/status.json", &[])).await.json();
        let service = &report["apiservices"][0];
        let shown =
            service["watches"] == 1 && service["endpoints"][0]["connections"] == 1 && service["available"] == true;
        shown.then_some(report)
    })
    .await;
    assert_eq!((&report["phase"], &report["notReady"]), (&value!("serving"), &value!([])));
    assert_eq!(report["listen"], value!([format!("https://{}", gateway.address)]));
    let service = &report["apiservices"][0];
    assert_eq!(service["name"], "v1.things.example.com");
    assert_eq!(
        service["endpoints"][0],
        value!({"address": backend.address.to_string(), "state": "ready", "connections": 1})
    );
    let certificates = report["certificates"].as_array().unwrap();
    let named = certificates.iter().find(|one| one["file"].as_str().unwrap().ends_with("serving.crt")).unwrap();
    assert!(named["notAfter"].as_str().unwrap().ends_with('Z'), "{named}");
    assert_eq!(named["names"], value!(["localhost", "127.0.0.1"]));

    let status = |form: &[&str]| {
        let mut arguments = vec!["status".to_owned(), format!("--admin-address={}", gateway.admin)];
        arguments.extend(form.iter().map(|one| (*one).to_owned()));
        let output = narthex(&arguments);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    for form in [&[][..], &["-o", "table"], &["-o", "wide"]] {
        let text = status(form);
        let line =
            text.lines().find(|line| line.starts_with("v1.things.example.com")).unwrap_or_else(|| panic!("{text}"));
        let cells: Vec<&str> = line.split_whitespace().take(6).collect();
        assert_eq!(cells, ["v1.things.example.com", "things/things-v1", "True", "1/1", "0", "1"], "{text}");
        assert!(text.contains("serving.crt") && text.contains(&gateway.address.to_string()), "{text}");
        assert_eq!(text.contains(&backend.address.to_string()), form == ["-o", "wide"], "{text}");
    }
    let read: Value = serde_json::from_str(&status(&["-o", "json"])).unwrap();
    assert_eq!(read["apiservices"][0]["name"], "v1.things.example.com");
    let text = status(&["-o", "yaml"]);
    assert!(text.contains("name: v1.things.example.com") && text.contains("phase: serving"), "{text}");
    let page = admin(&gateway, get("/", &[])).await.text();
    assert!(page.contains("v1.things.example.com") && page.contains(&backend.address.to_string()), "{page}");

    let connections = admin(&gateway, get("/debug/connections", &[])).await.json();
    let all: Vec<&Value> =
        connections.as_array().unwrap().iter().flat_map(|worker| worker["connections"].as_array().unwrap()).collect();
    assert_eq!(all.len(), 2, "{connections}");
    let http2 = all.iter().find(|one| one["protocol"] == "HTTP/2.0").unwrap();
    assert_eq!(http2["active"], 1, "{http2}");
    let http1 = all.iter().find(|one| one["protocol"] == "HTTP/1.1").unwrap();
    assert_eq!((&http1["active"], &http1["served"]), (&value!(0), &value!(1)));
    let tasks = admin(&gateway, get("/debug/tasks", &[])).await.json();
    assert_eq!(tasks["phase"], "serving");

    drop(writer);
    let nobody = narthex(&["status".to_owned(), "--admin-address=127.0.0.1:9".to_owned()]);
    assert_eq!(nobody.status.code(), Some(1));
    assert!(nobody.stdout.is_empty() && String::from_utf8_lossy(&nobody.stderr).contains("Is Narthex running?"));
}

/// The mistakes of one command line, from the role and from its check.
fn refused(world: &World, more: &[&str]) -> String {
    let arguments = world.arguments(more);
    let run = |words: &[&str]| {
        let mut line: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        line.extend(arguments.iter().cloned());
        let output = narthex(&line);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {text}");
        assert!(output.stdout.is_empty());
        text
    };
    let (started, checked) = (run(&["gateway"]), run(&["check", "gateway"]));
    assert_eq!(started, checked, "the check says what the start would say");
    started
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_are_told_all_at_once_before_anything_listens() {
    let world = World::new();
    let good = narthex(&[vec!["check".to_owned(), "gateway".to_owned()], world.arguments(&[])].concat());
    assert_eq!(
        (good.status.code(), String::from_utf8_lossy(&good.stdout).into_owned()),
        (Some(0), "gateway: no mistakes found\n".to_owned())
    );
    assert!(!world.path("data").exists(), "a check starts nothing and makes nothing");

    // The port is taken as well: who listens first would speak of nothing else.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("--secure-port={}", taken.local_addr().unwrap().port());
    std::fs::write(world.path("serving.key"), world.read("front-proxy.key")).unwrap();
    std::fs::write(world.path("client-ca.crt"), "no certificate\n").unwrap();
    world.registry("a.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n");
    world.registry("b.yaml", "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {name: v1.wrong}\nspec: {group: b.example.com, version: v1, groupPriorityMinimum: 0, versionPriority: 1}\n");
    let secret = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::write(world.path("tokens.csv"), "only-a-token\n").unwrap();
    std::fs::set_permissions(world.path("tokens.csv"), secret).unwrap();
    let tokens = format!("--token-auth-file={}", world.path("tokens.csv").display());
    let text = refused(&world, &[&port, &tokens]);
    for word in [
        "serving.crt",
        "serving.key",
        "client-ca.crt",
        "a.yaml",
        "Pod",
        "b.yaml",
        "groupPriorityMinimum",
        "v1.wrong",
        "tokens.csv",
    ] {
        assert!(text.contains(word), "{word} in {text}");
    }
    assert!(!text.contains("in use"), "{text}");
    assert!(!text.contains("only-a-token"), "{text}");
    assert_eq!(text.lines().count(), 7, "a line for each: {text}");
    // A flag that cannot be read is the command line's fault.
    let line = [vec!["gateway".to_owned()], world.arguments(&["--max-requests-inflight=many"])].concat();
    let output = narthex(&line);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("--max-requests-inflight") && text.contains("a.yaml"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_in_use_is_said_and_what_to_do() {
    let world = World::new();
    let gateway = world.gateway(&[]);
    let start = |more: &[&str]| {
        let output = narthex(&[vec!["gateway".to_owned()], world.arguments(more)].concat());
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let text = start(&[&format!("--secure-port={}", gateway.address.port())]);
    assert!(
        text.contains(&gateway.address.to_string()) && text.contains("in use") && text.contains("--secure-port"),
        "{text}"
    );
    let text = start(&[&format!("--admin-address={}", gateway.admin)]);
    assert!(
        text.contains(&gateway.admin.to_string()) && text.contains("in use") && text.contains("--admin-address"),
        "{text}"
    );
    // The one that stands still serves.
    assert_eq!(admin(&gateway, get("/readyz", &[])).await.text(), "ok");
    let wrong = narthex(&["gateway".to_owned(), "--secure-prot=1".to_owned()]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&wrong.stderr).contains("--secure-port"),
        "{}",
        String::from_utf8_lossy(&wrong.stderr)
    );
}
