//! JSON Web Tokens of several issuers, as `AuthenticationConfiguration` describes them and
//! `plugin/pkg/authenticator/token/oidc` of k8s.io/apiserver judges them.
//!
//! A token whose issuer is not ours is nobody's; every other is either its holder's or wrong. What was verified is
//! remembered for a moment, so that a request with the same token costs a look-up.

mod configuration;
mod fetch;
#[cfg(test)]
mod forge;
mod keyring;
mod keys;
mod mapping;
mod openid;
mod token;
mod url;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;
use tokio::task::JoinHandle;

pub use configuration::{Anonymous, Configuration, JwtIssuer};
use fetch::Origin;
use keyring::{Keeper, Keyring, Known};
use keys::Signature;
pub use openid::OpenIdConnect;
use token::{Claims, Token};

use super::token_review::size_of_user;
use super::{AUTHENTICATED, speakable};
use crate::egress::{Dialler, Ways};
use crate::kubeapi::User;
use crate::observe::metrics::{self, CallKind, Lookup, Metrics};
use crate::process::{Drain, Follower, OnFailure, Phase, Problem, Problems, Published, Publisher};
use crate::review::{DecisionCache, Kept, Limits, Secret};

/// What fuzz targets need to see of our parsers.
#[doc(hidden)]
pub mod parsers {
    pub use super::keys::{Keys, Signature};
    pub use super::token::{Token, claims};
}

/// A verified token is verified again after this time.
const REMEMBERED: Duration = Duration::from_secs(60);
/// Verified tokens that are remembered.
const VERIFIED: Limits = Limits { entries: 32_768, bytes: 32 << 20 };
/// How often tokens past their time are let go of.
const SWEEP: Duration = Duration::from_secs(10);
/// How far the clocks may differ for `nbf`, as go-oidc has it; for `exp` there is no grace.
const NOT_BEFORE_LEEWAY: f64 = 300.0;

/// Judges tokens; shared by all threads.
pub struct Jwt {
    issuers: Published<Issuers>,
    secret: Secret,
    verified: DecisionCache<Verified>,
    metrics: Arc<Metrics>,
}

/// The holder of a token, and who says so.
#[derive(Clone, Debug, PartialEq)]
struct Verified {
    user: Arc<User>,
    by: VouchedBy,
}

/// Which issuer of which reading of the file, by which of its key sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct VouchedBy {
    configuration: u64,
    issuer: usize,
    keys: u64,
}

/// One reading of the file.
#[derive(Debug)]
pub struct Issuers {
    /// Another for every reading there ever was in this process.
    id: u64,
    list: Vec<Issuer>,
    anonymous: Option<Anonymous>,
}

#[derive(Debug)]
struct Issuer {
    rules: JwtIssuer,
    keys: Arc<Keyring>,
}

/// Whose tokens are believed: right when it was opened.
pub struct ConfigurationFile {
    written: Written,
    follower: Follower,
    configuration: Configuration,
}

/// Where it stands whose tokens are believed.
#[derive(Clone, Debug)]
enum Written {
    /// In an `AuthenticationConfiguration`.
    File(PathBuf),
    /// In flags, which name a file at most.
    Flags(OpenIdConnect),
}

impl Written {
    fn load(&self) -> Result<Configuration, Problems> {
        match self {
            Written::File(path) => Configuration::load(path),
            Written::Flags(flags) => flags.configuration(),
        }
    }

    /// What may change, if anything.
    fn file(&self) -> Option<&Path> {
        match self {
            Written::File(path) => Some(path),
            Written::Flags(flags) => flags.authorities.as_deref(),
        }
    }

    fn lookups(&self, configuration: &Configuration, ways: &Ways) -> Problems {
        match self {
            Written::File(path) => configuration.lookups(path, ways),
            // They go direct.
            Written::Flags(_) => Problems::default(),
        }
    }
}

/// Follows the file and the issuers' keys; for the thread that does such things.
pub struct Following {
    written: Written,
    follower: Follower,
    jwt: Arc<Jwt>,
    publisher: Publisher<Issuers>,
    keepers: Vec<Keeper>,
}

/// What a token is worth.
#[derive(Debug)]
pub enum Holder {
    /// Its holder.
    Known(Arc<User>),
    /// It is none that an issuer of ours could have made.
    Unknown,
    /// It claims to be by an issuer of ours; why it is worth nothing, in words for the log.
    Wrong(String),
}

impl ConfigurationFile {
    /// What is wrong with the ways to its issuers.
    pub fn lookups(&self, ways: &Ways) -> Problems {
        self.written.lookups(&self.configuration, ways)
    }

    /// Reads the file.
    ///
    /// # Errors
    /// All mistakes in it.
    pub fn open(path: &Path) -> Result<ConfigurationFile, Problems> {
        ConfigurationFile::read(Written::File(path.to_owned()))
    }

    /// One issuer by flags.
    ///
    /// # Errors
    /// All mistakes in them, and in the file they name.
    pub fn of_flags(flags: OpenIdConnect) -> Result<ConfigurationFile, Problems> {
        ConfigurationFile::read(Written::Flags(flags))
    }

    fn read(written: Written) -> Result<ConfigurationFile, Problems> {
        // Before the first reading, so that no change falls between.
        let follower = Follower::new(written.file());
        let configuration = written.load()?;
        Ok(ConfigurationFile { written, follower, configuration })
    }

    /// What it says.
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// Begins to judge by it. What this returns second must be run.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn start(self, metrics: &Arc<Metrics>) -> Result<(Arc<Jwt>, Following), Problem> {
        let (issuers, keepers) = Issuers::new(self.configuration, None);
        let (publisher, issuers) = Published::new(issuers);
        let verified = DecisionCache::new(metrics::DecisionCache::Jwt, VERIFIED, metrics.clone());
        let jwt = Arc::new(Jwt { issuers, secret: Secret::new()?, verified, metrics: metrics.clone() });
        let following =
            Following { written: self.written, follower: self.follower, jwt: jwt.clone(), publisher, keepers };
        Ok((jwt, following))
    }
}

impl Jwt {
    /// Who holds `token`. Waits only where the issuer's keys may have changed.
    pub async fn holder(&self, token: &str) -> Holder {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let key = self.secret.key(|digest| digest.text(token));
        let issuers = self.issuers.load();
        let known = self.verified.fresh(&key, Instant::now()).filter(|known| issuers.vouch(known.by));
        let lookup = if known.is_some() { Lookup::Hit } else { Lookup::Miss };
        self.metrics.reviews().looked_up(metrics::DecisionCache::Jwt, lookup);
        if let Some(known) = known {
            return Holder::Known(known.user);
        }
        let issuers = arc_swap::Guard::into_inner(issuers);
        // Boxed, so that requests with a token that is known do not carry the room for it.
        match Box::pin(issuers.judge(token, now)).await {
            Ok(None) => Holder::Unknown,
            Ok(Some((verified, left))) => {
                let until = Instant::now() + left.min(REMEMBERED);
                let (bytes, owner) = (size_of_user(&verified.user), verified.user.name.clone());
                let kept = Kept { value: verified, owner: &owner, bytes, fresh_until: until, stale_until: until };
                Holder::Known(self.verified.keep(key, kept, Instant::now()).user)
            }
            Err(why) => Holder::Wrong(why),
        }
    }

    /// Lets go of what is past its time. Call it now and then.
    pub fn sweep(&self) {
        self.verified.sweep(Instant::now());
    }

    /// Whether the file lets a request for `path` in that has no credentials; none when it says nothing of it.
    pub fn lets_anonymous_in(&self, path: &str) -> Option<bool> {
        let issuers = self.issuers.load();
        let anonymous = issuers.anonymous.as_ref()?;
        Some(anonymous.enabled && (anonymous.paths.is_empty() || anonymous.paths.iter().any(|known| known == path)))
    }
}

impl Issuers {
    /// Issuers whose keys come from where those of an issuer before came from share them.
    fn new(configuration: Configuration, before: Option<&Issuers>) -> (Issuers, Vec<Keeper>) {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mut keepers = Vec::new();
        let issuer = |rules: JwtIssuer| {
            let origin = Origin {
                issuer: rules.url.clone(),
                discovery: rules.discovery.clone(),
                authorities: rules.authorities.clone(),
                egress: rules.egress.clone(),
            };
            let same = before.and_then(|before| before.list.iter().find(|issuer| issuer.keys.origin == origin));
            let keys = same.map(|issuer| issuer.keys.clone()).unwrap_or_else(|| {
                let (keys, keeper) = Keyring::new(origin);
                keepers.push(keeper);
                keys
            });
            Issuer { rules, keys }
        };
        let list = configuration.issuers.into_iter().map(issuer).collect();
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        (Issuers { id, list, anonymous: configuration.anonymous }, keepers)
    }

    /// Whether what was said then would be said now.
    fn vouch(&self, by: VouchedBy) -> bool {
        let keys = || self.list.get(by.issuer)?.keys.known().keys.as_ref().map(|keys| keys.id);
        by.configuration == self.id && keys() == Some(by.keys)
    }

    /// The holder, and for how long the token is good.
    async fn judge(&self, token: &str, now: Duration) -> Result<Option<(Verified, Duration)>, String> {
        let Some(claims) = token::claims(token) else { return Ok(None) };
        let Some(Value::String(says)) = claims.get("iss") else { return Ok(None) };
        // Google's tokens may leave the scheme out (OpenID Connect Core 1.0, section 15.6.2).
        let says = if says == "accounts.google.com" { "https://accounts.google.com" } else { says.as_str() };
        let found = self.list.iter().enumerate().find(|(_, issuer)| issuer.rules.url == says);
        let Some((number, issuer)) = found else { return Ok(None) };
        let token = Token::parse(token, claims)?;
        let wanted = &issuer.rules.algorithms;
        if !wanted.is_empty() && !wanted.contains(&token.algorithm) {
            return Err("it is not signed as this issuer's tokens must be".to_owned());
        }
        let keys = issuer.verify(&token).await?;
        let left = issuer.check(&token.claims, now)?;
        let mut user = mapping::user(&issuer.rules, &token.claims)?;
        if issuer.rules.adds_authenticated {
            super::authenticator::add_group(&mut user.groups, AUTHENTICATED);
        }
        speakable::check(&user)?;
        let by = VouchedBy { configuration: self.id, issuer: number, keys };
        Ok(Some((Verified { user: Arc::new(user), by }, left)))
    }
}

impl Issuer {
    /// The key set by which the signature is good.
    async fn verify(&self, token: &Token<'_>) -> Result<u64, String> {
        let mut known = self.keys.known();
        let mut judged = judged(&known, token);
        // The issuer may have begun to sign with a key that was not there when we asked; or it was not there at all.
        // A signature that is bad by a key of its name may be by a key that took over the name.
        if judged != Some(Signature::Good) {
            let newer = self.keys.newer(&known).await;
            if !Arc::ptr_eq(&newer, &known) {
                known = newer;
                judged = self::judged(&known, token);
            }
        }
        match (judged, &known.keys) {
            (Some(Signature::Good), Some(keys)) => Ok(keys.id),
            (Some(Signature::Bad), _) => Err("its signature is not the issuer's".to_owned()),
            (Some(_), _) => Err("it is signed with a key that its issuer does not have".to_owned()),
            (None, _) => {
                let why = known.failure.as_deref().unwrap_or("they were not read yet");
                Err(format!("the keys of its issuer are not known: {why}"))
            }
        }
    }

    /// Audience and time; for how long it is good yet.
    fn check(&self, claims: &Claims, now: Duration) -> Result<Duration, String> {
        let is_ours =
            |audience: &Value| audience.as_str().is_some_and(|it| self.rules.audiences.iter().any(|us| us == it));
        let meant = match claims.get("aud") {
            Some(Value::Array(list)) => list.iter().any(is_ours),
            Some(one) => is_ours(one),
            None => false,
        };
        if !meant {
            return Err("it is not for an audience of ours".to_owned());
        }
        let time = |name: &str| match claims.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_f64().map(Some).ok_or_else(|| format!("its claim {name} is no number")),
        };
        let ends = time("exp")?.ok_or("it has no claim exp")?;
        let seconds = now.as_secs_f64();
        if ends < seconds {
            return Err("it has expired".to_owned());
        }
        if time("nbf")?.is_some_and(|begins| begins > seconds + NOT_BEFORE_LEEWAY) {
            return Err("it is not valid yet".to_owned());
        }
        Ok(Duration::try_from_secs_f64(ends - seconds).unwrap_or(Duration::MAX))
    }
}

fn judged(known: &Known, token: &Token<'_>) -> Option<Signature> {
    known.keys.as_ref().map(|keys| keys.verify(token))
}

/// A task that ends when nobody wants it any more.
struct Task {
    origin: Origin,
    handle: JoinHandle<()>,
}

impl Drop for Task {
    fn drop(&mut self) {
        self.handle.abort();
    }
}

impl Following {
    /// Follows the file until the process ends. While it holds a mistake, what was good before stays. Needs a
    /// `LocalSet`.
    pub async fn run(mut self, dialler: Dialler, on_failure: OnFailure, drain: Drain) {
        let mut round = tokio::time::interval(SWEEP);
        let (mut tasks, metrics): (Vec<Task>, _) = (Vec::new(), self.jwt.metrics.clone());
        let start = |tasks: &mut Vec<Task>, keepers: Vec<Keeper>| {
            for keeper in keepers {
                let origin = keeper.origin().clone();
                let health = metrics.calls().register(CallKind::Issuer, &origin.issuer);
                let handle = tokio::task::spawn_local(keeper.keep(dialler.clone(), health, drain.clone()));
                tasks.push(Task { origin, handle });
            }
        };
        start(&mut tasks, std::mem::take(&mut self.keepers));
        let mut told: Option<Problems> = None;
        let mut ending = drain.clone();
        loop {
            {
                // One and the same until it comes to something: the follower's own poll is no more frequent than the
                // rounds, and would begin anew with each.
                let mut changed = std::pin::pin!(self.follower.changed());
                loop {
                    tokio::select! {
                        () = &mut changed => break,
                        _ = round.tick() => self.jwt.sweep(),
                        () = ending.reached(Phase::Ending) => return,
                    }
                }
            }
            let loaded = self.written.load();
            let loaded = loaded.and_then(|it| self.written.lookups(&it, &dialler.ways().load()).or(it));
            match loaded {
                Ok(configuration) => {
                    let before = self.jwt.issuers.get();
                    let (now, keepers) = Issuers::new(configuration, Some(&before));
                    let file = self.written.file().unwrap_or(Path::new("")).display();
                    tracing::info!(%file, issuers = now.list.len(), "authentication configuration read again");
                    tasks.retain(|task| now.list.iter().any(|issuer| issuer.keys.origin == task.origin));
                    start(&mut tasks, keepers);
                    self.publisher.publish(Arc::new(now));
                    if told.take().is_some() {
                        on_failure(&Problems::default());
                    }
                }
                Err(problems) if told.as_ref() != Some(&problems) => {
                    problems.log("the authentication configuration changed and is not usable; the last good one stays");
                    on_failure(&problems);
                    told = Some(problems);
                }
                Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
