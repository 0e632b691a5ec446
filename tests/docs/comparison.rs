//! The comparison: each cell names what shows it, a test wherever a test can.

use crate::page::{Page, repository};

/// What is documented by the peer, and not by a test here.
const SOURCE: &str = "source: ";

const KCP: &str = "source: package documentation and pkg/proxy of kcp-dev/kcp";
const KCP_MAPPING: &str = "source: pkg/proxy/mapping.go of kcp-dev/kcp";
const KCP_AUTHENTICATION: &str = "source: pkg/proxy/options/authentication.go of kcp-dev/kcp";
const AGGREGATOR: &str = "source: README of kubernetes/kube-aggregator";
const KUBE_RBAC_PROXY_SHUTDOWN: &str = "source: cmd/kube-rbac-proxy/app of brancz/kube-rbac-proxy v0.19.1";
const SIDE_BY_SIDE: &str = "proxy: responses equal kubectl proxy's except intended differences";
const OPENAPI_SIDE_BY_SIDE: &str = "OpenAPI v2: merge equals kube-apiserver's";
const RBAC_PROXY_UPSTREAMS: &str = "kube-rbac-proxy: upstreams";

/// Row, and for each column of the table what shows its cell: tests, separated by `; `, or a source. Empty for an empty
/// cell.
const CELLS: [(&str, [&str; 5]); 15] = [
    (
        "Place",
        [
            "relay_get_with_identity_over_all_protocol_pairs; sidecar_relays_authorized_request_with_identity_headers; \
             proxy_forwards_with_kubeconfig_credentials",
            OPENAPI_SIDE_BY_SIDE,
            RBAC_PROXY_UPSTREAMS,
            KCP,
            "proxy: the Kubernetes task",
        ],
    ),
    (
        "Needs a kube-apiserver",
        [
            "serve delegation: extension server without kube-apiserver; page docs/tutorials/standalone.md",
            AGGREGATOR,
            "kube-rbac-proxy: resource attributes",
            KCP,
            SIDE_BY_SIDE,
        ],
    ),
    (
        "Routes by",
        [
            "registry_apiservices_added_changed_and_removed_under_load; sidecar_upstream_chosen_by_longest_path_prefix",
            OPENAPI_SIDE_BY_SIDE,
            RBAC_PROXY_UPSTREAMS,
            KCP_MAPPING,
            SIDE_BY_SIDE,
        ],
    ),
    (
        "Registry",
        [
            "registry_mounted_configmap_reloaded; cluster_registry_served_and_watched",
            "page docs/how-to/cluster-registry.md",
            "kube-rbac-proxy: every flag is supported",
            KCP_MAPPING,
            SIDE_BY_SIDE,
        ],
    ),
    (
        "Authentication",
        [
            "client_certificate_gives_name_groups_and_uid; request_header_identity_accepted_from_trusted_front_proxy_only; \
             token_file_authenticates_and_token_is_not_forwarded; jwt_accepted_with_every_algorithm_and_not_forwarded; \
             reviews_cached_and_identity_headers_set",
            "delegated auth: authentication and authorization results equal the extension server's",
            "kube-rbac-proxy: audiences and OpenID Connect",
            KCP_AUTHENTICATION,
            "proxy: the Kubernetes task",
        ],
    ),
    (
        "Authorization",
        [
            "rbac_sample_policy_allows_exactly_its_rules; access_review_denied_is_403_and_failed_is_500; \
             authorization_webhook_failure_policy_no_opinion_or_deny",
            "delegated auth: RBAC binding created and deleted",
            "kube-rbac-proxy: static rules; kube-rbac-proxy: resource attributes",
            "",
            SIDE_BY_SIDE,
        ],
    ),
    (
        "Identity to the backend",
        [
            "relay_get_with_identity_over_all_protocol_pairs; forged_identity_headers_removed",
            "identity: user, uid and groups forwarded",
            "kube-rbac-proxy: identity headers",
            KCP,
            SIDE_BY_SIDE,
        ],
    ),
    (
        "Group filters on authentication",
        ["authentication_drop_groups_from_every_source", "", "", KCP_AUTHENTICATION, ""],
    ),
    (
        "Impersonation",
        [
            "impersonation: decisions equal the extension server's; impersonation: kubectl --as",
            "impersonation: decisions equal the extension server's",
            "kube-rbac-proxy: identity headers",
            "",
            "proxy: several kubeconfigs merged, with impersonation",
        ],
    ),
    (
        "Merges discovery and OpenAPI",
        [
            "discovery_aggregated_and_plain_forms_with_etags; openapi_v3_index_merged_and_documents_relayed; \
             OpenAPI v2: merge in front of kube-apiserver",
            OPENAPI_SIDE_BY_SIDE,
            RBAC_PROXY_UPSTREAMS,
            "",
            SIDE_BY_SIDE,
        ],
    ),
    (
        "Writes condition `Available`",
        [
            "leader_writes_changed_conditions_with_upstream_text; \
             leader election: one of two gateways writes conditions, the other takes over",
            "leader election: one of two gateways writes conditions, the other takes over",
            "kube-rbac-proxy: every flag is supported",
            "",
            SIDE_BY_SIDE,
        ],
    ),
    ("Audit events", ["audit: events equal kube-apiserver's", "audit: events equal kube-apiserver's", "", "", ""]),
    (
        "Configuration file reload",
        [
            "registry_mounted_configmap_reloaded; rbac_policy_file_reloaded_and_invalid_one_ignored; \
             egress_reload_keeps_connections_of_unchanged_selections; \
             rbac_proxy_static_rules_need_no_review_and_are_reloaded",
            "",
            "kube-rbac-proxy: certificate file broken after start",
            KCP_MAPPING,
            "",
        ],
    ),
    (
        "Egress",
        [
            "egress_socks5_carries_requests_watches_and_probes; \
             egress_http_connect_credentials_sent_for_requests_and_upgrades; \
             konnectivity_carries_requests_watches_and_probes",
            "egress_selector_configuration_accepted_and_refused_as_kube_apiserver",
            "",
            "",
            "socks5: kubectl with proxy-url",
        ],
    ),
    (
        "At SIGTERM",
        [
            "shutdown_under_load_answers_every_request_taken; sidecar_shutdown_finishes_running_requests",
            "",
            KUBE_RBAC_PROXY_SHUTDOWN,
            "",
            "",
        ],
    ),
];

#[test]
fn comparison_cells_name_a_test_or_a_source() {
    for (path, is_whole) in [("docs/comparison.md", true), ("README.md", false)] {
        let rows = Page::read(path).rows("Comparison");
        let rows: Vec<_> = rows.into_iter().filter(|row| row.len() == 6).collect();
        for row in &rows {
            let (_, evidence) =
                CELLS.iter().find(|(name, _)| *name == row[0]).unwrap_or_else(|| panic!("{path}: {:?}", row[0]));
            for (number, (cell, shown_by)) in row[1..].iter().zip(evidence).enumerate() {
                let is_shown = cell.is_empty() == shown_by.is_empty() || cell.is_empty() && !is_whole;
                assert!(is_shown, "{path}: row {:?}, column {}: {cell:?} is shown by {shown_by:?}", row[0], number + 1);
            }
        }
        assert!(rows.len() == CELLS.len() || !is_whole && rows.len() > 4, "{path}: {} rows", rows.len());
    }
}

#[test]
fn tests_named_by_the_comparison_exist() {
    let mut texts = Vec::new();
    collect(&repository().join("tests"), &mut texts);
    let (mut tests, mut sources) = (0, 0);
    for evidence in CELLS.iter().flat_map(|(_, cells)| cells).filter(|evidence| !evidence.is_empty()) {
        if evidence.starts_with(SOURCE) {
            sources += 1;
            continue;
        }
        for name in evidence.split("; ") {
            tests += 1;
            let (function, interop) = (format!("fn {name}("), format!("(\"{name}\","));
            // A test name may be on a line of its own.
            let exists = |text: &String| {
                text.contains(&function) || text.contains(&interop) || text.contains(&format!("\"{name}\",\n"))
            };
            assert!(texts.iter().any(exists), "no test is named {name:?}");
        }
    }
    println!("{tests} tests, {sources} sources");
    assert!(tests > 3 * sources, "{tests} tests, {sources} sources");
}

/// The texts of all tests but this one.
fn collect(folder: &std::path::Path, into: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // What `tests/interop/run` built is no test.
        if path.is_dir() && !path.ends_with("bin") && !path.ends_with("docs") {
            collect(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(std::fs::read_to_string(path).unwrap());
        }
    }
}
