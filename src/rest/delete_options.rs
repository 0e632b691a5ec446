//! `metav1.DeleteOptions`, from the body or the query.

use std::collections::HashSet;

use kubeapi::field_error::{FieldError, invalid_options_status};
use kubeapi::json::read_json;
use kubeapi::list_options::{is_true, parse_int64};
use kubeapi::object_meta::{FOREGROUND_FINALIZER, ORPHAN_FINALIZER};
use kubeapi::protobuf::decode::{decode_object, read_envelope};
use kubeapi::protobuf::normalize::normalize;
use kubeapi::yaml::read_yaml;
use kubeapi::{Query, Status};
use serde_json::Value;

use super::object_type::{DecodeError, check_options_type};
use super::request::ApiRequest;
use super::request_body::{media_type, unsupported_body};
use super::write_options::dry_run;
use crate::compute::run_sized;
use crate::kinds::DependentsRule;
use crate::resources::builtin::builtin_kinds;

/// Options of a deletion.
#[derive(Clone, Debug, Default)]
pub(super) struct DeleteOptions {
    pub(super) is_dry_run: bool,
    /// Precondition: the object's uid.
    pub(super) uid: Option<String>,
    /// Precondition: the object's resourceVersion.
    pub(super) resource_version: Option<String>,
    /// Seconds that the object has to end by itself, of a kind that does.
    pub(super) grace_seconds: Option<i64>,
    /// What becomes of the objects that the object owns; none without a garbage collector (`--enable-garbage-collector`).
    pub(super) propagation: Option<PropagationPolicy>,
    /// Whether the request says what becomes of the dependents.
    pub(super) names_policy: bool,
}

/// What becomes of the objects that a deleted object owns (`metav1.DeletionPropagation`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PropagationPolicy {
    /// What the finalizers of the object, or the rules of its kind, say.
    Default,
    /// The garbage collector deletes them afterwards.
    Background,
    /// The garbage collector deletes them first.
    Foreground,
    /// The garbage collector removes their owner.
    Orphan,
}

impl PropagationPolicy {
    /// The finalizers of an object when it is deleted, if they change (`deletionFinalizersForGarbageCollection` in
    /// `k8s.io/apiserver/pkg/registry/generic/registry/store.go`).
    pub(super) fn new_finalizers(self, rule: DependentsRule, old: &[&str]) -> Option<Vec<String>> {
        let before: HashSet<&str> = old.iter().copied().collect();
        let has = |finalizer: &str| before.contains(finalizer);
        let added = match (rule, self) {
            (DependentsRule::Unsupported, _) | (_, PropagationPolicy::Background) => None,
            (_, PropagationPolicy::Foreground) => Some(FOREGROUND_FINALIZER),
            (_, PropagationPolicy::Orphan) => Some(ORPHAN_FINALIZER),
            (_, PropagationPolicy::Default) if has(ORPHAN_FINALIZER) => Some(ORPHAN_FINALIZER),
            (_, PropagationPolicy::Default) if has(FOREGROUND_FINALIZER) => Some(FOREGROUND_FINALIZER),
            (DependentsRule::Orphan, PropagationPolicy::Default) => Some(ORPHAN_FINALIZER),
            (DependentsRule::Delete, PropagationPolicy::Default) => None,
        };
        let others = old.iter().copied().filter(|one| ![FOREGROUND_FINALIZER, ORPHAN_FINALIZER].contains(one));
        let new: Vec<&str> = others.chain(added).collect();
        let is_same = new.iter().copied().collect::<HashSet<_>>() == before;
        (!is_same).then(|| new.into_iter().map(str::to_owned).collect())
    }
}

impl DeleteOptions {
    /// Reads the options. As in Kubernetes, a body replaces the query.
    ///
    /// # Errors
    /// 400 for a malformed body; 422 for values that are not supported. Without a garbage collector `Foreground` and `Orphan`
    /// are refused by name.
    pub(super) async fn parse(request: &ApiRequest<'_>, has_collector: bool) -> Result<DeleteOptions, Status> {
        let (media_type, body) = (media_type(request.headers), request.body.clone());
        let body = run_sized(body.len(), move || read_body(&media_type, &body)).await??;
        DeleteOptions::read(request.query, body.as_ref(), has_collector)
    }

    /// Reads the options in an `Eviction`, of a request that may be a dry run.
    ///
    /// # Errors
    /// As [`DeleteOptions::parse`].
    pub(super) fn of_eviction(given: &Value, is_dry_run: bool, has_collector: bool) -> Result<DeleteOptions, Status> {
        let body = given.is_object().then_some(given);
        let mut options = DeleteOptions::read(&Query::parse(""), body, has_collector)?;
        options.is_dry_run |= is_dry_run;
        Ok(options)
    }

    fn read(query: &Query<'_>, body: Option<&Value>, has_collector: bool) -> Result<DeleteOptions, Status> {
        let mut errors = Vec::new();
        let mut options = DeleteOptions::default();
        let mut propagation = query.get("propagationPolicy").map(std::borrow::Cow::into_owned);
        let mut orphans = query.get("orphanDependents").map(|value| is_true(&value));
        if let Some(seconds) = query.get("gracePeriodSeconds") {
            options.grace_seconds = Some(parse_int64(&seconds)?);
        }
        let pairs = query.pairs().filter(|(key, _)| key == "dryRun");
        let mut dry_run_values: Vec<String> = pairs.map(|(_, value)| value.into_owned()).collect();
        if let Some(body) = body {
            let text = |value: &Value| value.as_str().map(str::to_owned);
            dry_run_values.extend(body["dryRun"].as_array().into_iter().flatten().filter_map(text));
            options.grace_seconds = body["gracePeriodSeconds"].as_i64();
            options.uid = text(&body["preconditions"]["uid"]);
            options.resource_version = text(&body["preconditions"]["resourceVersion"]);
            propagation = text(&body["propagationPolicy"]).or(propagation);
            orphans = body["orphanDependents"].as_bool().or(orphans);
        }
        options.names_policy = propagation.is_some() || orphans.is_some();
        if let (Some(policy), Some(_)) = (&propagation, orphans) {
            let why = "orphanDependents and deletionPropagation cannot be both set";
            errors.push(FieldError::invalid("propagationPolicy", policy.as_str(), why));
        }
        match propagation.as_deref() {
            _ if !errors.is_empty() => {}
            // `orphanDependents: false` is the former word for Background.
            None if has_collector => {
                options.propagation = Some(match orphans {
                    None => PropagationPolicy::Default,
                    Some(true) => PropagationPolicy::Orphan,
                    Some(false) => PropagationPolicy::Background,
                });
            }
            Some("Background") if has_collector => options.propagation = Some(PropagationPolicy::Background),
            Some("Foreground") if has_collector => options.propagation = Some(PropagationPolicy::Foreground),
            Some("Orphan") if has_collector => options.propagation = Some(PropagationPolicy::Orphan),
            None | Some("Background") if orphans != Some(true) => {}
            None | Some("Background") => return Err(unsupported_propagation("Orphan")),
            Some(policy @ ("Foreground" | "Orphan")) => return Err(unsupported_propagation(policy)),
            Some(other) => errors.push(FieldError::not_supported(
                "propagationPolicy",
                other,
                &["Foreground", "Background", "Orphan", "nil"],
            )),
        }
        // As upstream, which takes a negative number for a second.
        options.grace_seconds = options.grace_seconds.map(|seconds| if seconds < 0 { 1 } else { seconds });
        options.is_dry_run = dry_run(dry_run_values.iter().map(String::as_str), &mut errors);
        if errors.is_empty() { Ok(options) } else { Err(invalid_options_status("DeleteOptions", errors)) }
    }
}

fn unsupported_propagation(policy: &str) -> Status {
    let why = format!("{policy} is not supported: this server has no garbage collector; use Background");
    invalid_options_status("DeleteOptions", FieldError::invalid("propagationPolicy", policy, why))
}

fn read_body(media_type: &str, body: &[u8]) -> Result<Option<Value>, Status> {
    if body.is_empty() {
        return Ok(None);
    }
    let malformed = |error: DecodeError| Status::bad_request(error.why);
    let kinds = builtin_kinds();
    let message = kinds.meta_message("DeleteOptions");
    let message = message.ok_or_else(|| Status::internal_error("DeleteOptions has no schema"))?;
    let mut value = match media_type {
        "application/vnd.kubernetes.protobuf" => {
            let envelope = read_envelope(body).map_err(|error| malformed(DecodeError::unrecognized(error)))?;
            let decoded = decode_object(&kinds.messages, message, &envelope);
            decoded.map_err(|error| malformed(DecodeError::unrecognized(error)))?
        }
        "application/yaml" => {
            let text = std::str::from_utf8(body).map_err(|error| malformed(DecodeError::unrecognized(error)))?;
            read_yaml(text).map_err(|error| malformed(DecodeError::unrecognized(error)))?.value
        }
        "" | "application/json" => read_json(body).map_err(|error| malformed(DecodeError::malformed_json(error)))?.0,
        _ => return Err(unsupported_body()),
    };
    check_options_type(&value).map_err(malformed)?;
    // A field of the wrong type must not be passed over: it may be `dryRun`.
    normalize(&kinds.messages, message, &mut value).map_err(|error| malformed(DecodeError::unrecognized(error)))?;
    Ok(value.is_object().then_some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finalizers_of_the_garbage_collector_are_those_of_the_policy() {
        use DependentsRule::{Delete, Orphan as OrphanRule, Unsupported};
        use PropagationPolicy::{Background, Default, Foreground, Orphan};
        for (policy, rule, old, expected) in [
            (Default, Delete, &["a"][..], None),
            (Default, OrphanRule, &["a"], Some(&["a", "orphan"][..])),
            (Default, OrphanRule, &["foregroundDeletion"], None),
            (Default, Delete, &["orphan"], None),
            (Background, OrphanRule, &["orphan", "a"], Some(&["a"])),
            (Foreground, Delete, &[], Some(&["foregroundDeletion"])),
            (Foreground, Delete, &["orphan"], Some(&["foregroundDeletion"])),
            (Foreground, Delete, &["foregroundDeletion", "a"], None),
            (Orphan, Delete, &["a"], Some(&["a", "orphan"])),
            (Orphan, Unsupported, &[], None),
            (Foreground, Unsupported, &["orphan"], Some(&[])),
        ] {
            let expected = expected.map(|all| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>());
            assert_eq!(policy.new_finalizers(rule, old), expected, "{policy:?} {rule:?} {old:?}");
        }
    }
}
