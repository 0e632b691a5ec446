//! Regular expressions with Go's syntax and meaning (RE2, `regexp/syntax`), executed by the `regex` crate.
//!
//! One difference is known: a surrogate (`\x{D800}`) matches nothing here. In Go it matches U+FFFD, if it is among the
//! first characters of an expression that begins with `^` or `\A`.

mod class;
mod code_points;
mod flags;
mod parser;
mod piece;
mod syntax_error;
#[cfg(test)]
mod tests;
mod unicode;

use std::sync::{Arc, OnceLock};

use regex::{Regex, RegexBuilder};

use parser::translate;
use syntax_error::PatternError;

/// Maximum size of a compiled expression in bytes. The `regex` crate compiles an expression forwards and backwards, each
/// within this size. 300 times `\pL` need 12.5 MB.
const MAX_COMPILED_BYTES: usize = 16 << 20;
/// Maximum size of the states that are kept for a thread while it matches.
const MAX_CACHE_BYTES: usize = 1 << 20;
/// Maximum height of an expression that is compiled on the stack of its caller: the `regex` crate recurses.
const MAX_HEIGHT_ON_STACK: usize = 50;
/// Stack size of the thread that compiles higher expressions; enough for the highest one, also without optimization.
const COMPILER_STACK_SIZE: usize = 32 << 20;

/// A regular expression of a schema, compiled on first use.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: Arc<str>,
    compiled: Arc<OnceLock<Result<Regex, PatternError>>>,
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.text == other.text
    }
}

impl Pattern {
    /// An expression as it stands in a schema.
    pub fn new(text: &str) -> Pattern {
        Pattern { text: text.into(), compiled: Arc::default() }
    }

    /// The expression.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the expression can be compiled.
    pub fn is_valid(&self) -> bool {
        self.compiled().is_ok()
    }

    /// Why the expression cannot be compiled, with the text of Go's `regexp.Compile`. An expression that Go accepts has
    /// an error too if it is too large for the limits of memory here.
    pub fn error(&self) -> Option<String> {
        self.compiled().as_ref().err().map(PatternError::to_string)
    }

    /// Whether some part of `text` matches. Nothing matches an expression that has an [`error`](Pattern::error).
    pub fn matches(&self, text: &str) -> bool {
        // Not is_match: it can miss a match of an expression with \B. Once it has found \B within the bytes of a
        // character, it forgets what began before (regex 1.13).
        self.compiled().as_ref().is_ok_and(|regex| regex.find(text).is_some())
    }

    fn compiled(&self) -> &Result<Regex, PatternError> {
        self.compiled.get_or_init(|| compile(&self.text))
    }
}

fn compile(expression: &str) -> Result<Regex, PatternError> {
    let translation = translate(expression)?;
    if translation.height <= MAX_HEIGHT_ON_STACK {
        return build(&translation.text);
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("pattern".to_owned())
            .stack_size(COMPILER_STACK_SIZE)
            .spawn_scoped(scope, || build(&translation.text))
            .map_err(|_| PatternError::Internal("cannot start the compiler thread"))?;
        thread.join().unwrap_or(Err(PatternError::Internal("the compiler panicked")))
    })
}

fn build(text: &str) -> Result<Regex, PatternError> {
    RegexBuilder::new(text)
        .size_limit(MAX_COMPILED_BYTES)
        .dfa_size_limit(MAX_CACHE_BYTES)
        // The translated text has groups that are no operators.
        .nest_limit(u32::MAX)
        .build()
        .map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => PatternError::TooLarge,
            _ => PatternError::Internal("the translated expression is not valid"),
        })
}
