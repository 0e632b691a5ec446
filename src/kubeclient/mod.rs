//! Our own calls to a kube-apiserver: where it is and who we are to it (a kubeconfig, followed on disk), and
//! calls over our own pool, with upstream's rule of when to try again.
//!
//! A [`Client`] belongs to one thread. Others reach it through a [`Remote`], which hands it work: so there is one
//! set of connections to each control plane, whatever the number of workers.

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
