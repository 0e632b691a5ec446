//! Relaying a request.
mod tunnel;
