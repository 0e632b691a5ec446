//! The operator's own listener.
