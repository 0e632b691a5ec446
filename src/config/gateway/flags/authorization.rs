//! Authorization flags.

use crate::config::flag::{Flag, FlagGroup, FlagKind};

/// Authorization modes, and serving reviews to backends.
pub static AUTHORIZATION_MODE: FlagGroup = FlagGroup {
    heading: "Authorization",
    flags: &[
        Flag::new(
            "authorization-mode",
            FlagKind::List("MODE"),
            "AlwaysAllow",
            "Authorizers, in order; the first that allows or denies decides. AlwaysAllow allows every authenticated user, because the backend authorizes again; AlwaysDeny denies all; RBAC (or Static, the same) evaluates --authorization-policy-file and, with --embedded-api, stored roles and bindings; Webhook sends SubjectAccessReviews to the kube-apiserver of --authorization-kubeconfig. Impersonation (kubectl --as) is allowed only by RBAC and Webhook",
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
            "AuthorizationConfiguration (apiserver.config.k8s.io/v1): a chain of authorizers of type Webhook, RBAC (by the objects of --authorization-mode=RBAC), AlwaysDeny and AlwaysAllow, instead of --authorization-mode and the flags for its modes. Followed on disk",
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
