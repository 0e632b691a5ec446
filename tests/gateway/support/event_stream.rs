//! The event stream of a status page.

use std::net::SocketAddr;

use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::client::{get, next_chunk};
use super::fixtures::TEST_TIMEOUT;

/// An open event stream.
pub(crate) struct EventStream {
    pub(crate) status: u16,
    body: Incoming,
    text: String,
}

impl EventStream {
    pub(crate) async fn open(admin: SocketAddr) -> EventStream {
        EventStream::open_with(admin, &[]).await
    }

    /// The same, with more request headers.
    pub(crate) async fn open_with(admin: SocketAddr, more: &[(&str, &str)]) -> EventStream {
        let socket = TcpStream::connect(admin).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.unwrap();
        tokio::spawn(connection);
        let host = admin.to_string();
        let headers: Vec<_> = more.iter().copied().chain([("host", &*host)]).collect();
        let response = sender.send_request(get("/events", &headers)).await.unwrap();
        let status = response.status().as_u16();
        if status == 200 {
            assert_eq!(response.headers()["content-type"], "text/event-stream");
            assert_eq!(response.headers()["cache-control"], "no-store");
        }
        EventStream { status, body: response.into_body(), text: String::new() }
    }

    /// The content of the page in the next event; `None` at the end of the stream, or when the process has ended.
    pub(crate) async fn next(&mut self) -> Option<String> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let lines: Vec<_> = event.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
                let content = lines.join("\n");
                self.text = rest.to_owned();
                return Some(content);
            }
            let chunk = next_chunk(&mut self.body).await?.ok()?;
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// The first content that is `wanted`.
    pub(crate) async fn wait_for(&mut self, wanted: impl Fn(&str) -> bool) -> String {
        let search = async {
            loop {
                let content = self.next().await.expect("the stream does not end");
                if wanted(&content) {
                    return content;
                }
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, search).await.expect("the wanted content in time")
    }
}
