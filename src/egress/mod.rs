//! Outbound connections.
