//! Roles and bindings give nobody more than the writer has (`pkg/registry/rbac/*/policybased/storage.go`,
//! `pkg/registry/rbac/escalation_check.go`).

use std::collections::BTreeSet;
use std::sync::Arc;

use kubeapi::{GoQuoted, Status};
use serde::Deserialize as _;
use serde_json::{Map, Value};
use store::watch_cache::Stored;

use super::api_server::ApiServer;
use super::errors::cache_error;
use super::target::ObjectTarget;
use crate::authorize::CreateAuthorization;
use crate::authorize::policy::{PolicyRule, TooManySteps, describe_parts, format_go_list, read_role, uncovered_parts};
use crate::compute::{map_size, run_counted, run_sized};
use crate::conversion::stored_object;

const GROUP: &str = "rbac.authorization.k8s.io";
/// Its members may do everything.
const PRIVILEGED_GROUP: &str = "system:masters";
/// Bytes that one rule stands for when work is measured.
const RULE_BYTES: usize = 64;

/// What a written role or binding grants.
enum GrantedContent {
    /// What the stored object grants: only what a garbage collector changes differs (`IsOnlyMutatingGCFields`).
    Unchanged,
    Role {
        rules: Vec<PolicyRule>,
        is_aggregated: bool,
    },
    Binding {
        role_group: String,
        role_kind: String,
        role: String,
    },
}

impl ApiServer {
    /// Refuses a role with rules, or a binding of a role, that the user does not have, unless the user may `escalate` or
    /// `bind`. Returns the object.
    ///
    /// # Errors
    /// 403, and 404 for the role of a binding.
    pub(super) async fn check_escalation(
        &self,
        target: &ObjectTarget<'_>,
        authorization: &CreateAuthorization<'_>,
        stored: Option<&Arc<Stored>>,
        object: Map<String, Value>,
    ) -> Result<Map<String, Value>, Status> {
        let (group, plural) = target.kind.resource.group_resource();
        if group != GROUP || authorization.user().groups.iter().any(|name| &**name == PRIVILEGED_GROUP) {
            return Ok(object);
        }
        let old = match stored {
            Some(stored) => Some(stored_object(stored).await?),
            None => None,
        };
        let size = map_size(&object) + old.as_ref().map_or(0, map_size);
        let read = move || (GrantedContent::read(old.as_ref(), &object), object);
        let (content, object) = run_sized(size, read).await?;
        let name = object.get("metadata").and_then(|metadata| metadata["name"].as_str()).unwrap_or_default();
        let forbidden = |why: &str| Status::object_forbidden(group, plural, name, why);
        match content? {
            GrantedContent::Unchanged => {}
            GrantedContent::Role { rules, is_aggregated } => {
                if authorization.allows("escalate", (GROUP, plural), (target.namespace, &target.name)).await {
                    return Ok(object);
                }
                self.check_rules(target, authorization, rules).await?.map_err(|why| forbidden(&why))?;
                if is_aggregated {
                    let why = "must have cluster-admin privileges to use the aggregationRule";
                    let all = vec![PolicyRule::all_resources(), PolicyRule::all_paths()];
                    self.check_rules(target, authorization, all).await?.map_err(|_| forbidden(why))?;
                }
            }
            GrantedContent::Binding { role_group, role_kind, role } => {
                let (roles, namespace) = match &*role_kind {
                    "ClusterRole" => ("clusterroles", ""),
                    "Role" => ("roles", target.namespace),
                    // Validation refuses it.
                    _ => return Ok(object),
                };
                if authorization.allows("bind", (&role_group, roles), (target.namespace, &role)).await {
                    return Ok(object);
                }
                let collection = self.builtin_collection(GROUP, roles).ok_or_else(Status::not_found)?;
                if role_kind == "Role" && namespace.is_empty() {
                    return Err(Status::bad_request("Namespace parameter required."));
                }
                let key = target.key_of(&collection, namespace, &role)?;
                let stored = collection.get_latest(&key).await.map_err(|error| cache_error(target, error))?;
                let stored = stored.ok_or_else(|| Status::object_not_found(GROUP, plural, &role))?;
                let rules = run_sized(stored.bytes().len(), move || read_role(stored.bytes())).await?;
                let rules = rules.map_err(Status::internal_error)?;
                self.check_rules(target, authorization, rules).await?.map_err(|why| forbidden(&why))?;
            }
        }
        Ok(object)
    }

    /// Whether the user has all rules in the namespace of the request; else why not.
    async fn check_rules(
        &self,
        target: &ObjectTarget<'_>,
        authorization: &CreateAuthorization<'_>,
        requested: Vec<PolicyRule>,
    ) -> Result<Result<(), String>, Status> {
        let user = authorization.user();
        let (mut owned, mut errors) = authorization.rules(target.namespace);
        // They count also when requests are authorized in other ways.
        let policy = self.policy().get();
        owned.extend(policy.rules(user, target.namespace));
        owned.sort_by_key(Arc::as_ptr);
        owned.dedup_by_key(|rules| Arc::as_ptr(rules));
        errors.extend(policy.missing_roles(user, target.namespace).into_iter().map(str::to_owned));
        let size = (owned.iter().map(|rules| rules.len()).sum::<usize>() + requested.len()) * RULE_BYTES;
        let uncovered = run_counted(size, (owned, requested), |(owned, requested), limit| {
            let parts = uncovered_parts(owned.iter().flat_map(|rules| &**rules), requested, limit)?;
            Ok::<_, TooManySteps>(describe_parts(&parts))
        });
        let uncovered = match uncovered.await? {
            Ok(uncovered) if uncovered.is_empty() => return Ok(Ok(())),
            Ok(uncovered) => uncovered,
            Err(TooManySteps) => "the rules are too many to be compared".to_owned(),
        };
        let (name, groups) = (GoQuoted(&user.name), format_go_list(&user.groups));
        let mut why = format!(
            "user {name} (groups={groups}) is attempting to grant RBAC permissions not currently held:\n{uncovered}"
        );
        if !errors.is_empty() {
            // The errors of storage name the resource of the request, unlike those of the authorizer.
            let plural = target.kind.resource.group_resource().1;
            let without_resource = |error: &String| error.split_once(' ').map_or("", |(_, rest)| rest).to_owned();
            let missing: BTreeSet<String> = errors.iter().map(without_resource).collect();
            let missing: Vec<String> = missing.iter().map(|rest| format!("{plural}.{GROUP} {rest}")).collect();
            why += &format!("; resolution errors: [{}]", missing.join(", "));
        }
        Ok(Err(why))
    }
}

impl GrantedContent {
    fn read(old: Option<&Map<String, Value>>, object: &Map<String, Value>) -> Result<GrantedContent, Status> {
        if old.is_some_and(|old| is_changing_owners_only(old, object)) {
            return Ok(GrantedContent::Unchanged);
        }
        if let Some(role) = object.get("roleRef") {
            let text = |field: &str| role[field].as_str().unwrap_or_default().to_owned();
            let (role_group, role_kind, role) = (text("apiGroup"), text("kind"), text("name"));
            return Ok(GrantedContent::Binding { role_group, role_kind, role });
        }
        let rules = object.get("rules").filter(|rules| !rules.is_null());
        let rules = rules.map_or_else(|| Ok(Vec::new()), Vec::<PolicyRule>::deserialize);
        let is_aggregated = has_aggregation(object) || old.is_some_and(has_aggregation);
        Ok(GrantedContent::Role { rules: rules.map_err(Status::internal_error)?, is_aggregated })
    }
}

fn has_aggregation(role: &Map<String, Value>) -> bool {
    let rule = role.get("aggregationRule").and_then(|rule| rule["clusterRoleSelectors"].as_array());
    rule.is_some_and(|selectors| !selectors.is_empty())
}

/// Whether the objects differ only in owners and finalizers, and in what the server itself sets.
fn is_changing_owners_only(old: &Map<String, Value>, object: &Map<String, Value>) -> bool {
    const CHANGED: [&str; 5] = ["ownerReferences", "finalizers", "selfLink", "managedFields", "resourceVersion"];
    let fields = |of: &Map<String, Value>| of.keys().filter(|field| *field != "metadata").count();
    let is_same = |(field, value): (&String, &Value)| field == "metadata" || old.get(field) == Some(value);
    let metadata = |of: &Map<String, Value>| of.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    let without_changed = |mut metadata: Map<String, Value>| {
        CHANGED.iter().for_each(|field| drop(metadata.remove(*field)));
        metadata
    };
    fields(old) == fields(object)
        && object.iter().all(is_same)
        && without_changed(metadata(old)) == without_changed(metadata(object))
}
