//! What a decision is found by: a digest under a key that this process made up.

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;

use crate::process::Problem;

/// A digest of a question. Two questions with the same digest are the same question: nobody who does not know
/// the secret can make another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key([u8; 32]);

/// The secret of this process. No `Debug`, on purpose.
pub struct Secret(hmac::Key);

/// A digest in the making.
pub struct Digest(hmac::Context);

impl Secret {
    /// A new one.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn new() -> Result<Secret, Problem> {
        hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())
            .map(Secret)
            .map_err(|_| Problem::new("random numbers", "the system has none to protect cached decisions with"))
    }

    /// The digest of what `write` writes.
    pub fn key(&self, write: impl FnOnce(&mut Digest)) -> Key {
        let mut digest = Digest(hmac::Context::with_key(&self.0));
        write(&mut digest);
        let mut key = [0; 32];
        key.copy_from_slice(digest.0.sign().as_ref());
        Key(key)
    }
}

impl Digest {
    /// Adds a text, with its length: `xy` and `z` are not `x` and `yz`.
    pub fn text(&mut self, text: &str) {
        self.number(text.len());
        self.0.update(text.as_bytes());
    }

    /// Adds a number.
    pub fn number(&mut self, number: usize) {
        self.0.update(&(number as u64).to_le_bytes());
    }

    /// Adds texts, and how many there are.
    pub fn texts<'t>(&mut self, texts: impl ExactSizeIterator<Item = &'t str>) {
        self.number(texts.len());
        texts.for_each(|text| self.text(text));
    }
}

impl Key {
    /// Where a table begins to look.
    pub(super) fn place(&self) -> usize {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h]) as usize
    }

    /// Enough to pass over others without a closer look; never 0.
    pub(super) fn tag(&self) -> u64 {
        let [.., a, b, c, d, e, f, g, h] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h]) | 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_split_or_another_process_is_another_key() {
        let secret = Secret::new().unwrap();
        let of = |secret: &Secret, texts: &[&str]| secret.key(|digest| digest.texts(texts.iter().copied()));
        assert_eq!(of(&secret, &["xy", "z"]), of(&secret, &["xy", "z"]));
        for other in [&["x", "yz"][..], &["xyz"], &["xy", "z", ""], &["", "xy", "z"]] {
            assert_ne!(of(&secret, &["xy", "z"]), of(&secret, other));
        }
        assert_ne!(of(&secret, &["xy", "z"]), of(&Secret::new().unwrap(), &["xy", "z"]));
    }
}
