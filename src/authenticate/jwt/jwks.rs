//! JSON Web Key Sets, and signature verification with them.

use std::sync::atomic::{AtomicU64, Ordering};

use aws_lc_rs::signature::{
    self, ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED, ED25519,
    EcdsaVerificationAlgorithm, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

use super::token::{Algorithm, UnverifiedToken};

/// The maximum number of keys that are tried for one token: without a key ID, it may be any of the set.
const MAX_TRIES: usize = 1024;
/// The maximum number of bytes that are hashed for one token, except for the first key.
const MAX_HASHED_BYTES: usize = 16 << 20;

/// A set of public keys.
#[derive(Debug)]
pub struct Jwks {
    /// Unique for each key set of this process.
    pub id: u64,
    keys: Vec<Jwk>,
}

#[derive(Debug, PartialEq, Eq)]
struct Jwk {
    key_id: String,
    /// The algorithm that the key is restricted to, if any.
    algorithm: Option<Algorithm>,
    material: KeyMaterial,
}

#[derive(Debug, PartialEq, Eq)]
enum KeyMaterial {
    Rsa { modulus: Vec<u8>, exponent: Vec<u8> },
    P256(Vec<u8>),
    P384(Vec<u8>),
    P521(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// The result of verifying a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignatureVerification {
    /// The signature is valid by one of the keys.
    Valid,
    /// The signature is invalid by every matching key.
    Invalid,
    /// No key matches: the key set may be outdated.
    UnknownKey,
}

#[derive(Deserialize)]
struct RawJwks {
    keys: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct RawJwk {
    kty: String,
    #[serde(default)]
    kid: String,
    #[serde(default)]
    alg: Option<String>,
    #[serde(default, rename = "use")]
    purpose: Option<String>,
    #[serde(default)]
    crv: String,
    #[serde(default)]
    n: String,
    #[serde(default)]
    e: String,
    #[serde(default)]
    x: String,
    #[serde(default)]
    y: String,
}

impl Jwks {
    /// Parses a key set. Keys for other uses and of unknown types are skipped; a set without any usable key is an
    /// error.
    ///
    /// # Errors
    /// Why the key set is invalid.
    pub fn parse(json: &[u8]) -> Result<Jwks, String> {
        let set: RawJwks = serde_json::from_slice(json).map_err(|error| format!("invalid key set: {error}"))?;
        let keys: Vec<Jwk> = set
            .keys
            .into_iter()
            .filter_map(|key| serde_json::from_value::<RawJwk>(key).ok().and_then(|raw| Jwk::from_raw(&raw)))
            .collect();
        if keys.is_empty() {
            return Err("the key set has no key for verifying signatures".to_owned());
        }
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Ok(Jwks { id: NEXT.fetch_add(1, Ordering::Relaxed), keys })
    }

    /// Verifies the signature of `token`.
    pub fn verify(&self, token: &UnverifiedToken<'_>) -> SignatureVerification {
        let mut result = SignatureVerification::UnknownKey;
        let tries = MAX_TRIES.min(MAX_HASHED_BYTES / token.signing_input.len().max(1)).max(1);
        let is_candidate =
            |key: &&Jwk| (token.key_id.is_empty() || token.key_id == key.key_id) && key.supports(token.algorithm);
        for key in self.keys.iter().filter(is_candidate).take(tries) {
            if key.verify(token) {
                return SignatureVerification::Valid;
            }
            result = SignatureVerification::Invalid;
        }
        result
    }

    /// Whether both sets hold the same keys in the same order.
    pub fn has_same_keys(&self, other: &Jwks) -> bool {
        self.keys == other.keys
    }
}

impl Jwk {
    fn from_raw(raw: &RawJwk) -> Option<Jwk> {
        if raw.purpose.as_deref().is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let only = match &raw.alg {
            Some(name) => Some(Algorithm::parse(name)?),
            None => None,
        };
        let bytes = |text: &str| URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok().filter(|it| !it.is_empty());
        // The uncompressed point of SEC 1; each coordinate has the length of the field.
        let point = |length: usize| {
            let (x, y) = (bytes(&raw.x)?, bytes(&raw.y)?);
            (x.len() == length && y.len() == length).then(|| [&[4][..], &x, &y].concat())
        };
        let material = match (raw.kty.as_str(), raw.crv.as_str()) {
            ("RSA", _) => KeyMaterial::Rsa { modulus: bytes(&raw.n)?, exponent: bytes(&raw.e)? },
            ("EC", "P-256") => KeyMaterial::P256(point(32)?),
            ("EC", "P-384") => KeyMaterial::P384(point(48)?),
            ("EC", "P-521") => KeyMaterial::P521(point(66)?),
            ("OKP", "Ed25519") => KeyMaterial::Ed25519(bytes(&raw.x).filter(|key| key.len() == 32)?),
            _ => return None,
        };
        Some(Jwk { key_id: raw.kid.clone(), algorithm: only, material })
    }

    fn supports(&self, algorithm: Algorithm) -> bool {
        let kind = match &self.material {
            KeyMaterial::Rsa { .. } => rsa_parameters(algorithm).is_some(),
            KeyMaterial::P256(_) => algorithm == Algorithm::ES256,
            KeyMaterial::P384(_) => algorithm == Algorithm::ES384,
            KeyMaterial::P521(_) => algorithm == Algorithm::ES512,
            KeyMaterial::Ed25519(_) => algorithm == Algorithm::EdDSA,
        };
        kind && self.algorithm.is_none_or(|only| only == algorithm)
    }

    fn verify(&self, token: &UnverifiedToken<'_>) -> bool {
        let (message, signature) = (token.signing_input.as_bytes(), &token.signature);
        let curve = |algorithm: &'static EcdsaVerificationAlgorithm, point: &[u8]| {
            UnparsedPublicKey::new(algorithm, point).verify(message, signature).is_ok()
        };
        match &self.material {
            KeyMaterial::Rsa { modulus, exponent } => rsa_parameters(token.algorithm).is_some_and(|parameters| {
                // A modulus may have leading zeros, which are not part of it.
                let bare = |number: &[u8]| number.iter().copied().skip_while(|byte| *byte == 0).collect::<Vec<u8>>();
                let key = RsaPublicKeyComponents { n: bare(modulus), e: bare(exponent) };
                key.verify(parameters, message, signature).is_ok()
            }),
            KeyMaterial::P256(point) => curve(&ECDSA_P256_SHA256_FIXED, point),
            KeyMaterial::P384(point) => curve(&ECDSA_P384_SHA384_FIXED, point),
            KeyMaterial::P521(point) => curve(&ECDSA_P521_SHA512_FIXED, point),
            KeyMaterial::Ed25519(key) => UnparsedPublicKey::new(&ED25519, key).verify(message, signature).is_ok(),
        }
    }
}

/// The parameters of an RSA algorithm; `None` for another.
fn rsa_parameters(algorithm: Algorithm) -> Option<&'static RsaParameters> {
    Some(match algorithm {
        Algorithm::RS256 => &signature::RSA_PKCS1_2048_8192_SHA256,
        Algorithm::RS384 => &signature::RSA_PKCS1_2048_8192_SHA384,
        Algorithm::RS512 => &signature::RSA_PKCS1_2048_8192_SHA512,
        Algorithm::PS256 => &signature::RSA_PSS_2048_8192_SHA256,
        Algorithm::PS384 => &signature::RSA_PSS_2048_8192_SHA384,
        Algorithm::PS512 => &signature::RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}
