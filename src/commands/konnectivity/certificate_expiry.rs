//! The certificates of a Konnectivity server or agent: for its status, metrics and warnings.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::admin::expiring_certificates;
use crate::observe::metrics::CertificateMetrics;
use crate::process::{Drain, Published, ShutdownPhase};
use crate::tls::{CertificateInUse, CertificateReport, ExpiryLog};

/// How often the time to expiry is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// The certificates in use, by those who read their files.
#[derive(Clone, Default)]
pub(super) struct CertificateInventory(Vec<Published<Vec<CertificateInUse>>>);

impl CertificateInventory {
    pub(super) fn new(published: impl IntoIterator<Item = Published<Vec<CertificateInUse>>>) -> CertificateInventory {
        CertificateInventory(published.into_iter().collect())
    }

    /// Each file once, sorted.
    fn in_use(&self) -> BTreeMap<String, CertificateInUse> {
        let all = self.0.iter().flat_map(|published| published.get().to_vec());
        all.map(|in_use| (in_use.file.display().to_string(), in_use)).collect()
    }

    /// The certificates for a status report.
    pub(super) fn reports(&self) -> Vec<CertificateReport> {
        self.in_use().values().map(CertificateReport::from).collect()
    }

    /// Records expiry in `metrics`, and logs certificates that expire soon, until the process ends.
    pub(super) async fn watch_expiry(mut self, metrics: Arc<CertificateMetrics>, mut drain: Drain) {
        let mut log = ExpiryLog::default();
        loop {
            self.record(&mut log, &metrics, SystemTime::now());
            tokio::select! {
                () = self.changed() => {}
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
                () = drain.wait_for(ShutdownPhase::Ending) => return,
            }
        }
    }

    fn record(&self, log: &mut ExpiryLog, metrics: &CertificateMetrics, now: SystemTime) {
        let in_use = self.in_use();
        let reports: Vec<_> = in_use.values().map(CertificateReport::from).collect();
        metrics.replace_all(in_use.into_iter().map(|(file, in_use)| (file, in_use.not_after.as_secs())));
        log.check(expiring_certificates(&reports, now), metrics);
    }

    async fn changed(&mut self) {
        let changes = self.0.iter_mut().map(|published| Box::pin(published.changed()));
        match changes.len() {
            0 => std::future::pending().await,
            _ => drop(futures_util::future::select_all(changes).await),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::UnixTime;

    use super::*;

    fn in_use(file: &str, not_after: u64) -> CertificateInUse {
        CertificateInUse {
            file: file.into(),
            flag: "--cluster-cert",
            subject: format!("CN={file}"),
            names: Vec::new(),
            not_before: UnixTime::since_unix_epoch(Duration::ZERO),
            not_after: UnixTime::since_unix_epoch(Duration::from_secs(not_after)),
        }
    }

    #[tokio::test]
    async fn certificate_inventory_lists_each_file_once_and_follows_changes() {
        let (publisher, agents) = Published::new(vec![in_use("b.crt", 1_000), in_use("a.crt", 2_000)]);
        let frontend = Published::fixed(vec![in_use("b.crt", 1_000)]);
        let mut inventory = CertificateInventory::new([agents, frontend]);
        let files = |inventory: &CertificateInventory| -> Vec<String> {
            inventory.reports().into_iter().map(|report| format!("{} {}", report.file, report.not_after)).collect()
        };
        assert_eq!(files(&inventory), ["a.crt 1970-01-01T00:33:20Z", "b.crt 1970-01-01T00:16:40Z"]);
        publisher.publish(Arc::new(vec![in_use("a.crt", 4_000)]));
        inventory.changed().await;
        assert_eq!(files(&inventory), ["a.crt 1970-01-01T01:06:40Z", "b.crt 1970-01-01T00:16:40Z"]);
    }

    #[test]
    fn certificate_expiry_of_files_in_use_is_in_the_metrics() {
        let (publisher, agents) = Published::new(vec![in_use("a.crt", 1_000_000), in_use("b.crt", 100)]);
        let inventory = CertificateInventory::new([agents]);
        let (metrics, mut log) = (CertificateMetrics::default(), ExpiryLog::default());
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(990_000);
        inventory.record(&mut log, &metrics, now);
        assert_eq!(["0d", "1d", "7d"].map(|within| metrics.expiring(within)), [Some(1), Some(2), Some(2)]);
        publisher.publish(Arc::new(vec![in_use("a.crt", 1_000_000)]));
        inventory.record(&mut log, &metrics, now);
        assert_eq!(["0d", "1d"].map(|within| metrics.expiring(within)), [Some(0), Some(1)]);
        assert_eq!((metrics.expiry("a.crt"), metrics.expiry("b.crt")), (Some(1_000_000), None));
    }
}
