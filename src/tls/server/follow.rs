//! Certificate and CA files of the listener: loaded at startup, and reloaded without dropping connections.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::UnixTime;

use super::{Announced, InUse, Loaded, Parts, ServingSettings, Trust, protocol};
use crate::process::{Drain, Follower, OnFailure, Phase, Problem, Problems, Published, Publisher};
use crate::tls::key_pair::PairFiles;

/// How often an in-memory certificate is checked for renewal.
const ROUND: Duration = Duration::from_secs(60 * 60);

/// The certificate and CA files of the listener, each with its last valid content.
pub struct Files {
    settings: ServingSettings,
    follower: Follower,
    /// CAs from a cluster, used where no file is given; followed.
    announced: Option<Published<Announced>>,
    parts: Parts,
    generation: u64,
    /// The problems reported last.
    told: Option<Problems>,
}

/// Publishers of the listener's TLS state.
pub struct ServingPublishers {
    /// The rustls configuration, for the acceptor.
    pub config: Publisher<Arc<ServerConfig>>,
    /// The trusted CAs, for the authenticators.
    pub trust: Publisher<Trust>,
    /// The certificates in use, for metrics and status page.
    pub in_use: Publisher<Vec<InUse>>,
}

/// Readers of the listener's TLS state.
#[derive(Clone)]
pub struct ServingReaders {
    /// The rustls configuration, for the acceptor.
    pub config: Published<Arc<ServerConfig>>,
    /// The trusted CAs, for the authenticators.
    pub trust: Published<Trust>,
    /// The certificates in use, for metrics and status page.
    pub in_use: Published<Vec<InUse>>,
}

impl Files {
    /// Loads all files of `settings` and checks all settings; returns all errors at once. Generated certificates
    /// are added later.
    pub fn open(settings: ServingSettings) -> Result<Files, Problems> {
        Files::open_for_check(settings, UnixTime::now()).0
    }

    /// As [`Files::open`], with the certificates that are not valid `now`, also when files are invalid.
    pub fn open_for_check(settings: ServingSettings, now: UnixTime) -> (Result<Files, Problems>, Vec<Problem>) {
        // Before the first load, so that no change is missed.
        let follower = Follower::new(settings.files());
        let (parts, mut problems) = Parts::read(&settings, &Announced::default(), &Parts::default(), now);
        let untimely = parts.untimely(now);
        // Checked here, so that an invalid cipher suite is reported together with a missing file.
        problems.0.extend(protocol::Protocol::of(&settings).err().into_iter().flat_map(|it| it.0));
        (problems.or(Files { settings, follower, announced: None, parts, generation: 1, told: None }), untimely)
    }

    /// Adds generated files for settings that name none: the default serving pair, the client CA.
    pub fn add(&mut self, pair: Option<PairFiles>, client_ca: Option<PathBuf>) -> Result<(), Problems> {
        let own = ServingSettings { pair, client_ca, ..ServingSettings::default() };
        self.follower.add(own.files());
        let (parts, problems) = Parts::read(&own, &Announced::default(), &Parts::default(), UnixTime::now());
        problems.or(())?;
        self.parts.pairs.extend(parts.pairs);
        self.parts.client = parts.client.or(self.parts.client.take());
        self.settings.pair = own.pair.or(self.settings.pair.take());
        self.settings.client_ca = own.client_ca.or(self.settings.client_ca.take());
        Ok(self.parts.told_apart(&self.settings)?)
    }

    /// Trusts the CAs of a cluster where no file is given, and follows their changes.
    pub fn announce(&mut self, announced: Published<Announced>) -> Result<(), Problems> {
        self.parts.announced(&self.settings, &announced.load());
        self.announced = Some(announced);
        Ok(self.parts.told_apart(&self.settings)?)
    }

    /// Publishes the loaded certificates and CAs.
    pub fn publish(&self) -> Result<(ServingPublishers, ServingReaders), Problems> {
        let loaded = Loaded::of(&self.settings, &self.parts, self.generation)?;
        self.parts.warn_of_early(UnixTime::now());
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
        loop {
            let announced = async {
                match &mut self.announced {
                    Some(announced) => announced.changed().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.follower.changed() => {}
                () = announced => {}
                () = tokio::time::sleep(ROUND), if !self.settings.unwritten.is_empty() => {}
                () = drain.reached(Phase::Ending) => return,
            }
            self.look(&publishers, &on_failure);
        }
    }

    fn look(&mut self, publishers: &ServingPublishers, on_failure: &OnFailure) {
        let announced = self.announced.as_ref().map(Published::get).unwrap_or_default();
        let (parts, mut problems) = Parts::read(&self.settings, &announced, &self.parts, UnixTime::now());
        if !parts.same(&self.parts) {
            let generation = self.generation + u64::from(!parts.same_trust(&self.parts));
            match Loaded::of(&self.settings, &parts, generation) {
                Ok(loaded) => {
                    (self.parts, self.generation) = (parts, generation);
                    self.parts.warn_of_early(UnixTime::now());
                    self.renew(loaded, publishers);
                }
                Err(more) => problems.0.extend(more.0),
            }
        }
        if problems.0.is_empty() {
            if self.told.take().is_some() {
                tracing::info!("all certificates and CA bundles are valid again");
                on_failure(&problems);
            }
        } else if self.told.as_ref() != Some(&problems) {
            for problem in &problems.0 {
                tracing::error!(%problem, "certificate or CA bundle changed and is invalid; the last good one stays in use");
            }
            on_failure(&problems);
            self.told = Some(problems);
        }
    }

    fn renew(&self, loaded: Loaded, publishers: &ServingPublishers) {
        let before = publishers.in_use.reader().load();
        for now in loaded.in_use.iter().filter(|now| !before.contains(now)) {
            tracing::info!(
                file = %now.file.display(),
                flag = now.purpose,
                subject = now.subject,
                until = crate::tls::certificate::date(now.not_after),
                "certificates reloaded"
            );
        }
        // Trust first: a client that is offered a new CA in the handshake must find it trusted.
        publishers.trust.publish(loaded.trust.into());
        publishers.config.publish(Arc::new(loaded.config));
        publishers.in_use.publish(loaded.in_use.into());
    }
}
