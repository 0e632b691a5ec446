//! Counts the packets and errors of one direction of a stream.

use std::sync::Arc;

use h2::Reason;
use konnectivity_client::{InvalidMessage, Packet};

use crate::observe::metrics::{StreamMetrics, StreamPacketType, StreamSegment};

/// The metrics of one direction of a stream.
#[derive(Clone)]
pub(super) struct StreamCounter {
    metrics: Arc<StreamMetrics>,
    segment: StreamSegment,
    /// gRPC status of a stream whose connection is lost: that of grpc-go differs between servers and clients.
    lost: &'static str,
}

impl StreamCounter {
    /// For the server, which accepts streams.
    pub(super) fn of_server(metrics: &Arc<StreamMetrics>, segment: StreamSegment) -> StreamCounter {
        StreamCounter { metrics: metrics.clone(), segment, lost: "Canceled" }
    }

    /// For the agent, which opens streams.
    pub(super) fn of_agent(metrics: &Arc<StreamMetrics>, segment: StreamSegment) -> StreamCounter {
        StreamCounter { metrics: metrics.clone(), segment, lost: "Unavailable" }
    }

    pub(super) fn record(&self, packet: &Packet) {
        let packet_type = match packet {
            Packet::DialRequest { .. } => StreamPacketType::DialRequest,
            Packet::DialResponse { .. } => StreamPacketType::DialResponse,
            Packet::CloseRequest { .. } => StreamPacketType::CloseRequest,
            Packet::CloseResponse { .. } => StreamPacketType::CloseResponse,
            Packet::Data { .. } => StreamPacketType::Data,
            Packet::CloseDial { .. } => StreamPacketType::CloseDial,
            Packet::Drain => StreamPacketType::Drain,
            Packet::WindowUpdate { .. } => StreamPacketType::WindowUpdate,
            Packet::WriteClosed { .. } => StreamPacketType::WriteClosed,
            Packet::Unknown(_) => StreamPacketType::Unknown,
        };
        self.metrics.record_packet(self.segment, packet_type);
    }

    pub(super) fn record_data(&self) {
        self.metrics.record_packet(self.segment, StreamPacketType::Data);
    }

    /// Counts a stream that broke, by the status that grpc-go makes of it.
    pub(super) fn record_error(&self, error: &h2::Error) {
        let code = match error.reason() {
            None | Some(Reason::NO_ERROR) => self.lost,
            Some(Reason::CANCEL) => "Canceled",
            Some(Reason::REFUSED_STREAM) => "Unavailable",
            Some(Reason::FLOW_CONTROL_ERROR | Reason::ENHANCE_YOUR_CALM) => "ResourceExhausted",
            Some(Reason::INADEQUATE_SECURITY) => "PermissionDenied",
            Some(_) => "Internal",
        };
        self.metrics.record_error(self.segment, code);
    }

    /// Counts a stream whose content is no packet.
    pub(super) fn record_invalid(&self, invalid: InvalidMessage) {
        let code = match invalid {
            InvalidMessage::TooLong(_) => "ResourceExhausted",
            InvalidMessage::Compressed | InvalidMessage::Malformed => "Internal",
        };
        self.metrics.record_error(self.segment, code);
    }
}
