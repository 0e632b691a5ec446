//! Fuzzing of every parser of bytes from the network or from files.
//!
//! Part of plain `cargo test`, each target briefly and on stable Rust. `cargo bolero test -p narthex
//! <target>` runs one of them longer, guided by coverage, with a nightly toolchain.
//!
//! Random bytes rarely look like a path or a header. So a byte of the input mostly picks a word from the
//! target's dictionary, and only sometimes stands for itself.

mod authenticate;
mod authorize;
mod egress;
mod kubeapi;
mod message;
mod objects;
mod openapi;
mod registry;
mod resources;
mod schema;
mod socks5;

/// Runs a target on texts made of `words`.
fn fuzz_text(words: &'static [&'static str], target: impl Fn(&str) + std::panic::RefUnwindSafe) {
    fuzz_bytes(|bytes| target(&text_from_words(bytes, words)));
}

/// Runs a target on raw bytes, for the same short while.
fn fuzz_bytes(target: impl Fn(&[u8]) + std::panic::RefUnwindSafe) {
    bolero::check!().with_iterations(2000).with_max_len(24).for_each(|bytes: &[u8]| target(bytes));
}

/// A word of the dictionary for every byte but the highest; for those the character of that number. Words
/// that stand in the dictionary several times come often.
fn text_from_words(bytes: &[u8], words: &[&str]) -> String {
    let mut text = String::new();
    for byte in bytes {
        match byte {
            0..248 => text.push_str(words[usize::from(*byte) % words.len()]),
            _ => text.push(char::from(byte.wrapping_mul(37))),
        }
    }
    text
}
