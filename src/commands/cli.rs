//! The command line: the commands and their arguments.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use super::envtest_assets::EnvtestTask;
use super::help::HelpCommand;
use super::kubeconfig::KubeconfigTask;
use super::pki::PkiCommand;
use super::status::StatusCommand;
use super::store::StoreTask;
use crate::config::konnectivity::{KonnectivityAgentCommand, KonnectivityServerCommand};
use crate::config::{
    Arguments, GatewayCommand, LogOnly, ProxyCommand, QuickstartCommand, SidecarCommand, Socks5Command,
};

/// Aggregation-layer proxy and front-proxy gateway for Kubernetes-style APIs
#[derive(Debug, Parser)]
#[command(name = "narthex", version, about, max_term_width = 110)]
// The last value of a repeated flag wins, as with kubectl.
#[command(args_override_self = true)]
#[command(after_help = "Start here: narthex quickstart", disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Try it: run the gateway with sample custom resources and a kubeconfig on this machine
    #[command(after_help = ENVIRONMENT_HELP)]
    Quickstart(Arguments<QuickstartCommand>),
    /// Run the gateway in front of extension API servers
    #[command(after_help = ENVIRONMENT_HELP)]
    Gateway(Arguments<GatewayCommand>),
    /// Run in front of one server: authenticate, authorize, and add identity headers
    #[command(after_help = ENVIRONMENT_HELP)]
    Sidecar(Arguments<SidecarCommand>),
    /// Run a local proxy to the API server of a kubeconfig, like kubectl proxy
    #[command(after_help = ENVIRONMENT_HELP)]
    Proxy(Arguments<ProxyCommand>),
    /// Run a SOCKS5 proxy with connections through an egress selection
    #[command(after_help = SOCKS5_ENVIRONMENT_HELP)]
    Socks5(Arguments<Socks5Command>),
    /// Run a Konnectivity server: tunnels into a network that only its agents can leave
    #[command(after_help = ENVIRONMENT_HELP)]
    KonnectivityServer(Arguments<KonnectivityServerCommand>),
    /// Run a Konnectivity agent: connect to targets for Konnectivity servers
    #[command(after_help = ENVIRONMENT_HELP)]
    KonnectivityAgent(Arguments<KonnectivityAgentCommand>),
    /// Create certificate authorities and certificates, and describe certificate files
    Pki {
        /// What to do
        #[command(subcommand)]
        command: PkiCommand,
        /// Log settings
        #[command(flatten)]
        log: Arguments<LogOnly>,
    },
    /// Check flags and files of a command, report all errors at once, and start nothing
    #[command(subcommand)]
    Check(CheckCommand),
    /// Show the state of a running process: APIServices, endpoints, certificates
    Status(StatusCommand),
    /// Back up or verify the store of the embedded API server
    Store {
        /// What to do
        #[command(subcommand)]
        task: StoreTask,
    },
    /// Make kubeconfigs for users of the embedded API server
    Kubeconfig {
        /// What to do
        #[command(subcommand)]
        task: KubeconfigTask,
    },
    /// Make the programs that envtest starts, etcd and kube-apiserver, for tests of operators
    Envtest {
        /// What to do
        #[command(subcommand)]
        task: EnvtestTask,
    },
    /// Print the completion script of a shell
    Completion {
        /// The shell
        shell: CompletionShell,
    },
    /// Print the manual page of a command
    Man(ManCommand),
    /// Print the help of a command, or a page of the documents
    Help(HelpCommand),
}

/// The commands that read their environment themselves, and the one whose output would have what is meant for them, such
/// as the token of `narthex proxy`.
const WITHOUT_VARIABLES: [&str; 9] = [
    "quickstart",
    "gateway",
    "sidecar",
    "proxy",
    "socks5",
    "konnectivity-server",
    "konnectivity-agent",
    "check",
    "kubeconfig",
];

/// The clap definition of the whole command line.
pub fn command() -> clap::Command {
    // So that an error names the variable, not the flag.
    enable_environment(Cli::command(), &WITHOUT_VARIABLES)
        .mut_subcommand("pki", |pki| pki.mut_args(|argument| argument.global(true)))
}

/// Parses a command line; the first word is the program's name.
pub fn parse(arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Command, clap::Error> {
    command().try_get_matches_from(arguments).and_then(|matches| Cli::from_arg_matches(&matches)).map(|cli| cli.command)
}

/// Adds the environment variable `NARTHEX_<FLAG>` to every flag, except for the commands in `except`.
fn enable_environment(command: clap::Command, except: &[&str]) -> clap::Command {
    let command = command.mut_args(|argument| match argument.get_long() {
        None => argument,
        Some(_) if argument.get_help_heading() == Some("Log") => argument,
        Some(name) => {
            let variable = format!("NARTHEX_{}", name.replace('-', "_").to_ascii_uppercase());
            argument.env(variable).hide_env(true)
        }
    });
    let below: Vec<_> = command.get_subcommands().map(|below| below.get_name().to_owned()).collect();
    below
        .into_iter()
        .filter(|name| !except.contains(&name.as_str()))
        .fold(command, |command, name| command.mut_subcommand(name, |below| enable_environment(below, except)))
}

pub(super) const ENVIRONMENT_HELP: &str =
    "Every flag is also read from the environment: --secure-port from NARTHEX_SECURE_PORT.";
const SOCKS5_ENVIRONMENT_HELP: &str = "Every flag is also read from the environment: --listen from NARTHEX_LISTEN.";

/// The commands that can be checked.
#[derive(Debug, Subcommand)]
pub enum CheckCommand {
    /// Check the gateway's flags, configuration file, certificates, and registry directory
    #[command(after_help = ENVIRONMENT_HELP)]
    Gateway(Arguments<GatewayCommand>),
    /// Check the sidecar's flags, configuration file, certificates, and kubeconfigs
    #[command(after_help = ENVIRONMENT_HELP)]
    Sidecar(Arguments<SidecarCommand>),
    /// Check the same for a sidecar started under the name kube-rbac-proxy
    #[command(after_help = ENVIRONMENT_HELP)]
    KubeRbacProxy(Arguments<SidecarCommand>),
    /// Check the flags of the local proxy and the kubeconfig
    #[command(after_help = ENVIRONMENT_HELP)]
    Proxy(Arguments<ProxyCommand>),
    /// Check the flags of the Konnectivity server and its certificates
    #[command(after_help = ENVIRONMENT_HELP)]
    KonnectivityServer(Arguments<KonnectivityServerCommand>),
    /// Check the flags of the Konnectivity agent and the files they name
    #[command(after_help = ENVIRONMENT_HELP)]
    KonnectivityAgent(Arguments<KonnectivityAgentCommand>),
    /// Check the flags of the SOCKS5 proxy and the files they name
    #[command(after_help = SOCKS5_ENVIRONMENT_HELP)]
    Socks5(Arguments<Socks5Command>),
}

/// Print the manual page of a command
#[derive(Debug, clap::Args)]
#[command(after_help = "To read it: narthex man gateway | man -l -")]
pub struct ManCommand {
    /// Words of the command, for example `pki issue`; without, the page of narthex
    #[arg(value_name = "COMMAND")]
    pub words: Vec<String>,
    /// Write the pages of all commands into this directory instead
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "words")]
    pub output_dir: Option<PathBuf>,
}

/// The shells that have a completion script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompletionShell {
    /// Bourne again shell
    Bash,
    /// Z shell
    Zsh,
    /// Friendly interactive shell
    Fish,
}

impl From<CompletionShell> for Shell {
    fn from(shell: CompletionShell) -> Shell {
        match shell {
            CompletionShell::Bash => Shell::Bash,
            CompletionShell::Zsh => Shell::Zsh,
            CompletionShell::Fish => Shell::Fish,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::status::StatusFormat;

    #[test]
    fn command_line_definition_is_valid() {
        command().debug_assert();
    }

    fn read(line: &[&str]) -> Result<Command, clap::Error> {
        parse(std::iter::once(&"narthex").chain(line))
    }

    fn refusal(line: &[&str]) -> (i32, String) {
        let error = read(line).expect_err("refused");
        (error.exit_code(), error.to_string())
    }

    #[test]
    fn unknown_flag_exits_2_with_suggestion() {
        let (status, text) = refusal(&["gateway", "--secure-prt=1"]);
        assert_eq!(status, 2);
        assert!(text.contains("--secure-port"), "{text}");
        let (status, text) = refusal(&["gatway"]);
        assert_eq!(status, 2);
        assert!(text.contains("gateway"), "{text}");
    }

    #[test]
    fn help_and_version_exit_0() {
        for line in [&["--version"][..], &["--help"], &["gateway", "--help"], &["pki", "issue", "--help"]] {
            assert_eq!(refusal(line).0, 0, "{line:?}");
        }
        assert_eq!(refusal(&[]).0, 2);
    }

    #[test]
    fn repeated_flag_last_value_wins_and_lists_append() {
        let line = ["pki", "issue", "--dir=a", "--dir=b", "--ca=client", "--name=x", "--name=y", "--san=c", "--san=d"];
        match read(&line) {
            Ok(Command::Pki { command: PkiCommand::Issue(issue), .. }) => {
                assert_eq!((issue.dir.to_str(), issue.name.as_str()), (Some("b"), "y"));
                assert_eq!(issue.names, ["c", "d"]);
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(read(&["pki", "init", "--dir=a", "-v", "4"]), Ok(Command::Pki { .. })));
        match read(&["status", "-o", "json", "-o", "wide"]) {
            Ok(Command::Status(status)) => assert_eq!(status.output, StatusFormat::Wide),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn environment_sets_flags_of_status_and_pki() {
        let command = command();
        let status = command.find_subcommand("status").unwrap();
        let output = status.get_arguments().find(|argument| argument.get_long() == Some("output")).unwrap();
        assert_eq!(output.get_env(), Some("NARTHEX_OUTPUT".as_ref()));
        let issue = command.find_subcommand("pki").unwrap().find_subcommand("issue").unwrap();
        let dir = issue.get_arguments().find(|argument| argument.get_long() == Some("dir")).unwrap();
        assert_eq!(dir.get_env(), Some("NARTHEX_DIR".as_ref()));
    }

    #[test]
    fn help_shows_headings_and_defaults() {
        let help = refusal(&["gateway", "--help"]).1;
        for heading in
            ["Serving:", "Authentication:", "Authorization:", "Backends:", "Leader election:", "Observability:"]
        {
            assert!(help.contains(heading), "{heading} missing:\n{help}");
        }
        assert!(help.contains("(default 6443)"), "{help}");
    }
}
