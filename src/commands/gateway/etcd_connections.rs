//! Connections of the store to etcd: over the egress route `etcd`, with certificates that are followed.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use etcd_store::{ByteStream, Dial, LocalFuture};
use http::Uri;
use http::uri::Scheme;
use rustls::ClientConfig;

use crate::config::gateway::EtcdConfig;
use crate::egress::{Destination, Dialer, ETCD, Host};
use crate::process::{Drain, FileWatcher, OnFailure, Problem, Problems, Published, Publisher, ReloadReporter};
use crate::tls::client::{ClientSettings, build_config, server_name};
use crate::tls::{Bundle, ClientTlsStream, KeyPair};

/// Time for connecting; the store limits the whole, with TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The files of `--etcd-cafile`, `--etcd-certfile` and `--etcd-keyfile`.
pub(super) struct EtcdTlsFiles {
    config: EtcdConfig,
    watcher: FileWatcher,
}

/// TLS of connections to etcd, with the last valid content of the files; none if no member has TLS.
pub(super) type EtcdTls = Option<Arc<ClientConfig>>;

impl EtcdTlsFiles {
    /// Reads the files.
    ///
    /// # Errors
    /// A file that cannot be read, or is no certificate or key.
    pub(super) fn open(config: &EtcdConfig) -> Result<(EtcdTlsFiles, EtcdTls), Problem> {
        let pair = config.client_certificate.iter().flat_map(|pair| [&pair.certificate, &pair.key]);
        // Before the first read, so that no change is missed.
        let watcher = FileWatcher::new(pair.chain(&config.ca_file));
        Ok((EtcdTlsFiles { config: config.clone(), watcher }, read_tls(config)?))
    }

    /// Publishes the content whenever the files changed and are valid, until the process ends. Connections that are open
    /// go on.
    pub(super) async fn follow(mut self, publisher: Publisher<EtcdTls>, on_failure: OnFailure, mut drain: Drain) {
        const UNUSABLE: &str = "a file of --etcd-cafile, --etcd-certfile or --etcd-keyfile changed and is invalid; the last \
                                good content stays in use";
        let mut reporter = ReloadReporter::new(UNUSABLE, on_failure);
        while self.watcher.changed_before_end(&mut drain).await {
            if let Some(tls) = reporter.report(read_tls(&self.config).map_err(Problems::from)) {
                publisher.publish(Arc::new(tls));
                tracing::info!("certificates for etcd reloaded");
            }
        }
    }
}

fn read_tls(config: &EtcdConfig) -> Result<EtcdTls, Problem> {
    if config.servers.iter().all(|server| server.scheme() != Some(&Scheme::HTTPS)) {
        return Ok(None);
    }
    let read = |path: &std::path::PathBuf| {
        let pem = std::fs::read(path);
        let pem = pem.map_err(|error| Problem::new(path.display(), format!("cannot be read: {error}")))?;
        Bundle::from_pem(&pem, path.display())
    };
    let ca_bundle = config.ca_file.as_ref().map(read).transpose()?;
    let identity = config.client_certificate.as_ref().map(KeyPair::load).transpose()?.map(Arc::new);
    let settings = ClientSettings { ca_bundle, insecure_skip_verify: false, identity, alpn: vec![b"h2".to_vec()] };
    build_config(&settings).map(Some)
}

/// Opens connections on the thread of the store.
pub(super) struct EtcdDialer {
    pub(super) dialer: Dialer,
    pub(super) tls: Published<EtcdTls>,
}

impl Dial for EtcdDialer {
    fn dial(&self, endpoint: &Uri) -> LocalFuture<io::Result<Box<dyn ByteStream>>> {
        let (dialer, tls, endpoint) = (self.dialer.clone(), self.tls.get(), endpoint.clone());
        Box::pin(async move {
            let is_plaintext = endpoint.scheme() != Some(&Scheme::HTTPS);
            let bracketed = endpoint.host().unwrap_or_default();
            let host = bracketed.trim_start_matches('[').trim_end_matches(']');
            let destination = Destination {
                host: host.parse().map_or_else(|_| Host::Name(host.to_owned()), Host::Ip),
                port: endpoint.port_u16().unwrap_or_default(),
            };
            let route = dialer.route(ETCD, is_plaintext);
            let opened = dialer.open(&route, &destination, CONNECT_TIMEOUT).await;
            let stream = opened.map_err(|error| io::Error::other(error.cause))?.stream;
            let config = match (is_plaintext, tls.as_ref()) {
                (true, _) => return Ok(Box::new(stream) as Box<dyn ByteStream>),
                (false, None) => return Err(io::Error::other("no TLS is configured")),
                (false, Some(config)) => config.clone(),
            };
            let name = server_name(host).map_err(|problem| io::Error::other(problem.to_string()))?;
            let stream = ClientTlsStream::connect(config, name, stream).await?;
            Ok(Box::new(stream) as Box<dyn ByteStream>)
        })
    }
}
