//! The chain of authenticators, and the proof that somebody came out of it.

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

/// What the chain is made of.
pub struct Settings {
    /// Whom we believe; followed.
    pub trust: Published<Trust>,
    /// How a front proxy is known, and where it speaks.
    pub request_headers: RequestHeaders,
    /// `--token-auth-file`; followed.
    pub tokens: Option<Published<Tokens>>,
    /// `--authentication-config`: tokens of issuers, and which requests without credentials are let in.
    pub jwt: Option<Arc<Jwt>>,
    /// Which groups nobody brings in here.
    pub groups: GroupFilter,
    /// `--authentication-token-webhook-config-file` and `--authentication-kubeconfig`: asked in this order about
    /// tokens that nobody here knows.
    pub token_reviews: Vec<Arc<TokenReviews>>,
    /// `--api-audiences`: whom tokens are for that name nobody themselves, when somebody else asks about them.
    pub audiences: Vec<String>,
    /// `--anonymous-auth`.
    pub anonymous: bool,
    /// Names besides the standard ones under which a backend is told who asks. No client says anything under them.
    pub told_under: Vec<HeaderName>,
}

/// Finds out who is asking. One a worker; cheap to make.
pub struct Authenticator {
    pub(super) settings: Settings,
    /// How front proxies speak as the flags say.
    given: Arc<Speech>,
    /// How they speak as the cluster said last.
    announced: ArcSwapOption<(Arc<FrontProxies>, Arc<Speech>)>,
    anonymous: Arc<User>,
}

/// How front proxies speak, and which headers carry an identity then.
struct Speech {
    request_headers: RequestHeaders,
    headers: Arc<IdentityHeaders>,
}

/// Somebody, known. Only [`Authenticator::authenticate`] makes one, and when it did, the request's
/// headers say nothing about identity any more.
#[derive(Clone, Debug)]
pub struct Authenticated {
    user: Arc<User>,
    impersonates: bool,
    warning: Option<&'static str>,
}

/// Nobody. Turns into the 401 that upstream gives, with the reason kept for the log.
#[derive(Debug)]
pub struct Unauthenticated {
    result: Authentication,
    blame: Blame,
    cause: String,
    warning: Option<&'static str>,
}

impl Authenticator {
    /// A chain of what `settings` name.
    pub fn new(settings: Settings) -> Authenticator {
        let anonymous = User { name: ANONYMOUS.into(), groups: vec![UNAUTHENTICATED.into()], ..User::default() };
        let given = Arc::new(Speech::of(settings.request_headers.clone(), &settings.told_under));
        Authenticator { settings, given, announced: ArcSwapOption::empty(), anonymous: Arc::new(anonymous) }
    }

    /// The names of all headers that carry an identity here.
    pub fn identity_headers(&self) -> Cow<'_, Arc<IdentityHeaders>> {
        match self.speech(&self.settings.trust.load()) {
            Cow::Borrowed(given) => Cow::Borrowed(&given.headers),
            Cow::Owned(announced) => Cow::Owned(announced.headers.clone()),
        }
    }

    /// Which groups nobody brings in, whoever says them.
    pub fn groups(&self) -> &GroupFilter {
        &self.settings.groups
    }

    /// How front proxies speak whom `trust` believes.
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

    /// Says who sent a request, and removes from its headers every credential and every front proxy's
    /// word, whether anybody believed them or not.
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

    /// Removes from the headers of a request that nobody authenticates whatever [`authenticate`](Self::authenticate)
    /// removes, and `Impersonate-*`: nobody will judge it.
    pub fn take_away(&self, headers: &mut HeaderMap) {
        self.identity_headers().take_away(headers);
    }

    /// Whether the peer's certificate is believed now, as a client's or as a front proxy's; else why not.
    /// Connections that live for hours are asked this now and then, so that trust which is taken back is lost
    /// to what runs on them too.
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
        // One look at whom we believe: names of one generation are not held against certificates of another.
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

    /// The tokens that a request carries, in upstream's order.
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
                    attempt.error("bearer token", "the header holds bytes that no token has");
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

    /// What the configuration file says of it comes before the flag.
    fn lets_anonymous_in(&self, path: &str) -> bool {
        let said = self.settings.jwt.as_ref().and_then(|jwt| jwt.lets_anonymous_in(path));
        said.unwrap_or(self.settings.anonymous)
    }

    /// A token that nobody here can judge is an error, too: its sender meant to be somebody.
    ///
    /// It may have to ask somebody over a network; for whoever is known already it does not wait.
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

/// What the connection's certificate says, and the headers of a front proxy that has one. As upstream's union: the
/// first success wins, errors are kept for when nobody succeeds.
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
                // Whoever else knew the sender would take the front proxy for the caller.
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
    /// Who it is.
    pub fn user(&self) -> &Arc<User> {
        &self.user
    }

    /// Whether the request wants to be taken for somebody else's (`Impersonate-*`).
    pub fn impersonates(&self) -> bool {
        self.impersonates
    }

    /// Text of a `Warning: 299` for the answer.
    pub fn warning(&self) -> Option<&'static str> {
        self.warning
    }

    /// Whether it is nobody in particular: such a client's HTTP/2 connection should not outlive the
    /// answer (`UnauthenticatedHTTP2DOSMitigation`).
    pub fn is_anonymous(&self) -> bool {
        self.user.name == ANONYMOUS || self.user.groups.iter().any(|group| group == UNAUTHENTICATED)
    }

    /// Somebody made up.
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
    /// The result's label: `failure` when nobody said anything, `error` when something was wrong.
    pub fn result(&self) -> Authentication {
        self.result
    }

    /// Which authenticator found what wrong, for the log.
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

/// What a connection itself says about who is asking.
enum ByConnection {
    Known(Arc<User>),
    /// Whatever else the request carries, nobody is to be believed.
    Nobody,
    Unknown,
}

/// What went wrong so far.
#[derive(Default)]
struct Attempt {
    errors: Vec<String>,
    /// Whether a TokenReview could not be had, so that a good token may have been refused.
    reviewer_failed: bool,
    warning: Option<&'static str>,
}

impl Attempt {
    fn error(&mut self, authenticator: &str, why: impl AsRef<str>) {
        self.errors.push(format!("{authenticator}: {}", why.as_ref()));
    }

    fn nobody(self) -> Unauthenticated {
        let (result, cause) = if self.errors.is_empty() {
            (Authentication::Failure, "no credentials that anybody here judges".to_owned())
        } else {
            (Authentication::Error, self.errors.join("; "))
        };
        let blame = if self.reviewer_failed { Blame::Gateway } else { Blame::Client };
        Unauthenticated { result, blame, cause, warning: self.warning }
    }
}

/// Adds a group, unless the user is already said to be known or unknown.
pub(super) fn add_group(groups: &mut Vec<String>, group: &str) {
    if !groups.iter().any(|it| it == AUTHENTICATED || it == UNAUTHENTICATED) {
        groups.push(group.to_owned());
    }
}
