//! Reported state of endpoints and APIServices whose backends refuse connections or do not answer.

use std::net::SocketAddr;

use serde_json::Value;

use crate::support::backend::{Backend, BackendSettings, json_response};
use crate::support::client::{Client, admin_request, get};
use crate::support::fixtures::{GatewayProcess, TestEnvironment, eventually};
use crate::support::gateway_fixture::{GatewayFixture, THINGS};
use crate::support::raw_backend::{self, RawConnection};

/// The APIService `name` in the status report.
async fn apiservice_status(gateway: &GatewayProcess, name: &str) -> Value {
    let report = admin_request(gateway, get("/status.json", &[])).await.json();
    report["apiservices"].as_array().unwrap().iter().find(|one| one["name"] == name).cloned().unwrap_or_default()
}

async fn wait_for_availability(gateway: &GatewayProcess, name: &str, wanted: bool) -> Value {
    eventually(&format!("{name} to be available: {wanted}"), async || {
        let status = apiservice_status(gateway, name).await;
        (status["available"] == wanted).then_some(status)
    })
    .await
}

/// A port where nothing listens.
async fn closed_port() -> SocketAddr {
    tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn apiservice_unavailable_while_idle_when_endpoint_port_is_closed() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::default(), async |_| json_response(200, "{}")).await;
    environment.register_apiservice("things.example.com", "v1", &[&backend]);
    let gateway = environment.start_gateway(&[]);
    let before = wait_for_availability(&gateway, "v1.things.example.com", true).await;
    assert_eq!((&before["message"], &before["endpoints"][0]["state"]), (&"all checks passed".into(), &"ready".into()));
    let dead = closed_port().await;
    environment.write_registry(
        "v1.things.example.com.yaml",
        &environment.apiservice_manifests("things.example.com", "v1", &[dead], ""),
    );
    // By turns it would take more than a minute, which is longer than this waits.
    let after = wait_for_availability(&gateway, "v1.things.example.com", false).await;
    assert_eq!(after["reason"], "FailedDiscoveryCheck");
    let endpoint = &after["endpoints"][0];
    assert_eq!((&endpoint["state"], &endpoint["reason"]), (&"unreachable".into(), &"ConnectionRefused".into()));
    assert_eq!(endpoint["address"], dead.to_string());
    environment.register_apiservice("things.example.com", "v1", &[&backend]);
    // The prober may see new endpoints before the report does.
    let back = eventually("the first endpoint to be back", async || {
        let status = apiservice_status(&gateway, "v1.things.example.com").await;
        let is_back = status["available"] == true && status["endpoints"][0]["address"] == backend.address.to_string();
        is_back.then_some(status)
    })
    .await;
    assert_eq!(back["endpoints"][0]["state"], "ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoint_shared_by_two_apiservices_unreachable_for_both() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(
        &environment,
        BackendSettings { handles_probes: true, ..BackendSettings::default() },
        async |_| json_response(200, "{}"),
    )
    .await;
    for version in ["v1", "v2"] {
        let text = environment.apiservice_manifests("things.example.com", version, &[backend.address], "");
        // Both are versions of one server.
        let text = text.replace(&format!("things-{version}"), "things-v1");
        let text = if version == "v1" { text } else { text.split("---").next().unwrap().to_owned() };
        environment.write_registry(&format!("{version}.yaml"), &text);
    }
    let gateway = environment.start_gateway(&[]);
    let names = ["v1.things.example.com", "v2.things.example.com"];
    for name in names {
        wait_for_availability(&gateway, name, true).await;
    }
    let jane = Client::http1(&environment, &gateway, Some(&environment.issue_user("jane", &[]))).await;
    let address = backend.stop().await;
    // Requests for one of them find it out.
    let states = eventually("both to be unavailable", async || {
        jane.get(THINGS).await;
        let states = [apiservice_status(&gateway, names[0]).await, apiservice_status(&gateway, names[1]).await];
        states.iter().all(|one| one["available"] == false).then_some(states)
    })
    .await;
    for status in states {
        let endpoint = &status["endpoints"][0];
        let shown = [&endpoint["address"], &endpoint["state"], &endpoint["reason"]];
        assert_eq!(shown, [&address.to_string().into(), &"unreachable".into(), &Value::from("ConnectionRefused")]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn circuit_open_shown_in_condition_of_available_apiservice() {
    let environment = TestEnvironment::new();
    let backend =
        raw_backend::http1(&environment, BackendSettings::http1(), |talk: RawConnection| async move { drop(talk) })
            .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    let jane = fixture.http1().await;
    let status = eventually("the circuit to open", async || {
        for _ in 0..5 {
            jane.get(THINGS).await;
        }
        let status = apiservice_status(&fixture.gateway, "v1.things.example.com").await;
        (status["circuit"] == "open" && status["message"] != "all checks passed").then_some(status)
    })
    .await;
    assert_eq!(status["available"], true);
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("ConnectionBroken") && message.contains("circuit open"), "{message}");
    let output = fixture.gateway.wait_for_log(&["circuit open"]).await;
    assert!(output.contains("\"ConnectionBroken\"") && !output.contains("Passed"), "{output}");
}
