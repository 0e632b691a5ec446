//! `TracingConfiguration` of `apiserver.config.k8s.io` (`k8s.io/component-base/tracing/api/v1`).

use std::fmt;
use std::path::{Path, PathBuf};

use crate::message::split_authority;
use crate::process::{FieldReader, Problems, is_json, parse_configuration, read_text_file};

/// Maximum size of the file.
const MAX_SIZE: u64 = 1 << 20;
/// Maximum of `samplingRatePerMillion`.
const MILLION: u32 = 1_000_000;
/// Port of OTLP over gRPC.
const OTLP_PORT: u16 = 4317;
/// Default port of gRPC's `dns` resolver.
const GRPC_PORT: u16 = 443;

/// Address of the collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CollectorEndpoint {
    /// Host and port.
    Tcp(String, u16),
    /// Unix domain socket; an abstract one begins with a zero byte.
    Unix(PathBuf),
}

/// Where spans are sent, and how many requests are sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracingConfiguration {
    /// `endpoint`: the collector.
    pub endpoint: CollectorEndpoint,
    /// `samplingRatePerMillion`; with 0 only traces of trusted callers are sampled, if they are.
    pub sampling_rate_per_million: u32,
}

impl TracingConfiguration {
    /// Reads the file: YAML, or JSON if its name ends in `.json`.
    ///
    /// # Errors
    /// All problems at once. Unknown fields are errors, as in kube-apiserver.
    pub fn load(path: &Path) -> Result<TracingConfiguration, Problems> {
        let text = read_text_file(path, MAX_SIZE)?;
        TracingConfiguration::parse(&path.display().to_string(), &text, is_json(path))
    }

    fn parse(location: &str, text: &str, json: bool) -> Result<TracingConfiguration, Problems> {
        parse_configuration(location, text, json, "TracingConfiguration", |fields| TracingConfiguration {
            endpoint: endpoint(fields),
            sampling_rate_per_million: sampling_rate(fields),
        })
    }
}

fn sampling_rate(fields: &mut FieldReader<'_>) -> u32 {
    const FIELD: &str = "samplingRatePerMillion";
    let rate = fields.optional_integer(FIELD).unwrap_or_default();
    match u32::try_from(rate) {
        Ok(rate) if rate <= MILLION => rate,
        _ => {
            fields.add_problem(FIELD, format_args!("{rate} is not from 0 to {MILLION}"));
            0
        }
    }
}

fn endpoint(fields: &mut FieldReader<'_>) -> CollectorEndpoint {
    const FIELD: &str = "endpoint";
    let default = CollectorEndpoint::Tcp("localhost".to_owned(), OTLP_PORT);
    let Some(text) = fields.optional_string(FIELD) else { return default };
    CollectorEndpoint::parse(&text).unwrap_or_else(|why| {
        fields.add_problem(FIELD, format_args!("{text:?}: {why}"));
        default
    })
}

impl CollectorEndpoint {
    /// Parses a target of gRPC: `HOST:PORT`, `dns:///HOST:PORT`, `unix:///PATH` or `unix-abstract:///NAME`.
    fn parse(text: &str) -> Result<CollectorEndpoint, String> {
        let Some((scheme, rest)) = text.split_once("://") else { return CollectorEndpoint::parse_tcp(text) };
        let (authority, path) = match rest.split_once('/') {
            Some((authority, path)) => (authority, path),
            None => (rest, ""),
        };
        match scheme {
            "dns" | "unix" | "unix-abstract" if path.is_empty() || !authority.is_empty() => {
                let form = if scheme == "dns" { "HOST:PORT" } else { "PATH" };
                Err(format!("use three slashes: {scheme}:///{form}"))
            }
            "dns" => CollectorEndpoint::parse_tcp(path),
            "unix" => Ok(CollectorEndpoint::Unix(format!("/{path}").into())),
            "unix-abstract" => Ok(CollectorEndpoint::Unix(format!("\0/{path}").into())),
            _ => Err(format!(
                "unsupported scheme {scheme:?}; use HOST:PORT, dns:///HOST:PORT, unix:///PATH or unix-abstract:///NAME"
            )),
        }
    }

    fn parse_tcp(text: &str) -> Result<CollectorEndpoint, String> {
        match split_authority(text) {
            Some((host, port)) if !text.ends_with(':') && text.parse::<http::uri::Authority>().is_ok() => {
                Ok(CollectorEndpoint::Tcp(host.to_owned(), port.unwrap_or(GRPC_PORT)))
            }
            _ => Err("not a host with a port; use HOST:PORT".to_owned()),
        }
    }

    /// Value of the pseudo-header `:authority` of gRPC.
    pub fn authority(&self) -> String {
        match self {
            CollectorEndpoint::Tcp(..) => self.to_string(),
            CollectorEndpoint::Unix(_) => "localhost".to_owned(),
        }
    }
}

impl fmt::Display for CollectorEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CollectorEndpoint::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            CollectorEndpoint::Tcp(host, port) => write!(f, "{host}:{port}"),
            CollectorEndpoint::Unix(path) => {
                let path = path.to_string_lossy();
                match path.strip_prefix('\0') {
                    Some(name) => write!(f, "unix-abstract:{name}"),
                    None => write!(f, "unix:{path}"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n";

    fn parse(fields: &str) -> Result<TracingConfiguration, String> {
        TracingConfiguration::parse("t.yaml", &format!("{HEADER}{fields}"), false).map_err(|found| found.to_string())
    }

    #[test]
    fn tracing_configuration_defaults_as_upstream() {
        let configuration = parse("").unwrap();
        assert_eq!(configuration.endpoint.to_string(), "localhost:4317");
        assert_eq!(configuration.sampling_rate_per_million, 0);
        for version in ["v1", "v1beta1", "v1alpha1"] {
            let text = format!(
                "{{\"apiVersion\": \"apiserver.config.k8s.io/{version}\", \"kind\": \"TracingConfiguration\"}}"
            );
            assert_eq!(TracingConfiguration::parse("t.json", &text, true).unwrap(), configuration, "{version}");
        }
    }

    #[test]
    fn tracing_configuration_accepts_grpc_targets() {
        for (text, expected) in [
            ("collector:4317", "collector:4317"),
            ("10.0.0.1:4317", "10.0.0.1:4317"),
            ("\"[::1]:4317\"", "[::1]:4317"),
            ("dns:///collector.ns.svc:4317", "collector.ns.svc:4317"),
            ("dns:///collector", "collector:443"),
            ("unix:///run/otel.sock", "unix:/run/otel.sock"),
            ("unix-abstract:///otel", "unix-abstract:/otel"),
        ] {
            let configuration = parse(&format!("endpoint: {text}\nsamplingRatePerMillion: 1000000\n")).unwrap();
            assert_eq!(configuration.endpoint.to_string(), expected);
            assert_eq!(configuration.sampling_rate_per_million, 1_000_000);
        }
        let socket = parse("endpoint: unix-abstract:///otel").unwrap().endpoint;
        assert_eq!((socket.authority().as_str(), socket), ("localhost", CollectorEndpoint::Unix("\0/otel".into())));
    }

    #[test]
    fn tracing_configuration_reports_all_errors() {
        for (fields, expected) in [
            ("samplingRatePerMillion: -1", "t.yaml: samplingRatePerMillion: -1 is not from 0 to 1000000"),
            ("samplingRatePerMillion: 1000001", "t.yaml: samplingRatePerMillion: 1000001 is not from 0 to 1000000"),
            (
                "samplingRatePerMillion: 0.5",
                "t.yaml: samplingRatePerMillion: a number does not fit; a whole number is needed",
            ),
            (
                "samplingRatePerMillion: all\nendpoint: http://localhost:4317\nsamplingRate: 1",
                "t.yaml: endpoint: \"http://localhost:4317\": unsupported scheme \"http\"; use HOST:PORT, dns:///HOST:PORT, \
                 unix:///PATH or unix-abstract:///NAME\n\
                 t.yaml: samplingRatePerMillion: a text does not fit; a whole number is needed\n\
                 t.yaml: samplingRate: unknown field; did you mean samplingRatePerMillion?",
            ),
            (
                "endpoint: dns://collector:4317",
                "t.yaml: endpoint: \"dns://collector:4317\": use three slashes: dns:///HOST:PORT",
            ),
            ("endpoint: unix://run/otel", "t.yaml: endpoint: \"unix://run/otel\": use three slashes: unix:///PATH"),
            ("endpoint: ''", "t.yaml: endpoint: \"\": not a host with a port; use HOST:PORT"),
            ("endpoint: 'collector:'", "t.yaml: endpoint: \"collector:\": not a host with a port; use HOST:PORT"),
        ] {
            assert_eq!(parse(fields).unwrap_err(), expected);
        }
        let text = "apiVersion: apiserver.config.k8s.io/v2\nkind: Tracing\n";
        let found = TracingConfiguration::parse("t.yaml", text, false).unwrap_err().to_string();
        assert_eq!(
            found,
            "t.yaml: kind: \"Tracing\" does not fit; TracingConfiguration is needed\n\
             t.yaml: apiVersion: \"apiserver.config.k8s.io/v2\" does not fit; apiserver.config.k8s.io/v1 is needed"
        );
    }
}
