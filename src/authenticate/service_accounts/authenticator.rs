//! Authenticates service account tokens: by their signature, and by the objects that they belong to, as these are now
//! (`pkg/serviceaccount/jwt.go`, `claims.go`, `legacy.go`).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jiff::Timestamp;
use kubeapi::User;
use serde::Deserialize;
use serde_json::{Map, Value};
use store::Key;
use store::watch_cache::{ResourceCollection, Stored};

use super::issuer::{LEGACY_ISSUER, TokenIssuer, unix_seconds, user_name};
use super::key_set::KeySet;
use crate::authenticate::jwt::{UnverifiedToken, add_credential_id, claims};
use crate::authenticate::token_review::size_of_user;
use crate::authenticate::{AUTHENTICATED, check_speakable};
use crate::decision_cache::{CacheLimits, CachedDecision, DecisionCache, DigestSecret};
use crate::observe::metrics::{CacheResult, DecisionCacheKind, Metrics};
use crate::process::Problem;

/// Group of all ServiceAccounts.
const ALL_ACCOUNTS: &str = "system:serviceaccounts";
/// How long the signature of a token is not verified again. The objects that it belongs to are looked up each time.
const VERIFIED_TTL: Duration = Duration::from_secs(60);
/// Limits of the cache of verified tokens.
const CACHE_LIMITS: CacheLimits = CacheLimits { entries: 32_768, bytes: 32 << 20 };
/// Leeway of clocks in seconds, and how long a token outlives the deletion of its objects (`jwt.DefaultLeeway`).
const LEEWAY_SECONDS: i64 = 60;
/// Error for a token whose bound object is gone.
const INVALIDATED: &str = "service account token has been invalidated";

/// Label of a Secret whose token is not to be used any more (`InvalidSinceLabelKey`).
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";
/// Longest token in bytes. Audiences of a TokenRequest are limited so that no longer one is issued.
const MAX_TOKEN_BYTES: usize = 64 << 10;
/// Most audiences that an error names.
const MAX_SHOWN_AUDIENCES: usize = 8;

/// The objects that tokens belong to.
#[derive(Clone)]
pub struct TokenObjects {
    /// ServiceAccounts.
    pub service_accounts: ResourceCollection,
    /// Secrets.
    pub secrets: ResourceCollection,
    /// Pods.
    pub pods: ResourceCollection,
    /// Nodes.
    pub nodes: ResourceCollection,
}

/// Authenticates service account tokens; shared by all threads.
pub struct ServiceAccountAuthenticator {
    issuer: Arc<TokenIssuer>,
    objects: TokenObjects,
    secret: DigestSecret,
    verified: DecisionCache<Arc<VerifiedAccountToken>>,
    metrics: Arc<Metrics>,
}

/// A token whose signature and times were verified.
#[derive(Debug, PartialEq, Eq)]
struct VerifiedAccountToken {
    user: Arc<User>,
    /// The key set that verified it.
    keys: u64,
    expires_at: Option<i64>,
    /// When the key ends that verified it.
    key_ends: Option<SystemTime>,
    /// Its audiences; those of this server if it has none of its own.
    audiences: Vec<String>,
    /// Whether this server is among them.
    is_for_server: bool,
    account: TokenObject,
    bound: Option<TokenObject>,
}

/// An object that a token belongs to.
#[derive(Debug, PartialEq, Eq)]
struct TokenObject {
    kind: TokenObjectKind,
    key: Key,
    uid: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenObjectKind {
    ServiceAccount,
    Secret,
    /// The Secret that a token without an end is stored in.
    LegacySecret,
    Pod,
    Node,
}

/// A user and the requested audiences for which its token is valid.
pub type TokenUser = (Arc<User>, Vec<String>);

/// The claims of a token of a TokenRequest.
#[derive(Deserialize)]
struct PrivateClaims {
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    serviceaccount: ObjectClaim,
    pod: Option<ObjectClaim>,
    secret: Option<ObjectClaim>,
    node: Option<ObjectClaim>,
}

#[derive(Default, Deserialize)]
struct ObjectClaim {
    #[serde(default)]
    name: String,
    #[serde(default)]
    uid: String,
}

impl ServiceAccountAuthenticator {
    /// Authenticates the tokens of `issuer` by `objects`.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn new(
        issuer: Arc<TokenIssuer>,
        objects: TokenObjects,
        metrics: &Arc<Metrics>,
    ) -> Result<ServiceAccountAuthenticator, Problem> {
        let verified = DecisionCache::new(DecisionCacheKind::ServiceAccount, CACHE_LIMITS, metrics.clone());
        Ok(ServiceAccountAuthenticator {
            issuer,
            objects,
            secret: DigestSecret::new()?,
            verified,
            metrics: metrics.clone(),
        })
    }

    /// The issuer of the tokens.
    pub fn issuer(&self) -> &Arc<TokenIssuer> {
        &self.issuer
    }

    /// Authenticates a token for this server. None for a token of another issuer.
    ///
    /// # Errors
    /// Why the token is not valid, for the log.
    pub async fn authenticate(&self, token: &str) -> Result<Option<Arc<User>>, String> {
        let now = SystemTime::now();
        let Some(verified) = self.find_verified(token, now)? else { return Ok(None) };
        if !verified.is_for_server {
            return Err(verified.audience_error(&self.issuer.settings().audiences));
        }
        self.check_objects(&verified, token, now).await?;
        Ok(Some(verified.user.clone()))
    }

    /// Authenticates a token for some of the `requested` audiences. None for a token of another issuer.
    ///
    /// # Errors
    /// Why the token is not valid, for the log.
    pub async fn review(&self, token: &str, requested: &[String]) -> Result<Option<TokenUser>, String> {
        let now = SystemTime::now();
        let Some(verified) = self.find_verified(token, now)? else { return Ok(None) };
        let audiences = common_audiences(&verified.audiences, requested);
        if audiences.is_empty() {
            return Err(verified.audience_error(requested));
        }
        self.check_objects(&verified, token, now).await?;
        Ok(Some((verified.user.clone(), audiences)))
    }

    /// A token whose signature and times are verified, now or a short time ago. None for a token of another issuer.
    fn find_verified(&self, token: &str, now: SystemTime) -> Result<Option<Arc<VerifiedAccountToken>>, String> {
        let key = self.secret.key(|digest| digest.text(token));
        let keys = self.issuer.keys();
        let cached = self.verified.get_fresh(&key, Instant::now());
        let cached = cached.filter(|verified| verified.keys == keys.id() && !verified.is_expired(now));
        if let Some(verified) = cached {
            self.metrics.reviews().record_lookup(DecisionCacheKind::ServiceAccount, CacheResult::Hit);
            return Ok(Some(verified));
        }
        let Some(verified) = self.verify(token, &keys, now)? else { return Ok(None) };
        self.metrics.reviews().record_lookup(DecisionCacheKind::ServiceAccount, CacheResult::Miss);
        let verified = Arc::new(verified);
        let until = Instant::now() + VERIFIED_TTL;
        let (bytes, owner, value) = (verified.memory_bytes(), &verified.user.name, verified.clone());
        let decision = CachedDecision { value, owner, bytes, fresh_until: until, stale_until: until };
        self.verified.insert(key, decision, Instant::now());
        Ok(Some(verified))
    }

    /// Removes expired entries of the cache. Call it periodically.
    pub fn remove_expired(&self) {
        self.verified.remove_expired(Instant::now());
    }

    /// Verifies signature and times of a token. None for a token of another issuer.
    fn verify(&self, token: &str, keys: &KeySet, now: SystemTime) -> Result<Option<VerifiedAccountToken>, String> {
        let Some(issuer) = read_issuer(token) else { return Ok(None) };
        let is_legacy = issuer == LEGACY_ISSUER;
        if !is_legacy && !self.issuer.settings().issuers.contains(&issuer) {
            return Ok(None);
        }
        let token = UnverifiedToken::parse(token, claims(token).ok_or("the claims are malformed")?)?;
        let key_ends = keys.verify(&token, now)?;
        let claims = &token.claims;
        check_times(claims, unix_seconds(now))?;
        let mut verified = if is_legacy { self.legacy_token(claims)? } else { self.bound_token(claims)? };
        verified.keys = keys.id();
        verified.key_ends = key_ends;
        verified.expires_at = number(claims, "exp")?;
        let server = &self.issuer.settings().audiences;
        verified.audiences = audiences(claims)?;
        if verified.audiences.is_empty() {
            verified.audiences.clone_from(server);
        }
        verified.is_for_server = !common_audiences(&verified.audiences, server).is_empty();
        check_speakable(&verified.user)?;
        Ok(Some(verified))
    }

    /// A token of a TokenRequest.
    fn bound_token(&self, claims: &Map<String, Value>) -> Result<VerifiedAccountToken, String> {
        let private = claims.get("kubernetes.io").ok_or("the claim kubernetes.io is missing")?;
        let private: PrivateClaims =
            PrivateClaims::deserialize(private).map_err(|_| "the claim kubernetes.io is malformed")?;
        let PrivateClaims { namespace, serviceaccount: account, pod, secret, node } = private;
        let mut user = account_user(&namespace, &account.name, &account.uid);
        let mut add = |key: &str, value: &str| {
            if !value.is_empty() {
                user.extra.insert(format!("authentication.kubernetes.io/{key}"), vec![value.to_owned()]);
            }
        };
        if let Some(pod) = &pod {
            add("pod-name", &pod.name);
            add("pod-uid", &pod.uid);
        }
        if let Some(node) = &node {
            add("node-name", &node.name);
            add("node-uid", &node.uid);
        }
        add_credential_id(&mut user, claims);
        let bound = match (secret, pod, node) {
            (Some(secret), ..) => Some(self.object(TokenObjectKind::Secret, &namespace, secret)?),
            (None, Some(pod), _) => Some(self.object(TokenObjectKind::Pod, &namespace, pod)?),
            (None, None, Some(node)) => Some(self.object(TokenObjectKind::Node, "", node)?),
            (None, None, None) => None,
        };
        let account = self.object(TokenObjectKind::ServiceAccount, &namespace, account)?;
        Ok(VerifiedAccountToken::new(user, account, bound))
    }

    /// A token that is stored in a Secret.
    fn legacy_token(&self, claims: &Map<String, Value>) -> Result<VerifiedAccountToken, String> {
        let text = |name: &str| match claims.get(&format!("kubernetes.io/serviceaccount/{name}")) {
            Some(Value::String(text)) if !text.is_empty() => Ok(text.clone()),
            _ => Err(format!("{name} claim is missing")),
        };
        let (namespace, secret) = (text("namespace")?, text("secret.name")?);
        let (name, uid) = (text("service-account.name")?, text("service-account.uid")?);
        if claims.get("sub").and_then(Value::as_str) != Some(&user_name(&namespace, &name)) {
            return Err("sub claim is invalid".to_owned());
        }
        let user = account_user(&namespace, &name, &uid);
        let secret = ObjectClaim { name: secret, uid: String::new() };
        let secret = self.object(TokenObjectKind::LegacySecret, &namespace, secret)?;
        let account = self.object(TokenObjectKind::ServiceAccount, &namespace, ObjectClaim { name, uid })?;
        Ok(VerifiedAccountToken::new(user, account, Some(secret)))
    }

    fn object(&self, kind: TokenObjectKind, namespace: &str, claim: ObjectClaim) -> Result<TokenObject, String> {
        let key = self.collection(kind).prefix().key(namespace, &claim.name);
        let key = key.map_err(|_| "a name in the claims is no name of an object")?;
        Ok(TokenObject { kind, key, uid: claim.uid })
    }

    fn collection(&self, kind: TokenObjectKind) -> &ResourceCollection {
        match kind {
            TokenObjectKind::ServiceAccount => &self.objects.service_accounts,
            TokenObjectKind::Secret | TokenObjectKind::LegacySecret => &self.objects.secrets,
            TokenObjectKind::Pod => &self.objects.pods,
            TokenObjectKind::Node => &self.objects.nodes,
        }
    }

    /// Checks that the objects of a token exist.
    async fn check_objects(&self, verified: &VerifiedAccountToken, token: &str, now: SystemTime) -> Result<(), String> {
        let user = &verified.user.name;
        let is_legacy = verified.bound.as_ref().is_some_and(|bound| bound.kind == TokenObjectKind::LegacySecret);
        let account =
            self.find(&verified.account).await?.ok_or_else(|| format!("the account of {user} does not exist"))?;
        let uid = &account.metadata().uid;
        if **uid != *verified.account.uid {
            let claimed = &verified.account.uid;
            return Err(format!("service account UID ({uid}) does not match claim ({claimed})"));
        }
        if is_deleted(&account, now, is_legacy) {
            return Err(format!("service account {user} has been deleted"));
        }
        let Some(bound) = &verified.bound else { return Ok(()) };
        let object = self.find(bound).await?.filter(|object| !is_deleted(object, now, is_legacy)).ok_or(INVALIDATED)?;
        if is_legacy {
            if object.label(INVALID_SINCE).is_some_and(|since| !since.is_empty()) {
                return Err(format!("the token in the Secret has been marked invalid by the label {INVALID_SINCE}"));
            }
            return if holds_token(&object, token) { Ok(()) } else { Err("the Secret has another token".to_owned()) };
        }
        if *object.metadata().uid != *bound.uid {
            return Err(INVALIDATED.to_owned());
        }
        Ok(())
    }

    async fn find(&self, object: &TokenObject) -> Result<Option<Arc<Stored>>, String> {
        let collection = self.collection(object.kind);
        collection.get_latest(&object.key).await.map_err(|error| format!("the store cannot be read: {error}"))
    }
}

impl VerifiedAccountToken {
    fn new(user: User, account: TokenObject, bound: Option<TokenObject>) -> VerifiedAccountToken {
        VerifiedAccountToken {
            user: Arc::new(user),
            keys: 0,
            expires_at: None,
            key_ends: None,
            audiences: Vec::new(),
            is_for_server: false,
            account,
            bound,
        }
    }

    /// Why the token is not valid for some audiences.
    fn audience_error(&self, requested: &[String]) -> String {
        let [own, requested] = [&self.audiences, requested].map(|all| &all[..all.len().min(MAX_SHOWN_AUDIENCES)]);
        format!("token audiences {own:?} is invalid for the target audiences {requested:?}")
    }

    /// Approximate memory use.
    fn memory_bytes(&self) -> usize {
        let audiences: usize = self.audiences.iter().map(|audience| audience.len() + size_of::<String>()).sum();
        let objects = [Some(&self.account), self.bound.as_ref()].into_iter().flatten();
        let keys: usize = objects.map(|object| object.key.as_str().len() + object.uid.len()).sum();
        size_of::<VerifiedAccountToken>() + size_of_user(&self.user) + audiences + keys
    }

    fn is_expired(&self, now: SystemTime) -> bool {
        self.expires_at.is_some_and(|at| unix_seconds(now) - LEEWAY_SECONDS > at)
            || self.key_ends.is_some_and(|end| end <= now)
    }
}

/// The issuer that a token names; none for what is no JWT, or too long for a service account token.
fn read_issuer(token: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct IssuerClaim {
        iss: String,
    }
    let payload = token.split('.').nth(1).filter(|_| token.len() <= MAX_TOKEN_BYTES)?;
    let payload = URL_SAFE_NO_PAD.decode(payload).ok()?;
    serde_json::from_slice::<IssuerClaim>(&payload).ok().map(|claim| claim.iss)
}

/// The audiences in both lists, in the order of the first.
fn common_audiences(valid_for: &[String], requested: &[String]) -> Vec<String> {
    let requested: HashSet<&String> = requested.iter().collect();
    valid_for.iter().filter(|audience| requested.contains(audience)).cloned().collect()
}

/// The user of a ServiceAccount (`ServiceAccountInfo.UserInfo` in `k8s.io/apiserver/pkg/authentication/serviceaccount`).
fn account_user(namespace: &str, name: &str, uid: &str) -> User {
    let groups = vec![ALL_ACCOUNTS.to_owned(), format!("{ALL_ACCOUNTS}:{namespace}"), AUTHENTICATED.to_owned()];
    User { name: user_name(namespace, name), uid: uid.to_owned(), groups, extra: Default::default() }
}

fn check_times(claims: &Map<String, Value>, now: i64) -> Result<(), &'static str> {
    if number(claims, "nbf")?.is_some_and(|at| now + LEEWAY_SECONDS < at) {
        return Err("service account token is not valid yet");
    }
    if number(claims, "exp")?.is_some_and(|at| now - LEEWAY_SECONDS > at) {
        return Err("service account token has expired");
    }
    if number(claims, "iat")?.is_some_and(|at| now + LEEWAY_SECONDS < at) {
        return Err("service account token is issued in the future");
    }
    Ok(())
}

/// A time in seconds (`NumericDate` of RFC 7519, section 2).
fn number(claims: &Map<String, Value>, name: &str) -> Result<Option<i64>, &'static str> {
    match claims.get(name) {
        None | Some(Value::Null) => Ok(None),
        // A number that is too large for an integer is as good as the largest.
        #[allow(clippy::cast_possible_truncation)]
        Some(Value::Number(number)) => Ok(number.as_i64().or_else(|| number.as_f64().map(|number| number as i64))),
        Some(_) => Err("a time in the claims is not a number"),
    }
}

fn audiences(claims: &Map<String, Value>) -> Result<Vec<String>, &'static str> {
    let malformed = "the claim aud is neither a text nor a list of texts";
    match claims.get("aud") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(one)) => Ok(vec![one.clone()]),
        Some(list) => Vec::deserialize(list).map_err(|_| malformed),
    }
}

/// Whether an object is being deleted: for longer than clocks differ, or at all.
fn is_deleted(object: &Stored, now: SystemTime, at_once: bool) -> bool {
    let Some(time) = &object.metadata().deletion_timestamp else { return false };
    let since = time.parse::<Timestamp>().map_or(i64::MIN, Timestamp::as_second);
    at_once || since < unix_seconds(now) - LEEWAY_SECONDS
}

/// Whether the Secret holds this token.
fn holds_token(secret: &Stored, token: &str) -> bool {
    #[derive(Deserialize)]
    struct Secret {
        data: Option<Map<String, Value>>,
    }
    let data = serde_json::from_slice::<Secret>(secret.bytes()).ok().and_then(|secret| secret.data);
    let stored = data.and_then(|data| STANDARD.decode(data.get("token")?.as_str()?).ok());
    stored.is_some_and(|stored| verify_slices_are_equal(&stored, token.as_bytes()).is_ok())
}
