//! Load balancing by the power of two choices: of two random endpoints the one with fewer requests in flight.
//!
//! That spreads requests nearly as evenly as picking the least loaded of all, and an endpoint that fails fast does not
//! attract all requests. Preferred endpoints come first; new ones get a growing share (slow start); ejected ones get
//! single trial requests. If no endpoint is left, any one that is usable is picked.

use std::rc::Rc;

use super::backend::{BackendMember, WorkerBackend};
use crate::availability::Weight;
use crate::egress::Endpoint;

/// Random picks before all endpoints are tried in turn.
const RANDOM_PICKS: usize = 6;

/// Properties of the request that matter for picking an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PickRequest {
    /// Whether the request can be retried.
    pub(super) is_safe: bool,
    /// It is long-running. Such requests are balanced by all requests in flight, the others by the short-lived ones
    /// only; otherwise an endpoint without watches would get all of them.
    pub(super) is_long_running: bool,
}

/// Whether a picked member can take the request.
enum Eligibility {
    Eligible,
    /// Ejected, but due for a trial request.
    Trial,
    Ineligible,
}

impl WorkerBackend {
    /// Picks an endpoint, never one of the members `failed`, and one of `doubtful` only if no other is left.
    pub(super) fn pick(
        &self,
        failed: &[usize],
        doubtful: &[usize],
        request: PickRequest,
    ) -> Option<(usize, &Rc<Endpoint>)> {
        if let [only] = self.members() {
            return (failed.is_empty() && only.is_usable()).then_some((0, &only.endpoint));
        }
        let index = if doubtful.is_empty() {
            self.pick_excluding(|index| failed.contains(&index), request)
        } else {
            // The request failed before: it is not used as a trial.
            let request = PickRequest { is_safe: false, ..request };
            self.pick_excluding(|index| failed.contains(&index) || doubtful.contains(&index), request)
                .or_else(|| self.pick_excluding(|index| failed.contains(&index), request))
        }?;
        Some((index, &self.member(index).endpoint))
    }

    fn pick_excluding(&self, not: impl Fn(usize) -> bool, request: PickRequest) -> Option<usize> {
        let (preferred, all) = (self.preferred_count(), self.members().len());
        let tiers = [(0, preferred), (preferred, all)];
        let mut found = tiers.iter().find_map(|(from, to)| self.best_of_two(*from, *to, &not, request));
        // An ejected endpoint is better than none.
        found = found.or_else(|| tiers.iter().find_map(|(from, to)| self.least_loaded(*from, *to, &not, request)));
        found
    }

    fn best_of_two(&self, from: usize, to: usize, not: impl Fn(usize) -> bool, request: PickRequest) -> Option<usize> {
        let mut first = None;
        let mut second = |index: usize| -> Option<usize> {
            if first == Some(index) || not(index) {
                return None;
            }
            match eligibility(self.member(index), request.is_safe) {
                Eligibility::Ineligible => None,
                Eligibility::Trial => Some(index),
                Eligibility::Eligible => match first {
                    None => {
                        first = Some(index);
                        None
                    }
                    Some(other) if self.load(other, request) <= self.load(index, request) => Some(other),
                    Some(_) => Some(index),
                },
            }
        };
        if to - from > 2 {
            for _ in 0..RANDOM_PICKS {
                if let Some(found) = second(fastrand::usize(from..to)) {
                    return Some(found);
                }
            }
        }
        // Few are left, or there are few: try all, from a random start.
        let count = to - from;
        let start = if count > 1 { fastrand::usize(..count) } else { 0 };
        for step in 0..count {
            if let Some(found) = second(from + (start + step) % count) {
                return Some(found);
            }
        }
        first
    }

    fn least_loaded(&self, from: usize, to: usize, not: impl Fn(usize) -> bool, request: PickRequest) -> Option<usize> {
        (from..to)
            .filter(|index| !not(*index) && self.member(*index).is_usable())
            .min_by_key(|index| self.load(*index, request))
    }

    fn load(&self, index: usize, request: PickRequest) -> usize {
        let endpoint = &self.member(index).endpoint;
        if request.is_long_running { endpoint.pending() } else { endpoint.short_lived() }
    }
}

fn eligibility(member: &BackendMember, safe: bool) -> Eligibility {
    if !member.is_usable() {
        return Eligibility::Ineligible;
    }
    if member.health.is_clean() {
        return Eligibility::Eligible;
    }
    match member.health.weight(safe) {
        Weight::Full => Eligibility::Eligible,
        Weight::Fraction(part) if fastrand::f64() < part => Eligibility::Eligible,
        Weight::Fraction(_) | Weight::Zero => Eligibility::Ineligible,
        Weight::Trial => Eligibility::Trial,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::availability::AvailabilityMap;
    use crate::egress::{Pool, Resolver};
    use crate::observe::metrics::{Metrics, WorkerMetrics};
    use crate::registry::ResolveRules;
    use crate::registry::snapshot::tests::{api_service, registry};
    use crate::route::{Dealer, RouteTable};

    /// A backend with endpoints of both address families; the first `first` are of the Service's own.
    fn backend(first: usize, other: usize) -> WorkerBackend {
        let slice = |name: &str, family: &str, count: usize, address: fn(usize) -> String| {
            let all: String = (0..count).map(|number| format!("- {{addresses: ['{}']}}\n", address(number))).collect();
            format!(
                "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: {name}, namespace: ns, labels: {{kubernetes.io/service-name: api}}}}\naddressType: {family}\nports: [{{port: 1}}]\nendpoints:\n{all}---\n"
            )
        };
        let text = [
            api_service("v1.a.io", "groupPriorityMinimum: 1, versionPriority: 1, service: {name: api, namespace: ns}"),
            "apiVersion: v1\nkind: Service\nmetadata: {name: api, namespace: ns}\nspec: {clusterIP: 10.0.0.1, ports: [{port: 443}]}\n---\n".to_owned(),
            slice("four", "IPv4", first, |number| format!("10.0.1.{number}")),
            slice("six", "IPv6", other, |number| format!("fd00::{number}")),
        ];
        let table = RouteTable::build(
            &registry(&text.concat()),
            ResolveRules::default(),
            &Default::default(),
            &AvailabilityMap::default(),
            None,
        );
        let target = table.by_name("v1.a.io").unwrap().target(|| Dealer::default().hand("jane")).ok().unwrap();
        let metrics = WorkerMetrics::new(&Metrics::new());
        WorkerBackend::new(target.route(), None, &Rc::default(), &Pool::new(Resolver::System), &metrics).unwrap()
    }

    const SAFE: PickRequest = PickRequest { is_safe: true, is_long_running: false };
    const UNSAFE: PickRequest = PickRequest { is_safe: false, is_long_running: false };

    fn picked(backend: &WorkerBackend, failed: &[usize], errand: PickRequest) -> HashSet<usize> {
        (0..500).filter_map(|_| backend.pick(failed, &[], errand)).map(|(index, _)| index).collect()
    }

    fn take_out(backend: &WorkerBackend, index: usize) {
        while !backend.member(index).health.record_failure(|| true) {}
        assert!(backend.member(index).health.is_ejected());
    }

    #[test]
    fn load_balance_prefers_first_family_until_it_failed() {
        let backend = backend(4, 2);
        assert_eq!(picked(&backend, &[], SAFE), HashSet::from([0, 1, 2, 3]));
        assert_eq!(picked(&backend, &[1, 3], SAFE), HashSet::from([0, 2]));
        assert_eq!(picked(&backend, &[0, 1, 2, 3], SAFE), HashSet::from([4, 5]));
        assert!(picked(&backend, &[0, 1, 2, 3, 4, 5], SAFE).is_empty());
        let doubtful = backend.pick(&[0, 1, 2], &[3, 4, 5], SAFE).map(|(index, _)| index);
        assert_eq!(doubtful, Some(3), "better than none");
    }

    #[test]
    fn load_balance_ejected_endpoint_gets_one_safe_trial() {
        let backend = backend(4, 0);
        take_out(&backend, 2);
        assert_eq!(picked(&backend, &[], SAFE), HashSet::from([0, 1, 3]));
        backend.member(2).health.record_probe_success();
        assert_eq!(picked(&backend, &[], UNSAFE), HashSet::from([0, 1, 3]));
        let tried: Vec<usize> = (0..500).filter_map(|_| backend.pick(&[], &[], SAFE)).map(|(index, _)| index).collect();
        assert_eq!(tried.iter().filter(|index| **index == 2).count(), 1);
    }

    #[test]
    fn load_balance_uses_ejected_endpoints_when_none_is_left() {
        let backend = backend(3, 1);
        (0..4).for_each(|index| take_out(&backend, index));
        assert!(!picked(&backend, &[], UNSAFE).is_empty());
        let one = self::backend(1, 0);
        take_out(&one, 0);
        assert_eq!(picked(&one, &[], UNSAFE), HashSet::from([0]));
    }
}
