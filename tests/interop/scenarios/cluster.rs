//! Cluster scenarios, at kube-apiserver and through narthex.

use serde_json::json;

use super::{Scenario, TestFn};
use crate::environment::{HttpsEndpoint, Session, Target, TestEnvironment, eventually};

pub(super) const SCENARIOS: &[(&str, Scenario)] = &[
    ("cluster: workloads", workloads),
    ("cluster: CustomResourceDefinitions", custom_resources),
    ("cluster: exec, logs and the like without nodes", pods_without_nodes),
    ("cluster: auth whoami and can-i", whoami_and_can_i),
    ("cluster: explain, api-resources, version", explain_and_api_resources),
    ("cluster: get --raw", get_raw),
    ("cluster: health checks and metrics", health_and_metrics),
    ("cluster: errors", errors),
    ("cluster: get -w and wait", watching),
    ("cluster: kubectl proxy", through_kubectl_proxy),
];

pub(super) const GATEWAY_TESTS: &[(&str, TestFn)] =
    &[("encoding: protobuf, CBOR, YAML and Table responses equal kube-apiserver's", encodings)];

/// Reads and writes in each encoding give the same bytes at both endpoints.
fn encodings(environment: &TestEnvironment) {
    let admin = environment.cluster.admin();
    let cluster_gateway = &environment.cluster_gateway.as_ref().expect("narthex was started").endpoint;
    let namespace = format!("encodings-{:08x}", fastrand::u32(..));
    environment.cluster.create_namespace(&namespace);
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    environment.cluster.endpoint.create(
        admin,
        &maps,
        &json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}, "data": {"a": "1"},
        }),
    );
    let one = format!("{maps}/one");
    const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
    for accept in [
        PROTOBUF,
        "application/cbor",
        "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1;g=meta.k8s.io",
        "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
        "application/yaml",
        "text/html",
    ] {
        for path in [&one, &maps, "/api/v1/namespaces/kube-system", "/apis/apps/v1", "/version", "/apis/nowhere/v1"] {
            let ask = |endpoint: &HttpsEndpoint| {
                let response = endpoint.send(Some(admin), "GET", path, &[("accept", accept)], b"").unwrap();
                let kind = response.headers.get("content-type").map(|kind| kind.to_str().unwrap().to_owned());
                (response.status, kind, response.body)
            };
            // The resourceVersion of a list changes with every write in the cluster, so only reads without a write in
            // between are compared.
            let (upstream, narthex) = (0..50)
                .map(|_| (ask(&environment.cluster.endpoint), ask(cluster_gateway), ask(&environment.cluster.endpoint)))
                .find_map(|(before, narthex, after)| (before == after).then_some((before, narthex)))
                .expect("two equal responses of kube-apiserver around one of narthex");
            assert_eq!(upstream, narthex, "GET {path} as {accept}; left: kube-apiserver; right: through narthex");
        }
    }
    let protobuf = cluster_gateway.send(Some(admin), "GET", &one, &[("accept", PROTOBUF)], b"").unwrap().body;
    assert!(protobuf.starts_with(b"k8s\0"), "{protobuf:?}");
    let headers = [("accept", PROTOBUF), ("content-type", PROTOBUF)];
    let put = cluster_gateway.send(Some(admin), "PUT", &format!("{one}?fieldManager=x"), &headers, &protobuf).unwrap();
    assert_eq!((put.status.as_u16(), &put.body[..4]), (200, &b"k8s\0"[..]), "{}", put.text());
}

/// A manifest in JSON: older versions of kubectl take input that begins with a brace for JSON.
fn deployment(replicas: u32) -> serde_json::Value {
    let labels = json!({"app": "web"});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "labels": labels},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels}, "spec": {"containers": [{"name": "web", "image": "web"}]},
        }},
    })
}

fn workloads(session: &mut Session<'_>) {
    session.with_input("create -f -", &deployment(1)).ok();
    session.kubectl("get all -o name").ok();
    assert!(session.run_unrecorded("get all -A -o name").ok().contains("service/kubernetes"));
    session.kubectl("get deployments,configmaps,secrets -o wide --no-headers -L app -o name").ok();
    session.with_input("diff -f -", &deployment(2));
    session.with_input("apply -f -", &deployment(3)).ok();
    session.with_input("apply --server-side --force-conflicts -f -", &deployment(4)).ok();
    session.kubectl("scale deployment/web --replicas=2").ok();
    session.kubectl("get deployment web -o jsonpath={.spec.replicas}").ok();
    session.kubectl("set image deployment/web web=other").ok();
    session.kubectl("label deployment web tier=front").ok();
    session
        .kubectl("patch deployment web --type=json -p [{\"op\":\"remove\",\"path\":\"/metadata/labels/tier\"}]")
        .ok();
    session.kubectl("patch deployment web -p {\"spec\":{\"paused\":true}}").ok();
    session.kubectl("rollout status deployment/web --timeout=1s").expect_error("");
    session.kubectl("rollout history deployment/web");
    session.kubectl("get deployment web -o yaml").ok();
    session.kubectl("describe deployment web").ok();
    session.kubectl("create configmap settings --from-literal=a=b").ok();
    session.kubectl("get configmap settings -o json").ok();
    session.kubectl("create secret generic hidden --from-literal=a=b").ok();
    session.kubectl("delete deployment,configmap,secret --all").ok();
    session.kubectl("events").ok();
}

fn custom_resources(session: &mut Session<'_>) {
    let group = format!("{}.example.com", session.namespace);
    let schema =
        |properties: serde_json::Value| json!({"openAPIV3Schema": {"type": "object", "properties": properties}});
    let spec = json!({"spec": {"type": "object", "required": ["every"], "properties": {
        "every": {"type": "string", "pattern": "^[0-9]+m$"}, "replicas": {"type": "integer", "default": 1},
    }}, "status": {"type": "object", "properties": {"replicas": {"type": "integer"}}}});
    let version = |name: &str, storage: bool| {
        json!({
            "name": name, "served": true, "storage": storage, "schema": schema(spec.clone()),
            "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
            "additionalPrinterColumns": [{"name": "Every", "type": "string", "jsonPath": ".spec.every"}],
        })
    };
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("timers.{group}")},
        "spec": {"group": group, "scope": "Namespaced", "versions": [version("v1", true), version("v1beta1", false)],
            "names": {"plural": "timers", "singular": "timer", "kind": "Timer", "shortNames": ["tm"]}},
    });
    session.with_input("create -f -", &definition).ok();
    let timer = |every: &str| {
        json!({
            "apiVersion": format!("{group}/v1"), "kind": "Timer", "metadata": {"name": "tea"}, "spec": {"every": every},
        })
    };
    // kube-apiserver serves a new kind after a delay; waits until it is served at both endpoints.
    let resource = format!("timers.{group}");
    eventually("the new kind", || {
        let step = session.run_unrecorded(&format!("get {resource}"));
        let explained = session.run_unrecorded(&format!("explain {resource}.spec"));
        if step.success && explained.success { Ok(()) } else { Err(step.errors + &explained.errors) }
    });
    session.with_input("apply -f -", &timer("often")).expect_error("should match");
    session.with_input("apply -f -", &timer("3m")).ok();
    session.with_input("apply --server-side --force-conflicts -f -", &timer("4m")).ok();
    session.kubectl(&format!("get {resource} --no-headers -o custom-columns=E:.spec.every,R:.spec.replicas")).ok();
    session.kubectl(&format!("get timers.v1beta1.{group} -o yaml")).ok();
    session.kubectl(&format!("explain {resource} --recursive")).ok();
    session.kubectl(&format!("api-resources --api-group={group}")).ok();
    session.kubectl(&format!("scale {resource}/tea --replicas=4")).ok();
    session.kubectl(&format!("get --raw /apis/{group}")).ok();
    session.kubectl(&format!("get --raw /apis/{group}/v1beta1")).ok();
    session.kubectl(&format!("wait --for=jsonpath={{.spec.replicas}}=4 {resource}/tea")).ok();
    session.kubectl(&format!("delete {resource} tea")).ok();
    session.kubectl(&format!("delete customresourcedefinition {resource}")).ok();
    eventually("the kind's removal", || {
        let step = session.run_unrecorded(&format!("get {resource}"));
        if step.errors.contains("the server doesn't have a resource type") {
            Ok(())
        } else {
            Err(step.output + &step.errors)
        }
    });
}

fn pods_without_nodes(session: &mut Session<'_>) {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    session.with_input("create -f -", &pod).ok();
    session.kubectl("get pod p --no-headers -o custom-columns=A:.metadata.name,B:.status.phase").ok();
    session.kubectl("logs p");
    session.kubectl("logs missing").expect_error("not found");
    session.kubectl("exec p -- ls").expect_error("does not have a host assigned");
    session.kubectl("exec missing -- ls").expect_error("not found");
    session.kubectl("attach p").expect_error("");
    session.kubectl("cp p:/etc/passwd /dev/null").expect_error("");
    session.kubectl("port-forward p 0:80").expect_error("");
    session.kubectl("get --raw /api/v1/nodes/none/proxy/").expect_error("not found");
    session.kubectl("drain none").expect_error("not found");
    session.kubectl("delete pod p --grace-period=0 --force").ok();
}

fn whoami_and_can_i(session: &mut Session<'_>) {
    session.kubectl("create serviceaccount robot").ok();
    let token = session.run_unrecorded("create token robot").ok().trim().to_owned();
    assert_eq!(token.split('.').count(), 3, "{token}");
    session.kubectl("auth can-i create pods").ok();
    session.kubectl("auth can-i --list").ok();
    session.kubectl("create role reader --verb=get --resource=configmaps").ok();
    session.kubectl("create rolebinding readers --role=reader --user=jane").ok();
    let jane = session.environment.cluster.jane().clone();
    session.as_user(&jane, |jane| {
        jane.kubectl("auth whoami").ok();
        jane.kubectl("auth can-i get configmaps").ok();
        jane.kubectl("auth can-i delete configmaps").expect_error("");
        jane.kubectl("get configmap missing").expect_error("not found");
        jane.kubectl("get secrets").expect_error("forbidden");
        jane.kubectl("create configmap mine").expect_error("forbidden");
        jane.kubectl("get --raw /logs").expect_error("orbidden");
        jane.kubectl("get --raw /api/v1/namespaces/kube-system/secrets").expect_error("orbidden");
    });
}

fn explain_and_api_resources(session: &mut Session<'_>) {
    for args in [
        "explain deployments --recursive",
        "explain pods.spec.containers.resources",
        "explain ingress --api-version=networking.k8s.io/v1",
        "api-resources --api-group=apps -o wide",
        "api-resources --api-group= --no-headers --sort-by=name",
        "version",
        "get namespaces kube-system -o name",
        "get clusterroles cluster-admin -o yaml",
    ] {
        session.kubectl(args).ok();
    }
    session.kubectl("explain nonsense").expect_error("");
}

fn get_raw(session: &mut Session<'_>) {
    for path in [
        "/version",
        "/.well-known/openid-configuration",
        "/openid/v1/jwks",
        "/api/v1",
        "/apis/apps",
        "/apis/apps/v1",
        "/apis/batch/v1",
        "/openapi/v3/apis/apps/v1",
        "/openapi/v3/api/v1",
        "/openapi/v3/version",
        "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication",
        "/healthz/poststarthook/unknown",
        "/apis/apps/v2",
        "/apis/nowhere.example.com/v1",
        "/nowhere",
    ] {
        session.kubectl(&format!("get --raw {path}"));
    }
}

/// In front of kube-apiserver its health checks are listed beside narthex's, and its metrics are served: Kubernetes'
/// e2e tests read both.
fn health_and_metrics(session: &mut Session<'_>) {
    for name in ["healthz", "livez", "readyz"] {
        let step = session.run_unrecorded(&format!("get --raw /{name}?verbose=1"));
        for check in ["ping", "log", "etcd", "poststarthook/start-kube-aggregator-informers"] {
            let line = format!("[+]{check} ok");
            assert_eq!(step.ok().lines().filter(|found| *found == line).count(), 1, "{line}: {}", step.output);
        }
        session.kubectl(&format!("get --raw /{name}/etcd")).ok();
        session.kubectl(&format!("get --raw /{name}/ping")).ok();
    }
    let metrics = session.run_unrecorded("get --raw /metrics");
    assert!(metrics.ok().contains("\netcd_request_duration_seconds"), "{}", metrics.output);
}

fn errors(session: &mut Session<'_>) {
    session.kubectl("get deployment missing").expect_error("not found");
    session.kubectl("get nonsense").expect_error("doesn't have a resource type");
    let mut wrong = deployment(1);
    wrong["spec"]["selector"] = json!({"matchLabels": {"other": "x"}});
    session.with_input("create -f -", &wrong).expect_error("Invalid");
    wrong["spec"]["replicsa"] = json!(1);
    session.with_input("create --validate=strict -f -", &wrong).expect_error("unknown field");
    session.kubectl("create namespace kube-system").expect_error("AlreadyExists");
    session.kubectl("create configmap NOT_A_NAME").expect_error("Invalid");
    session.kubectl("delete namespace missing").expect_error("not found");
    session.kubectl("get pods --field-selector=nonsense=1").expect_error("");
    session.kubectl("get pods --chunk-size=1 -l a==").ok();
    session.kubectl("get pods -l a=,,b").expect_error("");
}

fn watching(session: &mut Session<'_>) {
    let mut watch = session.stream("get configmaps -w -o name");
    let mut wait = session.stream("wait --for=jsonpath={.data.a}=2 configmap/seen --timeout=60s");
    session.kubectl("create configmap seen --from-literal=a=1").ok();
    watch.line_with("configmap/seen");
    session.kubectl("patch configmap seen -p {\"data\":{\"a\":\"2\"}}").ok();
    watch.line_with("configmap/seen");
    // Older versions of kubectl do not wait for missing objects.
    let _ = wait.is_running();
    drop(wait);
    wait = session.stream("wait --for=delete configmap/seen --timeout=60s");
    session.kubectl("delete configmap seen").ok();
    let (success, lines) = wait.finish();
    assert!(success, "{lines:?}");
    assert!(watch.is_running());
}

/// kubectl through `kubectl proxy` through the target.
fn through_kubectl_proxy(session: &mut Session<'_>) {
    let mut proxy = session.stream("proxy --port=0");
    let line = proxy.line_with("Starting to serve on");
    let address = line.rsplit(' ').next().unwrap().to_owned();
    session.kubectl("create configmap seen --from-literal=a=1").ok();
    let server = format!("--server=http://{address} --kubeconfig=/dev/null");
    let step = session.run_unrecorded(&format!("{server} get configmaps -o name"));
    session.record_note("get configmaps through kubectl proxy", step.ok());
    let step = session.run_unrecorded(&format!("{server} get --raw /apis/apps/v1"));
    session.record_note("get --raw through kubectl proxy", step.ok());
    let step = session.run_unrecorded(&format!("{server} get --raw /version"));
    session.record_note("get --raw /version", step.ok());
    if session.target == Target::ClusterGateway {
        let step = session.run_unrecorded(&format!("{server} get flunders.wardle.example.com"));
        assert!(step.success, "{}", step.errors);
    }
}
