//! TLS on any stream.
//!
//! It is made of rustls' unbuffered connections, so that this module decides on buffers. With the buffered ones
//! (tokio-rustls) a connection reads 4 KiB at a time into a buffer that grows by copies up to a record, writes at most
//! 64 KiB at a time, and keeps 4 KiB while it is idle. Here an idle connection keeps no buffer.

mod buffer;
mod connection;
#[cfg(test)]
mod tests;

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::{Acceptor, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, InsufficientSizeError, UnbufferedStatus, WriteTraffic,
};
use rustls::{ClientConfig, CommonState, Error, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};

pub(crate) use self::buffer::StreamBuffer;
use self::connection::UnbufferedConnection;

/// Plaintext of a TLS record at most (RFC 8446, section 5.1).
const MAX_RECORD_DATA: usize = 16 << 10;
/// What encryption adds to a record at most: its header, nonce, tag and content type (RFC 8446, section 5.2).
const MAX_RECORD_OVERHEAD: usize = 256;
/// Plaintext that a write takes at most: an HTTP/2 frame of 64 KiB with its header and its gRPC message's is one write.
const MAX_WRITE_BYTES: usize = 72 << 10;

/// A fatal `unexpected_message` alert before the keys are known (RFC 8446, section 6.2).
const UNEXPECTED_MESSAGE_ALERT: [u8; 7] = [21, 3, 3, 0, 2, 2, 10];

/// A TLS connection to a server, on a stream.
pub type ClientTlsStream<S> = TlsStream<S, UnbufferedClientConnection>;
/// A TLS connection of a client, on a stream.
pub type ServerTlsStream<S> = TlsStream<S, UnbufferedServerConnection>;

/// A TLS connection, after its handshake, on a stream.
///
/// Its reads end with [`io::ErrorKind::UnexpectedEof`] if the peer closes the stream without a `close_notify`. A write
/// fails also if received data is invalid. It may accept data that only the next write or flush sends.
pub struct TlsStream<S, C> {
    stream: S,
    connection: C,
    /// Received, and not processed yet: usually part of a record.
    received: StreamBuffer,
    /// Decrypted, and not read yet.
    plaintext: BytesMut,
    /// Encrypted, and not sent yet.
    outgoing: StreamBuffer,
    /// The stream ended.
    is_at_end: bool,
    /// The peer sent a `close_notify`.
    is_closed_by_peer: bool,
    is_shut_down: bool,
    /// Why the connection failed. It fails for good. Boxed, as most connections have none.
    failure: Option<Box<Error>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> ClientTlsStream<S> {
    /// Performs the handshake with the server `name` on `stream`.
    ///
    /// # Errors
    /// Of the stream, or of kind [`io::ErrorKind::InvalidData`] with a [`rustls::Error`] in it.
    pub async fn connect(config: Arc<ClientConfig>, name: ServerName<'static>, stream: S) -> io::Result<Self> {
        let connection = UnbufferedClientConnection::new(config, name).map_err(io::Error::other)?;
        let mut stream = TlsStream::new(stream, connection);
        stream.shake_hands().await?;
        Ok(stream)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> ServerTlsStream<S> {
    /// Performs the handshake with a client on `stream`.
    ///
    /// # Errors
    /// Of the stream, or of kind [`io::ErrorKind::InvalidData`] with a [`rustls::Error`] in it.
    pub async fn accept(config: Arc<ServerConfig>, stream: S) -> io::Result<Self> {
        ServerTlsStream::accept_received(config, stream, StreamBuffer::default()).await
    }

    /// As [`ServerTlsStream::accept`], with the configuration that `select` returns for the server name (SNI) of the
    /// client, if it sends one. Also returns this name.
    ///
    /// # Errors
    /// As [`ServerTlsStream::accept`].
    pub async fn accept_by_name(
        mut stream: S,
        select: impl FnOnce(Option<&str>) -> Arc<ServerConfig>,
    ) -> io::Result<(Self, Option<Box<str>>)> {
        let mut received = StreamBuffer::default();
        let name = read_server_name(&mut received, &mut stream).await?;
        let config = select(name.as_deref());
        Ok((ServerTlsStream::accept_received(config, stream, received).await?, name))
    }

    async fn accept_received(config: Arc<ServerConfig>, stream: S, received: StreamBuffer) -> io::Result<Self> {
        let connection = UnbufferedServerConnection::new(config).map_err(io::Error::other)?;
        let mut stream = TlsStream { received, ..TlsStream::new(stream, connection) };
        stream.shake_hands().await?;
        Ok(stream)
    }
}

impl<S, C> TlsStream<S, C> {
    /// The stream below TLS.
    pub fn get_ref(&self) -> &S {
        &self.stream
    }

    /// The stream below TLS.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.stream
    }
}

impl<S, C: UnbufferedConnection> TlsStream<S, C> {
    fn new(stream: S, connection: C) -> TlsStream<S, C> {
        TlsStream {
            stream,
            connection,
            received: StreamBuffer::default(),
            plaintext: BytesMut::new(),
            outgoing: StreamBuffer::default(),
            is_at_end: false,
            is_closed_by_peer: false,
            is_shut_down: false,
            failure: None,
        }
    }

    /// What the handshake agreed on, and the certificates of the peer.
    pub fn state(&self) -> &CommonState {
        &self.connection
    }

    /// Processes all that was received. Its data waits in `plaintext` for the next read.
    ///
    /// `on_writable` is called once data may be sent, after the records that have to be sent before.
    fn process_all(
        &mut self,
        mut on_writable: impl FnMut(&mut WriteTraffic<'_, C::Data>, &mut StreamBuffer),
    ) -> Result<(), Error> {
        let mut no_space = ReadBuf::new(&mut []);
        while self.process_next(&mut no_space, &mut on_writable)? {}
        self.received.shrink_if_small();
        Ok(())
    }

    /// Encrypts with `encrypt`; `None` if the connection is closed.
    fn write_with<T>(
        &mut self,
        encrypt: impl Fn(&mut WriteTraffic<'_, C::Data>, &mut StreamBuffer) -> T,
    ) -> Result<Option<T>, Error> {
        let mut result = None;
        self.process_all(|traffic, outgoing| result = Some(encrypt(traffic, outgoing)))?;
        Ok(result)
    }

    /// Takes one step of the connection's state machine; whether there may be another. A connection that has failed fails
    /// again.
    fn process_next(
        &mut self,
        out: &mut ReadBuf<'_>,
        on_writable: impl FnOnce(&mut WriteTraffic<'_, C::Data>, &mut StreamBuffer),
    ) -> Result<bool, Error> {
        if let Some(error) = &self.failure {
            return Err(Error::clone(error));
        }
        let processed = self.process_event(out, on_writable);
        if let Err(error) = &processed {
            self.failure = Some(Box::new(error.clone()));
            self.encode_alert();
            self.received.clear();
        }
        processed
    }

    fn process_event(
        &mut self,
        out: &mut ReadBuf<'_>,
        on_writable: impl FnOnce(&mut WriteTraffic<'_, C::Data>, &mut StreamBuffer),
    ) -> Result<bool, Error> {
        let TlsStream { connection, received, plaintext, outgoing, is_closed_by_peer, .. } = self;
        // Without a reader all of it comes, and the memory for it would grow by doubling.
        let expected = if out.remaining() == 0 { received.unread().len() } else { 0 };
        let UnbufferedStatus { mut discard, state } = connection.process(received.unread_mut());
        let mut may_continue = true;
        match state? {
            ConnectionState::ReadTraffic(mut traffic) => {
                while let Some(record) = traffic.next_record() {
                    let record = record?;
                    discard += record.discard;
                    let (now, later) = record.payload.split_at(record.payload.len().min(out.remaining()));
                    out.put_slice(now);
                    if plaintext.is_empty() {
                        plaintext.reserve(expected);
                    }
                    plaintext.extend_from_slice(later);
                }
            }
            ConnectionState::EncodeTlsData(record) => encode(record, outgoing),
            // Nothing is sent before what is in `outgoing`.
            ConnectionState::TransmitTlsData(sent) => sent.done(),
            ConnectionState::PeerClosed => {
                *is_closed_by_peer = true;
                // Nothing after it is processed.
                discard = received.unread().len();
            }
            ConnectionState::WriteTraffic(mut traffic) => {
                on_writable(&mut traffic, outgoing);
                may_continue = false;
            }
            ConnectionState::BlockedHandshake | ConnectionState::Closed => may_continue = false,
            _ => return Err(Error::General("early data is not enabled".to_owned())),
        }
        received.consume(discard);
        Ok(may_continue)
    }

    /// Takes the alert that rustls has queued. It must not process input: rustls would decrypt the refused record again.
    fn encode_alert(&mut self) {
        while self.state().wants_write() {
            match self.connection.process(self.received.unread_mut()).state {
                Ok(ConnectionState::EncodeTlsData(record)) => encode(record, &mut self.outgoing),
                _ => break,
            }
        }
    }
}

/// Receives the first message of a client, and returns the server name in it.
async fn read_server_name<S: AsyncRead + AsyncWrite + Unpin>(
    received: &mut StreamBuffer,
    stream: &mut S,
) -> io::Result<Option<Box<str>>> {
    let mut acceptor = Acceptor::default();
    loop {
        let before = received.unread().len();
        if poll_fn(|cx| received.poll_fill(stream, cx)).await? == 0 {
            return Err(handshake_eof());
        }
        let mut added = &received.unread()[before..];
        while !added.is_empty() {
            acceptor.read_tls(&mut added)?;
            match acceptor.accept() {
                Ok(None) => {}
                Ok(Some(accepted)) => return Ok(accepted.client_hello().server_name().map(Box::from)),
                Err((error, mut alert)) => {
                    let mut encoded = Vec::new();
                    let _ = alert.write_all(&mut encoded);
                    // rustls has an alert for it only after its acceptor.
                    if let Error::InappropriateMessage { .. } | Error::InappropriateHandshakeMessage { .. } = error {
                        encoded = UNEXPECTED_MESSAGE_ALERT.to_vec();
                    }
                    let _ = stream.write_all(&encoded).await;
                    return Err(tls_error(error));
                }
            }
        }
    }
}

fn handshake_eof() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "tls handshake eof")
}

fn encode<D>(mut record: EncodeTlsData<'_, D>, outgoing: &mut StreamBuffer) {
    outgoing.append_with(MAX_RECORD_DATA, |space| match record.encode(space) {
        Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => Err(required_size),
        // It is encoded once only.
        encoded => Ok(encoded.unwrap_or_default()),
    });
}

fn tls_error(error: Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl<S: AsyncRead + AsyncWrite + Unpin, C: UnbufferedConnection> TlsStream<S, C> {
    async fn shake_hands(&mut self) -> io::Result<()> {
        poll_fn(|cx| self.poll_handshake(cx)).await
    }

    fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if let Err(error) = self.process_all(|_, _| ()) {
                return Poll::Ready(Err(self.fail(cx, error)));
            }
            ready!(self.poll_send(cx))?;
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            if !self.state().is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            if ready!(self.received.poll_fill(&mut self.stream, cx))? == 0 {
                return Poll::Ready(Err(handshake_eof()));
            }
        }
    }

    /// Tries once to tell the peer of `error`.
    fn fail(&mut self, cx: &mut Context<'_>, error: Error) -> io::Error {
        let _ = self.poll_send(cx);
        tls_error(error)
    }

    /// Sends what has been encrypted.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.outgoing.unread().is_empty() {
            let sent = ready!(Pin::new(&mut self.stream).poll_write(cx, self.outgoing.unread()))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.outgoing.consume(sent);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin, C: UnbufferedConnection> AsyncRead for TlsStream<S, C> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if out.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if !this.plaintext.is_empty() {
            let read = out.remaining().min(this.plaintext.len());
            out.put_slice(&this.plaintext[..read]);
            this.plaintext.advance(read);
            if this.plaintext.is_empty() {
                this.plaintext = BytesMut::new();
            }
            return Poll::Ready(Ok(()));
        }
        let before = out.filled().len();
        loop {
            let failed = loop {
                match this.process_next(out, |_, _| ()) {
                    Ok(true) if out.remaining() > 0 => {}
                    processed => break processed.err(),
                }
            };
            // What came before an error is read first; the next read returns the error again.
            if out.filled().len() > before {
                this.received.shrink_if_small();
                return Poll::Ready(Ok(()));
            }
            if let Some(error) = failed {
                return Poll::Ready(Err(this.fail(cx, error)));
            }
            if this.is_closed_by_peer {
                return Poll::Ready(Ok(()));
            }
            if this.is_at_end {
                let text = "peer closed connection without sending TLS close_notify";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::UnexpectedEof, text)));
            }
            this.outgoing.shrink_if_small();
            this.is_at_end = ready!(this.received.poll_fill(&mut this.stream, cx))? == 0;
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin, C: UnbufferedConnection> AsyncWrite for TlsStream<S, C> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.is_shut_down {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        ready!(this.poll_send(cx))?;
        let count = match this.write_with(|traffic, outgoing| encrypt(traffic, slices, outgoing)) {
            Ok(Some(written)) => written.map_err(|error| io::Error::other(error.to_string()))?,
            Ok(None) => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            Err(error) => return Poll::Ready(Err(this.fail(cx, error))),
        };
        match this.poll_send(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(count)),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_send(cx))?;
        Pin::new(&mut this.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.is_shut_down {
            this.is_shut_down = true;
            // A connection that has failed has sent its alert.
            let _ = this.write_with(|traffic, outgoing| {
                outgoing.append_with(MAX_RECORD_OVERHEAD, |space| match traffic.queue_close_notify(space) {
                    Err(EncryptError::InsufficientSize(InsufficientSizeError { required_size })) => Err(required_size),
                    queued => Ok(queued.unwrap_or_default()),
                });
            });
        }
        ready!(this.poll_send(cx))?;
        Pin::new(&mut this.stream).poll_shutdown(cx)
    }
}

/// Encrypts as much of `slices` as one write takes; returns its length in bytes.
///
/// Small slices share a record. A large one is not copied, and has records of its own.
fn encrypt<D>(
    traffic: &mut WriteTraffic<'_, D>,
    slices: &[IoSlice<'_>],
    outgoing: &mut StreamBuffer,
) -> Result<usize, EncryptError> {
    let mut left = MAX_WRITE_BYTES;
    let mut gathered = StreamBuffer::default();
    for slice in slices {
        let slice = &slice[..slice.len().min(left)];
        left -= slice.len();
        if gathered.unread().len() + slice.len() > MAX_RECORD_DATA {
            encrypt_slice(traffic, gathered.unread(), outgoing)?;
            gathered.clear();
        }
        if slice.len() >= MAX_RECORD_DATA {
            encrypt_slice(traffic, slice, outgoing)?;
        } else {
            gathered.append(slice);
        }
    }
    encrypt_slice(traffic, gathered.unread(), outgoing)?;
    Ok(MAX_WRITE_BYTES - left)
}

fn encrypt_slice<D>(
    traffic: &mut WriteTraffic<'_, D>,
    data: &[u8],
    outgoing: &mut StreamBuffer,
) -> Result<(), EncryptError> {
    let mut result = Ok(());
    if !data.is_empty() {
        let capacity = data.len() + data.len().div_ceil(MAX_RECORD_DATA) * MAX_RECORD_OVERHEAD;
        outgoing.append_with(capacity, |space| match traffic.encrypt(data, space) {
            Ok(written) => Ok(written),
            Err(EncryptError::InsufficientSize(InsufficientSizeError { required_size })) => Err(required_size),
            Err(error) => {
                result = Err(error);
                Ok(0)
            }
        });
    }
    result
}
