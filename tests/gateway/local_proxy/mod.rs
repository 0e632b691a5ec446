//! The proxy on one machine, the SOCKS5 server and quickstart.

pub(crate) mod exec_auth;
pub(crate) mod flags;
pub(crate) mod messages;
pub(crate) mod origin;
pub(crate) mod proxy;
pub(crate) mod quickstart;
pub(crate) mod server_url;
pub(crate) mod socks5;
