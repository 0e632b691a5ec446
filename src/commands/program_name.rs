//! Command line by program name: `kube-rbac-proxy` runs the sidecar.

use std::ffi::OsString;
use std::path::Path;

use clap::{Args, FromArgMatches};

use super::cli::{self, Command, ENVIRONMENT_HELP};
use crate::config::sidecar::ProgramName;
use crate::config::{Arguments, SidecarCommand};

const KUBE_RBAC_PROXY: &str = "kube-rbac-proxy";

/// Parses a command line; the first word is the program's name. The name `kube-rbac-proxy` selects the sidecar.
///
/// # Errors
/// clap's error, help or version.
pub(super) fn parse(mut line: Vec<OsString>) -> Result<(ProgramName, Command), clap::Error> {
    let program = line.first().map(Path::new).and_then(Path::file_name);
    if program.is_some_and(|name| name == KUBE_RBAC_PROXY) {
        normalize_flags(&mut line, 1);
        let matches = command().try_get_matches_from(line)?;
        return Ok((ProgramName::KubeRbacProxy, Command::Sidecar(Arguments::from_arg_matches(&matches)?)));
    }
    if line.len() > 2 && line[1] == "check" && line[2] == KUBE_RBAC_PROXY {
        normalize_flags(&mut line, 3);
    }
    Ok((ProgramName::Narthex, cli::parse(line)?))
}

/// The clap definition of the program under the name `kube-rbac-proxy`.
fn command() -> clap::Command {
    let command = clap::Command::new(KUBE_RBAC_PROXY)
        // `--version` prints narthex's version.
        .display_name("narthex")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Narthex in place of kube-rbac-proxy: authenticate and authorize requests in front of one server")
        .max_term_width(110)
        .args_override_self(true)
        .after_help(ENVIRONMENT_HELP);
    Arguments::<SidecarCommand>::augment_args(command)
}

/// Rewrites kube-rbac-proxy's flag spellings from word `first` on: `_` in a flag name becomes `-`, and `--version` may
/// have a value (k8s.io/component-base, `cli/flag` and `version/verflag`).
fn normalize_flags(line: &mut Vec<OsString>, first: usize) {
    let end = line.iter().position(|word| word == "--").unwrap_or(line.len()).max(first);
    let mut spelled = Vec::new();
    for word in line.drain(first..end) {
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
    line.splice(first..first, spelled);
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
        command().debug_assert();
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
