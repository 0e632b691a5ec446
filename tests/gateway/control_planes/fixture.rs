//! Control planes, each with an API server, a client CA and tokens of its own, and clients of any of them.

use std::fs;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use narthex::tls::{Authority, CertificateSpec as CertificateRequest};
use serde_json::{Value, json};
use std::time::SystemTime;
use tokio::net::TcpStream;

use crate::support::backend::{
    Backend, BackendResponse, BackendSettings, BodyWriter, ReceivedRequest, data_frame, json_response,
    streamed_response,
};
use crate::support::client::{Client, ClientResponse, admin_request, get, read_response};
use crate::support::fixtures::{CertKeyPair, GatewayProcess, TEST_TIMEOUT, TestEnvironment, eventually};

/// The media type of aggregated discovery.
pub(crate) const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// A control plane: its API server serves one group, and answers other requests with its name and the path. Its
/// documents have the ETag [`TestControlPlane::ETAG`], which those of all other test control planes have, too.
pub(crate) struct TestControlPlane {
    pub(crate) name: &'static str,
    pub(crate) server: Backend,
    /// Writers of its watches, in their order.
    pub(crate) watches: Arc<Mutex<Vec<BodyWriter>>>,
    /// A client certificate of its CA for user NAME-admin.
    pub(crate) admin: CertKeyPair,
}

impl TestControlPlane {
    pub(crate) const ETAG: &str = "\"same\"";

    /// Starts the API server, and writes `NAME.kubeconfig`, `NAME-ca.crt`, `NAME-tokens.csv` and the serving certificate
    /// `NAME-serving` for `NAME.example`.
    pub(crate) async fn start(environment: &TestEnvironment, name: &'static str) -> TestControlPlane {
        let watches = Arc::<Mutex<Vec<BodyWriter>>>::default();
        let kept = watches.clone();
        let settings = BackendSettings { names: vec!["127.0.0.1"], handles_probes: true, ..BackendSettings::default() };
        let server = Backend::start(environment, settings, move |request| {
            let response = if request.uri().query() == Some("watch=1") {
                let (writer, response) = streamed_response(200);
                writer.send(data_frame(&format!("{{\"type\":\"ADDED\",\"object\":{{\"of\":\"{name}\"}}}}\n"))).unwrap();
                kept.lock().unwrap().push(writer);
                response
            } else {
                let header = |name: &str| request.headers().get(name).map_or("", |value| value.to_str().unwrap());
                let path = request.uri().path();
                match server_document(name, path, header("accept")) {
                    Some(_) if header("if-none-match") == TestControlPlane::ETAG => json_response(304, ""),
                    Some(mut response) => {
                        response.headers_mut().insert("etag", TestControlPlane::ETAG.parse().unwrap());
                        response
                    }
                    None => json_response(200, &answer(name, path).to_string()),
                }
            };
            async { response }
        })
        .await;
        write_kubeconfig(environment, name, server.address);
        // All CAs have the same name: only their keys tell them apart.
        let (authority, issued) = Authority::new("clients", SystemTime::now()).unwrap();
        fs::write(environment.path(&format!("{name}-ca.crt")), &issued.certificate).unwrap();
        fs::write(environment.path(&format!("{name}-tokens.csv")), format!("{name}-token,{name}-robot,1\n")).unwrap();
        let serving = CertificateRequest::serving(&[format!("{name}.example")]);
        environment.write_pair(
            &format!("{name}-serving"),
            &environment.serving_ca.issue(&serving, SystemTime::now()).unwrap(),
        );
        let admin = CertificateRequest::client(&format!("{name}-admin"), &["devs", "system:masters"]);
        let admin = CertKeyPair::from_issued(&authority.issue(&admin, SystemTime::now()).unwrap());
        TestControlPlane { name, server, watches, admin }
    }

    /// Its entry in the file, with `hosts: [NAME.example]`, and `more` fields.
    pub(crate) fn by_host(&self, more: &str) -> String {
        let name = self.name;
        let serving = format!("tlsCertFile: {name}-serving.crt, tlsPrivateKeyFile: {name}-serving.key");
        self.entry(&format!("hosts: [{name}.example], {serving}{more}"))
    }

    /// Its entry in the file, with `pathPrefix: /clusters/NAME`, and `more` fields.
    pub(crate) fn by_path(&self, more: &str) -> String {
        self.entry(&format!("pathPrefix: /clusters/{}{more}", self.name))
    }

    fn entry(&self, fields: &str) -> String {
        let name = self.name;
        format!(
            "- {{name: {name}, {fields}, delegateKubeconfig: {name}.kubeconfig, clientCAFile: {name}-ca.crt, \
             tokenAuthFile: {name}-tokens.csv}}\n"
        )
    }

    /// Paths that clients asked for, without the requests of the gateway itself.
    pub(crate) fn client_requests(&self) -> Vec<String> {
        self.received_from_clients().map(|request| request.uri.path().to_owned()).collect()
    }

    /// The last request of a client: the gateway reads discovery at any time.
    pub(crate) fn last_client_request(&self) -> ReceivedRequest {
        self.received_from_clients().last().expect("a request of a client reached the server")
    }

    fn received_from_clients(&self) -> impl Iterator<Item = ReceivedRequest> {
        let received = self.server.received().into_iter();
        received.filter(|request| request.header_values("x-remote-user") != ["system:kube-aggregator"])
    }
}

/// Writes `NAME.kubeconfig` for the API server at `address`.
pub(crate) fn write_kubeconfig(environment: &TestEnvironment, name: &str, address: SocketAddr) {
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{"name": "c", "cluster": {
            "server": format!("https://{address}"), "certificate-authority": "backend-ca.crt",
        }}],
        "contexts": [{"name": "x", "context": {"cluster": "c"}}],
    });
    fs::write(environment.path(&format!("{name}.kubeconfig")), kubeconfig.to_string()).unwrap();
}

/// Starts the control planes `c` and `d`. In both, the token `shared` is that of alice.
pub(crate) async fn start_two(environment: &TestEnvironment) -> (TestControlPlane, TestControlPlane) {
    let planes = (TestControlPlane::start(environment, "c").await, TestControlPlane::start(environment, "d").await);
    for name in ["c", "d"] {
        write_token(environment, name, "shared", "alice");
    }
    planes
}

/// Writes `NAME-tokens.csv` with one token, which is this user's.
pub(crate) fn write_token(environment: &TestEnvironment, name: &str, token: &str, user: &str) {
    fs::write(environment.path(&format!("{name}-tokens.csv")), format!("{token},{user},1\n")).unwrap();
}

/// Discovery and OpenAPI of the API server of a test control plane.
fn server_document(name: &str, path: &str, accept: &str) -> Option<BackendResponse> {
    let group = format!("{name}.example.com");
    let document = match path {
        "/api" | "/apis" if accept.contains("as=APIGroupDiscoveryList") => {
            let kind = json!({"group": group, "version": "v1", "kind": "Kind"});
            let groups = json!([{"metadata": {"name": group}, "versions": [{"version": "v1", "freshness": "Current",
                "resources": [{"resource": "kinds", "responseKind": kind, "scope": "Namespaced", "singularResource": "",
                    "verbs": ["get"]}]}]}]);
            let items = if path == "/apis" { groups } else { json!([]) };
            let list = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": items});
            let mut response = json_response(200, &list.to_string());
            response.headers_mut().insert("content-type", V2.parse().unwrap());
            response
        }
        "/openapi/v3" => {
            let url = format!("/openapi/v3/apis/{group}/v1?hash=AA");
            json_response(200, &json!({"paths": {format!("apis/{group}/v1"): {"serverRelativeURL": url}}}).to_string())
        }
        "/openapi/v2" => {
            let schema = json!({"$ref": format!("#/definitions/com.example.{name}.v1.Kind")});
            let get = json!({"responses": {"200": {"description": "OK", "schema": schema}}});
            let kind = json!({"type": "object", "x-kubernetes-group-version-kind":
                [{"group": group, "version": "v1", "kind": "Kind"}]});
            let document = json!({"swagger": "2.0", "info": {"title": name, "version": "1"},
                "paths": {format!("/apis/{group}/v1/kinds"): {"get": get}},
                "definitions": {format!("com.example.{name}.v1.Kind"): kind}});
            json_response(200, &document.to_string())
        }
        _ => return None,
    };
    Some(document)
}

/// Writes the file of control planes by rename, as tools do.
pub(crate) fn write_control_planes(environment: &TestEnvironment, entries: &[String]) {
    let text = format!("apiVersion: narthex.dev/v1alpha1\nkind: ControlPlanes\ncontrolPlanes:\n{}", entries.concat());
    write_file(environment, &text);
}

pub(crate) fn write_file(environment: &TestEnvironment, text: &str) {
    fs::write(environment.path(".control-planes.tmp"), text).unwrap();
    fs::rename(environment.path(".control-planes.tmp"), environment.path("control-planes.yaml")).unwrap();
}

pub(crate) fn flag(environment: &TestEnvironment) -> String {
    format!("--control-planes-config={}", environment.path("control-planes.yaml").display())
}

/// Starts a gateway with these control planes.
pub(crate) fn start_gateway(environment: &TestEnvironment, entries: &[String], more: &[&str]) -> GatewayProcess {
    write_control_planes(environment, entries);
    let flag = flag(environment);
    let flags: Vec<&str> = std::iter::once(flag.as_str()).chain(more.iter().copied()).collect();
    environment.start_gateway(&flags)
}

/// A connection with this server name in the handshake; an IP address is not sent.
pub(crate) async fn connect(
    environment: &TestEnvironment,
    gateway: &GatewayProcess,
    server_name: &'static str,
    pair: Option<&CertKeyPair>,
    protocol: &str,
) -> Client {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(environment.serving_ca.certificate().clone()).unwrap();
    let builder = rustls::ClientConfig::builder_with_provider(narthex::tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match pair {
        Some(pair) => builder.with_client_auth_cert(pair.0.0.clone(), pair.0.1.clone_key()).unwrap(),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let socket = TcpStream::connect(gateway.address).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = connector.connect(server_name.try_into().unwrap(), socket).await.unwrap();
    Client::from_stream(stream, protocol == "http/1.1").await
}

/// Requests `path` of `host`, with headers; the head of the answer.
pub(crate) async fn open(
    client: &Client,
    host: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> http::Response<Incoming> {
    let mut request = Request::builder();
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let body = Empty::<Bytes>::new().map_err(|never| match never {}).boxed();
    let sending = async {
        match client {
            Client::Http1(sender) => {
                let request = request.uri(path).header("host", host).body(body).unwrap();
                let mut sender = sender.lock().await;
                sender.ready().await.unwrap();
                sender.send_request(request).await.unwrap()
            }
            Client::Http2(sender) => {
                let uri = format!("https://{host}{path}");
                let request = request.uri(uri).version(http::Version::HTTP_2).body(body).unwrap();
                sender.clone().send_request(request).await.unwrap()
            }
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, sending).await.expect("an answer in time")
}

/// A GET of `path` of the control plane `name` with this token; the whole answer.
pub(crate) async fn get_with_token(client: &Client, name: &str, path: &str, token: &str) -> ClientResponse {
    let authorization = format!("Bearer {token}");
    request(client, "localhost", &format!("/clusters/{name}{path}"), &[("authorization", &authorization)]).await
}

/// The whole answer.
pub(crate) async fn request(client: &Client, host: &str, path: &str, headers: &[(&str, &str)]) -> ClientResponse {
    read_response(open(client, host, path, headers).await).await
}

/// What the API server of a test control plane answers.
pub(crate) fn answer(name: &str, path: &str) -> Value {
    json!({"server": name, "path": path})
}

/// The row of a control plane in the status report.
pub(crate) async fn status_of(gateway: &GatewayProcess, name: &str) -> Option<Value> {
    let report = admin_request(gateway, get("/status.json", &[])).await.json();
    report["controlPlanes"].as_array()?.iter().find(|row| row["name"] == name).cloned()
}

/// Waits until a control plane is in this state.
pub(crate) async fn wait_for_state(gateway: &GatewayProcess, name: &str, state: &str) -> Value {
    eventually(&format!("{name} to be {state}"), async || {
        status_of(gateway, name).await.filter(|row| row["state"] == state)
    })
    .await
}
