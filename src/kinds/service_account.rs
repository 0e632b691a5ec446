//! ServiceAccounts (`pkg/registry/core/serviceaccount/strategy.go`).

use kubeapi::object_meta::ObjectMetaView;
use serde_json::Value;

use super::{KindRules, Object, WrittenObject};

const MOUNTABLE_SECRETS: &str = "kubernetes.io/enforce-mountable-secrets";

pub(super) static RULES: KindRules = KindRules {
    returns_deleted_object: true,
    prepare_new: |_, object| keep_secret_names(object),
    prepare_replacement: |_, object| keep_secret_names(object),
    warnings: mountable_secrets_warning,
    cells: |printer| vec![printer.name(), printer.age()],
    ..KindRules::of("", "serviceaccounts")
};

/// Keeps only the names of the Secrets (`cleanSecretReferences`).
fn keep_secret_names(object: &mut Object) {
    for secret in object.get_mut("secrets").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(secret) = secret.as_object_mut() {
            secret.retain(|field, _| field == "name");
        }
    }
}

fn mountable_secrets_warning(written: &WrittenObject<'_>) -> Vec<String> {
    let has_annotation = |object: &Object| ObjectMetaView::of_map(object).annotation(MOUNTABLE_SECRETS).is_some();
    let is_new = has_annotation(written.object) && !written.old.is_some_and(has_annotation);
    let why = "deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets";
    is_new.then(|| format!("metadata.annotations[{MOUNTABLE_SECRETS}]: {why}")).into_iter().collect()
}
