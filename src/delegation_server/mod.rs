//! `--serve-delegation`: serves delegated authentication and authorization to backends, in place of a kube-apiserver.
//!
//! An extension API server needs three APIs of its cluster: ConfigMap
//! `kube-system/extension-apiserver-authentication` (CAs and request headers), `TokenReview` and
//! `SubjectAccessReview`. Here the gateway's own chains answer them. The caller must be authorized for these requests
//! as for any other, before they get here.

mod config_map;
mod delegation_request;
mod serve;
mod token_review;

pub use config_map::{AuthConfigMap, AuthConfigMapSource, who_vouches};
pub use delegation_request::DelegationRequest;
pub use serve::{DelegationServer, handle_config_map};
pub use token_review::token_review;
