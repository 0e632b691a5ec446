//! How both begin and go on: what they do not start with, what they say of themselves, files that change.

use std::collections::BTreeSet;

use super::WHOSE;
use super::scene::{Scene, Whose, refuses, same};
use crate::world::{Door, World, eventually, free_port};

pub(super) fn every_flag(world: &World) {
    let scene = Scene::open(world, "flags");
    let flags = |whose| {
        let output = std::process::Command::new(scene.program(whose)).arg("--help").output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8(said).unwrap();
        let words = said.split(|character: char| !character.is_ascii_alphanumeric() && character != '-');
        words.filter(|word| word.starts_with("--")).map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let (theirs, ours) = (flags(Whose::Theirs), flags(Whose::Ours));
    assert!(theirs.len() > 30, "{theirs:?}");
    // It stands before all commands of ours, and is understood.
    let missing: Vec<_> = theirs.difference(&ours).filter(|flag| *flag != "--version").collect();
    assert!(missing.is_empty(), "{missing:?}");
}

pub(super) fn own_endpoints(world: &World) {
    let scene = Scene::open(world, "endpoints");
    let authority = &world.cluster.authorities.serving.file;
    let running = WHOSE.iter().map(|&whose| {
        let port = free_port();
        let arguments = [format!("--upstream={}", scene.upstream()), format!("--proxy-endpoints-port={port}")];
        (scene.start(whose, &arguments, None), Door::new(port, authority))
    });
    let running: Vec<_> = running.collect();
    for case in [
        same("", "GET /healthz", "", 200),
        same("alice", "GET /healthz?a=b", "", 200),
        same("", "HEAD /healthz", "", 200),
        same("", "POST /healthz", "\r\n\r\nx", 200),
        same("", "GET /healthz/", "", 404),
        same("", "GET /", "", 404),
        same("alice", "GET /metrics", "", 404),
    ] {
        let said: Vec<_> = running.iter().map(|(_, door)| scene.ask(door, &case)).collect();
        assert_eq!(said[0], said[1], "{}", case.line());
    }
    for (running, _) in &running {
        assert_eq!(scene.ask(&running.door, &same("", "GET /healthz", "", 401)).status, 401);
    }
}

pub(super) fn wrong_later(world: &World) {
    let scene = Scene::open(world, "later");
    let served = world.cluster.authorities.serving.server("krp-later", &["127.0.0.1", "localhost"]);
    let case = same("alice", "GET /metrics", "", 200);
    scene.settle();
    for &whose in WHOSE {
        let file = |name: &str| scene.scratch.join(format!("{whose:?}.{name}"));
        std::fs::copy(&served.certificate, file("crt")).unwrap();
        std::fs::copy(&served.key, file("key")).unwrap();
        let mut running = scene.start(
            whose,
            &[
                format!("--upstream={}", scene.upstream()),
                format!("--tls-cert-file={}", file("crt").display()),
                format!("--tls-private-key-file={}", file("key").display()),
                "--tls-reload-interval=100ms".to_owned(),
            ],
            None,
        );
        assert_eq!(scene.ask(&running.door, &case).status, 200);
        // What a volume looks like for a moment when its Secret is renewed.
        std::fs::write(file("crt"), "").unwrap();
        if whose == Whose::Theirs {
            assert!(!running.process.wait().success(), "they do not end");
            continue;
        }
        let said = running.process.reader();
        eventually(
            "the log to tell it",
            || {
                if said().contains("the last good one stays") { Ok(()) } else { Err(said()) }
            },
        );
        assert_eq!(scene.ask(&running.door, &case).status, 200);
    }
}

pub(super) fn refused_at_the_start(world: &World) {
    let scene = Scene::open(world, "start");
    let file = |name: &str, text: &str| {
        let path = scene.scratch.join(name);
        std::fs::write(&path, text).unwrap();
        format!("--config-file={}", path.display())
    };
    let kubeconfig = format!("--kubeconfig={}", world.cluster.admin_kubeconfig.display());
    let listen = "--secure-listen-address=127.0.0.1:0";
    for wrong in [
        &[listen, "--allow-paths=/a", "--ignore-paths=/b"][..],
        &[listen, "--allow-paths=/a["],
        &[listen, "--ignore-paths=\\"],
        &[listen, &file("resource", "authorization: {static: [{resourceRequest: true, path: /x}]}")],
        &[listen, &file("path", "authorization: {static: [{verb: get}]}")],
        &[listen, &file("empty", "{}")],
        &[listen, &file("text", "authorization: [")],
        &[listen, "--config-file=/nonexistent"],
        &[listen, "--upstream-ca-file=/nonexistent"],
        &[listen, "--unknown-flag"],
        &[listen, "--kubeconfig=/nonexistent"],
        &[],
    ] {
        let arguments: Vec<String> = ["--upstream=http://127.0.0.1:1/", &kubeconfig]
            .iter()
            .chain(wrong)
            .map(|&argument| argument.to_owned())
            .collect();
        for &whose in WHOSE {
            let said = refuses(&scene.program(whose), &arguments);
            assert!(said.is_some(), "{whose:?} starts with {wrong:?}");
        }
    }
}
