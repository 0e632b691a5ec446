//! The verb patch: JSON patch, merge patch, strategic merge patch.

use std::sync::Arc;

use kubeapi::json::write_json;
use kubeapi::patch::{JsonPatch, MergePatch, PatchError, StrategicPatch};
use kubeapi::{Status, StatusDetails};
use serde_json::{Map, Value};
use store::watch_cache::ResourceCollection;

use super::api_server::ApiServer;
use super::errors::cache_error;
use super::representation::{ReplyContent, VerbReply};
use super::request::ApiRequest;
use super::request_body::{BodyFindings, DecodedObject};
use super::target::ObjectTarget;
use super::update::{Replaced, ReplacementOptions, replace};
use super::write_options::WriteOptions;
use super::{metadata, request_body};
use crate::compute::{WorkLimit, map_size, run_limited, run_sized};
use crate::resources::ServedKind;
use crate::resources::builtin::merge_schema;
use crate::resources::builtin::stored_version::convert_from_stored;
use crate::rest::write_options::FieldValidation;

/// Attempts of a patch that other writers overtake (`MaxRetryWhenPatchConflicts` and the first).
const ATTEMPTS: usize = 6;

const JSON_PATCH: &str = "application/json-patch+json";
const MERGE_PATCH: &str = "application/merge-patch+json";
const STRATEGIC_MERGE_PATCH: &str = "application/strategic-merge-patch+json";

/// Media types of patches.
const MEDIA_TYPES: [&str; 3] = [JSON_PATCH, MERGE_PATCH, STRATEGIC_MERGE_PATCH];

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
    warnings: &mut Vec<String>,
) -> Result<VerbReply, Status> {
    RequestPatch::check_media_type(request, &target.kind)?;
    let options = WriteOptions::parse(request.query, "PatchOptions")?;
    let key = target.key(collection)?;
    let mut old = collection.get_latest(&key).await.map_err(|error| cache_error(target, error))?;
    if old.is_none() {
        return Err(target.not_found());
    }
    let patch = RequestPatch::parse(request, &target.kind, options.validation).await?;
    for _ in 0..ATTEMPTS {
        let current = old.ok_or_else(|| target.not_found())?;
        let object = api.converter.served_object(&target.kind, collection, &current).await?;
        let decoded = patch.apply(object).await?;
        let mut object = decoded.object;
        warnings.extend(decoded.warnings);
        metadata::set_namespace(target, &mut object)?;
        metadata::check_name(target, &object)?;
        api.check_signer(target, request.creation, &current, &object).await?;
        let object = api.check_escalation(target, request.creation, Some(&current), object).await?;
        let write = ReplacementOptions { is_dry_run: options.is_dry_run, is_patch: true };
        match replace(api, collection, target, &current, object, write, warnings).await? {
            Replaced::Done(object) => return Ok(VerbReply::ok(ReplyContent::Object(object))),
            Replaced::Conflict(now) => old = now,
        }
    }
    Err(super::errors::modified(target, &target.name))
}

/// A patch in a request body, for an object of a kind.
pub(super) struct RequestPatch {
    kind: ServedKind,
    patch: Arc<ObjectPatch>,
    /// Texts about duplicate fields of the patch.
    findings: Vec<String>,
    validation: FieldValidation,
    size: usize,
}

impl RequestPatch {
    /// Checks that the media type of the body is one of a patch for the kind.
    ///
    /// # Errors
    /// 415.
    pub(super) fn check_media_type(request: &ApiRequest<'_>, kind: &ServedKind) -> Result<(), Status> {
        let media_type = request_body::media_type(request.headers);
        let is_custom = kind.resource.custom.is_some();
        if !MEDIA_TYPES.contains(&&*media_type) || is_custom && media_type == STRATEGIC_MERGE_PATCH {
            return Err(unsupported_patch(&media_type, is_custom));
        }
        Ok(())
    }

    /// Reads the patch, on a compute thread if it is large.
    ///
    /// # Errors
    /// 400, 413, 415.
    pub(super) async fn parse(
        request: &ApiRequest<'_>,
        kind: &ServedKind,
        validation: FieldValidation,
    ) -> Result<RequestPatch, Status> {
        let (media_type, body) = (request_body::media_type(request.headers), request.body.clone());
        let (size, is_strict) = (body.len(), validation != FieldValidation::Ignore);
        let parsed = run_sized(size, move || ObjectPatch::parse(&media_type, &body, is_strict)).await?;
        let (patch, findings) = parsed?;
        Ok(RequestPatch { kind: kind.clone(), patch: Arc::new(patch), findings, validation, size })
    }

    /// Applies the patch, on a compute thread if it or the object is large.
    ///
    /// # Errors
    /// 400 and 422 for a patch that does not apply or makes something else of the object, 504 for one that takes too long.
    pub(super) async fn apply(&self, mut object: Map<String, Value>) -> Result<DecodedObject, Status> {
        let (patch, findings, validation) = (self.patch.clone(), self.findings.clone(), self.validation);
        let kind = self.kind.clone();
        let size = self.size + map_size(&object);
        let apply = move |limit: &WorkLimit| {
            convert_from_stored(&kind, &mut object);
            let patched = patch.apply(&kind, object, &|| limit.is_over()).map_err(|error| error.status())?;
            let text = write_json(&patched);
            let checked = request_body::check_object(&kind, patched, BodyFindings::Texts(findings), validation);
            Ok(checked.map_err(|error| error.patch_status(&text))?.with_unique_owners(true))
        };
        run_limited(size, apply).await?
    }
}

impl ObjectPatch {
    fn parse(media_type: &str, body: &[u8], is_strict: bool) -> Result<(ObjectPatch, Vec<String>), Status> {
        let parsed = match media_type {
            JSON_PATCH => {
                JsonPatch::parse(body, is_strict).map(|(patch, findings)| (ObjectPatch::Json(patch), findings))
            }
            MERGE_PATCH => MergePatch::parse(body).map(|(patch, findings)| (ObjectPatch::Merge(patch), findings)),
            STRATEGIC_MERGE_PATCH => {
                StrategicPatch::parse(body).map(|(patch, findings)| (ObjectPatch::Strategic(patch), findings))
            }
            _ => return Err(unsupported_patch(media_type, false)),
        };
        parsed.map_err(|error| error.status())
    }

    /// The object with the patch, unless `is_over` says that it takes too long.
    fn apply(
        &self,
        kind: &ServedKind,
        object: Map<String, Value>,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Value, PatchError> {
        match self {
            ObjectPatch::Json(patch) => patch.apply_unless(Value::Object(object), is_over),
            ObjectPatch::Merge(patch) => Ok(Value::Object(patch.apply(object))),
            ObjectPatch::Strategic(patch) => {
                let schema = kind
                    .version
                    .message()
                    .and_then(merge_schema)
                    .ok_or_else(|| PatchError::Unmergeable(format!("{} has no schema", kind.resource.kind)))?;
                patch.apply(object, schema).map(Value::Object)
            }
        }
    }
}

/// 415 with Kubernetes' text; for server-side apply what to do instead.
fn unsupported_patch(media_type: &str, is_custom: bool) -> Status {
    let status = Status::unsupported_media_type(match media_type.starts_with("application/apply-patch+") {
        true => {
            "this server does not support server-side apply: use kubectl apply without --server-side, or one of these \
             patches: application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json"
        }
        false if is_custom => {
            "the body of the request was in an unknown format - accepted media types include: \
             application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
        }
        false => "415: Unsupported Media Type",
    });
    if is_custom { status } else { status.with_details(StatusDetails::default()) }
}
