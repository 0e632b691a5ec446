//! Where a client learns whom to speak to, and as whom.

use std::fmt;
use std::path::{Path, PathBuf};

use super::kubeconfig::{Chosen, Kubeconfig};
use crate::process::Problems;

/// What says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A kubeconfig.
    File(PathBuf),
    /// A kubeconfig of a collector of events, which may be `http`: its answers decide nothing.
    Collector(PathBuf),
    /// The kubeconfig of the person on whose machine we run, which may be `http`, and what of it they chose. Several files
    /// are one: what the first says stands.
    Person(Vec<PathBuf>, Box<Chosen>),
    /// The pod that we run in: variables of its environment, and the files of its service account
    /// (`rest.InClusterConfig` of client-go).
    InCluster,
}

/// What stands instead of a kubeconfig's path for the cluster of the pod that we run in.
pub const IN_CLUSTER: &str = "in-cluster";

/// Where Kubernetes mounts a service account.
pub(super) const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

impl Source {
    /// What it says now; all mistakes at once.
    pub fn load(&self) -> Result<Kubeconfig, Problems> {
        match self {
            Source::File(path) => Kubeconfig::load(path),
            Source::Collector(path) => Kubeconfig::of_collector(path),
            Source::Person(paths, chosen) => Kubeconfig::of_person(paths, chosen),
            Source::InCluster => Kubeconfig::in_cluster(Path::new(SERVICE_ACCOUNT), &Source::variable),
        }
    }

    /// The files that say it, as far as they are known before they are read.
    pub fn files(&self) -> &[PathBuf] {
        match self {
            Source::File(path) | Source::Collector(path) => std::slice::from_ref(path),
            Source::Person(paths, _) => paths,
            Source::InCluster => &[],
        }
    }

    /// A variable of our environment; empty if it is not there.
    pub(super) fn variable(name: &str) -> String {
        std::env::var(name).unwrap_or_default()
    }
}

impl Source {
    /// What a flag names: the word `in-cluster`, or a file.
    pub fn named(path: PathBuf) -> Source {
        if path == Path::new(IN_CLUSTER) { Source::InCluster } else { Source::File(path) }
    }
}

impl From<PathBuf> for Source {
    fn from(path: PathBuf) -> Source {
        Source::File(path)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::File(path) | Source::Collector(path) => write!(f, "{}", path.display()),
            Source::Person(paths, _) => {
                let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
                f.write_str(&paths.join(":"))
            }
            Source::InCluster => f.write_str("in-cluster configuration"),
        }
    }
}
