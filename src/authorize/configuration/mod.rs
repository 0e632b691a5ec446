//! `--authorization-config`: an `AuthorizationConfiguration` of kube-apiserver, followed on disk.
//!
//! Of its types there are `Webhook`, `AlwaysAllow`, `AlwaysDeny`, and `RBAC`, which goes by the RBAC objects of
//! `--authorization-policy-file`.

mod conditions;
mod follow;
mod read;
#[cfg(test)]
mod tests;

pub(super) use conditions::MatchConditions;
pub use follow::{ConfigurationFile, Following, WebhookSettings};
pub use read::{Configuration, Demands};
