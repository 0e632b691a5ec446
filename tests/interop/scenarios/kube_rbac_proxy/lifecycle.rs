//! Flags, start-up errors, health endpoints and certificate reload of both implementations.

use std::collections::BTreeSet;

use super::IMPLEMENTATIONS;
use super::fixture::{Implementation, ProxyFixture, exit_error, same};
use crate::environment::{HttpsEndpoint, TestEnvironment, eventually, free_port};

pub(super) fn every_flag(environment: &TestEnvironment) {
    let fixture = ProxyFixture::open(environment, "flags");
    let flags = |implementation| {
        let output = std::process::Command::new(fixture.program(implementation)).arg("--help").output().unwrap();
        let output = [output.stdout, output.stderr].concat();
        let output = String::from_utf8(output).unwrap();
        let args = output.split(|character: char| !character.is_ascii_alphanumeric() && character != '-');
        args.filter(|word| word.starts_with("--")).map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let (upstream, narthex) = (flags(Implementation::KubeRbacProxy), flags(Implementation::Narthex));
    assert!(upstream.len() > 30, "{upstream:?}");
    // narthex parses --version before its commands.
    let missing: Vec<_> = upstream.difference(&narthex).filter(|flag| *flag != "--version").collect();
    assert!(missing.is_empty(), "{missing:?}");
}

pub(super) fn proxy_endpoints_port(environment: &TestEnvironment) {
    let fixture = ProxyFixture::open(environment, "endpoints");
    let authority = &environment.cluster.authorities.serving.file;
    let proxy_process = IMPLEMENTATIONS.iter().map(|&implementation| {
        let port = free_port();
        let arguments = [format!("--upstream={}", fixture.upstream()), format!("--proxy-endpoints-port={port}")];
        (fixture.start(implementation, &arguments, None), HttpsEndpoint::new(port, authority))
    });
    let proxy_process: Vec<_> = proxy_process.collect();
    for case in [
        same("", "GET /healthz", "", 200),
        same("alice", "GET /healthz?a=b", "", 200),
        same("", "HEAD /healthz", "", 200),
        same("", "POST /healthz", "\r\n\r\nx", 200),
        same("", "GET /healthz/", "", 404),
        same("", "GET /", "", 404),
        same("alice", "GET /metrics", "", 404),
    ] {
        let output: Vec<_> = proxy_process.iter().map(|(_, endpoint)| fixture.ask(endpoint, &case)).collect();
        assert_eq!(output[0], output[1], "{}", case.line());
    }
    for (proxy_process, _) in &proxy_process {
        assert_eq!(fixture.ask(&proxy_process.endpoint, &same("", "GET /healthz", "", 401)).status, 401);
    }
}

pub(super) fn certificate_broken_after_start(environment: &TestEnvironment) {
    let fixture = ProxyFixture::open(environment, "later");
    let served = environment.cluster.authorities.serving.server("krp-later", &["127.0.0.1", "localhost"]);
    let case = same("alice", "GET /metrics", "", 200);
    fixture.settle();
    for &implementation in IMPLEMENTATIONS {
        let file = |name: &str| fixture.scratch.join(format!("{implementation:?}.{name}"));
        std::fs::copy(&served.certificate, file("crt")).unwrap();
        std::fs::copy(&served.key, file("key")).unwrap();
        let mut proxy_process = fixture.start(
            implementation,
            &[
                format!("--upstream={}", fixture.upstream()),
                format!("--tls-cert-file={}", file("crt").display()),
                format!("--tls-private-key-file={}", file("key").display()),
                "--tls-reload-interval=100ms".to_owned(),
            ],
            None,
        );
        assert_eq!(fixture.ask(&proxy_process.endpoint, &case).status, 200);
        // A Secret volume may look like this during renewal.
        std::fs::write(file("crt"), "").unwrap();
        if implementation == Implementation::KubeRbacProxy {
            assert!(!proxy_process.process.wait().success(), "kube-rbac-proxy exited with success");
            continue;
        }
        let output = proxy_process.process.reader();
        eventually(
            "the log line",
            || {
                if output().contains("the last good one stays") { Ok(()) } else { Err(output()) }
            },
        );
        assert_eq!(fixture.ask(&proxy_process.endpoint, &case).status, 200);
    }
}

pub(super) fn invalid_flags(environment: &TestEnvironment) {
    let fixture = ProxyFixture::open(environment, "start");
    let file = |name: &str, text: &str| {
        let path = fixture.scratch.join(name);
        std::fs::write(&path, text).unwrap();
        format!("--config-file={}", path.display())
    };
    let kubeconfig = format!("--kubeconfig={}", environment.cluster.admin_kubeconfig.display());
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
        for &implementation in IMPLEMENTATIONS {
            let output = exit_error(&fixture.program(implementation), &arguments);
            assert!(output.is_some(), "{implementation:?} starts with {wrong:?}");
        }
    }
}
