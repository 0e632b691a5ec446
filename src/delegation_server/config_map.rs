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

use crate::process::{Drain, Problem, Published, Publisher, ShutdownPhase};
use crate::tls::server::ClientTrust;
use crate::tls::{Bundle, KeyPair, PeerCertificate};

/// The namespace of the ConfigMap.
pub(super) const NAMESPACE: &str = "kube-system";
/// The name of the ConfigMap.
pub(super) const NAME: &str = "extension-apiserver-authentication";

/// The ConfigMap object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthConfigMap {
    /// The resource version; it keeps growing across restarts of the process.
    pub(super) resource_version: u64,
    created: String,
    data: BTreeMap<&'static str, String>,
}

/// Builds the ConfigMap from the gateway's trust and its own certificate.
pub struct AuthConfigMapSource {
    /// The CAs that the gateway trusts.
    pub trust: Published<ClientTrust>,
    /// The gateway's client certificate for backends.
    pub identity: Published<KeyPair>,
    /// The file with the CA of that certificate, if it was generated.
    pub own_ca_file: Option<PathBuf>,
    /// Whether backends receive the user's UID.
    pub includes_uid: bool,
    /// Whether backends get the client CA, to verify client certificates themselves. Not if groups are filtered: a
    /// backend would accept the filtered groups of a client that connects to it directly.
    pub includes_client_ca: bool,
}

impl AuthConfigMap {
    /// The object as JSON, without `kind` and `apiVersion`, as an item of a list.
    pub(super) fn to_list_item(&self) -> Value {
        json!({
            "metadata": {
                "name": NAME, "namespace": NAMESPACE, "resourceVersion": self.resource_version.to_string(),
                "creationTimestamp": self.created,
            },
            "data": self.data,
        })
    }

    /// The object as JSON.
    pub(super) fn to_json(&self) -> Value {
        let mut value = self.to_list_item();
        value["kind"] = "ConfigMap".into();
        value["apiVersion"] = "v1".into();
        value
    }
}

impl AuthConfigMapSource {
    /// Builds the initial object.
    ///
    /// # Errors
    /// When no backend could verify the gateway by it.
    pub fn build(&self, now: SystemTime) -> Result<AuthConfigMap, Problem> {
        let version = now.duration_since(UNIX_EPOCH).map_or(1, |since| since.as_millis() as u64);
        let created = jiff::Timestamp::try_from(now).unwrap_or_default().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        Ok(AuthConfigMap { resource_version: version, created, data: self.data()? })
    }

    /// Publishes a new version whenever the data change, until the process ends.
    pub async fn run(mut self, publisher: Publisher<AuthConfigMap>, mut drain: Drain) {
        let current = publisher.reader();
        let mut told = None;
        loop {
            tokio::select! {
                () = self.trust.changed() => {}
                () = self.identity.changed() => {}
                () = drain.wait_for(ShutdownPhase::Ending) => return,
            }
            match self.data() {
                Ok(data) => {
                    told = None;
                    let before = current.get();
                    if before.data != data {
                        tracing::info!("served ConfigMap extension-apiserver-authentication updated");
                        let created = before.created.clone();
                        publisher.publish(Arc::new(AuthConfigMap {
                            resource_version: before.resource_version + 1,
                            created,
                            data,
                        }));
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
        let authorities = self.find_issuing_ca(&trust, &identity)?;
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
        if self.includes_uid {
            data.insert("requestheader-uid-headers", list(&["X-Remote-Uid"]));
        }
        if let Some(clients) = trust.client.as_ref().filter(|_| self.includes_client_ca) {
            data.insert("client-ca-file", clients.to_pem());
        }
        Ok(data)
    }

    /// Returns the CA of the gateway's own certificate.
    fn find_issuing_ca(&self, trust: &ClientTrust, identity: &KeyPair) -> Result<Bundle, Problem> {
        let made = self.own_ca_file.as_ref().map(|path| {
            let pem = std::fs::read(path)
                .map_err(|error| Problem::new(path.display(), format_args!("cannot be read: {error}")))?;
            Bundle::from_pem(&pem, path.display())
        });
        let announced = trust.front_proxies.as_ref().map(|theirs| &theirs.ca_bundle);
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
    candidates.into_iter().find(|bundle| bundle.verify_client(identity.chain(), now).is_ok()).ok_or_else(|| {
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
    use crate::tls::{Authority, CertificateSpec};

    struct Pki {
        client: Authority,
        front_proxy: Authority,
    }

    impl Pki {
        fn new() -> Pki {
            Pki { client: Authority::generate("client"), front_proxy: Authority::generate("front-proxy") }
        }

        fn identity(&self, name: &str) -> KeyPair {
            let issued = self.front_proxy.issue(&CertificateSpec::client(name, &[]), SystemTime::now()).unwrap();
            KeyPair::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes(), "us.crt").unwrap()
        }

        fn trust(&self) -> ClientTrust {
            let bundle = |authority: &Authority| Some(Bundle::from_pem(authority.pem().as_bytes(), "ca").unwrap());
            ClientTrust {
                client: bundle(&self.client),
                request_header: bundle(&self.front_proxy),
                ..ClientTrust::default()
            }
        }

        fn speaker(&self, name: &str) -> AuthConfigMapSource {
            AuthConfigMapSource {
                trust: Published::fixed(self.trust()),
                identity: Published::fixed(self.identity(name)),
                own_ca_file: None,
                includes_uid: true,
                includes_client_ca: true,
            }
        }
    }

    #[test]
    fn served_configmap_omits_client_ca_when_groups_are_filtered() {
        let pki = Pki::new();
        let config_map = AuthConfigMapSource { includes_client_ca: false, ..pki.speaker("gateway") }
            .build(SystemTime::now())
            .unwrap();
        assert!(!config_map.data.contains_key("client-ca-file"));
        assert!(config_map.data.contains_key("requestheader-client-ca-file"));
    }

    #[test]
    fn served_configmap_contains_cas_and_request_headers() {
        let pki = Pki::new();
        let object = pki.speaker("gateway").build(UNIX_EPOCH + std::time::Duration::from_secs(1)).unwrap().to_json();
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
    fn served_configmap_without_issuing_ca_is_an_error() {
        let pki = Pki::new();
        let begin = |speaker: AuthConfigMapSource| speaker.build(UNIX_EPOCH).map(|_| ()).unwrap_err().to_string();
        let why = begin(AuthConfigMapSource { trust: Published::fixed(Pki::new().trust()), ..pki.speaker("gateway") });
        assert!(why.contains("no CA of --requestheader-client-ca-file signed us.crt"), "{why}");
    }

    #[tokio::test]
    async fn served_configmap_drops_removed_ca() {
        let pki = Pki::new();
        let (publisher, trust) = Published::new(pki.trust());
        let speaker = AuthConfigMapSource { trust, ..pki.speaker("gateway") };
        let first = speaker.build(SystemTime::now()).unwrap();
        let version = first.resource_version;
        let (told, mut hear) = Published::new(first);
        let (drainer, drain) = Drain::new();
        let following = tokio::spawn(speaker.run(told, drain));
        publisher.publish(ClientTrust { client: None, generation: 1, ..pki.trust() }.into());
        hear.changed().await;
        assert_eq!(hear.get().resource_version, version + 1);
        assert!(!hear.get().data.contains_key("client-ca-file"));
        // Data by which backends could not verify the gateway are not published.
        publisher.publish(ClientTrust { generation: 2, ..Pki::new().trust() }.into());
        publisher.publish(ClientTrust { generation: 3, ..pki.trust() }.into());
        hear.changed().await;
        assert_eq!(hear.get().data["client-ca-file"], pki.client.pem());
        drainer.advance(ShutdownPhase::Ending);
        following.await.unwrap();
    }
}
