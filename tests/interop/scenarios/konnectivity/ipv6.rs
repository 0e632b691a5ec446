//! A server that agents know by an IPv6 address. grpc-go sends it without brackets as `:authority`.

use std::time::Duration;

use tokio::time::timeout;

use super::pairs::{OWN, OWN_AGENT, OWN_SERVER, echo_back, open};
use super::run_local;
use super::target_server::{TargetBehavior, TargetServer};
use crate::environment::{Konnectivity, KonnectivityMode, KonnectivityPair, TestEnvironment, Tokens};

const TIMEOUT: Duration = Duration::from_secs(60);

pub(super) fn agents_connect(environment: &TestEnvironment) {
    let pairs = [
        ("own", OWN),
        ("own-server", OWN_SERVER),
        ("own-agent", OWN_AGENT),
        ("reference", KonnectivityPair::REFERENCE),
    ];
    for (name, pair) in pairs {
        // With a certificate or with a token: the authority differs.
        for has_token in [false, true] {
            let directory = environment.scratch(&format!("konnectivity-ipv6-{name}-{has_token}"));
            let tokens = has_token.then(|| Tokens::make(&environment.cluster, &directory));
            let (mode, flags) = (KonnectivityMode::ConnectUnix, ["--agent-bind-address=::1"]);
            let mut konnectivity = Konnectivity::start_with_flags(&directory, mode, pair, tokens, &flags);
            konnectivity.agent_flags = vec!["--proxy-server-host=::1".to_owned()];
            konnectivity.start_agent("agent-a", None);
            let target = TargetServer::start(TargetBehavior::Echo);
            run_local(async {
                let mut tunnel = open(&konnectivity, target.port).await;
                timeout(TIMEOUT, echo_back(&mut tunnel, b"ping")).await.expect("an echo");
            });
        }
    }
}
