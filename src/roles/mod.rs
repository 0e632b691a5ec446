//! The commands.

pub mod check;
pub mod cli;
mod completion;
pub mod pki;

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use clap::Parser;

use crate::config::{Mistakes, environment};
use crate::process::Problems;
use cli::{Cli, Command};

/// Reads the command line and runs the command it names. Ends with 0 when all went well, 1 when the
/// configuration is bad or the start failed, 2 when the command line cannot be read.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to standard output, mistakes to standard error; if that is gone, so
            // is whoever would read about it.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match cli.command {
        Command::Quickstart(arguments) => {
            with("quickstart", arguments.read(&environment), |_config| not_built("quickstart"))
        }
        Command::Gateway(arguments) => with("gateway", arguments.read(&environment), |_config| not_built("gateway")),
        Command::Pki(_) => not_built("pki"),
        Command::Check(check) => check::run(&check),
        Command::Status(_) => not_built("status"),
        Command::Completion { shell } => completion::run(shell),
    }
}

fn with<T>(role: &str, config: Result<T, Mistakes>, run: impl FnOnce(T) -> ExitCode) -> ExitCode {
    match config {
        Ok(config) => run(config),
        Err(mistakes) => refuse(role, &mistakes.problems, mistakes.command_line),
    }
}

fn not_built(role: &str) -> ExitCode {
    eprintln!("narthex {role}: not built yet");
    ExitCode::FAILURE
}

/// Tells all mistakes, one a line. Ends with 2 if the command line cannot be read, else with 1.
fn refuse(role: &str, problems: &Problems, command_line: bool) -> ExitCode {
    let count = match problems.0.len() {
        1 => "a mistake".to_owned(),
        count => format!("{count} mistakes"),
    };
    eprintln!("narthex {role}: {count} in its configuration");
    for problem in &problems.0 {
        eprintln!("  {problem}");
    }
    ExitCode::from(if command_line { 2 } else { 1 })
}

/// Writes what was asked for to standard output. A reader that has had enough is no failure.
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
