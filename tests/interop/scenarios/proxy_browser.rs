//! `narthex proxy` with a real browser: a page it serves reads the cluster, pages of other origins cannot.

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use super::KubectlTestFn;
use super::proxy::LocalProxy;
use crate::environment::{Browser, Kubectl, TestEnvironment, eventually, kubectl_run, retry};

pub(super) const KUBECTL_TESTS: &[(&str, KubectlTestFn)] = &[
    ("proxy: page in a browser shows live objects", page_shows_objects),
    ("proxy: pages of other origins neither read nor write", cross_origin_pages),
];

fn page_shows_objects(environment: &TestEnvironment, kubectl: &Kubectl) {
    let Some(program) = Browser::installed() else { return };
    let scratch = environment.scratch(&format!("browser-page-{}", kubectl.version));
    let namespace = format!("browser-{}", kubectl.version.replace('.', "-"));
    let admin = &environment.cluster.admin_kubeconfig;
    let run = |args: &[&str]| {
        let mut command = kubectl.command(admin, &scratch);
        command.args(args);
        let output = kubectl_run(command, "");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    run(&["create", "namespace", &namespace]);
    let inside = ["--namespace", &namespace];
    run(&[&["create", "configmap", "before"][..], &inside].concat());

    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/page");
    for prefix in ["", "/k8s"] {
        let (www, api) = (format!("--www={}", example.display()), format!("--api-prefix={prefix}/"));
        let proxy = LocalProxy::narthex(admin, &scratch, &[&www, &api]);
        let folder = environment.scratch(&format!("browser-{}{}", kubectl.version, prefix.replace('/', "-")));
        let mut browser = Browser::start(&program, "elsewhere.example", &folder);
        let path = format!("{prefix}/api/v1/namespaces/{namespace}/configmaps");
        browser.open(&format!("http://localhost:{}/static/?path={path}", proxy.port));
        browser.wait_for_text("existing objects", |text| text.contains("before") && text.contains("live"));
        run(&[&["create", "configmap", "afterwards"][..], &inside].concat());
        browser.wait_for_text("the created object", |text| text.contains("before") && text.contains("afterwards"));
        run(&[&["delete", "configmap", "afterwards"][..], &inside].concat());
        browser.wait_for_text("the deleted object", |text| text.contains("before") && !text.contains("afterwards"));
        // An error of the API server is shown on the page.
        browser.open(&format!("http://localhost:{}/static/?path={prefix}/api/v1/nothing", proxy.port));
        browser.wait_for_text("the 403 page", |text| text.contains("404: "));
    }
}

fn cross_origin_pages(environment: &TestEnvironment, kubectl: &Kubectl) {
    let Some(program) = Browser::installed() else { return };
    let scratch = environment.scratch(&format!("browser-others-{}", kubectl.version));
    let admin = &environment.cluster.admin_kubeconfig;
    let www = scratch.join("www");
    std::fs::create_dir_all(&www).unwrap();
    std::fs::write(www.join("attack.html"), "<!doctype html><p>hello</p>").unwrap();
    let files = format!("--www={}", www.display());
    let proxy = LocalProxy::narthex(admin, &scratch, &[&files, "--access-log=all"]);
    // A server of another origin whose name resolves to this machine.
    let attacker =
        LocalProxy::narthex(admin, &scratch, &[&files, r"--accept-hosts=^evil\.example$", "--accept-paths=^/static/"]);
    let mut browser = Browser::start(&program, "evil.example", &scratch);
    let (proxy_url, port) = (format!("http://127.0.0.1:{}", proxy.port), proxy.port);
    browser.open(&format!("http://evil.example:{}/static/attack.html", attacker.port));
    browser.wait_for_text("the other origin's page", |text| text == "hello");

    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "attacked"}}).to_string();
    let body = serde_json::to_string(&namespace).unwrap();
    let quiet = "{mode: 'no-cors', method: 'POST', headers: {'Content-Type': 'text/plain'}";
    for (what, attack) in [
        ("fetch", format!("fetch('{proxy_url}/api/fetch').then(() => 'read', () => 'kept out')")),
        ("blind", format!("fetch('{proxy_url}/api/blind', {{mode: 'no-cors'}}).then(() => 'sent')")),
        (
            "create",
            format!("fetch('{proxy_url}/api/v1/namespaces?create', {quiet}, body: {body}}}).then(() => 'sent')"),
        ),
        (
            "picture",
            format!(
                "new Promise((done) => {{ const it = new Image(); it.onload = it.onerror = () => done('sent'); it.src = '{proxy_url}/api/picture'; }})"
            ),
        ),
        (
            "script",
            format!(
                "new Promise((done) => {{ const it = document.createElement('script'); it.onload = it.onerror = () => done('sent'); it.src = '{proxy_url}/static/script'; document.body.append(it); }})"
            ),
        ),
        (
            "websocket",
            format!(
                "new Promise((done) => {{ const it = new WebSocket('ws://127.0.0.1:{port}/api/websocket'); it.onopen = () => done('open'); it.onerror = () => done('kept out'); }})"
            ),
        ),
        // DNS rebinding: the name now resolves to the proxy, which the browser takes for the page's own origin.
        ("rebound", format!("fetch('http://evil.example:{port}/api/rebound', {{mode: 'no-cors'}}).then(() => 'sent')")),
        (
            "sandbox",
            format!(
                "new Promise((done) => {{ const it = document.createElement('iframe'); it.sandbox = 'allow-scripts allow-forms'; it.onload = () => done('sent'); it.srcdoc = `<form method=post action={proxy_url}/api/sandbox></form><script>document.forms[0].submit()</` + 'script>'; document.body.append(it); }})"
            ),
        ),
    ] {
        let path = if what == "create" { "/api/v1/namespaces".to_owned() } else { format!("/{what}") };
        // Sent again when it does not arrive: Chromium sometimes fails a fetch before it connects.
        let seen = eventually(what, || {
            let result = browser.evaluate(&attack)?;
            assert!(result == "sent" || result == "kept out", "{what}: {result}");
            retry(Duration::from_secs(5), || {
                let log = proxy.process.log();
                let lines = log.lines().filter(|line| line.contains("access client=") && line.contains(&path));
                let lines: Vec<_> = lines.map(str::to_owned).collect();
                if lines.is_empty() { Err(log) } else { Ok(lines) }
            })
        });
        assert!(seen.iter().all(|line| line.contains("status=403")), "{what}: {seen:?}");
    }
    // Reading responses by the rebound name fails as well, and so do pages of static files.
    browser.open(&format!("http://evil.example:{port}/static/attack.html"));
    browser.wait_for_text("the 403 page", |text| text == "Forbidden");
    let response =
        proxy.ask("GET /api/v1/namespaces/attacked HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert_eq!(response.status, 404, "{}", response.body);
    // A link from another origin may be followed; the linking page cannot read the result.
    browser.open(&format!("http://evil.example:{}/static/attack.html", attacker.port));
    browser.wait_for_text("the other origin's page", |text| text == "hello");
    let follow = format!("location.href = '{proxy_url}/static/attack.html?followed'; 1");
    browser.evaluate(&follow).unwrap();
    eventually("the link to be followed", || match browser.evaluate("location.href")? {
        place if place == format!("{proxy_url}/static/attack.html?followed") => Ok(()),
        place => Err(place.to_string()),
    });
    browser.wait_for_text("the proxy's page", |text| text == "hello");
}
