//! The status page of the server in a real browser.

use rustix::process::Signal;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::super::pictures;
use super::super::status_page::wait_for_state;
use super::target_server::{TargetBehavior, TargetServer};
use super::{pairs, run_local};
use crate::environment::{Browser, Konnectivity, KonnectivityMode, TestEnvironment, eventually};

pub(super) fn agent_comes_and_goes(environment: &TestEnvironment) {
    let Some(program) = Browser::installed() else { return };
    let directory = environment.scratch("konnectivity-status-page");
    let mut konnectivity = Konnectivity::start_with(&directory, KonnectivityMode::ConnectUnix, pairs::OWN, None);
    let mut browser = Browser::start(&program, "nowhere.example", &directory);
    browser.open(&konnectivity.admin_url());
    wait_for_state(&mut browser, "live");
    browser.wait_for_text("a server without agents", |text| text.contains("no agent is connected"));

    konnectivity.start_agent("agent-a", None);
    browser.wait_for_text("the agent", |text| text.contains("OK: 1 agent, 0 tunnels") && text.contains("agent-a"));
    // At most every five seconds.
    eventually("the announcement for screen readers", || {
        match browser.evaluate("document.getElementById('announcement').textContent")? {
            text if text == "OK: 1 agent, 0 tunnels" => Ok(()),
            other => Err(other.to_string()),
        }
    });
    let title = browser.evaluate("document.title").unwrap();
    assert_eq!(title, "Narthex Konnectivity server: OK: 1 agent, 0 tunnels");
    // An element that keeps its identity, with the focus on it, over all updates.
    let focus =
        "(() => { const it = document.querySelector('#agents .scroll'); it.focus(); it.marked = 1; return 1 })()";
    browser.evaluate(focus).unwrap();

    let echo = TargetServer::start(TargetBehavior::Echo);
    run_local(async {
        let mut tunnel = konnectivity.connect(echo.port).await.unwrap();
        tunnel.write_all(b"ping").await.unwrap();
        tunnel.read_exact(&mut [0; 4]).await.unwrap();
        // Nothing listens at port 1.
        assert!(konnectivity.connect(1).await.is_err());
        browser.wait_for_text("the tunnel and the failed dial", |text| {
            text.contains("OK: 1 agent, 1 tunnel") && text.contains("Needs attention") && text.contains("127.0.0.1:1\n")
        });
    });
    let kept = browser.evaluate("document.activeElement.marked === 1").unwrap();
    assert_eq!(kept, Value::Bool(true), "the focus was lost by an update");
    for (size, colors) in [((390, 800), "light"), ((390, 800), "dark"), ((1400, 900), "dark"), ((1400, 900), "light")] {
        browser.emulate(size, colors);
        std::fs::write(directory.join(format!("{}-{colors}.png", size.0)), browser.screenshot()).unwrap();
        let fits = browser.evaluate("document.documentElement.scrollWidth <= innerWidth").unwrap();
        assert_eq!(fits, Value::Bool(true), "the page is wider than {size:?}");
    }

    // Without the certificates: their files have the names of this machine.
    browser.emulate((1400, 540), "light");
    pictures::save(&mut browser, "konnectivity-status-page");

    konnectivity.agents[0].process.signal(Signal::KILL);
    konnectivity.agents[0].process.wait();
    browser.wait_for_text("the loss of the agent", |text| {
        text.contains("no agent is connected") && text.contains("None is connected.")
    });
    assert_eq!(browser.evaluate("performance.getEntriesByType('navigation').length").unwrap(), 1, "never reloaded");
}
