//! Kubeconfigs with one cluster and one user that name certificate files.

use std::path::{Path, PathBuf};

use super::certificates::Identity;

/// Writes `directory/name.kubeconfig` and returns its path.
pub(crate) fn write(directory: &Path, name: &str, server: &str, authority: &Path, user: Option<&Identity>) -> PathBuf {
    let user = match user {
        Some(identity) => serde_json::json!({
            "client-certificate": identity.certificate,
            "client-key": identity.key,
        }),
        None => serde_json::json!({}),
    };
    // JSON is YAML.
    let document = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "environment", "cluster": {"server": server, "certificate-authority": authority}}],
        "users": [{"name": "user", "user": user}],
        "contexts": [{"name": "environment", "context": {"cluster": "environment", "user": "user"}}],
        "current-context": "environment",
    });
    std::fs::create_dir_all(directory).unwrap();
    let path = directory.join(format!("{name}.kubeconfig"));
    std::fs::write(&path, serde_json::to_vec_pretty(&document).unwrap()).unwrap();
    path
}
