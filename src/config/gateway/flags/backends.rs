//! Flags of the registry, the delegate, egress and the front-proxy identity.

use crate::config::flag::{Flag, FlagGroup, FlagKind};

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
            "control-planes-config",
            FlagKind::File,
            "",
            "Control planes to serve besides, each by host name or path prefix with its own backends, client CAs and caches: a file of kind ControlPlanes (narthex.dev/v1alpha1), or a path mapping of kcp-front-proxy. Followed on disk; while it is invalid, its last valid content stays in use",
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
            "Answer 502 when the backend of an APIService answers with a redirect; those of --delegate-kubeconfig pass",
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
