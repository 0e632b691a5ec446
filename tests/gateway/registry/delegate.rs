//! Delegation of every path that no APIService claims to a kube-apiserver.

use http::Method;
use narthex::tls::{Authority, CertificateSpec as CertificateRequest};
use rustls_pki_types::CertificateDer;
use serde_json::{Value, json};

use crate::support::backend::{
    Backend, BackendResponse, BackendSettings, data_frame, json_response as response, start_watch_backend,
};
use crate::support::client::{Client, admin_request, get, next_chunk, request};
use crate::support::fixtures::{TestEnvironment, eventually, run_narthex};
use crate::support::gateway_fixture::{GatewayFixture, THINGS, register_things};

const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

fn discovery_group(name: &str, version: &str, resource: &str) -> Value {
    let kind = json!({"group": name, "version": version, "kind": "Kind"});
    json!({"metadata": {"name": name}, "versions": [{"version": version, "freshness": "Current", "resources": [
        {"resource": resource, "responseKind": kind, "scope": "Namespaced", "singularResource": "", "verbs": ["get"]},
    ]}]})
}

/// A cluster with pods and deployments; it knows (and so should not be asked for) `things.example.com` as well.
fn apiserver_response(path: &str, accept: &str) -> BackendResponse {
    let list = |items: Value| {
        let list = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": items});
        let mut list = response(200, &list.to_string());
        list.headers_mut().insert("content-type", V2.parse().unwrap());
        list
    };
    match path {
        "/api" if accept.contains("as=APIGroupDiscoveryList") => list(json!([discovery_group("", "v1", "pods")])),
        "/apis" if accept.contains("as=APIGroupDiscoveryList") => list(json!([
            discovery_group("apiregistration.k8s.io", "v1", "apiservices"),
            discovery_group("apps", "v1", "deployments"),
            discovery_group("things.example.com", "v1", "stolen"),
            discovery_group("authentication.k8s.io", "v1", "tokenreviews"),
        ])),
        "/openapi/v3" => response(
            200,
            &json!({"paths": {
                "api/v1": {"serverRelativeURL": "/openapi/v3/api/v1?hash=AA"},
                "apis/things.example.com/v1": {"serverRelativeURL": "/openapi/v3/apis/things.example.com/v1?hash=BB"},
            }})
            .to_string(),
        ),
        "/openapi/v2" => response(
            200,
            &json!({
                "swagger": "2.0", "info": {"title": "Kubernetes", "version": "v1.36.3"},
                "securityDefinitions": {"BearerToken": {"type": "apiKey", "name": "authorization", "in": "header"}},
                "paths": {
                    "/api/v1/pods": {"get": {"responses": {"200": {"description": "OK", "schema": {"$ref": "#/definitions/Pod"}}}}},
                    "/apis/things.example.com/v1/things": {"get": {"responses": {"200": {"description": "OK",
                        "schema": {"$ref": "#/definitions/Stolen"}}}}},
                    "/version/": {},
                },
                "definitions": {"Pod": {"type": "object"}, "Stolen": {"type": "object"}},
            })
            .to_string(),
        ),
        path => response(200, &json!({"cluster": path}).to_string()),
    }
}

/// The cluster, and `apiserver_response.kubeconfig`, whose user has a token.
async fn start_apiserver(environment: &TestEnvironment) -> Backend {
    let settings = BackendSettings { names: vec!["127.0.0.1"], handles_probes: true, ..BackendSettings::default() };
    let backend = Backend::start(environment, settings, async |request| {
        let accept = request.headers().get("accept").map_or("", |accept| accept.to_str().unwrap()).to_owned();
        apiserver_response(request.uri().path(), &accept)
    })
    .await;
    write_kubeconfig(environment, &format!("https://{}", backend.address));
    backend
}

pub(crate) fn write_kubeconfig(environment: &TestEnvironment, server: &str) {
    let document = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority": "backend-ca.crt"}}],
        "users": [{"name": "u", "user": {"token": "of-the-kubeconfig"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    });
    std::fs::write(environment.path("cluster.kubeconfig"), document.to_string()).unwrap();
}

pub(crate) fn kubeconfig_flag(environment: &TestEnvironment) -> String {
    format!("--delegate-kubeconfig={}", environment.path("cluster.kubeconfig").display())
}

/// What people asked for, as the cluster saw it; our own questions left out.
fn client_requests(cluster: &Backend) -> Vec<crate::support::backend::ReceivedRequest> {
    cluster
        .received()
        .into_iter()
        .filter(|seen| seen.header_values("x-remote-user") != ["system:kube-aggregator"])
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn delegate_receives_unclaimed_paths_from_front_proxy() {
    let environment = TestEnvironment::new();
    let cluster = start_apiserver(&environment).await;
    let things =
        Backend::start(&environment, BackendSettings::default(), async |_| response(200, r#"{"things":1}"#)).await;
    register_things(&environment, &[things.address], &[]);
    let flag = kubeconfig_flag(&environment);
    let fixture = GatewayFixture::from_registry(environment, &[&flag]);
    for client in fixture.both_protocols().await {
        for path in [
            "/api/v1/namespaces/default/pods",
            "/apis/apps/v1/deployments",
            "/apis/things.example.com/v2",
            "/version",
            "/logs/x",
            "/.well-known/openid-configuration",
            "/openapi/v3/api/v1",
        ] {
            let wanted = json!({"cluster": path});
            eventually(path, async || (client.get(path).await.json() == wanted).then_some(())).await;
        }
        assert_eq!(client.get(THINGS).await.json(), json!({"things": 1}));
        let headers =
            [("authorization", "Bearer stolen"), ("x-remote-user", "root"), ("x_remote_group", "system:masters")];
        let review = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
        let posted = client.send_and_read(request(Method::POST, review, &headers, "{}")).await;
        assert_eq!(posted.json(), json!({"cluster": review}));
        let seen = client_requests(&cluster).pop().unwrap();
        assert_eq!(
            (seen.header_values("x-remote-user"), seen.header_values("x-remote-group")),
            (vec!["jane".to_owned()], vec!["devs".to_owned(), "system:authenticated".to_owned()],)
        );
        assert_eq!(seen.peer, "narthex-front-proxy");
        for never in ["authorization", "x_remote_group"] {
            assert!(seen.header_values(never).is_empty(), "{never}: {seen:?}");
        }
    }
    // The credentials of the kubeconfig are not used for requests of clients.
    assert!(cluster.received().iter().all(|seen| seen.header_values("authorization").is_empty()));
}

#[tokio::test(flavor = "multi_thread")]
async fn delegate_discovery_merged_with_apiservices() {
    let environment = TestEnvironment::new();
    let cluster = start_apiserver(&environment).await;
    let things = Backend::start(&environment, BackendSettings::default(), async |_| response(200, "{}")).await;
    register_things(&environment, &[things.address], &[]);
    let flag = kubeconfig_flag(&environment);
    let fixture = GatewayFixture::from_registry(environment, &[&flag]);
    let client = fixture.http2().await;
    eventually("readiness", async || (client.get("/readyz").await.status == 200).then_some(())).await;
    let shown = async |path: &str| {
        let list = client.send_and_read(get(path, &[("accept", V2)])).await.json();
        let items = list["items"].as_array().unwrap().clone();
        let line = |item: &Value| {
            let (group, version) = (item["metadata"]["name"].as_str().unwrap_or_default(), &item["versions"][0]);
            format!("{group} {} {}", version["freshness"], version["resources"][0]["resource"]).replace('"', "")
        };
        items.iter().map(line).collect::<Vec<_>>()
    };
    assert_eq!(shown("/api").await, [" Current pods"]);
    let all = [
        "apiregistration.k8s.io Current apiservices",
        "apps Current deployments",
        "authentication.k8s.io Current tokenreviews",
        "things.example.com Current things",
    ];
    assert_eq!(shown("/apis").await, all);
    assert_eq!(client.get("/apis/apps").await.json()["preferredVersion"]["groupVersion"], "apps/v1");
    // The directory's APIServices are ours to show.
    assert_eq!(
        client.get("/apis/apiregistration.k8s.io/v1/apiservices").await.json()["items"][0]["metadata"]["name"],
        "v1.things.example.com"
    );
    let index = client.get("/openapi/v3").await.json();
    let keys: Vec<_> = index["paths"].as_object().unwrap().keys().collect();
    assert_eq!(
        keys,
        ["api/v1", "apis/apiregistration.k8s.io/v1"],
        "its document of a group it does not own is not listed"
    );
    let paths = client.get("/").await.json()["paths"].to_string();
    for path in ["\"/api/v1\"", "\"/apis/apps/v1\"", "\"/apis/things.example.com/v1\"", "\"/metrics\""] {
        assert!(paths.contains(path), "{path} in {paths}");
    }

    let shown_to_the_operator = async || {
        let report = admin_request(&fixture.gateway, get("/status.json", &[])).await.json();
        let all = report["apiservices"].as_array().unwrap();
        let delegate = all.iter().find(|one| one["name"] == "delegate").unwrap();
        (delegate["available"].as_bool(), delegate["service"].as_str().unwrap().to_owned())
    };
    assert_eq!(shown_to_the_operator().await, (Some(true), format!("https://{}", cluster.address)));

    // What it lists no longer can be had, and stays, as stale.
    let address = cluster.stop().await;
    eventually("staleness", async || (shown("/apis").await[1] == "apps Stale deployments").then_some(())).await;
    assert_eq!(shown("/apis").await[3], all[3]);
    client.get("/version").await.assert_failure(503, "ServiceUnavailable");
    assert_eq!(shown_to_the_operator().await.0, Some(false));
    assert_eq!(client.get(THINGS).await.text(), "{}");
    let settings =
        BackendSettings { names: vec!["127.0.0.1"], handles_probes: true, address, ..BackendSettings::default() };
    let _back =
        Backend::start(&fixture.environment, settings, async |request| legacy_apiserver_response(request.uri().path()))
            .await;
    eventually("it is back", async || (client.get("/version").await.status == 200).then_some(())).await;
    eventually("another list", async || (shown("/apis").await.get(1)? == "batch Current jobs").then_some(())).await;
}

/// A cluster that knows only the older form of discovery.
fn legacy_apiserver_response(path: &str) -> BackendResponse {
    match path {
        "/api" => response(200, r#"{"kind":"APIVersions","versions":[]}"#),
        "/apis" => {
            response(200, r#"{"kind":"APIGroupList","groups":[{"name":"batch","versions":[{"version":"v1"}]}]}"#)
        }
        "/apis/batch/v1" => response(
            200,
            r#"{"kind":"APIResourceList","groupVersion":"batch/v1","resources":[
            {"name":"jobs","singularName":"job","namespaced":true,"kind":"Job","verbs":["get"]}]}"#,
        ),
        _ => response(200, "{}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn delegate_kubeconfig_change_keeps_open_watches() {
    let environment = TestEnvironment::new();
    let settings = || BackendSettings { names: vec!["127.0.0.1"], handles_probes: true, ..BackendSettings::default() };
    let (first, writers) = start_watch_backend(&environment, settings()).await;
    write_kubeconfig(&environment, &format!("https://{}", first.address));
    let flag = kubeconfig_flag(&environment);
    let fixture = GatewayFixture::from_registry(environment, &[&flag]);
    let client = fixture.http2().await;
    let mut body = client.send(get("/api/v1/pods?watch=1", &[])).await.unwrap().into_body();
    assert_eq!(next_chunk(&mut body).await.unwrap().unwrap(), "first\n");

    let second = Backend::start(&fixture.environment, settings(), async |_| response(200, "second")).await;
    write_kubeconfig(&fixture.environment, "http://nowhere");
    let message = |text: &str| fixture.gateway.log_lines().iter().any(|line| line.contains(text));
    eventually("the mistake is told", async || message("clusters[0].cluster.server").then_some(())).await;
    write_kubeconfig(&fixture.environment, &format!("https://{}", second.address));
    eventually("the other server", async || (client.get("/version").await.text() == "second").then_some(())).await;
    // Requests to the first one are still served.
    writers.lock().unwrap()[0].send(data_frame("more\n")).unwrap();
    assert_eq!(next_chunk(&mut body).await.unwrap().unwrap(), "more\n");
}

#[test]
fn delegate_configuration_errors_refused_at_start() {
    let environment = TestEnvironment::new();
    write_kubeconfig(&environment, "http://plain");
    std::fs::write(environment.path("policy.yaml"), "{}").unwrap();
    let refused = |more: &[&str]| {
        let flag = kubeconfig_flag(&environment);
        let more: Vec<&str> = more.iter().copied().chain([flag.as_str()]).collect();
        let output = run_narthex(&[vec!["gateway".to_owned()], environment.gateway_arguments(&more)].concat());
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let message = refused(&[]);
    assert!(message.contains("cluster.kubeconfig: clusters[0].cluster.server: must be https"), "{message}");
    let in_cluster = run_narthex(&["gateway".to_owned(), "--delegate-kubeconfig=in-cluster".to_owned()]);
    assert_eq!(in_cluster.status.code(), Some(1));
    let message = String::from_utf8(in_cluster.stderr).unwrap();
    assert!(message.contains("unable to load in-cluster configuration"), "{message}");
    let message = refused(&["--serve-delegation", "--authorization-mode=Static"]);
    assert!(message.contains("--serve-delegation: cannot be given together with --delegate-kubeconfig"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn delegate_with_untrusted_certificate_receives_no_request() {
    let environment = TestEnvironment::new();
    let settings = BackendSettings { names: vec!["other.example"], handles_probes: true, ..BackendSettings::default() };
    let wrong = Backend::start(&environment, settings, async |_| response(200, "{}")).await;
    write_kubeconfig(&environment, &format!("https://{}", wrong.address));
    let flag = kubeconfig_flag(&environment);
    let fixture = GatewayFixture::from_registry(environment, &[&flag]);
    let client: Client = fixture.http1().await;
    let status = client.get("/api/v1/secrets").await.assert_failure(503, "ServiceUnavailable");
    assert!(!status.to_string().contains(&wrong.address.to_string()), "{status}");
    assert!(wrong.received().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn delegate_openapi_v2_merged_with_apiservices() {
    let environment = TestEnvironment::new();
    let _cluster = start_apiserver(&environment).await;
    let settings = BackendSettings { handles_probes: true, ..BackendSettings::default() };
    let things = Backend::start(&environment, settings, async |request| match request.uri().path() {
        "/openapi/v2" => response(
            200,
            r#"{"swagger":"2.0","info":{"title":"things","version":"1"},"paths":{"/apis/things.example.com/v1/things":{"post":{}}},
                "definitions":{"Pod":{"type":"string"}}}"#,
        ),
        "/apis/things.example.com/v1" => {
            response(200, r#"{"kind":"APIResourceList","groupVersion":"things.example.com/v1","resources":[]}"#)
        }
        _ => response(404, "{}"),
    })
    .await;
    register_things(&environment, &[things.address], &[]);
    let flag = kubeconfig_flag(&environment);
    let fixture = GatewayFixture::from_registry(environment, &[&flag]);
    let client = fixture.http2().await;
    let whole = eventually("both", async || {
        let whole = client.get("/openapi/v2").await.json();
        (whole["paths"].as_object().unwrap().len() == 3).then_some(whole)
    })
    .await;
    assert_eq!(
        (&whole["info"]["title"], &whole["securityDefinitions"]["BearerToken"]["in"]),
        (&json!("Kubernetes"), &json!("header"))
    );
    assert_eq!(whole["paths"]["/apis/things.example.com/v1/things"], json!({"post": {}}));
    assert_eq!(whole["paths"]["/version/"], json!({}));
    assert_eq!(
        whole["definitions"],
        json!({"Pod": {"type": "object"}, "Pod_v2": {"type": "string"}}),
        "nothing is left of the stolen"
    );
}

/// A cluster believes its own front proxies alone. What is in front of both it and servers that believe ours shows each
/// a certificate it trusts; the README has these cases.
#[tokio::test(flavor = "multi_thread")]
async fn delegate_and_backends_shown_separate_front_proxy_certificates() {
    let environment = TestEnvironment::new();
    let now = std::time::SystemTime::now();
    let (authority, _) = Authority::new("cluster-front-proxy-ca", now).unwrap();
    let (upstream, actual) = (authority.certificate().clone(), environment.request_header_ca.certificate().clone());
    let cluster_s = authority.issue(&CertificateRequest::client("front-proxy-client", &[]), now).unwrap();
    environment.write_pair("front-proxy-client", &cluster_s);
    environment.write_pair(
        "registry/own",
        &environment.request_header_ca.issue(&CertificateRequest::client("own", &[]), now).unwrap(),
    );
    let delegate = async |front_proxies: &[CertificateDer<'static>]| {
        let settings = BackendSettings {
            names: vec!["127.0.0.1"],
            front_proxies: front_proxies.to_vec(),
            handles_probes: true,
            ..BackendSettings::default()
        };
        let backend =
            Backend::start(&environment, settings, async |request| apiserver_response(request.uri().path(), "")).await;
        write_kubeconfig(&environment, &format!("https://{}", backend.address));
        backend
    };
    let things = async |front_proxies: &[CertificateDer<'static>], annotations: &[(&str, &str)]| {
        let settings = BackendSettings { front_proxies: front_proxies.to_vec(), ..BackendSettings::default() };
        let backend = Backend::start(&environment, settings, async |_| response(200, "{}")).await;
        register_things(&environment, &[backend.address], annotations);
        backend
    };
    let (only_theirs, only_ours, both) = ([upstream.clone()], [actual.clone()], [upstream, actual]);
    let pair = |name: &str| {
        let file = |suffix| environment.path(&format!("{name}.{suffix}")).display().to_string();
        [format!("--proxy-client-cert-file={}", file("crt")), format!("--proxy-client-key-file={}", file("key"))]
    };
    let jane = environment.issue_user("jane", &[]);
    let recorded = async |name: &str, expected: (u16, u16)| {
        let [certificate, key] = pair(name);
        let gateway = environment.start_gateway(&[&kubeconfig_flag(&environment), &certificate, &key]);
        let client = Client::http2(&environment, &gateway, Some(&jane)).await;
        eventually(&format!("{expected:?}"), async || {
            let statuses = (client.get("/api/v1/pods").await.status, client.get(THINGS).await.status);
            ((statuses.0.as_u16(), statuses.1.as_u16()) == expected).then_some(())
        })
        .await;
    };

    let behind = delegate(&only_theirs).await;
    // Ours, which the cluster does not trust.
    let backend = things(&only_ours, &[]).await;
    recorded("front-proxy", (503, 200)).await;
    // The cluster's own certificate: servers that read their CAs from the cluster trust it.
    let like_cluster = things(&only_theirs, &[]).await;
    recorded("front-proxy-client", (200, 200)).await;
    assert_eq!(
        (last_client_name(&behind), last_client_name(&like_cluster)),
        ("front-proxy-client".into(), "front-proxy-client".into())
    );
    // Servers with a bundle of their own do not, until it has both authorities.
    register_things(&environment, &[backend.address], &[]);
    recorded("front-proxy-client", (200, 503)).await;
    let with_both = things(&both, &[]).await;
    recorded("front-proxy-client", (200, 200)).await;
    assert_eq!(last_client_name(&with_both), "front-proxy-client");
    // Or they are shown a pair of their own.
    register_things(&environment, &[backend.address], &[("client-certificate", "own")]);
    recorded("front-proxy-client", (200, 200)).await;
    assert_eq!((last_client_name(&behind), last_client_name(&backend)), ("front-proxy-client".into(), "own".into()));
    // Or the kube-apiserver's bundle has both, and all of them see ours.
    let behind = delegate(&both).await;
    register_things(&environment, &[backend.address], &[]);
    recorded("front-proxy", (200, 200)).await;
    assert_eq!(
        (last_client_name(&behind), last_client_name(&backend)),
        ("narthex-front-proxy".into(), "narthex-front-proxy".into())
    );
}

/// The name in the certificate that the latest request came with.
fn last_client_name(backend: &Backend) -> String {
    backend.last_request().peer
}

/// The rules for extension API servers are not for the cluster's own.
#[tokio::test(flavor = "multi_thread")]
async fn delegate_redirects_and_cookies_pass() {
    let environment = TestEnvironment::new();
    let settings = BackendSettings { names: vec!["127.0.0.1"], handles_probes: true, ..BackendSettings::default() };
    let cluster = Backend::start(&environment, settings, async |request| match request.uri().path() {
        "/debug/pprof" => {
            let mut redirect = response(301, "");
            redirect.headers_mut().insert("location", "/debug/pprof/".parse().unwrap());
            redirect.headers_mut().insert("set-cookie", "a=b".parse().unwrap());
            redirect
        }
        path => apiserver_response(path, ""),
    })
    .await;
    write_kubeconfig(&environment, &format!("https://{}", cluster.address));
    let things = Backend::start(&environment, BackendSettings::default(), async |_| {
        let mut redirect = response(302, "");
        redirect.headers_mut().insert("location", "/elsewhere".parse().unwrap());
        redirect
    })
    .await;
    register_things(&environment, &[things.address], &[]);
    let flag = kubeconfig_flag(&environment);
    let fixture = GatewayFixture::from_registry(environment, &[&flag]);
    for client in fixture.both_protocols().await {
        let asked = || client.send_and_read(get("/debug/pprof", &[("cookie", "session=1")]));
        eventually("the delegate to answer", async || (asked().await.status == 301).then_some(())).await;
        let redirect = asked().await;
        assert_eq!(
            (&redirect.headers["location"], &redirect.headers["set-cookie"]),
            (&"/debug/pprof/".parse().unwrap(), &"a=b".parse().unwrap())
        );
        assert_eq!(client_requests(&cluster).pop().unwrap().header_values("cookie"), ["session=1"]);
        assert_eq!(client.send_and_read(get(THINGS, &[("cookie", "session=1")])).await.status, 502);
        assert!(things.last_request().header_values("cookie").is_empty());
    }
}
