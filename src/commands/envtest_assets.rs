//! `narthex envtest assets`: the directory of the programs that envtest starts.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;

use crate::process::Problem;

/// Names of the programs, which are links to this one.
pub(super) const ETCD: &str = "etcd";
pub(super) const KUBE_APISERVER: &str = "kube-apiserver";

/// What `narthex envtest` does.
#[derive(Debug, Subcommand)]
pub enum EnvtestTask {
    /// Print a directory with the programs etcd, kube-apiserver and, if it is installed, kubectl: the value of
    /// KUBEBUILDER_ASSETS
    Assets {
        /// Directory to make; by default one below the user's cache directory
        #[arg(long, value_name = "DIRECTORY")]
        dir: Option<PathBuf>,
    },
}

/// Runs a task. Exit status: 0 on success, 1 if the directory cannot be written.
pub(super) fn run(task: &EnvtestTask) -> ExitCode {
    let EnvtestTask::Assets { dir } = task;
    match make_assets(dir.as_deref()) {
        Ok(directory) => super::print(format!("{}\n", directory.display()).as_bytes()),
        Err(problem) => super::report_problems("envtest", &problem.into()),
    }
}

/// Makes the directory; returns its absolute path.
fn make_assets(directory: Option<&Path>) -> Result<PathBuf, Problem> {
    let directory = match directory {
        Some(directory) => directory.to_owned(),
        None => cache_directory()?.join("narthex/envtest"),
    };
    let failed = |error: io::Error| Problem::new(directory.display(), error);
    fs::create_dir_all(&directory).map_err(failed)?;
    let directory = fs::canonicalize(&directory).map_err(failed)?;
    let own = std::env::current_exe().map_err(|error| Problem::new("this program", error))?;
    for name in [ETCD, KUBE_APISERVER] {
        link(&own, &directory.join(name))?;
    }
    if let Some(kubectl) = find_program("kubectl", &directory) {
        link(&kubectl, &directory.join("kubectl"))?;
    }
    Ok(directory)
}

fn cache_directory() -> Result<PathBuf, Problem> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    cache.ok_or_else(|| Problem::new("HOME", "is not set: give the directory with --dir"))
}

/// A program of `PATH`, not that of `except`.
fn find_program(name: &str, except: &Path) -> Option<PathBuf> {
    let directories = std::env::var_os("PATH")?;
    std::env::split_paths(&directories)
        .filter(|one| one != except)
        .map(|one| one.join(name))
        .find(|path| path.is_file())
}

/// Makes a symbolic link. One that exists is replaced at once: tests that run meanwhile find a program.
fn link(target: &Path, name: &Path) -> Result<(), Problem> {
    if fs::read_link(name).is_ok_and(|found| found == target) {
        return Ok(());
    }
    let new = name.with_extension(format!("{}.new", std::process::id()));
    let made = symlink(target, &new).and_then(|()| fs::rename(&new, name));
    made.map_err(|error| Problem::new(name.display(), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envtest_assets_are_links_to_this_program() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("a/b");
        fs::create_dir_all(&directory).unwrap();
        // A link to a program that is gone.
        symlink("/gone", directory.join(ETCD)).unwrap();
        for _ in 0..2 {
            let made = make_assets(Some(&directory)).unwrap();
            assert_eq!(made, fs::canonicalize(&directory).unwrap());
            for name in [ETCD, KUBE_APISERVER] {
                assert_eq!(fs::read_link(made.join(name)).unwrap(), std::env::current_exe().unwrap());
            }
        }
        fs::write(scratch.path().join("file"), "").unwrap();
        let error = make_assets(Some(&scratch.path().join("file"))).unwrap_err();
        assert!(error.to_string().contains("/file: "), "{error}");
    }
}
