//! The served ConfigMap `kube-system/extension-apiserver-authentication`: CAs and request headers for backends.
//!
//! Built like kube-apiserver's controller (`pkg/controlplane/controller/clusterauthenticationtrust`), with two
//! differences: the only allowed front proxy is this gateway, by its own name; and a CA that is no longer trusted is
//! removed at once.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rustls_pki_types::UnixTime;
use serde_json::{Map, Value, json};

use crate::process::{Drain, Problem, Published, ShutdownPhase};
use crate::tls::server::ClientTrust;
use crate::tls::{Bundle, KeyPair, PeerCertificate};

/// The namespace of the ConfigMap.
pub const NAMESPACE: &str = "kube-system";
/// The name of the ConfigMap.
pub const NAME: &str = "extension-apiserver-authentication";

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

impl AuthConfigMapSource {
    /// Builds the object, without what the server sets.
    ///
    /// # Errors
    /// When no backend could verify the gateway by it.
    pub fn build(&self) -> Result<Map<String, Value>, Problem> {
        Ok(Map::from_iter([
            ("apiVersion".to_owned(), json!("v1")),
            ("kind".to_owned(), json!("ConfigMap")),
            ("metadata".to_owned(), json!({"name": NAME, "namespace": NAMESPACE})),
            ("data".to_owned(), json!(self.data()?)),
        ]))
    }

    /// Publishes `object`, and a new one whenever it changes, until the process ends.
    pub async fn run(
        mut self,
        mut object: Map<String, Value>,
        publish: impl AsyncFn(Map<String, Value>),
        mut drain: Drain,
    ) {
        publish(object.clone()).await;
        let mut reported = None;
        loop {
            tokio::select! {
                () = self.trust.changed() => {}
                () = self.identity.changed() => {}
                () = drain.wait_for(ShutdownPhase::Ending) => return,
            }
            match self.build() {
                Ok(next) => {
                    reported = None;
                    if object != next {
                        object = next;
                        publish(object.clone()).await;
                        tracing::info!("served ConfigMap extension-apiserver-authentication updated");
                    }
                }
                Err(problem) if reported.as_ref() != Some(&problem) => {
                    tracing::error!(%problem, "served ConfigMap extension-apiserver-authentication not updated");
                    reported = Some(problem);
                }
                Err(_) => {}
            }
        }
    }

    fn data(&self) -> Result<BTreeMap<&'static str, String>, Problem> {
        let (trust, identity) = (self.trust.get(), self.identity.get());
        let authorities = self.find_issuing_ca(&trust, &identity)?;
        let problem = |why: String| Problem::new("--serve-delegation", format_args!("{}: {why}", identity.location()));
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
        let announced = trust.front_proxies.as_ref().map(|proxies| &proxies.ca_bundle);
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
            identity.location()
        );
        Problem::new("--serve-delegation", message)
    })
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
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

        fn source(&self, name: &str) -> AuthConfigMapSource {
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
        let source = AuthConfigMapSource { includes_client_ca: false, ..pki.source("gateway") };
        let data = source.data().unwrap();
        assert!(!data.contains_key("client-ca-file") && data.contains_key("requestheader-client-ca-file"));
    }

    #[test]
    fn served_configmap_contains_cas_and_request_headers() {
        let pki = Pki::new();
        assert_eq!(
            Value::Object(pki.source("gateway").build().unwrap()),
            json!({
                "kind": "ConfigMap", "apiVersion": "v1",
                "metadata": {"name": NAME, "namespace": NAMESPACE},
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
        let source = AuthConfigMapSource { trust: Published::fixed(Pki::new().trust()), ..pki.source("gateway") };
        let why = source.build().unwrap_err().to_string();
        assert!(why.contains("no CA of --requestheader-client-ca-file signed us.crt"), "{why}");
    }

    #[tokio::test]
    async fn served_configmap_drops_removed_ca() {
        let pki = Pki::new();
        let (publisher, trust) = Published::new(pki.trust());
        let source = AuthConfigMapSource { trust, ..pki.source("gateway") };
        let (sender, mut objects) = tokio::sync::mpsc::unbounded_channel();
        let (drainer, drain) = Drain::new();
        let first = source.build().unwrap();
        let running = tokio::spawn(source.run(first, async move |object| drop(sender.send(object)), drain));
        let mut client_ca = async || objects.recv().await.unwrap()["data"].get("client-ca-file").cloned();
        assert_eq!(client_ca().await, Some(json!(pki.client.pem())));
        publisher.publish(ClientTrust { client: None, generation: 1, ..pki.trust() }.into());
        assert_eq!(client_ca().await, None);
        // Data by which backends could not verify the gateway are not published.
        publisher.publish(ClientTrust { generation: 2, ..Pki::new().trust() }.into());
        publisher.publish(ClientTrust { generation: 3, ..pki.trust() }.into());
        assert_eq!(client_ca().await, Some(json!(pki.client.pem())));
        drainer.advance(ShutdownPhase::Ending);
        running.await.unwrap();
    }
}
