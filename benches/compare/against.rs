//! This program beside that of another commit: both built with one profile, measured in turns.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::fixtures::{BenchEnvironment, Contender};
use crate::{Options, SCENARIOS, load, median, show};

/// Where the other commit is checked out and built, below `target`. It stays there for the next run.
const DIRECTORY: &str = "against";

/// Prints the CPU of both programs per scenario, and their ratio.
///
/// # Panics
/// A program cannot be built.
pub(crate) fn compare(options: &Options, commit: &str, profile: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let target = root.join("target").join(DIRECTORY);
    let other = target.join("checkout");
    check_out(root, &other, commit);
    // The other first: that is where it fails, if it does.
    let other = build(&other, &target.join("target"), profile);
    let programs = [build(root, &root.join("target"), profile), other];
    let mut environments = programs.map(BenchEnvironment::new);
    println!(
        "CPU ms per 1,000 answers, median (min-max) of {} rounds of {} s, profile {profile}",
        options.rounds, options.seconds
    );
    println!("{:<12} {:>22} {:>22} {:>8}", "scenario", "this tree", commit, "ratio");
    for scenario in SCENARIOS.iter().filter(|scenario| options.wants(scenario.name)) {
        let mut figures = [const { Vec::new() }; 2];
        for round in 0..options.rounds {
            // Each round begins with the other program, so that none always runs on a warmer or quieter machine.
            for turn in 0..2 {
                let at = (round + turn) % 2;
                let environment = &mut environments[at];
                let _backend = environment.start_backend(scenario.backend_http1);
                let proxy = environment.start_proxy(Contender::Narthex, scenario.backend_http1);
                let load = |seconds| load::run(&scenario.load, environment, &proxy, scenario.path, seconds);
                figures[at].push(proxy.cost_per_thousand(options.seconds, load));
            }
        }
        let ratio = median(&figures[0]) / median(&figures[1]);
        println!("{:<12} {:>22} {:>22} {ratio:>8.3}", scenario.name, show(&figures[0]), show(&figures[1]));
    }
}

/// Checks out a commit in a work tree of its own.
fn check_out(root: &Path, directory: &Path, commit: &str) {
    let directory = directory.display().to_string();
    let git = |arguments: &[&str]| Command::new("git").current_dir(root).args(arguments).status().expect("git");
    // One of an earlier run, whose directory may have been deleted.
    let _ = git(&["worktree", "prune"]);
    // Without its file `.git`, git would take the directory for a part of this tree, and move that to the commit.
    let begun = if Path::new(&directory).join(".git").exists() {
        Command::new("git").args(["-C", &directory, "checkout", "--quiet", "--detach", commit]).status().expect("git")
    } else {
        let _ = std::fs::remove_dir_all(&directory);
        git(&["worktree", "add", "--quiet", "--detach", &directory, commit])
    };
    assert!(begun.success(), "{commit} cannot be checked out in {directory}");
}

/// Builds the program of a source tree; returns its path.
fn build(source: &Path, target: &Path, profile: &str) -> PathBuf {
    eprintln!("building {} with profile {profile}", source.display());
    let built = Command::new("cargo")
        .current_dir(source)
        .env("CARGO_TARGET_DIR", target)
        .args(["build", "--locked", "--bin", "narthex", "--profile", profile])
        .status()
        .expect("cargo");
    assert!(built.success(), "{} cannot be built", source.display());
    let directory = if profile == "dev" { "debug" } else { profile };
    target.join(directory).join("narthex")
}
