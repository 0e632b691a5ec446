//! Faults under load: the real binary, real clients and backends, and networks, disks, clocks and processes that fail.
//!
//! `tests/faults/run` builds and runs this; arguments go to the test harness (a filter, `--list`). `cargo test` runs the
//! short form, in which a fault lasts a few hundred requests. `NARTHEX_TEST_FAULTS=long` is the form whose figures are
//! in `docs/operations/faults.md`.
//!
//! A fault that this machine cannot make is left out, and fails the suite if `CI` is set.
//!
//! Each fault states which failures it excuses; any other failure, and any wrong response, fails the test. At the end
//! the figures of all faults are printed as one table.

// A test panics at the first unexpected result, and one future on the stack at a time may be large.
#![allow(clippy::unwrap_used, clippy::large_futures)]

mod echo_backend;
mod isolation;
mod lossy_link;
mod measured_load;
mod outcome;
mod report;
mod scenarios;
mod stage;
#[allow(dead_code, reason = "shared with the gateway tests, which use all of it")]
#[path = "../gateway/support"]
mod support {
    pub(crate) mod backend;
    pub(crate) mod client;
    pub(crate) mod embedded_api;
    pub(crate) mod fake_review_server;
    pub(crate) mod fixtures;
    pub(crate) mod gateway_fixture;
}

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// Faults of the short form side by side. Each has its own gateway, backends, load and network link.
const SHORT_FORMS_AT_ONCE: usize = 3;

fn main() -> ExitCode {
    if !isolation::is_isolated() {
        isolation::enter();
    }
    isolation::raise_descriptor_limit();
    let mut arguments = Arguments::from_args();
    // In the long form each fault is measured alone. In the short form most of its time is waiting.
    arguments.test_threads = Some(if is_long() { 1 } else { SHORT_FORMS_AT_ONCE });
    // Outside CI, a fault that this machine cannot make is left out.
    let is_ci = std::env::var_os("CI").is_some();
    let trials = scenarios::ALL.map(|scenario| {
        let is_left_out = scenario.is_long_only && !is_long();
        let missing = (scenario.missing)().filter(|_| !is_left_out);
        let is_ignored = is_left_out || missing.is_some() && !is_ci;
        if is_ignored && !arguments.list {
            let reason = missing.as_deref().unwrap_or("takes minutes: only with NARTHEX_TEST_FAULTS=long");
            println!("{} not tested: {reason}", scenario.name);
        }
        let trial = Trial::test(scenario.name, move || {
            if let Some(missing) = missing {
                return Err(missing.into());
            }
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            let row = runtime.block_on((scenario.run)());
            report::add(scenario.name, row)
        });
        trial.with_ignored_flag(is_ignored)
    });
    let conclusion = libtest_mimic::run(&arguments, trials.into());
    report::print(&scenarios::ALL.map(|scenario| scenario.name));
    conclusion.exit_code()
}

/// Whether faults last as long as in production, not only some hundred requests.
fn is_long() -> bool {
    std::env::var("NARTHEX_TEST_FAULTS").is_ok_and(|form| form == "long")
}
