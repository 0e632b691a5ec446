//! Built-in resources: facts of `kinds.json`, which `tests/interop/kinds` writes, and the defaults of their kinds.

/// HorizontalPodAutoscalers of `autoscaling/v1`.
pub mod autoscaler_conversion;
/// Defaults that Kubernetes sets in code.
pub mod defaults;
/// Events of `events.k8s.io/v1`.
pub mod event_conversion;
/// `kinds.json` as typed tables.
pub mod load;
/// Merge strategies and keys, for strategic merge patches.
pub mod merge_schema;
/// Values that a kube-apiserver stored as protobuf.
pub mod stored_protobuf;
/// Kinds that are another view of what is stored.
pub mod stored_version;

mod cluster_defaults;
mod workload_defaults;

pub use defaults::set_defaults;
pub use load::{BuiltinKinds, builtin_kinds};
pub use merge_schema::merge_schema;

#[cfg(test)]
mod tests;
