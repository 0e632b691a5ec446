//! End-to-end tests of the gateway: the real binary between real clients and backends that speak the real protocols.

// A test stops at what it did not expect.
#![allow(clippy::unwrap_used)]

mod authn;
mod authz;
mod control_planes;
mod discovery;
mod egress;
mod embedded_api;
mod konnectivity;
mod local_proxy;
mod observability;
mod registry;
mod relay;
mod resilience;
mod sidecar;
mod support;
