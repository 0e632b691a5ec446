//! Scenarios and tests. A [`Scenario`] runs at each target with each kubectl and the transcripts are compared; a
//! [`TestFn`] makes its own assertions.

mod audit;
mod backend_failure;
mod checked_in_data;
mod cluster;
mod cluster_registry;
mod control_planes;
mod conversion_webhook;
mod delegated_auth;
mod discovery;
mod embedded_api;
mod front_proxy_certificates;
mod h2spec;
mod helm_release;
mod identity;
mod impersonation;
mod install;
mod installed_gateway;
mod isolation;
mod konnectivity;
mod kube_rbac_proxy;
mod kube_rs_controller;
mod leader_election;
mod many_watches;
mod metrics_server;
mod openapi;
mod packages;
mod pages;
mod pictures;
mod proxy;
mod proxy_browser;
mod proxy_kubeconfig;
mod quickstart;
mod read_objects;
mod schedulers;
mod serve_delegation;
mod sidecar;
mod socks5;
mod standalone;
mod status_page;
mod store_contract;
mod tracing;
mod tutorial;
mod watch_objects;
mod write_objects;

use crate::environment::{CommandResult, Identity, Kubectl, Session, Target, TestEnvironment};

/// Minutes of the test that takes longer than others.
pub(crate) const LONGER_VARIABLE: &str = konnectivity::SOAK_MINUTES_VARIABLE;

/// A kubectl session that runs once per target; the transcripts must be equal.
pub(crate) type Scenario = fn(&mut Session<'_>);

/// A test with its own assertions.
pub(crate) type TestFn = fn(&TestEnvironment);

/// A test that runs once per kubectl version.
pub(crate) type KubectlTestFn = fn(&TestEnvironment, &Kubectl);

/// Scenarios that run at the extension server and through narthex.
pub(crate) fn extension_scenarios() -> Vec<(&'static str, Scenario)> {
    [
        read_objects::SCENARIOS,
        write_objects::SCENARIOS,
        watch_objects::SCENARIOS,
        discovery::SCENARIOS,
        identity::SCENARIOS,
    ]
    .concat()
}

/// Scenarios that run at kube-apiserver and through narthex.
pub(crate) fn cluster_scenarios() -> Vec<(&'static str, Scenario)> {
    [cluster::SCENARIOS, conversion_webhook::SCENARIOS].concat()
}

/// Scenarios that run only through narthex: the extension server has no counterpart.
pub(crate) fn gateway_scenarios() -> Vec<(&'static str, Scenario)> {
    discovery::GATEWAY_SCENARIOS.to_vec()
}

/// Tests that compare all targets.
pub(crate) fn tests_of_all_targets() -> Vec<(&'static str, TestFn)> {
    [identity::TESTS, write_objects::TESTS, many_watches::TESTS, kube_rbac_proxy::TESTS].concat()
}

/// Tests of narthex with each kubectl.
pub(crate) fn kubectl_tests() -> Vec<(&'static str, KubectlTestFn)> {
    [
        quickstart::KUBECTL_TESTS,
        metrics_server::KUBECTL_TESTS,
        backend_failure::KUBECTL_TESTS,
        delegated_auth::KUBECTL_TESTS,
        impersonation::KUBECTL_TESTS,
        standalone::KUBECTL_TESTS,
        serve_delegation::KUBECTL_TESTS,
        sidecar::KUBECTL_TESTS,
        tutorial::KUBECTL_TESTS,
        socks5::KUBECTL_TESTS,
        proxy::KUBECTL_TESTS,
        proxy_kubeconfig::KUBECTL_TESTS,
        proxy_browser::KUBECTL_TESTS,
        konnectivity::KUBECTL_TESTS,
        embedded_api::KUBECTL_TESTS,
    ]
    .concat()
}

/// Tests of narthex.
pub(crate) fn gateway_tests() -> Vec<(&'static str, TestFn)> {
    let pictures = pictures::gateway_tests();
    [
        identity::GATEWAY_TESTS,
        backend_failure::GATEWAY_TESTS,
        isolation::GATEWAY_TESTS,
        cluster_registry::GATEWAY_TESTS,
        control_planes::GATEWAY_TESTS,
        front_proxy_certificates::GATEWAY_TESTS,
        leader_election::GATEWAY_TESTS,
        audit::GATEWAY_TESTS,
        tracing::GATEWAY_TESTS,
        schedulers::GATEWAY_TESTS,
        cluster::GATEWAY_TESTS,
        kube_rs_controller::GATEWAY_TESTS,
        openapi::GATEWAY_TESTS,
        konnectivity::CLIENT_TESTS,
        konnectivity::PAIR_TESTS,
        konnectivity::DEFECT_TESTS,
        konnectivity::KUBE_APISERVER_TESTS,
        socks5::GATEWAY_TESTS,
        konnectivity::GATEWAY_TESTS,
        pages::GATEWAY_TESTS,
        install::GATEWAY_TESTS,
        installed_gateway::GATEWAY_TESTS,
        helm_release::GATEWAY_TESTS,
        packages::GATEWAY_TESTS,
        sidecar::GATEWAY_TESTS,
        embedded_api::GATEWAY_TESTS,
        embedded_api::operators::GATEWAY_TESTS,
        store_contract::TESTS,
        checked_in_data::TESTS,
        status_page::GATEWAY_TESTS,
        h2spec::GATEWAY_TESTS,
        pictures.as_slice(),
    ]
    .concat()
}

/// Runs `scenario` as jane through narthex only.
pub(crate) fn run_at_gateway(environment: &TestEnvironment, kubectl: &Kubectl, scenario: Scenario) {
    scenario(&mut Session::open(environment, kubectl, Target::Gateway, environment.cluster.jane()));
}

/// Runs `scenario` as jane at the extension server and through narthex and compares the transcripts.
pub(crate) fn compare_extension_server(environment: &TestEnvironment, kubectl: &Kubectl, scenario: Scenario) {
    compare_targets(environment.targets(), environment.cluster.jane(), environment, kubectl, scenario);
}

/// Runs `scenario` as cluster admin at kube-apiserver and through narthex and compares the transcripts.
pub(crate) fn compare_cluster(environment: &TestEnvironment, kubectl: &Kubectl, scenario: Scenario) {
    compare_targets(environment.cluster_targets(), environment.cluster.admin(), environment, kubectl, scenario);
}

fn compare_targets(
    targets: [Target; 2],
    identity: &Identity,
    environment: &TestEnvironment,
    kubectl: &Kubectl,
    scenario: Scenario,
) {
    let mut first: Option<Vec<CommandResult>> = None;
    for target in targets {
        let mut session = Session::open(environment, kubectl, target, identity);
        scenario(&mut session);
        let transcript = session.into_transcript();
        match &first {
            None => first = Some(transcript),
            Some(reference) => compare(reference, &transcript),
        }
    }
}

fn compare(direct: &[CommandResult], through: &[CommandResult]) {
    for (direct, through) in direct.iter().zip(through) {
        assert_eq!(direct, through, "left: direct; right: through narthex");
    }
    assert_eq!(direct.len(), through.len(), "the transcripts differ in length");
}
