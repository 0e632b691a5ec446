//! Command line by program name: `kube-rbac-proxy` runs the sidecar, `proxy-server` and `proxy-agent` the Konnectivity
//! server and agent.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::{Args, FromArgMatches};

use super::cli::{self, Command, ENVIRONMENT_HELP};
use crate::config::konnectivity::{KonnectivityAgentCommand, KonnectivityServerCommand};
use crate::config::sidecar::ProgramName;
use crate::config::{Arguments, SidecarCommand};

const KUBE_RBAC_PROXY: &str = "kube-rbac-proxy";
const PROXY_SERVER: &str = "proxy-server";
const PROXY_AGENT: &str = "proxy-agent";

/// Parses a command line; the first word is the program's name, which may select a command.
///
/// # Errors
/// clap's error, help or version.
pub(super) fn parse(mut command_line: Vec<OsString>) -> Result<(ProgramName, Command), clap::Error> {
    let program =
        command_line.first().map(Path::new).and_then(Path::file_name).and_then(OsStr::to_str).map(str::to_owned);
    match program.as_deref() {
        Some(KUBE_RBAC_PROXY) => {
            normalize_flags(&mut command_line, 1);
            let arguments = parse_as::<Arguments<SidecarCommand>>(sidecar_program(), command_line)?;
            return Ok((ProgramName::KubeRbacProxy, Command::Sidecar(arguments)));
        }
        Some(PROXY_SERVER) => {
            normalize_flags(&mut command_line, 1);
            let arguments = parse_as::<Arguments<KonnectivityServerCommand>>(server_program(), command_line)?;
            return Ok((ProgramName::Narthex, Command::KonnectivityServer(arguments)));
        }
        Some(PROXY_AGENT) => {
            normalize_flags(&mut command_line, 1);
            let arguments = parse_as::<Arguments<KonnectivityAgentCommand>>(agent_program(), command_line)?;
            return Ok((ProgramName::Narthex, Command::KonnectivityAgent(arguments)));
        }
        _ => {}
    }
    if command_line.len() > 2 && command_line[1] == "check" && command_line[2] == KUBE_RBAC_PROXY {
        normalize_flags(&mut command_line, 3);
    }
    Ok((ProgramName::Narthex, cli::parse(command_line)?))
}

fn parse_as<A: FromArgMatches>(program: clap::Command, arguments: Vec<OsString>) -> Result<A, clap::Error> {
    A::from_arg_matches(&program.try_get_matches_from(arguments)?)
}

/// The clap definition of a program in whose place narthex runs.
fn program<A: Args>(name: &'static str, about: &'static str) -> clap::Command {
    let command = clap::Command::new(name)
        // `--version` prints narthex's version.
        .display_name("narthex")
        .version(env!("CARGO_PKG_VERSION"))
        .about(about)
        .max_term_width(110)
        .args_override_self(true)
        .after_help(ENVIRONMENT_HELP);
    A::augment_args(command)
}

fn sidecar_program() -> clap::Command {
    let about = "Narthex in place of kube-rbac-proxy: authenticate and authorize requests in front of one server";
    program::<Arguments<SidecarCommand>>(KUBE_RBAC_PROXY, about)
}

fn server_program() -> clap::Command {
    let about = "Narthex in place of the Konnectivity server: tunnels into a network that only its agents can leave";
    program::<Arguments<KonnectivityServerCommand>>(PROXY_SERVER, about)
}

fn agent_program() -> clap::Command {
    let about = "Narthex in place of the Konnectivity agent: connect to targets for Konnectivity servers";
    program::<Arguments<KonnectivityAgentCommand>>(PROXY_AGENT, about)
}

/// Rewrites the flag spellings of Kubernetes programs from word `first` on: `_` in a flag name becomes `-`, and `--version` may
/// have a value (k8s.io/component-base, `cli/flag` and `version/verflag`).
fn normalize_flags(arguments: &mut Vec<OsString>, first: usize) {
    let end = arguments.iter().position(|word| word == "--").unwrap_or(arguments.len()).max(first);
    let mut spelled = Vec::new();
    for word in arguments.drain(first..end) {
        let Some(text) = word.to_str().filter(|text| text.starts_with("--")) else {
            spelled.push(word);
            continue;
        };
        let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        let name = name.replace('_', "-");
        match value {
            Some("true" | "True" | "TRUE" | "t" | "T" | "1" | "raw") if name == "--version" => {
                spelled.push(name.into());
            }
            Some("false" | "False" | "FALSE" | "f" | "F" | "0") if name == "--version" => {}
            Some(value) => spelled.push(format!("{name}={value}").into()),
            None => spelled.push(name.into()),
        }
    }
    arguments.splice(first..first, spelled);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &[&str]) -> Vec<OsString> {
        line.iter().map(OsString::from).collect()
    }

    fn clap_error(line: &[&str]) -> (i32, String) {
        let error = parse(words(line)).expect_err("no command");
        (error.exit_code(), error.to_string())
    }

    #[test]
    fn kube_rbac_proxy_name_selects_sidecar() {
        sidecar_program().debug_assert();
        for (line, expected) in [
            (&["/usr/bin/kube-rbac-proxy", "--upstream=x"][..], ProgramName::KubeRbacProxy),
            (&["kube-rbac-proxy"], ProgramName::KubeRbacProxy),
            (&["narthex", "sidecar"], ProgramName::Narthex),
            (&["kube-rbac-proxy2", "sidecar"], ProgramName::Narthex),
        ] {
            let (name, command) = parse(words(line)).unwrap();
            assert_eq!(name, expected, "{line:?}");
            assert!(matches!(command, Command::Sidecar(_)), "{line:?}");
        }
    }

    #[test]
    fn konnectivity_names_select_server_and_agent() {
        server_program().debug_assert();
        agent_program().debug_assert();
        let server = ["/proxy-server", "--logtostderr=true", "--uds-name=/s", "--log_file_max_size=3", "--v=2"];
        assert!(matches!(parse(words(&server)).unwrap().1, Command::KonnectivityServer(_)));
        let agent = ["/proxy-agent", "--logtostderr=true", "--ca-cert=/c", "--skip_headers"];
        assert!(matches!(parse(words(&agent)).unwrap().1, Command::KonnectivityAgent(_)));
        assert_eq!(clap_error(&["proxy-agent", "--uds-name=/s"]).0, 2);
        assert!(clap_error(&["proxy-server", "--help"]).1.contains("Usage: proxy-server [OPTIONS]"));
    }

    #[test]
    fn kube_rbac_proxy_help_and_version() {
        let (status, help) = clap_error(&["kube-rbac-proxy", "--help"]);
        assert_eq!(status, 0);
        assert!(help.contains("Usage: kube-rbac-proxy [OPTIONS]") && !help.contains(" sidecar [OPTIONS]"), "{help}");
        let version = (0, format!("narthex {}\n", env!("CARGO_PKG_VERSION")));
        for line in [&["--version"][..], &["--version=true"], &["--v=2", "--version=raw"], &["-V"]] {
            assert_eq!(clap_error(&[&["kube-rbac-proxy"], line].concat()), version, "{line:?}");
        }
        assert!(parse(words(&["kube-rbac-proxy", "--version=false"])).is_ok());
        assert_eq!(clap_error(&["kube-rbac-proxy", "--version=v1"]).0, 2);
        // It takes no commands.
        assert_eq!(clap_error(&["kube-rbac-proxy", "sidecar"]).0, 2);
    }

    #[test]
    fn kube_rbac_proxy_flag_underscore_is_dash() {
        let mut line = words(&["kube-rbac-proxy", "--log_dir=/a_b", "--add_dir_header", "a_b", "-x_y", "--", "--c_d"]);
        normalize_flags(&mut line, 1);
        assert_eq!(line[1..], words(&["--log-dir=/a_b", "--add-dir-header", "a_b", "-x_y", "--", "--c_d"])[..]);
        for line in [&["kube-rbac-proxy"][..], &["narthex", "check", "kube-rbac-proxy"]] {
            let flags = ["--vmodule=a=1,b=2", "--skip_log_headers", "--oidc_clientID=x", "--log_file_max_size=3"];
            assert!(parse(words(&[line, &flags].concat())).is_ok(), "{line:?}");
        }
        assert_eq!(clap_error(&["narthex", "sidecar", "--log_dir=/a"]).0, 2, "narthex flags have no underscores");
    }
}
