//! The subresource `scale`: an `autoscaling/v1` `Scale` whose fields are fields of the object (`ScaleREST` in
//! `k8s.io/apiextensions-apiserver/pkg/registry/customresource/etcd.go` and `pkg/registry/apps/*/storage`).

use std::sync::LazyLock;

use kubeapi::Status;
use kubeapi::field_error::{FieldError, invalid_fields_status};
use kubeapi::object_meta::ObjectMetaView;
use serde_json::{Map, Value, json};
use store::watch_cache::ResourceCollection;

use super::api_server::ApiServer;
use super::errors::{cache_error, modified};
use super::patch::RequestPatch;
use super::representation::{ReplyContent, ReplyObject, VerbReply};
use super::request::ApiRequest;
use super::target::ObjectTarget;
use super::update::{Replaced, ReplacementOptions, replace};
use super::write::check_uid;
use super::write_options::WriteOptions;
use super::{metadata, request_body};
use crate::kinds::{custom_resource, label_selector_text};
use crate::resources::ServedKind;
use crate::resources::custom::crd::ScalePaths;

/// Attempts of a write that other writers overtake.
const ATTEMPTS: usize = 6;

/// The fields of workloads. Their selector is no text.
static BUILTIN_PATHS: LazyLock<ScalePaths> = LazyLock::new(|| ScalePaths {
    spec_replicas_path: ".spec.replicas".to_owned(),
    status_replicas_path: ".status.replicas".to_owned(),
    label_selector_path: None,
});

/// Reads or writes the `Scale` of an object.
///
/// # Errors
/// 400, 404, 409 `Conflict`, 415, 422; 500 for an object without the fields.
pub(super) async fn scale(
    api: &ApiServer,
    collection: &ResourceCollection,
    target: &ObjectTarget<'_>,
    kind: &ServedKind,
    request: &ApiRequest<'_>,
    warnings: &mut Vec<String>,
) -> Result<VerbReply, Status> {
    let paths = match target.kind.version.custom() {
        Some(version) => version.scale.as_ref().ok_or_else(|| target.not_found())?,
        None => &*BUILTIN_PATHS,
    };
    let key = target.key(collection)?;
    let stored = collection.get_latest(&key).await.map_err(|error| cache_error(target, error))?;
    let mut current = stored.ok_or_else(|| target.not_found())?;
    if request.info.verb == "get" {
        let object = api.converter.served_object(&target.kind, collection, &current).await?;
        let scale = read_scale(paths, &object).map_err(Status::internal_error)?;
        if !has_replicas(paths, &object) {
            let path = &paths.spec_replicas_path;
            return Err(Status::internal_error(format_args!("the spec replicas field {path:?} does not exist")));
        }
        return Ok(reply(scale));
    }
    let of_scale = ObjectTarget::new(kind.clone(), target.namespace, target.name.clone(), "");
    let of_object = ObjectTarget::new(target.kind.clone(), target.namespace, target.name.clone(), "");
    let is_patch = request.info.verb == "patch";
    if is_patch {
        RequestPatch::check_media_type(request, kind)?;
    }
    let options = WriteOptions::parse(request.query, if is_patch { "PatchOptions" } else { "UpdateOptions" })?;
    let patch = if is_patch { Some(RequestPatch::parse(request, kind, options.validation).await?) } else { None };
    for _ in 0..ATTEMPTS {
        let mut object = api.converter.served_object(&target.kind, collection, &current).await?;
        let decoded = match &patch {
            Some(patch) => {
                let scale = read_scale(paths, &object).map_err(Status::bad_request)?;
                patch.apply(scale.as_object().cloned().unwrap_or_default()).await?
            }
            None => request_body::decode(request, &of_scale, options.validation).await?,
        };
        warnings.extend(decoded.warnings);
        let mut scale = decoded.object;
        metadata::set_namespace(&of_scale, &mut scale)?;
        metadata::check_name(&of_scale, &scale)?;
        let replicas = scale.get("spec").and_then(|spec| spec.get("replicas")).and_then(Value::as_i64);
        // Go's decoder does not tell 0 from nothing.
        if replicas.is_none() && is_patch && !has_replicas(paths, &object) {
            let path = &paths.spec_replicas_path;
            return Err(Status::bad_request(format!("the spec replicas field {path:?} cannot be empty")));
        }
        set_value(&mut object, &paths.spec_replicas_path, replicas.unwrap_or_default().into())
            .map_err(Status::internal_error)?;
        if target.kind.version.custom().is_none() && replicas.is_some_and(|replicas| replicas < 0) {
            let why = "must be greater than or equal to 0";
            let error = FieldError::invalid("spec.replicas", replicas.unwrap_or_default(), why);
            return Err(invalid_fields_status("autoscaling", "Scale", &target.name, error));
        }
        let version = ObjectMetaView::of_map(&scale).resource_version();
        let is_conditional = !version.is_empty() && !is_patch;
        if !version.is_empty()
            && let Some(Value::Object(metadata)) = object.get_mut("metadata")
        {
            metadata.insert("resourceVersion".to_owned(), version.into());
        }
        let uid = ObjectMetaView::of_map(&scale).uid();
        if !uid.is_empty() && uid != &*current.metadata().uid {
            check_uid(target, (&key, &current.metadata().uid), &scale)?;
        }
        let write = ReplacementOptions { is_dry_run: options.is_dry_run, is_patch: !is_conditional };
        match replace(api, collection, &of_object, &current, object, write, warnings).await? {
            Replaced::Done(ReplyObject::Stored(stored, _)) => {
                let object = api.converter.served_object(&target.kind, collection, &stored).await?;
                return read_scale(paths, &object).map(reply).map_err(Status::bad_request);
            }
            Replaced::Done(ReplyObject::Unstored(value)) => {
                let object = value.as_object().cloned().unwrap_or_default();
                return read_scale(paths, &object).map(reply).map_err(Status::bad_request);
            }
            Replaced::Conflict(now) => current = now.ok_or_else(|| target.not_found())?,
        }
    }
    Err(modified(target, &target.name))
}

fn reply(scale: Value) -> VerbReply {
    VerbReply::ok(ReplyContent::Object(ReplyObject::Unstored(scale)))
}

fn has_replicas(paths: &ScalePaths, object: &Map<String, Value>) -> bool {
    custom_resource::read_scale_fields(paths, object).is_ok_and(|fields| fields.spec_replicas.is_some())
}

/// The `Scale` of an object; without `spec.replicas` if they are 0, as Go encodes it.
///
/// # Errors
/// A field has the wrong type; with Go's text.
fn read_scale(paths: &ScalePaths, object: &Map<String, Value>) -> Result<Value, String> {
    let fields = custom_resource::read_scale_fields(paths, object)?;
    let null = Value::Null;
    let metadata = object.get("metadata").unwrap_or(&null);
    let mut scale = json!({
        "apiVersion": "autoscaling/v1", "kind": "Scale",
        "metadata": {}, "spec": {}, "status": {"replicas": fields.status_replicas},
    });
    for name in ["creationTimestamp", "name", "namespace", "resourceVersion", "uid"] {
        if let Some(value) = metadata.get(name) {
            scale["metadata"][name] = value.clone();
        }
    }
    if let Some(replicas) = fields.spec_replicas.filter(|replicas| *replicas != 0) {
        scale["spec"]["replicas"] = replicas.into();
    }
    let selector = match std::ptr::eq(paths, &raw const *BUILTIN_PATHS) {
        true => object.get("spec").map(|spec| selector_text(&spec["selector"])).unwrap_or_default(),
        false => fields.selector,
    };
    if !selector.is_empty() {
        scale["status"]["selector"] = selector.into();
    }
    Ok(scale)
}

/// The text of a workload's selector: of a `LabelSelector`, or of the labels of a ReplicationController
/// (`labels.Selector.String`).
fn selector_text(selector: &Value) -> String {
    let is_labels = selector["matchLabels"].is_null() && selector["matchExpressions"].is_null();
    let text = match is_labels {
        true => label_selector_text(&json!({"matchLabels": selector})),
        false => label_selector_text(selector),
    };
    text.unwrap_or_default()
}

/// Sets the value at a path such as `.spec.replicas`; objects on the way are made.
///
/// # Errors
/// A value on the way is no object; with Go's text.
fn set_value(object: &mut Map<String, Value>, path: &str, value: Value) -> Result<(), String> {
    let path = path.strip_prefix('.').unwrap_or(path);
    let (parents, last) = path.rsplit_once('.').unwrap_or(("", path));
    let mut fields = object;
    for name in parents.split('.').filter(|name| !name.is_empty()) {
        let inner = fields.entry(name).or_insert_with(|| json!({}));
        fields = inner
            .as_object_mut()
            .ok_or_else(|| format!("value cannot be set because .{parents} is not a map[string]interface{{}}"))?;
    }
    fields.insert(last.to_owned(), value);
    Ok(())
}
