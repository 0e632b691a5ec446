//! The data about built-in kinds, and the cases that unit tests compare with, are what the real code says today.

use std::path::Path;
use std::process::Command;

use super::TestFn;
use crate::environment::{Cluster, TestEnvironment, peer};

pub(super) const TESTS: &[(&str, TestFn)] = &[
    ("checked-in data: built-in kinds are those of kube-apiserver and its Go types", |environment| {
        let cluster = Cluster::start(&environment.scratch("kinds"));
        let kubeconfig = cluster.admin_kubeconfig.display().to_string();
        assert_success("kinds", &["--check", "--kubeconfig", &kubeconfig, "--root", ROOT]);
    }),
    ("checked-in data: answers about custom resources are those of apiextensions-apiserver", |_: &TestEnvironment| {
        assert_success("oracle", &["files", "-check", "-root", ROOT]);
    }),
];

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Runs a peer that compares files with what it would write.
fn assert_success(name: &str, arguments: &[&str]) {
    let output = Command::new(peer(name)).args(arguments).current_dir(Path::new(ROOT)).output().unwrap();
    let (printed, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{printed}{errors}");
}
