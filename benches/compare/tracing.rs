//! Cost of a request with tracing off, on without a sampled request, and on with every request sampled; and a collector.

use std::convert::Infallible;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::combinators::WithTrailers;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::fixtures::BenchEnvironment;
use crate::load;
use crate::{Options, SCENARIOS, median, show};

/// What is compared: the name, and how many requests of a million are sampled.
const JOBS: [(&str, Option<u32>); 4] =
    [("off", None), ("0 %", Some(0)), ("1 %", Some(10_000)), ("100 %", Some(1_000_000))];

/// Figures of one job in all rounds.
#[derive(Default)]
struct JobFigures {
    cpu_micros: Vec<f64>,
    requests_per_second: Vec<f64>,
    exported_spans: f64,
    dropped_spans: f64,
    /// Those of `dropped_spans` that found the queue full.
    refused_spans: f64,
    requests: f64,
}

/// Prints a row for each scenario with small bodies and each job.
pub(crate) fn compare(environment: &BenchEnvironment, options: &Options) {
    let (_collector, endpoint) = environment.start_collector();
    for (_, rate) in JOBS {
        let Some(rate) = rate else { continue };
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: {endpoint}\n\
             samplingRatePerMillion: {rate}\n"
        );
        environment.write(&format!("tracing-{rate}.yaml"), &text);
    }
    let file = |name: &str| environment.directory().join(name).display().to_string();
    println!(
        "CPU µs of the gateway per request, and requests per second: median (min-max) of {} rounds of {} s",
        options.rounds, options.seconds
    );
    println!(
        "{:<12} {:<8} {:>22} {:>8} {:>30} {:>14} {:>14} {:>14}",
        "scenario",
        "sampled",
        "CPU µs per request",
        "ratio",
        "requests per second",
        "spans exported",
        "spans dropped",
        "by full queue"
    );
    let scenarios = SCENARIOS.iter().filter(|scenario| scenario.path == "small" && options.wants(scenario.name));
    for scenario in scenarios {
        let _backend = environment.start_backend(scenario.backend_http1);
        let mut figures: [JobFigures; JOBS.len()] = Default::default();
        for round in 0..options.rounds {
            // Each round begins with another job, so that none always runs on a warmer or quieter machine.
            for turn in 0..JOBS.len() {
                let at = (round + turn) % JOBS.len();
                let (figures, rate) = (&mut figures[at], JOBS[at].1);
                let mut flags = vec![
                    format!("--token-auth-file={}", file("tokens.csv")),
                    format!("--registry-dir={}", file("registry")),
                ];
                flags.extend(
                    rate.map(|rate| format!("--tracing-config-file={}", file(&format!("tracing-{rate}.yaml")))),
                );
                let gateway = environment.start_gateway(&flags);
                gateway.proxy.wait_for_first_response(environment);
                let load = |seconds| load::run(&scenario.load, environment, &gateway.proxy, scenario.path, seconds);
                load(1);
                let spans = || {
                    ["exported_total", "dropped_total", "dropped_total{reason=\"queue_full\"}"]
                        .map(|end| gateway.metric(&format!("narthex_trace_spans_{end}")))
                };
                let spans_before = spans();
                let before = gateway.proxy.cpu_milliseconds();
                let responses = load(options.seconds) as f64;
                let spent = gateway.proxy.cpu_milliseconds() - before;
                figures.cpu_micros.push(spent * 1000.0 / responses);
                figures.requests_per_second.push(responses / f64::from(options.seconds));
                figures.requests += responses;
                let [exported, dropped, refused] = spans();
                figures.exported_spans += exported - spans_before[0];
                figures.dropped_spans += dropped - spans_before[1];
                figures.refused_spans += refused - spans_before[2];
            }
        }
        let off = median(&figures[0].cpu_micros);
        for ((name, _), figures) in JOBS.iter().zip(&figures) {
            println!(
                "{:<12} {name:<8} {:>22} {:>8.3} {:>30} {:>14} {:>14} {:>14}",
                scenario.name,
                show(&figures.cpu_micros),
                median(&figures.cpu_micros) / off,
                show(&figures.requests_per_second),
                figures.exported_spans,
                figures.dropped_spans,
                figures.refused_spans
            );
        }
        let requests: Vec<String> =
            JOBS.iter().zip(&figures).map(|((name, _), figures)| format!("{name}: {}", figures.requests)).collect();
        println!("{:<12} requests measured, all rounds: {}", scenario.name, requests.join(", "));
    }
}

/// `collector PORT`: accepts every batch of spans, and decodes none.
pub(crate) fn main(arguments: &[String]) {
    let [port] = arguments else { panic!("collector PORT") };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await.expect("the port is free");
        loop {
            let Ok((socket, _)) = listener.accept().await else { continue };
            tokio::spawn(async move {
                let service = hyper::service::service_fn(accept);
                let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(socket), service).await;
            });
        }
    });
}

type Trailers = std::future::Ready<Option<Result<HeaderMap, Infallible>>>;

async fn accept(request: Request<Incoming>) -> Result<Response<WithTrailers<Full<Bytes>, Trailers>>, hyper::Error> {
    request.into_body().collect().await?;
    let trailers =
        HeaderMap::from_iter([(http::HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"))]);
    // An empty message: all spans are accepted.
    let body = Full::new(Bytes::from_static(&[0; 5])).with_trailers(std::future::ready(Some(Ok(trailers))));
    let mut response = Response::new(body);
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    Ok(response)
}
