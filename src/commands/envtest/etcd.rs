//! The program `etcd`: a health check, and the directory of the store.

use std::convert::Infallible;
use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use super::flags::parse_flags;
use crate::commands::envtest_assets::ETCD;
use crate::commands::report_problems;
use crate::commands::signals::{block_on_signals, install_handlers};
use crate::process::Problem;

/// Where a kube-apiserver asks for the store.
pub(super) const STORE_PATH: &str = "/narthex/store";

/// Connections at a time; envtest has one. Further ones wait in the kernel.
const MAX_CONNECTIONS: usize = 64;

/// Time for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// envtest looks for the flag `--unsafe-no-fsync` in this text.
pub(super) const HELP: &str = "\
narthex in place of etcd, for tests: it answers health checks, and narthex in place of kube-apiserver has its store in the
data directory. It is no etcd.

Usage: etcd [OPTIONS]

--data-dir 'default.etcd'
    Directory of the store.
--listen-client-urls 'http://localhost:2379'
    Addresses to listen at.
--unsafe-no-fsync
    Accepted: the store of a test never waits for the disk.

All other flags are accepted and have no effect.
";

/// What a kube-apiserver is told.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StoreLocation {
    /// The absolute path of the data directory.
    pub(super) data_dir: PathBuf,
}

struct EtcdSettings {
    data_dir: PathBuf,
    addresses: Vec<SocketAddr>,
}

/// Serves until SIGTERM or SIGINT. Exit status: 0 then, 1 if it cannot listen.
pub(super) fn run(words: Vec<OsString>) -> ExitCode {
    install_handlers();
    serve(words).unwrap_or_else(|problem| report_problems(ETCD, &problem.into()))
}

fn serve(words: Vec<OsString>) -> Result<ExitCode, Problem> {
    let EtcdSettings { data_dir, addresses } = EtcdSettings::read(words)?;
    std::fs::create_dir_all(&data_dir).map_err(|error| Problem::new(data_dir.display(), error))?;
    let data_dir = std::fs::canonicalize(&data_dir).map_err(|error| Problem::new(data_dir.display(), error))?;
    let mut listeners = Vec::new();
    for address in addresses {
        let failed = |error| Problem::new("--listen-client-urls", format!("{address}: {error}"));
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        listeners.push(listener);
    }
    let location = Bytes::from(serde_json::to_vec(&StoreLocation { data_dir }).unwrap_or_default());
    Ok(block_on_signals(async |signals| {
        let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        for listener in listeners {
            match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => drop(tokio::spawn(accept(listener, connections.clone(), location.clone()))),
                Err(error) => return report_problems(ETCD, &Problem::new("--listen-client-urls", error).into()),
            }
        }
        signals.next().await;
        ExitCode::SUCCESS
    }))
}

impl EtcdSettings {
    fn read(words: Vec<OsString>) -> Result<EtcdSettings, Problem> {
        // etcd has many flags; those without a value begin like this.
        let is_switch = |name: &str| Some(name.starts_with("unsafe-") || name.starts_with("experimental-enable-"));
        let flags = parse_flags(words, is_switch).map_err(|why| Problem::new("command line", why))?;
        let last = |name: &str| flags.iter().rev().find(|(flag, _)| flag == name).map(|(_, value)| value.as_str());
        let urls = last("listen-client-urls").unwrap_or("http://localhost:2379");
        let mut addresses = Vec::new();
        for url in urls.split(',') {
            addresses.extend(resolve(url).map_err(|why| Problem::new("--listen-client-urls", why))?);
        }
        Ok(EtcdSettings { data_dir: Path::new(last("data-dir").unwrap_or("default.etcd")).to_owned(), addresses })
    }
}

/// The addresses of a URL of etcd.
///
/// # Errors
/// For another scheme than http, and a host without addresses.
pub(super) fn resolve(url: &str) -> Result<Vec<SocketAddr>, String> {
    let authority = url.trim().strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
    let authority = authority.ok_or_else(|| format!("{url:?}: only http:// is supported in place of etcd"))?;
    let addresses = authority.to_socket_addrs().map_err(|error| format!("{url:?}: {error}"))?;
    Ok(addresses.collect())
}

async fn accept(listener: tokio::net::TcpListener, connections: Arc<Semaphore>, location: Bytes) {
    while let Ok(permit) = connections.clone().acquire_owned().await {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let location = location.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| std::future::ready(respond(&request, &location)));
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIMEOUT)
                .serve_connection(TokioIo::new(stream), service);
            // The client is gone or does not speak HTTP: there is nothing to say.
            let _ = connection.await;
            drop(permit);
        });
    }
}

fn respond(request: &Request<Incoming>, location: &Bytes) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, body) = match request.uri().path() {
        "/health" | "/readyz" | "/livez" => {
            (StatusCode::OK, Bytes::from_static(b"{\"health\":\"true\",\"reason\":\"\"}"))
        }
        "/version" => {
            let version = concat!("{\"etcdserver\":\"narthex ", env!("CARGO_PKG_VERSION"), "\"}");
            (StatusCode::OK, Bytes::from_static(version.as_bytes()))
        }
        STORE_PATH => (StatusCode::OK, location.clone()),
        _ => {
            (StatusCode::NOT_FOUND, Bytes::from_static(b"{\"message\":\"narthex in place of etcd has no such path\"}"))
        }
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(line: &[&str]) -> Result<EtcdSettings, Problem> {
        EtcdSettings::read(line.iter().map(OsString::from).collect())
    }

    #[test]
    fn etcd_reads_what_envtest_passes() {
        let line = [
            "--advertise-client-urls=http://127.0.0.1:1",
            "--data-dir=/d",
            "--listen-client-urls=http://127.0.0.1:2",
            "--listen-peer-urls=http://localhost:0",
            "--unsafe-no-fsync=true",
        ];
        let EtcdSettings { data_dir, addresses } = settings(&line).unwrap();
        assert_eq!((data_dir, addresses), (PathBuf::from("/d"), vec![([127, 0, 0, 1], 2).into()]));
        // Two words, as fabric8's kube-api-test and jenvtest.
        let line = ["--listen-client-urls", "http://0.0.0.0:2", "--unsafe-no-fsync", "--data-dir", "/d"];
        assert_eq!(settings(&line).unwrap().addresses, [([0, 0, 0, 0], 2).into()]);
        for (line, expected) in [
            ("--listen-client-urls=https://127.0.0.1:2", "only http:// is supported"),
            ("--listen-client-urls=http://127.0.0.1:port", "--listen-client-urls: "),
            ("x", "takes only flags"),
        ] {
            let error = settings(&[line]).err().expect(line).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
