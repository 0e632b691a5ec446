//! The few settings of `narthex quickstart`.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::arguments::{Arguments, CommandFlags};
use super::flag::FlagGroup;
use super::gateway::{data_dir, flags, secure_port};
use super::observability;
use super::parser::{Diagnostics, FlagParser};
use crate::observe::log;
use crate::tls::KeyType;

/// The quickstart: a gateway with sample custom resources.
#[derive(Clone, Copy, Debug, Default)]
pub struct QuickstartCommand;

impl CommandFlags for QuickstartCommand {
    const FLAGS: &'static [&'static FlagGroup] = flags::QUICKSTART;
    const KIND: &'static str = "";
}

/// Configuration of the quickstart.
#[derive(Clone, Debug)]
pub struct QuickstartConfig {
    /// Directory for certificates, the kubeconfig and the store.
    pub data_dir: PathBuf,
    /// Type of generated keys.
    pub key_type: KeyType,
    /// Port of the gateway; 0 takes a free one.
    pub secure_port: u16,
    /// Address of the admin listener; none disables it.
    pub admin_address: Option<SocketAddr>,
    /// The log.
    pub log: log::Settings,
}

impl Arguments<QuickstartCommand> {
    /// Reads command line and environment.
    pub fn read(&self, environment: &dyn Fn(&str) -> Option<String>) -> (QuickstartConfig, Diagnostics) {
        let mut parser = FlagParser::new(&self.raw, QuickstartCommand::FLAGS, QuickstartCommand::KIND, environment);
        let config = QuickstartConfig {
            data_dir: data_dir(&mut parser),
            key_type: if parser.choice("key-type") == "rsa" { KeyType::Rsa } else { KeyType::Ecdsa },
            secure_port: secure_port(&mut parser),
            admin_address: observability::admin_address(&mut parser),
            log: observability::log_settings(&mut parser),
        };
        (config, parser.finish())
    }
}
