//! Sources of the registry, and precedence where two sources have an object of the same name.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::objects::api_service::ApiService;
use super::objects::endpoints::EndpointSlice;
use super::objects::service::Service;

/// A source of registry objects. A lookup by name costs the same however many objects there are.
pub(super) trait RegistrySource {
    /// The APIService of this name, with its location for error messages.
    fn api_service(&self, name: &str) -> Option<(String, Arc<ApiService>)>;

    /// The Service of this key.
    fn service(&self, key: &str) -> Option<Arc<Service>>;

    /// The EndpointSlices and Endpoints of the Service of this key.
    fn endpoint_slices(&self, key: &str) -> Vec<Arc<EndpointSlice>>;

    /// The error that prevents reading a Service or its endpoints, if there is one.
    fn lookup_error(&self, key: &str) -> Option<String>;

    /// The names of all objects of this source.
    fn all_names(&self) -> DirtySet;
}

/// Names of objects that may have changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct DirtySet {
    /// Names of APIServices.
    pub(super) api_services: BTreeSet<String>,
    /// Services that changed themselves or in their endpoints, by
    /// [`service_key`](super::objects::service::service_key).
    pub(super) services: BTreeSet<String>,
}

impl DirtySet {
    /// Adds all of `others`.
    pub(super) fn extend(&mut self, mut others: DirtySet) {
        self.api_services.append(&mut others.api_services);
        self.services.append(&mut others.services);
    }
}

/// Two sources with precedence: of two objects with the same name, the upper source's is used.
///
/// Endpoints come from the source that has the Service.
#[derive(Clone, Copy, Default)]
pub(super) struct LayeredSources<'s> {
    pub(super) upper: Option<&'s dyn RegistrySource>,
    pub(super) lower: Option<&'s dyn RegistrySource>,
}

/// An APIService that is in effect.
pub(super) struct EffectiveApiService {
    /// Location of the APIService, for messages.
    pub(super) location: String,
    pub(super) api_service: Arc<ApiService>,
    /// Location of an APIService of the same name in the lower source, which is ignored.
    pub(super) hidden_location: Option<String>,
}

impl LayeredSources<'_> {
    /// A single source, without precedence.
    pub(super) fn single(source: &dyn RegistrySource) -> LayeredSources<'_> {
        LayeredSources { upper: Some(source), lower: None }
    }

    pub(super) fn api_service(&self, name: &str) -> Option<EffectiveApiService> {
        let upper = self.upper.and_then(|upper| upper.api_service(name));
        let lower = self.lower.and_then(|lower| lower.api_service(name));
        match (upper, lower) {
            (Some((location, one)), hidden) => Some(EffectiveApiService {
                location,
                api_service: one,
                hidden_location: hidden.map(|(location, _)| location),
            }),
            (None, Some((location, one))) => {
                Some(EffectiveApiService { location, api_service: one, hidden_location: None })
            }
            (None, None) => None,
        }
    }

    pub(super) fn service(&self, key: &str) -> Option<Arc<Service>> {
        let upper = self.upper.and_then(|upper| upper.service(key));
        upper.or_else(|| self.lower.and_then(|lower| lower.service(key)))
    }

    pub(super) fn endpoint_slices(&self, key: &str) -> Vec<Arc<EndpointSlice>> {
        let has = |source: Option<&dyn RegistrySource>| source.is_some_and(|source| source.service(key).is_some());
        let of =
            |source: Option<&dyn RegistrySource>| source.map_or_else(Vec::new, |source| source.endpoint_slices(key));
        match (has(self.upper), has(self.lower)) {
            (true, _) => of(self.upper),
            (false, true) => of(self.lower),
            (false, false) => of(self.upper).into_iter().chain(of(self.lower)).collect(),
        }
    }

    pub(super) fn lookup_error(&self, key: &str) -> Option<String> {
        let upper = self.upper.and_then(|upper| upper.lookup_error(key));
        upper.or_else(|| self.lower.and_then(|lower| lower.lookup_error(key)))
    }

    /// The names of all objects of both sources.
    pub(super) fn all_names(&self) -> DirtySet {
        let mut all = DirtySet::default();
        for source in [self.upper, self.lower].into_iter().flatten() {
            all.extend(source.all_names());
        }
        all
    }
}
