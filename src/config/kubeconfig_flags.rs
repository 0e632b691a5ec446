//! kubectl's global flags: the kubeconfig, its overrides and impersonation.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kubeapi::duration;

use super::flag::{Flag, FlagGroup, FlagKind};
use super::parser::FlagParser;
use crate::kubeclient::{ConfigOverrides, KubeconfigSource};

/// The kubeconfig and its overrides (`ConfigOverrides` of client-go).
pub(super) static KUBECONFIG: FlagGroup = FlagGroup {
    heading: "Kubeconfig and impersonation",
    flags: &[
        Flag::new(
            "kubeconfig",
            FlagKind::File,
            "",
            "kubeconfig with the API server and credentials; if not given, the files of $KUBECONFIG, the first with an entry wins, or ~/.kube/config. Followed on disk, with the files they name",
        ),
        Flag::new("context", FlagKind::Text("NAME"), "", "Context of the kubeconfig, instead of the current one"),
        Flag::new("cluster", FlagKind::Text("NAME"), "", "Cluster of the kubeconfig, instead of the context's"),
        Flag::new("user", FlagKind::Text("NAME"), "", "User of the kubeconfig, instead of the context's"),
        Flag::new(
            "server",
            FlagKind::Text("URL"),
            "",
            "URL of the API server, instead of the kubeconfig's; no kubeconfig is needed then",
        )
        .with_letter('s'),
        Flag::new("tls-server-name", FlagKind::Text("NAME"), "", "Name that the server's certificate must have"),
        Flag::new("certificate-authority", FlagKind::File, "", "CA bundle for the server's certificate"),
        Flag::new(
            "insecure-skip-tls-verify",
            FlagKind::Switch,
            "false",
            "Do not verify the server's certificate: connections can be intercepted and modified",
        ),
        Flag::new(
            "token",
            FlagKind::Text("TOKEN"),
            "",
            "Bearer token. Other users of this machine can read it on a command line, but not in NARTHEX_TOKEN",
        ),
        Flag::new("client-certificate", FlagKind::File, "", "Client certificate"),
        Flag::new("client-key", FlagKind::File, "", "Private key of --client-certificate"),
        Flag::new("username", FlagKind::Text("NAME"), "", "User name for basic authentication, with --password"),
        Flag::new("password", FlagKind::Text("PASSWORD"), "", "Password for basic authentication"),
        Flag::new("as", FlagKind::Text("USER"), "", "User to impersonate"),
        Flag::new("as-group", FlagKind::Repeated("GROUP"), "", "Group to impersonate"),
        Flag::new("as-uid", FlagKind::Text("UID"), "", "UID to impersonate"),
        Flag::new("as-user-extra", FlagKind::Repeated("KEY=VALUE"), "", "Extra attribute of the user to impersonate"),
    ],
};

const IGNORED_HELP: &str = "Accepted, without effect, as by kubectl proxy";

/// Global flags of kubectl that have no effect on `kubectl proxy`.
pub(super) static IGNORED: FlagGroup = FlagGroup {
    heading: "kubectl compatibility",
    flags: &[
        Flag::new("namespace", FlagKind::Text("NAME"), "", IGNORED_HELP).with_letter('n'),
        Flag::new(
            "request-timeout",
            FlagKind::Text("DURATION"),
            "0",
            "Accepted if kubectl would take it (whole seconds, or a duration such as 8s), without effect, as by kubectl proxy",
        ),
        Flag::new("disable-compression", FlagKind::Switch, "false", IGNORED_HELP),
        Flag::new("match-server-version", FlagKind::Switch, "false", IGNORED_HELP),
        Flag::new("warnings-as-errors", FlagKind::Switch, "false", IGNORED_HELP),
        Flag::new("cache-dir", FlagKind::Directory, "", IGNORED_HELP),
        Flag::new("kuberc", FlagKind::File, "", IGNORED_HELP),
        Flag::new("profile", FlagKind::Text("NAME"), "none", IGNORED_HELP),
        Flag::new("profile-output", FlagKind::File, "", IGNORED_HELP),
        Flag::new("log-flush-frequency", FlagKind::Duration, "5s", IGNORED_HELP),
        Flag::new("vmodule", FlagKind::Text("PATTERN=LEVEL,…"), "", IGNORED_HELP),
    ],
};

/// The kubeconfig files and their overrides, found as kubectl finds them.
pub(super) fn kubeconfig_source(parser: &mut FlagParser<'_>) -> KubeconfigSource {
    parser.check_ignored(IGNORED.flags.iter());
    parser.parse("request-timeout", check_timeout);
    let mut paths: Vec<PathBuf> = parser.path("kubeconfig").into_iter().collect();
    let named = !paths.is_empty();
    if paths.is_empty() {
        let named = parser.environment("KUBECONFIG").unwrap_or_default();
        for path in named.split(':').filter(|path| !path.is_empty()).map(PathBuf::from) {
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
    }
    if paths.is_empty() {
        paths.extend(parser.environment("HOME").map(|home| PathBuf::from(home).join(".kube").join("config")));
    }
    let chosen = overrides(parser, named);
    if paths.is_empty() && !chosen.allows_missing_files {
        parser.add_problem("kubeconfig", "required: neither KUBECONFIG nor HOME is set");
    }
    KubeconfigSource::LocalUser(paths, Box::new(chosen))
}

/// Checks a timeout as kubectl does (`ParseTimeout` in `k8s.io/client-go/tools/clientcmd/overrides.go`): whole seconds,
/// or a Go duration. The message is kubectl's.
fn check_timeout(text: &str) -> Result<(), &'static str> {
    let is_duration = duration::parse_signed(text).is_ok();
    if text.is_empty() || text.parse::<i64>().is_ok_and(|seconds| seconds >= 0) || is_duration {
        return Ok(());
    }
    Err(
        "Invalid timeout value. Timeout must be a single integer in seconds, or an integer followed by a corresponding \
         time unit (e.g. 1s | 2m | 3h)",
    )
}

fn overrides(parser: &mut FlagParser<'_>, named: bool) -> ConfigOverrides {
    let as_user_extra = impersonated_extra(parser);
    let as_groups = parser.list("as-group");
    let insecure_skip_tls_verify = parser.switch("insecure-skip-tls-verify");
    // Absolute, so that a change of the working directory does not matter.
    let mut path = |flag| parser.path(flag).map(|path| std::path::absolute(&path).unwrap_or(path));
    let certificate_authority = path("certificate-authority");
    let (client_certificate, client_key) = (path("client-certificate"), path("client-key"));
    let mut text = |flag| Some(parser.text(flag)).filter(|text| !text.is_empty());
    let server = text("server");
    ConfigOverrides {
        context: text("context"),
        cluster: text("cluster"),
        user: text("user"),
        allows_missing_files: server.is_some() && !named,
        server,
        tls_server_name: text("tls-server-name"),
        insecure_skip_tls_verify,
        certificate_authority,
        client_certificate,
        client_key,
        token: text("token"),
        username: text("username"),
        password: text("password"),
        r#as: text("as"),
        as_uid: text("as-uid"),
        as_groups,
        as_user_extra,
    }
}

/// Parses `--as-user-extra`; a repeated key has several values.
fn impersonated_extra(parser: &mut FlagParser<'_>) -> BTreeMap<String, Vec<String>> {
    const EXTRA: &str = "as-user-extra";
    let mut all = BTreeMap::<_, Vec<_>>::new();
    for pair in parser.list(EXTRA) {
        match pair.split_once('=') {
            Some((key, value)) if !key.is_empty() => all.entry(key.to_owned()).or_default().push(value.to_owned()),
            _ => parser.add_problem(EXTRA, format_args!("{pair:?}: use KEY=VALUE")),
        }
    }
    all
}
