//! Settings of the embedded API server (`--embedded-api` and its flags).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::config::parser::FlagParser;
use crate::resources::runtime_config::RuntimeConfig;
use crate::rest::ApiServerSettings;

/// The embedded API server and its store.
#[derive(Clone, Debug)]
pub struct EmbeddedApiConfig {
    /// The file of the store.
    pub store_file: PathBuf,
    /// Whether a write is acknowledged only after it is on the disk.
    pub synchronizes: bool,
    /// Settings of the embedded API server.
    pub settings: ApiServerSettings,
}

/// Reads the flags; none without `--embedded-api`.
pub(in crate::config) fn embedded_api(
    parser: &mut FlagParser<'_>,
    data_dir: &Path,
    request_timeout: Duration,
) -> Option<EmbeddedApiConfig> {
    const NAME: &str = "embedded-api";
    let store_file = parser.path("store-file").unwrap_or_else(|| data_dir.join("store.db"));
    let synchronizes = !parser.switch("unsafe-no-fsync");
    let event_ttl = parser.positive_duration("event-ttl");
    let min_request_timeout = Duration::from_secs(parser.count("min-request-timeout", u64::from(u32::MAX)));
    let runtime_config = parser.list("runtime-config");
    if !parser.switch(NAME) {
        for flag in ["store-file", "runtime-config", "event-ttl", "unsafe-no-fsync"] {
            if parser.is_given(flag) {
                parser.add_problem(flag, "needs --embedded-api");
            }
        }
        return None;
    }
    for flag in ["kubeconfig", "delegate-kubeconfig", "serve-delegation"] {
        if parser.is_given(flag) {
            parser.add_problem(NAME, format_args!("cannot be given together with --{flag}"));
        }
    }
    let runtime_config = RuntimeConfig::parse(&runtime_config).unwrap_or_else(|why| {
        parser.add_problem("runtime-config", why);
        RuntimeConfig::default()
    });
    let catalog = Arc::new(runtime_config.catalog());
    let settings = ApiServerSettings { event_ttl, min_request_timeout, catalog, request_timeout };
    Some(EmbeddedApiConfig { store_file, synchronizes, settings })
}
