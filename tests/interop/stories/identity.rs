//! Who the extension server believes it speaks to.

use super::{Story, Trial};
use crate::world::{Session, Target, World, curl};

pub(super) const STORIES: &[(&str, Story)] = &[("jane may", jane_may), ("jane may not", jane_may_not)];

pub(super) const TRIALS: &[(&str, Trial)] = &[
    ("jane is jane with her groups", jane_is_jane),
    ("a forged front-proxy header is never believed", forged_headers),
    ("an untrusted certificate is 401", untrusted_certificate),
];

pub(super) const THROUGH: &[(&str, Trial)] =
    &[("no certificate is 401", no_certificate), ("impersonation is 403", impersonation)];

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
    session.with_input("create -f -", &fischer("gone-fishing")).refused(
        "User \"jane\" cannot create resource \"fischers\" in API group \"wardle.example.com\" at the cluster scope",
    );
    session.kubectl("delete fischers --all").ok();
    session.kubectl("delete fischer any").refused("User \"jane\" cannot delete resource \"fischers\"");
    let name = format!("fischer-{}", session.namespace);
    let admin = session.world.cluster.admin();
    session.joined_by(admin, |admin| {
        admin.with_input("create -f -", &fischer(&name)).ok();
    });
    session.kubectl(&format!("label fischer {name} a=b")).refused("User \"jane\" cannot patch resource \"fischers\"");
    session.joined_by(admin, |admin| {
        admin.kubectl(&format!("delete fischer {name}")).ok();
    });
}

/// A path the audit log knows apart from all others; jane may read it.
fn marked_path() -> String {
    format!("{FLUNDERS}?fieldSelector=metadata.name%3Dmark-{:08x}", fastrand::u32(..))
}

fn mark_of(path: &str) -> &str {
    path.rsplit("%3D").next().unwrap()
}

fn jane_is_jane(world: &World) {
    let mut users = Vec::new();
    for target in world.targets() {
        let path = marked_path();
        let answer = world.door(target).get(Some(world.cluster.jane()), &path).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        users.push(world.extension.audited(mark_of(&path))["user"].clone());
    }
    for user in &users {
        assert_jane(user);
        assert_eq!(user["uid"], "jane-uid-1", "{user}");
    }
    // Extras too: the credential's fingerprint that x509 authentication adds.
    assert!(users.iter().all(|user| *user == users[0]), "directly, and through narthex: {users:#?}");
}

fn assert_jane(user: &serde_json::Value) {
    assert_eq!(user["username"], "jane", "{user}");
    assert_eq!(user["groups"], serde_json::json!(["devs", "qa", "system:authenticated"]), "{user}");
}

fn forged_headers(world: &World) {
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
    for target in world.targets() {
        for protocol in ["--http1.1", "--http2"] {
            for forgery in forgeries {
                // HTTP/2 knows no Connection header; curl would send one that is an error.
                if protocol == "--http2" && forgery.iter().any(|header| header.starts_with("Connection")) {
                    continue;
                }
                let path = marked_path();
                let mut words = vec![protocol];
                words.extend(forgery.iter().flat_map(|header| ["-H", header]));
                let (status, body) = curl(world.door(target), Some(world.cluster.jane()), &path, &words);
                assert_eq!(status, 200, "{target:?} {forgery:?}: {body}");
                let user = &world.extension.audited(mark_of(&path))["user"];
                assert_jane(user);
                let extras = user["extra"].as_object().map(|extra| extra.keys().cloned().collect::<Vec<_>>());
                assert!(
                    extras.iter().flatten().all(|key| key == "authentication.kubernetes.io/credential-id"),
                    "{target:?} {forgery:?}: {user}"
                );
            }
        }
        // With rights that only the forged group has.
        let forged = ["-X", "DELETE", "-H", "X-Remote-User: admin", "-H", "X-Remote-Group: system:masters"];
        let path = "/apis/wardle.example.com/v1alpha1/fischers";
        let (status, body) = curl(world.door(target), Some(world.cluster.jane()), path, &forged);
        assert_eq!(status, 403, "{target:?}: {body}");
        assert!(body.contains("User \\\"jane\\\" cannot deletecollection"), "{body}");
    }
}

fn untrusted_certificate(world: &World) {
    for target in world.targets() {
        for headers in [&[][..], &["-H", "X-Remote-User: admin", "-H", "X-Remote-Group: system:masters"]] {
            let impostor = &world.cluster.authorities.impostor;
            let (status, body) = curl(world.door(target), Some(impostor), FLUNDERS, headers);
            assert_unauthorized(status, &body);
        }
    }
}

fn no_certificate(world: &World) {
    for headers in [
        &[][..],
        &["-H", "X-Remote-User: admin", "-H", "X-Remote-Group: system:masters"],
        &["-H", "Authorization: Bearer not-a-token"],
    ] {
        for path in [FLUNDERS, "/apis", "/openapi/v3", "/metrics", "/nothing"] {
            let (status, body) = curl(world.door(Target::Through), None, path, headers);
            assert_unauthorized(status, &body);
        }
    }
    let (status, body) = curl(world.door(Target::Through), None, "/readyz", &[]);
    assert_eq!(status, 200, "{body}");
}

fn impersonation(world: &World) {
    let headers = ["-H", "Impersonate-User: admin"];
    let (status, body) = curl(world.door(Target::Through), Some(world.cluster.admin()), FLUNDERS, &headers);
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
