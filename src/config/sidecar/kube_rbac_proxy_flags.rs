//! Flags of kube-rbac-proxy: aliases of our flags, and flags without effect.

use crate::config::flag::{Flag, FlagGroup, FlagKind};
use crate::config::gateway::GatewayConfig;
use crate::config::parser::FlagParser;

/// Aliases, and flags accepted without effect.
pub(super) static KUBE_RBAC_PROXY: FlagGroup = FlagGroup {
    heading: "kube-rbac-proxy compatibility",
    flags: &[
        Flag::new("auth-token-audiences", FlagKind::List("AUDIENCE"), "", "The same as --api-audiences"),
        Flag::new("http2-disable", FlagKind::Switch, "false", "The same as --disable-http2-serving"),
        Flag::new(
            "http2-max-concurrent-streams",
            FlagKind::Count,
            "0",
            "The same as --http2-max-streams-per-connection",
        ),
        Flag::new(
            "insecure-listen-address",
            FlagKind::Text("HOST:PORT"),
            "",
            "Refused: tokens would be sent in the clear. --secure-listen-address needs no certificate: one is generated",
        ),
        Flag::new("http2-max-size", FlagKind::Count, "262144", IGNORED_HELP),
        Flag::new("tls-reload-interval", FlagKind::Duration, "1m", "Accepted, without effect: files are followed"),
        Flag::new("kube-api-qps", FlagKind::Fraction, "0", "Accepted, without effect: equal reviews share one call"),
        Flag::new("kube-api-burst", FlagKind::Count, "0", "Accepted, without effect, as --kube-api-qps"),
        Flag::new("logtostderr", FlagKind::Switch, "false", IGNORED_HELP),
        Flag::new("alsologtostderr", FlagKind::Switch, "false", IGNORED_HELP),
        Flag::new("add-dir-header", FlagKind::Switch, "false", IGNORED_HELP),
        Flag::new("one-output", FlagKind::Switch, "false", IGNORED_HELP),
        Flag::new("skip-headers", FlagKind::Switch, "false", IGNORED_HELP),
        Flag::new("skip-log-headers", FlagKind::Switch, "false", IGNORED_HELP),
        Flag::new("stderrthreshold", FlagKind::Text("LEVEL"), "", IGNORED_HELP),
        Flag::new("log-backtrace-at", FlagKind::Text("PLACE"), "", IGNORED_HELP),
        Flag::new("log-dir", FlagKind::Text("DIR"), "", IGNORED_HELP),
        Flag::new("log-file", FlagKind::Text("FILE"), "", IGNORED_HELP),
        Flag::new("log-file-max-size", FlagKind::Count, "0", IGNORED_HELP),
        Flag::new("log-flush-frequency", FlagKind::Duration, "5s", IGNORED_HELP),
        Flag::new("vmodule", FlagKind::Text("PATTERN=LEVEL,…"), "", IGNORED_HELP),
        Flag::new("legacy-stderr-threshold-behavior", FlagKind::Switch, "true", IGNORED_HELP),
    ],
};

const IGNORED_HELP: &str = "Accepted, without effect";
/// Largest values that kube-rbac-proxy accepts.
const BOUNDED: [(&str, u64); 2] = [("http2-max-size", u32::MAX as u64), ("kube-api-burst", i32::MAX as u64)];

/// Applies the aliases to `config`, and warns of flags without effect.
pub(super) fn read(parser: &mut FlagParser<'_>, config: &mut GatewayConfig) {
    const AUDIENCES: &str = "auth-token-audiences";
    let audiences = parser.list(AUDIENCES);
    if audiences.iter().any(String::is_empty) {
        parser.add_problem(AUDIENCES, "an audience must not be empty");
    }
    if parser.is_given(AUDIENCES) && parser.is_given("api-audiences") {
        parser.add_problem(AUDIENCES, "cannot be given together with --api-audiences, which is the same");
    } else if parser.is_given(AUDIENCES) {
        config.delegated_auth.token_reviews.audiences = audiences;
    }
    if parser.switch("http2-disable") {
        config.serving.tls.http2 = false;
    }
    let streams = parser.count("http2-max-concurrent-streams", i32::MAX as u64);
    if let Some(streams) = u32::try_from(streams).ok().filter(|streams| *streams > 0) {
        config.limits.http2_max_streams = streams;
    }
    if !parser.text("insecure-listen-address").is_empty() {
        let message = "tokens would be sent in the clear; use --secure-listen-address, for which a certificate is generated \
                       when none is given";
        parser.add_problem("insecure-listen-address", message);
    }
    warn_ignored(parser);
}

fn warn_ignored(parser: &mut FlagParser<'_>) {
    let flags = || KUBE_RBAC_PROXY.flags.iter().filter(|flag| flag.help.starts_with(IGNORED_HELP));
    for (name, most) in BOUNDED {
        parser.count(name, most);
    }
    parser.check_ignored(flags().filter(|flag| BOUNDED.iter().all(|(name, _)| *name != flag.name)));
    for flag in flags() {
        if parser.is_given(flag.name) {
            parser.add_warning(flag.name, "has no effect");
        }
    }
}
