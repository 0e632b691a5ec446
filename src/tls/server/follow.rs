//! Certificates and bundles that change on disk, without a restart and without dropping a connection.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::UnixTime;

use super::{InUse, Loaded, Parts, ServingSettings, Trust};
use crate::process::{Drain, Follower, Phase, Problems, Published, Publisher};
use crate::tls::OnFailure;

/// The writing sides of what serving reads.
pub struct ServingPublishers {
    /// For the acceptor.
    pub config: Publisher<Arc<ServerConfig>>,
    /// For the authenticators.
    pub trust: Publisher<Trust>,
    /// For the operator.
    pub in_use: Publisher<Vec<InUse>>,
}

/// The reading sides.
#[derive(Clone)]
pub struct ServingReaders {
    /// For the acceptor.
    pub config: Published<Arc<ServerConfig>>,
    /// For the authenticators.
    pub trust: Published<Trust>,
    /// For the operator.
    pub in_use: Published<Vec<InUse>>,
}

impl ServingPublishers {
    /// Publishes what [`super::load`] gave.
    pub fn new(loaded: &Loaded) -> (ServingPublishers, ServingReaders) {
        let (config, config_reader) = Published::new(loaded.config.clone());
        let (trust, trust_reader) = Published::new(loaded.trust.as_ref().clone());
        let (in_use, in_use_reader) = Published::new(loaded.in_use.as_ref().clone());
        let readers = ServingReaders { config: config_reader, trust: trust_reader, in_use: in_use_reader };
        (ServingPublishers { config, trust, in_use }, readers)
    }
}

/// Follows every file of `settings` until the process ends, and publishes what became of them.
///
/// Each part stands for itself: while a pair is half written, the last good pair serves on, but a bundle that
/// shrank at the same time takes effect.
pub async fn follow(
    settings: ServingSettings,
    loaded: Loaded,
    publishers: ServingPublishers,
    on_failure: OnFailure,
    mut drain: Drain,
) {
    let mut follower = Follower::new(settings.files());
    let mut state = State { settings, parts: loaded.parts, generation: loaded.trust.generation, told: None };
    // The files may have changed between the load at start and the line above.
    state.look(&publishers, &on_failure);
    loop {
        tokio::select! {
            () = follower.changed() => state.look(&publishers, &on_failure),
            () = drain.reached(Phase::Ending) => return,
        }
    }
}

struct State {
    settings: ServingSettings,
    parts: Parts,
    generation: u64,
    /// What was last complained about.
    told: Option<Problems>,
}

impl State {
    fn look(&mut self, publishers: &ServingPublishers, on_failure: &OnFailure) {
        let (parts, mut problems) = Parts::read(&self.settings, &self.parts, UnixTime::now());
        if !parts.same(&self.parts) {
            let generation = self.generation + u64::from(!parts.same_trust(&self.parts));
            match Loaded::of(&self.settings, parts, generation) {
                Ok(loaded) => self.publish(loaded, publishers),
                Err(more) => problems.0.extend(more.0),
            }
        }
        if problems.0.is_empty() {
            if self.told.take().is_some() {
                tracing::info!("all certificates and bundles are good again");
                on_failure(&problems);
            }
        } else if self.told.as_ref() != Some(&problems) {
            for problem in &problems.0 {
                tracing::error!(%problem, "a certificate or bundle changed and is not usable; the last good one stays");
            }
            on_failure(&problems);
            self.told = Some(problems);
        }
    }

    fn publish(&mut self, loaded: Loaded, publishers: &ServingPublishers) {
        let before = self.parts.in_use(&self.settings);
        for now in loaded.in_use.iter().filter(|now| !before.contains(now)) {
            tracing::info!(
                file = %now.file.display(),
                flag = now.purpose,
                subject = now.subject,
                until = crate::tls::certificate::date(now.not_after),
                "certificates read again"
            );
        }
        // The judges first: a client that is told of a new authority must find it believed.
        self.generation = loaded.trust.generation;
        publishers.trust.publish(loaded.trust);
        publishers.config.publish(Arc::new(loaded.config));
        publishers.in_use.publish(loaded.in_use);
        self.parts = loaded.parts;
    }
}
