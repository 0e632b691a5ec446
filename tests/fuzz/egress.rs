//! Responses of egress proxies and Konnectivity servers.

use bytes::Bytes;
use konnectivity_client::{Packet, PacketDecoder};
use narthex::egress::http::http1::{BodyFraming, ChunkedDecoder, ChunkedStep, Http1ResponseHead};
use narthex::egress::proxy::http_connect::{ConnectResponseError, ConnectResponseParser};
use narthex::egress::proxy::socks5;
use narthex::egress::{Destination, DialPhase, Host, ProxyCredentials, ProxyFault};
use narthex::konnectivity::server::AgentIdentifiers;

use crate::{fuzz_bytes, text_from_words};

/// Messages and pieces of messages, as a server may string them together.
const PACKET_PARTS: &[&[u8]] = &[
    b"\x00\x00\x00\x00",
    b"\x00\x00\x40\x00\x01",
    b"\x01",
    b"\x02",
    b"\x05",
    b"\x0a",
    b"\x08\x01",
    b"\x08\x04",
    b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x12\x04\x0a\x02tc",
    b"\x1a\x05\x0a\x01x\x18\x2a",
    b"\x22\x06\x08\x05\x1a\x02hi",
    b"\x22\x02\x1a\x7f",
    b"\x22\x80",
    b"\x42\x00",
    b"\x1b\x1c",
    b"\x0d\x00\x00\x00\x00",
    b"\x00\x00\x00\x00\x0a\x08\x04\x22\x06\x08\x05\x1a\x02hi",
    b"\x00\x00\x00\x00\x09\x08\x01\x1a\x05\x0a\x01\xff\x18\x2a",
    b"\xff",
];

#[test]
fn konnectivity_packets() {
    fuzz_bytes(|bytes| {
        let stream: Vec<u8> =
            bytes.iter().flat_map(|at| PACKET_PARTS[usize::from(*at) % PACKET_PARTS.len()]).copied().collect();
        let read = |size: usize| {
            let (mut frames, mut packets) = (PacketDecoder::default(), Vec::new());
            for piece in stream.chunks(size) {
                let mut piece = Bytes::copy_from_slice(piece);
                loop {
                    match frames.decode(&mut piece) {
                        Ok(Some(read)) => packets.push(read.packet),
                        Ok(None) => break,
                        Err(nonsense) => return (packets, Some(nonsense)),
                    }
                }
                assert!(piece.is_empty());
            }
            (packets, None)
        };
        let whole = read(stream.len().max(1));
        assert_eq!(whole, read(1), "however it is cut");
        for packet in whole.0 {
            let message = packet.encode_frame().slice(5..);
            assert_eq!(Packet::decode(&message), Ok(packet));
        }
    });
}

/// Replies of HTTP proxies, and of other servers at their address.
const CONNECT_RESPONSES: &[&str] = &[
    "HTTP/1.1 200 Connection Established\r\n",
    "HTTP/1.0 204 \n",
    "HTTP/1.1 407 Auth\r\n",
    "HTTP/1.1 100 \r\n\r\n",
    "HTTP/1.1",
    " 200",
    " 2",
    "00 ",
    "\r\n",
    "\r\n",
    "\n",
    "\r",
    "Via: x\r\n",
    "Content-Length: 7\r\n",
    "SSH-2.0-",
    "\0",
];

#[test]
fn http_connect_responses() {
    fuzz_bytes(|bytes| {
        let stream = text_from_words(bytes, CONNECT_RESPONSES).into_bytes();
        let read = |size: usize| {
            let (mut response, mut taken) = (ConnectResponseParser::default(), 0);
            for piece in stream.chunks(size) {
                taken += piece.len();
                match response.push(piece) {
                    Ok(None) => {}
                    // What follows it is there, in this answer or still to come.
                    Ok(Some(head)) => {
                        return Ok(Some((head.status, [response.remaining(), &stream[taken..]].concat())));
                    }
                    Err(error) => return Err(error),
                }
            }
            Ok(None)
        };
        let whole = read(stream.len().max(1));
        assert_eq!(whole, read(1), "however it is cut");
        match whole {
            Ok(Some((status, rest))) => {
                assert!(matches!(status, 101 | 200..1000));
                assert!(stream.ends_with(&rest));
            }
            Ok(None) => assert!(b"HTTP/1.".starts_with(&stream[..stream.len().min(7)])),
            Err(error) => assert_ne!(error, ConnectResponseError::TooLong),
        }
    });
}

/// Pieces of what SOCKS5 proxies say.
const SOCKS5_REPLIES: &[&[u8]] = &[
    b"\x05\x00",
    b"\x05\x02",
    b"\x05\xff",
    b"\x01\x00",
    b"\x01\x01",
    b"\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x50",
    b"\x05\x00\x00\x03\x02",
    b"\x05\x00\x00\x03\xff",
    b"\x05\x00\x00\x04",
    b"\x05\x05\x00\x01",
    b"\x05\x63\x00\x01",
    b"\0\0\0\0\0\0",
    b"\0",
    b"\x04",
    b"HTTP/1.1 400 \r\n",
    b"\xff\xfe",
];

#[test]
fn socks5_replies() {
    fuzz_bytes(|bytes| {
        let output: Vec<u8> =
            bytes.iter().flat_map(|at| SOCKS5_REPLIES[usize::from(*at) % SOCKS5_REPLIES.len()]).copied().collect();
        let with = output.len().is_multiple_of(2);
        let recorded = async {
            let (near, mut far) = tokio::io::duplex(1 << 16);
            let _ = tokio::io::AsyncWriteExt::write_all(&mut far, &output).await;
            let (mut hears, mut says) = tokio::io::split(far);
            let _ = tokio::io::AsyncWriteExt::shutdown(&mut says).await;
            let credentials = ProxyCredentials::new("u", "p");
            let destination = Destination { host: Host::Name("a".to_owned()), port: 1 };
            let connected = socks5::connect(near, with.then_some(&credentials), &destination).await;
            let rest = match connected {
                Ok(mut near) => {
                    let mut rest = Vec::new();
                    let _ = tokio::io::AsyncReadExt::read_to_end(&mut near, &mut rest).await;
                    Ok(rest)
                }
                Err(error) => Err(error),
            };
            let _ = tokio::io::copy(&mut hears, &mut tokio::io::sink()).await;
            rest
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        match runtime.block_on(recorded) {
            Ok(rest) => assert!(output.ends_with(&rest) && output.len() >= 9),
            // What is known of it has a name, and is no mistake of ours.
            Err(error) => {
                assert!(matches!(error.phase, DialPhase::Proxy(fault) if fault != ProxyFault::InvalidName));
            }
        }
    });
}

#[test]
fn http1_responses() {
    const WORDS: &[&str] = &[
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.0 200\r\n",
        "HTTP/1.1 101 S\r\n",
        "Content-Length: 5\r\n",
        "Content-Length: 18446744073709551616\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Connection: close, keep-alive\r\n",
        "\r\n",
        "\n",
        "hello",
        "5\r\nhello\r\n",
        "ffffffffffffffff\r\n",
        "0;x=y\r\n",
        "X: 1\r\n",
        " folded\r\n",
        "a",
    ];
    fuzz_bytes(|bytes| {
        let output = text_from_words(bytes, WORDS);
        for method in [http::Method::GET, http::Method::HEAD] {
            if let Ok(Some((head, end))) = Http1ResponseHead::parse(output.as_bytes(), &method) {
                assert!(end <= output.len() && (output[..end].ends_with("\r\n\r\n") || output[..end].ends_with('\n')));
                assert!(!head.keep_alive || !matches!(head.framing, BodyFraming::Close));
                // Nothing that comes behind a head makes another of it.
                let more = format!("{output}HTTP/1.1 200 OK\r\n\r\n");
                let again = Http1ResponseHead::parse(more.as_bytes(), &method).unwrap().unwrap();
                assert_eq!((again.1, again.0.parts.headers), (end, head.parts.headers));
            }
        }
        let read = |size: usize| {
            let (mut chunks, mut body) = (ChunkedDecoder::default(), Vec::new());
            for piece in output.as_bytes().chunks(size) {
                let mut piece = Bytes::copy_from_slice(piece);
                loop {
                    match chunks.decode(&mut piece) {
                        Ok(ChunkedStep::Data(data)) => body.extend_from_slice(&data),
                        Ok(ChunkedStep::NeedMore) => break,
                        Ok(ChunkedStep::End(trailers)) => return (body, Some(Ok(trailers))),
                        Err(fault) => return (body, Some(Err(fault.to_string()))),
                    }
                }
                assert!(piece.is_empty());
            }
            (body, None)
        };
        assert_eq!(read(output.len().max(1)), read(1), "however it is cut");
    });
}

#[test]
fn konnectivity_agent_identifiers() {
    const WORDS: &[&str] = &[
        "ipv4=",
        "ipv6=",
        "host=",
        "cidr=",
        "default-route=",
        "&",
        "10.0.0.1",
        "::1",
        "/8",
        "%",
        "%3",
        "%26",
        "+",
        "=",
        "true",
    ];
    fuzz_bytes(|bytes| {
        let text = text_from_words(bytes, WORDS);
        let parsed = AgentIdentifiers::parse(&text);
        // What the strict agent accepts, the server reads in the same way.
        if let Ok(strict) = AgentIdentifiers::parse_strictly(&text) {
            assert_eq!(parsed, Ok((strict, None)));
        }
    });
}
