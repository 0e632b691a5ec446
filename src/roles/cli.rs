//! The command line: which commands there are, and what each of them takes.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;

use crate::config::{Arguments, Gateway, LogOnly, Quickstart};

/// Aggregation-layer proxy and front-proxy gateway for Kubernetes-style APIs
#[derive(Debug, Parser)]
#[command(name = "narthex", version, about, max_term_width = 110)]
#[command(after_help = "Start here: narthex quickstart")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Try it: the gateway with a small example API behind it, and a kubeconfig, on this machine
    #[command(after_help = ENVIRONMENT)]
    Quickstart(Arguments<Quickstart>),
    /// Stand in front of extension API servers
    #[command(after_help = ENVIRONMENT)]
    Gateway(Arguments<Gateway>),
    /// Make authorities and certificates, and read them
    #[command(subcommand)]
    Pki(Pki),
    /// Read all that a role would read, report every mistake at once, and start nothing
    #[command(subcommand)]
    Check(Check),
    /// Ask a running process what it sees: APIServices, endpoints, certificates
    Status(Status),
    /// Print the completion script of a shell
    Completion {
        /// The shell
        shell: CompletionShell,
    },
}

const ENVIRONMENT: &str = "Every flag is also read from the environment: --secure-port from NARTHEX_SECURE_PORT.";

/// The roles that can be checked.
#[derive(Debug, Subcommand)]
pub enum Check {
    /// Check the gateway's flags, configuration file, certificates, and registry directory
    #[command(after_help = ENVIRONMENT)]
    Gateway(Arguments<Gateway>),
}

/// What can be done with certificates.
#[derive(Debug, Subcommand)]
pub enum Pki {
    /// Make a set of authorities, and a certificate of each, in a directory that has none yet
    Init(PkiInit),
    /// Issue one more certificate
    Issue(PkiIssue),
    /// Print in words what files hold and when it expires
    Show(PkiShow),
}

/// `narthex pki init`.
#[derive(Debug, Args)]
pub struct PkiInit {
    /// Directory to write to
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, env = "NARTHEX_DIR", hide_env = true)]
    #[arg(overrides_with = "dir")]
    pub dir: PathBuf,
    /// A further name or address of the serving certificate; may be given again
    #[arg(long, value_name = "NAME", value_delimiter = ',', env = "NARTHEX_SAN", hide_env = true)]
    pub san: Vec<String>,
    /// How it logs.
    #[command(flatten)]
    pub log: Arguments<LogOnly>,
}

/// `narthex pki issue`.
#[derive(Debug, Args)]
pub struct PkiIssue {
    /// Directory of the authorities, and of the new NAME.crt and NAME.key
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, env = "NARTHEX_DIR", hide_env = true)]
    #[arg(overrides_with = "dir")]
    pub dir: PathBuf,
    /// The authority that signs
    #[arg(long, overrides_with = "ca", env = "NARTHEX_CA", hide_env = true)]
    pub ca: Ca,
    /// Name of the new files, and the certificate's common name unless --user says otherwise
    #[arg(long, overrides_with = "name", env = "NARTHEX_NAME", hide_env = true)]
    pub name: String,
    /// A name or address that the certificate is for; may be given again
    #[arg(long, value_name = "NAME", value_delimiter = ',', env = "NARTHEX_SAN", hide_env = true)]
    pub san: Vec<String>,
    /// The user that a client certificate names
    #[arg(long, value_name = "NAME", overrides_with = "user", env = "NARTHEX_USER", hide_env = true)]
    pub user: Option<String>,
    /// A group of that user; may be given again
    #[arg(long, value_name = "NAME", env = "NARTHEX_GROUP", hide_env = true)]
    pub group: Vec<String>,
    /// Days until it expires
    #[arg(long, value_name = "NUMBER", overrides_with = "days", value_parser = clap::value_parser!(u32).range(1..=36_500))]
    #[arg(env = "NARTHEX_DAYS", hide_env = true)]
    pub days: Option<u32>,
    /// How it logs.
    #[command(flatten)]
    pub log: Arguments<LogOnly>,
}

/// `narthex pki show`.
#[derive(Debug, Args)]
pub struct PkiShow {
    /// Files of certificates or keys in PEM
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
}

/// The authorities that `narthex pki init` makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Ca {
    /// Of serving certificates, which clients verify
    Serving,
    /// Of client certificates, which the gateway verifies
    Client,
    /// Of front proxies, which backends verify
    #[value(name = "requestheader")]
    RequestHeader,
    /// Of backends' serving certificates, which the gateway verifies
    Backend,
}

/// `narthex status`.
#[derive(Debug, Args)]
pub struct Status {
    /// Admin address of the running process
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:6480", overrides_with = "admin_address")]
    #[arg(env = "NARTHEX_ADMIN_ADDRESS", hide_env = true)]
    pub admin_address: SocketAddr,
    /// How to print it, instead of as a table
    #[arg(short, long, value_name = "FORMAT", overrides_with = "output", env = "NARTHEX_OUTPUT", hide_env = true)]
    pub output: Option<Output>,
    /// How it logs.
    #[command(flatten)]
    pub log: Arguments<LogOnly>,
}

/// How `narthex status` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// As the process answers
    Json,
    /// The same, in YAML
    Yaml,
    /// A table with more columns
    Wide,
}

/// The shells that completion is made for.
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
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    fn parse(line: &[&str]) -> Result<Command, clap::Error> {
        Cli::try_parse_from(std::iter::once(&"narthex").chain(line)).map(|cli| cli.command)
    }

    fn refusal(line: &[&str]) -> (i32, String) {
        let error = parse(line).expect_err("refused");
        (error.exit_code(), error.to_string())
    }

    #[test]
    fn an_unknown_flag_is_a_bad_command_line_with_a_suggestion() {
        let (status, text) = refusal(&["gateway", "--secure-prt=1"]);
        assert_eq!(status, 2);
        assert!(text.contains("--secure-port"), "{text}");
        let (status, text) = refusal(&["gatway"]);
        assert_eq!(status, 2);
        assert!(text.contains("gateway"), "{text}");
    }

    #[test]
    fn help_and_version_end_well() {
        for line in [&["--version"][..], &["--help"], &["gateway", "--help"], &["pki", "issue", "--help"]] {
            assert_eq!(refusal(line).0, 0, "{line:?}");
        }
        assert_eq!(refusal(&[]).0, 2);
    }

    #[test]
    fn the_last_of_single_values_wins() {
        match parse(&["pki", "issue", "--dir=a", "--dir=b", "--ca=client", "--ca=backend", "--name=x", "--name=y"]) {
            Ok(Command::Pki(Pki::Issue(issue))) => {
                assert_eq!((issue.dir, issue.ca, issue.name), (PathBuf::from("b"), Ca::Backend, "y".to_owned()));
            }
            other => panic!("{other:?}"),
        }
        match parse(&["status", "-o", "json", "-o", "wide"]) {
            Ok(Command::Status(status)) => assert_eq!(status.output, Some(Output::Wide)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn help_shows_headings_and_hides_what_comes_later() {
        let help = refusal(&["gateway", "--help"]).1;
        for heading in ["Serving:", "Who is asking:", "May they:", "What lies behind:", "Seen by the operator:"] {
            assert!(help.contains(heading), "{heading} missing:\n{help}");
        }
        assert!(help.contains("(default 6443)"), "{help}");
        assert!(!help.contains("--leader-elect"), "{help}");
    }
}
