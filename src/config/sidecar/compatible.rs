//! Flags of kube-rbac-proxy: aliases of our flags, and flags without effect.

use crate::config::flag::{Flag, Group, Kind};
use crate::config::gateway::GatewayConfig;
use crate::config::reading::Reading;

/// Aliases, and flags accepted without effect.
pub(super) static GROUP: Group = Group {
    heading: "kube-rbac-proxy compatibility",
    flags: &[
        Flag::new("auth-token-audiences", Kind::List("AUDIENCE"), "", "The same as --api-audiences"),
        Flag::new("http2-disable", Kind::Switch, "false", "The same as --disable-http2-serving"),
        Flag::new("http2-max-concurrent-streams", Kind::Count, "0", "The same as --http2-max-streams-per-connection"),
        Flag::new(
            "insecure-listen-address",
            Kind::Text("HOST:PORT"),
            "",
            "Refused: tokens would be sent in the clear. --secure-listen-address needs no certificate: one is generated",
        ),
        Flag::new("http2-max-size", Kind::Count, "262144", NOTHING),
        Flag::new("tls-reload-interval", Kind::Duration, "1m", "Accepted, without effect: files are followed"),
        Flag::new("kube-api-qps", Kind::Fraction, "0", "Accepted, without effect: equal reviews share one call"),
        Flag::new("kube-api-burst", Kind::Count, "0", "Accepted, without effect, as --kube-api-qps"),
        Flag::new("logtostderr", Kind::Switch, "false", NOTHING),
        Flag::new("alsologtostderr", Kind::Switch, "false", NOTHING),
        Flag::new("add-dir-header", Kind::Switch, "false", NOTHING),
        Flag::new("one-output", Kind::Switch, "false", NOTHING),
        Flag::new("skip-headers", Kind::Switch, "false", NOTHING),
        Flag::new("skip-log-headers", Kind::Switch, "false", NOTHING),
        Flag::new("stderrthreshold", Kind::Text("LEVEL"), "", NOTHING),
        Flag::new("log-backtrace-at", Kind::Text("PLACE"), "", NOTHING),
        Flag::new("log-dir", Kind::Text("DIR"), "", NOTHING),
        Flag::new("log-file", Kind::Text("FILE"), "", NOTHING),
        Flag::new("log-file-max-size", Kind::Count, "0", NOTHING),
        Flag::new("log-flush-frequency", Kind::Duration, "5s", NOTHING),
        Flag::new("vmodule", Kind::Text("PATTERN=LEVEL,…"), "", NOTHING),
        Flag::new("legacy-stderr-threshold-behavior", Kind::Switch, "true", NOTHING),
    ],
};

const NOTHING: &str = "Accepted, without effect";
/// Largest values that kube-rbac-proxy accepts.
const BOUNDED: [(&str, u64); 2] = [("http2-max-size", u32::MAX as u64), ("kube-api-burst", i32::MAX as u64)];

/// Applies the aliases to `config`, and warns of flags without effect.
pub(super) fn read(reading: &mut Reading<'_>, config: &mut GatewayConfig) {
    const AUDIENCES: &str = "auth-token-audiences";
    let audiences = reading.list(AUDIENCES);
    if audiences.iter().any(String::is_empty) {
        reading.problem(AUDIENCES, "an audience must not be empty");
    }
    if reading.given(AUDIENCES) && reading.given("api-audiences") {
        reading.problem(AUDIENCES, "cannot be given together with --api-audiences, which is the same");
    } else if reading.given(AUDIENCES) {
        config.delegated.token_reviews.audiences = audiences;
    }
    if reading.switch("http2-disable") {
        config.serving.tls.http2 = false;
    }
    let streams = reading.count("http2-max-concurrent-streams", i32::MAX as u64);
    if let Some(streams) = u32::try_from(streams).ok().filter(|streams| *streams > 0) {
        config.limits.http2_max_streams = streams;
    }
    if !reading.text("insecure-listen-address").is_empty() {
        let message = "tokens would be sent in the clear; use --secure-listen-address, for which a certificate is generated \
                       when none is given";
        reading.problem("insecure-listen-address", message);
    }
    without_effect(reading);
}

fn without_effect(reading: &mut Reading<'_>) {
    let flags = || GROUP.flags.iter().filter(|flag| flag.help.starts_with(NOTHING));
    for (name, most) in BOUNDED {
        reading.count(name, most);
    }
    reading.without_effect(flags().filter(|flag| BOUNDED.iter().all(|(name, _)| *name != flag.name)));
    for flag in flags() {
        if reading.given(flag.name) {
            reading.warning(flag.name, "has no effect");
        }
    }
}
