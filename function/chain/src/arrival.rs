//! The packets that a chain receives.

use pando_flow::FlowKey;

/// A packet that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// An Ethernet frame.
    pub frame: &'a [u8],
    /// Time of arrival in nanoseconds, by any clock that all packets share.
    pub time_ns: u64,
    /// The packet came in at the outer of two devices. With one device, no packet did.
    pub outer: bool,
    /// The flow that steering assigned, and whether the packet has translated addresses.
    pub steered: Option<(FlowKey, bool)>,
}
