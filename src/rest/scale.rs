//! The subresource `scale` of custom objects: an `autoscaling/v1` `Scale` whose fields are fields of the object
//! (`ScaleREST` in `k8s.io/apiextensions-apiserver/pkg/registry/customresource/etcd.go`).

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use kubeapi::Status;
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
use super::write_options::WriteOptions;
use super::{metadata, request_body};
use crate::kinds::custom_resource;
use crate::resources::builtin::builtin_kinds;
use crate::resources::custom::cells::scale_columns;
use crate::resources::custom::crd::ScalePaths;
use crate::resources::{ObjectFormat, Resource, ResourceVersion, ServedKind};

/// Attempts of a write that other writers overtake.
const ATTEMPTS: usize = 6;

/// The kind `Scale`; none if the tables of built-in kinds do not have it, which a test excludes.
pub(super) fn scale_kind() -> Option<&'static ServedKind> {
    static KIND: LazyLock<Option<ServedKind>> = LazyLock::new(|| {
        let message = builtin_kinds().messages.find("io.k8s.api.autoscaling.v1.Scale")?;
        let version = Arc::new(ResourceVersion {
            version: Cow::Borrowed("v1"),
            format: ObjectFormat::Builtin(message, None),
            columns: scale_columns().into(),
            verbs: Vec::new(),
            storage_version_hash: Cow::Borrowed(""),
            subresources: Vec::new(),
        });
        let resource = Resource {
            group: Cow::Borrowed("autoscaling"),
            plural: Cow::Borrowed("scales"),
            singular: Cow::Borrowed(""),
            kind: Cow::Borrowed("Scale"),
            list_kind: None,
            short_names: Vec::new(),
            categories: Vec::new(),
            is_namespaced: true,
            storage: None,
            storage_path: Cow::Borrowed(""),
            versions: vec![version.clone()],
            custom: None,
        };
        Some(ServedKind { resource: Arc::new(resource), version })
    });
    KIND.as_ref()
}

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
    let paths = target.kind.version.custom().and_then(|version| version.scale.as_ref());
    let paths = paths.ok_or_else(|| target.not_found())?;
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
        let version = ObjectMetaView::of_map(&scale).resource_version();
        let is_conditional = !version.is_empty() && !is_patch;
        if !version.is_empty()
            && let Some(Value::Object(metadata)) = object.get_mut("metadata")
        {
            metadata.insert("resourceVersion".to_owned(), version.into());
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
    if !fields.selector.is_empty() {
        scale["status"]["selector"] = fields.selector.into();
    }
    Ok(scale)
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
