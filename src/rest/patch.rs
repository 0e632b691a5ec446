//! The verb patch: JSON patch, merge patch, strategic merge patch.

use std::sync::Arc;

use http::StatusCode;
use serde_json::Value;

use super::compute::run_sized;
use super::representation::ReplyContent;
use super::target::{ObjectTarget, ServedKind};
use super::update::{Replaced, ReplacementOptions, replace};
use super::write_options::WriteOptions;
use super::{ApiRequest, ApiServer, VerbReply, cache_error, metadata, request_body, stored_object};
use crate::kubeapi::Status;
use crate::kubeapi::object_meta::ObjectMetaView;
use crate::patch::{JsonPatch, MergePatch, PatchError, StrategicPatch};
use crate::resources::builtin::merge_schema;
use crate::rest::write_options::FieldValidation;
use crate::watch_cache::ResourceCollection;

/// Attempts of a patch that other writers overtake (`MaxRetryWhenPatchConflicts` and the first).
const ATTEMPTS: usize = 6;

/// A patch in one of the formats.
enum ObjectPatch {
    Json(JsonPatch),
    Merge(MergePatch),
    Strategic(StrategicPatch),
}

/// Changes an object by the patch in the body.
///
/// A large patch, and one of a large object, are applied on a compute thread.
///
/// # Errors
/// 400, 404, 409 `Conflict`, 413, 415, 422.
pub(super) async fn patch(
    api: &ApiServer,
    collection: &ResourceCollection,
    target: &ObjectTarget<'_>,
    request: &ApiRequest<'_>,
) -> Result<VerbReply, Status> {
    let options = WriteOptions::parse(request.query, "PatchOptions")?;
    let is_strict = options.validation != FieldValidation::Ignore;
    let (media_type, body, kind) = (request_body::media_type(request.headers), request.body.clone(), target.kind());
    let size = body.len();
    let parsed = run_sized(size, move || ObjectPatch::parse(&media_type, &body, is_strict)).await?;
    let (patch, findings) = parsed.map(|(patch, findings)| (Arc::new(patch), findings))?;
    let key = target.key(collection)?;
    let mut old = collection.get_latest(&key).await.map_err(|error| cache_error(target, error))?;
    for _ in 0..ATTEMPTS {
        let current = old.ok_or_else(|| target.not_found())?;
        let object = Value::Object(stored_object(&current).await?);
        let (patch, findings, validation) = (patch.clone(), findings.clone(), options.validation);
        let apply = move || {
            let patched = patch.apply(kind, object).map_err(|error| error.status())?;
            request_body::check_object(kind, patched.clone(), findings, validation, Some(&patched))
        };
        let decoded = run_sized(size + current.bytes().len(), apply).await??;
        let mut object = decoded.object;
        metadata::set_namespace(target, &mut object)?;
        let name = ObjectMetaView::of_map(&object).name();
        if name != target.name {
            return Err(Status::bad_request(format!(
                "the name of the object ({name}) does not match the name on the URL ({})",
                target.name
            )));
        }
        let write = ReplacementOptions { is_dry_run: options.is_dry_run, is_patch: true };
        match replace(api, collection, target, &current, object, write).await? {
            Replaced::Done(object) => {
                let content = ReplyContent::Object(object);
                return Ok(VerbReply { code: StatusCode::OK, content, warnings: decoded.warnings });
            }
            Replaced::Conflict(now) => old = now,
        }
    }
    Err(super::errors::modified(target, &target.name))
}

impl ObjectPatch {
    fn parse(media_type: &str, body: &[u8], is_strict: bool) -> Result<(ObjectPatch, Vec<String>), Status> {
        let parsed = match media_type {
            "application/json-patch+json" => {
                JsonPatch::parse(body, is_strict).map(|(patch, findings)| (ObjectPatch::Json(patch), findings))
            }
            "application/merge-patch+json" => {
                MergePatch::parse(body).map(|(patch, findings)| (ObjectPatch::Merge(patch), findings))
            }
            "application/strategic-merge-patch+json" => {
                StrategicPatch::parse(body).map(|(patch, findings)| (ObjectPatch::Strategic(patch), findings))
            }
            _ => return Err(unsupported_patch(media_type)),
        };
        parsed.map_err(|error| error.status())
    }

    fn apply(&self, kind: ServedKind, object: Value) -> Result<Value, PatchError> {
        match (self, object) {
            (ObjectPatch::Json(patch), object) => patch.apply(object),
            (ObjectPatch::Merge(patch), Value::Object(object)) => Ok(Value::Object(patch.apply(object))),
            (ObjectPatch::Strategic(patch), Value::Object(object)) => {
                let schema = merge_schema(kind.version.message)
                    .ok_or_else(|| PatchError::Unmergeable(format!("{} has no schema", kind.resource.kind)))?;
                patch.apply(object, schema).map(Value::Object)
            }
            (_, object) => Ok(object),
        }
    }
}

/// 415 with Kubernetes' text; for server-side apply also what to do instead.
fn unsupported_patch(media_type: &str) -> Status {
    let mut message = String::from(
        "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, \
         application/merge-patch+json, application/strategic-merge-patch+json",
    );
    if media_type.starts_with("application/apply-patch+") {
        message.push_str(
            " (this server does not support server-side apply: use kubectl apply without --server-side, or one of these \
             patches)",
        );
    }
    Status::unsupported_media_type(message)
}
