//! A collector of traces: OTLP over gRPC, as strict as its specification.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::{Buf, Bytes, BytesMut};
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, Request, Response};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::net::{TcpListener, TcpStream};

use crate::support::fixtures::eventually;

/// The spans of all calls, with their resource's attributes.
type ReceivedSpans = Arc<Mutex<Vec<ReceivedSpan>>>;

/// One span.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedSpan {
    pub(crate) resource: BTreeMap<String, String>,
    pub(crate) attributes: BTreeMap<String, String>,
    pub(crate) span: Span,
}

/// A running collector.
pub(crate) struct FakeCollector {
    pub(crate) address: SocketAddr,
    spans: ReceivedSpans,
}

impl FakeCollector {
    pub(crate) async fn start() -> FakeCollector {
        FakeCollector::start_at("127.0.0.1:0".parse().unwrap()).await
    }

    pub(crate) async fn start_at(address: SocketAddr) -> FakeCollector {
        let listener = TcpListener::bind(address).await.unwrap();
        let collector = FakeCollector { address: listener.local_addr().unwrap(), spans: Arc::default() };
        let spans = collector.spans.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, spans.clone()));
            }
        });
        collector
    }

    /// All spans, in the order of their arrival.
    pub(crate) fn spans(&self) -> Vec<ReceivedSpan> {
        self.spans.lock().unwrap().clone()
    }

    /// All spans, once there are `count`.
    pub(crate) async fn wait_for_spans(&self, count: usize) -> Vec<ReceivedSpan> {
        eventually(&format!("{count} spans"), async || {
            let spans = self.spans();
            assert!(spans.len() <= count, "{spans:#?}");
            (spans.len() == count).then_some(spans)
        })
        .await
    }
}

impl ReceivedSpan {
    /// The `traceparent` that refers to this span.
    pub(crate) fn traceparent(&self) -> String {
        format!("00-{}-{}-01", hex(&self.span.trace_id), hex(&self.span.span_id))
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn serve(stream: TcpStream, spans: ReceivedSpans) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    while let Some(Ok((request, respond))) = connection.accept().await {
        let spans = spans.clone();
        tokio::spawn(answer(request, respond, spans));
    }
}

async fn answer(request: Request<RecvStream>, mut respond: SendResponse<Bytes>, spans: ReceivedSpans) {
    let (head, body) = request.into_parts();
    assert_eq!((head.method.as_str(), head.uri.scheme_str()), ("POST", Some("http")));
    assert_eq!(head.uri.path(), "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
    assert_eq!(
        (&head.headers["content-type"], &head.headers["te"]),
        (&"application/grpc".parse().unwrap(), &"trailers".parse().unwrap())
    );
    let message = read_message(body).await;
    let request = ExportTraceServiceRequest::decode(message).unwrap();
    spans.lock().unwrap().extend(checked_spans(request));
    let response = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
    let mut stream = respond.send_response(response, false).unwrap();
    let reply = ExportTraceServiceResponse::default().encode_to_vec();
    let mut frame = vec![0, 0, 0, 0, reply.len() as u8];
    frame.extend(reply);
    stream.send_data(frame.into(), false).unwrap();
    stream.send_trailers(HeaderMap::from_iter([("grpc-status".parse().unwrap(), "0".parse().unwrap())])).unwrap();
}

/// The one message of a call, without compression.
async fn read_message(mut body: RecvStream) -> Bytes {
    let mut data = BytesMut::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk.unwrap();
        body.flow_control().release_capacity(chunk.len()).unwrap();
        data.extend_from_slice(&chunk);
    }
    assert_eq!(data.get_u8(), 0, "compressed");
    assert_eq!(data.get_u32() as usize, data.len());
    data.freeze()
}

fn checked_spans(request: ExportTraceServiceRequest) -> Vec<ReceivedSpan> {
    let mut spans = Vec::new();
    for part in request.resource_spans {
        let resource = attributes(&part.resource.unwrap().attributes);
        for scope in part.scope_spans {
            assert_eq!(scope.scope.unwrap().name, "narthex");
            for span in scope.spans {
                assert!(span.trace_id.len() == 16 && span.trace_id.iter().any(|byte| *byte != 0), "{span:?}");
                assert!(span.span_id.len() == 8 && span.span_id.iter().any(|byte| *byte != 0), "{span:?}");
                assert!(matches!(span.parent_span_id.len(), 0 | 8), "{span:?}");
                assert!(
                    0 < span.start_time_unix_nano && span.start_time_unix_nano <= span.end_time_unix_nano,
                    "{span:?}"
                );
                assert!(!span.name.is_empty() && span.kind != 0, "{span:?}");
                spans.push(ReceivedSpan { resource: resource.clone(), attributes: attributes(&span.attributes), span });
            }
        }
    }
    spans
}

/// Attributes as text; each key once.
fn attributes(found: &[KeyValue]) -> BTreeMap<String, String> {
    let mut attributes = BTreeMap::new();
    for KeyValue { key, value, .. } in found {
        let text = match value.as_ref().unwrap().value.as_ref().unwrap() {
            Value::StringValue(text) => text.clone(),
            Value::IntValue(number) => number.to_string(),
            other => panic!("{key}: {other:?}"),
        };
        assert!(!key.is_empty() && attributes.insert(key.clone(), text).is_none(), "{key} twice");
    }
    attributes
}
