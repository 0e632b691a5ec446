//! APIServices and Services from files and from a cluster, leader election, and the delegate.

pub(crate) mod cluster_registry;
pub(crate) mod delegate;
pub(crate) mod delegate_health;
pub(crate) mod leader_election;
pub(crate) mod registry_directory;
