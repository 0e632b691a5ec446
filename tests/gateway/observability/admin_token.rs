//! The admin listener with a token.

use base64::Engine;
use http::Method;

use crate::support::client::{admin_request, get, request};
use crate::support::fixtures::{GatewayProcess, TestEnvironment, eventually, run_narthex};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

fn run_status(gateway: &GatewayProcess, more: &[&str]) -> (Option<i32>, String) {
    let mut arguments = vec!["status".to_owned(), format!("--admin-address={}", gateway.admin)];
    arguments.extend(more.iter().map(|one| (*one).to_owned()));
    let output = run_narthex(&arguments);
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[tokio::test]
async fn admin_token_required_on_loopback_except_metrics_and_health() {
    let environment = TestEnvironment::new();
    let file = environment.path("admin.token");
    std::fs::write(&file, format!("{TOKEN}\n")).unwrap();
    let flag = format!("--admin-token-file={}", file.display());
    let gateway = environment.start_gateway(&[&flag]);
    let bearer = |token: &str| format!("Bearer {token}");
    let basic = |token: &str| {
        format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(format!("operator:{token}")))
    };
    for path in ["/", "/status.json", "/log-level", "/debug/connections", "/debug/tasks", "/nothing"] {
        for headers in [&[][..], &[("authorization", bearer("wrong"))], &[("authorization", basic("wrong"))]] {
            let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
            let read = admin_request(&gateway, get(path, &headers)).await;
            assert_eq!(read.status, 401, "{path} {headers:?}");
            assert!(read.headers["www-authenticate"].to_str().unwrap().starts_with("Basic realm="), "{path}");
            assert!(!read.text().contains(TOKEN) && !read.text().contains("version"), "{}", read.text());
        }
        for good in [bearer(TOKEN), basic(TOKEN)] {
            let read = admin_request(&gateway, get(path, &[("authorization", &good)])).await;
            assert_eq!(read.status, if path == "/nothing" { 404 } else { 200 }, "{path}");
        }
    }
    assert_eq!(admin_request(&gateway, get("/events", &[])).await.status, 401);
    let put = |headers: &[(&str, &str)]| request(Method::PUT, "/log-level", headers, "debug");
    assert_eq!(admin_request(&gateway, put(&[])).await.status, 401);
    assert_eq!(admin_request(&gateway, put(&[("authorization", &bearer(TOKEN))])).await.status, 200);
    for path in ["/metrics", "/livez", "/readyz/ping", "/healthz"] {
        assert_eq!(admin_request(&gateway, get(path, &[])).await.status, 200, "{path}");
    }

    let (code, text) = run_status(&gateway, &[]);
    assert!(code == Some(1) && text.contains("requires a token: set --admin-token-file"), "{text}");
    assert_eq!(run_status(&gateway, &[&flag]).0, Some(0));
    // Followed on disk.
    let other = "another-token-of-the-operator";
    std::fs::write(&file, other).unwrap();
    eventually("the new token to count", async || {
        let read = admin_request(&gateway, get("/status.json", &[("authorization", &bearer(other))])).await;
        (read.status == 200).then_some(())
    })
    .await;
    assert_eq!(admin_request(&gateway, get("/", &[("authorization", &bearer(TOKEN))])).await.status, 401);
    assert!(gateway.log_lines().iter().all(|line| !line.contains(TOKEN) && !line.contains(other)));
}

#[test]
fn admin_token_too_short_refused_at_start() {
    let environment = TestEnvironment::new();
    std::fs::write(environment.path("admin.token"), "secret\n").unwrap();
    let flag = format!("--admin-token-file={}", environment.path("admin.token").display());
    let arguments = [vec!["check".to_owned(), "gateway".to_owned()], environment.gateway_arguments(&[&flag])].concat();
    let output = run_narthex(&arguments);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("admin.token: has 6 characters; a token of at least 16 is needed"), "{text}");
}
