//! The API server of a gateway without a store: the objects that it generates itself, in memory.

use std::sync::Arc;
use std::time::Duration;

use store::watch_cache::{Collections, HistoryLimits};
use store::{MemoryStore, monotonic_clock, system_clock};

use crate::commands::gateway::state::DelegateScope;
use crate::config::GatewayConfig;
use crate::kinds::ValidationSettings;
use crate::process::Drain;
use crate::resources::catalog::ResourceCatalog;
use crate::rest::{ApiServer, ApiServerSettings, DEFAULT_KEY_ROOT, DisabledPlugins, ServiceSettings};

/// Number of changes that are kept for watches.
const MAX_CHANGES: usize = 1024;
/// Bounds of the history of each resource, and of all.
const HISTORY_LIMITS: HistoryLimits =
    HistoryLimits { age: Duration::from_secs(300), min_changes: 100, max_changes: MAX_CHANGES, max_bytes: 16 << 20 };
/// Shortest duration of a watch, kube-apiserver's default of `--min-request-timeout`.
const MIN_REQUEST_TIMEOUT: Duration = Duration::from_secs(1800);

/// An API server of the APIServices of the registry, unless the delegate serves them, and with `delegation` of the
/// ConfigMap for backends. It has no objects yet.
pub(super) fn generated_api(config: &GatewayConfig, delegation: bool, drain: &Drain) -> ApiServer {
    // Greater than those of an earlier process: a client that resumes a watch is told to list again, and does not wait.
    let store = MemoryStore::starting_at(system_clock()(), MAX_CHANGES);
    let collections = Collections::new(Arc::new(store), HISTORY_LIMITS, monotonic_clock());
    let settings = ApiServerSettings {
        key_root: DEFAULT_KEY_ROOT.into(),
        shares_store: false,
        is_read_only: false,
        event_ttl: Duration::ZERO,
        min_request_timeout: MIN_REQUEST_TIMEOUT,
        catalog: Arc::new(ResourceCatalog::of_generated(!DelegateScope::new(config).apiservices, delegation)),
        request_timeout: config.forwarding.request_timeout,
        // Clients write nothing here.
        validation: ValidationSettings::default(),
        has_collector: false,
        warns_unenforced: true,
        disabled_plugins: DisabledPlugins::default(),
        services: ServiceSettings::default(),
    };
    ApiServer::new(collections, settings, drain.clone())
}
