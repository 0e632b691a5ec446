//! Resources of containers and Pods (`validateResourceRequirements`, `validateResizePolicy`).

use std::cell::LazyCell;
use std::collections::{BTreeSet, HashMap, HashSet};

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::names::check_dns1123_label;
use kubeapi::quantity::Quantity;
use serde_json::Value;

use super::paths::check_choice;
use crate::kinds::resource_names::{
    amount_errors, amounts, container_resource_errors, is_native_resource, resource_name_errors,
};
use crate::kinds::validation::{invalid_for, items, text};

const HUGE_PAGES: &str = "hugepages-";
const RESIZED_RESOURCES: [&str; 2] = ["cpu", "memory"];
const RESIZE_POLICIES: [&str; 2] = ["NotRequired", "RestartContainer"];

/// Largest list of claims in an error, in bytes.
const MAX_LISTED_BYTES: usize = 4 << 10;

/// Whose resources are examined.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ResourceOwner {
    Container,
    Pod,
}

/// Errors of requests, limits and claims.
pub(super) fn check_resources(
    resources: &Value,
    owner: ResourceOwner,
    claims: &BTreeSet<&str>,
    path: &FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let (limits_path, requests_path) = (path.child("limits"), path.child("requests"));
    let limits: HashMap<&str, Quantity> = amounts(&resources["limits"]).collect();
    for (name, amount) in amounts(&resources["limits"]) {
        let path = limits_path.key(name);
        check_amount((name, &amount), owner, &path, errors);
        errors.extend(huge_page_error((name, &amount), &path));
    }
    for (name, amount) in amounts(&resources["requests"]) {
        let path = requests_path.key(name);
        check_amount((name, &amount), owner, &path, errors);
        let can_overcommit = is_native_resource(name) && !name.starts_with(HUGE_PAGES);
        match limits.get(name) {
            Some(limit) if amount != *limit && !can_overcommit => {
                let why = format!("must be equal to {name} limit of {limit}");
                errors.push(FieldError::invalid(requests_path, &amount.to_string(), why));
            }
            Some(limit) if amount > *limit => {
                let why = format!("must be less than or equal to {name} limit of {limit}");
                errors.push(FieldError::invalid(requests_path, &amount.to_string(), why));
            }
            None if !can_overcommit => {
                let why = "Limit must be set for non overcommitable resources";
                errors.push(FieldError::required(limits_path, why));
            }
            _ => {}
        }
        errors.extend(huge_page_error((name, &amount), &path));
    }
    let names = |field: &str| resources[field].as_object().into_iter().flatten().map(|(name, _)| name.as_str());
    let all = || names("limits").chain(names("requests"));
    if all().any(|name| name.starts_with(HUGE_PAGES)) && !all().any(|name| matches!(name, "cpu" | "memory")) {
        errors.push(FieldError::forbidden(path, "HugePages require cpu or memory"));
    }
    check_claim_names(items(resources, "claims"), claims, &path.child("claims"), errors);
}

fn check_amount(
    (name, amount): (&str, &Quantity),
    owner: ResourceOwner,
    path: &FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    errors.extend(match owner {
        ResourceOwner::Container => container_resource_errors(*path, name),
        ResourceOwner::Pod => pod_resource_errors(*path, name),
    });
    errors.extend(amount_errors(*path, name, amount));
}

/// The error of an amount that is no multiple of the size of the pages.
fn huge_page_error((name, amount): (&str, &Quantity), path: &FieldPath<'_>) -> Option<FieldError> {
    let size = name.strip_prefix(HUGE_PAGES)?;
    let size = Quantity::parse(size).ok().filter(Quantity::is_integer).map_or(0, |size| size.value());
    let is_multiple = size > 0 && amount.value() % size == 0;
    let why = || format!("{amount} is not positive integer multiple of {name}");
    (!is_multiple).then(|| FieldError::invalid(path, &amount.to_string(), why()))
}

/// Errors of the name of a resource of a whole Pod (`validatePodResourceName`).
fn pod_resource_errors(path: FieldPath<'_>, name: &str) -> Vec<FieldError> {
    let errors = resource_name_errors(path, name);
    let is_supported = matches!(name, "cpu" | "memory") || name.starts_with(HUGE_PAGES);
    if errors.is_empty() && !is_supported {
        return vec![FieldError::not_supported(path, name, &["cpu", "memory"])];
    }
    errors
}

/// Errors of claims that a container refers to (`validateResourceClaimNames`).
fn check_claim_names(list: &[Value], known: &BTreeSet<&str>, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    // Once for all claims, and bounded: the names are the client's.
    let listed = LazyCell::new(|| {
        let mut text = String::new();
        for name in known {
            let separator = if text.is_empty() { "" } else { ", " };
            if text.len() + name.len() > MAX_LISTED_BYTES {
                text.push_str(", ...");
                break;
            }
            text.push_str(separator);
            text.push_str(name);
        }
        text
    });
    let (mut whole, mut with_request, mut requested) = (HashSet::new(), HashSet::new(), HashMap::new());
    for (index, claim) in list.iter().enumerate() {
        let path = path.index(index);
        let (name, request) = (text(claim, "name"), text(claim, "request"));
        if name.is_empty() {
            errors.push(FieldError::required(path, ""));
            continue;
        }
        if whole.contains(name) {
            errors.push(FieldError::duplicate(path, name));
        } else if request.is_empty() {
            // One error for each request of the claim.
            for _ in 0..requested.get(name).copied().unwrap_or(0) {
                errors.push(FieldError::duplicate(path, name));
            }
            whole.insert(name);
        } else {
            errors.extend(invalid_for(path.child("request"), request, check_dns1123_label(request)));
            if with_request.insert((name, request)) {
                *requested.entry(name).or_insert(0_usize) += 1;
            } else {
                errors.push(FieldError::duplicate(path, &format!("{name}/{request}")));
            }
        }
        if !known.contains(name) && !errors.is_full() {
            let mut error = FieldError::not_found(path, name);
            error.detail = match known.is_empty() {
                true => "must be one of the names in pod.spec.resourceClaims which is empty".to_owned(),
                false => format!("must be one of the names in pod.spec.resourceClaims: {}", &*listed),
            };
            errors.push(error);
        }
    }
}

/// Errors of what happens to a container when its resources change.
pub(super) fn check_resize_policy(
    policies: &[Value],
    pod_policy: &str,
    path: &FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let mut seen = HashSet::new();
    for (index, policy) in policies.iter().enumerate() {
        let (resource, restart) = (text(policy, "resourceName"), text(policy, "restartPolicy"));
        if !seen.insert(resource) {
            errors.push(FieldError::duplicate(path.index(index), resource));
        }
        check_choice(resource, &RESIZED_RESOURCES, path, errors);
        check_choice(restart, &RESIZE_POLICIES, path, errors);
        if pod_policy == "Never" && restart != "NotRequired" {
            let why = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            errors.push(FieldError::invalid(path, restart, why));
        }
    }
}
