//! Client of a kube-apiserver: kubeconfig (reloaded when it changes), calls with Kubernetes' retry policy, list and
//! watch, leader election.
//!
//! A [`Client`] belongs to one thread. Other threads send it jobs through a [`ClientHandle`], so that each control
//! plane has one connection pool, however many workers there are.

mod call;
pub mod certificate_request;
mod client;
mod client_handle;
pub mod election;
mod kubeconfig;
mod kubeconfig_server;
mod kubeconfig_source;
mod passthrough;
mod plugin;
pub mod watch;

pub use call::{ApiResponse, CallError, CallPolicy};
pub use client::Client;
pub use client_handle::{ClientHandle, ClientJobs};
pub use kubeconfig::{ConfigOverrides, Kubeconfig};
pub use kubeconfig_server::KubeconfigServer;
pub use kubeconfig_source::{IN_CLUSTER, KubeconfigSource};
pub use passthrough::{Passthrough, PassthroughError};
pub use plugin::CredentialError;
