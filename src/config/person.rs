//! kubectl's global flags: the kubeconfig, its overrides and impersonation.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::flag::{Flag, Group, Kind};
use super::reading::Reading;
use crate::kubeapi::duration;
use crate::kubeclient::{Chosen, Source};

/// The kubeconfig and its overrides (`ConfigOverrides` of client-go).
pub(super) static GROUP: Group = Group {
    heading: "Kubeconfig and impersonation",
    flags: &[
        Flag::new(
            "kubeconfig",
            Kind::File,
            "",
            "kubeconfig with the API server and credentials; if not given, the files of $KUBECONFIG, the first with an entry wins, or ~/.kube/config. Followed on disk, with the files they name",
        ),
        Flag::new("context", Kind::Text("NAME"), "", "Context of the kubeconfig, instead of the current one"),
        Flag::new("cluster", Kind::Text("NAME"), "", "Cluster of the kubeconfig, instead of the context's"),
        Flag::new("user", Kind::Text("NAME"), "", "User of the kubeconfig, instead of the context's"),
        Flag::new(
            "server",
            Kind::Text("URL"),
            "",
            "URL of the API server, instead of the kubeconfig's; no kubeconfig is needed then",
        )
        .or('s'),
        Flag::new("tls-server-name", Kind::Text("NAME"), "", "Name that the server's certificate must have"),
        Flag::new("certificate-authority", Kind::File, "", "CA bundle for the server's certificate"),
        Flag::new(
            "insecure-skip-tls-verify",
            Kind::Switch,
            "false",
            "Do not verify the server's certificate: connections can be intercepted and modified",
        ),
        Flag::new(
            "token",
            Kind::Text("TOKEN"),
            "",
            "Bearer token. Other users of this machine can read it on a command line, but not in NARTHEX_TOKEN",
        ),
        Flag::new("client-certificate", Kind::File, "", "Client certificate"),
        Flag::new("client-key", Kind::File, "", "Private key of --client-certificate"),
        Flag::new("username", Kind::Text("NAME"), "", "User name for basic authentication, with --password"),
        Flag::new("password", Kind::Text("PASSWORD"), "", "Password for basic authentication"),
        Flag::new("as", Kind::Text("USER"), "", "User to impersonate"),
        Flag::new("as-group", Kind::Repeated("GROUP"), "", "Group to impersonate"),
        Flag::new("as-uid", Kind::Text("UID"), "", "UID to impersonate"),
        Flag::new("as-user-extra", Kind::Repeated("KEY=VALUE"), "", "Extra attribute of the user to impersonate"),
    ],
};

const NOTHING: &str = "Accepted, without effect, as by kubectl proxy";

/// Global flags of kubectl that have no effect on `kubectl proxy`.
pub(super) static WITHOUT_EFFECT: Group = Group {
    heading: "kubectl compatibility",
    flags: &[
        Flag::new("namespace", Kind::Text("NAME"), "", NOTHING).or('n'),
        Flag::new(
            "request-timeout",
            Kind::Text("DURATION"),
            "0",
            "Accepted if kubectl would take it (whole seconds, or a duration such as 8s), without effect, as by kubectl proxy",
        ),
        Flag::new("disable-compression", Kind::Switch, "false", NOTHING),
        Flag::new("match-server-version", Kind::Switch, "false", NOTHING),
        Flag::new("warnings-as-errors", Kind::Switch, "false", NOTHING),
        Flag::new("cache-dir", Kind::Directory, "", NOTHING),
        Flag::new("kuberc", Kind::File, "", NOTHING),
        Flag::new("profile", Kind::Text("NAME"), "none", NOTHING),
        Flag::new("profile-output", Kind::File, "", NOTHING),
        Flag::new("log-flush-frequency", Kind::Duration, "5s", NOTHING),
        Flag::new("vmodule", Kind::Text("PATTERN=LEVEL,…"), "", NOTHING),
    ],
};

/// The kubeconfig files and their overrides, found as kubectl finds them.
pub(super) fn source(reading: &mut Reading<'_>) -> Source {
    reading.without_effect(WITHOUT_EFFECT.flags.iter());
    reading.parse("request-timeout", timeout);
    let mut paths: Vec<PathBuf> = reading.path("kubeconfig").into_iter().collect();
    let named = !paths.is_empty();
    if paths.is_empty() {
        let named = reading.environment("KUBECONFIG").unwrap_or_default();
        for path in named.split(':').filter(|path| !path.is_empty()).map(PathBuf::from) {
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
    }
    if paths.is_empty() {
        paths.extend(reading.environment("HOME").map(|home| PathBuf::from(home).join(".kube").join("config")));
    }
    let chosen = chosen(reading, named);
    if paths.is_empty() && !chosen.without_files {
        reading.problem("kubeconfig", "required: neither KUBECONFIG nor HOME is set");
    }
    Source::Person(paths, Box::new(chosen))
}

/// Checks a timeout as kubectl does (`ParseTimeout` in `k8s.io/client-go/tools/clientcmd/overrides.go`): whole seconds,
/// or a Go duration. The message is kubectl's.
fn timeout(text: &str) -> Result<(), &'static str> {
    let is_duration = duration::parse_signed(text).is_ok();
    if text.is_empty() || text.parse::<i64>().is_ok_and(|seconds| seconds >= 0) || is_duration {
        return Ok(());
    }
    Err(
        "Invalid timeout value. Timeout must be a single integer in seconds, or an integer followed by a corresponding \
         time unit (e.g. 1s | 2m | 3h)",
    )
}

fn chosen(reading: &mut Reading<'_>, named: bool) -> Chosen {
    let as_user_extra = extra(reading);
    let as_groups = reading.list("as-group");
    let insecure_skip_tls_verify = reading.switch("insecure-skip-tls-verify");
    // Absolute, so that a change of the working directory does not matter.
    let mut path = |flag| reading.path(flag).map(|path| std::path::absolute(&path).unwrap_or(path));
    let certificate_authority = path("certificate-authority");
    let (client_certificate, client_key) = (path("client-certificate"), path("client-key"));
    let mut text = |flag| Some(reading.text(flag)).filter(|text| !text.is_empty());
    let server = text("server");
    Chosen {
        context: text("context"),
        cluster: text("cluster"),
        user: text("user"),
        without_files: server.is_some() && !named,
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
fn extra(reading: &mut Reading<'_>) -> BTreeMap<String, Vec<String>> {
    const EXTRA: &str = "as-user-extra";
    let mut all = BTreeMap::<_, Vec<_>>::new();
    for pair in reading.list(EXTRA) {
        match pair.split_once('=') {
            Some((key, value)) if !key.is_empty() => all.entry(key.to_owned()).or_default().push(value.to_owned()),
            _ => reading.problem(EXTRA, format_args!("{pair:?}: use KEY=VALUE")),
        }
    }
    all
}
