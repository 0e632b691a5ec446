//! Defaults of pods, workloads and volume claims (`pkg/apis/core/v1/defaults.go`, `pkg/apis/apps/v1/defaults.go`,
//! `pkg/apis/batch/v1/defaults.go`).

use serde_json::{Map, Value, json};

/// Sets the defaults of one struct, before those of the structs in it.
pub(super) fn set_struct_defaults(name: &str, map: &mut Map<String, Value>) {
    let Some(name) = name.strip_prefix("io.k8s.api.") else { return };
    match name {
        "core.v1.Container" | "core.v1.EphemeralContainer" => set_container_defaults(map),
        "core.v1.Volume" => set_volume_defaults(map),
        "apps.v1.Deployment" => with_spec(map, set_deployment_defaults),
        "apps.v1.DaemonSet" => with_spec(map, set_daemon_set_defaults),
        "apps.v1.StatefulSet" => with_spec(map, set_stateful_set_defaults),
        "apps.v1.ReplicaSet" => with_spec(map, |spec| set_all(spec, &[("replicas", json!(1))])),
        "batch.v1.Job" => set_job_defaults(map),
        "core.v1.ReplicationController" => set_replication_controller_defaults(map),
        "batch.v1.CronJob" => with_spec(map, |spec| {
            set_all(
                spec,
                &[
                    ("concurrencyPolicy", json!("Allow")),
                    ("suspend", json!(false)),
                    ("successfulJobsHistoryLimit", json!(3)),
                    ("failedJobsHistoryLimit", json!(1)),
                ],
            );
        }),
        "core.v1.Pod" => with_spec(map, set_pod_defaults),
        "core.v1.PersistentVolumeClaim" => {
            if let Value::Object(status) = map.entry("status").or_insert_with(|| json!({})) {
                set_all(status, &[("phase", json!("Pending"))]);
            }
        }
        _ => set_constants(name, map),
    }
}

/// Defaults that depend on nothing else.
fn set_constants(name: &str, map: &mut Map<String, Value>) {
    let mode = [("defaultMode", json!(0o644))];
    match name {
        "core.v1.PodSpec" => {
            set_all(
                map,
                &[
                    ("dnsPolicy", json!("ClusterFirst")),
                    ("restartPolicy", json!("Always")),
                    ("securityContext", json!({})),
                    ("terminationGracePeriodSeconds", json!(30)),
                    ("schedulerName", json!("default-scheduler")),
                ],
            );
            copy_service_account(map);
        }
        "core.v1.Probe" => {
            let counts =
                [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)];
            for (field, count) in counts {
                if map.get(field).is_none_or(|value| value.is_null() || *value == json!(0)) {
                    map.insert(field.to_owned(), json!(count));
                }
            }
        }
        "core.v1.HTTPGetAction" => set_all(map, &[("path", json!("/")), ("scheme", json!("HTTP"))]),
        "core.v1.SecretVolumeSource"
        | "core.v1.ConfigMapVolumeSource"
        | "core.v1.DownwardAPIVolumeSource"
        | "core.v1.ProjectedVolumeSource" => set_all(map, &mode),
        "core.v1.ServiceAccountTokenProjection" => set_all(map, &[("expirationSeconds", json!(3600))]),
        "core.v1.ObjectFieldSelector" => set_all(map, &[("apiVersion", json!("v1"))]),
        // Zeros that Go tells from absent ones.
        "core.v1.GRPCAction" => set_all(map, &[("service", json!(""))]),
        "core.v1.FileKeySelector" => set_all(map, &[("optional", json!(false))]),
        "core.v1.AzureDiskVolumeSource" => set_all(map, &[("readOnly", json!(false))]),
        "core.v1.HostPathVolumeSource" => set_all(map, &[("type", json!(""))]),
        "core.v1.PersistentVolumeClaimSpec" => set_null(map, &[("volumeMode", json!("Filesystem"))]),
        "batch.v1.PodFailurePolicyOnPodConditionsPattern" => set_all(map, &[("status", json!("True"))]),
        _ => {}
    }
}

/// Sets fields that are absent, `null` or an empty string.
fn set_all(map: &mut Map<String, Value>, defaults: &[(&str, Value)]) {
    for (field, value) in defaults {
        if map.get(*field).is_none_or(|found| found.is_null() || found == "") {
            map.insert((*field).to_owned(), value.clone());
        }
    }
}

/// Sets fields that are absent or `null`: in Go, pointers.
fn set_null(map: &mut Map<String, Value>, defaults: &[(&str, Value)]) {
    for (field, value) in defaults {
        if map.get(*field).is_none_or(Value::is_null) {
            map.insert((*field).to_owned(), value.clone());
        }
    }
}

fn with_spec(map: &mut Map<String, Value>, set: impl FnOnce(&mut Map<String, Value>)) {
    if let Value::Object(spec) = map.entry("spec").or_insert_with(|| json!({})) {
        set(spec);
    }
}

fn set_container_defaults(container: &mut Map<String, Value>) {
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let policy = pull_policy(image);
    set_all(
        container,
        &[
            ("imagePullPolicy", json!(policy)),
            ("terminationMessagePath", json!("/dev/termination-log")),
            ("terminationMessagePolicy", json!("File")),
        ],
    );
}

/// `Always` for an image with the tag `latest` or with neither tag nor digest. As upstream, not for what is no image.
fn pull_policy(image: &str) -> &'static str {
    if !is_image_reference(image) {
        return "IfNotPresent";
    }
    let (name, digest) = image.split_once('@').map_or((image, None), |(name, digest)| (name, Some(digest)));
    let last = name.rsplit('/').next().unwrap_or_default();
    let tag = last.split_once(':').map(|(_, tag)| tag);
    let is_latest = match tag {
        Some(tag) => tag == "latest",
        None => digest.is_none() && !image.is_empty(),
    };
    if is_latest { "Always" } else { "IfNotPresent" }
}

/// Whether a text names an image (`github.com/distribution/reference`, `ParseNormalizedNamed`).
fn is_image_reference(image: &str) -> bool {
    const MAX_NAME_BYTES: usize = 255;
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if image.len() == 64 && is_hex(image) && *image == image.to_lowercase() {
        return false;
    }
    let (tagged, digest) = image.split_once('@').map_or((image, None), |(name, digest)| (name, Some(digest)));
    let is_digest = |digest: &str| {
        digest.split_once(':').is_some_and(|(algorithm, sum)| {
            let is_part = |part: &str| part.starts_with(|first: char| first.is_ascii_alphabetic());
            algorithm.split(['-', '_', '+', '.']).all(is_part) && sum.len() >= 32 && is_hex(sum)
        })
    };
    let (path, last) = tagged.rsplit_once('/').map_or((None, tagged), |(path, last)| (Some(path), last));
    let (last, tag) = last.split_once(':').map_or((last, None), |(last, tag)| (last, Some(tag)));
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_tag = |tag: &str| {
        let is_valid = tag.bytes().all(|byte| is_word(byte) || b".-".contains(&byte));
        tag.len() <= 128 && is_valid && tag.bytes().next().is_some_and(is_word)
    };
    let parts: Vec<&str> = path.into_iter().flat_map(|path| path.split('/')).chain([last]).collect();
    // The first part is a host if it cannot be a part of a name.
    let is_host = |part: &str| part.contains(['.', ':']) || part == "localhost" || part.to_lowercase() != part;
    let names = match &parts[..] {
        [host, names @ ..] if !names.is_empty() && is_host(host) => {
            let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b".:-[]".contains(&byte);
            if !host.bytes().all(is_valid) {
                return false;
            }
            names
        }
        names => names,
    };
    tagged.len() <= MAX_NAME_BYTES
        && digest.is_none_or(is_digest)
        && tag.is_none_or(is_tag)
        && names.iter().all(|name| is_path_component(name))
}

/// Whether a text is a part of the path of an image: words of lowercase letters and digits with separators between them.
fn is_path_component(name: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let separators = name.split(is_letter).filter(|separator| !separator.is_empty());
    let is_separator =
        |separator: &str| matches!(separator, "." | "_" | "__") || separator.bytes().all(|byte| byte == b'-');
    name.starts_with(is_letter) && name.ends_with(is_letter) && separators.into_iter().all(is_separator)
}

fn set_volume_defaults(volume: &mut Map<String, Value>) {
    if volume.iter().all(|(field, value)| field == "name" || value.is_null()) {
        volume.insert("emptyDir".to_owned(), json!({}));
    }
    if let Some(image) = volume.get_mut("image").and_then(Value::as_object_mut) {
        let policy = pull_policy(image.get("reference").and_then(Value::as_str).unwrap_or_default());
        set_all(image, &[("pullPolicy", json!(policy))]);
    }
}

/// Sets the type of an update strategy and, if it is `RollingUpdate`, the fields of its parameters.
fn set_strategy(spec: &mut Map<String, Value>, field: &str, parameters: &[(&str, Value)]) {
    let Value::Object(strategy) = spec.entry(field).or_insert_with(|| json!({})) else { return };
    set_all(strategy, &[("type", json!("RollingUpdate"))]);
    if strategy["type"] == "RollingUpdate" {
        set_all(strategy, &[("rollingUpdate", json!({}))]);
        if let Some(Value::Object(rolling)) = strategy.get_mut("rollingUpdate") {
            set_null(rolling, parameters);
        }
    }
}

fn set_deployment_defaults(spec: &mut Map<String, Value>) {
    let limits = [("replicas", json!(1)), ("revisionHistoryLimit", json!(10)), ("progressDeadlineSeconds", json!(600))];
    set_all(spec, &limits);
    set_strategy(spec, "strategy", &[("maxUnavailable", json!("25%")), ("maxSurge", json!("25%"))]);
}

fn set_daemon_set_defaults(spec: &mut Map<String, Value>) {
    set_all(spec, &[("revisionHistoryLimit", json!(10))]);
    set_strategy(spec, "updateStrategy", &[("maxUnavailable", json!(1)), ("maxSurge", json!(0))]);
    // Parameters that another strategy ignores are complete, too: the internal type has them as values.
    if let Some(Value::Object(rolling)) =
        spec.get_mut("updateStrategy").and_then(|strategy| strategy.get_mut("rollingUpdate"))
    {
        set_all(rolling, &[("maxUnavailable", json!(0)), ("maxSurge", json!(0))]);
    }
}

fn set_stateful_set_defaults(spec: &mut Map<String, Value>) {
    set_all(
        spec,
        &[
            ("podManagementPolicy", json!("OrderedReady")),
            ("replicas", json!(1)),
            ("revisionHistoryLimit", json!(10)),
            ("persistentVolumeClaimRetentionPolicy", json!({})),
        ],
    );
    if let Some(Value::Object(policy)) = spec.get_mut("persistentVolumeClaimRetentionPolicy") {
        set_all(policy, &[("whenDeleted", json!("Retain")), ("whenScaled", json!("Retain"))]);
    }
    let strategy = spec.get("updateStrategy");
    let has_type = strategy.and_then(|strategy| strategy["type"].as_str()).is_some_and(|name| !name.is_empty());
    let has_parameters = strategy.is_some_and(|strategy| strategy["rollingUpdate"].is_object());
    // A type without parameters stays so.
    if !has_type || has_parameters {
        set_strategy(spec, "updateStrategy", &[("partition", json!(0))]);
    }
}

/// The old name of the field stands beside the new one (`Convert_v1_PodSpec_To_core_PodSpec` and back).
fn copy_service_account(spec: &mut Map<String, Value>) {
    let name = |field: &str| spec.get(field).and_then(Value::as_str).filter(|name| !name.is_empty());
    match name("serviceAccountName").or_else(|| name("serviceAccount")).map(str::to_owned) {
        Some(name) => {
            spec.insert("serviceAccountName".to_owned(), name.as_str().into());
            spec.insert("serviceAccount".to_owned(), name.into());
        }
        None => {
            spec.remove("serviceAccountName");
            spec.remove("serviceAccount");
        }
    }
}

fn set_replication_controller_defaults(controller: &mut Map<String, Value>) {
    let is_empty = |labels: Option<&Value>| labels.is_none_or(|labels| labels.as_object().is_none_or(Map::is_empty));
    let labels = controller.get("spec").and_then(|spec| spec.pointer("/template/metadata/labels")).cloned();
    if let (Some(labels), Some(Value::Object(metadata))) = (&labels, controller.get_mut("metadata"))
        && is_empty(metadata.get("labels"))
    {
        metadata.insert("labels".to_owned(), labels.clone());
    }
    with_spec(controller, |spec| {
        set_all(spec, &[("replicas", json!(1))]);
        if let Some(labels) = labels.filter(|_| is_empty(spec.get("selector"))) {
            spec.insert("selector".to_owned(), labels);
        }
    });
}

fn set_job_defaults(job: &mut Map<String, Value>) {
    let labels = job.get("spec").and_then(|spec| spec.pointer("/template/metadata/labels")).cloned();
    // In Go, a Job without labels shares those of its template: the labels that a new one's template gets are the Job's, too.
    // Labels of an object without UID are left to the strategy of Jobs, which can tell what the client gave.
    if let (Some(labels), Some(Value::Object(metadata))) = (labels, job.get_mut("metadata"))
        && metadata.contains_key("uid")
        && metadata.get("labels").is_none_or(|own| own.as_object().is_none_or(Map::is_empty))
    {
        metadata.insert("labels".to_owned(), labels);
    }
    with_spec(job, |spec| {
        let is_set = |field: &str| spec.get(field).is_some_and(|value| !value.is_null());
        let backoff = if is_set("backoffLimitPerIndex") { i32::MAX } else { 6 };
        let replacement = if is_set("podFailurePolicy") { "Failed" } else { "TerminatingOrFailed" };
        if !is_set("completions") && !is_set("parallelism") {
            spec.insert("completions".to_owned(), json!(1));
        }
        set_null(
            spec,
            &[
                ("parallelism", json!(1)),
                ("backoffLimit", json!(backoff)),
                ("completionMode", json!("NonIndexed")),
                ("suspend", json!(false)),
                ("podReplacementPolicy", json!(replacement)),
                ("manualSelector", json!(false)),
            ],
        );
    });
}

/// Defaults of Pods alone, not of templates. Requests and limits of the whole Pod are left as they are.
fn set_pod_defaults(spec: &mut Map<String, Value>) {
    set_all(spec, &[("enableServiceLinks", json!(true))]);
    // Of Pods alone, too (`Convert_v1_Pod_To_core_Pod`).
    if spec.get("terminationGracePeriodSeconds").and_then(Value::as_i64).is_some_and(|seconds| seconds < 0) {
        spec.insert("terminationGracePeriodSeconds".to_owned(), json!(1));
    }
    let is_on_host = spec.get("hostNetwork") == Some(&json!(true));
    for field in ["containers", "initContainers"] {
        for container in spec.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten() {
            for port in container.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
                let number = port["containerPort"].clone();
                let is_unset = port["hostPort"].is_null() || port["hostPort"] == 0;
                if is_on_host
                    && is_unset
                    && let Some(port) = port.as_object_mut()
                {
                    port.insert("hostPort".to_owned(), number);
                }
            }
            let Some(Value::Object(resources)) = container.get_mut("resources") else { continue };
            let Some(Value::Object(limits)) = resources.get("limits").cloned() else { continue };
            if resources.get("requests").is_none_or(Value::is_null) {
                resources.insert("requests".to_owned(), json!({}));
            }
            if let Some(Value::Object(requests)) = resources.get_mut("requests") {
                for (resource, limit) in limits {
                    requests.entry(resource).or_insert(limit);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pull_policy_is_that_of_the_tag_of_an_image() {
        let hex = "a".repeat(64);
        for (image, expected) in [
            ("nginx", "Always"),
            ("nginx:latest", "Always"),
            ("nginx:1.2", "IfNotPresent"),
            ("registry.example.com:5000/a/b_c__d--e.f", "Always"),
            ("localhost/a", "Always"),
            ("Registry/a:1", "IfNotPresent"),
            (&format!("a@sha256:{hex}"), "IfNotPresent"),
            // No images.
            ("", "IfNotPresent"),
            ("Bad_Value!", "IfNotPresent"),
            ("UPPER", "IfNotPresent"),
            ("a..b", "IfNotPresent"),
            ("-a", "IfNotPresent"),
            ("a b/c", "IfNotPresent"),
            ("a/", "IfNotPresent"),
            ("a@sha256:1", "IfNotPresent"),
            (&hex, "IfNotPresent"),
            (&"a/".repeat(200), "IfNotPresent"),
        ] {
            assert_eq!(pull_policy(image), expected, "{image}");
        }
    }
}
