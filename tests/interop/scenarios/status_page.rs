//! The status page in a real browser: live updates, a backend that dies, a gateway that restarts.

use std::time::Instant;

use rustix::process::Signal;
use serde_json::Value;

use super::TestFn;
use crate::environment::{Browser, Extension, Gateway, TestEnvironment, eventually, free_port};

pub(super) const GATEWAY_TESTS: &[(&str, TestFn)] =
    &[("status page: shows a killed backend and survives a restart of the gateway", killed_backend_and_restart)];

const FLUNDERS: &str = "/apis/wardle.example.com/v1alpha1/flunders";

fn killed_backend_and_restart(environment: &TestEnvironment) {
    let Some(program) = Browser::installed() else { return };
    let directory = environment.scratch("status-page");
    let mut extension = Extension::start(&environment.cluster, &directory, "watched");
    let admin = format!("127.0.0.1:{}", free_port());
    let flags = [("--admin-address", admin.as_str())];
    let mut gateway = Gateway::start(&environment.cluster, &extension, &directory, "narthex-watched", &flags);
    let jane = environment.cluster.jane();
    let mut browser = Browser::start(&program, "nowhere.example", &directory);
    browser.open(&format!("http://{admin}/"));
    wait_for_state(&mut browser, "live");
    browser.wait_for_text("an available APIService", |text| {
        text.contains("v1alpha1.wardle.example.com") && text.contains("True") && !text.contains("ConnectionRefused")
    });
    // An element that keeps its identity, with the focus on it, over all updates.
    let focus =
        "(() => { const it = document.querySelector('#backends .scroll'); it.focus(); it.marked = 1; return 1 })()";
    browser.evaluate(focus).unwrap();

    assert_eq!(gateway.endpoint.get(Some(jane), FLUNDERS).unwrap().status, 200);
    eventually("a chart of requests", || {
        match browser.evaluate("document.querySelector('#backends svg')?.getAttribute('aria-label') ?? ''")? {
            label if label.as_str().is_some_and(|label| label.starts_with("Requests over 15 minutes: now ")) => Ok(()),
            other => Err(other.to_string()),
        }
    });

    extension.process.signal(Signal::KILL);
    let killed = Instant::now();
    extension.process.wait();
    browser.wait_for_text("the dead backend with its reason", |text| {
        text.contains("Needs attention") && text.contains("ConnectionRefused")
    });
    println!("status page: the killed backend was shown after {:?}", killed.elapsed());
    browser.wait_for_text("the unavailable APIService", |text| text.contains("False (FailedDiscoveryCheck)"));
    let announced = browser.evaluate("document.getElementById('announcement').textContent").unwrap();
    assert!(announced.as_str().is_some_and(|text| text.contains("unavailable")), "{announced}");
    let kept = browser.evaluate("document.activeElement.marked === 1").unwrap();
    assert_eq!(kept, Value::Bool(true), "the focus was lost by an update");

    std::fs::write(directory.join("status-page.png"), browser.screenshot()).unwrap();
    for size in [(390, 800), (1400, 900)] {
        browser.emulate(size, "dark");
        let fits = browser.evaluate("document.documentElement.scrollWidth <= innerWidth").unwrap();
        assert_eq!(fits, Value::Bool(true), "the page is wider than {size:?}");
    }

    gateway.process.signal(Signal::KILL);
    gateway.process.wait();
    wait_for_state(&mut browser, "lost");
    browser.wait_for_text("the last known state", |text| {
        text.contains("Disconnected since") && text.contains("v1alpha1.wardle.example.com")
    });
    extension.restart();
    gateway.restart();
    wait_for_state(&mut browser, "live");
    browser.wait_for_text("the state after the restart", |text| {
        text.contains("v1alpha1.wardle.example.com") && !text.contains("FailedDiscoveryCheck")
    });
    assert_eq!(browser.evaluate("performance.getEntriesByType('navigation').length").unwrap(), 1, "never reloaded");
}

/// Waits until the page is `live` or `lost`.
pub(super) fn wait_for_state(browser: &mut Browser, wanted: &str) {
    eventually(&format!("the page to be {wanted}"), || {
        let state = browser.evaluate("document.getElementById('connection').dataset.state")?;
        if state == wanted { Ok(()) } else { Err(state.to_string()) }
    });
}
