//! Gateways that end without a word, have no descriptors left, or whose clock jumps.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tokio::net::TcpStream;

use crate::echo_backend::{ExecutionLedger, start_echo_backend};
use crate::report::FaultRow;
use crate::stage::Stage;
use crate::support::backend::{Backend, BackendSettings};
use crate::support::fixtures::{GatewayProcess, TestEnvironment};
use crate::support::gateway_fixture::register_things;

/// What a client sees of a process that is gone.
const PROCESS_IS_GONE: &[&str] =
    &["connect", "GET connection lost", "POST connection lost", "GET response broken off", "POST response broken off"];

pub(crate) async fn kill_and_restart() -> FaultRow {
    // An address of its own: at another, a fault that runs beside this one might get the port between two gateways.
    let mut stage = Stage::start(&["--bind-address=127.0.0.2"]).await;
    let load = stage.start_load().await;
    let kills = if crate::is_long() { 20 } else { 3 };
    for _ in 0..kills {
        stage.gateway.signal("KILL");
        stage.gateway.wait_for_exit().await;
        stage.restart_gateway();
        load.wait_for_answers(100).await;
    }
    let mut row = stage.finish(load, PROCESS_IS_GONE).await;
    row.note = format!("{kills} kills");
    row
}

async fn start_backend(environment: &TestEnvironment, ledger: &ExecutionLedger) -> Vec<Backend> {
    let backend = start_echo_backend(environment, BackendSettings::default(), ledger).await;
    register_things(environment, &[backend.address], &[]);
    vec![backend]
}

/// Clients that stay silent take all descriptors. Requests on open connections go on; new ones have to wait or fail.
pub(crate) async fn no_descriptors() -> FaultRow {
    const LIMIT: usize = 160;
    let (environment, ledger) = (TestEnvironment::new(), ExecutionLedger::default());
    let backends = start_backend(&environment, &ledger).await;
    let gateway = GatewayProcess::start_with_descriptors(LIMIT, &environment.gateway_arguments(&[]));
    let mut stage = Stage::start_at(environment, gateway, ledger, backends, &[]).await;
    let load = stage.start_load().await;
    let mut silent = Vec::new();
    for _ in 0..2 * LIMIT {
        silent.push(TcpStream::connect(stage.gateway.address).await.unwrap());
    }
    load.go_on(8).await;
    let during = stage.gateway.descriptor_count();
    drop(silent);
    let mut row = stage.finish(load, &["connect", "GET connection lost", "POST connection lost"]).await;
    row.note = format!("limit {LIMIT}; {during} in use during the fault");
    row
}

/// libfaketime, which moves the wall clock of one process; the monotonic clock cannot jump. Its directory has the name of
/// the architecture.
fn faketime() -> Option<PathBuf> {
    let directories = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    directories.map(|entry| entry.path().join("faketime/libfaketime.so.1")).find(|path| path.is_file())
}

pub(crate) fn missing_faketime() -> Option<String> {
    let missing = "/usr/lib/*/faketime/libfaketime.so.1 does not exist: install libfaketime (Debian: libfaketime)";
    faketime().is_none().then(|| missing.to_owned())
}

/// The wall clock jumps by hours while certificates are valid, and beyond their end and back.
pub(crate) async fn clock_jumps() -> FaultRow {
    let (environment, ledger) = (TestEnvironment::new(), ExecutionLedger::default());
    let backends = start_backend(&environment, &ledger).await;
    let (library, offset) = (faketime().unwrap(), environment.path("offset"));
    fs::write(&offset, "+0").unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_narthex"));
    program.arg("gateway");
    let variables = [
        ("LD_PRELOAD", library.to_str().unwrap()),
        ("FAKETIME_TIMESTAMP_FILE", offset.to_str().unwrap()),
        ("FAKETIME_NO_CACHE", "1"),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
    ];
    let gateway = GatewayProcess::spawn(program, &environment.gateway_arguments(&[]), &variables);
    let mut stage = Stage::start_at(environment, gateway, ledger, backends, &[]).await;
    let load = stage.start_load().await;
    for jump in ["+2h", "+0", "-4m", "+0", "+20d", "+0"] {
        fs::write(&offset, jump).unwrap();
        load.go_on(5).await;
    }
    stage.finish(load, &[]).await
}
