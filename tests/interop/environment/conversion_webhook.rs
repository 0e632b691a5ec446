//! A CRD conversion webhook called by kube-apiserver.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use super::Identity;

/// Converts an object to an API version, or returns the failure message.
pub(crate) type ConvertFn = fn(Value, &str) -> Result<Value, &'static str>;

/// Starts the webhook on loopback, until the test process ends, and returns its port.
pub(crate) fn start_conversion_webhook(identity: &Identity, convert: ConvertFn) -> u16 {
    let chain = CertificateDer::pem_file_iter(&identity.certificate).unwrap().map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_file(&identity.key).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let versions = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(versions.with_no_client_auth().with_single_cert(chain, key).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let config = config.clone();
            std::thread::spawn(move || handle_connection(stream, config, convert));
        }
    });
    port
}

/// Answers one ConversionReview and closes the connection.
fn handle_connection(stream: TcpStream, config: Arc<ServerConfig>, convert: ConvertFn) -> std::io::Result<()> {
    let connection = ServerConnection::new(config).map_err(std::io::Error::other)?;
    let mut stream = BufReader::new(StreamOwned::new(connection, stream));
    let (mut line, mut length) = (String::new(), 0);
    while stream.read_line(&mut line)? > 2 {
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().map_err(std::io::Error::other)?;
        }
        line.clear();
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    let review: Value = serde_json::from_slice(&body)?;
    let version = review["request"]["desiredAPIVersion"].as_str().unwrap_or_default();
    let objects = review["request"]["objects"].as_array().cloned().unwrap_or_default();
    let converted: Result<Vec<Value>, &str> = objects.into_iter().map(|object| convert(object, version)).collect();
    let mut response = json!({"uid": review["request"]["uid"], "result": {"status": "Success"}});
    match converted {
        Ok(objects) => response["convertedObjects"] = objects.into(),
        Err(message) => response["result"] = json!({"status": "Failure", "message": message}),
    }
    let review = json!({"apiVersion": review["apiVersion"], "kind": "ConversionReview", "response": response});
    let text = review.to_string();
    let stream = stream.get_mut();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{text}",
        text.len()
    )?;
    stream.flush()?;
    stream.conn.send_close_notify();
    stream.flush()
}
