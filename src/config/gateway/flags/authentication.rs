//! Authentication flags.

use crate::config::flag::{Flag, FlagGroup, FlagKind};

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
