//! The verbs delete and deletecollection.

use std::sync::Arc;

use serde_json::{Value, json};

use super::api_errors;
use super::object;
use super::options::{ExampleListOptions, dry_run};
use super::representation::Representation;
use super::request::{ExampleRequest, ExampleTarget, read_body};
use super::resource::{ExampleResource, GROUP};
use super::store::StoreAction;
use crate::kubeapi::Status;

/// `metav1.DeleteOptions`, from the body or the query. Without a garbage collector all propagation policies are equal.
struct ExampleDeleteOptions {
    dry_run: bool,
    uid: Option<String>,
    version: Option<String>,
}

/// `delete`: returns a Status of success if the object was removed, or the object if finalizers remain.
pub(super) fn delete(call: &ExampleRequest<'_>, target: &ExampleTarget, name: &str) -> Result<Value, Status> {
    let options = ExampleDeleteOptions::read(call, target)?;
    let last = remove(call, target, name, &options)?;
    if has_finalizers(&last) {
        return Ok(last.as_ref().clone());
    }
    Ok(json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": {
        "name": name, "group": GROUP, "kind": target.resource.plural, "uid": object::metadata_text(&last, "uid"),
    }}))
}

/// `deletecollection`: returns the list of deleted objects.
pub(super) fn delete_collection(
    call: &ExampleRequest<'_>,
    target: &ExampleTarget,
    list: &ExampleListOptions,
) -> Result<Value, Status> {
    let options = ExampleDeleteOptions::read(call, target)?;
    let snapshot = call.api.store.list(target.resource.plural, target.namespace.as_deref(), None);
    let snapshot = snapshot.map_err(|_| Status::expired("The resourceVersion for the provided list is too old."))?;
    let mut deleted: Vec<Arc<Value>> = Vec::new();
    for found in snapshot.objects.iter().filter(|found| list.selector.matches(found)) {
        match remove(call, target, object::name(found), &options) {
            Ok(last) => deleted.push(last),
            // Deleted concurrently.
            Err(status) if status.code == 404 => {}
            Err(status) => return Err(status),
        }
    }
    let metadata = json!({"resourceVersion": call.api.store.latest().borrow().to_string()});
    Ok(Representation::Whole.render_list(target.resource, &deleted, &metadata))
}

impl ExampleDeleteOptions {
    fn read(call: &ExampleRequest<'_>, target: &ExampleTarget) -> Result<ExampleDeleteOptions, Status> {
        let body = if call.body.is_empty() { Value::Null } else { read_body(call, target)? };
        let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let said = body.get("dryRun").and_then(Value::as_array).into_iter().flatten();
        let said = said.map(|value| value.as_str().unwrap_or_default());
        let mut errors = Vec::new();
        let dry_run = dry_run(call.query.all("dryRun").chain(said), &mut errors);
        if !errors.is_empty() {
            return Err(api_errors::invalid_options("DeleteOptions", errors));
        }
        let (uid, version) = (text("/preconditions/uid"), text("/preconditions/resourceVersion"));
        Ok(ExampleDeleteOptions { dry_run, uid, version })
    }

    fn check(&self, resource: &ExampleResource, name: &str, before: &Value) -> Result<(), Status> {
        let uid = object::metadata_text(before, "uid");
        let version = object::metadata_text(before, "resourceVersion");
        let why = if let Some(wanted) = self.uid.as_ref().filter(|wanted| *wanted != uid) {
            format!(
                "the UID in the precondition ({wanted}) does not match the UID in record ({uid}). The object might \
                 have been deleted and then recreated"
            )
        } else if let Some(wanted) = self.version.as_ref().filter(|wanted| *wanted != version) {
            format!(
                "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record \
                 ({version}). The object might have been modified"
            )
        } else {
            return Ok(());
        };
        Err(api_errors::conflict(resource, name, &why))
    }
}

fn remove(
    call: &ExampleRequest<'_>,
    target: &ExampleTarget,
    name: &str,
    options: &ExampleDeleteOptions,
) -> Result<Arc<Value>, Status> {
    call.api.store.change(&target.key(name), options.dry_run, |before| {
        let before = before.ok_or_else(|| api_errors::not_found(target.resource, name))?;
        options.check(target.resource, name, before)?;
        if !has_finalizers(before) {
            return Ok(StoreAction::Remove(Value::clone(before)));
        }
        if before["metadata"].get("deletionTimestamp").is_some() {
            return Ok(StoreAction::Keep(Arc::clone(before)));
        }
        let mut marked = Value::clone(before);
        let generation = before["metadata"]["generation"].as_u64().unwrap_or(1) + 1;
        object::set_metadata(&mut marked, "deletionTimestamp", Some(json!(object::now())));
        object::set_metadata(&mut marked, "deletionGracePeriodSeconds", Some(json!(0)));
        object::set_metadata(&mut marked, "generation", Some(json!(generation)));
        Ok(StoreAction::Put(marked))
    })
}

/// Whether the object has finalizers.
fn has_finalizers(object: &Value) -> bool {
    object::strings(object, "/metadata/finalizers").next().is_some()
}
