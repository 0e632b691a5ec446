//! Configuration: flags, environment and file, parsed into the settings of each module; all errors at once.
//!
//! Flags are described once ([`Flag`]), collected from the command line, the environment and a file
//! ([`RawFlags`]), and parsed into the configuration of one command.

mod arguments;
pub mod control_planes;
pub mod egress;
mod environment_proxies;
mod file;
mod flag;
pub mod gateway;
mod host_port;
pub mod konnectivity;
mod kubeconfig_flags;
mod observability;
mod observability_flags;
mod parser;
pub mod proxy;
mod quickstart;
mod raw;
pub mod sidecar;
pub mod socks5;
mod value;

pub use arguments::{Arguments, CommandFlags};
pub use file::API_VERSION;
pub use flag::{Flag, FlagGroup, FlagKind};
pub(crate) use gateway::default_data_dir;
pub use gateway::{GatewayCommand, GatewayConfig};
pub use observability::{LogOnly, ObservabilityConfig};
pub use parser::Diagnostics;
pub use proxy::{ProxyCommand, ProxyConfig};
pub use quickstart::{QuickstartCommand, QuickstartConfig};
pub use raw::RawFlags;
pub use sidecar::SidecarCommand;
pub use socks5::{Socks5Command, Socks5Config};

/// Looks up an environment variable of this process; an empty one counts as unset.
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
