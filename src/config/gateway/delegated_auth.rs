//! Delegated authentication and authorization: TokenReview and SubjectAccessReview.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{AuthenticationConfig, AuthorizerMode};
use crate::authenticate::TokenReviewSettings;
use crate::authorize::{AccessReviewSettings, AlwaysAllowPaths};
use crate::config::parser::FlagParser;
use crate::decision_cache::{ReviewTarget, ReviewVersion};
use crate::kubeclient::CallPolicy;

/// Reviews sent to a kube-apiserver or webhook.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DelegatedAuthConfig {
    /// `--authentication-kubeconfig`: the API server for TokenReview.
    pub authentication_kubeconfig: Option<PathBuf>,
    /// Whether the ConfigMap extension-apiserver-authentication of that API server is followed.
    pub lookup_auth_configmap: bool,
    /// Value of `--authentication-tolerate-lookup-failure`.
    pub tolerate_lookup_failure: bool,
    /// Settings of token reviews.
    pub token_reviews: TokenReviewSettings,
    /// `--authentication-token-webhook-config-file`: the webhook for TokenReview, called before that API server.
    pub token_webhook: Option<PathBuf>,
    /// Value of `--authentication-token-webhook-version`.
    pub token_webhook_version: ReviewVersion,
    /// `--authorization-kubeconfig` or `--authorization-webhook-config-file`: the API server or webhook for
    /// SubjectAccessReview; set if and only if [`AuthorizerMode::Webhook`] is among the modes.
    pub authorization_kubeconfig: Option<PathBuf>,
    /// Settings of access reviews.
    pub access_reviews: AccessReviewSettings,
    /// Value of `--readiness-requires-reviews`.
    pub readiness_requires_reviews: bool,
    /// Value of `--authorization-always-allow-paths`.
    pub always_allow_paths: AlwaysAllowPaths,
}

/// The API server for reviews when no flag names one.
#[derive(Clone, Copy)]
pub(in crate::config) enum FallbackCluster<'a> {
    /// None: a gateway's `--kubeconfig` is the registry's.
    None,
    /// The kube-apiserver of a sidecar's `--kubeconfig`, or of its pod.
    ApiServer(Option<&'a Path>),
}

impl<'a> FallbackCluster<'a> {
    fn kubeconfig(self) -> Option<&'a Path> {
        match self {
            FallbackCluster::None => None,
            FallbackCluster::ApiServer(path) => path,
        }
    }
}

pub(in crate::config) fn delegated_auth(
    parser: &mut FlagParser<'_>,
    authentication: &AuthenticationConfig,
    modes: &[AuthorizerMode],
    request_timeout: Duration,
    otherwise: FallbackCluster<'_>,
) -> DelegatedAuthConfig {
    let authentication_kubeconfig =
        parser.path("authentication-kubeconfig").or_else(|| otherwise.kubeconfig().map(Path::to_owned));
    let audiences = parser.list("api-audiences");
    if audiences.iter().any(String::is_empty) {
        parser.add_problem("api-audiences", "empty value in \"api-audiences\"");
    }
    let skip_lookup = parser.switch("authentication-skip-lookup");
    let named = authentication.client_ca_file.is_some() && authentication.request_header.ca_file.is_some();
    // Kubernetes tolerates a failed lookup of client CAs; only the lookup of request-header CAs must succeed.
    let tolerate =
        parser.switch("authentication-tolerate-lookup-failure") || authentication.request_header.ca_file.is_some();
    let (authorization_kubeconfig, target) = authorization_kubeconfig(parser, modes, otherwise);
    DelegatedAuthConfig {
        lookup_auth_configmap: authentication_kubeconfig.is_some() && !skip_lookup && !named,
        tolerate_lookup_failure: tolerate,
        authentication_kubeconfig,
        token_webhook: parser.path("authentication-token-webhook-config-file"),
        token_webhook_version: ReviewVersion::parse(&parser.text("authentication-token-webhook-version"))
            .unwrap_or_default(),
        token_reviews: TokenReviewSettings {
            target: ReviewTarget::default(),
            audiences,
            cache_ttl: parser.duration("authentication-token-webhook-cache-ttl"),
            patience: CallPolicy::within(request_timeout),
        },
        authorization_kubeconfig,
        access_reviews: AccessReviewSettings {
            target,
            authorized_ttl: parser.duration("authorization-webhook-cache-authorized-ttl"),
            unauthorized_ttl: parser.duration("authorization-webhook-cache-unauthorized-ttl"),
            stale_allow_ttl: parser.duration("authorization-stale-allow-ttl"),
            patience: CallPolicy::within(request_timeout),
        },
        readiness_requires_reviews: parser.switch("readiness-requires-reviews"),
        always_allow_paths: always_allow_paths(parser),
    }
}

/// The API server or webhook of [`AuthorizerMode::Webhook`].
fn authorization_kubeconfig(
    parser: &mut FlagParser<'_>,
    modes: &[AuthorizerMode],
    otherwise: FallbackCluster<'_>,
) -> (Option<PathBuf>, ReviewTarget) {
    const API_SERVER: &str = "authorization-kubeconfig";
    const WEBHOOK: &str = "authorization-webhook-config-file";
    let version = ReviewVersion::parse(&parser.text("authorization-webhook-version")).unwrap_or_default();
    let (api_server, webhook) = (parser.path(API_SERVER), parser.path(WEBHOOK));
    if !modes.contains(&AuthorizerMode::Webhook) {
        for (name, path) in [(API_SERVER, &api_server), (WEBHOOK, &webhook)] {
            // With an AuthorizationConfiguration, this is reported already.
            if path.is_some() && !modes.is_empty() {
                parser.add_problem(name, "not used without Webhook among --authorization-mode");
            }
        }
        return (None, ReviewTarget::default());
    }
    match (api_server, webhook) {
        (Some(_), Some(_)) => {
            parser.add_problem(WEBHOOK, "cannot be given together with --authorization-kubeconfig");
            (None, ReviewTarget::default())
        }
        (None, Some(path)) => (Some(path), ReviewTarget::Webhook(version)),
        (path, None) => {
            let path = path.or_else(|| otherwise.kubeconfig().map(Path::to_owned));
            match otherwise {
                _ if path.is_some() => {}
                FallbackCluster::None => {
                    let message = "required with --authorization-mode=Webhook; or --authorization-webhook-config-file";
                    parser.add_problem(API_SERVER, message);
                }
                FallbackCluster::ApiServer(_) => {
                    let message = "required outside a pod: the cluster for TokenReview and SubjectAccessReview (or \
                                   --authorization-kubeconfig and --authentication-kubeconfig; or another \
                                   --authorization-mode)";
                    parser.add_problem("kubeconfig", message);
                }
            }
            (path, ReviewTarget::default())
        }
    }
}

fn always_allow_paths(parser: &mut FlagParser<'_>) -> AlwaysAllowPaths {
    const NAME: &str = "authorization-always-allow-paths";
    let paths = parser.list(NAME);
    AlwaysAllowPaths::new(paths).unwrap_or_else(|problems| {
        problems.0.into_iter().for_each(|problem| parser.add_problem(NAME, problem.message));
        AlwaysAllowPaths::default()
    })
}
