//! Cache keys: digests under a random key of this process.

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;

use crate::process::Problem;

/// The digest of a request. Equal digests mean equal requests: a collision cannot be made without the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DecisionKey([u8; 32]);

/// The random digest key of this process. No `Debug`, on purpose.
pub struct DigestSecret(hmac::Key);

/// An incremental digest. Its input is buffered: a request has about thirty fields of a few bytes, and one library call
/// for each took as long as the digest itself.
pub struct Digest {
    context: hmac::Context,
    buffer: [u8; 512],
    filled: usize,
}

impl DigestSecret {
    /// Creates a random secret.
    ///
    /// # Errors
    /// The random number generator of the system fails.
    pub fn new() -> Result<DigestSecret, Problem> {
        hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).map(DigestSecret).map_err(|_| {
            Problem::new("random numbers", "the random number generator of the system failed; cached decisions need it")
        })
    }

    /// Returns the digest of what `write` writes.
    pub fn key(&self, write: impl FnOnce(&mut Digest)) -> DecisionKey {
        let mut digest = Digest { context: hmac::Context::with_key(&self.0), buffer: [0; 512], filled: 0 };
        write(&mut digest);
        digest.flush();
        let mut key = [0; 32];
        key.copy_from_slice(digest.context.sign().as_ref());
        DecisionKey(key)
    }
}

impl Digest {
    /// Adds a text, with its length: `xy` and `z` are not `x` and `yz`.
    pub fn text(&mut self, text: &str) {
        self.number(text.len());
        self.bytes(text.as_bytes());
    }

    /// Adds a number: in one byte if it is small, as nearly all are.
    pub fn number(&mut self, number: usize) {
        match u8::try_from(number) {
            Ok(small) if small < u8::MAX => self.bytes(&[small]),
            _ => {
                self.bytes(&[u8::MAX]);
                self.bytes(&(number as u64).to_le_bytes());
            }
        }
    }

    /// Adds texts, and how many there are.
    pub fn texts<'t>(&mut self, texts: impl ExactSizeIterator<Item = &'t str>) {
        self.number(texts.len());
        texts.for_each(|text| self.text(text));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        if bytes.len() > self.buffer.len() - self.filled {
            self.flush();
        }
        match self.buffer.get_mut(self.filled..self.filled + bytes.len()) {
            Some(place) => {
                place.copy_from_slice(bytes);
                self.filled += bytes.len();
            }
            // Larger than the buffer.
            None => self.context.update(bytes),
        }
    }

    fn flush(&mut self) {
        self.context.update(&self.buffer[..self.filled]);
        self.filled = 0;
    }
}

impl DecisionKey {
    /// The hash that selects the cache set.
    pub(super) fn set_index(&self) -> usize {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h]) as usize
    }

    /// A short tag for skipping other entries cheaply; never 0.
    pub(super) fn tag(&self) -> u64 {
        let [.., a, b, c, d, e, f, g, h] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h]) | 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decision_key_digest_independent_of_buffering() {
        let secret = DigestSecret::new().unwrap();
        for length in [0, 1, 254, 255, 256, 500, 511, 512, 513, 2000] {
            let (text, other) = ("x".repeat(length), "y".repeat(7));
            let mut whole = Vec::new();
            for text in [&other, &text, &other] {
                match text.len() {
                    small @ 0..255 => whole.push(small as u8),
                    large => {
                        whole.push(255);
                        whole.extend((large as u64).to_le_bytes());
                    }
                }
                whole.extend(text.as_bytes());
            }
            let key = secret.key(|digest| [&other, &text, &other].iter().for_each(|text| digest.text(text)));
            assert_eq!(key.0, hmac::sign(&secret.0, &whole).as_ref(), "{length}");
        }
    }

    #[test]
    fn decision_key_depends_on_field_boundaries_and_secret() {
        let secret = DigestSecret::new().unwrap();
        let of = |secret: &DigestSecret, texts: &[&str]| secret.key(|digest| digest.texts(texts.iter().copied()));
        assert_eq!(of(&secret, &["xy", "z"]), of(&secret, &["xy", "z"]));
        for other in [&["x", "yz"][..], &["xyz"], &["xy", "z", ""], &["", "xy", "z"]] {
            assert_ne!(of(&secret, &["xy", "z"]), of(&secret, other));
        }
        assert_ne!(of(&secret, &["xy", "z"]), of(&DigestSecret::new().unwrap(), &["xy", "z"]));
    }
}
