//! Tests of the OpenAPI documents of built-in kinds.

use kubeapi::json::{read_json, write_json};
use kubeapi::protobuf::normalize::normalize;

use super::custom::object_definition;
use super::definitions::V2_PREFIX;
use super::*;
use crate::resources::builtin::builtin_kinds;
use crate::resources::custom::testing::served_kind;

fn v3(catalog: &ResourceCatalog, key: &str) -> Value {
    let entries: Vec<CatalogEntry> = catalog.entries().iter().filter(|one| super::key(one) == key).cloned().collect();
    build_v3(&entries, &DefinitionsText::read().parse())
}

fn parameter_names(operation: &Value) -> Vec<&str> {
    operation["parameters"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect()
}

fn references(value: &Value, prefix: &str) -> BTreeSet<String> {
    let mut names = Vec::new();
    collect_references(value, prefix, &mut names);
    names.into_iter().collect()
}

#[test]
fn openapi_v3_write_operations_declare_field_validation() {
    let document = v3(&ResourceCatalog::default(), "api/v1");
    let collection = &document["paths"]["/api/v1/namespaces/{namespace}/configmaps"];
    let object = &document["paths"]["/api/v1/namespaces/{namespace}/configmaps/{name}"];
    for operation in [&collection["post"], &object["put"], &object["patch"]] {
        let names = parameter_names(operation);
        for name in ["dryRun", "fieldManager", "fieldValidation"] {
            assert!(names.contains(&name), "{name}: {names:?}");
        }
    }
    let kind = json!({"group": "", "version": "v1", "kind": "ConfigMap"});
    assert_eq!(object["patch"]["x-kubernetes-group-version-kind"], kind);
    assert_eq!(object["patch"]["x-kubernetes-action"], "patch");
    let content = object["patch"]["requestBody"]["content"].as_object().unwrap();
    assert!(content.contains_key("application/strategic-merge-patch+json"));
    assert!(!content.contains_key("application/apply-patch+yaml"), "server-side apply is not served");
    assert_eq!(parameter_names(object), ["name", "namespace", "pretty"]);
    assert_eq!(collection["get"]["operationId"], "listCoreV1NamespacedConfigMap");
    assert_eq!(collection["delete"]["operationId"], "deleteCoreV1CollectionNamespacedConfigMap");
    let everywhere = &document["paths"]["/api/v1/configmaps"];
    assert_eq!(everywhere["get"]["operationId"], "listCoreV1ConfigMapForAllNamespaces");
    assert!(everywhere["get"].get("parameters").is_none() && parameter_names(everywhere).contains(&"watch"));
}

#[test]
fn openapi_v3_describes_what_is_served() {
    let catalog = ResourceCatalog::default();
    let paths = |key: &str| v3(&catalog, key)["paths"].clone();
    let roles = paths("apis/rbac.authorization.k8s.io/v1");
    let collection = &roles["/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles"];
    assert_eq!(collection["get"]["operationId"], "listRbacAuthorizationV1NamespacedRole");
    assert!(collection["post"].is_object() && collection["delete"].is_object());
    let services = paths("api/v1");
    let status = &services["/api/v1/namespaces/{namespace}/services/{name}/status"];
    assert_eq!(status["put"]["description"], "replace status of the specified Service");
    assert!(services.get("/api/v1/namespaces/{namespace}/services/{name}/proxy").is_none());
    assert!(services.get("/api/v1/namespaces/{namespace}/pods/{name}/exec").is_none());
    let eviction = &services["/api/v1/namespaces/{namespace}/pods/{name}/eviction"];
    assert_eq!(eviction.as_object().unwrap().keys().collect::<Vec<_>>(), ["parameters", "post"]);
    let finalize = &services["/api/v1/namespaces/{name}/finalize"];
    assert_eq!(finalize.as_object().unwrap().keys().collect::<Vec<_>>(), ["parameters", "put"]);
    assert!(parameter_names(finalize).contains(&"fieldValidation"), "all its operations have it");
    let registrations = v3(&ResourceCatalog::of_generated(true, false), REGISTRATIONS);
    assert!(registrations["paths"]["/apis/apiregistration.k8s.io/v1/apiservices/{name}/status"]["get"].is_object());
}

#[test]
fn openapi_documents_define_what_they_refer_to() {
    let catalog = ResourceCatalog::default();
    for key in LocalDocument::of_catalog(&catalog, &BTreeMap::new()).keys() {
        let document = v3(&catalog, key);
        for name in references(&document, "#/components/schemas/") {
            assert!(document["components"]["schemas"][&name].is_object(), "{key}: {name}");
        }
        assert!(references(&document, "#/parameters/").is_empty() && references(&document, V2_PREFIX).is_empty());
    }
    let parts = build_v2(&catalog, &|_| false);
    let mut documents = parts.iter().map(|part| serde_json::from_str::<Value>(part.json.as_ref().unwrap()).unwrap());
    let mut document = documents.next().unwrap();
    for more in documents {
        document["definitions"].as_object_mut().unwrap().extend(more["definitions"].as_object().unwrap().clone());
    }
    assert!(build_v2(&catalog, &|_| true).iter().all(|part| part.json.is_none()));
    for (prefix, section) in [(V2_PREFIX, "definitions"), ("#/parameters/", "parameters")] {
        let names = references(&document, prefix);
        assert!(names.len() > 20, "{section}");
        for name in names {
            assert!(document[section][&name].is_object(), "{name}");
        }
    }
    assert!(references(&document, "#/components/schemas/").is_empty());
    let options = &document["definitions"]["io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"];
    assert!(options["x-kubernetes-group-version-kind"].as_array().unwrap().len() > 15);
}

#[test]
fn openapi_v3_schemas_have_descriptions_and_merge_keys() {
    let document = v3(&ResourceCatalog::default(), "api/v1");
    let schemas = &document["components"]["schemas"];
    let ports = &schemas["io.k8s.api.core.v1.ServiceSpec"]["properties"]["ports"];
    assert_eq!(ports["x-kubernetes-list-map-keys"], json!(["port", "protocol"]));
    assert_eq!(ports["x-kubernetes-patch-merge-key"], "port");
    assert_eq!(ports["x-kubernetes-patch-strategy"], "merge");
    assert!(ports["description"].as_str().unwrap().starts_with("The list of ports"));
    let kinds = &schemas["io.k8s.api.core.v1.ConfigMap"]["x-kubernetes-group-version-kind"];
    assert_eq!(*kinds, json!([{"group": "", "kind": "ConfigMap", "version": "v1"}]));
}

fn without_deployments() -> ResourceCatalog {
    ResourceCatalog::new(|entry| entry.kind.resource.plural != "deployments")
}

#[test]
fn openapi_document_hash_changes_with_stored_resources_of_its_group() {
    let hashes = |catalog: ResourceCatalog| {
        let documents = LocalDocument::of_catalog(&catalog, &BTreeMap::new());
        documents.into_iter().map(|(key, document)| (key, document.hash.clone())).collect::<BTreeMap<_, _>>()
    };
    let (before, after) = (hashes(ResourceCatalog::default()), hashes(without_deployments()));
    assert_eq!(before["api/v1"].len(), 128);
    let changed: Vec<_> = before.iter().filter(|(key, hash)| after[*key] != **hash).map(|(key, _)| key).collect();
    assert_eq!(changed, ["apis/apps/v1"]);
}

#[test]
fn openapi_document_stays_built_while_its_group_is_the_same() {
    let before = LocalDocument::of_catalog(&ResourceCatalog::default(), &BTreeMap::new());
    let after = LocalDocument::of_catalog(&without_deployments(), &before);
    let is_same = |key: &str| Arc::ptr_eq(&before[key], &after[key]);
    assert_eq!((is_same("api/v1"), is_same("apis/apps/v1")), (true, false));
}

/// The part of a schema that the oracle answers.
fn own_part(mut schema: Value) -> Value {
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        for name in ["apiVersion", "kind", "metadata"] {
            properties.remove(name);
        }
    }
    schema
}

#[test]
fn openapi_schemas_of_custom_resources_are_those_of_kube_apiserver() {
    let messages = &builtin_kinds().messages;
    let message = messages.find("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition");
    let names = json!({"plural": "cases", "kind": "Case", "listKind": "CaseList"});
    let (mut count, mut different) = (0, 0);
    for line in include_str!("../testdata/custom_schemas.jsonl").lines() {
        let (case, _) = read_json(line.as_bytes()).unwrap();
        let mut definition = json!({"metadata": {"name": "cases.a.io"}, "status": {"acceptedNames": names}, "spec": {
            "group": "a.io", "names": names, "scope": "Cluster", "versions": [
                {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": case["schema"]}},
            ],
        }});
        // As it is stored.
        normalize(messages, message.unwrap(), &mut definition).unwrap();
        let kind = served_kind(&definition);
        for (name, version) in [("v3", OpenApiVersion::V3), ("v2", OpenApiVersion::V2)] {
            let found = write_json(&own_part(object_definition(&kind, version)));
            let expected = write_json(&case["answer"][name]);
            if found != expected {
                different += 1;
                println!("{} {name}\n  expected {expected}\n  found    {found}", case["schema"]);
            }
        }
        count += 1;
    }
    assert!(count > 300);
    assert_eq!(different, 0);
}

#[test]
fn openapi_operations_of_custom_resources_have_the_identifiers_of_kube_apiserver() {
    let names = json!({"plural": "cron-tabs", "kind": "CronTab", "listKind": "CronTabList"});
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object"}}});
    let definition = json!({"metadata": {"name": "cron-tabs.3my-group.a.io"}, "status": {"acceptedNames": names},
    "spec": {"group": "3my-group.a.io", "names": names, "scope": "Namespaced", "versions": [{
        "name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.a", "statusReplicasPath": ".status.a"}},
    }]}});
    let entry = CatalogEntry::of_custom(served_kind(&definition));
    let document = build_v3(&[entry], &DefinitionsText::read().parse());
    let root = "/apis/3my-group.a.io/v1/namespaces/{namespace}/cron-tabs";
    let item = |path: &str| document["paths"][&format!("{root}{path}")].clone();
    let (collection, object, scale) = (item(""), item("/{name}"), item("/{name}/scale"));
    assert_eq!(collection["get"]["operationId"], "listMyGroupAIoV1NamespacedCronTab");
    assert_eq!(collection["delete"]["operationId"], "deleteMyGroupAIoV1CollectionNamespacedCronTab");
    assert_eq!(collection["get"]["tags"], json!(["MyGroupAIo_v1"]));
    // Only the first letter after the version is capitalized.
    let lower = json!({"plural": "postgresqls", "kind": "postgresql", "listKind": "postgresqlList"});
    for (scope, path, get, delete) in [
        (
            "Namespaced",
            "namespaces/{namespace}/",
            "listAIoV1Namespacedpostgresql",
            "deleteAIoV1CollectionNamespacedpostgresql",
        ),
        ("Cluster", "", "listAIoV1Postgresql", "deleteAIoV1Collectionpostgresql"),
    ] {
        let definition = json!({"metadata": {"name": "postgresqls.a.io"}, "status": {"acceptedNames": lower}, "spec": {
            "group": "a.io", "names": lower, "scope": scope, "versions": [{
                "name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
        let document = build_v3(&[CatalogEntry::of_custom(served_kind(&definition))], &DefinitionsText::read().parse());
        let operations = &document["paths"][&format!("/apis/a.io/v1/{path}postgresqls")];
        assert_eq!(
            (&operations["get"]["operationId"], &operations["delete"]["operationId"]),
            (&json!(get), &json!(delete))
        );
    }
    assert_eq!(parameter_names(&collection["delete"]), parameter_names(&collection["get"]));
    assert_eq!(parameter_names(&object["get"]), ["resourceVersion"]);
    assert_eq!(scale["put"]["x-kubernetes-group-version-kind"]["kind"], "CronTab");
    let media_types = |operation: &Value| -> Vec<String> {
        operation["requestBody"]["content"].as_object().unwrap().keys().cloned().collect()
    };
    assert_eq!(media_types(&collection["post"]), ["application/json", "application/yaml"]);
    assert_eq!(media_types(&object["patch"]), ["application/json-patch+json", "application/merge-patch+json"]);
    let list = &document["components"]["schemas"]["io.a.3my-group.v1.CronTabList"]["properties"]["items"]["items"];
    assert_eq!(*list, json!({"$ref": "#/components/schemas/io.a.3my-group.v1.CronTab"}));
    assert_eq!(document["info"]["title"], "Kubernetes CRD Swagger");
}
