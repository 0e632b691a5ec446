//! A gateway in front of one group of backends, with user jane as its client.

use std::net::SocketAddr;

use hyper::body::Incoming;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::backend::Backend;
use crate::client::{Client, connect, get, next};
use crate::world::{Gateway, Pair, World};

pub(crate) const THINGS: &str = "/apis/things.example.com/v1/namespaces/default/things";

/// One test's stage. The gateway ends with it.
pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) gateway: Gateway,
    pub(crate) jane: Pair,
}

impl Scene {
    /// `things.example.com/v1` served by `backends`; `annotations` are as [`register`] takes them.
    pub(crate) fn new(world: World, backends: &[&Backend], annotations: &[(&str, &str)]) -> Scene {
        Scene::with(world, backends, annotations, &[])
    }

    /// As [`Scene::new`], with more flags for the gateway.
    pub(crate) fn with(world: World, backends: &[&Backend], annotations: &[(&str, &str)], flags: &[&str]) -> Scene {
        let addresses: Vec<_> = backends.iter().map(|backend| backend.address).collect();
        register(&world, &addresses, annotations);
        Scene::of(world, flags)
    }

    /// As [`Scene::new`], for places where there may be no backend.
    pub(crate) fn at(world: World, addresses: &[SocketAddr], annotations: &[(&str, &str)]) -> Scene {
        register(&world, addresses, annotations);
        Scene::of(world, &[])
    }

    /// Whatever is registered already.
    pub(crate) fn of(world: World, flags: &[&str]) -> Scene {
        let gateway = world.gateway(flags);
        let jane = world.user("jane", &["devs"]);
        Scene { world, gateway, jane }
    }

    /// A connection on which nothing was said yet.
    pub(crate) async fn connect(&self, protocol: &str) -> TlsStream<TcpStream> {
        connect(&self.world, self.gateway.address, Some(&self.jane), &[protocol]).await
    }

    pub(crate) async fn http1(&self) -> Client {
        Client::http1(&self.world, &self.gateway, Some(&self.jane)).await
    }

    pub(crate) async fn http2(&self) -> Client {
        Client::http2(&self.world, &self.gateway, Some(&self.jane)).await
    }

    pub(crate) async fn both(&self) -> [Client; 2] {
        [self.http1().await, self.http2().await]
    }
}

/// Registers `things.example.com/v1` at `addresses`; `annotations` are names behind `narthex.dev/` and values.
/// However often the test's faults fail a probe, the APIService stays available.
pub(crate) fn register(world: &World, addresses: &[SocketAddr], annotations: &[(&str, &str)]) {
    let text = world.manifests("things.example.com", "v1", addresses, &annotated(annotations));
    world.registry("things.yaml", &text);
}

/// Begins to watch things at a backend that [`crate::backend::watched`] gave.
pub(crate) async fn watch(client: &Client) -> Incoming {
    let mut body = client.send(get(&format!("{THINGS}?watch=1"), &[])).await.unwrap().into_body();
    assert_eq!(next(&mut body).await.unwrap().unwrap(), "first\n");
    body
}

/// Annotations as YAML below `metadata`.
pub(crate) fn annotated(annotations: &[(&str, &str)]) -> String {
    let mut text = "  annotations:\n    narthex.dev/failure-threshold: '1000'\n".to_owned();
    for (name, value) in annotations {
        text += &format!("    narthex.dev/{name}: '{value}'\n");
    }
    text
}
