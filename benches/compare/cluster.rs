//! Cost of a request with the registry of a kube-apiserver and delegation, beside a registry directory; and a fake
//! kube-apiserver.

use std::convert::Infallible;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use serde_json::{Value, json};

use crate::fixtures::{self, BenchEnvironment, Contender};
use crate::load;
use crate::{Options, SCENARIOS, median, server, show};

/// Prints a row for each scenario.
pub(crate) fn compare(environment: &BenchEnvironment, options: &Options) {
    println!(
        "CPU ms of the proxy per 1,000 answers, median (min-max) of {} rounds of {} s",
        options.rounds, options.seconds
    );
    println!("{:<12} {:>24} {:>28} {:>8}", "scenario", "registry directory", "cluster and delegate", "ratio");
    let _cluster = environment.start_cluster();
    for scenario in SCENARIOS.iter().filter(|scenario| options.wants(scenario.name)) {
        let _backend = environment.start_backend(scenario.backend_http1);
        let contenders = [Contender::Narthex, Contender::NarthexOfCluster];
        let mut figures = [const { Vec::new() }; 2];
        for _ in 0..options.rounds {
            for (contender, figures) in contenders.iter().zip(&mut figures) {
                let proxy = environment.start_proxy(*contender, scenario.backend_http1);
                proxy.wait_for_first_response(environment);
                let load = |seconds| load::run(&scenario.load, environment, &proxy, scenario.path, seconds);
                figures.push(proxy.cost_per_thousand(options.seconds, load));
            }
        }
        let medians = figures.each_ref().map(|figures| median(figures));
        println!(
            "{:<12} {:>24} {:>28} {:>8.2}",
            scenario.name,
            show(&figures[0]),
            show(&figures[1]),
            medians[1] / medians[0]
        );
    }
}

/// `cluster DIRECTORY PORT`: lists what stands in the registry directory, and has watches wait for what never comes.
pub(crate) fn main(arguments: &[String]) {
    let [directory, port] = arguments else { panic!("cluster DIRECTORY PORT") };
    let directory = Path::new(directory);
    let mut objects = Vec::new();
    for file in std::fs::read_dir(directory.join("registry")).expect("a registry") {
        let path = file.expect("a file").path();
        let text = std::fs::read_to_string(&path).expect("a manifest");
        let (documents, problems) = narthex::process::parse_documents("registry", &text, false);
        assert!(problems.0.is_empty(), "{problems}");
        objects.extend(documents.into_iter().map(|document| document.value));
    }
    let objects: Arc<[Value]> = objects.into();
    let tls = Some(fixtures::reviewer_config(directory));
    server::serve(port, tls, move |request| std::future::ready(respond(&request, &objects)));
}

fn respond(request: &Request<Incoming>, objects: &[Value]) -> Response<ApiServerBody> {
    let path = request.uri().path();
    let kind = match path.rsplit('/').next() {
        Some("apiservices") => "APIService",
        Some("services") => "Service",
        Some("endpointslices") => "EndpointSlice",
        // Conditions are not taken.
        _ => {
            let mut response = Response::new(ApiServerBody(Some(Bytes::from_static(b"{}"))));
            *response.status_mut() = StatusCode::NOT_FOUND;
            return response;
        }
    };
    let watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
    let namespace = path.split_once("/namespaces/").and_then(|(_, rest)| rest.split('/').next());
    let wanted = |object: &&Value| {
        object["kind"] == kind && namespace.is_none_or(|namespace| object["metadata"]["namespace"] == namespace)
    };
    let items: Vec<&Value> = objects.iter().filter(wanted).collect();
    let list = json!({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items});
    let mut response = Response::new(ApiServerBody((!watch).then(|| list.to_string().into())));
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/json"));
    response
}

/// A list, or the silence of a watch.
struct ApiServerBody(Option<Bytes>);

impl Body for ApiServerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.0.take() {
            Some(bytes) if bytes.is_empty() => Poll::Ready(None),
            Some(bytes) => {
                self.0 = Some(Bytes::new());
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            None => Poll::Pending,
        }
    }
}
