//! The connection pool: connections are opened on demand and replaced when closed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tokio::task::{LocalSet, spawn_local};
use tokio::time::{Instant, sleep};

use super::fake_server::{FakeServer, ServerCommand, start};
use crate::{KonnectivityClient, KonnectivityPool, Packet, PoolDialError, TunnelFailure};

const DIAL_TIMEOUT: Duration = Duration::from_secs(8);

/// Test servers, a new one per connection; each accepts every dial unless told otherwise.
#[derive(Default)]
struct TestServers {
    all: RefCell<Vec<Rc<FakeServer>>>,
    down: Cell<bool>,
    /// Whether connecting hangs.
    hangs: Cell<bool>,
    /// Number of dials to leave unanswered.
    ignored_dials: Rc<Cell<usize>>,
    attempts: Cell<usize>,
    limit: Cell<Option<u32>>,
}

impl TestServers {
    async fn open(&self) -> Result<KonnectivityClient, &'static str> {
        self.attempts.set(self.attempts.get() + 1);
        sleep(Duration::from_millis(1)).await;
        if self.hangs.get() {
            std::future::pending().await
        }
        if self.down.get() {
            return Err("down");
        }
        let fake = Rc::new(start(self.limit.get()).await);
        let (accepting, deaf) = (fake.clone(), self.ignored_dials.clone());
        spawn_local(async move {
            for connection in 1.. {
                let mut call = accepting.accept().await;
                let deaf = deaf.clone();
                spawn_local(async move {
                    let (_, random) = call.expect_dial().await;
                    if deaf.get() > 0 {
                        deaf.set(deaf.get() - 1);
                    } else {
                        call.send_packet(&Packet::DialResponse { error: String::new(), connection, random });
                    }
                    while let Ok(Some(packet)) = call.try_packet().await {
                        if matches!(packet, Packet::CloseRequest { .. }) {
                            call.send_packet(&Packet::CloseResponse { error: String::new(), connection });
                        }
                    }
                    call.end_if_open();
                });
            }
        });
        self.all.borrow_mut().push(fake.clone());
        Ok(fake.client.clone())
    }
}

async fn with_servers<F: Future>(
    test: impl FnOnce(Rc<TestServers>, Rc<KonnectivityPool<&'static str, &'static str>>) -> F,
) {
    LocalSet::new().run_until(async { test(Rc::default(), Rc::default()).await }).await;
}

#[tokio::test(start_paused = true)]
async fn konnectivity_pool_concurrent_dials_share_one_connection() {
    with_servers(async |servers, clients| {
        let dial = async || clients.dial(&"a", "b:1", DIAL_TIMEOUT, async || servers.open().await).await.unwrap();
        let (_one, _two, _three) = tokio::join!(dial(), dial(), dial());
        assert_eq!((servers.attempts.get(), clients.count()), (1, (1, 3)));
        let _other = clients.dial(&"another", "b:1", DIAL_TIMEOUT, async || servers.open().await).await.unwrap();
        assert_eq!((servers.attempts.get(), clients.count()), (2, (2, 4)));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn konnectivity_pool_reconnects_after_server_restart() {
    with_servers(async |servers, clients| {
        let dial = async || clients.dial(&"a", "b:1", DIAL_TIMEOUT, async || servers.open().await).await;
        drop(dial().await.unwrap());
        servers.all.borrow()[0].command(ServerCommand::Exit);
        // The end may be noticed before the next dial or by it.
        drop(dial().await.unwrap());
        servers.all.borrow()[1].command(ServerCommand::GoAway);
        sleep(Duration::from_millis(5)).await;
        drop(dial().await.unwrap());
        assert_eq!(servers.attempts.get(), 3);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn konnectivity_pool_backs_off_while_server_is_down() {
    with_servers(async |servers, clients| {
        let dial = async || clients.dial(&"a", "b:1", DIAL_TIMEOUT, async || servers.open().await).await;
        servers.down.set(true);
        let begun = Instant::now();
        let mut dials = 0;
        while begun.elapsed() < Duration::from_secs(10) {
            assert_eq!(dial().await.err().unwrap(), PoolDialError::Connect("down"));
            sleep(Duration::from_millis(10)).await;
            dials += 1;
        }
        assert!(dials > 500);
        assert!((10..20).contains(&servers.attempts.get()), "{}", servers.attempts.get());
        servers.down.set(false);
        sleep(Duration::from_millis(1500)).await;
        drop(dial().await.unwrap());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn konnectivity_pool_opens_another_connection_at_stream_limit() {
    with_servers(async |servers, clients| {
        servers.limit.set(Some(2));
        let dial = async || {
            let tunnel = clients.dial(&"a", "b:1", DIAL_TIMEOUT, async || servers.open().await).await.unwrap();
            sleep(Duration::from_millis(1)).await;
            tunnel
        };
        let _kept = (dial().await, dial().await, dial().await);
        assert_eq!(clients.count(), (2, 3));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn konnectivity_pool_hedges_dial_when_agent_hangs() {
    with_servers(async |servers, clients| {
        let dial = async || clients.dial(&"a", "b:1", DIAL_TIMEOUT, async || servers.open().await).await;
        servers.ignored_dials.set(2);
        let begun = Instant::now();
        let tunnel = dial().await.unwrap();
        assert!((2..3).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
        drop(tunnel);
        // The streams of the canceled dials end a second later, which the server answers.
        sleep(Duration::from_secs(2)).await;
        servers.ignored_dials.set(usize::MAX);
        let begun = Instant::now();
        let Some(PoolDialError::Tunnel(error)) = dial().await.err() else { panic!("the dial did not fail") };
        assert_eq!(error.failure, TunnelFailure::NoAnswer);
        assert!((8..9).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
        assert_eq!(usize::MAX - servers.ignored_dials.get(), 4);
        // The server itself may hang: the next dial uses another connection.
        servers.ignored_dials.set(0);
        drop(dial().await.unwrap());
        assert_eq!(servers.attempts.get(), 2);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn konnectivity_pool_replaces_dead_connection_after_one_second() {
    with_servers(async |servers, clients| {
        let dial = async || clients.dial(&"a", "b:1", DIAL_TIMEOUT, async || servers.open().await).await;
        let kept = dial().await.unwrap();
        servers.all.borrow()[0].command(ServerCommand::Freeze);
        sleep(Duration::from_millis(5)).await;
        let begun = Instant::now();
        let (one, another) = tokio::join!(dial(), dial());
        assert!((1..2).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
        assert_eq!(servers.attempts.get(), 2);
        let begun = Instant::now();
        let third = dial().await.unwrap();
        assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
        assert_eq!((servers.attempts.get(), clients.count()), (2, (1, 3)));
        drop((kept, one.unwrap(), another.unwrap(), third));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn konnectivity_pool_reports_unreachable_when_reconnect_fails() {
    with_servers(async |servers, clients| {
        let dial = async || clients.dial(&"a", "b:1", DIAL_TIMEOUT, async || servers.open().await).await;
        drop(dial().await.unwrap());
        sleep(Duration::from_secs(3)).await;
        servers.all.borrow()[0].command(ServerCommand::Freeze);
        sleep(Duration::from_millis(5)).await;
        servers.hangs.set(true);
        let begun = Instant::now();
        assert_eq!(dial().await.err().unwrap(), PoolDialError::NoConnection, "a silent connection, and no other");
        assert_eq!(dial().await.err().unwrap(), PoolDialError::NoConnection, "no connection at all");
        assert!((16..17).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
        servers.hangs.set(false);
        drop(dial().await.unwrap());
        servers.all.borrow()[1].command(ServerCommand::Freeze);
        sleep(Duration::from_secs(3)).await;
        servers.down.set(true);
        let begun = Instant::now();
        assert_eq!(dial().await.err().unwrap(), PoolDialError::Connect("down"));
        assert!((1..2).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    })
    .await;
}
