//! Tests of the serialization of events.

use super::*;

fn event(facts: AuditedRequest) -> AuditEvent {
    AuditEvent { facts: Arc::new(facts), ..Arc::into_inner(AuditEvent::for_test()).unwrap() }
}

fn text(event: &AuditEvent) -> String {
    let mut out = Vec::new();
    event.write_json(&mut out, true);
    String::from_utf8(out).unwrap()
}

fn value(event: &AuditEvent) -> Value {
    serde_json::from_str(&text(event)).unwrap()
}

fn jane() -> Arc<User> {
    let extra = [("example.com/scopes".to_owned(), vec!["a".to_owned()])].into();
    Arc::new(User { name: "jane".into(), uid: "7".into(), groups: vec!["devs".into()], extra })
}

#[test]
fn audit_event_json_matches_upstream() {
    let mut event = event(AuditedRequest {
        level: AuditLevel::RequestResponse,
        method: Method::POST,
        user: Some(jane()),
        agent: Some(HeaderValue::from_static("kubectl/v1.36.3")),
        received: SystemTime::UNIX_EPOCH + std::time::Duration::from_micros(1_700_000_000_000_001),
        ..AuditedRequest::for_test("/apis/g.example.com/v1/namespaces/x/things?fieldManager=a&dryRun=All")
    });
    event.request = Some(CapturedBody::json(&br#"{"metadata":{"name":"a","uid":"u","resourceVersion":"3"}}"#[..]));
    event.response = Some(CapturedBody::json(&br#"{"kind":"Thing"}"#[..]));
    event.outcome = Some(AuditOutcome::Code(201));
    event.decision = Some(AuditDecision::Allow(Some("RBAC: allowed by \"x\"".into())));
    assert_eq!(
        text(&event),
        "{\"kind\":\"Event\",\"apiVersion\":\"audit.k8s.io/v1\",\"level\":\"RequestResponse\",\"auditID\":\"b7f4\",\
         \"stage\":\"ResponseComplete\",\"requestURI\":\"/apis/g.example.com/v1/namespaces/x/things?fieldManager=a&dryRun=All\",\
         \"verb\":\"create\",\"user\":{\"username\":\"jane\",\"uid\":\"7\",\"groups\":[\"devs\"],\"extra\":{\"example.com/scopes\":[\"a\"]}},\
         \"sourceIPs\":[\"192.0.2.1\"],\"userAgent\":\"kubectl/v1.36.3\",\"objectRef\":{\"resource\":\"things\",\"namespace\":\"x\",\
         \"name\":\"a\",\"uid\":\"u\",\"apiGroup\":\"g.example.com\",\"apiVersion\":\"v1\",\"resourceVersion\":\"3\"},\
         \"responseStatus\":{\"metadata\":{},\"code\":201},\"requestObject\":{\"metadata\":{\"name\":\"a\",\"resourceVersion\":\"3\",\"uid\":\"u\"}},\
         \"responseObject\":{\"kind\":\"Thing\"},\"requestReceivedTimestamp\":\"2023-11-14T22:13:20.000001Z\",\
         \"stageTimestamp\":\"1970-01-01T00:00:00.000000Z\",\"annotations\":{\"authorization.k8s.io/decision\":\"allow\",\
         \"authorization.k8s.io/reason\":\"RBAC: allowed by \\\"x\\\"\"}}"
    );
    let mut inside = Vec::new();
    event.write_json(&mut inside, false);
    assert!(inside.starts_with(b"{\"level\":"));
}

#[test]
fn audit_event_response_status() {
    let mut event = event(AuditedRequest::for_test("/apis/g.example.com/v1/things/a"));
    let mut status = |outcome| {
        event.outcome = outcome;
        value(&event)["responseStatus"].clone()
    };
    assert_eq!(status(None), Value::Null);
    assert_eq!(status(Some(AuditOutcome::Code(404))), json!({"metadata": {}, "code": 404}));
    assert_eq!(
        status(Some(AuditOutcome::Refused(Arc::new(Status::unauthorized())))),
        json!({"metadata": {}, "status": "Failure", "message": "Unauthorized", "reason": "Unauthorized", "code": 401})
    );
    assert_eq!(
        status(Some(AuditOutcome::Refused(Arc::new(Status::object_not_found("g", "things", "a")))))["details"],
        json!({"name": "a", "group": "g", "kind": "things"})
    );
    assert_eq!(
        status(Some(AuditOutcome::ConnectionClosed)),
        json!({"metadata": {}, "status": "Success", "message": "Connection closed early", "code": 200})
    );
    assert_eq!(status(Some(AuditOutcome::Panicked))["reason"], "InternalError");
}

#[test]
fn audit_event_copies_backend_status() {
    let body = br#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"m","reason":"Conflict","details":{"name":"a"},"code":409}"#;
    for (level, object) in
        [(AuditLevel::Metadata, false), (AuditLevel::Request, false), (AuditLevel::RequestResponse, true)]
    {
        let mut event = event(AuditedRequest { level, ..AuditedRequest::for_test("/apis/g.example.com/v1/things/a") });
        event.outcome = Some(AuditOutcome::Code(409));
        event.response = Some(CapturedBody::json(&body[..]));
        let written = value(&event);
        let expected = json!({"metadata": {}, "status": "Failure", "message": "m", "reason": "Conflict", "details": {"name": "a"}, "code": 409});
        assert_eq!(written["responseStatus"], expected);
        assert_eq!(written["responseObject"].is_object(), object);
        // An object that the level does not include is not annotated as omitted.
        event.response = Some(CapturedBody::TooLong);
        assert_eq!(value(&event)["annotations"].is_null(), !object);
    }
}

#[test]
fn audit_event_annotates_omitted_objects() {
    let mut event = event(AuditedRequest {
        level: AuditLevel::RequestResponse,
        ..AuditedRequest::for_test("/apis/g.example.com/v1/things/a")
    });
    event.request = Some(CapturedBody::Unreadable("application/vnd.kubernetes.protobuf".into()));
    event.response = Some(CapturedBody::TooLong);
    let written = value(&event);
    assert_eq!(
        written["annotations"],
        json!({
            "audit.k8s.io/truncated": "true",
            "audit.narthex.dev/request-object": "omitted: cannot convert application/vnd.kubernetes.protobuf to JSON",
        })
    );
    assert!(written.get("requestObject").is_none() && written.get("responseObject").is_none());
    event.request = Some(CapturedBody::json(&b"{"[..]));
    assert_eq!(value(&event)["annotations"]["audit.narthex.dev/request-object"], "omitted: cannot be parsed");
}

#[test]
fn audit_event_of_refusal_has_status_as_response_object() {
    let facts = AuditedRequest { level: AuditLevel::RequestResponse, ..AuditedRequest::for_test("/version") };
    let mut event = event(facts);
    event.outcome = Some(AuditOutcome::Refused(Arc::new(Status::unauthorized())));
    assert_eq!(value(&event)["responseObject"]["kind"], "Status");
}

#[test]
fn audit_event_impersonated_user() {
    let mut event = event(AuditedRequest { user: Some(jane()), ..AuditedRequest::for_test("/version") });
    let other = Arc::new(User { name: "bob".into(), ..User::default() });
    event.impersonated = Some(Arc::new(AuditImpersonation { user: other, constraint: Some("impersonate:user-info") }));
    let written = value(&event);
    assert_eq!(
        (&written["user"]["username"], &written["impersonatedUser"]),
        (&json!("jane"), &json!({"username": "bob"}))
    );
    assert_eq!(written["authenticationMetadata"], json!({"impersonationConstraint": "impersonate:user-info"}));
    let mut line = Vec::new();
    event.write_legacy(&mut line);
    let line = String::from_utf8(line).unwrap();
    assert!(line.contains(r#" as="bob" asgroups="<lookup>" "#), "{line}");
}

#[test]
fn audit_event_is_one_line() {
    let agent = [b"a\"\\\xe9\t".as_slice(), &[b'x'; 2000]].concat();
    let facts = AuditedRequest {
        agent: Some(HeaderValue::from_bytes(&agent).unwrap()),
        ..AuditedRequest::for_test("/version")
    };
    let mut event = event(facts);
    event.request = Some(CapturedBody::json(&b"{\n\"a\":\n\"\\n\"}"[..]));
    let text = text(&event);
    assert!(!text.contains('\n'));
    let written: Value = serde_json::from_str(&text).unwrap();
    let agent = written["userAgent"].as_str().unwrap();
    assert!(agent.starts_with("a\"\\\u{fffd}\txxx") && agent.ends_with("xxx...TRUNCATED"), "{agent}");
}

#[test]
fn audit_event_redacts_query_secrets() {
    for (uri, expected) in [
        ("/a?token=s&b=1", "/a?token=***&b=1"),
        ("/a?x&Access_Token=s=t&password", "/a?x&Access_Token=***&password=***"),
        ("/a?tokens=1&continue=x", "/a?tokens=1&continue=x"),
    ] {
        assert_eq!(AuditedRequest::for_test(uri).redacted_uri(), expected);
    }
}

#[test]
fn audit_event_legacy_format() {
    let mut event =
        event(AuditedRequest { user: Some(jane()), ..AuditedRequest::for_test("/api/v1/namespaces/x/pods?a=1") });
    let mut line = Vec::new();
    event.write_legacy(&mut line);
    assert_eq!(
        String::from_utf8(line).unwrap(),
        "1970-01-01T00:00:00Z AUDIT: id=\"b7f4\" stage=\"ResponseComplete\" ip=\"192.0.2.1\" method=\"list\" user=\"jane\" \
         groups=\"\\\"devs\\\"\" as=\"<self>\" asgroups=\"<lookup>\" user-agent=\"\" namespace=\"x\" \
         uri=\"/api/v1/namespaces/x/pods?a=1\" response=\"200\""
    );
    event.outcome = None;
    let mut line = Vec::new();
    event.write_legacy(&mut line);
    assert!(line.ends_with(b" response=\"<deferred>\""));
}
