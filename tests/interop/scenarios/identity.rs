//! Identity as seen by the extension server.

use super::{Scenario, TestFn};
use crate::environment::{Session, Target, TestEnvironment, curl};

pub(super) const SCENARIOS: &[(&str, Scenario)] =
    &[("identity: allowed requests", jane_may), ("identity: denied requests", jane_may_not)];

pub(super) const TESTS: &[(&str, TestFn)] = &[
    ("identity: user, uid and groups forwarded", identity_forwarded),
    ("identity: forged front-proxy headers ignored", forged_headers),
    ("identity: 401 for an untrusted certificate", untrusted_certificate),
];

pub(super) const GATEWAY_TESTS: &[(&str, TestFn)] = &[
    ("identity: 401 without a certificate", no_certificate),
    ("identity: 403 for impersonation without permission", impersonation),
];

const FLUNDERS: &str = "/apis/wardle.example.com/v1alpha1/flunders";

fn jane_may(session: &mut Session<'_>) {
    session.kubectl("get flunders").ok();
    session.kubectl("get fischers").ok();
}

fn jane_may_not(session: &mut Session<'_>) {
    let fischer = |name: &str| {
        let metadata = serde_json::json!({"name": name});
        serde_json::json!({"apiVersion": "wardle.example.com/v1alpha1", "kind": "Fischer", "metadata": metadata})
    };
    session.with_input("create -f -", &fischer("gone-fishing")).expect_error(
        "User \"jane\" cannot create resource \"fischers\" in API group \"wardle.example.com\" at the cluster scope",
    );
    session.kubectl("delete fischers --all").ok();
    session.kubectl("delete fischer any").expect_error("User \"jane\" cannot delete resource \"fischers\"");
    let name = format!("fischer-{}", session.namespace);
    let admin = session.environment.cluster.admin();
    session.as_user(admin, |admin| {
        admin.with_input("create -f -", &fischer(&name)).ok();
    });
    session
        .kubectl(&format!("label fischer {name} a=b"))
        .expect_error("User \"jane\" cannot patch resource \"fischers\"");
    session.as_user(admin, |admin| {
        admin.kubectl(&format!("delete fischer {name}")).ok();
    });
}

/// A unique path, found again in the audit log; jane may read it.
fn unique_path() -> String {
    format!("{FLUNDERS}?fieldSelector=metadata.name%3Dmark-{:08x}", fastrand::u32(..))
}

fn audit_marker(path: &str) -> &str {
    path.rsplit("%3D").next().unwrap()
}

fn identity_forwarded(environment: &TestEnvironment) {
    let mut users = Vec::new();
    for target in environment.targets() {
        let path = unique_path();
        let response = environment.endpoint(target).get(Some(environment.cluster.jane()), &path).unwrap();
        assert_eq!(response.status, 200, "{}", response.text());
        users.push(environment.extension.audit_event(audit_marker(&path))["user"].clone());
    }
    for user in &users {
        assert_jane(user);
        assert_eq!(user["uid"], "jane-uid-1", "{user}");
    }
    // Includes extras: x509 authentication adds the certificate's fingerprint.
    assert!(users.iter().all(|user| *user == users[0]), "direct and through narthex: {users:#?}");
}

fn assert_jane(user: &serde_json::Value) {
    assert_eq!(user["username"], "jane", "{user}");
    assert_eq!(user["groups"], serde_json::json!(["devs", "qa", "system:authenticated"]), "{user}");
}

fn forged_headers(environment: &TestEnvironment) {
    let forgeries: &[&[&str]] = &[
        &["X-Remote-User: admin"],
        &["X-Remote-User: admin", "X-Remote-Group: system:masters", "X-Remote-Uid: 0"],
        &["x-remote-user: admin", "x-remote-group: system:masters"],
        &["X_Remote_User: admin", "X_Remote_Group: system:masters"],
        &["X-Remote_User: admin", "X_Remote-Group: system:masters"],
        &["X-Remote-Group: system:masters"],
        &["X-Remote-Extra-Scopes: all", "X_Remote_Extra_Scopes: all"],
        &["X-Remote-User: admin", "Connection: X-Remote-User, X-Remote-Group"],
        &["Connection: X-Remote-User, X-Remote-Group, X-Remote-Uid, close"],
    ];
    for target in environment.targets() {
        for protocol in ["--http1.1", "--http2"] {
            for forgery in forgeries {
                // HTTP/2 has no Connection header; curl would send one, which is a protocol error.
                if protocol == "--http2" && forgery.iter().any(|header| header.starts_with("Connection")) {
                    continue;
                }
                let path = unique_path();
                let mut args = vec![protocol];
                args.extend(forgery.iter().flat_map(|header| ["-H", header]));
                let (status, body) = curl(environment.endpoint(target), Some(environment.cluster.jane()), &path, &args);
                assert_eq!(status, 200, "{target:?} {forgery:?}: {body}");
                let user = &environment.extension.audit_event(audit_marker(&path))["user"];
                assert_jane(user);
                let extras = user["extra"].as_object().map(|extra| extra.keys().cloned().collect::<Vec<_>>());
                assert!(
                    extras.iter().flatten().all(|key| key == "authentication.kubernetes.io/credential-id"),
                    "{target:?} {forgery:?}: {user}"
                );
            }
        }
        // A request that only the forged group permits.
        let forged = ["-X", "DELETE", "-H", "X-Remote-User: admin", "-H", "X-Remote-Group: system:masters"];
        let path = "/apis/wardle.example.com/v1alpha1/fischers";
        let (status, body) = curl(environment.endpoint(target), Some(environment.cluster.jane()), path, &forged);
        assert_eq!(status, 403, "{target:?}: {body}");
        assert!(body.contains("User \\\"jane\\\" cannot deletecollection"), "{body}");
    }
}

fn untrusted_certificate(environment: &TestEnvironment) {
    for target in environment.targets() {
        for headers in [&[][..], &["-H", "X-Remote-User: admin", "-H", "X-Remote-Group: system:masters"]] {
            let impostor = &environment.cluster.authorities.impostor;
            let (status, body) = curl(environment.endpoint(target), Some(impostor), FLUNDERS, headers);
            assert_unauthorized(status, &body);
        }
    }
}

fn no_certificate(environment: &TestEnvironment) {
    for headers in [
        &[][..],
        &["-H", "X-Remote-User: admin", "-H", "X-Remote-Group: system:masters"],
        &["-H", "Authorization: Bearer not-a-token"],
    ] {
        for path in [FLUNDERS, "/apis", "/openapi/v3", "/metrics", "/nothing"] {
            let (status, body) = curl(environment.endpoint(Target::Gateway), None, path, headers);
            assert_unauthorized(status, &body);
        }
    }
    let (status, body) = curl(environment.endpoint(Target::Gateway), None, "/readyz", &[]);
    assert_eq!(status, 200, "{body}");
}

fn impersonation(environment: &TestEnvironment) {
    let headers = ["-H", "Impersonate-User: admin"];
    let (status, body) =
        curl(environment.endpoint(Target::Gateway), Some(environment.cluster.admin()), FLUNDERS, &headers);
    assert_eq!(status, 403, "{body}");
    let document: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&document["kind"], &document["reason"]), (&"Status".into(), &"Forbidden".into()), "{body}");
}

fn assert_unauthorized(status: u16, body: &str) {
    assert_eq!(status, 401, "{body}");
    let expected = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "Unauthorized", "reason": "Unauthorized", "code": 401,
    });
    assert_eq!(serde_json::from_str::<serde_json::Value>(body).unwrap(), expected);
}
