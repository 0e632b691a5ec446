//! Proxies of the environment, for commands that obey them without being told.

use super::parser::FlagParser;
use crate::egress::ProxyEnvironment;

/// Reads `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`. An invalid proxy is an error: without it, connections that must go
/// through a proxy would bypass it.
pub(in crate::config) fn environment_proxies(parser: &mut FlagParser<'_>) -> Option<ProxyEnvironment> {
    let read = ProxyEnvironment::read(&|name| parser.environment(name));
    let (environment, warnings) = parser.collect_environment(read)?;
    parser.add_environment_warnings(warnings);
    Some(environment).filter(|environment| !environment.is_empty())
}
