//! Order of crates and modules, and other structural rules, read from the sources with syn.
//!
//! The rules are in `dependencies`, `modules` and `style`; the other modules read what they need.

mod dependencies;
mod modules;
mod names;
mod source;
mod style;
mod syntax;
