//! Consistency of the objects of a registry directory: an APIService references an existing Service, port and
//! endpoints, and endpoints belong to an existing Service.
//!
//! A running gateway reports the same as conditions, and waits for the missing objects.

use std::collections::BTreeSet;

use crate::egress::EgressRoutes;
use crate::process::{HelpTopic, Problem, Problems};
use crate::registry::directory::last_good::LastGood;
use crate::registry::layered_sources::RegistrySource as _;
use crate::registry::resolve::{ResolveRules, resolve};
use crate::registry::snapshot::Registry;
use crate::registry::{ApiServiceBackend, ServiceReference};

/// Reports inconsistent objects. `elsewhere`: Services may also come from another source, so that a missing one is no
/// error; neither is one that may be among the invalid objects. Without `routes` the egress selections are unknown.
pub(in crate::registry) fn cross_check(
    state: &LastGood,
    registry: &Registry,
    (rules, routes): (ResolveRules, Option<&EgressRoutes>),
    elsewhere: bool,
) -> Problems {
    let (mut problems, no_routes) = (Vec::new(), EgressRoutes::default());
    for name in state.all_names().api_services {
        let Some((location, one)) = state.api_service(&name) else { continue };
        let Err(unavailable) = resolve(&one, registry, rules, routes.unwrap_or(&no_routes)) else { continue };
        let service = match &one.backend {
            ApiServiceBackend::Service(reference) => Some(reference),
            ApiServiceBackend::Local | ApiServiceBackend::Url(_) => None,
        };
        let doubtful = service.is_some_and(|of| state.may_be_wrong(&of.namespace, &of.name));
        let message = match (unavailable.reason, &one.backend) {
            ("Local", _) => continue,
            ("ServiceNotFound", _) if elsewhere => continue,
            ("EgressSelectionNotFound", _) if routes.is_none() => continue,
            ("ServiceNotFound" | "EndpointsNotFound" | "MissingEndpoints", _) if doubtful => continue,
            ("MissingEndpoints", ApiServiceBackend::Service(reference)) => {
                match mismatched_port_names(registry, reference) {
                    // The endpoints exist and are not ready: no error.
                    None => continue,
                    Some(names) => format!("{}; they have {names}", unavailable.message),
                }
            }
            _ => unavailable.message,
        };
        let field = if unavailable.reason == "EgressSelectionNotFound" {
            "metadata.annotations[narthex.dev/egress]"
        } else {
            "spec.service"
        };
        let problem = Problem::at_field(location, field, format_args!("{}: {message}", unavailable.reason));
        problems.push(problem.with_help(HelpTopic::ServiceNotResolved));
    }
    if !elsewhere {
        for (location, slice) in state.endpoint_slices_in_order() {
            let (namespace, service) = (&slice.namespace, &slice.service);
            if registry.service(namespace, service).is_none() && !state.may_be_wrong(namespace, service) {
                let field = if slice.legacy { "metadata.name" } else { "metadata.labels[kubernetes.io/service-name]" };
                let message = format_args!("service/{service} in {namespace:?} is not present");
                problems.push(Problem::at_field(location, field, message).with_help(HelpTopic::ServiceNotResolved));
            }
        }
    }
    Problems(problems)
}

/// Port names of the endpoints of a Service, for a message. `None` if one of them matches the Service's port.
fn mismatched_port_names(
    registry: &Registry,
    ServiceReference { namespace, name, port }: &ServiceReference,
) -> Option<String> {
    let wanted_name = &registry.service(namespace, name)?.port(*port)?.name;
    let slices = registry.endpoint_slices_of(namespace, name);
    let subsets = slices.iter().flat_map(|slice| &slice.subsets).filter(|subset| !subset.endpoints.is_empty());
    let names: BTreeSet<&str> = subsets.flat_map(|subset| &subset.ports).map(|port| port.name.as_str()).collect();
    if names.contains(wanted_name.as_str()) {
        return None;
    }
    let names: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    Some(if names.is_empty() { "none".to_owned() } else { names.join(", ") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::directory::scan::DirectoryScan;
    use crate::registry::layered_sources::LayeredSources;
    use crate::registry::settings::Settings;
    use crate::registry::snapshot::tests::api_service;

    fn findings(text: &str, elsewhere: bool) -> Vec<String> {
        let mut state = LastGood::new(Settings::default());
        state.update(DirectoryScan::from_texts(&[("f", text)]));
        assert_eq!(state.problems().to_string(), "");
        let registry = Registry::from_sources(LayeredSources::single(&state));
        let found =
            cross_check(&state, &registry, (ResolveRules::default(), Some(&EgressRoutes::default())), elsewhere);
        found.0.iter().map(ToString::to_string).collect()
    }

    const APISERVICE: &str = "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {name: v1.a.io}\nspec: \
                              {group: a.io, version: v1, groupPriorityMinimum: 1, versionPriority: 1, service: {namespace: \
                              ns, name: s, port: PORT}}\n---\n";
    const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {namespace: ns, name: s}\nspec: {clusterIP: 10.0.0.1, \
                           ports: [{name: https, port: 443}]}\n---\n";
    const SLICE: &str = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {namespace: ns, name: s-1, labels: \
                         {kubernetes.io/service-name: s}}\naddressType: IPv4\nports: [{name: https, port: 1}]\nendpoints: \
                         [{addresses: [10.0.0.2], conditions: {ready: true}}]\n---\n";

    #[test]
    fn cross_check_is_silent_of_what_a_wrong_object_may_be() {
        let of = |text: &str| {
            let mut state = LastGood::new(Settings::default());
            state.update(DirectoryScan::from_texts(&[("f", text)]));
            assert_eq!(state.problems().0.len(), 1, "{}", state.problems());
            let registry = Registry::from_sources(LayeredSources::single(&state));
            let found = cross_check(&state, &registry, (ResolveRules::default(), None), false);
            found.0.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let others = APISERVICE.replace("PORT", "443").replace("v1.a.io", "v1.b.io").replace("a.io", "b.io");
        let others = others.replace("name: s,", "name: other,");
        let missing = "f, document 4, APIService \"v1.b.io\": spec.service: ServiceNotFound: service/other in \"ns\" is not \
                       present";
        // The Service is wrong: what leads to it is not, but another that leads nowhere is.
        let service = SERVICE.replace("10.0.0.1", "nonsense");
        let text = format!("{}{service}{SLICE}{others}", APISERVICE.replace("PORT", "443"));
        assert_eq!(of(&text), [missing]);
        // A document that cannot be read may be anything.
        let text = format!("{}a: [\n---\n{SLICE}{others}", APISERVICE.replace("PORT", "443"));
        assert_eq!(of(&text), [""; 0]);
        // A wrong port is one whatever else is wrong.
        let text = format!("{}{SERVICE}{SLICE}kind: Servise\n---\n", APISERVICE.replace("PORT", "8443"));
        assert_eq!(of(&text).len(), 1);
    }

    #[test]
    fn cross_check_reports_inconsistent_objects() {
        let whole = |port: &str| format!("{}{SERVICE}{SLICE}", APISERVICE.replace("PORT", port));
        assert_eq!(findings(&whole("443"), false), [""; 0]);
        assert_eq!(
            findings(&api_service("v1.local.io", "groupPriorityMinimum: 1, versionPriority: 1"), false),
            [""; 0]
        );
        let place = "f, document 1, APIService \"v1.a.io\": spec.service: ";
        let port = format!("{place}ServicePortError: service/s in \"ns\" is not listening on port 8443");
        assert_eq!(findings(&whole("8443"), false), [port]);
        let missing = format!("{place}ServiceNotFound: service/s in \"ns\" is not present");
        let alone = APISERVICE.replace("PORT", "443");
        assert_eq!(findings(&alone, false), [missing.as_str()]);
        assert_eq!(findings(&alone, true), [""; 0]);
        let renamed = whole("443").replace("ports: [{name: https, port: 1}]", "ports: [{name: http, port: 1}]");
        assert_eq!(
            findings(&renamed, true),
            [format!(
                "{place}MissingEndpoints: endpointslices for service/s in \"ns\" have no addresses with port name \
                 \"https\"; they have \"http\""
            )]
        );
        assert_eq!(findings(&whole("443").replace("ready: true", "ready: false"), false), [""; 0]);
        let astray = whole("443").replace("service-name: s}", "service-name: t}");
        let slice = "f, document 3, EndpointSlice \"s-1\": metadata.labels[kubernetes.io/service-name]: service/t in \"ns\" \
                     is not present";
        assert_eq!(findings(&astray, false), [slice]);
    }
}
