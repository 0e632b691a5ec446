//! `narthex konnectivity-agent`.

use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use http::StatusCode;

use super::api_server::ApiServerKubeconfig;
use super::certificate_expiry::CertificateInventory;
use super::health::{self, HealthRequest, HealthResponse};
use crate::commands::signals::{Shutdown, install_handlers, shut_down_on_signal};
use crate::commands::threads::{join_all, spawn_thread};
use crate::commands::{print_warnings, report_problems};
use crate::config::Diagnostics;
use crate::config::konnectivity::{KonnectivityAgentConfig, LeaseConfig};
use crate::egress::EgressRoutes;
use crate::konnectivity::agent::{AgentFiles, AgentSettings, AgentState, KonnectivityAgent};
use crate::konnectivity::leases::LeaseCounter;
use crate::konnectivity::report::KonnectivityAgentReport;
use crate::listen::{bind, raise_descriptor_limit};
use crate::observe::metrics::KonnectivityAgentMetrics;
use crate::observe::{Metrics, log};
use crate::process::{Drain, Problems, Published, ShutdownPhase};
use crate::tls::CertificateInUse;

const ROLE: &str = "konnectivity-agent";

/// Runs the agent until a signal ends it. Exit status: 0 after a signal, 1 after a failed start.
pub fn run(config: KonnectivityAgentConfig, mistakes: Diagnostics) -> ExitCode {
    match prepare(&config, mistakes) {
        Ok(files) => {
            install_handlers();
            start(config, files).unwrap_or_else(|problems| report_problems(ROLE, &problems))
        }
        Err(status) => status,
    }
}

/// What the agent reads from files.
pub(in crate::commands) struct PreparedFiles {
    agent: (AgentFiles, Published<Vec<CertificateInUse>>),
    leases: Option<ApiServerKubeconfig>,
}

/// Installs the log and reads the files. If there is any error, reports all of them and returns the exit status.
pub(in crate::commands) fn prepare(
    config: &KonnectivityAgentConfig,
    mut mistakes: Diagnostics,
) -> Result<PreparedFiles, ExitCode> {
    print_warnings(&mistakes.warnings);
    mistakes.problems.collect(log::install(&config.log));
    let agent = AgentFiles::open(config.settings.clone());
    let environment = config.environment_proxies.as_ref();
    let leases = config
        .leases
        .as_ref()
        .map(|leases| ApiServerKubeconfig::load(leases.kubeconfig.clone(), environment))
        .transpose();
    let files = match (agent, leases) {
        (Ok(agent), Ok(leases)) => Some(PreparedFiles { agent, leases }),
        (agent, leases) => {
            let problems = agent.err().into_iter().chain(leases.err());
            problems.for_each(|problems| mistakes.add_file_problems(problems));
            None
        }
    };
    let files = files.filter(|_| mistakes.problems.0.is_empty());
    files.ok_or_else(|| report_problems(ROLE, &mistakes.problems))
}

fn start(config: KonnectivityAgentConfig, files: PreparedFiles) -> Result<ExitCode, Problems> {
    raise_descriptor_limit();
    let mut problems = Problems::default();
    let health = problems.collect(bind(config.health_address, "--health-server-port"));
    let admin = problems.collect(bind(config.admin_address, "--admin-server-port"));
    let (Some(health), Some(admin)) = (health, admin) else { return Err(problems) };
    let (health_address, admin_address) = (health::local_address(&health)?, health::local_address(&admin)?);
    let (drainer, drain) = Drain::new();
    let AgentSettings { agent_id, identifiers, .. } = &config.settings;
    let state = AgentState::new(agent_id, identifiers);
    let (by_health, by_page) = (state.clone(), state.clone());
    health::spawn("health", health, Arc::new(move |request| respond(&by_health.metrics, request)))?;
    let health_port = health_address.port();
    let respond_admin = move |request: &HealthRequest<'_>| respond_admin(health_port, request);
    let PreparedFiles { agent: (agent_files, certificates), leases } = files;
    let kubeconfig = leases.as_ref().map(ApiServerKubeconfig::certificates);
    let certificates = CertificateInventory::new(std::iter::once(certificates).chain(kubeconfig));
    let expiry = certificates.clone().watch_expiry(state.metrics.certificates.clone(), drain.clone());
    let report = move || KonnectivityAgentReport { certificates: certificates.reports(), ..by_page.report() };
    health::spawn_admin(admin, report, Arc::new(respond_admin))?;
    tracing::info!(agent_id, identifiers, health = %health_address, admin = %admin_address, "starting");
    let shutdown = Shutdown {
        serving: "Serving",
        ending: "servers prefer other agents, open connections may finish",
        timeout: config.settings.drain_timeout,
    };
    let (files_state, files_drain) = (state.clone(), drain.clone());
    spawn_thread("files", async move || {
        tokio::join!(agent_files.follow(files_state, files_drain), expiry);
    })?;
    let routes = EgressRoutes::from_environment(config.environment_proxies.as_ref())?;
    if let Some(environment) = &config.environment_proxies {
        environment.log_use();
    }
    let agent = spawn_agent(config.settings, leases.zip(config.leases), routes, state, drain)?;
    Ok(shut_down_on_signal(&shutdown, async move {
        drainer.advance(ShutdownPhase::Draining);
        let _ = join_all([agent]).await;
    }))
}

fn spawn_agent(
    settings: AgentSettings,
    leases: Option<(ApiServerKubeconfig, LeaseConfig)>,
    routes: EgressRoutes,
    state: Arc<AgentState>,
    drain: Drain,
) -> Result<std::thread::JoinHandle<()>, Problems> {
    let run = async move || {
        let metrics = state.metrics.clone();
        let mut agent = KonnectivityAgent::new(settings, state).with_route(routes.default_route().clone());
        if let Some((api_server, LeaseConfig { settings, .. })) = leases {
            let counter = Rc::new(LeaseCounter::new(metrics));
            agent = agent.with_leases(counter.clone());
            let client = api_server.client(Metrics::new());
            tokio::task::spawn_local(async move { counter.follow(client, &settings).await });
        }
        agent.run(drain).await;
    };
    Ok(spawn_thread("agent", run)?)
}

/// The health port of the reference.
fn respond(metrics: &KonnectivityAgentMetrics, request: &HealthRequest<'_>) -> HealthResponse {
    let is_connected = metrics.server_connections.load(Relaxed) > 0;
    match request.path {
        "/healthz" => HealthResponse::text(StatusCode::OK, "ok"),
        "/ready" | "/readyz" => {
            let is_verbose =
                request.query.is_some_and(|query| query.split('&').any(|pair| pair.starts_with("verbose")));
            match is_connected {
                true if is_verbose => {
                    HealthResponse::text(StatusCode::OK, "[+]ping ok\n[+]server-connected ok\ncheck passed\n")
                }
                true => HealthResponse::text(StatusCode::OK, "ok"),
                false => HealthResponse::text(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "[+]ping ok\n[-]server-connected failed: no servers connected\n",
                ),
            }
        }
        "/metrics" => HealthResponse::metrics(request.format, metrics.render(request.format)),
        _ => HealthResponse::not_found(),
    }
}

/// The admin port, which also has a status page. That of the reference only redirects.
fn respond_admin(health_port: u16, request: &HealthRequest<'_>) -> HealthResponse {
    match request.path {
        "/metrics" => {
            let host = request.host.unwrap_or("localhost");
            let location = format!("http://{host}:{health_port}/metrics");
            HealthResponse { location: Some(location), ..HealthResponse::text(StatusCode::MOVED_PERMANENTLY, "") }
        }
        _ => HealthResponse::not_found(),
    }
}
