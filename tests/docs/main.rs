//! The documents: reference pages made from the code, links, command blocks, the tests behind the comparison,
//! and the manifests of `deploy/`.

// A test stops at what it did not expect.
#![allow(clippy::unwrap_used)]

#[path = "../../benches/compare/chart.rs"]
mod chart;
mod commands;
mod comparison;
mod hardening;
mod install_root;
mod links;
mod manifests;
mod monitoring;
mod page;
mod page_runner;
mod reference;
mod results_chart;
mod source;
mod threads;
mod troubleshooting;
