//! `--authorization-config`: an `AuthorizationConfiguration` of kube-apiserver, reloaded when the file changes.
//!
//! Supported types: `Webhook`, `AlwaysAllow`, `AlwaysDeny`, and `RBAC`, which uses the RBAC objects of
//! `--authorization-policy-file`.

mod follow;
mod parse;
#[cfg(test)]
mod tests;

pub use follow::{AuthorizationConfigFile, AuthorizationConfigWatcher, AuthorizationWebhookSettings};
pub use parse::{AuthorizationConfiguration, ConfigurationRequirements};
