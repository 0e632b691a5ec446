//! Roles and bindings give nobody more than the writer has (`pkg/registry/rbac/*/policybased/storage.go`,
//! `pkg/registry/rbac/escalation_check.go`).

use std::sync::Arc;

use kubeapi::{GoQuoted, Status};
use serde_json::{Map, Value};
use store::watch_cache::Stored;

use super::api_server::ApiServer;
use super::errors::cache_error;
use super::target::ObjectTarget;
use crate::authorize::CreateAuthorization;
use crate::authorize::policy::{PolicyRule, describe_rules, go_list, read_role, uncovered_rules};
use crate::compute::run_sized;
use crate::conversion::stored_object;

const GROUP: &str = "rbac.authorization.k8s.io";
/// Its members may do everything.
const MASTERS: &str = "system:masters";

impl ApiServer {
    /// Refuses a role with rules, or a binding of a role, that the user does not have, unless the user may `escalate` or
    /// `bind`.
    ///
    /// # Errors
    /// 403, and 404 for the role of a binding.
    pub(super) async fn check_escalation(
        &self,
        target: &ObjectTarget<'_>,
        authorization: &CreateAuthorization<'_>,
        stored: Option<&Arc<Stored>>,
        object: &Map<String, Value>,
    ) -> Result<(), Status> {
        let (group, plural) = target.kind.resource.group_resource();
        if group != GROUP || authorization.user().groups.iter().any(|name| &**name == MASTERS) {
            return Ok(());
        }
        let old = match stored {
            Some(stored) => Some(stored_object(stored).await?),
            None => None,
        };
        if old.as_ref().is_some_and(|old| differs_in_owners_alone(old, object)) {
            return Ok(());
        }
        let name = object.get("metadata").and_then(|metadata| metadata["name"].as_str()).unwrap_or_default();
        let forbidden = |why: &str| Status::object_forbidden(group, plural, name, why);
        if !plural.ends_with("bindings") {
            if authorization.allows("escalate", (GROUP, plural), (target.namespace, &target.name)).await {
                return Ok(());
            }
            self.check_rules(target, authorization, read_rules(object)?).await?.map_err(|why| forbidden(&why))?;
            if has_aggregation(object) || old.as_ref().is_some_and(has_aggregation) {
                let why = "must have cluster-admin privileges to use the aggregationRule";
                let all = vec![PolicyRule::all_resources(), PolicyRule::all_paths()];
                self.check_rules(target, authorization, all).await?.map_err(|_| forbidden(why))?;
            }
            return Ok(());
        }
        let role = object.get("roleRef").unwrap_or(&Value::Null);
        let (kind, role) = (role["kind"].as_str().unwrap_or_default(), role["name"].as_str().unwrap_or_default());
        let (roles, namespace) = match kind {
            "ClusterRole" => ("clusterroles", ""),
            "Role" => ("roles", target.namespace),
            // Validation refuses it.
            _ => return Ok(()),
        };
        if authorization.allows("bind", (GROUP, roles), (target.namespace, role)).await {
            return Ok(());
        }
        let collection = self.builtin_collection(GROUP, roles).ok_or_else(Status::not_found)?;
        let key = target.key_of(&collection, namespace, role)?;
        let stored = collection.get_latest(&key).await.map_err(|error| cache_error(target, error))?;
        let stored = stored.ok_or_else(|| Status::object_not_found(GROUP, roles, role))?;
        let rules = read_role(stored.bytes()).map_err(Status::internal_error)?;
        self.check_rules(target, authorization, rules).await?.map_err(|why| forbidden(&why))
    }

    /// Whether the user has all rules in the namespace of the request; else why not.
    async fn check_rules(
        &self,
        target: &ObjectTarget<'_>,
        authorization: &CreateAuthorization<'_>,
        wanted: Vec<PolicyRule>,
    ) -> Result<Result<(), String>, Status> {
        let user = authorization.user();
        let (mut owned, mut errors) = authorization.rules(target.namespace);
        // They count also when requests are authorized in other ways.
        let policy = self.policy().load();
        owned.extend(policy.rules(user, target.namespace));
        errors.extend(Some(policy.missing_roles(user, target.namespace)).filter(|text| !text.is_empty()));
        errors.dedup();
        let size =
            owned.iter().chain([&Arc::new(wanted.clone())]).flat_map(|rules| &***rules).map(PolicyRule::size).sum();
        let uncovered = run_sized(size, move || uncovered_rules(owned.iter().flat_map(|rules| &**rules), &wanted));
        let uncovered = match uncovered.await? {
            Ok(uncovered) if uncovered.is_empty() => return Ok(Ok(())),
            Ok(uncovered) => describe_rules(&uncovered),
            Err(_) => "the rules are too many to be compared".to_owned(),
        };
        let (name, groups) = (GoQuoted(&user.name), go_list(&user.groups));
        let mut why = format!(
            "user {name} (groups={groups}) is attempting to grant RBAC permissions not currently held:\n{uncovered}"
        );
        if !errors.is_empty() {
            why += &format!("; resolution errors: [{}]", errors.join(" "));
        }
        Ok(Err(why))
    }
}

fn read_rules(role: &Map<String, Value>) -> Result<Vec<PolicyRule>, Status> {
    let rules = role.get("rules").filter(|rules| !rules.is_null()).cloned();
    rules.map_or_else(|| Ok(Vec::new()), serde_json::from_value).map_err(Status::internal_error)
}

fn has_aggregation(role: &Map<String, Value>) -> bool {
    let rule = role.get("aggregationRule").and_then(|rule| rule["clusterRoleSelectors"].as_array());
    rule.is_some_and(|selectors| !selectors.is_empty())
}

/// Whether only what a garbage collector changes differs (`IsOnlyMutatingGCFields`).
fn differs_in_owners_alone(old: &Map<String, Value>, object: &Map<String, Value>) -> bool {
    let without_owners = |object: &Map<String, Value>| {
        let mut object = object.clone();
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            for field in ["ownerReferences", "finalizers", "selfLink", "managedFields", "resourceVersion"] {
                metadata.remove(field);
            }
        }
        object
    };
    without_owners(old) == without_owners(object)
}
