//! Fetching of an issuer's discovery document and key set.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderValue, Request};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::Deserialize;

use super::keys::Keys;
use super::url::HttpsUrl;
use crate::egress::{Address, BackendTls, Dialler, Pool, SendError, Upstream, Way, Wire};
use crate::message::Body;
use crate::tls::Bundle;
use crate::tls::client::ClientSettings;

/// Timeout of DNS lookup, TCP and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of fetching one document.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum size of a document.
const LONGEST: usize = 1 << 20;

/// Where an issuer's keys are fetched from. Equal sources share their keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    /// The issuer that the discovery document must name.
    pub(super) issuer: String,
    pub(super) discovery: HttpsUrl,
    /// CAs for the servers; none for the system's roots.
    pub(super) authorities: Option<Bundle>,
    /// The egress selection; empty for none.
    pub(super) egress: String,
}

#[derive(Deserialize)]
struct Discovery {
    #[serde(default)]
    issuer: String,
    #[serde(default)]
    jwks_uri: String,
}

impl Origin {
    /// Fetches the current keys.
    ///
    /// # Errors
    /// Why they could not be fetched, for the log.
    pub(super) async fn fetch(&self, dialler: &Dialler) -> Result<Keys, String> {
        let at = |url: &HttpsUrl| {
            let url = url.to_string();
            move |why: String| format!("{url}: {why}")
        };
        let document = self.get(&self.discovery, dialler).await.map_err(at(&self.discovery))?;
        let discovery: Discovery = serde_json::from_slice(&document)
            .map_err(|error| at(&self.discovery)(format!("invalid discovery document: {error}")))?;
        if discovery.issuer != self.issuer {
            let why = format!("it names another issuer, {:?} instead of {:?}", discovery.issuer, self.issuer);
            return Err(at(&self.discovery)(why));
        }
        let keys = HttpsUrl::parse_with_query(&discovery.jwks_uri)
            .map_err(|mistakes| at(&self.discovery)(format!("invalid jwks_uri: {}", mistakes.join("; "))))?;
        let document = self.get(&keys, dialler).await.map_err(at(&keys))?;
        Keys::parse(&document).map_err(at(&keys))
    }

    /// Returns the egress route. A named selection must be configured, as in
    /// `k8s.io/apiserver/plugin/pkg/authenticator/token/oidc`.
    fn way(&self, dialler: &Dialler) -> Result<Way, String> {
        let ways = dialler.ways().load();
        let way = match self.egress.as_str() {
            "" => Some(ways.otherwise()),
            name => ways.configured(name),
        };
        way.cloned().ok_or_else(|| format!("egress lookup for {:?} is not configured", self.egress))
    }

    async fn get(&self, url: &HttpsUrl, dialler: &Dialler) -> Result<Bytes, String> {
        tokio::time::timeout(TIMEOUT, self.get_at_leisure(url, dialler))
            .await
            .unwrap_or_else(|_| Err(format!("no response within {TIMEOUT:?}")))
    }

    async fn get_at_leisure(&self, url: &HttpsUrl, dialler: &Dialler) -> Result<Bytes, String> {
        let settings = ClientSettings {
            authorities: self.authorities.clone(),
            insecure_skip_verify: false,
            identity: None,
            alpn: Vec::new(),
        };
        let tls = BackendTls::new(&url.server_name(), settings).map_err(|problem| problem.to_string())?;
        let upstream = Upstream {
            address: Address::Tcp(url.destination.clone()),
            wire: Wire::Tls(Arc::new(tls)),
            connect_timeout: CONNECT_TIMEOUT,
            way: self.way(dialler)?,
            keeps_host: false,
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
        let endpoint = Pool::new(dialler.clone()).endpoint(&upstream);
        let sent = endpoint.send(Box::new(request)).await.map_err(|error| match error {
            SendError::NotSent { error, .. } | SendError::Refused(error) => error.cause,
            SendError::Nonsense(error) | SendError::Broken(error) | SendError::Unheard(error) => error.to_string(),
        })?;
        let (head, body) = sent.response.into_parts();
        // A redirect is not followed: the operator did not configure its target as trusted.
        if head.status != 200 {
            return Err(format!("the response status is {}", head.status));
        }
        let kind = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if kind.trim_start().to_ascii_lowercase().starts_with("text/html") {
            return Err("the response is HTML".to_owned());
        }
        let body = Limited::new(body, LONGEST).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                format!("the response is longer than {LONGEST} bytes")
            } else {
                format!("the response was truncated: {error}")
            }
        })?;
        Ok(body.to_bytes())
    }
}
