//! The backend dies and comes back; narthex itself is asked to end.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::process::Signal;

use super::Trial;
use crate::world::{Extension, Gateway, World, eventually};

pub(super) const THROUGH: &[(&str, Trial)] = &[
    ("a backend that was killed is 503, and works again when it is back", backend_restart),
    ("SIGTERM under load ends with 0 and loses nothing", end_under_load),
];

const FLUNDERS: &str = "/apis/wardle.example.com/v1alpha1/flunders";

fn backend_restart(world: &World) {
    let directory = world.scratch("backend-restart");
    let mut extension = Extension::start(&world.cluster, &directory, "mortal");
    let gateway = Gateway::start(&world.cluster, &extension, &directory, "narthex-before-mortal");
    let jane = world.cluster.jane();
    assert_eq!(gateway.door.get(Some(jane), FLUNDERS).unwrap().status, 200);

    extension.process.signal(Signal::KILL);
    extension.process.wait();
    // From the first request on, long before a probe could have noticed.
    for _ in 0..3 {
        let answer = gateway.door.get(Some(jane), FLUNDERS).unwrap();
        assert_eq!(answer.status, 503, "{}", answer.text());
        let document = answer.json();
        assert_eq!(document["kind"], "Status", "{document}");
        assert_eq!(document["reason"], "ServiceUnavailable", "{document}");
        assert!(document["details"]["causes"][0]["message"].is_string(), "a cause: {document}");
        let retry: u32 = answer.headers["retry-after"].to_str().unwrap().parse().unwrap();
        assert_eq!(document["details"]["retryAfterSeconds"], retry, "{document}");
        let text = answer.text();
        assert!(!text.contains("127.0.0.1") && !text.contains("os error"), "inner words: {text}");
    }
    // Discovery of the group goes on from what was last known.
    let group = gateway.door.get(Some(jane), "/apis/wardle.example.com").unwrap();
    assert_eq!(group.status, 200, "{}", group.text());

    extension.start_again();
    eventually("the backend answering again through narthex", || {
        let answer = gateway.door.get(Some(jane), FLUNDERS)?;
        if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
    });
    gateway.wait_until_available("True");
}

fn end_under_load(world: &World) {
    let directory = world.scratch("end-under-load");
    let mut gateway = Gateway::start(&world.cluster, &world.extension, &directory, "narthex-that-ends");
    let jane = world.cluster.jane();
    let door = gateway.door.clone();
    let (answered, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        match door.get(Some(jane), FLUNDERS) {
                            Ok(answer) => {
                                assert_eq!(answer.status, 200, "{}", answer.text());
                                answered.fetch_add(1, Ordering::Relaxed);
                            }
                            // The door is shut: nothing of ours was inside.
                            Err(error) if error.contains("Connection refused") => break,
                            Err(error) => panic!("a request that was let in got no answer: {error}"),
                        }
                    }
                })
            })
            .collect();
        eventually("load", || if answered.load(Ordering::Relaxed) > 50 { Ok(()) } else { Err("little".to_owned()) });
        gateway.process.signal(Signal::TERM);
        let status = gateway.process.wait();
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            worker.join().unwrap();
        }
        assert!(status.success(), "{status}");
    });
}
