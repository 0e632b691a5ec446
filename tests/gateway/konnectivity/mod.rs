//! The processes `konnectivity-server` and `konnectivity-agent`: hostile peers, how agents find servers, and their
//! status.

pub(crate) mod agent_connections;
pub(crate) mod agent_errors;
pub(crate) mod agent_tokens;
#[path = "../../../src/konnectivity/blackhole.rs"]
pub(crate) mod blackhole;
pub(crate) mod certificate_expiry;
pub(crate) mod drain;
pub(crate) mod fixture;
pub(crate) mod floods;
pub(crate) mod frontend_socket;
pub(crate) mod idle_frontends;
#[path = "../../interop/environment/ports.rs"]
pub(crate) mod ports;
pub(crate) mod rotation;
pub(crate) mod server_discovery;
pub(crate) mod status;
pub(crate) mod status_page;
pub(crate) mod systemd;
