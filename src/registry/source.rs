//! What a source of the registry holds, asked by name, and which source counts where two have the same.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::api_service::ApiService;
use super::endpoints::EndpointSlice;
use super::service::Service;

/// One source. Asked for one object, it does not look at the others.
pub(super) trait Source {
    /// The APIService of this name, and where it stands.
    fn api_service(&self, name: &str) -> Option<(String, Arc<ApiService>)>;

    /// The Service of this key.
    fn service(&self, key: &str) -> Option<Arc<Service>>;

    /// The EndpointSlices of the Service of this key, and its Endpoints.
    fn endpoint_slices(&self, key: &str) -> Vec<Arc<EndpointSlice>>;

    /// Why nobody knows what there is of a Service, if that is so.
    fn trouble(&self, key: &str) -> Option<String>;

    /// Everything that there is.
    fn all(&self) -> Touched;
}

/// Names of what may be another now.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Touched {
    /// APIServices.
    pub(super) api_services: BTreeSet<String>,
    /// Services, and what belongs to them, by [`service_key`].
    pub(super) services: BTreeSet<String>,
}

impl Touched {
    /// These as well.
    pub(super) fn extend(&mut self, mut others: Touched) {
        self.api_services.append(&mut others.api_services);
        self.services.append(&mut others.services);
    }
}

/// One source over another: of two with the same name the upper one's counts, and who has a Service has its endpoints.
#[derive(Clone, Copy, Default)]
pub(super) struct Layers<'s> {
    pub(super) upper: Option<&'s dyn Source>,
    pub(super) lower: Option<&'s dyn Source>,
}

/// An APIService that counts.
pub(super) struct Counting {
    /// Where it stands.
    pub(super) place: String,
    pub(super) one: Arc<ApiService>,
    /// Where another of the same name stands, which does not count.
    pub(super) hides: Option<String>,
}

impl Layers<'_> {
    /// One source alone.
    pub(super) fn only(source: &dyn Source) -> Layers<'_> {
        Layers { upper: Some(source), lower: None }
    }

    pub(super) fn api_service(&self, name: &str) -> Option<Counting> {
        let upper = self.upper.and_then(|upper| upper.api_service(name));
        let lower = self.lower.and_then(|lower| lower.api_service(name));
        match (upper, lower) {
            (Some((place, one)), hidden) => Some(Counting { place, one, hides: hidden.map(|(place, _)| place) }),
            (None, Some((place, one))) => Some(Counting { place, one, hides: None }),
            (None, None) => None,
        }
    }

    pub(super) fn service(&self, key: &str) -> Option<Arc<Service>> {
        let upper = self.upper.and_then(|upper| upper.service(key));
        upper.or_else(|| self.lower.and_then(|lower| lower.service(key)))
    }

    pub(super) fn endpoint_slices(&self, key: &str) -> Vec<Arc<EndpointSlice>> {
        let has = |source: Option<&dyn Source>| source.is_some_and(|source| source.service(key).is_some());
        let of = |source: Option<&dyn Source>| source.map_or_else(Vec::new, |source| source.endpoint_slices(key));
        match (has(self.upper), has(self.lower)) {
            (true, _) => of(self.upper),
            (false, true) => of(self.lower),
            (false, false) => of(self.upper).into_iter().chain(of(self.lower)).collect(),
        }
    }

    pub(super) fn trouble(&self, key: &str) -> Option<String> {
        let upper = self.upper.and_then(|upper| upper.trouble(key));
        upper.or_else(|| self.lower.and_then(|lower| lower.trouble(key)))
    }

    /// Everything that there is.
    pub(super) fn all(&self) -> Touched {
        let mut all = Touched::default();
        for source in [self.upper, self.lower].into_iter().flatten() {
            all.extend(source.all());
        }
        all
    }
}

/// A Service as a key: no namespace has a slash.
pub(super) fn service_key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// Namespace and name of a [`service_key`].
pub(super) fn of_key(key: &str) -> (&str, &str) {
    key.split_once('/').unwrap_or(("", key))
}
