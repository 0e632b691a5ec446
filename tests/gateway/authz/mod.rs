//! Authorization: authorizers, reviews, impersonation, and delegation for backends.

pub(crate) mod authorization_config;
pub(crate) mod impersonation;
pub(crate) mod rbac_policy_file;
pub(crate) mod serve_delegation;
pub(crate) mod webhook_reviews;
