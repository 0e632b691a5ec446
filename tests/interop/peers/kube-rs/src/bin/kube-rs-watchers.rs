//! Prints the events of two kube-rs watchers of the ConfigMaps of NAMESPACE, one for each strategy of the initial list,
//! until both have seen the ConfigMap `end`: the strategy, the event, the name and the key `a`.

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};

async fn print_events(strategy: &str, maps: Api<ConfigMap>, config: watcher::Config) {
    let mut events = watcher(maps, config).default_backoff().boxed();
    while let Some(event) = events.next().await {
        let (event, map) = match event {
            Ok(watcher::Event::Init) => ("Init", None),
            Ok(watcher::Event::InitApply(map)) => ("InitApply", Some(map)),
            Ok(watcher::Event::InitDone) => ("InitDone", None),
            Ok(watcher::Event::Apply(map)) => ("Apply", Some(map)),
            Ok(watcher::Event::Delete(map)) => ("Delete", Some(map)),
            Err(error) => {
                eprintln!("{strategy}: {error}");
                continue;
            }
        };
        let name = map.as_ref().map(ResourceExt::name_any).unwrap_or_default();
        let value = map.and_then(|map| map.data?.remove("a")).unwrap_or_default();
        println!("{strategy} {event} {name} {value}");
        if name == "end" {
            break;
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let maps: Api<ConfigMap> = Api::namespaced(Client::try_default().await?, &std::env::var("NAMESPACE")?);
    let (listing, streaming) = (watcher::Config::default(), watcher::Config::default().streaming_lists());
    let listing = print_events("ListWatch", maps.clone(), listing);
    tokio::join!(listing, print_events("StreamingList", maps, streaming));
    Ok(())
}
