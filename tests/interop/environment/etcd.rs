//! etcd by its JSON gateway.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

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
