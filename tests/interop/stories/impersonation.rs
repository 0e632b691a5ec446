//! Acting as somebody else: the gateway and the extension server ask the same kube-apiserver, and must say the same;
//! so must the kube-apiserver itself of who somebody is then.

use serde_json::Value;

use super::TrialWith;
use super::delegation::{Scene, blanked};
use crate::world::{Answer, Door, Kubectl, World, eventually, kubeconfig, kubectl_run};

pub(super) const WITH_KUBECTL: &[(&str, TrialWith)] =
    &[("impersonation: allowed and denied alike", judged_alike), ("impersonation: kubectl --as", kubectl_as)];

const FLUNDERS: &str = "/apis/wardle.example.com/v1alpha1/flunders";

type Lines = &'static [(&'static str, &'static str)];

/// Headers, in the order in which each asker sends them: what worked last bears on what is said next.
const WANTED: &[Lines] = &[
    &[],
    &[("impersonate-user", "nobody")],
    &[("impersonate-user", "jane")],
    &[("impersonate-user", "nobody")],
    &[("impersonate-user", "jane"), ("impersonate-group", "devs")],
    &[("impersonate-user", "jane"), ("impersonate-group", "devs"), ("impersonate-group", "qa")],
    &[("impersonate-user", "jane"), ("impersonate-group", "devs"), ("impersonate-group", "no")],
    &[("impersonate-user", "jane"), ("impersonate-group", "")],
    &[("impersonate-user", "jane"), ("impersonate-group", "system:masters")],
    &[("impersonate-user", "jane"), ("impersonate-group", "system:unauthenticated")],
    &[
        ("impersonate-user", "jane"),
        ("impersonate-group", "devs"),
        ("impersonate-group", "qa"),
        ("impersonate-group", "devs"),
        ("impersonate-group", "qa"),
        ("impersonate-group", "no"),
    ],
    &[("impersonate-user", "jane"), ("impersonate-uid", "7"), ("impersonate-group", "devs")],
    &[("impersonate-user", "jane"), ("impersonate-uid", "8"), ("impersonate-group", "no")],
    &[("impersonate-user", "jane"), ("impersonate-group", "devs"), ("impersonate-extra-scopes", "all")],
    &[("impersonate-user", "jane"), ("impersonate-group", "devs"), ("impersonate-extra-Scopes", "some")],
    &[("impersonate-user", "jane"), ("impersonate-group", "devs"), ("impersonate-extra-acme.io%2Fscopes", "all")],
    &[("impersonate-user", "jane"), ("impersonate-group", "devs"), ("impersonate-extra-acme.io%2fscopes", "")],
    &[("impersonate-user", "jane"), ("impersonate-extra-a_b%2fc%20d", "x")],
    &[("impersonate-user", "jane"), ("impersonate-extra-a%zz", "x")],
    &[("impersonate-user", "jane"), ("impersonate-extra-", "x")],
    &[("impersonate-user", "system:anonymous")],
    &[("impersonate-user", "system:anonymous"), ("impersonate-group", "devs")],
    &[("impersonate-user", "system:serviceaccount:NAMESPACE:bob")],
    &[("impersonate-user", "system:serviceaccount:NAMESPACE:alice")],
    &[("impersonate-user", "system:serviceaccount:NAMESPACE:bob"), ("impersonate-group", "devs")],
    &[("impersonate-user", "system:serviceaccount:NAMESPACE:bob:more")],
    &[("impersonate-user", "system:node:n1")],
    &[("impersonate-user", "system:node:n2")],
    &[("impersonate-user", "system:node:n1"), ("impersonate-uid", "7")],
    &[("impersonate-user", "system:node:N_1")],
    &[("impersonate-user", "")],
    &[("impersonate-uid", "")],
    &[("impersonate-group", "devs"), ("impersonate-group", "")],
    &[("impersonate-uid", "7")],
    &[("impersonate-extra-a", "1"), ("impersonate-extra-a", "2")],
    &[("impersonate-user", ""), ("impersonate-group", "a\"b")],
    &[("impersonate-user", "mallory")],
    &[("impersonate-user", "mallory"), ("impersonate-user", "jane"), ("impersonate-group", "devs")],
];

/// Makes the service accounts, the node and the rights of the fixture; tokens of `old`, `new`, and `pod` on node n1.
fn prepare(scene: &Scene<'_>) -> [(&'static str, String); 3] {
    let node = format!("{}-n1", scene.namespace);
    let directory = scene.world.scratch(&scene.namespace);
    let text = include_str!("../fixtures/impersonation.yaml").replace("NAMESPACE", &scene.namespace);
    let file = directory.join("impersonation.yaml");
    std::fs::write(&file, text.replace("n1", &node)).unwrap();
    for account in ["old", "new", "pod"] {
        scene.kubectl(&["create", "serviceaccount", account]);
    }
    scene.kubectl(&["apply", "-f", file.to_str().unwrap()]);
    let machine = directory.join("node.json");
    std::fs::write(&machine, format!(r#"{{"apiVersion":"v1","kind":"Node","metadata":{{"name":"{node}"}}}}"#)).unwrap();
    scene.kubectl(&["create", "-f", machine.to_str().unwrap()]);
    let bound = ["--bound-object-kind=Node", &*format!("--bound-object-name={node}")];
    let tokens = [("old", &[][..]), ("new", &[]), ("pod", &bound)].map(|(name, more)| (name, scene.token(name, more)));
    // RBAC knows of the last binding when it knows of this one.
    for door in scene.doors() {
        eventually("a pod to be allowed to act as its node", || {
            let lines = [("impersonate-user", format!("system:node:{node}"))];
            let answer = ask(door, &tokens[2].1, "GET", FLUNDERS, &lines);
            // Allowed to act; the node itself may not.
            let text = answer.text();
            if text.contains("User \\\"system:node:") { Ok(()) } else { Err(text) }
        });
    }
    tokens
}

fn ask(door: &Door, token: &str, method: &str, path: &str, lines: &[(&str, String)]) -> Answer {
    let authorization = format!("Bearer {token}");
    let mut headers = vec![("accept", "application/json"), ("authorization", &*authorization)];
    headers.extend(lines.iter().map(|(name, value)| (*name, &**value)));
    door.send(None, method, path, &headers, b"").unwrap()
}

/// The headers with the names of this trial.
fn of(scene: &Scene<'_>, lines: Lines) -> Vec<(&'static str, String)> {
    let named = |value: &str| {
        value.replace("NAMESPACE", &scene.namespace).replace("node:n1", &format!("node:{}-n1", scene.namespace))
    };
    lines.iter().map(|(name, value)| (*name, named(value))).collect()
}

fn judged_alike(world: &World, kubectl: &Kubectl) {
    let scene = Scene::open(world, kubectl, "impersonating");
    let tokens = prepare(&scene);
    let mut differences = Vec::new();
    let (mut allowed, mut denied) = (0, 0);
    for (name, token) in &tokens {
        for lines in WANTED {
            let lines = of(&scene, lines);
            for (method, path) in [("GET", FLUNDERS), ("DELETE", FLUNDERS), ("GET", "/metrics/any")] {
                let [direct, through] = scene.doors().map(|door| {
                    let answer = ask(door, token, method, path, &lines);
                    (answer.status.as_u16(), blanked(&answer.text()))
                });
                match direct.0 {
                    200 => allowed += 1,
                    403 => denied += 1,
                    _ => {}
                }
                if direct != through {
                    differences.push(format!(
                        "{name} {lines:?} {method} {path}:\n  direct  {direct:?}\n  through {through:?}"
                    ));
                }
            }
        }
    }
    assert!(differences.is_empty(), "{} differences\n{}", differences.len(), differences.join("\n"));
    assert!(allowed > 10 && denied > 100, "{allowed} allowed, {denied} denied: nothing was compared");

    // Behind the gateway there is nobody else to be seen.
    let lines: Lines = &[
        ("impersonate-user", "jane"),
        ("impersonate-uid", "7"),
        ("impersonate-group", "devs"),
        ("impersonate-extra-scopes", "all"),
        ("impersonate_user", "root"),
    ];
    let [direct, through] = scene.doors().map(|door| {
        let mark = format!("mark-{:08x}", fastrand::u32(..));
        let path = format!("{FLUNDERS}?fieldSelector=metadata.name%3D{mark}");
        assert_eq!(ask(door, &tokens[0].1, "GET", &path, &of(&scene, lines)).status, 200);
        world.extension.audited(&mark)
    });
    assert_eq!(direct["impersonatedUser"]["username"], "jane");
    assert_eq!(through["user"], direct["impersonatedUser"], "as the audit of the extension server has it");
    assert_eq!(through["impersonatedUser"], Value::Null);
}

/// The same words to kubectl, at the extension server and at the gateway; and who they are, at the kube-apiserver.
fn kubectl_as(world: &World, kubectl: &Kubectl) {
    let scene = Scene::open(world, kubectl, "kubectl-as");
    let tokens = prepare(&scene);
    let directory = world.scratch(&scene.namespace);
    let run = |door: &Door, token: &str, words: &str| {
        let name = format!("at-{}", door.port);
        let file = kubeconfig::write(&directory, &name, &door.url(), &door.authority, None);
        // A home of its own, so that discovery that somebody else was allowed is not found there.
        let home = directory.join(format!("home-{:08x}", fastrand::u32(..)));
        let mut command = kubectl.command(&file, &home);
        command.arg(format!("--token={token}")).args(words.split(' '));
        let output = kubectl_run(command, "");
        let text = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes).into_owned();
            // What the client's own log says has the time in it.
            let lines: Vec<&str> = text.lines().filter(|line| !line.contains("memcache.go")).collect();
            blanked(&lines.join("\n"))
        };
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let jane = "--as=jane --as-group=devs";
    // When it was asked is no part of the answer.
    let time = regex::Regex::new(r#""creationTimestamp": "[^"]*""#).unwrap();
    for (who, token) in &tokens[..2] {
        for words in [
            format!("get flunders {jane}"),
            format!("get flunders -o yaml {jane}"),
            format!("get flunders {jane} --as-uid=7"),
            format!("get flunders {jane} --as-user-extra=scopes=all"),
            format!("get flunders {jane} --as-user-extra=acme.io/scopes=all"),
            "get flunders --as=jane".to_owned(),
            "get flunders --as=mallory".to_owned(),
            "get flunders --as=nobody".to_owned(),
            "get flunders --as-group=devs".to_owned(),
            format!("get flunder missing {jane}"),
            format!("delete flunder missing {jane}"),
            format!("get flunders --as=system:serviceaccount:{}:bob", scene.namespace),
        ] {
            let [direct, through] = scene.doors().map(|door| run(door, token, &words));
            assert_eq!(direct, through, "{who}: {words}\nleft: straight to the server; right: through narthex");
        }
        for words in [
            format!("auth whoami -o json {jane}"),
            format!("auth whoami -o json {jane} --as-uid=7 --as-user-extra=scopes=all"),
            "auth whoami -o json --as=jane --as-user-extra=acme.io/scopes=all".to_owned(),
            "auth whoami -o json --as=system:anonymous".to_owned(),
            "auth whoami --as=nobody".to_owned(),
            format!("auth can-i get /version {jane}"),
            format!("auth can-i get /metrics {jane}"),
            "auth can-i get /metrics --as=nobody".to_owned(),
        ] {
            let [theirs, ours] = [&world.cluster.door, &scene.gateway.door].map(|door| {
                let (code, said, complained) = run(door, token, &words);
                (code, time.replace_all(&said, "").into_owned(), complained)
            });
            assert_eq!(theirs, ours, "{who}: {words}\nleft: kube-apiserver; right: narthex");
        }
    }
}
