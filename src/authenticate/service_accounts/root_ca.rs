//! `--root-ca-file`: the authorities by which Pods verify this server.

use std::path::Path;

use crate::process::{Problem, Problems, WatchedFileContent};
use crate::tls::Bundle;

/// Certificates of authorities, as PEM.
#[derive(Debug)]
pub struct RootCa(String);

impl RootCa {
    /// The file's content.
    pub fn pem(&self) -> &str {
        &self.0
    }
}

impl WatchedFileContent for RootCa {
    const UNUSABLE: &'static str = "root CA file changed and is invalid; the last good certificates stay in use";

    fn read(path: &Path) -> Result<RootCa, Problems> {
        let read = std::fs::read_to_string(path);
        let pem = read.map_err(|error| Problem::new(path.display(), format!("cannot be read: {error}")))?;
        if pem.contains("PRIVATE KEY-----") {
            let why = "contains a private key, and every namespace would get it; name a file with certificates alone";
            return Err(Problem::new(path.display(), why).into());
        }
        Bundle::from_pem(pem.as_bytes(), path.display())?;
        Ok(RootCa(pem))
    }

    fn log_reload(&self, path: &Path) {
        tracing::info!(file = %path.display(), "root CA file read again");
    }
}
