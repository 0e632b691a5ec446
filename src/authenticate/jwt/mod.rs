//! Authentication by JSON Web Tokens of several issuers, configured by `AuthenticationConfiguration` and verified like
//! `plugin/pkg/authenticator/token/oidc` of k8s.io/apiserver.
//!
//! A token of an unknown issuer is left to other authenticators; a token of a configured issuer is either valid or an
//! error. Verified tokens are cached briefly, so that the next request with the same token costs a lookup.

mod configuration;
mod fetch;
mod jwks;
mod jwks_cache;
mod mapping;
mod openid;
#[cfg(test)]
mod test_signer;
mod token;
mod url;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;
use tokio::task::JoinHandle;

pub use configuration::{AnonymousAuthConfig, AuthenticationConfiguration, JwtIssuer};
use fetch::JwksSource;
pub(super) use jwks::{Jwks, SignatureVerification};
use jwks_cache::{JwksCache, JwksRefresher, JwksSnapshot};
use kubeapi::User;
pub(super) use mapping::add_credential_id;
pub use openid::OidcFlags;
use token::Claims;
pub(super) use token::{UnverifiedToken, claims};

use super::token_review::size_of_user;
use super::{AUTHENTICATED, header_safe};
use crate::decision_cache::{CacheLimits, CachedDecision, DecisionCache, DigestSecret};
use crate::egress::{Dialer, EgressRoutes};
use crate::observe::metrics::{self, CacheResult, CallKind, Metrics};
use crate::process::{
    Drain, FileWatcher, OnFailure, Problem, Problems, Published, Publisher, ReloadReporter, ShutdownPhase,
};

/// Parsers that are exposed to the fuzz targets.
#[doc(hidden)]
pub mod parsers {
    pub use super::jwks::{Jwks, SignatureVerification};
    pub use super::token::{UnverifiedToken, claims};
}

/// Cache TTL of verified tokens.
const VERIFIED_TTL: Duration = Duration::from_secs(60);
/// Limits of the cache of verified tokens.
const VERIFIED_CACHE_LIMITS: CacheLimits = CacheLimits { entries: 32_768, bytes: 32 << 20 };
/// How often expired tokens are removed from the cache.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);
/// Allowed clock skew for `nbf` in seconds, as in go-oidc; there is none for `exp`.
const NOT_BEFORE_LEEWAY: f64 = 300.0;

/// Authenticates JWTs; shared by all threads.
pub struct JwtAuthenticator {
    issuers: Published<Issuers>,
    secret: DigestSecret,
    verified: DecisionCache<VerifiedToken>,
    metrics: Arc<Metrics>,
}

/// A verified token: its user, and what it was verified with.
#[derive(Clone, Debug, PartialEq)]
struct VerifiedToken {
    user: Arc<User>,
    issuer: IssuerRevision,
}

/// Identifies the configuration, the issuer and the key set with which a token was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IssuerRevision {
    configuration: u64,
    issuer: usize,
    keys: u64,
}

/// The issuers of one version of the configuration.
#[derive(Debug)]
pub struct Issuers {
    /// Unique for each loaded configuration of this process.
    id: u64,
    list: Vec<Issuer>,
    anonymous: Option<AnonymousAuthConfig>,
}

#[derive(Debug)]
struct Issuer {
    rules: JwtIssuer,
    keys: Arc<JwksCache>,
}

/// A configuration that was valid when it was opened.
pub struct AuthenticationConfigFile {
    source: AuthenticationConfigSource,
    follower: FileWatcher,
    configuration: AuthenticationConfiguration,
}

/// Where the configuration comes from.
#[derive(Clone, Debug)]
enum AuthenticationConfigSource {
    /// An `AuthenticationConfiguration` file.
    File(PathBuf),
    /// Flags, which may name a CA file.
    Flags(OidcFlags),
}

impl AuthenticationConfigSource {
    fn load(&self) -> Result<AuthenticationConfiguration, Problems> {
        match self {
            AuthenticationConfigSource::File(path) => AuthenticationConfiguration::load(path),
            AuthenticationConfigSource::Flags(flags) => flags.configuration(),
        }
    }

    /// The file to watch, if any.
    fn file(&self) -> Option<&Path> {
        match self {
            AuthenticationConfigSource::File(path) => Some(path),
            AuthenticationConfigSource::Flags(flags) => flags.authorities.as_deref(),
        }
    }

    fn check_egress(&self, configuration: &AuthenticationConfiguration, routes: &EgressRoutes) -> Problems {
        match self {
            AuthenticationConfigSource::File(path) => configuration.check_egress(path, routes),
            // Connections for flags are always direct.
            AuthenticationConfigSource::Flags(_) => Problems::default(),
        }
    }
}

/// Watches the configuration file, and refreshes the issuers' keys; for the background thread.
pub struct AuthenticationConfigWatcher {
    source: AuthenticationConfigSource,
    follower: FileWatcher,
    jwt: Arc<JwtAuthenticator>,
    publisher: Publisher<Issuers>,
    refreshers: Vec<JwksRefresher>,
}

/// The result of authenticating a token.
#[derive(Debug)]
pub enum JwtResult {
    /// The token is valid; its user.
    User(Arc<User>),
    /// The token is not of a configured issuer.
    Unknown,
    /// The token names a configured issuer but is invalid; with the error for the log.
    Invalid(String),
}

impl AuthenticationConfigFile {
    /// Checks that the egress selections of the issuers are configured.
    pub fn check_egress(&self, routes: &EgressRoutes) -> Problems {
        self.source.check_egress(&self.configuration, routes)
    }

    /// Reads the file.
    ///
    /// # Errors
    /// All errors in it.
    pub fn open(path: &Path) -> Result<AuthenticationConfigFile, Problems> {
        AuthenticationConfigFile::read(AuthenticationConfigSource::File(path.to_owned()))
    }

    /// Creates the configuration of one issuer from flags.
    ///
    /// # Errors
    /// All errors in the flags, and in the CA file.
    pub fn from_flags(flags: OidcFlags) -> Result<AuthenticationConfigFile, Problems> {
        AuthenticationConfigFile::read(AuthenticationConfigSource::Flags(flags))
    }

    fn read(source: AuthenticationConfigSource) -> Result<AuthenticationConfigFile, Problems> {
        // Before the first read, so that no change is missed.
        let follower = FileWatcher::new(source.file());
        let configuration = source.load()?;
        Ok(AuthenticationConfigFile { source, follower, configuration })
    }

    /// Returns the configuration.
    pub fn configuration(&self) -> &AuthenticationConfiguration {
        &self.configuration
    }

    /// Creates the authenticator. The returned [`AuthenticationConfigWatcher`] must be run.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn start(
        self,
        metrics: &Arc<Metrics>,
    ) -> Result<(Arc<JwtAuthenticator>, AuthenticationConfigWatcher), Problem> {
        let (issuers, keepers) = Issuers::new(self.configuration, None);
        let (publisher, issuers) = Published::new(issuers);
        let verified = DecisionCache::new(metrics::DecisionCacheKind::Jwt, VERIFIED_CACHE_LIMITS, metrics.clone());
        let jwt =
            Arc::new(JwtAuthenticator { issuers, secret: DigestSecret::new()?, verified, metrics: metrics.clone() });
        let following = AuthenticationConfigWatcher {
            source: self.source,
            follower: self.follower,
            jwt: jwt.clone(),
            publisher,
            refreshers: keepers,
        };
        Ok((jwt, following))
    }
}

impl JwtAuthenticator {
    /// Authenticates `token`. Waits only if the issuer's keys may have changed.
    pub async fn authenticate(&self, token: &str) -> JwtResult {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let key = self.secret.key(|digest| digest.text(token));
        let issuers = self.issuers.load();
        let cached = self.verified.get_fresh(&key, Instant::now()).filter(|user| issuers.is_current(user.issuer));
        let lookup = if cached.is_some() { CacheResult::Hit } else { CacheResult::Miss };
        self.metrics.reviews().record_lookup(metrics::DecisionCacheKind::Jwt, lookup);
        if let Some(user) = cached {
            return JwtResult::User(user.user);
        }
        let issuers = arc_swap::Guard::into_inner(issuers);
        // Boxed, to keep the futures of requests with a cached token small.
        match Box::pin(issuers.authenticate(token, now)).await {
            Ok(None) => JwtResult::Unknown,
            Ok(Some((verified, left))) => {
                let until = Instant::now() + left.min(VERIFIED_TTL);
                let (bytes, owner) = (size_of_user(&verified.user), verified.user.name.clone());
                let user_token =
                    CachedDecision { value: verified, owner: &owner, bytes, fresh_until: until, stale_until: until };
                JwtResult::User(self.verified.insert(key, user_token, Instant::now()).user)
            }
            Err(why) => JwtResult::Invalid(why),
        }
    }

    /// Removes expired entries. Call it periodically.
    pub fn remove_expired(&self) {
        self.verified.remove_expired(Instant::now());
    }

    /// Whether the configuration allows anonymous requests for `path`; none if it has no such setting.
    pub fn allows_anonymous(&self, path: &str) -> Option<bool> {
        let issuers = self.issuers.load();
        let anonymous = issuers.anonymous.as_ref()?;
        Some(anonymous.enabled && (anonymous.paths.is_empty() || anonymous.paths.iter().any(|allowed| allowed == path)))
    }
}

impl Issuers {
    /// Creates the issuers of a configuration. An issuer with the same key source as one in `before` shares its keys.
    fn new(configuration: AuthenticationConfiguration, before: Option<&Issuers>) -> (Issuers, Vec<JwksRefresher>) {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mut keepers = Vec::new();
        let issuer = |rules: JwtIssuer| {
            let origin = JwksSource {
                issuer: rules.url.clone(),
                discovery_url: rules.discovery_url.clone(),
                authorities: rules.authorities.clone(),
                egress: rules.egress.clone(),
            };
            let same = before.and_then(|before| before.list.iter().find(|issuer| issuer.keys.source == origin));
            let keys = same.map(|issuer| issuer.keys.clone()).unwrap_or_else(|| {
                let (keys, keeper) = JwksCache::new(origin);
                keepers.push(keeper);
                keys
            });
            Issuer { rules, keys }
        };
        let list = configuration.issuers.into_iter().map(issuer).collect();
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        (Issuers { id, list, anonymous: configuration.anonymous }, keepers)
    }

    /// Whether a cached verification is still valid: same configuration, same key set.
    fn is_current(&self, by: IssuerRevision) -> bool {
        let keys = || self.list.get(by.issuer)?.keys.snapshot().keys.as_ref().map(|keys| keys.id);
        by.configuration == self.id && keys() == Some(by.keys)
    }

    /// Verifies a token; returns the user and the remaining validity. None if the issuer is not configured.
    async fn authenticate(&self, token: &str, now: Duration) -> Result<Option<(VerifiedToken, Duration)>, String> {
        let Some(claims) = claims(token) else { return Ok(None) };
        let Some(Value::String(says)) = claims.get("iss") else { return Ok(None) };
        // Google's tokens may leave the scheme out (OpenID Connect Core 1.0, section 15.6.2).
        let says = if says == "accounts.google.com" { "https://accounts.google.com" } else { says.as_str() };
        let found = self.list.iter().enumerate().find(|(_, issuer)| issuer.rules.url == says);
        let Some((number, issuer)) = found else { return Ok(None) };
        let token = UnverifiedToken::parse(token, claims)?;
        let algorithms = &issuer.rules.algorithms;
        if !algorithms.is_empty() && !algorithms.contains(&token.algorithm) {
            return Err("signing algorithm not allowed for this issuer".to_owned());
        }
        let keys = issuer.verify(&token).await?;
        let left = issuer.check_claims(&token.claims, now)?;
        let mut user = mapping::map_user(&issuer.rules, &token.claims)?;
        if issuer.rules.adds_authenticated_group {
            super::groups::add_group(&mut user.groups, AUTHENTICATED);
        }
        header_safe::check_header_safe(&user)?;
        let by = IssuerRevision { configuration: self.id, issuer: number, keys };
        Ok(Some((VerifiedToken { user: Arc::new(user), issuer: by }, left)))
    }
}

impl Issuer {
    /// Verifies the signature; returns the ID of the key set.
    async fn verify(&self, token: &UnverifiedToken<'_>) -> Result<u64, String> {
        let mut snapshot = self.keys.snapshot();
        let mut verification = verify_signature(&snapshot, token);
        // The issuer may sign with a key added after the last fetch, or the last fetch failed. An invalid signature may
        // come from a new key under the same name.
        if verification != Some(SignatureVerification::Valid) {
            let newer = self.keys.wait_for_newer(&snapshot).await;
            if !Arc::ptr_eq(&newer, &snapshot) {
                snapshot = newer;
                verification = verify_signature(&snapshot, token);
            }
        }
        match (verification, &snapshot.keys) {
            (Some(SignatureVerification::Valid), Some(keys)) => Ok(keys.id),
            (Some(SignatureVerification::Invalid), _) => Err("invalid signature".to_owned()),
            (Some(_), _) => Err("signing key not found in the issuer's key set".to_owned()),
            (None, _) => {
                let why = snapshot.failure.as_deref().unwrap_or("not fetched yet");
                Err(format!("keys of the issuer not available: {why}"))
            }
        }
    }

    /// Checks audience, expiry and not-before; returns the remaining validity.
    fn check_claims(&self, claims: &Claims, now: Duration) -> Result<Duration, String> {
        let is_ours =
            |audience: &Value| audience.as_str().is_some_and(|it| self.rules.audiences.iter().any(|us| us == it));
        let meant = match claims.get("aud") {
            Some(Value::Array(list)) => list.iter().any(is_ours),
            Some(one) => is_ours(one),
            None => false,
        };
        if !meant {
            return Err("audience not accepted".to_owned());
        }
        let time = |name: &str| match claims.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => numeric_date(value).map(Some).ok_or_else(|| format!("claim {name} is not a number")),
        };
        let ends = time("exp")?.ok_or("claim exp is missing")?;
        let seconds = now.as_secs_f64();
        if ends < seconds {
            return Err("token has expired".to_owned());
        }
        if time("nbf")?.is_some_and(|begins| begins > seconds + NOT_BEFORE_LEEWAY) {
            return Err("token is not valid yet".to_owned());
        }
        Ok(Duration::try_from_secs_f64(ends - seconds).unwrap_or(Duration::MAX))
    }
}

/// Seconds since the Unix epoch: a number, or one as a string, as in go-oidc, without what is behind the point.
fn numeric_date(value: &Value) -> Option<f64> {
    let number = match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) if !text.contains(char::is_whitespace) => {
            serde_json::from_str::<serde_json::Number>(text).ok()?.as_f64()
        }
        _ => None,
    };
    number.map(f64::trunc)
}

fn verify_signature(snapshot: &JwksSnapshot, token: &UnverifiedToken<'_>) -> Option<SignatureVerification> {
    snapshot.keys.as_ref().map(|keys| keys.verify(token))
}

/// A key refresh task; dropping it aborts it.
struct JwksTask {
    origin: JwksSource,
    handle: JoinHandle<()>,
}

impl Drop for JwksTask {
    fn drop(&mut self) {
        self.handle.abort();
    }
}

impl AuthenticationConfigWatcher {
    /// Reloads the file until the process ends. An invalid file keeps the last good configuration. Needs a `LocalSet`.
    pub async fn run(mut self, dialer: Dialer, on_failure: OnFailure, drain: Drain) {
        let mut round = tokio::time::interval(SWEEP_INTERVAL);
        let (mut tasks, metrics): (Vec<JwksTask>, _) = (Vec::new(), self.jwt.metrics.clone());
        let start = |tasks: &mut Vec<JwksTask>, keepers: Vec<JwksRefresher>| {
            for keeper in keepers {
                let origin = keeper.source().clone();
                let health = metrics.calls().register(CallKind::Issuer, &origin.issuer);
                let handle = tokio::task::spawn_local(keeper.run(dialer.clone(), health, drain.clone()));
                tasks.push(JwksTask { origin, handle });
            }
        };
        start(&mut tasks, std::mem::take(&mut self.refreshers));
        const UNUSABLE: &str = "authentication configuration changed and is invalid; the last good one stays in use";
        let mut reporter = ReloadReporter::new(UNUSABLE, on_failure);
        let mut ending = drain.clone();
        loop {
            {
                // The same future across the sweeps: the follower polls no more often than they come, and a new future
                // would restart its interval each time.
                let mut changed = std::pin::pin!(self.follower.changed());
                loop {
                    tokio::select! {
                        () = &mut changed => break,
                        _ = round.tick() => self.jwt.remove_expired(),
                        () = ending.wait_for(ShutdownPhase::Ending) => return,
                    }
                }
            }
            let loaded = self.source.load();
            let loaded = loaded.and_then(|it| self.source.check_egress(&it, &dialer.routes().load()).into_result(it));
            let Some(configuration) = reporter.report(loaded) else { continue };
            let before = self.jwt.issuers.get();
            let (now, keepers) = Issuers::new(configuration, Some(&before));
            tasks.retain(|task| now.list.iter().any(|issuer| issuer.keys.source == task.origin));
            start(&mut tasks, keepers);
            let (file, issuers) = (self.source.file().unwrap_or(Path::new("")).display(), now.list.len());
            self.publisher.publish(Arc::new(now));
            tracing::info!(%file, issuers, "authentication configuration reloaded");
        }
    }
}

#[cfg(test)]
mod tests;
