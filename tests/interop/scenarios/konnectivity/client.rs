//! The Konnectivity client without faults, with many tunnels.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Instant;

use futures_util::future::join_all;
use konnectivity_client::{KonnectivityTunnel, TunnelFailure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::super::socks5::{Socks5Proxy, selector};
use super::target_server::{BANNER, TargetBehavior, TargetServer};
use super::{TIMEOUT, assert_echo, dial, pattern, run_local};
use crate::environment::{Konnectivity, KonnectivityMode, TestEnvironment, eventually};

pub(super) fn tunnels_over_both_transports(environment: &TestEnvironment) {
    for (mode, name) in
        [(KonnectivityMode::GrpcUnix, "konnectivity-socket"), (KonnectivityMode::GrpcTls, "konnectivity-tls")]
    {
        let directory = environment.scratch(name);
        let mut konnectivity = Konnectivity::start(&directory, mode);
        let (echo, source) =
            (TargetServer::start(TargetBehavior::Echo), TargetServer::start(TargetBehavior::Source(10 << 20)));
        run_local(async {
            let client = konnectivity.client().await;
            assert_eq!(dial(&client, echo.port).await.err(), Some(TunnelFailure::NoAgent));
            konnectivity.start_agent("agent-a", None);

            let mut tunnel = dial(&client, echo.port).await.unwrap();
            assert_echo(&mut tunnel, &pattern(1 << 20)).await;
            drop(tunnel);

            let mut tunnel = dial(&client, source.port).await.unwrap();
            let mut all = Vec::new();
            tunnel.read_to_end(&mut all).await.unwrap();
            assert!(all.len() == 10 << 20 && all[..251 * 256] == pattern(251 * 256));
            drop(tunnel);

            let free = crate::environment::free_port();
            assert_eq!(dial(&client, free).await.err(), Some(TunnelFailure::Refused));
            let nowhere = client.dial("no-such-host.invalid:443", TIMEOUT).await.err().unwrap();
            // Without DNS the agent's lookup runs into its timeout.
            let expected = [TunnelFailure::NoSuchHost, TunnelFailure::DialTimeout];
            assert!(expected.contains(&nowhere.failure), "{nowhere}");
            let error = client.dial("no port", TIMEOUT).await.err().unwrap();
            assert_eq!(error.failure, TunnelFailure::DialFailed, "{error}");
            // The last connection closes asynchronously.
            tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
            assert_eq!(client.streams(), 0);
        });
        eventually("no open connections", || assert_open_connections(&konnectivity, 0.0));
    }
}

fn assert_open_connections(konnectivity: &Konnectivity, expected: f64) -> Result<(), String> {
    let open = konnectivity.agents[0].count("konnectivity_network_proxy_agent_open_endpoint_connections");
    match (konnectivity.established(), open) {
        (own_descriptors, peer_descriptors) if own_descriptors == expected && peer_descriptors == expected => Ok(()),
        counts => Err(format!("{counts:?} connections at the server and at the agent")),
    }
}

/// The reference client loses the banner in four of ten connections.
pub(super) fn target_speaks_first(environment: &TestEnvironment) {
    let konnectivity =
        Konnectivity::with_agent(&environment.scratch("konnectivity-banner"), KonnectivityMode::GrpcUnix);
    let far = TargetServer::start(TargetBehavior::Banner);
    run_local(async {
        let client = konnectivity.client().await;
        for _ in 0..400 {
            let mut all = Vec::new();
            dial(&client, far.port).await.unwrap().read_to_end(&mut all).await.unwrap();
            assert_eq!(all, BANNER);
        }
    });
}

/// The reference client loses data in seven of ten connections.
pub(super) fn upload_and_close(environment: &TestEnvironment) {
    let konnectivity =
        Konnectivity::with_agent(&environment.scratch("konnectivity-upload"), KonnectivityMode::GrpcUnix);
    let far = TargetServer::start(TargetBehavior::Sink);
    let args = pattern(2 << 20);
    run_local(async {
        let client = konnectivity.client().await;
        for shut in [true, false].into_iter().cycle().take(10) {
            let mut tunnel = dial(&client, far.port).await.unwrap();
            tunnel.write_all(&args).await.unwrap();
            if shut {
                tunnel.shutdown().await.unwrap();
            }
            drop(tunnel);
            tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
            assert_eq!(far.received.try_recv(), Ok(args.len()));
        }
    });
}

pub(super) fn thousand_tunnels(environment: &TestEnvironment) {
    let konnectivity =
        Konnectivity::with_agent(&environment.scratch("konnectivity-thousand"), KonnectivityMode::GrpcUnix);
    let far = TargetServer::start(TargetBehavior::Echo);
    run_local(async {
        let client = konnectivity.client().await;
        let began = Instant::now();
        let mut tunnels: Vec<KonnectivityTunnel> = Vec::new();
        for _ in 0..10 {
            let some = join_all((0..100).map(|_| dial(&client, far.port))).await;
            tunnels.extend(some.into_iter().map(Result::unwrap));
        }
        println!("1000 tunnels in {:?}", began.elapsed());
        assert_eq!((client.streams(), konnectivity.established()), (1000, 1000.0));
        let args = pattern(10_000);
        for some in tunnels.chunks_mut(100) {
            join_all(some.iter_mut().map(|tunnel| assert_echo(tunnel, &args))).await;
        }
        // No tunnel received another's data.
        join_all(tunnels.iter_mut().enumerate().map(async |(number, tunnel)| {
            assert_echo(tunnel, format!("tunnel {number}").as_bytes()).await;
        }))
        .await;
        drop(tunnels);
        // Closed one by one: the server does not count tunnels that close because their client disconnected.
        while client.streams() > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    });
    eventually("no open connections", || assert_open_connections(&konnectivity, 0.0));
}

pub(super) fn ten_thousand_dials(environment: &TestEnvironment) {
    let konnectivity = Konnectivity::with_agent(&environment.scratch("konnectivity-dials"), KonnectivityMode::GrpcUnix);
    let far = TargetServer::start(TargetBehavior::Sink);
    let own_descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    run_local(async {
        let client = konnectivity.client().await;
        drop(dial(&client, far.port).await.unwrap());
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        let peer_descriptors = || (konnectivity.server.descriptors(), konnectivity.agents[0].process.descriptors());
        let before = (own_descriptors(), peer_descriptors());
        let began = Instant::now();
        for _ in 0..10_000 {
            drop(dial(&client, far.port).await.unwrap());
        }
        println!("10000 dials in {:?}", began.elapsed());
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        assert_eq!(client.streams(), 0);
        let after = (own_descriptors(), peer_descriptors());
        // Other tests have files open in this process; a leak would be thousands.
        assert!(after.0 < before.0 + 500, "{before:?} {after:?}");
        assert!(after.1.0 <= before.1.0 + 10 && after.1.1 <= before.1.1 + 10, "{before:?} {after:?}");
        assert_open_connections(&konnectivity, 0.0).unwrap();
        assert_eq!(konnectivity.count("konnectivity_network_proxy_server_pending_backend_dials"), 0.0);
    });
}

/// http-connect mode by `narthex socks5`: each SOCKS connection is a CONNECT.
pub(super) fn ten_thousand_connects(environment: &TestEnvironment) {
    const ROWS: usize = 4;
    let directory = environment.scratch("konnectivity-connects");
    let konnectivity = Konnectivity::with_agent(&directory, KonnectivityMode::ConnectUnix);
    let far = TargetServer::start(TargetBehavior::Sink);
    let file = directory.join("egress.json");
    std::fs::write(&file, selector(&konnectivity).to_string()).unwrap();
    let egress = format!("--egress-selector-config-file={}", file.display());
    let proxy = Socks5Proxy::open(&directory, &[&egress, &format!("--allow-destinations=127.0.0.1:{}", far.port)]);
    let row = |dials: usize| (0..dials).for_each(|_| connect_by_socks5(proxy.port, far.port));
    let all_closed = || {
        eventually("all connections closed", || {
            let ended = far.received.try_iter().count();
            if ended == 0 {
                assert_open_connections(&konnectivity, 0.0)
            } else {
                Err(format!("{ended} connections closed"))
            }
        });
    };
    row(1);
    all_closed();
    let descriptors = || {
        [&proxy.process, &konnectivity.server, &konnectivity.agents[0].process]
            .map(crate::environment::Process::descriptors)
    };
    let dials = || konnectivity.count("konnectivity_network_proxy_server_dial_duration_seconds_count");
    let (before, dialed) = (descriptors(), dials());
    let began = Instant::now();
    std::thread::scope(|scope| (0..ROWS).for_each(|_| drop(scope.spawn(|| row(10_000 / ROWS)))));
    println!("10000 dials by http-connect in {:?}", began.elapsed());
    assert_eq!(dials() - dialed, 10_000.0);
    all_closed();
    eventually("no leaked descriptors", || {
        let after = descriptors();
        println!("descriptors of narthex, the server and the agent: {before:?}, then {after:?}");
        let well = after.iter().zip(&before).all(|(after, before)| *after <= before + 10);
        if well { Ok(()) } else { Err(format!("{before:?} {after:?}")) }
    });
    assert_eq!(konnectivity.count("konnectivity_network_proxy_server_pending_backend_dials"), 0.0);
}

/// Opens a connection to port `target` on loopback through the proxy and closes it.
fn connect_by_socks5(proxy: u16, target: u16) {
    let mut stream = TcpStream::connect(("127.0.0.1", proxy)).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(&[5, 1, 0]).unwrap();
    let mut method = [0; 2];
    stream.read_exact(&mut method).unwrap();
    assert_eq!(method, [5, 0]);
    let [high, low] = target.to_be_bytes();
    stream.write_all(&[5, 1, 0, 1, 127, 0, 0, 1, high, low]).unwrap();
    let mut reply = [0; 10];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply[..2], [5, 0]);
}
