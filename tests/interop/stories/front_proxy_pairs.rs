//! The gateway before a whole cluster and before servers that do not trust the cluster's front proxy: who is shown which
//! certificate, as the README has it.

use std::path::Path;

use super::Trial;
use crate::world::{Authority, Door, Extension, Gateway, Identity, World, eventually, free_port};

pub(super) const THROUGH: &[(&str, Trial)] =
    &[("front proxy pairs: the cluster's own, both authorities in a bundle, a pair per APIService", pairs)];

const FLUNDERS: &str = "/apis/wardle.example.com/v1beta1/flunders";
const PODS: &str = "/api/v1/namespaces/default/pods";

fn until(door: &Door, admin: &Identity, path: &str, status: u16) {
    eventually(&format!("{path} to be answered with {status}"), || {
        let answer = door.get(Some(admin), path)?;
        if answer.status == status { Ok(()) } else { Err(format!("{} {}", answer.status, answer.text())) }
    });
}

fn pairs(world: &World) {
    let (cluster, scratch) = (&world.cluster, world.scratch("front-proxy-pairs"));
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
        let at = (extension.name(), extension.door.port);
        Gateway::begin(cluster, at, &scratch, name, &[&[delegate], more].concat())
    };

    // Who reads from the cluster whom to trust, trusts the cluster's own pair.
    let first = gateway("cluster-pair", &world.extension, &[]);
    until(&first.door, admin, PODS, 200);
    until(&first.door, admin, FLUNDERS, 200);
    // The cluster does not trust the gateway's, …
    let (certificate, key) = (own.certificate.to_str().unwrap(), own.key.to_str().unwrap());
    let ours = [("--proxy-client-cert-file", certificate), ("--proxy-client-key-file", key)];
    let strict = extension("own-bundle", &authority.file, "narthex-front-proxy");
    let refused = gateway("own-pair", &strict, &ours);
    until(&refused.door, admin, PODS, 401);
    until(&refused.door, admin, FLUNDERS, 200);
    // … and a server with a bundle of its own not the cluster's, until both authorities are in it,
    let second = extension("both-bundle", &bundle, "narthex-front-proxy,front-proxy-client");
    let second = gateway("both-authorities", &second, &[]);
    until(&second.door, admin, PODS, 200);
    until(&second.door, admin, FLUNDERS, 200);
    // or it is shown a pair of its own.
    let third = gateway("own-pair-of-apiservice", &strict, &[]);
    until(&third.door, admin, PODS, 200);
    until(&third.door, admin, FLUNDERS, 503);
    let registry = scratch.join("own-pair-of-apiservice-registry");
    std::fs::copy(&own.certificate, registry.join("front-proxy.crt")).unwrap();
    std::fs::copy(&own.key, registry.join("front-proxy.key")).unwrap();
    let manifests = registry.join("wardle.yaml");
    let named = "annotations: {narthex.dev/client-certificate: front-proxy, ";
    std::fs::write(&manifests, pem(&manifests).replace("annotations: {", named)).unwrap();
    until(&third.door, admin, FLUNDERS, 200);
    until(&third.door, admin, PODS, 200);
}
