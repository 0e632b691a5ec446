//! The programs that controller-runtime's envtest starts, `etcd` and `kube-apiserver`: one gateway with the embedded API
//! server, and a program that tells it where the store is (`sigs.k8s.io/controller-runtime/pkg/internal/testing/controlplane`).
//!
//! `etcd` keeps no objects. It answers the health check that envtest waits for, and says which directory it was given.
//! `kube-apiserver` asks the etcd of `--etcd-servers` for that directory and has its store there. So envtest, which deletes
//! the directory, deletes the objects; and a kube-apiserver that is started again finds those of before.

mod etcd;
mod flags;
mod kube_apiserver;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use super::envtest_assets::{ETCD, KUBE_APISERVER};

/// Runs the program that the first word names; none if it is another. Exit status: that of the program.
pub(super) fn run(command_line: &[OsString]) -> Option<ExitCode> {
    let (program, words) = command_line.split_first()?;
    let (help, run): (&str, fn(Vec<OsString>) -> ExitCode) =
        match Path::new(program).file_name().and_then(OsStr::to_str)? {
            ETCD => (etcd::HELP, etcd::run),
            KUBE_APISERVER => (kube_apiserver::HELP, kube_apiserver::run),
            _ => return None,
        };
    let asks_for = |names: &[&str]| words.iter().any(|word| names.iter().any(|name| word == name));
    if asks_for(&["--help", "-h"]) {
        return Some(super::print(help.as_bytes()));
    }
    if asks_for(&["--version", "--version=true", "--version=raw"]) {
        return Some(super::print(concat!("narthex ", env!("CARGO_PKG_VERSION"), "\n").as_bytes()));
    }
    Some(run(words.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envtest_program_is_that_of_the_first_word() {
        let run = |line: &[&str]| run(&line.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(run(&["/a/etcd", "--help"]), Some(ExitCode::SUCCESS));
        assert_eq!(run(&["kube-apiserver", "--version"]), Some(ExitCode::SUCCESS));
        assert_eq!(run(&["kube-apiserver", "--no-such-flag"]), Some(ExitCode::FAILURE));
        assert_eq!(run(&["narthex", "--help"]), None);
        assert_eq!(run(&[]), None);
        // What envtest looks for, and what it takes for an old kube-apiserver.
        assert!(etcd::HELP.lines().any(|line| line.starts_with("--unsafe-no-fsync")));
        assert!(!kube_apiserver::HELP.contains("--insecure-port"));
    }
}
