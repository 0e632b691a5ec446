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
//!
//! The blank lines between the declarations keep rustfmt from sorting them by name.

// Kubernetes words on the wire: group and version, request info, user, Status. No I/O.
pub mod kubeapi;

// CEL expressions of configuration files: compiled once, evaluated with a bound on what they cost. No I/O.
pub mod expression;

// The life of the process: drain, signals, published snapshots, followed files.
pub mod process;

// Bodies, refusals, content negotiation, hop-by-hop headers.
pub mod message;
// What the operator sees: logs, metrics, the one access record per request.
pub mod observe;

// Who we are and whom we trust: key pairs, bundles, authorities, peer certificates.
pub mod tls;

// Outbound: destination, names, direct connections, the pool.
pub mod egress;

// Our own calls to a kube-apiserver: kubeconfig, pooled client, when to try again.
pub mod kubeclient;

// Decisions that somebody else makes for us: kept for a while, asked for once at a time.
pub mod review;

// Inbound: bind, accept, handshake, serve, limits.
pub mod listen;

// Who is asking: client certificate, request header, static tokens, anonymous, the chain of them.
pub mod authenticate;

// May they: attributes, the always-modes, and the permit that proves it was asked.
pub mod authorize;

// What backends ask of a kube-apiserver, answered by our own chain: whom to believe, who it is, may they.
pub mod reviewer;

// Which APIServices, Services and endpoints exist, from manifests on disk.
pub mod registry;

// Whether a backend answers: probe, judge, report.
pub mod availability;

// From a permit and a path to a target.
pub mod route;

// Relaying: rewrite, identity headers, stream, upgrade, retry, failure.
pub mod forward;

// Discovery documents: fetch, merge, serve.
pub mod discovery;

// OpenAPI documents: fetch, merge, serve.
pub mod openapi;

// The operator's own listener: health, metrics, state, log level, status page.
pub mod admin;

// What the operator wrote, turned into what each module needs; all mistakes at once.
pub mod config;

// The commands: gateway, sidecar (a gateway with upstreams by path: roles/sidecar.rs says what is its own), proxy, socks5,
// quickstart, pki, check, status.
pub mod roles;
