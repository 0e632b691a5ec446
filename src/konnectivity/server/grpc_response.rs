//! Responses of the gRPC protocol: headers, trailers and refusals.

use bytes::{Buf as _, Bytes};
use h2::SendStream;
use h2::server::SendResponse;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::konnectivity::multiplexer::PacketFrame;

/// Status codes of gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GrpcStatus {
    /// What the reference answers to agents that it refuses.
    Unknown = 2,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Internal = 13,
}

/// Characters of `grpc-message` that are escaped.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

/// Sends the response head with additional metadata.
pub(super) fn send_head(
    respond: &mut SendResponse<PacketFrame>,
    metadata: &[(&'static str, String)],
) -> Result<SendStream<PacketFrame>, h2::Error> {
    let mut response = Response::new(());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    for (name, value) in metadata {
        if let Ok(value) = HeaderValue::from_str(value) {
            response.headers_mut().insert(*name, value);
        }
    }
    respond.send_response(response, false)
}

/// Refuses a call with a status and a text.
pub(super) fn refuse(respond: &mut SendResponse<PacketFrame>, status: GrpcStatus, message: &str) {
    let mut response = Response::new(());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    insert_status(headers, status, message);
    // Fails only when the caller has gone.
    let _ = respond.send_response(response, true);
}

/// Ends a call with a status and a text, after its head was sent.
pub(super) fn fail(send: &mut SendStream<PacketFrame>, status: GrpcStatus, message: &str) {
    let mut trailers = HeaderMap::new();
    insert_status(&mut trailers, status, message);
    // Fails only when the caller has gone.
    let _ = send.send_trailers(trailers);
}

fn insert_status(headers: &mut HeaderMap, status: GrpcStatus, message: &str) {
    headers.insert("grpc-status", HeaderValue::from(status as u16));
    if let Ok(message) = HeaderValue::from_str(&utf8_percent_encode(message, ESCAPED).to_string()) {
        headers.insert("grpc-message", message);
    }
}

/// Ends a call successfully.
pub(super) fn finish(send: &mut SendStream<PacketFrame>) {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    // Fails only when the caller has gone.
    let _ = send.send_trailers(trailers);
}

/// A packet without data.
pub(super) fn control_frame(packet: Bytes) -> PacketFrame {
    packet.chain(Bytes::new())
}
