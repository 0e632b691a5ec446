//! Authentication and authorization settings.

use std::path::PathBuf;

use crate::authenticate::jwt::OpenIdConnect;
use crate::config::reading::Reading;

/// Authenticators and their settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// CA bundle for client certificates; generated when none.
    pub client_ca_file: Option<PathBuf>,
    /// Front proxies and their headers.
    pub request_header: RequestHeader,
    /// CSV file with static tokens.
    pub token_file: Option<PathBuf>,
    /// File with an `AuthenticationConfiguration`: issuers of tokens.
    pub authentication_config: Option<PathBuf>,
    /// One issuer by a sidecar's `--oidc-*` flags, instead of that file.
    pub open_id_connect: Option<OpenIdConnect>,
    /// Whether requests without credentials are authenticated as anonymous.
    pub anonymous: bool,
    /// Whether `--anonymous-auth` was given; then the file must not configure it.
    pub anonymous_given: bool,
    /// Groups to keep; empty keeps all.
    pub pass_on_groups: Vec<String>,
    /// Groups to remove.
    pub drop_groups: Vec<String>,
}

/// Trusted front proxies, and the headers in which they name the user. These headers are never trusted from, nor
/// relayed for, other clients, even without `ca_file`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// CA bundle for front proxies; without it, none is trusted.
    pub ca_file: Option<PathBuf>,
    /// Allowed common names of front proxies; empty allows all certificates of the bundle.
    pub allowed_names: Vec<String>,
    /// Headers with the user's name; the first with a value is used.
    pub username_headers: Vec<String>,
    /// Headers with the user's UID; the first with a value is used.
    pub uid_headers: Vec<String>,
    /// Headers with the user's groups; all values are used.
    pub group_headers: Vec<String>,
    /// Prefixes of headers with the user's extra attributes.
    pub extra_prefixes: Vec<String>,
}

/// An authorizer, as named by `--authorization-mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Allows every authenticated user.
    AlwaysAllow,
    /// Denies all.
    AlwaysDeny,
    /// Evaluates the RBAC objects of a file. With the name that was given, `RBAC` or `Static`.
    Static(&'static str),
    /// Sends SubjectAccessReviews to a kube-apiserver or webhook.
    Webhook,
}

pub(in crate::config) fn who(reading: &mut Reading<'_>) -> Who {
    Who {
        client_ca_file: reading.path("client-ca-file"),
        request_header: request_header(reading),
        token_file: reading.path("token-auth-file"),
        authentication_config: reading.path("authentication-config"),
        open_id_connect: None,
        anonymous: reading.switch("anonymous-auth"),
        anonymous_given: reading.given("anonymous-auth"),
        pass_on_groups: groups(reading, "authentication-pass-on-groups"),
        drop_groups: groups(reading, "authentication-drop-groups"),
    }
}

/// Turns `--anonymous-auth` off when the modes include AlwaysAllow, as kube-apiserver does (`ApplyAuthorization` in
/// `pkg/kubeapiserver/options/authentication.go`): every request would be allowed without credentials.
pub(in crate::config) fn without_anonymous(reading: &mut Reading<'_>, who: &mut Who, modes: &[Mode]) {
    if who.anonymous && modes.contains(&Mode::AlwaysAllow) {
        let message = "not allowed with --authorization-mode=AlwaysAllow, and turned off: requests without credentials get \
                       401. Use another mode, or \"anonymous\" in --authentication-config with a list of paths";
        reading.warning("anonymous-auth", message);
        who.anonymous = false;
    }
}

/// Reads a list of groups; a star is allowed only at the end.
fn groups(reading: &mut Reading<'_>, name: &str) -> Vec<String> {
    let groups = filled(reading, name);
    for group in &groups {
        if group.strip_suffix('*').unwrap_or(group).contains('*') {
            reading.problem(name, format_args!("{group:?}: a star is only allowed at the end"));
        }
    }
    groups
}

fn request_header(reading: &mut Reading<'_>) -> RequestHeader {
    let ca_file = reading.path("requestheader-client-ca-file");
    let allowed_names = filled(reading, "requestheader-allowed-names");
    let uid_headers = filled(reading, "requestheader-uid-headers");
    if !uid_headers.is_empty() && !uid_headers.iter().any(|header| header.eq_ignore_ascii_case("X-Remote-Uid")) {
        // kube-apiserver's message, word for word.
        reading.problem(
            "requestheader-uid-headers",
            "is set without specifying the standard X-Remote-Uid header - API aggregation will not work",
        );
    }
    if ca_file.is_none() && reading.given("requestheader-allowed-names") {
        reading.warning("requestheader-allowed-names", "not used without --requestheader-client-ca-file");
    }
    RequestHeader {
        ca_file,
        allowed_names,
        username_headers: headers(reading, "requestheader-username-headers"),
        uid_headers: header_names(reading, "requestheader-uid-headers", uid_headers),
        group_headers: headers(reading, "requestheader-group-headers"),
        extra_prefixes: headers(reading, "requestheader-extra-headers-prefix"),
    }
}

/// Reads a list and refuses empty values, with upstream's message.
fn filled(reading: &mut Reading<'_>, name: &str) -> Vec<String> {
    let values = reading.list(name);
    if values.iter().any(|value| value.trim().is_empty()) {
        reading.problem(name, format_args!("empty value in {name:?}"));
    }
    values
}

fn headers(reading: &mut Reading<'_>, name: &str) -> Vec<String> {
    let values = filled(reading, name);
    header_names(reading, name, values)
}

fn header_names(reading: &mut Reading<'_>, name: &str, values: Vec<String>) -> Vec<String> {
    for value in &values {
        if !value.trim().is_empty() && http::HeaderName::from_bytes(value.as_bytes()).is_err() {
            reading.problem(name, format_args!("{value:?} is not a valid header name"));
        }
    }
    values
}

/// `--authorization-config`, which excludes the flags for modes.
pub(in crate::config) fn authorization_config(reading: &mut Reading<'_>) -> Option<PathBuf> {
    const NAME: &str = "authorization-config";
    const LEGACY: [&str; 6] = [
        "authorization-mode",
        "authorization-kubeconfig",
        "authorization-webhook-config-file",
        "authorization-webhook-version",
        "authorization-webhook-cache-authorized-ttl",
        "authorization-webhook-cache-unauthorized-ttl",
    ];
    let path = reading.path(NAME)?;
    for other in LEGACY {
        if reading.given(other) {
            reading.problem(NAME, format_args!("can not be specified together with --{other}"));
        }
    }
    Some(path)
}

/// The file of [`Mode::Static`]; given if and only if that is among the modes. With an `AuthorizationConfiguration` it
/// is always allowed, because a reload may add type RBAC.
pub(in crate::config) fn policy_file(reading: &mut Reading<'_>, modes: &[Mode], configured: bool) -> Option<PathBuf> {
    const NAME: &str = "authorization-policy-file";
    let path = reading.path(NAME);
    if configured {
        return path;
    }
    match (&path, modes.iter().any(|mode| matches!(mode, Mode::Static(_)))) {
        (None, true) => reading.problem(NAME, "required with --authorization-mode=RBAC"),
        (Some(_), false) => reading.problem(NAME, "not used without RBAC among --authorization-mode"),
        _ => {}
    }
    path
}

/// `--serve-delegation`, refused with AlwaysAllow. An `AuthorizationConfiguration` is checked when it is loaded.
pub(in crate::config) fn serve_delegation(reading: &mut Reading<'_>, modes: &[Mode], configured: bool) -> bool {
    const NAME: &str = "serve-delegation";
    let serve = reading.switch(NAME);
    let decides = modes.iter().any(|mode| matches!(mode, Mode::Static(_) | Mode::Webhook));
    if serve && !configured && (!decides || modes.contains(&Mode::AlwaysAllow)) {
        reading.problem(
            NAME,
            "needs --authorization-mode Webhook or RBAC, or --authorization-config: with AlwaysAllow, every user could \
             send reviews about every user, and all would be allowed",
        );
    }
    if serve && reading.path("delegate-kubeconfig").is_some() {
        reading.problem(
            NAME,
            "cannot be given together with --delegate-kubeconfig: backends can send reviews to that server",
        );
    }
    serve
}

/// The authorization modes; none with an `AuthorizationConfiguration`.
pub(in crate::config) fn modes(reading: &mut Reading<'_>, configured: bool) -> Vec<Mode> {
    const NAME: &str = "authorization-mode";
    const KNOWN: &str = "supported are AlwaysAllow, AlwaysDeny, RBAC (or Static) and Webhook";
    let (written, mut modes) = (reading.list(NAME), Vec::new());
    if configured {
        return modes;
    }
    if written.is_empty() {
        reading.problem(NAME, format_args!("at least one mode is required; {KNOWN}"));
    }
    for word in written {
        let mode = match word.as_str() {
            "AlwaysAllow" => Mode::AlwaysAllow,
            "AlwaysDeny" => Mode::AlwaysDeny,
            "RBAC" => Mode::Static("RBAC"),
            "Static" => Mode::Static("Static"),
            "Webhook" => Mode::Webhook,
            _ => {
                reading.problem(NAME, format_args!("{word:?} is not a mode; {KNOWN}"));
                continue;
            }
        };
        if modes.iter().any(|other| std::mem::discriminant(other) == std::mem::discriminant(&mode)) {
            reading.problem(NAME, format_args!("{word} is given more than once"));
        }
        modes.push(mode);
    }
    modes
}
