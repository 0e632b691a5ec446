//! etcd: its processes, and calls by its JSON gateway.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::certificates::Identity;
use super::process::Process;
use super::{free_port, peer};

/// Calls etcd; the error is its text.
pub(crate) fn call_etcd(address: SocketAddr, method: &str, request: &Value) -> Result<Value, String> {
    let mut text = String::new();
    open_etcd(address, method, request)
        .and_then(|mut answer| answer.read_to_string(&mut text))
        .map_err(|e| e.to_string())?;
    let answer: Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text:.200}"))?;
    match answer["message"].as_str() {
        Some(message) => Err(message.to_owned()),
        None => Ok(answer),
    }
}

/// The body of an answer. HTTP/1.0: neither chunks nor a connection that stays open.
pub(crate) fn open_etcd(address: SocketAddr, method: &str, request: &Value) -> std::io::Result<BufReader<TcpStream>> {
    let mut stream = TcpStream::connect(address)?;
    let body = request.to_string();
    write!(stream, "POST /v3/{method} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
    let mut answer = BufReader::new(stream);
    let mut line = String::new();
    while answer.read_line(&mut line)? > 2 {
        line.clear();
    }
    Ok(answer)
}

/// The values of the keys that begin with `prefix`, which ends with a slash.
pub(crate) fn values_in_etcd(address: SocketAddr, prefix: &str) -> BTreeMap<String, String> {
    let end = format!("{}0", prefix.strip_suffix('/').unwrap());
    let request = json!({"key": BASE64.encode(prefix), "range_end": BASE64.encode(end)});
    let found = call_etcd(address, "kv/range", &request).unwrap();
    let text = |value: &Value| String::from_utf8(BASE64.decode(value.as_str().unwrap()).unwrap()).unwrap();
    found["kvs"].as_array().into_iter().flatten().map(|pair| (text(&pair["key"]), text(&pair["value"]))).collect()
}

/// An etcd of one member with an empty folder, which is reached without TLS.
pub(crate) struct EtcdServer {
    pub(crate) address: SocketAddr,
    process: Process,
    name: String,
    directory: PathBuf,
    arguments: Vec<String>,
}

impl EtcdServer {
    /// Starts it, with more arguments.
    pub(crate) fn start(directory: &Path, name: &str, more: &[String]) -> EtcdServer {
        let mut server = EtcdServer::spawn(directory, name, more);
        server.wait();
        server
    }

    fn spawn(directory: &Path, name: &str, more: &[String]) -> EtcdServer {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let peers = format!("http://127.0.0.1:{}", free_port());
        let mut arguments = vec![
            format!("--data-dir={}", directory.join(name).display()),
            format!("--listen-peer-urls={peers}"),
            "--log-level=warn".to_owned(),
        ];
        if !more.iter().any(|argument| argument.starts_with("--listen-client-urls")) {
            arguments.push(format!("--listen-client-urls=http://{address}"));
            arguments.push(format!("--advertise-client-urls=http://{address}"));
        }
        arguments.extend_from_slice(more);
        let process = Process::start(name, &peer("etcd"), &arguments, directory);
        EtcdServer { address, process, name: name.to_owned(), directory: directory.to_owned(), arguments }
    }

    /// As [`EtcdServer::start`], and with TLS at another port: returns its URL. Clients need a certificate of `authority`.
    pub(crate) fn start_with_tls(
        directory: &Path,
        name: &str,
        serving: &Identity,
        (authority, client): (&Path, &Identity),
    ) -> (EtcdServer, String) {
        let (plain, secure) = (free_port(), format!("https://127.0.0.1:{}", free_port()));
        let more = [
            format!("--listen-client-urls=http://127.0.0.1:{plain},{secure}"),
            format!("--advertise-client-urls={secure}"),
            format!("--cert-file={}", serving.certificate.display()),
            format!("--key-file={}", serving.key.display()),
            format!("--trusted-ca-file={}", authority.display()),
            "--client-cert-auth".to_owned(),
            // Its JSON gateway is a client of one of its listeners.
            format!("--client-cert-file={}", client.certificate.display()),
            format!("--client-key-file={}", client.key.display()),
        ];
        let mut server = EtcdServer::spawn(directory, name, &more);
        server.address.set_port(plain);
        server.wait();
        (server, secure)
    }

    /// Kills it.
    pub(crate) fn kill(&mut self) {
        self.process.signal(Signal::KILL);
        self.process.wait();
    }

    /// Starts it again, at the same address.
    pub(crate) fn restart(&mut self) {
        self.process = Process::start(&self.name, &peer("etcd"), &self.arguments, &self.directory);
        self.wait();
    }

    fn wait(&mut self) {
        let address = self.address;
        self.process.wait_until(|| call_etcd(address, "kv/range", &json!({"key": BASE64.encode("/")})).map(drop));
    }
}

/// Each server allocates 128 MB.
impl Drop for EtcdServer {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(self.directory.join(&self.name));
        }
    }
}
