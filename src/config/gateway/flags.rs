//! The gateway's flags, group by group. Names, meanings and defaults are kube-apiserver's where it has
//! such a flag; see each help text for ours.

use crate::config::flag::{Flag, FlagGroup, FlagKind};

/// The configuration file and the data directory.
pub static CONFIGURATION: FlagGroup = FlagGroup {
    heading: "Configuration",
    flags: &[
        Flag::new(
            "config",
            FlagKind::File,
            "",
            "YAML file (apiVersion narthex.dev/v1alpha1, kind GatewayConfiguration) that holds these flags by their names in camelCase. The command line comes first, then the environment, then this file",
        ),
        DATA_DIR,
    ],
};

/// The data directory alone, for the quickstart.
pub static FILES: FlagGroup = FlagGroup { heading: "Configuration", flags: &[DATA_DIR] };

pub(in crate::config) const DATA_DIR: Flag = Flag::new(
    "data-dir",
    FlagKind::Directory,
    "",
    "Directory for generated certificates, last good documents and admin.kubeconfig (default $XDG_STATE_HOME/narthex, else ~/.local/state/narthex)",
);

const SECURE_PORT: Flag =
    Flag::new("secure-port", FlagKind::Count, "6443", "Port to serve HTTPS on; 0 takes a free one and prints it");

/// Listeners, TLS, limits and shutdown.
pub static SERVING: FlagGroup = FlagGroup {
    heading: "Serving",
    flags: &[
        Flag::new(
            "bind-address",
            FlagKind::Text("IP"),
            "",
            "Address to listen on (default 127.0.0.1 with a generated serving certificate, else 0.0.0.0). Both 0.0.0.0 and :: are all addresses, IPv4 and IPv6",
        ),
        SECURE_PORT,
        Flag::new(
            "tls-cert-file",
            FlagKind::File,
            "",
            "Serving certificate, followed by its intermediates, in PEM; generated when not given",
        ),
        Flag::new("tls-private-key-file", FlagKind::File, "", "Private key of --tls-cert-file"),
        Flag::new(
            "tls-sni-cert-key",
            FlagKind::Repeated("CERT,KEY[:NAME,…]"),
            "",
            "A further certificate and key, selected by the client's server name (SNI); without names, by those in the certificate. May be given again",
        ),
        Flag::new(
            "tls-min-version",
            FlagKind::Choice(&["VersionTLS12", "VersionTLS13"]),
            "VersionTLS12",
            "Oldest TLS version to accept",
        ),
        Flag::new(
            "tls-cipher-suites",
            FlagKind::List("SUITE"),
            "",
            "Cipher suites of TLS 1.2 to accept, by their Go names (default: all that are safe). Those of TLS 1.3 are fixed",
        ),
        Flag::new(
            "cert-dir",
            FlagKind::Directory,
            "",
            "Directory for a generated serving certificate (default: within --data-dir). Not used with --tls-cert-file",
        ),
        Flag::new(
            "http2-max-streams-per-connection",
            FlagKind::Count,
            "0",
            "Streams a client may have open on one HTTP/2 connection; 0 is 250, as in kube-apiserver",
        ),
        Flag::new("disable-http2-serving", FlagKind::Switch, "false", "Serve HTTP/1.1 only"),
        Flag::new(
            "goaway-chance",
            FlagKind::Fraction,
            "0",
            "Probability, from 0 to 0.02, that an HTTP/2 client gets GOAWAY and reconnects, so that clients spread over replicas",
        ),
        Flag::new("request-timeout", FlagKind::Duration, "1m", "Longest time for a request that is not long-running"),
        Flag::new(
            "min-request-timeout",
            FlagKind::Count,
            "1800",
            "Seconds; accepted for compatibility, without effect. The backend decides how long a watch lasts",
        ),
        Flag::new(
            "max-requests-inflight",
            FlagKind::Count,
            "400",
            "Non-mutating requests served at the same time, shared fairly among users; 0 for no limit. Watches and other long-running requests do not count",
        ),
        Flag::new(
            "max-mutating-requests-inflight",
            FlagKind::Count,
            "200",
            "Mutating requests served at the same time, shared fairly among users; 0 for no limit",
        ),
        Flag::new(
            "max-connections",
            FlagKind::Count,
            "0",
            "Client connections open at the same time; 0 for as many as the limit on open files allows",
        ),
        Flag::new("max-request-header-bytes", FlagKind::Count, "1048576", "Maximum size of a request's header block"),
        Flag::new("handshake-timeout", FlagKind::Duration, "10s", "Time a client has for the TLS handshake"),
        Flag::new(
            "read-header-timeout",
            FlagKind::Duration,
            "10s",
            "Time a client has to send a header block, or an HTTP/2 frame other than a body's, from its first byte. An HTTP/2 connection with running requests gets GOAWAY after that time, and is closed with its requests after six times as long",
        ),
        Flag::new(
            "idle-timeout",
            FlagKind::Duration,
            "90s",
            "A connection without a request is closed after this time",
        ),
        Flag::new(
            "proxy-protocol",
            FlagKind::Choice(&["off", "optional", "required"]),
            "off",
            "Whether a load balancer announces the client's address by the PROXY protocol, version 1 or 2",
        ),
        Flag::new(
            "proxy-protocol-trusted-cidrs",
            FlagKind::List("CIDR"),
            "",
            "Networks of the load balancers that may send a PROXY protocol header",
        ),
        Flag::new(
            "cors-allowed-origins",
            FlagKind::List("REGEX"),
            "",
            "Origins allowed by CORS, for example ^https://example\\.com(:|$): regular expressions, each anchored at both ends of the host by ^ or // and $ or a port (default: none)",
        ),
        Flag::new(
            "strict-transport-security-directives",
            FlagKind::List("DIRECTIVE"),
            "",
            "Value of the header Strict-Transport-Security in every response: max-age=SECONDS, includeSubDomains, preload (default: no such header)",
        ),
        Flag::new(
            "shutdown-delay-duration",
            FlagKind::Duration,
            "0s",
            "After SIGTERM, /readyz fails and requests are served for this time, so that load balancers notice",
        ),
        Flag::new(
            "shutdown-send-retry-after",
            FlagKind::Switch,
            "false",
            "During --shutdown-delay-duration and after, answer new requests 429 with Retry-After and close their connection",
        ),
        Flag::new(
            "shutdown-watch-termination-grace-period",
            FlagKind::Duration,
            "0s",
            "Time over which watches are ended at shutdown; 0s ends all at once",
        ),
    ],
};

/// The one serving flag of the quickstart.
pub static PORT: FlagGroup = FlagGroup { heading: "Serving", flags: &[SECURE_PORT] };

/// Authentication.
pub static AUTHENTICATION: FlagGroup = FlagGroup {
    heading: "Authentication",
    flags: &[
        Flag::new(
            "client-ca-file",
            FlagKind::File,
            "",
            "CA bundle for client certificates: the common name is the user, organizations are groups (default: that of --authentication-kubeconfig's cluster, else a generated one, for admin.kubeconfig)",
        ),
        Flag::new(
            "requestheader-client-ca-file",
            FlagKind::File,
            "",
            "CA bundle for front proxies; their requests name the user in headers",
        ),
        Flag::new(
            "requestheader-allowed-names",
            FlagKind::List("NAME"),
            "",
            "Allowed common names of front proxies; empty allows every certificate of --requestheader-client-ca-file",
        ),
        Flag::new(
            "requestheader-username-headers",
            FlagKind::List("HEADER"),
            "x-remote-user",
            "Headers that hold the user's name",
        ),
        Flag::new(
            "requestheader-uid-headers",
            FlagKind::List("HEADER"),
            "",
            "Headers that hold the user's UID; must include X-Remote-Uid",
        ),
        Flag::new(
            "requestheader-group-headers",
            FlagKind::List("HEADER"),
            "x-remote-group",
            "Headers that hold the user's groups",
        ),
        Flag::new(
            "requestheader-extra-headers-prefix",
            FlagKind::List("PREFIX"),
            "x-remote-extra-",
            "Prefixes of headers that hold the user's extra attributes",
        ),
        Flag::new(
            "token-auth-file",
            FlagKind::File,
            "",
            "CSV file of tokens: token, user, UID, and optionally \"group1,group2\". Followed on disk",
        ),
        Flag::new(
            "authentication-kubeconfig",
            FlagKind::File,
            "",
            "kubeconfig of the kube-apiserver that reviews tokens (TokenReview). Followed on disk",
        ),
        Flag::new(
            "authentication-skip-lookup",
            FlagKind::Switch,
            "false",
            "Do not read the client and request-header CAs from that kube-apiserver (ConfigMap kube-system/extension-apiserver-authentication); without this flag the ConfigMap is followed where no --client-ca-file or --requestheader-client-ca-file is given",
        ),
        Flag::new(
            "authentication-tolerate-lookup-failure",
            FlagKind::Switch,
            "false",
            "Start although that ConfigMap cannot be read, and trust no such certificate until it can",
        ),
        Flag::new(
            "authentication-token-webhook-config-file",
            FlagKind::File,
            "",
            "kubeconfig of a webhook that reviews tokens (TokenReview) before that kube-apiserver, at exactly the URL in the file. Followed on disk",
        ),
        Flag::new(
            "authentication-token-webhook-version",
            FlagKind::Choice(&["v1", "v1beta1"]),
            "v1beta1",
            "Version of TokenReview sent to the webhook of --authentication-token-webhook-config-file",
        ),
        Flag::new(
            "authentication-token-webhook-cache-ttl",
            FlagKind::Duration,
            "10s",
            "Cache TTL of token reviews; never beyond the token's own expiry",
        ),
        Flag::new(
            "api-audiences",
            FlagKind::List("AUDIENCE"),
            "",
            "Audiences that tokens must have; without it, the kube-apiserver's own",
        ),
        Flag::new(
            "authentication-config",
            FlagKind::File,
            "",
            "AuthenticationConfiguration (apiserver.config.k8s.io/v1): issuers of JSON Web Tokens, and which requests may be anonymous. Followed on disk",
        ),
        Flag::new(
            "authentication-pass-on-groups",
            FlagKind::List("GROUP"),
            "",
            "Groups to keep of an authenticated user, from any authenticator; empty keeps all. A star at the end matches any suffix",
        ),
        Flag::new(
            "authentication-drop-groups",
            FlagKind::List("GROUP"),
            "",
            "Groups to remove from every authenticated user, for example system:masters; applied before --authentication-pass-on-groups",
        ),
        Flag::new(
            "anonymous-auth",
            FlagKind::Switch,
            "false",
            "Authenticate requests without credentials as system:anonymous. Turned off, with a warning, where --authorization-mode has AlwaysAllow",
        ),
    ],
};

/// Authorization modes, and serving reviews to backends.
pub static AUTHORIZATION_MODE: FlagGroup = FlagGroup {
    heading: "Authorization",
    flags: &[
        Flag::new(
            "authorization-mode",
            FlagKind::List("MODE"),
            "AlwaysAllow",
            "Authorizers, in order; the first that allows or denies decides. AlwaysAllow allows every authenticated user, because the backend authorizes again; AlwaysDeny denies all; RBAC (or Static, the same) evaluates --authorization-policy-file; Webhook sends SubjectAccessReviews to the kube-apiserver of --authorization-kubeconfig. Impersonation (kubectl --as) is allowed only by RBAC and Webhook",
        ),
        Flag::new(
            "serve-delegation",
            FlagKind::Switch,
            "false",
            "Serve delegated authentication and authorization to backends, so that they need no kube-apiserver: ConfigMap kube-system/extension-apiserver-authentication, TokenReview, SubjectAccessReview. Callers must be authorized for these; needs Webhook or RBAC, or --authorization-config",
        ),
    ],
};

/// Settings of the authorizers.
pub static AUTHORIZATION: FlagGroup = FlagGroup {
    heading: "Authorization",
    flags: &[
        Flag::new(
            "authorization-config",
            FlagKind::File,
            "",
            "AuthorizationConfiguration (apiserver.config.k8s.io/v1): a chain of authorizers of type Webhook, RBAC (by --authorization-policy-file), AlwaysDeny and AlwaysAllow, instead of --authorization-mode and the flags for its modes. Followed on disk",
        ),
        Flag::new(
            "authorization-policy-file",
            FlagKind::File,
            "",
            "YAML file of RBAC objects for --authorization-mode=RBAC, or for type RBAC in --authorization-config: ClusterRole, Role, ClusterRoleBinding, RoleBinding. Followed on disk",
        ),
        Flag::new(
            "authorization-kubeconfig",
            FlagKind::File,
            "",
            "kubeconfig of the kube-apiserver for --authorization-mode=Webhook (SubjectAccessReview). Followed on disk",
        ),
        Flag::new(
            "authorization-webhook-config-file",
            FlagKind::File,
            "",
            "kubeconfig of a webhook for --authorization-mode=Webhook instead, at exactly the URL in the file. Followed on disk",
        ),
        Flag::new(
            "authorization-webhook-version",
            FlagKind::Choice(&["v1", "v1beta1"]),
            "v1beta1",
            "Version of SubjectAccessReview sent to the webhook of --authorization-webhook-config-file",
        ),
        Flag::new(
            "authorization-webhook-cache-authorized-ttl",
            FlagKind::Duration,
            "10s",
            "Cache TTL of allowed decisions",
        ),
        Flag::new(
            "authorization-webhook-cache-unauthorized-ttl",
            FlagKind::Duration,
            "10s",
            "Cache TTL of denied decisions",
        ),
        Flag::new(
            "authorization-stale-allow-ttl",
            FlagKind::Duration,
            "0s",
            "How long after its TTL a cached allowed decision is still used when the kube-apiserver is unreachable",
        ),
        Flag::new(
            "readiness-requires-reviews",
            FlagKind::Switch,
            "false",
            "Fail /readyz while the last TokenReview or SubjectAccessReview failed or none was made yet; a probe is sent every 5s until one succeeds. Without this flag, only /readyz?verbose reports it",
        ),
        Flag::new(
            "authorization-always-allow-paths",
            FlagKind::List("PATH"),
            "/healthz,/readyz,/livez",
            "Paths served without authorization; a star at the end matches any suffix",
        ),
    ],
};

/// Backends: registry, delegate, egress and front-proxy identity.
pub static BACKENDS: FlagGroup = FlagGroup {
    heading: "Backends",
    flags: &[
        Flag::new(
            "registry-dir",
            FlagKind::Directory,
            "",
            "Directory of manifests: APIService, Service, EndpointSlice. Followed: a change takes effect within a second. An invalid file changes nothing; at startup with one, the last good state in --data-dir is served",
        ),
        Flag::new(
            "registry-strict",
            FlagKind::Switch,
            "false",
            "Do not start when anything in --registry-dir is invalid, even where a last good state exists",
        ),
        Flag::new(
            "kubeconfig",
            FlagKind::File,
            "",
            "kubeconfig of the kube-apiserver to follow for APIServices, Services and EndpointSlices, or in-cluster for the pod's own cluster. Its credentials are never used for a user's request. With --registry-dir, an object of the directory wins over one of the same name. Followed on disk",
        ),
        Flag::new(
            "delegate-kubeconfig",
            FlagKind::File,
            "",
            "kubeconfig of the API server that owns every path no APIService claims (its URL and CA), or in-cluster for the pod's own cluster. Requests go there with the front-proxy certificate; the user in this file is ignored. Followed on disk",
        ),
        Flag::new(
            "serving-metrics",
            FlagKind::Choice(&["gateway", "delegate"]),
            "",
            "Metrics served at /metrics on the secure port: the gateway's, or those of the server of --delegate-kubeconfig, which authorizes the caller (default delegate with that flag, gateway without). The gateway's are at --admin-address in either case",
        ),
        Flag::new(
            "proxy-client-cert-file",
            FlagKind::File,
            "",
            "Client certificate presented to backends as a front proxy; generated when not given",
        ),
        Flag::new("proxy-client-key-file", FlagKind::File, "", "Private key of --proxy-client-cert-file"),
        Flag::new(
            "enable-aggregator-routing",
            FlagKind::Switch,
            "true",
            "Send requests to the endpoints of a Service; false sends them to its cluster IP",
        ),
        Flag::new(
            "aggregator-reject-forwarding-redirect",
            FlagKind::Switch,
            "true",
            "Answer 502 when a backend answers with a redirect",
        ),
        Flag::new(
            "egress-selector-config-file",
            FlagKind::File,
            "",
            "Egress routes to backends and control planes: kube-apiserver's EgressSelectorConfiguration (apiserver.k8s.io/v1beta1), or EgressConfiguration (narthex.dev/v1alpha1), which also supports SOCKS5 and ordinary HTTP proxies. Selections: cluster for backends without the annotation narthex.dev/egress, controlplane for the gateway's own calls",
        ),
        Flag::new(
            "proxy-from-environment",
            FlagKind::Switch,
            "false",
            "Send connections that --egress-selector-config-file leaves direct through the proxy of HTTPS_PROXY or HTTP_PROXY, except for NO_PROXY",
        ),
        Flag::new(
            "allow-url-backends",
            FlagKind::Switch,
            "false",
            "Allow an APIService to name its backend by the annotation narthex.dev/url",
        ),
        Flag::new("allow-external-name", FlagKind::Switch, "true", "Allow a Service of type ExternalName as a backend"),
        Flag::new(
            "zone",
            FlagKind::Text("NAME"),
            "",
            "Zone this gateway runs in (the node's label topology.kubernetes.io/zone); endpoints with hints for it are \
             preferred, others are used when these fail",
        ),
        Flag::new("forward-uid", FlagKind::Switch, "true", "Send the user's UID to backends, in X-Remote-Uid"),
        Flag::new(
            "error-format",
            FlagKind::Choice(&["status", "text", "kube-rbac-proxy"]),
            "status",
            "Format of errors: metav1.Status; text: plain text of kube-aggregator for backend errors; kube-rbac-proxy: \
             plain text for all, that program's where it has one",
        ),
        RESOLVER,
    ],
};

pub(in crate::config) const RESOLVER: Flag = Flag::new(
    "resolver",
    FlagKind::Choice(&["system", "hickory"]),
    "system",
    "DNS resolver: the system's, or hickory-resolver within this process",
);

/// Leader election among gateways with the same registry.
pub static LEADER_ELECTION: FlagGroup = FlagGroup {
    heading: "Leader election",
    flags: &[
        Flag::new(
            "leader-elect",
            FlagKind::Switch,
            "true",
            "Elect one of the gateways with the same --kubeconfig to write the condition Available of APIServices; with false, this one always writes",
        ),
        Flag::new(
            "leader-elect-lease-duration",
            FlagKind::Duration,
            "15s",
            "Time that candidates wait after the leader's last renewal before they take the Lease",
        ),
        Flag::new(
            "leader-elect-renew-deadline",
            FlagKind::Duration,
            "10s",
            "Time that a leader retries to renew its Lease before it gives up leadership",
        ),
        Flag::new(
            "leader-elect-retry-period",
            FlagKind::Duration,
            "2s",
            "Time between attempts to take or renew the Lease",
        ),
        Flag::new("leader-elect-resource-lock", FlagKind::Choice(&["leases"]), "leases", "Kind of the lock object"),
        Flag::new("leader-elect-resource-name", FlagKind::Text("NAME"), "narthex", "Name of the Lease"),
        Flag::new(
            "leader-elect-resource-namespace",
            FlagKind::Text("NAMESPACE"),
            "kube-system",
            "Namespace of the Lease",
        ),
    ],
};

const ADMIN_ADDRESS: Flag = Flag::new(
    "admin-address",
    FlagKind::Text("HOST:PORT"),
    "127.0.0.1:6480",
    "Admin listener: an address or a name, or :PORT for every address of this machine (plain HTTP: status page, metrics, health; other machines get metrics and health only); port 0 takes a free one, an empty value disables it",
);

pub(in crate::config) const ADMIN_TOKEN_FILE: Flag = Flag::new(
    "admin-token-file",
    FlagKind::File,
    "",
    "File with the token that --admin-address requires, except for metrics and health: as bearer token, or as password in a browser. Without it every process of this machine or pod has access, including a mesh's proxy. Followed on disk",
);

pub(in crate::config) const ACCESS_LOG_FORMAT: Flag =
    Flag::new("access-log-format", FlagKind::Choice(&["text", "json"]), "text", "Format of access log lines");
pub(in crate::config) const LOG_FORMAT: Flag =
    Flag::new("log-format", FlagKind::Choice(&["text", "json"]), "text", "Format of log lines");
pub(in crate::config) const LOG_LEVEL: Flag = Flag::new(
    "log-level",
    FlagKind::Text("LEVEL"),
    "info",
    "Lowest level to log: error, warn, info, debug or trace (debug including libraries). NARTHEX_LOG, a filter such as info,narthex::egress=debug, overrides it",
);
pub(in crate::config) const VERBOSITY: Flag = Flag::new(
    "v",
    FlagKind::Count,
    "0",
    "Log level as a number, as in klog: up to 2 is info, up to 5 debug, from 6 on trace",
)
// klog's short form.
.with_letter('v');

/// Access log, audit, admin listener and log.
pub static OBSERVABILITY: FlagGroup = FlagGroup {
    heading: "Observability",
    flags: &[
        Flag::new(
            "access-log",
            FlagKind::Choice(&["off", "errors", "all"]),
            "errors",
            "Requests to log: none; refused, failed or slow ones; all",
        ),
        ACCESS_LOG_FORMAT,
        Flag::new(
            "audit-policy-file",
            FlagKind::File,
            "",
            "Audit policy (audit.k8s.io/v1): which requests are audited, and at which level. Followed on disk",
        ),
        Flag::new(
            "audit-log-path",
            FlagKind::File,
            "",
            "File that audit events are appended to, one per line; - for standard output. Requests do not wait for it: events that cannot be written in time are dropped and counted",
        ),
        Flag::new(
            "audit-log-format",
            FlagKind::Choice(&["json", "legacy"]),
            "json",
            "Format of audit events: JSON objects, or lines of text",
        ),
        Flag::new(
            "audit-log-maxsize",
            FlagKind::Count,
            "100",
            "Size in MiB at which the audit log is rotated; 0 for never",
        ),
        Flag::new("audit-log-maxbackup", FlagKind::Count, "100", "Rotated audit logs to keep; 0 for all"),
        Flag::new("audit-log-maxage", FlagKind::Count, "366", "Days to keep rotated audit logs; 0 for ever"),
        Flag::new(
            "audit-webhook-config-file",
            FlagKind::File,
            "",
            "kubeconfig of a webhook that audit events are sent to. Followed on disk",
        ),
        Flag::new(
            "audit-webhook-mode",
            FlagKind::Choice(&["batch"]),
            "batch",
            "Mode of sending audit events to the webhook. The blocking modes are not supported",
        ),
        Flag::new(
            "audit-webhook-batch-buffer-size",
            FlagKind::Count,
            "10000",
            "Audit events buffered for the webhook, including those being sent; further events are dropped and counted",
        ),
        Flag::new("audit-webhook-batch-max-size", FlagKind::Count, "400", "Maximum audit events in a batch"),
        Flag::new(
            "audit-webhook-batch-max-wait",
            FlagKind::Duration,
            "30s",
            "Maximum time an audit event waits for its batch to fill",
        ),
        Flag::new(
            "audit-webhook-batch-throttle-enable",
            FlagKind::Switch,
            "true",
            "Limit the rate of batches sent to the webhook",
        ),
        Flag::new("audit-webhook-batch-throttle-qps", FlagKind::Fraction, "10", "Average number of batches per second"),
        Flag::new(
            "audit-webhook-batch-throttle-burst",
            FlagKind::Count,
            "15",
            "Number of batches that may be sent at once after an idle period",
        ),
        Flag::new(
            "audit-webhook-initial-backoff",
            FlagKind::Duration,
            "10s",
            "Delay before a failed batch is sent again; 1.5 times as long each time, five times in all",
        ),
        ADMIN_ADDRESS,
        ADMIN_TOKEN_FILE,
        LOG_FORMAT,
        LOG_LEVEL,
        VERBOSITY,
    ],
};

/// Admin listener and log of a quickstart.
pub static QUICKSTART_OBSERVABILITY: FlagGroup =
    FlagGroup { heading: "Observability", flags: &[ADMIN_ADDRESS, LOG_FORMAT, LOG_LEVEL, VERBOSITY] };

/// The log flags alone, for commands that do not serve.
pub static LOG: FlagGroup = FlagGroup { heading: "Log", flags: &[LOG_FORMAT, LOG_LEVEL, VERBOSITY] };

/// All of the gateway's groups.
pub static GATEWAY: &[&FlagGroup] = &[
    &CONFIGURATION,
    &SERVING,
    &AUTHENTICATION,
    &AUTHORIZATION_MODE,
    &AUTHORIZATION,
    &BACKENDS,
    &LEADER_ELECTION,
    &OBSERVABILITY,
];

/// All of the quickstart's groups.
pub static QUICKSTART: &[&FlagGroup] = &[&FILES, &PORT, &QUICKSTART_OBSERVABILITY];

/// Flags that are reserved but not implemented. They are parsed, so that the error names the alternative (the help text
/// here) instead of an unknown flag.
pub static UNIMPLEMENTED: &[Flag] = &[unimplemented("tracing-config-file", FlagKind::File, ACCESS_LOG)];

const ACCESS_LOG: &str = "this version has --access-log and the metrics at --admin-address";

const fn unimplemented(name: &'static str, kind: FlagKind, instead: &'static str) -> Flag {
    Flag::new(name, kind, "", instead)
}
