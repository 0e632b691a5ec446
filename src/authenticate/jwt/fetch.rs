//! Fetching of an issuer's discovery document and key set.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, LOCATION, USER_AGENT};
use http::{HeaderValue, Request};
use serde::Deserialize;

use super::jwks::Jwks;
use super::url::HttpsUrl;
use crate::egress::{Address, BackendTls, Dialer, EgressRoute, EndpointKey, Pool, SendError, TransportSecurity};
use crate::message::{Body, read_document};
use crate::tls::Bundle;
use crate::tls::client::ClientSettings;

/// Timeout of DNS lookup, TCP and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of fetching one document.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum size of a document.
const MAX_DOCUMENT_BYTES: usize = 1 << 20;
/// As in Go's `http.Client`.
const MAX_REDIRECTIONS: usize = 10;

/// Where an issuer's keys are fetched from. Equal sources share their keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JwksSource {
    /// The issuer that the discovery document must name.
    pub(super) issuer: String,
    pub(super) discovery_url: HttpsUrl,
    /// CAs for the servers; none for the system's roots.
    pub(super) authorities: Option<Bundle>,
    /// The egress selection; empty for none.
    pub(super) egress: String,
}

enum FetchedDocument {
    Body(Bytes),
    /// The header Location.
    Redirection(String),
}

#[derive(Deserialize)]
struct IssuerDiscovery {
    #[serde(default)]
    issuer: String,
    #[serde(default)]
    jwks_uri: String,
}

impl JwksSource {
    /// Fetches the current keys.
    ///
    /// # Errors
    /// Why they could not be fetched, for the log.
    pub(super) async fn fetch(&self, dialer: &Dialer) -> Result<Jwks, String> {
        let at = |url: &HttpsUrl| {
            let url = url.to_string();
            move |why: String| format!("{url}: {why}")
        };
        let document = self.get(&self.discovery_url, dialer).await.map_err(at(&self.discovery_url))?;
        let discovery: IssuerDiscovery = serde_json::from_slice(&document)
            .map_err(|error| at(&self.discovery_url)(format!("invalid discovery document: {error}")))?;
        if discovery.issuer != self.issuer {
            let why = format!("it names another issuer, {:?} instead of {:?}", discovery.issuer, self.issuer);
            return Err(at(&self.discovery_url)(why));
        }
        let keys = HttpsUrl::parse_with_query(&discovery.jwks_uri)
            .map_err(|mistakes| at(&self.discovery_url)(format!("invalid jwks_uri: {}", mistakes.join("; "))))?;
        let document = self.get(&keys, dialer).await.map_err(at(&keys))?;
        Jwks::parse(&document).map_err(at(&keys))
    }

    /// Returns the egress route. A named selection must be configured, as in
    /// `k8s.io/apiserver/plugin/pkg/authenticator/token/oidc`.
    fn egress_route(&self, dialer: &Dialer) -> Result<EgressRoute, String> {
        let routes = dialer.routes().load();
        let route = match self.egress.as_str() {
            "" => Some(routes.default_route()),
            name => routes.get_configured(name),
        };
        route.cloned().ok_or_else(|| format!("egress lookup for {:?} is not configured", self.egress))
    }

    async fn get(&self, url: &HttpsUrl, dialer: &Dialer) -> Result<Bytes, String> {
        tokio::time::timeout(FETCH_TIMEOUT, self.get_without_timeout(url, dialer))
            .await
            .unwrap_or_else(|_| Err(format!("no response within {FETCH_TIMEOUT:?}")))
    }

    /// Follows redirections as Go's `http.Client` does, but to `https` only.
    async fn get_without_timeout(&self, url: &HttpsUrl, dialer: &Dialer) -> Result<Bytes, String> {
        let mut url = url.clone();
        for _ in 0..=MAX_REDIRECTIONS {
            match self.get_once(&url, dialer).await? {
                FetchedDocument::Body(body) => return Ok(body),
                FetchedDocument::Redirection(location) => {
                    url = url.resolve(&location).map_err(|mistakes| {
                        let location: String = location.chars().take(256).collect();
                        format!("redirected to {location:?}: {}", mistakes.join("; "))
                    })?;
                }
            }
        }
        Err(format!("stopped after {MAX_REDIRECTIONS} redirects"))
    }

    async fn get_once(&self, url: &HttpsUrl, dialer: &Dialer) -> Result<FetchedDocument, String> {
        let settings = ClientSettings {
            ca_bundle: self.authorities.clone(),
            insecure_skip_verify: false,
            identity: None,
            alpn: Vec::new(),
        };
        let tls = BackendTls::new(&url.server_name(), settings).map_err(|problem| problem.to_string())?;
        let upstream = EndpointKey {
            address: Address::Tcp(url.destination.clone()),
            security: TransportSecurity::Tls(Arc::new(tls)),
            connect_timeout: CONNECT_TIMEOUT,
            egress_route: self.egress_route(dialer)?,
            preserve_host: false,
        };
        let path = if url.path.is_empty() { "/" } else { &url.path };
        let mut request = Request::new(Body::Empty);
        *request.uri_mut() =
            format!("https://{}{path}", url.authority).parse().map_err(|error| format!("invalid URL: {error}"))?;
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("narthex/", env!("CARGO_PKG_VERSION"))));
        headers.insert(HOST, HeaderValue::from_str(&url.authority).map_err(|error| error.to_string())?);
        // Connections are not pooled: the next request comes in minutes.
        let endpoint = Pool::new(dialer.clone()).endpoint(&upstream);
        let sent = endpoint.send(Box::new(request)).await.map_err(|error| match error {
            SendError::NotSent { error, .. } | SendError::Refused(error) => error.cause,
            SendError::InvalidResponse(error) | SendError::Broken(error) | SendError::StaleConnection(error) => {
                error.to_string()
            }
        })?;
        let (head, body) = sent.response.into_parts();
        if matches!(head.status.as_u16(), 301 | 302 | 303 | 307 | 308) {
            let location = head.headers.get(LOCATION).and_then(|location| location.to_str().ok());
            let missing = || format!("the response status is {} without a Location", head.status);
            return location.map(|it| FetchedDocument::Redirection(it.to_owned())).ok_or_else(missing);
        }
        if head.status != 200 {
            return Err(format!("the response status is {}", head.status));
        }
        let kind = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if kind.trim_start().to_ascii_lowercase().starts_with("text/html") {
            return Err("the response is HTML".to_owned());
        }
        let body = read_document(&head.headers, body, MAX_DOCUMENT_BYTES).await;
        body.map(FetchedDocument::Body).map_err(|error| format!("the response cannot be read: {error}"))
    }
}
