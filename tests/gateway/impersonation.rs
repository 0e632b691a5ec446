//! Impersonation (`kubectl --as`).

use http::Method;
use serde_json::{Value, json};

use crate::backend::{Backend, Settings, json as answer};
use crate::client::{Client, Read, get, request, sample};
use crate::identity::{identity, raw};
use crate::reviewer::{Reply, Reviewer, access, failure, kindly};
use crate::scene::{Scene, THINGS};
use crate::world::{World, eventually};

/// The sample that we ship, and jane's right to be bob, in the way there always was.
const RIGHTS: &str = "
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: be-bob}
rules:
- {verbs: [impersonate], apiGroups: [''], resources: [users], resourceNames: [bob, 'system:anonymous']}
- {verbs: [impersonate], apiGroups: [''], resources: [groups], resourceNames: [devs, 'system:masters', '']}
- {verbs: [impersonate], apiGroups: [''], resources: [serviceaccounts], resourceNames: [robot]}
- {verbs: [impersonate], apiGroups: [authentication.k8s.io], resources: [uids], resourceNames: [b-1]}
- {verbs: [impersonate], apiGroups: [authentication.k8s.io], resources: [userextras/scopes, userextras/a.b/c]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: be-bob}
roleRef: {kind: ClusterRole, name: be-bob}
subjects: [{kind: User, name: jane}]
";

struct Stage {
    scene: Scene,
    backend: Backend,
}

impl Stage {
    /// Judged by the sample policy and [`RIGHTS`].
    async fn set(settings: Settings, code: u16, more: &[&str]) -> Stage {
        let world = World::new();
        let backend = Backend::start(&world, settings, move |_| async move { answer(code, "{}") }).await;
        let policy = world.path("policy.yaml");
        let sample = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/standalone/policy.yaml"));
        std::fs::write(&policy, format!("{sample}{RIGHTS}")).unwrap();
        let file = format!("--authorization-policy-file={}", policy.display());
        let mut flags = vec!["--authorization-mode=Static", &*file];
        flags.extend(more);
        let scene = Scene::with(world, &[&backend], &[], &flags);
        Stage { scene, backend }
    }

    async fn of(&self, name: &str, groups: &[&str]) -> Client {
        Client::http1(&self.scene.world, &self.scene.gateway, Some(&self.scene.world.user(name, groups))).await
    }

    async fn count(&self, name: &str) -> f64 {
        sample(&self.scene.gateway, name).await.unwrap_or_default()
    }
}

const BOB: &[(&str, &str)] = &[
    ("Impersonate-User", "bob"),
    ("Impersonate-Uid", "b-1"),
    ("Impersonate-Group", "devs"),
    ("Impersonate-Extra-Scopes", "x"),
    ("Impersonate-Extra-a.b%2fC", "y"),
    ("Impersonate-Extra-scopes", "z"),
];

const SEEN: &[&str] = &[
    "x-remote-extra-a.b%2fc: y",
    "x-remote-extra-scopes: x",
    "x-remote-extra-scopes: z",
    "x-remote-group: devs",
    "x-remote-group: system:authenticated",
    "x-remote-uid: b-1",
    "x-remote-user: bob",
];

/// What is no impersonation header but might be taken for one.
const ODD: &[(&str, &str)] = &[
    ("Impersonate_User", "root"),
    ("Impersonate_Group", "system:masters"),
    ("Impersonate.Uid", "0"),
    ("Impersonate-Groups", "system:masters"),
    ("Impersonate-Extra_x", "x"),
    ("X-Remote-User", "root"),
    ("X-Remote-Group", "system:masters"),
    ("X-Remote-Extra-Scopes", "all"),
];

#[tokio::test]
async fn a_backend_sees_whom_they_act_as_and_nothing_of_who_they_are() {
    let stage = Stage::set(Settings::default(), 200, &["--access-log=all"]).await;
    let lines: Vec<(&str, &str)> = BOB.iter().chain(ODD).copied().collect();
    for client in stage.scene.both().await {
        let read = client.ask(get(THINGS, &lines)).await;
        assert_eq!(read.status, 200, "{}", read.text());
        assert_eq!(identity(&stage.backend.last()), SEEN);
    }
    // The record names both.
    stage.scene.gateway.said(&["access", "user=\"jane\" groups=2 as=\"bob\" as_groups=2 verb=LIST"]).await;
    let allowed = "apiserver_impersonation_attempts_total{decision=\"allowed\",mode=\"legacy\"}";
    assert_eq!(stage.count(allowed).await, 2.0);
}

/// As themselves again on the same connection.
#[tokio::test]
async fn odd_spellings_name_nobody_and_go_no_further() {
    let stage = Stage::set(Settings::default(), 200, &[]).await;
    let empty = [("Impersonate-User", ""), ("Impersonate-Uid", "")];
    for client in stage.scene.both().await {
        for lines in [ODD, &empty] {
            client.ask(get(THINGS, BOB)).await;
            let read = client.ask(get(THINGS, lines)).await;
            assert_eq!(read.status, 200, "{}", read.text());
            let seen = stage.backend.last();
            assert_eq!(seen.all("x-remote-user"), ["jane"]);
            assert_eq!(seen.all("x-remote-group"), ["devs", "system:authenticated"]);
            assert!(identity(&seen).iter().all(|line| !line.starts_with("impersonate")), "{seen:?}");
        }
    }
}

#[tokio::test]
async fn upgrades_carry_whom_they_act_as() {
    let stage = Stage::set(Settings::http1(), 418, &[]).await;
    for protocol in ["SPDY/3.1", "websocket"] {
        let mut text = format!(
            "GET {THINGS}/one HTTP/1.1\r\nHost: localhost\r\nUpgrade: {protocol}\r\n\
             Connection: Impersonate-Group, Upgrade, Impersonate-User\r\n"
        );
        for (name, value) in BOB.iter().chain(ODD) {
            text += &format!("{name}: {value}\r\n");
        }
        let answer = raw(&stage.scene.world, &stage.scene.gateway, Some(&stage.scene.jane), &(text + "\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 418 "), "{answer}");
        assert_eq!(identity(&stage.backend.last()), SEEN, "{protocol}");
    }
}

#[tokio::test]
async fn what_makes_no_sense_is_400() {
    let stage = Stage::set(Settings::default(), 200, &[]).await;
    let nobody = |dump: &str| format!("requested &user.DefaultInfo{{{dump}}} without impersonating a user name");
    let cases: Vec<(Vec<(&str, &str)>, String)> = vec![
        (
            vec![("Impersonate-Group", "a"), ("Impersonate-Group", "")],
            nobody(r#"Name:"", UID:"", Groups:[]string{"a", ""}, Extra:map[string][]string(nil)"#),
        ),
        (
            vec![("Impersonate-User", ""), ("Impersonate-Uid", "1")],
            nobody(r#"Name:"", UID:"1", Groups:[]string(nil), Extra:map[string][]string(nil)"#),
        ),
        (
            vec![("Impersonate-Extra-A", "1")],
            nobody(r#"Name:"", UID:"", Groups:[]string(nil), Extra:map[string][]string{"a":[]string{"1"}}"#),
        ),
        (
            vec![("Impersonate-User", ""), ("Impersonate-User", "bob"), ("Impersonate-Group", "a")],
            nobody(r#"Name:"", UID:"", Groups:[]string{"a"}, Extra:map[string][]string(nil)"#),
        ),
    ];
    for client in stage.scene.both().await {
        for (lines, message) in &cases {
            let status = client.ask(get(THINGS, lines)).await.refused(400, "BadRequest");
            let expected = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": message, "reason": "BadRequest", "code": 400});
            assert_eq!(status, expected);
        }
    }
    let mut odd = get(THINGS, &[("Impersonate-User", "bob")]);
    odd.headers_mut().insert("impersonate-group", http::HeaderValue::from_bytes(b"\xff\xfe").unwrap());
    stage.scene.http2().await.ask(odd).await.refused(400, "BadRequest");
    assert!(stage.backend.seen().is_empty());
}

#[tokio::test]
async fn who_may_not_is_told_so_word_for_word() {
    let stage = Stage::set(Settings::default(), 200, &[]).await;
    let jane = stage.scene.http1().await;
    let status = jane.ask(get(&format!("{THINGS}/door"), &[("Impersonate-User", "root")])).await;
    let expected = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "things.things.example.com \"door\" is forbidden: User \"jane\" cannot impersonate-on:user-info:get \
                    resource \"things\" in API group \"things.example.com\" in the namespace \"default\"",
        "reason": "Forbidden", "details": {"name": "door", "group": "things.example.com", "kind": "things"},
        "code": 403,
    });
    assert_eq!(status.refused(403, "Forbidden"), expected);
    // Support may look as a developer, and no more; what the developer may not, neither.
    let sue = stage.of("sue", &["support"]).await;
    let as_jane = [("Impersonate-User", "jane"), ("Impersonate-Group", "devs")];
    assert_eq!(sue.ask(get(THINGS, &as_jane)).await.status, 200);
    assert_eq!(
        identity(&stage.backend.last()),
        ["x-remote-group: devs", "x-remote-group: system:authenticated", "x-remote-user: jane"]
    );
    for (ask, message) in [
        (
            request(Method::POST, THINGS, &as_jane, "{}"),
            "things.things.example.com is forbidden: User \"sue\" cannot impersonate-on:user-info:create resource \
             \"things\" in API group \"things.example.com\" in the namespace \"default\"",
        ),
        (
            get(THINGS, &[as_jane[0], ("Impersonate-Group", "system:masters")]),
            "groups.authentication.k8s.io \"system:masters\" is forbidden: User \"sue\" cannot impersonate:user-info \
             resource \"groups\" in API group \"authentication.k8s.io\" at the cluster scope: impersonating the \
             system:masters group is not allowed",
        ),
        (
            get(THINGS, &[("Impersonate-User", "jane")]),
            "things.things.example.com is forbidden: User \"jane\" cannot list resource \"things\" in API group \
             \"things.example.com\" in the namespace \"default\"",
        ),
    ] {
        assert_eq!(sue.ask(ask).await.refused(403, "Forbidden")["message"], message);
    }
    assert_eq!(stage.backend.seen().len(), 1);
}

#[tokio::test]
async fn groups_that_nobody_brings_in_come_in_no_other_way() {
    let masters = [("Impersonate-User", "bob"), ("Impersonate-Group", "system:masters"), ("Impersonate-Group", "devs")];
    let stage = Stage::set(Settings::default(), 200, &[]).await;
    assert_eq!(
        stage.scene.http1().await.ask(request(Method::PUT, &format!("{THINGS}/x/status"), &masters, "{}")).await.status,
        200
    );
    let stage = Stage::set(Settings::default(), 200, &["--authentication-drop-groups=system:masters,other*"]).await;
    for client in stage.scene.both().await {
        let write = request(Method::PUT, &format!("{THINGS}/x/status"), &masters, "{}");
        client.ask(write).await.refused(403, "Forbidden");
        assert_eq!(client.ask(get(THINGS, &masters)).await.status, 200);
        assert_eq!(stage.backend.last().all("x-remote-group"), ["devs", "system:authenticated"]);
        // Dropped is not the same as not judged.
        client
            .ask(get(THINGS, &[("Impersonate-User", "bob"), ("Impersonate-Group", "others")]))
            .await
            .refused(403, "Forbidden");
    }
}

#[tokio::test]
async fn questions_about_oneself_are_answered_for_whom_they_act_as() {
    let stage = Stage::set(Settings::default(), 200, &[]).await;
    let jane = stage.scene.http1().await;
    let ask = async |group: &str, kind: &str, spec: Value, lines: &[(&str, &str)]| {
        let path = format!("/apis/{group}/v1/{}s", kind.to_lowercase());
        let body = json!({"kind": kind, "apiVersion": format!("{group}/v1"), "spec": spec}).to_string();
        let lines: Vec<_> = lines.iter().copied().chain([("content-type", "application/json")]).collect();
        let read = jane.ask(request(Method::POST, &path, &lines, &body)).await;
        assert_eq!(read.status, 201, "{}", read.text());
        read.json()["status"].clone()
    };
    assert_eq!(
        ask("authentication.k8s.io", "SelfSubjectReview", json!({}), BOB).await,
        json!({"userInfo": {"username": "bob", "uid": "b-1", "groups": ["devs", "system:authenticated"],
            "extra": {"scopes": ["x", "z"], "a.b/c": ["y"]}}})
    );
    let may = json!({"resourceAttributes": {"verb": "list", "group": "things.example.com", "resource": "things"}});
    for (lines, allowed) in [(&[][..], true), (BOB, true), (&BOB[..1], false)] {
        let status = ask("authorization.k8s.io", "SelfSubjectAccessReview", may.clone(), lines).await;
        assert_eq!(status["allowed"], allowed, "{lines:?}");
    }
    let robot = [("Impersonate-User", "system:serviceaccount:robots:robot")];
    let groups = ["system:serviceaccounts", "system:serviceaccounts:robots", "system:authenticated"];
    let user = json!({"userInfo": {"username": robot[0].1, "groups": groups}});
    assert_eq!(ask("authentication.k8s.io", "SelfSubjectReview", json!({}), &robot).await, user);
}

/// Asks a reviewer about everything.
struct Reviewed {
    scene: Scene,
    reviewer: Reviewer,
    backend: Backend,
}

impl Reviewed {
    async fn set(more: &[&str]) -> Reviewed {
        let world = World::new();
        let backend = Backend::start(&world, Settings::http2(), |_| async { answer(200, "{}") }).await;
        let reviewer = Reviewer::start(&world).await;
        let kubeconfig = format!("--authorization-kubeconfig={}", world.path("reviewer.kubeconfig").display());
        let mut flags = vec!["--authorization-mode=Webhook", &*kubeconfig];
        flags.extend(more);
        let scene = Scene::with(world, &[&backend], &[], &flags);
        Reviewed { scene, reviewer, backend }
    }

    /// The questions so far: `verb resource.group/name subresource`, in order.
    fn asked(&self) -> Vec<String> {
        let reviews = self.reviewer.asked("SubjectAccessReview");
        reviews.iter().map(question).collect()
    }
}

fn question(review: &Value) -> String {
    let asked = &review["spec"]["resourceAttributes"];
    let word = |key: &str| asked[key].as_str().unwrap_or_default().to_owned();
    let user = review["spec"]["user"].as_str().unwrap_or_default();
    format!("{user}: {} {}.{} {}/{}", word("verb"), word("resource"), word("group"), word("subresource"), word("name"))
}

#[tokio::test]
async fn a_reviewer_is_asked_what_upstream_asks() {
    let stage = Reviewed::set(&["--authorization-webhook-cache-authorized-ttl=1h"]).await;
    let jane = stage.scene.http2().await;
    for _ in 0..2 {
        let read = jane.ask(get(THINGS, &[("Impersonate-User", "bob"), ("Impersonate-Uid", "7")])).await;
        assert_eq!(read.status, 200, "{}", read.text());
    }
    let mut asked = stage.asked();
    asked[1..3].sort_unstable();
    assert_eq!(
        asked,
        [
            "jane: impersonate-on:user-info:list things.things.example.com /",
            "jane: impersonate:user-info uids.authentication.k8s.io /7",
            "jane: impersonate:user-info users.authentication.k8s.io /bob",
            "bob: list things.things.example.com /",
        ]
    );
    let first = &stage.reviewer.asked("SubjectAccessReview")[3];
    assert_eq!(
        first["spec"],
        json!({"resourceAttributes": {"namespace": "default", "verb": "list", "group": "things.example.com",
            "version": "v1", "resource": "things"}, "user": "bob", "uid": "7", "groups": ["system:authenticated"]})
    );
    assert_eq!(identity(&stage.backend.last())[1..], ["x-remote-uid: 7", "x-remote-user: bob"]);
    // Only the old right: the constrained one is asked for once, and from then on the old one first.
    let stage = Reviewed::set(&["--authorization-webhook-cache-unauthorized-ttl=1h"]).await;
    stage.reviewer.behave(|review| {
        let verb = review["spec"]["resourceAttributes"]["verb"].as_str().unwrap_or_default();
        access(json!({"allowed": !verb.contains(':'), "reason": "no constraints"}))
    });
    let jane = stage.scene.http1().await;
    for user in ["bob", "eve"] {
        let lines = [("Impersonate-User", user), ("Impersonate-Extra-Scopes", "a"), ("Impersonate-Extra-Scopes", "b")];
        assert_eq!(jane.ask(get(THINGS, &lines)).await.status, 200);
    }
    let mut asked = stage.asked();
    asked[1..4].sort_unstable();
    asked[5..].sort_unstable();
    assert_eq!(
        asked,
        [
            "jane: impersonate-on:user-info:list things.things.example.com /",
            "jane: impersonate userextras.authentication.k8s.io scopes/a",
            "jane: impersonate userextras.authentication.k8s.io scopes/b",
            "jane: impersonate users. /bob",
            "bob: list things.things.example.com /",
            "eve: list things.things.example.com /",
            "jane: impersonate users. /eve",
        ]
    );
}

/// Whatever is wrong with a review, nobody becomes somebody else.
#[tokio::test]
async fn what_cannot_be_found_out_is_403() {
    let stage = Reviewed::set(&[]).await;
    let cases: Vec<(&str, Reply, &str)> = vec![
        ("no", access(json!({"allowed": false})), ""),
        ("no, with a reason", access(json!({"allowed": false, "reason": "go away"})), ": go away"),
        ("never", access(json!({"allowed": false, "denied": true, "reason": "never"})), ": never"),
        ("yes and no", access(json!({"allowed": true, "denied": true})), ": an authorizer failed"),
        ("no status", Reply::Text(201, r#"{"kind":"SubjectAccessReview"}"#), ": an authorizer failed"),
        ("no JSON", Reply::Text(200, "<html>secret words</html>"), ": an authorizer failed"),
        ("we may not ask", failure(403, "Forbidden"), ": an authorizer failed"),
        ("an internal error", failure(500, "InternalError"), ": an authorizer failed"),
    ];
    let replies: Vec<Reply> = cases.iter().map(|(_, reply, _)| reply.clone()).collect();
    stage.reviewer.behave(move |review| {
        let name = review["spec"]["resourceAttributes"]["name"].as_str().unwrap_or_default();
        match name.strip_prefix("case-").and_then(|number| replies.get(number.parse::<usize>().ok()?)) {
            Some(reply) => reply.clone(),
            None => kindly(review),
        }
    });
    let jane = stage.scene.http2().await;
    let asking = (0..cases.len()).map(|number| {
        let jane = jane.clone();
        async move { jane.ask(get(THINGS, &[("Impersonate-User", &*format!("case-{number}"))])).await }
    });
    let answers: Vec<Read> = futures_util::future::join_all(asking).await;
    for (number, (answer, (name, _, reason))) in answers.iter().zip(&cases).enumerate() {
        let status = answer.refused(403, "Forbidden");
        assert_eq!(
            status["message"],
            format!(
                "users.authentication.k8s.io \"case-{number}\" is forbidden: User \"jane\" cannot impersonate:user-info \
                 resource \"users\" in API group \"authentication.k8s.io\" at the cluster scope{reason}"
            ),
            "{name}"
        );
        assert!(!answer.text().contains("secret"), "{name}");
    }
    assert!(stage.backend.seen().is_empty());
    // Nobody answers: the client's own time ends it.
    stage.reviewer.behave(|_| Reply::Hang);
    let late = get(&format!("{THINGS}?timeout=300ms"), &[("Impersonate-User", "somebody")]);
    jane.ask(late).await.refused(504, "Timeout");
    assert!(stage.backend.seen().is_empty());
}

/// Ten groups do not take ten times as long, and a hundred are not asked for all at once.
#[tokio::test]
async fn several_questions_wait_together() {
    let stage = Reviewed::set(&[]).await;
    let (release, until) = tokio::sync::watch::channel(());
    stage.reviewer.behave(move |review| {
        let asked = &review["spec"]["resourceAttributes"];
        if asked["resource"] == "groups" && asked["name"] != "*" {
            return Reply::Wait(until.clone(), Box::new(kindly(review)));
        }
        access(json!({"allowed": asked["name"] != "*"}))
    });
    let names: Vec<String> = (0..30).map(|number| format!("g{number}")).collect();
    let mut lines = vec![("Impersonate-User", "bob")];
    lines.extend(names.iter().map(|name| ("Impersonate-Group", &**name)));
    let jane = stage.scene.http1().await;
    let (read, ()) = tokio::join!(jane.ask(get(THINGS, &lines)), async {
        let waiting = || stage.asked().iter().filter(|asked| asked.contains("groups.") && !asked.contains('*')).count();
        eventually("several to wait", async || (waiting() == 8).then_some(())).await;
        drop(release);
    });
    assert_eq!(read.status, 200, "{}", read.text());
    let groups = stage.backend.last().all("x-remote-group");
    assert_eq!(groups[..30], names);
}
