//! The gateway's flags, group by group. Names, meanings and defaults are kube-apiserver's where it has
//! such a flag; see each help text for ours.

use crate::config::flag::{Flag, Group, Kind};

/// Where the values of a whole role may also be written.
pub static CONFIGURATION: Group = Group {
    heading: "Configuration",
    flags: &[
        Flag::new(
            "config",
            Kind::File,
            "",
            "YAML file (apiVersion narthex.dev/v1alpha1, kind GatewayConfiguration) that holds these flags by their names in camelCase. The command line comes first, then the environment, then this file",
        ),
        DATA_DIR,
    ],
};

/// What we make ourselves, also for the quickstart.
pub static FILES: Group = Group { heading: "Configuration", flags: &[DATA_DIR] };

pub(in crate::config) const DATA_DIR: Flag = Flag::new(
    "data-dir",
    Kind::Directory,
    "",
    "Where certificates that we make, last good documents and admin.kubeconfig are kept (default $XDG_STATE_HOME/narthex, else ~/.local/state/narthex)",
);

const SECURE_PORT: Flag =
    Flag::new("secure-port", Kind::Count, "6443", "Port to serve HTTPS on; 0 takes a free one and says which");

/// How clients reach us, and the limits they meet.
pub static SERVING: Group = Group {
    heading: "Serving",
    flags: &[
        Flag::new(
            "bind-address",
            Kind::Text("IP"),
            "",
            "Address to listen on (default 127.0.0.1 when the serving certificate is self-made, else 0.0.0.0). Both 0.0.0.0 and :: are all addresses, IPv4 and IPv6",
        ),
        SECURE_PORT,
        Flag::new(
            "tls-cert-file",
            Kind::File,
            "",
            "Serving certificate, followed by its intermediates, in PEM; self-made when not given",
        ),
        Flag::new("tls-private-key-file", Kind::File, "", "Private key of --tls-cert-file"),
        Flag::new(
            "tls-sni-cert-key",
            Kind::Repeated("CERT,KEY[:NAME,…]"),
            "",
            "A further certificate and key, chosen by the server name a client asks for; without names, those in the certificate. May be given again",
        ),
        Flag::new(
            "tls-min-version",
            Kind::Choice(&["VersionTLS12", "VersionTLS13"]),
            "VersionTLS12",
            "Oldest TLS version to accept",
        ),
        Flag::new(
            "tls-cipher-suites",
            Kind::List("SUITE"),
            "",
            "Cipher suites of TLS 1.2 to accept, by their Go names (default: all that are safe). Those of TLS 1.3 are fixed",
        ),
        Flag::new(
            "cert-dir",
            Kind::Directory,
            "",
            "Where a self-made serving certificate is kept (default: within --data-dir). Not used when --tls-cert-file is given",
        ),
        Flag::new(
            "http2-max-streams-per-connection",
            Kind::Count,
            "0",
            "Streams a client may have open on one HTTP/2 connection; 0 is 250, as in kube-apiserver",
        ),
        Flag::new("disable-http2-serving", Kind::Switch, "false", "Serve HTTP/1.1 only"),
        Flag::new(
            "goaway-chance",
            Kind::Fraction,
            "0",
            "Chance, from 0 to 0.02, that an HTTP/2 client is asked to connect anew, so that clients spread over replicas",
        ),
        Flag::new("request-timeout", Kind::Duration, "1m", "Longest time for a request that is not long-running"),
        Flag::new(
            "min-request-timeout",
            Kind::Count,
            "1800",
            "Seconds; accepted for compatibility. Relayed watches last as long as their backend decides",
        ),
        Flag::new(
            "max-requests-inflight",
            Kind::Count,
            "400",
            "Reading requests served at the same time, shared fairly among users; 0 for no limit. Watches and other long-running requests do not count",
        ),
        Flag::new(
            "max-mutating-requests-inflight",
            Kind::Count,
            "200",
            "Changing requests served at the same time, shared fairly among users; 0 for no limit",
        ),
        Flag::new(
            "max-connections",
            Kind::Count,
            "0",
            "Client connections open at the same time; 0 for as many as the limit on open files allows",
        ),
        Flag::new("max-request-header-bytes", Kind::Count, "1048576", "Size of a request's header block"),
        Flag::new("handshake-timeout", Kind::Duration, "10s", "Time a client has for the TLS handshake"),
        Flag::new(
            "read-header-timeout",
            Kind::Duration,
            "10s",
            "Time a client has to send a header block, or an HTTP/2 frame other than a body's, from its first byte. On an HTTP/2 connection where requests run it is asked to go (GOAWAY) after that time, and ends with all that runs after six times as long",
        ),
        Flag::new("idle-timeout", Kind::Duration, "90s", "A connection without a request is closed after this time"),
        Flag::new(
            "proxy-protocol",
            Kind::Choice(&["off", "optional", "required"]),
            "off",
            "Whether a load balancer announces the client's address by the PROXY protocol, version 1 or 2",
        ),
        Flag::new(
            "proxy-protocol-trusted-cidrs",
            Kind::List("CIDR"),
            "",
            "Load balancers that may announce an address with --proxy-protocol",
        ),
        Flag::new(
            "cors-allowed-origins",
            Kind::List("REGEX"),
            "",
            "Origins whose pages may ask, for example ^https://example\\.com(:|$): regular expressions, each bound to both ends of the host by ^ or // and $ or a port (default: none)",
        ),
        Flag::new(
            "strict-transport-security-directives",
            Kind::List("DIRECTIVE"),
            "",
            "What the header Strict-Transport-Security of every answer says: max-age=SECONDS, includeSubDomains, preload (default: no such header)",
        ),
        Flag::new(
            "shutdown-delay-duration",
            Kind::Duration,
            "0s",
            "After SIGTERM, /readyz fails and all is served as before for this time, so that load balancers notice",
        ),
        Flag::new(
            "shutdown-send-retry-after",
            Kind::Switch,
            "false",
            "During --shutdown-delay-duration and after, answer new requests 429 with Retry-After and close their connection",
        ),
        Flag::new(
            "shutdown-watch-termination-grace-period",
            Kind::Duration,
            "0s",
            "Time over which watches are ended at shutdown, instead of all at once",
        ),
    ],
};

/// The one serving flag of the quickstart.
pub static PORT: Group = Group { heading: "Serving", flags: &[SECURE_PORT] };

/// Who is asking.
pub static WHO: Group = Group {
    heading: "Who is asking",
    flags: &[
        Flag::new(
            "client-ca-file",
            Kind::File,
            "",
            "Authorities of client certificates: the common name is the user, organizations are groups (default: what --authentication-kubeconfig says, else one we make ourselves, for admin.kubeconfig)",
        ),
        Flag::new(
            "requestheader-client-ca-file",
            Kind::File,
            "",
            "Authorities of front proxies, whose requests name the user in headers",
        ),
        Flag::new(
            "requestheader-allowed-names",
            Kind::List("NAME"),
            "",
            "Common names of front proxies; empty allows every certificate of --requestheader-client-ca-file",
        ),
        Flag::new(
            "requestheader-username-headers",
            Kind::List("HEADER"),
            "x-remote-user",
            "Headers that hold the user's name",
        ),
        Flag::new(
            "requestheader-uid-headers",
            Kind::List("HEADER"),
            "",
            "Headers that hold the user's UID, X-Remote-Uid among them",
        ),
        Flag::new(
            "requestheader-group-headers",
            Kind::List("HEADER"),
            "x-remote-group",
            "Headers that hold the user's groups",
        ),
        Flag::new(
            "requestheader-extra-headers-prefix",
            Kind::List("PREFIX"),
            "x-remote-extra-",
            "What headers with more about the user begin with",
        ),
        Flag::new(
            "token-auth-file",
            Kind::File,
            "",
            "CSV file of tokens: token, user, UID, and optionally \"group1,group2\". Followed on disk",
        ),
        Flag::new(
            "authentication-kubeconfig",
            Kind::File,
            "",
            "kubeconfig of the kube-apiserver that is asked who holds a token (TokenReview). Followed on disk",
        ),
        Flag::new(
            "authentication-skip-lookup",
            Kind::Switch,
            "false",
            "Do not ask that kube-apiserver, too, which client certificates and front proxies to believe (ConfigMap kube-system/extension-apiserver-authentication); without this it is asked and followed where no --client-ca-file or --requestheader-client-ca-file is given",
        ),
        Flag::new(
            "authentication-tolerate-lookup-failure",
            Kind::Switch,
            "false",
            "Start although that ConfigMap cannot be read, and believe no such certificate until it can",
        ),
        Flag::new(
            "authentication-token-webhook-config-file",
            Kind::File,
            "",
            "kubeconfig of a webhook that is asked who holds a token (TokenReview), at the very URL that stands there, before that kube-apiserver. Followed on disk",
        ),
        Flag::new(
            "authentication-token-webhook-version",
            Kind::Choice(&["v1", "v1beta1"]),
            "v1beta1",
            "Version of TokenReview that --authentication-token-webhook-config-file is asked in",
        ),
        Flag::new(
            "authentication-token-webhook-cache-ttl",
            Kind::Duration,
            "10s",
            "How long answers of either about tokens are believed; never longer than the token itself is good",
        ),
        Flag::new(
            "api-audiences",
            Kind::List("AUDIENCE"),
            "",
            "Whom tokens must be for; without it the kube-apiserver takes those for itself",
        ),
        Flag::new(
            "authentication-config",
            Kind::File,
            "",
            "AuthenticationConfiguration (apiserver.config.k8s.io/v1): issuers of JSON Web Tokens, and which requests without credentials are let in. Followed on disk",
        ),
        Flag::new(
            "authentication-pass-on-groups",
            Kind::List("GROUP"),
            "",
            "The only groups that users bring in here, whoever says so; empty for all. A star at the end stands for the rest",
        ),
        Flag::new(
            "authentication-drop-groups",
            Kind::List("GROUP"),
            "",
            "Groups that no user brings in here, for example system:masters; comes before --authentication-pass-on-groups",
        ),
        Flag::new(
            "anonymous-auth",
            Kind::Switch,
            "false",
            "Let requests without credentials in as system:anonymous. Turned off, with a warning, where --authorization-mode has AlwaysAllow",
        ),
    ],
};

/// Who decides what they may, and who may ask us that.
pub static DECIDING: Group = Group {
    heading: "May they",
    flags: &[
        Flag::new(
            "authorization-mode",
            Kind::List("MODE"),
            "AlwaysAllow",
            "AlwaysAllow lets every authenticated user through, because the backend authorizes again; AlwaysDeny nobody; RBAC (or Static, which is the same) whom --authorization-policy-file allows; Webhook whom the kube-apiserver of --authorization-kubeconfig allows. The first that has an opinion decides. Who may act as somebody else (kubectl --as) only RBAC and Webhook say",
        ),
        Flag::new(
            "serve-delegation",
            Kind::Switch,
            "false",
            "Answer backends what they would ask of a kube-apiserver, so that they need none: whom to believe (ConfigMap kube-system/extension-apiserver-authentication), who holds a token (TokenReview), what a user may (SubjectAccessReview). Only whom the chain here allows to ask; needs Webhook or RBAC, or --authorization-config",
        ),
    ],
};

/// What they may.
pub static MAY_THEY: Group = Group {
    heading: "May they",
    flags: &[
        Flag::new(
            "authorization-config",
            Kind::File,
            "",
            "AuthorizationConfiguration (apiserver.config.k8s.io/v1): a chain of authorizers of type Webhook, RBAC (by --authorization-policy-file), AlwaysDeny and AlwaysAllow, instead of --authorization-mode and the flags for its modes. Followed on disk",
        ),
        Flag::new(
            "authorization-policy-file",
            Kind::File,
            "",
            "YAML file of RBAC objects for --authorization-mode=RBAC, or for type RBAC in --authorization-config: ClusterRole, Role, ClusterRoleBinding, RoleBinding. Followed on disk",
        ),
        Flag::new(
            "authorization-kubeconfig",
            Kind::File,
            "",
            "kubeconfig of the kube-apiserver that --authorization-mode=Webhook asks (SubjectAccessReview). Followed on disk",
        ),
        Flag::new(
            "authorization-webhook-config-file",
            Kind::File,
            "",
            "kubeconfig of a webhook that --authorization-mode=Webhook asks instead, at the very URL that stands there. Followed on disk",
        ),
        Flag::new(
            "authorization-webhook-version",
            Kind::Choice(&["v1", "v1beta1"]),
            "v1beta1",
            "Version of SubjectAccessReview that --authorization-webhook-config-file is asked in",
        ),
        Flag::new(
            "authorization-webhook-cache-authorized-ttl",
            Kind::Duration,
            "10s",
            "How long it is believed that a user may",
        ),
        Flag::new(
            "authorization-webhook-cache-unauthorized-ttl",
            Kind::Duration,
            "10s",
            "How long it is believed that a user may not",
        ),
        Flag::new(
            "authorization-stale-allow-ttl",
            Kind::Duration,
            "0s",
            "For how long after that a user still may, when the kube-apiserver cannot be asked",
        ),
        Flag::new(
            "readiness-requires-reviews",
            Kind::Switch,
            "false",
            "Fail /readyz while the last TokenReview or SubjectAccessReview failed or none was made yet; a probe is sent every 5s until one succeeds. Without it /readyz?verbose only says so",
        ),
        Flag::new(
            "authorization-always-allow-paths",
            Kind::List("PATH"),
            "/healthz,/readyz,/livez",
            "Paths that need no permission; a star at the end stands for the rest of the path",
        ),
    ],
};

/// What lies behind.
pub static BEHIND: Group = Group {
    heading: "What lies behind",
    flags: &[
        Flag::new(
            "registry-dir",
            Kind::Directory,
            "",
            "Directory of manifests: APIService, Service, EndpointSlice. Followed: a change takes effect within a second. A file that is wrong changes nothing; at a start with one, the last good state is served, which is kept in --data-dir",
        ),
        Flag::new(
            "registry-strict",
            Kind::Switch,
            "false",
            "Do not start when anything in --registry-dir is wrong, even where the last good state is known",
        ),
        Flag::new(
            "kubeconfig",
            Kind::File,
            "",
            "kubeconfig of the kube-apiserver whose APIServices, Services and EndpointSlices are followed, or in-cluster for the one whose pod this is. Its credentials never carry a user's request. Beside --registry-dir, what the directory has counts where both have an object of the same name. Followed on disk",
        ),
        Flag::new(
            "delegate-kubeconfig",
            Kind::File,
            "",
            "kubeconfig of the API server that owns every path no APIService claims (its URL and authority), or in-cluster for the one whose pod this is. Requests go there as everywhere, with our front-proxy certificate; the user in this file is not looked at. Followed",
        ),
        Flag::new(
            "serving-metrics",
            Kind::Choice(&["gateway", "delegate"]),
            "",
            "Whose metrics /metrics on the secure port is: ours, or those of the server of --delegate-kubeconfig, for callers who may read them there (default delegate with that flag, gateway without). Ours are at --admin-address in either case",
        ),
        Flag::new(
            "proxy-client-cert-file",
            Kind::File,
            "",
            "Certificate by which backends know us as their front proxy; self-made when not given",
        ),
        Flag::new("proxy-client-key-file", Kind::File, "", "Private key of --proxy-client-cert-file"),
        Flag::new(
            "enable-aggregator-routing",
            Kind::Switch,
            "true",
            "Send requests to endpoints themselves; false sends them to the Service's cluster IP",
        ),
        Flag::new(
            "aggregator-reject-forwarding-redirect",
            Kind::Switch,
            "true",
            "Answer 502 when a backend answers with a redirect",
        ),
        Flag::new(
            "egress-selector-config-file",
            Kind::File,
            "",
            "How backends and control planes are reached where not directly: kube-apiserver's EgressSelectorConfiguration (apiserver.k8s.io/v1beta1), or EgressConfiguration (narthex.dev/v1alpha1), which also knows SOCKS5 and ordinary HTTP proxies. Selections: cluster for backends that name no other by the annotation narthex.dev/egress, controlplane for our own calls",
        ),
        Flag::new(
            "proxy-from-environment",
            Kind::Switch,
            "false",
            "Let what --egress-selector-config-file leaves direct go through the proxy of HTTPS_PROXY or HTTP_PROXY, but for what NO_PROXY has",
        ),
        Flag::new(
            "allow-url-backends",
            Kind::Switch,
            "false",
            "Allow an APIService to name its backend by the annotation narthex.dev/url",
        ),
        Flag::new("allow-external-name", Kind::Switch, "true", "Allow a Service of type ExternalName as a backend"),
        Flag::new(
            "zone",
            Kind::Text("NAME"),
            "",
            "Zone this gateway runs in, as the node's label topology.kubernetes.io/zone says; endpoints whose hints are \
             for it come first, the others when these fail",
        ),
        Flag::new("forward-uid", Kind::Switch, "true", "Tell backends the user's UID, in X-Remote-Uid"),
        Flag::new(
            "error-format",
            Kind::Choice(&["status", "text", "kube-rbac-proxy"]),
            "status",
            "Errors as metav1.Status; text: those of backends as the plain texts of kube-aggregator; kube-rbac-proxy: all \
             as texts, that program's where it has them",
        ),
        RESOLVER,
    ],
};

pub(in crate::config) const RESOLVER: Flag = Flag::new(
    "resolver",
    Kind::Choice(&["system", "hickory"]),
    "system",
    "Who looks names up: the system, or hickory-resolver within this process",
);

/// Beside other gateways with the same registry.
pub static IN_A_CLUSTER: Group = Group {
    heading: "In a cluster",
    flags: &[
        Flag::new(
            "leader-elect",
            Kind::Switch,
            "true",
            "Of several gateways with the same --kubeconfig, elect one that writes there whether APIServices are available; false has this one write, whatever others do",
        ),
        Flag::new(
            "leader-elect-lease-duration",
            Kind::Duration,
            "15s",
            "How long the others wait after they last saw the leader renew its Lease",
        ),
        Flag::new(
            "leader-elect-renew-deadline",
            Kind::Duration,
            "10s",
            "How long a leader that cannot renew its Lease goes on",
        ),
        Flag::new(
            "leader-elect-retry-period",
            Kind::Duration,
            "2s",
            "Time between attempts to take or renew the Lease",
        ),
        Flag::new("leader-elect-resource-lock", Kind::Choice(&["leases"]), "leases", "Kind of object that is held"),
        Flag::new("leader-elect-resource-name", Kind::Text("NAME"), "narthex", "Name of the Lease"),
        Flag::new("leader-elect-resource-namespace", Kind::Text("NAMESPACE"), "kube-system", "Namespace of the Lease"),
    ],
};

const ADMIN_ADDRESS: Flag = Flag::new(
    "admin-address",
    Kind::Text("HOST:PORT"),
    "127.0.0.1:6480",
    "Where the operator's own listener stands, an address or a name, or :PORT for every address of this machine (plain HTTP: status page, metrics, health; other machines get metrics and health alone); port 0 takes a free one, an empty value turns it off",
);

pub(in crate::config) const ADMIN_TOKEN_FILE: Flag = Flag::new(
    "admin-token-file",
    Kind::File,
    "",
    "File that holds a token which --admin-address asks everybody for, whatever they ask but metrics and health: as bearer token, or as password in a browser. Without it every process of this machine or pod is taken for the operator, a mesh's proxy among them. Followed on disk",
);

pub(in crate::config) const ACCESS_LOG_FORMAT: Flag =
    Flag::new("access-log-format", Kind::Choice(&["text", "json"]), "text", "How those lines are written");
pub(in crate::config) const LOG_FORMAT: Flag =
    Flag::new("log-format", Kind::Choice(&["text", "json"]), "text", "How log lines are written");
pub(in crate::config) const LOG_LEVEL: Flag = Flag::new(
    "log-level",
    Kind::Text("LEVEL"),
    "info",
    "Least important log lines to write: error, warn, info, debug or trace, which is debug with what libraries say. NARTHEX_LOG, a filter such as info,narthex::egress=debug, overrides it",
);
pub(in crate::config) const VERBOSITY: Flag = Flag::new(
    "v",
    Kind::Count,
    "0",
    "The same as a number, as in klog: up to 2 is info, up to 5 debug, from 6 on trace",
)
// klog's short form, which everyone's fingers know.
.or('v');

/// What the operator sees.
pub static SEEN: Group = Group {
    heading: "Seen by the operator",
    flags: &[
        Flag::new(
            "access-log",
            Kind::Choice(&["off", "errors", "all"]),
            "errors",
            "Which requests get a log line: none; refused, failed or slow ones; all",
        ),
        ACCESS_LOG_FORMAT,
        Flag::new(
            "audit-policy-file",
            Kind::File,
            "",
            "Policy (audit.k8s.io/v1) that says which requests are audited and how much of them is written. Followed on disk",
        ),
        Flag::new(
            "audit-log-path",
            Kind::File,
            "",
            "File that audit events are appended to, a line each; - for standard output. No request waits for it: what it does not take in time is dropped and counted",
        ),
        Flag::new(
            "audit-log-format",
            Kind::Choice(&["json", "legacy"]),
            "json",
            "How audit events are written: as JSON objects, or as lines of text",
        ),
        Flag::new(
            "audit-log-maxsize",
            Kind::Count,
            "100",
            "Size in MiB at which the audit log is set aside and begun anew; 0 for never",
        ),
        Flag::new("audit-log-maxbackup", Kind::Count, "100", "Audit logs set aside that are kept; 0 for all"),
        Flag::new("audit-log-maxage", Kind::Count, "366", "Days that audit logs set aside are kept; 0 for ever"),
        Flag::new(
            "audit-webhook-config-file",
            Kind::File,
            "",
            "kubeconfig of a webhook that audit events are sent to. Followed on disk",
        ),
        Flag::new(
            "audit-webhook-mode",
            Kind::Choice(&["batch"]),
            "batch",
            "How audit events are sent to the webhook: in batches. The modes in which requests wait for it are not supported",
        ),
        Flag::new(
            "audit-webhook-batch-buffer-size",
            Kind::Count,
            "10000",
            "Audit events that wait for the webhook, those under way included, before more are dropped and counted",
        ),
        Flag::new("audit-webhook-batch-max-size", Kind::Count, "400", "Audit events in a batch"),
        Flag::new(
            "audit-webhook-batch-max-wait",
            Kind::Duration,
            "30s",
            "How long an audit event waits for others to share its batch",
        ),
        Flag::new(
            "audit-webhook-batch-throttle-enable",
            Kind::Switch,
            "true",
            "Bound the batches that are sent to the webhook in a second",
        ),
        Flag::new("audit-webhook-batch-throttle-qps", Kind::Fraction, "10", "How many batches that is on average"),
        Flag::new(
            "audit-webhook-batch-throttle-burst",
            Kind::Count,
            "15",
            "How many batches may be sent at once after a silence",
        ),
        Flag::new(
            "audit-webhook-initial-backoff",
            Kind::Duration,
            "10s",
            "Pause before a batch that was not taken is sent again; half as long again each time, five times in all",
        ),
        ADMIN_ADDRESS,
        ADMIN_TOKEN_FILE,
        LOG_FORMAT,
        LOG_LEVEL,
        VERBOSITY,
    ],
};

/// What the operator of a quickstart sees.
pub static SEEN_IN_QUICKSTART: Group =
    Group { heading: "Seen by the operator", flags: &[ADMIN_ADDRESS, LOG_FORMAT, LOG_LEVEL, VERBOSITY] };

/// The log flags alone, for commands that do one thing and end.
pub static LOG: Group = Group { heading: "Log", flags: &[LOG_FORMAT, LOG_LEVEL, VERBOSITY] };

/// All of the gateway's groups.
pub static GATEWAY: &[&Group] = &[&CONFIGURATION, &SERVING, &WHO, &DECIDING, &MAY_THEY, &BEHIND, &IN_A_CLUSTER, &SEEN];

/// All of the quickstart's groups.
pub static QUICKSTART: &[&Group] = &[&FILES, &PORT, &SEEN_IN_QUICKSTART];

/// Flags whose names are settled but whose work is not done yet. They are understood so that whoever
/// gives one is told what there is instead (the help text here), rather than that the flag is unknown.
pub static LATER: &[Flag] = &[later("tracing-config-file", Kind::File, ACCESS_LOG)];

const ACCESS_LOG: &str = "this version has --access-log and the metrics at --admin-address";

const fn later(name: &'static str, kind: Kind, instead: &'static str) -> Flag {
    Flag::new(name, kind, "", instead)
}
