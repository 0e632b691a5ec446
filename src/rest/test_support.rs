//! An API server above a store in memory, for tests.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use store::watch_cache::{Collections, HistoryLimits};
use store::{Expect, Key, MemoryStore, Mutation, Prefix, Store as _};

use super::admission_plugins::DisabledPlugins;
use super::api_server::{ApiServer, ApiServerSettings, DEFAULT_KEY_ROOT};
use super::service_settings::ServiceSettings;
use crate::kinds::ValidationSettings;
use crate::process::Drain;
use crate::resources::catalog::ResourceCatalog;

/// Key of a CRD.
pub(crate) const CRD: &str = "/registry/apiextensions.k8s.io/customresourcedefinitions/foos.example.com";

/// A server above a store with these records.
pub(crate) async fn server(records: &[(&str, Value)]) -> (MemoryStore, ApiServer) {
    server_with(records, |_| {}).await
}

/// A server above a store with these records, with changed settings.
pub(crate) async fn server_with(
    records: &[(&str, Value)],
    change: impl Fn(&mut ApiServerSettings),
) -> (MemoryStore, ApiServer) {
    let store = MemoryStore::new();
    for (key, value) in records {
        let key = Key::parse(key).unwrap();
        store.commit(&key, Expect::Absent, Mutation::put(value.to_string())).await.unwrap();
    }
    let collections = Collections::new(Arc::new(store.clone()), HistoryLimits::default(), Arc::new(|| 0));
    let mut settings = ApiServerSettings {
        key_root: DEFAULT_KEY_ROOT.into(),
        shares_store: false,
        is_read_only: false,
        event_ttl: Duration::from_secs(3_600),
        min_request_timeout: Duration::from_secs(1_800),
        catalog: Arc::new(ResourceCatalog::default()),
        request_timeout: Duration::from_secs(60),
        validation: ValidationSettings::default(),
        has_collector: false,
        warns_unenforced: true,
        // No controller makes accounts.
        disabled_plugins: DisabledPlugins::parse(&["ServiceAccount".to_owned()]).unwrap(),
        services: ServiceSettings::default(),
    };
    change(&mut settings);
    let (drainer, drain) = Drain::new();
    // Its end would be a drain.
    std::mem::forget(drainer);
    let api = ApiServer::new(collections, settings, drain);
    let crds = api.builtin_collection("apiextensions.k8s.io", "customresourcedefinitions").unwrap();
    crds.ensure_loaded().await.unwrap();
    (store, api)
}

/// An object that a finalizer keeps.
pub(crate) fn object(name: &str) -> Value {
    json!({"apiVersion": "v1", "metadata": {"name": name, "uid": name, "finalizers": ["example.com/hold"]}})
}

/// The keys below a prefix.
pub(crate) async fn keys(store: &MemoryStore, text: &str) -> Vec<String> {
    let loaded = store.load(&Prefix::parse(text).unwrap()).await.unwrap();
    loaded.records.iter().map(|record| record.key.to_string()).collect()
}
