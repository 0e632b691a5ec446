//! Clients of egress proxies: SOCKS5, HTTP CONNECT, Konnectivity.

pub mod http_connect;
pub(in crate::egress) mod konnectivity;
pub mod socks5;
