//! A listener whose clients are verified in the handshake, with one key pair and one CA bundle.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::NoClientAuth;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::SingleCertAndKey;

use super::client_cert_verifier::TrustVerifier;
use super::tls_parameters::TlsParameters;
use super::{ServingSettings, load_ca_bundle, warn_of_others, warn_unusable_serving_certificate};
use crate::process::{Drain, FileWatcher, OnFailure, Problems, Published, Publisher, ReloadReporter};
use crate::tls::certificate_in_use::CertificateInUse;
use crate::tls::key_pair::{KeyPair, PairFiles};

/// Settings of a listener that verifies its clients in the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MutualTlsSettings {
    /// The serving certificate and its key.
    pub pair: PairFiles,
    /// The CA bundle of clients; without it, clients need no certificate.
    pub client_ca: Option<PathBuf>,
    /// The flags of the serving certificate and of the CA bundle.
    pub flags: [&'static str; 2],
    /// The one protocol that is offered.
    pub alpn: &'static [u8],
    /// `--tls-min-version`; empty for the default.
    pub min_version: String,
    /// `--cipher-suites`; empty for the default.
    pub cipher_suites: Vec<String>,
}

/// The files of such a listener, with their last valid content.
pub struct MutualTlsFiles {
    settings: MutualTlsSettings,
    watcher: FileWatcher,
    publisher: Publisher<Arc<ServerConfig>>,
    in_use: Publisher<Vec<CertificateInUse>>,
}

/// Readers of the state of such a listener.
pub struct MutualTlsReaders {
    /// The rustls configuration, for the acceptor.
    pub config: Published<Arc<ServerConfig>>,
    /// The certificates in use, for metrics and status.
    pub in_use: Published<Vec<CertificateInUse>>,
}

impl MutualTlsFiles {
    /// Loads the files; [`MutualTlsFiles::follow`] keeps the published configuration up to date.
    ///
    /// # Errors
    /// All problems of the settings and files.
    pub fn open(settings: MutualTlsSettings) -> Result<(MutualTlsFiles, MutualTlsReaders), Problems> {
        // Before the first load, so that no change is missed.
        let paths = [&settings.pair.certificate, &settings.pair.key].into_iter().chain(&settings.client_ca);
        let watcher = FileWatcher::new(paths);
        let (first, certificates) = load(&settings)?;
        let (publisher, config) = Published::new(first);
        let (in_use_publisher, in_use) = Published::new(certificates);
        let files = MutualTlsFiles { settings, watcher, publisher, in_use: in_use_publisher };
        Ok((files, MutualTlsReaders { config, in_use }))
    }

    /// Publishes a new configuration whenever the files changed and are valid, until the process ends.
    pub async fn follow(mut self, on_failure: OnFailure, mut drain: Drain) {
        const UNUSABLE: &str = "certificate or CA bundle changed and is invalid; the last good one stays in use";
        let mut reporter = ReloadReporter::new(UNUSABLE, on_failure);
        while self.watcher.changed_before_end(&mut drain).await {
            if let Some((config, certificates)) = reporter.report(load(&self.settings)) {
                self.publisher.publish(Arc::new(config));
                self.in_use.publish(Arc::new(certificates));
                tracing::info!(files = self.settings.pair.location(), "serving certificate reloaded");
            }
        }
    }
}

fn load(settings: &MutualTlsSettings) -> Result<(Arc<ServerConfig>, Vec<CertificateInUse>), Problems> {
    let mut problems = Problems::default();
    let pair = problems.collect(KeyPair::load_serving(&settings.pair));
    let bundle = problems.collect(settings.client_ca.as_ref().map(load_ca_bundle).transpose());
    let parameters = problems.collect(TlsParameters::parse(&ServingSettings {
        min_version: settings.min_version.clone(),
        cipher_suites: settings.cipher_suites.clone(),
        ..ServingSettings::default()
    }));
    let (Some(pair), Some(bundle), Some(parameters)) = (pair, bundle, parameters) else { return Err(problems) };
    warn_unusable_serving_certificate(&pair);
    let [certificate_flag, ca_flag] = settings.flags;
    let mut in_use = vec![CertificateInUse::from_pair(&settings.pair, certificate_flag, &pair)];
    if let (Some(file), Some(bundle)) = (&settings.client_ca, &bundle) {
        in_use.extend(CertificateInUse::from_bundle(file, ca_flag, bundle));
    }
    let verifier: Arc<dyn ClientCertVerifier> = match bundle {
        None => Arc::new(NoClientAuth),
        Some(bundle) => {
            warn_of_others(&bundle);
            Arc::new(TrustVerifier::new(bundle))
        }
    };
    let resolver = Arc::new(SingleCertAndKey::from(pair.certified().as_ref().clone()));
    let mut config = parameters.into_config(verifier, resolver)?;
    config.alpn_protocols = vec![settings.alpn.to_vec()];
    Ok((Arc::new(config), in_use))
}
