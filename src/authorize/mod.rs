//! Authorization of requests.
//!
//! A chain of authorizers in Kubernetes' order: privileged groups, paths that are always allowed, then the configured
//! modes. The first decision counts; without one the request is denied. `authorizer.rs` is the only caller of the
//! modes.

mod access_review;
mod access_spec;
mod always_allow_paths;
mod attributes;
mod authorizer;
pub mod configuration;
mod create_authorization;
mod impersonation;
mod match_conditions;
pub mod policy;
pub mod rbac_proxy;
mod review_body;
mod self_review;
mod subject_review;
mod webhook;

pub use access_spec::read_review_spec as read_review;
pub use always_allow_paths::AlwaysAllowPaths;
pub use attributes::{Attributes, Decision};
pub use authorizer::{AuthorizationMode, Authorizer, AuthorizerChain, ChainEntry, Denial, Permit};
pub use configuration::AuthorizationConfigFile;
pub use create_authorization::CreateAuthorization;
pub use impersonation::{EffectiveUser, ImpersonatedUser, Impersonator};
pub use policy::{PolicyFile, RbacPolicies, RbacPolicy};
pub use review_body::ReviewBody;
pub use self_review::SelfReview;
pub use subject_review::subject_access_review;
pub use webhook::{AccessReviewClient, AccessReviewSettings, PROBE_INTERVAL};

/// Parsers that are exposed to the fuzz targets.
#[doc(hidden)]
pub mod parsers {
    pub use super::impersonation::requested_user::{parse_headers as impersonated, strip_headers};
}
