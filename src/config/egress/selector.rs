//! kube-apiserver's `EgressSelectorConfiguration`, decoded and validated as by `ReadEgressSelectorConfiguration` and
//! `ValidateEgressSelectorConfiguration`, with their messages.
//!
//! One difference: HTTPConnect over plain `http://` passes upstream's validation and then crashes kube-apiserver with a
//! nil pointer; here it works.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::READ;
use super::strict::Tree;
use crate::egress::{
    DIAL_TIMEOUT, Dialect, NoProxy, ProxyAddress, ProxyKind, ProxySettings, ProxyTlsFiles, ProxyUrl, SelectionSettings,
    WaySettings, without_credentials,
};
use crate::kubeapi::Quoted;
use crate::tls::PairFiles;

const KIND: &str = "EgressSelectorConfiguration";
const GROUP: &str = "apiserver.k8s.io";
const VERSIONS: [&str; 2] = ["v1beta1", "v1alpha1"];
/// Supported names, in the order of the message.
const NAMES: [&str; 3] = ["cluster", "controlplane", "etcd"];

/// Decodes and validates the selections in `tree`, parsed from `text`. Paths are relative to `folder`; kube-apiserver's
/// are relative to its working directory.
pub(super) fn read(folder: &Path, text: &str, tree: &Tree) -> Result<Vec<SelectionSettings>, String> {
    let mut services = decode(text, tree).map_err(|why| format!("{READ}: {why}"))?;
    services.iter_mut().for_each(|service| service.resolve(folder));
    let mistakes = Mistakes::of(&services);
    match &mistakes.0[..] {
        [] => {}
        [mistake] => return Err(format!("failed to validate egress selector configuration: {mistake}")),
        all => return Err(format!("failed to validate egress selector configuration: [{}]", all.join(", "))),
    }
    services.into_iter().map(Service::settings).collect()
}

/// One entry, like upstream's internal type.
#[derive(Default)]
struct Service {
    name: String,
    protocol: String,
    transport: Option<Transport>,
}

#[derive(Default)]
struct Transport {
    tcp: Option<Tcp>,
    uds: Option<Uds>,
}

#[derive(Default)]
struct Tcp {
    url: String,
    tls: Option<Tls>,
}

#[derive(Default)]
struct Uds {
    name: String,
}

#[derive(Default)]
struct Tls {
    authorities: String,
    key: String,
    certificate: String,
    server_name: String,
}

fn decode(text: &str, tree: &Tree) -> Result<Vec<Service>, String> {
    let version = version(text, &tree.value)?;
    let mut decoder = Decoder { version, fields: Vec::new(), unknown: Vec::new(), mismatch: None };
    let services = decoder.configuration(&tree.value);
    if let Some(mismatch) = decoder.mismatch {
        return Err(mismatch);
    }
    let complaints: Vec<String> = tree.complaint().into_iter().chain(decoder.unknown).collect();
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
        Some(other) => not(kind_of(other)),
    };
    if !matches!(value, Value::Object(_) | Value::Null) {
        return not(kind_of(value));
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
    let known = VERSIONS.into_iter().find(|known| kind == KIND && group == GROUP && version == *known);
    known.ok_or_else(|| {
        format!(
            "no kind {} is registered for version {} in scheme \"narthex\"; use kind {KIND} of {GROUP}/v1beta1, or kind \
             {} of {}",
            Quoted(kind),
            Quoted(api_version),
            super::ours::KIND,
            super::ours::API_VERSION
        )
    })
}

fn kind_of(value: &Value) -> &'static str {
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
struct Decoder {
    version: &'static str,
    /// Names of the enclosing fields, without indices.
    fields: Vec<&'static str>,
    unknown: Vec<String>,
    mismatch: Option<String>,
}

/// A field of a mapping, with its value.
struct Field<'v> {
    name: &'static str,
    path: String,
    value: &'v Value,
}

impl Decoder {
    fn configuration(&mut self, value: &Value) -> Vec<Service> {
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

    fn service(&mut self, path: &str, value: &Value) -> Service {
        const TYPE: &str = "EgressSelection";
        let mut service = Service::default();
        self.mapping(TYPE, path, value, &["name", "connection"], |this, field| match field.name {
            "name" => service.name = this.text(TYPE, &field),
            _ => (service.protocol, service.transport) = this.below(&field, Decoder::connection).unwrap_or_default(),
        });
        // The alias of the first versions; case-sensitive.
        if service.name == "master" {
            service.name = "controlplane".to_owned();
        }
        service
    }

    fn connection(&mut self, path: &str, value: &Value) -> (String, Option<Transport>) {
        const TYPE: &str = "Connection";
        let (mut protocol, mut transport) = (String::new(), None);
        self.mapping(TYPE, path, value, &["proxyProtocol", "transport"], |this, field| match field.name {
            "proxyProtocol" => protocol = this.text(TYPE, &field),
            _ => transport = this.below(&field, Decoder::transport),
        });
        (protocol, transport)
    }

    fn transport(&mut self, path: &str, value: &Value) -> Transport {
        let mut transport = Transport::default();
        self.mapping("Transport", path, value, &["tcp", "uds"], |this, field| match field.name {
            "tcp" => transport.tcp = this.below(&field, Decoder::tcp),
            _ => transport.uds = this.below(&field, Decoder::uds),
        });
        transport
    }

    fn tcp(&mut self, path: &str, value: &Value) -> Tcp {
        const TYPE: &str = "TCPTransport";
        let mut tcp = Tcp::default();
        self.mapping(TYPE, path, value, &["url", "tlsConfig"], |this, field| match field.name {
            "url" => tcp.url = this.text(TYPE, &field),
            _ => tcp.tls = this.below(&field, Decoder::tls),
        });
        tcp
    }

    fn uds(&mut self, path: &str, value: &Value) -> Uds {
        const TYPE: &str = "UDSTransport";
        let mut uds = Uds::default();
        self.mapping(TYPE, path, value, &["udsName"], |this, field| uds.name = this.text(TYPE, &field));
        uds
    }

    fn tls(&mut self, path: &str, value: &Value) -> Tls {
        const TYPE: &str = "TLSConfig";
        let mut tls = Tls::default();
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
    fn below<T>(&mut self, field: &Field<'_>, read: impl FnOnce(&mut Decoder, &str, &Value) -> T) -> Option<T> {
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
        known: &[&'static str],
        mut each: impl FnMut(&mut Decoder, Field<'v>),
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
            match known.iter().find(|known| *known == key) {
                Some(name) => each(self, Field { name, path, value }),
                None => self.unknown.push(format!("unknown field {}", Quoted(&path))),
            }
        }
    }

    fn text(&mut self, of: &str, field: &Field<'_>) -> String {
        match field.value {
            Value::String(text) => return text.clone(),
            Value::Null => {}
            other => self.mismatch(of, field.name, other, "string"),
        }
        String::new()
    }

    /// Records a type mismatch. Only the first is reported, as in Go.
    fn mismatch(&mut self, of: &str, field: &str, value: &Value, wanted: &str) {
        let wanted = wanted.replace("VERSION", self.version);
        let path: Vec<&str> = self.fields.iter().copied().chain([field]).collect();
        self.mismatch.get_or_insert_with(|| {
            let path = path.join(".");
            format!("json: cannot unmarshal {} into Go struct field {of}.{path} of type {wanted}", kind_of(value))
        });
    }
}

/// The errors of `field.ErrorList`, in order and without duplicates.
struct Mistakes(Vec<String>);

impl Mistakes {
    fn of(services: &[Service]) -> Mistakes {
        let mut mistakes = Mistakes(Vec::new());
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
        let mut seen = BTreeSet::new();
        for (number, service) in services.iter().enumerate() {
            let name = service.name.to_lowercase();
            if !seen.insert(name.clone()) {
                mistakes.add(format!("service.connection[{number}]: Duplicate value: {}", Quoted(&name)));
            } else if !NAMES.contains(&&*name) {
                mistakes.not_supported("", &name, &NAMES);
            }
        }
        mistakes
    }

    fn http_connect(&mut self, transport: Option<&Transport>) {
        match transport {
            None => self.required("transport", "transport must be set for HTTPConnect"),
            Some(Transport { tcp: Some(tcp), uds: Some(_) }) => {
                let message = "TCP and UDS cannot both be set";
                self.add(format!("service.connection.tcp: Invalid value: {}: {message}", tcp.as_json()));
            }
            Some(Transport { tcp: None, uds: None }) => self.required("tcp", "One of TCP or UDS must be set"),
            Some(Transport { tcp: Some(tcp), uds: None }) => self.tcp(tcp),
            Some(Transport { tcp: None, uds: Some(uds) }) => self.uds(uds),
        }
    }

    fn grpc(&mut self, transport: Option<&Transport>) {
        match transport {
            None => self.required("transport", "transport must be set for GRPC"),
            Some(Transport { uds: Some(uds), .. }) => self.uds(uds),
            Some(Transport { uds: None, .. }) => self.required("uds", "UDS must be set with GRPC"),
        }
    }

    fn uds(&mut self, uds: &Uds) {
        if uds.name.is_empty() {
            self.invalid("udsName", "nil", "must be present for UDS connections");
        }
    }

    fn tcp(&mut self, tcp: &Tcp) {
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

    fn tls(&mut self, tls: &Tls) {
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
        self.add(format!("service.connection.{field}: Invalid value: {}: {message}", Quoted(value)));
    }

    fn required(&mut self, field: &str, message: impl Display) {
        self.add(format!("service.connection.{field}: Required value: {message}"));
    }

    fn not_supported(&mut self, field: &str, value: &str, supported: &[&str]) {
        let supported: Vec<String> = supported.iter().map(|it| Quoted(it).to_string()).collect();
        let (value, supported) = (Quoted(value), supported.join(", "));
        self.add(format!("service.connection{field}: Unsupported value: {value}: supported values: {supported}"));
    }

    fn add(&mut self, mistake: String) {
        if !self.0.contains(&mistake) {
            self.0.push(mistake);
        }
    }
}

impl Tcp {
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

impl Service {
    fn resolve(&mut self, folder: &Path) {
        let Some(transport) = &mut self.transport else { return };
        let tls = transport.tcp.iter_mut().filter_map(|tcp| tcp.tls.as_mut());
        let paths = tls.flat_map(|tls| [&mut tls.authorities, &mut tls.key, &mut tls.certificate]);
        for path in paths.chain(transport.uds.iter_mut().map(|uds| &mut uds.name)).filter(|path| !path.is_empty()) {
            *path = folder.join(&*path).display().to_string();
        }
    }

    /// Converts a valid entry into settings.
    fn settings(self) -> Result<SelectionSettings, String> {
        let kind = match self.protocol.as_str() {
            "HTTPConnect" => Some(ProxyKind::HttpConnect(Dialect::Konnectivity)),
            "GRPC" => Some(ProxyKind::Grpc),
            _ => None,
        };
        let name = self.name.to_lowercase();
        let way = match kind {
            None => WaySettings::Direct,
            Some(kind) => {
                let transport = self.transport.unwrap_or_default();
                let mut tls = ProxyTlsFiles::default();
                let address = match (transport.uds, transport.tcp) {
                    (Some(uds), _) => ProxyAddress::Unix(uds.name.into()),
                    (None, tcp) => {
                        let tcp = tcp.unwrap_or_default();
                        tls = tcp.tls.map(Tls::files).unwrap_or_default();
                        ProxyAddress::Url(url(&name, &tcp.url)?)
                    }
                };
                WaySettings::Proxy(ProxySettings { kind, addresses: vec![address], tls, credentials_file: None })
            }
        };
        Ok(SelectionSettings { name, way, no_proxy: NoProxy::default(), dial_timeout: DIAL_TIMEOUT })
    }
}

fn url(selection: &str, url: &str) -> Result<ProxyUrl, String> {
    ProxyUrl::parse_host(url).map_err(|error| {
        let (selection, url) = (Quoted(selection), without_credentials(url));
        format!(
            "failed to setup egress selector: failed to create dialer for egressSelection {selection}: invalid proxy \
             server url {}: {error}",
            Quoted(&url)
        )
    })
}

impl Tls {
    fn files(self) -> ProxyTlsFiles {
        let given = |text: String| Some(text).filter(|text| !text.is_empty());
        ProxyTlsFiles {
            authorities: given(self.authorities).map(PathBuf::from),
            identity: given(self.certificate).map(|certificate| PairFiles::new(certificate, self.key)),
            server_name: given(self.server_name),
        }
    }
}
