//! A raw HTTP/2 client that encodes frames itself, so that it can send invalid ones.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::client::TlsStream;

use crate::support::client::connect;
use crate::support::fixtures::{CertKeyPair, GatewayProcess, TEST_TIMEOUT, TestEnvironment};

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// A frame as it was sent or came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct H2Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

/// One HTTP/2 connection to the gateway. What comes is read all the time, unless it should not be.
pub(crate) struct RawH2Client {
    write: WriteHalf<TlsStream<TcpStream>>,
    read: mpsc::UnboundedReceiver<H2Frame>,
    reading: tokio::task::JoinHandle<()>,
}

impl RawH2Client {
    /// Connects, sends the preface and these settings.
    pub(crate) async fn open(
        environment: &TestEnvironment,
        gateway: &GatewayProcess,
        pair: Option<&CertKeyPair>,
        settings: &[(u16, u32)],
    ) -> RawH2Client {
        let stream = connect(environment, gateway.address, pair, &["h2"]).await;
        let (read, write) = tokio::io::split(stream);
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut frames = RawH2Client { write, read: receiver, reading: tokio::spawn(read_frames(read, sender)) };
        let payload: Vec<u8> = settings
            .iter()
            .flat_map(|(name, value)| name.to_be_bytes().into_iter().chain(value.to_be_bytes()))
            .collect();
        let mut opening = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        opening.extend(encode_frame(SETTINGS, 0, 0, &payload));
        assert!(frames.send(&opening).await);
        frames
    }

    /// Stops reading: what the gateway sends piles up on its side.
    pub(crate) fn stop_reading(&self) {
        self.reading.abort();
    }

    /// Sends bytes; false when the gateway has closed, or takes nothing for a second (it pushes back).
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> bool {
        let write = async {
            self.write.write_all(bytes).await?;
            self.write.flush().await
        };
        matches!(tokio::time::timeout(Duration::from_secs(1), write).await, Ok(Ok(())))
    }

    /// Sends one after the other until the gateway takes no more; whether it took all of them.
    pub(crate) async fn flood(&mut self, pieces: impl IntoIterator<Item = Vec<u8>>) -> bool {
        for piece in pieces {
            if !self.send(&piece).await {
                return false;
            }
        }
        true
    }

    /// The next frame that `wanted` finds; none when the connection ended before.
    pub(crate) async fn next_matching(&mut self, wanted: impl Fn(&H2Frame) -> bool) -> Option<H2Frame> {
        let finding = async {
            loop {
                let frame = self.read.recv().await?;
                if wanted(&frame) {
                    return Some(frame);
                }
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, finding).await.expect("a frame, or the connection's end, in time")
    }

    /// How stream `id` was answered.
    pub(crate) async fn stream_outcome(&mut self, id: u32) -> StreamOutcome {
        let mine = move |frame: &H2Frame| {
            frame.kind == GOAWAY && error_code(frame) != 0
                || frame.stream == id && matches!(frame.kind, HEADERS | RST_STREAM)
        };
        match self.next_matching(mine).await {
            None => StreamOutcome::Closed,
            Some(frame) if frame.kind == HEADERS => StreamOutcome::Status(status_code(&frame.payload)),
            Some(frame) if frame.kind == RST_STREAM => StreamOutcome::Reset(error_code(&frame)),
            Some(frame) => StreamOutcome::GoAway(error_code(&frame)),
        }
    }
}

/// What became of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamOutcome {
    Status(u16),
    Reset(u32),
    GoAway(u32),
    Closed,
}

async fn read_frames(mut read: ReadHalf<TlsStream<TcpStream>>, sender: mpsc::UnboundedSender<H2Frame>) {
    loop {
        let mut head = [0; 9];
        if read.read_exact(&mut head).await.is_err() {
            return;
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; length];
        if read.read_exact(&mut payload).await.is_err() {
            return;
        }
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
        if sender.send(H2Frame { kind: head[3], flags: head[4], stream, payload }).is_err() {
            return;
        }
    }
}

/// The error code of a RST_STREAM or GOAWAY.
fn error_code(frame: &H2Frame) -> u32 {
    let at = if frame.kind == GOAWAY { 4 } else { 0 };
    frame.payload.get(at..at + 4).map_or(0, |code| u32::from_be_bytes(code.try_into().unwrap()))
}

/// `:status`, which the gateway's encoder puts first: from the static table, or as a literal.
fn status_code(block: &[u8]) -> u16 {
    // A change of the table's size may come before it.
    let block = &block[block.iter().take_while(|byte| **byte & 0xe0 == 0x20).count()..];
    match block[0] {
        0x88 => 200,
        0x89 => 204,
        0x8a => 206,
        0x8b => 304,
        0x8c => 400,
        0x8d => 404,
        0x8e => 500,
        _ if block[1] == 3 => std::str::from_utf8(&block[2..5]).unwrap().parse().unwrap(),
        // Huffman: digits are 0..=2 in five bits each, 3..=9 in six.
        _ => {
            let mut bits = String::new();
            for byte in &block[2..2 + usize::from(block[1] & 0x7f)] {
                bits += &format!("{byte:08b}");
            }
            let (mut number, mut rest) = (0, &bits[..]);
            for _ in 0..3 {
                let five = u16::from_str_radix(&rest[..5], 2).unwrap();
                if five <= 2 {
                    (number, rest) = (number * 10 + five, &rest[5..]);
                } else {
                    let six = u16::from_str_radix(&rest[..6], 2).unwrap();
                    (number, rest) = (number * 10 + six - 0x19 + 3, &rest[6..]);
                }
            }
            number
        }
    }
}

/// The bytes of a frame.
pub(crate) fn encode_frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A header block without compression.
pub(crate) fn header_block(lines: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in lines {
        bytes.push(0);
        for text in [name, value] {
            encode_hpack_length(&mut bytes, text.len());
            bytes.extend(text.as_bytes());
        }
    }
    bytes
}

/// HPACK's integer with a prefix of seven bits.
pub(crate) fn encode_hpack_length(bytes: &mut Vec<u8>, mut length: usize) {
    if length < 127 {
        return bytes.push(length as u8);
    }
    bytes.push(127);
    length -= 127;
    while length >= 128 {
        bytes.push((length % 128 + 128) as u8);
        length /= 128;
    }
    bytes.push(length as u8);
}

/// A GET of `path`, with `more`, on a stream of its own.
pub(crate) fn get_frames(stream: u32, path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let mut lines = vec![(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", path)];
    lines.extend(more);
    headers_frames(stream, END_STREAM, &header_block(&lines))
}

/// A header block in as many frames as it needs.
pub(crate) fn headers_frames(stream: u32, flags: u8, block: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let pieces: Vec<&[u8]> = block.chunks(16_384).collect();
    for (number, piece) in pieces.iter().enumerate() {
        let last = if number + 1 == pieces.len() { END_HEADERS } else { 0 };
        if number == 0 {
            bytes.extend(encode_frame(HEADERS, flags | last, stream, piece));
        } else {
            bytes.extend(encode_frame(CONTINUATION, last, stream, piece));
        }
    }
    bytes
}
