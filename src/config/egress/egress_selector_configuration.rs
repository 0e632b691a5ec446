//! kube-apiserver's `EgressSelectorConfiguration`, decoded and validated as by `ReadEgressSelectorConfiguration` and
//! `ValidateEgressSelectorConfiguration`, with their messages.
//!
//! One difference: HTTPConnect over plain `http://` passes Kubernetes' validation and then crashes kube-apiserver with
//! a nil pointer; here it works.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use kubeapi::GoQuoted;
use kubeapi::yaml::YamlDocument;
use serde_json::Value;

use super::READ_ERROR;
use crate::egress::{
    ConnectDialect, DIAL_TIMEOUT, EgressRouteSettings, EgressSelectionSettings, NoProxy, ProxyAddress, ProxyKind,
    ProxySettings, ProxyTlsFiles, ProxyUrl, without_credentials,
};
use crate::tls::PairFiles;

const KIND: &str = "EgressSelectorConfiguration";
const GROUP: &str = "apiserver.k8s.io";
const VERSIONS: [&str; 2] = ["v1beta1", "v1alpha1"];
/// Supported names, in the order of the message.
const SUPPORTED_NAMES: [&str; 3] = ["cluster", "controlplane", "etcd"];

/// Decodes and validates the selections in `tree`, parsed from `text`. Paths are relative to `folder`; kube-apiserver's
/// are relative to its working directory.
pub(super) fn read(folder: &Path, text: &str, tree: &YamlDocument) -> Result<Vec<EgressSelectionSettings>, String> {
    let mut services = decode(text, tree).map_err(|why| format!("{READ_ERROR}: {why}"))?;
    services.iter_mut().for_each(|service| service.resolve(folder));
    let mistakes = ValidationErrors::validate(&services);
    match &mistakes.0[..] {
        [] => {}
        [mistake] => return Err(format!("failed to validate egress selector configuration: {mistake}")),
        all => return Err(format!("failed to validate egress selector configuration: [{}]", all.join(", "))),
    }
    services.into_iter().map(EgressSelectionEntry::into_settings).collect()
}

/// One entry, like Kubernetes' internal type.
#[derive(Default)]
struct EgressSelectionEntry {
    name: String,
    protocol: String,
    transport: Option<TransportSpec>,
}

#[derive(Default)]
struct TransportSpec {
    tcp: Option<TcpTransport>,
    uds: Option<UdsTransport>,
}

#[derive(Default)]
struct TcpTransport {
    url: String,
    tls: Option<TlsClientFiles>,
}

#[derive(Default)]
struct UdsTransport {
    name: String,
}

#[derive(Default)]
struct TlsClientFiles {
    authorities: String,
    key: String,
    certificate: String,
    server_name: String,
}

fn decode(text: &str, tree: &YamlDocument) -> Result<Vec<EgressSelectionEntry>, String> {
    let version = version(text, &tree.value)?;
    let mut decoder = EgressSelectorDecoder { version, fields: Vec::new(), unknown: Vec::new(), mismatch: None };
    let services = decoder.configuration(&tree.value);
    if let Some(mismatch) = decoder.mismatch {
        return Err(mismatch);
    }
    let complaints: Vec<String> = tree.strict_error().into_iter().chain(decoder.unknown).collect();
    if !complaints.is_empty() {
        return Err(format!("strict decoding error: {}", complaints.join(", ")));
    }
    Ok(services)
}

/// The version of the document, or why it is not supported.
fn version(text: &str, value: &Value) -> Result<&'static str, String> {
    let not = |what: &str| {
        Err(format!("couldn't get version/kind; json parse error: json: cannot unmarshal {what} into Go value"))
    };
    let word = |name: &str| match value.get(name) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(word)) => Ok(word.as_str()),
        Some(other) => not(json_kind(other)),
    };
    if !matches!(value, Value::Object(_) | Value::Null) {
        return not(json_kind(value));
    }
    let (kind, api_version) = (word("kind")?, word("apiVersion")?);
    match (kind, api_version) {
        ("", _) => return Err(format!("Object 'Kind' is missing in '{text}'")),
        (_, "") => return Err(format!("Object 'apiVersion' is missing in '{text}'")),
        _ => {}
    }
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    if version.contains('/') {
        return Err(format!("unexpected GroupVersion string: {api_version}"));
    }
    let found = VERSIONS.into_iter().find(|supported| kind == KIND && group == GROUP && version == *supported);
    found.ok_or_else(|| {
        format!(
            "no kind {} is registered for version {} in scheme \"narthex\"; use kind {KIND} of {GROUP}/v1beta1, or kind \
             {} of {}",
            GoQuoted(kind),
            GoQuoted(api_version),
            super::egress_configuration::KIND,
            super::egress_configuration::API_VERSION
        )
    })
}

fn json_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Decodes as `sigs.k8s.io/json`: field names are case-sensitive; all unknown fields and the first type mismatch are
/// reported.
struct EgressSelectorDecoder {
    version: &'static str,
    /// Names of the enclosing fields, without indices.
    fields: Vec<&'static str>,
    unknown: Vec<String>,
    mismatch: Option<String>,
}

/// A field of a mapping, with its value.
struct MappingField<'v> {
    name: &'static str,
    path: String,
    value: &'v Value,
}

impl EgressSelectorDecoder {
    fn configuration(&mut self, value: &Value) -> Vec<EgressSelectionEntry> {
        let mut services = Vec::new();
        self.mapping(KIND, "", value, &["apiVersion", "kind", "egressSelections"], |this, field| match field.value {
            _ if field.name != "egressSelections" => {}
            Value::Array(items) => {
                this.fields.push(field.name);
                for (number, item) in items.iter().enumerate() {
                    services.push(this.service(&format!("{}[{number}]", field.path), item));
                }
                this.fields.pop();
            }
            Value::Null => {}
            other => this.mismatch(KIND, field.name, other, "[]VERSION.EgressSelection"),
        });
        services
    }

    fn service(&mut self, path: &str, value: &Value) -> EgressSelectionEntry {
        const TYPE: &str = "EgressSelection";
        let mut service = EgressSelectionEntry::default();
        self.mapping(TYPE, path, value, &["name", "connection"], |this, field| match field.name {
            "name" => service.name = this.text(TYPE, &field),
            _ => {
                (service.protocol, service.transport) =
                    this.decode_optional(&field, EgressSelectorDecoder::connection).unwrap_or_default()
            }
        });
        // The alias of the first versions; case-sensitive.
        if service.name == "master" {
            service.name = "controlplane".to_owned();
        }
        service
    }

    fn connection(&mut self, path: &str, value: &Value) -> (String, Option<TransportSpec>) {
        const TYPE: &str = "Connection";
        let (mut protocol, mut transport) = (String::new(), None);
        self.mapping(TYPE, path, value, &["proxyProtocol", "transport"], |this, field| match field.name {
            "proxyProtocol" => protocol = this.text(TYPE, &field),
            _ => transport = this.decode_optional(&field, EgressSelectorDecoder::transport),
        });
        (protocol, transport)
    }

    fn transport(&mut self, path: &str, value: &Value) -> TransportSpec {
        let mut transport = TransportSpec::default();
        self.mapping("Transport", path, value, &["tcp", "uds"], |this, field| match field.name {
            "tcp" => transport.tcp = this.decode_optional(&field, EgressSelectorDecoder::tcp),
            _ => transport.uds = this.decode_optional(&field, EgressSelectorDecoder::uds),
        });
        transport
    }

    fn tcp(&mut self, path: &str, value: &Value) -> TcpTransport {
        const TYPE: &str = "TCPTransport";
        let mut tcp = TcpTransport::default();
        self.mapping(TYPE, path, value, &["url", "tlsConfig"], |this, field| match field.name {
            "url" => tcp.url = this.text(TYPE, &field),
            _ => tcp.tls = this.decode_optional(&field, EgressSelectorDecoder::tls),
        });
        tcp
    }

    fn uds(&mut self, path: &str, value: &Value) -> UdsTransport {
        const TYPE: &str = "UDSTransport";
        let mut uds = UdsTransport::default();
        self.mapping(TYPE, path, value, &["udsName"], |this, field| uds.name = this.text(TYPE, &field));
        uds
    }

    fn tls(&mut self, path: &str, value: &Value) -> TlsClientFiles {
        const TYPE: &str = "TLSConfig";
        let mut tls = TlsClientFiles::default();
        self.mapping(TYPE, path, value, &["caBundle", "clientKey", "clientCert", "tlsServerName"], |this, field| {
            let text = this.text(TYPE, &field);
            match field.name {
                "caBundle" => tls.authorities = text,
                "clientKey" => tls.key = text,
                "clientCert" => tls.certificate = text,
                _ => tls.server_name = text,
            }
        });
        tls
    }

    /// Decodes the value of an optional field.
    fn decode_optional<T>(
        &mut self,
        field: &MappingField<'_>,
        read: impl FnOnce(&mut EgressSelectorDecoder, &str, &Value) -> T,
    ) -> Option<T> {
        if field.value.is_null() {
            return None;
        }
        self.fields.push(field.name);
        let read = read(self, &field.path, field.value);
        self.fields.pop();
        Some(read)
    }

    /// Calls `each` for the known fields of the mapping at `path`, of Go's type `of`.
    fn mapping<'v>(
        &mut self,
        of: &'static str,
        path: &str,
        value: &'v Value,
        supported: &[&'static str],
        mut each: impl FnMut(&mut EgressSelectorDecoder, MappingField<'v>),
    ) {
        let map = match value {
            Value::Object(map) => map,
            Value::Null => return,
            other => {
                let field = self.fields.pop().unwrap_or_default();
                self.mismatch(of, field, other, &format!("VERSION.{of}"));
                self.fields.push(field);
                return;
            }
        };
        for (key, value) in map {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            match supported.iter().find(|name| *name == key) {
                Some(name) => each(self, MappingField { name, path, value }),
                None => self.unknown.push(format!("unknown field {}", GoQuoted(&path))),
            }
        }
    }

    fn text(&mut self, of: &str, field: &MappingField<'_>) -> String {
        match field.value {
            Value::String(text) => return text.clone(),
            Value::Null => {}
            other => self.mismatch(of, field.name, other, "string"),
        }
        String::new()
    }

    /// Records a type mismatch. Only the first is reported, as in Go.
    fn mismatch(&mut self, of: &str, field: &str, value: &Value, expected: &str) {
        let expected = expected.replace("VERSION", self.version);
        let path: Vec<&str> = self.fields.iter().copied().chain([field]).collect();
        self.mismatch.get_or_insert_with(|| {
            let path = path.join(".");
            format!("json: cannot unmarshal {} into Go struct field {of}.{path} of type {expected}", json_kind(value))
        });
    }
}

/// The errors of `field.ErrorList`, in order and without duplicates.
struct ValidationErrors(Vec<String>);

impl ValidationErrors {
    fn validate(services: &[EgressSelectionEntry]) -> ValidationErrors {
        let mut mistakes = ValidationErrors(Vec::new());
        for service in services {
            let transport = service.transport.as_ref();
            match service.protocol.as_str() {
                "Direct" if transport.is_some() => {
                    mistakes.invalid("transport", "direct", "config must be absent for direct connect");
                }
                "Direct" => {}
                "HTTPConnect" => mistakes.http_connect(transport),
                "GRPC" => mistakes.grpc(transport),
                other => mistakes.not_supported(".protocol", other, &["Direct", "HTTPConnect", "GRPC"]),
            }
        }
        let mut names = BTreeSet::new();
        for (number, service) in services.iter().enumerate() {
            let name = service.name.to_lowercase();
            if !names.insert(name.clone()) {
                mistakes.add(format!("service.connection[{number}]: Duplicate value: {}", GoQuoted(&name)));
            } else if !SUPPORTED_NAMES.contains(&&*name) {
                mistakes.not_supported("", &name, &SUPPORTED_NAMES);
            }
        }
        mistakes
    }

    fn http_connect(&mut self, transport: Option<&TransportSpec>) {
        match transport {
            None => self.required("transport", "transport must be set for HTTPConnect"),
            Some(TransportSpec { tcp: Some(tcp), uds: Some(_) }) => {
                let message = "TCP and UDS cannot both be set";
                self.add(format!("service.connection.tcp: Invalid value: {}: {message}", tcp.as_json()));
            }
            Some(TransportSpec { tcp: None, uds: None }) => self.required("tcp", "One of TCP or UDS must be set"),
            Some(TransportSpec { tcp: Some(tcp), uds: None }) => self.tcp(tcp),
            Some(TransportSpec { tcp: None, uds: Some(uds) }) => self.uds(uds),
        }
    }

    fn grpc(&mut self, transport: Option<&TransportSpec>) {
        match transport {
            None => self.required("transport", "transport must be set for GRPC"),
            Some(TransportSpec { uds: Some(uds), .. }) => self.uds(uds),
            Some(TransportSpec { uds: None, .. }) => self.required("uds", "UDS must be set with GRPC"),
        }
    }

    fn uds(&mut self, uds: &UdsTransport) {
        if uds.name.is_empty() {
            self.invalid("udsName", "nil", "must be present for UDS connections");
        }
    }

    fn tcp(&mut self, tcp: &TcpTransport) {
        if tcp.url.starts_with("http://") {
            if tcp.tls.is_some() {
                self.invalid("tlsConfig", "nil", "config must not be present when using HTTP");
            }
        } else if tcp.url.starts_with("https://") {
            match &tcp.tls {
                None => self.required("tlsConfig", "TLSConfig must be present when using HTTPS"),
                Some(tls) => self.tls(tls),
            }
        } else {
            let url = without_credentials(&tcp.url);
            self.invalid("url", &url, "supported connection protocols are http:// and https://");
        }
    }

    fn tls(&mut self, tls: &TlsClientFiles) {
        if !tls.authorities.is_empty() && !Path::new(&tls.authorities).exists() {
            self.invalid("tlsConfig.caBundle", &tls.authorities, "TLS config ca bundle does not exist");
        }
        if tls.certificate.is_empty() {
            self.invalid("tlsConfig.clientCert", "nil", "Using TLS requires clientCert");
        } else if !Path::new(&tls.certificate).exists() {
            self.invalid("tlsConfig.clientCert", &tls.certificate, "TLS client cert does not exist");
        }
        if tls.key.is_empty() {
            self.invalid("tlsConfig.clientKey", "nil", "Using TLS requires requires clientKey");
        } else if !Path::new(&tls.key).exists() {
            self.invalid("tlsConfig.clientKey", &tls.key, "TLS client key does not exist");
        }
    }

    fn invalid(&mut self, field: &str, value: &str, message: impl Display) {
        self.add(format!("service.connection.{field}: Invalid value: {}: {message}", GoQuoted(value)));
    }

    fn required(&mut self, field: &str, message: impl Display) {
        self.add(format!("service.connection.{field}: Required value: {message}"));
    }

    fn not_supported(&mut self, field: &str, value: &str, supported: &[&str]) {
        let supported: Vec<String> = supported.iter().map(|it| GoQuoted(it).to_string()).collect();
        let (value, supported) = (GoQuoted(value), supported.join(", "));
        self.add(format!("service.connection{field}: Unsupported value: {value}: supported values: {supported}"));
    }

    fn add(&mut self, mistake: String) {
        if !self.0.contains(&mistake) {
            self.0.push(mistake);
        }
    }
}

impl TcpTransport {
    /// JSON of the internal Go type, which has no JSON field names.
    fn as_json(&self) -> String {
        let text = |text: &str| Value::from(text).to_string();
        let tls = self.tls.as_ref().map_or("null".to_owned(), |tls| {
            let parts = [&tls.authorities, &tls.key, &tls.certificate, &tls.server_name].map(|it| text(it));
            let [authorities, key, certificate, name] = parts;
            format!(
                r#"{{"CABundle":{authorities},"ClientKey":{key},"ClientCert":{certificate},"TLSServerName":{name}}}"#
            )
        });
        format!(r#"{{"URL":{},"TLSConfig":{tls}}}"#, text(&without_credentials(&self.url)))
    }
}

impl EgressSelectionEntry {
    fn resolve(&mut self, folder: &Path) {
        let Some(transport) = &mut self.transport else { return };
        let tls = transport.tcp.iter_mut().filter_map(|tcp| tcp.tls.as_mut());
        let paths = tls.flat_map(|tls| [&mut tls.authorities, &mut tls.key, &mut tls.certificate]);
        for path in paths.chain(transport.uds.iter_mut().map(|uds| &mut uds.name)).filter(|path| !path.is_empty()) {
            *path = folder.join(&*path).display().to_string();
        }
    }

    /// Converts a valid entry into settings.
    fn into_settings(self) -> Result<EgressSelectionSettings, String> {
        let kind = match self.protocol.as_str() {
            "HTTPConnect" => Some(ProxyKind::HttpConnect(ConnectDialect::Konnectivity)),
            "GRPC" => Some(ProxyKind::Grpc),
            _ => None,
        };
        let name = self.name.to_lowercase();
        let route = match kind {
            None => EgressRouteSettings::Direct,
            Some(kind) => {
                let transport = self.transport.unwrap_or_default();
                let mut tls = ProxyTlsFiles::default();
                let address = match (transport.uds, transport.tcp) {
                    (Some(uds), _) => ProxyAddress::Unix(uds.name.into()),
                    (None, tcp) => {
                        let tcp = tcp.unwrap_or_default();
                        tls = tcp.tls.map(TlsClientFiles::into_files).unwrap_or_default();
                        ProxyAddress::Url(proxy_url(&name, &tcp.url)?)
                    }
                };
                EgressRouteSettings::Proxy(ProxySettings {
                    kind,
                    addresses: vec![address],
                    tls,
                    credentials_file: None,
                })
            }
        };
        Ok(EgressSelectionSettings { name, route, no_proxy: NoProxy::default(), dial_timeout: DIAL_TIMEOUT })
    }
}

fn proxy_url(selection: &str, url: &str) -> Result<ProxyUrl, String> {
    ProxyUrl::parse_host(url).map_err(|error| {
        let (selection, url) = (GoQuoted(selection), without_credentials(url));
        format!(
            "failed to setup egress selector: failed to create dialer for egressSelection {selection}: invalid proxy \
             server url {}: {error}",
            GoQuoted(&url)
        )
    })
}

impl TlsClientFiles {
    fn into_files(self) -> ProxyTlsFiles {
        let given = |text: String| Some(text).filter(|text| !text.is_empty());
        ProxyTlsFiles {
            authorities: given(self.authorities).map(PathBuf::from),
            identity: given(self.certificate).map(|certificate| PairFiles::new(certificate, self.key)),
            server_name: given(self.server_name),
        }
    }
}
