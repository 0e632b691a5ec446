//! Client of a kube-apiserver: kubeconfig (reloaded when it changes), calls with upstream's retry policy, list and
//! watch, leader election.
//!
//! A [`Client`] belongs to one thread. Other threads send it jobs through a [`Remote`], so that each control plane has
//! one connection pool, however many workers there are.

mod call;
pub mod certificate_request;
mod client;
pub mod election;
mod kubeconfig;
mod onward;
mod plugin;
mod remote;
mod server;
mod source;
pub mod watch;

pub use call::{Answer, CallError, Patience};
pub use client::Client;
pub use kubeconfig::{Chosen, Kubeconfig};
pub use onward::{Onward, Undelivered};
pub use plugin::Denied;
pub use remote::{Jobs, Remote};
pub use server::Server;
pub use source::{IN_CLUSTER, Source};
