//! The write verbs: create, update, patch, server-side apply.

use std::sync::Arc;

use serde_json::{Value, json};

use super::api_errors;
use super::object;
use super::options::ExampleWriteOptions;
use super::ownership::Ownership;
use super::patch::{self, PatchKind};
use super::request::{ExampleRequest, ExampleTarget, read_apply, read_body};
use super::store::StoreAction;
use crate::kubeapi::Status;
use crate::rest::FieldValidation;

/// The result of a write, and warnings for the client.
pub(super) struct WriteResult {
    pub(super) object: Arc<Value>,
    pub(super) created: bool,
    pub(super) warnings: Vec<String>,
}

/// Handles the verb create: stores the object in the request body as a new object.
pub(super) fn create(call: &ExampleRequest<'_>, target: &ExampleTarget) -> Result<WriteResult, Status> {
    let options = ExampleWriteOptions::read(&call.query, "CreateOptions", call.user_agent(), false)?;
    let mut warnings = Vec::new();
    let mut wished =
        decode_validated(target, read_body(call, target)?, options.validation, &mut warnings, BodySource::Object)?;
    set_namespace(target, &mut wished)?;
    if !object::metadata_text(&wished, "resourceVersion").is_empty() {
        return Err(Status::bad_request("resourceVersion should not be set on objects to be created"));
    }
    let prefix = object::metadata_text(&wished, "generateName").to_owned();
    let generated = object::name(&wished).is_empty() && !prefix.is_empty();
    // As in Kubernetes (KEP-4420): a generated name that exists is generated again, a few times.
    for attempt in 1..=8 {
        let mut wished = wished.clone();
        if generated {
            object::set_metadata(&mut wished, "name", Some(json!(object::generate_name(&prefix))));
        }
        let name = object::name(&wished).to_owned();
        let result = call.api.store.change(&target.key(&name), options.dry_run, |before| match before {
            Some(_) => Err(api_errors::already_exists(target.resource, &name)),
            None => {
                let mut owners = Ownership::read(&wished);
                owners.record_update(target.resource, &options.manager, None, &wished);
                complete_new_object(call, target, wished, &owners).map(StoreAction::Put)
            }
        });
        match result {
            Err(status) if generated && status.reason == "AlreadyExists" && attempt < 8 => {}
            other => return Ok(WriteResult { object: other?, created: true, warnings }),
        }
    }
    Err(api_errors::already_exists(target.resource, &prefix))
}

/// Handles the verb update: replaces an object.
pub(super) fn update(call: &ExampleRequest<'_>, target: &ExampleTarget, name: &str) -> Result<WriteResult, Status> {
    let options = ExampleWriteOptions::read(&call.query, "UpdateOptions", call.user_agent(), false)?;
    let mut warnings = Vec::new();
    let mut wished =
        decode_validated(target, read_body(call, target)?, options.validation, &mut warnings, BodySource::Object)?;
    set_namespace(target, &mut wished)?;
    let object = call.api.store.change(&target.key(name), options.dry_run, |before| {
        let before = before.ok_or_else(|| api_errors::not_found(target.resource, name))?;
        apply_update(target, name, before, wished, &options)
    })?;
    Ok(WriteResult { object, created: false, warnings })
}

/// `patch`, in all formats.
pub(super) fn patch(call: &ExampleRequest<'_>, target: &ExampleTarget, name: &str) -> Result<WriteResult, Status> {
    let kind = PatchKind::from_content_type(call.content_type())?;
    let apply = kind == PatchKind::Apply;
    let options = ExampleWriteOptions::read(&call.query, "PatchOptions", call.user_agent(), apply)?;
    if apply {
        return server_side_apply(call, target, name, &options);
    }
    let mut warnings = Vec::new();
    let object = call.api.store.change(&target.key(name), options.dry_run, |before| {
        let before = before.ok_or_else(|| api_errors::not_found(target.resource, name))?;
        let patched = match kind {
            PatchKind::Json => patch::json_patch(before, &call.body)?,
            PatchKind::Merge | PatchKind::Apply => patch::merge_patch(before, &call.body)?,
        };
        let mut wished = decode_validated(target, patched, options.validation, &mut warnings, BodySource::Patch)?;
        set_namespace(target, &mut wished)?;
        apply_update(target, name, before, wished, &options)
    })?;
    Ok(WriteResult { object, created: false, warnings })
}

fn server_side_apply(
    call: &ExampleRequest<'_>,
    target: &ExampleTarget,
    name: &str,
    options: &ExampleWriteOptions,
) -> Result<WriteResult, Status> {
    let resource = target.resource;
    let body = read_apply(call, target)?;
    if body.pointer("/metadata/managedFields").is_some_and(|fields| !fields.is_null()) {
        return Err(Status::bad_request("metadata.managedFields must be nil"));
    }
    let decoded = object::decode(resource, body)?;
    if let Some(field) = decoded.unknown.first() {
        let (namespace, version, kind) =
            (target.namespace.as_deref().unwrap_or_default(), resource.group_version(), resource.kind);
        return Err(Status::bad_request(format!(
            "failed to create typed patch object ({namespace}/{name}; {version}, Kind={kind}): .{field}: field not \
             declared in schema"
        )));
    }
    let mut applied = decoded.object;
    set_namespace(target, &mut applied)?;
    if object::name(&applied).is_empty() {
        object::set_metadata(&mut applied, "name", Some(json!(name)));
    }
    if let Some(fields) = applied.as_object_mut() {
        fields.remove("status");
    }
    let mut created = false;
    let object = call.api.store.change(&target.key(name), options.dry_run, |before| {
        let mut owners = before.map(|before| Ownership::read(before)).unwrap_or_default();
        let before = before.map(Arc::as_ref);
        let merged = owners.apply(resource, &options.manager, before, &applied, options.force)?;
        match before {
            Some(before) => prepare_replacement(target, name, before, merged, &owners),
            None => {
                check_name(&applied, name)?;
                if !object::metadata_text(&applied, "resourceVersion").is_empty() {
                    return Err(api_errors::modified_conflict(resource, name));
                }
                created = true;
                complete_new_object(call, target, merged, &owners).map(StoreAction::Put)
            }
        }
    })?;
    Ok(WriteResult { object, created, warnings: Vec::new() })
}

/// What a strict validation error refers to, as in Kubernetes: the body of a create or update, or the patched object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BodySource {
    Object,
    Patch,
}

fn decode_validated(
    target: &ExampleTarget,
    body: Value,
    validation: FieldValidation,
    warnings: &mut Vec<String>,
    sender: BodySource,
) -> Result<Value, Status> {
    let resource = target.resource;
    let patched = (sender == BodySource::Patch && validation == FieldValidation::Strict).then(|| body.to_string());
    let decoded = object::decode(resource, body)?;
    let fields = decoded.unknown.iter().map(|field| format!("unknown field {field:?}"));
    match validation {
        FieldValidation::Strict if !decoded.unknown.is_empty() => {
            let why = format!("strict decoding error: {}", fields.collect::<Vec<_>>().join(", "));
            Err(match patched {
                Some(patched) => Status::invalid("", "", "", vec![api_errors::invalid_field("patch", &patched, &why)]),
                None => Status::bad_request(format!(
                    "{kind} in version {:?} cannot be handled as a {kind}: {why}",
                    resource.version,
                    kind = resource.kind
                )),
            })
        }
        FieldValidation::Warn => {
            warnings.extend(fields);
            Ok(decoded.object)
        }
        FieldValidation::Ignore | FieldValidation::Strict => Ok(decoded.object),
    }
}

/// Sets the namespace of the path, or rejects a different one.
fn set_namespace(target: &ExampleTarget, wished: &mut Value) -> Result<(), Status> {
    let (own, of_path) = (object::namespace(wished), target.namespace.as_deref());
    match of_path {
        Some(of_path) if own.is_empty() => {
            let of_path = json!(of_path);
            object::set_metadata(wished, "namespace", Some(of_path));
        }
        Some(of_path) if own != of_path => {
            let why = "the namespace of the provided object does not match the namespace sent on the request";
            return Err(Status::bad_request(why));
        }
        None if !own.is_empty() => {
            let error = api_errors::forbidden_field("metadata.namespace", "not allowed on this type");
            return Err(api_errors::invalid_object(target.resource, object::name(wished), vec![error]));
        }
        _ => {}
    }
    Ok(())
}

fn check_name(wished: &Value, name: &str) -> Result<(), Status> {
    match object::name(wished) {
        own if own == name => Ok(()),
        own => Err(Status::bad_request(format!(
            "the name of the object ({own}) does not match the name on the URL ({name})"
        ))),
    }
}

/// Completes a new object with the fields set by the server, and validates it.
fn complete_new_object(
    call: &ExampleRequest<'_>,
    target: &ExampleTarget,
    mut wished: Value,
    owners: &Ownership,
) -> Result<Value, Status> {
    for field in ["selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion"] {
        object::set_metadata(&mut wished, field, None);
    }
    object::set_metadata(&mut wished, "uid", Some(json!(uuid::Uuid::new_v4().to_string())));
    object::set_metadata(&mut wished, "creationTimestamp", Some(json!(object::now())));
    object::set_metadata(&mut wished, "generation", Some(json!(1)));
    wished["status"] = json!({"createdBy": call.user});
    owners.write(&mut wished);
    object::validate(target.resource, &wished)?;
    Ok(wished)
}

/// Applies `wished`, sent by an update or produced by a patch, to `before`.
fn apply_update(
    target: &ExampleTarget,
    name: &str,
    before: &Arc<Value>,
    wished: Value,
    options: &ExampleWriteOptions,
) -> Result<StoreAction, Status> {
    // Without managedFields in the request the managers stay as they are.
    let said = wished.pointer("/metadata/managedFields").and_then(Value::as_array).is_some_and(|all| !all.is_empty());
    let mut owners = Ownership::read(if said { &wished } else { before });
    owners.record_update(target.resource, &options.manager, Some(before), &wished);
    prepare_replacement(target, name, before, wished, &owners)
}

/// Completes `wished` with the fields set by the server and checks that it may replace `before`.
fn prepare_replacement(
    target: &ExampleTarget,
    name: &str,
    before: &Value,
    mut wished: Value,
    owners: &Ownership,
) -> Result<StoreAction, Status> {
    let resource = target.resource;
    check_name(&wished, name)?;
    let (old_uid, uid) = (object::metadata_text(before, "uid"), object::metadata_text(&wished, "uid"));
    if !uid.is_empty() && uid != old_uid {
        let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {old_uid}");
        return Err(api_errors::conflict(resource, name, &why));
    }
    let version = object::metadata_text(&wished, "resourceVersion");
    if !version.is_empty() && version != object::metadata_text(before, "resourceVersion") {
        return Err(api_errors::modified_conflict(resource, name));
    }
    for field in ["uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        object::set_metadata(&mut wished, field, before["metadata"].get(field).cloned());
    }
    object::set_metadata(&mut wished, "selfLink", None);
    wished["status"] = before["status"].clone();
    let generation = before["metadata"]["generation"].as_u64().unwrap_or(1);
    let generation = generation + u64::from(wished.get("spec") != before.get("spec"));
    object::set_metadata(&mut wished, "generation", Some(json!(generation)));
    owners.write(&mut wished);
    object::validate(resource, &wished)?;
    if before["metadata"].get("deletionTimestamp").is_some() {
        let known: Vec<&str> = object::strings(before, "/metadata/finalizers").collect();
        let fresh: Vec<&str> =
            object::strings(&wished, "/metadata/finalizers").filter(|one| !known.contains(one)).collect();
        if !fresh.is_empty() {
            let why = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                fresh.iter().map(|one| format!("{one:?}")).collect::<Vec<_>>().join(", ")
            );
            let error = api_errors::forbidden_field("metadata.finalizers", &why);
            return Err(api_errors::invalid_object(resource, name, vec![error]));
        }
        if object::strings(&wished, "/metadata/finalizers").next().is_none() {
            return Ok(StoreAction::Remove(wished));
        }
    }
    Ok(if wished == *before { StoreAction::Keep(Arc::new(wished)) } else { StoreAction::Put(wished) })
}
