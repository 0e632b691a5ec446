//! Starts the embedded API server: opens the store, creates the first objects.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::commands::threads::spawn_thread;
use crate::config::GatewayConfig;
use crate::process::{Drain, Problem, ShutdownPhase};
use crate::rest::{ApiServer, create_initial_objects};
use crate::storage::{LocalStore, LocalStoreSettings};
use crate::watch_cache::{Collections, HistoryLimits};

/// Interval of dropping history that is too old.
const TRIM_INTERVAL: Duration = Duration::from_secs(60);

/// Opens the store of `--embedded-api` and starts its thread; none without the flag. When this returns, the system
/// namespaces exist.
///
/// # Errors
/// The store cannot be opened or written.
pub(super) fn start_embedded_api(
    config: &GatewayConfig,
    drain: &Drain,
) -> Result<Option<(ApiServer, JoinHandle<()>)>, Problem> {
    let Some(embedded) = &config.embedded_api else { return Ok(None) };
    let mut settings = LocalStoreSettings::new(&embedded.store_file);
    settings.synchronizes = embedded.synchronizes;
    let clock = settings.clock.clone();
    let refuse = |why: &dyn std::fmt::Display| Problem::new("--embedded-api", why);
    if let Some(directory) = embedded.store_file.parent() {
        std::fs::create_dir_all(directory).map_err(|error| Problem::new(directory.display(), error))?;
    }
    let store = LocalStore::open(settings).map_err(|error| refuse(&error))?;
    let collections = Collections::new(Arc::new(store), HistoryLimits::default(), clock);
    let api = ApiServer::new(collections.clone(), embedded.settings.clone(), drain.clone());
    let (sender, created) = channel();
    let (first, mut drain) = (api.clone(), drain.clone());
    let thread = spawn_thread("embedded-api", async move || {
        let _ = sender.send(create_initial_objects(&first).await);
        let mut interval = tokio::time::interval(TRIM_INTERVAL);
        loop {
            tokio::select! {
                _ = interval.tick() => collections.trim(),
                () = drain.wait_for(ShutdownPhase::Draining) => return,
            }
        }
    })?;
    let created = created.recv().map_err(|_| refuse(&"its thread ended early"))?;
    created.map_err(|status| refuse(&status.message))?;
    Ok(Some((api, thread)))
}
