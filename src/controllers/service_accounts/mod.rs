//! What every namespace and every token Secret gets: the ServiceAccount `default`, the ConfigMap `kube-root-ca.crt`, tokens.

mod namespace_objects;
mod token_secrets;

pub(super) use namespace_objects::NamespaceObjectController;
pub(super) use token_secrets::TokenSecretController;
