//! Clients of egress proxies: SOCKS5, HTTP CONNECT, Konnectivity.

pub(in crate::egress) mod credentials;
pub(in crate::egress) mod fault;
pub(in crate::egress) mod health;
pub mod http_connect;
pub mod konnectivity;
pub mod socks5;
pub(in crate::egress) mod url;
pub(in crate::egress) mod via_proxy;
