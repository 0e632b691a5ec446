//! Cost of locally served documents and delegated requests, beside a request relayed to an APIService.

use std::process::Command;

use crate::fixtures::{BenchEnvironment, Contender, Proxy};
use crate::load::{self, Load};
use crate::{Options, median, show};

/// APIServices of ten resources each: a cluster with many operators has about as many.
const GROUPS: usize = 100;

const AGGREGATED: &str = "Accept: application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const PROTOBUF: &str =
    "Accept: application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const GZIP: &str = "Accept-Encoding: gzip";

struct DocumentRequest {
    name: &'static str,
    path: &'static str,
    headers: &'static [&'static str],
    /// Whether the last answer's ETag is shown.
    sends_if_none_match: bool,
}

const REQUESTS: [DocumentRequest; 8] = [
    document_request("relayed", "/apis/bench.narthex.dev/v1/namespaces/default/small", &[]),
    document_request("delegated", "/api/v1/namespaces/default/small", &[]),
    document_request("discovery", "/apis", &[AGGREGATED]),
    document_request("discovery, gzip", "/apis", &[AGGREGATED, GZIP]),
    document_request("discovery, protobuf", "/apis", &[PROTOBUF, GZIP]),
    DocumentRequest {
        name: "discovery, known",
        path: "/apis",
        headers: &[AGGREGATED, GZIP],
        sends_if_none_match: true,
    },
    document_request("discovery, old form", "/apis", &[GZIP]),
    document_request("OpenAPI v3 index", "/openapi/v3", &[GZIP]),
];

const fn document_request(name: &'static str, path: &'static str, headers: &'static [&'static str]) -> DocumentRequest {
    DocumentRequest { name, path, headers, sends_if_none_match: false }
}

/// Prints a row for each question. Nothing stands beside it: the ratio is to the first row.
pub(crate) fn measure(environment: &BenchEnvironment, options: &Options) {
    environment.write_groups(GROUPS);
    let _backend = environment.start_backend(false);
    let load = Load::Http2 { clients: 8, streams: 4 };
    println!(
        "{GROUPS} APIServices of ten resources each; CPU ms of the proxy per 1,000 answers, median (min-max) of {} rounds \
         of {} s",
        options.rounds, options.seconds
    );
    println!("{:<22} {:>7} {:>9} {:>24} {:>9}", "answer", "status", "bytes", "CPU ms per 1,000", "ratio");
    let proxy = environment.start_proxy(Contender::NarthexDelegates, false);
    wait_for_discovery(environment, &proxy);
    let mut figures: Vec<Vec<f64>> = REQUESTS.iter().map(|_| Vec::new()).collect();
    let mut shown = Vec::new();
    for round in 0..options.rounds {
        for (question, figures) in REQUESTS.iter().zip(&mut figures) {
            let mut headers: Vec<String> = question.headers.iter().map(|header| (*header).to_owned()).collect();
            if question.sends_if_none_match {
                let response = fetch(environment, &proxy, question.path, &headers);
                headers.push(format!("If-None-Match: {}", response.etag.expect("an ETag")));
            }
            if round == 0 {
                shown.push(fetch(environment, &proxy, question.path, &headers));
            }
            let recorded = |seconds| load::run_at(&load, environment, &proxy, question.path, &headers, seconds);
            figures.push(proxy.cost_per_thousand(options.seconds, recorded));
        }
    }
    let relayed = median(&figures[0]);
    for ((question, figures), response) in REQUESTS.iter().zip(&figures).zip(&shown) {
        println!(
            "{:<22} {:>7} {:>9} {:>24} {:>9.2}",
            question.name,
            response.status,
            response.bytes,
            show(figures),
            median(figures) / relayed
        );
    }
}

struct FetchedDocument {
    status: u16,
    /// As transferred.
    bytes: usize,
    etag: Option<String>,
    text: Vec<u8>,
}

fn fetch(environment: &BenchEnvironment, proxy: &Proxy, path: &str, headers: &[String]) -> FetchedDocument {
    let mut command = Command::new("curl");
    command.args(["--silent", "--include", "--http1.1", "--cacert"]).arg(environment.directory().join("ca.crt"));
    command.arg("--header").arg(format!("Authorization: Bearer {}", environment.token));
    for header in headers {
        command.arg("--header").arg(header);
    }
    let output = command.arg(format!("https://127.0.0.1:{}{path}", proxy.port)).output().expect("curl starts").stdout;
    let end = output.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8_lossy(&output[..end]).into_owned();
    let etag = head.lines().find_map(|line| line.strip_prefix("etag: ").or_else(|| line.strip_prefix("ETag: ")));
    FetchedDocument {
        status: head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status"),
        bytes: output.len() - end - 4,
        etag: etag.map(str::to_owned),
        text: output[end + 4..].to_vec(),
    }
}

fn wait_for_discovery(environment: &BenchEnvironment, proxy: &Proxy) {
    for _ in 0..600 {
        let response = fetch(environment, proxy, "/apis", &[AGGREGATED.to_owned()]);
        let resources = String::from_utf8_lossy(&response.text).matches("others6").count();
        if resources >= GROUPS {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    panic!("the groups do not come into discovery:\n{}", proxy.log());
}
