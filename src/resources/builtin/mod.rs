//! Built-in resources: facts of `kinds.json`, which `tests/interop/kinds` writes, and the defaults of their kinds.

/// Defaults that upstream sets in code.
pub mod defaults;
/// `kinds.json` as typed tables.
pub mod load;

pub use defaults::set_defaults;
pub use load::{BuiltinKinds, builtin_kinds};

#[cfg(test)]
mod tests;
