//! Clients of egress proxies: SOCKS5, HTTP CONNECT, Konnectivity.

pub mod http_connect;
pub mod konnectivity;
pub mod socks5;
