//! Regular expressions with Go's syntax and meaning (RE2, `regexp/syntax`), executed by the `regex` crate.
//!
//! One difference is known: a surrogate (`\x{D800}`) matches nothing here. In Go it matches U+FFFD, if it is among the
//! first characters of an expression that begins with `^` or `\A`.

mod budget;
mod cache;
mod class;
mod code_points;
mod flags;
mod parser;
mod piece;
mod syntax_error;
#[cfg(test)]
mod tests;
mod unicode;

use std::sync::Arc;

use regex::{Regex, RegexBuilder};

pub use self::budget::PatternBudget;

use self::cache::{SharedPattern, shared_pattern};
use self::parser::translate;
use self::syntax_error::PatternError;

/// Maximum size of a compiled expression in bytes. The `regex` crate compiles an expression forwards and backwards, each
/// within this size. 300 times `\pL` need 12.5 MB.
const MAX_COMPILED_BYTES: usize = 16 << 20;
/// Maximum size of the states that are kept for a thread while it matches.
const MAX_CACHE_BYTES: usize = 1 << 20;
/// Maximum height of an expression that is compiled on the stack of its caller: the `regex` crate recurses.
const MAX_HEIGHT_ON_STACK: usize = 50;
/// Stack size of the thread that compiles higher expressions; enough for the highest one, also without optimization.
const COMPILER_STACK_SIZE: usize = 32 << 20;

/// Weight of a pattern whose states are close to the processor.
const CACHED_WEIGHT: usize = 4096;
/// Steps in which the compiler adds one to the weight of what it has compiled, at most.
const COMPILER_STEPS: usize = 64;

/// Weight from which a pattern is large: it takes some hundred microseconds to compile.
const LARGE_WEIGHT: usize = 10_000;

/// A regular expression of a schema, compiled on first use.
#[derive(Clone, Debug)]
pub struct Pattern {
    shared: Arc<SharedPattern>,
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.shared.text == other.shared.text
    }
}

impl Pattern {
    /// An expression as it stands in a schema.
    pub fn new(text: &str) -> Pattern {
        Pattern { shared: shared_pattern(text) }
    }

    /// The expression.
    pub fn text(&self) -> &str {
        &self.shared.text
    }

    /// How large the compiled expression is, in units of 16 to 64 bytes.
    pub fn weight(&self) -> usize {
        self.shared.weight().unwrap_or_default()
    }

    /// How many steps of 10 ns it takes to match a text, at most: states that a byte may lead to, times bytes. Many states
    /// do not fit the caches of a processor, and take up to seven times as long. The first text waits for the compiler, too.
    pub fn match_steps(&self, text: &str) -> usize {
        let weight = self.weight();
        let compiling = if self.shared.is_compiled() { 0 } else { weight.saturating_mul(COMPILER_STEPS) };
        weight.saturating_mul(text.len()).saturating_mul(1 + weight / CACHED_WEIGHT).saturating_add(compiling)
    }

    /// Compiles the expression now if that takes long.
    pub fn compile_if_large(&self) {
        if self.shared.weight().is_ok_and(|weight| weight > LARGE_WEIGHT) {
            self.shared.compiled();
        }
    }

    /// Whether the expression can be compiled.
    pub fn is_valid(&self) -> bool {
        self.shared.compiled().is_ok()
    }

    /// Why the expression cannot be compiled, with the text of Go's `regexp.Compile`. An expression that Go accepts has
    /// an error too if it is too large for the limits of memory here.
    pub fn error(&self) -> Option<String> {
        self.shared.compiled().as_ref().err().map(PatternError::to_string)
    }

    /// Whether some part of `text` matches. Nothing matches an expression that has an [`error`](Pattern::error).
    pub fn matches(&self, text: &str) -> bool {
        // Not is_match: it can miss a match of an expression with \B. Once it has found \B within the bytes of a
        // character, it forgets what began before (regex 1.13).
        self.shared.compiled().as_ref().is_ok_and(|regex| regex.find(text).is_some())
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
