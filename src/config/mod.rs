//! What the operator wrote, turned into what each module needs; all mistakes at once.
//!
//! Flags are described once ([`Flag`]), found on the command line, in the environment and in a file
//! ([`Written`]), and read into the settings of one role, after which this module is not needed again.

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

/// The environment of this process, as [`Arguments`] asks it; an empty variable is none.
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
