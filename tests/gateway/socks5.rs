//! `narthex socks5`, byte for byte: the real binary between raw clients and local listeners.

use std::fs;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::client::{admin, get, sample};
use crate::proxies::{Asked, Deed, Proxy, reply};
use crate::world::{Gateway, eventually, narthex};

/// The answer to a request that is granted.
const GRANTED: [u8; 10] = [5, 0, 0, 1, 0, 0, 0, 0, 0, 0];

fn door(more: &[&str]) -> Gateway {
    let seen = ["--admin-address=127.0.0.1:0", "--log-format=json", "--access-log=all", "--access-log-format=json"];
    let fixed = std::iter::once(&"--listen=127.0.0.1:0").chain(&seen);
    let arguments: Vec<String> = fixed.chain(more).map(|text| (*text).to_owned()).collect();
    Gateway::start_as("socks5", &arguments)
}

async fn listener<F: Future<Output = ()> + Send + 'static>(
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
async fn echo() -> SocketAddr {
    listener(async |mut socket: TcpStream| {
        let (mut read, mut write) = socket.split();
        let _ = tokio::io::copy(&mut read, &mut write).await;
        let _ = write.shutdown().await;
    })
    .await
}

/// An address at which nobody listens.
async fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

/// The request for an IPv4 address.
fn request(to: SocketAddr) -> Vec<u8> {
    let SocketAddr::V4(to) = to else { panic!("{to} is not IPv4") };
    [&[5, 1, 0, 1][..], &to.ip().octets(), &to.port().to_be_bytes()].concat()
}

/// The request for a name.
fn request_named(name: &str, port: u16) -> Vec<u8> {
    [&[5, 1, 0, 3, name.len() as u8][..], name.as_bytes(), &port.to_be_bytes()].concat()
}

async fn connect(door: &Gateway) -> TcpStream {
    TcpStream::connect(door.address).await.unwrap()
}

/// Says `said` and hears exactly `heard`.
async fn exchange(socket: &mut TcpStream, said: &[u8], heard: &[u8]) {
    socket.write_all(said).await.unwrap();
    hear(socket, heard).await;
}

async fn hear(socket: &mut TcpStream, heard: &[u8]) {
    let mut answer = vec![0; heard.len()];
    let read = tokio::time::timeout(crate::world::PATIENCE, socket.read_exact(&mut answer)).await;
    read.expect("an answer in time").unwrap();
    assert_eq!(answer, heard);
}

/// All that comes until the other side closes its half.
async fn rest(socket: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let read = tokio::time::timeout(crate::world::PATIENCE, socket.read_to_end(&mut all)).await;
    // A reset is an end, too.
    let _ = read.expect("an end in time");
    all
}

/// The reply to a request, without the address behind it.
async fn reply_to(door: &Gateway, request: &[u8]) -> u8 {
    let mut socket = connect(door).await;
    exchange(&mut socket, &[5, 1, 0], &[5, 0]).await;
    socket.write_all(request).await.unwrap();
    let answer = rest(&mut socket).await;
    assert_eq!((answer.len(), answer[0], &answer[2..]), (10, 5, &GRANTED[2..]), "{answer:02x?}");
    answer[1]
}

async fn nobody_is_connected(door: &Gateway) {
    eventually("all connections to end", async || {
        (sample(door, "narthex_socks5_connections").await? == 0.0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_go_both_ways_and_each_half_is_closed_on_its_own() {
    let (door, echo) = (door(&[]), echo().await);
    let mut socket = connect(&door).await;
    exchange(&mut socket, &[5, 1, 0], &[5, 0]).await;
    exchange(&mut socket, &request(echo), &GRANTED).await;
    exchange(&mut socket, b"there", b"there").await;
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
    let mut socket = connect(&door).await;
    exchange(&mut socket, &[5, 1, 0], &[5, 0]).await;
    exchange(&mut socket, &request_named("LocalHost", echo.port()), &GRANTED).await;
    exchange(&mut socket, b"again", b"again").await;
    drop(socket);

    nobody_is_connected(&door).await;
    assert_eq!(sample(&door, "narthex_socks5_replies_total{reply=\"succeeded\"}").await, Some(2.0));
    let carried = 5.0 + (4 << 20) as f64 + 5.0;
    for direction in ["sent", "received"] {
        let name = format!("narthex_socks5_bytes_total{{direction=\"{direction}\"}}");
        assert_eq!(sample(&door, &name).await, Some(carried), "{direction}");
    }
    let destination = format!("\"destination\":\"localhost:{}\"", echo.port());
    let line = door.said(&["\"kind\":\"access\"", &destination]).await;
    assert!(line.contains("\"reply\":\"succeeded\"") && line.contains("\"in\":5,\"out\":5"), "{line}");
    let status = admin(&door, get("/status.json", &[])).await.text();
    assert!(status.contains(&format!("socks5://{}", door.address)), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_speaks_first_is_heard() {
    let door = door(&[]);
    let banner = listener(async |mut socket: TcpStream| {
        socket.write_all(b"220 hello\r\n").await.unwrap();
        let _ = socket.read(&mut [0]).await;
    })
    .await;
    for _ in 0..200 {
        let mut socket = connect(&door).await;
        exchange(&mut socket, &[5, 1, 0], &[5, 0]).await;
        exchange(&mut socket, &request(banner), &[&GRANTED[..], b"220 hello\r\n"].concat()).await;
    }
    // A client that does not wait for the answers.
    let echo = echo().await;
    let mut socket = connect(&door).await;
    let said = [&[5, 2, 0, 2][..], &request(echo), b"early"].concat();
    exchange(&mut socket, &said, &[&[5, 0][..], &GRANTED, b"early"].concat()).await;
    socket.shutdown().await.unwrap();
    assert_eq!(rest(&mut socket).await, b"");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_breaks_off_is_not_taken_for_an_end() {
    let door = door(&[]);
    let (sender, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let backend = listener(move |mut socket: TcpStream| {
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
    let mut socket = connect(&door).await;
    exchange(&mut socket, &[5, 1, 0], &[5, 0]).await;
    exchange(&mut socket, &request(backend), &GRANTED).await;
    exchange(&mut socket, b"break", b"half").await;
    socket.write_all(b".").await.unwrap();
    let error = socket.read(&mut [0]).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    // The client does.
    let mut socket = connect(&door).await;
    exchange(&mut socket, &[5, 1, 0], &[5, 0]).await;
    exchange(&mut socket, &request(backend), &GRANTED).await;
    socket.write_all(b"there").await.unwrap();
    socket2::SockRef::from(&socket).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(socket);
    assert_eq!(heard.recv().await.unwrap(), Some(std::io::ErrorKind::ConnectionReset));
    nobody_is_connected(&door).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn users_and_passwords() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("users");
    fs::write(&file, "al ice:p@ss:word\nempty:\n").unwrap();
    let (door, echo) = (door(&[&format!("--credentials-file={}", file.display())]), echo().await);
    let login = |user: &str, password: &str| {
        let (user, password) = (user.as_bytes(), password.as_bytes());
        [&[1, user.len() as u8][..], user, &[password.len() as u8], password].concat()
    };
    for (user, password) in [("al ice", "p@ss:word"), ("empty", "")] {
        let mut socket = connect(&door).await;
        // As Go offers it.
        exchange(&mut socket, &[5, 2, 0, 2], &[5, 2]).await;
        exchange(&mut socket, &login(user, password), &[1, 0]).await;
        exchange(&mut socket, &request(echo), &GRANTED).await;
        exchange(&mut socket, b"x", b"x").await;
    }
    for (user, password) in [("al ice", "p@ss"), ("alice", "p@ss:word"), ("", ""), ("empty", "empty")] {
        let mut socket = connect(&door).await;
        exchange(&mut socket, &[5, 2, 0, 2], &[5, 2]).await;
        socket.write_all(&login(user, password)).await.unwrap();
        assert_eq!(rest(&mut socket).await, [1, 1], "{user}");
    }
    // Nobody comes in without.
    let mut socket = connect(&door).await;
    socket.write_all(&[&[5, 1, 0][..], &request(echo)].concat()).await.unwrap();
    assert_eq!(rest(&mut socket).await, [5, 0xff]);
    let line = door.said(&["\"reply\":\"credentials\""]).await;
    assert!(!line.contains("p@ss"), "{line}");
    door.said(&["\"user\":\"al ice\"", "\"reply\":\"succeeded\""]).await;
    nobody_is_connected(&door).await;
    assert_eq!(sample(&door, "narthex_socks5_unanswered_total{reason=\"credentials\"}").await, Some(4.0));
    assert_eq!(sample(&door, "narthex_socks5_unanswered_total{reason=\"method\"}").await, Some(1.0));

    // The file is followed; one that is wrong changes nothing.
    fs::write(&file, "nonsense\n").unwrap();
    door.said(&["the last good users stay", "users:1"]).await;
    fs::write(&file, "bob:new\n").unwrap();
    eventually("the new user to be known", async || {
        let mut socket = connect(&door).await;
        exchange(&mut socket, &[5, 1, 2], &[5, 2]).await;
        socket.write_all(&login("bob", "new")).await.unwrap();
        let mut verdict = [0; 2];
        socket.read_exact(&mut verdict).await.unwrap();
        (verdict == [1, 0]).then_some(())
    })
    .await;
    let mut socket = connect(&door).await;
    exchange(&mut socket, &[5, 1, 2], &[5, 2]).await;
    exchange(&mut socket, &login("empty", ""), &[1, 1]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_allowed() {
    let echo = echo().await;
    let port = echo.port();
    let other = nobody().await;
    let door = door(&[&format!("--allow-destinations=127.0.0.0/8:{port},localhost:{port},*.example")]);
    for allowed in [request(echo), request_named("127.0.0.1", port), request_named("localhost", port)] {
        let mut socket = connect(&door).await;
        exchange(&mut socket, &[5, 1, 0], &[5, 0]).await;
        exchange(&mut socket, &allowed, &GRANTED).await;
    }
    let mut six = vec![5, 1, 0, 4];
    six.extend_from_slice(&std::net::Ipv6Addr::LOCALHOST.octets());
    six.extend_from_slice(&port.to_be_bytes());
    for refused in [
        request(other),
        request_named("localhost", other.port()),
        request_named("a.localhost", port),
        request_named("example", port),
        request_named("10.0.0.1", port),
        six,
    ] {
        assert_eq!(reply_to(&door, &refused).await, 2, "{refused:02x?}");
    }
    assert_eq!(sample(&door, "narthex_socks5_replies_total{reply=\"not_allowed\"}").await, Some(6.0));
    door.said(&["\"reply\":\"not_allowed\"", "not among --allow-destinations"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_failure_has_its_reply() {
    let door = door(&[]);
    let nobody = nobody().await;
    assert_eq!(reply_to(&door, &request(nobody)).await, 5);
    // RFC 6761: never a host.
    assert_eq!(reply_to(&door, &request_named("nowhere.invalid", 443)).await, 4);
    // BIND, UDP ASSOCIATE, an unknown command; an unknown kind of address.
    for command in [2, 3, 9] {
        assert_eq!(reply_to(&door, &[5, command, 0, 1, 127, 0, 0, 1, 0, 80]).await, 7);
    }
    assert_eq!(reply_to(&door, &[5, 1, 0, 2]).await, 8);
    for wrong in
        [&b"\x05\x01\x01\x01\x7f\0\0\x01\0\x50"[..], b"\x05\x01\0\x03\0\0\x50", b"\x05\x01\0\x03\x03a\0b\0\x50"]
    {
        assert_eq!(reply_to(&door, wrong).await, 1, "{wrong:02x?}");
    }
    // What the resolver would read as an address, and rules would not.
    assert_eq!(reply_to(&door, &request_named("127.1", nobody.port())).await, 1);
    for (reply, count) in [
        ("connection_refused", 1.0),
        ("host_unreachable", 1.0),
        ("command_not_supported", 3.0),
        ("address_type_not_supported", 1.0),
        ("general_failure", 4.0),
    ] {
        let name = format!("narthex_socks5_replies_total{{reply=\"{reply}\"}}");
        assert_eq!(sample(&door, &name).await, Some(count), "{reply}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_socks5_gets_no_word() {
    let door = door(&[]);
    for said in [&b"\x04\x01\x00\x50\x7f\0\0\x01\0"[..], b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b"\0", b"\xff"] {
        let mut socket = connect(&door).await;
        socket.write_all(said).await.unwrap();
        assert_eq!(rest(&mut socket).await, b"", "{said:02x?}");
    }
    // No method, one of private use, GSSAPI.
    for said in [&[5, 0][..], &[5, 1, 0x80], &[5, 2, 1, 2]] {
        let mut socket = connect(&door).await;
        socket.write_all(said).await.unwrap();
        assert_eq!(rest(&mut socket).await, [5, 0xff], "{said:02x?}");
    }
    // Another version half-way.
    let mut socket = connect(&door).await;
    exchange(&mut socket, &[5, 1, 0], &[5, 0]).await;
    socket.write_all(&[4, 1, 0, 1]).await.unwrap();
    assert_eq!(rest(&mut socket).await, b"");
    nobody_is_connected(&door).await;
    assert_eq!(sample(&door, "narthex_socks5_unanswered_total{reason=\"version\"}").await, Some(6.0));
    door.said(&["\"reply\":\"version\"", "client sent SOCKS4"]).await;
    door.said(&["\"reply\":\"version\"", "client sent HTTP"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_cut_at_any_byte_harms_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("users");
    fs::write(&file, "jane:secret\n").unwrap();
    let (door, echo) = (door(&[&format!("--credentials-file={}", file.display())]), echo().await);
    let whole =
        [&[5, 3, 0, 1, 2][..], b"\x01\x04jane\x06secret", &request_named("localhost", echo.port()), b"hello"].concat();
    let request_ends = whole.len() - 5;
    for end in 0..=whole.len() {
        let mut socket = connect(&door).await;
        socket.write_all(&whole[..end]).await.unwrap();
        socket.shutdown().await.unwrap();
        let heard = rest(&mut socket).await;
        let mut expected = Vec::new();
        for (at, answer) in [(5, &[5, 2][..]), (18, &[1, 0]), (request_ends, &GRANTED)] {
            if end >= at {
                expected.extend_from_slice(answer);
            }
        }
        expected.extend_from_slice(&whole[request_ends.min(end)..end]);
        assert_eq!(heard, expected, "cut after {end}");
    }
    // A byte at a time is as good.
    let mut socket = connect(&door).await;
    socket.set_nodelay(true).unwrap();
    for byte in &whole {
        socket.write_all(&[*byte]).await.unwrap();
    }
    hear(&mut socket, &[&[5, 2, 1, 0][..], &GRANTED, b"hello"].concat()).await;
    drop(socket);
    nobody_is_connected(&door).await;
    assert_eq!(sample(&door, "narthex_socks5_unanswered_total{reason=\"closed\"}").await, Some(request_ends as f64));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_that_say_nothing_more_keep_nobody_out() {
    let (door, echo) = (door(&["--handshake-timeout=5s"]), echo().await);
    let mut silent = Vec::new();
    for number in 0..1000 {
        let mut socket = connect(&door).await;
        let said = [&[5, 1, 0][..], &request(echo)].concat();
        socket.write_all(&said[..number % said.len()]).await.unwrap();
        silent.push(socket);
    }
    for _ in 0..20 {
        let mut socket = connect(&door).await;
        exchange(&mut socket, &[5, 1, 0], &[5, 0]).await;
        exchange(&mut socket, &request(echo), &GRANTED).await;
        exchange(&mut socket, b"x", b"x").await;
    }
    for socket in &mut silent {
        let heard = rest(socket).await;
        assert!(heard.is_empty() || heard == [5, 0], "{heard:02x?}");
    }
    nobody_is_connected(&door).await;
    assert_eq!(sample(&door, "narthex_socks5_unanswered_total{reason=\"timeout\"}").await, Some(1000.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_at_once_than_is_said() {
    let (door, echo) = (door(&["--max-connections=2"]), echo().await);
    let (mut one, mut two, mut three) = (connect(&door).await, connect(&door).await, connect(&door).await);
    for socket in [&mut one, &mut two] {
        exchange(socket, &[5, 1, 0], &[5, 0]).await;
        exchange(socket, &request(echo), &GRANTED).await;
    }
    three.write_all(&[5, 1, 0]).await.unwrap();
    assert_eq!(sample(&door, "narthex_socks5_connections").await, Some(2.0));
    drop(one);
    hear(&mut three, &[5, 0]).await;
    drop(two);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_connected_may_finish_when_the_process_ends() {
    let (mut door, echo) = (door(&[]), echo().await);
    let mut socket = connect(&door).await;
    exchange(&mut socket, &[5, 1, 0], &[5, 0]).await;
    exchange(&mut socket, &request(echo), &GRANTED).await;
    door.signal("TERM");
    door.said(&["open connections may finish"]).await;
    eventually("the port to close", async || TcpStream::connect(door.address).await.err()).await;
    assert_eq!(admin(&door, get("/readyz", &[])).await.status, 500);
    exchange(&mut socket, b"still", b"still").await;
    socket.shutdown().await.unwrap();
    assert_eq!(rest(&mut socket).await, b"");
    assert_eq!(door.ended().await.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn whose_time_is_up_is_cut() {
    let (mut door, echo) = (door(&["--drain-timeout=0s"]), echo().await);
    let mut socket = connect(&door).await;
    exchange(&mut socket, &[5, 1, 0], &[5, 0]).await;
    exchange(&mut socket, &request(echo), &GRANTED).await;
    door.signal("TERM");
    assert_eq!(rest(&mut socket).await, b"");
    assert_eq!(door.ended().await.code(), Some(0));
    door.said(&["\"reply\":\"succeeded\"", "the process ends"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_go_through_the_selection() {
    let echo = echo().await;
    // Says no to some names, in its own words.
    let judge = move |asked: &Asked| match asked.target.split(':').next().unwrap() {
        "forbidden.internal" => Deed::Say(reply(2)),
        "network.internal" => Deed::Say(reply(3)),
        "host.internal" => Deed::Say(reply(4)),
        "hops.internal" => Deed::Say(reply(6)),
        "broken.internal" => Deed::Say(b"HTTP/1.1 400 Bad Request".to_vec()),
        _ => Deed::Connect(echo),
    };
    let (first, second) = (Proxy::socks5(judge).await, Proxy::connect(judge).await);
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
    let door = door(&[&format!("--egress-selector-config-file={}", file.display()), "--egress=DMZ"]);
    let through = async |name: &str| {
        let mut socket = connect(&door).await;
        exchange(&mut socket, &[5, 1, 0], &[5, 0]).await;
        exchange(&mut socket, &request_named(name, 5432), &GRANTED).await;
        exchange(&mut socket, b"hello", b"hello").await;
        socket.shutdown().await.unwrap();
        assert_eq!(rest(&mut socket).await, b"");
    };
    through("Db.Internal").await;
    // The name is looked up at the far end.
    assert_eq!(first.targets(), ["db.internal:5432"]);
    assert!(first.asked().iter().all(|asked| asked.credentials == "jane:secret"));
    for (name, expected) in [
        ("forbidden.internal", 2),
        ("network.internal", 3),
        ("host.internal", 4),
        ("hops.internal", 6),
        ("broken.internal", 1),
    ] {
        assert_eq!(reply_to(&door, &request_named(name, 1)).await, expected, "{name}");
    }
    // What goes past the proxy.
    let before = first.asked().len();
    let mut socket = connect(&door).await;
    exchange(&mut socket, &[5, 1, 0], &[5, 0]).await;
    exchange(&mut socket, &request(echo), &GRANTED).await;
    assert_eq!(first.asked().len(), before);

    // The file is followed; without the selection it is not taken.
    fs::write(&file, "apiVersion: narthex.dev/v1alpha1\nkind: EgressConfiguration\n").unwrap();
    door.said(&["has no selection", "the last good ones stay"]).await;
    through("db.internal").await;
    write("HTTPConnect", &format!("http://jane:secret@{}", second.address));
    eventually("the other proxy to be used", async || {
        through("db.internal").await;
        (!second.asked().is_empty()).then_some(())
    })
    .await;
    assert_eq!(second.targets(), ["db.internal:5432"]);
    assert!(!door.log().join("\n").contains("secret"));
    let status = admin(&door, get("/status.json", &[])).await.json();
    let egress = &status["egress"][0];
    assert_eq!(
        (&egress["selection"], &egress["protocol"], &egress["state"]),
        (&"dmz".into(), &"http_connect".into(), &"serves".into())
    );
    // What was open stays.
    exchange(&mut socket, b"still", b"still").await;
}

#[test]
fn what_cannot_be_is_said_before_anything_listens() {
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
    let (users, nobody) = (write("users", "a:b\n"), write("nobody", "\n"));
    let run = |line: &[&str]| {
        let line: Vec<String> = ["check", "socks5"].iter().chain(line).map(|text| (*text).to_owned()).collect();
        let output = narthex(&line);
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
            &[&format!("--egress-selector-config-file={bad}"), &format!("--credentials-file={nobody}")],
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
