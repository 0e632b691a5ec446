//! Tests of TLS streams against themselves and against tokio-rustls.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt as _;
use rustls::version::{TLS12, TLS13};
use rustls::{AlertDescription, ClientConfig, ProtocolVersion, ServerConfig};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf, duplex};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::buffer::StreamBuffer;
use super::{ClientTlsStream, MAX_WRITE_BYTES, ServerTlsStream, TlsStream};
use crate::tls::client::server_name;
use crate::tls::tests::TlsFixture;
use crate::tls::{ConnectionFailure, rustls_error};

/// A stream that reads and writes pieces of random lengths, and is often not ready.
struct ChoppedStream {
    stream: DuplexStream,
    max_piece: usize,
}

impl ChoppedStream {
    fn pair(max_piece: usize) -> [ChoppedStream; 2] {
        let (near, far) = duplex(100_000);
        [near, far].map(|stream| ChoppedStream { stream, max_piece })
    }

    fn is_ready(cx: &Context<'_>) -> bool {
        let is_ready = fastrand::u8(..4) > 0;
        if !is_ready {
            cx.waker().wake_by_ref();
        }
        is_ready
    }
}

impl AsyncRead for ChoppedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !ChoppedStream::is_ready(cx) {
            return Poll::Pending;
        }
        let mut piece = vec![0; fastrand::usize(1..=self.max_piece).min(out.remaining())];
        let mut piece = ReadBuf::new(&mut piece);
        let polled = Pin::new(&mut self.stream).poll_read(cx, &mut piece);
        out.put_slice(piece.filled());
        polled
    }
}

impl AsyncWrite for ChoppedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if !ChoppedStream::is_ready(cx) {
            return Poll::Pending;
        }
        let length = fastrand::usize(1..=self.max_piece).min(bytes.len());
        Pin::new(&mut self.stream).poll_write(cx, &bytes[..length])
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

fn random_bytes(length: usize) -> Vec<u8> {
    (0..length).map(|_| fastrand::u8(..)).collect()
}

/// Writes `data` in random pieces, some of several slices; then closes its direction.
async fn send<W: AsyncWrite + Unpin>(mut stream: W, mut data: &[u8]) {
    while !data.is_empty() {
        let piece = &data[..fastrand::usize(1..=200_000).min(data.len())];
        let (head, body) = piece.split_at(fastrand::usize(0..=piece.len().min(40)));
        let (body, tail) = body.split_at(fastrand::usize(0..=body.len()));
        let slices = [head, body, tail].map(IoSlice::new);
        data = &data[stream.write_vectored(&slices).await.unwrap()..];
    }
    stream.shutdown().await.unwrap();
}

async fn receive<R: AsyncRead + Unpin>(mut stream: R) -> Vec<u8> {
    let mut received = Vec::new();
    let mut buffer = vec![0; 100_000];
    loop {
        let length = fastrand::usize(1..=buffer.len());
        match stream.read(&mut buffer[..length]).await.unwrap() {
            0 => break received,
            read => received.extend_from_slice(&buffer[..read]),
        }
    }
}

/// Sends in both directions at once and expects everything to arrive.
async fn exchange(near: impl AsyncRead + AsyncWrite, far: impl AsyncRead + AsyncWrite, length: usize) {
    let (from_near, from_far) = (random_bytes(length), random_bytes(length));
    let (near_read, near_write) = tokio::io::split(near);
    let (far_read, far_write) = tokio::io::split(far);
    let (to_far, to_near, (), ()) =
        tokio::join!(receive(far_read), receive(near_read), send(near_write, &from_near), send(far_write, &from_far));
    assert!(to_far == from_near && to_near == from_far);
}

async fn own_pair(
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
) -> (ClientTlsStream<DuplexStream>, ServerTlsStream<DuplexStream>) {
    let (near, far) = duplex(1 << 20);
    let name = server_name("localhost").unwrap();
    tokio::try_join!(ClientTlsStream::connect(client, name, near), ServerTlsStream::accept(server, far)).unwrap()
}

#[tokio::test]
async fn tls_streams_exchange_data_with_each_other_and_with_tokio_rustls() {
    let fixture = TlsFixture::new();
    let name = || server_name("localhost").unwrap();
    for version in [&TLS12, &TLS13] {
        for max_piece in [3, 1000, 100_000] {
            let length = if max_piece == 3 { 40_000 } else { 2_000_000 };
            let (client, server) = (|| fixture.client_of_version(version, None), fixture.config());
            let (connector, acceptor) = (TlsConnector::from(client()), TlsAcceptor::from(server.clone()));

            let [near, far] = ChoppedStream::pair(max_piece);
            let handshakes =
                (ClientTlsStream::connect(client(), name(), near), ServerTlsStream::accept(server.clone(), far));
            let (near, far) = tokio::try_join!(handshakes.0, handshakes.1).unwrap();
            exchange(near, far, length).await;

            let [near, far] = ChoppedStream::pair(max_piece);
            let handshakes = (ClientTlsStream::connect(client(), name(), near), acceptor.accept(far));
            let (near, far) = tokio::try_join!(handshakes.0, handshakes.1).unwrap();
            exchange(near, far, length).await;

            let [near, far] = ChoppedStream::pair(max_piece);
            let handshakes = (connector.connect(name(), near), ServerTlsStream::accept(server, far));
            let (near, far) = tokio::try_join!(handshakes.0, handshakes.1).unwrap();
            exchange(near, far, length).await;
        }
    }
}

#[tokio::test]
async fn tls_stream_without_close_notify_ends_with_an_error() {
    let fixture = TlsFixture::new();
    let (mut client, mut server) = own_pair(fixture.client(None), fixture.config()).await;
    client.write_all(b"half").await.unwrap();
    drop(client);
    let mut received = Vec::new();
    let error = server.read_to_end(&mut received).await.unwrap_err();
    assert_eq!((received.as_slice(), error.kind()), (&b"half"[..], io::ErrorKind::UnexpectedEof));
    assert!(error.to_string().contains("close_notify") && !error.to_string().contains("://"), "{error}");
    assert_eq!(ConnectionFailure::from_io(&error), ConnectionFailure::ConnectionClosed);
}

#[tokio::test]
async fn tls_stream_writes_after_the_peer_has_closed_its_direction() {
    let fixture = TlsFixture::new();
    let (mut client, mut server) = own_pair(fixture.client(None), fixture.config()).await;
    client.shutdown().await.unwrap();
    assert_eq!(server.read(&mut [0; 8]).await.unwrap(), 0);
    server.write_all(b"still").await.unwrap();
    server.shutdown().await.unwrap();
    let mut received = Vec::new();
    client.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, b"still");
    for error in [client.write_all(b"x").await.unwrap_err(), server.write_all(b"x").await.unwrap_err()] {
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}

/// Changes a byte of what is written.
struct TamperingStream {
    stream: DuplexStream,
    position: Rc<Cell<Option<usize>>>,
}

impl AsyncRead for TamperingStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, out)
    }
}

impl AsyncWrite for TamperingStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut bytes = bytes.to_vec();
        if let Some(position) = self.position.take() {
            bytes[position] ^= 1;
        }
        Pin::new(&mut self.stream).poll_write(cx, &bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[tokio::test]
async fn tls_stream_refuses_changed_records_with_an_alert() {
    const HEADER: usize = 5;
    let fixture = TlsFixture::new();
    for version in [&TLS12, &TLS13] {
        // The record of TLS 1.2 has a nonce.
        let added = if version.version == ProtocolVersion::TLSv1_2 { 8 + 16 } else { 1 + 16 };
        for at in 0..HEADER + 20 + added {
            let (near, far) = duplex(1 << 20);
            let position = Rc::<Cell<Option<usize>>>::default();
            let near = TamperingStream { stream: near, position: position.clone() };
            let client = fixture.client_of_version(version, None);
            let (mut client, mut server) = tokio::try_join!(
                ClientTlsStream::connect(client, server_name("localhost").unwrap(), near),
                ServerTlsStream::accept(fixture.config(), far)
            )
            .unwrap();
            client.write_all(b"before").await.unwrap();
            position.set(Some(at));
            client.write_all(&[7; 20]).await.unwrap();
            client.shutdown().await.unwrap();
            assert_eq!(position.get(), None);
            let mut received = Vec::new();
            let read = server.read_to_end(&mut received).await;
            assert_eq!(received[..6], *b"before");
            if at < HEADER {
                // Another length may end the connection inside a record; the version of a record says nothing.
                assert!(read.is_err() && received.len() == 6 || received[6..] == [7; 20], "{at}: {read:?}");
                continue;
            }
            let error = read.unwrap_err();
            assert_eq!((error.kind(), received.len()), (io::ErrorKind::InvalidData, 6), "{at}: {error}");
            assert_eq!(rustls_error(&error), Some(&rustls::Error::DecryptError));
            let told = client.read_to_end(&mut Vec::new()).await.unwrap_err();
            assert_eq!(rustls_error(&told), Some(&rustls::Error::AlertReceived(AlertDescription::BadRecordMac)));
            // It has failed for good.
            assert!(server.read(&mut [0; 8]).await.is_err() && server.write(b"x").await.is_err());
        }
    }
}

#[tokio::test]
async fn tls_stream_handshake_with_random_bytes_fails() {
    let fixture = TlsFixture::new();
    let seed = fastrand::u64(..);
    fastrand::seed(seed);
    for round in 0..300 {
        let (mut near, far) = duplex(1 << 20);
        let mut bytes = random_bytes(fastrand::usize(1..100_000));
        if round % 2 == 0 {
            // A handshake message that is longer than any may be.
            let header = [22, 3, 1, 0x40, 0, 1, 255, 255, 255];
            bytes = [header.to_vec(), vec![0; 0x4000 - 4]].concat();
            bytes.extend([22, 3, 1, 0x40, 0].into_iter().chain(vec![0; 0x4000]).cycle().take(6 * 0x4005));
        }
        let _ = near.write_all(&bytes).await;
        let mut answer = Vec::new();
        let (accepted, _) = tokio::join!(ServerTlsStream::accept(fixture.config(), far), async {
            let _ = near.shutdown().await;
            near.read_to_end(&mut answer).await
        });
        let error = accepted.err().unwrap();
        let is_refused = match error.kind() {
            // rustls has no alert for a message that is too long.
            io::ErrorKind::InvalidData if round % 2 == 0 => answer.is_empty(),
            io::ErrorKind::InvalidData => answer.len() == 7 && answer[0] == 21 && answer[5] == 2,
            // It may be the beginning of a long record.
            io::ErrorKind::UnexpectedEof => answer.is_empty() && bytes.len() < 5 + (18 << 10),
            _ => false,
        };
        assert!(is_refused, "seed {seed}, round {round}: {error}, answered {answer:?}");
    }
}

/// The ClientHello of a client that names `localhost`.
async fn client_hello(fixture: &TlsFixture) -> Vec<u8> {
    let (near, mut far) = duplex(1 << 20);
    let connect = ClientTlsStream::connect(fixture.client(None), server_name("localhost").unwrap(), near);
    let mut hello = vec![0; 1 << 16];
    let length = tokio::select! {
        _ = connect => panic!("no server answers"),
        length = far.read(&mut hello) => length.unwrap(),
    };
    hello.truncate(length);
    hello
}

#[tokio::test]
async fn tls_stream_finds_the_server_name_in_pieces_and_records() {
    let fixture = TlsFixture::new();
    for (name, expected) in [("localhost", Some("localhost")), ("127.0.0.1", None)] {
        for max_piece in [3, 100_000] {
            let [near, far] = ChoppedStream::pair(max_piece);
            let mut selected = None;
            let accept = ServerTlsStream::accept_by_name(far, |name| {
                selected = Some(name.map(str::to_owned));
                fixture.config()
            });
            let connect = ClientTlsStream::connect(fixture.client(None), server_name(name).unwrap(), near);
            let (connected, accepted) = tokio::join!(
                async {
                    let mut stream = connect.await?;
                    stream.write_all(b"x").await?;
                    stream.flush().await?;
                    Ok::<_, io::Error>(stream)
                },
                accept
            );
            assert_eq!(selected, Some(expected.map(str::to_owned)));
            if name == "localhost" {
                let (mut stream, found) = accepted.unwrap();
                assert_eq!(found.as_deref(), expected);
                assert_eq!(stream.read_u8().await.unwrap(), b'x');
                drop(connected.unwrap());
            }
        }
    }

    // Several records.
    let hello = client_hello(&fixture).await;
    let records: Vec<u8> =
        hello[5..].chunks(100).flat_map(|part| [&[22, 3, 1, 0, part.len() as u8][..], part].concat()).collect();
    let (mut near, far) = duplex(1 << 20);
    near.write_all(&records).await.unwrap();
    let mut selected = None;
    let accept = ServerTlsStream::accept_by_name(far, |name| {
        selected = name.map(str::to_owned);
        fixture.config()
    });
    assert!(accept.now_or_never().is_none(), "it waits for the client to finish");
    assert_eq!(selected.as_deref(), Some("localhost"));
}

/// What comes first is the ClientHello: its name selects the configuration.
#[tokio::test]
async fn tls_stream_refuses_what_comes_before_the_client_hello() {
    let fixture = TlsFixture::new();
    let warning = [21, 3, 1, 0, 2, 1, 90];
    let not_a_hello = [22, 3, 1, 0, 4, 2, 0, 0, 0];
    let hello = client_hello(&fixture).await;
    for (bytes, alert) in [
        ([&warning[..], &hello].concat(), &[21, 3, 3, 0, 2, 2, 10][..]),
        (not_a_hello.to_vec(), &[21, 3, 3, 0, 2, 2, 50]),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), &[21, 3, 3, 0, 2, 2, 50]),
    ] {
        let (mut near, far) = duplex(1 << 20);
        near.write_all(&bytes).await.unwrap();
        let accepted = ServerTlsStream::accept_by_name(far, |_| panic!("selected")).await;
        let error = accepted.err().unwrap();
        assert!(rustls_error(&error).is_some(), "{error}");
        let mut answer = Vec::new();
        near.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, alert, "{error}");
    }
}

#[tokio::test]
async fn tls_stream_returns_its_buffers() {
    let fixture = TlsFixture::new();
    let (mut client, mut server) = own_pair(fixture.client(None), fixture.config()).await;
    let spare = StreamBuffer::spare_lengths().len();
    assert!(spare > 0);
    for _ in 0..100 {
        client.write_all(&[1; 100]).await.unwrap();
        server.read_exact(&mut [0; 100]).await.unwrap();
        assert_eq!(StreamBuffer::spare_lengths().len(), spare.max(2));
    }
}

/// A writer meets an invalid record that the reader has left.
#[tokio::test]
async fn tls_stream_write_sends_the_alert_of_what_was_received() {
    let fixture = TlsFixture::new();
    let (mut client, mut server) = own_pair(fixture.client(None), fixture.config()).await;
    client.write_all(b"data").await.unwrap();
    client.get_mut().write_all(&[23, 3, 3, 0, 20]).await.unwrap();
    client.get_mut().write_all(&[0; 20]).await.unwrap();
    // One byte: the rest waits.
    assert_eq!(server.read_u8().await.unwrap(), b'd');
    let error = server.write(b"x").await.unwrap_err();
    assert_eq!(rustls_error(&error), Some(&rustls::Error::DecryptError));
    let told = client.read(&mut [0; 8]).await.unwrap_err();
    assert_eq!(rustls_error(&told), Some(&rustls::Error::AlertReceived(AlertDescription::BadRecordMac)));
    // What came before it is read.
    let mut rest = [0; 3];
    server.read_exact(&mut rest).await.unwrap();
    assert_eq!(&rest, b"ata");
    assert!(server.read(&mut [0; 8]).await.is_err());
}

#[tokio::test]
async fn tls_stream_follows_key_updates_of_its_peer() {
    let fixture = TlsFixture::new();
    let (near, far) = duplex(1 << 20);
    let connector = TlsConnector::from(fixture.client_of_version(&TLS13, None));
    let (mut client, mut server) = tokio::try_join!(
        connector.connect(server_name("localhost").unwrap(), near),
        ServerTlsStream::accept(fixture.config(), far)
    )
    .unwrap();
    for round in 0..20u8 {
        client.get_mut().1.refresh_traffic_keys().unwrap();
        let sent = vec![round; 50_000];
        let mut received = vec![0; 50_000];
        client.write_all(&sent).await.unwrap();
        server.read_exact(&mut received).await.unwrap();
        assert!(received == sent);
        // The answer to the update comes first.
        server.write_all(&sent).await.unwrap();
        client.read_exact(&mut received).await.unwrap();
        assert!(received == sent);
    }
}

#[tokio::test]
async fn tls_stream_without_data_holds_no_buffer() {
    let fixture = TlsFixture::new();
    let (mut client, mut server) = own_pair(fixture.client(None), fixture.config()).await;
    client.write_all(&[1; 100_000]).await.unwrap();
    server.read_exact(&mut [0; 100_000]).await.unwrap();
    server.write_all(b"x").await.unwrap();
    assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 1);
    assert!(client.read(&mut [0; 8]).now_or_never().is_none() && server.read(&mut [0; 8]).now_or_never().is_none());
    for held in [held_bytes(&client), held_bytes(&server)] {
        assert_eq!(held, 0);
    }

    // Nor more than the part of a record that a slow peer has sent.
    client.get_mut().write_all(&[23, 3, 3, 0x40, 0]).await.unwrap();
    client.get_mut().write_all(&[0; 300]).await.unwrap();
    assert!(server.read(&mut [0; 8]).now_or_never().is_none());
    assert_eq!(held_bytes(&server), 305);
}

fn held_bytes<S, C>(stream: &TlsStream<S, C>) -> usize {
    stream.received.capacity() + stream.outgoing.capacity() + stream.plaintext.capacity()
}

/// The reader does not read, and the other direction goes on.
#[tokio::test]
async fn tls_stream_holds_what_was_received_for_a_reader_that_waits() {
    let fixture = TlsFixture::new();
    let (mut client, mut server) = own_pair(fixture.client(None), fixture.config()).await;
    client.write_all(&[1; 500_000]).await.unwrap();
    assert_eq!(server.read_u8().await.unwrap(), 1);
    server.write_all(b"x").await.unwrap();
    assert!(held_bytes(&server) <= 152 << 10, "{}", held_bytes(&server));
    let mut rest = vec![0; 499_999];
    server.read_exact(&mut rest).await.unwrap();
    assert!(rest.iter().all(|byte| *byte == 1));
    assert!(server.read(&mut [0; 8]).now_or_never().is_none());
    assert_eq!(held_bytes(&server), 0);
}

/// The peer does not read.
#[tokio::test]
async fn tls_stream_holds_one_write_while_its_peer_does_not_read() {
    let fixture = TlsFixture::new();
    let (mut client, mut server) = own_pair(fixture.client(None), fixture.config()).await;
    let data = random_bytes(4 << 20);
    let mut written = 0;
    while let Some(accepted) = client.write(&data[written..]).now_or_never() {
        written += accepted.unwrap();
    }
    assert!((1 << 20..(1 << 20) + 2 * MAX_WRITE_BYTES).contains(&written), "{written}");
    assert!(held_bytes(&client) < 80 << 10, "{}", held_bytes(&client));
    let mut received = vec![0; data.len()];
    let (sent, read) = tokio::join!(
        async {
            client.write_all(&data[written..]).await?;
            client.flush().await
        },
        server.read_exact(&mut received)
    );
    sent.unwrap();
    read.unwrap();
    assert!(received == data);
}

#[tokio::test]
async fn tls_stream_gathers_small_slices_into_records() {
    let fixture = TlsFixture::new();
    let (mut client, mut server) = own_pair(fixture.client(None), fixture.config()).await;
    let (small, large) = ([1; 29], [2; 40_000]);
    let slices = [&small[..], &small, &large, &small, &small[..9]].map(IoSlice::new);
    assert_eq!(client.write_vectored(&slices).await.unwrap(), 58 + 40_000 + 38);
    let mut wire = vec![0; 70_000];
    let length = server.stream.read(&mut wire).await.unwrap();
    let (mut records, mut at) = (Vec::new(), 0);
    while at < length {
        let record = usize::from(u16::from_be_bytes([wire[at + 3], wire[at + 4]]));
        records.push(record - 17);
        at += 5 + record;
    }
    assert_eq!(records, [58, 16_384, 16_384, 7_232, 38]);
}
