//! The outline of a write, the same for all verbs:
//!
//! 1. **Decode**: the body, or the stored object with a patch (`request_body`, `patch`).
//! 2. **Shape**: namespace and name are those of the path (`metadata::set_namespace`, `metadata::check_name`).
//! 3. **Mutate**: the place of server-side apply, managed fields and mutating admission, between the verb's checks and
//!    [`ObjectWrite::run`], where it can wait for webhooks. There are none yet.
//! 4. **Prepare**: metadata that only the server sets, and what follows from the other fields by the rules of the kind.
//! 5. **Validate**: by the rules of the kind. The place of validating admission is after [`ObjectWrite::run`].
//! 6. **Commit**: into the store, with conditions on what the request found (`create`, `update`).
//!
//! Steps 4 and 5 are an [`ObjectWrite`], on a compute thread if the object is large. The order is Kubernetes'
//! (`k8s.io/apiserver/pkg/endpoints/handlers`, `pkg/registry/rest/create.go`, `update.go`).

use std::sync::Arc;

use kubeapi::field_error::{FieldError, invalid_fields_status};
use kubeapi::list_options::parse_uint64;
use kubeapi::object_meta::{ObjectMetaView, change_metadata};
use kubeapi::schema::StepBudget;
use kubeapi::{Status, User};
use serde_json::{Map, Value, json};
use store::Key;
use store::watch_cache::Stored;

use super::api_server::{ApiServer, ApiServerSettings};
use super::errors::modified;
use super::metadata;
use super::target::{ObjectTarget, OwnedTarget};
use crate::compute::{WorkLimit, map_size, run_counted, run_limited, run_sized};
use crate::conversion::{local_bytes, schema_work};
use crate::kinds::{
    ObjectUpdate, ValidationSettings, object_warnings, set_requester, validate_new, validate_replacement,
};

/// A decoded object on its way into the store.
pub(super) struct ObjectWrite {
    target: OwnedTarget,
    object: Map<String, Value>,
    /// What it replaces; none if it is new.
    old: Option<ReplacedObject>,
    /// The user of the request, of an object that names it.
    requester: Option<User>,
    preparation: Preparation,
}

/// How far an [`ObjectWrite`] is.
#[derive(Clone, Copy)]
enum Preparation {
    Decoded,
    /// Fields that depend on each other are complete: addresses and ports can be allocated.
    Begun {
        /// Whether the client gave a resourceVersion.
        is_conditional: bool,
    },
    Prepared {
        /// Whether the client gave a resourceVersion.
        is_conditional: bool,
    },
}

/// An object that is replaced.
pub(super) struct ReplacedObject {
    pub(super) stored: Arc<Stored>,
    /// Its content in the version of the request.
    pub(super) object: Map<String, Value>,
    /// Whether the new object comes from a patch: its uid is then validated as any other field.
    pub(super) is_patch: bool,
}

/// An object that can be committed.
pub(super) struct WritableObject {
    pub(super) object: Arc<Map<String, Value>>,
    /// What is stored; none if a webhook converts it.
    value: Option<Vec<u8>>,
    /// As [`schema_work::is_complete`] says. Nothing of a request waits for a compute thread once it is stored.
    is_complete: Option<bool>,
    /// Whether the client gave a resourceVersion.
    pub(super) is_conditional: bool,
    /// Whether the last finalizer was removed.
    pub(super) is_removed: bool,
    pub(super) warnings: Vec<String>,
}

impl ObjectWrite {
    /// The write of a decoded object. `old` is what it replaces.
    pub(super) fn new(
        target: &ObjectTarget<'_>,
        object: Map<String, Value>,
        old: Option<ReplacedObject>,
    ) -> ObjectWrite {
        let target = target.to_owned_target();
        ObjectWrite { target, object, old, requester: None, preparation: Preparation::Decoded }
    }

    /// The same with a requester, of an object that names it.
    pub(super) fn with_requester(self, user: &User) -> ObjectWrite {
        ObjectWrite { requester: Some(user.clone()), ..self }
    }

    /// Does what comes before addresses and ports are allocated.
    ///
    /// # Errors
    /// 409 for another version and, unless of a patch, another uid, 422 for fields that contradict each other.
    pub(super) async fn begin(mut self, settings: &Arc<ApiServerSettings>) -> Result<ObjectWrite, Status> {
        let (size, settings) = (map_size(&self.object), settings.clone());
        let begin = move || {
            let owned = self.target.clone();
            let is_conditional = self.begin_steps(&owned.target(), &settings.validation)?;
            self.preparation = Preparation::Begun { is_conditional };
            Ok(self)
        };
        run_sized(size, begin).await?
    }

    /// The new object, and the one that it replaces.
    pub(super) fn objects(&mut self) -> (&mut Map<String, Value>, Option<&Map<String, Value>>) {
        (&mut self.object, self.old.as_ref().map(|old| &old.object))
    }

    /// Does what comes between decoding and the commit.
    ///
    /// # Errors
    /// 409 for another version and, unless of a patch, another uid, 422 for an invalid object, 504 if validation takes too
    /// long.
    pub(super) async fn run(self, settings: &Arc<ApiServerSettings>) -> Result<WritableObject, Status> {
        let old_size = self.old.as_ref().map_or(0, |old| old.stored.bytes().len());
        let size = old_size + map_size(&self.object);
        let has_schema_work = schema_work::has_schema_work(&self.target.target().kind);
        let settings = settings.clone();
        let steps = move |write: &mut ObjectWrite, limit: &WorkLimit| write.run_steps(&settings, limit);
        match has_schema_work {
            true => run_counted(size, self, steps).await?,
            false => {
                let mut write = self;
                run_limited(size, move |limit| steps(&mut write, limit)).await?
            }
        }
    }

    /// Can be called again if validation took too many steps: the object is then as it was prepared.
    fn run_steps(&mut self, settings: &ApiServerSettings, limit: &WorkLimit) -> Result<WritableObject, Status> {
        let owned = self.target.clone();
        let target = owned.target();
        let is_conditional = match self.preparation {
            Preparation::Prepared { is_conditional } => is_conditional,
            Preparation::Begun { is_conditional } => is_conditional,
            Preparation::Decoded => self.begin_steps(&target, &settings.validation)?,
        };
        if !matches!(self.preparation, Preparation::Prepared { .. }) {
            self.prepare(&target);
        }
        self.preparation = Preparation::Prepared { is_conditional };
        self.validate(&target, settings, limit)?;
        let (object, old) = (std::mem::take(&mut self.object), self.old.take());
        let old_object = old.as_ref().map(|old| &old.object);
        let warnings = object_warnings(&target.kind.resource, target.subresource, old_object, &object);
        let is_removed = old.is_some() && metadata::is_removable(&target.kind.resource, &object);
        drop(old);
        let value = if is_removed { None } else { local_bytes(&target.kind, &object)? };
        let is_complete = schema_work::is_complete(&target.kind, &object);
        Ok(WritableObject { object: Arc::new(object), value, is_complete, is_conditional, is_removed, warnings })
    }

    /// Returns whether the client gave a resourceVersion.
    fn begin_steps(&mut self, target: &ObjectTarget<'_>, settings: &ValidationSettings) -> Result<bool, Status> {
        let (object, rules) = (&mut self.object, target.rules);
        let Some(old) = &self.old else {
            metadata::fill_new_object(target, object);
            (rules.begin_create)(settings, object)?;
            return Ok(false);
        };
        if !old.is_patch {
            check_uid(target, (old.stored.key(), &old.stored.metadata().uid), object)?;
        }
        let is_conditional = check_version(target, &old.stored, object)?;
        metadata::fill_replacement(target, &old.object, object);
        let update = ObjectUpdate { kind: &target.kind, subresource: target.subresource, old: &old.object };
        (rules.begin_update)(settings, &update, object)?;
        Ok(is_conditional)
    }

    fn prepare(&mut self, target: &ObjectTarget<'_>) {
        let (object, rules) = (&mut self.object, target.rules);
        match &self.old {
            None => (rules.prepare_new)(&target.kind, object),
            Some(old) => {
                let update = ObjectUpdate { kind: &target.kind, subresource: target.subresource, old: &old.object };
                (rules.prepare_replacement)(&update, object);
            }
        }
        if let Some(user) = &self.requester {
            set_requester(object, user);
        }
    }

    fn validate(
        &mut self,
        target: &ObjectTarget<'_>,
        settings: &ApiServerSettings,
        limit: &WorkLimit,
    ) -> Result<(), Status> {
        let bounds: (&ValidationSettings, &dyn StepBudget) = (&settings.validation, limit);
        let written = (&target.kind, target.subresource);
        match &mut self.old {
            Some(old) => validate_replacement(bounds, written, &mut old.object, &mut self.object),
            None => validate_new(bounds, written, &mut self.object),
        }
    }
}

impl WritableObject {
    /// The bytes to store. Calls the conversion webhook if there is one.
    ///
    /// # Errors
    /// 500 with upstream's text.
    pub(super) async fn stored_value(&mut self, api: &ApiServer, target: &ObjectTarget<'_>) -> Result<Vec<u8>, Status> {
        match self.value.take() {
            Some(value) => Ok(value),
            None => api.converter.stored_bytes(&target.kind, self.object.clone()).await,
        }
    }

    /// Notes what is known of the object that was stored, so that reading it does not find it out again.
    pub(super) fn note_stored(&self, target: &ObjectTarget<'_>, stored: &Arc<Stored>) {
        schema_work::record_completeness(&target.kind, stored, self.is_complete);
    }
}

/// Compares the resourceVersion of `object` with `old`; returns whether a version is given, and sets it.
fn check_version(target: &ObjectTarget<'_>, old: &Stored, object: &mut Map<String, Value>) -> Result<bool, Status> {
    let version = match ObjectMetaView::of_map(object).resource_version() {
        "" | "0" => None,
        text => Some(parse_uint64(text).map_err(|why| Status::new(500, "", why))?),
    };
    if version.is_some_and(|version| version != old.revision()) {
        return Err(modified(target, &target.name));
    }
    if version.is_none() && !target.rules.allows_unconditional_update {
        let why = "must be specified for an update";
        let error = FieldError::invalid("metadata.resourceVersion", 0_i64, why);
        // With the resource instead of the kind, as in Kubernetes.
        return Err(invalid_fields_status(
            &target.kind.resource.group,
            &target.kind.resource.plural,
            &target.name,
            error,
        ));
    }
    let current = old.revision().to_string();
    change_metadata(object, |metadata| metadata.insert("resourceVersion".to_owned(), json!(current)));
    Ok(version.is_some())
}

/// 409 if `object` has another uid than the one that was found below its key, with the text of
/// `k8s.io/apiserver/pkg/storage/errors.go`. No uid was found of an object that does not exist.
///
/// # Errors
/// 409.
pub(super) fn check_uid(
    target: &ObjectTarget<'_>,
    (key, found): (&Key, &str),
    object: &Map<String, Value>,
) -> Result<(), Status> {
    let uid = ObjectMetaView::of_map(object).uid();
    if uid.is_empty() || uid == found {
        return Ok(());
    }
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID \
         in precondition: {uid}, UID in object meta: {found}"
    );
    Err(Status::conflict(&target.kind.resource.group, &target.kind.resource.plural, &target.name, why))
}
