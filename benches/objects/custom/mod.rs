//! Custom resources: operations, watches, memory and start of CRDs, and what schemas cost.

mod capacity;
mod crds;
mod operations;
mod resource;
mod schemas;
mod watches;
mod webhook;

use crate::client::ApiClient;
use crate::fixtures::BenchEnvironment;
use crate::{ApiServerKind, Options, Results, kube_apiserver};

/// Parts that are measured if none is named. The others take many minutes.
const DEFAULT_PARTS: &str = "operations,watches,definitions,schemas";

/// What is measured.
pub(crate) struct CustomOptions {
    parts: Vec<String>,
    /// Numbers of installed CRDs at which memory and times are measured, ascending.
    crds: Vec<u64>,
}

impl CustomOptions {
    /// The options of the command line: `parts` and `definitions` separated by commas.
    pub(crate) fn new(parts: Option<&str>, crds: Option<&str>) -> CustomOptions {
        let crds = crds.unwrap_or("1,100").split(',');
        CustomOptions {
            parts: parts.unwrap_or(DEFAULT_PARTS).split(',').map(str::to_owned).collect(),
            crds: crds.map(|text| text.parse().expect("--definitions takes numbers")).collect(),
        }
    }

    /// Whether a part is measured.
    pub(crate) fn has(&self, part: &str) -> bool {
        self.parts.iter().any(|one| one == part)
    }

    /// The largest number of installed CRDs.
    pub(crate) fn most_crds(&self) -> u64 {
        self.crds.iter().copied().max().unwrap_or_default()
    }
}

pub(crate) use self::crds::install as install_crds;

/// One round of one server: a fresh store for each part.
pub(crate) async fn measure(
    environment: &BenchEnvironment,
    kind: ApiServerKind,
    options: &Options,
    custom: &CustomOptions,
    results: &mut Results,
) {
    if custom.has("schemas") && kind == ApiServerKind::Narthex {
        schemas::measure(results);
    }
    for part in ["operations", "watches", "definitions", "capacity"] {
        if !custom.has(part) {
            continue;
        }
        eprintln!("  {part}");
        let server = match kind {
            ApiServerKind::Narthex => environment.start_embedded_api(false),
            ApiServerKind::KubeApiserver => kube_apiserver::start_control_plane(environment),
        };
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        let client = ApiClient::connect(environment.directory(), server.port, &environment.token).await;
        let measured = BenchedServer { environment, kind, server: &server, client };
        match part {
            "operations" => operations::measure(&measured, options, results).await,
            "watches" => watches::measure(&measured, results).await,
            "definitions" => crds::measure(&measured, &custom.crds, results).await,
            _ => capacity::measure(&measured, results).await,
        }
    }
}

/// A running server, and a connection to it.
struct BenchedServer<'e> {
    environment: &'e BenchEnvironment,
    kind: ApiServerKind,
    server: &'e crate::fixtures::Proxy,
    client: ApiClient,
}

impl BenchedServer<'_> {
    fn cpu(&self) -> f64 {
        crate::cpu(self.server)
    }

    /// Resident memory in KiB once the server has finished what it does in the background.
    async fn settled_memory(&self) -> f64 {
        let mut before = self.cpu();
        for _ in 0..60 {
            tokio::time::sleep(std::time::Duration::from_secs(2)).await;
            let now = self.cpu();
            // Less than a twentieth of the core.
            if now - before < 100.0 {
                break;
            }
            before = now;
        }
        crate::memory(self.server)
    }
}
