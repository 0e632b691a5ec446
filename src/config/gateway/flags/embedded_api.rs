//! Flags of the embedded API server.

use crate::config::flag::{Flag, FlagGroup, FlagKind};

/// Flags of the embedded API server.
pub static EMBEDDED_API: FlagGroup = FlagGroup {
    heading: "Embedded API server",
    flags: &[
        Flag::new(
            "embedded-api",
            FlagKind::Switch,
            "",
            "Serve Kubernetes' built-in kinds and CustomResourceDefinitions from a store of this gateway, without a kube-apiserver (default true without --registry-dir, --kubeconfig and --delegate-kubeconfig). Without --authorization-mode it authorizes by RBAC: stored roles and bindings, and --authorization-policy-file",
        ),
        Flag::new(
            "store-file",
            FlagKind::File,
            "",
            "SQLite file with the objects of --embedded-api (default store.db in --data-dir)",
        ),
        Flag::new(
            "etcd-servers",
            FlagKind::List("URL"),
            "",
            "Members of an etcd (https://10.0.0.1:2379) with the objects of --embedded-api, in place of a file. Several gateways can share one: all serve, and one of them runs the controllers",
        ),
        Flag::new("etcd-prefix", FlagKind::Text("PREFIX"), "/registry", "What all keys in etcd begin with"),
        Flag::new(
            "etcd-cafile",
            FlagKind::File,
            "",
            "PEM certificates of the authorities of etcd's serving certificates; followed (default: those of the system)",
        ),
        Flag::new("etcd-certfile", FlagKind::File, "", "PEM client certificate for etcd; followed"),
        Flag::new("etcd-keyfile", FlagKind::File, "", "PEM private key of --etcd-certfile; followed"),
        Flag::new(
            "etcd-compaction-interval",
            FlagKind::Duration,
            "5m",
            "Interval at which the history of etcd is discarded, by one of all API servers that use it; 0 leaves that to others",
        ),
        Flag::new(
            "etcd-access",
            FlagKind::Choice(&["read-write", "read-only"]),
            "read-write",
            "With read-only nothing is written to etcd, and requests that would are refused: for the etcd of a kube-apiserver, beside it",
        ),
        Flag::new(
            "runtime-config",
            FlagKind::List("KEY=BOOL"),
            "",
            "Resources that --embedded-api serves, as of kube-apiserver: GROUP/VERSION[/RESOURCE]=false (v1/pods=false, apps/v1=false) or api/all=false turns them off; all are on",
        ),
        Flag::new("event-ttl", FlagKind::Duration, "1h", "How long Events of --embedded-api are kept"),
        Flag::new(
            "enable-garbage-collector",
            FlagKind::Switch,
            "true",
            "Objects whose owners are gone are deleted, and deletions with propagationPolicy Foreground and Orphan become finalizers, which the garbage-collector-controller (--controllers) or that of a kube-controller-manager beside this gateway removes. With false it does not run, and --embedded-api refuses such deletions",
        ),
        Flag::new(
            "controllers",
            FlagKind::List("NAME"),
            "*",
            "Controllers of kube-controller-manager that --embedded-api runs: * is all, NAME one, -NAME all but one. There are namespace-controller (or namespace), which deletes what is in a deleted namespace; garbage-collector-controller (or garbage-collector), which deletes objects whose owners are gone; clusterrole-aggregation-controller (or clusterrole-aggregation), which gives aggregated ClusterRoles their rules; serviceaccount-controller (or serviceaccount), which gives namespaces the ServiceAccount default; root-ca-certificate-publisher-controller (or root-ca-cert-publisher), which gives them the ConfigMap kube-root-ca.crt; and serviceaccount-token-controller (or serviceaccount-token), which fills Secrets of type kubernetes.io/service-account-token. Turn off what a kube-controller-manager beside this gateway runs",
        ),
        Flag::new(
            "service-cluster-ip-range",
            FlagKind::Text("CIDR"),
            "10.0.0.0/24",
            "Range of the cluster IPs that --embedded-api gives to Services; two ranges of different families, separated by a comma, for dual-stack. Nothing here forwards packets to these addresses",
        ),
        Flag::new(
            "service-node-port-range",
            FlagKind::Text("PORTS"),
            "30000-32767",
            "Range of the node ports that --embedded-api gives to Services, both ends included",
        ),
        Flag::new(
            "kubernetes-service-node-port",
            FlagKind::Count,
            "0",
            "Node port of the Service kubernetes, which --embedded-api makes; 0 is none",
        ),
        Flag::new(
            "advertise-address",
            FlagKind::Text("ADDRESS"),
            "",
            "Address of this gateway in the endpoints of the Service kubernetes (default --bind-address; if that is unspecified or loopback, the address of this machine)",
        ),
        Flag::new(
            "service-account-issuer",
            FlagKind::List("ISSUER"),
            "",
            "Issuer of the tokens of ServiceAccounts of --embedded-api, the claim iss (default https://kubernetes.default.svc.cluster.local). Given several times, the first one issues, and all are accepted. An https URL lets others verify tokens by OpenID Connect discovery",
        ),
        Flag::new(
            "service-account-jwks-uri",
            FlagKind::Text("URL"),
            "",
            "Where others find the keys of service account tokens, if not at this gateway's /openid/v1/jwks",
        ),
        Flag::new(
            "service-account-signing-key-file",
            FlagKind::File,
            "",
            "PEM private key (RSA or ECDSA) that signs service account tokens; followed. Without it and --service-account-key-file the gateway makes a key, service-account-keys.json in --data-dir, which narthex pki rotate service-account replaces",
        ),
        Flag::new(
            "service-account-key-file",
            FlagKind::List("FILE"),
            "",
            "PEM files with keys or certificates that verify service account tokens, several in each; followed. The key that signs verifies, too",
        ),
        Flag::new(
            "service-account-max-token-expiration",
            FlagKind::Duration,
            "0s",
            "Longest lifetime of a service account token that can be requested, from 1h on; 0 is no limit",
        ),
        Flag::new(
            "service-account-extend-token-expiration",
            FlagKind::Switch,
            "true",
            "Service account tokens that a kubelet requests for a Pod in its usual way (3607 s) are valid for a year, so that a client that does not read them again goes on",
        ),
        Flag::new(
            "root-ca-file",
            FlagKind::File,
            "",
            "PEM certificates of the authorities of the serving certificate, which every namespace of --embedded-api gets as ConfigMap kube-root-ca.crt; followed (default: the authority of the generated serving certificate)",
        ),
        Flag::new(
            "allow-unenforced-rules",
            FlagKind::Switch,
            "false",
            "Accept CustomResourceDefinitions with x-kubernetes-validations, with a Warning: --embedded-api does not enforce such rules",
        ),
        Flag::new(
            "unenforced-warnings",
            FlagKind::Switch,
            "true",
            "Answer the creation of an object that --embedded-api stores and does not enforce, such as a NetworkPolicy, with a Warning",
        ),
        Flag::new(
            "disable-admission-plugins",
            FlagKind::List("NAME"),
            "",
            "Admission plugins of kube-apiserver that --embedded-api leaves out: CertificateApproval, CertificateSigning, CertificateSubjectRestriction, DefaultIngressClass, DefaultStorageClass, DefaultTolerationSeconds, NamespaceLifecycle, PersistentVolumeClaimResize, Priority, RuntimeClass, ServiceAccount, StorageObjectInUseProtection, TaintNodesByCondition. The names of others are accepted: they do not act here yet",
        ),
        Flag::new(
            "unsafe-no-fsync",
            FlagKind::Switch,
            "false",
            "Do not wait for the disk before a write of --embedded-api is acknowledged: a power failure loses writes. For tests",
        ),
    ],
};
