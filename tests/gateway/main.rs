//! The gateway, tested through its front door: the real binary between real clients and backends that
//! speak the real protocols.

mod backend;
mod client;
mod identity;
mod relay;
mod unclaimed;
mod world;
