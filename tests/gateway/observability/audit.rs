//! Audit: events and levels, log and webhook backends, and that requests never wait for a backend.

use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};

use http::Method;
use http_body_util::BodyExt;
use serde_json::{Value, json as value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::authz::authorization_config;
use crate::authz::serve_delegation;
use crate::support::backend::{Backend, BackendSettings, data_frame, json_response, start_watch_backend};
use crate::support::client::{Client, admin_request, get, metric_value, next_chunk, request};
use crate::support::fake_review_server::{FakeReviewServer, access_review_reply, failure_reply};
use crate::support::fixtures::{GatewayProcess, TEST_TIMEOUT, TestEnvironment, eventually, run_narthex};
use crate::support::gateway_fixture::{GatewayFixture, THINGS, open_watch};

const POLICY_HEADER: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\n";

/// The whole of every request that is none of health, discovery and the like.
pub(crate) const LOG_ALL_RULES: &str = "rules:\n- {level: RequestResponse, resources: [{group: '*'}]}\n";

/// Writes `write_policy.yaml`.
fn write_policy(environment: &TestEnvironment, text: &str) {
    write_policy_file(environment, "policy.yaml", text);
}

fn write_policy_file(environment: &TestEnvironment, name: &str, text: &str) {
    let path = environment.path(name);
    fs::write(path.with_extension("tmp"), format!("{POLICY_HEADER}{text}")).unwrap();
    fs::rename(path.with_extension("tmp"), path).unwrap();
}

/// The flags that write `audit/audit.log` by `write_policy.yaml`.
fn audit_log_flags(environment: &TestEnvironment) -> [String; 2] {
    [
        format!("--audit-policy-file={}", environment.path("policy.yaml").display()),
        format!("--audit-log-path={}", environment.path("audit/audit.log").display()),
    ]
}

fn start_gateway(environment: &TestEnvironment, flags: &[String]) -> GatewayProcess {
    environment.start_gateway(&flags.iter().map(String::as_str).collect::<Vec<_>>())
}

/// A fixture with a gateway that writes `audit/audit.log` by the policy `text`.
pub(crate) fn start_audited_gateway(
    environment: TestEnvironment,
    backend: &Backend,
    text: &str,
    more: &[&str],
) -> GatewayFixture {
    write_policy(&environment, text);
    let flags = audit_log_flags(&environment);
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(more.iter().copied()).collect();
    GatewayFixture::with_flags(environment, &[backend], &[], &flags)
}

fn read_events(environment: &TestEnvironment) -> Vec<Value> {
    let text = fs::read_to_string(environment.path("audit/audit.log")).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// The events of the request whose URI ends with `end`, once there are so many.
pub(crate) async fn wait_for_events(environment: &TestEnvironment, end: &str, count: usize) -> Vec<Value> {
    eventually(&format!("{count} events of {end}"), async || {
        let ends = |event: &Value| event["requestURI"].as_str().unwrap().ends_with(end);
        let found: Vec<Value> = read_events(environment).into_iter().filter(ends).collect();
        assert!(found.len() <= count, "{found:#?}");
        (found.len() == count).then_some(found)
    })
    .await
}

fn stages(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["stage"].as_str().unwrap()).collect()
}

/// Answers what was asked with what it was asked for, a failure to what is called `broken`.
async fn start_echo_backend(environment: &TestEnvironment) -> Backend {
    Backend::start(environment, BackendSettings::default(), async |request| {
        let (head, body) = request.into_parts();
        let sent = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        match head.uri.path() {
            path if path.ends_with("/broken") => json_response(
                409,
                r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no","reason":"Conflict","code":409}"#,
            ),
            _ if sent.is_empty() => json_response(200, r#"{"kind":"Thing","metadata":{"name":"a","managedFields":[{}]}}"#),
            _ => json_response(201, &String::from_utf8_lossy(&sent)),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_request_has_received_and_complete_stages() {
    let environment = TestEnvironment::new();
    let backend = start_echo_backend(&environment).await;
    let setup = start_audited_gateway(environment, &backend, LOG_ALL_RULES, &[]);
    for (client, name) in setup.both_protocols().await.iter().zip(["one", "two"]) {
        let headers = [("user-agent", "kubectl/v1.36.3"), ("x-forwarded-for", "198.51.100.7"), ("audit-id", name)];
        let path = format!("{THINGS}/{name}?fieldManager=x&token=s3cret");
        assert_eq!(client.send_and_read(get(&path, &headers)).await.status, 200);
        let events = wait_for_events(&setup.environment, &format!("/{name}?fieldManager=x&token=***"), 2).await;
        assert_eq!(stages(&events), ["RequestReceived", "ResponseComplete"]);
        let mut last = events[1].clone();
        for time in ["requestReceivedTimestamp", "stageTimestamp"] {
            let text = last.as_object_mut().unwrap().remove(time).unwrap();
            let text = text.as_str().unwrap().to_owned();
            assert!(text.len() == "2026-11-21T06:00:00.000000Z".len() && text.ends_with('Z'), "{text}");
        }
        // Which certificate it was.
        assert!(last["user"].as_object_mut().unwrap().remove("extra").unwrap().is_object());
        assert_eq!(
            last,
            value!({
                "kind": "Event",
                "apiVersion": "audit.k8s.io/v1",
                "level": "RequestResponse",
                "auditID": name,
                "stage": "ResponseComplete",
                "requestURI": format!("{THINGS}/{name}?fieldManager=x&token=***"),
                "verb": "get",
                "user": {"username": "jane", "groups": ["devs", "system:authenticated"]},
                "sourceIPs": ["198.51.100.7", "127.0.0.1"],
                "userAgent": "kubectl/v1.36.3",
                "objectRef": {"resource": "things", "namespace": "default", "name": name,
                    "apiGroup": "things.example.com", "apiVersion": "v1"},
                "responseStatus": {"metadata": {}, "code": 200},
                "responseObject": {"kind": "Thing", "metadata": {"name": "a", "managedFields": [{}]}},
                "annotations": {"authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": ""},
            })
        );
        let first = &events[0];
        assert_eq!(first["requestReceivedTimestamp"], first["stageTimestamp"]);
        assert_eq!(first["requestReceivedTimestamp"], events[1]["requestReceivedTimestamp"]);
        for absent in ["responseStatus", "responseObject", "annotations"] {
            assert!(first.get(absent).is_none(), "{first}");
        }
    }
    assert_eq!(metric_value(&setup.gateway, "apiserver_audit_event_total").await, Some(4.0));
    assert_eq!(metric_value(&setup.gateway, "apiserver_audit_level_total{level=\"RequestResponse\"}").await, Some(2.0));
    assert_eq!(metric_value(&setup.gateway, "apiserver_audit_requests_rejected_total").await, Some(0.0));
    let mode = fs::metadata(setup.environment.path("audit/audit.log")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_objects_written_according_to_level() {
    let environment = TestEnvironment::new();
    let backend = start_echo_backend(&environment).await;
    let rules = "omitStages: [RequestReceived]\nrules:\n\
                 - {level: Metadata, resources: [{group: things.example.com, resources: [things], resourceNames: [met, broken]}]}\n\
                 - {level: Request, verbs: [update], omitManagedFields: true}\n- {level: RequestResponse}\n";
    let setup = start_audited_gateway(environment, &backend, rules, &[]);
    let client = setup.http2().await;
    let object = value!({"kind": "Thing", "metadata": {"name": "made", "uid": "u-1", "managedFields": [{"a": 1}]}});
    let send = async |method: Method, name: &str, kind: &str, body: &str| {
        let headers = [("content-type", kind)];
        client.send_and_read(request(method, &format!("{THINGS}{name}"), &headers, body)).await;
    };
    // Its name is in the object only.
    send(Method::POST, "", "application/json", &object.to_string()).await;
    let made = wait_for_events(&setup.environment, "/things", 1).await.remove(0);
    assert_eq!((&made["requestObject"], &made["responseObject"]), (&object, &object));
    assert_eq!((&made["objectRef"]["name"], &made["objectRef"]["uid"]), (&value!("made"), &value!("u-1")));
    assert_eq!(made["responseStatus"], value!({"metadata": {}, "code": 201}));

    send(Method::PUT, "/put", "application/yaml", "kind: Thing\nmetadata: {name: put, managedFields: [{}]}\n").await;
    let put = wait_for_events(&setup.environment, "/put", 1).await.remove(0);
    assert_eq!(put["requestObject"], value!({"kind": "Thing", "metadata": {"name": "put"}}));
    assert!(put.get("responseObject").is_none(), "{put}");

    send(Method::PUT, "/met", "application/json", &object.to_string()).await;
    let met = wait_for_events(&setup.environment, "/met", 1).await.remove(0);
    assert!(met.get("requestObject").is_none() && met.get("responseObject").is_none(), "{met}");

    // A failure is told in the backend's words, also where its object is not written.
    send(Method::GET, "/broken", "", "").await;
    let broken = wait_for_events(&setup.environment, "/broken", 1).await.remove(0);
    assert_eq!(
        broken["responseStatus"],
        value!({"metadata": {}, "status": "Failure", "message": "no", "reason": "Conflict", "code": 409})
    );

    // What cannot be made JSON, or is too large, is missed and said to be.
    send(Method::PATCH, "/pb", "application/vnd.kubernetes.protobuf", "k8s\0").await;
    let annotations = wait_for_events(&setup.environment, "/pb", 1).await.remove(0)["annotations"].take();
    assert_eq!(
        annotations["audit.narthex.dev/request-object"],
        "omitted: cannot convert application/vnd.kubernetes.protobuf to JSON"
    );
    let large = value!({"large": "x".repeat(1 << 20)}).to_string();
    send(Method::PATCH, "/large", "application/merge-patch+json", &large).await;
    let event = wait_for_events(&setup.environment, "/large", 1).await.remove(0);
    assert_eq!(event["annotations"]["audit.k8s.io/truncated"], "true");
    assert!(event.get("requestObject").is_none() && event["responseStatus"]["code"] == 201, "{event}");
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_denied_and_unauthenticated_requests_as_upstream() {
    let environment = TestEnvironment::new();
    let backend = start_echo_backend(&environment).await;
    let setup = start_audited_gateway(environment, &backend, LOG_ALL_RULES, &["--authorization-mode=AlwaysDeny"]);
    let jane = setup.http2().await;
    let anonymous = Client::http1(&setup.environment, &setup.gateway, None).await;
    jane.get(&format!("{THINGS}/denied")).await.assert_failure(403, "Forbidden");
    jane.get(&format!("{THINGS}?watch=1&a=denied")).await.assert_failure(403, "Forbidden");
    anonymous.get(&format!("{THINGS}/unknown")).await.assert_failure(401, "Unauthorized");

    let denied = wait_for_events(&setup.environment, "/denied", 2).await;
    assert_eq!(stages(&denied), ["RequestReceived", "ResponseComplete"]);
    let annotations = value!({
        "authorization.k8s.io/decision": "forbid",
        "authorization.k8s.io/reason": "Everything is forbidden.",
    });
    assert_eq!(denied[1]["annotations"], annotations);
    let message = "things.things.example.com \"denied\" is forbidden: User \"jane\" cannot get resource \"things\" in API \
                   group \"things.example.com\" in the namespace \"default\": Everything is forbidden.";
    assert_eq!(
        denied[1]["responseStatus"],
        value!({"metadata": {}, "status": "Failure", "message": message, "reason": "Forbidden", "code": 403,
            "details": {"name": "denied", "group": "things.example.com", "kind": "things"}})
    );
    assert_eq!(denied[1]["responseObject"]["kind"], "Status");

    let watching = wait_for_events(&setup.environment, "a=denied", 3).await;
    assert_eq!(stages(&watching), ["RequestReceived", "ResponseStarted", "ResponseComplete"]);
    assert!(watching[1..].iter().all(|event| event["responseStatus"]["code"] == 403), "{watching:#?}");

    // Not authenticated: one event without a user.
    let unknown = wait_for_events(&setup.environment, "/unknown", 1).await.remove(0);
    assert_eq!((&unknown["stage"], &unknown["user"]), (&value!("ResponseStarted"), &value!({})));
    assert_eq!(unknown["responseStatus"]["code"], 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_watch_has_response_started_and_complete_stages() {
    let environment = TestEnvironment::new();
    let (backend, writers) = start_watch_backend(&environment, BackendSettings::default()).await;
    let setup = start_audited_gateway(environment, &backend, LOG_ALL_RULES, &[]);
    let client = setup.http2().await;
    let mut body = open_watch(&client).await;
    let events = wait_for_events(&setup.environment, "?watch=1", 2).await;
    assert_eq!(stages(&events), ["RequestReceived", "ResponseStarted"]);
    let writer = writers.lock().unwrap().pop().unwrap();
    writer.send(data_frame("second\n")).unwrap();
    next_chunk(&mut body).await.unwrap().unwrap();
    drop(writer);
    assert!(next_chunk(&mut body).await.is_none());
    let events = wait_for_events(&setup.environment, "?watch=1", 3).await;
    assert_eq!(stages(&events)[2], "ResponseComplete");
    assert_eq!((&events[2]["verb"], &events[2]["responseStatus"]["code"]), (&value!("watch"), &value!(200)));
    // Never a body, whatever the level.
    assert!(events.iter().all(|event| event.get("responseObject").is_none()), "{events:#?}");

    // One that the client leaves.
    drop(open_watch(&client).await);
    let left = eventually("the end of the second watch", async || {
        events_of_stage(&setup.environment, "ResponseComplete").into_iter().nth(1)
    })
    .await;
    assert_eq!(left["annotations"]["audit.narthex.dev/end"], "client-gone", "{left}");
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_impersonated_user_and_local_responses_recorded() {
    let environment = TestEnvironment::new();
    let backend = start_echo_backend(&environment).await;
    let rbac = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: none}\nrules: []\n";
    fs::write(environment.path("rbac.yaml"), rbac).unwrap();
    let flag = format!("--authorization-policy-file={}", environment.path("rbac.yaml").display());
    let setup = start_audited_gateway(environment, &backend, LOG_ALL_RULES, &["--authorization-mode=Static", &flag]);
    let root = setup.environment.issue_user("root", &["system:masters"]);
    let root = Client::http2(&setup.environment, &setup.gateway, Some(&root)).await;
    let as_bob = [("impersonate-user", "bob"), ("impersonate-group", "friends")];
    root.send_and_read(get(&format!("{THINGS}/one"), &as_bob)).await.assert_failure(403, "Forbidden");
    let events = wait_for_events(&setup.environment, "/one", 2).await;
    assert!(events[0].get("impersonatedUser").is_none());
    assert_eq!(events[1]["user"]["username"], "root");
    let bob = value!({"username": "bob", "groups": ["friends", "system:authenticated"]});
    assert_eq!(events[1]["impersonatedUser"], bob);
    assert_eq!(events[1]["annotations"]["authorization.k8s.io/decision"], "forbid");

    let review = value!({"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1"});
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let headers = [("content-type", "application/json")];
    assert_eq!(root.send_and_read(request(Method::POST, path, &headers, &review.to_string())).await.status, 201);
    let event = wait_for_events(&setup.environment, "/selfsubjectreviews", 2).await.remove(1);
    assert_eq!(event["requestObject"], review);
    assert_eq!(event["responseObject"]["status"]["userInfo"]["username"], "root");
}

fn events_of_stage(environment: &TestEnvironment, fixture: &str) -> Vec<Value> {
    read_events(environment).into_iter().filter(|event| event["stage"] == fixture).collect()
}

/// As the union of authorizers in `k8s.io/apiserver/pkg/authorization/union`: the deciding authorizer gives the
/// reason, and without a decision all reasons are joined.
#[tokio::test(flavor = "multi_thread")]
async fn audit_authorization_reason_from_deciding_authorizer() {
    let environment = TestEnvironment::new();
    let (first, last) = (FakeReviewServer::start(&environment).await, FakeReviewServer::start(&environment).await);
    first.set_behavior(|question| match question["spec"]["user"].as_str() {
        Some("ann") => access_review_reply(value!({"allowed": true, "reason": "a friend"})),
        Some("eve") => access_review_reply(value!({"allowed": false, "denied": true, "reason": "never eve"})),
        Some("fay") => access_review_reply(value!({"allowed": true, "denied": true, "reason": "both"})),
        _ => access_review_reply(value!({"allowed": false, "reason": "first does not know"})),
    });
    last.set_behavior(|question| match question["spec"]["user"].as_str() {
        Some("gus") => failure_reply(403, "Forbidden"),
        _ => access_review_reply(value!({"allowed": false, "reason": "last does not know"})),
    });
    let rbac = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: reader}\n\
                rules: [{apiGroups: ['*'], resources: ['*'], verbs: [get]}]\n---\n\
                apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: devs}\n\
                roleRef: {kind: ClusterRole, name: reader}\nsubjects: [{kind: Group, name: devs}]\n";
    fs::write(environment.path("rbac.yaml"), rbac).unwrap();
    let chain = [
        authorization_config::webhook_entry("first", &first.write_kubeconfig(&environment, "first", ""), &value!({})),
        authorization_config::rbac_entry(),
        authorization_config::webhook_entry(
            "last",
            &last.write_kubeconfig(&environment, "last", ""),
            &value!({"failurePolicy": "Deny"}),
        ),
    ];
    authorization_config::write_configuration(&environment.path("chain.yaml"), &chain);
    let flags = [
        format!("--authorization-config={}", environment.path("chain.yaml").display()),
        format!("--authorization-policy-file={}", environment.path("rbac.yaml").display()),
    ];
    let backend = start_echo_backend(&environment).await;
    let rules = "omitStages: [RequestReceived]\nrules:\n- {level: Metadata}\n";
    let setup = start_audited_gateway(environment, &backend, rules, &flags.each_ref().map(String::as_str));

    let by_role = r#"RBAC: allowed by ClusterRoleBinding "devs" of ClusterRole "reader" to Group "devs""#;
    for (name, groups, code, decision, reason) in [
        ("ann", &[][..], 200, value!("allow"), "a friend"),
        ("bob", &["devs"], 200, value!("allow"), by_role),
        ("eve", &["devs"], 403, value!("forbid"), "never eve"),
        ("dan", &["ops"], 403, value!("forbid"), "first does not know\nlast does not know"),
        // Kubernetes' filter says no more than that when it could not be found out.
        ("fay", &["devs"], 500, Value::Null, "internal error"),
        ("gus", &["ops"], 500, Value::Null, "internal error"),
        ("root", &["system:masters"], 200, value!("allow"), ""),
    ] {
        let client =
            Client::http2(&setup.environment, &setup.gateway, Some(&setup.environment.issue_user(name, groups))).await;
        // What is remembered has the same reason.
        for time in ["once", "again"] {
            let path = format!("{THINGS}/{name}-{time}");
            assert_eq!(client.get(&path).await.status, code, "{name}");
            let event = wait_for_events(&setup.environment, &path, 1).await.remove(0);
            let annotations = &event["annotations"];
            assert_eq!(annotations["authorization.k8s.io/decision"], decision, "{name} {annotations}");
            assert_eq!(annotations["authorization.k8s.io/reason"], reason, "{name}");
        }
    }
}

/// A TokenReview holds a token. kube-apiserver writes it at level `Request`, as any object, so policies leave it at
/// `Metadata`: the sample does.
#[tokio::test(flavor = "multi_thread")]
async fn audit_delegation_requests_recorded_by_policy() {
    let environment = TestEnvironment::new();
    write_policy_file(&environment, "whole.yaml", "omitStages: [RequestReceived]\nrules:\n- {level: Request}\n");
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/audit/policy.yaml");
    let whole = environment.path("whole.yaml").display().to_string();
    let token = serve_delegation::review_object("TokenReview", &value!({"token": "s3cret"}));
    let attributes = value!({"verb": "get", "path": "/metrics"});
    let access = value!({"user": "jane", "nonResourceAttributes": attributes});
    let access = serve_delegation::review_object("SubjectAccessReview", &access);
    for (policy, objects) in [(sample, false), (&*whole, true)] {
        let flags = [format!("--audit-policy-file={policy}"), audit_log_flags(&environment)[1].clone()];
        let _ = fs::remove_dir_all(environment.path("audit"));
        let gateway = serve_delegation::start_gateway(&environment, &flags.each_ref().map(String::as_str));
        let wardle = serve_delegation::connect_as_wardle(&environment, &gateway).await;
        let config_map = format!("{}/{}", serve_delegation::CONFIG_MAPS, serve_delegation::CONFIG_MAP_NAME);
        assert_eq!(wardle.get(&config_map).await.status, 200);
        for (path, question) in [(serve_delegation::TOKEN_REVIEWS, &token), (serve_delegation::ACCESS_REVIEWS, &access)]
        {
            assert_eq!(serve_delegation::post(&wardle, path, question).await.status, 201);
            let event = wait_for_events(&environment, path, 1).await.remove(0);
            assert_eq!((&event["verb"], &event["user"]["username"]), (&value!("create"), &value!("wardle")));
            assert_eq!(event["responseStatus"], value!({"metadata": {}, "code": 201}));
            assert_eq!(event["annotations"]["authorization.k8s.io/decision"], "allow");
            let mut object = if objects { question.clone() } else { Value::Null };
            if let Some(token) = object.pointer_mut("/spec/token") {
                *token = value!("***");
            }
            assert_eq!((&event["requestObject"], &event["responseObject"]), (&object, &Value::Null));
        }
        let event = wait_for_events(&environment, &config_map, 1).await.remove(0);
        assert_eq!(event["objectRef"]["name"], serve_delegation::CONFIG_MAP_NAME);
        assert!(!fs::read_to_string(environment.path("audit/audit.log")).unwrap().contains("s3cret"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_tunnel_recorded_as_long_running_response() {
    let environment = TestEnvironment::new();
    let settings = BackendSettings::http1();
    let backend = Backend::start_raw(&environment, settings, async |mut stream| {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let Ok(byte) = stream.read_u8().await else { return };
            head.push(byte);
        }
        if head.starts_with(b"GET /apis/things.example.com/v1/namespaces") {
            let switch = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n";
            stream.write_all(switch.as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
            return;
        }
        // Probes and discovery.
        let response =
            r#"{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"things.example.com/v1","resources":[]}"#;
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            response.len()
        );
        let _ = stream.write_all(format!("{head}{response}").as_bytes()).await;
        let _ = stream.shutdown().await;
    })
    .await;
    let setup = start_audited_gateway(environment, &backend, LOG_ALL_RULES, &[]);
    let mut stream = setup.connect("http/1.1").await;
    let request = format!(
        "GET {THINGS}/one/exec?command=sh HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    let events = wait_for_events(&setup.environment, "exec?command=sh", 2).await;
    assert_eq!(stages(&events), ["RequestReceived", "ResponseStarted"]);
    assert_eq!(events[1]["responseStatus"]["code"], 101);
    drop(stream);
    let events = wait_for_events(&setup.environment, "exec?command=sh", 3).await;
    assert_eq!(
        (&events[2]["stage"], &events[2]["objectRef"]["subresource"]),
        (&value!("ResponseComplete"), &value!("exec"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_policy_rules_applied_and_reloaded() {
    let environment = TestEnvironment::new();
    let backend = start_echo_backend(&environment).await;
    let rules = "omitStages: [RequestReceived]\nrules:\n- {level: None, users: [jane]}\n- {level: Metadata}\n";
    let setup = start_audited_gateway(environment, &backend, rules, &[]);
    let jane = setup.http2().await;
    let bob = Client::http2(&setup.environment, &setup.gateway, Some(&setup.environment.issue_user("bob", &[]))).await;
    jane.get(&format!("{THINGS}/unheard")).await;
    bob.get(&format!("{THINGS}/heard")).await;
    assert_eq!(stages(&wait_for_events(&setup.environment, "/heard", 1).await), ["ResponseComplete"]);
    assert_eq!(metric_value(&setup.gateway, "apiserver_audit_level_total{level=\"None\"}").await, Some(1.0));

    write_policy(&setup.environment, "rules:\n- {level: Everything}\n");
    setup.gateway.wait_for_log(&["audit policy changed and is invalid", "rules[0].level"]).await;
    let problems = async || admin_request(&setup.gateway, get("/status.json", &[])).await.json()["fileProblems"].take();
    let error_text =
        eventually("the status to tell the mistake", async || problems().await[0].as_str().map(str::to_owned));
    assert!(error_text.await.contains("rules[0].level"));
    jane.get(&format!("{THINGS}/unheard")).await;
    write_policy(&setup.environment, "rules:\n- {level: Metadata, omitStages: [ResponseComplete]}\n");
    setup.gateway.wait_for_log(&["audit policy reloaded"]).await;
    eventually("the status to forget it", async || (problems().await == value!([])).then_some(())).await;
    eventually("the new policy to hold", async || {
        jane.get(&format!("{THINGS}/heard/too")).await;
        let found = read_events(&setup.environment)
            .into_iter()
            .find(|event| event["requestURI"] == format!("{THINGS}/heard/too"));
        found.filter(|event| event["stage"] == "RequestReceived")
    })
    .await;
    assert!(
        !read_events(&setup.environment)
            .iter()
            .any(|event| event["requestURI"].as_str().unwrap().ends_with("/unheard"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_log_rotated_by_size_and_old_backups_removed() {
    let environment = TestEnvironment::new();
    let backend = start_echo_backend(&environment).await;
    let flags = ["--audit-log-maxsize=1", "--audit-log-maxbackup=2"];
    let setup = start_audited_gateway(
        environment,
        &backend,
        "omitStages: [RequestReceived]\nrules:\n- {level: Request, verbs: [create]}\n",
        &flags,
    );
    let client = setup.http2().await;
    let body = value!({"filling": "x".repeat(700 << 10)}).to_string();
    for n in 1..=5 {
        let path = format!("{THINGS}?n={n}");
        client.send_and_read(request(Method::POST, &path, &[("content-type", "application/json")], &body)).await;
        wait_for_events(&setup.environment, &format!("?n={n}"), 1).await;
    }
    let mut names: Vec<String> = fs::read_dir(setup.environment.path("audit"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names.len(), 3, "{names:?}");
    assert_eq!(names[2], "audit.log");
    for (name, n) in names.iter().zip([3, 4, 5]) {
        let path = setup.environment.path("audit").join(name);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let event: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        assert_eq!(event["requestURI"], format!("{THINGS}?n={n}"));
    }
}

/// A webhook that does as it is told.
pub(crate) struct AuditWebhook {
    backend: Backend,
    lists: Arc<Mutex<Vec<Value>>>,
}

impl AuditWebhook {
    /// Answers the first lists with these codes and all others with 200; 0 is no answer at all. Its kubeconfig is
    /// `sink.kubeconfig`.
    pub(crate) async fn listen(environment: &TestEnvironment, codes: &[u16]) -> AuditWebhook {
        let lists: Arc<Mutex<Vec<Value>>> = Arc::default();
        let (received_bytes, codes) = (lists.clone(), Arc::new(Mutex::new(VecDeque::from(codes.to_vec()))));
        let settings = BackendSettings { names: vec!["127.0.0.1"], handles_probes: true, ..BackendSettings::default() };
        let backend = Backend::start(environment, settings, move |request| {
            let (received_bytes, codes) = (received_bytes.clone(), codes.clone());
            async move {
                assert_eq!((request.method(), request.uri().path()), (&Method::POST, "/audit/here"));
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let code = codes.lock().unwrap().pop_front().unwrap_or(200);
                if code == 0 {
                    return std::future::pending().await;
                }
                if code == 200 {
                    received_bytes.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
                }
                json_response(code, "{}")
            }
        })
        .await;
        let document = value!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {
                "server": format!("https://{}/audit/here", backend.address),
                "certificate-authority": "backend-ca.crt",
            }}],
            "users": [{"name": "u", "user": {
                "client-certificate": "front-proxy.crt",
                "client-key": "front-proxy.key",
                "token": "of-the-sink",
            }}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        });
        fs::write(environment.path("sink.kubeconfig"), document.to_string()).unwrap();
        AuditWebhook { backend, lists }
    }

    /// The flags that send to it by `write_policy.yaml`.
    pub(crate) fn flags(&self, environment: &TestEnvironment, more: &[&str]) -> Vec<String> {
        let mut flags = vec![
            format!("--audit-policy-file={}", environment.path("policy.yaml").display()),
            format!("--audit-webhook-config-file={}", environment.path("sink.kubeconfig").display()),
        ];
        flags.extend(more.iter().map(|flag| (*flag).to_owned()));
        flags
    }

    /// The paths of the events that came, in their order.
    pub(crate) fn received_paths(&self) -> Vec<String> {
        let lists = self.lists.lock().unwrap();
        let items = lists.iter().flat_map(|list| {
            assert_eq!((&list["kind"], &list["apiVersion"]), (&value!("EventList"), &value!("audit.k8s.io/v1")));
            list["items"].as_array().unwrap()
        });
        items.map(|event| event["requestURI"].as_str().unwrap().to_owned()).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_webhook_batches_events_and_retries_failures() {
    let environment = TestEnvironment::new();
    let backend = start_echo_backend(&environment).await;
    environment.register_apiservice("things.example.com", "v1", &[&backend]);
    write_policy(&environment, "omitStages: [RequestReceived]\nrules:\n- {level: Metadata, users: [jane]}\n");
    let sink = AuditWebhook::listen(&environment, &[503, 500, 404]).await;
    let flags = ["--audit-webhook-batch-max-size=3", "--audit-webhook-initial-backoff=10ms"];
    let gateway = start_gateway(&environment, &sink.flags(&environment, &flags));
    let client = Client::http2(&environment, &gateway, Some(&environment.issue_user("jane", &[]))).await;
    let paths: Vec<String> = (0..3).map(|n| format!("{THINGS}/{n}")).collect();
    for path in &paths {
        assert_eq!(client.get(path).await.status, 200);
    }
    eventually("the batch", async || (sink.received_paths() == paths).then_some(())).await;
    assert_eq!(sink.backend.received().len(), 4);
    assert_eq!(sink.backend.last_request().header_values("authorization"), ["Bearer of-the-sink"]);
    assert_eq!(metric_value(&gateway, "apiserver_audit_error_total{plugin=\"webhook\"}").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_webhook_over_plain_http_on_loopback() {
    let environment = TestEnvironment::new();
    write_policy(&environment, "omitStages: [RequestReceived]\nrules:\n- {level: Metadata}\n");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (received_bytes, mut lists) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let received_bytes = received_bytes.clone();
            let service = hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| {
                let received_bytes = received_bytes.clone();
                async move {
                    let (head, body) = request.into_parts();
                    let list: Value = serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap();
                    received_bytes.send((head, list)).unwrap();
                    Ok::<_, std::convert::Infallible>(json_response(200, ""))
                }
            });
            let connection = hyper::server::conn::http1::Builder::new();
            tokio::spawn(connection.serve_connection(hyper_util::rt::TokioIo::new(socket), service));
        }
    });
    let document = value!({
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{address}/k8s-audit")}}],
        "contexts": [{"name": "x", "context": {"cluster": "c"}}],
        "current-context": "x",
    });
    fs::write(environment.path("sink.kubeconfig"), document.to_string()).unwrap();
    let gateway = start_gateway(
        &environment,
        &[
            audit_log_flags(&environment)[0].clone(),
            format!("--audit-webhook-config-file={}", environment.path("sink.kubeconfig").display()),
            "--audit-webhook-batch-max-wait=1ms".to_owned(),
        ],
    );
    let anonymous = Client::http1(&environment, &gateway, None).await;
    anonymous.get("/livez").await;
    let (head, list) = tokio::time::timeout(TEST_TIMEOUT, lists.recv()).await.unwrap().unwrap();
    assert_eq!(head.uri.path(), "/k8s-audit");
    assert_eq!(head.headers["host"], address.to_string());
    assert_eq!((&list["kind"], &list["items"][0]["requestURI"]), (&value!("EventList"), &value!("/livez")));
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_webhook_partial_batch_sent_at_shutdown() {
    let environment = TestEnvironment::new();
    let backend = start_echo_backend(&environment).await;
    environment.register_apiservice("things.example.com", "v1", &[&backend]);
    write_policy(&environment, "omitStages: [RequestReceived]\nrules:\n- {level: Metadata, users: [jane]}\n");
    let sink = AuditWebhook::listen(&environment, &[]).await;
    let mut gateway = start_gateway(&environment, &sink.flags(&environment, &["--audit-webhook-batch-max-wait=1h"]));
    let client = Client::http2(&environment, &gateway, Some(&environment.issue_user("jane", &[]))).await;
    client.get(THINGS).await;
    drop(client);
    gateway.signal("TERM");
    assert!(gateway.wait_for_exit().await.success());
    assert_eq!(sink.received_paths(), [THINGS]);
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_webhook_hang_does_not_block_requests_and_drops_are_counted() {
    let environment = TestEnvironment::new();
    let backend = start_echo_backend(&environment).await;
    environment.register_apiservice("things.example.com", "v1", &[&backend]);
    write_policy(&environment, "omitStages: [RequestReceived]\nrules:\n- {level: Metadata, users: [jane]}\n");
    let sink = AuditWebhook::listen(&environment, &[0; 100]).await;
    let flags = ["--audit-webhook-batch-max-size=2", "--audit-webhook-batch-buffer-size=10"];
    let mut flags = sink.flags(&environment, &flags);
    flags.push(audit_log_flags(&environment)[1].clone());
    let mut gateway = start_gateway(&environment, &flags);
    let client = Client::http2(&environment, &gateway, Some(&environment.issue_user("jane", &[]))).await;
    for n in 0..50 {
        assert_eq!(client.get(&format!("{THINGS}/{n}")).await.status, 200);
    }
    assert_eq!(metric_value(&gateway, "apiserver_audit_error_total{plugin=\"buffered\"}").await, Some(40.0));
    assert_eq!(metric_value(&gateway, "apiserver_audit_event_total").await, Some(50.0));
    // The log beside it misses nothing.
    eventually("all events in the log", async || (read_events(&environment).len() == 50).then_some(())).await;
    // Nor does the end wait for ever, and says what was lost.
    gateway.signal("TERM");
    assert!(tokio::time::timeout(TEST_TIMEOUT, gateway.wait_for_exit()).await.unwrap().success());
    gateway.wait_for_log(&["audit events lost: not delivered before shutdown", "\"events\":10", "webhook"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_log_to_stdout_in_legacy_text_format() {
    let environment = TestEnvironment::new();
    write_policy(
        &environment,
        "rules:\n- {level: Metadata, nonResourceURLs: [/livez], omitStages: [RequestReceived]}\n",
    );
    let mut flags = environment.gateway_arguments(&["--audit-log-path=-", "--audit-log-format=legacy"]);
    flags.push(audit_log_flags(&environment)[0].clone());
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_narthex"))
        .arg("gateway")
        .args(&flags)
        .env_clear()
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let errors = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    let address = errors.map_while(Result::ok).find_map(|line| {
        let line: Value = serde_json::from_str(&line).ok()?;
        if line["message"] == "serving" { line["address"].as_str()?.parse().ok() } else { None }
    });
    let stream = crate::support::client::connect(&environment, address.unwrap(), None, &["http/1.1"]).await;
    assert_eq!(Client::from_stream(stream, true).await.get("/livez").await.status, 200);
    let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    for words in [" AUDIT: id=\"", "stage=\"ResponseComplete\"", "user=\"<none>\"", "uri=\"/livez\" response=\"200\"\n"]
    {
        assert!(line.contains(words), "{words} in {line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_configuration_errors_reported_before_listening() {
    let environment = TestEnvironment::new();
    write_policy(&environment, "omitStages: [Late]\nrules:\n- {level: All}\n- {level: None, paths: [/]}\n");
    fs::write(environment.path("sink.kubeconfig"), "current-context: x\n").unwrap();
    let mut flags = environment.gateway_arguments(&["--audit-log-format=xml"]);
    flags.extend(audit_log_flags(&environment));
    flags.push(format!("--audit-webhook-config-file={}", environment.path("sink.kubeconfig").display()));
    for command in [&["gateway"][..], &["check", "gateway"]] {
        let line: Vec<String> = command.iter().map(|word| (*word).to_owned()).chain(flags.clone()).collect();
        let output = run_narthex(&line);
        assert_eq!(output.status.code(), Some(1));
        let output_text = String::from_utf8(output.stderr).unwrap();
        for words in [
            "--audit-log-format: \"xml\" is not supported",
            "policy.yaml: omitStages[0]: \"Late\" is not a stage",
            "policy.yaml: rules[0].level: \"All\" is not a level",
            "policy.yaml: rules[1].paths: unknown field",
            "sink.kubeconfig: current-context: there is no single context",
        ] {
            assert!(output_text.contains(words), "{words} in {output_text}");
        }
        assert!(!environment.path("audit").exists());
    }
    // A log that cannot be written.
    write_policy(&environment, "rules:\n- {level: Metadata}\n");
    fs::write(environment.path("audit"), "a file").unwrap();
    let mut line = vec!["gateway".to_owned()];
    line.extend(environment.gateway_arguments(&[]));
    line.extend(audit_log_flags(&environment));
    let output = run_narthex(&line);
    assert_eq!(output.status.code(), Some(1));
    let output_text = String::from_utf8(output.stderr).unwrap();
    assert!(
        output_text.contains("--audit-log-path: ") && output_text.contains("audit.log cannot be written"),
        "{output_text}"
    );
}
