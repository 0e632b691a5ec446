//! A server that is named by its URL instead of by a registry, as a backend like any other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::json;

use super::annotations;
use super::api_service::{ApiService, Backend};
use super::service::Origin;
use super::snapshot::Settings;
use super::url_backend::UrlBackend;
use crate::process::Problems;
use crate::tls::{Bundle, KeyPair};

/// Where an upstream is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamUrl(UrlBackend);

impl UpstreamUrl {
    /// Reads `https://host[:port][/prefix]`; the error says what is wrong with it.
    pub fn parse(text: &str, _h2c: bool) -> Result<UpstreamUrl, String> {
        UrlBackend::parse(text).map(UpstreamUrl)
    }
}

/// The backend of the upstream `name`, as an APIService that claims no group.
pub fn upstream(
    name: &str,
    url: UpstreamUrl,
    authorities: Option<Bundle>,
    insecure_skip_verify: bool,
    identity: Option<Arc<KeyPair>>,
    settings: &Settings,
) -> ApiService {
    ApiService {
        name: name.to_owned(),
        group: String::new(),
        version: String::new(),
        group_priority_minimum: 0,
        version_priority: 0,
        uid: String::new(),
        created: SystemTime::UNIX_EPOCH,
        labels: BTreeMap::new(),
        manifest: json!({ "spec": { "server": url.0.to_string() }}),
        backend: Backend::Url(url.0),
        ca_bundle: authorities,
        insecure_skip_tls_verify: insecure_skip_verify,
        client_certificate: identity,
        settings: annotations::read(name, &BTreeMap::new(), settings, &mut Problems::default()),
        origin: Origin::Directory,
    }
}
