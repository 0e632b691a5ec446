//! Delegated authentication and authorization: TokenReview and SubjectAccessReview.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Mode, Who};
use crate::authenticate::TokenReviewSettings;
use crate::authorize::{AccessReviewSettings, AlwaysAllowPaths};
use crate::config::reading::Reading;
use crate::kubeclient::Patience;
use crate::review::{Target, Version};

/// Reviews sent to a kube-apiserver or webhook.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delegated {
    /// `--authentication-kubeconfig`: the API server for TokenReview.
    pub authentication_kubeconfig: Option<PathBuf>,
    /// Whether the ConfigMap extension-apiserver-authentication of that API server is followed.
    pub look_up: bool,
    /// `--authentication-tolerate-lookup-failure`.
    pub tolerate_lookup_failure: bool,
    /// Settings of token reviews.
    pub token_reviews: TokenReviewSettings,
    /// `--authentication-token-webhook-config-file`: the webhook for TokenReview, called before that API server.
    pub token_webhook: Option<PathBuf>,
    /// `--authentication-token-webhook-version`.
    pub token_webhook_version: Version,
    /// `--authorization-kubeconfig` or `--authorization-webhook-config-file`: the API server or webhook for
    /// SubjectAccessReview; set if and only if [`Mode::Webhook`] is among the modes.
    pub authorization_kubeconfig: Option<PathBuf>,
    /// Settings of access reviews.
    pub access_reviews: AccessReviewSettings,
    /// `--readiness-requires-reviews`.
    pub readiness_requires_reviews: bool,
    /// `--authorization-always-allow-paths`.
    pub always_allow_paths: AlwaysAllowPaths,
}

/// The API server for reviews when no flag names one.
#[derive(Clone, Copy)]
pub(in crate::config) enum Otherwise<'a> {
    /// None: a gateway's `--kubeconfig` is the registry's.
    Nobody,
    /// The kube-apiserver of a sidecar's `--kubeconfig`, or of its pod.
    ApiServer(Option<&'a Path>),
}

impl<'a> Otherwise<'a> {
    fn path(self) -> Option<&'a Path> {
        match self {
            Otherwise::Nobody => None,
            Otherwise::ApiServer(path) => path,
        }
    }
}

pub(in crate::config) fn delegated(
    reading: &mut Reading<'_>,
    who: &Who,
    modes: &[Mode],
    request_timeout: Duration,
    otherwise: Otherwise<'_>,
) -> Delegated {
    let authentication_kubeconfig =
        reading.path("authentication-kubeconfig").or_else(|| otherwise.path().map(Path::to_owned));
    let audiences = reading.list("api-audiences");
    if audiences.iter().any(String::is_empty) {
        reading.problem("api-audiences", "empty value in \"api-audiences\"");
    }
    let skip_lookup = reading.switch("authentication-skip-lookup");
    let named = who.client_ca_file.is_some() && who.request_header.ca_file.is_some();
    // Upstream tolerates a failed lookup of client CAs; only the lookup of request-header CAs must succeed.
    let tolerate = reading.switch("authentication-tolerate-lookup-failure") || who.request_header.ca_file.is_some();
    let (authorization_kubeconfig, target) = authorization_kubeconfig(reading, modes, otherwise);
    Delegated {
        look_up: authentication_kubeconfig.is_some() && !skip_lookup && !named,
        tolerate_lookup_failure: tolerate,
        authentication_kubeconfig,
        token_webhook: reading.path("authentication-token-webhook-config-file"),
        token_webhook_version: Version::parse(&reading.text("authentication-token-webhook-version"))
            .unwrap_or_default(),
        token_reviews: TokenReviewSettings {
            target: Target::default(),
            audiences,
            cache_ttl: reading.duration("authentication-token-webhook-cache-ttl"),
            patience: Patience::within(request_timeout),
        },
        authorization_kubeconfig,
        access_reviews: AccessReviewSettings {
            target,
            authorized_ttl: reading.duration("authorization-webhook-cache-authorized-ttl"),
            unauthorized_ttl: reading.duration("authorization-webhook-cache-unauthorized-ttl"),
            stale_allow_ttl: reading.duration("authorization-stale-allow-ttl"),
            patience: Patience::within(request_timeout),
        },
        readiness_requires_reviews: reading.switch("readiness-requires-reviews"),
        always_allow_paths: always_allow_paths(reading),
    }
}

/// The API server or webhook of [`Mode::Webhook`].
fn authorization_kubeconfig(
    reading: &mut Reading<'_>,
    modes: &[Mode],
    otherwise: Otherwise<'_>,
) -> (Option<PathBuf>, Target) {
    const API_SERVER: &str = "authorization-kubeconfig";
    const WEBHOOK: &str = "authorization-webhook-config-file";
    let version = Version::parse(&reading.text("authorization-webhook-version")).unwrap_or_default();
    let (api_server, webhook) = (reading.path(API_SERVER), reading.path(WEBHOOK));
    if !modes.contains(&Mode::Webhook) {
        for (name, path) in [(API_SERVER, &api_server), (WEBHOOK, &webhook)] {
            // With an AuthorizationConfiguration, this is reported already.
            if path.is_some() && !modes.is_empty() {
                reading.problem(name, "not used without Webhook among --authorization-mode");
            }
        }
        return (None, Target::default());
    }
    match (api_server, webhook) {
        (Some(_), Some(_)) => {
            reading.problem(WEBHOOK, "cannot be given together with --authorization-kubeconfig");
            (None, Target::default())
        }
        (None, Some(path)) => (Some(path), Target::Webhook(version)),
        (path, None) => {
            let path = path.or_else(|| otherwise.path().map(Path::to_owned));
            match otherwise {
                _ if path.is_some() => {}
                Otherwise::Nobody => {
                    let message = "required with --authorization-mode=Webhook; or --authorization-webhook-config-file";
                    reading.problem(API_SERVER, message);
                }
                Otherwise::ApiServer(_) => {
                    let message = "required outside a pod: the cluster for TokenReview and SubjectAccessReview (or \
                                   --authorization-kubeconfig and --authentication-kubeconfig; or another \
                                   --authorization-mode)";
                    reading.problem("kubeconfig", message);
                }
            }
            (path, Target::default())
        }
    }
}

fn always_allow_paths(reading: &mut Reading<'_>) -> AlwaysAllowPaths {
    const NAME: &str = "authorization-always-allow-paths";
    let paths = reading.list(NAME);
    AlwaysAllowPaths::new(paths).unwrap_or_else(|problems| {
        problems.0.into_iter().for_each(|problem| reading.problem(NAME, problem.message));
        AlwaysAllowPaths::default()
    })
}
