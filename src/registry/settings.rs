//! Settings of the registry.

use std::path::PathBuf;
use std::time::Duration;

/// Location of the registry directory, what its manifests may contain, and defaults.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Value of `--registry-dir`.
    pub dir: PathBuf,
    /// Where the last valid state of `dir` is saved. It is read at a start at which `dir` has errors. `None` with
    /// `--registry-strict`.
    pub last_good: Option<PathBuf>,
    /// Value of `--allow-url-backends`.
    pub allow_url_backends: bool,
    /// `--request-timeout`, for an APIService without the annotation.
    pub default_request_timeout: Duration,
    /// Half of `--max-requests-inflight`, for an APIService without the annotation; 0 for no limit.
    pub default_max_inflight: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            dir: PathBuf::new(),
            last_good: None,
            allow_url_backends: false,
            default_request_timeout: Duration::from_secs(60),
            default_max_inflight: 200,
        }
    }
}
