//! Certificate and CA files of the listener: loaded at startup, and reloaded without dropping connections.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::UnixTime;
use rustls::server::ResolvesServerCert;

use super::published_certificates::PublishedCertificates;
use super::{ClientTrust, ClusterTrust, ServingMaterial, ServingSettings, ServingSnapshot, tls_parameters};
use crate::process::{
    Drain, FileWatcher, OnFailure, Problem, Problems, Published, Publisher, ReloadReporter, ShutdownPhase,
};
use crate::tls::certificate_in_use::CertificateInUse;
use crate::tls::key_pair::PairFiles;

/// How often an in-memory certificate is checked for renewal.
const CHECK_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// The certificate and CA files of the listener, each with its last valid content.
pub struct ServingFiles {
    settings: ServingSettings,
    follower: FileWatcher,
    /// CAs from a cluster, used where no file is given; followed.
    cluster_trust: Option<Published<ClusterTrust>>,
    material: ServingMaterial,
    /// The certificates that are served if the settings name none.
    fallback: Option<Arc<dyn ResolvesServerCert>>,
    generation: u64,
}

/// Publishers of the listener's TLS state.
pub struct ServingPublishers {
    /// The rustls configuration, for the acceptor.
    pub config: Publisher<Arc<ServerConfig>>,
    /// The trusted CAs, for the authenticators.
    pub trust: Publisher<ClientTrust>,
    /// The certificates in use, for metrics and status page.
    pub in_use: Publisher<Vec<CertificateInUse>>,
}

/// Readers of the listener's TLS state.
#[derive(Clone)]
pub struct ServingReaders {
    /// The rustls configuration, for the acceptor.
    pub config: Published<Arc<ServerConfig>>,
    /// The trusted CAs, for the authenticators.
    pub trust: Published<ClientTrust>,
    /// The certificates in use, for metrics and status page.
    pub in_use: Published<Vec<CertificateInUse>>,
}

impl ServingFiles {
    /// Loads all files of `settings` and checks all settings; returns all errors at once. Generated certificates
    /// are added later.
    pub fn open(settings: ServingSettings) -> Result<ServingFiles, Problems> {
        ServingFiles::open_for_check(settings, UnixTime::now()).0
    }

    /// As [`ServingFiles::open`], with the certificates that are not valid `now`, also when files are invalid.
    pub fn open_for_check(settings: ServingSettings, now: UnixTime) -> (Result<ServingFiles, Problems>, Vec<Problem>) {
        // Before the first load, so that no change is missed.
        let follower = FileWatcher::new(settings.files());
        let (parts, mut problems) =
            ServingMaterial::read(&settings, &ClusterTrust::default(), &ServingMaterial::default(), now);
        let untimely = parts.untimely(now);
        // Checked here, so that an invalid cipher suite is reported together with a missing file.
        problems.0.extend(tls_parameters::TlsParameters::parse(&settings).err().into_iter().flat_map(|it| it.0));
        (
            problems.into_result(ServingFiles {
                settings,
                follower,
                cluster_trust: None,
                material: parts,
                fallback: None,
                generation: 1,
            }),
            untimely,
        )
    }

    /// Adds generated files for settings that name none: the default serving pair, the client CA.
    pub fn add_generated(&mut self, pair: Option<PairFiles>, client_ca: Option<PathBuf>) -> Result<(), Problems> {
        let own = ServingSettings { pair, client_ca, ..ServingSettings::default() };
        self.follower.add(own.files());
        let (parts, problems) =
            ServingMaterial::read(&own, &ClusterTrust::default(), &ServingMaterial::default(), UnixTime::now());
        problems.into_result(())?;
        self.material.pairs.extend(parts.pairs);
        self.material.client = parts.client.or(self.material.client.take());
        self.settings.pair = own.pair.or(self.settings.pair.take());
        self.settings.client_ca = own.client_ca.or(self.settings.client_ca.take());
        Ok(self.material.check_front_proxy_separation(&self.settings)?)
    }

    /// Serves the certificates of `config` as long as the settings name none.
    pub fn serve_certificates_of(&mut self, config: Published<Arc<ServerConfig>>) {
        self.fallback = Some(Arc::new(PublishedCertificates(config)));
    }

    /// Trusts the CAs of a cluster where no file is given, and follows their changes.
    pub fn follow_cluster_trust(&mut self, announced: Published<ClusterTrust>) -> Result<(), Problems> {
        self.material.apply_cluster_trust(&self.settings, &announced.load());
        self.cluster_trust = Some(announced);
        Ok(self.material.check_front_proxy_separation(&self.settings)?)
    }

    /// Publishes the loaded certificates and CAs.
    pub fn publish(&self) -> Result<(ServingPublishers, ServingReaders), Problems> {
        let loaded = ServingSnapshot::build(&self.settings, &self.material, self.fallback.as_ref(), self.generation)?;
        self.material.warn_of_certificates(UnixTime::now());
        let (config, config_reader) = Published::new(loaded.config);
        let (trust, trust_reader) = Published::new(loaded.trust);
        let (in_use, in_use_reader) = Published::new(loaded.in_use);
        let readers = ServingReaders { config: config_reader, trust: trust_reader, in_use: in_use_reader };
        Ok((ServingPublishers { config, trust, in_use }, readers))
    }

    /// Reloads changed files until the process ends, and publishes the result.
    ///
    /// Parts are independent: while a pair is half-written, the last valid pair is served, but a bundle that
    /// shrank at the same time takes effect.
    pub async fn follow(mut self, publishers: ServingPublishers, on_failure: OnFailure, mut drain: Drain) {
        const UNUSABLE: &str = "certificate or CA bundle changed and is invalid; the last good one stays in use";
        let mut reporter = ReloadReporter::new(UNUSABLE, on_failure);
        loop {
            let announced = async {
                match &mut self.cluster_trust {
                    Some(announced) => announced.changed().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.follower.changed() => {}
                () = announced => {}
                () = tokio::time::sleep(CHECK_INTERVAL), if !self.settings.in_memory_names.is_empty() => {}
                () = drain.wait_for(ShutdownPhase::Ending) => return,
            }
            self.reload(&publishers, &mut reporter);
        }
    }

    fn reload(&mut self, publishers: &ServingPublishers, reporter: &mut ReloadReporter) {
        let announced = self.cluster_trust.as_ref().map(Published::get).unwrap_or_default();
        let (parts, mut problems) = ServingMaterial::read(&self.settings, &announced, &self.material, UnixTime::now());
        if !parts.is_same(&self.material) {
            let generation = self.generation + u64::from(!parts.has_same_trust(&self.material));
            match ServingSnapshot::build(&self.settings, &parts, self.fallback.as_ref(), generation) {
                Ok(loaded) => {
                    (self.material, self.generation) = (parts, generation);
                    self.material.warn_of_certificates(UnixTime::now());
                    self.publish_update(loaded, publishers);
                }
                Err(more) => problems.0.extend(more.0),
            }
        }
        let was_failing = reporter.is_failing();
        if reporter.report(problems.into_result(())).is_some() && was_failing {
            tracing::info!("all certificates and CA bundles are valid again");
        }
    }

    fn publish_update(&self, loaded: ServingSnapshot, publishers: &ServingPublishers) {
        let before = publishers.in_use.reader().get();
        // Trust first: a client that is offered a new CA in the handshake must find it trusted.
        publishers.trust.publish(loaded.trust.into());
        publishers.config.publish(Arc::new(loaded.config));
        let in_use = Arc::new(loaded.in_use);
        publishers.in_use.publish(in_use.clone());
        for now in in_use.iter().filter(|now| !before.contains(now)) {
            tracing::info!(
                file = %now.file.display(),
                flag = now.flag,
                subject = now.subject,
                until = crate::tls::certificate::format_date(now.not_after),
                "certificates reloaded"
            );
        }
    }
}
