//! ServiceAccounts: their tokens, what namespaces get, and what Pods get.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http::Method;
use serde_json::{Value, json};

use super::observability::{audit_flags, wait_for_metric};
use crate::observability::audit::wait_for_events;
use crate::support::client::{Client, ClientResponse, request};
use crate::support::embedded_api::{EmbeddedApiFixture, send_json};
use crate::support::fixtures::eventually;

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const PODS: &str = "/api/v1/namespaces/default/pods";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const WHO_AM_I: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

async fn create(client: &Client, path: &str, object: &Value) -> Value {
    let created = send_json(client, Method::POST, path, object).await;
    assert_eq!(created.status, 201, "{}", created.text());
    created.json()
}

async fn delete(client: &Client, path: &str) {
    let deleted = send_json(client, Method::DELETE, path, &json!({})).await;
    assert_eq!(deleted.status, 200, "{}", deleted.text());
}

async fn get(client: &Client, path: &str) -> ClientResponse {
    client.send_and_read(request(Method::GET, path, &[], "")).await
}

/// Requests a token of the account `robot`.
async fn request_token(client: &Client, spec: Value) -> ClientResponse {
    send_json(client, Method::POST, &format!("{ACCOUNTS}/robot/token"), &json!({"spec": spec})).await
}

async fn token(client: &Client, spec: Value) -> String {
    let issued = request_token(client, spec).await;
    assert_eq!(issued.status, 201, "{}", issued.text());
    issued.json()["status"]["token"].as_str().unwrap().to_owned()
}

/// A connection without a certificate. It ends with a refused request.
async fn without_certificate(api: &EmbeddedApiFixture) -> Client {
    Client::http2(&api.environment, &api.gateway, None).await
}

/// Who the server says that a token is of.
async fn who_am_i(api: &EmbeddedApiFixture, token: &str) -> ClientResponse {
    let anyone = without_certificate(api).await;
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    anyone.send_and_read(request(Method::POST, WHO_AM_I, &headers, "{}")).await
}

async fn assert_refused(api: &EmbeddedApiFixture, token: &str) {
    who_am_i(api, token).await.assert_failure(401, "Unauthorized");
}

fn claims(token: &str) -> Value {
    let payload = token.split('.').nth(1).unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).unwrap()).unwrap()
}

struct World {
    api: EmbeddedApiFixture,
    admin: Client,
}

async fn start(flags: &[&str]) -> World {
    let api = EmbeddedApiFixture::start(flags);
    let admin = api.http2().await;
    create(&admin, ACCOUNTS, &json!({"metadata": {"name": "robot"}})).await;
    World { api, admin }
}

#[tokio::test(flavor = "multi_thread")]
async fn token_is_of_its_account_until_that_is_gone() {
    let World { admin, api } = start(&[]).await;
    let token = token(&admin, json!({})).await;
    let user = who_am_i(&api, &token).await.json()["status"]["userInfo"].take();
    assert_eq!(user["username"], "system:serviceaccount:default:robot");
    let groups = json!(["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"]);
    assert_eq!(user["groups"], groups);
    let id = format!("JTI={}", claims(&token)["jti"].as_str().unwrap());
    assert_eq!(user["extra"], json!({"authentication.kubernetes.io/credential-id": [id]}));
    // It is what RBAC says, not more.
    let bearer = format!("Bearer {token}");
    let anyone = without_certificate(&api).await;
    let listed = anyone.send_and_read(request(Method::GET, PODS, &[("authorization", &bearer)], "")).await;
    listed.assert_failure(403, "Forbidden");
    // Another account of the same name is another account.
    delete(&admin, &format!("{ACCOUNTS}/robot")).await;
    assert_refused(&api, &token).await;
    create(&admin, ACCOUNTS, &json!({"metadata": {"name": "robot"}})).await;
    assert_refused(&api, &token).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bound_token_ends_with_its_object() {
    let World { admin, api } = start(&[]).await;
    create(&admin, SECRETS, &json!({"metadata": {"name": "s"}})).await;
    create(&admin, "/api/v1/nodes", &json!({"metadata": {"name": "n"}})).await;
    let spec = json!({"serviceAccountName": "robot", "nodeName": "n", "containers": [{"name": "c", "image": "i"}]});
    create(&admin, PODS, &json!({"metadata": {"name": "p"}, "spec": spec})).await;
    for (kind, name, path) in [
        ("Secret", "s", format!("{SECRETS}/s")),
        ("Pod", "p", format!("{PODS}/p")),
        ("Node", "n", "/api/v1/nodes/n".into()),
    ] {
        let bound = json!({"apiVersion": "v1", "kind": kind, "name": name});
        let token = token(&admin, json!({"boundObjectRef": bound})).await;
        let user = who_am_i(&api, &token).await;
        assert_eq!(user.status, 200 + 1, "{}", user.text());
        let extra = &user.json()["status"]["userInfo"]["extra"];
        assert_eq!(extra["authentication.kubernetes.io/pod-name"].is_null(), kind != "Pod");
        assert_eq!(extra["authentication.kubernetes.io/node-name"].is_null(), kind == "Secret");
        let options = json!({"gracePeriodSeconds": 0});
        assert_eq!(send_json(&admin, Method::DELETE, &path, &options).await.status, 200);
        assert_refused(&api, &token).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn token_requests_are_answered_as_by_kube_apiserver() {
    let World { admin, api: _api } = start(&["--service-account-max-token-expiration=2h"]).await;
    create(&admin, SECRETS, &json!({"metadata": {"name": "s"}})).await;
    create(&admin, PODS, &json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}))
        .await;
    let bound = |kind: &str, name: &str, uid: &str| json!({"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name, "uid": uid}});
    for (spec, status, text) in [
        (json!({"expirationSeconds": 599}), 422, "may not specify a duration less than 10 minutes"),
        (json!({"expirationSeconds": (1_i64 << 32) + 1}), 422, "may not specify a duration larger than 2^32 seconds"),
        (bound("Secret", "absent", ""), 404, "secrets \"absent\" not found"),
        (
            bound("Secret", "s", "x"),
            409,
            "Operation cannot be fulfilled on Secret \"s\": the UID in the bound object reference (x)",
        ),
        (bound("ConfigMap", "s", ""), 400, "cannot bind token to object of type /v1, Kind=ConfigMap"),
        (bound("Pod", "p", ""), 400, "cannot bind token for serviceaccount \"robot\" to pod running with different"),
    ] {
        let refused = request_token(&admin, spec.clone()).await;
        assert_eq!(refused.status, status, "{spec}");
        assert!(refused.json()["message"].as_str().unwrap().contains(text), "{spec}: {}", refused.text());
    }
    for (metadata, status, text) in [
        (json!({"name": "other"}), 422, "must match the service account name if specified"),
        (json!({"namespace": "other"}), 400, "does not match the namespace sent on the request"),
        (json!({"uid": "x"}), 409, "the UID in the token request (x) does not match the UID of the service account"),
    ] {
        let path = format!("{ACCOUNTS}/robot/token");
        let refused = send_json(&admin, Method::POST, &path, &json!({"metadata": metadata, "spec": {}})).await;
        assert_eq!(refused.status, status, "{}", refused.text());
        assert!(refused.text().contains(text), "{}", refused.text());
    }
    let shortened = request_token(&admin, json!({"expirationSeconds": 7201})).await;
    let warning = shortened.headers["warning"].to_str().unwrap();
    assert_eq!(warning, "299 - \"requested expiration of 7201 seconds shortened to 7200 seconds\"");
    let issued = shortened.json();
    assert_eq!(issued["spec"], json!({"audiences": [ISSUER], "boundObjectRef": null, "expirationSeconds": 7200}));
    let claims = claims(issued["status"]["token"].as_str().unwrap());
    assert_eq!(claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap(), 7200);
    assert_eq!((&claims["iss"], &claims["aud"]), (&json!(ISSUER), &json!([ISSUER])));
}

#[tokio::test(flavor = "multi_thread")]
async fn token_review_says_for_which_audiences_a_token_is_valid() {
    let World { admin, api } = start(&["--api-audiences=api,own"]).await;
    let other = token(&admin, json!({"audiences": ["vault"]})).await;
    assert_refused(&api, &other).await;
    let review = async |token: &str, audiences: Value| {
        let body = json!({"spec": {"token": token, "audiences": audiences}});
        create(&admin, REVIEWS, &body).await["status"].take()
    };
    let reviewed = review(&other, json!(["vault", "db"])).await;
    assert_eq!((&reviewed["authenticated"], &reviewed["audiences"]), (&json!(true), &json!(["vault"])));
    assert_eq!(reviewed["user"]["username"], "system:serviceaccount:default:robot");
    assert_ne!(review(&other, json!([])).await["authenticated"], json!(true));
    let own = token(&admin, json!({})).await;
    assert_eq!(review(&own, json!([])).await["audiences"], json!(["api", "own"]));
    assert_ne!(review(&own, json!(["vault"])).await["authenticated"], json!(true));
}

#[tokio::test(flavor = "multi_thread")]
async fn rotated_key_signs_later_and_the_old_one_verifies_on() {
    let World { admin, api } = start(&[]).await;
    let before = token(&admin, json!({})).await;
    let keys = async || get(&admin, "/openid/v1/jwks").await.json()["keys"].as_array().unwrap().len();
    assert_eq!(keys().await, 1);
    let data_dir = api.environment.path("data").display().to_string();
    let rotate = || {
        let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_narthex"));
        program.args(["pki", "rotate", "service-account", "--data-dir", &data_dir]).output().unwrap()
    };
    let rotated = rotate();
    assert!(rotated.status.success(), "{rotated:?}");
    eventually("the new key to be published", async || (keys().await == 2).then_some(())).await;
    // The new key signs only when all who cache the key set have it.
    let header = |token: &str| token.split('.').next().unwrap().to_owned();
    let after = token(&admin, json!({})).await;
    assert_eq!(header(&before), header(&after));
    assert_eq!(who_am_i(&api, &before).await.status, 201);
    let again = rotate();
    assert!(!again.status.success() && String::from_utf8_lossy(&again.stderr).contains("rotate again after that"));
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_tokens_are_refused() {
    let World { admin, api } = start(&[]).await;
    let good = token(&admin, json!({})).await;
    let [header, payload, signature] = good.split('.').collect::<Vec<_>>()[..] else { panic!("{good}") };
    let encode = |part: Value| URL_SAFE_NO_PAD.encode(part.to_string());
    let mut more = claims(&good);
    more["sub"] = "system:serviceaccount:kube-system:robot".into();
    more["kubernetes.io"]["namespace"] = "kube-system".into();
    let id = serde_json::from_slice::<Value>(&URL_SAFE_NO_PAD.decode(header).unwrap()).unwrap()["kid"].take();
    for forged in [
        format!("{}.{payload}.", encode(json!({"alg": "none"}))),
        format!("{}.{payload}.{signature}", encode(json!({"alg": "none", "kid": id}))),
        format!("{}.{payload}.{signature}", encode(json!({"alg": "HS256", "kid": id}))),
        format!("{}.{payload}.{signature}", encode(json!({"alg": "ES256", "kid": "../../etc/passwd"}))),
        format!("{header}.{}.{signature}", encode(more)),
        format!("{header}.{payload}.{}", &signature[2..]),
        format!("{header}.{payload}.{signature}{}", "A".repeat(12 << 10)),
    ] {
        assert_refused(&api, &forged).await;
    }
    assert_eq!(who_am_i(&api, &good).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn others_verify_tokens_by_openid_connect_discovery() {
    let World { admin, api } =
        start(&["--service-account-issuer=https://example.com", "--service-account-jwks-uri=https://example.com/keys"])
            .await;
    let document = get(&admin, "/.well-known/openid-configuration").await;
    let expected = json!({
        "issuer": "https://example.com", "jwks_uri": "https://example.com/keys",
        "response_types_supported": ["id_token"], "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["ES256"],
    });
    assert_eq!(document.json(), expected);
    assert_eq!(document.headers["cache-control"], "public, max-age=3600");
    let keys = get(&admin, "/openid/v1/jwks").await;
    assert_eq!(keys.headers["content-type"], "application/jwk-set+json");
    assert_eq!(keys.json()["keys"][0]["use"], "sig");
    // Accounts may read it, others may not.
    let bearer = format!("Bearer {}", token(&admin, json!({})).await);
    for (headers, status) in [(vec![("authorization", bearer.as_str())], 200), (vec![], 401)] {
        let path = "/.well-known/openid-configuration";
        let anyone = without_certificate(&api).await;
        assert_eq!(anyone.send_and_read(request(Method::GET, path, &headers, "")).await.status, status);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn namespaces_get_their_account_and_authorities_again() {
    let api = EmbeddedApiFixture::start_with(|environment| {
        vec![format!("--root-ca-file={}", environment.path("serving-ca.crt").display())]
    });
    let admin = api.http2().await;
    create(&admin, "/api/v1/namespaces", &json!({"metadata": {"name": "new"}})).await;
    for (path, name) in [("serviceaccounts", "default"), ("configmaps", "kube-root-ca.crt")] {
        for namespace in ["new", "kube-system"] {
            let path = format!("/api/v1/namespaces/{namespace}/{path}/{name}");
            let exists = async || (get(&admin, &path).await.status == 200).then_some(());
            eventually(&path, exists).await;
            delete(&admin, &path).await;
            eventually(&path, exists).await;
        }
    }
    let path = "/api/v1/namespaces/new/configmaps/kube-root-ca.crt";
    let pem = get(&admin, path).await.json()["data"]["ca.crt"].take();
    let authority = api.environment.read_file("serving-ca.crt");
    assert_eq!(pem, authority);
    // A change is taken back, and the file is followed.
    let changed = json!({"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "x"}});
    assert_eq!(send_json(&admin, Method::PUT, path, &changed).await.status, 200);
    let is = async |expected: &str| (get(&admin, path).await.json()["data"]["ca.crt"] == expected).then_some(());
    eventually("the authorities to be back", async || is(&authority).await).await;
    let both = authority.clone() + &api.environment.read_file("client-ca.crt");
    std::fs::write(api.environment.path("serving-ca.crt"), &both).unwrap();
    eventually("the new authorities", async || is(&both).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn secret_of_an_account_holds_a_token_while_both_exist() {
    let World { admin, api } = start(&[]).await;
    let secret = |account: &str| {
        let annotations = json!({"kubernetes.io/service-account.name": account});
        json!({"metadata": {"name": account, "annotations": annotations}, "type": "kubernetes.io/service-account-token"})
    };
    create(&admin, SECRETS, &secret("robot")).await;
    let path = format!("{SECRETS}/robot");
    let token = eventually("a token", async || {
        let stored = get(&admin, &path).await.json();
        let token = STANDARD.decode(stored["data"]["token"].as_str()?).unwrap();
        assert_eq!(STANDARD.decode(stored["data"]["namespace"].as_str()?).unwrap(), b"default");
        Some(String::from_utf8(token).unwrap())
    })
    .await;
    let user = who_am_i(&api, &token).await.json();
    assert_eq!(user["status"]["userInfo"]["username"], "system:serviceaccount:default:robot");
    // A Secret with another token does not vouch for the first.
    let other = json!([{"op": "replace", "path": "/data/token", "value": STANDARD.encode("x")}]);
    let headers = [("content-type", "application/json-patch+json")];
    let patched = admin.send_and_read(request(Method::PATCH, &path, &headers, &other.to_string())).await;
    assert_eq!(patched.status, 200);
    assert_refused(&api, &token).await;
    // A Secret of no account is deleted; so is that of an account that goes.
    create(&admin, SECRETS, &secret("nobody")).await;
    delete(&admin, &format!("{ACCOUNTS}/robot")).await;
    for name in ["robot", "nobody"] {
        let path = format!("{SECRETS}/{name}");
        eventually(&path, async || (get(&admin, &path).await.status == 404).then_some(())).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_says_which_token_is_issued_and_used() {
    let api = EmbeddedApiFixture::start_with(|environment| {
        audit_flags(environment, "rules:\n- {level: Metadata}\n").to_vec()
    });
    let admin = api.http2().await;
    create(&admin, ACCOUNTS, &json!({"metadata": {"name": "robot"}})).await;
    let issued = token(&admin, json!({})).await;
    let event = wait_for_events(&api.environment, "/robot/token", 2).await.remove(1);
    let id = format!("JTI={}", claims(&issued)["jti"].as_str().unwrap());
    assert_eq!(event["annotations"]["authentication.kubernetes.io/issued-credential-id"], id, "{event}");
    // A token in a Secret: of one that a user created, of one that the account lists, of one that is marked invalid.
    let annotations = json!({"kubernetes.io/service-account.name": "robot"});
    let document =
        json!({"metadata": {"name": "s", "annotations": annotations}, "type": "kubernetes.io/service-account-token"});
    create(&admin, SECRETS, &document).await;
    let path = format!("{SECRETS}/s");
    let stored = eventually("a token", async || {
        let stored = get(&admin, &path).await.json();
        STANDARD.decode(stored["data"]["token"].as_str()?).ok()
    })
    .await;
    let stored = String::from_utf8(stored).unwrap();
    let used = who_am_i(&api, &stored).await;
    assert!(!used.headers.contains_key("warning"), "{}", used.text());
    eventually("the day of the use", async || {
        let secret = get(&admin, &path).await.json();
        secret["metadata"]["labels"]["kubernetes.io/legacy-token-last-used"]
            .as_str()
            .map(str::len)
            .filter(|len| *len == 10)
    })
    .await;
    let merge = [("content-type", "application/merge-patch+json")];
    let account = format!("{ACCOUNTS}/robot");
    admin.send_and_read(request(Method::PATCH, &account, &merge, r#"{"secrets":[{"name":"s"}]}"#)).await;
    let listed = who_am_i(&api, &stored).await;
    assert!(listed.headers["warning"].to_str().unwrap().contains("Use tokens from the TokenRequest API"));
    let invalid = r#"{"metadata":{"labels":{"kubernetes.io/legacy-token-invalid-since":"2026-01-01"}}}"#;
    admin.send_and_read(request(Method::PATCH, &path, &merge, invalid)).await;
    assert_refused(&api, &stored).await;
    let events = wait_for_events(&api.environment, "/selfsubjectreviews", 5).await;
    let found: Vec<&Value> = events.iter().filter(|event| event["stage"] != "RequestReceived").collect();
    let name = |name: &str| format!("authentication.k8s.io/legacy-token{name}");
    for (event, key, value) in [
        (found[0], name("-manual-secret"), "s"),
        (found[0], name(""), "system:serviceaccount:default:robot"),
        (found[1], name("-autogenerated-secret"), "s"),
        (found[2], name("-invalidated"), "s/default"),
    ] {
        assert_eq!(event["annotations"][&key], value, "{event}");
    }
    for (family, count) in
        [("legacy_tokens", 2.0), ("legacy_manual_token_uses", 1.0), ("invalid_legacy_auto_token_uses", 1.0)]
    {
        wait_for_metric(&api.gateway, &format!("serviceaccount_{family}_total"), count).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_get_account_token_and_pull_secrets() {
    let World { admin, api: _api } = start(&[]).await;
    let account = json!({"metadata": {"name": "puller"}, "imagePullSecrets": [{"name": "registry"}]});
    create(&admin, ACCOUNTS, &account).await;
    let pod = |name: &str, account: &str| {
        let containers = json!([{"name": "c", "image": "i"}]);
        json!({"metadata": {"name": name}, "spec": {"serviceAccountName": account, "containers": containers}})
    };
    let default = create(&admin, PODS, &pod("a", "")).await;
    assert_eq!(default["spec"]["serviceAccountName"], "default");
    assert_eq!(default["spec"]["serviceAccount"], "default");
    let sources = default["spec"]["volumes"][0]["projected"]["sources"].as_array().unwrap();
    assert_eq!(sources[0], json!({"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}}));
    let mount = &default["spec"]["containers"][0]["volumeMounts"][0];
    assert_eq!(mount["mountPath"], "/var/run/secrets/kubernetes.io/serviceaccount");
    assert_eq!(mount["name"], default["spec"]["volumes"][0]["name"]);
    let pulled = create(&admin, PODS, &pod("b", "puller")).await;
    assert_eq!(pulled["spec"]["imagePullSecrets"], json!([{"name": "registry"}]));
    let refused = send_json(&admin, Method::POST, PODS, &pod("c", "nobody")).await;
    let text = refused.assert_failure(403, "Forbidden")["message"].to_string();
    let expected = "pods \\\"c\\\" is forbidden: error looking up service account default/nobody: serviceaccount \\\"nobody\\\" \
                    not found";
    assert!(text.contains(expected), "{text}");
}
