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
            "Longest time for a request to the upstream of that path, or to all, instead of --request-timeout; 0s for no limit. Watches, upgrades, what --upstream-long-running names, and responses of gRPC and of server-sent events have none",
        ),
        Flag::new(
            "upstream-long-running",
            Kind::List("PATTERN"),
            "",
            "Requests without a limit of time that take no place of --max-requests-inflight: verb:NAME, subresource:NAME, or a path, in which a segment * stands for any, and * at the end for all that follows. Needed for gRPC calls whose server waits for the client's last message before it responds",
        ),
        Flag::new(
            "allow-request-headers",
            Kind::List("HEADER"),
            "",
            "Headers by which a trusted reverse proxy in front tells the upstream who asks and from where, and which are removed otherwise: Forwarded, X-Real-Ip, X-Forwarded-User, X-Auth-Request-*, Remote-* and others of their kind, each by its name",
        ),
        Flag::new("forward-uid", Kind::Switch, "true", "Tell upstreams the user's UID, in X-Remote-Uid"),
        flags::RESOLVER,
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
    flags: &[
        Flag::new(
            "authorization-mode",
            Kind::List("MODE"),
            "Webhook",
            "Webhook lets those through whom the kube-apiserver of --kubeconfig or --authorization-kubeconfig allows; RBAC (or Static, which is the same) whom --authorization-policy-file allows; AlwaysAllow every authenticated user; AlwaysDeny nobody. The first that has an opinion decides",
        ),
        Flag::new(
            "authorization-attributes",
            Kind::Choice(&["request", "kube-rbac-proxy"]),
            "request",
            "What is asked about a request: what k8s.io/apiserver reads in it (verb, group, resource, namespace, name), or what --config-file says, as kube-rbac-proxy asks it",
        ),
        Flag::new(
            "config-file",
            Kind::File,
            "",
            "kube-rbac-proxy's authorization file: resourceAttributes, rewrites, static rules; and rules by path and method. Followed on disk. Implies --authorization-attributes=kube-rbac-proxy",
        ),
        Flag::new(
            "allow-paths",
            Kind::List("PATTERN"),
            "",
            "The only paths there are, as patterns of Go's path.Match; 404 for all others",
        ),
        Flag::new(
            "ignore-paths",
            Kind::List("PATTERN"),
            "",
            "Paths that are open to everybody: nobody is asked who they are and whether they may",
        ),
        Flag::new(
            "error-format",
            Kind::Choice(&["status", "kube-rbac-proxy"]),
            "status",
            "Errors as metav1.Status, or as texts, kube-rbac-proxy's where it has them",
        ),
    ],
};

/// How the server behind is told who asks, beside X-Remote-*.
static TELLING: Group = Group {
    heading: "What the upstream is told",
    flags: &[
        Flag::new(
            "auth-header-fields-enabled",
            Kind::Switch,
            "false",
            "Tell the upstream who asks in these two headers, too",
        ),
        Flag::new("auth-header-user-field-name", Kind::Text("HEADER"), "x-remote-user", "Header of the user's name"),
        Flag::new("auth-header-groups-field-name", Kind::Text("HEADER"), "x-remote-groups", "Header of all groups"),
        Flag::new("auth-header-groups-field-separator", Kind::Text("TEXT"), "|", "What stands between groups there"),
    ],
};

/// Where the sidecar listens, in kube-rbac-proxy's words.
static LISTENING: Group = Group {
    heading: "Serving",
    flags: &[
        Flag::new(
            "secure-listen-address",
            Kind::Text("HOST:PORT"),
            "",
            "Where to serve HTTPS, instead of --bind-address and --secure-port: :8443 for all addresses of IPv4 and IPv6, a name for its address",
        ),
        Flag::new(
            "proxy-endpoints-port",
            Kind::Count,
            "0",
            "A second port, at the host of --secure-listen-address and with the same certificate, that says to everybody how the sidecar is: /healthz, /livez, /readyz; 0 for none",
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
    &super::openid::GROUP,
    &DECIDING,
    &TELLING,
    &flags::MAY_THEY,
    &super::compatible::GROUP,
    &flags::SEEN,
];
