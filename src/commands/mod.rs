//! The commands.

pub mod check;
pub mod cli;
mod completion;
mod envtest;
mod envtest_assets;
pub mod gateway;
pub mod help;
pub mod konnectivity;
mod kubeconfig;
mod man;
pub mod pki;
mod program_name;
pub mod proxy;
pub mod quickstart;
pub mod sidecar;
mod signals;
pub mod socks5;
pub mod status;
pub mod store;
mod threads;
mod watchdog;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use crate::config::{Diagnostics, environment};
use crate::listen::inherit_sockets;
use crate::observe::log;
use crate::process::{Problem, Problems};
use cli::Command;

/// Parses the command line and runs the command it names.
///
/// Exit status: 0 on success, 1 for an invalid flag value or file or a failed start, 2 for an unknown command or flag.
pub fn main() -> ExitCode {
    let command_line: Vec<OsString> = std::env::args_os().collect();
    if let Some(status) = envtest::run(&command_line) {
        return status;
    }
    let (name, command) = match program_name::parse(command_line) {
        Ok(read) => read,
        Err(error) => {
            // Help and version go to standard output, errors to standard error. A failed write cannot be reported.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    // The quickstart listens at ports of its own.
    if !matches!(command, Command::Quickstart(_)) {
        inherit_sockets();
    }
    match command {
        Command::Quickstart(arguments) => match arguments.read(&environment) {
            (config, mistakes) if mistakes.problems.0.is_empty() => quickstart::run(&config),
            (_, mistakes) => report_problems("quickstart", &mistakes.problems),
        },
        Command::Gateway(arguments) => {
            let (config, mistakes) = arguments.read(&environment);
            gateway::run(&config, mistakes, "gateway")
        }
        Command::Sidecar(arguments) => {
            let (config, mistakes) = arguments.read(name, &environment);
            sidecar::run(&config, mistakes)
        }
        Command::Socks5(arguments) => {
            let (config, mistakes) = arguments.read(&environment);
            socks5::run(&config, mistakes)
        }
        Command::Proxy(arguments) => {
            let (config, mistakes) = arguments.read(&environment);
            proxy::run(config, mistakes)
        }
        Command::KonnectivityServer(arguments) => {
            let (config, mistakes) = arguments.read(&environment);
            konnectivity::server::run(config, mistakes)
        }
        Command::KonnectivityAgent(arguments) => {
            let (config, mistakes) = arguments.read(&environment);
            konnectivity::agent::run(config, mistakes)
        }
        Command::Pki { command, log } => match start_log(log.read(&environment)) {
            Ok(()) => {
                let (text, problems) = pki::run(&command);
                combine_status(print(text.as_bytes()), report_problems("pki", &problems))
            }
            Err(mistakes) => report_problems("pki", &mistakes.problems),
        },
        Command::Check(check) => check::run(&check),
        Command::Status(command) => command.run(),
        Command::Store { task } => store::run(&task),
        Command::Kubeconfig { task } => kubeconfig::run(&task),
        Command::Envtest { task } => envtest_assets::run(&task),
        Command::Help(command) => help::run(&command, cli::command()),
        Command::Completion { shell } => completion::run(shell),
        Command::Man(command) => man::run(&command),
    }
}

/// Installs the log of a command that has no other settings.
fn start_log((settings, mut mistakes): (log::Settings, Diagnostics)) -> Result<(), Diagnostics> {
    mistakes.problems.collect(log::install(&settings));
    if mistakes.problems.0.is_empty() { Ok(()) } else { Err(mistakes) }
}

/// Prints problems to standard error, one per line, and returns the exit status.
fn report_problems(role: &str, problems: &Problems) -> ExitCode {
    match problems.0.as_slice() {
        [] => return ExitCode::SUCCESS,
        [problem] => eprintln!("narthex {role}: {problem}"),
        problems => {
            eprintln!("narthex {role}: {} problems", problems.len());
            for problem in problems {
                eprintln!("  {problem}");
            }
        }
    }
    print_help_links(&problems.0);
    ExitCode::FAILURE
}

fn print_warnings(warnings: &[Problem]) {
    for warning in warnings {
        eprintln!("narthex: warning: {warning}");
    }
    print_help_links(warnings);
}

/// Prints which command explains these problems, each section once.
fn print_help_links(problems: &[Problem]) {
    let links: BTreeSet<&str> = problems.iter().filter_map(Problem::help_link).collect();
    for link in links {
        eprintln!("narthex: see {link}");
    }
}

fn combine_status(one: ExitCode, other: ExitCode) -> ExitCode {
    if one == ExitCode::SUCCESS { other } else { one }
}

/// Writes `text` to standard output. A closed pipe is not a failure.
fn print(text: &[u8]) -> ExitCode {
    let mut output = std::io::stdout().lock();
    match output.write_all(text).and_then(|()| output.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("narthex: cannot write to standard output: {error}");
            ExitCode::FAILURE
        }
    }
}
