//! Response filtering: redirects and headers that affect the shared origin do not reach the client.

use crate::backend::{Backend, Settings, json};
use crate::client::get;
use crate::refused::cause;
use crate::scene::{Scene, THINGS};
use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn redirects_stay_inside_and_other_answers_of_their_class_pass() {
    let world = World::new();
    let backend = Backend::start(&world, Settings::default(), async |request| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let (status, location) = query.split_once(',').unwrap();
        let mut answer = json(status.parse().unwrap(), "");
        if !location.is_empty() {
            answer.headers_mut().insert("location", location.parse().unwrap());
            answer.headers_mut().insert("x-inside", "secret".parse().unwrap());
        }
        answer
    })
    .await;
    let scene = Scene::new(world, &[&backend], &[]);
    for client in scene.both().await {
        for status in [300, 301, 302, 303, 304, 307, 308, 399] {
            for location in ["https://10.0.0.1/", "/apis", "//evil"] {
                let answer = client.get(&format!("{THINGS}?{status},{location}")).await;
                let refused = answer.refused(502, "InternalError");
                assert_eq!(cause(&refused), "RedirectRejected");
                assert!(!answer.headers.contains_key("location") && !answer.headers.contains_key("x-inside"));
                let expected = "the backend attempted to redirect this request, which is not permitted";
                assert_eq!(refused["message"], expected);
            }
            let answer = client.get(&format!("{THINGS}?{status},")).await;
            assert_eq!(answer.status, status);
        }
        // 201 with a Location is no redirect.
        let answer = client.get(&format!("{THINGS}?201,/apis/x")).await;
        assert_eq!((answer.status.as_u16(), answer.headers["location"].to_str().unwrap()), (201, "/apis/x"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_speaks_for_itself_alone() {
    let world = World::new();
    let backend = Backend::start(&world, Settings::default(), async |_| {
        let mut answer = json(200, "{}");
        for (name, value) in [
            ("set-cookie", "session=stolen"),
            ("strict-transport-security", "max-age=1"),
            ("alt-svc", "h3=\":443\""),
            ("clear-site-data", "*"),
            ("www-authenticate", "Basic"),
            ("access-control-allow-origin", "*"),
            ("access-control-allow-credentials", "true"),
            ("audit-id", "theirs-1"),
            ("audit-id", "theirs-2"),
            ("keep-alive", "timeout=5"),
            ("x-content-type-options", "sniff"),
            ("warning", "299 - \"deprecated\""),
            ("retry-after", "7"),
            ("x-kubernetes-pf-flowschema-uid", "abc"),
        ] {
            answer.headers_mut().append(name, value.parse().unwrap());
        }
        answer
    })
    .await;
    let scene = Scene::new(world, &[&backend], &[]);
    for client in scene.both().await {
        let answer = client.ask(get(THINGS, &[("audit-id", "mine-1")])).await;
        for gone in [
            "set-cookie",
            "strict-transport-security",
            "alt-svc",
            "clear-site-data",
            "www-authenticate",
            "access-control-allow-origin",
            "access-control-allow-credentials",
            "keep-alive",
            "connection",
        ] {
            assert!(!answer.headers.contains_key(gone), "{gone}");
        }
        let ids: Vec<_> = answer.headers.get_all("audit-id").iter().collect();
        assert_eq!(ids, ["mine-1"]);
        let sniff: Vec<_> = answer.headers.get_all("x-content-type-options").iter().collect();
        assert_eq!(sniff, ["nosniff"]);
        assert_eq!(answer.headers["warning"], "299 - \"deprecated\"");
        assert_eq!(answer.headers["retry-after"], "7");
        assert_eq!(answer.headers["x-kubernetes-pf-flowschema-uid"], "abc");
    }
}
