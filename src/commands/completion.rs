//! `narthex completion`: the completion script of a shell, on standard output.

use std::process::ExitCode;

use clap_complete::Shell;

use super::cli::{CompletionShell, command};
use super::print;

/// Prints the completion script of `shell`.
pub(super) fn run(shell: CompletionShell) -> ExitCode {
    print(&script(shell))
}

fn script(shell: CompletionShell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(Shell::from(shell), &mut command(), "narthex", &mut script);
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completion_script_contains_commands_and_flags() {
        for shell in [CompletionShell::Bash, CompletionShell::Zsh, CompletionShell::Fish] {
            let script = String::from_utf8(script(shell)).unwrap();
            for word in [
                "quickstart",
                "gateway",
                "requestheader-allowed-names",
                "socks5",
                "allow-destinations",
                "append-server-path",
                "completion",
            ] {
                assert!(script.contains(word), "{shell:?} lacks {word}");
            }
        }
    }
}
