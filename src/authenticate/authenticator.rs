//! The chain of authenticators, and the proof of a successful authentication.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use kubeapi::{Status, User};
use rustls_pki_types::UnixTime;

use super::bearer::{self, Bearer};
use super::identity_headers::IdentityHeaderPresence;
use super::jwt::{JwtAuthenticator, JwtResult};
use super::notes::AuthenticationNotes;
use super::service_accounts::AccountTokenError;
use super::token_review::TokenReviewError;
use super::{
    ANONYMOUS, AUTHENTICATED, GroupFilter, IdentityHeaderMatcher, Peer, RequestHeaderConfig,
    ServiceAccountAuthenticator, StaticTokens, TokenReviewClient, UNAUTHENTICATED, groups, header_safe, websocket,
};
use crate::message::{Blame, Refusal};
use crate::observe::metrics::Authentication;
use crate::process::Published;
use crate::tls::ClientTrust;
use crate::tls::server::FrontProxies;

/// Settings of the authenticator chain.
pub struct Settings {
    /// The CA bundles for client certificates and front proxies; reloaded.
    pub trust: Published<ClientTrust>,
    /// Allowed front proxies and the names of their request headers.
    pub request_headers: RequestHeaderConfig,
    /// Tokens of `--token-auth-file`; reloaded.
    pub tokens: Option<Published<StaticTokens>>,
    /// Tokens of ServiceAccounts of the embedded API server.
    pub service_accounts: Option<Arc<ServiceAccountAuthenticator>>,
    /// `--authentication-config`: JWT issuers, and which anonymous requests are allowed.
    pub jwt: Option<Arc<JwtAuthenticator>>,
    /// Groups that are dropped from every user.
    pub group_filter: GroupFilter,
    /// `--authentication-token-webhook-config-file` and `--authentication-kubeconfig`: called in this order for tokens
    /// that no local authenticator accepts.
    pub token_reviews: Vec<Arc<TokenReviewClient>>,
    /// `--api-audiences`: the audiences of tokens without audiences of their own, in served TokenReviews.
    pub audiences: Vec<String>,
    /// Value of `--anonymous-auth`.
    pub anonymous: bool,
    /// Additional header names that carry the identity to backends; stripped from client requests.
    pub auth_header_names: Vec<HeaderName>,
}

/// Authenticates requests. Each worker has its own; cheap to create.
pub struct Authenticator {
    pub(super) settings: Settings,
    /// Request headers as configured by flags.
    configured_request_headers: Arc<RequestHeaderAuthenticator>,
    /// Request headers as last read from the cluster's ConfigMap.
    cluster_request_headers: ArcSwapOption<(Arc<FrontProxies>, Arc<RequestHeaderAuthenticator>)>,
    anonymous: Arc<User>,
}

/// Request-header authentication, and the header names that carry an identity with it.
struct RequestHeaderAuthenticator {
    request_headers: RequestHeaderConfig,
    headers: Arc<IdentityHeaderMatcher>,
}

/// An authenticated user. Only [`Authenticator::authenticate`] creates one, after it has removed all identity headers
/// from the request.
#[derive(Clone, Debug)]
pub struct AuthenticatedUser {
    user: Arc<User>,
    impersonates: bool,
    notes: AuthenticationNotes,
}

/// A failed authentication. Becomes Kubernetes' 401; the reason goes to the log only.
#[derive(Debug)]
pub struct AuthenticationError {
    result: Authentication,
    blame: Blame,
    cause: String,
    notes: AuthenticationNotes,
}

impl Authenticator {
    /// Creates the chain that `settings` describe.
    pub fn new(settings: Settings) -> Authenticator {
        let anonymous = User { name: ANONYMOUS.into(), groups: vec![UNAUTHENTICATED.into()], ..User::default() };
        let given =
            Arc::new(RequestHeaderAuthenticator::new(settings.request_headers.clone(), &settings.auth_header_names));
        Authenticator {
            settings,
            configured_request_headers: given,
            cluster_request_headers: ArcSwapOption::empty(),
            anonymous: Arc::new(anonymous),
        }
    }

    /// Returns the matcher of all header names that carry an identity.
    pub fn identity_headers(&self) -> Cow<'_, Arc<IdentityHeaderMatcher>> {
        match self.request_header_authenticator(&self.settings.trust.load()) {
            Cow::Borrowed(given) => Cow::Borrowed(&given.headers),
            Cow::Owned(announced) => Cow::Owned(announced.headers.clone()),
        }
    }

    /// Returns the filter that is applied to the groups of every user.
    pub fn groups(&self) -> &GroupFilter {
        &self.settings.group_filter
    }

    /// Returns the request-header authenticator for the front proxies of `trust`.
    fn request_header_authenticator(&self, trust: &ClientTrust) -> Cow<'_, Arc<RequestHeaderAuthenticator>> {
        let Some(front_proxies) = &trust.front_proxies else { return Cow::Borrowed(&self.configured_request_headers) };
        if let Some(last) = &*self.cluster_request_headers.load()
            && Arc::ptr_eq(&last.0, front_proxies)
        {
            return Cow::Owned(last.1.clone());
        }
        let authenticator = Arc::new(RequestHeaderAuthenticator::new(
            RequestHeaderConfig::from_cluster(front_proxies),
            &self.settings.auth_header_names,
        ));
        self.cluster_request_headers.store(Some(Arc::new((front_proxies.clone(), authenticator.clone()))));
        Cow::Owned(authenticator)
    }

    /// Authenticates a request, and removes every credential and front-proxy header, used or not.
    ///
    /// `Impersonate-*` stays: it is no credential, and [`authorize`](crate::authorize) must see it.
    pub async fn authenticate(
        &self,
        peer: &Peer,
        path: &str,
        headers: &mut HeaderMap,
    ) -> Result<AuthenticatedUser, AuthenticationError> {
        self.authenticate_at(peer, path, headers, UnixTime::now).await
    }

    /// Removes what [`authenticate`](Self::authenticate) removes, and `Impersonate-*`, from a request that is served
    /// without authentication.
    pub fn strip_identity_headers(&self, headers: &mut HeaderMap) {
        self.identity_headers().strip(headers);
    }

    /// Checks that the peer's certificate is trusted now, as a client's or as a front proxy's.
    /// Called periodically for long-lived connections, so that removing a CA also ends requests in flight.
    pub fn verify_peer(&self, peer: &Peer) -> Result<(), String> {
        let trust = self.settings.trust.load();
        let authenticator = self.request_header_authenticator(&trust);
        let Some(verdict) = peer.verify(&trust, &authenticator.request_headers, UnixTime::now()) else {
            return Err("there is no certificate".to_owned());
        };
        match (&verdict.client, &verdict.front_proxy) {
            (Some(Ok(_)), _) | (_, Some(Ok(()))) => Ok(()),
            (Some(Err(why)), _) | (None, Some(Err(why))) => Err(why.clone()),
            (None, None) => Err("no authority is configured".to_owned()),
        }
    }

    pub(super) async fn authenticate_at(
        &self,
        peer: &Peer,
        path: &str,
        headers: &mut HeaderMap,
        now: impl FnOnce() -> UnixTime,
    ) -> Result<AuthenticatedUser, AuthenticationError> {
        let mut attempt = AuthenticationAttempt::default();
        // One snapshot of the trust: names of one generation must not be checked against certificates of another.
        let (authenticator, found, by_connection) = {
            let trust = self.settings.trust.load();
            let authenticator = self.request_header_authenticator(&trust);
            let found = authenticator.headers.find(headers);
            let by_connection =
                authenticate_connection(peer, &trust, &authenticator, headers, found, now, &mut attempt);
            (authenticator, found, by_connection)
        };
        let user = match by_connection {
            ConnectionOutcome::User(user) => Some(user),
            ConnectionOutcome::Rejected => None,
            ConnectionOutcome::Unknown => self.authenticate_tokens(peer, headers, found, &mut attempt).await,
        };
        authenticator.headers.strip_found(headers, found);
        let impersonates = found.impersonation;
        if let Some(user) = user {
            let notes = attempt.notes;
            return Ok(AuthenticatedUser { user: self.settings.group_filter.filter(user), impersonates, notes });
        }
        if attempt.errors.is_empty() && self.allows_anonymous(path) {
            let user = self.settings.group_filter.filter(self.anonymous.clone());
            return Ok(AuthenticatedUser { user, impersonates, notes: attempt.notes });
        }
        Err(attempt.into_error())
    }

    /// Authenticates by the tokens of a request, in kube-apiserver's order.
    async fn authenticate_tokens(
        &self,
        peer: &Peer,
        headers: &HeaderMap,
        found: IdentityHeaderPresence,
        attempt: &mut AuthenticationAttempt,
    ) -> Option<Arc<User>> {
        if found.credential
            && let Some(value) = headers.get(AUTHORIZATION)
        {
            let token = match value.to_str().map(bearer::parse) {
                Ok(Bearer::Token(token)) => Some(token),
                Ok(Bearer::ExtraSpace) => {
                    attempt.notes.warning = Some(bearer::EXTRA_SPACE_WARNING);
                    None
                }
                Ok(Bearer::None) => None,
                Err(_) => {
                    attempt.add_error("bearer token", "the Authorization header contains invalid bytes");
                    None
                }
            };
            if let Some(token) = token
                && let Some(user) = self.authenticate_token(peer, "bearer token", token, attempt).await
            {
                return Some(user);
            }
        }
        if found.websocket && websocket::is_websocket_upgrade(headers) {
            match websocket::token(headers) {
                Ok(Some(token)) => return self.authenticate_token(peer, "websocket token", &token, attempt).await,
                Ok(None) => {}
                Err(why) => attempt.add_error("websocket token", why),
            }
        }
        None
    }

    /// Whether anonymous requests for `path` are allowed. The configuration file has precedence over the flag.
    fn allows_anonymous(&self, path: &str) -> bool {
        let configured = self.settings.jwt.as_ref().and_then(|jwt| jwt.allows_anonymous(path));
        configured.unwrap_or(self.settings.anonymous)
    }

    /// Returns the user of a token. A token that no authenticator supports is an error, too: the client did not mean to
    /// be anonymous.
    ///
    /// May wait for a network call; a cached result does not wait.
    async fn authenticate_token(
        &self,
        peer: &Peer,
        authenticator: &'static str,
        token: &str,
        attempt: &mut AuthenticationAttempt,
    ) -> Option<Arc<User>> {
        let Settings { tokens, service_accounts, jwt, token_reviews, .. } = &self.settings;
        if tokens.is_none() && service_accounts.is_none() && jwt.is_none() && token_reviews.is_empty() {
            attempt.add_error(
                authenticator,
                "no token is accepted here (none of --token-auth-file, --authentication-config, \
                 --authentication-token-webhook-config-file and --authentication-kubeconfig is given)",
            );
            return None;
        }
        if let Some(tokens) = tokens
            && let Some(user) = peer.token_user(&tokens.load(), token)
        {
            return Some(user);
        }
        if let Some(accounts) = service_accounts {
            // Boxed, to keep the futures of other requests small.
            match Box::pin(accounts.authenticate(token, &mut attempt.notes)).await {
                Ok(Some(user)) => return Some(user),
                Ok(None) => {}
                Err(error) => {
                    attempt.is_unavailable |= matches!(error, AccountTokenError::Unavailable(_));
                    attempt.add_error(authenticator, format!("ServiceAccount: {error}"));
                }
            }
        }
        if let Some(jwt) = jwt {
            match jwt.authenticate(token).await {
                JwtResult::User(user) => return Some(user),
                JwtResult::Unknown => {}
                JwtResult::Invalid(why) => attempt.add_error(authenticator, format!("JWT: {why}")),
            }
        }
        let before = attempt.errors.len();
        for reviews in token_reviews {
            match reviews.authenticate(token).await {
                Ok(Some(user)) => return Some(user),
                Ok(None) => {}
                Err(error) => {
                    attempt.is_unavailable |= matches!(error, TokenReviewError::Unavailable(_));
                    attempt.add_error(authenticator, error.to_string());
                }
            }
        }
        if attempt.errors.len() == before {
            attempt.add_error(authenticator, "invalid bearer token");
        }
        None
    }
}

impl RequestHeaderAuthenticator {
    fn new(request_headers: RequestHeaderConfig, custom_names: &[HeaderName]) -> RequestHeaderAuthenticator {
        let headers = Arc::new(IdentityHeaderMatcher::new(&request_headers.names).with_names(custom_names));
        RequestHeaderAuthenticator { request_headers, headers }
    }

    fn authenticate(&self, headers: &HeaderMap) -> Result<Option<Arc<User>>, String> {
        let Some(mut user) = self.request_headers.names.authenticate(headers)? else { return Ok(None) };
        header_safe::check_header_safe(&user)?;
        if user.name != ANONYMOUS {
            groups::add_group(&mut user.groups, AUTHENTICATED);
        }
        Ok(Some(Arc::new(user)))
    }
}

/// Authenticates by the client certificate and, if it is a front proxy's, by the request headers. As Kubernetes' union:
/// the first success wins; errors are kept in case no authenticator succeeds.
fn authenticate_connection(
    peer: &Peer,
    trust: &ClientTrust,
    authenticator: &RequestHeaderAuthenticator,
    headers: &HeaderMap,
    found: IdentityHeaderPresence,
    now: impl FnOnce() -> UnixTime,
    attempt: &mut AuthenticationAttempt,
) -> ConnectionOutcome {
    if peer.chain().is_empty() {
        return ConnectionOutcome::Unknown;
    }
    let Some(verdict) = peer.verify(trust, &authenticator.request_headers, now()) else {
        return ConnectionOutcome::Rejected;
    };
    if let Some(Ok(())) = &verdict.front_proxy
        && found.front_proxy
    {
        match authenticator.authenticate(headers) {
            Ok(Some(user)) => return ConnectionOutcome::User(user),
            Ok(None) => {}
            Err(why) => {
                // A later authenticator would take the front proxy for the caller.
                attempt.add_error("request header", why);
                return ConnectionOutcome::Rejected;
            }
        }
    }
    if let Some(Ok(user)) = &verdict.client {
        return ConnectionOutcome::User(user.clone());
    }
    // Only now: each request of a user with a certificate would format why it is no front proxy.
    if let Some(Err(why)) = &verdict.front_proxy {
        attempt.add_error("request header", why);
    }
    if let Some(Err(why)) = &verdict.client {
        attempt.add_error("client certificate", why);
    }
    ConnectionOutcome::Unknown
}

impl AuthenticatedUser {
    /// The user.
    pub fn user(&self) -> &Arc<User> {
        &self.user
    }

    /// Whether the request has `Impersonate-*` headers.
    pub fn impersonates(&self) -> bool {
        self.impersonates
    }

    /// What the authenticators say of the request.
    pub fn notes(&self) -> &AuthenticationNotes {
        &self.notes
    }

    /// Whether the user is anonymous. The HTTP/2 connection of such a client should not outlive the response
    /// (`UnauthenticatedHTTP2DOSMitigation`).
    pub fn is_anonymous(&self) -> bool {
        self.user.name == ANONYMOUS || self.user.groups.iter().any(|group| group == UNAUTHENTICATED)
    }

    /// An authenticated user for tests.
    #[cfg(test)]
    pub(crate) fn for_test(user: User, impersonates: bool) -> AuthenticatedUser {
        AuthenticatedUser { user: Arc::new(user), impersonates, notes: AuthenticationNotes::default() }
    }
}

impl Deref for AuthenticatedUser {
    type Target = User;

    fn deref(&self) -> &User {
        &self.user
    }
}

impl AuthenticationError {
    /// The value of the metric label `result`: `call_error` without credentials, `error` if an authenticator failed.
    pub fn result(&self) -> Authentication {
        self.result
    }

    /// The errors of the authenticators, for the log.
    pub fn cause(&self) -> &str {
        &self.cause
    }

    /// What the authenticators say of the request.
    pub fn notes(&self) -> &AuthenticationNotes {
        &self.notes
    }
}

impl From<AuthenticationError> for Refusal {
    fn from(error: AuthenticationError) -> Refusal {
        let refusal = Refusal::new(error.blame, Status::unauthorized()).with_cause(error.cause);
        match error.notes.warning {
            Some(warning) => refusal.with_warnings([warning.to_owned()]),
            None => refusal,
        }
    }
}

/// The result of authenticating the connection.
enum ConnectionOutcome {
    User(Arc<User>),
    /// The request must not be authenticated by any other means.
    Rejected,
    Unknown,
}

/// Errors and warnings of one authentication so far.
#[derive(Default)]
struct AuthenticationAttempt {
    errors: Vec<String>,
    /// Whether a TokenReview call or the store failed, so that a valid token may have been refused.
    is_unavailable: bool,
    notes: AuthenticationNotes,
}

impl AuthenticationAttempt {
    fn add_error(&mut self, authenticator: &str, why: impl AsRef<str>) {
        self.errors.push(format!("{authenticator}: {}", why.as_ref()));
    }

    fn into_error(self) -> AuthenticationError {
        let (result, cause) = if self.errors.is_empty() {
            (Authentication::Failure, "no credentials that a configured authenticator accepts".to_owned())
        } else {
            (Authentication::Error, self.errors.join("; "))
        };
        let blame = if self.is_unavailable { Blame::Gateway } else { Blame::Client };
        AuthenticationError { result, blame, cause, notes: self.notes }
    }
}
