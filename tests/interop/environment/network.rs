//! Network namespaces: a process in one sees its own loopback and one link to the host.

use std::ffi::{OsStr, OsString};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

use super::process::Process;

/// Maximal number of networks in a run; certificates name one host address for each.
pub(crate) const MAX_NETWORKS: u8 = 64;

static NEXT_NUMBER: AtomicU8 = AtomicU8::new(0);

/// A network namespace, connected to the host by a veth pair.
pub(crate) struct Network {
    name: String,
    /// The host's address within the network.
    pub(crate) host: String,
    interface: String,
}

impl Network {
    /// Creates a network namespace; `None` where that is not permitted.
    pub(crate) fn make() -> Option<Network> {
        let number = loop {
            let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
            assert!(number < MAX_NETWORKS, "more networks than addresses in certificates");
            // The number may be in use by another run or by one that was killed; its addresses would conflict.
            if TcpListener::bind((host_address(number).as_str(), 0)).is_err() {
                break number;
            }
        };
        let id = std::process::id() % 10_000;
        let network = Network {
            name: format!("narthex-{id}-{number}"),
            host: host_address(number),
            interface: format!("nx{id}-{number}"),
        };
        let (name, host_interface, peer_interface) = (&network.name, &network.interface, format!("ny{id}-{number}"));
        let steps = [
            format!("netns add {name}"),
            format!("link add {host_interface} type veth peer name {peer_interface} netns {name}"),
            format!("addr add {}/30 dev {host_interface}", network.host),
            format!("link set {host_interface} up"),
            format!("-n {name} link set lo up"),
            format!("-n {name} addr add 10.77.{number}.2/30 dev {peer_interface}"),
            format!("-n {name} link set {peer_interface} up"),
        ];
        steps.iter().all(|step| ip(step)).then_some(network)
    }

    /// Like [`Process::start`], inside the network namespace.
    pub(crate) fn start(
        &self,
        name: &str,
        program: &Path,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        directory: &Path,
    ) -> Process {
        let before = ["netns", "exec", self.name.as_str()].map(OsString::from);
        let arguments = arguments.into_iter().map(|argument| argument.as_ref().to_owned());
        let all = before.into_iter().chain([program.as_os_str().to_owned()]).chain(arguments);
        Process::start(name, Path::new("ip"), all, directory)
    }

    /// Whether packets pass. Those of open connections are lost meanwhile.
    pub(crate) fn set_up(&self, is_up: bool) {
        let state = if is_up { "up" } else { "down" };
        assert!(ip(&format!("link set {} {state}", self.interface)));
    }

    /// Forwards connections to `port` on the host's loopback; returns the port at [`Network::host`].
    pub(crate) fn forward_to_host(&self, port: u16) -> u16 {
        let listener = TcpListener::bind((self.host.as_str(), 0)).unwrap();
        let open = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for inside in listener.incoming().map_while(Result::ok) {
                if let Ok(outside) = TcpStream::connect(("127.0.0.1", port)) {
                    join(inside, outside);
                }
            }
        });
        open
    }
}

/// The host's address in the network with this number.
pub(crate) fn host_address(number: u8) -> String {
    format!("10.77.{number}.1")
}

impl Drop for Network {
    fn drop(&mut self) {
        ip(&format!("link del {}", self.interface));
        ip(&format!("netns del {}", self.name));
    }
}

fn ip(args: &str) -> bool {
    let output = Command::new("ip").args(args.split(' ')).output();
    output.is_ok_and(|output| output.status.success())
}

/// Copies bytes in both directions until either side ends.
fn join(one: TcpStream, other: TcpStream) {
    for (mut from, mut to) in [(one.try_clone().unwrap(), other.try_clone().unwrap()), (other, one)] {
        std::thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Both);
            let _ = from.shutdown(std::net::Shutdown::Both);
        });
    }
}
