//! Keys and tokens for tests; the gateway's integration tests include this file, too.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    self, ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING,
    EcdsaKeyPair, Ed25519KeyPair, KeyPair, RsaKeyPair,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

/// A key pair that an issuer signs with.
pub(crate) enum SigningKey {
    Rsa(RsaKeyPair),
    Ec(EcdsaKeyPair, &'static str),
    Ed(Ed25519KeyPair),
}

impl SigningKey {
    pub(crate) fn rsa() -> SigningKey {
        SigningKey::Rsa(RsaKeyPair::generate(KeySize::Rsa2048).unwrap())
    }

    pub(crate) fn ec(curve: &'static str) -> SigningKey {
        let algorithm = match curve {
            "P-256" => &ECDSA_P256_SHA256_FIXED_SIGNING,
            "P-384" => &ECDSA_P384_SHA384_FIXED_SIGNING,
            _ => &ECDSA_P521_SHA512_FIXED_SIGNING,
        };
        SigningKey::Ec(EcdsaKeyPair::generate(algorithm).unwrap(), curve)
    }

    pub(crate) fn ed() -> SigningKey {
        SigningKey::Ed(Ed25519KeyPair::generate().unwrap())
    }

    /// The public key, as in a key set.
    pub(crate) fn jwk(&self, name: &str) -> Value {
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        match self {
            SigningKey::Rsa(pair) => {
                let (modulus, exponent) = integers(pair.public_key().as_ref());
                json!({"kty": "RSA", "use": "sig", "kid": name, "n": text(modulus), "e": text(exponent)})
            }
            SigningKey::Ec(pair, curve) => {
                let point = &pair.public_key().as_ref()[1..];
                let (x, y) = point.split_at(point.len() / 2);
                json!({"kty": "EC", "crv": curve, "kid": name, "x": text(x), "y": text(y)})
            }
            SigningKey::Ed(pair) => {
                json!({"kty": "OKP", "crv": "Ed25519", "kid": name, "x": text(pair.public_key().as_ref())})
            }
        }
    }

    pub(crate) fn sign(&self, algorithm: &str, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match self {
            SigningKey::Rsa(pair) => {
                let encoding: &dyn signature::RsaEncoding = match algorithm {
                    "RS256" => &signature::RSA_PKCS1_SHA256,
                    "RS384" => &signature::RSA_PKCS1_SHA384,
                    "RS512" => &signature::RSA_PKCS1_SHA512,
                    "PS256" => &signature::RSA_PSS_SHA256,
                    "PS384" => &signature::RSA_PSS_SHA384,
                    _ => &signature::RSA_PSS_SHA512,
                };
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(encoding, &random, message, &mut signature).unwrap();
                signature
            }
            SigningKey::Ec(pair, _) => pair.sign(&random, message).unwrap().as_ref().to_vec(),
            SigningKey::Ed(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }

    /// Returns a token signed by this key.
    pub(crate) fn token(&self, algorithm: &str, key_name: &str, claims: &Value) -> String {
        let signed = unsigned(&json!({"alg": algorithm, "kid": key_name, "typ": "JWT"}), claims);
        let signature = self.sign(algorithm, signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }
}

/// Returns header and claims of a token without the signature.
pub(crate) fn unsigned(header: &Value, claims: &Value) -> String {
    format!("{}.{}", URL_SAFE_NO_PAD.encode(header.to_string()), URL_SAFE_NO_PAD.encode(claims.to_string()))
}

/// Returns a key set of these public keys.
pub(crate) fn key_set(keys: &[Value]) -> String {
    json!({ "keys": keys }).to_string()
}

/// Modulus and exponent of an `RSAPublicKey` (RFC 8017, appendix A.1.1).
fn integers(der: &[u8]) -> (&[u8], &[u8]) {
    let (sequence, _) = element(der);
    let (modulus, rest) = element(sequence);
    (modulus, element(rest).0)
}

/// Returns the content of the first DER element, and the bytes after it.
fn element(der: &[u8]) -> (&[u8], &[u8]) {
    let (length, begin) = match der[1] {
        short @ 0..0x80 => (usize::from(short), 2),
        long => {
            let count = usize::from(long & 0x7f);
            (der[2..2 + count].iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), 2 + count)
        }
    };
    (&der[begin..begin + length], &der[begin + length..])
}
