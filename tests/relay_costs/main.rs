//! What a relayed request allocates: the same on every machine and in every profile, so CI can hold the line.
//!
//! The gateway runs in a process of its own: this program again, under the name `narthex`, with an allocator that
//! counts. It relays requests of one connection, one after another, between each pair of protocols. The least of a few
//! rounds counts, because probes and timers run beside them.
//!
//! A change that needs more says why and changes [`BOUNDS`]; one that needs less lowers them, and the test asks for it.

// A test panics at the first unexpected result.
#![allow(clippy::unwrap_used)]

mod counting_allocator;
#[allow(dead_code, reason = "shared with the gateway tests, which use all of it")]
#[path = "../gateway/support"]
mod support {
    pub(crate) mod backend;
    pub(crate) mod client;
    pub(crate) mod fixtures;
    pub(crate) mod gateway_fixture;
}

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Trial};

use counting_allocator::AllocationCounts;
use support::backend::{Backend, BackendSettings, json_response};
use support::client::{Client, get};
use support::fixtures::{GatewayProcess, TestEnvironment, eventually};
use support::gateway_fixture::{THINGS, register_things};

/// Path of the socket at which a gateway with the allocator tells its counts.
const COUNTS_SOCKET: &str = "NARTHEX_TEST_COUNTS_SOCKET";

/// Requests before the first round: connections, caches and buffers are there then.
const WARM_UP_REQUESTS: u64 = 300;
const REQUESTS_PER_ROUND: u64 = 500;
const ROUNDS: u64 = 5;

/// Growth that fails, in percent, and the same the other way: a bound that is too high holds nothing.
const TOLERANCE_PERCENT: f64 = 3.0;

/// What a request allocates between two protocols, as last measured.
struct CostBound {
    name: &'static str,
    is_client_http2: bool,
    is_backend_http2: bool,
    allocations: f64,
    bytes: f64,
}

const BOUNDS: [CostBound; 4] = [
    CostBound { name: "h2-h2", is_client_http2: true, is_backend_http2: true, allocations: 32.2, bytes: 10_980.0 },
    CostBound { name: "h2-h1", is_client_http2: true, is_backend_http2: false, allocations: 38.0, bytes: 14_150.0 },
    CostBound { name: "h1-h1", is_client_http2: false, is_backend_http2: false, allocations: 30.0, bytes: 283_240.0 },
    CostBound { name: "h1-h2", is_client_http2: false, is_backend_http2: true, allocations: 26.2, bytes: 280_150.0 },
];

fn main() -> ExitCode {
    // A copy of this program that is to be the gateway.
    if let Some(path) = std::env::var_os(COUNTS_SOCKET) {
        serve_counts(UnixListener::bind(path).unwrap());
        return narthex::commands::main();
    }
    let arguments = Arguments::from_args();
    let trials = BOUNDS.map(|bound| {
        Trial::test(format!("relay_allocates_as_before_{}", bound.name), move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let cost = runtime.block_on(measure(&bound));
            println!("{}: {:.2} allocations and {:.0} bytes a request", bound.name, cost.allocations, cost.bytes);
            assert_near(bound.name, "allocations", cost.allocations, bound.allocations);
            assert_near(bound.name, "bytes", cost.bytes, bound.bytes);
            Ok(())
        })
    });
    libtest_mimic::run(&arguments, trials.into()).exit_code()
}

fn assert_near(name: &str, unit: &str, now: f64, before: f64) {
    let change = 100.0 * (now / before - 1.0);
    assert!(
        change < TOLERANCE_PERCENT,
        "{name}: {now:.2} {unit} a request, {change:.1} % more than the {before:.2} in BOUNDS: find out what was added"
    );
    assert!(
        change > -TOLERANCE_PERCENT,
        "{name}: {now:.2} {unit} a request, {:.1} % less than the {before:.2} in BOUNDS: lower the bound",
        -change
    );
}

/// Answers each connection with the counts of this process.
fn serve_counts(listener: UnixListener) {
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let AllocationCounts { allocations, bytes } = AllocationCounts::now();
            let _ = writeln!(connection.unwrap(), "{allocations} {bytes}");
        }
    });
}

fn read_counts(socket: &Path) -> AllocationCounts {
    let mut line = String::new();
    BufReader::new(UnixStream::connect(socket).unwrap()).read_line(&mut line).unwrap();
    let (allocations, bytes) = line.trim().split_once(' ').unwrap();
    AllocationCounts { allocations: allocations.parse().unwrap(), bytes: bytes.parse().unwrap() }
}

/// What one request costs.
struct RequestCost {
    allocations: f64,
    bytes: f64,
}

async fn measure(bound: &CostBound) -> RequestCost {
    let environment = TestEnvironment::new();
    let settings = if bound.is_backend_http2 { BackendSettings::http2() } else { BackendSettings::http1() };
    let object = format!(r#"{{"kind":"Thing","apiVersion":"things.example.com/v1","spec":{:?}}}"#, "x".repeat(1_000));
    let backend = Backend::start(&environment, settings, move |_| {
        let object = object.clone();
        async move { json_response(200, &object) }
    })
    .await;
    register_things(&environment, &[backend.address], &[]);
    let socket = environment.path("counts");
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.arg0("narthex").arg("gateway");
    let arguments = environment.gateway_arguments(&[]);
    let gateway = GatewayProcess::spawn(program, &arguments, &[(COUNTS_SOCKET, socket.to_str().unwrap())]);
    let jane = environment.issue_user("jane", &["devs"]);
    let client = match bound.is_client_http2 {
        true => Client::http2(&environment, &gateway, Some(&jane)).await,
        false => Client::http1(&environment, &gateway, Some(&jane)).await,
    };
    let path = format!("{THINGS}/one");
    eventually("the backend to answer", async || (client.get(&path).await.status == 200).then_some(())).await;
    let send = async |count| {
        for _ in 0..count {
            let headers = [("accept", "application/json"), ("user-agent", "kubectl/v1.36.3 (linux/amd64)")];
            assert_eq!(client.send_and_read(get(&path, &headers)).await.status, 200);
        }
    };
    send(WARM_UP_REQUESTS).await;
    let mut least: Option<AllocationCounts> = None;
    for _ in 0..ROUNDS {
        let before = read_counts(&socket);
        send(REQUESTS_PER_ROUND).await;
        let round = read_counts(&socket).since(&before);
        least = Some(least.map_or(round, |least| least.min(round)));
    }
    let least = least.unwrap();
    let per_request = |count: u64| count as f64 / REQUESTS_PER_ROUND as f64;
    RequestCost { allocations: per_request(least.allocations), bytes: per_request(least.bytes) }
}
