//! Every parser of ours that sees bytes from the network or from files, under made-up input.
//!
//! Part of plain `cargo test`, each target for a moment and on stable Rust. `cargo bolero test -p narthex
//! <target>` runs one of them for long, guided by coverage, where a nightly toolchain is at hand.
//!
//! Random bytes rarely look like a path or a header. So a byte of the input mostly picks a word from the
//! target's dictionary, and only sometimes stands for itself.

mod authenticate;
mod kubeapi;
mod message;
mod registry;

/// Runs a target on texts made of `words`.
fn on_texts(words: &'static [&'static str], target: impl Fn(&str) + std::panic::RefUnwindSafe) {
    on_bytes(|bytes| target(&text(bytes, words)));
}

/// Runs a target on raw bytes, for the same short while.
fn on_bytes(target: impl Fn(&[u8]) + std::panic::RefUnwindSafe) {
    bolero::check!().with_iterations(1500).with_max_len(48).for_each(|bytes: &[u8]| target(bytes));
}

/// Words from the dictionary for most bytes; for the others the character of that number.
fn text(bytes: &[u8], words: &[&str]) -> String {
    let mut text = String::new();
    for byte in bytes {
        match words.get(usize::from(*byte) % (words.len() + words.len() / 8 + 1)) {
            Some(word) => text.push_str(word),
            None => text.push(char::from(*byte)),
        }
    }
    text
}
