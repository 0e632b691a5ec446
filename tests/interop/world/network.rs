//! A network of its own, which nobody outside reaches: what starts in it sees its own loopback and one way out.

use std::ffi::{OsStr, OsString};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

use super::process::Process;

/// How many networks a run can have, and so addresses a certificate has to be for.
pub(crate) const MOST: u8 = 64;

static MADE: AtomicU8 = AtomicU8::new(0);

/// A network namespace, tied to ours by a pair of interfaces.
pub(crate) struct Network {
    name: String,
    /// Our address, as seen from inside.
    pub(crate) host: String,
    interface: String,
}

impl Network {
    /// Makes one; none where that is not permitted.
    pub(crate) fn make() -> Option<Network> {
        let number = loop {
            let number = MADE.fetch_add(1, Ordering::Relaxed);
            assert!(number < MOST, "no certificate is for a further network");
            // Somebody else may have one of this number, a run that was killed for one: nothing would come through ours.
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
        let (name, ours, theirs) = (&network.name, &network.interface, format!("ny{id}-{number}"));
        let steps = [
            format!("netns add {name}"),
            format!("link add {ours} type veth peer name {theirs} netns {name}"),
            format!("addr add {}/30 dev {ours}", network.host),
            format!("link set {ours} up"),
            format!("-n {name} link set lo up"),
            format!("-n {name} addr add 10.77.{number}.2/30 dev {theirs}"),
            format!("-n {name} link set {theirs} up"),
        ];
        steps.iter().all(|step| ip(step)).then_some(network)
    }

    /// As [`BackendProcess::start`], inside.
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

    /// Lets those inside come to `port` of our loopback, at [`Network::host`] and the port that is given back.
    pub(crate) fn let_out_to(&self, port: u16) -> u16 {
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

/// Our address in the network of this number.
pub(crate) fn host_address(number: u8) -> String {
    format!("10.77.{number}.1")
}

impl Drop for Network {
    fn drop(&mut self) {
        ip(&format!("link del {}", self.interface));
        ip(&format!("netns del {}", self.name));
    }
}

fn ip(words: &str) -> bool {
    let output = Command::new("ip").args(words.split(' ')).output();
    output.is_ok_and(|output| output.status.success())
}

/// Carries bytes both ways until either side ends.
fn join(one: TcpStream, other: TcpStream) {
    for (mut from, mut to) in [(one.try_clone().unwrap(), other.try_clone().unwrap()), (other, one)] {
        std::thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Both);
            let _ = from.shutdown(std::net::Shutdown::Both);
        });
    }
}
