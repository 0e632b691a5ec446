//! A network link that loses and delays packets, or carries none: two TUN devices, and `lossy_link.py` between them.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::isolation;

/// Numbers the links, which have their addresses and devices by it.
static NEXT_NUMBER: AtomicU8 = AtomicU8::new(0);

/// A running link; both ends go with it.
pub(crate) struct LossyLink {
    /// This side's address.
    pub(crate) near: Ipv4Addr,
    /// The other side's, in a network namespace of its own.
    far: Ipv4Addr,
    /// Keeps the far namespace.
    holder: Child,
    relay: Child,
    commands: Mutex<ChildStdin>,
}

impl LossyLink {
    pub(crate) fn start() -> LossyLink {
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let (near, far) = (Ipv4Addr::new(10, 78, number, 1), Ipv4Addr::new(10, 78, number, 2));
        // They end with their standard input, which is this process's.
        let mut holder = Command::new("unshare")
            .args(["--net", "sh", "-c", "ip link set lo up && echo ready && exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        wait_until_ready(&mut holder);
        let mut relay = Command::new("python3")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/faults/lossy_link.py"))
            .args([near.to_string(), far.to_string(), number.to_string(), holder.id().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        wait_until_ready(&mut relay);
        let commands = Mutex::new(relay.stdin.take().unwrap());
        LossyLink { near, far, holder, relay, commands }
    }

    /// Loses so many of a hundred packets, and delays each by so many milliseconds. A hundred is a partition.
    pub(crate) fn set(&self, loss_percent: u32, delay_milliseconds: u32) {
        writeln!(self.commands.lock().unwrap(), "{loss_percent} {delay_milliseconds}").unwrap();
    }

    /// A socket that listens on the far side.
    pub(crate) fn listen(&self, port: u16) -> tokio::net::TcpListener {
        let address = (self.far, port);
        let listener = self.on_far_side(move || std::net::TcpListener::bind(address).unwrap());
        listener.set_nonblocking(true).unwrap();
        tokio::net::TcpListener::from_std(listener).unwrap()
    }

    /// A connection from the far side.
    pub(crate) fn connect(&self, address: SocketAddr) -> tokio::net::TcpStream {
        let stream = self.on_far_side(move || std::net::TcpStream::connect(address).unwrap());
        stream.set_nonblocking(true).unwrap();
        tokio::net::TcpStream::from_std(stream).unwrap()
    }

    /// A socket stays in the namespace of the thread that made it.
    fn on_far_side<T: Send + 'static>(&self, make: impl FnOnce() -> T + Send + 'static) -> T {
        let namespace = File::open(format!("/proc/{}/ns/net", self.holder.id())).unwrap();
        let thread = std::thread::spawn(move || {
            use std::os::fd::AsFd as _;
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            make()
        });
        thread.join().unwrap()
    }
}

impl Drop for LossyLink {
    fn drop(&mut self) {
        for child in [&mut self.relay, &mut self.holder] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn wait_until_ready(child: &mut Child) {
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
}

/// Why there is no such link here; `None` if there is.
pub(crate) fn missing_link() -> Option<String> {
    isolation::missing_namespaces().or_else(|| {
        let device = File::options().read(true).write(true).open("/dev/net/tun");
        device.err().map(|error| {
            format!(
                "/dev/net/tun: {error}: load the kernel module (modprobe tun); a container needs --device=/dev/net/tun"
            )
        })
    })
}
