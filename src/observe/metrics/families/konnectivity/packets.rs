//! `stream_packets_total` and `stream_errors_total` (`konnectivity-client/pkg/common/metrics`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::observe::metrics::exposition::{MetricType, MetricsText};

/// Value of the label `packet_type` of an error without a packet.
const NO_PACKET: &str = "Unknown";

/// Between whom packets go; value of the label `segment`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StreamSegment {
    /// From a client to a server.
    FromClient,
    /// From a server to a client.
    ToClient,
    /// From an agent to a server.
    FromAgent,
    /// From a server to an agent.
    ToAgent,
}

impl StreamSegment {
    /// All of them.
    pub const ALL: [StreamSegment; 4] =
        [StreamSegment::FromClient, StreamSegment::ToClient, StreamSegment::FromAgent, StreamSegment::ToAgent];

    fn as_str(self) -> &'static str {
        ["from_client", "to_client", "from_agent", "to_agent"][self as usize]
    }
}

/// The type of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamPacketType {
    /// `DIAL_REQ`.
    DialRequest,
    /// `DIAL_RSP`.
    DialResponse,
    /// `CLOSE_REQ`.
    CloseRequest,
    /// `CLOSE_RSP`.
    CloseResponse,
    /// `DATA`.
    Data,
    /// `DIAL_CLS`.
    CloseDial,
    /// `DRAIN`.
    Drain,
    /// Of the extension.
    WindowUpdate,
    /// Of the extension.
    WriteClosed,
    /// Any other.
    Unknown,
}

/// Values of the label `packet_type`, in the order of [`StreamPacketType`].
const PACKET_TYPES: [&str; 10] = [
    "DIAL_REQ",
    "DIAL_RSP",
    "CLOSE_REQ",
    "CLOSE_RSP",
    "DATA",
    "DIAL_CLS",
    "DRAIN",
    "WINDOW_UPDATE",
    "WRITE_CLOSED",
    "UNKNOWN",
];

/// Packets and errors of gRPC streams.
#[derive(Default)]
pub struct StreamMetrics {
    packets: [[AtomicU64; PACKET_TYPES.len()]; StreamSegment::ALL.len()],
    errors: Mutex<BTreeMap<(StreamSegment, &'static str), u64>>,
}

impl StreamMetrics {
    /// Counts a packet.
    pub fn record_packet(&self, segment: StreamSegment, packet_type: StreamPacketType) {
        self.packets[segment as usize][packet_type as usize].fetch_add(1, Relaxed);
    }

    /// Counts the end of a stream by an error. `code` is the name of a gRPC status, as grpc-go prints it.
    pub fn record_error(&self, segment: StreamSegment, code: &'static str) {
        *self.errors.lock().entry((segment, code)).or_default() += 1;
    }

    pub(super) fn errors_of(&self, counted_segment: StreamSegment) -> u64 {
        self.errors.lock().iter().filter(|((segment, _), _)| *segment == counted_segment).map(|(_, count)| count).sum()
    }

    /// Appends both families.
    pub(super) fn render(&self, text: &mut MetricsText, [packets, errors]: [&'static str; 2]) {
        text.family(packets, MetricType::Counter, "Packets, by segment and type.");
        for (segment, counts) in StreamSegment::ALL.into_iter().zip(&self.packets) {
            for (packet_type, count) in PACKET_TYPES.into_iter().zip(counts) {
                let count = count.load(Relaxed);
                if count > 0 {
                    text.sample(&[("segment", segment.as_str()), ("packet_type", packet_type)], count);
                }
            }
        }
        text.family(errors, MetricType::Counter, "Streams that ended by an error, by segment and gRPC status.");
        for ((segment, code), count) in &*self.errors.lock() {
            text.sample(&[("segment", segment.as_str()), ("code", code), ("packet_type", NO_PACKET)], *count);
        }
    }
}
