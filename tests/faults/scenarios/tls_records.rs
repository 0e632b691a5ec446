//! TLS clients that break the protocol: the listener sends the alert of RFC 8446, closes, and serves everybody else.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::{AlertDescription, ClientConfig, ClientConnection};

use crate::report::FaultRow;
use crate::stage::Stage;
use crate::support::fixtures::TEST_TIMEOUT;

/// Content types of records (RFC 8446, 5.1).
const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
const HEARTBEAT: u8 = 24;

const TLS12: [u8; 2] = [3, 3];

/// What a server may do with a malformed record.
enum Expected {
    /// A fatal alert, one of these, and the end of the connection.
    Alert(&'static [u8]),
    /// The end of the connection, with or without an alert.
    Closed,
    /// It goes on with the handshake.
    ServerHello,
}

// Alerts (RFC 8446, 6).
const UNEXPECTED_MESSAGE: u8 = 10;
const RECORD_OVERFLOW: u8 = 22;
const HANDSHAKE_FAILURE: u8 = 40;
const ILLEGAL_PARAMETER: u8 = 47;
const DECODE_ERROR: u8 = 50;
const PROTOCOL_VERSION: u8 = 70;
const MISSING_EXTENSION: u8 = 109;
const NO_APPLICATION_PROTOCOL: u8 = 120;

fn record(kind: u8, version: [u8; 2], payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
    [&[kind, version[0], version[1], length[0], length[1]], payload].concat()
}

fn vector16(payload: &[u8]) -> Vec<u8> {
    [&u16::try_from(payload.len()).unwrap().to_be_bytes(), payload].concat()
}

fn extension(kind: u16, payload: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &vector16(payload)].concat()
}

/// A ClientHello that this listener accepts, with parts that a case changes.
struct ClientHello {
    legacy_version: [u8; 2],
    ciphers: Vec<u8>,
    compression: Vec<u8>,
    extensions: Vec<Vec<u8>>,
}

impl ClientHello {
    /// Of TLS 1.2, so that no key share is needed.
    fn tls12() -> ClientHello {
        ClientHello {
            legacy_version: TLS12,
            // TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 and the same with RSA.
            ciphers: vec![0xc0, 0x2b, 0xc0, 0x2f],
            compression: vec![0],
            extensions: vec![
                // supported_groups: secp256r1, x25519.
                extension(10, &vector16(&[0, 23, 0, 29])),
                // ec_point_formats: uncompressed.
                extension(11, &[1, 0]),
                // signature_algorithms: ecdsa_secp256r1_sha256, rsa_pss_rsae_sha256, ed25519.
                extension(13, &vector16(&[4, 3, 8, 4, 8, 7])),
                // extended_master_secret.
                extension(23, &[]),
            ],
        }
    }

    fn message(&self) -> Vec<u8> {
        let body = [
            &self.legacy_version[..],
            &[7; 32],
            // No session.
            &[0],
            &vector16(&self.ciphers),
            &[u8::try_from(self.compression.len()).unwrap()],
            &self.compression,
            &vector16(&self.extensions.concat()),
        ]
        .concat();
        handshake_message(1, &body)
    }

    fn record(&self) -> Vec<u8> {
        record(HANDSHAKE, [3, 1], &self.message())
    }
}

fn handshake_message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&[kind], &length[1..], body].concat()
}

fn hello_with(change: impl FnOnce(&mut ClientHello)) -> Vec<u8> {
    let mut hello = ClientHello::tls12();
    change(&mut hello);
    hello.record()
}

fn malformed_cases() -> Vec<(&'static str, Vec<u8>, Expected)> {
    use Expected::{Alert, Closed, ServerHello};
    let hello = ClientHello::tls12().message();
    let in_fragments = |size: usize| hello.chunks(size).flat_map(|part| record(HANDSHAKE, TLS12, part)).collect();
    let mut truncated = ClientHello::tls12().message();
    // An extension that is longer than what holds it.
    let end = truncated.len();
    truncated[end - 1] = 200;
    let ssl2 = [&[0x80, 0x2e, 1, 0, 2, 0, 21, 0, 0, 0, 16][..], &[0; 37]].concat();
    vec![
        ("valid ClientHello", hello_with(|_| {}), ServerHello),
        ("ClientHello in records of one byte", in_fragments(1), ServerHello),
        ("ClientHello in records of 50 bytes", in_fragments(50), ServerHello),
        ("unknown content type", record(99, TLS12, &[0; 10]), Alert(&[UNEXPECTED_MESSAGE, DECODE_ERROR])),
        ("heartbeat", record(HEARTBEAT, TLS12, &[1, 0, 3, 0, 0, 0]), Alert(&[UNEXPECTED_MESSAGE, DECODE_ERROR])),
        ("application data first", record(APPLICATION_DATA, TLS12, b"GET /"), Alert(&[UNEXPECTED_MESSAGE])),
        ("empty handshake record", record(HANDSHAKE, TLS12, &[]), Alert(&[UNEXPECTED_MESSAGE, DECODE_ERROR])),
        ("change_cipher_spec first", record(CHANGE_CIPHER_SPEC, TLS12, &[1]), Alert(&[UNEXPECTED_MESSAGE])),
        (
            "ClientKeyExchange first",
            record(HANDSHAKE, TLS12, &handshake_message(16, &[0; 8])),
            Alert(&[UNEXPECTED_MESSAGE]),
        ),
        ("Finished first", record(HANDSHAKE, TLS12, &handshake_message(20, &[0; 12])), Alert(&[UNEXPECTED_MESSAGE])),
        ("record of 2^14+1 bytes", record(HANDSHAKE, TLS12, &[1; 16_385]), Closed),
        ("record of 65535 bytes", record(HANDSHAKE, TLS12, &[1; 65_535]), Alert(&[RECORD_OVERFLOW, DECODE_ERROR])),
        ("record of version 2.0", record(HANDSHAKE, [2, 0], &hello), Alert(&[PROTOCOL_VERSION, DECODE_ERROR])),
        ("handshake message of 16 MiB", record(HANDSHAKE, TLS12, &[1, 255, 255, 255, 3, 3]), Closed),
        ("TLS 1.1 alone", hello_with(|hello| hello.legacy_version = [3, 2]), Alert(&[PROTOCOL_VERSION])),
        ("SSL 3.0 alone", hello_with(|hello| hello.legacy_version = [3, 0]), Alert(&[PROTOCOL_VERSION])),
        ("no common cipher suite", hello_with(|hello| hello.ciphers = vec![0, 10]), Alert(&[HANDSHAKE_FAILURE])),
        (
            "no cipher suite",
            hello_with(|hello| hello.ciphers.clear()),
            Alert(&[DECODE_ERROR, HANDSHAKE_FAILURE, ILLEGAL_PARAMETER]),
        ),
        (
            "odd length of cipher suites",
            hello_with(|hello| hello.ciphers = vec![0xc0, 0x2b, 0xc0]),
            Alert(&[DECODE_ERROR]),
        ),
        (
            "no null compression",
            hello_with(|hello| hello.compression = vec![1]),
            Alert(&[ILLEGAL_PARAMETER, DECODE_ERROR]),
        ),
        (
            "no common ALPN protocol",
            hello_with(|hello| hello.extensions.push(extension(16, &vector16(b"\x04spdy")))),
            Alert(&[NO_APPLICATION_PROTOCOL]),
        ),
        (
            "extension twice",
            hello_with(|hello| {
                let first = hello.extensions[0].clone();
                hello.extensions.push(first)
            }),
            Alert(&[DECODE_ERROR, ILLEGAL_PARAMETER]),
        ),
        (
            "no signature algorithms",
            hello_with(|hello| drop(hello.extensions.remove(2))),
            Alert(&[HANDSHAKE_FAILURE, MISSING_EXTENSION]),
        ),
        ("extension longer than its message", record(HANDSHAKE, TLS12, &truncated), Alert(&[DECODE_ERROR])),
        (
            "server name that is an address",
            hello_with(|hello| hello.extensions.push(extension(0, &vector16(b"\x00\x00\x091.2.3.4.5")))),
            Alert(&[DECODE_ERROR, ILLEGAL_PARAMETER]),
        ),
        (
            "ServerHello from a client",
            record(HANDSHAKE, TLS12, &handshake_message(2, &[0; 40])),
            Alert(&[UNEXPECTED_MESSAGE, DECODE_ERROR]),
        ),
        ("SSL 2.0 ClientHello", ssl2, Closed),
        ("fatal alert", record(ALERT, TLS12, &[2, 40]), Closed),
        ("alert of three bytes", record(ALERT, TLS12, &[2, 40, 0]), Closed),
        ("warnings without end", record(ALERT, TLS12, &[1, 90]).repeat(1000), Closed),
        ("change_cipher_spec without end", record(CHANGE_CIPHER_SPEC, TLS12, &[1]).repeat(1000), Closed),
        ("half a ClientHello", ClientHello::tls12().record()[..40].to_vec(), Closed),
    ]
}

/// All that the server says until it closes.
fn exchange(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    // It may close before it has read all.
    let _ = socket.write_all(bytes);
    let _ = socket.shutdown(Shutdown::Write);
    let mut received = Vec::new();
    // A reset comes where it closed with bytes unread.
    match socket.read_to_end(&mut received) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("not closed"),
        _ => received,
    }
}

fn check(name: &str, received: &[u8], expected: &Expected) -> Result<(), String> {
    let is_fatal_alert =
        |known: &[u8]| received.len() == 7 && received[0] == ALERT && received[5] == 2 && known.contains(&received[6]);
    let is_as_expected = match expected {
        Expected::Alert(known) => is_fatal_alert(known),
        Expected::Closed => received.is_empty() || received[0] == ALERT,
        Expected::ServerHello => received.first() == Some(&HANDSHAKE) && received.get(5) == Some(&2),
    };
    let start = &received[..received.len().min(12)];
    if is_as_expected { Ok(()) } else { Err(format!("{name}: received {} bytes: {start:?}", received.len())) }
}

pub(crate) async fn malformed_records() -> FaultRow {
    let mut stage = Stage::start(&["--handshake-timeout=5s"]).await;
    let load = stage.start_load().await;
    let address = stage.gateway.address;
    let rounds = if crate::is_long() { 50 } else { 2 };
    let count = malformed_cases().len();
    let checking = tokio::task::spawn_blocking(move || {
        let mut problems = Vec::new();
        for _ in 0..rounds {
            for (name, bytes, expected) in malformed_cases() {
                problems.extend(check(name, &exchange(address, &bytes), &expected).err());
            }
        }
        problems.sort();
        problems.dedup();
        problems
    });
    let problems = checking.await.unwrap();
    assert!(problems.is_empty(), "{problems:#?}");
    let mut row = stage.finish(load, &[]).await;
    row.note = format!("{rounds} times {count} cases, each closed, with its alert");
    row
}

/// A session whose handshake is done.
struct RawSession {
    socket: TcpStream,
    tls: ClientConnection,
}

impl RawSession {
    fn open(address: SocketAddr, config: &Arc<ClientConfig>) -> RawSession {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        let mut tls = ClientConnection::new(config.clone(), "localhost".try_into().unwrap()).unwrap();
        while tls.is_handshaking() {
            tls.complete_io(&mut socket).unwrap();
        }
        while tls.wants_write() {
            tls.write_tls(&mut socket).unwrap();
        }
        RawSession { socket, tls }
    }

    /// The records of some application data.
    fn sealed(&mut self, text: &[u8]) -> Vec<u8> {
        self.tls.writer().write_all(text).unwrap();
        let mut bytes = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut bytes).unwrap();
        }
        bytes
    }

    /// The alert that comes before the end of the connection, and the text before it.
    fn read_to_end(&mut self) -> (Option<AlertDescription>, Vec<u8>) {
        let mut text = Vec::new();
        loop {
            let alert = match self.tls.read_tls(&mut self.socket) {
                Ok(0) => return (None, text),
                Ok(_) => self.tls.process_new_packets().err(),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("not closed"),
                Err(_) => return (None, text),
            };
            let mut more = [0; 4096];
            while let Ok(count @ 1..) = self.tls.reader().read(&mut more) {
                text.extend_from_slice(&more[..count]);
            }
            match alert {
                Some(rustls::Error::AlertReceived(alert)) => return (Some(alert), text),
                Some(error) => panic!("{error}"),
                None => {}
            }
        }
    }
}

/// What is done to a session, and the alerts it may end with; none if the client ends it.
type SessionCase = (&'static str, fn(&mut RawSession), &'static [AlertDescription]);

const REQUEST: &[u8] = b"POST /apis/things.example.com/v1/namespaces/default/things HTTP/1.1\r\nhost: localhost\r\n\
    x-request-number: cut\r\ncontent-length: 100\r\n\r\nhalf a body";

const SESSION_CASES: [SessionCase; 6] = [
    (
        "bit flipped",
        |session| {
            let mut bytes = session.sealed(REQUEST);
            *bytes.last_mut().unwrap() ^= 1;
            session.socket.write_all(&bytes).unwrap();
        },
        &[AlertDescription::BadRecordMac],
    ),
    (
        "record twice",
        |session| {
            let bytes = session.sealed(REQUEST);
            session.socket.write_all(&bytes.repeat(2)).unwrap();
        },
        &[AlertDescription::BadRecordMac],
    ),
    (
        "record longer than allowed",
        |session| {
            session.socket.write_all(&record(APPLICATION_DATA, TLS12, &[0; 16_384 + 2049])).unwrap();
        },
        &[AlertDescription::RecordOverflow, AlertDescription::DecodeError],
    ),
    (
        "ClientHello in plain text",
        |session| {
            session.socket.write_all(&ClientHello::tls12().record()).unwrap();
        },
        &[AlertDescription::UnexpectedMessage, AlertDescription::BadRecordMac],
    ),
    (
        "end without close_notify in a request body",
        |session| {
            let bytes = session.sealed(REQUEST);
            session.socket.write_all(&bytes).unwrap();
            session.socket.shutdown(Shutdown::Write).unwrap();
        },
        &[],
    ),
    (
        "end in a record",
        |session| {
            let bytes = session.sealed(REQUEST);
            session.socket.write_all(&bytes[..bytes.len() - 5]).unwrap();
            session.socket.shutdown(Shutdown::Write).unwrap();
        },
        &[],
    ),
];

pub(crate) async fn broken_sessions() -> FaultRow {
    let mut stage = Stage::start(&[]).await;
    let load = stage.start_load().await;
    let address = stage.gateway.address;
    let user = stage.users[0].clone();
    let rounds = if crate::is_long() { 50 } else { 2 };
    let configs = [&rustls::version::TLS13, &rustls::version::TLS12]
        .map(|version| Arc::new(load.load.client_config(&user, &[version], b"http/1.1")));
    let checking = tokio::task::spawn_blocking(move || {
        let mut problems = Vec::new();
        for _ in 0..rounds {
            for (version, config) in configs.iter().enumerate() {
                for (name, run, expected) in SESSION_CASES {
                    let mut session = RawSession::open(address, config);
                    run(&mut session);
                    let (alert, text) = session.read_to_end();
                    let is_answered = text.starts_with(b"HTTP/1.1 2");
                    if is_answered || !expected.is_empty() && alert.is_none_or(|alert| !expected.contains(&alert)) {
                        problems.push(format!(
                            "{name}, TLS 1.{}: {alert:?}, {:?}",
                            3 - version,
                            String::from_utf8_lossy(&text)
                        ));
                    }
                }
            }
        }
        problems.sort();
        problems.dedup();
        problems
    });
    let problems = checking.await.unwrap();
    assert!(problems.is_empty(), "{problems:#?}");
    let ledger = stage.ledger.clone();
    let mut row = stage.finish(load, &[]).await;
    // A request whose body broke off was never complete for a backend.
    assert_eq!(ledger.executions("cut"), 0);
    row.note = format!("{rounds} times {} cases in TLS 1.2 and 1.3", SESSION_CASES.len());
    row
}
