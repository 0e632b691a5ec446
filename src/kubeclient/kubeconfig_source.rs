//! Source of a client's configuration: a kubeconfig, or the service account of the pod.

use std::fmt;
use std::path::{Path, PathBuf};

use super::kubeconfig::{ConfigOverrides, Kubeconfig};
use crate::process::Problems;

/// Source of a kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubeconfigSource {
    /// A kubeconfig.
    File(PathBuf),
    /// The kubeconfig of an event sink such as an audit webhook. It may use `http`: its responses decide nothing.
    EventSink(PathBuf),
    /// The kubeconfig files of a local user, with the overrides of the command line. It may use `http`. The first file
    /// with an entry takes precedence.
    LocalUser(Vec<PathBuf>, Box<ConfigOverrides>),
    /// The environment and service account of this pod (`rest.InClusterConfig` of client-go).
    InCluster,
}

/// Flag value that stands for [`KubeconfigSource::InCluster`], instead of the path of a kubeconfig.
pub const IN_CLUSTER: &str = "in-cluster";

/// Mount path of the service account in a pod.
pub(super) const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

impl KubeconfigSource {
    /// Reads the kubeconfig. The error holds all problems.
    pub fn load(&self) -> Result<Kubeconfig, Problems> {
        match self {
            KubeconfigSource::File(path) => Kubeconfig::load(path),
            KubeconfigSource::EventSink(path) => Kubeconfig::load_event_sink(path),
            KubeconfigSource::LocalUser(paths, chosen) => Kubeconfig::load_for_local_user(paths, chosen),
            KubeconfigSource::InCluster => {
                Kubeconfig::in_cluster(Path::new(SERVICE_ACCOUNT), &KubeconfigSource::environment_variable)
            }
        }
    }

    /// The files of the source, without those that they refer to.
    pub fn files(&self) -> &[PathBuf] {
        match self {
            KubeconfigSource::File(path) | KubeconfigSource::EventSink(path) => std::slice::from_ref(path),
            KubeconfigSource::LocalUser(paths, _) => paths,
            KubeconfigSource::InCluster => &[],
        }
    }

    /// An environment variable; empty if it is not set.
    pub(super) fn environment_variable(name: &str) -> String {
        std::env::var(name).unwrap_or_default()
    }
}

impl KubeconfigSource {
    /// The source that a flag names: `in-cluster`, or the path of a kubeconfig.
    pub fn from_flag(path: PathBuf) -> KubeconfigSource {
        if path == Path::new(IN_CLUSTER) { KubeconfigSource::InCluster } else { KubeconfigSource::File(path) }
    }
}

impl From<PathBuf> for KubeconfigSource {
    fn from(path: PathBuf) -> KubeconfigSource {
        KubeconfigSource::File(path)
    }
}

impl fmt::Display for KubeconfigSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KubeconfigSource::File(path) | KubeconfigSource::EventSink(path) => write!(f, "{}", path.display()),
            KubeconfigSource::LocalUser(paths, _) => {
                let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
                f.write_str(&paths.join(":"))
            }
            KubeconfigSource::InCluster => f.write_str("in-cluster configuration"),
        }
    }
}
