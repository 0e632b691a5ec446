//! What is counted of connections through a SOCKS5 door.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::text::{Kind, Text};

/// Why a client came not so far as to be answered whether it is connected; becomes the label `reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// It does not speak SOCKS5.
    Version,
    /// It offers no way to say who it is that will do.
    Method,
    /// Another user or password.
    Credentials,
    /// It took too long.
    Timeout,
    /// It went away.
    Closed,
}

/// Words for the nine replies of RFC 1928, by their numbers.
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

/// Counters of a door; nothing is written of them where there is none.
#[derive(Default)]
pub struct Door {
    stands: AtomicBool,
    open: AtomicU64,
    replies: [AtomicU64; REPLIES.len()],
    unanswered: [AtomicU64; REASONS.len()],
    received: AtomicU64,
    sent: AtomicU64,
}

/// A connection that is counted as open as long as this lives.
pub struct Open<'d>(&'d Door);

impl Door {
    /// There is one.
    pub fn stands(&self) {
        self.stands.store(true, Relaxed);
    }

    /// A connection came.
    pub fn opened(&self) -> Open<'_> {
        self.open.fetch_add(1, Relaxed);
        Open(self)
    }

    /// A request was answered with the reply of this number.
    pub fn replied(&self, number: u8) {
        if let Some(count) = self.replies.get(usize::from(number)) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// A client came not so far.
    pub fn unanswered(&self, reason: Unanswered) {
        self.unanswered[reason as usize].fetch_add(1, Relaxed);
    }

    /// So many bytes came from a client, and so many went to it.
    pub fn carried(&self, received: u64, sent: u64) {
        self.received.fetch_add(received, Relaxed);
        self.sent.fetch_add(sent, Relaxed);
    }

    /// Connections that are open now.
    pub fn connections(&self) -> u64 {
        self.open.load(Relaxed)
    }

    pub(super) fn render(&self, text: &mut Text) {
        if !self.stands.load(Relaxed) {
            return;
        }
        text.family("narthex_socks5_bytes_total", Kind::Counter, "Bytes carried, by direction as clients see it.");
        text.sample(&[("direction", "received")], self.sent.load(Relaxed));
        text.sample(&[("direction", "sent")], self.received.load(Relaxed));
        text.family("narthex_socks5_connections", Kind::Gauge, "Connections of clients that are open now.");
        text.sample(&[], self.open.load(Relaxed));
        text.family(
            "narthex_socks5_replies_total",
            Kind::Counter,
            "Requests to be connected, by how they were answered.",
        );
        for (reply, count) in REPLIES.into_iter().zip(&self.replies) {
            text.sample(&[("reply", reply)], count.load(Relaxed));
        }
        text.family(
            "narthex_socks5_unanswered_total",
            Kind::Counter,
            "Clients that did not come so far as to be answered, by why.",
        );
        for (reason, count) in REASONS.into_iter().zip(&self.unanswered) {
            text.sample(&[("reason", reason)], count.load(Relaxed));
        }
    }
}

impl Unanswered {
    /// As the label has it.
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
