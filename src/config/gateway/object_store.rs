//! Where the objects of the embedded API server are stored: a file, or etcd (`--etcd-*`,
//! `k8s.io/apiserver/pkg/server/options/etcd.go`).

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Uri;
use http::uri::Scheme;
use store::Prefix;

use crate::config::parser::FlagParser;
use crate::tls::PairFiles;

/// Names of the flags of etcd.
pub(super) const ETCD_FLAGS: [&str; 7] = [
    "etcd-servers",
    "etcd-prefix",
    "etcd-cafile",
    "etcd-certfile",
    "etcd-keyfile",
    "etcd-compaction-interval",
    "etcd-access",
];

/// Names of the flags of a store in a file.
const FILE_FLAGS: [&str; 2] = ["store-file", "unsafe-no-fsync"];

/// Where objects are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectStoreConfig {
    /// In a file of this machine.
    File {
        /// The file.
        file: PathBuf,
        /// Whether a write is acknowledged only after it is on the disk.
        synchronizes: bool,
    },
    /// In etcd.
    Etcd(EtcdConfig),
}

/// An etcd, and how it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdConfig {
    /// Addresses of the members (`https://10.0.0.1:2379`), of which there is at least one.
    pub servers: Vec<Uri>,
    /// What all keys begin with, without a slash at the end (`/registry`).
    pub prefix: String,
    /// Certificates of the authorities of the members; none for those of the system.
    pub ca_file: Option<PathBuf>,
    /// Client certificate.
    pub client_certificate: Option<PairFiles>,
    /// Interval at which the history is discarded; none leaves that to others.
    pub compaction_interval: Option<Duration>,
    /// Whether nothing is written.
    pub is_read_only: bool,
}

impl ObjectStoreConfig {
    /// The etcd, if objects are in one.
    pub fn etcd(&self) -> Option<&EtcdConfig> {
        match self {
            ObjectStoreConfig::File { .. } => None,
            ObjectStoreConfig::Etcd(etcd) => Some(etcd),
        }
    }

    /// The file, if objects are in one.
    pub fn file(&self) -> Option<&Path> {
        match self {
            ObjectStoreConfig::File { file, .. } => Some(file),
            ObjectStoreConfig::Etcd(_) => None,
        }
    }
}

/// Reads the flags: etcd if servers are given, else a file.
pub(super) fn object_store(parser: &mut FlagParser<'_>, data_dir: &Path) -> ObjectStoreConfig {
    let [servers_flag, prefix, ca_file, certificate, key, compaction_interval, access] = ETCD_FLAGS;
    let file = parser.path("store-file").unwrap_or_else(|| data_dir.join("store.db"));
    let synchronizes = !parser.switch("unsafe-no-fsync");
    let mut servers = Vec::new();
    for server in parser.list(servers_flag) {
        match parse_server(&server) {
            Ok(address) => servers.push(address),
            Err(why) => parser.add_problem(servers_flag, format_args!("{server:?}: {why}")),
        }
    }
    let prefix = format!("/{}", parser.text(prefix).trim_matches('/'));
    let ca_file = parser.path(ca_file);
    let client_certificate = parser.key_pair_files(certificate, key);
    let interval = Some(parser.duration(compaction_interval)).filter(|interval| !interval.is_zero());
    let is_read_only = parser.choice(access) == "read-only";
    if !parser.is_given(servers_flag) {
        for flag in ETCD_FLAGS {
            if parser.is_given(flag) {
                parser.add_problem(flag, format_args!("needs --{servers_flag}"));
            }
        }
        return ObjectStoreConfig::File { file, synchronizes };
    }
    for flag in FILE_FLAGS {
        if parser.is_given(flag) {
            parser.add_problem(flag, format_args!("cannot be given together with --{servers_flag}"));
        }
    }
    if prefix == "/" {
        parser.add_problem("etcd-prefix", "must not be empty: the keys of others would be read");
    } else if let Err(why) = Prefix::parse(&format!("{prefix}/")) {
        parser.add_problem("etcd-prefix", why);
    }
    if servers.is_empty() {
        parser.add_problem(servers_flag, "must name at least one server");
    }
    let has_tls = servers.iter().any(|server| server.scheme() == Some(&Scheme::HTTPS));
    for flag in [ca_file.is_some().then_some("etcd-cafile"), client_certificate.is_some().then_some(certificate)] {
        if let Some(flag) = flag.filter(|_| !has_tls) {
            parser.add_warning(flag, format_args!("not used: no URL of --{servers_flag} begins with https://"));
        }
    }
    let compaction_interval = interval.filter(|_| !is_read_only);
    ObjectStoreConfig::Etcd(EtcdConfig {
        servers,
        prefix,
        ca_file,
        client_certificate,
        compaction_interval,
        is_read_only,
    })
}

/// Reads the URL of a member.
///
/// # Errors
/// What is wrong with it.
fn parse_server(text: &str) -> Result<Uri, &'static str> {
    const WANTED: &str = "must be the URL of a member of etcd, as https://10.0.0.1:2379";
    let address: Uri = text.parse().map_err(|_| WANTED)?;
    let has_scheme = [Scheme::HTTP, Scheme::HTTPS].iter().any(|scheme| address.scheme() == Some(scheme));
    let has_port = address.port_u16().is_some_and(|port| port > 0);
    if !has_scheme || !has_port || address.path() != "/" || address.query().is_some() {
        return Err(WANTED);
    }
    match address.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        true => Err("user names in a URL are not supported: use --etcd-certfile"),
        false => Ok(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_urls_with_ports() {
        for good in ["http://127.0.0.1:2379", "https://etcd-0.example:2379/", "https://[::1]:1"] {
            assert!(parse_server(good).is_ok(), "{good}");
        }
        let bad = [
            "",
            "127.0.0.1:2379",
            "http://127.0.0.1",
            "unix:///etcd",
            "http://a:0",
            "http://a:1/path",
            "http://a:1/?q",
            "http://user:secret@a:1",
        ];
        for bad in bad {
            assert!(parse_server(bad).is_err(), "{bad}");
        }
    }
}
