//! APIServices: group, version, priority and backend.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use base64::Engine as _;
use kubeapi::names;
use serde_json::Value;

use crate::process::ManifestDocument;
use crate::process::{Problem, Problems};
use crate::registry::objects::annotations::{self, BackendSettings};
use crate::registry::objects::manifest::{self, ApiServiceManifest, ServiceReferenceManifest};
use crate::registry::objects::service::{ObjectSource, service_key};
use crate::registry::objects::url_backend::UrlBackend;
use crate::registry::settings::Settings;
use crate::tls::{Bundle, KeyPair};

/// One `apiregistration.k8s.io/v1 APIService` that passed every check.
#[derive(Clone)]
pub struct ApiService {
    /// `<version>.<group>`; `v1.` for the legacy core group.
    pub name: String,
    /// Empty for the legacy core group.
    pub group: String,
    /// For example `v1alpha1`.
    pub version: String,
    /// 1 to 20000. The priority of a group is the highest of its versions.
    pub group_priority_minimum: i32,
    /// 1 to 1000.
    pub version_priority: i32,
    /// Backend that serves the API.
    pub backend: ApiServiceBackend,
    /// CA certificates that verify the backend; the system's when `None`.
    pub ca_bundle: Option<Bundle>,
    /// Whether any certificate is accepted.
    pub insecure_skip_tls_verify: bool,
    /// Client certificate sent to the backend.
    pub client_certificate: ClientCertificate,
    /// Settings of its requests.
    pub settings: BackendSettings,
    /// Derived from the name, so that it is the same after a restart and in every replica.
    pub uid: String,
    /// Modification time of its file when it was first read, or `creationTimestamp` in a cluster.
    pub created: SystemTime,
    /// The labels, for selectors.
    pub labels: std::collections::BTreeMap<String, String>,
    /// The whole document.
    pub manifest: Value,
    /// The source it was read from.
    pub source: ObjectSource,
}

/// Shows the name only: a private key must not be logged.
impl fmt::Debug for ApiService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiService({})", self.name)
    }
}

/// Name of an APIService or upstream in messages to clients.
pub struct DisplayName<'n>(pub &'n str);

impl fmt::Display for DisplayName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", if self.is_upstream() { "upstream" } else { "aggregated API" }, self.0)
    }
}

impl DisplayName<'_> {
    /// Whether this is an upstream of a sidecar.
    pub fn is_upstream(&self) -> bool {
        // Names of upstreams begin with a slash, names of APIServices never do.
        self.0.starts_with('/')
    }
}

/// TLS client certificate for connections to a backend.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum ClientCertificate {
    /// The front-proxy certificate, by which backends trust the identity headers.
    #[default]
    Shared,
    /// The client certificate is this pair (annotation `narthex.dev/client-certificate`).
    Dedicated(Arc<KeyPair>),
    /// No client certificate.
    None,
}

/// Backend of an APIService.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiServiceBackend {
    /// No `spec.service`: served by the delegate.
    Local,
    /// Served by a Service.
    Service(ServiceReference),
    /// A URL (annotation `narthex.dev/url`).
    Url(UrlBackend),
}

impl ApiServiceBackend {
    /// Key of its Service; `None` for other backends.
    pub(in crate::registry) fn service_key(&self) -> Option<String> {
        match self {
            ApiServiceBackend::Service(reference) => Some(service_key(&reference.namespace, &reference.name)),
            ApiServiceBackend::Local | ApiServiceBackend::Url(_) => None,
        }
    }
}

/// Reference to a Service (`spec.service`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceReference {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub name: String,
    /// Number of the Service's port.
    pub port: u16,
}

/// Group of the API that Narthex itself serves.
const APIREGISTRATION_GROUP: &str = "apiregistration.k8s.io";

impl ApiService {
    /// Path prefix of its requests: `/apis/<group>/<version>`, or `/api` for the legacy core group.
    pub fn path(&self) -> String {
        if self.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}/{}", self.group, self.version) }
    }

    /// Path of the discovery document of its version, which probes request.
    pub fn discovery_path(&self) -> String {
        if self.group.is_empty() { format!("/api/{}", self.version) } else { self.path() }
    }

    /// Whether `other` is the same, ignoring the creation time.
    pub(in crate::registry) fn is_equivalent(&self, other: &ApiService) -> bool {
        self.manifest == other.manifest
            // The delegate's egress route is not in its manifest.
            && self.backend == other.backend
            && self.source == other.source
            && self.settings == other.settings
            && self.client_certificate == other.client_certificate
    }

    /// Parses and validates `document`. Adds all errors to `problems`.
    pub(in crate::registry) fn parse(
        document: ManifestDocument,
        created: SystemTime,
        settings: &Settings,
        problems: &mut Problems,
    ) -> Option<ApiService> {
        let ManifestDocument { location, value, .. } = document;
        let manifest: ApiServiceManifest = problems.collect(manifest::parse(&location, &value))?;
        let before = problems.0.len();
        let (metadata, spec) = (manifest.metadata, manifest.spec);
        let annotations = metadata.annotations.unwrap_or_default();
        let mut wrong = |field: &str, message: String| problems.0.push(Problem::at_field(&location, field, message));

        let name = format!("{}.{}", spec.version, spec.group);
        if metadata.name != name {
            wrong("metadata.name", format!("must be `spec.version+\".\"+spec.group`: {name:?}"));
        }
        if spec.group.is_empty() && spec.version != "v1" {
            wrong(
                "spec.group",
                "required: only v1 may have an empty group, and it is the legacy core group".to_owned(),
            );
        } else if !spec.group.is_empty() && !names::is_dns_subdomain(&spec.group) {
            wrong("spec.group", format!("{:?} {}", spec.group, manifest::NOT_A_SUBDOMAIN));
        }
        if !names::is_dns1035_label(&spec.version) {
            wrong("spec.version", format!("{:?} {}", spec.version, manifest::NOT_A_LETTER_LABEL));
        }
        for (field, value, most) in [
            ("spec.groupPriorityMinimum", spec.group_priority_minimum, 20_000),
            ("spec.versionPriority", spec.version_priority, 1000),
        ] {
            if !(1..=most).contains(&value) {
                wrong(field, format!("{value} is out of range: from 1 to {most}"));
            }
        }
        let backend = parse_backend(spec.service, annotations.get(annotations::URL), settings, &mut wrong);
        let ca_bundle = spec.ca_bundle.filter(|bundle| !bundle.is_empty());
        let ca_bundle = ca_bundle.and_then(|bundle| match parse_ca_bundle(&bundle, &metadata.name) {
            Ok(bundle) => Some(bundle),
            Err(message) => {
                wrong("spec.caBundle", message);
                None
            }
        });
        if spec.insecure_skip_tls_verify && ca_bundle.is_some() {
            wrong("spec.insecureSkipTLSVerify", "may not be true if caBundle is present".to_owned());
        }
        if backend == Some(ApiServiceBackend::Local) {
            if ca_bundle.is_some() {
                wrong("spec.caBundle", "an APIService without a Service may not have a caBundle".to_owned());
            }
            if spec.insecure_skip_tls_verify {
                wrong("spec.insecureSkipTLSVerify", "may not be true without a Service".to_owned());
            }
        } else if spec.group == APIREGISTRATION_GROUP {
            wrong(
                "spec.group",
                format!("{APIREGISTRATION_GROUP} is served by Narthex itself and cannot have a backend"),
            );
        }
        let backend_settings = annotations::parse_annotations(&location, &annotations, settings, problems);
        let pair = backend_settings.client_certificate.as_ref().map(KeyPair::load);
        let client_certificate = pair.and_then(|pair| {
            let field = "metadata.annotations[narthex.dev/client-certificate]";
            problems.collect(pair.map_err(|problem| Problem::at_field(&location, field, problem))).map(Arc::new)
        });
        let client_certificate = client_certificate.map_or(ClientCertificate::Shared, ClientCertificate::Dedicated);
        let backend = backend.filter(|_| problems.0.len() == before)?;
        Some(ApiService {
            uid: uid_for_name(&name),
            name,
            group: spec.group,
            version: spec.version,
            group_priority_minimum: i32::try_from(spec.group_priority_minimum).ok()?,
            version_priority: i32::try_from(spec.version_priority).ok()?,
            backend,
            ca_bundle,
            client_certificate,
            insecure_skip_tls_verify: spec.insecure_skip_tls_verify,
            settings: backend_settings,
            created,
            labels: metadata.labels.unwrap_or_default(),
            manifest: value,
            source: ObjectSource::Directory,
        })
    }
}

fn parse_backend(
    service: Option<ServiceReferenceManifest>,
    url: Option<&String>,
    settings: &Settings,
    wrong: &mut impl FnMut(&str, String),
) -> Option<ApiServiceBackend> {
    match (service, url) {
        (None, None) => Some(ApiServiceBackend::Local),
        (service, Some(url)) => match annotations::parse_url(url, service.is_some(), settings) {
            Ok(url) => Some(ApiServiceBackend::Url(url)),
            Err(message) => {
                wrong(&format!("metadata.annotations[{}]", annotations::URL), message);
                None
            }
        },
        (Some(service), None) => {
            for (field, value, right, words) in [
                (
                    "spec.service.namespace",
                    &service.namespace,
                    names::is_dns_label as fn(&str) -> bool,
                    manifest::NOT_A_LABEL,
                ),
                ("spec.service.name", &service.name, names::is_dns_label, manifest::NOT_A_LABEL),
            ] {
                if value.is_empty() {
                    wrong(field, "required".to_owned());
                } else if !right(value) {
                    wrong(field, format!("{value:?} {words}"));
                }
            }
            let number = service.port.unwrap_or(443);
            let port = u16::try_from(number).ok().filter(|port| *port != 0);
            if port.is_none() {
                wrong("spec.service.port", format!("{number} is not a port: from 1 to 65535"));
            }
            Some(ApiServiceBackend::Service(ServiceReference {
                namespace: service.namespace,
                name: service.name,
                port: port?,
            }))
        }
    }
}

/// Parses `spec.caBundle`: base64 of PEM with at least one certificate. Upstream accepts an invalid bundle and then
/// fails every request.
fn parse_ca_bundle(text: &str, name: &str) -> Result<Bundle, String> {
    if text.trim_start().starts_with("-----BEGIN") {
        return Err("is PEM text; it must be the base64 of it (base64 -w0 ca.crt)".to_owned());
    }
    let packed: String = text.split_ascii_whitespace().collect();
    let pem =
        base64::engine::general_purpose::STANDARD.decode(packed).map_err(|error| format!("not base64: {error}"))?;
    Bundle::from_partial_pem(&pem, format_args!("caBundle of {name}")).map_err(|problem| problem.message)
}

/// UUID (version 8) derived from the SHA-256 of the name.
fn uid_for_name(name: &str) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, format!("apiservice/{name}").as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest.as_ref()[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::parse_documents;

    fn read(text: &str, settings: &Settings) -> Result<ApiService, Vec<String>> {
        let (mut found, problems) = parse_documents("f.yaml", text, false);
        assert_eq!(problems.0, []);
        let mut problems = Problems::default();
        let read = ApiService::parse(found.remove(0), SystemTime::UNIX_EPOCH, settings, &mut problems);
        let problems: Vec<String> = problems.0.iter().map(ToString::to_string).collect();
        read.ok_or(problems)
    }

    fn manifest(spec: &str) -> String {
        format!(
            "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {{name: v1alpha1.wardle.example.com}}\nspec:\n  group: wardle.example.com\n  version: v1alpha1\n  groupPriorityMinimum: 1000\n  versionPriority: 15\n{spec}"
        )
    }

    #[test]
    fn api_service_parsed_with_upstream_defaults() {
        let one = read(&manifest("  service: {name: api, namespace: wardle}\n"), &Settings::default()).unwrap();
        assert_eq!(
            one.backend,
            ApiServiceBackend::Service(ServiceReference { namespace: "wardle".into(), name: "api".into(), port: 443 })
        );
        assert_eq!(one.path(), "/apis/wardle.example.com/v1alpha1");
        assert_eq!(one.uid, uid_for_name("v1alpha1.wardle.example.com"));
        assert_eq!(one.uid.len(), 36);
        let local = read(&manifest(""), &Settings::default()).unwrap();
        assert_eq!(local.backend, ApiServiceBackend::Local);
    }

    #[test]
    fn api_service_of_legacy_core_group_parsed() {
        let text = "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {name: v1.}\nspec: {version: v1, groupPriorityMinimum: 18000, versionPriority: 1}\n";
        let one = read(text, &Settings::default()).unwrap();
        assert_eq!((one.path(), one.discovery_path()), ("/api".to_owned(), "/api/v1".to_owned()));
    }

    #[test]
    fn api_service_errors_reported_together_with_fields() {
        let text = "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {name: wrong}\nspec:\n  group: Wardle\n  version: 1v\n  groupPriorityMinimum: 20001\n  versionPriority: 0\n  service: {name: '', namespace: A, port: 70000}\n  caBundle: '%%%'\n";
        let problems = read(text, &Settings::default()).unwrap_err();
        let all = problems.join("\n");
        for field in [
            "metadata.name: must be",
            "spec.group: \"Wardle\"",
            "spec.version: \"1v\"",
            "spec.groupPriorityMinimum: 20001",
            "spec.versionPriority: 0",
            "spec.service.name: required",
            "spec.service.namespace: \"A\"",
            "spec.service.port: 70000",
            "spec.caBundle: not base64",
        ] {
            assert!(all.contains(field), "{field} in\n{all}");
        }
        assert!(problems.iter().all(|p| p.starts_with("f.yaml, document 1, APIService \"wrong\": ")), "{all}");
    }

    #[test]
    fn api_service_type_errors_and_unknown_fields_name_path() {
        let problems =
            read(&manifest("  service: {name: api, namespace: wardle, port: https}\n"), &Settings::default());
        assert!(
            problems.unwrap_err()[0]
                .contains("spec.service.port: invalid type: string \"https\", expected a whole number")
        );
        let problems = read(&manifest("  service: api\n"), &Settings::default()).unwrap_err();
        assert!(
            problems[0].ends_with("spec.service: invalid type: string \"api\", expected a mapping"),
            "{problems:?}"
        );
        let problems = read(&manifest("  servce: {}\n"), &Settings::default()).unwrap_err();
        assert!(problems[0].contains("unknown field `servce`"), "{problems:?}");
    }

    #[test]
    fn api_service_ca_bundle_and_insecure_validated() {
        let service = "  service: {name: api, namespace: wardle}\n";
        let key = rcgen::KeyPair::generate().unwrap();
        let pem = rcgen::CertificateParams::default().self_signed(&key).unwrap().pem();
        let good = base64::engine::general_purpose::STANDARD.encode(&pem);
        let one = read(&manifest(&format!("{service}  caBundle: {good}\n")), &Settings::default()).unwrap();
        assert_eq!(one.ca_bundle.unwrap().certificate_infos().len(), 1);
        let problems = read(
            &manifest(&format!("{service}  caBundle: {good}\n  insecureSkipTLSVerify: true\n")),
            &Settings::default(),
        );
        assert!(problems.unwrap_err()[0].contains("may not be true if caBundle is present"));
        for (bundle, words) in [
            ("aGVsbG8=", "has no \"BEGIN CERTIFICATE\" block"),
            ("'-----BEGIN CERTIFICATE-----'", "is PEM text"),
            (
                "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCmFHVnNiRzg9Ci0tLS0tRU5EIENFUlRJRklDQVRFLS0tLS0K",
                "certificate 1 of the bundle cannot be used",
            ),
        ] {
            let problems =
                read(&manifest(&format!("{service}  caBundle: {bundle}\n")), &Settings::default()).unwrap_err();
            assert!(problems[0].contains("spec.caBundle: ") && problems[0].contains(words), "{problems:?}");
        }
        let problems = read(&manifest("  insecureSkipTLSVerify: true\n"), &Settings::default()).unwrap_err();
        assert!(problems[0].contains("spec.insecureSkipTLSVerify"), "{problems:?}");
    }

    #[test]
    fn api_service_url_backend_needs_flag_and_no_service() {
        let with_url = |spec: &str| {
            manifest(spec)
                .replace("metadata: {", "metadata: {annotations: {narthex.dev/url: 'https://api.example.com/base'}, ")
        };
        let problems = read(&with_url(""), &Settings::default()).unwrap_err();
        assert!(problems[0].contains("--allow-url-backends"), "{problems:?}");
        let allowed = Settings { allow_url_backends: true, ..Settings::default() };
        let one = read(&with_url(""), &allowed).unwrap();
        assert!(matches!(one.backend, ApiServiceBackend::Url(UrlBackend { plaintext_protocol: None, .. })));
        let problems = read(&with_url("  service: {name: api, namespace: wardle}\n"), &allowed).unwrap_err();
        assert!(problems[0].contains("only one of them"), "{problems:?}");
    }

    #[test]
    fn api_service_apiregistration_group_must_be_local() {
        let text = manifest("  service: {name: api, namespace: wardle}\n")
            .replace("wardle.example.com", APIREGISTRATION_GROUP)
            .replace("v1alpha1", "v1");
        assert!(read(&text, &Settings::default()).unwrap_err()[0].contains("served by Narthex itself"));
        let local = text.replace("  service: {name: api, namespace: wardle}\n", "");
        assert!(read(&local, &Settings::default()).is_ok());
    }
}
