//! Addresses and ports that Services get.

mod address_range;
mod settings;

pub use self::settings::{ServiceSettings, parse_port_range, parse_service_ranges};
