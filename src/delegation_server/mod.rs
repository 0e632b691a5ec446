//! `--serve-delegation`: serves delegated authentication and authorization to backends, in place of a kube-apiserver.
//!
//! An extension API server needs three APIs of its cluster: ConfigMap
//! `kube-system/extension-apiserver-authentication` (CAs and request headers), `TokenReview` and
//! `SubjectAccessReview`. Here the gateway's own chains answer the reviews, and the embedded API server serves the
//! ConfigMap. The caller must be authorized for these requests as for any other, before they get here.

mod config_map;
mod delegation_request;
mod token_review;

pub use config_map::{AuthConfigMapSource, NAME, NAMESPACE, who_vouches};
pub use delegation_request::DelegationRequest;
pub use token_review::token_review;
