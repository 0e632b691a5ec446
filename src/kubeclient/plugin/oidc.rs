//! OIDC plugin (`auth-provider: oidc`): the ID token of the kubeconfig until it expires, then tokens that the issuer
//! returns for the refresh token, as `k8s.io/client-go/plugin/pkg/client/auth/oidc`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderValue, Method, Request, StatusCode, Uri};
use parking_lot::Mutex;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use tokio::time::timeout;

use super::save_tokens::save_tokens;
use super::{CredentialError, PluginCredentials, bearer_header, strip_control_characters};
use crate::egress::{Address, BackendTls, Destination, Dialer, EndpointKey, Host, Pool, SendError, TransportSecurity};
use crate::message::{Body, read_document, split_authority};
use crate::tls::Bundle;
use crate::tls::client::ClientSettings;

/// Timeout of one request, including the connection.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of DNS, TCP and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum bytes of a response body.
const MAX_RESPONSE_BYTES: usize = 1 << 20;

/// An OIDC issuer and its tokens. Has no `Debug`: it holds tokens.
pub(in crate::kubeclient) struct OidcPlugin {
    /// Name of the user in the kubeconfig.
    user: String,
    /// The kubeconfig, in which new tokens are saved.
    file: Option<PathBuf>,
    issuer: Uri,
    client_id: String,
    client_secret: String,
    id_token: String,
    refresh_token: String,
    authorities: Option<Bundle>,
    /// The latest refresh token of the issuer, which may accept each only once.
    latest_refresh_token: Mutex<Option<String>>,
}

impl PartialEq for OidcPlugin {
    fn eq(&self, other: &OidcPlugin) -> bool {
        let of = |it: &OidcPlugin| {
            let texts = [&it.user, &it.client_id, &it.client_secret, &it.id_token, &it.refresh_token];
            (texts.map(String::clone), it.file.clone(), it.issuer.clone(), it.authorities.clone())
        };
        of(self) == of(other)
    }
}

impl Eq for OidcPlugin {}

#[derive(Deserialize)]
struct OidcDiscovery {
    #[serde(default)]
    token_endpoint: String,
}

/// Response to a refresh token (RFC 6749, 5.1 and 5.2).
#[derive(Deserialize, Default)]
#[serde(default)]
struct TokenResponse {
    id_token: String,
    refresh_token: String,
    error: String,
    error_description: String,
}

#[derive(Deserialize)]
struct IdTokenClaims {
    exp: f64,
}

impl OidcPlugin {
    /// The plugin of an auth-provider's `config`.
    ///
    /// # Errors
    /// The invalid fields with their errors.
    pub(in crate::kubeclient) fn new(
        user: &str,
        file: Option<&Path>,
        config: &BTreeMap<String, String>,
        authorities: Option<(String, Vec<u8>)>,
    ) -> Result<OidcPlugin, Vec<(&'static str, String)>> {
        let value = |field: &str| config.get(field).cloned().unwrap_or_default();
        let mut mistakes = Vec::new();
        let issuer = value("idp-issuer-url");
        let url = parse_https_url(&issuer);
        if issuer.is_empty() {
            mistakes.push(("idp-issuer-url", "is missing".to_owned()));
        } else if url.is_none() {
            mistakes.push(("idp-issuer-url", format!("{issuer:?}: use a URL such as https://issuer.example")));
        }
        if value("client-id").is_empty() {
            mistakes.push(("client-id", "is missing".to_owned()));
        }
        if value("id-token").is_empty() && value("refresh-token").is_empty() {
            mistakes.push((
                "refresh-token",
                "is missing, and so is id-token: log in with the tool that wrote this auth-provider".to_owned(),
            ));
        }
        let authorities = authorities.map(|(origin, pem)| Bundle::from_pem(&pem, origin)).transpose();
        let authorities = authorities.map_err(|problem| mistakes.push(("idp-certificate-authority", problem.message)));
        match (url, authorities) {
            (Some(issuer), Ok(authorities)) if mistakes.is_empty() => Ok(OidcPlugin {
                user: user.to_owned(),
                file: file.map(Path::to_owned),
                issuer,
                client_id: value("client-id"),
                client_secret: value("client-secret"),
                id_token: value("id-token"),
                refresh_token: value("refresh-token"),
                authorities,
                latest_refresh_token: Mutex::default(),
            }),
            _ => Err(mistakes),
        }
    }

    /// Requests the ID token: the configured one, or a new one if it has expired.
    pub(super) async fn request_credentials(&self, dialer: &Dialer) -> Result<PluginCredentials, CredentialError> {
        let now = SystemTime::now();
        if let Some(granted) = credentials_from_token(&self.id_token, now).filter(|granted| !granted.needs_renewal(now))
        {
            return Ok(granted);
        }
        let token = self.latest_refresh_token.lock().clone().unwrap_or_else(|| self.refresh_token.clone());
        if token.is_empty() {
            return Err(self.error("No valid id-token, and cannot refresh without refresh-token"));
        }
        let answer = self.refresh(&token, dialer).await.map_err(|why| self.error(&why))?;
        if answer.id_token.is_empty() {
            // client-go's message.
            return Err(self.error(
                "token response did not contain an id_token, either the scope \"openid\" wasn't requested upon login, \
                 or the provider doesn't support id_tokens as part of the refresh response.",
            ));
        }
        let granted = credentials_from_token(&answer.id_token, now);
        let granted =
            granted.ok_or_else(|| self.error("failed to refresh token: the issuer's id_token is not a JWT"))?;
        self.store_tokens(&token, &answer);
        Ok(granted)
    }

    /// Saves the new tokens: the issuer may not accept the old refresh token again, from us or from kubectl.
    fn store_tokens(&self, old: &str, answer: &TokenResponse) {
        let new = if answer.refresh_token.is_empty() { old } else { &answer.refresh_token };
        *self.latest_refresh_token.lock() = Some(new.to_owned());
        let tokens = [("id-token", answer.id_token.as_str()), ("refresh-token", new)];
        let Some(file) = &self.file else { return };
        if let Err(error) = save_tokens(file, &self.user, &tokens) {
            let file = file.display();
            tracing::warn!(%file, %error, "could not persist new tokens; they are used until this process ends");
        }
    }

    async fn refresh(&self, token: &str, dialer: &Dialer) -> Result<TokenResponse, String> {
        let discovery = format!("{}/.well-known/openid-configuration", self.issuer.to_string().trim_end_matches('/'));
        let discovery =
            parse_https_url(&discovery).ok_or_else(|| format!("oidc: failed to query provider {discovery:?}"))?;
        let (status, document) = self.send(&discovery, None, None, dialer).await?;
        let endpoint = match serde_json::from_slice::<OidcDiscovery>(&document) {
            Ok(document) if status == StatusCode::OK => parse_https_url(&document.token_endpoint),
            _ => {
                return Err(format!(
                    "oidc: failed to query provider {discovery}: answered {status}, or without a discovery document"
                ));
            }
        };
        let endpoint = endpoint.ok_or_else(|| format!("oidc: {discovery} has no token_endpoint with https"))?;
        let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let question = format!("grant_type=refresh_token&refresh_token={}", encode(token));
        let (id, secret) = (encode(&self.client_id), encode(&self.client_secret));
        // As golang.org/x/oauth2: credentials in a header first, as the RFC prefers, then in the form.
        if !secret.is_empty() {
            let basic = HeaderValue::try_from(format!("Basic {}", STANDARD.encode(format!("{id}:{secret}")))).ok();
            let (status, answer) = self.send(&endpoint, Some(question.clone()), basic, dialer).await?;
            if status.is_success() {
                return parse_token_response(&endpoint, status, &answer);
            }
        }
        let secret = if secret.is_empty() { secret } else { format!("&client_secret={secret}") };
        let (status, answer) =
            self.send(&endpoint, Some(format!("{question}&client_id={id}{secret}")), None, dialer).await?;
        parse_token_response(&endpoint, status, &answer)
    }

    async fn send(
        &self,
        to: &Uri,
        form: Option<String>,
        authorization: Option<HeaderValue>,
        dialer: &Dialer,
    ) -> Result<(StatusCode, Bytes), String> {
        let sent = timeout(REQUEST_TIMEOUT, self.send_untimed(to, form, authorization, dialer)).await;
        sent.unwrap_or_else(|_| Err(format!("no answer within {REQUEST_TIMEOUT:?}")))
            .map_err(|why| format!("oidc: {to}: {why}"))
    }

    async fn send_untimed(
        &self,
        to: &Uri,
        form: Option<String>,
        authorization: Option<HeaderValue>,
        dialer: &Dialer,
    ) -> Result<(StatusCode, Bytes), String> {
        let authority = to.authority().map_or("", |it| it.as_str());
        let (name, port) = split_authority(authority).ok_or("the URL has no valid host and port")?;
        let settings = ClientSettings {
            ca_bundle: self.authorities.clone(),
            insecure_skip_verify: false,
            identity: None,
            alpn: Vec::new(),
        };
        let tls = BackendTls::new(name, settings).map_err(|problem| problem.to_string())?;
        let host = name.parse().map_or_else(|_| Host::Name(name.to_owned()), Host::Ip);
        let upstream = EndpointKey {
            address: Address::Tcp(Destination { host, port: port.unwrap_or(443) }),
            security: TransportSecurity::Tls(Arc::new(tls)),
            connect_timeout: CONNECT_TIMEOUT,
            egress_route: dialer.routes().load().default_route().clone(),
            preserve_host: false,
        };
        let mut request = Box::new(Request::new(Body::Empty));
        *request.uri_mut() = to.clone();
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("narthex/", env!("CARGO_PKG_VERSION"))));
        headers.insert(HOST, HeaderValue::from_str(authority).map_err(|error| error.to_string())?);
        if let Some(authorization) = authorization {
            headers.insert(AUTHORIZATION, authorization);
        }
        if let Some(form) = form {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
            *request.method_mut() = Method::POST;
            *request.body_mut() = Body::Full(form.into());
        }
        // Connections are not pooled: the next request comes when the token expires.
        let endpoint = Pool::new(dialer.clone()).endpoint(&upstream);
        let sent = endpoint.send(request).await.map_err(|error| match error {
            SendError::NotSent { error, .. } | SendError::Refused(error) => error.cause,
            SendError::InvalidResponse(error) | SendError::Broken(error) | SendError::StaleConnection(error) => {
                error.to_string()
            }
        })?;
        let (head, body) = sent.response.into_parts();
        let body = read_document(&head.headers, body, MAX_RESPONSE_BYTES).await.map_err(|error| error.to_string())?;
        Ok((head.status, body))
    }

    fn error(&self, why: &str) -> CredentialError {
        let file = self.file.as_deref().unwrap_or(Path::new("the kubeconfig")).display();
        CredentialError(format!(
            "getting credentials: {why}\nuser {:?} of {file}: if this persists, log in again with the tool that wrote \
             its auth-provider",
            self.user
        ))
    }
}

/// Parses the response of an issuer. Errors do not quote tokens.
fn parse_token_response(endpoint: &Uri, status: StatusCode, answer: &[u8]) -> Result<TokenResponse, String> {
    let answer = serde_json::from_slice::<TokenResponse>(answer);
    match answer {
        Ok(answer) if status.is_success() => Ok(answer),
        Ok(TokenResponse { error, error_description, .. }) => {
            let body_start: String =
                strip_control_characters(&format!("{error} {error_description}")).chars().take(300).collect();
            Err(format!("failed to refresh token: {endpoint} answered {status}: {}", body_start.trim()))
        }
        Err(_) => Err(format!("failed to refresh token: {endpoint} answered {status} without JSON")),
    }
}

/// Parses an https URL without user or password.
fn parse_https_url(text: &str) -> Option<Uri> {
    let url: Uri = text.parse().ok()?;
    let credentials = url.authority()?.as_str().contains('@');
    (url.scheme_str() == Some("https") && !credentials).then_some(url)
}

/// Credentials of a JWT, valid until its `exp`. The signature is left to the API server.
fn credentials_from_token(token: &str, now: SystemTime) -> Option<PluginCredentials> {
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?.trim_end_matches('=')).ok()?;
    let IdTokenClaims { exp } = serde_json::from_slice(&claims).ok()?;
    let until = SystemTime::UNIX_EPOCH.checked_add(Duration::try_from_secs_f64(exp).ok()?)?;
    Some(PluginCredentials {
        authorization: Some(bearer_header(token)?),
        identity: None,
        valid_from: now,
        expires_at: Some(until),
    })
}
