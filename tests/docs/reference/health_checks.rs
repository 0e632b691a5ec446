//! The health checks: every name in the sources has a line here, and none is here that the sources do not have.

use std::collections::{BTreeMap, BTreeSet};

use super::{code, table};
use crate::source::SourceFile;

/// Name, commands, paths, and when it fails.
const CHECKS: [(&str, &str, &str, &str); 9] = [
    ("ping", "all", "`/livez`, `/readyz`, `/healthz`", "never: the process answers"),
    (
        "log",
        "all",
        "`/readyz`; with `--embedded-api` all",
        "one write to standard error has been blocked for two minutes",
    ),
    (
        "etcd",
        "gateway with `--embedded-api`",
        "`/livez`, `/readyz`, `/healthz`",
        "the store has ended. Passes with a note while writes are refused, for example by a full disk",
    ),
    (
        "poststarthook/apiservice-discovery-controller",
        "gateway",
        "`/readyz`",
        "not all APIServices are listed, or discovery was not fetched from all backends; once passed, it passes for good",
    ),
    (
        "registry",
        "gateway with `--kubeconfig`",
        "`/readyz`",
        "APIServices were not listed once. Passes with a note while the kube-apiserver cannot be watched",
    ),
    (
        "reviews",
        "gateway, sidecar, with reviews by a server",
        "`/readyz`",
        "with `--readiness-requires-reviews`: a review fails, or none has succeeded yet. Without that flag it passes with a note",
    ),
    (
        "serving-certificate",
        "sidecar with `--request-serving-certificate`",
        "`/readyz`",
        "no certificate was issued yet",
    ),
    ("shutdown", "all", "`/readyz`", "the process is shutting down"),
    ("upstream", "sidecar", "`/readyz`", "the server behind the sidecar accepts no connection"),
];

pub(super) fn regions(sources: &[SourceFile]) -> BTreeMap<String, String> {
    let mut named: BTreeSet<&str> = BTreeSet::new();
    for file in sources {
        for call in file.calls("HealthCheck::new").into_iter().chain(file.calls("HealthCheck::with_note")) {
            let name = file.arguments(call).into_iter().next().and_then(|first| file.literal(first));
            named.extend(name.map(|literal| literal.value.as_str()));
        }
    }
    let described: BTreeSet<&str> = CHECKS.iter().map(|(name, ..)| *name).collect();
    assert_eq!(named, described, "left: health checks in the sources; right: those with a text in tests/docs");
    let rows = CHECKS.iter().map(|(name, commands, paths, fails)| {
        vec![code(name), (*commands).to_owned(), (*paths).to_owned(), (*fails).to_owned()]
    });
    BTreeMap::from([("health checks".to_owned(), table(&["Check", "Commands", "Paths", "Fails when"], rows))])
}
