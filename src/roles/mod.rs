//! The commands.

use std::process::ExitCode;

/// Reads the command line and runs the command it names.
pub fn main() -> ExitCode {
    eprintln!("narthex: no command is built yet");
    ExitCode::from(2)
}
