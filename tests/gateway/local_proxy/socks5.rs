//! `run_narthex serve_socks5`, byte for byte: the real binary between raw clients and local listeners.

use std::fs;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::client::{admin_request, get, metric_value};
use crate::support::fake_egress_proxy::{EgressProxyRequest, FakeEgressProxy, ProxyAction, socks5_reply};
use crate::support::fixtures::{GatewayProcess, eventually, run_narthex};

/// The answer to a request that is granted.
const GRANTED: [u8; 10] = [5, 0, 0, 1, 0, 0, 0, 0, 0, 0];

fn start_socks5(more: &[&str]) -> GatewayProcess {
    let seen = ["--admin-address=127.0.0.1:0", "--log-format=json", "--access-log=all", "--access-log-format=json"];
    let fixed = std::iter::once(&"--listen=127.0.0.1:0").chain(&seen);
    let arguments: Vec<String> = fixed.chain(more).map(|text| (*text).to_owned()).collect();
    GatewayProcess::start_as("socks5", &arguments)
}

async fn start_listener<F: Future<Output = ()> + Send + 'static>(
    serve: impl Fn(TcpStream) -> F + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(serve(socket));
        }
    });
    address
}

/// Sends back what comes, and ends when the other side does.
async fn start_echo_server() -> SocketAddr {
    start_listener(async |mut socket: TcpStream| {
        let (mut read, mut write) = socket.split();
        let _ = tokio::io::copy(&mut read, &mut write).await;
        let _ = write.shutdown().await;
    })
    .await
}

/// An address without a listener.
async fn closed_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

/// The request for an IPv4 address.
fn connect_request(to: SocketAddr) -> Vec<u8> {
    let SocketAddr::V4(to) = to else { panic!("{to} is not IPv4") };
    [&[5, 1, 0, 1][..], &to.ip().octets(), &to.port().to_be_bytes()].concat()
}

/// The request for a name.
fn connect_request_by_name(name: &str, port: u16) -> Vec<u8> {
    [&[5, 1, 0, 3, name.len() as u8][..], name.as_bytes(), &port.to_be_bytes()].concat()
}

async fn open_connection(proxy: &GatewayProcess) -> TcpStream {
    TcpStream::connect(proxy.address).await.unwrap()
}

/// Says `http_response` and hears exactly `received`.
async fn send_and_expect(socket: &mut TcpStream, http_response: &[u8], received: &[u8]) {
    socket.write_all(http_response).await.unwrap();
    expect_bytes(socket, received).await;
}

async fn expect_bytes(socket: &mut TcpStream, received: &[u8]) {
    let mut response = vec![0; received.len()];
    let read = tokio::time::timeout(crate::support::fixtures::TEST_TIMEOUT, socket.read_exact(&mut response)).await;
    read.expect("an answer in time").unwrap();
    assert_eq!(response, received);
}

/// All that comes until the other side closes its half.
async fn read_to_end(socket: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let read = tokio::time::timeout(crate::support::fixtures::TEST_TIMEOUT, socket.read_to_end(&mut all)).await;
    // A reset is an end, too.
    let _ = read.expect("an end in time");
    all
}

/// The reply to a request, without the address behind it.
async fn request_reply(proxy: &GatewayProcess, request: &[u8]) -> u8 {
    let mut socket = open_connection(proxy).await;
    send_and_expect(&mut socket, &[5, 1, 0], &[5, 0]).await;
    socket.write_all(request).await.unwrap();
    let response = read_to_end(&mut socket).await;
    assert_eq!((response.len(), response[0], &response[2..]), (10, 5, &GRANTED[2..]), "{response:02x?}");
    response[1]
}

async fn wait_for_no_connections(proxy: &GatewayProcess) {
    eventually("all connections to end", async || {
        (metric_value(proxy, "narthex_socks5_connections").await? == 0.0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn socks5_copies_both_directions_with_half_close() {
    let (proxy, echo) = (start_socks5(&[]), start_echo_server().await);
    let mut socket = open_connection(&proxy).await;
    send_and_expect(&mut socket, &[5, 1, 0], &[5, 0]).await;
    send_and_expect(&mut socket, &connect_request(echo), &GRANTED).await;
    send_and_expect(&mut socket, b"there", b"there").await;
    let much: Vec<u8> = (0..4 << 20).map(|n: usize| (n % 251) as u8).collect();
    let (mut read, mut write) = socket.into_split();
    let sent = much.clone();
    let sending = tokio::spawn(async move {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
        write
    });
    let mut back = Vec::new();
    read.read_to_end(&mut back).await.unwrap();
    assert!(back == much, "{} of {} bytes came back", back.len(), much.len());
    drop(sending.await.unwrap());

    // By name; IPv6 and IPv4 are the resolver's business.
    let mut socket = open_connection(&proxy).await;
    send_and_expect(&mut socket, &[5, 1, 0], &[5, 0]).await;
    send_and_expect(&mut socket, &connect_request_by_name("LocalHost", echo.port()), &GRANTED).await;
    send_and_expect(&mut socket, b"again", b"again").await;
    drop(socket);

    wait_for_no_connections(&proxy).await;
    assert_eq!(metric_value(&proxy, "narthex_socks5_replies_total{reply=\"succeeded\"}").await, Some(2.0));
    let carried = 5.0 + (4 << 20) as f64 + 5.0;
    for direction in ["sent", "received"] {
        let name = format!("narthex_socks5_bytes_total{{direction=\"{direction}\"}}");
        assert_eq!(metric_value(&proxy, &name).await, Some(carried), "{direction}");
    }
    let destination = format!("\"destination\":\"localhost:{}\"", echo.port());
    let line = proxy.wait_for_log(&["\"kind\":\"access\"", &destination]).await;
    assert!(line.contains("\"reply\":\"succeeded\"") && line.contains("\"in\":5,\"out\":5"), "{line}");
    let status = admin_request(&proxy, get("/status.json", &[])).await.text();
    assert!(status.contains(&format!("socks5://{}", proxy.address)), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn socks5_data_sent_first_by_either_side_delivered() {
    let proxy = start_socks5(&[]);
    let banner = start_listener(async |mut socket: TcpStream| {
        socket.write_all(b"220 hello\r\n").await.unwrap();
        let _ = socket.read(&mut [0]).await;
    })
    .await;
    for _ in 0..200 {
        let mut socket = open_connection(&proxy).await;
        send_and_expect(&mut socket, &[5, 1, 0], &[5, 0]).await;
        send_and_expect(&mut socket, &connect_request(banner), &[&GRANTED[..], b"220 hello\r\n"].concat()).await;
    }
    // A client that does not wait for the answers.
    let echo = start_echo_server().await;
    let mut socket = open_connection(&proxy).await;
    let http_response = [&[5, 2, 0, 2][..], &connect_request(echo), b"early"].concat();
    send_and_expect(&mut socket, &http_response, &[&[5, 0][..], &GRANTED, b"early"].concat()).await;
    socket.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut socket).await, b"");
}

#[tokio::test(flavor = "multi_thread")]
async fn socks5_reset_propagated_as_reset() {
    let proxy = start_socks5(&[]);
    let (sender, mut received) = tokio::sync::mpsc::unbounded_channel();
    let backend = start_listener(move |mut socket: TcpStream| {
        let sender = sender.clone();
        async move {
            let mut word = [0; 5];
            socket.read_exact(&mut word).await.unwrap();
            if &word == b"break" {
                socket.write_all(b"half").await.unwrap();
                // Not before it is taken: a reset overtakes what is not.
                socket.read_exact(&mut word[..1]).await.unwrap();
                socket2::SockRef::from(&socket).set_linger(Some(std::time::Duration::ZERO)).unwrap();
                return;
            }
            let error = socket.read_to_end(&mut Vec::new()).await.err().map(|error| error.kind());
            sender.send(error).unwrap();
        }
    })
    .await;
    // The far side does.
    let mut socket = open_connection(&proxy).await;
    send_and_expect(&mut socket, &[5, 1, 0], &[5, 0]).await;
    send_and_expect(&mut socket, &connect_request(backend), &GRANTED).await;
    send_and_expect(&mut socket, b"break", b"half").await;
    socket.write_all(b".").await.unwrap();
    let error = socket.read(&mut [0]).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    // The client does.
    let mut socket = open_connection(&proxy).await;
    send_and_expect(&mut socket, &[5, 1, 0], &[5, 0]).await;
    send_and_expect(&mut socket, &connect_request(backend), &GRANTED).await;
    socket.write_all(b"there").await.unwrap();
    socket2::SockRef::from(&socket).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(socket);
    assert_eq!(received.recv().await.unwrap(), Some(std::io::ErrorKind::ConnectionReset));
    wait_for_no_connections(&proxy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn socks5_username_password_authentication() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("users");
    fs::write(&file, "al ice:p@ss:word\nempty:\n").unwrap();
    let (proxy, echo) = (start_socks5(&[&format!("--credentials-file={}", file.display())]), start_echo_server().await);
    let login = |user: &str, password: &str| {
        let (user, password) = (user.as_bytes(), password.as_bytes());
        [&[1, user.len() as u8][..], user, &[password.len() as u8], password].concat()
    };
    for (user, password) in [("al ice", "p@ss:word"), ("empty", "")] {
        let mut socket = open_connection(&proxy).await;
        // As Go offers it.
        send_and_expect(&mut socket, &[5, 2, 0, 2], &[5, 2]).await;
        send_and_expect(&mut socket, &login(user, password), &[1, 0]).await;
        send_and_expect(&mut socket, &connect_request(echo), &GRANTED).await;
        send_and_expect(&mut socket, b"x", b"x").await;
    }
    for (user, password) in [("al ice", "p@ss"), ("alice", "p@ss:word"), ("", ""), ("empty", "empty")] {
        let mut socket = open_connection(&proxy).await;
        send_and_expect(&mut socket, &[5, 2, 0, 2], &[5, 2]).await;
        socket.write_all(&login(user, password)).await.unwrap();
        assert_eq!(read_to_end(&mut socket).await, [1, 1], "{user}");
    }
    // Clients without credentials are rejected.
    let mut socket = open_connection(&proxy).await;
    socket.write_all(&[&[5, 1, 0][..], &connect_request(echo)].concat()).await.unwrap();
    assert_eq!(read_to_end(&mut socket).await, [5, 0xff]);
    let line = proxy.wait_for_log(&["\"reply\":\"credentials\""]).await;
    assert!(!line.contains("p@ss"), "{line}");
    proxy.wait_for_log(&["\"user\":\"al ice\"", "\"reply\":\"succeeded\""]).await;
    wait_for_no_connections(&proxy).await;
    assert_eq!(metric_value(&proxy, "narthex_socks5_unanswered_total{reason=\"credentials\"}").await, Some(4.0));
    assert_eq!(metric_value(&proxy, "narthex_socks5_unanswered_total{reason=\"method\"}").await, Some(1.0));

    // The file is followed; one that is wrong changes nothing.
    fs::write(&file, "nonsense\n").unwrap();
    proxy.wait_for_log(&["the last good users stay", "users:1"]).await;
    fs::write(&file, "bob:new\n").unwrap();
    eventually("the new user to be known", async || {
        let mut socket = open_connection(&proxy).await;
        send_and_expect(&mut socket, &[5, 1, 2], &[5, 2]).await;
        socket.write_all(&login("bob", "new")).await.unwrap();
        let mut verdict = [0; 2];
        socket.read_exact(&mut verdict).await.unwrap();
        (verdict == [1, 0]).then_some(())
    })
    .await;
    let mut socket = open_connection(&proxy).await;
    send_and_expect(&mut socket, &[5, 1, 2], &[5, 2]).await;
    send_and_expect(&mut socket, &login("empty", ""), &[1, 1]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn socks5_allow_destinations_enforced() {
    let echo = start_echo_server().await;
    let port = echo.port();
    let other = closed_port().await;
    let proxy = start_socks5(&[&format!("--allow-destinations=127.0.0.0/8:{port},localhost:{port},*.example")]);
    for allowed in
        [connect_request(echo), connect_request_by_name("127.0.0.1", port), connect_request_by_name("localhost", port)]
    {
        let mut socket = open_connection(&proxy).await;
        send_and_expect(&mut socket, &[5, 1, 0], &[5, 0]).await;
        send_and_expect(&mut socket, &allowed, &GRANTED).await;
    }
    let mut six = vec![5, 1, 0, 4];
    six.extend_from_slice(&std::net::Ipv6Addr::LOCALHOST.octets());
    six.extend_from_slice(&port.to_be_bytes());
    for refused in [
        connect_request(other),
        connect_request_by_name("localhost", other.port()),
        connect_request_by_name("a.localhost", port),
        connect_request_by_name("example", port),
        connect_request_by_name("10.0.0.1", port),
        six,
    ] {
        assert_eq!(request_reply(&proxy, &refused).await, 2, "{refused:02x?}");
    }
    assert_eq!(metric_value(&proxy, "narthex_socks5_replies_total{reply=\"not_allowed\"}").await, Some(6.0));
    proxy.wait_for_log(&["\"reply\":\"not_allowed\"", "not among --allow-destinations"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn socks5_failures_mapped_to_reply_codes() {
    let proxy = start_socks5(&[]);
    let anonymous = closed_port().await;
    assert_eq!(request_reply(&proxy, &connect_request(anonymous)).await, 5);
    // RFC 6761: never a host.
    assert_eq!(request_reply(&proxy, &connect_request_by_name("nowhere.invalid", 443)).await, 4);
    // BIND, UDP ASSOCIATE, an unknown command; an unknown kind of address.
    for command in [2, 3, 9] {
        assert_eq!(request_reply(&proxy, &[5, command, 0, 1, 127, 0, 0, 1, 0, 80]).await, 7);
    }
    assert_eq!(request_reply(&proxy, &[5, 1, 0, 2]).await, 8);
    for wrong in
        [&b"\x05\x01\x01\x01\x7f\0\0\x01\0\x50"[..], b"\x05\x01\0\x03\0\0\x50", b"\x05\x01\0\x03\x03a\0b\0\x50"]
    {
        assert_eq!(request_reply(&proxy, wrong).await, 1, "{wrong:02x?}");
    }
    // What the resolver would read as an address, and rules would not.
    assert_eq!(request_reply(&proxy, &connect_request_by_name("127.1", anonymous.port())).await, 1);
    for (reply, count) in [
        ("connection_refused", 1.0),
        ("host_unreachable", 1.0),
        ("command_not_supported", 3.0),
        ("address_type_not_supported", 1.0),
        ("general_failure", 4.0),
    ] {
        let name = format!("narthex_socks5_replies_total{{reply=\"{reply}\"}}");
        assert_eq!(metric_value(&proxy, &name).await, Some(count), "{reply}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn socks5_non_socks5_clients_closed_without_reply() {
    let proxy = start_socks5(&[]);
    for http_response in
        [&b"\x04\x01\x00\x50\x7f\0\0\x01\0"[..], b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b"\0", b"\xff"]
    {
        let mut socket = open_connection(&proxy).await;
        socket.write_all(http_response).await.unwrap();
        assert_eq!(read_to_end(&mut socket).await, b"", "{http_response:02x?}");
    }
    // No method, one of private use, GSSAPI.
    for http_response in [&[5, 0][..], &[5, 1, 0x80], &[5, 2, 1, 2]] {
        let mut socket = open_connection(&proxy).await;
        socket.write_all(http_response).await.unwrap();
        assert_eq!(read_to_end(&mut socket).await, [5, 0xff], "{http_response:02x?}");
    }
    // Another version half-way.
    let mut socket = open_connection(&proxy).await;
    send_and_expect(&mut socket, &[5, 1, 0], &[5, 0]).await;
    socket.write_all(&[4, 1, 0, 1]).await.unwrap();
    assert_eq!(read_to_end(&mut socket).await, b"");
    wait_for_no_connections(&proxy).await;
    assert_eq!(metric_value(&proxy, "narthex_socks5_unanswered_total{reason=\"version\"}").await, Some(6.0));
    proxy.wait_for_log(&["\"reply\":\"version\"", "client sent SOCKS4"]).await;
    proxy.wait_for_log(&["\"reply\":\"version\"", "client sent HTTP"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn socks5_handshake_cut_at_any_byte_handled() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("users");
    fs::write(&file, "jane:secret\n").unwrap();
    let (proxy, echo) = (start_socks5(&[&format!("--credentials-file={}", file.display())]), start_echo_server().await);
    let whole =
        [&[5, 3, 0, 1, 2][..], b"\x01\x04jane\x06secret", &connect_request_by_name("localhost", echo.port()), b"hello"]
            .concat();
    let request_ends = whole.len() - 5;
    for end in 0..=whole.len() {
        let mut socket = open_connection(&proxy).await;
        socket.write_all(&whole[..end]).await.unwrap();
        socket.shutdown().await.unwrap();
        let received = read_to_end(&mut socket).await;
        let mut expected = Vec::new();
        for (at, response) in [(5, &[5, 2][..]), (18, &[1, 0]), (request_ends, &GRANTED)] {
            if end >= at {
                expected.extend_from_slice(response);
            }
        }
        expected.extend_from_slice(&whole[request_ends.min(end)..end]);
        assert_eq!(received, expected, "cut after {end}");
    }
    // A byte at a time is as good.
    let mut socket = open_connection(&proxy).await;
    socket.set_nodelay(true).unwrap();
    for byte in &whole {
        socket.write_all(&[*byte]).await.unwrap();
    }
    expect_bytes(&mut socket, &[&[5, 2, 1, 0][..], &GRANTED, b"hello"].concat()).await;
    drop(socket);
    wait_for_no_connections(&proxy).await;
    assert_eq!(
        metric_value(&proxy, "narthex_socks5_unanswered_total{reason=\"closed\"}").await,
        Some(request_ends as f64)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn socks5_thousand_silent_clients_time_out() {
    let (proxy, echo) = (start_socks5(&["--handshake-timeout=5s"]), start_echo_server().await);
    let mut silent = Vec::new();
    for number in 0..1000 {
        let mut socket = open_connection(&proxy).await;
        let http_response = [&[5, 1, 0][..], &connect_request(echo)].concat();
        socket.write_all(&http_response[..number % http_response.len()]).await.unwrap();
        silent.push(socket);
    }
    for _ in 0..20 {
        let mut socket = open_connection(&proxy).await;
        send_and_expect(&mut socket, &[5, 1, 0], &[5, 0]).await;
        send_and_expect(&mut socket, &connect_request(echo), &GRANTED).await;
        send_and_expect(&mut socket, b"x", b"x").await;
    }
    for socket in &mut silent {
        let received = read_to_end(socket).await;
        assert!(received.is_empty() || received == [5, 0], "{received:02x?}");
    }
    wait_for_no_connections(&proxy).await;
    assert_eq!(metric_value(&proxy, "narthex_socks5_unanswered_total{reason=\"timeout\"}").await, Some(1000.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn socks5_max_connections_enforced() {
    let (proxy, echo) = (start_socks5(&["--max-connections=2"]), start_echo_server().await);
    let (mut one, mut two, mut three) =
        (open_connection(&proxy).await, open_connection(&proxy).await, open_connection(&proxy).await);
    for socket in [&mut one, &mut two] {
        send_and_expect(socket, &[5, 1, 0], &[5, 0]).await;
        send_and_expect(socket, &connect_request(echo), &GRANTED).await;
    }
    three.write_all(&[5, 1, 0]).await.unwrap();
    assert_eq!(metric_value(&proxy, "narthex_socks5_connections").await, Some(2.0));
    drop(one);
    expect_bytes(&mut three, &[5, 0]).await;
    drop(two);
}

#[tokio::test(flavor = "multi_thread")]
async fn socks5_shutdown_lets_open_connections_finish() {
    let (mut proxy, echo) = (start_socks5(&[]), start_echo_server().await);
    let mut socket = open_connection(&proxy).await;
    send_and_expect(&mut socket, &[5, 1, 0], &[5, 0]).await;
    send_and_expect(&mut socket, &connect_request(echo), &GRANTED).await;
    proxy.signal("TERM");
    proxy.wait_for_log(&["open connections may finish"]).await;
    eventually("the port to close", async || TcpStream::connect(proxy.address).await.err()).await;
    assert_eq!(admin_request(&proxy, get("/readyz", &[])).await.status, 500);
    send_and_expect(&mut socket, b"still", b"still").await;
    socket.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut socket).await, b"");
    assert_eq!(proxy.wait_for_exit().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn socks5_drain_timeout_closes_connections() {
    let (mut proxy, echo) = (start_socks5(&["--drain-timeout=0s"]), start_echo_server().await);
    let mut socket = open_connection(&proxy).await;
    send_and_expect(&mut socket, &[5, 1, 0], &[5, 0]).await;
    send_and_expect(&mut socket, &connect_request(echo), &GRANTED).await;
    proxy.signal("TERM");
    assert_eq!(read_to_end(&mut socket).await, b"");
    assert_eq!(proxy.wait_for_exit().await.code(), Some(0));
    proxy.wait_for_log(&["\"reply\":\"succeeded\"", "the process shuts down"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn socks5_connects_through_egress_selection() {
    let echo = start_echo_server().await;
    // Says no to some names, in its own words.
    let policy = move |recorded: &EgressProxyRequest| match recorded.target.split(':').next().unwrap() {
        "forbidden.internal" => ProxyAction::Reply(socks5_reply(2)),
        "network.internal" => ProxyAction::Reply(socks5_reply(3)),
        "host.internal" => ProxyAction::Reply(socks5_reply(4)),
        "hops.internal" => ProxyAction::Reply(socks5_reply(6)),
        "broken.internal" => ProxyAction::Reply(b"HTTP/1.1 400 Bad Request".to_vec()),
        _ => ProxyAction::Connect(echo),
    };
    let (first, second) = (FakeEgressProxy::start_socks5(policy).await, FakeEgressProxy::start_connect(policy).await);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("egress.yaml");
    let write = |protocol: &str, url: &str| {
        let text = format!(
            "apiVersion: narthex.dev/v1alpha1\nkind: EgressConfiguration\negressSelections:\n- name: dmz\n  connection:\n    \
             proxyProtocol: {protocol}\n    transport: {{tcp: {{url: '{url}'}}}}\n  noProxy: [127.0.0.0/8]\n\
             - {{name: other, connection: {{proxyProtocol: HTTPConnect, transport: {{tcp: {{url: 'https://p', tlsConfig: \
             {{caBundle: /nowhere}}}}}}}}}}\n"
        );
        let hidden = folder.path().join(".egress.tmp");
        fs::write(&hidden, text).unwrap();
        fs::rename(&hidden, &file).unwrap();
    };
    write("SOCKS5", &format!("socks5://jane:secret@{}", first.address));
    // What another selection names is not looked at.
    let proxy = start_socks5(&[&format!("--egress-selector-config-file={}", file.display()), "--egress=DMZ"]);
    let through = async |name: &str| {
        let mut socket = open_connection(&proxy).await;
        send_and_expect(&mut socket, &[5, 1, 0], &[5, 0]).await;
        send_and_expect(&mut socket, &connect_request_by_name(name, 5432), &GRANTED).await;
        send_and_expect(&mut socket, b"hello", b"hello").await;
        socket.shutdown().await.unwrap();
        assert_eq!(read_to_end(&mut socket).await, b"");
    };
    through("Db.Internal").await;
    // The name is looked up at the far end.
    assert_eq!(first.targets(), ["db.internal:5432"]);
    assert!(first.requests().iter().all(|recorded| recorded.credentials == "jane:secret"));
    for (name, expected) in [
        ("forbidden.internal", 2),
        ("network.internal", 3),
        ("host.internal", 4),
        ("hops.internal", 6),
        ("broken.internal", 1),
    ] {
        assert_eq!(request_reply(&proxy, &connect_request_by_name(name, 1)).await, expected, "{name}");
    }
    // What goes past the proxy.
    let before = first.requests().len();
    let mut socket = open_connection(&proxy).await;
    send_and_expect(&mut socket, &[5, 1, 0], &[5, 0]).await;
    send_and_expect(&mut socket, &connect_request(echo), &GRANTED).await;
    assert_eq!(first.requests().len(), before);

    // The file is followed; without the selection it is not taken.
    fs::write(&file, "apiVersion: narthex.dev/v1alpha1\nkind: EgressConfiguration\n").unwrap();
    proxy.wait_for_log(&["has no selection", "the last good ones stay"]).await;
    through("db.internal").await;
    write("HTTPConnect", &format!("http://jane:secret@{}", second.address));
    eventually("the other proxy to be used", async || {
        through("db.internal").await;
        (!second.requests().is_empty()).then_some(())
    })
    .await;
    assert_eq!(second.targets(), ["db.internal:5432"]);
    assert!(!proxy.log_lines().join("\n").contains("secret"));
    let status = admin_request(&proxy, get("/status.json", &[])).await.json();
    let egress = &status["egress"][0];
    assert_eq!(
        (&egress["selection"], &egress["protocol"], &egress["state"]),
        (&"dmz".into(), &"http_connect".into(), &"serves".into())
    );
    // What was open stays.
    send_and_expect(&mut socket, b"still", b"still").await;
}

#[test]
fn socks5_configuration_errors_reported_before_listening() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let direct = "{name: cluster, connection: {proxyProtocol: Direct}}";
    let head = "apiVersion: narthex.dev/v1alpha1\nkind: EgressConfiguration\n";
    let good = write("good.yaml", &format!("{head}egressSelections: [{direct}]\n"));
    let bad = write("bad.yaml", &format!("{head}egressSelections: [{direct}, {direct}]\n"));
    let (users, anonymous) = (write("users", "a:b\n"), write("nobody", "\n"));
    let run = |line: &[&str]| {
        let line: Vec<String> = ["check", "socks5"].iter().chain(line).map(|text| (*text).to_owned()).collect();
        let output = run_narthex(&line);
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (output.status.code().unwrap(), text(&output.stdout) + &text(&output.stderr))
    };
    let (file, credentials) = (format!("--egress-selector-config-file={good}"), format!("--credentials-file={users}"));
    let all =
        ["--listen=0.0.0.0:1080", &file, "--egress=Cluster", &credentials, "--allow-destinations=*.svc,10.0.0.0/8"];
    let (status, text) = run(&all);
    assert!(status == 0 && text.starts_with("socks5: no mistakes found\n"), "{text}");
    assert!(text.contains("credentials file is world-readable"), "{text}");
    for (line, words) in [
        (&["--listen=0.0.0.0:1080"][..], &["--credentials-file: required", "--allow-destinations: required"][..]),
        (&[&file, "--egress=dmz"], &["good.yaml: has no selection \"dmz\""]),
        (
            &[&format!("--egress-selector-config-file={bad}"), &format!("--credentials-file={anonymous}")],
            &[
                "nobody: has no line user:password",
                "bad.yaml: egressSelections[1].name: \"cluster\" is given more than once",
            ],
        ),
        (&["--egress-selector-config-file=/nowhere"], &["open /nowhere: no such file or directory"]),
        (&["--egress=cluster"], &["--egress: not used without --egress-selector-config-file"]),
    ] {
        let (status, text) = run(line);
        assert_eq!(status, 1, "{line:?}: {text}");
        assert!(words.iter().all(|word| text.contains(word)), "{line:?}: {text}");
    }
    assert_eq!(run(&["--listen=1080"]).0, 1);
}
