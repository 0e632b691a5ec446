//! A gateway with one group of backends behind it, and jane in front of it.

use crate::backend::Backend;
use crate::client::Client;
use crate::world::{Gateway, Pair, World};

pub(crate) const THINGS: &str = "/apis/things.example.com/v1/namespaces/default/things";

/// One test's stage. The gateway ends with it.
pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) gateway: Gateway,
    pub(crate) jane: Pair,
}

impl Scene {
    /// `things.example.com/v1` served by `backends`; `annotations` are names behind `narthex.dev/` and
    /// values. However often the test's faults fail a probe, the APIService stays available.
    pub(crate) fn new(world: World, backends: &[&Backend], annotations: &[(&str, &str)]) -> Scene {
        Scene::with(world, backends, annotations, &[])
    }

    /// As [`Scene::new`], with more flags for the gateway.
    pub(crate) fn with(world: World, backends: &[&Backend], annotations: &[(&str, &str)], flags: &[&str]) -> Scene {
        let addresses: Vec<_> = backends.iter().map(|backend| backend.address).collect();
        let annotations = annotated(annotations);
        world.registry("things.yaml", &world.manifests("things.example.com", "v1", &addresses, &annotations));
        let gateway = world.gateway(flags);
        let jane = world.user("jane", &["devs"]);
        Scene { world, gateway, jane }
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

/// Annotations as YAML below `metadata`.
pub(crate) fn annotated(annotations: &[(&str, &str)]) -> String {
    let mut text = "  annotations:\n    narthex.dev/failure-threshold: '1000'\n".to_owned();
    for (name, value) in annotations {
        text += &format!("    narthex.dev/{name}: '{value}'\n");
    }
    text
}
