//! The kind `EgressConfiguration` of narthex.dev: SOCKS5, ordinary HTTP proxies, several proxies per selection,
//! selections with any name, and `noProxy`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kubeapi::{duration, is_dns_subdomain};

use crate::egress::{
    ConnectDialect, DIAL_TIMEOUT, EgressRouteSettings, EgressSelectionSettings, NoProxy, ProxyAddress, ProxyKind,
    ProxyScheme, ProxySettings, ProxyTlsFiles, ProxyUrl, without_credentials,
};
use crate::process::{FieldReader, Problems, is_json, parse_single_object};
use crate::tls::PairFiles;

pub(super) const API_VERSION: &str = "narthex.dev/v1alpha1";
pub(super) const KIND: &str = "EgressConfiguration";

/// Maximum length of a user or password in SOCKS5 (RFC 1929).
const LONGEST_SOCKS_WORD: usize = 255;

/// Reads the selections of the file at `path`; problems name `location`.
pub(super) fn read(path: &Path, location: &str, text: &str) -> Result<Vec<EgressSelectionSettings>, Problems> {
    let folder = path.parent().unwrap_or(Path::new(""));
    parse_single_object(location, text, is_json(path), &[API_VERSION], KIND, |fields| {
        let mut names = BTreeSet::new();
        let selections = fields.object_list("egressSelections");
        selections.into_iter().filter_map(|one| selection(one, folder, &mut names)).collect()
    })
}

fn selection(
    mut fields: FieldReader<'_>,
    folder: &Path,
    names: &mut BTreeSet<String>,
) -> Option<EgressSelectionSettings> {
    let name = selection_name(&mut fields, names);
    let route = match fields.object("connection") {
        Some(connection) => connection_route(connection, folder),
        None => {
            fields.add_problem("connection", "required");
            None
        }
    };
    let no_proxy = no_proxy(&mut fields, route.as_ref());
    let dial_timeout = dial_timeout(&mut fields);
    fields.finish();
    Some(EgressSelectionSettings { name: name?, route: route?, no_proxy: no_proxy?, dial_timeout: dial_timeout? })
}

/// Reads the name of a selection. As in kube-apiserver's kind, case is ignored, and `master` means `controlplane`.
fn selection_name(fields: &mut FieldReader<'_>, names: &mut BTreeSet<String>) -> Option<String> {
    let configured = fields.string("name");
    let name = match configured.to_lowercase() {
        name if name == "master" => "controlplane".to_owned(),
        name => name,
    };
    if name.is_empty() {
        fields.add_problem("name", "required: cluster, controlplane, or a name that an APIService's annotation picks");
        return None;
    }
    if !is_dns_subdomain(&name) {
        fields.add_problem("name", format_args!("{configured:?} does not fit; use letters, digits and dashes"));
        return None;
    }
    if !names.insert(name.clone()) {
        fields.add_problem("name", format_args!("{name:?} is given more than once"));
    }
    Some(name)
}

fn connection_route(mut fields: FieldReader<'_>, folder: &Path) -> Option<EgressRouteSettings> {
    const PROTOCOLS: &str = "Direct, SOCKS5, HTTPConnect or GRPC";
    let protocol = fields.string("proxyProtocol");
    let kind = match &*protocol {
        "Direct" => {
            fields.ignore("transport");
            if fields.contains("transport") {
                fields.add_problem("transport", "not used with Direct; leave it out");
            }
            fields.finish();
            return Some(EgressRouteSettings::Direct);
        }
        "SOCKS5" => Some(ProxyKind::Socks5),
        "HTTPConnect" => Some(ProxyKind::HttpConnect(ConnectDialect::Ordinary)),
        "GRPC" => Some(ProxyKind::Grpc),
        "" => {
            fields.add_problem("proxyProtocol", format_args!("required; use {PROTOCOLS}"));
            None
        }
        other => {
            fields.add_problem("proxyProtocol", format_args!("{other:?} is not supported; use {PROTOCOLS}"));
            None
        }
    };
    let transport = fields.object("transport");
    if let (Some(kind), None) = (kind, &transport) {
        fields.add_problem("transport", format_args!("required with {}", kind.as_str()));
    }
    fields.finish();
    // Without the protocol, the transport cannot be checked.
    transport_settings(transport?, kind?, folder).map(EgressRouteSettings::Proxy)
}

fn transport_settings(mut fields: FieldReader<'_>, kind: ProxyKind, folder: &Path) -> Option<ProxySettings> {
    let (tcp, uds) = (fields.object("tcp"), fields.object("uds"));
    let settings = match (tcp, uds) {
        (None, None) => {
            fields.add_own_problem(if kind == ProxyKind::Socks5 { "needs tcp" } else { "needs tcp or uds" });
            None
        }
        (Some(_), Some(_)) => {
            fields.add_own_problem("tcp and uds cannot both be given");
            None
        }
        (Some(tcp), None) => tcp_settings(tcp, kind, folder),
        (None, Some(_)) if kind == ProxyKind::Socks5 => {
            fields.add_problem("uds", "not used with SOCKS5; use tcp");
            None
        }
        (None, Some(mut uds)) => {
            let name = uds.string("udsName");
            if name.is_empty() {
                uds.add_problem("udsName", "required: the path of a Unix domain socket");
            }
            uds.finish();
            let addresses = vec![ProxyAddress::Unix(folder.join(name))];
            Some(ProxySettings { kind, addresses, tls: ProxyTlsFiles::default(), credentials_file: None })
        }
    };
    fields.finish();
    settings
}

fn tcp_settings(mut fields: FieldReader<'_>, kind: ProxyKind, folder: &Path) -> Option<ProxySettings> {
    let urls = proxy_urls(&mut fields, kind);
    let credentials_file = fields.optional_string("credentialsFile").filter(|path| !path.is_empty());
    if credentials_file.is_some() {
        if kind == ProxyKind::Grpc {
            fields.add_problem(
                "credentialsFile",
                "GRPC does not support user and password; use a certificate in tlsConfig",
            );
        } else if urls.iter().flatten().any(|url| url.credentials.is_some()) {
            fields.add_problem("credentialsFile", "cannot be given together with a user in the URL");
        }
    }
    let secure = urls.as_ref().map(|urls| urls.iter().any(|url| url.scheme == ProxyScheme::Https));
    let tls = match fields.object("tlsConfig") {
        Some(tls) if secure == Some(false) => {
            fields.add_problem("tlsConfig", "not used: no URL begins with https");
            tls_files(tls, kind, folder)
        }
        Some(tls) => tls_files(tls, kind, folder),
        None => {
            if secure == Some(true) && kind == ProxyKind::Grpc {
                fields.add_problem("tlsConfig", "required with GRPC over https: clientCert and clientKey");
            }
            ProxyTlsFiles::default()
        }
    };
    fields.finish();
    let addresses = urls?.into_iter().map(ProxyAddress::Url).collect();
    Some(ProxySettings { kind, addresses, tls, credentials_file: credentials_file.map(|path| folder.join(path)) })
}

/// Reads `url` or `proxy_urls`; none if any is invalid.
fn proxy_urls(fields: &mut FieldReader<'_>, kind: ProxyKind) -> Option<Vec<ProxyUrl>> {
    let one = fields.optional_string("url").filter(|url| !url.is_empty());
    let several = fields.string_list("urls");
    let entries: Vec<(String, String)> = match (one, several.is_empty()) {
        (Some(_), false) => {
            fields.add_problem("urls", "cannot be given together with url");
            return None;
        }
        (None, true) => {
            fields.add_problem("url", "required; or urls for several");
            return None;
        }
        (Some(url), true) => vec![("url".to_owned(), url)],
        (None, false) => several.into_iter().enumerate().map(|(n, url)| (format!("urls[{n}]"), url)).collect(),
    };
    let mut urls: Vec<ProxyUrl> = Vec::new();
    let mut sound = true;
    for (field, text) in entries {
        match proxy_url(kind, &text) {
            Ok(url) if urls.contains(&url) => {
                fields.add_problem(&field, format_args!("{:?} is given more than once", url.to_string()));
                sound = false;
            }
            Ok(url) => urls.push(url),
            Err(why) => {
                fields.add_problem(&field, format_args!("{:?}: {why}", without_credentials(&text)));
                sound = false;
            }
        }
    }
    sound.then_some(urls)
}

fn proxy_url(kind: ProxyKind, text: &str) -> Result<ProxyUrl, String> {
    let url = ProxyUrl::parse(text).map_err(|error| error.to_string())?;
    let socks = matches!(url.scheme, ProxyScheme::Socks5 | ProxyScheme::Socks5Local);
    match kind {
        ProxyKind::Socks5 if !socks => {
            return Err(
                "use socks5:// (names resolved by the proxy) or socks5-local:// (resolved locally) with SOCKS5"
                    .to_owned(),
            );
        }
        ProxyKind::HttpConnect(_) | ProxyKind::Grpc if socks => {
            return Err(format!("use http:// or https:// with {}", kind.as_str()));
        }
        _ => {}
    }
    if let Some(credentials) = &url.credentials {
        let longest = credentials.user().len().max(credentials.password().len());
        if kind == ProxyKind::Grpc {
            return Err("GRPC does not support user and password; use a certificate in tlsConfig".to_owned());
        }
        if socks && longest > LONGEST_SOCKS_WORD {
            return Err(format!("a user or password of SOCKS5 has at most {LONGEST_SOCKS_WORD} bytes"));
        }
    }
    Ok(url)
}

fn tls_files(mut fields: FieldReader<'_>, kind: ProxyKind, folder: &Path) -> ProxyTlsFiles {
    let mut path = |name| fields.optional_string(name).filter(|path| !path.is_empty()).map(|path| folder.join(path));
    let (authorities, certificate, key): (_, Option<PathBuf>, Option<PathBuf>) =
        (path("caBundle"), path("clientCert"), path("clientKey"));
    let identity = match (certificate, key) {
        (Some(certificate), Some(key)) => Some(PairFiles::new(certificate, key)),
        (None, None) => {
            if kind == ProxyKind::Grpc {
                fields.add_problem("clientCert", "required with GRPC, and clientKey");
            }
            None
        }
        (Some(_), None) => {
            fields.add_problem("clientKey", "required with clientCert");
            None
        }
        (None, Some(_)) => {
            fields.add_problem("clientCert", "required with clientKey");
            None
        }
    };
    let server_name = fields.optional_string("tlsServerName").filter(|name| !name.is_empty());
    if let Some(Err(problem)) = server_name.as_deref().map(crate::tls::client::server_name) {
        fields.add_problem("tlsServerName", problem.message);
    }
    fields.finish();
    ProxyTlsFiles { authorities, identity, server_name }
}

fn no_proxy(fields: &mut FieldReader<'_>, route: Option<&EgressRouteSettings>) -> Option<NoProxy> {
    let entries = fields.string_list("noProxy");
    if route == Some(&EgressRouteSettings::Direct) && !entries.is_empty() {
        fields.add_problem("noProxy", "not used with Direct; leave it out");
    }
    match NoProxy::parse(entries.iter().map(String::as_str)) {
        Ok(no_proxy) => Some(no_proxy),
        Err(mistakes) => {
            for (number, mistake) in mistakes {
                let entry = entries.get(number).map(String::as_str).unwrap_or_default();
                fields.add_problem(&format!("noProxy[{number}]"), format_args!("{entry:?}: {mistake}"));
            }
            None
        }
    }
}

fn dial_timeout(fields: &mut FieldReader<'_>) -> Option<Duration> {
    let Some(text) = fields.optional_string("dialTimeout") else { return Some(DIAL_TIMEOUT) };
    match duration::parse(&text) {
        Ok(timeout) if timeout.is_zero() => fields.add_problem("dialTimeout", "must be greater than 0"),
        Ok(timeout) => return Some(timeout),
        Err(error) => fields.add_problem("dialTimeout", error),
    }
    None
}
