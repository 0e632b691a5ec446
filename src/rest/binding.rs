//! The subresource `binding` of Pods, and the resource `bindings`: a scheduler assigns a Pod to a node (`BindingREST` and
//! `LegacyBindingREST` in `pkg/registry/core/pod/storage/storage.go`).

use kubeapi::Status;
use kubeapi::field_error::FieldError;
use kubeapi::json::write_stored_json;
use kubeapi::object_meta::{ObjectMetaView, change_metadata};
use serde_json::{Map, Value, json};
use store::watch_cache::{Error, ResourceCollection, Stored};

use super::api_server::ApiServer;
use super::errors::cache_error;
use super::representation::VerbReply;
use super::request::ApiRequest;
use super::target::{ObjectTarget, check_name_parameter};
use super::write_options::WriteOptions;
use super::{metadata, request_body};
use crate::conversion::stored_object;
use crate::kinds::set_pod_condition;
use crate::resources::ServedKind;

/// Assigns a Pod to the node that the `Binding` in the body names. If the path names no Pod, the `Binding` does.
///
/// # Errors
/// 400 without a name, 404, 409 for a Pod that is bound, is being deleted or has gates, or is another one than the `Binding` says.
pub(super) async fn bind(
    api: &ApiServer,
    pods: &ResourceCollection,
    target: &ObjectTarget<'_>,
    kind: &ServedKind,
    request: &ApiRequest<'_>,
    warnings: &mut Vec<String>,
) -> Result<VerbReply, Status> {
    let options = WriteOptions::parse(request.query, "CreateOptions")?;
    let binding = request_body::decode_subresource(api, request, (target, kind), options.validation, warnings).await?;
    let meta = ObjectMetaView::of_map(&binding);
    check_name_parameter(meta.name())?;
    let target = &ObjectTarget::new(target.kind.clone(), target.namespace, meta.name().to_owned(), "binding");
    let errors = binding_errors(binding.get("target").unwrap_or(&Value::Null));
    if !errors.is_empty() {
        // As upstream: an error without a reason.
        return Err(Status::new(500, "", join_errors(&errors)));
    }
    let key = target.key(pods)?;
    let mut latest = pods.get_latest(&key).await.map_err(|error| cache_error(target, error))?;
    loop {
        let current = latest.ok_or_else(|| target.not_found())?;
        check_preconditions(target, &current, &meta)?;
        let pod = assigned_pod(target, stored_object(&current).await?, &binding)?;
        if !options.is_dry_run {
            let value = write_stored_json(&pod).bytes;
            match pods.update(&key, current.revision(), value.into(), None).await {
                Ok(_) => {}
                Err(Error::Conflict { current }) => {
                    latest = current;
                    continue;
                }
                Err(error) => return Err(cache_error(target, error)),
            }
        }
        return Ok(VerbReply::created());
    }
}

/// The text of several errors (`ErrorList.ToAggregate`).
fn join_errors(errors: &[FieldError]) -> String {
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    match &*texts {
        [one] => one.clone(),
        _ => format!("[{}]", texts.join(", ")),
    }
}

/// The errors of a `Binding` (`ValidatePodBinding`).
fn binding_errors(target: &Value) -> Vec<FieldError> {
    let text = |field: &str| target[field].as_str().unwrap_or_default();
    let mut errors = Vec::new();
    if !matches!(text("kind"), "" | "Node") {
        errors.push(FieldError::not_supported("target.kind", text("kind"), &["Node", "<empty>"]));
    }
    if text("name").is_empty() {
        errors.push(FieldError::required("target.name", ""));
    }
    errors
}

/// 409 if the Pod is not the one that the `Binding` means, with the text of `k8s.io/apiserver/pkg/storage`.
fn check_preconditions(target: &ObjectTarget<'_>, pod: &Stored, binding: &ObjectMetaView<'_>) -> Result<(), Status> {
    let version = pod.revision().to_string();
    let wrong = [
        ("UID", binding.uid(), &*pod.metadata().uid, "UID"),
        ("ResourceVersion", binding.resource_version(), version.as_str(), "ResourceVersion"),
    ];
    for (what, wanted, found, name) in wrong {
        if !wanted.is_empty() && wanted != found {
            let why = format!(
                "StorageError: invalid object, Code: 4, Key: {}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: \
                 {what} in precondition: {wanted}, {name} in object meta: {found}",
                pod.key()
            );
            return Err(Status::conflict("", "pods", &target.name, why));
        }
    }
    Ok(())
}

/// The Pod on its node (`setPodNodeAndMetadata`).
///
/// # Errors
/// 409 for a Pod that cannot be assigned.
fn assigned_pod(
    target: &ObjectTarget<'_>,
    mut pod: Map<String, Value>,
    binding: &Map<String, Value>,
) -> Result<Map<String, Value>, Status> {
    let name = &target.name;
    let refuse = |why: String| Err(Status::conflict("", "pods/binding", name, why));
    if ObjectMetaView::of_map(&pod).deletion_timestamp().is_some() {
        return refuse(format!("pod {name} is being deleted, cannot be assigned to a host"));
    }
    let spec = pod.entry("spec").or_insert_with(|| json!({}));
    if let Some(node) = spec["nodeName"].as_str().filter(|node| !node.is_empty()) {
        return refuse(format!("pod {name} is already assigned to node {}", kubeapi::GoQuoted(node)));
    }
    if spec["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty()) {
        return refuse(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    spec["nodeName"] = binding.get("target").map_or(Value::Null, |target| target["name"].clone());
    let of_binding = binding.get("metadata").cloned().unwrap_or_default();
    change_metadata(&mut pod, |metadata| {
        for field in ["annotations", "labels"] {
            let Some(added) = of_binding[field].as_object().filter(|added| !added.is_empty()) else { continue };
            let own = metadata.entry(field).or_insert_with(|| json!({}));
            if let Some(own) = own.as_object_mut() {
                own.extend(added.clone());
            }
        }
    });
    if let Some(status) = pod.get_mut("status").and_then(Value::as_object_mut) {
        status.remove("nominatedNodeName");
    }
    set_pod_condition(&mut pod, &json!({"type": "PodScheduled", "status": "True"}), &metadata::now());
    Ok(pod)
}
