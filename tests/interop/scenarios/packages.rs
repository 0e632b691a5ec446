//! What `deploy/release` makes of this build: the program in the image's root file system, under another user and with a
//! read-only root.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::TestFn;
use crate::environment::{Process, TestEnvironment, free_port, kubectl_run, peer};

pub(super) const GATEWAY_TESTS: &[(&str, TestFn)] =
    &[("packages: image serves as another user with a read-only root", image_serves)];

/// The user of the image.
const IMAGE_USER: &str = "65532";

fn run(program: impl AsRef<std::ffi::OsStr>, arguments: &[&str]) -> String {
    let mut command = Command::new(program.as_ref());
    // `deploy/release` is one of the programs.
    command.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = kubectl_run(command, "");
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{:?} {arguments:?}: {text}{errors}", program.as_ref());
    text.into_owned()
}

/// This build without its symbols, which would only take time to compress.
fn stripped_program(directory: &Path) -> PathBuf {
    let program = directory.join("narthex");
    run("strip", &["-o", program.to_str().unwrap(), env!("CARGO_BIN_EXE_narthex")]);
    program
}

fn image_serves(environment: &TestEnvironment) {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can change the user inside a mount namespace");
        return;
    }
    let directory = environment.scratch("packages-image");
    let program = stripped_program(&directory);
    let (root, data) = (directory.join("root"), directory.join("data"));
    let text = |path: &Path| path.display().to_string();
    run("deploy/release", &["--binary", &text(&program), "--image-root", &text(&root)]);
    for link in ["usr/local/bin/kube-rbac-proxy", "proxy-server", "proxy-agent"] {
        assert!(root.join(link).metadata().unwrap().is_file(), "{link}");
    }
    // A place of a mount, as a container runtime makes it.
    std::fs::create_dir(root.join("proc")).unwrap();
    // A new volume has the owner of the directory in the image.
    let owner = run("stat", &["--format=%u:%g %a", &text(&root.join("var/lib/narthex"))]);
    assert_eq!(owner.trim(), format!("{IMAGE_USER}:{IMAGE_USER} 700"));
    std::fs::create_dir(&data).unwrap();
    run("chown", &[&format!("{IMAGE_USER}:{IMAGE_USER}"), &text(&data)]);
    // The user of the image reaches its directories, whoever made the folder around them.
    let files = || run("find", &[&text(&root), "-printf", "%p %s %m %T@\n"]);
    let before = files();

    let port = free_port();
    let mounts = "mount --bind \"$0\" \"$0\" && mount --bind \"$1\" \"$0/var/lib/narthex\" && mount -t proc proc \"$0/proc\" \
                  && mount -o remount,bind,ro \"$0\" && root=$0 && shift \
                  && exec chroot --userspec=65532:65532 --groups= \"$root\" \"$@\"";
    let arguments =
        ["--mount", "--propagation=private", "sh", "-c", mounts, &text(&root), &text(&data)].map(str::to_owned);
    let arguments = arguments.into_iter().chain([
        "/usr/local/bin/narthex".to_owned(),
        "gateway".to_owned(),
        "--data-dir=/var/lib/narthex".to_owned(),
        format!("--secure-port={port}"),
        "--admin-address=127.0.0.1:0".to_owned(),
    ]);
    let mut process = Process::start("image", Path::new("unshare"), arguments, &directory);
    let kubeconfig = data.join("admin.kubeconfig");
    let kubectl = |arguments: &[&str]| {
        let mut command = Command::new(peer("kubectl"));
        command.args(arguments).env("KUBECONFIG", &kubeconfig).env("HOME", &directory);
        kubectl_run(command, "")
    };
    process.wait_until(|| {
        let output = kubectl(&["get", "--raw=/readyz"]);
        if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
    });
    let created = kubectl(&["create", "configmap", "settings", "--from-literal=color=blue"]);
    assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
    let shown = kubectl(&["get", "configmap", "settings", "--output=jsonpath={.data.color}"]);
    assert_eq!(String::from_utf8_lossy(&shown.stdout), "blue");

    process.signal(rustix::process::Signal::TERM);
    assert!(process.wait().success());
    assert!(!process.log().contains("Read-only file system"), "{}", process.log());
    assert_eq!(files(), before, "nothing is written outside the data directory");
    let owners = run("find", &[&text(&data), "-printf", "%U\n"]);
    assert!(owners.lines().all(|owner| owner == IMAGE_USER), "{owners}");
}
