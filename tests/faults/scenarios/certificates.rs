//! Every certificate and authority is replaced under load: no request fails, and the old ones end up refused.

use std::fs;
use std::net::SocketAddr;
use std::time::SystemTime;

use narthex::tls::{Authority, CertificateSpec};

use crate::echo_backend::{ExecutionLedger, start_echo_backend};
use crate::measured_load::{Credentials, LoadUser, RunningLoad};
use crate::report::FaultRow;
use crate::stage::Stage;
use crate::support::backend::{Backend, BackendSettings};
use crate::support::client::{Client, get, tls_handshake};
use crate::support::fixtures::{CertKeyPair, TestEnvironment, eventually};
use crate::support::gateway_fixture::{THINGS, register_things};

pub(crate) async fn rotate_all() -> FaultRow {
    let mut stage = start_stage().await;
    let load = stage.start_load().await;
    let rounds = if crate::is_long() { 5 } else { 1 };
    for _ in 0..rounds {
        rotate_once(&mut stage, &load).await;
    }
    let mut row = stage.finish(load, &[]).await;
    row.note = format!("{rounds} times 4 authorities and their pairs");
    row
}

/// A stage with users of client certificates and one that a front proxy speaks for.
pub(super) async fn start_stage() -> Stage {
    let mut stage = Stage::start(&[]).await;
    stage.users.push(front_proxy_user(&stage.environment));
    stage
}

/// Replaces every authority, and every pair that it has signed.
pub(super) async fn rotate_once(stage: &mut Stage, load: &RunningLoad) {
    rotate_serving(stage, load).await;
    load.go_on(2).await;
    rotate_client_ca(stage, load).await;
    load.go_on(2).await;
    rotate_request_header_ca(stage, load).await;
    load.go_on(2).await;
    rotate_backends(stage, load).await;
    load.go_on(2).await;
}

async fn start_backends(environment: &TestEnvironment, ledger: &ExecutionLedger) -> Vec<Backend> {
    let mut backends = Vec::new();
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        backends.push(start_echo_backend(environment, settings, ledger).await);
    }
    backends
}

/// A user that a front proxy before this one speaks for.
fn front_proxy_user(environment: &TestEnvironment) -> LoadUser {
    let pair = environment.issue_front_proxy("outer-proxy");
    LoadUser { name: "dora".to_owned(), credentials: Credentials::FrontProxy(pair), is_denied: false }
}

/// A new authority in the place of `old`, which `NAME.crt` trusts beside it.
fn replace_authority(environment: &TestEnvironment, old: Authority, name: &str) -> (Authority, Authority) {
    let (new, issued) = Authority::new(name, SystemTime::now()).unwrap();
    let before = environment.read_file(&format!("{name}.crt"));
    fs::write(environment.path(&format!("{name}.crt")), before + &issued.certificate).unwrap();
    // For the time when the old one goes.
    fs::write(environment.path(&format!("{name}.next")), &issued.certificate).unwrap();
    (new, old)
}

/// Trusts the new authority alone.
fn forget_old_authority(environment: &TestEnvironment, name: &str) {
    fs::rename(environment.path(&format!("{name}.next")), environment.path(&format!("{name}.crt"))).unwrap();
}

/// Waits until a user with this certificate is, or is not, answered.
async fn wait_until_trusted(stage: &Stage, pair: &CertKeyPair, headers: &[(&str, &str)], is_trusted: bool) {
    eventually("the authority to count", async || {
        let socket = tokio::net::TcpStream::connect(stage.gateway.address).await.unwrap();
        let stream = tls_handshake(&stage.environment, socket, Some(pair), &["http/1.1"]).await.ok();
        let answered = match stream {
            None => false,
            Some(stream) => {
                let response = Client::from_stream(stream, true).await.send(get(THINGS, headers)).await;
                response.is_ok_and(|response| response.status() == 200)
            }
        };
        (answered == is_trusted).then_some(())
    })
    .await;
}

async fn rotate_serving(stage: &mut Stage, load: &RunningLoad) {
    let (new, _) = Authority::new("serving-ca", SystemTime::now()).unwrap();
    load.load.server_cas.lock().unwrap().push(new.certificate().clone());
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
    let issued = new.issue(&CertificateSpec::serving(&names), SystemTime::now()).unwrap();
    // The new handshakes of all connections are with the old or the new one.
    load.renew_connections().await;
    stage.environment.serving_ca = new;
    stage.environment.write_pair("serving", &issued);
    let Credentials::Certificate(pair) = stage.users[0].credentials.clone() else { panic!("a certificate") };
    wait_until_trusted(stage, &pair, &[], true).await;
    *load.load.server_cas.lock().unwrap() = vec![stage.environment.serving_ca.certificate().clone()];
    load.renew_connections().await;
}

async fn rotate_client_ca(stage: &mut Stage, load: &RunningLoad) {
    let Credentials::Certificate(old_pair) = stage.users[0].credentials.clone() else { panic!("a certificate") };
    let environment = &mut stage.environment;
    let (next, _) = Authority::new("placeholder", SystemTime::now()).unwrap();
    let old = std::mem::replace(&mut environment.client_ca, next);
    let (new, _old) = replace_authority(environment, old, "client-ca");
    environment.client_ca = new;
    for user in &mut stage.users {
        if let Credentials::Certificate(pair) = &mut user.credentials {
            *pair = stage.environment.issue_user(&user.name, &["system:masters"]);
        }
    }
    let Credentials::Certificate(new_pair) = stage.users[0].credentials.clone() else { panic!("a certificate") };
    wait_until_trusted(stage, &new_pair, &[], true).await;
    *load.load.users.lock().unwrap() = stage.users.clone();
    load.renew_connections().await;
    forget_old_authority(&stage.environment, "client-ca");
    wait_until_trusted(stage, &old_pair, &[], false).await;
}

/// The front proxy before the gateway, the gateway as front proxy of its backends, and what backends trust.
async fn rotate_request_header_ca(stage: &mut Stage, load: &RunningLoad) {
    let old_pair = stage.environment.issue_front_proxy("outer-proxy");
    let environment = &mut stage.environment;
    let (next, _) = Authority::new("placeholder", SystemTime::now()).unwrap();
    let old = std::mem::replace(&mut environment.request_header_ca, next);
    let (new, old) = replace_authority(environment, old, "requestheader-ca");
    environment.request_header_ca = new;
    stage.users.pop();
    stage.users.push(front_proxy_user(&stage.environment));
    let Credentials::FrontProxy(new_pair) = stage.users.last().unwrap().credentials.clone() else { panic!("a pair") };
    let headers = [("x-remote-user", "dora")];
    wait_until_trusted(stage, &new_pair, &headers, true).await;
    *load.load.users.lock().unwrap() = stage.users.clone();
    load.renew_connections().await;
    forget_old_authority(&stage.environment, "requestheader-ca");
    wait_until_trusted(stage, &old_pair, &headers, false).await;

    // Backends that trust both authorities take the place of those that trust the old one.
    let front_proxies = vec![old.certificate().clone(), stage.environment.request_header_ca.certificate().clone()];
    let mut both = Vec::new();
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let settings = BackendSettings { front_proxies: front_proxies.clone(), ..settings };
        both.push(start_echo_backend(&stage.environment, settings, &stage.ledger).await);
    }
    replace_backends(stage, load, both).await;
    let spec = CertificateSpec::client("narthex-front-proxy", &["rotated"]);
    let issued = stage.environment.request_header_ca.issue(&spec, SystemTime::now()).unwrap();
    let log_length = stage.gateway.log_length();
    stage.environment.write_pair("front-proxy", &issued);
    // As an operator does: the old authority goes once the gateway says that it uses the new pair. Another rotation's
    // line does not count, nor that of a pair whose key is not written yet.
    stage.gateway.wait_for_log_after(log_length, &["client certificate reloaded", "front-proxy.crt"]).await;
    // These trust the new authority alone.
    let new = start_backends(&stage.environment, &stage.ledger).await;
    replace_backends(stage, load, new).await;
}

async fn rotate_backends(stage: &mut Stage, load: &RunningLoad) {
    let environment = &mut stage.environment;
    let (next, _) = Authority::new("placeholder", SystemTime::now()).unwrap();
    let old = std::mem::replace(&mut environment.backend_ca, next);
    let (new, _old) = replace_authority(environment, old, "backend-ca");
    environment.backend_ca = new;
    // The bundle of both comes before the first certificate of the new authority.
    register_things(environment, &addresses(&stage.backends), &[]);
    load.wait_for_answers(50).await;
    let new = start_backends(&stage.environment, &stage.ledger).await;
    replace_backends(stage, load, new).await;
    forget_old_authority(&stage.environment, "backend-ca");
    register_things(&stage.environment, &addresses(&stage.backends), &[]);
}

fn addresses(backends: &[Backend]) -> Vec<SocketAddr> {
    backends.iter().map(|backend| backend.address).collect()
}

/// Registers `new` instead of the backends so far, which stop once each request that could be for them is over.
async fn replace_backends(stage: &mut Stage, load: &RunningLoad, new: Vec<Backend>) {
    register_things(&stage.environment, &addresses(&new), &[]);
    eventually("the new backends to be used", async || {
        new.iter().all(|backend| !backend.received().is_empty()).then_some(())
    })
    .await;
    // A request keeps the endpoints of when it began, however long a busy machine delays it. Earlier requests are over
    // with their connections.
    load.renew_connections().await;
    stage.backends = new;
}
