//! A gateway in front of one group of backends, with user jane as its client.

use std::net::SocketAddr;

use hyper::body::Incoming;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::support::backend::Backend;
use crate::support::client::{Client, connect, get, next_chunk};
use crate::support::fixtures::{CertKeyPair, GatewayProcess, TestEnvironment};

pub(crate) const THINGS: &str = "/apis/things.example.com/v1/namespaces/default/things";

/// One test's stage. The gateway ends with it.
pub(crate) struct GatewayFixture {
    pub(crate) environment: TestEnvironment,
    pub(crate) gateway: GatewayProcess,
    pub(crate) jane: CertKeyPair,
}

impl GatewayFixture {
    /// `things.example.com/v1` served by `backends`; `annotations` are as [`register`] takes them.
    pub(crate) fn new(
        environment: TestEnvironment,
        backends: &[&Backend],
        annotations: &[(&str, &str)],
    ) -> GatewayFixture {
        GatewayFixture::with_flags(environment, backends, annotations, &[])
    }

    /// As [`Scene::new`], with more flags for the gateway.
    pub(crate) fn with_flags(
        environment: TestEnvironment,
        backends: &[&Backend],
        annotations: &[(&str, &str)],
        flags: &[&str],
    ) -> GatewayFixture {
        let addresses: Vec<_> = backends.iter().map(|backend| backend.address).collect();
        register_things(&environment, &addresses, annotations);
        GatewayFixture::from_registry(environment, flags)
    }

    /// As [`Scene::new`], for places where there may be no backend.
    pub(crate) fn with_addresses(
        environment: TestEnvironment,
        addresses: &[SocketAddr],
        annotations: &[(&str, &str)],
    ) -> GatewayFixture {
        register_things(&environment, addresses, annotations);
        GatewayFixture::from_registry(environment, &[])
    }

    /// Whatever is registered already.
    pub(crate) fn from_registry(environment: TestEnvironment, flags: &[&str]) -> GatewayFixture {
        let gateway = environment.start_gateway(flags);
        let jane = environment.issue_user("jane", &["devs"]);
        GatewayFixture { environment, gateway, jane }
    }

    /// A connection on which nothing was said yet.
    pub(crate) async fn connect(&self, protocol: &str) -> TlsStream<TcpStream> {
        connect(&self.environment, self.gateway.address, Some(&self.jane), &[protocol]).await
    }

    pub(crate) async fn http1(&self) -> Client {
        Client::http1(&self.environment, &self.gateway, Some(&self.jane)).await
    }

    pub(crate) async fn http2(&self) -> Client {
        Client::http2(&self.environment, &self.gateway, Some(&self.jane)).await
    }

    pub(crate) async fn both_protocols(&self) -> [Client; 2] {
        [self.http1().await, self.http2().await]
    }
}

/// Registers `things.example.com/v1` at `addresses`; `annotations` are names behind `run_narthex.dev/` and values.
/// However often the test's faults fail a probe, the APIService stays available.
pub(crate) fn register_things(environment: &TestEnvironment, addresses: &[SocketAddr], annotations: &[(&str, &str)]) {
    let text = environment.apiservice_manifests("things.example.com", "v1", addresses, &annotations_yaml(annotations));
    environment.write_registry("things.yaml", &text);
}

/// Begins to watch things at a backend that [`crate::support::backend::start_watch_backend`] gave.
pub(crate) async fn open_watch(client: &Client) -> Incoming {
    let mut body = client.send(get(&format!("{THINGS}?watch=1"), &[])).await.unwrap().into_body();
    assert_eq!(next_chunk(&mut body).await.unwrap().unwrap(), "first\n");
    body
}

/// Annotations as YAML below `metadata`.
pub(crate) fn annotations_yaml(annotations: &[(&str, &str)]) -> String {
    let mut text = "  annotations:\n    narthex.dev/failure-threshold: '1000'\n".to_owned();
    for (name, value) in annotations {
        text += &format!("    narthex.dev/{name}: '{value}'\n");
    }
    text
}
