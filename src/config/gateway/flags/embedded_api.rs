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
            "Controllers of kube-controller-manager that --embedded-api runs: * is all, NAME one, -NAME all but one. There are namespace-controller (or namespace), which deletes what is in a deleted namespace, garbage-collector-controller (or garbage-collector), which deletes objects whose owners are gone, and clusterrole-aggregation-controller (or clusterrole-aggregation), which gives aggregated ClusterRoles their rules. Turn off what a kube-controller-manager beside this gateway runs",
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
            "Admission plugins of kube-apiserver that --embedded-api leaves out: CertificateApproval, CertificateSigning, CertificateSubjectRestriction, DefaultIngressClass, DefaultStorageClass, DefaultTolerationSeconds, NamespaceLifecycle, PersistentVolumeClaimResize, Priority, RuntimeClass, StorageObjectInUseProtection, TaintNodesByCondition. The names of others are accepted: they do not act here yet",
        ),
        Flag::new(
            "unsafe-no-fsync",
            FlagKind::Switch,
            "false",
            "Do not wait for the disk before a write of --embedded-api is acknowledged: a power failure loses writes. For tests",
        ),
    ],
};
