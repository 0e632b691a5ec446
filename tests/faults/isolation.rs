//! Network and mount namespaces of their own, so that a fault reaches nothing else and ends with the process.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Set in the process inside the namespaces.
const ISOLATED: &str = "NARTHEX_TEST_FAULTS_ISOLATED";

/// Why this process could not enter namespaces.
static REFUSED: OnceLock<String> = OnceLock::new();

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
    let refused = match unshare().arg("true").output() {
        Ok(Output { status, .. }) if status.success() => {
            let line = "ip link set lo up && exec \"$0\" \"$@\"";
            let mut inside = unshare();
            inside.args(["sh", "-c", line]).arg(own).args(std::env::args_os().skip(1)).env(ISOLATED, "1");
            panic!("unshare: {}", inside.exec());
        }
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => format!("unshare (Debian: util-linux): {error}"),
    };
    REFUSED.get_or_init(|| refused);
}

/// Sockets of thousands of clients and as many of the gateway, which inherits the limit.
pub(crate) fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Why file systems cannot be mounted and networks not be made; `None` if they can.
pub(crate) fn missing_namespaces() -> Option<String> {
    REFUSED.get().map(|refused| {
        format!(
            "network and mount namespaces are not permitted ({refused}): run as root, with CAP_SYS_ADMIN in a container, \
             or permit user namespaces (sysctl kernel.apparmor_restrict_unprivileged_userns=0, kernel.unprivileged_userns_clone=1)"
        )
    })
}
