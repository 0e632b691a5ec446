//! Inbound connections.
