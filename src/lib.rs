//! Narthex: an aggregation-layer proxy and front-proxy gateway for Kubernetes-style APIs.
//!
//! This file is the architecture: modules are declared in the order of dependency, and a module uses
//! only modules declared above it (`tests/architecture.rs` holds that). Read aloud, the order is the
//! way of a request:
//!
//! ```text
//! listen -> authenticate -> authorize -> route -> forward -> (egress) -> backend
//! ```
//!
//! Each stage hands the next a value that only it can make: `forward` cannot be called without a
//! permit and a target.

/// The operator's own listener: health, metrics, state, log level, status page.
pub mod admin;
/// Who is asking: client certificate, request header, static tokens, anonymous, the chain of them.
pub mod authenticate;
/// May they: attributes, the always-modes, and the permit that proves it was asked.
pub mod authorize;
/// Whether a backend answers: probe, judge, report.
pub mod availability;
/// What the operator wrote, turned into what each module needs; all mistakes at once.
pub mod config;
/// Discovery documents: fetch, merge, serve.
pub mod discovery;
/// Outbound: destination, names, direct connections, the pool.
pub mod egress;
/// Relaying: rewrite, identity headers, stream, upgrade, retry, failure.
pub mod forward;
/// Kubernetes words on the wire: group and version, request info, user, Status. No I/O.
pub mod kubeapi;
/// Inbound: bind, accept, handshake, serve, limits.
pub mod listen;
/// Bodies, refusals, content negotiation, hop-by-hop headers.
pub mod message;
/// What the operator sees: logs, metrics, the one access record per request.
pub mod observe;
/// OpenAPI documents: fetch, merge, serve.
pub mod openapi;
/// The life of the process: drain, signals, published snapshots, followed files.
pub mod process;
/// Which APIServices, Services and endpoints exist, from manifests on disk.
pub mod registry;
/// The commands: gateway, quickstart, pki, check, status.
pub mod roles;
/// From a permit and a path to a target.
pub mod route;
/// Who we are and whom we trust: key pairs, bundles, authorities, peer certificates.
pub mod tls;
