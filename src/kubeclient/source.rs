//! Source of a client's configuration: a kubeconfig, or the service account of the pod.

use std::fmt;
use std::path::{Path, PathBuf};

use super::kubeconfig::{Chosen, Kubeconfig};
use crate::process::Problems;

/// Source of a kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A kubeconfig.
    File(PathBuf),
    /// The kubeconfig of an event sink such as an audit webhook. It may use `http`: its responses decide nothing.
    Collector(PathBuf),
    /// The kubeconfig files of a local user, with the overrides of the command line. It may use `http`. The first file
    /// with an entry takes precedence.
    Person(Vec<PathBuf>, Box<Chosen>),
    /// The environment and service account of this pod (`rest.InClusterConfig` of client-go).
    InCluster,
}

/// Flag value that stands for [`Source::InCluster`], instead of the path of a kubeconfig.
pub const IN_CLUSTER: &str = "in-cluster";

/// Mount path of the service account in a pod.
pub(super) const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

impl Source {
    /// Reads the kubeconfig. The error holds all problems.
    pub fn load(&self) -> Result<Kubeconfig, Problems> {
        match self {
            Source::File(path) => Kubeconfig::load(path),
            Source::Collector(path) => Kubeconfig::of_collector(path),
            Source::Person(paths, chosen) => Kubeconfig::of_person(paths, chosen),
            Source::InCluster => Kubeconfig::in_cluster(Path::new(SERVICE_ACCOUNT), &Source::variable),
        }
    }

    /// The files of the source, without those that they refer to.
    pub fn files(&self) -> &[PathBuf] {
        match self {
            Source::File(path) | Source::Collector(path) => std::slice::from_ref(path),
            Source::Person(paths, _) => paths,
            Source::InCluster => &[],
        }
    }

    /// An environment variable; empty if it is not set.
    pub(super) fn variable(name: &str) -> String {
        std::env::var(name).unwrap_or_default()
    }
}

impl Source {
    /// The source that a flag names: `in-cluster`, or the path of a kubeconfig.
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
