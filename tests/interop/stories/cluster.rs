//! What people do with a cluster: said to kube-apiserver itself, and to narthex before it.

use serde_json::json;

use super::{Story, Trial};
use crate::world::{Door, Session, Target, World, eventually};

pub(super) const STORIES: &[(&str, Story)] = &[
    ("workloads", workloads),
    ("CustomResourceDefinitions", custom_resources),
    ("what needs a node", without_nodes),
    ("who am I and what may I", who_and_what),
    ("explain, api-resources, version", descriptions),
    ("get --raw", raw),
    ("health and metrics", health_and_metrics),
    ("errors", errors),
    ("get -w and wait", watching),
    ("kubectl proxy", proxied),
];

pub(super) const THROUGH: &[(&str, Trial)] = &[("cluster: every encoding, byte for byte", encodings)];

/// What is asked for in each encoding, and written back in it, is the same at both doors.
fn encodings(world: &World) {
    let admin = world.cluster.admin();
    let front = &world.front.as_ref().expect("narthex was started").door;
    let namespace = format!("encodings-{:08x}", fastrand::u32(..));
    world.cluster.create_namespace(&namespace);
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    world.cluster.door.create(
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
            let ask = |door: &Door| {
                let answer = door.send(Some(admin), "GET", path, &[("accept", accept)], b"").unwrap();
                let kind = answer.headers.get("content-type").map(|kind| kind.to_str().unwrap().to_owned());
                (answer.status, kind, answer.body)
            };
            // The resourceVersion of a list moves with every write in the cluster: compared when it stood still.
            let (theirs, ours) = (0..50)
                .map(|_| (ask(&world.cluster.door), ask(front), ask(&world.cluster.door)))
                .find_map(|(before, ours, after)| (before == after).then_some((before, ours)))
                .expect("two equal answers of kube-apiserver around one of narthex");
            assert_eq!(theirs, ours, "GET {path} as {accept}; left: kube-apiserver; right: through narthex");
        }
    }
    let packed = front.send(Some(admin), "GET", &one, &[("accept", PROTOBUF)], b"").unwrap().body;
    assert!(packed.starts_with(b"k8s\0"), "{packed:?}");
    let headers = [("accept", PROTOBUF), ("content-type", PROTOBUF)];
    let put = front.send(Some(admin), "PUT", &format!("{one}?fieldManager=x"), &headers, &packed).unwrap();
    assert_eq!((put.status.as_u16(), &put.body[..4]), (200, &b"k8s\0"[..]), "{}", put.text());
}

/// A manifest. JSON, since older kubectls take what begins with a brace for it.
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
    assert!(session.aside("get all -A -o name").ok().contains("service/kubernetes"));
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
    session.kubectl("rollout status deployment/web --timeout=1s").refused("");
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
    // kube-apiserver itself takes a moment; both doors are asked until the new kind is known there.
    let resource = format!("timers.{group}");
    eventually("the new kind", || {
        let step = session.aside(&format!("get {resource}"));
        let explained = session.aside(&format!("explain {resource}.spec"));
        if step.success && explained.success { Ok(()) } else { Err(step.errors + &explained.errors) }
    });
    session.with_input("apply -f -", &timer("often")).refused("should match");
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
    eventually("that it is gone", || {
        let step = session.aside(&format!("get {resource}"));
        if step.errors.contains("the server doesn't have a resource type") {
            Ok(())
        } else {
            Err(step.output + &step.errors)
        }
    });
}

fn without_nodes(session: &mut Session<'_>) {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    session.with_input("create -f -", &pod).ok();
    session.kubectl("get pod p --no-headers -o custom-columns=A:.metadata.name,B:.status.phase").ok();
    session.kubectl("logs p");
    session.kubectl("logs missing").refused("not found");
    session.kubectl("exec p -- ls").refused("does not have a host assigned");
    session.kubectl("exec missing -- ls").refused("not found");
    session.kubectl("attach p").refused("");
    session.kubectl("cp p:/etc/passwd /dev/null").refused("");
    session.kubectl("port-forward p 0:80").refused("");
    session.kubectl("get --raw /api/v1/nodes/none/proxy/").refused("not found");
    session.kubectl("drain none").refused("not found");
    session.kubectl("delete pod p --grace-period=0 --force").ok();
}

fn who_and_what(session: &mut Session<'_>) {
    session.kubectl("create serviceaccount robot").ok();
    let token = session.aside("create token robot").ok().trim().to_owned();
    assert_eq!(token.split('.').count(), 3, "{token}");
    session.kubectl("auth can-i create pods").ok();
    session.kubectl("auth can-i --list").ok();
    session.kubectl("create role reader --verb=get --resource=configmaps").ok();
    session.kubectl("create rolebinding readers --role=reader --user=jane").ok();
    let jane = session.world.cluster.jane().clone();
    session.joined_by(&jane, |jane| {
        jane.kubectl("auth whoami").ok();
        jane.kubectl("auth can-i get configmaps").ok();
        jane.kubectl("auth can-i delete configmaps").refused("");
        jane.kubectl("get configmap missing").refused("not found");
        jane.kubectl("get secrets").refused("forbidden");
        jane.kubectl("create configmap mine").refused("forbidden");
        jane.kubectl("get --raw /logs").refused("orbidden");
        jane.kubectl("get --raw /api/v1/namespaces/kube-system/secrets").refused("orbidden");
    });
}

fn descriptions(session: &mut Session<'_>) {
    for words in [
        "explain deployments --recursive",
        "explain pods.spec.containers.resources",
        "explain ingress --api-version=networking.k8s.io/v1",
        "api-resources --api-group=apps -o wide",
        "api-resources --api-group= --no-headers --sort-by=name",
        "version",
        "get namespaces kube-system -o name",
        "get clusterroles cluster-admin -o yaml",
    ] {
        session.kubectl(words).ok();
    }
    session.kubectl("explain nonsense").refused("");
}

fn raw(session: &mut Session<'_>) {
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

/// Before a kube-apiserver its checks are listed beside ours, and its metrics served: Kubernetes' own tests read both.
fn health_and_metrics(session: &mut Session<'_>) {
    for name in ["healthz", "livez", "readyz"] {
        let step = session.aside(&format!("get --raw /{name}?verbose=1"));
        for check in ["ping", "log", "etcd", "poststarthook/start-kube-aggregator-informers"] {
            let line = format!("[+]{check} ok");
            assert_eq!(step.ok().lines().filter(|found| *found == line).count(), 1, "{line}: {}", step.output);
        }
        session.kubectl(&format!("get --raw /{name}/etcd")).ok();
        session.kubectl(&format!("get --raw /{name}/ping")).ok();
    }
    let metrics = session.aside("get --raw /metrics");
    assert!(metrics.ok().contains("\netcd_request_duration_seconds"), "{}", metrics.output);
}

fn errors(session: &mut Session<'_>) {
    session.kubectl("get deployment missing").refused("not found");
    session.kubectl("get nonsense").refused("doesn't have a resource type");
    let mut wrong = deployment(1);
    wrong["spec"]["selector"] = json!({"matchLabels": {"other": "x"}});
    session.with_input("create -f -", &wrong).refused("Invalid");
    wrong["spec"]["replicsa"] = json!(1);
    session.with_input("create --validate=strict -f -", &wrong).refused("unknown field");
    session.kubectl("create namespace kube-system").refused("AlreadyExists");
    session.kubectl("create configmap NOT_A_NAME").refused("Invalid");
    session.kubectl("delete namespace missing").refused("not found");
    session.kubectl("get pods --field-selector=nonsense=1").refused("");
    session.kubectl("get pods --chunk-size=1 -l a==").ok();
    session.kubectl("get pods -l a=,,b").refused("");
}

fn watching(session: &mut Session<'_>) {
    let mut watch = session.stream("get configmaps -w -o name");
    let mut wait = session.stream("wait --for=jsonpath={.data.a}=2 configmap/seen --timeout=60s");
    session.kubectl("create configmap seen --from-literal=a=1").ok();
    watch.line_with("configmap/seen");
    session.kubectl("patch configmap seen -p {\"data\":{\"a\":\"2\"}}").ok();
    watch.line_with("configmap/seen");
    // Older ones do not wait for what is not there yet.
    let _ = wait.is_running();
    drop(wait);
    wait = session.stream("wait --for=delete configmap/seen --timeout=60s");
    session.kubectl("delete configmap seen").ok();
    let (success, lines) = wait.finish();
    assert!(success, "{lines:?}");
    assert!(watch.is_running());
}

/// `kubectl proxy` before us, and a kubectl before that.
fn proxied(session: &mut Session<'_>) {
    let mut proxy = session.stream("proxy --port=0");
    let line = proxy.line_with("Starting to serve on");
    let address = line.rsplit(' ').next().unwrap().to_owned();
    session.kubectl("create configmap seen --from-literal=a=1").ok();
    let server = format!("--server=http://{address} --kubeconfig=/dev/null");
    let step = session.aside(&format!("{server} get configmaps -o name"));
    session.note("get configmaps through kubectl proxy", step.ok());
    let step = session.aside(&format!("{server} get --raw /apis/apps/v1"));
    session.note("get --raw through kubectl proxy", step.ok());
    let step = session.aside(&format!("{server} get --raw /version"));
    session.note("get --raw /version", step.ok());
    if session.target == Target::Front {
        let step = session.aside(&format!("{server} get flunders.wardle.example.com"));
        assert!(step.success, "{}", step.errors);
    }
}
