//! The few settings of `narthex quickstart`.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::arguments::{Arguments, Role};
use super::flag::{Flag, Group};
use super::gateway::{data_dir, flags, port};
use super::reading::{Mistakes, Reading};
use super::seen;
use crate::observe::log;

/// The quickstart: gateway and example API in one process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quickstart;

impl Role for Quickstart {
    const FLAGS: &'static [&'static Group] = flags::QUICKSTART;
    const LATER: &'static [Flag] = &[];
    const KIND: &'static str = "";
}

/// Configuration of the quickstart.
#[derive(Clone, Debug)]
pub struct QuickstartConfig {
    /// Directory for certificates and the kubeconfig.
    pub data_dir: PathBuf,
    /// Port of the gateway; 0 takes a free one.
    pub secure_port: u16,
    /// Address of the admin listener; none disables it.
    pub admin_address: Option<SocketAddr>,
    /// The log.
    pub log: log::Settings,
}

impl Arguments<Quickstart> {
    /// Reads command line and environment.
    pub fn read(&self, environment: &dyn Fn(&str) -> Option<String>) -> (QuickstartConfig, Mistakes) {
        let mut reading =
            Reading::new(&self.written, Quickstart::FLAGS, Quickstart::LATER, Quickstart::KIND, environment);
        let config = QuickstartConfig {
            data_dir: data_dir(&mut reading),
            secure_port: port(&mut reading),
            admin_address: seen::admin_address(&mut reading),
            log: seen::log_settings(&mut reading),
        };
        (config, reading.end())
    }
}
