//! Security settings and resource requests of the containers in Kubernetes manifests.

use serde_json::{Value, json};

/// The documents of a YAML stream that hold something.
pub(crate) fn documents(manifests: &str) -> Vec<Value> {
    let documents = manifests.split("\n---").map(|text| text.strip_prefix("---").unwrap_or(text));
    let values = documents.filter(|text| !text.lines().all(|line| line.is_empty() || line.starts_with('#')));
    values.map(|text| serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))).collect()
}

/// Asserts the hardening of each container, init containers included, and returns their names. Containers of `root_users`
/// run as root, for a reason that their manifest states.
pub(crate) fn assert_hardened(what: &str, manifests: &str, root_users: &[&str]) -> Vec<String> {
    let mut names = Vec::new();
    for document in documents(manifests) {
        for pod in pod_specs(&document) {
            let containers = ["initContainers", "containers"].iter().filter_map(|list| pod[*list].as_array()).flatten();
            for container in containers {
                let name = container["name"].as_str().expect("a container has a name");
                let mut missing = missing_settings(pod, container);
                if root_users.contains(&name) {
                    let root = missing.iter().position(|setting| *setting == "runAsNonRoot: true");
                    missing.remove(root.unwrap_or_else(|| panic!("{what}: {name} need not run as root")));
                }
                assert!(missing.is_empty(), "{what}: container {name} lacks {missing:?}: {container}");
                names.push(name.to_owned());
            }
        }
    }
    names
}

/// The pod specifications in an object of any kind.
fn pod_specs(value: &Value) -> Vec<&Value> {
    match value {
        Value::Object(fields) if value["containers"].is_array() => {
            fields.values().flat_map(pod_specs).chain([value]).collect()
        }
        Value::Object(fields) => fields.values().flat_map(pod_specs).collect(),
        Value::Array(items) => items.iter().flat_map(pod_specs).collect(),
        _ => Vec::new(),
    }
}

fn missing_settings(pod: &Value, container: &Value) -> Vec<&'static str> {
    let own = &container["securityContext"];
    // A container inherits these of its pod.
    let inherited = |field: &str| if own[field].is_null() { &pod["securityContext"][field] } else { &own[field] };
    let requests = &container["resources"]["requests"];
    let settings = [
        ("runAsNonRoot: true", inherited("runAsNonRoot") == true),
        ("seccompProfile: {type: RuntimeDefault}", inherited("seccompProfile")["type"] == "RuntimeDefault"),
        ("readOnlyRootFilesystem: true", own["readOnlyRootFilesystem"] == true),
        ("allowPrivilegeEscalation: false", own["allowPrivilegeEscalation"] == false),
        ("capabilities: {drop: [ALL]}", own["capabilities"] == json!({"drop": ["ALL"]})),
        ("no privileged", own["privileged"].is_null()),
        ("resources.requests.cpu", requests["cpu"].is_string()),
        ("resources.requests.memory", requests["memory"].is_string()),
    ];
    settings.into_iter().filter_map(|(setting, holds)| (!holds).then_some(setting)).collect()
}

#[test]
fn hardening_checks_each_container_and_what_it_inherits() {
    let pod = |settings: &str, second: &str| {
        let hardened = "readOnlyRootFilesystem: true, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}";
        let resources = "resources: {requests: {cpu: 1m, memory: 1Mi}}";
        format!(
            "---\n# Comment alone\n---\nkind: Deployment\nspec:\n  template:\n    spec:\n      securityContext: {{{settings}}}\n      \
             initContainers:\n      - {{name: first, securityContext: {{{hardened}}}, {resources}}}\n      \
             containers:\n      - {{name: second, securityContext: {{{hardened}{second}}}, {resources}}}\n"
        )
    };
    let pod_settings = "runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}";
    assert_eq!(assert_hardened("all", &pod(pod_settings, ""), &[]), ["first", "second"]);
    let text = pod(pod_settings, ", runAsNonRoot: false, privileged: true");
    let document = documents(&text).pop().unwrap();
    let pods = pod_specs(&document);
    let missing = |list: &str| missing_settings(pods[0], &pods[0][list][0]);
    assert_eq!(missing("initContainers"), [""; 0]);
    assert_eq!(missing("containers"), ["runAsNonRoot: true", "no privileged"]);
    let bare = json!({"containers": [{"name": "bare"}]});
    assert_eq!(missing_settings(&bare, &bare["containers"][0]).len(), 7);
}
