//! Configuration: flags, environment and file, parsed into the settings of each module; all errors at once.
//!
//! Flags are described once ([`Flag`]), collected from the command line, the environment and a file
//! ([`Written`]), and parsed into the configuration of one command.

mod arguments;
pub mod egress;
mod file;
mod flag;
pub mod gateway;
mod listening;
mod person;
pub mod proxy;
mod quickstart;
mod reading;
mod seen;
pub mod sidecar;
pub mod socks5;
mod value;
mod written;

pub use arguments::{Arguments, Role};
pub use file::API_VERSION;
pub use flag::{Flag, Group, Kind};
pub use gateway::{Gateway, GatewayConfig};
pub use proxy::{Proxy, ProxyConfig};
pub use quickstart::{Quickstart, QuickstartConfig};
pub use reading::Mistakes;
pub use seen::{LogOnly, Seen};
pub use sidecar::Sidecar;
pub use socks5::{Socks5, Socks5Config};
pub use written::Written;

/// Looks up an environment variable of this process; an empty one counts as unset.
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
