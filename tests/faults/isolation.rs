//! Network and mount namespaces of their own, so that a fault reaches nothing else and ends with the process.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

/// Set in the process inside the namespaces.
const ISOLATED: &str = "NARTHEX_TEST_FAULTS_ISOLATED";

pub(crate) fn is_isolated() -> bool {
    std::env::var_os(ISOLATED).is_some()
}

/// Starts this program again inside new namespaces, in place of this process. Returns where that is not permitted.
pub(crate) fn enter() {
    let own = std::env::current_exe().unwrap();
    let mapping: &[&str] = if rustix::process::getuid().is_root() { &[] } else { &["--map-root-user"] };
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(mapping).args(["--net", "--mount"]);
        command
    };
    let permitted = unshare().arg("true").stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    if permitted {
        let line = "ip link set lo up && exec \"$0\" \"$@\"";
        let mut inside = unshare();
        inside.args(["sh", "-c", line]).arg(own).args(std::env::args_os().skip(1)).env(ISOLATED, "1");
        panic!("unshare: {}", inside.exec());
    }
}

/// Sockets of thousands of clients and as many of the gateway, which inherits the limit.
pub(crate) fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Why file systems cannot be mounted and networks not be made; `None` if they can.
pub(crate) fn missing_namespaces() -> Option<String> {
    (!is_isolated()).then(|| "network and mount namespaces are not permitted".to_owned())
}
