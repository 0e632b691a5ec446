//! Authorization of requests.
//!
//! A chain of authorizers in upstream's order: privileged groups, paths that are always allowed, then the configured
//! modes. The first decision counts; without one the request is denied. `authorizer.rs` is the only caller of the
//! modes.

mod access_review;
mod access_spec;
mod always_allow_paths;
mod attributes;
mod authorizer;
pub mod configuration;
mod impersonation;
pub mod policy;
pub mod rbac_proxy;
mod review_body;
mod self_review;
mod subject_review;
mod webhook;

pub use access_spec::read as read_review;
pub use always_allow_paths::AlwaysAllowPaths;
pub use attributes::Attributes;
pub use authorizer::{Authorizer, Decision, Denied, Link, Mode, Modes, Permit};
pub use configuration::ConfigurationFile;
pub use impersonation::{Actor, Impersonated, Impersonator};
pub use policy::{Policy, PolicyFile};
pub use review_body::ReviewBody;
pub use self_review::SelfReview;
pub use subject_review::subject_access_review;
pub use webhook::{AccessReviewSettings, AccessReviews, PROBE_INTERVAL};

/// Parsers that are exposed to the fuzz targets.
#[doc(hidden)]
pub mod parsers {
    pub use super::impersonation::wanted::{read as impersonated, take_away};
}
