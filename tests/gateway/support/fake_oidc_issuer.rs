//! A fake OIDC issuer: discovery document and JWKS over https, and a token signer.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

use crate::support::fixtures::{CertKeyPair, TestEnvironment};

#[path = "../../../src/authenticate/jwt/test_signer.rs"]
mod test_signer;

pub(crate) use test_signer::{SigningKey, unsigned};

pub(crate) const DISCOVERY: &str = "/.well-known/openid-configuration";
pub(crate) const KEYS: &str = "/keys";

/// What a document of the issuer is: status, content type and body; none never answers.
pub(crate) type IssuerDocument = Option<(u16, &'static str, String)>;

/// A listening issuer; it stops when dropped.
pub(crate) struct FakeOidcIssuer {
    pub(crate) url: String,
    documents: Arc<Mutex<HashMap<String, IssuerDocument>>>,
    requests: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
}

impl FakeOidcIssuer {
    /// An issuer with these keys, whose certificate is of the backends' authority.
    pub(crate) async fn start(environment: &TestEnvironment, keys: &[(&str, &SigningKey)]) -> FakeOidcIssuer {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let tls = tokio_rustls::TlsAcceptor::from(Arc::new(server_config(&environment.issue_backend(&["127.0.0.1"]))));
        let documents = Arc::<Mutex<HashMap<String, IssuerDocument>>>::default();
        let recorded = Arc::<Mutex<Vec<String>>>::default();
        let (served, noted) = (documents.clone(), recorded.clone());
        let task = tokio::spawn(async move {
            let mut running = tokio::task::JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let (tls, served, noted) = (tls.clone(), served.clone(), noted.clone());
                running.spawn(async move {
                    let Ok(stream) = tls.accept(socket).await else { return };
                    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                        let path = request.uri().path().to_owned();
                        noted.lock().unwrap().push(path.clone());
                        let document = served.lock().unwrap().get(&path).cloned().unwrap_or(Some((
                            404,
                            "text/plain",
                            String::new(),
                        )));
                        document_response(document)
                    });
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        let issuer =
            FakeOidcIssuer { url: format!("https://{}", address_text(address)), documents, requests: recorded, task };
        issuer.publish(keys);
        issuer
    }

    /// From now on these are its keys.
    pub(crate) fn publish(&self, keys: &[(&str, &SigningKey)]) {
        let discovery = json!({"issuer": self.url, "jwks_uri": format!("{}{KEYS}", self.url)}).to_string();
        self.serve(DISCOVERY, Some((200, "application/json", discovery)));
        let keys: Vec<Value> = keys.iter().map(|(name, key)| key.jwk(name)).collect();
        self.serve(KEYS, Some((200, "application/json", test_signer::key_set(&keys))));
    }

    /// From now on this is at `path`.
    pub(crate) fn serve(&self, path: &str, document: IssuerDocument) {
        self.documents.lock().unwrap().insert(path.to_owned(), document);
    }

    /// How often a document was asked for.
    pub(crate) fn request_count(&self, path: &str) -> usize {
        self.requests.lock().unwrap().iter().filter(|recorded| *recorded == path).count()
    }

    /// Claims of jane that are good for an hour; `more` besides.
    pub(crate) fn claims(&self, more: &Value) -> Value {
        let mut claims =
            json!({"iss": self.url, "aud": "narthex", "sub": "jane", "exp": unix_now() + 3600, "iat": unix_now()});
        for (name, value) in more.as_object().unwrap() {
            claims[name] = value.clone();
        }
        claims
    }

    /// An `AuthenticationConfiguration` of this issuer; `jwt` replaces fields of its entry.
    pub(crate) fn single_issuer_configuration(&self, environment: &TestEnvironment, jwt: &Value) -> Value {
        let mut entry = json!({
            "issuer": {
                "url": self.url, "audiences": ["narthex"], "certificateAuthority": environment.read_file("backend-ca.crt"),
            },
            "claimMappings": {
                "username": {"claim": "sub", "prefix": "oidc:"}, "groups": {"claim": "groups", "prefix": "oidc:"},
            },
        });
        for (name, value) in jwt.as_object().unwrap() {
            entry[name] = value.clone();
        }
        authentication_configuration(&[entry])
    }
}

impl Drop for FakeOidcIssuer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An `AuthenticationConfiguration` with these entries.
pub(crate) fn authentication_configuration(jwt: &[Value]) -> Value {
    json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration", "jwt": jwt})
}

/// Seconds since 1970.
pub(crate) fn unix_now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

fn address_text(address: SocketAddr) -> String {
    address.to_string()
}

async fn document_response(document: IssuerDocument) -> Result<Response<Full<Bytes>>, Infallible> {
    let Some((status, kind, body)) = document else { return std::future::pending().await };
    let mut response = Response::builder().status(status).header("content-type", kind);
    if (300..400).contains(&status) {
        response = response.header("location", &body);
    }
    Ok(response.body(Full::new(Bytes::from(body))).unwrap())
}

/// TLS of a server that asks for no client certificate.
pub(crate) fn server_config(pair: &CertKeyPair) -> rustls::ServerConfig {
    let (chain, key) = &*pair.0;
    rustls::ServerConfig::builder_with_provider(narthex::tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain.clone(), key.clone_key())
        .unwrap()
}
