//! The store of the embedded API server: in a file, or in etcd.

use std::sync::Arc;
use std::time::Duration;

use etcd_store::{EtcdStore, EtcdStoreSettings};
use store::{LocalStore, LocalStoreSettings, OpenError, Prefix, Store};

use super::control::ControlTasks;
use super::etcd_connections::{EtcdDialer, EtcdTlsFiles};
use super::settings::EgressSettings;
use crate::config::GatewayConfig;
use crate::config::gateway::{EmbeddedApiConfig, EtcdConfig, ObjectStoreConfig};
use crate::observe::health::HealthCheck;
use crate::process::{HelpTopic, Problem};

/// An open store. Cheap to clone.
#[derive(Clone)]
pub(super) enum ObjectStore {
    /// In a file.
    File(LocalStore),
    /// In etcd.
    Etcd {
        store: EtcdStore,
        /// Addresses of the members, for people.
        servers: Arc<str>,
    },
}

/// Opens the store in a file, if the embedded API server has one.
///
/// # Errors
/// The store is in use, damaged, or cannot be read or written.
pub(super) fn open_file_store(config: &GatewayConfig) -> Result<Option<ObjectStore>, Problem> {
    let Some(ObjectStoreConfig::File { file, synchronizes }) =
        config.embedded_api.as_ref().map(|embedded| &embedded.store)
    else {
        return Ok(None);
    };
    if let Some(directory) = file.parent() {
        std::fs::create_dir_all(directory).map_err(|error| Problem::new(directory.display(), error))?;
    }
    let settings = LocalStoreSettings { synchronizes: *synchronizes, ..LocalStoreSettings::new(file) };
    let store = LocalStore::open(settings).map_err(|error| store_problem(&error))?;
    Ok(Some(ObjectStore::File(store)))
}

/// The problem of a store that cannot be opened.
pub(super) fn store_problem(error: &OpenError) -> Problem {
    let problem = Problem::new("--embedded-api", error);
    if error.is_damage() { problem.with_help(HelpTopic::StoreDamaged) } else { problem }
}

/// The store of an embedded API server: `open`, or that of its configuration.
///
/// # Errors
/// The store cannot be opened.
pub(super) fn open_store(
    config: &GatewayConfig,
    embedded: &EmbeddedApiConfig,
    open: Option<ObjectStore>,
    egress: &EgressSettings,
    tasks: &mut ControlTasks,
) -> Result<ObjectStore, Problem> {
    match (open, embedded.store.etcd()) {
        (Some(store), _) => Ok(store),
        (None, Some(etcd)) => open_etcd(etcd, egress, tasks),
        (None, None) => open_file_store(config)?.ok_or_else(|| Problem::new("--embedded-api", "no store")),
    }
}

/// Connects to etcd.
///
/// # Errors
/// No member answers, or a file of TLS is invalid.
fn open_etcd(config: &EtcdConfig, egress: &EgressSettings, tasks: &mut ControlTasks) -> Result<ObjectStore, Problem> {
    let problem = |why: &dyn std::fmt::Display| Problem::new("--etcd-servers", why);
    let tls = tasks.follow("etcd", EtcdTlsFiles::open(config)?);
    let root = Prefix::parse(&format!("{}/", config.prefix)).map_err(|error| Problem::new("--etcd-prefix", error))?;
    let egress = egress.clone();
    let settings = EtcdStoreSettings {
        dialer: Box::new(move || Box::new(EtcdDialer { dialer: egress.dialer(), tls })),
        endpoints: config.servers.clone(),
        root,
        compaction_interval: config.compaction_interval,
        is_read_only: config.is_read_only,
    };
    let servers: Vec<String> = config.servers.iter().map(ToString::to_string).collect();
    let servers: Arc<str> = servers.join(",").into();
    tracing::info!(%servers, "connecting to etcd");
    let store = EtcdStore::open(settings).map_err(|error| problem(&error))?;
    Ok(ObjectStore::Etcd { store, servers })
}

impl ObjectStore {
    /// The contract that all stores have.
    pub(super) fn contract(&self) -> Arc<dyn Store> {
        match self {
            ObjectStore::File(store) => Arc::new(store.clone()),
            ObjectStore::Etcd { store, .. } => Arc::new(store.clone()),
        }
    }

    /// What reads its state.
    pub(super) fn monitor(&self) -> ObjectStoreMonitor {
        match self {
            ObjectStore::File(store) => ObjectStoreMonitor::File(store.monitor().clone()),
            ObjectStore::Etcd { store, servers } => {
                ObjectStoreMonitor::Etcd { store: store.clone(), servers: servers.clone() }
            }
        }
    }

    /// Ends a store in a file, so that the next start does not read its log. Others need no end.
    pub(super) async fn close(self, patience: Duration) {
        if let ObjectStore::File(store) = self {
            let _ = tokio::time::timeout(patience, store.close()).await;
        }
    }
}

/// Reads the state of a store, for status, metrics and health checks.
#[derive(Clone)]
pub(super) enum ObjectStoreMonitor {
    File(store::StoreMonitor),
    Etcd { store: EtcdStore, servers: Arc<str> },
}

impl ObjectStoreMonitor {
    /// The file, or the addresses of etcd.
    pub(super) fn location(&self) -> String {
        match self {
            ObjectStoreMonitor::File(monitor) => monitor.file().display().to_string(),
            ObjectStoreMonitor::Etcd { servers, .. } => servers.to_string(),
        }
    }

    /// Size of the file with its log, or of a member's database, in bytes.
    pub(super) fn size(&self) -> u64 {
        match self {
            ObjectStoreMonitor::File(monitor) => monitor.size(),
            ObjectStoreMonitor::Etcd { store, .. } => store.database_bytes(),
        }
    }

    /// Revision of the last change.
    pub(super) fn revision(&self) -> u64 {
        match self {
            ObjectStoreMonitor::File(monitor) => monitor.revision(),
            ObjectStoreMonitor::Etcd { store, .. } => store.revision(),
        }
    }

    /// Revision up to which the history was discarded.
    pub(super) fn compacted(&self) -> u64 {
        match self {
            ObjectStoreMonitor::File(monitor) => monitor.compacted(),
            ObjectStoreMonitor::Etcd { store, .. } => store.compacted(),
        }
    }

    /// Why writes do not succeed, as far as it is known.
    pub(super) fn refusal(&self) -> Option<String> {
        match self {
            ObjectStoreMonitor::File(monitor) => monitor.refusal().map(|error| error.to_string()),
            ObjectStoreMonitor::Etcd { store, .. } => store.interruption(),
        }
    }

    /// The check of the store. The name is kube-apiserver's (`k8s.io/apiserver/pkg/server/options/etcd.go`).
    pub(super) fn check(self) -> HealthCheck {
        HealthCheck::with_note("etcd", move || {
            let is_closed = match &self {
                ObjectStoreMonitor::File(monitor) => monitor.is_closed(),
                ObjectStoreMonitor::Etcd { store, .. } => store.is_closed(),
            };
            match (&self, is_closed, self.refusal()) {
                (_, true, _) => Err("the store has ended".to_owned()),
                (ObjectStoreMonitor::Etcd { .. }, false, Some(why)) => Err(format!("etcd: {why}")),
                // Reads and watches go on.
                (ObjectStoreMonitor::File(_), false, Some(_)) => Ok(Some("the last write was refused".into())),
                (_, false, None) => Ok(None),
            }
        })
    }
}
