//! The sample objects of the quickstart: CustomResourceDefinitions, and a few objects of their kinds.

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use crate::commands::gateway::GatewayHandle;
use crate::egress::Resolver;
use crate::kubeclient::{CallPolicy, Client, KubeconfigSource};
use crate::process::{ManifestDocument, Problem, Problems, parse_documents};

/// The manifests, CustomResourceDefinitions first.
const MANIFESTS: &str = include_str!("sample_objects.yaml");
/// Location that problems name.
const LOCATION: &str = "the sample objects";
/// Kinds with `status.createdBy`.
const HAS_STATUS: [&str; 2] = ["Greeting", "Door"];
/// Pause before a call is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Creates the sample objects as the user of a kubeconfig, as far as they do not exist. When this returns, `gateway`
/// serves their resources.
///
/// # Errors
/// They are not created within the timeout.
pub(super) fn create_sample_objects(
    gateway: &GatewayHandle,
    kubeconfig: &Path,
    timeout: Duration,
) -> Result<(), Problems> {
    let (objects, problems) = parse_documents(LOCATION, MANIFESTS, false);
    if !problems.0.is_empty() {
        return Err(problems);
    }
    let (crds, objects): (Vec<_>, Vec<_>) = objects.into_iter().partition(is_crd);
    let source = KubeconfigSource::from_flag(kubeconfig.to_owned());
    let loaded = source.load()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Problem::new(LOCATION, error))?;
    let end = Instant::now() + timeout;
    let create = async {
        let client = Client::new(source, loaded, Resolver::System.into());
        for crd in &crds {
            create_missing(&client, crd, end).await?;
        }
        for (group, version, resource) in crds.iter().flat_map(served_resources) {
            gateway.wait_until_served((group, version, resource), end.saturating_duration_since(Instant::now()));
        }
        for object in &objects {
            create_missing(&client, object, end).await?;
        }
        Ok::<(), Problem>(())
    };
    Ok(tokio::task::LocalSet::new().block_on(&runtime, create)?)
}

fn is_crd(object: &ManifestDocument) -> bool {
    object.kind == "CustomResourceDefinition"
}

/// Group, version and plural of each version of a CRD.
fn served_resources(crd: &ManifestDocument) -> impl Iterator<Item = (&str, &str, &str)> {
    let spec = &crd.value["spec"];
    let (group, plural) = (&spec["group"], &spec["names"]["plural"]);
    let versions = spec["versions"].as_array().into_iter().flatten();
    versions.filter_map(move |version| Some((group.as_str()?, version["name"].as_str()?, plural.as_str()?)))
}

/// Path of the list that an object of `kind` belongs to.
fn collection_path(kind: &str) -> &'static str {
    match kind {
        "Greeting" => "/apis/example.narthex.dev/v1/namespaces/default/greetings",
        "Door" => "/apis/example.narthex.dev/v1alpha1/doors",
        "Bell" => "/apis/samples.narthex.dev/v1/namespaces/default/bells",
        _ => "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    }
}

/// Creates an object unless it exists. An earlier process may have created all or some.
async fn create_missing(client: &Client, object: &ManifestDocument, end: Instant) -> Result<(), Problem> {
    let path = collection_path(&object.kind);
    let list = call(client, Method::GET, path, None, end).await?;
    let is_present =
        list["items"].as_array().into_iter().flatten().any(|item| item["metadata"]["name"] == *object.name);
    if is_present {
        return Ok(());
    }
    let mut created = call(client, Method::POST, path, Some(&object.value), end).await?;
    if HAS_STATUS.contains(&&*object.kind) {
        created["status"] = json!({"createdBy": "narthex quickstart"});
        let path = format!("{path}/{}/status", object.name);
        call(client, Method::PUT, &path, Some(&created), end).await?;
    }
    Ok(())
}

/// The JSON body of the response to a request; it is sent again until it succeeds.
async fn call(
    client: &Client,
    method: Method,
    path: &str,
    object: Option<&Value>,
    end: Instant,
) -> Result<Value, Problem> {
    loop {
        let body = object.map(|object| Bytes::from(object.to_string()));
        let policy = CallPolicy::within(end.saturating_duration_since(Instant::now()));
        let why = match client.call(method.clone(), path, body, policy, |_, _| {}).await {
            Ok(response) if response.is_success() => match serde_json::from_slice(&response.body) {
                Ok(value) => return Ok(value),
                Err(error) => error.to_string(),
            },
            Ok(response) => response.describe(),
            Err(error) => error.to_string(),
        };
        if Instant::now() >= end {
            return Err(Problem::new(LOCATION, format!("{path}: {why}")));
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_objects_are_of_sample_kinds() {
        let (objects, problems) = parse_documents("f", MANIFESTS, false);
        assert_eq!(problems.to_string(), "");
        let (crds, objects): (Vec<_>, Vec<_>) = objects.iter().partition(|object| is_crd(object));
        let served: Vec<_> = crds.iter().flat_map(|crd| served_resources(crd)).collect();
        assert_eq!(
            served,
            [
                ("example.narthex.dev", "v1", "greetings"),
                ("example.narthex.dev", "v1alpha1", "doors"),
                ("samples.narthex.dev", "v1", "bells"),
                ("samples.narthex.dev", "v1alpha1", "bells"),
            ]
        );
        assert_eq!(objects.len(), 8);
        for object in objects {
            let crd = crds.iter().find(|crd| crd.value["spec"]["names"]["kind"] == *object.kind);
            let (group, _, plural) = served_resources(crd.expect("a CRD of the kind")).next().unwrap();
            let path = collection_path(&object.kind);
            assert!(path.starts_with(&format!("/apis/{}/", object.api_version)), "{path}");
            assert!(path.ends_with(plural) && object.api_version.starts_with(group), "{path}");
            let namespace = object.value["metadata"]["namespace"].as_str();
            assert_eq!(namespace, path.contains("/namespaces/default/").then_some("default"), "{}", object.name);
        }
    }
}
