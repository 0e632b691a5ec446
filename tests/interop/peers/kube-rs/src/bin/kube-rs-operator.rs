//! An operator as people write them with kube-rs: keeps as many ConfigMaps for a Fleet as its spec says, with the
//! finalizer helper, owned objects, status, scale and Events. `kube-rs-operator definition` prints the
//! CustomResourceDefinition that the derive macro makes.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::{finalizer, watcher};
use kube::{Api, Client, CustomResource, CustomResourceExt, Resource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

const FINALIZER: &str = "fleet.example.com/ships";

/// Ships that sail together.
#[derive(CustomResource, Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[kube(
    group = "fleet.example.com",
    version = "v1",
    kind = "Fleet",
    namespaced,
    status = "FleetStatus",
    shortname = "fl",
    category = "ships",
    selectable = ".spec.harbor",
    printcolumn = r#"{"name":"Ships","type":"integer","jsonPath":".status.replicas"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    )
)]
struct FleetSpec {
    /// How many ships there are.
    #[schemars(range(min = 0, max = 9))]
    #[serde(default = "one")]
    replicas: i32,
    /// Where they are at home.
    harbor: Option<String>,
}

fn one() -> i32 {
    1
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
enum Phase {
    Sailing,
    Docked,
}

#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct FleetStatus {
    replicas: i32,
    phase: Phase,
    selector: String,
    observed_generation: i64,
}

struct Context {
    client: Client,
    recorder: Recorder,
}

async fn reconcile(fleet: Arc<Fleet>, context: Arc<Context>) -> Result<Action, finalizer::Error<kube::Error>> {
    let fleets: Api<Fleet> = Api::namespaced(context.client.clone(), &fleet.namespace().unwrap_or_default());
    finalizer(&fleets, FINALIZER, fleet, |event| async {
        match event {
            finalizer::Event::Apply(fleet) => apply(&fleets, &fleet, &context).await,
            finalizer::Event::Cleanup(fleet) => {
                remove_ships(&context, &fleet, 0).await?;
                println!("cleaned up {}", fleet.name_any());
                Ok(Action::await_change())
            }
        }
    })
    .await
}

async fn apply(fleets: &Api<Fleet>, fleet: &Fleet, context: &Context) -> Result<Action, kube::Error> {
    let ships: Api<ConfigMap> = Api::namespaced(context.client.clone(), &fleet.namespace().unwrap_or_default());
    for number in 0..fleet.spec.replicas {
        let name = format!("{}-{number}", fleet.name_any());
        let ship = ConfigMap {
            metadata: ObjectMeta {
                name: Some(name),
                labels: Some([("fleet".to_owned(), fleet.name_any())].into()),
                owner_references: fleet.controller_owner_ref(&()).map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            data: Some([("harbor".to_owned(), fleet.spec.harbor.clone().unwrap_or_default())].into()),
            ..ConfigMap::default()
        };
        match ships.create(&PostParams::default(), &ship).await {
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {}
            created => drop(created?),
        }
    }
    remove_ships(context, fleet, fleet.spec.replicas).await?;
    let status = FleetStatus {
        replicas: fleet.spec.replicas,
        phase: if fleet.spec.replicas == 0 { Phase::Docked } else { Phase::Sailing },
        selector: format!("fleet={}", fleet.name_any()),
        observed_generation: fleet.metadata.generation.unwrap_or_default(),
    };
    if fleet.status.as_ref() != Some(&status) {
        let patch = Patch::Merge(json!({"status": status}));
        fleets.patch_status(&fleet.name_any(), &PatchParams::default(), &patch).await?;
        let event = Event {
            type_: EventType::Normal,
            reason: "Scaled".to_owned(),
            note: Some(format!("{} ships", status.replicas)),
            action: "Scale".to_owned(),
            secondary: None,
        };
        context.recorder.publish(&event, &fleet.object_ref(&())).await?;
    }
    Ok(Action::await_change())
}

/// Deletes the ships from a number on: the finalizer does not depend on garbage collection.
async fn remove_ships(context: &Context, fleet: &Fleet, first: i32) -> Result<(), kube::Error> {
    let ships: Api<ConfigMap> = Api::namespaced(context.client.clone(), &fleet.namespace().unwrap_or_default());
    let selector = ListParams::default().labels(&format!("fleet={}", fleet.name_any()));
    for ship in ships.list(&selector).await? {
        let name = ship.name_any();
        let number = name.rsplit('-').next().and_then(|number| number.parse::<i32>().ok());
        if number.is_some_and(|number| number >= first) {
            match ships.delete(&name, &DeleteParams::default()).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                deleted => drop(deleted?),
            }
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::args().nth(1).as_deref() == Some("definition") {
        println!("{}", serde_json::to_string_pretty(&Fleet::crd())?);
        return Ok(());
    }
    let client = Client::try_default().await?;
    let namespace = std::env::var("NAMESPACE")?;
    let reporter = Reporter { controller: "kube-rs-operator".to_owned(), instance: None };
    let context = Context { client: client.clone(), recorder: Recorder::new(client.clone(), reporter) };
    let owned = watcher::Config::default().labels("fleet");
    Controller::new(Api::<Fleet>::namespaced(client.clone(), &namespace), watcher::Config::default())
        .owns(Api::<ConfigMap>::namespaced(client, &namespace), owned)
        .run(
            reconcile,
            |_, error, _| {
                eprintln!("error: {error:?}");
                Action::requeue(Duration::from_millis(500))
            },
            Arc::new(context),
        )
        .for_each(|outcome| async move {
            if let Err(error) = outcome {
                eprintln!("error: {error:?}");
            }
        })
        .await;
    Ok(())
}
