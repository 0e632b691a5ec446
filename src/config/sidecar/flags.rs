//! The sidecar's own flags; the rest are the gateway's.

use crate::config::flag::{Flag, FlagGroup, FlagKind};
use crate::config::gateway::flags;
use crate::config::observability_flags::OBSERVABILITY;

/// The configuration file and the data directory.
static CONFIGURATION: FlagGroup = FlagGroup {
    heading: "Configuration",
    flags: &[
        Flag::new(
            "config",
            FlagKind::File,
            "",
            "YAML file (apiVersion narthex.dev/v1alpha1, kind SidecarConfiguration) that holds these flags by their names in camelCase. The command line comes first, then the environment, then this file",
        ),
        flags::DATA_DIR,
    ],
};

/// The upstream servers.
static UPSTREAM: FlagGroup = FlagGroup {
    heading: "Upstream",
    flags: &[
        Flag::new(
            "upstream",
            FlagKind::Repeated("[/PATH=]URL"),
            "",
            "The server to protect: http://127.0.0.1:8080, https://host:port, or unix:/path/of.sock. May be given again with a path (/metrics=http://127.0.0.1:9090): the longest path prefix of a request selects the upstream; the path is not stripped",
        ),
        Flag::new(
            "upstream-ca-file",
            FlagKind::File,
            "",
            "CA bundle for https upstreams (default: the system's). Followed on disk",
        ),
        Flag::new(
            "upstream-client-cert-file",
            FlagKind::File,
            "",
            "Client certificate presented to https upstreams, so that they can refuse other callers. Followed on disk",
        ),
        Flag::new("upstream-client-key-file", FlagKind::File, "", "Private key of --upstream-client-cert-file"),
        Flag::new(
            "upstream-force-h2c",
            FlagKind::Switch,
            "false",
            "Use HTTP/2 without TLS (h2c) to http and unix upstreams, as gRPC needs it",
        ),
        Flag::new(
            "upstream-timeout",
            FlagKind::Repeated("[/PATH=]DURATION"),
            "",
            "Request timeout of the upstream of that path, or of all, instead of --request-timeout; 0s for no limit. Watches, upgrades, requests of --upstream-long-running, gRPC responses and server-sent events have no timeout",
        ),
        Flag::new(
            "upstream-long-running",
            FlagKind::List("PATTERN"),
            "",
            "Long-running requests: no timeout, and not counted by --max-requests-inflight. verb:NAME, subresource:NAME, or a path, in which a segment * matches any segment, and * at the end any suffix. Needed for gRPC calls to a server that waits for the client's last message before it responds",
        ),
        Flag::new(
            "path-with-escaped-slashes-action",
            FlagKind::Choice(&["unescape-and-forward", "keep-unchanged"]),
            "unescape-and-forward",
            "What becomes of %2F in a path on the way to the upstream: a slash, or %2F as it came, for servers that have names with slashes. It is authorized as a slash, and routed by it, in both cases",
        ),
        Flag::new(
            "allow-request-headers",
            FlagKind::List("HEADER"),
            "",
            "Identity and address headers of a trusted reverse proxy to pass to the upstream; they are removed otherwise: Forwarded, X-Real-Ip, X-Forwarded-User, X-Auth-Request-*, Remote-* and similar ones, each by its name",
        ),
        Flag::new("forward-uid", FlagKind::Switch, "true", "Send the user's UID to upstreams, in X-Remote-Uid"),
        flags::RESOLVER,
    ],
};

/// The kube-apiserver for token and access reviews.
static REVIEW_CLUSTER: FlagGroup = FlagGroup {
    heading: "Authentication",
    flags: &[Flag::new(
        "kubeconfig",
        FlagKind::File,
        "",
        "kubeconfig of the kube-apiserver for TokenReview and SubjectAccessReview, unless --authentication-kubeconfig or --authorization-kubeconfig is given; in-cluster, the default within a pod, for the pod's own cluster. Followed on disk",
    )],
};

/// Authorization: modes, attributes, and paths without authorization.
static AUTHORIZATION: FlagGroup = FlagGroup {
    heading: "Authorization",
    flags: &[
        Flag::new(
            "authorization-mode",
            FlagKind::List("MODE"),
            "Webhook",
            "Authorizers, in order; the first that allows or denies decides. Webhook sends SubjectAccessReviews to the kube-apiserver of --kubeconfig or --authorization-kubeconfig; RBAC (or Static, the same) evaluates --authorization-policy-file; AlwaysAllow allows every authenticated user; AlwaysDeny denies all",
        ),
        Flag::new(
            "authorization-attributes",
            FlagKind::Choice(&["request", "kube-rbac-proxy"]),
            "request",
            "Attributes to authorize: those k8s.io/apiserver takes from the request (verb, group, resource, namespace, name), or those of --config-file, as kube-rbac-proxy does",
        ),
        Flag::new(
            "config-file",
            FlagKind::File,
            "",
            "kube-rbac-proxy's authorization file: resourceAttributes, rewrites, static rules; and rules by path and method. Followed on disk. Implies --authorization-attributes=kube-rbac-proxy",
        ),
        Flag::new(
            "allow-paths",
            FlagKind::List("PATTERN"),
            "",
            "Paths to serve, as patterns of Go's path.Match; all others get 404",
        ),
        Flag::new(
            "ignore-paths",
            FlagKind::List("PATTERN"),
            "",
            "Paths served without authentication or authorization, as patterns of Go's path.Match",
        ),
        Flag::new(
            "error-format",
            FlagKind::Choice(&["status", "kube-rbac-proxy"]),
            "status",
            "Format of errors: metav1.Status, or plain text, kube-rbac-proxy's where it has one",
        ),
    ],
};

/// Identity headers sent to the upstream besides X-Remote-*.
static IDENTITY_HEADERS: FlagGroup = FlagGroup {
    heading: "Identity headers",
    flags: &[
        Flag::new(
            "auth-header-fields-enabled",
            FlagKind::Switch,
            "false",
            "Send the user's name and groups to the upstream in these two headers, too",
        ),
        Flag::new(
            "auth-header-user-field-name",
            FlagKind::Text("HEADER"),
            "x-remote-user",
            "Header of the user's name",
        ),
        Flag::new("auth-header-groups-field-name", FlagKind::Text("HEADER"), "x-remote-groups", "Header of all groups"),
        Flag::new(
            "auth-header-groups-field-separator",
            FlagKind::Text("TEXT"),
            "|",
            "Separator between groups in that header",
        ),
    ],
};

/// The sidecar's listeners, by kube-rbac-proxy's flags.
static SERVING: FlagGroup = FlagGroup {
    heading: "Serving",
    flags: &[
        Flag::new(
            "secure-listen-address",
            FlagKind::Text("HOST:PORT"),
            "",
            "Where to serve HTTPS, instead of --bind-address and --secure-port: :8443 for all addresses of IPv4 and IPv6, a name for its address",
        ),
        Flag::new(
            "proxy-endpoints-port",
            FlagKind::Count,
            "0",
            "A second port, at the host of --secure-listen-address and with the same certificate, that serves /healthz, /livez and /readyz without authentication; 0 for none",
        ),
        Flag::new(
            "request-serving-certificate",
            FlagKind::Text("SIGNER"),
            "",
            "Request the serving certificate from the cluster of --kubeconfig by a CertificateSigningRequest to this signer, and renew it before it expires. Until it is approved and signed, a generated certificate serves and /readyz fails",
        ),
        Flag::new(
            "serving-certificate-names",
            FlagKind::List("NAME"),
            "",
            "DNS names and IP addresses of the certificate of --request-serving-certificate",
        ),
    ],
};

/// All of the sidecar's groups.
pub static SIDECAR: &[&FlagGroup] = &[
    &CONFIGURATION,
    &UPSTREAM,
    &SERVING,
    &flags::SERVING,
    &REVIEW_CLUSTER,
    &flags::AUTHENTICATION,
    &super::oidc_flags::OIDC,
    &AUTHORIZATION,
    &IDENTITY_HEADERS,
    &flags::AUTHORIZATION,
    &super::kube_rbac_proxy_flags::KUBE_RBAC_PROXY,
    &OBSERVABILITY,
];
