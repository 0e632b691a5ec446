//! `TokenReview` calls to a kube-apiserver or a webhook, with a cache of their results.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use bytes::Bytes;
use http::Method;
use kubeapi::User;
use serde::{Deserialize, Serialize};

use super::{ANONYMOUS, AUTHENTICATED, groups, header_safe};
use crate::decision_cache::{
    CacheLimits, CachedDecision, DecisionCache, DecisionKey, DigestSecret, FlightGuard, ReviewTarget, ReviewVersion,
    SingleFlight,
};
use crate::kubeclient::{ApiResponse, CallError, CallPolicy, Client, ClientHandle};
use crate::observe::metrics::{self, CacheResult, CallHealth, CallKind, Metrics, ReviewKind};
use crate::process::Problem;

/// Limits of the cache of authenticated tokens: twice what Kubernetes says its largest clusters need.
const TOKEN_CACHE_LIMITS: CacheLimits = CacheLimits { entries: 32_768, bytes: 32 << 20 };
/// Limits of the negative cache. It is separate, so that a flood of invalid tokens evicts no valid one.
const UNKNOWN_TOKEN_CACHE_LIMITS: CacheLimits = CacheLimits { entries: 8_192, bytes: 2 << 20 };

/// An invalid token for readiness probes, where only the availability of the server matters.
const PROBE_TOKEN: &str = "narthex-readiness-probe";

/// Authenticates tokens by TokenReview at a kube-apiserver or a webhook, and caches the results
/// (`k8s.io/apiserver/plugin/pkg/authenticator/token/webhook`). Tokens are not stored. No `Debug`, on purpose.
pub struct TokenReviewClient {
    remote: ClientHandle,
    settings: TokenReviewSettings,
    path: String,
    secret: DigestSecret,
    token_cache: DecisionCache<Arc<User>>,
    unknown_token_cache: DecisionCache<()>,
    /// Calls in flight. The inner error is the server's error about an invalid token.
    single_flight: Arc<SingleFlight<TokenUser>>,
    metrics: Arc<Metrics>,
    health: Arc<CallHealth>,
}

/// Settings of token reviews.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenReviewSettings {
    /// The server to call and its API version.
    pub target: ReviewTarget,
    /// `--api-audiences`: accepted audiences of tokens; empty for the API server's own.
    pub audiences: Vec<String>,
    /// `--authentication-token-webhook-cache-ttl`: cache TTL of results.
    pub cache_ttl: Duration,
    /// Timeouts and retries.
    pub patience: CallPolicy,
}

/// The user of a token, or the server's error about an invalid token.
type TokenUser = Result<Option<Arc<User>>, Arc<str>>;

/// The error of a token review; the texts are for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenReviewError {
    /// The token is invalid, with the server's error.
    Token(Arc<str>),
    /// The call failed, or its response is invalid.
    Unavailable(Arc<str>),
}

impl fmt::Display for TokenReviewError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TokenReviewError::Token(why) => f.write_str(why),
            TokenReviewError::Unavailable(why) => write!(f, "TokenReview failed: {why}"),
        }
    }
}

/// The request object, with its fields in Kubernetes' order.
#[derive(Serialize)]
struct TokenReviewRequest<'q> {
    kind: &'static str,
    #[serde(rename = "apiVersion")]
    api_version: &'static str,
    metadata: EmptyObject,
    spec: Spec<'q>,
    status: EmptyStatus,
}

#[derive(Serialize)]
struct EmptyObject {}

#[derive(Serialize)]
struct EmptyStatus {
    user: EmptyObject,
}

#[derive(Serialize)]
struct Spec<'q> {
    token: &'q str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    audiences: &'q [String],
}

/// The response object, reduced to the fields in use.
#[derive(Deserialize)]
struct TokenReviewResponse {
    kind: String,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    authenticated: bool,
    user: TokenReviewUser,
    audiences: Option<Vec<String>>,
    error: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct TokenReviewUser {
    username: String,
    uid: String,
    groups: Option<Vec<String>>,
    extra: Option<BTreeMap<String, Option<Vec<String>>>>,
}

impl TokenReviewClient {
    /// Creates a client that sends its calls through `remote`.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn new(
        remote: ClientHandle,
        settings: TokenReviewSettings,
        metrics: &Arc<Metrics>,
    ) -> Result<Arc<Self>, Problem> {
        let name = if matches!(settings.target, ReviewTarget::Webhook(_)) { "webhook" } else { "" };
        let health = metrics.calls().register(CallKind::TokenReview, name);
        let cache = |name, limits| (name, limits, metrics.clone());
        let (name, limits, counting) = cache(metrics::DecisionCacheKind::Token, TOKEN_CACHE_LIMITS);
        let holders = DecisionCache::new(name, limits, counting);
        let (name, limits, counting) = cache(metrics::DecisionCacheKind::UnknownToken, UNKNOWN_TOKEN_CACHE_LIMITS);
        let nobodies = DecisionCache::new(name, limits, counting);
        Ok(Arc::new(TokenReviewClient {
            remote,
            path: settings.target.path("authentication.k8s.io", "tokenreviews", settings.patience.attempt_timeout),
            settings,
            secret: DigestSecret::new()?,
            token_cache: holders,
            unknown_token_cache: nobodies,
            single_flight: Arc::default(),
            metrics: metrics.clone(),
            health,
        }))
    }

    /// Returns the user of `token`; none if it is not authenticated. A cached result does not wait.
    ///
    /// # Errors
    /// When the token is invalid, or the call failed.
    pub async fn authenticate(self: &Arc<Self>, token: &str) -> Result<Option<Arc<User>>, TokenReviewError> {
        let key = self.secret.key(|digest| {
            digest.text(token);
            digest.texts(self.settings.audiences.iter().map(String::as_str));
        });
        match self.cached(&key, Instant::now()) {
            Some(holder) => {
                let cache = [metrics::DecisionCacheKind::UnknownToken, metrics::DecisionCacheKind::Token];
                self.metrics.reviews().record_lookup(cache[usize::from(holder.is_some())], CacheResult::Hit);
                self.health.record_cache_hit();
                Ok(holder)
            }
            // Boxed, to keep the futures of requests with a cached result small.
            None => Box::pin(self.review_shared(key, token)).await,
        }
    }

    /// Returns the user of `token` and those of `audiences` for which it is valid. Not cached: the caller has a cache.
    ///
    /// # Errors
    /// As [`TokenReviewClient::authenticate`].
    pub(super) async fn authenticate_for(
        self: &Arc<Self>,
        token: &str,
        audiences: &[String],
    ) -> Result<Option<(User, Vec<String>)>, TokenReviewError> {
        let (reviews, token, wanted) = (self.clone(), token.to_owned(), audiences.to_vec());
        let (answer, answered) = tokio::sync::oneshot::channel();
        self.remote.run(move |client: Rc<Client>| async move {
            // The receiver may have been dropped.
            let _ = answer.send(reviews.send_review(&client, &token, &wanted).await);
        });
        let whole = self.settings.patience.total_timeout;
        match tokio::time::timeout(whole, answered).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(TokenReviewError::Unavailable("the call was canceled".into())),
            Err(_) => Err(TokenReviewError::Unavailable(format!("no answer within {whole:?}").into())),
        }
    }

    /// Reviews an invalid token if no call was made yet or the last one failed, to detect a recovered server without
    /// waiting for a request.
    pub fn probe(self: &Arc<Self>) {
        if self.health.is_unproven() {
            let reviews = self.clone();
            self.remote.run(move |client: Rc<Client>| async move {
                // The outcome is recorded in the health of the calls.
                let _ = reviews.send_review(&client, PROBE_TOKEN, &reviews.settings.audiences).await;
            });
        }
    }

    /// Removes expired entries. Call it periodically.
    pub fn remove_expired(&self) {
        let now = Instant::now();
        self.token_cache.remove_expired(now);
        self.unknown_token_cache.remove_expired(now);
    }

    fn cached(&self, key: &DecisionKey, now: Instant) -> Option<Option<Arc<User>>> {
        let cached_user = self.token_cache.get_fresh(key, now).map(Some);
        cached_user.or_else(|| self.unknown_token_cache.get_fresh(key, now).map(|()| None))
    }

    async fn review_shared(
        self: &Arc<Self>,
        key: DecisionKey,
        token: &str,
    ) -> Result<Option<Arc<User>>, TokenReviewError> {
        self.metrics.reviews().record_lookup(metrics::DecisionCacheKind::Token, CacheResult::Miss);
        let _awaited = self.metrics.reviews().token_wait_guard();
        let answer = self.single_flight.join(
            key,
            || self.cached(&key, Instant::now()).map(Ok),
            |landing| {
                let (reviews, token) = (self.clone(), token.to_owned());
                self.remote.run(move |client: Rc<Client>| async move {
                    reviews.complete_flight(&client, key, &token, landing).await;
                });
            },
        );
        // The review has its own timeout; this one also holds when its thread is stuck.
        let whole = self.settings.patience.total_timeout;
        match tokio::time::timeout(whole, answer).await {
            Ok(Ok(answer)) => answer.map_err(TokenReviewError::Token),
            Ok(Err(why)) => Err(TokenReviewError::Unavailable(why)),
            Err(_) => Err(TokenReviewError::Unavailable(format!("no answer within {whole:?}").into())),
        }
    }

    /// Runs a review on the client's thread. It continues when the request that started it is canceled.
    async fn complete_flight(&self, client: &Client, key: DecisionKey, token: &str, landing: FlightGuard<TokenUser>) {
        let outcome = self.send_review(client, token, &self.settings.audiences).await;
        let outcome = outcome.map(|token_user| token_user.map(|(user, _)| Arc::new(user)));
        landing.complete(match outcome {
            Ok(user) => Ok(Ok(self.store(key, token, user))),
            Err(TokenReviewError::Token(why)) => Ok(Err(why)),
            Err(TokenReviewError::Unavailable(why)) => Err(why),
        });
    }

    /// Sends a review; on the client's thread, too.
    async fn send_review(
        &self,
        client: &Client,
        token: &str,
        audiences: &[String],
    ) -> Result<Option<(User, Vec<String>)>, TokenReviewError> {
        let counting = self.metrics.reviews();
        counting.token_fetch_started();
        let body = request_body(token, audiences, self.settings.target.version());
        let tried = |answer: &Result<ApiResponse, CallError>, took| {
            // kube-apiserver has no such metric for calls to its webhook.
            if matches!(self.settings.target, ReviewTarget::ApiServer(_)) {
                counting.record_request(ReviewKind::Token, answer.as_ref().ok().map(|answer| answer.status), took);
            }
        };
        let began = Instant::now();
        let answer = client.call(Method::POST, &self.path, Some(body), self.settings.patience, tried).await;
        let answer = match answer {
            Ok(answer) if answer.is_success() => Ok(answer.body),
            Ok(answer) => Err(answer.describe()),
            Err(error) => Err(error.to_string()),
        };
        // An invalid token is the client's fault; a failed call is for the operator, and counts in the health.
        let reviewed = answer.and_then(|body| parse_response(&body));
        let result = reviewed.as_ref().map(drop).map_err(String::as_str);
        self.health.record(client.server(), result, began.elapsed());
        let reviewed = reviewed.map_err(|why| TokenReviewError::Unavailable(why.into()));
        let outcome = reviewed.and_then(|reviewed| reviewed_user(reviewed, audiences, &self.settings.audiences));
        counting.token_fetch_finished(outcome.is_ok());
        outcome
    }

    /// Caches a result. Errors are never cached: a failed call, and also the API server's error about the token, may be
    /// temporary.
    fn store(&self, key: DecisionKey, token: &str, user: Option<Arc<User>>) -> Option<Arc<User>> {
        let now = Instant::now();
        let good_for = match (&user, jwt_expiry(token)) {
            // The entry expires with the token, if that is earlier.
            (Some(_), Some(expiry)) => {
                let left = expiry.duration_since(SystemTime::now()).unwrap_or_default();
                self.settings.cache_ttl.min(left)
            }
            _ => self.settings.cache_ttl,
        };
        if good_for.is_zero() {
            return user;
        }
        let fresh_until = now + good_for;
        match user {
            Some(user) => {
                let (bytes, owner) = (size_of_user(&user), user.name.clone());
                let decision =
                    CachedDecision { value: user, owner: &owner, bytes, fresh_until, stale_until: fresh_until };
                Some(self.token_cache.insert(key, decision, now))
            }
            None => {
                let decision = CachedDecision { value: (), owner: "", bytes: 0, fresh_until, stale_until: fresh_until };
                self.unknown_token_cache.insert(key, decision, now);
                None
            }
        }
    }
}

fn request_body(token: &str, audiences: &[String], version: ReviewVersion) -> Bytes {
    let question = TokenReviewRequest {
        kind: "TokenReview",
        api_version: match version {
            ReviewVersion::V1 => "authentication.k8s.io/v1",
            ReviewVersion::V1Beta1 => "authentication.k8s.io/v1beta1",
        },
        metadata: EmptyObject {},
        spec: Spec { token, audiences },
        status: EmptyStatus { user: EmptyObject {} },
    };
    serde_json::to_vec(&question).map(Bytes::from).unwrap_or_default()
}

/// Parses the response.
fn parse_response(answer: &[u8]) -> Result<TokenReviewResponse, String> {
    let reviewed: TokenReviewResponse = serde_json::from_slice(answer)
        .map_err(|error| format!("the API server's response is not a TokenReview: {error}"))?;
    match reviewed.kind.as_str() {
        "TokenReview" => Ok(reviewed),
        other => Err(format!("the API server's response is not a TokenReview but a {other:?}")),
    }
}

/// Evaluates a response: the user, and the requested audiences for which the token is valid. Kubernetes accepts a user
/// without a name; here it is an error, because no backend could be told the identity.
///
/// A response without audiences means `own_audiences`.
fn reviewed_user(
    reviewed: TokenReviewResponse,
    audiences: &[String],
    own_audiences: &[String],
) -> Result<Option<(User, Vec<String>)>, TokenReviewError> {
    let status = reviewed.status;
    let reviewed_audiences = status.audiences.filter(|audiences| !audiences.is_empty());
    let good_for = reviewed_audiences.as_deref().unwrap_or(own_audiences);
    let both: Vec<String> = audiences.iter().filter(|audience| good_for.contains(audience)).cloned().collect();
    if both.is_empty() && !audiences.is_empty() {
        return Ok(None);
    }
    if !status.authenticated {
        return if status.error.is_empty() { Ok(None) } else { Err(TokenReviewError::Token(status.error.into())) };
    }
    let info = status.user;
    let extra = info.extra.unwrap_or_default();
    let mut user = User {
        name: info.username,
        uid: info.uid,
        groups: info.groups.unwrap_or_default(),
        extra: extra.into_iter().map(|(key, values)| (key, values.unwrap_or_default())).collect(),
    };
    header_safe::check_header_safe(&user)
        .map_err(|why| TokenReviewError::Unavailable(format!("invalid response: {why}").into()))?;
    if user.name != ANONYMOUS {
        groups::add_group(&mut user.groups, AUTHENTICATED);
    }
    Ok(Some((user, both)))
}

/// Returns the `exp` claim of a token, if it is a JWT with one. It is not verified, and used for nothing else.
fn jwt_expiry(token: &str) -> Option<SystemTime> {
    #[derive(Deserialize)]
    struct ExpiryClaim {
        exp: f64,
    }
    let payload = token.split('.').nth(1).filter(|_| token.bytes().filter(|byte| *byte == b'.').count() == 2)?;
    let payload = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(payload).ok()?;
    let ExpiryClaim { exp } = serde_json::from_slice(&payload).ok()?;
    Some(UNIX_EPOCH + Duration::try_from_secs_f64(exp).ok()?)
}

pub(super) fn size_of_user(user: &User) -> usize {
    const TEXT: usize = size_of::<String>();
    let texts = |texts: &[String]| texts.iter().map(|text| text.len() + TEXT).sum::<usize>();
    let extra: usize = user.extra.iter().map(|(key, values)| key.len() + 2 * TEXT + texts(values)).sum();
    size_of::<User>() + user.name.len() + user.uid.len() + texts(&user.groups) + extra
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(audiences: &[&str]) -> Vec<String> {
        audiences.iter().map(|name| (*name).to_owned()).collect()
    }

    fn judge(answer: &[u8], asked: &[String], ours: &[String]) -> Result<Option<(User, Vec<String>)>, String> {
        reviewed_user(parse_response(answer)?, asked, ours).map_err(|error| error.to_string())
    }

    #[test]
    fn token_review_request_equals_upstream() {
        let say = |audiences: &[&str], version| {
            String::from_utf8(request_body("t\"k", &names(audiences), version).to_vec()).unwrap()
        };
        let asked = |audiences: &[&str]| say(audiences, ReviewVersion::V1);
        assert_eq!(
            asked(&[]),
            r#"{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","metadata":{},"spec":{"token":"t\"k"},"status":{"user":{}}}"#
        );
        assert!(asked(&["a", "b"]).contains(r#""spec":{"token":"t\"k","audiences":["a","b"]}"#));
        assert_eq!(say(&["a"], ReviewVersion::V1Beta1), asked(&["a"]).replace("k8s.io/v1", "k8s.io/v1beta1"));
    }

    #[test]
    fn token_review_response_evaluated_like_upstream() {
        let judge = |status: &str, audiences: &[&str]| {
            judge(
                format!(r#"{{"kind":"TokenReview","status":{status}}}"#).as_bytes(),
                &names(audiences),
                &names(audiences),
            )
        };
        let jane = r#""user":{"username":"jane","uid":"7","groups":["devs"],"extra":{"scopes":["a","b"],"none":null}}"#;
        let (user, _) = judge(&format!(r#"{{"authenticated":true,{jane}}}"#), &[]).unwrap().unwrap();
        assert_eq!((&*user.name, &*user.uid), ("jane", "7"));
        assert_eq!(user.groups, ["devs", "system:authenticated"]);
        assert_eq!((&user.extra["scopes"], user.extra["none"].len()), (&names(&["a", "b"]), 0));

        let with = |theirs: &str, ours: &[&str]| {
            judge(&format!(r#"{{"authenticated":true,"audiences":{theirs},{jane}}}"#), ours).unwrap().is_some()
        };
        assert!(with(r#"["a","b"]"#, &["b", "c"]) && with(r#"["x"]"#, &[]));
        assert!(with("[]", &["a"]) && with("null", &["a"]));
        assert!(!with(r#"["x"]"#, &["a"]) && !with(r#"["A"]"#, &["a"]));

        assert_eq!(judge(r#"{"authenticated":false}"#, &[]), Ok(None));
        assert_eq!(judge("{}", &[]), Ok(None));
        assert_eq!(judge(r#"{"error":"expired"}"#, &[]), Err("expired".to_owned()));
        // Authenticated with an error: accepted, as in Kubernetes.
        assert!(judge(&format!(r#"{{"authenticated":true,"error":"odd",{jane}}}"#), &[]).unwrap().is_some());
    }

    #[test]
    fn token_review_audiences_limited_to_requested() {
        let good_for = |theirs: &str, asked: &[&str]| {
            let answer = format!(
                r#"{{"kind":"TokenReview","status":{{"authenticated":true,"audiences":{theirs},"user":{{"username":"a"}}}}}}"#
            );
            judge(answer.as_bytes(), &names(asked), &names(&["us"])).unwrap().map(|(_, audiences)| audiences)
        };
        assert_eq!(good_for(r#"["a","b","c"]"#, &["c", "a", "x"]), Some(names(&["c", "a"])));
        assert_eq!(good_for("null", &["us", "them"]), Some(names(&["us"])));
        assert_eq!(good_for("[]", &["them"]), None);
        assert_eq!(good_for(r#"["a"]"#, &[]), Some(names(&[])));
    }

    #[test]
    fn token_review_response_without_user_is_an_error() {
        for answer in [
            r#"{"kind":"TokenReview","status":{"authenticated":true}}"#,
            r#"{"kind":"TokenReview","status":{"authenticated":true,"user":{"username":""}}}"#,
            r#"{"kind":"TokenReview","status":{"authenticated":true,"user":{"username":"a\nb"}}}"#,
            r#"{"kind":"TokenReview","status":{"authenticated":true,"user":{"username":"a","groups":["b\u0000"]}}}"#,
            r#"{"kind":"TokenReview","status":{"authenticated":"yes"}}"#,
            r#"{"status":{"authenticated":true,"user":{"username":"jane"}}}"#,
            r#"{"kind":"Status","status":"Failure"}"#,
            "[]",
            "",
            "<html>",
        ] {
            assert!(judge(answer.as_bytes(), &[], &[]).is_err(), "{answer}");
        }
    }

    fn jwt(claims: &str) -> String {
        format!("e30.{}.c2ln", base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(claims))
    }

    fn reviews(cache_ttl: Duration) -> Arc<TokenReviewClient> {
        let settings = TokenReviewSettings { cache_ttl, ..TokenReviewSettings::default() };
        TokenReviewClient::new(ClientHandle::new().0, settings, &Metrics::new()).unwrap()
    }

    fn service_account(number: usize) -> User {
        let name = format!("system:serviceaccount:namespace-{number}:default");
        let groups = names(&["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"]);
        let extra = ["credential-id", "node-name", "node-uid", "pod-name", "pod-uid"]
            .map(|key| (format!("authentication.kubernetes.io/{key}"), vec![format!("{key}-{number:040}")]));
        User { name, uid: format!("{number:036}"), groups, extra: extra.into() }
    }

    /// Any number of tokens leaves the caches within their limits, and the last entry is found.
    #[test]
    fn token_review_cache_is_bounded() {
        let reviews = reviews(Duration::from_secs(3600));
        let key = |number: usize| reviews.secret.key(|digest| digest.number(number));
        for number in 0..100_000 {
            reviews.store(key(number), "opaque", Some(Arc::new(service_account(number))));
            reviews.store(key(number), "opaque", None);
        }
        let (holders, nobodies) = (reviews.token_cache.size(), reviews.unknown_token_cache.size());
        assert!(
            holders.1 <= TOKEN_CACHE_LIMITS.bytes && nobodies.1 <= UNKNOWN_TOKEN_CACHE_LIMITS.bytes,
            "{holders:?} {nobodies:?}"
        );
        assert!(holders.0 > 20_000 && holders.0 <= TOKEN_CACHE_LIMITS.entries, "{holders:?}");
        assert!(nobodies.0 > 7_000 && nobodies.0 <= UNKNOWN_TOKEN_CACHE_LIMITS.entries, "{nobodies:?}");
        let last = reviews.cached(&key(99_999), Instant::now()).unwrap().unwrap();
        assert_eq!(last.name, "system:serviceaccount:namespace-99999:default");
    }

    #[test]
    fn token_review_cache_entry_expires_with_token() {
        let reviews = reviews(Duration::from_secs(3600));
        let key = |token: &str| reviews.secret.key(|digest| digest.text(token));
        let in_a_minute = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() + 60;
        let (long, short, over) =
            ("opaque".to_owned(), jwt(&format!(r#"{{"exp":{in_a_minute}}}"#)), jwt(r#"{"exp":1}"#));
        for token in [&long, &short, &over] {
            reviews.store(key(token), token, Some(Arc::new(service_account(1))));
        }
        let known =
            |token: &str, seconds| reviews.cached(&key(token), Instant::now() + Duration::from_secs(seconds)).is_some();
        assert!(known(&long, 0) && known(&long, 3500) && !known(&long, 3601));
        assert!(known(&short, 0) && !known(&short, 61));
        assert!(!known(&over, 0));
    }

    #[test]
    fn token_expiry_read_from_jwt() {
        assert_eq!(jwt_expiry(&jwt(r#"{"exp":1700000000}"#)), Some(UNIX_EPOCH + Duration::from_secs(1_700_000_000)));
        for odd in [jwt("{}"), jwt(r#"{"exp":"soon"}"#), jwt(r#"{"exp":-1}"#), jwt(r#"{"exp":1e300}"#)] {
            assert_eq!(jwt_expiry(&odd), None, "{odd}");
        }
        for odd in ["", "opaque", "a.b", "a.b.c.d", "e30.%%.x"] {
            assert_eq!(jwt_expiry(odd), None, "{odd}");
        }
    }
}
