//! The gateway, tested through its front door: the real binary between real clients and backends that
//! speak the real protocols.

// A test stops at what it did not expect.
#![allow(clippy::unwrap_used)]

mod abuse;
mod answers;
mod audit;
mod authorizers;
mod backend;
mod balance;
mod bodies;
mod breaking;
mod browsers;
mod client;
mod cluster;
mod costs;
mod delegate;
mod delegated;
mod discovery;
mod documents;
mod egress;
mod elected;
mod ending;
mod failover;
mod fairness;
mod faults;
mod followed;
mod forger;
mod frames;
mod handshakes;
mod identity;
mod impersonation;
mod isolation;
mod issuer;
mod kept;
mod limits;
mod load;
mod lookup;
mod openapi2;
mod operator;
mod paths;
mod policy;
mod pool;
mod process;
mod proxies;
mod proxy;
mod proxy_url;
mod quickstart;
mod raw;
mod records;
mod refused;
mod registry;
mod relay;
mod reviewer;
mod scene;
mod served;
mod silent;
mod socks5;
mod token_webhook;
mod tokens;
mod trust;
mod tunnels;
mod unclaimed;
mod upgrades;
mod uploads;
mod world;
