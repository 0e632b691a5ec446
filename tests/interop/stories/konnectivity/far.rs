//! Targets behind an agent: plain TCP servers with one habit each.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};

use super::pattern;

/// What a target does with a connection.
#[derive(Clone, Copy)]
pub(super) enum Habit {
    /// Sends back what comes.
    Echo,
    /// Says hello, and closes.
    Banner,
    /// Reads to the end, and reports how much that was.
    Sink,
    /// Sends as many bytes as it is told, and closes.
    Source(usize),
    /// Reads nothing until the given receiver's sender is dropped.
    Deaf,
}

pub(super) const BANNER: &[u8] = b"220 welcome\r\n";

/// A listening target.
pub(super) struct Far {
    pub(super) port: u16,
    /// What a [`Habit::AuditWebhook`] received.
    pub(super) received: Receiver<usize>,
    /// Dropped, deaf ones go.
    pub(super) deafness: Option<Sender<()>>,
}

impl Far {
    pub(super) fn start(habit: Habit) -> Far {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (report, received) = channel();
        let (deafness, until) = channel::<()>();
        std::thread::spawn(move || {
            let mut deaf = Vec::new();
            if matches!(habit, Habit::Deaf) {
                deaf.push(listener.accept().unwrap());
                let _ = until.recv();
                return;
            }
            for stream in listener.incoming().map_while(Result::ok) {
                let report = report.clone();
                std::thread::Builder::new().stack_size(128 << 10).spawn(move || serve(habit, stream, &report)).unwrap();
            }
        });
        Far { port, received, deafness: Some(deafness) }
    }
}

/// What becomes of the connection is the other side's to judge.
fn serve(habit: Habit, mut stream: TcpStream, report: &Sender<usize>) {
    let mut buffer = vec![0; 32 << 10];
    match habit {
        Habit::Echo => {
            while let Ok(length @ 1..) = stream.read(&mut buffer) {
                if stream.write_all(&buffer[..length]).is_err() {
                    break;
                }
            }
        }
        Habit::Banner => {
            let _ = stream.write_all(BANNER);
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.read(&mut buffer);
        }
        Habit::Sink => {
            let mut all = 0;
            while let Ok(length @ 1..) = stream.read(&mut buffer) {
                all += length;
            }
            let _ = report.send(all);
        }
        Habit::Source(length) => {
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
        Habit::Deaf => {}
    }
}
