//! Settings of service account tokens (`--service-account-*`, `pkg/kubeapiserver/options/authentication.go`).

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::authenticate::service_accounts::KeySource;
use crate::config::parser::FlagParser;

/// The issuer without `--service-account-issuer`, as kubeadm sets it.
const DEFAULT_ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// Bounds of `--service-account-max-token-expiration`.
const MAX_EXPIRATION: std::ops::RangeInclusive<Duration> = Duration::from_secs(3600)..=Duration::from_secs(1 << 32);

/// Names of the flags.
pub(super) const FLAGS: [&str; 7] = [
    "service-account-issuer",
    "service-account-jwks-uri",
    "service-account-signing-key-file",
    "service-account-key-file",
    "service-account-max-token-expiration",
    "service-account-extend-token-expiration",
    "root-ca-file",
];

/// How service account tokens are issued and verified.
#[derive(Clone, Debug)]
pub struct ServiceAccountConfig {
    /// Where the keys come from.
    pub keys: KeySource,
    /// The issuers that are accepted; the first one issues.
    pub issuers: Vec<String>,
    /// Where relying parties find the key set, if not at this server.
    pub jwks_uri: Option<String>,
    /// The longest lifetime that can be requested, if it is limited.
    pub max_expiration: Option<Duration>,
    /// Whether tokens that a kubelet asks for in its usual way live longer than they say.
    pub extends_expiration: bool,
    /// The authorities by which Pods verify this server, if not that of the generated serving certificate.
    pub root_ca: Option<PathBuf>,
}

/// Reads the flags.
pub(super) fn service_accounts(parser: &mut FlagParser<'_>, data_dir: &Path) -> ServiceAccountConfig {
    let [issuer, jwks_uri, signing, verification, max_expiration, extend, root_ca] = FLAGS;
    let mut issuers = parser.list(issuer);
    for (number, one) in issuers.iter().enumerate() {
        if one.is_empty() {
            parser.add_problem(issuer, "service-account-issuer should not be an empty string");
        } else if issuers[..number].contains(one) {
            parser.add_problem(issuer, format_args!("service-account-issuer {one:?} is already specified"));
        } else if one.contains(':') && one.parse::<http::Uri>().is_err() {
            parser.add_problem(
                issuer,
                format_args!("service-account-issuer {one:?} contained a ':' but was not a valid URL"),
            );
        }
    }
    if issuers.is_empty() {
        issuers.push(DEFAULT_ISSUER.to_owned());
    }
    let uri = Some(parser.text(jwks_uri)).filter(|uri| !uri.is_empty());
    if uri.as_ref().is_some_and(|uri| !uri.starts_with("https://") || uri.parse::<http::Uri>().is_err()) {
        parser.add_problem(jwks_uri, "service-account-jwks-uri requires https scheme");
    }
    let longest = Some(parser.duration(max_expiration)).filter(|longest| !longest.is_zero());
    if longest.is_some_and(|longest| !MAX_EXPIRATION.contains(&longest)) {
        let why = "the service-account-max-token-expiration must be between 1 hour and 2^32 seconds";
        parser.add_problem(max_expiration, why);
    }
    let signing_file = parser.path(signing);
    let files: Vec<String> = parser.list(verification);
    let files: Vec<_> = files.iter().map(|path| parser.resolve_path(verification, path)).collect();
    if signing_file.is_none() && !files.is_empty() {
        parser.add_problem(verification, format_args!("needs --{signing}: without it no token can be issued"));
    }
    let keys = match (signing_file, files) {
        (None, files) if files.is_empty() => KeySource::Directory(data_dir.to_owned()),
        (signing, verification) => KeySource::Files { signing, verification },
    };
    let extends_expiration = parser.switch(extend);
    let root_ca = parser.path(root_ca);
    ServiceAccountConfig { keys, issuers, jwks_uri: uri, max_expiration: longest, extends_expiration, root_ca }
}
