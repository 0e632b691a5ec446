//! Authentication and authorization settings.

use std::path::PathBuf;

use crate::authenticate::jwt::OidcFlags;
use crate::config::parser::FlagParser;

/// Authenticators and their settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthenticationConfig {
    /// CA bundle for client certificates; generated when none.
    pub client_ca_file: Option<PathBuf>,
    /// Front proxies and their headers.
    pub request_header: RequestHeaderSettings,
    /// CSV file with static tokens.
    pub token_file: Option<PathBuf>,
    /// File with an `AuthenticationConfiguration`: issuers of tokens.
    pub authentication_config: Option<PathBuf>,
    /// One issuer by a sidecar's `--oidc-*` flags, instead of that file.
    pub open_id_connect: Option<OidcFlags>,
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
pub struct RequestHeaderSettings {
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
pub enum AuthorizerMode {
    /// Allows every authenticated user.
    AlwaysAllow,
    /// Denies all.
    AlwaysDeny,
    /// Evaluates the RBAC objects of a file. With the name that was given, `RBAC` or `Static`.
    Static(&'static str),
    /// Sends SubjectAccessReviews to a kube-apiserver or webhook.
    Webhook,
}

pub(in crate::config) fn authentication(parser: &mut FlagParser<'_>) -> AuthenticationConfig {
    AuthenticationConfig {
        client_ca_file: parser.path("client-ca-file"),
        request_header: request_header(parser),
        token_file: parser.path("token-auth-file"),
        authentication_config: parser.path("authentication-config"),
        open_id_connect: None,
        anonymous: parser.switch("anonymous-auth"),
        anonymous_given: parser.is_given("anonymous-auth"),
        pass_on_groups: group_patterns(parser, "authentication-pass-on-groups"),
        drop_groups: group_patterns(parser, "authentication-drop-groups"),
    }
}

/// Turns `--anonymous-auth` off when the modes include AlwaysAllow, as kube-apiserver does (`ApplyAuthorization` in
/// `pkg/kubeapiserver/options/authentication.go`): every request would be allowed without credentials.
pub(in crate::config) fn disable_anonymous_with_always_allow(
    parser: &mut FlagParser<'_>,
    authentication: &mut AuthenticationConfig,
    modes: &[AuthorizerMode],
) {
    if authentication.anonymous && modes.contains(&AuthorizerMode::AlwaysAllow) {
        let message = "not allowed with --authorization-mode=AlwaysAllow, and turned off: requests without credentials get \
                       401. Use another mode, or \"anonymous\" in --authentication-config with a list of paths";
        parser.add_warning("anonymous-auth", message);
        authentication.anonymous = false;
    }
}

/// Reads a list of groups; a star is allowed only at the end.
fn group_patterns(parser: &mut FlagParser<'_>, name: &str) -> Vec<String> {
    let groups = non_empty_values(parser, name);
    for group in &groups {
        if group.strip_suffix('*').unwrap_or(group).contains('*') {
            parser.add_problem(name, format_args!("{group:?}: a star is only allowed at the end"));
        }
    }
    groups
}

fn request_header(parser: &mut FlagParser<'_>) -> RequestHeaderSettings {
    let ca_file = parser.path("requestheader-client-ca-file");
    let allowed_names = non_empty_values(parser, "requestheader-allowed-names");
    let uid_headers = non_empty_values(parser, "requestheader-uid-headers");
    if !uid_headers.is_empty() && !uid_headers.iter().any(|header| header.eq_ignore_ascii_case("X-Remote-Uid")) {
        // kube-apiserver's message, word for word.
        parser.add_problem(
            "requestheader-uid-headers",
            "is set without specifying the standard X-Remote-Uid header - API aggregation will not work",
        );
    }
    if ca_file.is_none() && parser.is_given("requestheader-allowed-names") {
        parser.add_warning("requestheader-allowed-names", "not used without --requestheader-client-ca-file");
    }
    RequestHeaderSettings {
        ca_file,
        allowed_names,
        username_headers: header_list(parser, "requestheader-username-headers"),
        uid_headers: check_header_names(parser, "requestheader-uid-headers", uid_headers),
        group_headers: header_list(parser, "requestheader-group-headers"),
        extra_prefixes: header_list(parser, "requestheader-extra-headers-prefix"),
    }
}

/// Reads a list and refuses empty values, with Kubernetes' message.
fn non_empty_values(parser: &mut FlagParser<'_>, name: &str) -> Vec<String> {
    let values = parser.list(name);
    if values.iter().any(|value| value.trim().is_empty()) {
        parser.add_problem(name, format_args!("empty value in {name:?}"));
    }
    values
}

fn header_list(parser: &mut FlagParser<'_>, name: &str) -> Vec<String> {
    let values = non_empty_values(parser, name);
    check_header_names(parser, name, values)
}

fn check_header_names(parser: &mut FlagParser<'_>, name: &str, values: Vec<String>) -> Vec<String> {
    for value in &values {
        if !value.trim().is_empty() && http::HeaderName::from_bytes(value.as_bytes()).is_err() {
            parser.add_problem(name, format_args!("{value:?} is not a valid header name"));
        }
    }
    values
}

/// `--authorization-config`, which excludes the flags for modes.
pub(in crate::config) fn authorization_config(parser: &mut FlagParser<'_>) -> Option<PathBuf> {
    const NAME: &str = "authorization-config";
    const LEGACY: [&str; 6] = [
        "authorization-mode",
        "authorization-kubeconfig",
        "authorization-webhook-config-file",
        "authorization-webhook-version",
        "authorization-webhook-cache-authorized-ttl",
        "authorization-webhook-cache-unauthorized-ttl",
    ];
    let path = parser.path(NAME)?;
    for other in LEGACY {
        if parser.is_given(other) {
            parser.add_problem(NAME, format_args!("can not be specified together with --{other}"));
        }
    }
    Some(path)
}

/// The file of [`AuthorizerMode::Static`]: required with that mode, a problem without it. With an
/// `AuthorizationConfiguration` it is always allowed, because a reload may add type RBAC.
pub(in crate::config) fn policy_file(
    parser: &mut FlagParser<'_>,
    modes: &[AuthorizerMode],
    configured: bool,
    has_store: bool,
) -> Option<PathBuf> {
    const NAME: &str = "authorization-policy-file";
    let path = parser.path(NAME);
    if configured {
        return path;
    }
    match (&path, modes.iter().any(|mode| matches!(mode, AuthorizerMode::Static(_)))) {
        // Stored roles and bindings need no file.
        (None, true) if has_store => {}
        (None, true) => parser.add_problem(NAME, "required with --authorization-mode=RBAC"),
        (Some(_), false) => parser.add_problem(NAME, "not used without RBAC among --authorization-mode"),
        _ => {}
    }
    path
}

/// `--serve-delegation`, refused with AlwaysAllow. An `AuthorizationConfiguration` is checked when it is loaded.
pub(in crate::config) fn serve_delegation(
    parser: &mut FlagParser<'_>,
    modes: &[AuthorizerMode],
    configured: bool,
) -> bool {
    const NAME: &str = "serve-delegation";
    let serve = parser.switch(NAME);
    let decides = modes.iter().any(|mode| matches!(mode, AuthorizerMode::Static(_) | AuthorizerMode::Webhook));
    if serve && !configured && (!decides || modes.contains(&AuthorizerMode::AlwaysAllow)) {
        parser.add_problem(
            NAME,
            "needs --authorization-mode Webhook or RBAC, or --authorization-config: with AlwaysAllow, every user could \
             send reviews about every user, and all would be allowed",
        );
    }
    if serve && parser.path("delegate-kubeconfig").is_some() {
        parser.add_problem(
            NAME,
            "cannot be given together with --delegate-kubeconfig: backends can send reviews to that server",
        );
    }
    serve
}

/// The authorization modes; none with an `AuthorizationConfiguration`. With `has_store` (`--embedded-api`) the default
/// is the policy file, or to deny.
pub(in crate::config) fn authorization_modes(
    parser: &mut FlagParser<'_>,
    configured: bool,
    has_store: bool,
) -> Vec<AuthorizerMode> {
    const NAME: &str = "authorization-mode";
    const KNOWN: &str = "supported are AlwaysAllow, AlwaysDeny, RBAC (or Static) and Webhook";
    let (words, mut modes) = (parser.list(NAME), Vec::new());
    if configured {
        return modes;
    }
    // No backend authorizes again: what is not granted is denied.
    if has_store && !parser.is_given(NAME) {
        return vec![AuthorizerMode::Static("RBAC")];
    }
    if words.is_empty() {
        parser.add_problem(NAME, format_args!("at least one mode is required; {KNOWN}"));
    }
    for word in words {
        let mode = match word.as_str() {
            "AlwaysAllow" => AuthorizerMode::AlwaysAllow,
            "AlwaysDeny" => AuthorizerMode::AlwaysDeny,
            "RBAC" => AuthorizerMode::Static("RBAC"),
            "Static" => AuthorizerMode::Static("Static"),
            "Webhook" => AuthorizerMode::Webhook,
            _ => {
                parser.add_problem(NAME, format_args!("{word:?} is not a mode; {KNOWN}"));
                continue;
            }
        };
        if modes.iter().any(|other| std::mem::discriminant(other) == std::mem::discriminant(&mode)) {
            parser.add_problem(NAME, format_args!("{word} is given more than once"));
        }
        modes.push(mode);
    }
    if has_store && modes.contains(&AuthorizerMode::AlwaysAllow) {
        let message = "AlwaysAllow lets every authenticated user read and change all objects of --embedded-api, Secrets \
                       included";
        parser.add_warning(NAME, message);
    }
    modes
}
