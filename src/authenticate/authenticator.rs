//! The chain of authenticators, and the proof of a successful authentication.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use rustls_pki_types::UnixTime;

use super::bearer::{self, Bearer};
use super::identity_headers::Found;
use super::jwt::{Holder, Jwt};
use super::token_review::ReviewError;
use super::{
    ANONYMOUS, AUTHENTICATED, GroupFilter, IdentityHeaders, Peer, RequestHeaders, TokenReviews, Tokens,
    UNAUTHENTICATED, speakable, websocket,
};
use crate::kubeapi::{Status, User};
use crate::message::{Blame, Refusal};
use crate::observe::metrics::Authentication;
use crate::process::Published;
use crate::tls::Trust;
use crate::tls::server::FrontProxies;

/// Settings of the authenticator chain.
pub struct Settings {
    /// The CA bundles for client certificates and front proxies; reloaded.
    pub trust: Published<Trust>,
    /// Allowed front proxies and the names of their request headers.
    pub request_headers: RequestHeaders,
    /// `--token-auth-file`; reloaded.
    pub tokens: Option<Published<Tokens>>,
    /// `--authentication-config`: JWT issuers, and which anonymous requests are allowed.
    pub jwt: Option<Arc<Jwt>>,
    /// Groups that are dropped from every user.
    pub groups: GroupFilter,
    /// `--authentication-token-webhook-config-file` and `--authentication-kubeconfig`: called in this order for tokens
    /// that no local authenticator accepts.
    pub token_reviews: Vec<Arc<TokenReviews>>,
    /// `--api-audiences`: the audiences of tokens without audiences of their own, in served TokenReviews.
    pub audiences: Vec<String>,
    /// `--anonymous-auth`.
    pub anonymous: bool,
    /// Additional header names that carry the identity to backends; stripped from client requests.
    pub told_under: Vec<HeaderName>,
}

/// Authenticates requests. Each worker has its own; cheap to create.
pub struct Authenticator {
    pub(super) settings: Settings,
    /// Request headers as configured by flags.
    given: Arc<Speech>,
    /// Request headers as last read from the cluster's ConfigMap.
    announced: ArcSwapOption<(Arc<FrontProxies>, Arc<Speech>)>,
    anonymous: Arc<User>,
}

/// Request-header authentication, and the header names that carry an identity with it.
struct Speech {
    request_headers: RequestHeaders,
    headers: Arc<IdentityHeaders>,
}

/// An authenticated user. Only [`Authenticator::authenticate`] creates one, after it has removed all identity headers
/// from the request.
#[derive(Clone, Debug)]
pub struct Authenticated {
    user: Arc<User>,
    impersonates: bool,
    warning: Option<&'static str>,
}

/// A failed authentication. Becomes upstream's 401; the reason goes to the log only.
#[derive(Debug)]
pub struct Unauthenticated {
    result: Authentication,
    blame: Blame,
    cause: String,
    warning: Option<&'static str>,
}

impl Authenticator {
    /// Creates the chain that `settings` describe.
    pub fn new(settings: Settings) -> Authenticator {
        let anonymous = User { name: ANONYMOUS.into(), groups: vec![UNAUTHENTICATED.into()], ..User::default() };
        let given = Arc::new(Speech::of(settings.request_headers.clone(), &settings.told_under));
        Authenticator { settings, given, announced: ArcSwapOption::empty(), anonymous: Arc::new(anonymous) }
    }

    /// Returns the matcher of all header names that carry an identity.
    pub fn identity_headers(&self) -> Cow<'_, Arc<IdentityHeaders>> {
        match self.speech(&self.settings.trust.load()) {
            Cow::Borrowed(given) => Cow::Borrowed(&given.headers),
            Cow::Owned(announced) => Cow::Owned(announced.headers.clone()),
        }
    }

    /// Returns the filter that is applied to the groups of every user.
    pub fn groups(&self) -> &GroupFilter {
        &self.settings.groups
    }

    /// Returns the request-header authenticator for the front proxies of `trust`.
    fn speech(&self, trust: &Trust) -> Cow<'_, Arc<Speech>> {
        let Some(theirs) = &trust.front_proxies else { return Cow::Borrowed(&self.given) };
        if let Some(last) = &*self.announced.load()
            && Arc::ptr_eq(&last.0, theirs)
        {
            return Cow::Owned(last.1.clone());
        }
        let speech = Arc::new(Speech::of(RequestHeaders::announced(theirs), &self.settings.told_under));
        self.announced.store(Some(Arc::new((theirs.clone(), speech.clone()))));
        Cow::Owned(speech)
    }

    /// Authenticates a request, and removes every credential and front-proxy header, used or not.
    ///
    /// `Impersonate-*` stays: it is no credential, and [`authorize`](crate::authorize) must see it.
    pub async fn authenticate(
        &self,
        peer: &Peer,
        path: &str,
        headers: &mut HeaderMap,
    ) -> Result<Authenticated, Unauthenticated> {
        self.authenticate_at(peer, path, headers, UnixTime::now).await
    }

    /// Removes what [`authenticate`](Self::authenticate) removes, and `Impersonate-*`, from a request that is served
    /// without authentication.
    pub fn take_away(&self, headers: &mut HeaderMap) {
        self.identity_headers().take_away(headers);
    }

    /// Checks that the peer's certificate is trusted now, as a client's or as a front proxy's.
    /// Called periodically for long-lived connections, so that removing a CA also ends requests in flight.
    pub fn trusts(&self, peer: &Peer) -> Result<(), String> {
        let trust = self.settings.trust.load();
        let speech = self.speech(&trust);
        let Some(verdict) = peer.judge(&trust, &speech.request_headers, UnixTime::now()) else {
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
    ) -> Result<Authenticated, Unauthenticated> {
        let mut attempt = Attempt::default();
        // One snapshot of the trust: names of one generation must not be checked against certificates of another.
        let (speech, found, by_connection) = {
            let trust = self.settings.trust.load();
            let speech = self.speech(&trust);
            let found = speech.headers.find(headers);
            let by_connection = by_connection(peer, &trust, &speech, headers, found, now, &mut attempt);
            (speech, found, by_connection)
        };
        let user = match by_connection {
            ByConnection::Known(user) => Some(user),
            ByConnection::Nobody => None,
            ByConnection::Unknown => self.by_token(peer, headers, found, &mut attempt).await,
        };
        speech.headers.take_found_away(headers, found);
        let impersonates = found.impersonation;
        let warning = attempt.warning;
        if let Some(user) = user {
            return Ok(Authenticated { user: self.settings.groups.filter(user), impersonates, warning });
        }
        if attempt.errors.is_empty() && self.lets_anonymous_in(path) {
            let user = self.settings.groups.filter(self.anonymous.clone());
            return Ok(Authenticated { user, impersonates, warning });
        }
        Err(attempt.nobody())
    }

    /// Authenticates by the tokens of a request, in upstream's order.
    async fn by_token(
        &self,
        peer: &Peer,
        headers: &HeaderMap,
        found: Found,
        attempt: &mut Attempt,
    ) -> Option<Arc<User>> {
        if found.credential
            && let Some(value) = headers.get(AUTHORIZATION)
        {
            let token = match value.to_str().map(bearer::parse) {
                Ok(Bearer::Token(token)) => Some(token),
                Ok(Bearer::ExtraSpace) => {
                    attempt.warning = Some(bearer::EXTRA_SPACE);
                    None
                }
                Ok(Bearer::None) => None,
                Err(_) => {
                    attempt.error("bearer token", "the Authorization header contains invalid bytes");
                    None
                }
            };
            if let Some(token) = token
                && let Some(user) = self.holder(peer, "bearer token", token, attempt).await
            {
                return Some(user);
            }
        }
        if found.websocket && websocket::is_asked_for(headers) {
            match websocket::token(headers) {
                Ok(Some(token)) => return self.holder(peer, "websocket token", &token, attempt).await,
                Ok(None) => {}
                Err(why) => attempt.error("websocket token", why),
            }
        }
        None
    }

    /// Whether anonymous requests for `path` are allowed. The configuration file has precedence over the flag.
    fn lets_anonymous_in(&self, path: &str) -> bool {
        let said = self.settings.jwt.as_ref().and_then(|jwt| jwt.lets_anonymous_in(path));
        said.unwrap_or(self.settings.anonymous)
    }

    /// Returns the user of a token. A token that no authenticator supports is an error, too: the client did not mean to
    /// be anonymous.
    ///
    /// May wait for a network call; a cached result does not wait.
    async fn holder(
        &self,
        peer: &Peer,
        authenticator: &'static str,
        token: &str,
        attempt: &mut Attempt,
    ) -> Option<Arc<User>> {
        let Settings { tokens, jwt, token_reviews, .. } = &self.settings;
        if tokens.is_none() && jwt.is_none() && token_reviews.is_empty() {
            attempt.error(
                authenticator,
                "no token is accepted here (none of --token-auth-file, --authentication-config, \
                 --authentication-token-webhook-config-file and --authentication-kubeconfig is given)",
            );
            return None;
        }
        if let Some(tokens) = tokens
            && let Some(user) = peer.holder(&tokens.load(), token)
        {
            return Some(user);
        }
        if let Some(jwt) = jwt {
            match jwt.holder(token).await {
                Holder::Known(user) => return Some(user),
                Holder::Unknown => {}
                Holder::Wrong(why) => attempt.error(authenticator, format!("JWT: {why}")),
            }
        }
        let before = attempt.errors.len();
        for reviews in token_reviews {
            match reviews.holder(token).await {
                Ok(Some(user)) => return Some(user),
                Ok(None) => {}
                Err(error) => {
                    attempt.reviewer_failed |= matches!(error, ReviewError::Reviewer(_));
                    attempt.error(authenticator, error.to_string());
                }
            }
        }
        if attempt.errors.len() == before {
            attempt.error(authenticator, "invalid bearer token");
        }
        None
    }
}

impl Speech {
    fn of(request_headers: RequestHeaders, told_under: &[HeaderName]) -> Speech {
        let headers = Arc::new(IdentityHeaders::new(&request_headers.names).and(told_under));
        Speech { request_headers, headers }
    }

    fn front_proxy_s_word(&self, headers: &HeaderMap) -> Result<Option<Arc<User>>, String> {
        let Some(mut user) = self.request_headers.names.read(headers)? else { return Ok(None) };
        speakable::check(&user)?;
        if user.name != ANONYMOUS {
            add_group(&mut user.groups, AUTHENTICATED);
        }
        Ok(Some(Arc::new(user)))
    }
}

/// Authenticates by the client certificate and, if it is a front proxy's, by the request headers. As upstream's union:
/// the first success wins; errors are kept in case no authenticator succeeds.
fn by_connection(
    peer: &Peer,
    trust: &Trust,
    speech: &Speech,
    headers: &HeaderMap,
    found: Found,
    now: impl FnOnce() -> UnixTime,
    attempt: &mut Attempt,
) -> ByConnection {
    if peer.chain().is_empty() {
        return ByConnection::Unknown;
    }
    let Some(verdict) = peer.judge(trust, &speech.request_headers, now()) else { return ByConnection::Nobody };
    match &verdict.front_proxy {
        Some(Ok(())) if found.front_proxy => match speech.front_proxy_s_word(headers) {
            Ok(Some(user)) => return ByConnection::Known(user),
            Ok(None) => {}
            Err(why) => {
                // A later authenticator would take the front proxy for the caller.
                attempt.error("request header", why);
                return ByConnection::Nobody;
            }
        },
        Some(Err(why)) => attempt.error("request header", why),
        _ => {}
    }
    match &verdict.client {
        Some(Ok(user)) => return ByConnection::Known(user.clone()),
        Some(Err(why)) => attempt.error("client certificate", why),
        None => {}
    }
    ByConnection::Unknown
}

impl Authenticated {
    /// The user.
    pub fn user(&self) -> &Arc<User> {
        &self.user
    }

    /// Whether the request has `Impersonate-*` headers.
    pub fn impersonates(&self) -> bool {
        self.impersonates
    }

    /// The text of a `Warning: 299` header for the response.
    pub fn warning(&self) -> Option<&'static str> {
        self.warning
    }

    /// Whether the user is anonymous. The HTTP/2 connection of such a client should not outlive the response
    /// (`UnauthenticatedHTTP2DOSMitigation`).
    pub fn is_anonymous(&self) -> bool {
        self.user.name == ANONYMOUS || self.user.groups.iter().any(|group| group == UNAUTHENTICATED)
    }

    /// An authenticated user for tests.
    #[cfg(test)]
    pub(crate) fn for_test(user: User, impersonates: bool) -> Authenticated {
        Authenticated { user: Arc::new(user), impersonates, warning: None }
    }
}

impl Deref for Authenticated {
    type Target = User;

    fn deref(&self) -> &User {
        &self.user
    }
}

impl Unauthenticated {
    /// The value of the metric label `result`: `failure` without credentials, `error` if an authenticator failed.
    pub fn result(&self) -> Authentication {
        self.result
    }

    /// The errors of the authenticators, for the log.
    pub fn cause(&self) -> &str {
        &self.cause
    }
}

impl From<Unauthenticated> for Refusal {
    fn from(nobody: Unauthenticated) -> Refusal {
        let refusal = Refusal::new(nobody.blame, Status::unauthorized()).because(nobody.cause);
        match nobody.warning {
            Some(warning) => refusal.with_warning(warning),
            None => refusal,
        }
    }
}

/// The result of authenticating the connection.
enum ByConnection {
    Known(Arc<User>),
    /// The request must not be authenticated by any other means.
    Nobody,
    Unknown,
}

/// Errors and warnings of one authentication so far.
#[derive(Default)]
struct Attempt {
    errors: Vec<String>,
    /// Whether a TokenReview call failed, so that a valid token may have been refused.
    reviewer_failed: bool,
    warning: Option<&'static str>,
}

impl Attempt {
    fn error(&mut self, authenticator: &str, why: impl AsRef<str>) {
        self.errors.push(format!("{authenticator}: {}", why.as_ref()));
    }

    fn nobody(self) -> Unauthenticated {
        let (result, cause) = if self.errors.is_empty() {
            (Authentication::Failure, "no credentials that a configured authenticator accepts".to_owned())
        } else {
            (Authentication::Error, self.errors.join("; "))
        };
        let blame = if self.reviewer_failed { Blame::Gateway } else { Blame::Client };
        Unauthenticated { result, blame, cause, warning: self.warning }
    }
}

/// Adds a group, unless the user is in `system:authenticated` or `system:unauthenticated` already.
pub(super) fn add_group(groups: &mut Vec<String>, group: &str) {
    if !groups.iter().any(|it| it == AUTHENTICATED || it == UNAUTHENTICATED) {
        groups.push(group.to_owned());
    }
}
