//! Front proxy client certificates: the cluster's own, and others for servers that do not trust the cluster's front
//! proxy, as in the documentation.

use std::path::Path;

use super::TestFn;
use crate::environment::{
    Authority, Extension, Gateway, HttpsEndpoint, Identity, TestEnvironment, eventually, free_port,
};

pub(super) const GATEWAY_TESTS: &[(&str, TestFn)] =
    &[("front proxy certificates: the cluster's, a bundle of both CAs, one per APIService", pairs)];

const FLUNDERS: &str = "/apis/wardle.example.com/v1beta1/flunders";
const PODS: &str = "/api/v1/namespaces/default/pods";

fn wait_for_status(endpoint: &HttpsEndpoint, admin: &Identity, path: &str, status: u16) {
    eventually(&format!("status {status} for {path}"), || {
        let response = endpoint.get(Some(admin), path)?;
        if response.status == status { Ok(()) } else { Err(format!("{} {}", response.status, response.text())) }
    });
}

fn pairs(environment: &TestEnvironment) {
    let (cluster, scratch) = (&environment.cluster, environment.scratch("front-proxy-pairs"));
    let admin = cluster.admin();
    let authority = Authority::new("gateway-front-proxy", &scratch);
    let own = authority.client("own-front-proxy", "narthex-front-proxy", &[], None);
    let bundle = scratch.join("both.crt");
    let pem = |path: &Path| std::fs::read_to_string(path).unwrap();
    std::fs::write(&bundle, pem(&authority.file) + &pem(&cluster.authorities.request_header.file)).unwrap();
    let extension = |name: &str, trusted: &Path, names: &str| {
        let (trusted, names) = (
            format!("--requestheader-client-ca-file={}", trusted.display()),
            format!("--requestheader-allowed-names={names}"),
        );
        let kubeconfig = &cluster.admin_kubeconfig;
        Extension::start_with(cluster, kubeconfig, &scratch, name, free_port(), &[&trusted, &names])
    };
    let delegate = ("--delegate-kubeconfig", cluster.admin_kubeconfig.to_str().unwrap());
    let gateway = |name: &str, extension: &Extension, more: &[(&str, &str)]| {
        let at = (extension.name(), extension.endpoint.port);
        Gateway::start_unready(cluster, at, &scratch, name, &[&[delegate], more].concat())
    };

    // A server that reads its CAs from the cluster trusts the cluster's own certificate.
    let first = gateway("cluster-pair", &environment.extension, &[]);
    wait_for_status(&first.endpoint, admin, PODS, 200);
    wait_for_status(&first.endpoint, admin, FLUNDERS, 200);
    // The cluster does not trust the gateway's own certificate.
    let (certificate, key) = (own.certificate.to_str().unwrap(), own.key.to_str().unwrap());
    let own_pair = [("--proxy-client-cert-file", certificate), ("--proxy-client-key-file", key)];
    let strict = extension("own-bundle", &authority.file, "narthex-front-proxy");
    let refused = gateway("own-pair", &strict, &own_pair);
    wait_for_status(&refused.endpoint, admin, PODS, 401);
    wait_for_status(&refused.endpoint, admin, FLUNDERS, 200);
    // A server with its own CA bundle does not trust the cluster's certificate until the bundle has both CAs,
    let second = extension("both-bundle", &bundle, "narthex-front-proxy,front-proxy-client");
    let second = gateway("both-authorities", &second, &[]);
    wait_for_status(&second.endpoint, admin, PODS, 200);
    wait_for_status(&second.endpoint, admin, FLUNDERS, 200);
    // or a certificate is configured for its APIService.
    let third = gateway("own-pair-of-apiservice", &strict, &[]);
    wait_for_status(&third.endpoint, admin, PODS, 200);
    wait_for_status(&third.endpoint, admin, FLUNDERS, 503);
    let registry = scratch.join("own-pair-of-apiservice-registry");
    std::fs::copy(&own.certificate, registry.join("front-proxy.crt")).unwrap();
    std::fs::copy(&own.key, registry.join("front-proxy.key")).unwrap();
    let manifests = registry.join("wardle.yaml");
    let named = "annotations: {narthex.dev/client-certificate: front-proxy, ";
    std::fs::write(&manifests, pem(&manifests).replace("annotations: {", named)).unwrap();
    wait_for_status(&third.endpoint, admin, FLUNDERS, 200);
    wait_for_status(&third.endpoint, admin, PODS, 200);
}
