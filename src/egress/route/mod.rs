//! Destinations, and the egress route to each: direct, or through the proxies of an egress selection.

pub(in crate::egress) mod backend_tls;
pub(in crate::egress) mod build;
pub(in crate::egress) mod destination;
pub(in crate::egress) mod destination_pattern;
pub(in crate::egress) mod egress_route;
pub(in crate::egress) mod endpoint_key;
pub(in crate::egress) mod environment;
pub(in crate::egress) mod no_proxy;
pub(in crate::egress) mod proxy_credentials;
pub(in crate::egress) mod proxy_health;
pub(in crate::egress) mod proxy_url;
pub(in crate::egress) mod reload;
pub(in crate::egress) mod settings;
