//! What a kube-apiserver is asked: who holds a token, and what users may.

use std::path::PathBuf;
use std::time::Duration;

use super::{Mode, Who};
use crate::authenticate::TokenReviewSettings;
use crate::authorize::{AccessReviewSettings, AlwaysAllowPaths};
use crate::config::reading::Reading;
use crate::kubeclient::Patience;

/// Questions that a kube-apiserver answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delegated {
    /// `--authentication-kubeconfig`: whom to ask about tokens.
    pub authentication_kubeconfig: Option<PathBuf>,
    /// Whether that API server is asked whom to believe, too, where no file says so.
    pub look_up: bool,
    /// `--authentication-tolerate-lookup-failure`.
    pub tolerate_lookup_failure: bool,
    /// How tokens are reviewed.
    pub token_reviews: TokenReviewSettings,
    /// `--authorization-kubeconfig`: whom to ask what users may; there if, and only if, [`Mode::Webhook`] is among
    /// the modes.
    pub authorization_kubeconfig: Option<PathBuf>,
    /// How long answers are believed.
    pub access_reviews: AccessReviewSettings,
    /// `--authorization-always-allow-paths`.
    pub always_allow_paths: AlwaysAllowPaths,
}

pub(super) fn delegated(reading: &mut Reading<'_>, who: &Who, modes: &[Mode], request_timeout: Duration) -> Delegated {
    let authentication_kubeconfig = reading.path("authentication-kubeconfig");
    let audiences = reading.list("api-audiences");
    if audiences.iter().any(String::is_empty) {
        reading.problem("api-audiences", "empty value in \"api-audiences\"");
    }
    let skip_lookup = reading.switch("authentication-skip-lookup");
    let named = who.client_ca_file.is_some() && who.request_header.ca_file.is_some();
    // Upstream ignores that clients' authorities cannot be looked up; only those of front proxies matter to it.
    let tolerate = reading.switch("authentication-tolerate-lookup-failure") || who.request_header.ca_file.is_some();
    Delegated {
        look_up: authentication_kubeconfig.is_some() && !skip_lookup && !named,
        tolerate_lookup_failure: tolerate,
        authentication_kubeconfig,
        token_reviews: TokenReviewSettings {
            audiences,
            cache_ttl: reading.duration("authentication-token-webhook-cache-ttl"),
            patience: Patience::within(request_timeout),
        },
        authorization_kubeconfig: authorization_kubeconfig(reading, modes),
        access_reviews: AccessReviewSettings {
            authorized_ttl: reading.duration("authorization-webhook-cache-authorized-ttl"),
            unauthorized_ttl: reading.duration("authorization-webhook-cache-unauthorized-ttl"),
            stale_allow_ttl: reading.duration("authorization-stale-allow-ttl"),
            patience: Patience::within(request_timeout),
        },
        always_allow_paths: always_allow_paths(reading),
    }
}

fn authorization_kubeconfig(reading: &mut Reading<'_>, modes: &[Mode]) -> Option<PathBuf> {
    const NAME: &str = "authorization-kubeconfig";
    let path = reading.path(NAME);
    match (&path, modes.contains(&Mode::Webhook)) {
        (None, true) => reading.problem(NAME, "needed with --authorization-mode=Webhook"),
        (Some(_), false) => reading.problem(NAME, "not used without Webhook among --authorization-mode"),
        _ => {}
    }
    path
}

fn always_allow_paths(reading: &mut Reading<'_>) -> AlwaysAllowPaths {
    const NAME: &str = "authorization-always-allow-paths";
    let paths = reading.list(NAME);
    AlwaysAllowPaths::new(paths).unwrap_or_else(|problems| {
        problems.0.into_iter().for_each(|problem| reading.problem(NAME, problem.message));
        AlwaysAllowPaths::default()
    })
}
