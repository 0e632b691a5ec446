//! Writes into every ConfigMap labeled `mirror=yes` an annotation that says what its key `a` holds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};

async fn reconcile(map: Arc<ConfigMap>, client: Arc<Client>) -> Result<Action, kube::Error> {
    let (name, namespace) = (map.name_any(), map.namespace().unwrap_or_default());
    let held: BTreeMap<String, String> = map.data.clone().unwrap_or_default();
    let patch = serde_json::json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"annotations": {"mirror": held.get("a").cloned().unwrap_or_default()}},
    });
    let maps: Api<ConfigMap> = Api::namespaced((*client).clone(), &namespace);
    maps.patch(&name, &PatchParams::apply("mirror").force(), &Patch::Apply(&patch)).await?;
    Ok(Action::await_change())
}

#[tokio::main]
async fn main() -> Result<(), kube::Error> {
    let client = Client::try_default().await?;
    let maps: Api<ConfigMap> = Api::all(client.clone());
    println!("watching");
    Controller::new(maps, watcher::Config::default().labels("mirror=yes"))
        .run(
            reconcile,
            |_, error, _| {
                eprintln!("{error}");
                Action::requeue(Duration::from_secs(1))
            },
            Arc::new(client),
        )
        .for_each(|outcome| async move { println!("{outcome:?}") })
        .await;
    Ok(())
}
