//! Pictures of the status page for the documentation; run only if [`DIRECTORY_VARIABLE`] says where to.

use std::path::Path;
use std::time::{Duration, Instant};

use super::TestFn;
use crate::environment::{Browser, Extension, Gateway, TestEnvironment, free_port, register};

/// Directory of the pictures, relative to the root of the repository.
const DIRECTORY_VARIABLE: &str = "NARTHEX_TEST_PICTURES";
/// Charts have an interval of 10 seconds.
const TRAFFIC: Duration = Duration::from_secs(240);
const FLUNDERS: &str = "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders";
const FISCHERS: &str = "/apis/wardle.example.com/v1beta1/flunders";

pub(super) fn gateway_tests() -> Vec<(&'static str, TestFn)> {
    let is_wanted = std::env::var_os(DIRECTORY_VARIABLE).is_some();
    is_wanted.then_some(("pictures of the status page", take_pictures as TestFn)).into_iter().collect()
}

/// Saves what the browser shows as `NAME.png`, if [`DIRECTORY_VARIABLE`] is set.
pub(super) fn save(browser: &mut Browser, name: &str) {
    if let Some(directory) = std::env::var_os(DIRECTORY_VARIABLE) {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory).join(format!("{name}.png"));
        std::fs::write(file, browser.screenshot()).unwrap();
    }
}

fn take_pictures(environment: &TestEnvironment) {
    let program = Browser::installed().expect("Chromium, see .ci/run");
    let directory = environment.scratch("pictures");
    let extension = Extension::start(&environment.cluster, &directory, "wardle");
    let admin = format!("127.0.0.1:{}", free_port());
    let flags = [("--admin-address", admin.as_str())];
    let gateway = Gateway::start(&environment.cluster, &extension, &directory, "narthex-pictures", &flags);
    // An APIService whose server does not run.
    let registry = directory.join("narthex-pictures-registry");
    let authority = &environment.cluster.authorities.backend.file;
    register(&registry, ("billing.example.com", "v1"), ("billing", free_port()), authority);

    send_traffic(environment, &gateway);
    let mut browser = Browser::start(&program, "nowhere.example", &directory);
    for (name, size, color_scheme) in [
        ("status-page", (1280, 1180), "light"),
        ("status-page-dark", (1280, 1180), "dark"),
        ("status-page-narrow", (420, 1180), "light"),
    ] {
        browser.emulate(size, color_scheme);
        browser.open(&format!("http://{admin}/"));
        browser.wait_for_text("the APIServices and the failing one", |text| {
            text.contains("v1alpha1.wardle.example.com") && text.contains("ConnectionRefused")
        });
        save(&mut browser, name);
    }
}

/// Rates that differ, a few responses that are errors, and a few clients without a certificate.
fn send_traffic(environment: &TestEnvironment, gateway: &Gateway) {
    let jane = Some(environment.cluster.jane());
    let began = Instant::now();
    let mut count = 0;
    while began.elapsed() < TRAFFIC {
        let phase = began.elapsed().as_secs_f64() / 40.0;
        let path = if count % 3 == 0 { FISCHERS } else { FLUNDERS };
        gateway.endpoint.get(jane, path).unwrap();
        if count % 97 == 0 {
            gateway.endpoint.get(jane, "/apis/billing.example.com/v1/invoices").unwrap();
        }
        if count % 211 == 0 {
            gateway.endpoint.get(None, FLUNDERS).unwrap();
        }
        count += 1;
        std::thread::sleep(Duration::from_secs_f64(0.015 + 0.06 * (1.0 + phase.sin())));
    }
}
