//! `run_narthex proxy`: the real binary between plain HTTP clients and a fake API server.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use crate::support::backend::{
    Backend, BackendSettings, data_frame, json_response as response, start_scripted_backend,
};
use crate::support::fake_egress_proxy::{EgressProxyRequest, FakeEgressProxy, ProxyAction};
use crate::support::fixtures::{TEST_TIMEOUT, TestEnvironment, eventually, run_narthex};
use crate::support::raw_backend;

/// The answer to pages of others, for which kubectl has no words.
const CROSS_ORIGIN: &str =
    "Forbidden: cross-origin request: only pages with the requested host and port as origin are allowed\n";

/// The door; it goes when dropped.
pub(crate) struct ProxyProcess {
    child: Child,
    /// What its first line names: an address or a path.
    pub(crate) address: String,
}

impl ProxyProcess {
    pub(crate) fn start(environment: &TestEnvironment, more: &[&str]) -> ProxyProcess {
        ProxyProcess::start_with_kubeconfig(environment, "kubeconfig", more)
    }

    /// Of a kubeconfig with another name: every door follows its own.
    fn start_with_kubeconfig(environment: &TestEnvironment, kubeconfig: &str, more: &[&str]) -> ProxyProcess {
        let kubeconfig = format!("--kubeconfig={}", environment.path(kubeconfig).display());
        let arguments: Vec<_> = [kubeconfig.as_str()].into_iter().chain(more.iter().copied()).collect();
        ProxyProcess::spawn(&arguments, &[], Stdio::inherit())
    }

    /// With these arguments, and nothing else than this in its environment.
    pub(crate) fn spawn(arguments: &[&str], env_vars: &[(&str, &str)], log: Stdio) -> ProxyProcess {
        let mut child = Command::new(env!("CARGO_BIN_EXE_narthex"))
            .arg("proxy")
            .args(arguments)
            .env_clear()
            .envs(env_vars.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let place = line.trim_end().strip_prefix("Starting to serve on ").expect("the start line").to_owned();
        ProxyProcess { child, address: place }
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(&self.address).await.unwrap()
    }

    /// Asks as the head says, with a name of ours, and gives the whole answer.
    pub(crate) async fn request(&self, line: &str, headers: &str) -> RawResponse {
        let host = if headers.to_lowercase().contains("host:") { "" } else { "Host: localhost\r\n" };
        let request = format!("{line} HTTP/1.1\r\n{host}Connection: close\r\n{headers}\r\n");
        send_raw(self.connect().await, &request).await
    }

    pub(crate) async fn get(&self, path: &str) -> RawResponse {
        self.request(&format!("GET {path}"), "").await
    }
}

impl Drop for ProxyProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An answer, byte for byte.
#[derive(Debug)]
pub(crate) struct RawResponse {
    pub(crate) status: u16,
    /// In lower case.
    head: String,
    pub(crate) body: String,
}

impl RawResponse {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

pub(crate) async fn send_raw(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> RawResponse {
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut all = Vec::new();
    tokio::time::timeout(TEST_TIMEOUT, stream.read_to_end(&mut all)).await.expect("an end in time").ok();
    let all = String::from_utf8(all).unwrap();
    let (head, body) = all.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {all}"));
    let status = head[9..12].parse().unwrap();
    RawResponse { status, head: head.replace("\r\n", "\n").to_lowercase(), body: body.to_owned() }
}

/// Reads until `text` has come.
pub(crate) async fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let mut all = Vec::new();
    while !String::from_utf8_lossy(&all).contains(text) {
        let read = tokio::time::timeout(TEST_TIMEOUT, stream.read_buf(&mut all)).await.expect("bytes in time");
        assert!(read.unwrap() > 0, "{text} did not come: {}", String::from_utf8_lossy(&all));
    }
    String::from_utf8(all).unwrap()
}

/// Writes a kubeconfig with a client certificate and a token.
pub(crate) fn write_kubeconfig(environment: &TestEnvironment, server: &str, token: &str) {
    let document = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server, "certificate-authority": "backend-ca.crt"}}],
        "users": [
            {"name": "u", "user": {
                "client-certificate": "front-proxy.crt", "client-key": "front-proxy.key", "token": token,
            }},
            {"name": "other", "user": {
                "client-certificate": "front-proxy.crt", "client-key": "front-proxy.key", "token": "other",
            }},
        ],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}, {"name": "y", "context": {"cluster": "c"}}],
        "current-context": "x",
    });
    let hidden = environment.path(".kubeconfig.tmp");
    std::fs::write(&hidden, document.to_string()).unwrap();
    std::fs::rename(hidden, environment.path("kubeconfig")).unwrap();
}

pub(crate) fn loopback_settings(settings: BackendSettings) -> BackendSettings {
    BackendSettings { names: vec!["127.0.0.1"], handles_probes: true, ..settings }
}

/// An environment with an API server that answers every request, and a kubeconfig that names it.
pub(crate) async fn environment_with_apiserver() -> (TestEnvironment, Backend) {
    let environment = TestEnvironment::new();
    let server =
        Backend::start(&environment, loopback_settings(BackendSettings::http2()), |_| async { response(200, "{}") })
            .await;
    write_kubeconfig(&environment, &format!("https://{}", server.address), "secret");
    (environment, server)
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_forwards_with_kubeconfig_credentials() {
    let (environment, server) = environment_with_apiserver().await;
    let proxy_process = ProxyProcess::start(&environment, &["--port=0"]);
    let reply =
        proxy_process.request("GET /api/v1/pods?limit=1&x=%2F", "X-Forwarded-For: 1.2.3.4\r\nX-Mine: 1\r\n").await;
    assert_eq!((reply.status, reply.body.as_str()), (200, "{}"), "{reply:?}");
    let seen = server.last_request();
    assert_eq!(
        (seen.peer.as_str(), &seen.header_values("authorization")[..]),
        ("narthex-front-proxy", &["Bearer secret".to_owned()][..])
    );
    assert_eq!(seen.uri.path_and_query().unwrap().as_str(), "/api/v1/pods?limit=1&x=%2F");
    assert_eq!(
        (seen.header_values("x-forwarded-for"), seen.header_values("x-mine")),
        (vec!["1.2.3.4, 127.0.0.1".to_owned()], vec!["1".to_owned()])
    );
    assert!(seen.header_values("host").is_empty() && seen.header_values("connection").is_empty(), "{seen:?}");

    let posted = "Content-Length: 5\r\nAuthorization: Bearer mine\r\nProxy-Authorization: x\r\n\r\nhello";
    let request = format!("POST /api/v1/pods HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{posted}");
    assert_eq!(send_raw(proxy_process.connect().await, &request).await.status, 200);
    let seen = server.last_request();
    assert_eq!((seen.method.as_str(), seen.header_values("authorization")), ("POST", vec!["Bearer mine".to_owned()]));
    assert!(seen.header_values("proxy-authorization").is_empty());

    // Many clients, one connection.
    let recorded = (0..20).map(|number| {
        let proxy_process = &proxy_process;
        async move { proxy_process.get(&format!("/api/{number}")).await.status }
    });
    assert!(futures_util::future::join_all(recorded).await.iter().all(|status| *status == 200));
    assert_eq!(server.connections(), 1);

    // Rotated credentials, and another user.
    write_kubeconfig(&environment, &format!("https://{}", server.address), "fresh");
    eventually("the new token to be used", async || {
        proxy_process.get("/api").await;
        (server.last_request().header_values("authorization") == ["Bearer fresh"]).then_some(())
    })
    .await;
    let other = ProxyProcess::start(&environment, &["-p", "0", "--context=y", "--user=other"]);
    other.get("/api").await;
    assert_eq!(server.last_request().header_values("authorization"), ["Bearer other"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_streams_watch_events_and_shuts_down_gracefully() {
    let environment = TestEnvironment::new();
    let (server, mut writers) = start_scripted_backend(&environment, loopback_settings(BackendSettings::http2())).await;
    write_kubeconfig(&environment, &format!("https://{}", server.address), "secret");
    let mut proxy_process = ProxyProcess::start(&environment, &["--port=0"]);
    let mut stream = proxy_process.connect().await;
    stream.write_all(b"GET /api/v1/pods?watch=1 HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let writer = writers.recv().await.unwrap();
    writer.send(data_frame("one\n")).unwrap();
    read_until(&mut stream, "one\n").await;
    writer.send(data_frame("two\n")).unwrap();
    read_until(&mut stream, "two\n").await;
    proxy_process.signal("TERM");
    // New connections are rejected, and running requests are finished.
    eventually("the port to be closed", async || {
        TcpStream::connect(&proxy_process.address).await.is_err().then_some(())
    })
    .await;
    writer.send(data_frame("three\n")).unwrap();
    drop(writer);
    read_until(&mut stream, "three\n\r\n0\r\n\r\n").await;
    let ended = eventually("the end", async || proxy_process.child.try_wait().unwrap()).await;
    assert_eq!(ended.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_upgrade_tunnels() {
    let environment = TestEnvironment::new();
    let backend = Backend::start_raw(&environment, loopback_settings(BackendSettings::http1()), |stream| async move {
        let mut stream = stream;
        let mut head = Vec::new();
        while !head.windows(4).any(|four| four == b"\r\n\r\n") {
            if stream.read_buf(&mut head).await.unwrap_or(0) == 0 {
                return;
            }
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        let status = if head.contains("get /refused") { "403 Forbidden" } else { "101 Switching Protocols" };
        let status = if head.contains("get /odd") { "200 OK" } else { status };
        let upgrade = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n";
        let reply = match status {
            "101 Switching Protocols" => format!("HTTP/1.1 {status}\r\n{upgrade}\r\n{head}"),
            _ => format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nno"),
        };
        stream.write_all(reply.as_bytes()).await.unwrap();
        let (mut read, mut write) = tokio::io::split(stream);
        let _ = tokio::io::copy(&mut read, &mut write).await;
    })
    .await;
    write_kubeconfig(&environment, &format!("https://{}", backend.address), "secret");
    let proxy_process = ProxyProcess::start(&environment, &["--port=0"]);
    let upgrade = "Host: localhost\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
    let mut stream = proxy_process.connect().await;
    let request = format!("GET /api/v1/namespaces/a/pods/b/portforward HTTP/1.1\r\n{upgrade}");
    stream.write_all(request.as_bytes()).await.unwrap();
    let head = read_until(&mut stream, "x-forwarded-for: 127.0.0.1").await;
    assert!(head.starts_with("HTTP/1.1 101 ") && head.contains("authorization: bearer secret"), "{head}");
    stream.write_all(b"there and back").await.unwrap();
    read_until(&mut stream, "there and back").await;

    // By another door, which is spoken to without TLS, and by the kubeconfig's proxy.
    let text = std::fs::read_to_string(environment.path("kubeconfig")).unwrap();
    let server = format!("\"server\":\"https://{}\"", backend.address);
    let chain = text.replace(&server, &format!("\"server\":\"http://{}\"", proxy_process.address));
    assert_ne!(chain, text);
    std::fs::write(environment.path("chained"), chain).unwrap();
    let chained = ProxyProcess::start_with_kubeconfig(&environment, "chained", &["--port=0", "--context=y"]);
    let proxy =
        FakeEgressProxy::start_connect(move |_: &EgressProxyRequest| ProxyAction::Connect(backend.address)).await;
    let away = "\"server\":\"https://192.0.2.20:6443\"";
    let by_proxy = format!("\"tls-server-name\":\"127.0.0.1\",\"proxy-url\":\"http://{}\",{away}", proxy.address);
    std::fs::write(environment.path("proxied"), text.replace(&server, &by_proxy)).unwrap();
    let proxied = ProxyProcess::start_with_kubeconfig(&environment, "proxied", &["--port=0"]);
    for proxy_process in [&chained, &proxied] {
        let mut stream = proxy_process.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        read_until(&mut stream, "authorization: bearer secret").await;
        stream.write_all(b"there and back").await.unwrap();
        read_until(&mut stream, "there and back").await;
    }
    assert_eq!(proxy.targets(), ["192.0.2.20:6443"]);

    let refused = send_raw(proxy_process.connect().await, &format!("GET /refused HTTP/1.1\r\n{upgrade}")).await;
    assert_eq!((refused.status, refused.body.as_str()), (403, "no"));
    let mut stream = proxy_process.connect().await;
    stream.write_all(format!("GET /odd HTTP/1.1\r\n{upgrade}").as_bytes()).await.unwrap();
    let odd = read_until(&mut stream, "invalid upgrade response: status code 200\n").await;
    assert!(odd.starts_with("HTTP/1.1 500 "), "{odd}");
    let exec = proxy_process.request("GET /api/v1/namespaces/a/pods/b/exec", "Upgrade: SPDY/3.1\r\n").await;
    assert_eq!((exec.status, exec.body.as_str()), (403, "Forbidden\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_unix_socket_mode_is_0600() {
    use std::os::unix::fs::PermissionsExt as _;
    let (environment, server) = environment_with_apiserver().await;
    let path = environment.path("door");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let proxy_process = ProxyProcess::start(&environment, &[&format!("--unix-socket={}", path.display())]);
    assert_eq!(proxy_process.address, path.display().to_string());
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let request = "GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(send_raw(UnixStream::connect(&path).await.unwrap(), request).await.status, 200);
    assert!(server.last_request().header_values("x-forwarded-for").is_empty());
    proxy_process.signal("TERM");
    eventually("the socket to go", async || (!path.exists()).then_some(())).await;
    // What is no socket is not taken away.
    std::fs::write(&path, "mine").unwrap();
    let arguments =
        ["proxy", &format!("--kubeconfig={}", environment.path("kubeconfig").display()), "-u", path.to_str().unwrap()];
    let output = run_narthex(&arguments.map(str::to_owned));
    assert_eq!((output.status.code(), std::fs::read_to_string(&path).unwrap().as_str()), (Some(1), "mine"));
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_filter_refusals_as_kubectl() {
    let (environment, server) = environment_with_apiserver().await;
    let proxy_process =
        ProxyProcess::start(&environment, &["--port=0", "--api-prefix=/custom", "--reject-methods=^(POST|PUT)$"]);
    for (line, headers, status, body) in [
        ("GET /custom/api", "", 200, "{}"),
        ("GET /custom/", "", 200, "{}"),
        ("GET /custom/api", "Host: localhost:9999\r\n", 200, "{}"),
        ("GET /api", "", 404, "404 page not found\n"),
        ("POST /custom/api", "", 403, "Forbidden\n"),
        ("GET /custom/api", "Host: rebound.example\r\n", 403, "Forbidden\n"),
        ("GET /custom/api", "Origin: http://evil.example\r\n", 403, CROSS_ORIGIN),
        ("GET /custom/api", "Sec-Fetch-Site: cross-site\r\n", 403, CROSS_ORIGIN),
        ("GET /custom/api/v1/namespaces/a/pods/b/%65xec", "", 403, "Forbidden\n"),
        ("GET http://rebound.example/custom/api", "", 403, "Forbidden\n"),
        ("GET http://rebound.example/custom/api", "Host: localhost\r\n", 403, "Forbidden\n"),
        ("GET /custom/a%zz", "", 400, "400 Bad Request"),
        ("GET /custom/api", "Host: localhost\r\nHost: localhost\r\n", 400, "400 Bad Request"),
        ("GET /custom", "", 301, "<a href=\"/custom/\">Moved Permanently</a>.\n\n"),
        ("GET //custom//api/../x?a=b", "", 301, "<a href=\"/custom/x?a=b\">Moved Permanently</a>.\n\n"),
        ("DELETE /custom//x", "", 301, ""),
    ] {
        let reply = proxy_process.request(line, headers).await;
        assert_eq!((reply.status, reply.body.as_str()), (status, body), "{line} {headers}");
        if status == 403 {
            assert_eq!(reply.header("content-type"), Some("text/plain; charset=utf-8"));
            assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
        }
    }
    assert_eq!(proxy_process.get("/custom/..").await.header("location"), Some("/"));
    proxy_process.get("/custom/a%2Fb/..%2fc").await;
    assert_eq!(server.last_request().uri.path(), "/a%2Fb/..%2fc");
    assert_eq!(server.received().len(), 4);

    let open = ProxyProcess::start(&environment, &["--port=0", "--disable-filter"]);
    let exec = open.request("GET /api/v1/namespaces/a/pods/b/exec", "Host: anything\r\nOrigin: null\r\n").await;
    assert_eq!(exec.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_append_server_path_and_connection_failures() {
    let (environment, server) = environment_with_apiserver().await;
    let address = server.address;
    write_kubeconfig(&environment, &format!("https://{address}/base/"), "secret");
    let (plain, appended) = (
        ProxyProcess::start(&environment, &["-p0"]),
        ProxyProcess::start(&environment, &["-p0", "--append-server-path"]),
    );
    plain.get("/api?x").await;
    assert_eq!(server.last_request().uri.path_and_query().unwrap().as_str(), "/api?x");
    appended.get("/api?x").await;
    assert_eq!(server.last_request().uri.path_and_query().unwrap().as_str(), "/base/api?x");
    server.stop().await;
    let reply = plain.get("/api").await;
    let expected = format!("dial tcp {address}: connect: connection refused\n");
    assert_eq!((reply.status, reply.body.as_str()), (500, expected.as_str()));
    assert_eq!(reply.header("content-type"), Some("text/plain; charset=utf-8"));
    let upgrade = "Host: localhost\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
    let mut stream = plain.connect().await;
    stream.write_all(format!("GET /api HTTP/1.1\r\n{upgrade}").as_bytes()).await.unwrap();
    read_until(&mut stream, &format!("error dialing backend: {expected}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_truncated_response_is_never_complete() {
    let environment = TestEnvironment::new();
    let server =
        raw_backend::http1(&environment, BackendSettings::http1(), |mut talk: raw_backend::RawConnection| async move {
            talk.write("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf").await;
            talk.close().await;
        })
        .await;
    write_kubeconfig(&environment, &format!("https://{}", server.address), "secret");
    let path = environment.path("kubeconfig");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"server\"", "\"tls-server-name\":\"things-v1.things.svc\",\"server\""))
        .unwrap();
    let proxy_process = ProxyProcess::start(&environment, &["--port=0"]);
    let reply = proxy_process.request("GET /api", "User-Agent: somebody\r\n").await;
    assert_eq!((reply.header("content-length"), reply.body.as_str()), (Some("100"), "half"));
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_configuration_errors_reported_before_listening() {
    let environment = TestEnvironment::new();
    std::fs::write(environment.path("kubeconfig"), "current-context: gone\n").unwrap();
    let kubeconfig = format!("--kubeconfig={}", environment.path("kubeconfig").display());
    for command in [&["proxy"][..], &["check", "proxy"]] {
        let wrong = [&kubeconfig, "--unix-socket=/nowhere/door", "--port=1", "--accept-paths=("];
        let arguments: Vec<_> = command.iter().chain(&wrong).map(|text| (*text).to_owned()).collect();
        let output = run_narthex(&arguments);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{message}");
        for words in [
            "3 problems",
            "--unix-socket: cannot set --unix-socket and --port at the same time",
            "--accept-paths: \"(\" is not a regular expression",
            "current-context: there is no single context \"gone\"",
        ] {
            assert!(message.contains(words), "{words} is not told:\n{message}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_static_files_served_with_filter() {
    let (environment, server) = environment_with_apiserver().await;
    let www = environment.path("www");
    std::fs::create_dir_all(www.join("page")).unwrap();
    std::fs::create_dir_all(www.join("list/below")).unwrap();
    std::fs::write(www.join("page/index.html"), "<p>hello").unwrap();
    std::fs::write(www.join("list/a<b #1.bin"), "\0one").unwrap();
    std::fs::write(www.join("big"), "0123456789".repeat(50_000)).unwrap();
    let proxy_process = ProxyProcess::start(&environment, &["--port=0", &format!("--www={}", www.display())]);
    for (line, headers, status, location, body) in [
        ("GET /static/page/", "", 200, None, "<p>hello"),
        ("GET /static/page/index.html", "", 301, Some("./"), ""),
        ("GET /static/page?a=b", "", 301, Some("page/?a=b"), ""),
        ("GET /static", "", 301, Some("/static/"), "<a href=\"/static/\">Moved Permanently</a>.\n\n"),
        ("GET /static/big/", "", 301, Some("../big"), ""),
        ("GET /static/none", "", 404, None, "404 page not found\n"),
        ("GET /static/%2e%2e/kubeconfig", "", 404, None, "404 page not found\n"),
        ("GET /static/..%2fkubeconfig", "", 404, None, "404 page not found\n"),
        ("GET /static/%00", "", 404, None, "404 page not found\n"),
        ("GET /static/page/", "Host: rebound.example\r\n", 403, None, "Forbidden\n"),
        ("GET /static/page/", "Origin: http://evil.example\r\n", 403, None, CROSS_ORIGIN),
        ("GET /static/big", "Range: bytes=8-11\r\n", 206, None, "8901"),
        ("GET /static/big", "Range: bytes=500000-\r\n", 416, None, "invalid range: failed to overlap\n"),
        ("HEAD /static/big", "", 200, None, ""),
    ] {
        let reply = proxy_process.request(line, headers).await;
        assert_eq!(
            (reply.status, reply.header("location"), reply.body.as_str()),
            (status, location, body),
            "{line} {headers}"
        );
    }
    let whole = proxy_process.get("/static/big").await;
    assert_eq!((whole.header("content-length"), whole.body.len()), (Some("500000"), 500_000));
    assert_eq!(whole.header("content-type"), Some("text/plain; charset=utf-8"));
    let modified = std::fs::metadata(www.join("big")).unwrap().modified().unwrap();
    let known = format!("If-Modified-Since: {}\r\n", httpdate::fmt_http_date(modified));
    let unchanged = proxy_process.request("GET /static/big", &known).await;
    assert_eq!((unchanged.status, unchanged.body.as_str()), (304, ""));
    let list = proxy_process.get("/static/list/").await;
    assert_eq!(list.header("content-type"), Some("text/html; charset=utf-8"));
    let lines = "<a href=\"a%3Cb%20%231.bin\">a&lt;b #1.bin</a>\n<a href=\"below/\">below/</a>\n</pre>\n";
    assert!(list.body.ends_with(lines), "{}", list.body);
    assert!(server.received().is_empty());
    assert_eq!(proxy_process.get("/api").await.status, 200);
}

/// The body is kubectl's; the log names the filter, once for each request.
#[tokio::test(flavor = "multi_thread")]
async fn proxy_access_log_names_refusing_filter_and_failure() {
    let (environment, server) = environment_with_apiserver().await;
    let kubeconfig = format!("--kubeconfig={}", environment.path("kubeconfig").display());
    let open = |more: &[&str]| {
        let file = tempfile::NamedTempFile::new().unwrap();
        let arguments = [&[kubeconfig.as_str(), "--port=0"][..], more].concat();
        (ProxyProcess::spawn(&arguments, &[], Stdio::from(file.reopen().unwrap())), file)
    };
    let lines = |file: &tempfile::NamedTempFile| {
        let text = std::fs::read_to_string(file.path()).unwrap();
        text.lines().filter(|line| line.contains(" access ")).map(str::to_owned).collect::<Vec<_>>()
    };
    let (proxy_process, log) = open(&["--reject-methods=^(POST|PUT)$", "--accept-paths=^/api"]);
    let cases = [
        ("GET /api/v1/namespaces/a/pods/b/exec?token=x", "", "--reject-paths: the path matches ^/api/.*/pods/.*/exec"),
        ("POST /api", "", "--reject-methods: the method matches ^(POST|PUT)$"),
        ("GET /version", "", "--accept-paths: no pattern matches the path"),
        (
            "GET /api",
            "Host: rebound.example\r\n",
            "--accept-hosts: no pattern matches the host \\\"rebound.example\\\"",
        ),
        ("GET /api", "Origin: http://evil.example\r\n", "cross-origin request"),
    ];
    for (line, headers, _) in cases {
        assert_eq!(proxy_process.request(line, headers).await.status, 403, "{line}");
    }
    assert_eq!(proxy_process.get("/api").await.status, 200);
    drop(server);
    assert_eq!(proxy_process.get("/api").await.status, 500);
    let written = eventually("six lines", async || Some(lines(&log)).filter(|lines| lines.len() == 6)).await;
    for ((line, _, cause), written) in cases.iter().zip(&written) {
        let path = line.split([' ', '?']).nth(1).unwrap();
        for words in [" status=403 ", "client=127.0.0.1", path, cause] {
            assert!(written.contains(words), "{words}: {written}");
        }
    }
    assert!(written[0].contains("?token=***"), "{}", written[0]);
    assert!(written[5].contains(" status=500 ") && written[5].contains("connection refused"), "{}", written[5]);
    let whole = std::fs::read_to_string(log.path()).unwrap();
    assert_eq!(whole.matches("connection refused").count(), 1, "one line for each failure: {whole}");

    let (all, all_log) = open(&["--access-log=all", "--access-log-format=json"]);
    let (none, none_log) = open(&["--access-log=off"]);
    for proxy_process in [&all, &none] {
        proxy_process.get("/api").await;
        proxy_process.request("GET /api", "Host: rebound.example\r\n").await;
    }
    let records = eventually("both records", async || {
        let text = std::fs::read_to_string(all_log.path()).unwrap();
        let records = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let records: Vec<_> = records.filter(|record| record["kind"] == "access").collect();
        (records.len() == 2).then_some(records)
    })
    .await;
    assert_eq!((&records[1]["status"], &records[1]["path"]), (&json!(403), &json!("/api")));
    assert!(!std::fs::read_to_string(none_log.path()).unwrap().contains(" access "));
}
