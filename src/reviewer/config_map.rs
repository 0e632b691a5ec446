//! The served ConfigMap `kube-system/extension-apiserver-authentication`: CAs and request headers for backends.
//!
//! Built like kube-apiserver's controller (`pkg/controlplane/controller/clusterauthenticationtrust`), with two
//! differences: the only allowed front proxy is this gateway, by its own name; and a CA that is no longer trusted is
//! removed at once.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustls_pki_types::UnixTime;
use serde_json::{Value, json};

use crate::process::{Drain, Phase, Problem, Published, Publisher};
use crate::tls::server::Trust;
use crate::tls::{Bundle, KeyPair, PeerCertificate};

/// The namespace of the ConfigMap.
pub(super) const NAMESPACE: &str = "kube-system";
/// The name of the ConfigMap.
pub(super) const NAME: &str = "extension-apiserver-authentication";

/// The ConfigMap object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigMap {
    /// The resource version; it keeps growing across restarts of the process.
    pub(super) version: u64,
    created: String,
    data: BTreeMap<&'static str, String>,
}

/// Builds the ConfigMap from the gateway's trust and its own certificate.
pub struct Speaker {
    /// The CAs that the gateway trusts.
    pub trust: Published<Trust>,
    /// The gateway's client certificate for backends.
    pub identity: Published<KeyPair>,
    /// The file with the CA of that certificate, if it was generated.
    pub own_authority: Option<PathBuf>,
    /// Whether backends receive the user's UID.
    pub with_uid: bool,
    /// Whether backends get the client CA, to verify client certificates themselves. Not if groups are filtered: a
    /// backend would accept the filtered groups of a client that connects to it directly.
    pub with_clients: bool,
}

impl ConfigMap {
    /// The object as JSON, without `kind` and `apiVersion`, as an item of a list.
    pub(super) fn bare(&self) -> Value {
        json!({
            "metadata": {
                "name": NAME, "namespace": NAMESPACE, "resourceVersion": self.version.to_string(),
                "creationTimestamp": self.created,
            },
            "data": self.data,
        })
    }

    /// The object as JSON.
    pub(super) fn value(&self) -> Value {
        let mut value = self.bare();
        value["kind"] = "ConfigMap".into();
        value["apiVersion"] = "v1".into();
        value
    }
}

impl Speaker {
    /// Builds the initial object.
    ///
    /// # Errors
    /// When no backend could verify the gateway by it.
    pub fn begin(&self, now: SystemTime) -> Result<ConfigMap, Problem> {
        let version = now.duration_since(UNIX_EPOCH).map_or(1, |since| since.as_millis() as u64);
        let created = jiff::Timestamp::try_from(now).unwrap_or_default().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        Ok(ConfigMap { version, created, data: self.data()? })
    }

    /// Publishes a new version whenever the data change, until the process ends.
    pub async fn follow(mut self, publisher: Publisher<ConfigMap>, mut drain: Drain) {
        let current = publisher.reader();
        let mut told = None;
        loop {
            tokio::select! {
                () = self.trust.changed() => {}
                () = self.identity.changed() => {}
                () = drain.reached(Phase::Ending) => return,
            }
            match self.data() {
                Ok(data) => {
                    told = None;
                    let before = current.get();
                    if before.data != data {
                        tracing::info!("served ConfigMap extension-apiserver-authentication updated");
                        let created = before.created.clone();
                        publisher.publish(Arc::new(ConfigMap { version: before.version + 1, created, data }));
                    }
                }
                Err(problem) if told.as_ref() != Some(&problem) => {
                    tracing::error!(%problem, "served ConfigMap extension-apiserver-authentication not updated");
                    told = Some(problem);
                }
                Err(_) => {}
            }
        }
    }

    fn data(&self) -> Result<BTreeMap<&'static str, String>, Problem> {
        let (trust, identity) = (self.trust.get(), self.identity.get());
        let authorities = self.who_vouches(&trust, &identity)?;
        let problem = |why: String| Problem::new("--serve-delegation", format_args!("{}: {why}", identity.place()));
        let leaf = identity.chain().first().ok_or_else(|| problem("no certificate".to_owned()))?;
        let name = PeerCertificate::parse(leaf).map_err(problem)?.common_name;
        // An empty list would allow every certificate of the same CA as a front proxy.
        let name = name.ok_or_else(|| problem("backends cannot verify the gateway: no common name".to_owned()))?;
        let list = |values: &[&str]| json!(values).to_string();
        let mut data = BTreeMap::from([
            ("requestheader-client-ca-file", authorities.to_pem()),
            ("requestheader-allowed-names", list(&[&name])),
            ("requestheader-username-headers", list(&["X-Remote-User"])),
            ("requestheader-group-headers", list(&["X-Remote-Group"])),
            ("requestheader-extra-headers-prefix", list(&["X-Remote-Extra-"])),
        ]);
        if self.with_uid {
            data.insert("requestheader-uid-headers", list(&["X-Remote-Uid"]));
        }
        if let Some(clients) = trust.client.as_ref().filter(|_| self.with_clients) {
            data.insert("client-ca-file", clients.to_pem());
        }
        Ok(data)
    }

    /// Returns the CA of the gateway's own certificate.
    fn who_vouches(&self, trust: &Trust, identity: &KeyPair) -> Result<Bundle, Problem> {
        let made = self.own_authority.as_ref().map(|path| {
            let pem = std::fs::read(path)
                .map_err(|error| Problem::new(path.display(), format_args!("cannot be read: {error}")))?;
            Bundle::from_pem(&pem, path.display())
        });
        let announced = trust.front_proxies.as_ref().map(|theirs| &theirs.authorities);
        let candidates = made.transpose()?.into_iter().chain(trust.request_header.clone()).chain(announced.cloned());
        who_vouches(candidates, identity)
    }
}

/// Returns the bundle of `candidates` that verifies the gateway's certificate.
///
/// # Errors
/// When none of them does.
pub fn who_vouches(candidates: impl IntoIterator<Item = Bundle>, identity: &KeyPair) -> Result<Bundle, Problem> {
    let now = UnixTime::now();
    candidates.into_iter().find(|bundle| bundle.judge_client(identity.chain(), now).is_ok()).ok_or_else(|| {
        let message = format_args!(
            "backends cannot verify the gateway: no CA of --requestheader-client-ca-file signed {}; name the CA that \
             did, or remove --proxy-client-cert-file",
            identity.place()
        );
        Problem::new("--serve-delegation", message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Drain;
    use crate::tls::{Authority, Request};

    struct Pki {
        client: Authority,
        front_proxy: Authority,
    }

    impl Pki {
        fn new() -> Pki {
            Pki { client: Authority::made("client"), front_proxy: Authority::made("front-proxy") }
        }

        fn identity(&self, name: &str) -> KeyPair {
            let issued = self.front_proxy.issue(&Request::client(name, &[]), SystemTime::now()).unwrap();
            KeyPair::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes(), "us.crt").unwrap()
        }

        fn trust(&self) -> Trust {
            let bundle = |authority: &Authority| Some(Bundle::from_pem(authority.pem().as_bytes(), "ca").unwrap());
            Trust { client: bundle(&self.client), request_header: bundle(&self.front_proxy), ..Trust::default() }
        }

        fn speaker(&self, name: &str) -> Speaker {
            Speaker {
                trust: Published::fixed(self.trust()),
                identity: Published::fixed(self.identity(name)),
                own_authority: None,
                with_uid: true,
                with_clients: true,
            }
        }
    }

    #[test]
    fn where_groups_are_filtered_backends_believe_no_client_by_themselves() {
        let pki = Pki::new();
        let config_map = Speaker { with_clients: false, ..pki.speaker("gateway") }.begin(SystemTime::now()).unwrap();
        assert!(!config_map.data.contains_key("client-ca-file"));
        assert!(config_map.data.contains_key("requestheader-client-ca-file"));
    }

    #[test]
    fn it_says_whom_to_believe_and_in_which_headers() {
        let pki = Pki::new();
        let object = pki.speaker("gateway").begin(UNIX_EPOCH + std::time::Duration::from_secs(1)).unwrap().value();
        assert_eq!(
            object,
            json!({
                "kind": "ConfigMap", "apiVersion": "v1",
                "metadata": {"name": NAME, "namespace": NAMESPACE, "resourceVersion": "1000",
                    "creationTimestamp": "1970-01-01T00:00:01Z"},
                "data": {
                    "client-ca-file": pki.client.pem(), "requestheader-client-ca-file": pki.front_proxy.pem(),
                    "requestheader-allowed-names": "[\"gateway\"]",
                    "requestheader-username-headers": "[\"X-Remote-User\"]",
                    "requestheader-uid-headers": "[\"X-Remote-Uid\"]",
                    "requestheader-group-headers": "[\"X-Remote-Group\"]",
                    "requestheader-extra-headers-prefix": "[\"X-Remote-Extra-\"]",
                },
            })
        );
    }

    #[test]
    fn a_gateway_that_nobody_could_know_is_refused() {
        let pki = Pki::new();
        let begin = |speaker: Speaker| speaker.begin(UNIX_EPOCH).map(|_| ()).unwrap_err().to_string();
        let why = begin(Speaker { trust: Published::fixed(Pki::new().trust()), ..pki.speaker("gateway") });
        assert!(why.contains("no CA of --requestheader-client-ca-file signed us.crt"), "{why}");
    }

    #[tokio::test]
    async fn an_authority_that_is_taken_out_is_gone() {
        let pki = Pki::new();
        let (publisher, trust) = Published::new(pki.trust());
        let speaker = Speaker { trust, ..pki.speaker("gateway") };
        let first = speaker.begin(SystemTime::now()).unwrap();
        let version = first.version;
        let (told, mut hear) = Published::new(first);
        let (drainer, drain) = Drain::new();
        let following = tokio::spawn(speaker.follow(told, drain));
        publisher.publish(Trust { client: None, generation: 1, ..pki.trust() }.into());
        hear.changed().await;
        assert_eq!(hear.get().version, version + 1);
        assert!(!hear.get().data.contains_key("client-ca-file"));
        // Data by which backends could not verify the gateway are not published.
        publisher.publish(Trust { generation: 2, ..Pki::new().trust() }.into());
        publisher.publish(Trust { generation: 3, ..pki.trust() }.into());
        hear.changed().await;
        assert_eq!(hear.get().data["client-ca-file"], pki.client.pem());
        drainer.advance(Phase::Ending);
        following.await.unwrap();
    }
}
