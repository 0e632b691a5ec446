//! The page "Extend the Kubernetes API with CustomResourceDefinitions" of the Kubernetes documentation, from top to
//! bottom. Its section on validation rules is left out: the embedded API server refuses them.

use serde_json::{Value, json};

use super::{
    apply_crd, compare_sessions, crontab, crontabs, extend, group, record_table, run_unrecorded_with_input, version,
};
use crate::environment::{Kubectl, Session, TestEnvironment, eventually};

const NAME: &str = "my-new-cron-object";

pub(in super::super) fn follow_crds_page(environment: &TestEnvironment, kubectl: &Kubectl) {
    compare_sessions(
        environment,
        kubectl,
        "definitions-page",
        |session| {
            create_and_delete(session);
            structural_schemas(session);
            pruning(session);
            finalizers(session);
            validation(session);
            ratcheting(session);
            defaulting(session);
            printer_columns(session);
            field_selectors(session);
            subresources(session);
            categories(session);
        },
        validation_rules,
    );
}

/// The CRD of the page with the schema of `spec`, and fields beside the schema.
fn crd(session: &Session<'_>, spec: &Value, more: &Value) -> Value {
    let spec = json!({"spec": {"type": "object", "properties": spec}});
    crontabs(session, &[version("v1", true, &spec, more)])
}

/// The schema that most sections use.
fn plain() -> Value {
    json!({"cronSpec": {"type": "string"}, "image": {"type": "string"}, "replicas": {"type": "integer"}})
}

/// The object of the page with more fields in `spec`.
fn object(session: &Session<'_>, more: &Value) -> Value {
    let mut spec = json!({"cronSpec": "* * * * */5", "image": "my-awesome-cron-image"});
    extend(&mut spec, more);
    crontab(session, "v1", NAME, &json!({"spec": spec}))
}

fn create_and_delete(session: &mut Session<'_>) {
    let crd = crd(session, &plain(), &json!({}));
    session.with_input("create --dry-run=server -o yaml -f -", &crd);
    apply_crd(session, &crd);
    session.with_input("diff -f -", &crd);
    let group = group(session);
    for command in ["get crd", "get customresourcedefinition", "describe crd"] {
        record_table(session, &format!("{command} crontabs.{group}"));
    }
    for output in ["yaml", "json", "name", "jsonpath={.status.conditions[*].reason}"] {
        session.kubectl(&format!("get crd crontabs.{group} -o {output}"));
    }
    for output in ["", " -o wide", " -o name", " --namespaced=false"] {
        session.kubectl(&format!("api-resources --api-group={group}{output}"));
    }
    session.with_input("apply -f -", &object(session, &json!({}))).ok();
    for name in ["crontab", "CronTab", "ct", "crontabs"] {
        record_table(session, &format!("get {name}"));
    }
    session.kubectl("get ct -o yaml");
    session.kubectl(&format!("describe crontab {NAME}"));
    session.with_input("delete -f -", &crd).ok();
    let path = format!("/apis/{group}/v1/namespaces/{}/crontabs", session.namespace);
    eventually("the path to go", || {
        let found = session.run_unrecorded(&format!("get --raw {path}"));
        if found.success { Err(found.output) } else { Ok(()) }
    });
    session.kubectl("get crontabs");
    session.kubectl(&format!("get --raw {path}"));
    // The CRD created again starts empty.
    apply_crd(session, &crd);
    session.kubectl("get crontabs");
}

fn structural_schemas(session: &mut Session<'_>) {
    let with_foo = json!({"properties": {"foo": {"type": "string"}}});
    for schema in [
        json!({"allOf": [with_foo]}),
        json!({"type": "object", "allOf": [with_foo]}),
        json!({"type": "array", "allOf": [{"items": with_foo}]}),
        json!({
            "properties": {
                "foo": {"pattern": "abc"},
                "metadata": {"type": "object", "properties": {
                    "name": {"type": "string", "pattern": "^a"},
                    "finalizers": {"type": "array", "items": {"type": "string", "pattern": "my-finalizer"}},
                }},
            },
            "anyOf": [{"properties": {"bar": {"type": "integer", "minimum": 42}}, "required": ["bar"], "description": "x"}],
        }),
        json!({
            "type": "object", "description": "foo bar object",
            "properties": {
                "foo": {"type": "string", "pattern": "abc"}, "bar": {"type": "integer"},
                "metadata": {"type": "object", "properties": {"name": {"type": "string", "pattern": "^a"}}},
            },
            "anyOf": [{"properties": {"bar": {"minimum": 42}}, "required": ["bar"]}],
        }),
        // Fields that the section on validation forbids.
        json!({"type": "object", "uniqueItems": true, "additionalProperties": false}),
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": true}),
        json!({"type": "object", "properties": {"a": {"type": "string", "$ref": "#/x"}}, "definitions": {"a": {}}}),
        json!({"type": "object", "id": "x", "patternProperties": {"a": {"type": "string"}}, "dependencies": {"a": ["b"]}}),
    ] {
        let mut crd = crontabs(session, &[version("v1", true, &json!({}), &json!({}))]);
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = schema;
        session.with_input("apply --dry-run=server -f -", &crd);
    }
}

fn pruning(session: &mut Session<'_>) {
    let random = object(session, &json!({"someRandomField": 42}));
    session.with_input("create --validate=false -o yaml -f -", &random).ok();
    session.with_input("apply -f -", &random).expect_error("spec.someRandomField");
    session.with_input("apply --validate=warn -f -", &random).ok();
    session.kubectl(&format!("delete ct {NAME}"));
    let anything = json!({"x-kubernetes-preserve-unknown-fields": true});
    let mut partly = anything.clone();
    let known = json!({"type": "object", "properties": {"foo": {"type": "string"}, "bar": {"type": "string"}}});
    extend(&mut partly, &json!({"type": "object", "properties": {"spec": known}}));
    let mut objects = anything.clone();
    extend(&mut objects, &json!({"type": "object", "description": "this is arbitrary JSON"}));
    let mut embedded = anything.clone();
    extend(&mut embedded, &json!({"type": "object", "x-kubernetes-embedded-resource": true}));
    let mut fields = plain();
    extend(
        &mut fields,
        &json!({
            "json": anything, "partly": partly, "objects": objects, "embedded": embedded,
            "port": {"x-kubernetes-int-or-string": true},
            "percent": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
            "limit": {"x-kubernetes-int-or-string": true,
                "allOf": [{"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"pattern": "^[0-9]+%?$"}]},
        }),
    );
    let crd = crd(session, &fields, &json!({}));
    apply_crd(session, &crd);
    let nested = json!({"spec": {"foo": "abc", "bar": "def", "something": "x"}, "status": {"something": "x"}});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "b"}}, "spec": {}});
    for fields in [
        json!({"json": nested}),
        json!({"json": [1, "a", null, {"b": 1.5}]}),
        json!({"partly": nested}),
        json!({"objects": nested}),
        json!({"objects": "text"}),
        json!({"embedded": pod}),
        json!({"embedded": {"kind": "Pod"}}),
        json!({"embedded": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "UPPER", "labels": {"a": 1}}}}),
        json!({"port": 1, "percent": "5%"}),
        json!({"port": "http", "percent": 5, "limit": "7%"}),
        json!({"port": 1.5}),
        json!({"port": true, "limit": "seven"}),
    ] {
        let object = object(session, &fields);
        session.with_input("create --validate=false --dry-run=server -o yaml -f -", &object);
        session.with_input("create --dry-run=server -o name -f -", &object);
    }
    session.kubectl("explain crontab.spec");
    session.kubectl("explain crontab.spec.embedded");
    session.kubectl("explain ct --recursive");
}

fn finalizers(session: &mut Session<'_>) {
    let mut object = object(session, &json!({}));
    object["metadata"]["finalizers"] = json!(["stable.example.com/finalizer"]);
    session.with_input("apply -f -", &object).ok();
    session.kubectl(&format!("delete crontab {NAME} --wait=false")).ok();
    session.kubectl(&format!("get crontab {NAME} -o yaml"));
    session.kubectl(&format!("patch crontab {NAME} --type=merge -p {{\"metadata\":{{\"finalizers\":[\"a.b/c\"]}}}}"));
    session.kubectl(&format!("patch crontab {NAME} --type=merge -p {{\"metadata\":{{\"finalizers\":[]}}}}"));
    session.kubectl(&format!("wait --for=delete crontab/{NAME} --timeout=30s")).ok();
    session.kubectl(&format!("get crontab {NAME}"));
}

fn validation(session: &mut Session<'_>) {
    let fields = json!({
        "cronSpec": {"type": "string", "pattern": r"^(\d+|\*)(/\d+)?(\s+(\d+|\*)(/\d+)?){4}$"},
        "image": {"type": "string"},
        "replicas": {"type": "integer", "minimum": 1, "maximum": 10},
    });
    let crd = crd(session, &fields, &json!({}));
    apply_crd(session, &crd);
    for fields in [
        json!({"cronSpec": "* * * *", "replicas": 15}),
        json!({"cronSpec": 5, "image": null, "replicas": "1"}),
        json!({"cronSpec": "", "replicas": 1.5}),
        json!({"replicas": 0, "image": ["a"]}),
    ] {
        session.with_input("apply -f -", &object(session, &fields));
    }
    session.with_input("apply -f -", &object(session, &json!({"replicas": 5}))).ok();
    session.with_input("apply -f -", &object(session, &json!({"replicas": 50})));
    session.kubectl(&format!("patch ct {NAME} --type=merge -p {{\"spec\":{{\"replicas\":11}}}}"));
    session.kubectl(&format!("patch ct {NAME} --type=json -p [{{\"op\":\"remove\",\"path\":\"/spec/absent\"}}]"));
    session.kubectl(&format!("patch ct {NAME} --type=strategic -p {{}}"));
}

/// The embedded API server refuses rules and names the flag that accepts them unenforced.
fn validation_rules(session: &Session<'_>) {
    let mut crd = crd(session, &plain(), &json!({}));
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["x-kubernetes-validations"] =
        json!([{"rule": "self.replicas <= 10", "message": "too many"}]);
    let refused = run_unrecorded_with_input(session, "apply -f -", &crd);
    refused.expect_error("validation rules are not enforced by this server; the flag --allow-unenforced-rules");
    refused.expect_error("x-kubernetes-validations");
}

fn ratcheting(session: &mut Session<'_>) {
    let fields = json!({
        "cronSpec": {"type": "string", "maxLength": 3}, "image": {"type": "string"},
        "replicas": {"type": "integer", "maximum": 3},
    });
    let crd = crd(session, &fields, &json!({}));
    apply_crd(session, &crd);
    for change in [r#"{"spec":{"image":"new"}}"#, r#"{"spec":{"replicas":6}}"#, r#"{"spec":{"replicas":2}}"#] {
        session.kubectl(&format!("patch ct {NAME} --type=merge -p {change} -o yaml"));
    }
    session.kubectl(&format!("label ct {NAME} a=b"));
    session.kubectl(&format!("delete ct {NAME}")).ok();
}

fn defaulting(session: &mut Session<'_>) {
    let fields = json!({
        "cronSpec": {"type": "string", "pattern": r"^(\d+|\*)(/\d+)?(\s+(\d+|\*)(/\d+)?){4}$", "default": "5 0 * * *"},
        "image": {"type": "string"},
        "replicas": {"type": "integer", "minimum": 1, "maximum": 10, "default": 1},
    });
    let with_defaults = crd(session, &fields, &json!({}));
    apply_crd(session, &with_defaults);
    let object = crontab(session, "v1", NAME, &json!({"spec": {"image": "my-awesome-cron-image"}}));
    session.with_input("apply -f -", &object).ok();
    session.kubectl("get crontabs -o yaml");
    session.kubectl("explain ct.spec");
    session.kubectl(&format!("delete ct {NAME}")).ok();
    let fields = json!({
        "foo": {"type": "string", "nullable": false, "default": "default"},
        "bar": {"type": "string", "nullable": true},
        "baz": {"type": "string"},
    });
    let nullable = crd(session, &fields, &json!({}));
    apply_crd(session, &nullable);
    let nulls = crontab(session, "v1", NAME, &json!({"spec": {"foo": null, "bar": null, "baz": null}}));
    session.with_input("create -o yaml -f -", &nulls).ok();
    session.kubectl(&format!("delete ct {NAME}")).ok();
    let mut invalid = fields;
    invalid["foo"]["default"] = json!(7);
    let crd = crd(session, &invalid, &json!({}));
    session.with_input("apply -f -", &crd).expect_error("default");
}

fn printer_columns(session: &mut Session<'_>) {
    let columns = json!({"additionalPrinterColumns": [
        {"name": "Spec", "type": "string", "description": "The cron spec defining the interval a CronJob is run",
            "jsonPath": ".spec.cronSpec"},
        {"name": "Replicas", "type": "integer", "description": "The number of jobs launched by the CronJob",
            "jsonPath": ".spec.replicas"},
        {"name": "Image", "type": "string", "priority": 1, "jsonPath": ".spec.image"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]});
    let crd = crd(session, &plain(), &columns);
    apply_crd(session, &crd);
    session.with_input("apply -f -", &object(session, &json!({"replicas": 1}))).ok();
    for output in ["", " -o wide", " --no-headers", " --show-labels", " --show-kind", " --sort-by=.spec.replicas"] {
        record_table(session, &format!("get crontab{output}"));
    }
    record_table(session, &format!("get crontab {NAME}"));
}

fn field_selectors(session: &mut Session<'_>) {
    let group = group(session);
    let fields = json!({"spec": {"type": "object",
        "properties": {"color": {"type": "string"}, "size": {"type": "string"}}}});
    let more = json!({
        "selectableFields": [{"jsonPath": ".spec.color"}, {"jsonPath": ".spec.size"}],
        "additionalPrinterColumns": [
            {"jsonPath": ".spec.color", "name": "Color", "type": "string"},
            {"jsonPath": ".spec.size", "name": "Size", "type": "string"},
        ],
    });
    let mut shirts = crontabs(session, &[version("v1", true, &fields, &more)]);
    shirts["metadata"]["name"] = format!("shirts.{group}").into();
    shirts["spec"]["names"] = json!({"plural": "shirts", "singular": "shirt", "kind": "Shirt"});
    apply_crd(session, &shirts);
    for (name, color, size) in [("example1", "blue", "S"), ("example2", "blue", "M"), ("example3", "green", "M")] {
        let shirt = json!({"apiVersion": format!("{group}/v1"), "kind": "Shirt", "metadata": {"name": name},
            "spec": {"color": color, "size": size}});
        session.with_input("apply -f -", &shirt).ok();
    }
    for selector in [
        "",
        " --field-selector=spec.color=blue",
        " --field-selector=spec.color=green,spec.size=M",
        " --field-selector=spec.color!=blue",
        " --field-selector=metadata.name=example1",
        " --field-selector=spec.color=red",
        " --field-selector=spec.absent=red",
        " --field-selector=status.color=red",
    ] {
        session.kubectl(&format!("get shirts.{group}{selector}"));
    }
    session.kubectl(&format!("delete shirts.{group} --field-selector=spec.size=M"));
    session.kubectl(&format!("get shirts.{group}"));
    session.with_input("delete -f -", &shirts).ok();
}

fn subresources(session: &mut Session<'_>) {
    let spec = json!({"type": "object", "properties": plain()});
    let status = json!({"type": "object",
        "properties": {"replicas": {"type": "integer"}, "labelSelector": {"type": "string"}}});
    let fields = json!({"spec": spec, "status": status});
    let more = json!({"subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.labelSelector"}}});
    let crd = crontabs(session, &[version("v1", true, &fields, &more)]);
    apply_crd(session, &crd);
    session.with_input("apply -f -", &object(session, &json!({"replicas": 3}))).ok();
    session.kubectl(&format!("scale --replicas=5 crontabs/{NAME}")).ok();
    session.kubectl(&format!("get crontabs {NAME} -o jsonpath={{.spec.replicas}}"));
    session.kubectl(&format!("scale --replicas=6 --current-replicas=4 crontabs/{NAME}"));
    session.kubectl(&format!("get ct {NAME} --subresource=scale -o yaml"));
    record_table(session, &format!("get ct {NAME} --subresource=scale"));
    let change = r#"{"spec":{"replicas":9},"status":{"replicas":2,"labelSelector":"a=b"}}"#;
    session.kubectl(&format!("patch ct {NAME} --subresource=status --type=merge -p {change}"));
    session.kubectl(&format!("get ct {NAME} --subresource=status -o yaml"));
    session.kubectl(&format!("get ct {NAME} --subresource=scale -o yaml"));
    session.kubectl(&format!("patch ct {NAME} --type=merge -p {change}"));
    session.kubectl(&format!("get ct {NAME} -o yaml"));
    session.kubectl(&format!("get ct {NAME} --subresource=absent"));
    session.kubectl(&format!("patch ct {NAME} --subresource=scale --type=merge -p {{\"spec\":{{\"replicas\":-1}}}}"));
}

fn categories(session: &mut Session<'_>) {
    let mut crd = crd(session, &plain(), &json!({}));
    crd["spec"]["names"]["categories"] = json!(["all"]);
    apply_crd(session, &crd);
    let group = group(session);
    eventually("the category in discovery", || {
        let found = session.run_unrecorded(&format!("api-resources --api-group={group} --categories=all -o name"));
        if found.output.contains("crontabs") { Ok(()) } else { Err(found.output) }
    });
    session.with_input("apply -f -", &object(session, &json!({}))).ok();
    record_table(session, "get all");
    session.with_input("delete -f -", &crd).ok();
}
