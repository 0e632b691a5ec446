//! The sidecar's own flags; the rest are the gateway's.

use crate::config::flag::{Flag, Group, Kind};
use crate::config::gateway::flags;

/// Where the values of the whole role may also be written.
static CONFIGURATION: Group = Group {
    heading: "Configuration",
    flags: &[
        Flag::new(
            "config",
            Kind::File,
            "",
            "YAML file (apiVersion narthex.dev/v1alpha1, kind SidecarConfiguration) that holds these flags by their names in camelCase. The command line comes first, then the environment, then this file",
        ),
        flags::DATA_DIR,
    ],
};

/// What stands behind.
static UPSTREAM: Group = Group {
    heading: "Upstream",
    flags: &[
        Flag::new(
            "upstream",
            Kind::Repeated("[/PATH=]URL"),
            "",
            "The server that this stands in front of: http://127.0.0.1:8080, https://host:port, or unix:/path/of.sock. May be given again with a path (/metrics=http://127.0.0.1:9090): the longest path that a request's begins with says where it goes, path and all",
        ),
        Flag::new(
            "upstream-ca-file",
            Kind::File,
            "",
            "Authorities of the certificates of https upstreams (default: the system's). Followed on disk",
        ),
        Flag::new(
            "upstream-client-cert-file",
            Kind::File,
            "",
            "Certificate that https upstreams are shown, so that they take requests from nobody else. Followed on disk",
        ),
        Flag::new("upstream-client-key-file", Kind::File, "", "Private key of --upstream-client-cert-file"),
        Flag::new(
            "upstream-force-h2c",
            Kind::Switch,
            "false",
            "Speak HTTP/2 to http and unix upstreams, as gRPC needs it",
        ),
        Flag::new(
            "upstream-timeout",
            Kind::Repeated("[/PATH=]DURATION"),
            "",
            "Longest time for a request to the upstream of that path, or to all, instead of --request-timeout; 0s for no limit. Watches, upgrades and gRPC have none",
        ),
        Flag::new("forward-uid", Kind::Switch, "true", "Tell upstreams the user's UID, in X-Remote-Uid"),
        Flag::new(
            "resolver",
            Kind::Choice(&["system", "hickory"]),
            "system",
            "Who looks names up: the system, or hickory-resolver within this process",
        ),
    ],
};

/// Whom the sidecar asks.
static ASKED: Group = Group {
    heading: "Who is asking",
    flags: &[Flag::new(
        "kubeconfig",
        Kind::File,
        "",
        "kubeconfig of the kube-apiserver that is asked who holds a token (TokenReview) and what users may (SubjectAccessReview), where --authentication-kubeconfig and --authorization-kubeconfig say nothing else; in-cluster, the default within a pod, for the one whose pod this is. Followed on disk",
    )],
};

/// Who decides.
static DECIDING: Group = Group {
    heading: "May they",
    flags: &[Flag::new(
        "authorization-mode",
        Kind::List("MODE"),
        "Webhook",
        "Webhook lets those through whom the kube-apiserver of --kubeconfig or --authorization-kubeconfig allows; Static whom --authorization-policy-file allows; AlwaysAllow every authenticated user; AlwaysDeny nobody. The first that has an opinion decides",
    )],
};

/// Where the sidecar listens, in kube-rbac-proxy's words.
static LISTENING: Group = Group {
    heading: "Serving",
    flags: &[
        Flag::new(
            "secure-listen-address",
            Kind::Text("HOST:PORT"),
            "",
            "Where to serve HTTPS, instead of --bind-address and --secure-port",
        ),
        Flag::new(
            "request-serving-certificate",
            Kind::Text("SIGNER"),
            "",
            "Ask the cluster of --kubeconfig for the serving certificate, by a CertificateSigningRequest to this signer, and again before it ends. Until it is approved and signed a self-made one serves, and /readyz fails",
        ),
        Flag::new(
            "serving-certificate-names",
            Kind::List("NAME"),
            "",
            "DNS names and IP addresses of the certificate of --request-serving-certificate",
        ),
    ],
};

/// All of the sidecar's groups.
pub static SIDECAR: &[&Group] = &[
    &CONFIGURATION,
    &UPSTREAM,
    &LISTENING,
    &flags::SERVING,
    &ASKED,
    &flags::WHO,
    &DECIDING,
    &flags::MAY_THEY,
    &flags::SEEN,
];
