//! The subresource `eviction` of Pods: a deletion that PodDisruptionBudgets can refuse
//! (`pkg/registry/core/pod/storage/eviction.go`).

use std::sync::Arc;

use kubeapi::json::write_stored_json;
use kubeapi::object_meta::ObjectMetaView;
use kubeapi::{LabelSelector, RetryAfter, Status, StatusDetails};
use serde_json::{Map, Value, json};
use store::watch_cache::{Error, ListQuery, ResourceCollection, Stored};

use super::api_server::ApiServer;
use super::delete_options::DeleteOptions;
use super::errors::{cache_error, modified};
use super::object_removal::{check_preconditions, remove};
use super::representation::VerbReply;
use super::request::ApiRequest;
use super::target::ObjectTarget;
use super::write_options::WriteOptions;
use super::{metadata, request_body};
use crate::conversion::stored_object;
use crate::kinds::{is_pod_ready, set_disruptions_exhausted, set_pod_condition};
use crate::resources::ServedKind;

/// Attempts of a write that other writers overtake.
const ATTEMPTS: usize = 20;

/// Largest number of Pods whose eviction a budget's controller has not confirmed (`MaxDisruptedPodSize`).
const MAX_DISRUPTED_PODS: usize = 2000;

const REFUSED: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

/// What a budget says to an eviction.
enum Permission {
    /// The budget's status counts the eviction.
    Granted,
    /// Only the Pod as it was looked at may be deleted.
    GrantedAsSeen,
}

/// Deletes a Pod if its PodDisruptionBudget allows it.
///
/// # Errors
/// 404, 429 if the budget allows none, 409 for preconditions.
pub(super) async fn evict(
    api: &ApiServer,
    pods: &ResourceCollection,
    target: &ObjectTarget<'_>,
    kind: &ServedKind,
    request: &ApiRequest<'_>,
    warnings: &mut Vec<String>,
) -> Result<VerbReply, Status> {
    let options = WriteOptions::parse(request.query, "CreateOptions")?;
    let eviction = request_body::decode_subresource(api, request, (target, kind), options.validation, warnings).await?;
    let given = eviction.get("deleteOptions").unwrap_or(&Value::Null);
    let deletion = DeleteOptions::of_eviction(given, options.is_dry_run, api.settings.has_collector)?;
    let of_pod = ObjectTarget::new(target.kind.clone(), target.namespace, target.name.clone(), "");
    for _ in 0..ATTEMPTS {
        let key = of_pod.key(pods)?;
        let stored = pods.get_latest(&key).await.map_err(|error| cache_error(&of_pod, error))?;
        let stored = stored.ok_or_else(|| of_pod.not_found())?;
        let pod = stored_object(&stored).await?;
        let phase = pod.get("status").and_then(|status| status["phase"].as_str()).unwrap_or_default();
        let is_ending = ObjectMetaView::of_map(&pod).deletion_timestamp().is_some();
        let has_ended = matches!(phase, "Failed" | "Succeeded") || is_ending;
        let is_uncounted = has_ended || phase == "Pending";
        let (permission, budget) = match is_uncounted {
            true if has_ended => (Permission::Granted, String::new()),
            true => (Permission::GrantedAsSeen, String::new()),
            false => ask_budget(api, &of_pod, &pod, deletion.is_dry_run).await?,
        };
        let is_as_seen = matches!(permission, Permission::GrantedAsSeen) && deletion.resource_version.is_none();
        let mut deletion = deletion.clone();
        if is_as_seen {
            deletion.resource_version = Some(stored.revision().to_string());
        }
        match delete_evicted(pods, &of_pod, (stored, pod), &deletion).await {
            Ok(()) => {
                api.note_removed(&of_pod);
                return Ok(VerbReply::created());
            }
            // The Pod changed since the budget was asked.
            Err(status) if status.code == 409 && is_as_seen && is_uncounted => {}
            Err(status) if status.code == 409 && is_as_seen => return Err(being_processed(&budget)),
            Err(status) => return Err(status),
        }
    }
    Err(modified(target, &target.name))
}

/// Asks the budget of a Pod, which counts the eviction; returns its name, too.
///
/// # Errors
/// 429 if it allows none, 500 if the Pod has several.
async fn ask_budget(
    api: &ApiServer,
    target: &ObjectTarget<'_>,
    pod: &Map<String, Value>,
    is_dry_run: bool,
) -> Result<(Permission, String), Status> {
    let budgets = api.builtin_collection("policy", "poddisruptionbudgets");
    let budgets = budgets.ok_or_else(|| Status::internal_error("no poddisruptionbudgets"))?;
    let query = ListQuery { namespace: Some(target.namespace.to_owned()), ..ListQuery::default() };
    let listed = budgets.list(&query).await.map_err(|error| cache_error(target, error))?.objects;
    let mut found = None;
    for stored in listed {
        let budget = stored_object(&stored).await?;
        let selector = budget.get("spec").map_or(&Value::Null, |spec| &spec["selector"]);
        let selects = LabelSelector::of_object(selector);
        let labels = pod.get("metadata").map_or(&Value::Null, |metadata| &metadata["labels"]);
        if selects.is_some_and(|selector| selector.matches(|key| labels[key].as_str()))
            && found.replace((stored, budget)).is_some()
        {
            let why =
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
            return Err(Status::new(500, "", why));
        }
    }
    let Some((mut stored, mut budget)) = found else { return Ok((Permission::Granted, String::new())) };
    let name = stored.name().to_owned();
    if !is_pod_ready(pod) {
        let policy = budget.get("spec").and_then(|spec| spec["unhealthyPodEvictionPolicy"].as_str());
        let (healthy, desired) = (count(&budget, "currentHealthy"), count(&budget, "desiredHealthy"));
        if policy == Some("AlwaysAllow") || healthy >= desired && desired > 0 {
            return Ok((Permission::GrantedAsSeen, name));
        }
    }
    for _ in 0..ATTEMPTS {
        check_budget(&name, &budget)?;
        if is_dry_run {
            return Ok((Permission::Granted, name));
        }
        count_disruption(&mut budget, &target.name);
        let value = write_stored_json(&budget).bytes;
        match budgets.update(stored.key(), stored.revision(), value.into(), None).await {
            Ok(_) => return Ok((Permission::Granted, name)),
            Err(Error::Conflict { current: Some(now) }) => {
                budget = stored_object(&now).await?;
                stored = now;
            }
            Err(Error::Conflict { current: None }) => return Ok((Permission::Granted, name)),
            Err(error) => return Err(cache_error(target, error)),
        }
    }
    Err(Status::timeout(format_args!(
        "couldn't update PodDisruptionBudget {} due to conflicts",
        kubeapi::GoQuoted(&name)
    )))
}

/// A number of the budget's status.
fn count(budget: &Map<String, Value>, field: &str) -> i64 {
    budget.get("status").and_then(|status| status[field].as_i64()).unwrap_or_default()
}

/// Whether the budget allows an eviction (`checkAndDecrement`).
///
/// # Errors
/// 429 if it does not, 403 for a status that no controller keeps.
fn check_budget(name: &str, budget: &Map<String, Value>) -> Result<(), Status> {
    let status = budget.get("status").unwrap_or(&Value::Null);
    let generation = budget.get("metadata").and_then(|metadata| metadata["generation"].as_i64()).unwrap_or_default();
    if count(budget, "observedGeneration") < generation {
        return Err(being_processed(name));
    }
    let forbidden = |why: &str| Err(Status::object_forbidden("policy", "poddisruptionbudget", name, why));
    let allowed = count(budget, "disruptionsAllowed");
    if allowed < 0 {
        return forbidden("pdb disruptions allowed is negative");
    }
    if status["disruptedPods"].as_object().is_some_and(|pods| pods.len() > MAX_DISRUPTED_PODS) {
        return forbidden("DisruptedPods map too big - too many evictions not confirmed by PDB controller");
    }
    if allowed > 0 {
        return Ok(());
    }
    let (healthy, desired) = (count(budget, "currentHealthy"), count(budget, "desiredHealthy"));
    let conditions = status["conditions"].as_array();
    let refusing = conditions.and_then(|all| all.iter().find(|one| one["type"] == "DisruptionAllowed"));
    let refusing =
        refusing.filter(|one| one["status"] == "False" && one["message"].as_str().is_some_and(|text| !text.is_empty()));
    let text = |field: &str| refusing.and_then(|one| one[field].as_str()).unwrap_or_default();
    let why = match refusing {
        Some(_) if text("reason") == "SyncFailed" => {
            format!(" does not allow evicting pods currently because it failed sync: {}", text("message"))
        }
        _ if healthy <= desired => format!(" needs {desired} healthy pods and has {healthy} currently"),
        Some(_) => format!(" does not allow evicting pods currently ({}): {}", text("reason"), text("message")),
        None => " does not allow evicting pods currently".to_owned(),
    };
    let refused = Status::new(429, "TooManyRequests", REFUSED).with_details(StatusDetails::default());
    Err(refused.with_cause("DisruptionBudget", format!("The disruption budget {name}{why}")))
}

/// 429 for a budget whose controller has not looked at the last change.
fn being_processed(budget: &str) -> Status {
    Status::too_many_requests(REFUSED, RetryAfter::DisruptionBudget).with_cause(
        "DisruptionBudget",
        format!("The disruption budget {budget} is still being processed by the server."),
    )
}

/// Counts the eviction of a Pod, so that the budget's controller does.
fn count_disruption(budget: &mut Map<String, Value>, pod: &str) {
    let left = count(budget, "disruptionsAllowed") - 1;
    let Some(status) = budget.get_mut("status").and_then(Value::as_object_mut) else { return };
    status.insert("disruptionsAllowed".to_owned(), json!(left));
    let disrupted = status.entry("disruptedPods").or_insert_with(|| json!({}));
    disrupted[pod] = json!(metadata::now());
    if left == 0 {
        set_disruptions_exhausted(status, &metadata::now());
    }
}

/// Notes in the Pod why it ends, and deletes it (`addConditionAndDeletePod`).
async fn delete_evicted(
    pods: &ResourceCollection,
    target: &ObjectTarget<'_>,
    (mut stored, mut pod): (Arc<Stored>, Map<String, Value>),
    options: &DeleteOptions,
) -> Result<(), Status> {
    let mut options = options.clone();
    if !options.is_dry_run {
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
        });
        // As upstream, which looks at empty ones only when it deletes the Pod.
        let is_given = |text: &String| !text.is_empty();
        let preconditions = DeleteOptions {
            uid: options.uid.clone().filter(is_given),
            resource_version: options.resource_version.clone().filter(is_given),
            ..options.clone()
        };
        loop {
            check_preconditions(target, &stored, &preconditions)?;
            set_pod_condition(&mut pod, &condition, &metadata::now());
            let value = write_stored_json(&pod).bytes;
            if value == **stored.bytes() {
                break;
            }
            match pods.update(stored.key(), stored.revision(), value.into(), None).await {
                Ok(updated) => {
                    stored = updated;
                    break;
                }
                Err(Error::Conflict { current: Some(now) }) => {
                    pod = stored_object(&now).await?;
                    stored = now;
                }
                Err(error) => return Err(cache_error(target, error)),
            }
        }
        if options.resource_version.is_some() {
            options.resource_version = Some(stored.revision().to_string());
        }
    }
    remove(pods, target, stored, &options).await.map(drop)
}
