//! The keys of service account tokens that are in use: which signs, which verify, and until when.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::keys::{SigningKey, VerificationKey};
use crate::authenticate::jwt::UnverifiedToken;

/// How long the key set may be cached by those who verify tokens. A new key is published for so long before it signs.
pub const KEY_SET_MAX_AGE: Duration = Duration::from_secs(3600);

/// A key of a set.
pub struct TokenKey {
    /// Its private and public part, or its public part alone.
    pub material: TokenKeyMaterial,
    /// From when on it signs, if it can.
    pub signs_from: SystemTime,
    /// From when on it verifies no token.
    pub verifies_until: Option<SystemTime>,
}

/// What is known of a key.
pub enum TokenKeyMaterial {
    /// It signs and verifies.
    Signing(SigningKey),
    /// It verifies.
    Verification(VerificationKey),
}

/// Keys of service account tokens.
pub struct KeySet {
    /// Unique for each key set of this process.
    id: u64,
    keys: Vec<TokenKey>,
}

impl TokenKey {
    /// The public part.
    pub fn public(&self) -> &VerificationKey {
        match &self.material {
            TokenKeyMaterial::Signing(key) => &key.public,
            TokenKeyMaterial::Verification(key) => key,
        }
    }

    fn verifies_at(&self, now: SystemTime) -> bool {
        self.verifies_until.is_none_or(|until| now < until)
    }
}

impl KeySet {
    /// A set of keys. Of two that are the same the first counts.
    pub fn new(keys: impl IntoIterator<Item = TokenKey>) -> KeySet {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let mut unique: Vec<TokenKey> = Vec::new();
        for key in keys {
            if !unique.iter().any(|other| other.public().key_id == key.public().key_id) {
                unique.push(key);
            }
        }
        KeySet { id: NEXT.fetch_add(1, Ordering::Relaxed), keys: unique }
    }

    /// Number of the set in this process.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// All keys, also those that have ended.
    pub fn keys(&self) -> &[TokenKey] {
        &self.keys
    }

    /// The key that signs: the one that began last.
    pub fn signing_key(&self, now: SystemTime) -> Option<&SigningKey> {
        let able = self.keys.iter().filter(|key| key.signs_from <= now && key.verifies_at(now));
        let signing = able.filter_map(|key| match &key.material {
            TokenKeyMaterial::Signing(signing) => Some((key.signs_from, signing)),
            TokenKeyMaterial::Verification(_) => None,
        });
        signing.max_by_key(|(from, _)| *from).map(|(_, key)| key)
    }

    /// Verifies the signature of a token; returns when the key ends. Without a key ID in the token's header each key is
    /// tried.
    ///
    /// # Errors
    /// Why no key verifies it.
    pub fn verify(&self, token: &UnverifiedToken<'_>, now: SystemTime) -> Result<Option<SystemTime>, &'static str> {
        let is_named = |key: &&TokenKey| token.key_id.is_empty() || key.public().key_id == token.key_id;
        let mut candidates = self.verifying(now).filter(is_named).peekable();
        if candidates.peek().is_none() {
            return Err("invalid signature, no keys found");
        }
        let verifying = candidates.find(|key| key.public().verifies(token)).ok_or("the signature is not valid")?;
        Ok(verifying.verifies_until)
    }

    /// The key set for those who verify tokens elsewhere (RFC 7517).
    pub fn jwks(&self, now: SystemTime) -> Value {
        let keys: Vec<&Value> = self.verifying(now).map(|key| &key.public().jwk).collect();
        json!({ "keys": keys })
    }

    /// The names of the algorithms of its keys, in order.
    pub fn algorithms(&self, now: SystemTime) -> Vec<&'static str> {
        let mut algorithms: Vec<&str> = self.verifying(now).map(|key| key.public().algorithm).collect();
        algorithms.sort_unstable();
        algorithms.dedup();
        algorithms
    }

    /// What a key of the set does, and for how many days.
    pub fn describe(&self, key: &TokenKey, now: SystemTime) -> String {
        let signs = self.signing_key(now).is_some_and(|signing| signing.public.key_id == key.public().key_id);
        let time = |time: SystemTime| Timestamp::try_from(time).map_or(String::new(), |time| format!("{time:.0}"));
        let left = key.verifies_until.map(|until| until.duration_since(now).unwrap_or_default().as_secs() / 86_400);
        match (signs, left) {
            _ if !key.verifies_at(now) => "ended".to_owned(),
            (false, _) if key.signs_from > now => format!("signs from {} on", time(key.signs_from)),
            (true, None) => "signs".to_owned(),
            (true, Some(days)) => format!("signs until the next key does, verifies for {days} days"),
            (false, Some(days)) => format!("verifies for {days} days"),
            (false, None) => "verifies".to_owned(),
        }
    }

    fn verifying(&self, now: SystemTime) -> impl Iterator<Item = &TokenKey> {
        self.keys.iter().filter(move |key| key.verifies_at(now))
    }
}
