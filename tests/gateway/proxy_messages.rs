//! `narthex proxy` refuses ambiguous messages of clients and API servers.

use crate::backend::Settings;
use crate::proxy::{Door, at_home, world, write_kubeconfig};
use crate::raw::{self, Talk};
use crate::world::World;

/// client-go overwrites an empty `Impersonate-User`; whoever may use the proxy may not be its kubeconfig's own user.
#[tokio::test(flavor = "multi_thread")]
async fn impersonation_headers_refused_when_kubeconfig_impersonates() {
    let (world, server) = world().await;
    let door = Door::open(&world, &["--port=0", "--as=limited", "--as-group=few"]);
    for forged in [
        "Impersonate-User:\r\n",
        "Impersonate-User: \r\n",
        "Impersonate-User: root\r\n",
        "impersonate_user: root\r\n",
        "Impersonate-Group: system:masters\r\n",
        "Impersonate-Uid: 1\r\n",
        "Impersonate-Extra-Scopes: all\r\n",
        "Connection: Impersonate-User\r\nImpersonate-User: root\r\n",
        "Impersonate-User: root\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n",
    ] {
        let said = door.ask("GET /api", forged).await;
        assert_eq!(said.status, 403, "{forged:?}: {said:?}");
        assert!(said.body.contains("Impersonate-"), "{forged:?}: {said:?}");
    }
    assert!(server.seen().is_empty());
    assert_eq!(door.get("/api").await.status, 200);
    let seen = server.last();
    assert_eq!(
        (seen.all("impersonate-user"), seen.all("impersonate-group")),
        (vec!["limited".into()], vec!["few".into()])
    );
    // Without impersonation of its own it is the client's to ask for.
    let door = Door::open(&world, &["--port=0"]);
    assert_eq!(door.ask("GET /api", "Impersonate-User: jane\r\nX_Forwarded_For: evil\r\n").await.status, 200);
    assert_eq!(server.last().all("impersonate-user"), ["jane"]);
    assert!(server.last().all("x_forwarded_for").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn ambiguous_responses_refused() {
    let world = World::new();
    let server = raw::http1(&world, at_home(Settings::http1()), |mut talk: Talk| async move {
        loop {
            let said = match talk.head.split(' ').nth(1).unwrap() {
                "/both" => {
                    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 9\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
                }
                "/coding" => "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
                "/switch" => "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\nabc",
                _ => "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc",
            };
            talk.say(said).await;
            if talk.next().await.is_none() {
                return;
            }
        }
    })
    .await;
    write_kubeconfig(&world, &format!("https://{}", server.address), "secret");
    let door = Door::open(&world, &["--port=0"]);
    assert_eq!(door.get("/fine").await.body, "abc");
    for path in ["/both", "/coding", "/switch"] {
        let said = door.get(path).await;
        assert_eq!(said.status, 500, "{path}: {said:?}");
        assert!(!said.body.contains("abc"), "{path}: {said:?}");
    }
}
