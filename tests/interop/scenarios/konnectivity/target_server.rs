//! TCP servers behind an agent.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};

use super::pattern;

/// Behavior of a target on a connection.
#[derive(Clone, Copy)]
pub(super) enum TargetBehavior {
    /// Echoes all bytes.
    Echo,
    /// Sends a banner and closes.
    Banner,
    /// Reads to the end and reports the number of bytes.
    Sink,
    /// Sends this number of bytes and closes.
    Source(usize),
    /// Reads nothing until [`TargetServer::release`] is dropped.
    NeverReads,
}

pub(super) const BANNER: &[u8] = b"220 welcome\r\n";

/// A listening target.
pub(super) struct TargetServer {
    pub(super) port: u16,
    /// Number of bytes that each connection of a [`TargetBehavior::Sink`] received.
    pub(super) received: Receiver<usize>,
    /// Drop to end a [`TargetBehavior::NeverReads`] target.
    pub(super) release: Option<Sender<()>>,
}

impl TargetServer {
    pub(super) fn start(behavior: TargetBehavior) -> TargetServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (report, received) = channel();
        let (release, until) = channel::<()>();
        std::thread::spawn(move || {
            let mut deaf = Vec::new();
            if matches!(behavior, TargetBehavior::NeverReads) {
                deaf.push(listener.accept().unwrap());
                let _ = until.recv();
                return;
            }
            for stream in listener.incoming().map_while(Result::ok) {
                let report = report.clone();
                std::thread::Builder::new()
                    .stack_size(128 << 10)
                    .spawn(move || serve(behavior, stream, &report))
                    .unwrap();
            }
        });
        TargetServer { port, received, release: Some(release) }
    }
}

/// Connection errors are ignored: the client asserts the outcome.
fn serve(behavior: TargetBehavior, mut stream: TcpStream, report: &Sender<usize>) {
    let mut buffer = vec![0; 32 << 10];
    match behavior {
        TargetBehavior::Echo => {
            while let Ok(length @ 1..) = stream.read(&mut buffer) {
                if stream.write_all(&buffer[..length]).is_err() {
                    break;
                }
            }
        }
        TargetBehavior::Banner => {
            let _ = stream.write_all(BANNER);
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.read(&mut buffer);
        }
        TargetBehavior::Sink => {
            let mut all = 0;
            while let Ok(length @ 1..) = stream.read(&mut buffer) {
                all += length;
            }
            let _ = report.send(all);
        }
        TargetBehavior::Source(length) => {
            let piece = pattern(251 * 256);
            let mut left = length;
            while left > 0 {
                let next = left.min(piece.len());
                if stream.write_all(&piece[..next]).is_err() {
                    return;
                }
                left -= next;
            }
        }
        TargetBehavior::NeverReads => {}
    }
}
