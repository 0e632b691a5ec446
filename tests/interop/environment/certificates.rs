//! The certificate authorities of the test environment and the certificates they sign.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

/// Files of a certificate and its key.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

/// A certificate authority with its certificate in a file.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    pub(crate) file: PathBuf,
    directory: PathBuf,
}

impl Authority {
    /// Creates an authority.
    pub(crate) fn new(name: &str, directory: &Path) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, format!("interop {name} authority"));
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let file = directory.join(format!("{name}-ca.crt"));
        std::fs::write(&file, issuer.pem()).unwrap();
        Authority { issuer, file, directory: directory.to_owned() }
    }

    /// The private key, as PEM.
    pub(crate) fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    fn sign(&self, file: &str, mut params: CertificateParams, usage: ExtendedKeyUsagePurpose) -> Identity {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        // Tests that run at the same time start servers of the same name: each pair has its own files.
        let mut path = self.directory.join(format!("{file}.crt"));
        let mut certificate_file = loop {
            match File::create_new(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    path = self.directory.join(format!("{file}-{}.crt", fastrand::u32(..)));
                }
                created => break created.unwrap(),
            }
        };
        let identity = Identity { key: path.with_extension("key"), certificate: path };
        certificate_file.write_all(certificate.pem().as_bytes()).unwrap();
        std::fs::write(&identity.key, key.serialize_pem()).unwrap();
        identity
    }

    /// Signs a serving certificate for `names` (DNS names or IP addresses).
    pub(crate) fn server(&self, file: &str, names: &[&str]) -> Identity {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, file);
        self.sign(file, params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// Signs a client certificate: the user is the common name, each group an organization, the uid Kubernetes'
    /// attribute (`AllowParsingUserUIDFromCertAuth`).
    pub(crate) fn client(&self, file: &str, user: &str, groups: &[&str], uid: Option<&str>) -> Identity {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        // rcgen keeps one value per attribute type; the same attribute by its OID is another type.
        let kinds = [DnType::OrganizationName, DnType::CustomDnType(vec![2, 5, 4, 10])];
        assert!(groups.len() <= kinds.len(), "two groups at most");
        for (kind, group) in kinds.into_iter().zip(groups) {
            params.distinguished_name.push(kind, *group);
        }
        if let Some(uid) = uid {
            params.distinguished_name.push(DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]), uid);
        }
        self.sign(file, params, ExtendedKeyUsagePurpose::ClientAuth)
    }
}

/// All authorities and the shared certificates.
pub(crate) struct Authorities {
    pub(crate) serving: Authority,
    pub(crate) client: Authority,
    pub(crate) request_header: Authority,
    pub(crate) backend: Authority,
    pub(crate) front_proxy: Identity,
    pub(crate) admin: Identity,
    pub(crate) jane: Identity,
    /// A certificate of user jane in system:masters, signed by an untrusted authority.
    pub(crate) impostor: Identity,
    /// Private and public key of service account tokens.
    pub(crate) service_account: (PathBuf, PathBuf),
}

impl Authorities {
    pub(crate) fn make(directory: &Path) -> Authorities {
        let directory = directory.join("certificates");
        std::fs::create_dir_all(&directory).unwrap();
        let client = Authority::new("client", &directory);
        let request_header = Authority::new("request-header", &directory);
        let stranger = Authority::new("stranger", &directory);
        let token_key = KeyPair::generate().unwrap();
        let service_account = (directory.join("tokens.key"), directory.join("tokens.pub"));
        std::fs::write(&service_account.0, token_key.serialize_pem()).unwrap();
        std::fs::write(&service_account.1, token_key.public_key_pem()).unwrap();
        Authorities {
            front_proxy: request_header.client("front-proxy", "front-proxy-client", &[], None),
            admin: client.client("admin", "admin", &["system:masters"], None),
            jane: client.client("jane", "jane", &["devs", "qa"], Some("jane-uid-1")),
            impostor: stranger.client("impostor", "jane", &["system:masters"], None),
            serving: Authority::new("serving", &directory),
            backend: Authority::new("backend", &directory),
            client,
            request_header,
            service_account,
        }
    }
}
