//! The processes `konnectivity-server` and `konnectivity-agent`: hostile peers, and how agents find servers.

pub(crate) mod agent_connections;
pub(crate) mod fixture;
pub(crate) mod floods;
pub(crate) mod idle_frontends;
pub(crate) mod server_discovery;
