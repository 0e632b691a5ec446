//! Everything changes, again and again: certificates, authorities, endpoints, the registry and watches. Memory and
//! descriptors stay flat.

use std::time::{Duration, Instant};

use super::certificates;
use crate::measured_load::Credentials;
use crate::report::FaultRow;
use crate::stage::Stage;
use crate::support::client::{Client, get, next_chunk};
use crate::support::gateway_fixture::THINGS;

/// Minutes of the long form.
const MINUTES: &str = "NARTHEX_TEST_SOAK_MINUTES";

/// Rounds of the short form.
const ROUNDS: usize = 1;

/// Watches in a round, over one connection.
const WATCHES: usize = 30;

/// Watches are opened, send an event, and are closed by their client: half of them with their connection.
async fn churn_watches(stage: &Stage) {
    let Credentials::Certificate(pair) = &stage.users[0].credentials else { panic!("a certificate") };
    let client = Client::http2(&stage.environment, &stage.gateway, Some(pair)).await;
    let mut open = Vec::new();
    for number in 0..WATCHES {
        let response = client.send(get(&format!("{THINGS}?watch=1&number={number}"), &[])).await.unwrap();
        assert_eq!(response.status(), 200);
        let mut body = response.into_body();
        let event = next_chunk(&mut body).await.unwrap().unwrap();
        assert!(event.starts_with(b"{\"user\":\"anna\""), "{event:?}");
        if number % 2 == 0 {
            open.push(body);
        }
    }
}

/// APIServices come and go beside the one under load.
fn churn_registry(stage: &Stage, round: usize) {
    let addresses: Vec<_> = stage.backends.iter().map(|backend| backend.address).collect();
    for number in 0..5 {
        let name = format!("other{number}.yaml");
        if (round + number).is_multiple_of(2) {
            let group = format!("other{}-{number}.example.com", round % 10);
            let text = stage.environment.apiservice_manifests(&group, "v1", &addresses, "");
            stage.environment.write_registry(&name, &text);
        } else {
            let _ = std::fs::remove_file(stage.environment.path(&format!("registry/{name}")));
        }
    }
}

pub(crate) async fn soak() -> FaultRow {
    let mut stage = certificates::start_stage().await;
    let load = stage.start_load().await;
    let minutes = std::env::var(MINUTES).ok().map(|text| text.parse::<f64>().expect("a number of minutes"));
    let (began, whole) = (Instant::now(), Duration::from_secs_f64(minutes.unwrap_or_default() * 60.0));
    let (mut round, mut samples) = (0, Vec::new());
    // At the start, each quarter, and the end.
    for quarter in 0..=4 {
        let target = whole.mul_f64(f64::from(quarter) / 4.0);
        while round < ROUNDS || began.elapsed() < target {
            churn_registry(&stage, round);
            churn_watches(&stage).await;
            certificates::rotate_once(&mut stage, &load).await;
            load.wait_for_answers(100).await;
            round += 1;
        }
        samples.push((stage.gateway.resident_kilobytes(), stage.gateway.descriptor_count()));
        println!(
            "after {round} rounds: {} MiB, {} descriptors",
            samples[quarter as usize].0 >> 10,
            samples[quarter as usize].1
        );
    }
    let mut row = stage.finish(load, &[]).await;
    let text: Vec<_> = samples.iter().map(|(memory, open)| format!("{} MiB, {open}", memory >> 10)).collect();
    row.note = format!("{round} rounds; under load at each quarter: {}", text.join(" · "));
    if minutes.is_some() {
        let (middle, end) = (samples[2], samples[4]);
        if end.0 > middle.0 + middle.0 / 20 + 4096 {
            row.problems.push(format!("memory grows: {samples:?}"));
        }
        if end.1 > middle.1 + 30 {
            row.problems.push(format!("descriptors grow: {samples:?}"));
        }
    }
    row
}
