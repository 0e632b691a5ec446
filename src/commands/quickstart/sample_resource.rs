//! The custom resource of the quickstart: a CustomResourceDefinition with two versions, columns and a selectable field,
//! and a few objects.

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use crate::egress::Resolver;
use crate::kubeclient::{CallPolicy, Client, KubeconfigSource};
use crate::process::{Problem, Problems};

/// Group of the custom resource.
const SAMPLE_RESOURCE_GROUP: &str = "samples.narthex.dev";

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const OBJECTS: &str = "/apis/samples.narthex.dev/v1/namespaces/default/bells";
/// Pause before a call is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Creates the definition and its objects as the user of a kubeconfig, as far as they do not exist.
///
/// # Errors
/// They are not created within the time.
pub(super) fn create_sample_objects(kubeconfig: &Path, timeout: Duration) -> Result<(), Problems> {
    let source = KubeconfigSource::from_flag(kubeconfig.to_owned());
    let loaded = source.load()?;
    let failed = |error: std::io::Error| Problem::new("the sample objects", error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let create = async {
        let client = Client::new(source, loaded, Resolver::System.into());
        let end = Instant::now() + timeout;
        create_missing(&client, DEFINITIONS, &[definition()], end).await?;
        wait_until_discovered(&client, end).await?;
        let bells = [bell("angelus", "c", 60), bell("gloriosa", "e", 11_450), bell("sunday", "c", 2_300)];
        create_missing(&client, OBJECTS, &bells, end).await?;
        Ok::<(), Problem>(())
    };
    Ok(tokio::task::LocalSet::new().block_on(&runtime, create)?)
}

/// Waits until discovery has the group: kubectl would cache discovery without it.
async fn wait_until_discovered(client: &Client, end: Instant) -> Result<(), Problem> {
    let name = SAMPLE_RESOURCE_GROUP.as_bytes();
    loop {
        let groups = call(client, Method::GET, "/apis", None, end).await?;
        if groups.windows(name.len()).any(|part| part == name) {
            return Ok(());
        }
        if Instant::now() >= end {
            return Err(Problem::new("the sample objects", "the group is not in discovery"));
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// Creates the objects that the list at `path` does not have. An earlier process may have created all or some.
async fn create_missing(client: &Client, path: &str, objects: &[Value], end: Instant) -> Result<(), Problem> {
    let list: Value = serde_json::from_slice(&call(client, Method::GET, path, None, end).await?).unwrap_or_default();
    let items = list["items"].as_array().map_or(&[][..], Vec::as_slice);
    for object in objects {
        if items.iter().all(|item| item["metadata"]["name"] != object["metadata"]["name"]) {
            call(client, Method::POST, path, Some(object), end).await?;
        }
    }
    Ok(())
}

/// The body of the response to a request; it is sent again until it succeeds.
async fn call(
    client: &Client,
    method: Method,
    path: &str,
    object: Option<&Value>,
    end: Instant,
) -> Result<Bytes, Problem> {
    loop {
        let body = object.map(|object| Bytes::from(object.to_string()));
        let policy = CallPolicy::within(end.saturating_duration_since(Instant::now()));
        let why = match client.call(method.clone(), path, body, policy, |_, _| {}).await {
            Ok(response) if response.is_success() => return Ok(response.body),
            Ok(response) => response.describe(),
            Err(error) => error.to_string(),
        };
        if Instant::now() >= end {
            return Err(Problem::new("the sample objects", format!("{path}: {why}")));
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

fn definition() -> Value {
    let schema = json!({"openAPIV3Schema": {
        "type": "object",
        "description": "A bell in a tower.",
        "required": ["spec"],
        "properties": {"spec": {
            "type": "object",
            "required": ["tone"],
            "properties": {
                "tone": {"type": "string", "description": "Name of its note.", "enum": ["c", "d", "e", "f", "g", "a", "b"]},
                "weight": {"type": "integer", "description": "Weight in kg.", "minimum": 1, "default": 100},
            },
        }},
    }});
    let version = |name: &str, columns: &[Value]| {
        json!({
            "name": name, "served": true, "storage": name == "v1", "schema": schema,
            "selectableFields": [{"jsonPath": ".spec.tone"}],
            "additionalPrinterColumns": columns,
        })
    };
    let tone = json!({"name": "Tone", "type": "string", "jsonPath": ".spec.tone"});
    let weight = json!({"name": "Weight", "type": "integer", "jsonPath": ".spec.weight"});
    let age = json!({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "bells.samples.narthex.dev"},
        "spec": {
            "group": SAMPLE_RESOURCE_GROUP,
            "scope": "Namespaced",
            "names": {"plural": "bells", "singular": "bell", "kind": "Bell"},
            "versions": [
                version("v1", &[tone.clone(), weight, age.clone()]),
                version("v1alpha1", &[tone, age]),
            ],
        },
    })
}

fn bell(name: &str, tone: &str, weight: u32) -> Value {
    json!({
        "apiVersion": "samples.narthex.dev/v1",
        "kind": "Bell",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"tone": tone, "weight": weight},
    })
}
