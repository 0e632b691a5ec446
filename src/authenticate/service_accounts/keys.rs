//! Keys of service account tokens (`k8s.io/client-go/util/keyutil`, `pkg/serviceaccount/jwt.go`).

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::encoding::{AsDer as _, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING, EcdsaKeyPair,
    EcdsaSigningAlgorithm, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, SubjectPublicKeyInfoDer};
use serde_json::{Value, json};
use x509_parser::prelude::FromDer as _;
use x509_parser::public_key::PublicKey as ParsedKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::authenticate::jwt::{Jwks, SignatureVerification, UnverifiedToken};

/// Why a key file has no key.
const NO_PUBLIC_KEY: &str = "has no RSA key and no ECDSA key on P-256, P-384 or P-521 in PEM";

/// A key that verifies tokens.
#[derive(Debug)]
pub struct VerificationKey {
    /// Base64url of the SHA-256 of the DER form, as in kube-apiserver.
    pub key_id: String,
    /// The name of the signing algorithm.
    pub algorithm: &'static str,
    /// The key as an entry of a key set (RFC 7517).
    pub jwk: Value,
    verifier: Jwks,
}

/// A key that signs tokens. It has no `Debug`, so that it does not get into logs.
pub struct SigningKey {
    pair: SigningPair,
    /// The key that verifies what this one signs.
    pub public: VerificationKey,
}

enum SigningPair {
    Rsa(Box<RsaKeyPair>),
    Ecdsa(EcdsaKeyPair),
}

impl VerificationKey {
    /// Reads a `SubjectPublicKeyInfo`.
    ///
    /// # Errors
    /// Why the key is not supported.
    fn from_der(der: &[u8]) -> Result<VerificationKey, String> {
        let (_, info) = SubjectPublicKeyInfo::from_der(der).map_err(|_| "a public key is malformed".to_owned())?;
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let key_id = text(digest(&SHA256, der).as_ref());
        let parsed = info.parsed().map_err(|_| "a public key is malformed".to_owned())?;
        let (algorithm, mut jwk) = match parsed {
            ParsedKey::RSA(key) => {
                let bare = |number: &[u8]| text(&number[number.iter().take_while(|byte| **byte == 0).count()..]);
                ("RS256", json!({"kty": "RSA", "n": bare(key.modulus), "e": bare(key.exponent)}))
            }
            ParsedKey::EC(point) => {
                let (algorithm, curve, length) = match point.key_size() {
                    256 => ("ES256", "P-256", 32),
                    384 => ("ES384", "P-384", 48),
                    _ => ("ES512", "P-521", 66),
                };
                let coordinates = point.data().strip_prefix(&[4]).filter(|bytes| bytes.len() == 2 * length);
                let (x, y) = coordinates.ok_or("an ECDSA key is not on P-256, P-384 or P-521")?.split_at(length);
                (algorithm, json!({"kty": "EC", "crv": curve, "x": text(x), "y": text(y)}))
            }
            _ => return Err("a public key is neither of RSA nor of ECDSA".to_owned()),
        };
        for (field, value) in [("use", "sig"), ("kid", &key_id), ("alg", algorithm)] {
            jwk[field] = value.into();
        }
        let verifier = Jwks::parse(json!({"keys": [jwk]}).to_string().as_bytes())?;
        Ok(VerificationKey { key_id, algorithm, jwk, verifier })
    }

    /// Verifies the signature of a token.
    pub fn verifies(&self, token: &UnverifiedToken<'_>) -> bool {
        self.verifier.verify(token) == SignatureVerification::Valid
    }

    /// Reads all keys of a PEM file: public keys, private keys and certificates.
    ///
    /// # Errors
    /// Why there is none, without any part of the file.
    pub fn all_from_pem(pem: &[u8]) -> Result<Vec<VerificationKey>, String> {
        let mut keys = Vec::new();
        // A block that is broken may be half of a file that is being written.
        let broken = |_| "has a broken PEM block".to_owned();
        for public in SubjectPublicKeyInfoDer::pem_slice_iter(pem) {
            keys.push(VerificationKey::from_der(&public.map_err(broken)?)?);
        }
        for private in PrivateKeyDer::pem_slice_iter(pem) {
            keys.push(SigningKey::from_der(&private.map_err(broken)?)?.public);
        }
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(broken)?;
            let (_, parsed) = x509_parser::certificate::X509Certificate::from_der(&certificate)
                .map_err(|_| "a certificate is malformed".to_owned())?;
            keys.push(VerificationKey::from_der(parsed.public_key().raw)?);
        }
        if keys.is_empty() { Err(NO_PUBLIC_KEY.to_owned()) } else { Ok(keys) }
    }
}

impl SigningKey {
    /// Reads the first private key of a PEM file: PKCS#8, SEC1 or PKCS#1.
    ///
    /// # Errors
    /// Why there is none, without any part of the file.
    pub fn from_pem(pem: &[u8]) -> Result<SigningKey, String> {
        let key = PrivateKeyDer::from_pem_slice(pem)
            .map_err(|_| "has no \"BEGIN PRIVATE KEY\" block (nor \"EC PRIVATE KEY\" nor \"RSA PRIVATE KEY\")")?;
        SigningKey::from_der(&key)
    }

    fn from_der(key: &PrivateKeyDer<'_>) -> Result<SigningKey, String> {
        let curves: [&'static EcdsaSigningAlgorithm; 3] =
            [&ECDSA_P256_SHA256_FIXED_SIGNING, &ECDSA_P384_SHA384_FIXED_SIGNING, &ECDSA_P521_SHA512_FIXED_SIGNING];
        let (rsa, ecdsa) = match key {
            PrivateKeyDer::Pkcs1(der) => (RsaKeyPair::from_der(der.secret_pkcs1_der()).ok(), None),
            PrivateKeyDer::Sec1(der) => {
                let read = |curve| EcdsaKeyPair::from_private_key_der(curve, der.secret_sec1_der()).ok();
                (None, curves.into_iter().find_map(read))
            }
            PrivateKeyDer::Pkcs8(der) => {
                let read = |curve| EcdsaKeyPair::from_pkcs8(curve, der.secret_pkcs8_der()).ok();
                (RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()).ok(), curves.into_iter().find_map(read))
            }
            _ => (None, None),
        };
        let public = |der: Result<PublicKeyX509Der<'_>, _>| {
            let der = der.map_err(|_| "the public key cannot be derived".to_owned())?;
            VerificationKey::from_der(der.as_ref())
        };
        match (rsa, ecdsa) {
            (Some(pair), _) => {
                Ok(SigningKey { public: public(pair.public_key().as_der())?, pair: SigningPair::Rsa(Box::new(pair)) })
            }
            (None, Some(pair)) => {
                Ok(SigningKey { public: public(pair.public_key().as_der())?, pair: SigningPair::Ecdsa(pair) })
            }
            (None, None) => Err("the private key is neither RSA (2048 to 8192 bits) nor ECDSA on P-256, P-384 or \
                                 P-521"
                .to_owned()),
        }
    }

    /// A signed token with these claims, in compact form. Signing by RSA takes more than a millisecond.
    ///
    /// # Errors
    /// The key cannot sign.
    pub fn sign(&self, claims: &Value) -> Result<String, &'static str> {
        let header = json!({"alg": self.public.algorithm, "kid": self.public.key_id});
        let [header, payload] = [&header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
        let signed = format!("{header}.{payload}");
        let (random, failed) = (SystemRandom::new(), |_| "the token cannot be signed");
        let signature = match &self.pair {
            SigningPair::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, signed.as_bytes(), &mut signature).map_err(failed)?;
                signature
            }
            SigningPair::Ecdsa(pair) => pair.sign(&random, signed.as_bytes()).map_err(failed)?.as_ref().to_vec(),
        };
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// Whether signing holds a thread for long.
    pub fn is_slow(&self) -> bool {
        matches!(self.pair, SigningPair::Rsa(_))
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::encoding::Pkcs8V1Der;
    use base64::engine::general_purpose::STANDARD;

    use super::*;
    use crate::authenticate::jwt::claims;

    fn pem(label: &str, der: &[u8]) -> String {
        format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
    }

    fn verify(key: &VerificationKey, token: &str) -> bool {
        key.verifies(&UnverifiedToken::parse(token, claims(token).unwrap()).unwrap())
    }

    #[test]
    fn tokens_are_verified_by_the_public_key_of_each_type() {
        let curves =
            [&ECDSA_P256_SHA256_FIXED_SIGNING, &ECDSA_P384_SHA384_FIXED_SIGNING, &ECDSA_P521_SHA512_FIXED_SIGNING];
        let mut files: Vec<String> = curves
            .iter()
            .map(|curve| {
                let pair = EcdsaKeyPair::generate(curve).unwrap();
                pem("PRIVATE KEY", pair.to_pkcs8v1().unwrap().as_ref())
            })
            .collect();
        let rsa = RsaKeyPair::generate(aws_lc_rs::rsa::KeySize::Rsa2048).unwrap();
        let der: Pkcs8V1Der<'_> = rsa.as_der().unwrap();
        files.push(pem("PRIVATE KEY", der.as_ref()));
        let keys: Vec<SigningKey> = files.iter().map(|file| SigningKey::from_pem(file.as_bytes()).unwrap()).collect();
        let algorithms: Vec<&str> = keys.iter().map(|key| key.public.algorithm).collect();
        assert_eq!(algorithms, ["ES256", "ES384", "ES512", "RS256"]);
        for (number, key) in keys.iter().enumerate() {
            let token = key.sign(&json!({"sub": "a"})).unwrap();
            let verifying: Vec<bool> = keys.iter().map(|other| verify(&other.public, &token)).collect();
            let expected: Vec<bool> = (0..keys.len()).map(|other| other == number).collect();
            assert_eq!(verifying, expected);
            assert_eq!(key.public.key_id.len(), 43);
        }
        // A private key stands for its public key.
        let all = VerificationKey::all_from_pem(files.concat().as_bytes()).unwrap();
        let ids = |keys: &mut dyn Iterator<Item = &VerificationKey>| -> Vec<String> {
            keys.map(|key| key.key_id.clone()).collect()
        };
        assert_eq!(ids(&mut all.iter()), ids(&mut keys.iter().map(|key| &key.public)));
    }

    #[test]
    fn files_without_a_key_are_refused_without_their_content() {
        for file in ["", "s3cret", &pem("PRIVATE KEY", b"s3cret"), &pem("CERTIFICATE", b"s3cret")] {
            let (public, private) =
                (VerificationKey::all_from_pem(file.as_bytes()), SigningKey::from_pem(file.as_bytes()));
            let texts = [public.err().unwrap(), private.err().unwrap()];
            assert!(texts.iter().all(|text| !text.contains("s3cret") && !text.is_empty()), "{texts:?}");
        }
    }
}
