//! Relaying a request.
