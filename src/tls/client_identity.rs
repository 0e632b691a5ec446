//! The client certificate presented to backends, reloaded when its files change.

use std::sync::Arc;

use rustls::pki_types::UnixTime;

use super::key_pair::{KeyPair, PairFiles};
use crate::process::{Drain, FileWatcher, OnFailure, Problem, Problems, Published, Publisher, ReloadReporter};

/// A key pair on disk, with its last valid version.
pub struct ClientIdentity {
    files: PairFiles,
    follower: FileWatcher,
    publisher: Publisher<KeyPair>,
}

impl ClientIdentity {
    /// Loads the pair; [`ClientIdentity::follow`] keeps the published one up to date.
    pub fn load(files: PairFiles) -> Result<(ClientIdentity, Published<KeyPair>), Problem> {
        // Before the first load, so that no change is missed.
        let follower = FileWatcher::new([&files.certificate, &files.key]);
        let pair = KeyPair::load(&files)?;
        warn_of_usage(&pair);
        let (publisher, published) = Published::new(pair);
        Ok((ClientIdentity { files, follower, publisher }, published))
    }

    /// Publishes the pair whenever its files changed and are valid, until the process ends. With a half-written pair
    /// the old one is kept.
    pub async fn follow(mut self, on_failure: OnFailure, mut drain: Drain) {
        const UNUSABLE: &str = "client certificate changed and is invalid; the last good one stays in use";
        let mut reporter = ReloadReporter::new(UNUSABLE, on_failure);
        warn_of_early(&self.publisher.reader().load());
        while self.follower.changed_before_end(&mut drain).await {
            let Some(pair) = reporter.report(KeyPair::load(&self.files).map_err(Problems::from)) else { continue };
            if pair != **self.publisher.reader().load() {
                let pair = Arc::new(pair);
                // Before it is logged: an operator who reads the line may withdraw the trust in the old pair.
                self.publisher.publish(pair.clone());
                tracing::info!(
                    files = pair.location(),
                    subject = pair.info().subject,
                    until = super::certificate::format_date(pair.not_after()),
                    "client certificate reloaded"
                );
                warn_of_usage(&pair);
                warn_of_early(&pair);
            }
        }
    }
}

/// `narthex check` finds it itself, and the end is watched with those of all certificates.
fn warn_of_early(pair: &KeyPair) {
    let facts = pair.info();
    if let Some(why) = facts.early(UnixTime::now()) {
        let (files, subject) = (pair.location(), &facts.subject);
        tracing::warn!(files, subject, "backends will refuse our client certificate: {why}");
    }
}

fn warn_of_usage(pair: &KeyPair) {
    let facts = pair.info();
    let (files, subject) = (pair.location(), &facts.subject);
    if !facts.allows_usage("client authentication") {
        tracing::warn!(
            files,
            subject,
            "backends will refuse our client certificate: it is not for client authentication"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::process::ShutdownPhase;
    use crate::tls::{Authority, CertificateSpec};

    #[tokio::test]
    async fn client_identity_reload_ignores_half_written_pair() {
        let dir = tempfile::tempdir().unwrap();
        let files = PairFiles::new(dir.path().join("proxy.crt"), dir.path().join("proxy.key"));
        let authority = Authority::generate("proxies");
        let issue = || authority.issue(&CertificateSpec::client("proxy", &[]), SystemTime::now()).unwrap();
        let (first, second) = (issue(), issue());
        fs::write(&files.certificate, &first.certificate).unwrap();
        fs::write(&files.key, &first.key).unwrap();
        let (identity, mut published) = ClientIdentity::load(files.clone()).unwrap();
        let (drainer, drain) = Drain::new();
        let (sender, mut failures) = tokio::sync::mpsc::unbounded_channel();
        let on_failure: OnFailure = Box::new(move |problems| sender.send(problems.0.len()).unwrap());
        let following = tokio::spawn(identity.follow(on_failure, drain));
        fs::write(&files.key, &second.key).unwrap();
        let wait = Duration::from_secs(30);
        assert_eq!(tokio::time::timeout(wait, failures.recv()).await.unwrap(), Some(1));
        assert_eq!(published.get().chain()[0], first.der().unwrap());
        fs::write(&files.certificate, &second.certificate).unwrap();
        tokio::time::timeout(wait, published.changed()).await.unwrap();
        assert_eq!(published.get().chain()[0], second.der().unwrap());
        // A reload may have fallen between the two steps of a write and reported one more problem.
        while failures.recv().await != Some(0) {}
        drainer.advance(ShutdownPhase::Ending);
        following.await.unwrap();
    }
}
