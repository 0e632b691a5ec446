//! The list of recent refusals and errors on the admin listener.

use serde_json::Value;

use crate::support::backend::{Backend, BackendSettings, json_response as response};
use crate::support::client::{Client, admin_request, get};
use crate::support::fixtures::{TestEnvironment, eventually, run_narthex};
use crate::support::gateway_fixture::{GatewayFixture, THINGS};

async fn refusals(fixture: &GatewayFixture) -> Vec<Value> {
    let report = admin_request(&fixture.gateway, get("/status.json", &[])).await.json();
    report["refusals"].as_array().unwrap().clone()
}

#[tokio::test]
async fn refusal_log_has_user_verb_status_cause_and_audit_id_and_no_secret() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::http2(), |request| {
        let fails = request.uri().path().ends_with("/broken");
        async move { if fails { response(502, "{}") } else { response(200, "{}") } }
    })
    .await;
    let policy = environment.path("policy.yaml");
    let text = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: r}\nrules:\n\
                - {apiGroups: [things.example.com], resources: [things], verbs: [get]}\n---\n\
                apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: r}\n\
                roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: r}\n\
                subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: jane}]\n";
    std::fs::write(&policy, text).unwrap();
    let flag = format!("--authorization-policy-file={}", policy.display());
    let flags = ["--authorization-mode=Static", flag.as_str(), "--access-log=off"];
    let fixture = GatewayFixture::with_flags(environment, &[&backend], &[], &flags);
    let jane = fixture.http2().await;

    assert_eq!(jane.get(&format!("{THINGS}/good?token=s3cret")).await.status, 200);
    assert_eq!(refusals(&fixture).await, Vec::<Value>::new(), "what succeeds leaves nothing");

    for _ in 0..3 {
        jane.get(&format!("{THINGS}?token=s3cret")).await.assert_failure(403, "Forbidden");
    }
    let last = jane.get(&format!("{THINGS}?token=s3cret")).await;
    let audit_id = last.headers["audit-id"].to_str().unwrap().to_owned();
    assert_eq!(jane.get(&format!("{THINGS}/broken")).await.status, 502);
    let anonymous = Client::http1(&fixture.environment, &fixture.gateway, None).await;
    let read = anonymous.send_and_read(get(THINGS, &[("authorization", "Bearer s3cret-token")])).await;
    read.assert_failure(401, "Unauthorized");

    let all = refusals(&fixture).await;
    let short: Vec<_> =
        all.iter().map(|one| (one["user"].as_str().unwrap(), one["status"].as_u64().unwrap())).collect();
    assert_eq!(short, [("", 401), ("jane", 502), ("jane", 403)], "the newest first");
    let forbidden = &all[2];
    assert_eq!((&forbidden["verb"], &forbidden["path"]), (&"LIST".into(), &THINGS.into()));
    assert_eq!((&forbidden["reason"], &forbidden["count"]), (&"Forbidden".into(), &4.into()));
    assert_eq!(forbidden["auditId"], audit_id.as_str());
    assert!(forbidden["time"].as_str().unwrap().ends_with('Z') && forbidden["client"] == "127.0.0.1", "{forbidden}");
    assert!(!Value::from(all.clone()).to_string().contains("s3cret"), "{all:?}");

    let address = format!("--admin-address={}", fixture.gateway.admin);
    let show = |form: &str| {
        let output = run_narthex(&["status".to_owned(), "refusals".to_owned(), address.clone(), format!("-o{form}")]);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let table = show("table");
    assert!(table.starts_with("AGE ") && table.contains("Forbidden") && table.contains(&audit_id), "{table}");
    let read: Value = serde_json::from_str(&show("json")).unwrap();
    assert!(read["refusals"].as_array().unwrap().len() == 3 && read.get("apiservices").is_none(), "{read}");
    // Plain HTTP where TLS is spoken.
    let mut socket = tokio::net::TcpStream::connect(fixture.gateway.address).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut socket, b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    eventually("the failed handshake to be counted", async || {
        let report = admin_request(&fixture.gateway, get("/status.json", &[])).await.json();
        (report["handshakeFailures"]["plain_http"] == 1).then_some(())
    })
    .await;
    let table = show("table");
    assert!(table.contains("FAILED HANDSHAKES") && table.contains("plain_http"), "{table}");
    let page = admin_request(&fixture.gateway, get("/", &[])).await.text();
    assert!(page.contains("plain_http 1"), "{page}");
    assert!(page.contains("Refused and failed requests") && page.contains(&audit_id), "{page}");
}
