//! A page that `narthex proxy` serves, in a real browser: it shows what is in the cluster, and the pages of others cannot.

use std::path::Path;

use serde_json::json;

use super::TrialWith;
use super::proxy::Door;
use crate::world::{Browser, Kubectl, World, eventually, kubectl_run};

pub(super) const WITH_KUBECTL: &[(&str, TrialWith)] = &[
    ("proxy: a page in a browser shows live objects", page),
    ("proxy: pages of others get nothing out of it, and nothing done", others),
];

fn page(world: &World, kubectl: &Kubectl) {
    let Some(program) = Browser::installed() else { return };
    let scratch = world.scratch(&format!("browser-page-{}", kubectl.version));
    let namespace = format!("browser-{}", kubectl.version.replace('.', "-"));
    let admin = &world.cluster.admin_kubeconfig;
    let run = |words: &[&str]| {
        let mut command = kubectl.command(admin, &scratch);
        command.args(words);
        let output = kubectl_run(command, "");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    run(&["create", "namespace", &namespace]);
    let inside = ["--namespace", &namespace];
    run(&[&["create", "configmap", "before"][..], &inside].concat());

    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/page");
    for prefix in ["", "/k8s"] {
        let (www, api) = (format!("--www={}", example.display()), format!("--api-prefix={prefix}/"));
        let door = Door::narthex(admin, &scratch, &[&www, &api]);
        let folder = world.scratch(&format!("browser-{}{}", kubectl.version, prefix.replace('/', "-")));
        let mut browser = Browser::start(&program, "elsewhere.example", &folder);
        let path = format!("{prefix}/api/v1/namespaces/{namespace}/configmaps");
        browser.open(&format!("http://localhost:{}/static/?path={path}", door.port));
        browser.wait_for_text("what was there", |text| text.contains("before") && text.contains("live"));
        run(&[&["create", "configmap", "afterwards"][..], &inside].concat());
        browser.wait_for_text("what has come", |text| text.contains("before") && text.contains("afterwards"));
        run(&[&["delete", "configmap", "afterwards"][..], &inside].concat());
        browser.wait_for_text("what has gone", |text| text.contains("before") && !text.contains("afterwards"));
        // What the API server refuses is said on the page.
        browser.open(&format!("http://localhost:{}/static/?path={prefix}/api/v1/nothing", door.port));
        browser.wait_for_text("the refusal", |text| text.contains("404: "));
    }
}

fn others(world: &World, kubectl: &Kubectl) {
    let Some(program) = Browser::installed() else { return };
    let scratch = world.scratch(&format!("browser-others-{}", kubectl.version));
    let admin = &world.cluster.admin_kubeconfig;
    let www = scratch.join("www");
    std::fs::create_dir_all(&www).unwrap();
    std::fs::write(www.join("attack.html"), "<!doctype html><p>hello</p>").unwrap();
    let files = format!("--www={}", www.display());
    let door = Door::narthex(admin, &scratch, &[&files, "--access-log=all"]);
    // A server of somebody else's, by a name that leads to this machine.
    let theirs =
        Door::narthex(admin, &scratch, &[&files, r"--accept-hosts=^evil\.example$", "--accept-paths=^/static/"]);
    let mut browser = Browser::start(&program, "evil.example", &scratch);
    let (ours, port) = (format!("http://127.0.0.1:{}", door.port), door.port);
    browser.open(&format!("http://evil.example:{}/static/attack.html", theirs.port));
    browser.wait_for_text("their page", |text| text == "hello");

    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "attacked"}}).to_string();
    let body = serde_json::to_string(&namespace).unwrap();
    let quiet = "{mode: 'no-cors', method: 'POST', headers: {'Content-Type': 'text/plain'}";
    for (what, attack) in [
        ("fetch", format!("fetch('{ours}/api/fetch').then(() => 'read', () => 'kept out')")),
        ("blind", format!("fetch('{ours}/api/blind', {{mode: 'no-cors'}}).then(() => 'sent')")),
        ("create", format!("fetch('{ours}/api/v1/namespaces?create', {quiet}, body: {body}}}).then(() => 'sent')")),
        (
            "picture",
            format!(
                "new Promise((done) => {{ const it = new Image(); it.onload = it.onerror = () => done('sent'); it.src = '{ours}/api/picture'; }})"
            ),
        ),
        (
            "script",
            format!(
                "new Promise((done) => {{ const it = document.createElement('script'); it.onload = it.onerror = () => done('sent'); it.src = '{ours}/static/script'; document.body.append(it); }})"
            ),
        ),
        (
            "websocket",
            format!(
                "new Promise((done) => {{ const it = new WebSocket('ws://127.0.0.1:{port}/api/websocket'); it.onopen = () => done('open'); it.onerror = () => done('kept out'); }})"
            ),
        ),
        // The name leads to this machine now: to the browser this is their own server.
        ("rebound", format!("fetch('http://evil.example:{port}/api/rebound', {{mode: 'no-cors'}}).then(() => 'sent')")),
        (
            "sandbox",
            format!(
                "new Promise((done) => {{ const it = document.createElement('iframe'); it.sandbox = 'allow-scripts allow-forms'; it.onload = () => done('sent'); it.srcdoc = `<form method=post action={ours}/api/sandbox></form><script>document.forms[0].submit()</` + 'script>'; document.body.append(it); }})"
            ),
        ),
    ] {
        let came = browser.evaluate(&attack).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(came == "sent" || came == "kept out", "{what}: {came}");
        let path = if what == "create" { "/api/v1/namespaces".to_owned() } else { format!("/{what}") };
        let seen = eventually(what, || {
            let log = door.process.log();
            let lines = log.lines().filter(|line| line.contains("access client=") && line.contains(&path));
            let lines: Vec<_> = lines.map(str::to_owned).collect();
            if lines.is_empty() { Err(log) } else { Ok(lines) }
        });
        assert!(seen.iter().all(|line| line.contains("status=403")), "{what}: {seen:?}");
    }
    // To read by the name that was rebound is as much in vain, and so is to look at what is served.
    browser.open(&format!("http://evil.example:{port}/static/attack.html"));
    browser.wait_for_text("the refusal", |text| text == "Forbidden");
    let answer = door.ask("GET /api/v1/namespaces/attacked HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert_eq!(answer.status, 404, "{}", answer.body);
    // A link on their page may be followed: their page does not see what it leads to.
    browser.open(&format!("http://evil.example:{}/static/attack.html", theirs.port));
    browser.wait_for_text("their page", |text| text == "hello");
    let follow = format!("location.href = '{ours}/static/attack.html?followed'; 1");
    browser.evaluate(&follow).unwrap();
    eventually("the link to be followed", || match browser.evaluate("location.href")? {
        place if place == format!("{ours}/static/attack.html?followed") => Ok(()),
        place => Err(place.to_string()),
    });
    browser.wait_for_text("our page", |text| text == "hello");
}
