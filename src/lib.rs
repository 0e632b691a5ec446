//! Narthex: an aggregation-layer proxy and front-proxy gateway for Kubernetes-style APIs.
//!
//! This file is the architecture: modules are declared in dependency order, and a module uses only modules
//! declared above it (`tests/architecture` checks that). The order follows the path of a request:
//!
//! ```text
//! listen -> authenticate -> authorize -> route -> forward -> (egress) -> backend
//! ```
//!
//! Each stage returns a value that only it can create and that the next stage requires: `forward` cannot be
//! called without a `Permit` and a target.
//!
//! Below all modules are three crates, which know nothing of a gateway and which others can use:
//!
//! | Crate | What it has | Uses |
//! |---|---|---|
//! | [`kubeapi`] | conventions of the Kubernetes API, structural schemas, patches; no I/O | |
//! | [`store`] | the store of API objects, and the watch cache | `kubeapi` |
//! | [`konnectivity_client`] | Konnectivity packets and client, over any byte stream | |
//!
//! The blank lines between the declarations keep rustfmt from sorting them by name.

// CEL expressions of configuration files: compiled once, evaluated with a cost limit. No I/O.
pub mod expression;

// Process lifecycle: drain, signals, published snapshots, watched files.
pub mod process;

// Bodies, refusals, content negotiation, hop-by-hop headers.
pub mod message;
// Observability: logs, metrics, health, audit, one access record per request.
pub mod observe;

// TLS: key pairs, CA bundles, generated certificates, peer verification.
pub mod tls;

// Outbound connections: destinations, DNS, dialing, proxies, connection pool.
pub mod egress;

// Calls to a kube-apiserver: kubeconfig, pooled client, retry, reflector, leader election.
pub mod kubeclient;

// Cached decisions of remote reviews (TokenReview, SubjectAccessReview): TTLs, single flight.
pub mod decision_cache;

// Work queues of controllers: each key once, back-off.
pub mod work_queue;

// Inbound connections: bind, accept, handshake, serve, limits.
pub mod listen;

// Authentication: client certificate, request headers, tokens, OIDC, webhook, anonymous.
pub mod authenticate;

// Authorization: attributes, authorizer chain, impersonation, and the `Permit` that proves a decision.
pub mod authorize;

// Konnectivity server and agent: tunnels into networks that only agents can leave.
pub mod konnectivity;

// Delegation server for backends: TokenReview, SubjectAccessReview, ConfigMap extension-apiserver-authentication.
pub mod delegation_server;

// Registry of APIServices, Services and endpoints, from manifests on disk or a kube-apiserver.
pub mod registry;

// Availability of backends: probes, hysteresis, circuit breaker, status conditions.
pub mod availability;

// Routing: from a `Permit` and a path to a target.
pub mod route;

// Forwarding: rewrite, identity headers, streaming, upgrade, retry, failure.
pub mod forward;

// Resources of the embedded API server: names, versions, message types, columns.
pub mod resources;

// Rules of the kinds: selectable fields, preparation, validation, warnings, columns.
pub mod kinds;

// Work on large objects: on threads that users share fairly, until its deadline.
pub mod compute;

// Webhook client: one set of connections for each webhook, limits of a call.
pub mod webhook_client;

// Conversion of custom objects between versions: schemas, webhooks.
pub mod conversion;

// Embedded API server: the verbs of stored objects.
pub mod rest;

// Controllers of the embedded API server: CustomResourceDefinitions, namespaces, Local APIServices.
pub mod controllers;

// Discovery documents: fetch, merge, serve.
pub mod discovery;

// OpenAPI documents: fetch, merge, serve.
pub mod openapi;

// Admin listener: health, metrics, state, log level, status page.
pub mod admin;

// Configuration: flags, environment and files, parsed into the settings of each module; reports all errors at once.
pub mod config;

// The commands: gateway, sidecar (a gateway that routes to upstreams by path), proxy, socks5, quickstart, pki, check,
// status, completion.
pub mod commands;
