//! The plugin `ServiceAccount`: a Pod has an account, its token and its pull secrets
//! (`plugin/pkg/admission/serviceaccount`).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use kubeapi::Status;
use kubeapi::object_meta::generate_object_name;
use serde_json::{Map, Value, json};
use store::watch_cache::Stored;

use super::{AdmittedWrite, annotation};
use crate::conversion::stored_object;
use crate::rest::admission_plugins::AdmissionPlugin;
use crate::rest::errors::cache_error;

/// Where a Pod finds its token.
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Prefix of the name of the volume with the token.
const VOLUME_PREFIX: &str = "kube-api-access-";
/// Annotation of a Pod that stands for one of a kubelet's files.
const MIRROR_POD: &str = "kubernetes.io/config.mirror";
/// Annotation of an account whose Pods use only Secrets that it names.
const MOUNTABLE_SECRETS: &str = "kubernetes.io/enforce-mountable-secrets";
/// The account of a Pod that names none. A controller makes it in a new namespace: it is looked up several times.
const DEFAULT_ACCOUNT: &str = "default";
const DEFAULT_ATTEMPTS: usize = 10;
/// Lifetime of the token in seconds (`WarnOnlyBoundTokenExpirationSeconds`).
const TOKEN_SECONDS: i64 = 60 * 60 + 7;

impl AdmittedWrite<'_> {
    /// Completes a new Pod.
    pub(super) async fn apply_service_account(self, pod: &mut Map<String, Value>) -> Result<(), Status> {
        if !self.has_plugin(AdmissionPlugin::ServiceAccount) || self.old.is_some() {
            return Ok(());
        }
        if annotation(pod, MIRROR_POD).is_some() {
            return self.check_mirror_pod(pod);
        }
        let spec = pod.entry("spec").or_insert_with(|| json!({}));
        if spec["serviceAccountName"].as_str().is_none_or(str::is_empty) {
            spec["serviceAccountName"] = DEFAULT_ACCOUNT.into();
        }
        let name = spec["serviceAccountName"].as_str().unwrap_or_default().to_owned();
        // As upstream's conversion to v1.
        spec["serviceAccount"] = name.as_str().into();
        let account = self.service_account(pod, &name).await?;
        let Some(spec) = pod.get_mut("spec") else { return Ok(()) };
        let wanted = spec["automountServiceAccountToken"].as_bool();
        let wanted = wanted.or_else(|| account.get("automountServiceAccountToken")?.as_bool());
        if wanted.unwrap_or(true) {
            mount_token(spec);
        }
        if spec["imagePullSecrets"].as_array().is_none_or(Vec::is_empty)
            && let Some(secrets) =
                account.get("imagePullSecrets").and_then(Value::as_array).filter(|all| !all.is_empty())
        {
            spec["imagePullSecrets"] = secrets.iter().map(|secret| json!({"name": secret["name"]})).collect();
        }
        match limits_secrets(&account) {
            true => check_secrets(spec, &account).map_err(|why| self.forbidden(pod, why)),
            false => Ok(()),
        }
    }

    /// Checks the ephemeral containers of a Pod.
    pub(super) async fn check_ephemeral_containers(self, pod: &Map<String, Value>) -> Result<(), Status> {
        if !self.has_plugin(AdmissionPlugin::ServiceAccount) {
            return Ok(());
        }
        let name = super::text(pod, "spec", "serviceAccountName").to_owned();
        if name.is_empty() {
            let (namespace, pod_name) = (self.target.namespace, super::text(pod, "metadata", "name"));
            return Err(self.forbidden(pod, format!("no service account specified for pod {namespace}/{pod_name}")));
        }
        let account = self.service_account(pod, &name).await?;
        let spec = pod.get("spec").unwrap_or(&Value::Null);
        match limits_secrets(&account) {
            true => {
                let mountable = secret_names(account.get("secrets"));
                let checked =
                    check_environment(spec, ("ephemeralContainers", "ephemeral container"), &mountable, &name);
                checked.map_err(|why| self.forbidden(pod, why))
            }
            false => Ok(()),
        }
    }

    async fn service_account(self, pod: &Map<String, Value>, name: &str) -> Result<Map<String, Value>, Status> {
        let namespace = self.target.namespace;
        match self.find_service_account(name).await? {
            Some(account) => stored_object(&account).await,
            None => {
                let why = format!(
                    "error looking up service account {namespace}/{name}: serviceaccount {} not found",
                    kubeapi::GoQuoted(name)
                );
                Err(self.forbidden(pod, why))
            }
        }
    }

    async fn find_service_account(self, name: &str) -> Result<Option<Arc<Stored>>, Status> {
        let accounts = self.collection("", "serviceaccounts").await?;
        let Ok(key) = accounts.prefix().key(self.target.namespace, name) else { return Ok(None) };
        let attempts = if name == DEFAULT_ACCOUNT { DEFAULT_ATTEMPTS } else { 1 };
        for attempt in 0..attempts {
            if attempt > 0 {
                tokio::time::sleep(Duration::from_millis(fastrand::u64(100..200))).await;
            }
            let found = accounts.get_latest(&key).await.map_err(|error| cache_error(self.target, error))?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// A Pod that stands for one of a kubelet's files has no access to the API.
    fn check_mirror_pod(self, pod: &Map<String, Value>) -> Result<(), Status> {
        let spec = pod.get("spec").unwrap_or(&Value::Null);
        let volumes = || spec["volumes"].as_array().into_iter().flatten();
        let projects_token = |volume: &Value| {
            let mut sources = volume["projected"]["sources"].as_array().into_iter().flatten();
            sources.any(|source| !source["serviceAccountToken"].is_null())
        };
        let why = if !super::text(pod, "spec", "serviceAccountName").is_empty() {
            "a mirror pod may not reference service accounts"
        } else if has_secret_reference(spec) {
            "a mirror pod may not reference secrets"
        } else if volumes().any(projects_token) {
            "a mirror pod may not use ServiceAccountToken volume projections"
        } else {
            return Ok(());
        };
        Err(self.forbidden(pod, why))
    }
}

/// Whether a part of a Pod's spec names a Secret (`VisitPodSecretNames` in `pkg/api/v1/pod`).
fn has_secret_reference(value: &Value) -> bool {
    const FIELDS: [&str; 10] = [
        "secretKeyRef",
        "secretRef",
        "secretName",
        "secret",
        "imagePullSecrets",
        "controllerExpandSecretRef",
        "controllerPublishSecretRef",
        "nodePublishSecretRef",
        "nodeStageSecretRef",
        "nodeExpandSecretRef",
    ];
    // Values in a Pod are nested about ten deep.
    match value {
        Value::Object(fields) => fields.iter().any(|(field, value)| {
            let is_empty = value.is_null() || value == "" || value.as_array().is_some_and(Vec::is_empty);
            FIELDS.contains(&field.as_str()) && !is_empty || has_secret_reference(value)
        }),
        Value::Array(values) => values.iter().any(has_secret_reference),
        _ => false,
    }
}

/// Whether Pods of an account may use only the Secrets that it names.
fn limits_secrets(account: &Map<String, Value>) -> bool {
    let value = annotation(account, MOUNTABLE_SECRETS);
    // As Go's `strconv.ParseBool`.
    value.is_some_and(|value| ["1", "t", "T", "true", "TRUE", "True"].contains(&value))
}

/// Adds a volume with the token, and mounts it in each container that has nothing there.
fn mount_token(spec: &mut Value) {
    let volumes = || spec["volumes"].as_array().into_iter().flatten();
    let existing = volumes().filter_map(|volume| volume["name"].as_str()).find(|name| name.starts_with(VOLUME_PREFIX));
    let has_volume = existing.is_some();
    let generated = || generate_object_name(VOLUME_PREFIX, |below| fastrand::usize(..below));
    let name = existing.map_or_else(generated, str::to_owned);
    let mut is_mounted = false;
    for field in ["initContainers", "containers"] {
        for container in spec.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten() {
            let Some(container) = container.as_object_mut() else { continue };
            let mounts = container.entry("volumeMounts").or_insert_with(|| json!([]));
            if mounts.is_null() {
                *mounts = json!([]);
            }
            let Some(mounts) = mounts.as_array_mut() else { continue };
            if mounts.iter().all(|mount| mount["mountPath"] != MOUNT_PATH) {
                mounts.push(json!({"name": name, "readOnly": true, "mountPath": MOUNT_PATH}));
                is_mounted = true;
            }
        }
    }
    if has_volume || !is_mounted {
        return;
    }
    let volume = json!({"name": name, "projected": {
        "defaultMode": 0o644,
        "sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_SECONDS}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [
                {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}},
            ]}},
        ],
    }});
    match spec.get_mut("volumes").and_then(Value::as_array_mut) {
        Some(volumes) => volumes.push(volume),
        None => spec["volumes"] = json!([volume]),
    }
}

/// The names in a list of references.
fn secret_names(references: Option<&Value>) -> HashSet<&str> {
    let references = references.and_then(Value::as_array).into_iter().flatten();
    references.filter_map(|reference| reference["name"].as_str()).collect()
}

/// Checks that a Pod uses only Secrets that its account names (`limitSecretReferences`).
fn check_secrets(spec: &Value, account: &Map<String, Value>) -> Result<(), String> {
    let name = super::text(account, "metadata", "name");
    let mountable = secret_names(account.get("secrets"));
    for volume in spec["volumes"].as_array().into_iter().flatten().filter(|volume| volume["secret"].is_object()) {
        let secret = volume["secret"]["secretName"].as_str().unwrap_or_default();
        if !mountable.contains(secret) {
            return Err(format!(
                "volume with secret.secretName=\"{secret}\" is not allowed because service account {name} does not \
                 reference that secret"
            ));
        }
    }
    check_environment(spec, ("initContainers", "init container"), &mountable, name)?;
    check_environment(spec, ("containers", "container"), &mountable, name)?;
    let pull_secrets = secret_names(account.get("imagePullSecrets"));
    for (number, secret) in spec["imagePullSecrets"].as_array().into_iter().flatten().enumerate() {
        let secret = secret["name"].as_str().unwrap_or_default();
        if !pull_secrets.contains(secret) {
            return Err(format!(
                "imagePullSecrets[{number}].name=\"{secret}\" is not allowed because service account {name} does not \
                 reference that imagePullSecret"
            ));
        }
    }
    Ok(())
}

/// Checks the Secrets in the environment of containers. `field` and `kind` are those of the containers.
fn check_environment(
    spec: &Value,
    (field, kind): (&str, &str),
    mountable: &HashSet<&str>,
    account: &str,
) -> Result<(), String> {
    for container in spec[field].as_array().into_iter().flatten() {
        let name = container["name"].as_str().unwrap_or_default();
        let refuse = |by: String, secret: &str| {
            Err(format!(
                "{kind} {name} with {by} referencing secret.secretName=\"{secret}\" is not allowed because service account \
                 {account} does not reference that secret"
            ))
        };
        for variable in container["env"].as_array().into_iter().flatten() {
            let reference = &variable["valueFrom"]["secretKeyRef"];
            let secret = reference["name"].as_str().unwrap_or_default();
            if reference.is_object() && !mountable.contains(secret) {
                return refuse(format!("envVar {}", variable["name"].as_str().unwrap_or_default()), secret);
            }
        }
        for source in container["envFrom"].as_array().into_iter().flatten() {
            let secret = source["secretRef"]["name"].as_str().unwrap_or_default();
            if source["secretRef"].is_object() && !mountable.contains(secret) {
                return refuse("envFrom".to_owned(), secret);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_mounted_in_each_container_that_has_nothing_there() {
        let own = json!([{"name": "own", "mountPath": MOUNT_PATH}]);
        let mut spec = json!({"containers": [{"name": "a"}, {"name": "b", "volumeMounts": own}]});
        mount_token(&mut spec);
        let volume = spec["volumes"][0]["name"].as_str().unwrap().to_owned();
        assert!(volume.starts_with(VOLUME_PREFIX) && volume.len() == VOLUME_PREFIX.len() + 5, "{volume}");
        let expected = json!([{"name": volume, "readOnly": true, "mountPath": MOUNT_PATH}]);
        assert_eq!((&spec["containers"][0]["volumeMounts"], &spec["containers"][1]["volumeMounts"]), (&expected, &own));
        // A second time nothing changes; without a container that needs it there is no volume.
        let before = spec.clone();
        mount_token(&mut spec);
        assert_eq!(spec, before);
        let mut spec = json!({"containers": [{"name": "b", "volumeMounts": own}]});
        mount_token(&mut spec);
        assert!(spec["volumes"].is_null());
    }

    #[test]
    fn secrets_of_a_limited_account_are_those_that_it_names() {
        let account = json!({
            "metadata": {"name": "a"}, "secrets": [{"name": "s"}], "imagePullSecrets": [{"name": "p"}],
        });
        let account = account.as_object().unwrap();
        let environment = |secret: &str| json!([{"name": "V", "valueFrom": {"secretKeyRef": {"name": secret}}}]);
        for (spec, expected) in [
            (json!({"volumes": [{"secret": {"secretName": "s"}}], "imagePullSecrets": [{"name": "p"}]}), None),
            (json!({"volumes": [{"secret": {"secretName": "x"}}]}), Some("volume with secret.secretName=\"x\"")),
            (json!({"containers": [{"name": "c", "env": environment("s")}]}), None),
            (json!({"containers": [{"name": "c", "env": environment("x")}]}), Some("container c with envVar V")),
            (
                json!({"initContainers": [{"name": "i", "envFrom": [{"secretRef": {"name": "x"}}]}]}),
                Some("init container i with envFrom"),
            ),
            (json!({"imagePullSecrets": [{"name": "s"}]}), Some("imagePullSecrets[0].name=\"s\"")),
        ] {
            let error = check_secrets(&spec, account).err();
            assert_eq!(error.is_some(), expected.is_some(), "{spec}: {error:?}");
            assert!(error.unwrap_or_default().starts_with(expected.unwrap_or_default()), "{spec}");
        }
    }
}
