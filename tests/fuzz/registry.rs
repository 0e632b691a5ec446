//! Registry manifests, URLs and patterns.

use narthex::availability::AvailabilityMap;
use narthex::process::parse_documents;
use narthex::registry::{LongRunning, ResolveRules, Settings, UrlBackend, parse_manifests, resolve};
use narthex::route::{Dealer, RouteTable};

use crate::fuzz_text;

const WORDS: &[&str] = &[
    "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {name: v1.a.io",
    "}\nspec: {group: a.io, version: v1, groupPriorityMinimum: 1, versionPriority: 1",
    ", service: {name: a, namespace: b, port: 443}",
    ", annotations: {narthex.dev/",
    "url: 'https://[::1]:9/x'}",
    "long-running: 'verb:list,/a/*'}",
    "probe-interval: 1s}",
    ", caBundle: ",
    "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t",
    "}\n",
    "---\n",
    "apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: b}\nspec: {ports: [{port: 443}], clusterIP: ",
    "10.0.0.1",
    "None",
    "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: c, namespace: b, labels: {kubernetes.io/service-name: a}}\naddressType: IPv4\nports: [{port: 1}]\nendpoints: [{addresses: [10.0.0.2]",
    "apiVersion: v1\nkind: Endpoints\nmetadata: {name: a, namespace: b}\nsubsets: [{addresses: [{ip: '::1'}], ports: [{port: 2}]",
    "}]\n",
    "apiVersion: v1\nkind: List\nitems:\n- ",
    "-1",
    "&x *x",
    "é",
    "\t",
    "\"",
    "{",
    "]",
];

#[test]
fn manifests() {
    let settings = Settings { allow_url_backends: true, ..Settings::default() };
    fuzz_text(WORDS, |text| {
        for json in [false, true] {
            let (found, problems) = parse_documents("f", text, json);
            assert!(found.iter().all(|document| document.location.starts_with("f, document ")));
            assert!(problems.0.iter().all(|problem| problem.location.starts_with('f') && !problem.message.is_empty()));
        }
        let registry = match parse_manifests(&settings, "f.yaml", text) {
            Ok(registry) => registry,
            Err(problems) => {
                assert!(!problems.0.is_empty());
                return;
            }
        };
        for one in registry.api_services() {
            assert_eq!(one.name, format!("{}.{}", one.version, one.group));
            if let Ok(resolved) = resolve(one, &registry, ResolveRules::default(), &Default::default()) {
                assert!((1..=resolved.endpoints.len()).contains(&resolved.preferred_count));
            }
        }
        let table = RouteTable::build(
            &registry,
            ResolveRules::default(),
            &Default::default(),
            &AvailabilityMap::default(),
            None,
        );
        for route in table.routes() {
            assert!(
                route.target(|| Dealer::default().hand("")).is_err()
                    || table.find_path(&route.api_service.path()).is_some()
            );
        }
    });
}

#[test]
fn urls_and_patterns() {
    fuzz_text(
        &["https://", "http:", "/", "//", ":", "443", "0", "[", "]", "::1", "a.io", ".", "..", "@", "%2e", "?", "*"],
        |text| {
            if let Ok(url) = UrlBackend::parse(text) {
                assert_eq!(UrlBackend::parse(&url.to_string()), Ok(url));
            }
            if let Ok(patterns) = LongRunning::parse(text) {
                let _ = patterns.matches("get", "", "/a/b");
            }
        },
    );
}
