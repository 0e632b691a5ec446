//! Targets of the tunnels.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetKind {
    /// Sends as many bytes as the client asks for.
    Source,
    /// Reads as many bytes as the client announces, and answers with one.
    Sink,
    /// Reads nothing.
    Idle,
    Echo,
}

/// Ports of the targets, which run until the process ends.
pub(crate) struct Targets([(TargetKind, u16); 4]);

impl Targets {
    pub(crate) fn start() -> Targets {
        let start = |kind, serve: fn(TcpStream)| (kind, start_target(serve));
        Targets([
            start(TargetKind::Source, serve_source),
            start(TargetKind::Sink, serve_sink),
            start(TargetKind::Idle, serve_idle),
            start(TargetKind::Echo, serve_echo),
        ])
    }

    pub(crate) fn port(&self, kind: TargetKind) -> u16 {
        self.0.iter().find(|(candidate, _)| *candidate == kind).unwrap().1
    }
}

fn start_target(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.set_nodelay(true);
            let serve = serve.clone();
            std::thread::Builder::new().stack_size(256 << 10).spawn(move || serve(stream)).unwrap();
        }
    });
    port
}

/// Bytes of the transfer, which the client sends first: what a target sends unasked, the reference's client loses.
fn read_size(stream: &mut TcpStream) -> Option<u64> {
    let mut size = [0; 8];
    stream.read_exact(&mut size).ok()?;
    Some(u64::from_be_bytes(size))
}

/// Stays open after the transfer: the reference's server and agent lose data that waits when a target closes.
fn serve_source(mut stream: TcpStream) {
    let Some(mut left) = read_size(&mut stream) else { return };
    let buffer = vec![7; 64 << 10];
    while left > 0 {
        let length = left.min(buffer.len() as u64);
        if stream.write_all(&buffer[..length as usize]).is_err() {
            return;
        }
        left -= length;
    }
    let _ = stream.read(&mut [0]);
}

fn serve_sink(mut stream: TcpStream) {
    let Some(mut left) = read_size(&mut stream) else { return };
    let mut buffer = vec![0; 64 << 10];
    while left > 0 {
        match stream.read(&mut buffer) {
            Ok(length @ 1..) => left -= length as u64,
            _ => return,
        }
    }
    let _ = stream.write_all(b"k");
    let _ = stream.read(&mut [0]);
}

/// Until the peer has closed: a byte that waits stays there.
#[allow(clippy::needless_pass_by_value, reason = "closed at the end, as by the other targets")]
fn serve_idle(stream: TcpStream) {
    while let Ok(1..) = stream.peek(&mut [0]) {
        std::thread::sleep(Duration::from_millis(500));
    }
}

fn serve_echo(mut stream: TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..length]).is_err() {
            return;
        }
    }
}
