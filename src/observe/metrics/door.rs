//! Metrics of the SOCKS5 proxy.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::text::{Kind, Text};

/// Why a client disconnected or was rejected before the reply to its request; value of the label `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// The client does not use SOCKS5.
    Version,
    /// The client offers no acceptable authentication method.
    Method,
    /// Unknown user or wrong password.
    Credentials,
    /// The handshake timed out.
    Timeout,
    /// The client disconnected.
    Closed,
}

/// Labels of the nine replies of RFC 1928, by number.
pub const REPLIES: [&str; 9] = [
    "succeeded",
    "general_failure",
    "not_allowed",
    "network_unreachable",
    "host_unreachable",
    "connection_refused",
    "ttl_expired",
    "command_not_supported",
    "address_type_not_supported",
];
const REASONS: [&str; 5] = ["version", "method", "credentials", "timeout", "closed"];

/// Counters of the SOCKS5 proxy; rendered only if it is enabled.
#[derive(Default)]
pub struct Door {
    stands: AtomicBool,
    open: AtomicU64,
    replies: [AtomicU64; REPLIES.len()],
    unanswered: [AtomicU64; REASONS.len()],
    received: AtomicU64,
    sent: AtomicU64,
}

/// Counts a connection as open until it is dropped.
pub struct Open<'d>(&'d Door);

impl Door {
    /// Enables the metrics: this process is a SOCKS5 proxy.
    pub fn stands(&self) {
        self.stands.store(true, Relaxed);
    }

    /// Counts an accepted connection as open.
    pub fn opened(&self) -> Open<'_> {
        self.open.fetch_add(1, Relaxed);
        Open(self)
    }

    /// Counts a reply by its number.
    pub fn replied(&self, number: u8) {
        if let Some(count) = self.replies.get(usize::from(number)) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// Counts a client without a reply.
    pub fn unanswered(&self, reason: Unanswered) {
        self.unanswered[reason as usize].fetch_add(1, Relaxed);
    }

    /// Counts bytes received from and sent to a client.
    pub fn carried(&self, received: u64, sent: u64) {
        self.received.fetch_add(received, Relaxed);
        self.sent.fetch_add(sent, Relaxed);
    }

    /// Number of open connections.
    pub fn connections(&self) -> u64 {
        self.open.load(Relaxed)
    }

    pub(super) fn render(&self, text: &mut Text) {
        if !self.stands.load(Relaxed) {
            return;
        }
        text.family("narthex_socks5_bytes_total", Kind::Counter, "Bytes relayed, by direction from the client's view.");
        text.sample(&[("direction", "received")], self.sent.load(Relaxed));
        text.sample(&[("direction", "sent")], self.received.load(Relaxed));
        text.family("narthex_socks5_connections", Kind::Gauge, "Open client connections.");
        text.sample(&[], self.open.load(Relaxed));
        text.family("narthex_socks5_replies_total", Kind::Counter, "CONNECT requests, by reply.");
        for (reply, count) in REPLIES.into_iter().zip(&self.replies) {
            text.sample(&[("reply", reply)], count.load(Relaxed));
        }
        text.family(
            "narthex_socks5_unanswered_total",
            Kind::Counter,
            "Clients that disconnected or were rejected before a reply, by reason.",
        );
        for (reason, count) in REASONS.into_iter().zip(&self.unanswered) {
            text.sample(&[("reason", reason)], count.load(Relaxed));
        }
    }
}

impl Unanswered {
    /// Value of the label.
    pub fn as_str(self) -> &'static str {
        REASONS[self as usize]
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Format;
    use super::*;

    #[test]
    fn nothing_without_a_door_and_every_word_with_one() {
        let door = Door::default();
        let render = || {
            let mut text = Text::new(Format::Classic);
            door.render(&mut text);
            text.finish()
        };
        let open = door.opened();
        assert_eq!(render(), "");
        door.stands();
        door.replied(2);
        door.replied(200);
        door.unanswered(Unanswered::Closed);
        door.carried(3, 5);
        let text = render();
        for line in [
            "narthex_socks5_connections 1",
            "narthex_socks5_replies_total{reply=\"not_allowed\"} 1",
            "narthex_socks5_replies_total{reply=\"succeeded\"} 0",
            "narthex_socks5_unanswered_total{reason=\"closed\"} 1",
            "narthex_socks5_bytes_total{direction=\"sent\"} 3",
            "narthex_socks5_bytes_total{direction=\"received\"} 5",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
        drop(open);
        assert_eq!(door.connections(), 0);
    }
}
