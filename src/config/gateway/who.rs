//! How users are known, and what they may.

use std::path::PathBuf;

use crate::authenticate::jwt::OpenIdConnect;
use crate::config::reading::Reading;

/// How users are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// Authorities of client certificates; none for the one we make ourselves.
    pub client_ca_file: Option<PathBuf>,
    /// Users named by front proxies.
    pub request_header: RequestHeader,
    /// Static tokens.
    pub token_file: Option<PathBuf>,
    /// Issuers of tokens (`AuthenticationConfiguration`).
    pub authentication_config: Option<PathBuf>,
    /// One issuer by flags, instead of that file (a sidecar's `--oidc-*`).
    pub open_id_connect: Option<OpenIdConnect>,
    /// Whether requests without credentials are let in.
    pub anonymous: bool,
    /// Whether somebody said so by the flag; then the file may not.
    pub anonymous_given: bool,
    /// Groups that are passed on; all if there is none here.
    pub pass_on_groups: Vec<String>,
    /// Groups that are not.
    pub drop_groups: Vec<String>,
}

/// Which front proxies are believed, and in which headers they name the user. The headers are never
/// believed from, nor relayed for, anyone else, also without `ca_file`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// Authorities of front proxies; without it none is believed.
    pub ca_file: Option<PathBuf>,
    /// Common names of front proxies; empty for all with a certificate of these authorities.
    pub allowed_names: Vec<String>,
    /// Headers of the user's name; the first with a value counts.
    pub username_headers: Vec<String>,
    /// Headers of the user's UID; the first with a value counts.
    pub uid_headers: Vec<String>,
    /// Headers of the user's groups; all values count.
    pub group_headers: Vec<String>,
    /// What headers with more about the user begin with.
    pub extra_prefixes: Vec<String>,
}

/// A way to decide what users may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Whatever they like, once they are known.
    AlwaysAllow,
    /// Nothing.
    AlwaysDeny,
    /// What the RBAC objects of a file allow; under the name that was given, `RBAC` or `Static`.
    Static(&'static str),
    /// What a kube-apiserver says they may.
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

/// Turns `--anonymous-auth` off where the modes hold AlwaysAllow, whoever turned it on, as kube-apiserver does
/// (`ApplyAuthorization` in `pkg/kubeapiserver/options/authentication.go`): everybody would be let in as nobody.
pub(in crate::config) fn without_anonymous(reading: &mut Reading<'_>, who: &mut Who, modes: &[Mode]) {
    if who.anonymous && modes.contains(&Mode::AlwaysAllow) {
        let message = "not allowed with --authorization-mode=AlwaysAllow, and turned off: requests without credentials get \
                       401. Use another mode, or \"anonymous\" in --authentication-config with the paths that are open";
        reading.warning("anonymous-auth", message);
        who.anonymous = false;
    }
}

/// Groups, each with a star at its end or none; a star elsewhere would mean nothing.
fn groups(reading: &mut Reading<'_>, name: &str) -> Vec<String> {
    let groups = filled(reading, name);
    for group in &groups {
        if group.strip_suffix('*').unwrap_or(group).contains('*') {
            reading.problem(name, format_args!("{group:?}: a star may only stand at the end"));
        }
    }
    groups
}

fn request_header(reading: &mut Reading<'_>) -> RequestHeader {
    let ca_file = reading.path("requestheader-client-ca-file");
    let allowed_names = filled(reading, "requestheader-allowed-names");
    let uid_headers = filled(reading, "requestheader-uid-headers");
    if !uid_headers.is_empty() && !uid_headers.iter().any(|header| header.eq_ignore_ascii_case("X-Remote-Uid")) {
        // The words of kube-apiserver's own check, which people search for.
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

/// A list without empty values, which upstream refuses in these words.
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
            reading.problem(name, format_args!("{value:?} cannot be the name of a header"));
        }
    }
    values
}

/// `--authorization-config`, which says all that the flags for modes say, and so leaves no room for them.
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

/// The file that [`Mode::Static`] reads; there if, and only if, it is among the modes. A configuration may name
/// it, or come to do so.
pub(in crate::config) fn policy_file(reading: &mut Reading<'_>, modes: &[Mode], configured: bool) -> Option<PathBuf> {
    const NAME: &str = "authorization-policy-file";
    let path = reading.path(NAME);
    if configured {
        return path;
    }
    match (&path, modes.iter().any(|mode| matches!(mode, Mode::Static(_)))) {
        (None, true) => reading.problem(NAME, "needed with --authorization-mode=RBAC"),
        (Some(_), false) => reading.problem(NAME, "not used without RBAC among --authorization-mode"),
        _ => {}
    }
    path
}

/// `--serve-delegation`, which makes no sense where everything is allowed. What a configuration says is looked at
/// when it is read.
pub(in crate::config) fn serve_delegation(reading: &mut Reading<'_>, modes: &[Mode], configured: bool) -> bool {
    const NAME: &str = "serve-delegation";
    let serve = reading.switch(NAME);
    let decides = modes.iter().any(|mode| matches!(mode, Mode::Static(_) | Mode::Webhook));
    if serve && !configured && (!decides || modes.contains(&Mode::AlwaysAllow)) {
        reading.problem(
            NAME,
            "needs --authorization-mode Webhook or RBAC, or --authorization-config: with AlwaysAllow everybody could \
             ask about everybody, and be told that everything is allowed",
        );
    }
    if serve && reading.path("delegate-kubeconfig").is_some() {
        reading.problem(NAME, "cannot be given together with --delegate-kubeconfig: backends can ask that server");
    }
    serve
}

/// The modes; none where a configuration says it.
pub(in crate::config) fn modes(reading: &mut Reading<'_>, configured: bool) -> Vec<Mode> {
    const NAME: &str = "authorization-mode";
    const KNOWN: &str = "this version knows AlwaysAllow, AlwaysDeny, RBAC (or Static) and Webhook";
    let (written, mut modes) = (reading.list(NAME), Vec::new());
    if configured {
        return modes;
    }
    if written.is_empty() {
        reading.problem(NAME, format_args!("at least one mode is needed; {KNOWN}"));
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
            reading.problem(NAME, format_args!("{word} is there more than once"));
        }
        modes.push(mode);
    }
    modes
}
