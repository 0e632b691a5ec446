//! Our client when all goes well, at some scale.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Instant;

use futures_util::future::join_all;
use narthex::egress::proxy::konnectivity::{KonnectivityTunnel, TunnelFailure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::super::socks5::{Door, selector};
use super::far::{BANNER, Far, Habit};
use super::{PATIENCE, asks, dial, here, pattern};
use crate::world::{Front, Konnectivity, World, eventually};

pub(super) fn carries(world: &World) {
    for (front, name) in [(Front::GrpcUnix, "konnectivity-socket"), (Front::GrpcTls, "konnectivity-tls")] {
        let directory = world.scratch(name);
        let mut konnectivity = Konnectivity::start(&directory, front);
        let (echo, source) = (Far::start(Habit::Echo), Far::start(Habit::Source(10 << 20)));
        here(async {
            let client = konnectivity.client().await;
            assert_eq!(dial(&client, echo.port).await.err(), Some(TunnelFailure::NoAgent));
            konnectivity.start_agent("agent-a", None);

            let mut tunnel = dial(&client, echo.port).await.unwrap();
            asks(&mut tunnel, &pattern(1 << 20)).await;
            drop(tunnel);

            let mut tunnel = dial(&client, source.port).await.unwrap();
            let mut all = Vec::new();
            tunnel.read_to_end(&mut all).await.unwrap();
            assert!(all.len() == 10 << 20 && all[..251 * 256] == pattern(251 * 256));
            drop(tunnel);

            let free = crate::world::free_port();
            assert_eq!(dial(&client, free).await.err(), Some(TunnelFailure::Refused));
            let nowhere = client.dial("no-such-host.invalid:443", PATIENCE).await.err().unwrap();
            // Where there is no DNS at all, the agent waits for it in vain.
            let expected = [TunnelFailure::NoSuchHost, TunnelFailure::DialTimeout];
            assert!(expected.contains(&nowhere.failure), "{nowhere}");
            let error = client.dial("no port", PATIENCE).await.err().unwrap();
            assert_eq!(error.failure, TunnelFailure::DialFailed, "{error}");
            // It takes a while until the last one is closed in good order.
            tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
            assert_eq!(client.streams(), 0);
        });
        eventually("nothing open", || is_left(&konnectivity, 0.0));
    }
}

fn is_left(konnectivity: &Konnectivity, expected: f64) -> Result<(), String> {
    let open = konnectivity.agents[0].count("konnectivity_network_proxy_agent_open_endpoint_connections");
    match (konnectivity.established(), open) {
        (ours, theirs) if ours == expected && theirs == expected => Ok(()),
        counts => Err(format!("{counts:?} connections at the server and at the agent")),
    }
}

/// The reference's client loses the banner four times in ten.
pub(super) fn speaks_first(world: &World) {
    let konnectivity = Konnectivity::with_agent(&world.scratch("konnectivity-banner"), Front::GrpcUnix);
    let far = Far::start(Habit::Banner);
    here(async {
        let client = konnectivity.client().await;
        for _ in 0..400 {
            let mut all = Vec::new();
            dial(&client, far.port).await.unwrap().read_to_end(&mut all).await.unwrap();
            assert_eq!(all, BANNER);
        }
    });
}

/// The reference loses some of it seven times in ten.
pub(super) fn upload_and_close(world: &World) {
    let konnectivity = Konnectivity::with_agent(&world.scratch("konnectivity-upload"), Front::GrpcUnix);
    let far = Far::start(Habit::Sink);
    let words = pattern(2 << 20);
    here(async {
        let client = konnectivity.client().await;
        for shut in [true, false].into_iter().cycle().take(10) {
            let mut tunnel = dial(&client, far.port).await.unwrap();
            tunnel.write_all(&words).await.unwrap();
            if shut {
                tunnel.shutdown().await.unwrap();
            }
            drop(tunnel);
            tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
            assert_eq!(far.received.try_recv(), Ok(words.len()));
        }
    });
}

pub(super) fn a_thousand(world: &World) {
    let konnectivity = Konnectivity::with_agent(&world.scratch("konnectivity-thousand"), Front::GrpcUnix);
    let far = Far::start(Habit::Echo);
    here(async {
        let client = konnectivity.client().await;
        let began = Instant::now();
        let mut tunnels: Vec<KonnectivityTunnel> = Vec::new();
        for _ in 0..10 {
            let some = join_all((0..100).map(|_| dial(&client, far.port))).await;
            tunnels.extend(some.into_iter().map(Result::unwrap));
        }
        println!("1000 tunnels in {:?}", began.elapsed());
        assert_eq!((client.streams(), konnectivity.established()), (1000, 1000.0));
        let words = pattern(10_000);
        for some in tunnels.chunks_mut(100) {
            join_all(some.iter_mut().map(|tunnel| asks(tunnel, &words))).await;
        }
        // Each still is itself.
        join_all(tunnels.iter_mut().enumerate().map(async |(number, tunnel)| {
            asks(tunnel, format!("tunnel {number}").as_bytes()).await;
        }))
        .await;
        drop(tunnels);
        // In good order: a server whose client is gone closes as well, but does not count it.
        while client.streams() > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    });
    eventually("nothing open", || is_left(&konnectivity, 0.0));
}

pub(super) fn ten_thousand_dials(world: &World) {
    let konnectivity = Konnectivity::with_agent(&world.scratch("konnectivity-dials"), Front::GrpcUnix);
    let far = Far::start(Habit::Sink);
    let ours = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    here(async {
        let client = konnectivity.client().await;
        drop(dial(&client, far.port).await.unwrap());
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        let theirs = || (konnectivity.server.descriptors(), konnectivity.agents[0].process.descriptors());
        let before = (ours(), theirs());
        let began = Instant::now();
        for _ in 0..10_000 {
            drop(dial(&client, far.port).await.unwrap());
        }
        println!("10000 dials in {:?}", began.elapsed());
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        assert_eq!(client.streams(), 0);
        let after = (ours(), theirs());
        // Others have files open in this process; a leak would be thousands.
        assert!(after.0 < before.0 + 500, "{before:?} {after:?}");
        assert!(after.1.0 <= before.1.0 + 10 && after.1.1 <= before.1.1 + 10, "{before:?} {after:?}");
        is_left(&konnectivity, 0.0).unwrap();
        assert_eq!(konnectivity.count("konnectivity_network_proxy_server_pending_backend_dials"), 0.0);
    });
}

/// The same in the other mode, by `narthex socks5`: each SOCKS dial is a CONNECT.
pub(super) fn ten_thousand_connects(world: &World) {
    const ROWS: usize = 4;
    let directory = world.scratch("konnectivity-connects");
    let konnectivity = Konnectivity::with_agent(&directory, Front::ConnectUnix);
    let far = Far::start(Habit::Sink);
    let file = directory.join("egress.json");
    std::fs::write(&file, selector(&konnectivity).to_string()).unwrap();
    let egress = format!("--egress-selector-config-file={}", file.display());
    let door = Door::open(&directory, &[&egress, &format!("--allow-destinations=127.0.0.1:{}", far.port)]);
    let row = |dials: usize| (0..dials).for_each(|_| connect_by_socks5(door.port, far.port));
    let all_closed = || {
        eventually("all of them at their end", || {
            let ended = far.received.try_iter().count();
            if ended == 0 { is_left(&konnectivity, 0.0) } else { Err(format!("{ended} more came to their end")) }
        });
    };
    row(1);
    all_closed();
    let descriptors = || {
        [&door.process, &konnectivity.server, &konnectivity.agents[0].process].map(crate::world::Process::descriptors)
    };
    let dials = || konnectivity.count("konnectivity_network_proxy_server_dial_duration_seconds_count");
    let (before, dialed) = (descriptors(), dials());
    let began = Instant::now();
    std::thread::scope(|scope| (0..ROWS).for_each(|_| drop(scope.spawn(|| row(10_000 / ROWS)))));
    println!("10000 dials by http-connect in {:?}", began.elapsed());
    assert_eq!(dials() - dialed, 10_000.0);
    all_closed();
    eventually("nothing left behind", || {
        let after = descriptors();
        println!("descriptors of narthex, the server and the agent: {before:?}, then {after:?}");
        let well = after.iter().zip(&before).all(|(after, before)| *after <= before + 10);
        if well { Ok(()) } else { Err(format!("{before:?} {after:?}")) }
    });
    assert_eq!(konnectivity.count("konnectivity_network_proxy_server_pending_backend_dials"), 0.0);
}

/// Opens a connection to `target` of loopback, and closes it.
fn connect_by_socks5(proxy: u16, target: u16) {
    let mut stream = TcpStream::connect(("127.0.0.1", proxy)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
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
