//! Admin listener: health, metrics, log level and status; and configuration errors at start.

use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use http::Method;
use serde_json::{Value, json as value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::backend::{
    Backend, BackendSettings, api_resource_list, data_frame, json_response, start_scripted_backend,
};
use crate::support::client::{Client, admin_request, get, metric_value, next_chunk, request};
use crate::support::fixtures::{GatewayProcess, TEST_TIMEOUT, TestEnvironment, eventually, run_narthex};

const THINGS: &str = "/apis/things.example.com/v1/namespaces/default/things";

/// A client of the things, which discovery knows by now.
pub(crate) async fn connect_as_jane(environment: &TestEnvironment, gateway: &GatewayProcess) -> Client {
    let client = Client::http2(environment, gateway, Some(&environment.issue_user("jane", &["devs"]))).await;
    eventually("discovery", async || {
        let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let read = client.send_and_read(get("/apis", &[("accept", accept)])).await;
        read.text().contains(r#""resource":"things""#).then_some(())
    })
    .await;
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn health_served_unauthenticated_on_serving_and_admin_ports() {
    let environment = TestEnvironment::new();
    let gateway = environment.start_gateway(&[]);
    let anonymous = Client::http1(&environment, &gateway, None).await;
    let discovery = "poststarthook/apiservice-discovery-controller";
    let checks = format!("[+]ping ok\n[+]log ok\n[+]{discovery} ok\n[+]shutdown ok\n");
    eventually("readiness", async || (anonymous.get("/readyz").await.status == 200).then_some(())).await;
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
        for response in [anonymous.get(path).await, admin_request(&gateway, get(path, &[])).await] {
            assert_eq!((response.status.as_u16(), response.text()), (code, text.clone()), "{path}");
            assert_eq!(response.headers["content-type"], "text/plain; charset=utf-8");
            assert_eq!(response.headers["x-content-type-options"], "nosniff");
        }
    }
    let head = anonymous.send_and_read(request(Method::HEAD, "/readyz", &[], "")).await;
    assert_eq!((head.status.as_u16(), head.body.len()), (200, 0));
    assert_eq!(admin_request(&gateway, get("/readyz/moon", &[])).await.status, 404);
    anonymous.get("/readyz/moon").await.assert_failure(401, "Unauthorized");
    anonymous.send_and_read(request(Method::POST, "/readyz", &[], "{}")).await.assert_failure(401, "Unauthorized");
}

#[tokio::test(flavor = "multi_thread")]
async fn admin_log_level_changed_at_runtime() {
    let environment = TestEnvironment::new();
    let gateway = environment.start_gateway(&[]);
    assert_eq!(admin_request(&gateway, get("/log-level", &[])).await.text(), "info\n");
    let put = async |level: &str| admin_request(&gateway, request(Method::PUT, "/log-level", &[], level)).await;
    assert_eq!(put("debug").await.text(), "debug\n");
    gateway.wait_for_log(&["log level changed", "debug"]).await;
    assert_eq!(admin_request(&gateway, get("/log-level", &[])).await.text(), "debug\n");
    assert_eq!(admin_request(&gateway, get("/status.json", &[])).await.json()["logLevel"], "debug");
    // A failed handshake is told at this level.
    let mut socket = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
    socket.write_all(b"hello\r\n\r\n").await.unwrap();
    let _ = socket.read_to_end(&mut Vec::new()).await;
    gateway.wait_for_log(&["DEBUG", "TLS handshake failed"]).await;
    eventually("the failure to be counted", async || {
        (metric_value(&gateway, "apiserver_tls_handshake_errors_total").await == Some(1.0)).then_some(())
    })
    .await;
    assert_eq!(put("4").await.status, 200);
    let bad = put("loud").await;
    assert_eq!(bad.status, 400);
    assert!(bad.text().contains("loud"), "{}", bad.text());
    assert_eq!(put(&"x".repeat(10_000)).await.status, 400);
    assert_eq!(admin_request(&gateway, get("/log-level", &[])).await.text(), "4\n");
    assert_eq!(admin_request(&gateway, request(Method::POST, "/log-level", &[], "info")).await.status, 405);
}

#[tokio::test(flavor = "multi_thread")]
async fn admin_listener_rejects_foreign_host() {
    let environment = TestEnvironment::new();
    let gateway = environment.start_gateway(&[]);
    for host in [
        "evil.example.com",
        "evil.example.com:6480",
        "192.0.2.1",
        "127.0.0.1.evil.example.com",
        "localhost@evil",
        "2130706433",
    ] {
        for path in ["/", "/metrics", "/status.json", "/livez", "/debug/connections"] {
            let response = admin_request(&gateway, get(path, &[("host", host)])).await;
            assert_eq!(response.status, 403, "{host}{path}");
        }
        assert_eq!(
            admin_request(&gateway, request(Method::PUT, "/log-level", &[("host", host)], "trace")).await.status,
            403
        );
    }
    for host in ["localhost", "localhost:1", "127.0.0.1", "[::1]:6480"] {
        assert_eq!(admin_request(&gateway, get("/status.json", &[("host", host)])).await.status, 200, "{host}");
    }
    assert_eq!(admin_request(&gateway, get("/nothing", &[])).await.status, 404);
    let page = admin_request(&gateway, get("/", &[])).await;
    assert!(page.headers.contains_key("content-security-policy") && page.text().contains("<html"), "{}", page.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn admin_listener_refuses_malformed_requests_with_a_reason() {
    let environment = TestEnvironment::new();
    let gateway = environment.start_gateway(&[]);
    let long = format!("/metrics?a={}", "b".repeat(20_000));
    for (path, status, part) in [
        ("/metrics?a=\u{7}", "400", "byte 0x07 at position 11 is not allowed"),
        (&long, "431", "the header has more than 8192 bytes"),
    ] {
        let mut socket = tokio::net::TcpStream::connect(gateway.admin).await.unwrap();
        socket.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).await.unwrap();
        let mut response = Vec::new();
        tokio::time::timeout(TEST_TIMEOUT, socket.read_to_end(&mut response)).await.unwrap().unwrap();
        let response = String::from_utf8(response).unwrap();
        assert_eq!(&response[9..12], status, "{response}");
        assert!(response.contains(part), "{response}");
        gateway.wait_for_log(&["admin listener refused a malformed request", part]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn status_shows_apiservices_watches_and_connections() {
    let environment = TestEnvironment::new();
    let (backend, mut writers) = start_scripted_backend(&environment, BackendSettings::default()).await;
    environment.register_apiservice("things.example.com", "v1", &[&backend]);
    let gateway = environment.start_gateway(&[]);
    let client = connect_as_jane(&environment, &gateway).await;
    let http1 = Client::http1(&environment, &gateway, Some(&environment.issue_user("john", &[]))).await;
    assert_eq!(http1.get("/version").await.status, 200);
    let watching = client.clone();
    let watching = tokio::spawn(async move { watching.send(get(&format!("{THINGS}?watch=1"), &[])).await.unwrap() });
    let writer = writers.recv().await.unwrap();
    writer.send(data_frame("{}\n")).unwrap();
    let mut body = watching.await.unwrap().into_body();
    next_chunk(&mut body).await.unwrap().unwrap();

    let report = eventually("the watch and its connection to show", async || {
        let report = admin_request(&gateway, get("/status.json", &[])).await.json();
        let service = &report["apiservices"][0];
        let shown =
            service["watches"] == 1 && service["endpoints"][0]["connections"] == 1 && service["available"] == true;
        shown.then_some(report)
    })
    .await;
    assert_eq!((&report["phase"], &report["notReady"]), (&value!("serving"), &value!([])));
    assert_eq!(report["listen"], value!([format!("https://{}", gateway.address)]));
    let service = &report["apiservices"][0];
    assert_eq!((&service["name"], &service["circuit"]), (&value!("v1.things.example.com"), &value!("closed")));
    let discovery = &service["discovery"];
    assert_eq!((&discovery["state"], &discovery["problem"]), (&value!("current"), &value!("")), "{discovery}");
    assert!(discovery["last"].as_str().unwrap().ends_with('Z') && discovery["resources"] == 1, "{discovery}");
    assert_eq!(
        service["endpoints"][0],
        value!({
            "address": backend.address.to_string(),
            "state": "ready",
            "reason": "",
            "connections": 1,
            "inflight": 1,
            // The watch's answer is counted when it is over.
            "latencyMicros": null,
        })
    );
    let certificates = report["certificates"].as_array().unwrap();
    let named = certificates.iter().find(|one| one["file"].as_str().unwrap().ends_with("serving.crt")).unwrap();
    assert!(named["notAfter"].as_str().unwrap().ends_with('Z'), "{named}");
    assert_eq!(named["names"], value!(["localhost", "127.0.0.1"]));

    let status = |form: &[&str]| {
        let mut arguments = vec!["status".to_owned(), format!("--admin-address={}", gateway.admin)];
        arguments.extend(form.iter().map(|one| (*one).to_owned()));
        let output = run_narthex(&arguments);
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
        let wide = form == ["-o", "wide"];
        assert_eq!(text.contains(&backend.address.to_string()), wide, "{text}");
        let head = text.lines().find(|line| line.starts_with("NAME")).unwrap();
        assert_eq!(head.contains("CIRCUIT   DISCOVERY"), wide, "{text}");
        assert_eq!(line.contains("   closed    ") && line.contains("s ago   "), wide, "{text}");
    }
    let read: Value = serde_json::from_str(&status(&["-o", "json"])).unwrap();
    assert_eq!(read["apiservices"][0]["name"], "v1.things.example.com");
    let text = status(&["-o", "yaml"]);
    assert!(text.contains("name: v1.things.example.com") && text.contains("phase: serving"), "{text}");
    let page = admin_request(&gateway, get("/", &[])).await.text();
    assert!(page.contains("v1.things.example.com") && page.contains(&backend.address.to_string()), "{page}");

    let connections = admin_request(&gateway, get("/debug/connections", &[])).await.json();
    let all: Vec<&Value> =
        connections.as_array().unwrap().iter().flat_map(|worker| worker["connections"].as_array().unwrap()).collect();
    assert_eq!(all.len(), 2, "{connections}");
    let http2 = all.iter().find(|one| one["protocol"] == "HTTP/2.0").unwrap();
    assert_eq!(http2["active"], 1, "{http2}");
    let http1 = all.iter().find(|one| one["protocol"] == "HTTP/1.1").unwrap();
    assert_eq!((&http1["active"], &http1["served"]), (&value!(0), &value!(1)));
    let tasks = admin_request(&gateway, get("/debug/tasks", &[])).await.json();
    assert_eq!(tasks["phase"], "serving");

    drop(writer);
    let anonymous = run_narthex(&["status".to_owned(), "--admin-address=127.0.0.1:9".to_owned()]);
    assert_eq!(anonymous.status.code(), Some(1));
    assert!(anonymous.stdout.is_empty() && String::from_utf8_lossy(&anonymous.stderr).contains("Is Narthex running?"));
}

/// When each backend last said what it serves, and why it did not since.
#[tokio::test(flavor = "multi_thread")]
async fn status_shows_last_discovery_result() {
    let environment = TestEnvironment::new();
    let (well, output_text) = tokio::sync::watch::channel(true);
    let backend = Backend::start(
        &environment,
        BackendSettings { handles_probes: true, ..BackendSettings::default() },
        move |request| {
            let well = *output_text.borrow();
            async move {
                match api_resource_list(request.uri().path()) {
                    Some(resources) if well => json_response(200, &resources),
                    Some(_) => json_response(
                        200,
                        r#"{"kind":"APIResourceList","groupVersion":"other.example.com/v1","resources":[]}"#,
                    ),
                    None => json_response(404, "{}"),
                }
            }
        },
    )
    .await;
    environment.register_apiservice("things.example.com", "v1", &[&backend]);
    // One of which nothing can be known.
    environment.write_registry("nowhere.yaml", &environment.apiservice_manifests("nowhere.example.com", "v1", &[], ""));
    let gateway = environment.start_gateway(&[]);
    let discovery = async |wanted: &dyn Fn(&Value) -> bool| {
        eventually("what is said of discovery", async || {
            let report = admin_request(&gateway, get("/status.json", &[])).await.json();
            let all = report["apiservices"].as_array().unwrap();
            let one = all.iter().find(|one| one["name"] == "v1.things.example.com")?;
            wanted(&one["discovery"]).then_some(report.clone())
        })
        .await
    };
    let of = |report: &Value, name: &str| {
        let all = report["apiservices"].as_array().unwrap();
        all.iter().find(|one| one["name"] == name).unwrap()["discovery"].clone()
    };
    let before = discovery(&|now| now["state"] == "current").await;
    let nowhere = of(&before, "v1.nowhere.example.com");
    assert!(nowhere["last"] == "" && nowhere["state"] != "current", "{nowhere}");
    well.send(false).unwrap();
    // A backend that is registered otherwise is asked anew, and says what is not believed.
    let text = environment.apiservice_manifests("things.example.com", "v1", &[backend.address], "");
    environment.write_registry(
        "v1.things.example.com.yaml",
        &text.replace("port: 443}\n---", "port: 8443}\n---").replace("port: 443, targetPort", "port: 8443, targetPort"),
    );
    let stale = discovery(&|now| now["state"] == "stale" && now["problem"] != "").await;
    let stale = of(&stale, "v1.things.example.com");
    assert!(stale["problem"].as_str().unwrap().contains("the response is not for things.example.com/v1"), "{stale}");
    let output = run_narthex(&["status".to_owned(), format!("--admin-address={}", gateway.admin), "-owide".to_owned()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("stale, never") && text.contains(": discovery: the response is not for"), "{text}");
    let page = admin_request(&gateway, get("/", &[])).await.text();
    assert!(page.contains("stale, never"), "{page}");
}

/// What is odd but no mistake is said once: at the start, not in every place that takes an interest in the file.
#[tokio::test(flavor = "multi_thread")]
async fn log_warns_once_about_world_readable_files() {
    let environment = TestEnvironment::new();
    let allow_all = Permissions::from_mode(0o644);
    std::fs::write(environment.path("tokens.csv"), "token,jane,1\n").unwrap();
    let names = ["serving.key", "front-proxy.key", "tokens.csv"];
    for name in names {
        std::fs::set_permissions(environment.path(name), allow_all.clone()).unwrap();
    }
    let tokens = format!("--token-auth-file={}", environment.path("tokens.csv").display());
    let mut gateway = environment.start_gateway(&[&tokens]);
    let warned = |output_text: &[String]| {
        let warnings = output_text.iter().filter(|line| line.contains("world-readable")).cloned();
        let warnings: Vec<String> = warnings.collect();
        for name in names {
            assert_eq!(warnings.iter().filter(|line| line.contains(name)).count(), 1, "{name}: {warnings:#?}");
        }
        assert_eq!(warnings.len(), names.len(), "{warnings:#?}");
    };
    // The registry watcher starts last: once it has noticed a change, all tasks run.
    environment.write_registry("broken.yaml", "kind: [\n");
    gateway.wait_for_log(&["registry:", "broken.yaml"]).await;
    gateway.signal("TERM");
    assert_eq!(gateway.wait_for_exit().await.code(), Some(0));
    warned(&gateway.log_lines());
    std::fs::remove_file(environment.path("registry/broken.yaml")).unwrap();
    let check = run_narthex(
        &[vec!["check".to_owned(), "gateway".to_owned()], environment.gateway_arguments(&[&tokens])].concat(),
    );
    warned(&String::from_utf8(check.stderr).unwrap().lines().map(str::to_owned).collect::<Vec<_>>());
}

/// The mistakes of one command line, from the role and from its check.
fn run_refused(environment: &TestEnvironment, more: &[&str]) -> String {
    let arguments = environment.gateway_arguments(more);
    let run = |words: &[&str]| {
        let mut line: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        line.extend(arguments.iter().cloned());
        let output = run_narthex(&line);
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
async fn configuration_errors_all_reported_before_listening() {
    let environment = TestEnvironment::new();
    let good =
        run_narthex(&[vec!["check".to_owned(), "gateway".to_owned()], environment.gateway_arguments(&[])].concat());
    assert_eq!(
        (good.status.code(), String::from_utf8_lossy(&good.stdout).into_owned()),
        (Some(0), "gateway: no mistakes found\n".to_owned())
    );
    assert!(!environment.path("data").exists(), "a check starts nothing and makes nothing");

    // The port is in use as well; the check must report more than that.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("--secure-port={}", taken.local_addr().unwrap().port());
    std::fs::write(environment.path("serving.key"), environment.read_file("front-proxy.key")).unwrap();
    std::fs::write(environment.path("client-ca.crt"), "no certificate\n").unwrap();
    environment.write_registry("a.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n");
    environment.write_registry("b.yaml", "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {name: v1.wrong}\nspec: {group: b.example.com, version: v1, groupPriorityMinimum: 0, versionPriority: 1}\n");
    let secret = Permissions::from_mode(0o600);
    std::fs::write(environment.path("tokens.csv"), "only-a-token\n").unwrap();
    std::fs::set_permissions(environment.path("tokens.csv"), secret).unwrap();
    let tokens = format!("--token-auth-file={}", environment.path("tokens.csv").display());
    let text = run_refused(&environment, &[&port, &tokens]);
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
    // Nor may what a flag says keep back the rest.
    let line = [vec!["gateway".to_owned()], environment.gateway_arguments(&["--max-requests-inflight=many"])].concat();
    let output = run_narthex(&line);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("--max-requests-inflight") && text.contains("a.yaml"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn port_in_use_reported_with_flag() {
    let environment = TestEnvironment::new();
    let gateway = environment.start_gateway(&[]);
    let start = |more: &[&str]| {
        let output = run_narthex(&[vec!["gateway".to_owned()], environment.gateway_arguments(more)].concat());
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
    let ready = async || (admin_request(&gateway, get("/readyz", &[])).await.text() == "ok").then_some(());
    eventually("readiness", ready).await;
    let wrong = run_narthex(&["gateway".to_owned(), "--secure-prot=1".to_owned()]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&wrong.stderr).contains("--secure-port"),
        "{}",
        String::from_utf8_lossy(&wrong.stderr)
    );
}
