//! `--egress-selector-config-file`: kube-apiserver's `EgressSelectorConfiguration`, decoded and validated as there
//! (k8s.io/apiserver, `pkg/server/egressselector/config.go`), and `EgressConfiguration` of narthex.dev, which has more
//! settings.

mod egress_configuration;
mod egress_selector_configuration;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::Path;

use kubeapi::yaml::read_yaml;

use crate::egress::EgressSelectionSettings;
use crate::process::{Problem, Problems};

/// Maximum size of the file.
const LARGEST: u64 = 4 << 20;

const READ_ERROR: &str = "failed to read egress selector config";

/// Reads the egress selections of a file. Files that it names are not read, but kube-apiserver's kind must name
/// existing files.
///
/// # Errors
/// All errors: of kube-apiserver's kind as one problem with its message; of ours, one problem per field.
pub fn load(path: &Path) -> Result<Vec<EgressSelectionSettings>, Problems> {
    let unreadable = |why: &dyn std::fmt::Display| {
        let path = path.display();
        let path = path.to_string();
        Problem::new(
            &path,
            format_args!("{READ_ERROR}: unable to read egress selector configuration from {path:?} [{why}]"),
        )
    };
    let go = |error: std::io::Error| {
        // Go's message, word for word.
        let why = match error.kind() {
            std::io::ErrorKind::NotFound => "no such file or directory".to_owned(),
            std::io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
            _ => error.to_string(),
        };
        Problems::from(unreadable(&format_args!("open {}: {why}", path.display())))
    };
    let found = fs::metadata(path).map_err(go)?;
    if found.len() > LARGEST {
        return Err(unreadable(&format_args!("larger than {} MiB", LARGEST >> 20)).into());
    }
    let bytes = fs::read(path).map_err(go)?;
    let text = String::from_utf8(bytes).map_err(|_| unreadable(&"not UTF-8"))?;
    parse(path, &text)
}

/// Parses the text of such a file. Problems name `path`, and paths in the file are relative to it.
///
/// # Errors
/// As [`load`].
pub fn parse(path: &Path, text: &str) -> Result<Vec<EgressSelectionSettings>, Problems> {
    let location = path.display().to_string();
    let tree = read_yaml(text).map_err(|error| Problem::new(&location, format_args!("{READ_ERROR}: {error}")))?;
    let word = |name: &str| tree.value.get(name).and_then(serde_json::Value::as_str).unwrap_or_default();
    if word("kind") == egress_configuration::KIND || word("apiVersion").starts_with("narthex.dev/") {
        return egress_configuration::read(path, &location, text);
    }
    egress_selector_configuration::read(path.parent().unwrap_or(Path::new("")), text, &tree)
        .map_err(|why| Problem::new(&location, why).into())
}
