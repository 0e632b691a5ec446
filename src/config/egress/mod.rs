//! `--egress-selector-config-file`: kube-apiserver's `EgressSelectorConfiguration` as it is taken and refused there
//! (k8s.io/apiserver, `pkg/server/egressselector/config.go`), and our own `EgressConfiguration`, which says more.

mod ours;
mod selector;
mod strict;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::Path;

use crate::egress::SelectionSettings;
use crate::process::{Problem, Problems};
use strict::Tree;

/// More than any such file has.
const LARGEST: u64 = 4 << 20;

const READ: &str = "failed to read egress selector config";

/// Reads the selections that the file describes. The files that it names in turn are not read, but kube-apiserver's
/// own kind must name files that are there.
///
/// # Errors
/// All mistakes: of kube-apiserver's kind in its words, and as one problem; of ours each with its field.
pub fn load(path: &Path) -> Result<Vec<SelectionSettings>, Problems> {
    let unreadable = |why: &dyn std::fmt::Display| {
        let path = path.display();
        let path = path.to_string();
        Problem::new(&path, format_args!("{READ}: unable to read egress selector configuration from {path:?} [{why}]"))
    };
    let go = |error: std::io::Error| {
        // As Go writes it, which people search for.
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

/// Reads the text of such a file; `path` is what problems name and what paths in the file are relative to.
///
/// # Errors
/// As [`load`].
pub fn parse(path: &Path, text: &str) -> Result<Vec<SelectionSettings>, Problems> {
    let place = path.display().to_string();
    let refused = |why: String| Problem::new(&place, format_args!("{READ}: {why}"));
    let tree = Tree::read(text).map_err(refused)?;
    let word = |name: &str| tree.value.get(name).and_then(serde_json::Value::as_str).unwrap_or_default();
    if word("kind") == ours::KIND || word("apiVersion").starts_with("narthex.dev/") {
        return ours::read(path, &place, text);
    }
    selector::read(path.parent().unwrap_or(Path::new("")), text, &tree).map_err(|why| Problem::new(&place, why).into())
}
