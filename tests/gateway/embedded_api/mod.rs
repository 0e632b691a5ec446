//! The embedded API server (`--embedded-api`).

mod representations;
