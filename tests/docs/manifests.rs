//! The manifests and configuration files of `deploy/` that no tool renders. Those of Helm are tested with Helm, in the
//! interop suite.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::hardening::assert_hardened;
use crate::install_root::InstallRoot;
use crate::page::repository;

/// Manifests with pods, and their containers.
const WORKLOADS: [(&str, &[&str]); 4] = [
    ("deploy/konnectivity/agent.yaml", &["konnectivity-agent"]),
    ("deploy/konnectivity/server.yaml", &["konnectivity-server"]),
    ("deploy/kustomize/deployment.yaml", &["narthex"]),
    ("deploy/sidecar/deployment.yaml", &["narthex", "library"]),
];

/// Containers that run as root.
const ROOT_USERS: [&str; 1] = ["konnectivity-server"];

fn read(path: &str) -> String {
    std::fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The YAML files below `directory`, without those of Helm charts.
fn yaml_files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files = Vec::new();
    for path in entries.filter(|path| !path.ends_with("helm")) {
        if path.is_dir() {
            files.extend(yaml_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            files.push(path);
        }
    }
    files
}

#[test]
fn hardening_of_each_container_in_manifests() {
    let mut found = BTreeSet::new();
    for file in yaml_files(&repository().join("deploy")) {
        let text = std::fs::read_to_string(&file).unwrap();
        let path = file.strip_prefix(repository()).unwrap().to_str().unwrap();
        let root_users = if path.starts_with("deploy/konnectivity/server") { &ROOT_USERS[..] } else { &[] };
        let containers = assert_hardened(path, &text, root_users);
        if !containers.is_empty() {
            found.insert((path.to_owned(), containers));
        }
    }
    let expected = WORKLOADS.map(|(path, containers)| {
        (path.to_owned(), containers.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
    });
    assert_eq!(found, BTreeSet::from(expected));
}

#[test]
fn gateway_configurations_have_no_mistakes() {
    let directory = tempfile::tempdir().unwrap();
    let root = InstallRoot::create(directory.path());
    std::fs::write(root.path("registry/wardle.yaml"), read("deploy/registry/wardle.yaml")).unwrap();
    for file in ["authentication.yaml", "policy.yaml"] {
        std::fs::write(root.path(file), read(&format!("deploy/standalone/{file}"))).unwrap();
    }
    let mut checked = BTreeSet::new();
    for file in yaml_files(&repository().join("deploy")) {
        let text = std::fs::read_to_string(&file).unwrap();
        if text.lines().any(|line| line == "kind: GatewayConfiguration") {
            let path = file.strip_prefix(repository()).unwrap().to_str().unwrap();
            root.check_gateway(path, &text);
            checked.insert(path.to_owned());
        }
    }
    let expected = ["kustomize", "standalone", "systemd"].map(|name| format!("deploy/{name}/gateway.yaml"));
    assert_eq!(checked, BTreeSet::from(expected));
}

/// As `systemctl` would say it. Where there is no systemd, nothing is tested; in CI that fails.
#[test]
fn systemd_units_are_valid() {
    let directory = tempfile::tempdir().unwrap();
    let mut units = Vec::new();
    for folder in ["deploy/systemd", "deploy/konnectivity"] {
        for entry in std::fs::read_dir(repository().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "service" || extension == "socket") {
                let unit = directory.path().join(path.file_name().unwrap());
                let program = format!("ExecStart={} ", env!("CARGO_BIN_EXE_narthex"));
                let text = std::fs::read_to_string(&path).unwrap().replace("ExecStart=narthex ", &program);
                std::fs::write(&unit, text).unwrap();
                units.push(unit);
            }
        }
    }
    assert_eq!(units.len(), 4, "{units:?}");
    match Command::new("systemd-analyze").args(["verify", "--man=no"]).args(&units).output() {
        Ok(output) => {
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && errors.is_empty(), "{errors}");
        }
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "systemd-analyze (Debian: systemd): {error}");
            println!("systemd-analyze: {error}: not tested");
        }
    }
}
